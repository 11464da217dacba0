"""Features of drivers: timeouts, cutting a connection, listening."""

from __future__ import annotations

import codecs
import os
import selectors
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import URL

from msgworker.errors import ConfigError

ISOLATION: Final = "READ COMMITTED"
"""The isolation level of all our connections, whatever the default of server or engine."""
CONNECT_SECONDS = 10
READ_SECONDS = 600
WRITE_SECONDS = 60
NAME = "msgworker"
"""What our sessions are called on the server, unless the URL or the environment says otherwise."""
_LIBPQ: dict[str, int | str] = {
    "fallback_application_name": NAME,
    "connect_timeout": CONNECT_SECONDS,
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 25_000,  # milliseconds: for data that was never acknowledged
}
_MYSQL_WAITS = {
    "connect_timeout": CONNECT_SECONDS,
    "read_timeout": READ_SECONDS,
    "write_timeout": WRITE_SECONDS,
}
_WAITS: dict[str, dict[str, Any]] = {
    "psycopg": _LIBPQ,
    "psycopg2": _LIBPQ,
    "pymysql": _MYSQL_WAITS | {"program_name": NAME},
    "mysqldb": _MYSQL_WAITS,
    "mariadbconnector": _MYSQL_WAITS,
    "oracledb": {
        "tcp_connect_timeout": CONNECT_SECONDS,
        "expire_time": 1,  # minutes
        "stmtcachesize": 100,  # statements that the driver keeps open; by default 20
    },
}
"""Timeouts of drivers for a network that does not answer; by default most have none. Beside them
the name of the program, and how many statements they keep."""


def connect_defaults(url: URL) -> dict[str, Any]:
    """Options for the driver of a URL that we open; options in the URL's query have precedence."""
    waits = _WAITS.get(url.get_driver_name(), {})
    args: dict[str, Any] = {k: v for k, v in waits.items() if k not in url.query}
    if url.get_driver_name() in ("pymysql", "mysqldb"):  # the third one has no other
        args["charset"] = "utf8mb4"
    return args


def _connect_pymysql(dialect: Any, record: Any, cargs: Any, cparams: dict[str, Any]) -> Any:
    # Its connect_timeout is for the socket only: if a server, or a proxy, accepts and stays
    # silent, the driver waits as long as for the answer to a query.
    args = cparams | {"defer_connect": True}
    asks_for_tls = any(name.startswith("ssl") or name == "read_default_file" for name in cparams)
    context = None if cargs or asks_for_tls else _preferred_tls(dialect.dbapi)
    if context is None:
        conn = _with_its_files(dialect.dbapi, cargs, args)
    else:
        conn = dialect.dbapi.connect(**args, ssl_disabled=True)
        conn.ssl, conn.ctx = True, context
    limit, conn._read_timeout = conn._read_timeout, cparams.get("connect_timeout", CONNECT_SECONDS)
    conn.connect()
    _end_plainly(conn)
    conn._read_timeout = limit
    conn._sock.settimeout(limit)
    if conn._sock.family != getattr(socket, "AF_UNIX", None):
        for name, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
            if hasattr(socket, name):  # PyMySQL switches keepalive itself on
                conn._sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return conn


def _with_its_files(driver: Any, cargs: Any, args: dict[str, Any]) -> Any:
    """A connection of PyMySQL that is not made yet, but has read the files that its options name.
    What stands in them is not shown."""
    import configparser  # PyMySQL has imported it

    try:
        return driver.connect(*cargs, **args)
    except (OSError, configparser.Error) as error:
        why = getattr(error, "reason", None) or getattr(error, "strerror", None)
        raise ConfigError(
            "a file that an option of the database url names (ssl_ca, ssl_cert, ssl_key, "
            f"read_default_file) cannot be read: {why or type(error).__name__}"
        ) from None


_PLAIN = ("NO_CHAIN", 2**64 - 1)


