"""The only file that knows a database's name.

Everything else asks for a capability (`Dialect`), for a clock expression (`now`, `now_plus`), for a
column type, or what kind of trouble an exception is. A new database is a new row in DIALECTS.
"""

from __future__ import annotations

import enum
import logging
import os
import random
import re
import socket
import time
import warnings
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal
from urllib.parse import quote, quote_plus

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.dialects import mysql, oracle
from sqlalchemy.dialects.sqlite.base import SQLiteCompiler
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import CreateColumn
from sqlalchemy.sql.compiler import DDLCompiler, SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeDecorator, TypeEngine

from msgworker.errors import ConfigError, DatabaseUnavailable, SchemaError

log = logging.getLogger("msgworker.dialects")

# ---------------------------------------------------------------- capabilities


@dataclass(frozen=True, slots=True)
class Dialect:
    """What a database can do, as far as our statements differ for it.

    partial_indexes: an index may have a WHERE; else finished rows are kept out by a CASE.
    case_index: how a CASE is indexed: "column" (a virtual column) or "function".
    guard_case: the same for the guard.
    oldest_index: open rows can be walked in order of age without meeting finished ones.
    hops: a recursive query can hop from object to object along an index.
    arrays: a whole batch travels as arrays, and an UPDATE may stand in a WITH.
    row_locks, skip_locked: SELECT ... FOR UPDATE [SKIP LOCKED] exists.
    update_ignore: the prefix that turns a guard violation into "row left alone".
    counts_ignored: the row count of such an UPDATE says how many rows matched, those left alone
    included.
    max_ids: how many ids one IN list takes.
    bare_unions: a branch of a UNION may have ORDER BY and LIMIT of its own, without a derived
    table.
    json_lists: a list of ids travels as one JSON text, so that the statement stays the same.
    index_hint: how a query names the index it must use; planners guess badly about indexes that
    hold a
        small, fast-changing part of a table.
    tuned: statements that set and reset what keeps the claim's plans good, for the claim's
    connection.
    wide: the same for joins of a large part of the table with itself.
    notify: a commit can wake up listeners.
    one_writer: transactions that write exclude each other in the whole database.
    max_name: the longest name of a table or column, in bytes.
    key_collation: how object ids are compared where a column of another collation must be.
    """

    name: str
    partial_indexes: bool = False
    case_index: Literal["column", "function"] | None = None
    guard_case: Literal["column", "function"] | None = None
    oldest_index: bool = False
    hops: bool = False
    arrays: bool = False
    row_locks: bool = True
    skip_locked: bool = True
    update_ignore: str | None = None
    counts_ignored: bool = False
    max_ids: int = 1000
    bare_unions: bool = False
    json_lists: bool = False
    index_hint: str | None = None
    tuned: tuple[str, str] | None = None
    wide: tuple[str, str] | None = None
    notify: bool = False
    one_writer: bool = False
    max_name: int = 128
    key_collation: str | None = None


DIALECTS = {
    d.name: d
    for d in (
        Dialect(
            "postgresql",
            max_name=63,
            partial_indexes=True,
            oldest_index=True,
            hops=True,
            arrays=True,
            max_ids=10_000,
            # A bitmap scan reads all rows of a deep object to give the first few.
            tuned=("SET enable_bitmapscan = off", "RESET enable_bitmapscan"),
            # Before the table is analyzed it looks small, and a nested loop over it takes hours.
            wide=("SET enable_nestloop = off", "RESET enable_nestloop"),
            notify=True,
        ),
        Dialect(
            "sqlite",
            partial_indexes=True,
            oldest_index=True,
            hops=True,
            row_locks=False,
            skip_locked=False,
            update_ignore="OR IGNORE",
            max_ids=10_000,
            json_lists=True,
            index_hint="INDEXED BY {}",
            one_writer=True,
        ),
        Dialect(
            "mariadb",
            max_name=64,
            key_collation="utf8mb4_nopad_bin",
            case_index="column",
            guard_case="column",
            update_ignore="IGNORE",
            counts_ignored=True,
            bare_unions=True,
            index_hint="FORCE INDEX ({})",
        ),
        Dialect(
            "mysql",
            max_name=64,
            key_collation="utf8mb4_0900_bin",
            case_index="column",
            guard_case="function",  # MySQL 8 takes a CASE as a key part: no column needed
            update_ignore="IGNORE",
            counts_ignored=True,
            bare_unions=True,
            index_hint="FORCE INDEX ({})",
        ),
        Dialect(
            "oracle",
            case_index="function",
            guard_case="function",
            oldest_index=True,
            max_ids=500,  # an IN list over 1,000 elements is ORA-01795
            index_hint="INDEX(%(name)s {})",
        ),
    )
}
NAMES = tuple(DIALECTS)


def dialect_of(engine: sa.Engine) -> Dialect:
    """The capabilities of an engine's database; connects once to tell MariaDB from MySQL."""
    name = engine.dialect.name
    if name in ("mysql", "mariadb"):
        if getattr(engine.dialect, "server_version_info", None) is None:
            with connecting(engine):
                pass
        name = "mariadb" if getattr(engine.dialect, "is_mariadb", False) else "mysql"
    if name not in DIALECTS:
        raise ConfigError(f"database {name!r} is not supported; use one of: {', '.join(NAMES)}")
    return DIALECTS[name]


def compiler_for(name: str) -> sa.Dialect:
    """A SQLAlchemy dialect object to print DDL with, without a connection."""
    drivers = {
        "postgresql": "postgresql+psycopg",
        "sqlite": "sqlite",
        "mariadb": "mariadb+pymysql",
        "mysql": "mysql+pymysql",
        "oracle": "oracle+oracledb",
    }
    made = make_url(f"{drivers[name]}://").get_dialect()()
    if name == "oracle":
        made.server_version_info = (19,)
    return made


# ---------------------------------------------------------------- engines

_DRIVERS = {
    "postgresql": ("postgresql+psycopg", "postgresql"),
    "mysql": ("mysql+pymysql", "mysql"),
    "mariadb": ("mariadb+pymysql", "mysql"),
    "oracle": ("oracle+oracledb", "oracle"),
}
_ASYNC = re.compile(r"\+(asyncpg|aiosqlite|aiomysql|asyncmy|psycopg_async|oracledb_async)\b")
SQLITE_LEAST = (3, 38, 0)
_SECRET_KEY = re.compile(r"passw|secret|token|pwd|credential|sslkey", re.I)


