"""Ends statements that take too long: by the server where it can, in the driver elsewhere."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from msgworker.db.errors import is_of_a_driver
from msgworker.db.exceptions import code_of
from msgworker.db.poolers import shares_sessions

_STEPS = 1_000
"""SQLite asks after so many steps of its virtual machine."""
_CANCEL_SECONDS = 0.1
"""Between two cancels of what is still running, through a pooler."""


@contextmanager
def deadline(conn: sa.Connection, seconds: float) -> Iterator[None]:
    """The database ends each statement of the block that takes longer than this; SQLite, whose
    statements read on as their rows are fetched, ends what takes longer than this in all, and so
    do we through a pooler, whose sessions are not ours to set.

    `conn` is one of `connecting`. A statement that was ended raises an error that `is_overtime`
    knows.
    """
    name = conn.dialect.name
    if name == "sqlite":
        with _progress(conn, seconds):
            yield
    elif name == "oracle":
        with _call_timeout(conn, seconds):
            yield
    elif shares_sessions(conn):
        with _cancelling(conn, seconds):
            yield
    else:
        with _setting(conn, seconds):
            yield


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
    raw: Any = conn.connection.driver_connection
    with ExitStack() as ends:
        if conn.dialect.name == "sqlite":
            ends.enter_context(_progress(conn, seconds))
        elif conn.dialect.name == "oracle":
            ends.enter_context(_call_timeout(conn, seconds))
        elif conn.dialect.name != "postgresql":
            ends.enter_context(_session_within(conn, raw, seconds))
        begun = ends.enter_context(conn.begin())
        if conn.dialect.name == "postgresql":  # of this transaction: a pooler may be between
            conn.exec_driver_sql(f"SET LOCAL statement_timeout = {int(max(1, seconds * 1000))}")
        yield begun


@contextmanager
def _session_within(conn: sa.Connection, raw: Any, seconds: float) -> Iterator[None]:
    most = {"max_statement_time": f"{seconds:.3f}"}
    if not getattr(conn.dialect, "is_mariadb", False):  # whose limit of statements is for reads
        waits = ("innodb_lock_wait_timeout", "lock_wait_timeout")
        most = dict.fromkeys(waits, str(max(1, round(seconds))))
    kept = {name: f"@msgworker_{name}" for name in most}
    begin = "SET " + ", ".join(
        f"{kept[name]} = @@SESSION.{name}, SESSION {name} = {value}" for name, value in most.items()
    )
    end = "SET " + ", ".join(f"SESSION {name} = {was}" for name, was in kept.items())
    with closing(raw.cursor()) as cursor:
        cursor.execute(begin)
    try:
        yield
    finally:
        if not (conn.closed or conn.invalidated):
            with closing(raw.cursor()) as cursor:
                cursor.execute(end)


@contextmanager
def _setting(conn: sa.Connection, seconds: float) -> Iterator[None]:
    """Set the limit of the session, and afterwards what it was: a listener may have set that."""
    begin, end = _settings(conn, seconds)
    found = conn.exec_driver_sql(begin)
    if found.returns_rows:
        end = end.format(found.scalar_one())
    try:
        yield
    finally:
        if not (conn.closed or conn.invalidated):
            conn.exec_driver_sql(end)


def _settings(conn: sa.Connection, seconds: float) -> tuple[str, str]:
    """Statements that set the limit of the session and put back what it was; on PostgreSQL the
    first one gives that, for the second."""
    milliseconds = max(1, round(seconds * 1000))
    if conn.dialect.name == "postgresql":
        told = "current_setting('statement_timeout')"
        change = f"set_config('statement_timeout', '{milliseconds}', false)"
        return f"SELECT {told}, {change}", "SET statement_timeout = '{}'"
    name, value = "max_execution_time", str(milliseconds)
    if getattr(conn.dialect, "is_mariadb", False):
        name, value = "max_statement_time", f"{milliseconds / 1000:.3f}"
    begin = f"SET @msgworker_kept = @@SESSION.{name}, SESSION {name} = {value}"
    return begin, f"SET SESSION {name} = @msgworker_kept"


@contextmanager
def _progress(conn: sa.Connection, seconds: float) -> Iterator[None]:
    raw: Any = conn.connection.driver_connection
    until = time.monotonic() + seconds
    raw.set_progress_handler(lambda: time.monotonic() > until, _STEPS)
    try:
        yield
    finally:
        raw.set_progress_handler(None, 0)


@contextmanager
def _cancelling(conn: sa.Connection, seconds: float) -> Iterator[None]:
    raw: Any = conn.connection.driver_connection
    ended = threading.Event()

    def watch() -> None:
        if ended.wait(seconds):
            return
        while not ended.is_set():  # between two statements a cancel ends none
            with suppress(Exception):
                raw.cancel()
            ended.wait(_CANCEL_SECONDS)

    watching = threading.Thread(target=watch, name="msgworker-deadline", daemon=True)
    watching.start()
    try:
        yield
    finally:
        ended.set()
        watching.join()


@contextmanager
def _call_timeout(conn: sa.Connection, seconds: float) -> Iterator[None]:
    raw: Any = conn.connection.driver_connection
    before = raw.call_timeout
    raw.call_timeout = max(1, round(seconds * 1000))
    try:
        yield
    finally:
        if not (conn.closed or conn.invalidated):
            raw.call_timeout = before


_OF_STATEMENTS = ("57014", "55P03", 1205, 1969, 3024)
"""Limits of one statement, or of its wait for a lock."""
_OF_SESSIONS = ("25P03", "25P04", "57P05", 4031)
"""Limits of a transaction, or of the time that a session does nothing."""
_OF_STATEMENTS_OF_ORACLE = re.compile(r"DPY-4024|DPI-1067|ORA-0?(3156|2049)|ORA-30006")
_OF_SESSIONS_OF_ORACLE = re.compile(r"ORA-0?239[69]")


def is_time_limit(error: BaseException, *, of_session: bool = False) -> bool:
    """Whether a time limit of the server has ended a statement, a transaction or a session, and
    will strike again; of_session: not one of a statement."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    if not is_of_a_driver(cause):  # of the user's own nothing is asked, not even its text
        return False
    found, text = code_of(cause), str(cause)
    if any(code in found for code in _OF_SESSIONS) or _OF_SESSIONS_OF_ORACLE.match(text):
        return True
    if of_session:
        return False
    oracle = _OF_STATEMENTS_OF_ORACLE.match(text) is not None
    return oracle or any(code in found for code in _OF_STATEMENTS)


