"""The catalogue of a database, and the settings and plans of its server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine.default import DefaultDialect
from sqlalchemy.engine.reflection import Inspector, ObjectKind, ObjectScope
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler

from msgworker.db.database import IdSource, Trouble, of, quoted
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


def schemas_with(conn: sa.Connection, name: str, *, but: str | None) -> list[str]:
    """The other schemas (databases on MariaDB and MySQL) with a table of this name, as far as this
    login sees them, as SQLAlchemy names them; but: None for the default one."""
    query = of(conn).other_schemas
    if not query:
        return []
    found = conn.scalars(sa.text(query), {"name": name, "own": but}).all()
    if conn.dialect.requires_name_normalize:  # Oracle keeps plain names in capitals
        found = [conn.dialect.normalize_name(schema) for schema in found]
    return sorted({str(schema) for schema in found})


def asked(conn: sa.Connection, text: str, table: sa.Table, **more: Any) -> sa.CursorResult[Any]:
    """A query of the catalogue about one table, by the parameters that it has."""
    name = of(conn).catalogue_name(table.name)
    known = {"table": quoted(table), "schema": table.schema, "name": name, **more}
    query = sa.text(text)
    return conn.execute(query, {key: known[key] for key in query._bindparams})


def row_estimate(conn: sa.Connection, table: sa.Table) -> int | None:
    """How many rows a table has according to the database's statistics; None if unknown.

    SQLite has no statistics; there ids are consecutive, and the highest one is close.
    """
    query = of(conn).row_estimate
    if not query:
        (key,) = table.primary_key.columns
        span = sa.select(sa.func.max(key) - sa.func.min(key) + 1)
        return conn.scalar(span)
    found = asked(conn, query, table).scalar()
    return None if found is None or found < 0 else int(found)


def table_size(conn: sa.Connection, table: sa.Table) -> tuple[int, int] | None:
    """The bytes of a table and of its indexes; None if it is not there, or the database does not
    report them: SQLite only those of the whole file, see `file_size`; Oracle only those of the
    login's own tables.

    On MariaDB and MySQL from statistics, and with the primary key among the rows.
    """
    query = of(conn).table_size
    found = asked(conn, query, table).first() if query else None
    if found is None:
        return None
    rows, indexes = tuple(found)
    return None if rows is None else (int(rows), int(indexes or 0))


def file_size(conn: sa.Connection) -> int | None:
    """The bytes of a database that is one file (SQLite), all its tables included; else None."""
    query = of(conn).file_size
    return int(conn.scalar(sa.text(query))) if query else None


def id_source(conn: sa.Connection, table: sa.Table, column: str) -> IdSource | None:
    """The sequence of a column, in a connection of `connecting`; None if there is none. Counters of
    tables (AUTO_INCREMENT, SQLite's) are none: they follow each id that is inserted."""
    try:
        return of(conn).id_source(conn, table, column)
    except DBAPIError as error:
        if trouble(error) is Trouble.LOST or is_overtime(error):
            raise
    return None


# --- What `doctor` asks of a server.


def refuses_all_writes(conn: sa.Connection) -> str:
    """Why the server would refuse every write, whatever the table; "" if nothing says so."""
    for setting in of(conn).server_settings:
        if not setting.stops:
            continue
        try:
            value = str(conn.scalar(sa.text(setting.query)))
        except DBAPIError as error:
            if trouble(error) is Trouble.LOST or is_overtime(error):
                raise
            continue
        if value.lower() not in setting.good:
            return f"{setting.name} is {value}: {setting.otherwise}. To fix it: {setting.mend}"
    return ""


class _Explained(sa.Executable, sa.ClauseElement):
    inherit_cache = False

    def __init__(self, query: Any, prefix: str) -> None:
        self.query = query
        self.prefix = prefix


@compiles(_Explained)
def _explained(element: _Explained, compiler: SQLCompiler, **kw: Any) -> str:
    return f"{element.prefix}{compiler.process(element.query, **kw)}"


def plan_of(conn: sa.Connection, query: Any, params: dict[str, Any]) -> list[str] | None:
    """The database's plan of a query, in lines; None if a plan needs more than reading."""
    database = of(conn)
    if not database.explain:
        return None
    found = conn.execute(_Explained(query, database.explain), params).all()
    return [database.plan_line(row) for row in found]
