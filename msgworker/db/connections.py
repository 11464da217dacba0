"""Connections for reads and writes, and the errors of an unusable database."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import lru_cache, partial
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.types import TypeEngine

from msgworker.db.attempts import attempt
from msgworker.db.database import Database, Trouble, of, of_dialect
from msgworker.db.drivers import odd_texts
from msgworker.db.errors import (
    is_denied,
    is_of_the_session,
    lacks_memory,
    masked,
    reason_of,
    secrets_of,
    trouble,
    without,
)
from msgworker.db.poolers import shares_sessions
from msgworker.db.types import AnyText
from msgworker.errors import ConfigError, DatabaseUnavailable, SchemaError

_ANY_TEXT = partial(str, encoding="utf-8", errors="surrogateescape")


@contextmanager
def reading_any_text(conn: sa.Connection) -> Iterator[None]:
    """The block's queries also read texts that are not UTF-8: invalid bytes become half
    surrogates. SQLite stores any bytes of a producer, and its driver fails on them."""
    raw: Any = conn.connection.driver_connection
    if not hasattr(raw, "text_factory"):
        yield
        return
    kept, raw.text_factory = raw.text_factory, _ANY_TEXT
    try:
        yield
    finally:
        raw.text_factory = kept


class Escaped(list[Any]):
    """Rows whose texts may contain half surrogates for bytes that are not UTF-8."""


def fetch(conn: sa.Connection, query: Any, params: dict[str, Any]) -> Sequence[Any]:
    """All rows of a query; as Escaped if the driver cannot decode a text of one of them."""
    odd_texts.met = False
    try:
        found = conn.execute(query, params).all()
        return Escaped(found) if odd_texts.met else found
    except OperationalError as error:
        if "decode" not in str(error.orig):
            raise
    with reading_any_text(conn):
        return Escaped(conn.execute(query, params).all())


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
    if isinstance(own, sa.Numeric) and column_type:
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
        len(cursor.before_cursor_execute) > (_WATCHED in conn.get_execution_options())
        or cursor.after_cursor_execute
        or driver.do_execute
        or conn.engine.logger.isEnabledFor(logging.INFO)
    )


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


def connected(engine: sa.Engine) -> sa.Connection:
    """A new connection. The statement by which SQLAlchemy gives it our isolation level, where that
    needs one, fails with the driver's own error, which it does not wrap: DatabaseUnavailable."""
    try:
        return engine.connect()
    except engine.dialect.loaded_dbapi.Error as error:
        raise unavailable(engine, error) from error
    except RuntimeError as error:
        if "cryptography" not in str(error):
            raise
        raise ConfigError(
            "MySQL checks this login's password (caching_sha2_password) by a key of the server's, "
            "for which the driver needs the package cryptography: pip install cryptography; or "
            "connect with TLS"
        ) from None


@contextmanager
def returned(conn: sa.Connection) -> Iterator[None]:
    """Return a connection behind the block; after an error that may be one of its session it is
    closed. What was done is done if the statement fails by which SQLAlchemy resets its isolation
    level, again with the driver's own error: it is dropped then."""
    try:
        yield
    except BaseException as error:
        if is_of_the_session(error):
            spoil(conn)
        raise
    finally:
        if is_spoilt(conn):
            with suppress(Exception):
                conn.invalidate()
        with suppress(conn.dialect.loaded_dbapi.Error):
            conn.close()


