"""What drivers are given directly: autocommit, the state of a transaction, statements as texts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy.types import TypeEngine

from msgworker.db.connections import WATCHED
from msgworker.db.database import of, of_dialect
from msgworker.db.types import AnyText

ISOLATION: Final = "READ COMMITTED"
"""The isolation level of all our connections, whatever the default of server or engine."""
CONNECT_SECONDS = 10
READ_SECONDS = 600
WRITE_SECONDS = 60
PROGRAM = "msgworker"
"""What our sessions are called on the server, unless the URL or the environment says otherwise."""


@contextmanager
def committing_each(conn: sa.Connection) -> Iterator[None]:
    """Autocommit for the statements of the block, while no transaction is open; not on SQLite. If
    the connection is lost meanwhile it must be returned."""
    # Not by execution options: each change of them is kept for the life of the connection.
    raw: Any = conn.connection.dbapi_connection
    _commit_each(conn, raw, True)
    try:
        yield
    except BaseException:
        with suppress(Exception):
            _commit_each(conn, raw, False)
        raise
    _commit_each(conn, raw, False)


def _commit_each(conn: sa.Connection, raw: Any, yes: bool) -> None:
    if of(conn).autocommit_flag:  # these drivers keep the level
        raw.autocommit = yes
    else:
        conn.dialect.set_isolation_level(raw, "AUTOCOMMIT" if yes else ISOLATION)


def commits_each(conn: sa.Connection) -> bool:
    """Whether the connection of a caller, who has sent a statement of a transaction, commits each
    of them: by its options or its Engine's, or by what was set in the driver's connection."""
    if conn.get_execution_options().get("isolation_level") == "AUTOCOMMIT":
        return True
    raw: Any = conn.connection.dbapi_connection
    if of(conn).one_writer:
        return not getattr(conn.connection.driver_connection, "in_transaction", True)
    if hasattr(raw, "get_autocommit"):
        return bool(raw.get_autocommit())
    return bool(getattr(raw, "autocommit", False))


_IDLE, _IN_ERROR = 0, 3  # of libpq's PGTransactionStatusType


def is_aborted(conn: sa.Connection) -> bool:
    """Whether an error has aborted the transaction: until a rollback, also to a savepoint, every
    further statement fails. Only PostgreSQL does that."""
    if conn.closed or conn.invalidated:
        return False
    return _status(conn) == _IN_ERROR


def has_sent_nothing(conn: sa.Connection) -> bool:
    """Whether no statement was sent in the transaction of `conn`, so that the server has none;
    False where the driver does not know. psycopg sends BEGIN with the first statement."""
    return _status(conn) == _IDLE


def _status(conn: sa.Connection) -> int | None:
    raw: Any = conn.connection.driver_connection
    status = getattr(getattr(raw, "info", None), "transaction_status", None)
    return status if isinstance(status, int) else None


# --- The most frequent statements, kept as texts.


class QueryText(NamedTuple):
    """A compiled query. fixed: the values that are part of the query itself."""

    sql: str
    fixed: dict[str, Any]


def text_kind(conn: sa.Connection) -> tuple[str, bool]:
    """Connections of one kind are sent the same texts: those of a driver, with or without names of
    schemas that are translated."""
    return conn.dialect.driver, "schema_translate_map" in conn.get_execution_options()


def text_for(conn: sa.Connection, query: Any) -> QueryText | None:
    """The query as `fetch_text` sends it, to be kept; None if its names depend on the options of
    the connection, its parameters on their order, or a value on its type."""
    if conn.dialect.positional or conn.get_execution_options().get("schema_translate_map"):
        return None
    compiled = query.compile(dialect=conn.dialect)
    given = (bind.type for bind in compiled.binds.values())
    read = (column.type for column in query.exported_columns)
    if any(_converts(kind, conn.dialect, "bind_processor") for kind in given):
        return None
    if any(_converts(kind, conn.dialect, "result_processor", None) for kind in read):
        return None
    fixed = {name: value for name, value in compiled.params.items() if value is not None}
    return QueryText(str(compiled), fixed)


def _converts(kind: TypeEngine[Any], dialect: sa.Dialect, way: str, *column_type: Any) -> bool:
    """Whether SQLAlchemy converts values of a type on their way to the driver, or back."""
    own = kind.dialect_impl(dialect)
    if isinstance(own, sa.ARRAY):  # it copies the list
        return _converts(own.item_type, dialect, way, *column_type)
    if isinstance(own, AnyText):
        return of_dialect(dialect).odd_texts
    if isinstance(own, sa.Numeric | sa.Float) and column_type:
        return True  # by the type that the driver names with the row
    return getattr(own, way)(dialect, *column_type) is not None


def fetch_text(
    conn: sa.Connection,
    text: QueryText,
    params: dict[str, Any],
    *,
    kept: bool = False,
    rows: bool = True,
) -> Sequence[Any]:
    """All rows of a query, as the driver gives them. For the most frequent queries: SQLAlchemy
    converts nothing, which takes as long as the driver and the network. Its errors, its events
    of a cursor and its connections do not change.

    kept: by a cursor that is kept for this query, which is cheaper; its last rows stay in memory.
    rows: False = it gives none.
    """
    values = text.fixed | params
    if _is_listened_to(conn):
        result = conn.exec_driver_sql(text.sql, values)
        found: Sequence[Any] = result.cursor.fetchall() if rows else ()
        result.close()
        return found
    if not conn.in_transaction():
        conn.begin()
    cursors = conn.info.setdefault(_CURSORS, {})
    cursor = cursors.pop(text.sql, None) or conn.connection.cursor()
    try:
        cursor.execute(text.sql, values)
        found = cursor.fetchall() if rows else ()
    except Exception as error:
        # It has no public name: wraps the error, calls its listeners, and drops a dead connection.
        conn._handle_dbapi_exception(error, text.sql, values, cursor, None)
    if kept:
        cursors[text.sql] = cursor
    else:
        cursor.close()
    return found


@contextmanager
def saving(conn: sa.Connection) -> Iterator[None]:
    """A savepoint before the block, in a transaction; an error of the block rolls back to it. For
    databases whose savepoints end with the transaction: it is not released, which costs as much as
    to set it."""
    fetch_text(conn, _SAVEPOINT, {}, kept=True, rows=False)
    try:
        yield
    except BaseException:
        if not conn.invalidated:
            conn.exec_driver_sql("ROLLBACK TO SAVEPOINT msgworker")
        raise


_SAVEPOINT = QueryText("SAVEPOINT msgworker", {})


_CURSORS = "msgworker_cursors"
"""In the `info` of a connection, which lives as long as that of the driver: those that are kept."""


def _is_listened_to(conn: sa.Connection) -> bool:
    """Whether statements are listened for, or logged: who does so gets SQLAlchemy's context
    of an execution, which costs more than the driver's cursor."""
    cursor, driver = conn.dispatch, conn.dialect.dispatch
    return bool(
        len(cursor.before_cursor_execute) > (WATCHED in conn.get_execution_options())
        or cursor.after_cursor_execute
        or driver.do_execute
        or conn.engine.logger.isEnabledFor(logging.INFO)
    )


