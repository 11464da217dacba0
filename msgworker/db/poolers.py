"""A pooler between us and PostgreSQL, such as PgBouncer: where it gives each transaction another
session of the server, nothing may be kept in a session.

Prepared statements are the danger: the driver numbers them for each connection, so in the session
of another client one of these names may be missing, taken, or another statement.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import URL

from msgworker.db.errors import code_of, masked
from msgworker.errors import ConfigError
from msgworker.logs import Said, logger

OPTION = "msgworker_pooler"
"""An execution option of an Engine, and without its prefix an option of the URL: how the pooler
pools. `session`: as without one; `transaction`: a session is not ours to keep. By default the
first connection is asked."""
KINDS = ("session", "transaction")
_PREPARES = "msgworker_prepares"

_shared: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()
"""The pools that were asked, and whether they share their sessions."""
_said_of: set[str] = set()
"""The URLs of which it was logged: an App has several pools."""
_log = logger("msgworker.dialects")


def told_of_pooler(url: URL) -> tuple[URL, dict[str, str | bool], dict[str, int | None]]:
    """What a URL says of its pooler, taken out of it: the rest, options for the engine, and options
    for the driver. Raises ConfigError."""
    if url.get_backend_name() != "postgresql":
        return url, {}, {}
    options: dict[str, str | bool] = {}
    args: dict[str, int | None] = {}
    kind, threshold = url.query.get("pooler"), url.query.get("prepare_threshold")
    if kind is not None:
        if kind not in KINDS:
            raise ConfigError(f"pooler in the database url must be {' or '.join(KINDS)}")
        options[OPTION] = str(kind)
    if threshold is not None and url.get_driver_name() == "psycopg":
        if threshold != "none" and not str(threshold).isdecimal():
            raise ConfigError("prepare_threshold in the database url must be a number or none")
        args["prepare_threshold"] = None if threshold == "none" else int(str(threshold))
        options[_PREPARES] = threshold != "none"
    return url.difference_update_query(("pooler", "prepare_threshold")), options, args


def notice_pooler(engine: sa.Engine) -> None:
    """Notice a pooler at the first connection of this engine, or at an error that shows one.

    Raises ConfigError for an execution option that means nothing.
    """
    kind = engine.get_execution_options().get(OPTION)
    if kind is not None and kind not in KINDS:
        raise ConfigError(f"the execution option {OPTION} must be {' or '.join(KINDS)}")
    event.listen(engine, "engine_connect", _ask)
    event.listen(engine, "handle_error", _caught)


def shares_sessions(conn: sa.Connection) -> bool:
    """Whether the next transaction of `conn` may be in another session of the server, so that
    settings and LISTEN do not last, and would change the sessions of others."""
    return bool(_shared.get(conn.engine.pool, False))


def _ask(conn: sa.Connection) -> None:
    pool = conn.engine.pool
    options = conn.get_execution_options()
    raw: Any = conn.connection.driver_connection
    if pool in _shared:
        if _shared[pool] and not options.get(_PREPARES):
            _unprepared(raw)  # it may be older than what another thread has found meanwhile
        return
    kind = options.get(OPTION)
    found = _is_between(raw) if kind is None else kind == "transaction"
    if found is None:
        return  # the next statement says what is wrong
    _shared[pool] = found
    if found:
        _share(conn.engine, raw, options)


def _is_between(raw: Any) -> bool | None:
    """Whether the server's process is another than the one that was reported when we connected: a
    pooler gives its own number. None if it cannot be asked."""
    ours = getattr(getattr(raw, "info", None), "backend_pid", None)
    if ours is None:
        return False
    try:
        with raw.cursor() as cursor:
            cursor.execute("SELECT pg_catalog.pg_backend_pid()")
            theirs = cursor.fetchone()[0]
        raw.rollback()
    except Exception:
        return None
    return bool(theirs != ours)


def _share(engine: sa.Engine, raw: Any, options: Mapping[str, Any]) -> None:
    if not options.get(_PREPARES):
        _unprepared(raw)
        event.listen(engine.pool, "checkout", _unprepared)
    url = masked(engine.url)
    if url in _said_of:
        return
    _said_of.add(url)
    _log.info(
        "a pooler is in front of %s: it is used without prepared statements, settings of a session "
        "and LISTEN, so messages of other processes are found by polling. If it pools by session "
        "add pooler=session to the url, see docs/operate/poolers.md",
        url,
        extra={"event": Said.POOLER_FOUND},
    )


def _unprepared(raw: Any, *_: Any) -> None:
    if hasattr(raw, "prepare_threshold"):
        raw.prepare_threshold = None


def _caught(context: Any) -> None:
    if not is_of_a_pooler(context.original_exception) or context.engine is None:
        return
    conn = context.connection
    raw = None if conn is None or conn.invalidated else conn.connection.driver_connection
    _unprepared(raw)
    if not _shared.get(context.engine.pool):
        _shared[context.engine.pool] = True
        _share(context.engine, raw, {})


def is_of_a_pooler(error: BaseException | None) -> bool:
    """Whether a statement that the driver has prepared is missing or is there already: another
    session of the server than the one it was prepared in."""
    return code_of(error)[1] in ("42P05", "26000") and "_pg3_" in str(error)
