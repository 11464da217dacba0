"""Connections for reads and writes, the attempt that they are used in, and the errors of a database
that cannot be used."""

from __future__ import annotations

import enum
import os
import re
import socket
import sys
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import lru_cache, partial
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from msgworker.db import errors
from msgworker.db.database import Database, Trouble, of
from msgworker.db.servers import shares_sessions
from msgworker.errors import ConfigError, DatabaseUnavailable, SchemaError, TookTooLong

_ANY_TEXT = partial(str, encoding="utf-8", errors="surrogateescape")


def is_a(target: object, module: str, name: str) -> bool:
    """Whether it is an instance of a class of a module, which is not imported for that: another
    thread may be importing it now, and nothing is an instance of what is not there yet."""
    return isinstance(target, getattr(sys.modules.get(module), name, ()))


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


class _OddTexts(threading.local):
    """met: whether this thread has read a text that is not UTF-8 since `met` was set to False."""

    met = False


odd_texts = _OddTexts()


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


@contextmanager
def closed_after_failure(conn: sa.Connection) -> Iterator[None]:
    """Close a new connection for good if the block, which prepares it, fails."""
    try:
        yield
    except BaseException:
        with suppress(Exception):
            conn.invalidate()
        conn.close()
        raise


def connected(engine: sa.Engine, *, autocommit: bool = False) -> sa.Connection:
    """A new connection. The statement by which SQLAlchemy gives it our isolation level, where that
    needs one, fails with the driver's own error, which it does not wrap: DatabaseUnavailable."""
    try:
        conn = engine.connect()
        if autocommit:
            with closed_after_failure(conn):
                conn.execution_options(isolation_level="AUTOCOMMIT")
        return conn
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
        if errors.is_of_the_session(error):
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
    if context.connection is not None and errors.is_of_the_session(error):
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
    engine.update_execution_options(**{WATCHED: True})


WATCHED = "msgworker_watched"
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
        conn = connected(engine, autocommit=True)
        with closed_after_failure(conn):
            if probe := of(conn).probe:
                conn.exec_driver_sql(probe).close()
    except (DBAPIError, PoolTimeout) as error:
        raise unavailable(engine, error) from error
    with returned(conn), reading_any_text(conn):
        yield conn


@contextmanager
def reading(
    engine: sa.Engine, seconds: float | None, whole: float | None = None
) -> Iterator[sa.Connection]:
    """A connection for reads whose statements end after so many seconds, see `deadline`; raises
    TookTooLong, which names `whole` where the statements have what is left of it."""
    with reaching(engine), connecting(engine) as conn:
        try:
            with deadline(conn, seconds):
                yield conn
        except DBAPIError as error:
            if seconds is not None and errors.is_overtime(error):
                raise TookTooLong(whole or seconds) from error
            raise


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


def deadline(conn: sa.Connection, seconds: float | None) -> AbstractContextManager[None]:
    """The database ends each statement of the block that takes longer than this (None = it may take
    any time); SQLite, whose statements read on as their rows are fetched, ends what takes longer
    than this in all, and so do we through a pooler, whose sessions are not ours to set.

    `conn` is one of `connecting`. A statement that was ended raises an error that `is_overtime`
    knows.
    """
    return nullcontext() if seconds is None else of(conn).deadline(conn, seconds)


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
def joining_widely(conn: sa.Connection, database: Database) -> Iterator[None]:
    """The block's queries join a large part of the table; `conn` is one of `connecting`."""
    if database.wide_join_settings is None or shares_sessions(conn):
        yield
        return
    conn.exec_driver_sql(database.wide_join_settings[0])
    try:
        yield
    finally:
        if not conn.invalidated:
            conn.exec_driver_sql(database.wide_join_settings[1])


@contextmanager
def reaching(engine: sa.Engine) -> Iterator[None]:
    """Turns errors of a lost connection, or of a refused statement, into DatabaseUnavailable or
    SchemaError."""
    try:
        yield
    except Exception as error:
        kind = errors.trouble(error)
        if isinstance(error, DatabaseUnavailable) or errors.lacks_memory(error):
            raise
        if kind not in (Trouble.LOST, Trouble.REFUSED):
            raise
        why = unavailable if kind is Trouble.LOST else refusal
        raise why(engine, error) from error