def session_seconds(conn: sa.Connection) -> float | None:
    """How long a session of the login may do nothing within a transaction, or a transaction may
    last, whichever is less; None = the server does not say or has no limit. No user
    code has `conn`."""
    query = _LIMITS.get(conn.dialect.name)
    if query is None:
        return None
    found = conn.exec_driver_sql(query[0]).all()
    limits = [float(value) / query[1] for _, value in found if float(value) > 0]
    return min(limits, default=None)


_OF_MYSQL = (
    "SHOW SESSION VARIABLES WHERE Variable_name IN ('wait_timeout', 'idle_transaction_timeout', "
    "'idle_write_transaction_timeout', 'idle_readonly_transaction_timeout')",
    1,
)
_LIMITS: dict[str, tuple[str, int]] = {
    "postgresql": (
        "SELECT name, setting FROM pg_catalog.pg_settings WHERE name IN "
        "('idle_in_transaction_session_timeout', 'transaction_timeout')",
        1000,
    ),
    "mysql": _OF_MYSQL,
    "mariadb": _OF_MYSQL,
}
"""Names and values, and how many of their unit are a second."""
_MYSQL = (1969, 3024)
_ORACLE = re.compile(r"DPY-4024|DPI-1067|ORA-0?3156|ORA-0*1013\b")


def is_overtime(error: BaseException) -> bool:
    """Whether a statement was ended because it took too long."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    code, state = code_of(cause)
    if code in _MYSQL or state == "57014":
        return True
    if type(cause).__module__.startswith("sqlite3"):
        return str(cause) == "interrupted"
    return _ORACLE.match(str(cause)) is not None
