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

from msgworker.dialects.codes import code_of
from msgworker.dialects.poolers import shares_sessions

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
        begin, end = _settings(conn, seconds)
        conn.exec_driver_sql(begin)
        try:
            yield
        finally:
            if not (conn.closed or conn.invalidated):
                conn.exec_driver_sql(end)


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
            conn.exec_driver_sql(f"SET LOCAL statement_timeout = {max(1, round(seconds * 1000))}")
        yield begun


@contextmanager
def _session_within(conn: sa.Connection, raw: Any, seconds: float) -> Iterator[None]:
    if getattr(conn.dialect, "is_mariadb", False):
        values = {"max_statement_time": f"{seconds:.3f}"}
    else:  # whose limit of a statement is for reads alone
        waits = ("innodb_lock_wait_timeout", "lock_wait_timeout")
        values = dict.fromkeys(waits, str(max(1, round(seconds))))
    with closing(raw.cursor()) as cursor:
        cursor.execute(f"SET SESSION {', '.join(f'{n} = {v}' for n, v in values.items())}")
    try:
        yield
    finally:
        if not (conn.closed or conn.invalidated):
            with closing(raw.cursor()) as cursor:
                cursor.execute(f"SET SESSION {', '.join(f'{name} = DEFAULT' for name in values)}")


def _settings(conn: sa.Connection, seconds: float) -> tuple[str, str]:
    milliseconds = max(1, round(seconds * 1000))
    if conn.dialect.name == "postgresql":
        return f"SET statement_timeout = {milliseconds}", "RESET statement_timeout"
    if getattr(conn.dialect, "is_mariadb", False):
        variable, value = "max_statement_time", f"{milliseconds / 1000:.3f}"
    else:
        variable, value = "max_execution_time", str(milliseconds)
    return f"SET SESSION {variable} = {value}", f"SET SESSION {variable} = DEFAULT"


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