@contextmanager
def ignoring(*kinds: Trouble) -> Iterator[None]:
    """An error of these kinds ends the block, and is not raised."""
    try:
        yield
    except DBAPIError as error:
        if errors.trouble(error) not in kinds:
            raise


def refusal(engine: sa.Engine, error: BaseException) -> DatabaseUnavailable | SchemaError:
    """The error for a missing table or column, a missing right or a wrong password."""
    text = errors.reason_of(error)
    if re.search(
        r"no such|does not exist|doesn.t exist|unknown column|ORA-00904|ORA-00942", text, re.I
    ):
        return SchemaError(f"the schema has changed: {text}. Run `msgworker init-db`")
    return unavailable(engine, error)


def unavailable(engine: sa.Engine, error: BaseException) -> DatabaseUnavailable:
    """The error with the name of the database (masked) and its own error text."""
    text = errors.without(errors.reason_of(error) + _rights(error), errors.secrets_of(engine.url))
    return DatabaseUnavailable(f"cannot use the database {errors.masked(engine.url)}: {text}")


_RIGHTS = ("SELECT", "INSERT", "UPDATE", "DELETE", "CREATE")


def _rights(error: BaseException) -> str:
    """The rights that a refused statement needs, including those for locks (FOR UPDATE)."""
    if not isinstance(error, DBAPIError) or not errors.is_denied(error):
        return ""
    words = set(re.findall(r"\w+", str(error.statement).upper()))
    words |= {"UPDATE"} if "SHARE" in words else set()  # FOR SHARE locks, too
    needed = [right for right in _RIGHTS if right in words]
    if not needed:
        return ""
    return f"; the statement needs {', '.join(needed)} there (docs/operate/rights.md)"


# --- Cut a connection whose server does not answer: no timeout of a server or of TCP ends its wait.


def sever(conn: sa.Connection) -> None:
    """Break the network connection of `conn`, from any thread: a thread that waits for an answer
    gets an error at once. SQLite has none."""
    sever_raw(conn.connection.driver_connection, conn.info.get(_NUMBER))


def sever_raw(raw: Any, number: int | None = None) -> None:
    """The same, for a connection of the driver. number: its file descriptor, as was noted."""
    if hasattr(raw, "cancel") and not hasattr(raw, "fileno"):  # Oracle: ask the server
        raw.cancel()
        return
    try:
        found = file_number(raw)
    except Exception as error:
        if type(error).__name__ != "ProgrammingError":
            raise
        found = number  # mysqlclient cannot be asked while it is in use, so the noted number holds
    if found is not None:
        with socket.socket(fileno=os.dup(found)) as twin:
            twin.shutdown(socket.SHUT_RDWR)


_NUMBER = "msgworker_file_number"


def note_number(conn: sa.Connection) -> None:
    """Note it in the connection: no other thread can ask mysqlclient while it is in use."""
    if _NUMBER not in conn.info:
        raw: Any = conn.connection.driver_connection
        conn.info[_NUMBER] = raw.fileno()


def file_number(raw: Any) -> int | None:
    """The file descriptor of a connection of the driver; None = it has none, as that of SQLite."""
    if hasattr(raw, "fileno"):
        return int(raw.fileno())
    if hasattr(raw, "_get_socket"):  # MariaDB Connector/Python; its `socket` would close it, too
        return int(raw._get_socket())
    sock = getattr(raw, "_sock", None)
    for name in ("_writer", "_transport"):  # aiomysql, asyncpg
        if sock is None and (stream := getattr(raw, name, None)) is not None:
            sock = stream.get_extra_info("socket")
    return None if sock is None else int(sock.fileno())


# --- What a thread does in the database until its caller cancels it.
#
# A caller that cancels an attempt has to know what is done. So a transaction checks before its
# COMMIT whether its attempt is still wanted: of one that was cancelled before that nothing is
# committed any more, whatever it still waits for. In doubt is only a transaction whose COMMIT was
# sent and not answered.

_here = threading.local()


class AttemptCancelled(Exception):
    """This attempt was cancelled: it commits nothing any more."""