def _end_plainly(conn: Any) -> None:
    """Reset settings by which a server, or an `init_command`, makes COMMIT end the session or begin
    another transaction (completion_type), or limits the rows of queries (sql_select_limit)."""
    with conn.cursor() as cursor:
        cursor.execute("SELECT @@completion_type, @@sql_select_limit")
        if tuple(cursor.fetchone()) != _PLAIN:
            cursor.execute("SET SESSION completion_type = %s, sql_select_limit = %s", _PLAIN)


@cache
def _preferred_tls(dbapi: Any) -> Any:
    """The TLS context that PyMySQL would create for each connection without TLS options. It reads
    all certificates of the system, which takes ten times as long as connecting. None if not
    needed."""
    made = dbapi.connect(defer_connect=True)
    return made.ctx if made.ssl and hasattr(made, "_ssl_required") else None


class _OddTexts(threading.local):
    """met: whether this thread has read a text that is not UTF-8 since `met` was set to False."""

    met = False


odd_texts = _OddTexts()
_ANY_UTF8 = "msgworker_any_utf8"


def _decode(data: Any, errors: str = "strict") -> tuple[str, int]:
    try:
        return codecs.utf_8_decode(data, errors, True)
    except UnicodeDecodeError:
        odd_texts.met = True
        return codecs.utf_8_decode(data, "surrogateescape", True)


def _encode(text: str, errors: str = "strict") -> tuple[bytes, int]:
    return codecs.utf_8_encode(text, "surrogateescape")


@codecs.register
def _any_utf8(name: str) -> codecs.CodecInfo | None:
    return codecs.CodecInfo(_encode, _decode, name=name) if name == _ANY_UTF8 else None


def _any_text(conn: sa.Connection) -> None:
    # MariaDB stores half surrogates, on which PyMySQL fails in the middle of an answer: the
    # connection is then unusable.
    raw: Any = conn.connection.driver_connection
    if getattr(raw, "encoding", None) == "utf8":
        raw.encoding = _ANY_UTF8


def _iso_dates(conn: sa.Connection) -> None:
    # psycopg reads instants in the ISO style only; roles, databases and URLs may set another. The
    # driver already knows the style from the server, so this needs no statement.
    raw: Any = conn.connection.driver_connection
    told = getattr(getattr(raw, "pgconn", None), "parameter_status", lambda _: None)(b"DateStyle")
    if told is not None and not told.startswith(b"ISO"):
        raw.execute("SET datestyle TO ISO")
        raw.commit()


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
    flag_only = conn.dialect.name == "oracle" or conn.dialect.driver.startswith("psycopg")
    if flag_only:  # these drivers keep the level, and this sends nothing
        raw.autocommit = yes
    else:
        conn.dialect.set_isolation_level(raw, "AUTOCOMMIT" if yes else ISOLATION)


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
        found = number  # mysqlclient tells nothing while it is in use, so what was noted holds
    if found is not None:
        with socket.socket(fileno=os.dup(found)) as twin:
            twin.shutdown(socket.SHUT_RDWR)


_NUMBER = "msgworker_file_number"


def _note_number(conn: sa.Connection) -> None:
    # mysqlclient does not tell it to another thread while the connection is in use.
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
    return None if sock is None else int(sock.fileno())


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


def listen(conn: sa.Connection, channel: str) -> None:
    """Listen to a channel on this connection (PostgreSQL)."""
    conn.exec_driver_sql(f"LISTEN {conn.dialect.identifier_preparer.quote(channel)}")


def wait_for_notice(conn: sa.Connection, seconds: float) -> bool:
    """Wait for a notification; True if one arrived. Several at once count as one."""
    driver: Any = conn.connection.driver_connection
    if callable(driver.notifies):
        return any(True for _ in driver.notifies(timeout=seconds, stop_after=1))
    driver.poll()  # psycopg2: what came with the answers to statements
    if not driver.notifies:
        with selectors.DefaultSelector() as ready:
            ready.register(driver.fileno(), selectors.EVENT_READ)
            ready.select(seconds)
        driver.poll()
    came = bool(driver.notifies)
    driver.notifies.clear()
    return came
