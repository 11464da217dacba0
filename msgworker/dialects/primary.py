"""A standby of PostgreSQL takes no writes until it is promoted: an outage, which passes, and not a
refusal, which ends the run.

What a connection was told when it was opened (`in_hot_standby`, PostgreSQL 14 and later) is only a
hint: a pooler repeats what it was told itself, perhaps before a promotion. The server is asked.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event

from msgworker.dialects.masking import masked
from msgworker.dialects.troubles import refuses_writes
from msgworker.errors import DatabaseUnavailable

ROLLED_BACK = "msgworker_rolled_back"
"""Set in the attributes of a connection whose transaction is over though it does not show it."""


def notice_standby(engine: sa.Engine) -> None:
    """From now on what a standby refuses is a lost connection: the next one may lead to the
    primary."""
    event.listen(engine, "handle_error", _caught)


def refuse_standby(conn: sa.Connection) -> None:
    """Close `conn`, which is new, and raise DatabaseUnavailable if its server has told that it is a
    standby, and still is; otherwise nothing is asked."""
    if conn.dialect.name != "postgresql":
        return
    raw: Any = conn.connection.driver_connection
    if _told(raw) == "on" and _in_recovery(raw):
        with suppress(Exception):
            conn.invalidate()
        conn.close()
        raise DatabaseUnavailable(
            f"cannot use the database {masked(conn.engine.url)}: the server is a standby"
        )


def _told(raw: Any) -> str | None:
    """What the server has told about being a standby: on, off, or None = nothing."""
    ask = getattr(getattr(raw, "info", None), "parameter_status", None)
    try:
        return None if ask is None else ask("in_hot_standby")
    except Exception:  # the connection is closed
        return None


def _caught(context: Any) -> None:
    conn = context.connection
    if conn is None or conn.invalidated or not refuses_writes(context.original_exception):
        return
    if conn.in_nested_transaction():  # a rollback to a savepoint must remain possible
        return
    vars(conn)[ROLLED_BACK] = context.sqlalchemy_exception
    if _in_recovery(conn.connection.driver_connection):
        context.is_disconnect = True


def _in_recovery(raw: Any) -> bool:
    """Ask the server whether it is a standby. What the transaction did is rolled back: it is new,
    or an error has ended it."""
    try:
        raw.rollback()
        with raw.cursor() as cursor:
            cursor.execute("SELECT pg_catalog.pg_is_in_recovery()")
            found = bool(cursor.fetchone()[0])
        raw.rollback()
    except Exception:  # it is broken, which the next statement shows
        return False
    return found