def masked(url: URL) -> str:
    """The URL as text without its password and without secrets in its query."""
    query = {k: "***" if _SECRET_KEY.search(k) else v for k, v in url.query.items()}
    return url.set(query=query).render_as_string(hide_password=True)


def secrets_of(url: str | URL) -> set[str]:
    """The passwords that a URL holds, as they are and percent-encoded; for taking them out of
    texts."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        return set()
    values = [str(parsed.password)] if parsed.password else []
    for key, value in parsed.query.items():
        if _SECRET_KEY.search(key):
            values += [value] if isinstance(value, str) else list(value)
    texts = {text for value in values for text in (value, quote(value, safe=""), quote_plus(value))}
    return {text for text in texts if len(text) > 2 and text != "msgworker"}


def without(text: str, secrets: Iterable[str]) -> str:
    """The text with "***" for each secret; a short one only where it is a word of its own."""
    for secret in sorted(secrets, key=len, reverse=True):
        word = re.escape(secret) if len(secret) > 5 else rf"(?<!\w){re.escape(secret)}(?!\w)"
        text = re.sub(word, "***", text)
    return text


def parse_url(url: object) -> URL:
    """A URL checked and completed with our default driver; raises ConfigError, never echoes it."""
    if isinstance(url, URL):
        parsed = url
    elif not isinstance(url, str) or not url.strip():
        raise ConfigError('a database url is required, such as "sqlite:///messages.db"')
    else:
        try:
            parsed = make_url(url)
        except (ArgumentError, ValueError):
            raise ConfigError(
                "the database url cannot be read; it looks like dialect://user:password@host:port/"
                "name. If the password holds one of @ / : # % build it with sqlalchemy.URL.create"
            ) from None
    text = parsed.drivername
    if _ASYNC.search(text):
        raise ConfigError(f"{text} is an async driver; use a plain one, e.g. {_plain(text)}://")
    backend = parsed.get_backend_name()
    if backend not in DIALECTS:
        raise ConfigError(f"database {backend!r} is not supported; use one of: {', '.join(NAMES)}")
    if parsed.port is not None and not 1 <= parsed.port <= 65_535:
        raise ConfigError(f"port must be 1 to 65535, got {parsed.port}")
    rest = [parsed.host or "", *parsed.query]
    if backend != "sqlite":
        rest.append(parsed.database or "")
    if any("@" in part for part in rest):  # what stands there may be half a password
        raise ConfigError(
            "the database url holds an @ behind the host: the password is not escaped; "
            "build the url with sqlalchemy.URL.create"
        )
    if backend == "sqlite" and _in_memory(parsed):
        raise ConfigError(
            "an in-memory SQLite database belongs to one connection, a worker needs several; "
            'use a file, such as "sqlite:///messages.db"'
        )
    if "+" not in text and backend in _DRIVERS:
        parsed = parsed.set(drivername=_DRIVERS[backend][0])
    return parsed


def _in_memory(url: URL) -> bool:
    name = url.database or ""
    return not name or ":memory:" in name or url.query.get("mode") == "memory"


def _plain(drivername: str) -> str:
    backend = drivername.split("+")[0]
    return _DRIVERS.get(backend, (backend,))[0]


def open_engine(source: object) -> sa.Engine:
    """Our engine for a URL or for a user's Engine; nothing is connected yet.

    A user's Engine keeps its pool and its own behaviour: we use it through execution options, so
    isolation level and BEGIN differ only for our connections.
    """
    if isinstance(source, sa.Engine):
        engine = source
        parse_url(engine.url)
        if isinstance(engine.pool, sa.StaticPool | sa.pool.SingletonThreadPool):
            raise ConfigError(
                f"the engine's pool ({type(engine.pool).__name__}) hands one connection to "
                "everybody; create the engine with a QueuePool"
            )
    else:
        engine = _create(parse_url(source))
    if not engine.dialect.supports_sane_rowcount:
        raise ConfigError(
            f"the driver of {engine.url.drivername} cannot say how many rows an UPDATE changed, "
            "which is how a claim is decided; use another driver"
        )
    if engine.dialect.name == "sqlite":
        found: tuple[int, ...] = getattr(engine.dialect.dbapi, "sqlite_version_info", SQLITE_LEAST)
        if found < SQLITE_LEAST:
            raise ConfigError(
                f"SQLite {'.'.join(map(str, found))} is too old; 3.38 or later is needed"
            )
        engine.dialect.statement_compiler = _HintingCompiler
        engine = engine.execution_options()
        event.listen(engine, "begin", _begin_immediate)
        event.listen(engine, "engine_connect", _busy_timeout)
        return engine
    # Set per connection, whatever the server's or the engine's default is.
    engine = engine.execution_options(isolation_level="READ COMMITTED")
    if engine.dialect.name in ("mysql", "mariadb"):
        event.listen(engine, "handle_error", _note_rollback)
    return engine


def _create(url: URL) -> sa.Engine:
    args: dict[str, Any] = {"hide_parameters": True, "pool_size": 0}  # 0: as many as are needed
    if url.get_backend_name() == "sqlite":
        args["connect_args"] = {"timeout": 60, "check_same_thread": False}
        args["poolclass"] = sa.QueuePool
    else:
        args["pool_pre_ping"] = True
        args["connect_args"] = connect_defaults(url)
    try:
        engine = sa.create_engine(url, **args)
        if url.get_driver_name() == "pymysql":
            event.listen(engine, "do_connect", _connect_pymysql)
        _leave_to_the_parent(engine)
        return engine
    except NoSuchModuleError as error:
        raise ConfigError(f"no such driver: {url.drivername}") from error
    except ImportError as error:
        ours, extra = _DRIVERS.get(url.get_backend_name(), ("", ""))
        if url.drivername == "oracle+cx_oracle":
            ours, extra = url.drivername, "cx-oracle"
        change = "" if url.drivername == ours else f"change the url to {ours}://... and "
        raise ConfigError(
            f"the driver of {url.drivername} is not installed ({error.name}); "
            f'{change}run: pip install "msgworker[{extra}]"'
        ) from error


_ROLLED_BACK = "msgworker_rolled_back"
_WHOLE_ROLLBACKS = (1213, 1020)


def _note_rollback(context: Any) -> None:
    # MySQL rolls the whole transaction back at a deadlock and begins another one with the next
    # statement. Who swallows the error would commit the second half of what was to be one.
    args = getattr(context.original_exception, "args", ())
    if context.connection is not None and args and args[0] in _WHOLE_ROLLBACKS:
        context.connection.info[_ROLLED_BACK] = context.sqlalchemy_exception


def rolled_back(conn: sa.Connection) -> BaseException | None:
    """The error with which the database itself has ended the transaction of `conn` although the
    connection does not look like that; asking forgets it."""
    found: BaseException | None = conn.info.pop(_ROLLED_BACK, None)
    return found


def _leave_to_the_parent(engine: sa.Engine) -> None:
    # A forked child (a server that loads the application before it forks) must not speak on the
    # connections of its parent.
    known = weakref.ref(engine)

    def forget() -> None:
        mine = known()
        if mine is not None:
            mine.dispose(close=False)

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=forget)


CONNECT_SECONDS = 10
READ_SECONDS = 600
WRITE_SECONDS = 60
_LIBPQ = {
    "connect_timeout": CONNECT_SECONDS,
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 25_000,  # milliseconds: for what was sent and never acknowledged
}
_MYSQL_WAITS = {
    "connect_timeout": CONNECT_SECONDS,
    "read_timeout": READ_SECONDS,
    "write_timeout": WRITE_SECONDS,
}
_WAITS: dict[str, dict[str, int]] = {
    "psycopg": _LIBPQ,
    "psycopg2": _LIBPQ,
    "pymysql": _MYSQL_WAITS,
    "mysqldb": _MYSQL_WAITS,
    "oracledb": {"tcp_connect_timeout": CONNECT_SECONDS, "expire_time": 1},  # minutes
}
"""How long a driver waits for a network that does not answer; by default most wait for ever."""


def connect_defaults(url: URL) -> dict[str, Any]:
    """What we tell the driver of a URL that we open; what the URL's query says itself is left."""
    waits = _WAITS.get(url.get_driver_name(), {})
    args: dict[str, Any] = {k: v for k, v in waits.items() if k not in url.query}
    if url.get_backend_name() in ("mysql", "mariadb"):
        args["charset"] = "utf8mb4"
    return args


