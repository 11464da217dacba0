"""Features of drivers: autocommit, cutting a connection, the state of a transaction."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

import sqlalchemy as sa

from msgworker.db.database import of

ISOLATION: Final = "READ COMMITTED"
"""The isolation level of all our connections, whatever the default of server or engine."""
CONNECT_SECONDS = 10
READ_SECONDS = 600
WRITE_SECONDS = 60
PROGRAM = "msgworker"
"""What our sessions are called on the server, unless the URL or the environment says otherwise."""


class _OddTexts(threading.local):
    """met: whether this thread has read a text that is not UTF-8 since `met` was set to False."""

    met = False


odd_texts = _OddTexts()


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
