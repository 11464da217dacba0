"""When messages become due: what a drain that finds nothing waits for.

Only heads that this instance could start then: waiting for others is useless.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection, bindparam

from msgworker.dialects import bytewise, has_come, is_to_come, now, now_plus, seconds_since
from msgworker.message import DEFAULT_TOPIC, Status
from msgworker.table import Cols, Slice, Tables, text_lit

ONE: ColumnElement[int] = sa.literal_column("1")


def due_in(
    conn: Connection,
    t: Tables,
    *,
    topics: Collection[str] | None,
    paused: Collection[str],
    linger: float,
    retry_linger: float,
    within: Slice | None = None,
) -> float | None:
    """Seconds until the first message becomes due, if that is within `linger` seconds, or within
    `retry_linger` where it has failed before; else None.

    topics: those handled, None = all. within: in this slice only. One step into the index
    by instant, and over what stands there before it that may not be started.
    """
    if not t.has("available_at"):
        return None

    def build(some: bool, but: bool) -> sa.Select[Any]:
        linger, retry = (bindparam(f"mw_{name}", type_=sa.Float()) for name in ("linger", "retry"))
        handled = (some, but, role)
        parts = [_next(t, linger, *handled), _next(t, retry, *handled, failed=True)]
        return sa.select(*(part.scalar_subquery().label(f"d{i}") for i, part in enumerate(parts)))

    if not t.has("topic"):  # every message is of one topic
        handled = topics is None or DEFAULT_TOPIC in topics
        nothing = not handled or DEFAULT_TOPIC in paused
        linger, retry_linger = (-1.0, -1.0) if nothing else (linger, retry_linger)
        topics, paused = None, ()
    key = (topics is not None, bool(paused))
    role = None if within is None else within.role
    params: dict[str, Any] = {"mw_linger": float(linger), "mw_retry": float(retry_linger)}
    if topics is not None:
        params["mw_topics"] = sorted(topics)
    if paused:
        params["mw_paused"] = sorted(paused)
    if within is not None:
        params["mw_slice"] = list(within.values)
    found = conn.execute(t.built(("due_in", role, *key), lambda: build(*key)), params).first()
    ahead = [max(0.0, -float(past)) for past in found or () if past is not None]
    return min(ahead, default=None)


def _within(t: Tables, c: Cols, role: str | None) -> list[ColumnElement[bool]]:
    if role is None:
        return []
    return [t.slice_value(c, role).in_(bindparam("mw_slice", expanding=True))]


def _next(
    t: Tables,
    within: ColumnElement[Any],
    some: bool,
    but: bool,
    role: str | None,
    *,
    failed: bool = False,
) -> sa.Select[Any]:
    source = t.message.alias("w")
    c = t.cols(source)
    assert c.available_at is not None
    query = t.hinted(sa.select(seconds_since(c.available_at)), source, "due").where(
        t.claimable(c),
        t.unfinished(c),
        is_to_come(c.available_at, now()),
        has_come(c.available_at, now_plus(within)),
        *_handled(c, some, but),
        *_within(t, c, role),
        sa.not_(t.earlier_unfinished(c)),
        sa.not_(t.object_is_running(c)),
    )
    if failed:
        query = query.where(t.stands_at(c, Status.FAILED))
    return query.order_by(c.available_at).limit(ONE)


def _handled(c: Cols, some: bool, but: bool) -> list[ColumnElement[bool]]:
    if c.topic is None:
        return []
    topic = bytewise(sa.func.coalesce(c.topic, text_lit(DEFAULT_TOPIC)))
    where: list[ColumnElement[bool]] = []
    if some:
        where.append(topic.in_(bindparam("mw_topics", expanding=True)))
    if but:
        where.append(topic.not_in(bindparam("mw_paused", expanding=True)))
    return where
