"""PostgreSQL."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from msgworker.db.database import Database, Trouble
from msgworker.db.errors import code_of, is_lost_by_its_text
from msgworker.db.poolers import is_of_a_pooler, shares_sessions


class PostgreSQL(Database):
    """PostgreSQL, by psycopg 3 or psycopg2, also behind a pooler (poolers.py)."""

    name = "postgresql"
    max_name = 63
    pads_chars = True
    partial_indexes = True
    oldest_index = True
    recursive_skip_scan = True
    arrays = True
    on_conflict = True
    share_locks = True
    settles_at_once = 2
    defers = True
    max_ids = 10_000
    # A bitmap scan reads all rows of a deep object to give the first few.
    tuned = ("SET enable_bitmapscan = off", "RESET enable_bitmapscan")
    # Before the table is analyzed it looks small, and a nested loop over it takes hours.
    wide_join_settings = ("SET enable_nestloop = off", "RESET enable_nestloop")
    notify = True

    def insert_unless(
        self,
        table: sa.Table,
        values: dict[str, Any],
        column: sa.ColumnElement[Any],
        where: sa.ColumnElement[bool],
    ) -> sa.Insert:
        given = postgresql.insert(table).values(values)
        return given.on_conflict_do_nothing(index_elements=[column], index_where=where)

    # --- Errors.

    def trouble(self, error: BaseException) -> Trouble:
        if is_of_a_pooler(error):
            return Trouble.AGAIN
        state = code_of(error)[1]
        if state is None:
            return Trouble.LOST if is_lost_by_its_text(error) else Trouble.OTHER
        return _TROUBLES.get(state, _CLASSES.get(state[:2], Trouble.OTHER))

    def no_connection_left(self, error: BaseException) -> bool:
        state = code_of(error)[1]
        if state is None and type(error).__module__.startswith("psycopg"):
            # For a refused session libpq gives only the server's text, in the server's language.
            return "FATAL" in str(error)
        return state == "53300"

    def is_denied(self, error: BaseException) -> bool:
        return code_of(error)[1] == "42501"

    def violated_index(self, error: BaseException) -> str | None:
        named = getattr(getattr(error, "diag", None), "constraint_name", None)
        return "" if named is None else str(named)

    def refuses_writes(self, error: BaseException) -> bool:
        return code_of(error)[1] == "25006"

    def follows(self, error: BaseException) -> bool:
        return code_of(error)[1] == "25P02"

    def shows_a_row(self, error: BaseException) -> bool:
        return code_of(error)[1] in ("23502", "23514")

    def is_overtime(self, error: BaseException) -> bool:
        return code_of(error)[1] == "57014"

    def is_statement_limit(self, error: BaseException) -> bool:
        return code_of(error)[1] in ("57014", "55P03")

    def is_session_limit(self, error: BaseException) -> bool:
        return code_of(error)[1] in ("25P03", "25P04", "57P05")

    # --- Deadlines.

    session_limits = (
        "SELECT name, setting FROM pg_catalog.pg_settings WHERE name IN "
        "('idle_in_transaction_session_timeout', 'transaction_timeout')",
        1000,
    )

    @contextmanager
    def deadline(self, conn: sa.Connection, seconds: float) -> Iterator[None]:
        if shares_sessions(conn):  # the session is not ours to set
            with _cancelling(conn, seconds):
                yield
            return
        told = "current_setting('statement_timeout')"
        change = f"set_config('statement_timeout', '{max(1, round(seconds * 1000))}', false)"
        kept = conn.exec_driver_sql(f"SELECT {told}, {change}").scalar_one()
        try:
            yield
        finally:
            if not (conn.closed or conn.invalidated):
                conn.exec_driver_sql(f"SET statement_timeout = '{kept}'")

    def in_transaction(self, conn: sa.Connection, seconds: float) -> None:
        # of this transaction: a pooler may be between
        conn.exec_driver_sql(f"SET LOCAL statement_timeout = {int(max(1, seconds * 1000))}")


_TROUBLES = {
    "23505": Trouble.RACE,
    "40001": Trouble.AGAIN,
    "40P01": Trouble.AGAIN,
    "55P03": Trouble.AGAIN,
    "57014": Trouble.AGAIN,
    "57P01": Trouble.LOST,
    "57P02": Trouble.LOST,
    "57P03": Trouble.LOST,
    "57P05": Trouble.LOST,
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
_CLASSES = {  # the first two characters of a code that is not listed above
    "08": Trouble.LOST,
    "53": Trouble.LOST,  # no connection, memory or disk space left
    "58": Trouble.LOST,  # trouble of the operating system
}
_CANCEL_SECONDS = 0.1
"""Between two cancels of what is still running, through a pooler."""


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