class Left(enum.Enum):
    """What is in the database, for good, of an attempt that has failed or was cancelled.

    PART: at least one of its transactions is committed. UNKNOWN: one may be.
    """

    NOTHING = enum.auto()
    PART = enum.auto()
    UNKNOWN = enum.auto()


class Attempt:
    """What one thread does from now on. seconds: its statements, and its waiting for locks, end
    after so many; None = they do not."""

    def __init__(self, seconds: float | None = None) -> None:
        self.seconds = seconds
        self._until = None if seconds is None else time.monotonic() + seconds
        self._lock = threading.Lock()
        self._given_up = False
        self._committing = False
        self._committed = 0
        self._held: dict[Any, tuple[Any, int | None]] = {}
        self._since: float | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """The block, on this thread, is the attempt."""
        _here.attempt = self
        try:
            yield
        finally:
            _here.attempt = None

    # ------------------------------------------------------------ those who wait for it

    def give_up(self) -> Left:
        """It commits nothing from now on; what is left of it. From any thread."""
        with self._lock:
            self._given_up = True
            return self._left()

    @property
    def left(self) -> Left:
        """What is left of it, if it has failed."""
        with self._lock:
            return self._left()

    def _left(self) -> Left:
        if self._committing:
            return Left.UNKNOWN
        return Left.PART if self._committed else Left.NOTHING

    @property
    def held_seconds(self) -> float:
        """For how long it has held a connection; 0 = it has none."""
        since = self._since
        return 0.0 if since is None else time.monotonic() - since

    def cut(self) -> None:
        """Cut its connections: its thread gets an error. From any thread."""
        with self._lock:
            held = list(self._held.values())
        for raw, number in held:
            with suppress(Exception):  # its own thread may be closing it
                sever_raw(raw, number)

    # ------------------------------------------------------------ its own thread

    def check(self) -> float | None:
        """The seconds that are left, None = without end. Raises TookTooLong, AttemptCancelled."""
        if self._given_up:
            raise AttemptCancelled
        if self._until is None or self.seconds is None:
            return None
        rest = self._until - time.monotonic()
        if rest <= 0:
            raise TookTooLong(self.seconds)
        return rest

    @contextmanager
    def committing(self) -> Iterator[None]:
        """The block sends a COMMIT. Raises AttemptCancelled."""
        with self._lock:
            if self._given_up:
                raise AttemptCancelled
            self._committing = True
        try:
            yield
        except Exception as error:
            # Whatever the server has answered was rolled back.
            self._committing = errors.trouble(error) in (Trouble.LOST, Trouble.OTHER)
            raise
        with self._lock:
            self._committing = False
            self._committed += 1

    def take(self, key: Any, raw: Any) -> None:
        """It has got a connection of the driver."""
        number = None
        with suppress(Exception):
            number = file_number(raw)
        with self._lock:
            self._held[key] = raw, number
            self._since = self._since or time.monotonic()

    def let_go(self, key: Any) -> None:
        with self._lock:
            self._held.pop(key, None)
            if not self._held:
                self._since = None


def attempt() -> Attempt | None:
    """That of this thread."""
    return getattr(_here, "attempt", None)


_watched: weakref.WeakSet[sa.Pool] = weakref.WeakSet()


def watch(engine: sa.Engine) -> None:
    """Attempts know of the connections that they get from this engine, from the moment that these
    are made, or tested before they are used again."""
    if engine.pool in _watched:
        return
    _watched.add(engine.pool)

    def taken(raw: Any, record: Any, *_: Any) -> None:
        if (mine := attempt()) is not None:
            mine.take(record, raw)

    def returned(_: Any, record: Any) -> None:
        if (mine := attempt()) is not None:
            mine.let_go(record)

    event.listen(engine.pool, "first_connect", taken, insert=True)
    event.listen(engine.pool, "connect", taken, insert=True)
    event.listen(engine.pool, "checkout", taken)
    event.listen(engine.pool, "checkin", returned)
    ping = engine.dialect.do_ping

    def watched_ping(dbapi_connection: Any) -> bool:
        mine = attempt()
        if mine is None:
            return ping(dbapi_connection)
        mine.take("ping", dbapi_connection)
        try:
            return ping(dbapi_connection)
        finally:
            mine.let_go("ping")

    engine.dialect.do_ping = watched_ping  # type: ignore[method-assign]