def _connect_pymysql(dialect: Any, record: Any, cargs: Any, cparams: dict[str, Any]) -> Any:
    # Its connect_timeout is for the socket only: a server, or a proxy, that accepts and stays
    # silent is waited for as long as for the answer to a query.
    conn = dialect.dbapi.connect(*cargs, **cparams | {"defer_connect": True})
    limit, conn._read_timeout = conn._read_timeout, cparams.get("connect_timeout", CONNECT_SECONDS)
    conn.connect()
    conn._read_timeout = limit
    conn._sock.settimeout(limit)
    if conn._sock.family != getattr(socket, "AF_UNIX", None):
        for name, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
            if hasattr(socket, name):  # keepalive itself PyMySQL has switched on
                conn._sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return conn


def sever(conn: sa.Connection) -> None:
    """Break the network connection under `conn`, from whatever thread: who waits for an answer on
    it gets an error at once. SQLite has none."""
    raw: Any = conn.connection.driver_connection
    if hasattr(raw, "cancel") and not hasattr(raw, "fileno"):  # Oracle: ask the server
        raw.cancel()
        return
    number = raw.fileno() if hasattr(raw, "fileno") else raw._sock.fileno()
    with socket.socket(fileno=os.dup(number)) as twin:
        twin.shutdown(socket.SHUT_RDWR)


class _HintingCompiler(SQLiteCompiler):
    """SQLAlchemy's compiler, with hints (INDEXED BY) written out."""

    def get_from_hint_text(self, table: Any, text: str | None) -> str | None:
        return text


def _begin_immediate(conn: sa.Connection) -> None:
    # A transaction that reads first and writes later can find the database changed in between
    # (SQLITE_BUSY_SNAPSHOT, which no timeout cures); so writers take the write lock at once.
    raw = conn.connection.dbapi_connection
    begun = getattr(raw, "in_transaction", False)  # by a listener of the user's own Engine
    if not begun and conn.get_execution_options().get("isolation_level") != "AUTOCOMMIT":
        _take_write_lock(conn, raw)


BUSY_SECONDS = 60.0
"""How long a writer waits for another one on SQLite."""
BUSY_LOOK_SECONDS = 0.002


def _take_write_lock(conn: sa.Connection, raw: Any) -> None:
    # SQLite's own waiting looks up to 100 ms apart, so that who has just committed nearly always
    # gets the lock again and a heartbeat beside a busy process starves. Short looks are fair.
    cursor = raw.cursor()
    cursor.execute("PRAGMA busy_timeout=0")
    try:
        deadline = time.monotonic() + BUSY_SECONDS
        while time.monotonic() < deadline:
            try:
                cursor.execute("BEGIN IMMEDIATE")
                return
            except Exception as error:  # the driver need not be the standard library's
                if "locked" not in str(error):
                    break
            time.sleep(random.uniform(0.25, 1) * BUSY_LOOK_SECONDS)
        conn.exec_driver_sql("BEGIN IMMEDIATE")  # what it raises is SQLAlchemy's
    finally:
        cursor.execute(_BUSY_TIMEOUT)
        cursor.close()


_BUSY_TIMEOUT = f"PRAGMA busy_timeout={BUSY_SECONDS * 1000:.0f}"


def _busy_timeout(conn: sa.Connection) -> None:
    raw = conn.connection.dbapi_connection
    assert raw is not None
    cursor = raw.cursor()
    cursor.execute(_BUSY_TIMEOUT)
    cursor.close()


DATABASE_SET_UP = {"sqlite": "PRAGMA journal_mode=WAL"}
"""What is kept in the database itself and is ours to choose: readers and the writer do not wait."""


def set_up_database(engine: sa.Engine) -> None:
    """Run DATABASE_SET_UP; warn of a file that is not on a local disk. Raises
    DatabaseUnavailable."""
    statement = DATABASE_SET_UP.get(engine.dialect.name)
    if statement is not None:
        kind = network_mount(engine.url.database or "", _mounts())
        if kind:
            log.warning(
                "the database file is on a network mount (%s): SQLite needs locks and "
                "shared memory that such mounts do not give; use a local disk",
                kind,
            )
        with connecting(engine) as conn:
            conn.exec_driver_sql(statement)