_SPOILT, _LED = "msgworker_spoilt", "msgworker_led"
"""In the attributes of a connection."""
_BEGINS = r"(?:^|;)(?:\s|/\*.*?\*/|--[^\n]*\n)*(?:{})\b"
_LASTING = re.compile(
    _BEGINS.format(
        r"SET\s+(?!LOCAL\b|TRANSACTION\b|CONSTRAINTS?\b|STATEMENT\b)|RESET|USE|PRAGMA|DISCARD|LISTEN"
        r"|PREPARE|ATTACH|DETACH|LOAD|ALTER\s+SESSION|LOCK\s+TABLES"
        r"|CREATE\s+(?:OR\s+REPLACE\s+)?(?:(?:GLOBAL|LOCAL)\s+)?TEMP(?:ORARY)?"
    )
    + r"|\b(?:set_config|pg_(?:try_)?advisory_lock(?:_shared)?|get_lock|set_context|set_role)\s*\(",
    re.IGNORECASE | re.DOTALL,
)
"""Statements whose effect may outlast their transaction."""
_LEADING = re.compile(
    r"search_path|\brole\b|authorization|current_schema|container|\bTEMP|"
    + _BEGINS.format("USE|ATTACH|DETACH"),
    re.IGNORECASE | re.DOTALL,
)
"""Of these and of `SET LOCAL`: those by which the name of a table may lead to another one."""
_SETS = re.compile(_BEGINS.format("SET"), re.IGNORECASE | re.DOTALL)
_BEGINNING = 1_000
"""So many characters of a statement are looked at."""


def spoil(conn: sa.Connection) -> None:
    """What is set in the session of `conn` is unknown: its Link closes it for good."""
    vars(conn)[_SPOILT] = True


def is_spoilt(conn: sa.Connection) -> bool:
    """Whether it is."""
    return getattr(conn, _SPOILT, False)


def led_elsewhere(conn: sa.Connection) -> str | None:
    """The last statement of user code by which the names of our tables may lead to others; None if
    there was none. Reading it clears it."""
    found: str | None = vars(conn).pop(_LED, None)
    return found


def _note_session(conn: sa.Connection, _cursor: Any, statement: str, params: Any, *_: Any) -> Any:
    lasts, leads = _effects(statement[:_BEGINNING])
    if lasts:
        spoil(conn)
    if leads:
        vars(conn)[_LED] = statement[:100]
    return statement, params


@lru_cache(maxsize=1_000)
def _effects(statement: str) -> tuple[bool, bool]:
    lasts = _LASTING.search(statement) is not None
    leads = (lasts or _SETS.search(statement)) and _LEADING.search(statement)
    return lasts, bool(leads)


def _note_error(context: Any) -> None:
    error = context.sqlalchemy_exception or context.original_exception
    if context.connection is not None and is_of_the_session(error):
        spoil(context.connection)


def doubt_sessions(engine: sa.Engine) -> None:
    """After an error that may be one of its session a connection of this engine is spoilt, also
    where the error is caught at the statement and others follow."""
    event.listen(engine, "handle_error", _note_error)
    engine.update_execution_options(**{_OURS: True})


def is_ours_alone(conn: sa.Connection) -> bool:
    """Whether only the package uses this connection, so that its settings are known."""
    return _OURS in conn.get_execution_options()


def watch_sessions(engine: sa.Engine) -> None:
    """Note what user code sets in the sessions of this engine, see `spoil` and `led_elsewhere`; a
    statement that it sends by a cursor of the driver is not seen."""
    event.listen(engine, "before_cursor_execute", _note_session, retval=True)
    engine.update_execution_options(**{_WATCHED: True})


_WATCHED = "msgworker_watched"
_OURS = "msgworker_ours"


@contextmanager
def connecting(engine: sa.Engine) -> Iterator[sa.Connection]:
    """A connection for reads in autocommit mode; no lock is held between statements.

    Raises DatabaseUnavailable, with a masked URL, if it cannot connect; TookTooLong,
    AttemptCancelled, if the time of its `Attempt` is over.
    """
    if (mine := attempt()) is not None:
        mine.check()
    try:
        conn = connected(engine).execution_options(isolation_level="AUTOCOMMIT")
        try:
            if probe := of(conn).probe:
                conn.exec_driver_sql(probe)
        except BaseException:
            conn.close()
            raise
    except (DBAPIError, PoolTimeout) as error:
        raise unavailable(engine, error) from error
    with returned(conn), reading_any_text(conn):
        yield conn


@contextmanager
def transaction_within(
    conn: sa.Connection, seconds: float | None
) -> Iterator[sa.engine.RootTransaction]:
    """A transaction; no statement of it, with its wait for locks, takes longer than this; None = as
    long as it takes."""
    if seconds is None:
        with conn.begin() as begun:
            yield begun
        return
    database = of(conn)
    with database.before_transaction(conn, seconds), conn.begin() as begun:
        database.in_transaction(conn, seconds)
        yield begun


