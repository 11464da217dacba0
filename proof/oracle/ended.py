"""What the errors of Oracle's are compared with: a session of PostgreSQL that its server ends at
the n-th statement or COMMIT, and a transaction that MariaDB or SQLite ends there as a whole."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pymysql
import sqlalchemy as sa

from msgworker import App
from proof.oracle.faults import Place
from tests.engines import plain_engine

ENDS = {
    "sqlite": sqlite3.OperationalError("database or disk is full"),
    "mysql": pymysql.err.OperationalError(1213, "Deadlock found; try restarting transaction"),
}
"""Errors that end the whole transaction, with its savepoints."""


class Ended:
    """One fault of one App; it comes once."""

    def __init__(self, app: App, place: Place, nth: int) -> None:
        self._left, self.raised = nth, 0
        self._lock = threading.Lock()
        self._engine = app.engine
        self._place = place
        self._other = plain_engine(str(app.engine.url.render_as_string(hide_password=False)))

    @contextmanager
    def planned(self) -> Iterator[Ended]:
        name, act = {
            "statement": ("before_cursor_execute", self._before),
            "after statement": ("after_cursor_execute", self._after),
            "before commit": ("commit", self._before),
        }[self._place]
        if self._engine.dialect.name in ENDS:  # within what handles the errors of the driver
            name, act = "do_execute", self._roll_back
        sa.event.listen(self._engine, name, act)
        try:
            yield self
        finally:
            sa.event.remove(self._engine, name, act)
            self._other.dispose()

    def _roll_back(self, cursor: Any, statement: str, params: Any, context: Any) -> None:
        if self._due():
            context.root_connection.connection.dbapi_connection.rollback()
            raise ENDS[self._engine.dialect.name]

    def _before(self, conn: sa.Connection, *rest: Any) -> None:
        """The server has ended it: what is sent next meets that."""
        if self._due():
            self._end(conn)

    def _after(self, conn: sa.Connection, *rest: Any) -> None:
        if self._due():
            self._end(conn)
            conn.connection.dbapi_connection.close()  # type: ignore[union-attr]
            raise psycopg.OperationalError("server closed the connection unexpectedly")

    def _end(self, conn: sa.Connection) -> None:
        pid = conn.connection.dbapi_connection.info.backend_pid  # type: ignore[union-attr]
        with self._other.connect() as other:
            other.exec_driver_sql(f"SELECT pg_terminate_backend({pid}, 5000)")

    def _due(self) -> bool:
        with self._lock:
            self._left -= 1
            self.raised += self._left == 0
            return self._left == 0
