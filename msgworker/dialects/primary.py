"""A standby takes no writes until it is promoted: an outage, which passes, and not a refusal, which
ends the run. On MariaDB and MySQL that is a server with `read_only`, as replicas have it: what it
is besides, a login without further rights cannot ask.

What a connection of PostgreSQL was told when it was opened (`in_hot_standby`, version 14 and later)
is only a hint: a pooler repeats what it was told itself, perhaps before a promotion. The server is
asked.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event

from msgworker.dialects.masking import masked
from msgworker.dialects.troubles import is_read_only, refuses_writes
from msgworker.errors import DatabaseUnavailable

ROLLED_BACK = "msgworker_rolled_back"
"""Set in the attributes of a connection whose transaction is over though it does not show it."""


def notice_standby(engine: sa.Engine) -> None:
    """From now on what a standby refuses is a lost connection: the next one may lead to the
    primary. For PostgreSQL, MariaDB and MySQL."""
    event.listen(engine, "handle_error", _caught)


def refuse_standby(conn: sa.Connection) -> None:
    """Close `conn`, which is new, and raise DatabaseUnavailable if its server is a standby. One of
    PostgreSQL is asked if it has told so."""
    raw: Any = conn.connection.driver_connection
    if conn.dialect.name in _READ_ONLY:
        why = "read-only, as a standby is"
    elif conn.dialect.name == "postgresql" and _told(raw) == "on":
        why = "a standby"
    else:
        return
    if _is_standby(conn.dialect.name, raw):
        with suppress(Exception):
            conn.invalidate()
        conn.close()
        where = masked(conn.engine.url)
        raise DatabaseUnavailable(f"cannot use the database {where}: the server is {why}")


def _told(raw: Any) -> str | None:
    """What the server has told about being a standby: on, off, or None = nothing."""
    ask = getattr(getattr(raw, "info", None), "parameter_status", None)
    try:
        return None if ask is None else ask("in_hot_standby")
    except Exception:  # the connection is closed
        return None


def _caught(context: Any) -> None:
    conn, error = context.connection, context.original_exception
    read_only = is_read_only(error)
    if conn is None or conn.invalidated or not (read_only or refuses_writes(error)):
        return
    if conn.in_nested_transaction():  # a rollback to a savepoint must remain possible
        return
    vars(conn)[ROLLED_BACK] = context.sqlalchemy_exception
    if read_only or _is_standby(conn.dialect.name, conn.connection.driver_connection):
        context.is_disconnect = True


_READ_ONLY = ("mysql", "mariadb")


def _is_standby(name: str, raw: Any) -> bool:
    """Ask the server. What the transaction did is rolled back: it is new, or an error has ended
    it."""
    query = "@@global.read_only" if name in _READ_ONLY else "pg_catalog.pg_is_in_recovery()"
    try:
        raw.rollback()
        with raw.cursor() as cursor:
            cursor.execute(f"SELECT {query}")
            found = cursor.fetchone()[0]
        raw.rollback()
    except Exception:  # it is broken, which the next statement shows
        return False
    return found not in (False, None) and str(found).upper() not in ("0", "OFF")
