"""Tables and indexes in the catalogue of a database."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine.default import DefaultDialect
from sqlalchemy.engine.reflection import Inspector, ObjectKind, ObjectScope
from sqlalchemy.exc import DBAPIError

from msgworker.db.database import Trouble
from msgworker.db.errors import is_overtime, trouble


def names_there(inspector: Inspector, schema: str | None) -> list[str]:
    """The tables and views of a schema; an inspector reads them once."""
    return [*inspector.get_table_names(schema=schema), *inspector.get_view_names(schema=schema)]


def columns_there(
    inspector: Inspector, names: Sequence[str], schema: str | None
) -> dict[str, list[Any]]:
    """The columns of tables and views that are there, by name; one statement where the database
    describes many tables in one."""
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


def _asked(conn: sa.Connection, text: str, table: sa.Table, **more: Any) -> sa.CursorResult[Any]:
    """A query of the catalogue about one table, by the parameters that it has."""
    quoted = _quoted(table)
    known = {"table": quoted, "schema": table.schema, "owner": table.schema, "name": table.name}
    known |= more
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
    """The sequence of a column. name: in SQL, with its schema. next: the id that it gives next, or
    a higher one, where the database has given out some ahead; None if this login may not see it.
    used: it has given one. most: its last one. step: between two; below zero they fall."""

    name: str
    cycles: bool
    next: int | None
    used: bool = True
    most: int | None = None
    step: int = 1


_SEQUENCE_OF = (
    # its own, else the one that its default calls
    "SELECT quote_ident(nspname) || '.' || quote_ident(relname), seqcycle, seqmax, seqincrement,"
    " has_sequence_privilege(seqrelid, 'SELECT') FROM pg_sequence"
    " JOIN pg_class ON pg_class.oid = seqrelid JOIN pg_namespace n ON n.oid = relnamespace"
    " WHERE seqrelid = coalesce(pg_get_serial_sequence(:table, :column)::regclass::oid,"
    " (SELECT min(refobjid) FROM pg_attribute a JOIN pg_attrdef f ON f.adrelid = a.attrelid"
    " AND f.adnum = a.attnum JOIN pg_depend d ON d.classid = 'pg_attrdef'::regclass"
    " AND d.objid = f.oid AND d.refclassid = 'pg_class'::regclass"
    " JOIN pg_sequence s ON s.seqrelid = d.refobjid"
    " WHERE a.attrelid = to_regclass(:table) AND a.attname = :column))"
)
_DEFAULT_OF = (
    "SELECT column_default FROM information_schema.columns WHERE table_name = :name"
    " AND table_schema = coalesce(:schema, database()) AND column_name = :column"
)
_NAME = r"(?:`[^`]+`|\w+)"
_CALLED = re.compile(rf"^next(?:val\(|\s+value\s+for\s+)\s*({_NAME}(?:\.{_NAME})?)", re.I)
_IDENTITY_OF = (
    "SELECT i.sequence_name, s.cycle_flag, s.last_number, s.max_value, s.increment_by"
    " FROM all_tab_identity_cols i JOIN all_sequences s ON s.sequence_owner = i.owner"
    " AND s.sequence_name = i.sequence_name WHERE i.owner = coalesce(upper(:owner), user)"
    " AND i.table_name = :name AND lower(i.column_name) = lower(:column)"
)


def id_source(conn: sa.Connection, table: sa.Table, column: str) -> IdSource | None:
    """The sequence of a column, in a connection of `connecting`; None if there is none. Counters of
    tables (AUTO_INCREMENT, SQLite's) are none: they follow each id that is inserted."""
    name = _family(conn)
    try:
        if name == "postgresql":
            return _sequence_of(conn, table, column)
        if name == "mysql":
            return _called_by_default(conn, table, column)
        if name == "oracle":
            found = _asked(conn, _IDENTITY_OF, table, column=column).first()
            if found is None:
                return None
            name, cycles, ahead, most, step = tuple(found)
            return IdSource(f'"{name}"', cycles == "Y", int(ahead), True, int(most), int(step))
    except DBAPIError as error:
        if trouble(error) is Trouble.LOST or is_overtime(error):
            raise
    return None


def _sequence_of(conn: sa.Connection, table: sa.Table, column: str) -> IdSource | None:
    found = conn.execute(sa.text(_SEQUENCE_OF), {"table": _quoted(table), "column": column}).first()
    if found is None:
        return None
    name, cycles, most, step, readable = found
    if not readable:
        return IdSource(name, cycles, None, most=most, step=step)
    # What the catalogue says of it is NULL as well where it was set and not called since.
    last, used = conn.exec_driver_sql(
        f"SELECT last_value, is_called FROM {name}".replace("%", "%%")
    ).one()
    return IdSource(name, cycles, last + step if used else last, used, most, step)


def _called_by_default(conn: sa.Connection, table: sa.Table, column: str) -> IdSource | None:
    default = _asked(conn, _DEFAULT_OF, table, column=column).scalar()
    called = _CALLED.match(str(default or "").strip("( "))
    if called is None:
        return None
    name = called[1]
    query = f"SELECT next_not_cached_value, increment, cycle_option, maximum_value FROM {name}"
    ahead, step, cycles, most = conn.exec_driver_sql(query.replace("%", "%%")).one()
    return IdSource(name, bool(cycles), int(ahead), most=int(most), step=int(step))


def advancing(
    dialect: sa.Dialect, source: IdSource, table: str, column: str, highest: int
) -> list[str]:
    """The statement that lets a sequence go on behind the highest id. It looks for that itself, as
    far as the database can, and never puts a sequence back."""
    quoted = dialect.identifier_preparer.quote(column)
    if dialect.name == "postgresql":
        text = source.name.replace("'", "''")
        return [
            f"SELECT setval('{text}', highest) FROM"
            f" (SELECT max({quoted}) AS highest FROM {table}) m"
            f" WHERE highest >= (SELECT last_value FROM {source.name})"
        ]
    if dialect.name == "oracle":
        return [
            f"ALTER TABLE {table} MODIFY ({quoted} GENERATED BY DEFAULT AS IDENTITY "
            "(START WITH LIMIT VALUE))"
        ]
    return [f"DO SETVAL({source.name}, {highest})"]  # it does nothing for a lower value


def not_cycling(dialect: sa.Dialect, source: IdSource, table: str, column: str) -> str:
    """The statement that ends a sequence at its last id."""
    if dialect.name == "oracle":  # which lets nobody alter the sequence of an identity
        quoted = dialect.identifier_preparer.quote(column)
        return f"ALTER TABLE {table} MODIFY ({quoted} GENERATED BY DEFAULT AS IDENTITY (NOCYCLE))"
    word = "NO CYCLE" if dialect.name == "postgresql" else "NOCYCLE"
    return f"ALTER SEQUENCE {source.name} {word}"
