"""Heads that come out of order of age: those with a priority, and those whose instant has come."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection, Select, bindparam

from msgworker.db import (
    bytewise,
    fetch,
    has_come,
    instant_text,
    is_to_come,
    now,
    now_plus,
    seconds_since,
)
from msgworker.message import DEFAULT_TOPIC, Status
from msgworker.store.candidates import Candidate, as_candidates, due_rows, hint_columns
from msgworker.store.controls import topic_or_held
from msgworker.table import URGENT, Cols, Slice, Tables, text_lit
from msgworker.table.tables import (
    ONE,
    ZERO,
    priority_of,
    rank_of,
    urgent_behind,
    urgent_order,
    urgent_rows,
)

# --- When messages become due: what a drain that finds nothing waits for.
#
# Only heads that this instance could start then: waiting for others is useless.


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
        selects = [_next(t, linger, *handled), _next(t, retry, *handled, failed=True)]
        return sa.select(*(one.scalar_subquery().label(f"d{i}") for i, one in enumerate(selects)))

    if not (t.has("topic") or t.asks_jobs):  # every message is of one topic
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
        *_handled(t, c, some, but),
        *_within(t, c, role),
        sa.not_(t.earlier_unfinished(c)),
        sa.not_(t.object_is_running(c)),
    )
    if failed:
        query = query.where(t.stands_at(c, Status.FAILED))
    return query.order_by(c.available_at).limit(ONE)


def _handled(t: Tables, c: Cols, some: bool, but: bool) -> list[ColumnElement[bool]]:
    if c.topic is None and not t.asks_jobs:
        return []
    topic = bytewise(sa.func.coalesce(topic_or_held(t, c), text_lit(DEFAULT_TOPIC)))
    where: list[ColumnElement[bool]] = []
    if some:
        where.append(topic.in_(bindparam("mw_topics", expanding=True)))
    if but:
        where.append(topic.not_in(bindparam("mw_paused", expanding=True)))
    return where


# --- Candidates by priority: the heads among the rows that have one, the highest first.
#
# They are hints like all candidates. A row with a priority that is not the head of its object
# waits for the earlier ones; so whether it is the head is asked here: `flag` would refuse it, and
# its object would be left alone for a while.

Place = tuple[int, int]
"""The rank (the priority, negated) and the msg_id of a row."""


@dataclass(slots=True)
class Ranked:
    """What was read by priority.

    heads: those with a priority, the highest first, that wait for no instant. after: the last row
    that was read, head or not; None = the end was reached. values: by msg_id, the slice of each
    head, if a role was given. due: rows whose instant has come, if they were asked for.
    priorities: by msg_id, of the heads, and of the due rows that have one.
    """

    heads: list[Candidate] = field(default_factory=list)
    after: Place | None = None
    values: dict[int, Any] = field(default_factory=dict)
    due: list[Candidate] = field(default_factory=list)
    priorities: dict[int, int] = field(default_factory=dict)


def ranked(
    conn: Connection, t: Tables, *, limit: int, after: Place | None = None, role: str | None = None
) -> Ranked:
    """Read `limit` rows that have a priority and wait for no instant, behind `after` (None = from
    the highest on). role: with the slice of each."""

    def build() -> Select[Any]:
        c = t.cols()
        value = [] if role is None else [t.slice_value(c, role).label("v")]
        query = _by_rank(t, *hint_columns(t, c), *value, _is_head(t), limit="rows")
        if after is None:
            return query
        rank = bindparam("rank", type_=sa.Integer())
        msg_id = bindparam("id", type_=sa.BigInteger())
        return query.where(*urgent_behind(t, c, rank, msg_id))

    params: dict[str, Any] = {"rows": limit}
    if after is not None:
        params |= {"rank": after[0], "id": after[1]}
    found = fetch(conn, t.built(("ranked", after is None, role), build), params)
    values = {} if role is None else {row[0]: row[-3] for row in found}
    return _as_ranked(found, limit, 2 if role is None else 3, values)


def due_and_ranked(
    conn: Connection, t: Tables, *, since: tuple[Any, int] | None, limit: int, most: int
) -> Ranked:
    """`candidates.due_after`, and `ranked` of up to `most` rows, in one statement."""
    if not t.has("available_at"):
        return ranked(conn, t, limit=most)

    def build(from_start: bool) -> Any:
        c = t.cols()
        assert c.available_at is not None
        rank = (ZERO - priority_of(c)).label("r")
        due = due_rows(t, from_start, ZERO.label("ranked"), ONE.label("head"), rank)
        columns = hint_columns(t, c, instant_text(c.available_at))
        by_rank = _by_rank(t, *columns, ONE.label("ranked"), _is_head(t), limit="most")
        if t.database.bare_unions:
            return sa.union_all(due, by_rank)
        return sa.union_all(sa.select(due.subquery("q0")), sa.select(by_rank.subquery("q1")))

    statement = t.built(("due_and_ranked", since is None), partial(build, since is None))
    at, msg_id = since or (None, None)
    params = {"at": at, "id": msg_id, "rows": limit, "most": most}
    rows = fetch(conn, statement, params)
    found = _as_ranked([row for row in rows if row[-3]], most, 3, {})
    due = [row for row in rows if not row[-3]]
    found.due = as_candidates([row[:-3] for row in due])
    found.priorities |= {row[0]: -row[-1] for row in due if row[-1]}
    return found


def _by_rank(t: Tables, *columns: ColumnElement[Any], limit: str) -> Select[Any]:
    c = t.cols()
    query = t.hinted(sa.select(*columns, rank_of(t, c).label("r")), t.message, URGENT)
    query = query.where(urgent_rows(t, c)).order_by(*urgent_order(t, c))
    return query.limit(bindparam(limit, type_=sa.Integer()))


def _is_head(t: Tables) -> ColumnElement[Any]:
    return sa.case((t.earlier_unfinished(t.cols()), ZERO), else_=ONE).label("head")


def _as_ranked(found: Sequence[Any], limit: int, behind: int, values: dict[int, Any]) -> Ranked:
    """Rows end in: head or not, and the rank; `behind` columns follow those of the candidate."""
    heads = [row for row in found if row[-2]]
    made = as_candidates([row[:-behind] for row in heads])
    priorities = {row[0]: -row[-1] for row in heads}
    after = None
    if found and len(found) >= limit:
        after = (found[-1][-1], found[-1][0])
    return Ranked(made, after, values, priorities=priorities)
