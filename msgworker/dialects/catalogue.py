"""Tables and indexes in the catalogue of a database."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine.default import DefaultDialect
from sqlalchemy.engine.reflection import Inspector, ObjectKind, ObjectScope
from sqlalchemy.exc import DBAPIError

from msgworker.dialects.troubles import Trouble, trouble


def names_there(inspector: Inspector, schema: str | None) -> list[str]:
    """The tables and views of a schema; an inspector reads them once."""
    return [*inspector.get_table_names(schema=schema), *inspector.get_view_names(schema=schema)]


def columns_there(
    inspector: Inspector, names: Sequence[str], schema: str | None
) -> dict[str, list[Any]]:
    """The columns of tables and views that are there, by name; one statement where the database
    tells of many tables in one."""
    if type(inspector.dialect).get_multi_columns is DefaultDialect.get_multi_columns:
        return {name: list(inspector.get_columns(name, schema=schema)) for name in names}
    found = inspector.get_multi_columns(
        schema=schema, filter_names=names, kind=ObjectKind.ANY, scope=ObjectScope.ANY
    )
    return {name: list(columns) for (_, name), columns in found.items()}


def is_there(inspector: Inspector, table: sa.Table) -> bool | None:
    """Whether a table exists; None if this login may not see it."""
    try:
        return inspector.has_table(table.name, schema=table.schema)
    except DBAPIError as error:  # MySQL describes only tables on which the login has a right
        if trouble(error) is not Trouble.REFUSED:
            raise
        return None


OTHER_SCHEMAS = {
    "postgresql": "SELECT table_schema FROM information_schema.tables"
    " WHERE lower(table_name) = lower(:name) AND table_schema <> coalesce(:own, current_schema())",
    "mysql": "SELECT table_schema FROM information_schema.tables"
    " WHERE table_name = :name AND table_schema <> coalesce(:own, database(), '-')",
    "oracle": "SELECT owner FROM all_objects WHERE object_type IN ('TABLE', 'VIEW')"
    " AND object_name IN (:name, upper(:name))"
    " AND owner <> upper(coalesce(:own, sys_context('userenv', 'current_schema')))",
}
"""Other schemas in which this login sees a table or view of this name."""


def schemas_with(conn: sa.Connection, name: str, *, but: str | None) -> list[str]:
    """The other schemas (databases on MariaDB and MySQL) with a table of this name, as far as this
    login sees them, as SQLAlchemy names them; but: None for the default one."""
    backend = {"mariadb": "mysql"}.get(conn.dialect.name, conn.dialect.name)
    if backend not in OTHER_SCHEMAS:
        return []
    query = sa.text(OTHER_SCHEMAS[backend])
    found = conn.scalars(query, {"name": name, "own": but}).all()
    if conn.dialect.requires_name_normalize:  # Oracle keeps plain names in capitals
        found = [conn.dialect.normalize_name(schema) for schema in found]
    return sorted({str(schema) for schema in found})


def _quoted(table: sa.Table) -> str:
    """The table's name as PostgreSQL's to_regclass reads it; a value, so nothing is escaped."""
    parts = [part for part in (table.schema, table.name) if part is not None]
    return ".".join('"' + part.replace('"', '""') + '"' for part in parts)


def index_names(
    conn: sa.Connection, table: sa.Table, inspector: Inspector | None = None
) -> set[str]:
    """The lower-case names of a table's indexes, those on expressions included. inspector: one that
    may know them already."""
    if conn.dialect.name == "sqlite":  # the inspector leaves out indexes on expressions
        query = (
            "SELECT lower(name) FROM sqlite_master"
            " WHERE type = 'index' AND lower(tbl_name) = lower(:table)"
        )
        return set(conn.scalars(sa.text(query), {"table": table.name}))
    if conn.dialect.name == "postgresql":  # much less than the inspector's queries
        query = (
            "SELECT lower(c.relname) FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid"
            " WHERE i.indrelid = to_regclass(:table)"
        )
        quoted = _quoted(table)
        return set(conn.scalars(sa.text(query), {"table": quoted}))
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # "skipped unsupported reflection of expression-based index"
        found = (inspector or sa.inspect(conn)).get_indexes(table.name, schema=table.schema)
    return {str(index["name"]).lower() for index in found}


def has_partitions(inspector: Inspector, table: sa.Table) -> bool:
    """Whether a table of PostgreSQL has partitions, which are tables."""
    if inspector.dialect.name != "postgresql":
        return False
    query = "SELECT FROM pg_partitioned_table WHERE partrelid = to_regclass(:table)"
    assert isinstance(inspector.bind, sa.Connection)
    return inspector.bind.execute(sa.text(query), {"table": _quoted(table)}).first() is not None


def index_parts(conn: sa.Connection, table: sa.Table, index: str) -> set[str]:
    """The name of an index, and of its parts if it is over partitions: plans name those."""
    if conn.dialect.name != "postgresql":
        return {index}
    query = (
        "SELECT c.relname FROM pg_index i JOIN pg_class p ON p.oid = i.indexrelid"
        " CROSS JOIN pg_partition_tree(p.oid) t JOIN pg_class c ON c.oid = t.relid"
        " WHERE i.indrelid = to_regclass(:table) AND p.relname = :index"
    )
    known = {"table": _quoted(table), "index": index}
    return {index, *conn.scalars(sa.text(query), known)}


def is_enforced(conn: sa.Connection, table: sa.Table, index: str) -> bool:
    """Whether a unique index is there, and unique, as far as that is told; of PostgreSQL also
    whether it is finished, on all partitions."""
    if conn.dialect.name != "postgresql":
        there = index.lower() in index_names(conn, table)
        return there and index_is_unique(conn, table, index) is not False
    query = (
        "SELECT FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid WHERE indisunique"
        " AND indisvalid AND indisready AND i.indrelid = to_regclass(:table) AND relname = :index"
    )
    known = {"table": _quoted(table), "index": index}
    return conn.execute(sa.text(query), known).first() is not None


def invalid_indexes(conn: sa.Connection, table: sa.Table) -> set[str]:
    """Indexes whose creation was interrupted: they exist but are not valid."""
    if conn.dialect.name != "postgresql":
        return set()
    query = (
        "SELECT c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid"
        " WHERE i.indrelid = to_regclass(:table) AND NOT (i.indisvalid AND i.indisready)"
    )
    quoted = _quoted(table)
    return {str(name).lower() for name in conn.scalars(sa.text(query), {"table": quoted})}


def index_is_unique(conn: sa.Connection, table: sa.Table, index: str) -> bool | None:
    """Whether an index is unique; None if the database does not tell."""
    if conn.dialect.name == "sqlite":
        query = (
            "SELECT sql FROM sqlite_master WHERE type = 'index' AND lower(name) = lower(:name)"
            " AND lower(tbl_name) = lower(:table)"
        )
        text = conn.scalar(sa.text(query), {"name": index, "table": table.name})
        return None if text is None else "UNIQUE" in str(text).upper().split(" ON ")[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # indexes on expressions
        found = sa.inspect(conn).get_indexes(table.name, schema=table.schema)
    return next((bool(i["unique"]) for i in found if str(i["name"]).lower() == index.lower()), None)


_ROW_ESTIMATES = {
    "postgresql": "SELECT reltuples FROM pg_class WHERE oid = to_regclass(:table)",
    "mysql": "SELECT table_rows FROM information_schema.tables"
    " WHERE table_schema = coalesce(:schema, database()) AND table_name = :name",
    "oracle": "SELECT num_rows FROM all_tables"
    " WHERE owner = coalesce(upper(:owner), user) AND table_name = :name",
}


def row_estimate(conn: sa.Connection, table: sa.Table) -> int | None:
    """How many rows a table has according to the database's statistics; None if unknown.

    SQLite has no statistics; there ids are consecutive, and the highest one is close.
    """
    name = _family(conn)
    if name not in _ROW_ESTIMATES:
        (key,) = table.primary_key.columns
        span = sa.select(sa.func.max(key) - sa.func.min(key) + 1)
        return conn.scalar(span)
    found = _asked(conn, _ROW_ESTIMATES[name], table).scalar()
    return None if found is None or found < 0 else int(found)


def _family(conn: sa.Connection) -> str:
    return {"mariadb": "mysql"}.get(conn.dialect.name, conn.dialect.name)


def _asked(conn: sa.Connection, text: str, table: sa.Table) -> sa.CursorResult[Any]:
    """A query of the catalogue about one table, by the parameters that it has."""
    quoted = _quoted(table)
    known = {"table": quoted, "schema": table.schema, "owner": table.schema, "name": table.name}
    if conn.dialect.name == "oracle" and table.name.lower() == table.name:
        known["name"] = table.name.upper()
    query = sa.text(text)
    return conn.execute(query, {key: known[key] for key in query._bindparams})


TABLE_SIZES = {
    # a table with partitions has no rows itself; one without has no tree
    "postgresql": "SELECT pg_table_size(c.oid) + coalesce((SELECT sum(pg_table_size(p.relid))"
    " FROM pg_partition_tree(c.oid) p WHERE p.relid <> c.oid), 0),"
    " pg_indexes_size(c.oid) + coalesce((SELECT sum(pg_indexes_size(p.relid))"
    " FROM pg_partition_tree(c.oid) p WHERE p.relid <> c.oid), 0)"
    " FROM pg_class c WHERE c.oid = to_regclass(:table) AND c.relkind IN ('r', 'p')",
    "mysql": "SELECT data_length, index_length FROM information_schema.tables"
    " WHERE table_schema = coalesce(:schema, database()) AND table_name = :name",
    # the login's own tables; those without rows may have no segment yet
    "oracle": "SELECT (SELECT coalesce(sum(bytes), 0) FROM user_segments"
    " WHERE segment_name = user_tables.table_name OR segment_name IN"
    " (SELECT user_lobs.segment_name FROM user_lobs"
    " WHERE user_lobs.table_name = user_tables.table_name)),"
    " (SELECT coalesce(sum(bytes), 0) FROM user_segments WHERE segment_name IN"
    " (SELECT user_indexes.index_name FROM user_indexes"
    " WHERE user_indexes.table_name = user_tables.table_name))"
    " FROM user_tables WHERE table_name = :name AND coalesce(upper(:owner), user) = user",
}
"""The bytes of a table and of its indexes."""


def table_size(conn: sa.Connection, table: sa.Table) -> tuple[int, int] | None:
    """The bytes of a table and of its indexes; None if it is not there, or the database does not
    tell: SQLite only of the whole file, see `file_size`; Oracle only of the login's own tables.

    On MariaDB and MySQL from statistics, and with the primary key among the rows.
    """
    text = TABLE_SIZES.get(_family(conn))
    found = None if text is None else _asked(conn, text, table).first()
    if found is None:
        return None
    rows, indexes = tuple(found)
    return None if rows is None else (int(rows), int(indexes or 0))


def sizes_are_exact(conn: sa.Connection) -> bool:
    """Whether sizes are those of this moment; else they are from statistics."""
    return _family(conn) != "mysql"


def file_size(conn: sa.Connection) -> int | None:
    """The bytes of a database that is one file (SQLite), all its tables included; else None."""
    if conn.dialect.name != "sqlite":
        return None
    query = "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()"
    return int(conn.scalar(sa.text(query)))


@dataclass(frozen=True, slots=True)
class IdSource:
    """The sequence of a column. name: in SQL. last: its last value; None
    if it gave none yet, or this login may not see it."""

    name: str
    cycles: bool
    last: int | None


def id_source(conn: sa.Connection, table: sa.Table, column: str) -> IdSource | None:
    """The sequence of a column; None if there is none, or the database needs none."""
    if conn.dialect.name != "postgresql":
        return None
    query = sa.text(
        "SELECT seqrelid::regclass::text, seqcycle,"
        " CASE WHEN has_sequence_privilege(seqrelid, 'USAGE, SELECT')"
        " THEN pg_sequence_last_value(seqrelid) END"
        " FROM pg_sequence WHERE seqrelid = pg_get_serial_sequence(:table, :column)::regclass"
    )
    found = conn.execute(query, {"table": _quoted(table), "column": column}).first()
    return None if found is None else IdSource(*found)