def change_each(conn: sa.Connection, change: sa.Update, rows: list[dict[str, Any]]) -> int:
    """How many rows an UPDATE of one row has changed, for each of these parameters: in one call,
    where the driver counts over all of them."""
    if conn.dialect.supports_sane_multi_rowcount:
        return conn.execute(change, rows).rowcount
    return sum([conn.execute(change, row).rowcount for row in rows])


class ChangeText(NamedTuple):
    """A compiled UPDATE. fixed: the values that are part of the statement. lists: parameters
    whose ids are written into it. order: of the parameters, where they have no names. converted:
    those that the driver does not take as they are."""

    sql: str
    fixed: dict[str, Any]
    lists: tuple[str, ...]
    order: tuple[str, ...]
    converted: tuple[tuple[str, Callable[[Any], Any]], ...]


def change_text_for(conn: sa.Connection, change: Any) -> ChangeText | None:
    """An UPDATE of rows that are given by a list of ids, to be kept for `change_by_text`; None
    where the server gets each id as a value.

    SQLite takes the list as one text. PyMySQL writes all values into the statement itself, one by
    one, which took longer than everything else that is done for a row.
    """
    dialect = conn.dialect
    inlines = dialect.paramstyle == of_dialect(dialect).inlined_lists
    if not inlines or conn.get_execution_options().get("schema_translate_map"):
        return None
    compiled = change.compile(dialect=dialect)
    binds = {name: bind for bind, name in compiled.bind_names.items()}
    lists = tuple(name for name, bind in binds.items() if bind.expanding)
    fixed = {name: value for name, value in compiled.params.items() if value is not None}
    kinds = {name: bind.type.dialect_impl(dialect) for name, bind in binds.items()}
    ways = {name: kind.bind_processor(dialect) for name, kind in kinds.items() if name not in lists}
    converted = tuple((name, way) for name, way in ways.items() if way is not None)
    order = tuple(compiled.positiontup or ()) if dialect.positional else ()
    return ChangeText(str(compiled), fixed, lists, order, converted)


def change_by_text(conn: sa.Connection, text: ChangeText, params: dict[str, Any]) -> int:
    """How many rows it has changed. Each list must have an id at least."""
    sql, values = text.sql, text.fixed | params
    for name in text.lists:
        ids = ", ".join(map(int.__repr__, values.pop(name)))  # of nothing else than numbers
        sql = sql.replace(f"__[POSTCOMPILE_{name}]", ids)
    for name, convert in text.converted:
        values[name] = convert(values[name])
    given = tuple([values[name] for name in text.order]) if text.order else values
    return conn.exec_driver_sql(sql, given).rowcount