@contextmanager
def writing(engine: sa.Engine) -> Iterator[sa.Connection]:
    """A connection in a transaction that commits at the end; raises DatabaseUnavailable too.

    That of an `Attempt` ends in its time, and commits nothing once it was cancelled: raises
    TookTooLong, AttemptCancelled.
    """
    mine = attempt()
    rest = None if mine is None else mine.check()
    try:
        conn = connected(engine)
    except (DBAPIError, PoolTimeout) as error:
        raise unavailable(engine, error) from error
    with returned(conn), transaction_within(conn, rest) as begun, reading_any_text(conn):
        yield conn
        if mine is not None:
            with mine.committing():
                begun.commit()


def deadline(conn: sa.Connection, seconds: float) -> AbstractContextManager[None]:
    """The database ends each statement of the block that takes longer than this; SQLite, whose
    statements read on as their rows are fetched, ends what takes longer than this in all, and so
    do we through a pooler, whose sessions are not ours to set.

    `conn` is one of `connecting`. A statement that was ended raises an error that `is_overtime`
    knows.
    """
    return of(conn).deadline(conn, seconds)


def session_seconds(conn: sa.Connection) -> float | None:
    """How long a session of the login may do nothing within a transaction, or a transaction may
    last, whichever is less; None = the server does not say or has no limit. No user
    code has `conn`."""
    asked = of(conn).session_limits
    if asked is None:
        return None
    found = conn.exec_driver_sql(asked[0]).all()
    limits = [float(value) / asked[1] for _, value in found if float(value) > 0]
    return min(limits, default=None)


@contextmanager
def joining_widely(conn: sa.Connection, dialect: Database) -> Iterator[None]:
    """The block's queries join a large part of the table; `conn` is one of `connecting`."""
    if dialect.wide_join_settings is None or shares_sessions(conn):
        yield
        return
    conn.exec_driver_sql(dialect.wide_join_settings[0])
    try:
        yield
    finally:
        if not conn.invalidated:
            conn.exec_driver_sql(dialect.wide_join_settings[1])


@contextmanager
def reaching(engine: sa.Engine) -> Iterator[None]:
    """Turns errors of a lost connection, or of a refused statement, into DatabaseUnavailable or
    SchemaError."""
    try:
        yield
    except Exception as error:
        kind = trouble(error)
        if isinstance(error, DatabaseUnavailable) or lacks_memory(error):
            raise
        if kind not in (Trouble.LOST, Trouble.REFUSED):
            raise
        why = unavailable if kind is Trouble.LOST else refusal
        raise why(engine, error) from error


def refusal(engine: sa.Engine, error: BaseException) -> DatabaseUnavailable | SchemaError:
    """The error for a missing table or column, a missing right or a wrong password."""
    text = reason_of(error)
    if re.search(
        r"no such|does not exist|doesn.t exist|unknown column|ORA-00904|ORA-00942", text, re.I
    ):
        return SchemaError(f"the schema has changed: {text}. Run `msgworker init-db`")
    return unavailable(engine, error)


def unavailable(engine: sa.Engine, error: BaseException) -> DatabaseUnavailable:
    """The error with the name of the database (masked) and its own error text."""
    text = without(reason_of(error) + _rights(error), secrets_of(engine.url))
    return DatabaseUnavailable(f"cannot use the database {masked(engine.url)}: {text}")


_RIGHTS = ("SELECT", "INSERT", "UPDATE", "DELETE", "CREATE")


def _rights(error: BaseException) -> str:
    """The rights that a refused statement needs, including those for locks (FOR UPDATE)."""
    if not isinstance(error, DBAPIError) or not is_denied(error):
        return ""
    words = set(re.findall(r"\w+", str(error.statement).upper()))
    words |= {"UPDATE"} if "SHARE" in words else set()  # FOR SHARE locks, too
    needed = [right for right in _RIGHTS if right in words]
    if not needed:
        return ""
    return f"; the statement needs {', '.join(needed)} there (docs/operate/rights.md)"