def network_mount(path: str, mounts: str) -> str | None:
    """The kind of the mount that a file is on, if it is a network's; mounts: as /proc/mounts."""
    longest, kind = "", ""
    full = os.path.abspath(path)
    for line in mounts.splitlines():
        parts = line.split()
        if len(parts) > 2:
            folder = parts[1].replace("\\040", " ").rstrip("/")
            if full.startswith(f"{folder}/") and len(folder) >= len(longest):
                longest, kind = folder, parts[2]
    network = kind.startswith(("nfs", "cifs", "smb", "fuse.sshfs", "9p", "afs", "ceph", "gluster"))
    return kind if network else None


def _mounts() -> str:
    try:
        with open("/proc/mounts", encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:  # not Linux
        return ""


# ---------------------------------------------------------------- clock


class now(FunctionElement[datetime]):
    """The database's clock, UTC; the same value for all rows of a statement."""

    inherit_cache = True

    @property
    def type(self) -> TypeEngine[datetime]:  # type: ignore[override]
        return UtcDateTime()


class now_plus(FunctionElement[datetime]):
    """The database's clock plus a number of seconds (may be a fraction, may be negative)."""

    inherit_cache = True

    @property
    def type(self) -> TypeEngine[datetime]:  # type: ignore[override]
        return UtcDateTime()


class seconds_since(FunctionElement[float]):
    """Seconds from an instant until now, as a float."""

    inherit_cache = True
    type = sa.Float()


def _clause(element: FunctionElement[Any], compiler: SQLCompiler, **kw: Any) -> str:
    return str(compiler.process(element.clauses, **kw))


@compiles(now)
def _now(element: now, compiler: SQLCompiler, **kw: Any) -> str:
    raise NotImplementedError(compiler.dialect.name)


@compiles(now, "postgresql")
def _now_postgresql(element: now, compiler: SQLCompiler, **kw: Any) -> str:
    # now() stands still in a transaction, which a transactional handler may keep open for long.
    return "statement_timestamp()"


@compiles(now, "sqlite")
def _now_sqlite(element: now, compiler: SQLCompiler, **kw: Any) -> str:
    return "strftime('%Y-%m-%d %H:%M:%f', 'now')"


@compiles(now, "mysql", "mariadb")
def _now_mysql(element: now, compiler: SQLCompiler, **kw: Any) -> str:
    return "utc_timestamp(6)"


@compiles(now, "oracle")
def _now_oracle(element: now, compiler: SQLCompiler, **kw: Any) -> str:
    # SYSTIMESTAMP is the server's clock; CURRENT_TIMESTAMP would be in the session's time zone.
    return "CAST(SYSTIMESTAMP AT TIME ZONE 'UTC' AS TIMESTAMP)"


@compiles(now_plus, "postgresql")
def _plus_postgresql(element: now_plus, compiler: SQLCompiler, **kw: Any) -> str:
    seconds = _clause(element, compiler, **kw)
    return f"(statement_timestamp() + make_interval(secs => {seconds}))"


@compiles(now_plus, "sqlite")
def _plus_sqlite(element: now_plus, compiler: SQLCompiler, **kw: Any) -> str:
    seconds = _clause(element, compiler, **kw)
    return f"strftime('%Y-%m-%d %H:%M:%f', 'now', {seconds} || ' seconds')"


@compiles(now_plus, "mysql", "mariadb")
def _plus_mysql(element: now_plus, compiler: SQLCompiler, **kw: Any) -> str:
    seconds = _clause(element, compiler, **kw)
    return f"(utc_timestamp(6) + INTERVAL ROUND({seconds} * 1000000) MICROSECOND)"


@compiles(now_plus, "oracle")
def _plus_oracle(element: now_plus, compiler: SQLCompiler, **kw: Any) -> str:
    seconds = _clause(element, compiler, **kw)
    return (
        "(CAST(SYSTIMESTAMP AT TIME ZONE 'UTC' AS TIMESTAMP)"
        f" + NUMTODSINTERVAL({seconds}, 'SECOND'))"
    )


@compiles(seconds_since, "postgresql")
def _since_postgresql(element: seconds_since, compiler: SQLCompiler, **kw: Any) -> str:
    instant = _clause(element, compiler, **kw)
    return f"CAST(extract(epoch FROM statement_timestamp() - {instant}) AS float8)"


@compiles(seconds_since, "sqlite")
def _since_sqlite(element: seconds_since, compiler: SQLCompiler, **kw: Any) -> str:
    instant = _clause(element, compiler, **kw)
    return f"((julianday('now') - julianday({instant})) * 86400.0)"


@compiles(seconds_since, "mysql", "mariadb")
def _since_mysql(element: seconds_since, compiler: SQLCompiler, **kw: Any) -> str:
    instant = _clause(element, compiler, **kw)
    return f"(TIMESTAMPDIFF(MICROSECOND, {instant}, utc_timestamp(6)) / 1000000.0)"


@compiles(seconds_since, "oracle")
def _since_oracle(element: seconds_since, compiler: SQLCompiler, **kw: Any) -> str:
    instant = _clause(element, compiler, **kw)
    current = _now_oracle(now(), compiler)
    return f"((CAST({current} AS DATE) - CAST({instant} AS DATE)) * 86400)"


# ---------------------------------------------------------------- column types


class UtcDateTime(TypeDecorator[datetime]):
    """An aware UTC datetime in Python; microseconds kept (SQLite: milliseconds, as text)."""

    impl = sa.DateTime
    cache_ok = True

    def load_dialect_impl(self, dialect: sa.Dialect) -> TypeEngine[Any]:
        if dialect.name == "sqlite":
            return dialect.type_descriptor(sa.Text())
        if dialect.name in ("mysql", "mariadb"):
            return dialect.type_descriptor(mysql.DATETIME(fsp=6))
        if dialect.name == "oracle":  # DateTime would be DATE: whole seconds
            return dialect.type_descriptor(oracle.TIMESTAMP())
        return dialect.type_descriptor(sa.DateTime(timezone=True))

    def process_bind_param(self, value: datetime | None, dialect: sa.Dialect) -> Any:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ConfigError(f"a time needs its time zone, got {value!r}; use datetime.now(UTC)")
        utc = value.astimezone(UTC)
        if dialect.name == "sqlite":
            return utc.strftime("%Y-%m-%d %H:%M:%S.") + f"{utc.microsecond // 1000:03d}"
        return utc if dialect.name == "postgresql" else utc.replace(tzinfo=None)

    def process_result_value(self, value: Any, dialect: sa.Dialect) -> datetime | None:
        if isinstance(value, str):
            value = datetime.fromisoformat(value)
        if not isinstance(value, datetime):
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class KeyText(TypeDecorator[str]):
    """Text that is compared byte by byte, so that an index can be walked in its order."""

    impl = sa.String
    cache_ok = True

    def load_dialect_impl(self, dialect: sa.Dialect) -> TypeEngine[Any]:
        length = self.impl_instance.length  # type: ignore[attr-defined]
        if dialect.name == "sqlite":
            return dialect.type_descriptor(sa.Text())
        if dialect.name == "postgresql":
            return dialect.type_descriptor(sa.String(length, collation="C"))
        if dialect.name in ("mysql", "mariadb"):
            # nopad: with the older padded collations 'a' and 'a ' were one object.
            nopad = DIALECTS["mariadb" if _is_mariadb(dialect) else "mysql"].key_collation
            kind = mysql.VARCHAR(length, charset="utf8mb4", collation=nopad)
            return dialect.type_descriptor(kind)
        return dialect.type_descriptor(sa.String(length))


def _is_mariadb(dialect: sa.Dialect) -> bool:
    return dialect.name == "mariadb" or bool(getattr(dialect, "is_mariadb", False))


class WholeId(TypeDecorator[int]):
    """An id that its table declares as NUMERIC or DECIMAL: whole numbers in Python all the same."""

    impl = sa.BigInteger
    cache_ok = True

    def process_result_value(self, value: Any, dialect: sa.Dialect) -> int | None:
        return None if value is None else int(value)


def recollated(column: sa.ColumnElement[Any], collation: str) -> sa.ColumnElement[Any]:
    """A text column as our keys hold it; two columns of different collations cannot be compared."""
    kept = getattr(column.type, "collation", None)
    if kept == collation or isinstance(column.type, KeyText):
        return column
    return sa.collate(sa.cast(column, mysql.CHAR(charset="utf8mb4")), collation)


def key_text(length: int) -> TypeEngine[str]:
    """A column type for keys of at most `length` characters; see KeyText."""
    return KeyText(length)


class JsonList(TypeDecorator[list[int]]):
    """A list of whole numbers as the text of a JSON array; only for parameters."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: list[int] | None, dialect: sa.Dialect) -> str | None:
        return None if value is None else f"[{','.join(map(str, value))}]"


def plain_text(length: int) -> TypeEngine[str]:
    """Text of at most `length` characters, for people."""
    return sa.String(length).with_variant(sa.Text(), "sqlite")


def long_text() -> TypeEngine[str]:
    """Text of any length."""
    return sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")


def big_id() -> TypeEngine[int]:
    """A 64-bit key that the database itself counts up."""
    return sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def text_length(column: sa.ColumnElement[Any]) -> sa.ColumnElement[int]:
    """The length of a text, in the unit that costs least on the database."""
    return sa.func.length(column, type_=sa.BigInteger())


def created_default(name: str) -> sa.TextClause:
    """DEFAULT of created_at: UTC, whatever the session's time zone."""
    return sa.text(
        {
            "postgresql": "now()",
            "sqlite": "(strftime('%Y-%m-%d %H:%M:%f', 'now'))",
            "oracle": "SYS_EXTRACT_UTC(SYSTIMESTAMP)",
        }.get(name, "(utc_timestamp(6))")
    )


def table_options(name: str) -> dict[str, Any]:
    """What CREATE TABLE of the message table says besides its columns."""
    if name == "sqlite":
        return {"sqlite_autoincrement": True}  # else the id of a deleted last row is given again
    if name == "postgresql":
        # Room in each page for the new version of a row that changes state.
        return {"postgresql_with": {"fillfactor": 90}}
    return engine_options(name)


def engine_options(name: str) -> dict[str, Any]:
    """The storage engine, where there is a choice: one with transactions."""
    if name not in ("mysql", "mariadb"):
        return {}
    options = {"engine": "InnoDB", "default_charset": "utf8mb4"}
    return {f"{prefix}_{k}": v for prefix in ("mysql", "mariadb") for k, v in options.items()}


# ---------------------------------------------------------------- trouble


class Trouble(enum.Enum):
    """What an exception of the database means to us."""

    RACE = "race"  # the guard index: somebody else was first
    AGAIN = "again"  # rolled back by the database; send again, no try counted
    LOST = "lost"  # the connection or the server; what was being committed is unknown
    REFUSED = "refused"  # missing table or right, read-only, wrong password: people must act
    OTHER = "other"


_POSTGRESQL = {
    "23505": Trouble.RACE,
    "40001": Trouble.AGAIN,
    "40P01": Trouble.AGAIN,
    "55P03": Trouble.AGAIN,
    "57014": Trouble.AGAIN,
    "57P01": Trouble.LOST,
    "57P02": Trouble.LOST,
    "57P03": Trouble.LOST,
    "57P05": Trouble.LOST,
    "53300": Trouble.LOST,
    "25006": Trouble.REFUSED,
    "28000": Trouble.REFUSED,
    "28P01": Trouble.REFUSED,
    "3D000": Trouble.REFUSED,
    "42501": Trouble.REFUSED,
    "42703": Trouble.REFUSED,
    "42804": Trouble.REFUSED,
    "42883": Trouble.REFUSED,
    "42P01": Trouble.REFUSED,
}
_MYSQL = {
    0: Trouble.LOST,  # PyMySQL's word for a connection that it has closed already
    1062: Trouble.RACE,
    1205: Trouble.AGAIN,
    1213: Trouble.AGAIN,
    1020: Trouble.AGAIN,
    1040: Trouble.LOST,
    1203: Trouble.LOST,
    1226: Trouble.LOST,  # the user has as many connections as it may
    1053: Trouble.LOST,
    1927: Trouble.LOST,
    2002: Trouble.LOST,
    2003: Trouble.LOST,
    2006: Trouble.LOST,
    2013: Trouble.LOST,
    2014: Trouble.LOST,
    1044: Trouble.REFUSED,
    1045: Trouble.REFUSED,
    1049: Trouble.REFUSED,
    1054: Trouble.REFUSED,
    1142: Trouble.REFUSED,
    1143: Trouble.REFUSED,
    1146: Trouble.REFUSED,
    1290: Trouble.REFUSED,
    1792: Trouble.REFUSED,
}
_ORACLE = (
    dict.fromkeys((1,), Trouble.RACE)
    | dict.fromkeys((54, 60, 1555, 4068, 8006, 8177, 12860, 30006, 1013), Trouble.AGAIN)
    | dict.fromkeys(
        (28, 600, 603, 1012, 1033, 1034, 1089, 1090, 1092, 2396, 3113, 3114, 3135),
        Trouble.LOST,
    )
    | dict.fromkeys(
        (12153, 12170, 12514, 12537, 12541, 12547, 12571, 25402, 25408, 25409, 41412),
        Trouble.LOST,
    )
    | dict.fromkeys((904, 942, 1017, 1031, 16000, 28000), Trouble.REFUSED)
)
_ORACLE_DRIVER = {
    "DPY-1001": Trouble.LOST,
    "DPY-4011": Trouble.LOST,
    "DPY-6000": Trouble.LOST,
    "DPY-6005": Trouble.LOST,
    "DPI-1010": Trouble.LOST,
    "DPI-1080": Trouble.LOST,
    "DPY-4024": Trouble.AGAIN,
    "DPI-1067": Trouble.AGAIN,
}
_SQLITE = (
    ("unique constraint", Trouble.RACE),
    ("is locked", Trouble.AGAIN),
    ("unable to open", Trouble.LOST),
    ("disk i/o", Trouble.LOST),
    ("database or disk is full", Trouble.LOST),
    ("readonly", Trouble.REFUSED),
    ("not a database", Trouble.REFUSED),
    ("no such table", Trouble.REFUSED),
    ("no such column", Trouble.REFUSED),
)


_DRIVER_MODULES = {"psycopg", "pymysql", "MySQLdb", "oracledb", "cx_Oracle", "sqlite3"}


def trouble(error: BaseException) -> Trouble:
    """What an exception means: sort by the database's own code, never by exception class."""
    if isinstance(error, PoolTimeout | DatabaseUnavailable):
        return Trouble.LOST
    if not isinstance(error, DBAPIError):
        # While a connection is being set up or reset, SQLAlchemy lets the driver's own errors pass.
        from_driver = type(error).__module__.split(".")[0] in _DRIVER_MODULES
        return _by_code(error) if from_driver else Trouble.OTHER
    found = _by_code(error.orig)
    if found is not Trouble.OTHER:
        return found
    return Trouble.LOST if error.connection_invalidated else Trouble.OTHER


def _by_code(error: BaseException | None) -> Trouble:
    code = error.args[0] if error is not None and error.args else None
    if code == 1305 and "SAVEPOINT" in str(error):
        # A deadlock has rolled back the whole transaction, the savepoint we wanted to go back to
        # included; this error has taken the place of the one that said so.
        return Trouble.AGAIN
    if isinstance(code, int):  # before the SQLSTATE, which newer PyMySQL gives too, but coarsely
        return _MYSQL.get(code, Trouble.OTHER)
    state = getattr(error, "sqlstate", None)
    if isinstance(state, str):
        return _POSTGRESQL.get(state, Trouble.LOST if state[:2] == "08" else Trouble.OTHER)
    text = str(error)
    if type(error).__module__.startswith("sqlite3"):
        return next((kind for part, kind in _SQLITE if part in text.lower()), Trouble.OTHER)
    driver = re.match(r"(ORA|DPY|DPI)-0*(\d+)", text)
    if driver:
        inner = re.search(r"ORA-0*(\d+)", text)
        if inner and int(inner[1]) in _ORACLE:
            return _ORACLE[int(inner[1])]
        return _ORACLE_DRIVER.get(f"{driver[1]}-{driver[2]}", Trouble.OTHER)
    lost = (
        "connection failed",
        "connection refused",
        "server closed",
        "is closed",
        "connection is",
    )
    return Trouble.LOST if any(part in text.lower() for part in lost) else Trouble.OTHER


def reason_of(error: BaseException) -> str:
    """The database's own words in one line, without parameters."""
    cause = getattr(error, "orig", None) or error
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    return f"{type(cause).__name__}: {'; '.join(lines[:2])}"[:500]


@contextmanager
def connecting(engine: sa.Engine) -> Iterator[sa.Connection]:
    """A connection to look around with, each statement on its own; no lock is held between them.

    Raises DatabaseUnavailable, with a masked URL, if there is none to be had.
    """
    try:
        conn = engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        try:
            if engine.dialect.name == "sqlite":  # the file is read at the first statement only
                conn.exec_driver_sql("PRAGMA schema_version")
        except BaseException:
            conn.close()
            raise
    except (DBAPIError, PoolTimeout) as error:
        raise unavailable(engine, error) from error
    with conn:
        yield conn


@contextmanager
def writing(engine: sa.Engine) -> Iterator[sa.Connection]:
    """A connection in a transaction that commits at the end; raises DatabaseUnavailable too."""
    try:
        conn = engine.connect()
    except (DBAPIError, PoolTimeout) as error:
        raise unavailable(engine, error) from error
    with conn, conn.begin():
        yield conn


@contextmanager
def joining_widely(conn: sa.Connection, dialect: Dialect) -> Iterator[None]:
    """The block's queries join a large part of the table; `conn` is one of `connecting`."""
    if dialect.wide is None:
        yield
        return
    conn.exec_driver_sql(dialect.wide[0])
    try:
        yield
    finally:
        if not conn.invalidated:
            conn.exec_driver_sql(dialect.wide[1])


@contextmanager
def reaching(engine: sa.Engine) -> Iterator[None]:
    """What a database that goes away, or refuses, raises in here becomes DatabaseUnavailable or
    SchemaError."""
    try:
        yield
    except Exception as error:
        kind = trouble(error)
        if isinstance(error, DatabaseUnavailable) or kind not in (Trouble.LOST, Trouble.REFUSED):
            raise
        why = unavailable if kind is Trouble.LOST else refusal
        raise why(engine, error) from error


def refusal(engine: sa.Engine, error: BaseException) -> DatabaseUnavailable | SchemaError:
    """The error for what people must mend: a missing table or column, or a right or a password."""
    text = reason_of(error)
    if re.search(
        r"no such|does not exist|doesn.t exist|unknown column|ORA-00904|ORA-00942", text, re.I
    ):
        return SchemaError(f"the schema has changed: {text}. Run `msgworker init-db`")
    return unavailable(engine, error)


def unavailable(engine: sa.Engine, error: BaseException) -> DatabaseUnavailable:
    """The error that names the database (masked) and repeats what it said."""
    text = without(reason_of(error), secrets_of(engine.url))
    return DatabaseUnavailable(f"cannot use the database {masked(engine.url)}: {text}")


HIDDEN = "msgworker_hidden"
"""Key in Column.info: keep this virtual column out of SELECT * and of INSERT without columns."""


@compiles(CreateColumn, "mysql", "mariadb")
def _create_column(element: CreateColumn, compiler: DDLCompiler, **kw: Any) -> str:
    text = compiler.visit_create_column(element, **kw)  # type: ignore[no-untyped-call]
    return f"{text} INVISIBLE" if element.element.info.get(HIDDEN) else text


def identity(name: str) -> tuple[Any, ...]:
    """What counts msg_id up, where the type alone does not say it."""
    if name in ("postgresql", "oracle"):
        # BY DEFAULT: a restore or a copy may bring its own ids. On RAC see docs: ORDER.
        return (sa.Identity(always=False, cache=100 if name == "oracle" else None),)
    return ()


def takes_default(name: str, column: sa.Column[Any]) -> bool:
    """Whether a column may be added with its default to a table that holds rows."""
    default = getattr(column.server_default, "arg", None)
    return name != "sqlite" or default is None or "(" not in str(default)


def retyping(
    dialect: sa.Dialect, table: str, column: sa.Column[Any], *, instant: bool = False
) -> list[str]:
    """Statements that give a column the type, default and nullability of `column`.

    instant: it holds instants in UTC already. [] where there is no such statement (on SQLite the
    table is made anew).
    """
    if dialect.name == "sqlite":
        return []
    quoted = dialect.identifier_preparer.quote(column.name)
    kind = column.type.compile(dialect=dialect)
    default = getattr(column.server_default, "arg", None)
    set_default = "" if default is None else f" DEFAULT {_default_text(default)}"
    null = " NULL" if column.nullable else " NOT NULL"
    if dialect.name == "postgresql":
        using = f"{quoted}::{kind.split(' COLLATE')[0]}"
        if isinstance(column.type, sa.Integer):
            using = f"{quoted}::bigint::{kind}"
        if instant:
            using = f"{quoted} AT TIME ZONE 'UTC'"
        parts = [f"ALTER COLUMN {quoted} DROP DEFAULT"] if set_default else []
        parts.append(f"ALTER COLUMN {quoted} TYPE {kind} USING {using}")
        parts += [f"ALTER COLUMN {quoted} SET{set_default}"] if set_default else []
        parts += [f"ALTER COLUMN {quoted} DROP NOT NULL"] if column.nullable else []
        return [f"ALTER TABLE {table} {', '.join(parts)}"]
    if dialect.name == "oracle":
        return [f"ALTER TABLE {table} MODIFY ({quoted} {kind}{set_default}{null})"]
    fill = f"UPDATE {table} SET {quoted} = {default} WHERE {quoted} IS NULL"
    alter = f"ALTER TABLE {table} MODIFY {quoted} {kind}{set_default}{null}"
    return [fill, alter] if set_default and not column.nullable else [alter]


def zone_is_lost(dialect: sa.Dialect, kind: TypeEngine[Any]) -> bool:
    """Whether a column of instants means another instant in a session of another time zone."""
    return dialect.name == "postgresql" and not getattr(kind, "timezone", True)


def _default_text(default: Any) -> str:
    return str(default) if isinstance(default, sa.TextClause) else f"'{default}'"


def adding(name: str, column: str) -> str:
    """What ALTER TABLE says to add a column; `column` is its name and type."""
    return f"ADD ({column})" if name == "oracle" else f"ADD COLUMN {column}"


def index_names(conn: sa.Connection, table: sa.Table) -> set[str]:
    """The lower-case names of a table's indexes, those on expressions included."""
    if conn.dialect.name == "sqlite":  # the inspector leaves out indexes on expressions
        query = "SELECT lower(name) FROM sqlite_master WHERE type = 'index'"
        return set(conn.scalars(sa.text(query)))
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # "skipped unsupported reflection of expression-based index"
        found = sa.inspect(conn).get_indexes(table.name, schema=table.schema)
    return {str(index["name"]).lower() for index in found}


@dataclass(frozen=True, slots=True)
class ServerSetting:
    """A setting of the server that a promise rests on. good: what it should be, in lower case."""

    query: str
    name: str
    good: tuple[str, ...]
    otherwise: str
    mend: str = ""
    needed: bool = False


_READ_ONLY = "the database takes no writes; is it a standby?"
_TORN = "a page that is half written when the machine crashes cannot be repaired"
_LAST_MOMENTS = "what was committed just before a crash of the server can be lost"
_INNODB = (
    ServerSetting(
        "SELECT @@innodb_flush_log_at_trx_commit",
        "innodb_flush_log_at_trx_commit",
        ("1",),
        _LAST_MOMENTS,
        "SET GLOBAL innodb_flush_log_at_trx_commit = 1",
    ),
    ServerSetting("SELECT @@innodb_doublewrite", "innodb_doublewrite", ("1", "on"), _TORN),
    ServerSetting("SELECT @@global.read_only", "read_only", ("0", "off"), _READ_ONLY),
    ServerSetting(
        "SELECT CASE WHEN @@sql_mode LIKE '%STRICT%' THEN 'strict' ELSE 'not strict' END",
        "sql_mode",
        ("strict",),
        "values that do not fit are cut instead of refused",
        "SET GLOBAL sql_mode = CONCAT(@@global.sql_mode, ',STRICT_TRANS_TABLES')",
    ),
)
SERVER_SETTINGS: dict[str, tuple[ServerSetting, ...]] = {
    "postgresql": (
        ServerSetting("SHOW fsync", "fsync", ("on",), _TORN, "ALTER SYSTEM SET fsync = on"),
        ServerSetting(
            "SHOW full_page_writes",
            "full_page_writes",
            ("on",),
            _TORN,
            "ALTER SYSTEM SET full_page_writes = on",
        ),
        ServerSetting(
            "SHOW synchronous_commit",
            "synchronous_commit",
            ("on", "local", "remote_write", "remote_apply"),
            _LAST_MOMENTS,
            "ALTER SYSTEM SET synchronous_commit = on",
        ),
        ServerSetting(
            "SELECT pg_is_in_recovery()::text", "in recovery", ("false",), _READ_ONLY, needed=True
        ),
        ServerSetting(
            "SHOW default_transaction_read_only",
            "default_transaction_read_only",
            ("off",),
            _READ_ONLY,
            "ALTER SYSTEM SET default_transaction_read_only = off",
            needed=True,
        ),
    ),
    "mariadb": _INNODB,
    "mysql": _INNODB,
    "sqlite": (
        ServerSetting(
            "PRAGMA journal_mode",
            "journal_mode",
            ("wal",),
            "readers and the writer wait for each other",
            DATABASE_SET_UP["sqlite"],
        ),
    ),
    "oracle": (),
}

ANALYZE = {
    "postgresql": "ANALYZE {}",
    "sqlite": "ANALYZE {}",
    "mysql": "ANALYZE TABLE {}",
    "mariadb": "ANALYZE TABLE {}",
}
"""Fresh statistics for the planner."""

_MYSQL_USER = (
    "SELECT CONCAT(QUOTE(SUBSTRING_INDEX(CURRENT_USER(), '@', 1)), '@',"
    " QUOTE(SUBSTRING_INDEX(CURRENT_USER(), '@', -1)))"
)
CURRENT_USER = {
    "postgresql": "SELECT quote_ident(current_user)",
    "mysql": _MYSQL_USER,
    "mariadb": _MYSQL_USER,
    "oracle": "SELECT user FROM dual",
}
"""How a GRANT names who is connected; SQLite has no users."""

_EXPLAIN = {
    "postgresql": "EXPLAIN ",
    "mysql": "EXPLAIN ",
    "mariadb": "EXPLAIN ",
    "sqlite": "EXPLAIN QUERY PLAN ",
}


class _Explained(sa.Executable, sa.ClauseElement):
    inherit_cache = False

    def __init__(self, query: Any, prefix: str) -> None:
        self.query = query
        self.prefix = prefix


@compiles(_Explained)
def _explained(element: _Explained, compiler: SQLCompiler, **kw: Any) -> str:
    return f"{element.prefix}{compiler.process(element.query, **kw)}"


def plan_of(conn: sa.Connection, name: str, query: Any, params: dict[str, Any]) -> list[str] | None:
    """The database's plan of a query, a line each; None where a plan takes more than reading."""
    if name not in _EXPLAIN:
        return None
    found = conn.execute(_Explained(query, _EXPLAIN[name]), params).all()
    if name == "sqlite":
        return [str(row[-1]) for row in found]
    return ["  ".join("-" if v is None else str(v) for v in row) for row in found]


def invalid_indexes(conn: sa.Connection, table: sa.Table) -> set[str]:
    """Indexes whose building was broken off: they are there and promise nothing."""
    if conn.dialect.name != "postgresql":
        return set()
    query = (
        "SELECT c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid"
        " WHERE i.indrelid = to_regclass(:table) AND NOT (i.indisvalid AND i.indisready)"
    )
    quoted = conn.dialect.identifier_preparer.format_table(table)
    return {str(name).lower() for name in conn.scalars(sa.text(query), {"table": quoted})}


def index_is_unique(conn: sa.Connection, table: sa.Table, index: str) -> bool | None:
    """Whether an index is unique; None if the database does not tell."""
    if conn.dialect.name == "sqlite":
        query = "SELECT sql FROM sqlite_master WHERE type = 'index' AND lower(name) = :name"
        text = conn.scalar(sa.text(query), {"name": index.lower()})
        return None if text is None else "UNIQUE" in str(text).upper().split(" ON ")[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # indexes on expressions
        found = sa.inspect(conn).get_indexes(table.name, schema=table.schema)
    return next((bool(i["unique"]) for i in found if str(i["name"]).lower() == index.lower()), None)


def dropping_index(name: str, index: str, table: str) -> str:
    """The statement that drops an index."""
    on = f" ON {table}" if name in ("mysql", "mariadb") else ""
    return f"DROP INDEX {index}{on}"


_ROW_ESTIMATES = {
    "postgresql": "SELECT reltuples FROM pg_class WHERE oid = to_regclass(:table)",
    "mysql": "SELECT table_rows FROM information_schema.tables"
    " WHERE table_schema = coalesce(:schema, database()) AND table_name = :name",
    "oracle": "SELECT num_rows FROM all_tables"
    " WHERE owner = coalesce(upper(:owner), user) AND table_name = :name",
}


def row_estimate(conn: sa.Connection, table: sa.Table) -> int | None:
    """How many rows a table has according to the database's statistics; None if it cannot say.

    SQLite keeps none; there ids are given one after the other, and the highest one is close.
    """
    name = {"mariadb": "mysql"}.get(conn.dialect.name, conn.dialect.name)
    if name not in _ROW_ESTIMATES:
        (key,) = table.primary_key.columns
        span = sa.select(sa.func.max(key) - sa.func.min(key) + 1)
        return conn.scalar(span)
    quoted = conn.dialect.identifier_preparer.format_table(table)
    known = {"table": quoted, "schema": table.schema, "owner": table.schema, "name": table.name}
    if name == "oracle" and table.name.lower() == table.name:
        known["name"] = table.name.upper()
    query = sa.text(_ROW_ESTIMATES[name])
    found = conn.scalar(query, {key: known[key] for key in query._bindparams})
    return None if found is None or found < 0 else int(found)


def listen(conn: sa.Connection, channel: str) -> None:
    """Ask for the notifications of a channel on this connection (PostgreSQL with psycopg 3)."""
    conn.exec_driver_sql(f"LISTEN {conn.dialect.identifier_preparer.quote(channel)}")


def wait_for_notice(conn: sa.Connection, seconds: float) -> bool:
    """Wait for a notification; True if one came. Several at once count as one."""
    driver: Any = conn.connection.driver_connection
    return any(True for _ in driver.notifies(timeout=seconds, stop_after=1))
