"""Heads that come out of order of age: those with a priority, and those whose instant has come."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection, Select, bindparam

from msgworker.db.clock import has_come, instant_text, is_to_come, now, now_plus, seconds_since
from msgworker.db.connections import fetch
from msgworker.db.types import bytewise, or_text
from msgworker.message import DEFAULT_TOPIC, Status
from msgworker.store.candidates import Candidate, as_candidates, due_rows, hint_columns
from msgworker.store.controls import topic_or_held
from msgworker.store.rows import in_union
from msgworker.table import tables
from msgworker.table.columns import URGENT, Slice

# --- When messages become due: what a drain that finds nothing waits for.
#
# Only heads that this instance could start then: waiting for others is useless.


def due_in(
    conn: Connection,
    t: tables.Tables,
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
    one_topic = not t.has("topic") and not t.asks_jobs
    if one_topic and (
        (topics is not None and DEFAULT_TOPIC not in topics) or DEFAULT_TOPIC in paused
    ):
        return None
    params: dict[str, Any] = {"linger": float(linger), "retry_linger": float(retry_linger)}
    if topics is not None and not one_topic:
        params["mw_topics"] = sorted(topics)
    if paused and not one_topic:
        params["mw_paused"] = sorted(paused)
    role = None if within is None else within.by
    if within is not None:
        params["mw_values"] = list(within.values)

    def build() -> Any:
        source = t.message.alias("w")
        c = t.cols(source)
        at = c["available_at"]
        where = [t.claimable(c), t.unfinished(c), is_to_come(at, now())]
        topic = bytewise(or_text(topic_or_held(t, c), tables.text_lit(DEFAULT_TOPIC)))
        if "mw_topics" in params:
            where.append(topic.in_(bindparam("mw_topics", expanding=True)))
        if "mw_paused" in params:
            where.append(topic.not_in(bindparam("mw_paused", expanding=True)))
        if role is not None:
            where.append(t.slice_value(c, role).in_(bindparam("mw_values", expanding=True)))
        where += [sa.not_(t.earlier_unfinished(c)), sa.not_(t.object_is_running(c))]

        def first(seconds: str, *more: ColumnElement[bool]) -> Select[Any]:
            until = has_come(at, now_plus(bindparam(seconds, type_=sa.Float())))
            query = t.hinted(sa.select(seconds_since(at)), source, "due")
            return query.where(*where, until, *more).order_by(at).limit(tables.ONE)

        failed = (t.stands_at(c, Status.FAILED), t.tries(c) > tables.ZERO)
        selects = (first("linger"), first("retry_linger", *failed))
        return sa.select(*(one.scalar_subquery().label(f"d{i}") for i, one in enumerate(selects)))

    query = t.built(("due_in", role, *params), build)
    found = conn.execute(query, params).first() or ()
    return min((max(0.0, -float(past)) for past in found if past is not None), default=None)


# --- Candidates by priority: the heads among the rows that have one, the highest first.
#
# They are hints like all candidates. A row with a priority that is not the head of its object
# waits for the earlier ones; so whether it is the head is asked here: `flag` would refuse it, and
# its object would be left alone for a while.

RankedAt = tuple[int, int]
"""The rank (the priority, negated) and the msg_id of a row: where to continue."""


@dataclass(slots=True)
class Ranked:
    """What was read by priority."""

    # Those with a priority, the highest first, that wait for no instant.
    heads: list[Candidate] = field(default_factory=list)
    after: RankedAt | None = None  # the last row that was read; None = the end was reached
    values: dict[int, Any] = field(default_factory=dict)  # the slice of each, if a role was given
    # Rows whose instant has come, if they were asked for.
    due: list[Candidate] = field(default_factory=list)
    # Of the heads, and of the due rows that have one.
    priorities: dict[int, int] = field(default_factory=dict)


def ranked(
    conn: Connection,
    t: tables.Tables,
    *,
    limit: int,
    after: RankedAt | None = None,
    role: str | None = None,
) -> Ranked:
    """Read `limit` rows that have a priority and wait for no instant, behind `after` (None = from
    the highest on). role: with the slice of each."""

    def build() -> Select[Any]:
        c = t.cols()
        value = [] if role is None else [t.slice_value(c, role).label("v")]
        query = _by_rank(t, *hint_columns(t, c), *value, _is_head(t), limit="mw_rows")
        if after is None:
            return query
        rank = bindparam("rank", type_=sa.Integer())
        msg_id = bindparam("id", type_=sa.BigInteger())
        return query.where(*tables.urgent_behind(t, c, rank, msg_id))

    params: dict[str, Any] = {"mw_rows": limit}
    if after is not None:
        params |= {"rank": after[0], "id": after[1]}
    found = fetch(conn, t.built(("ranked", after is None, role), build), params)
    values = {} if role is None else {row[0]: row[-3] for row in found}
    return _as_ranked(found, limit, 2 if role is None else 3, values)


def due_and_ranked(
    conn: Connection, t: tables.Tables, *, since: tuple[Any, int] | None, limit: int, most: int
) -> Ranked:
    """`candidates.due_after`, and `ranked` of up to `most` rows, in one statement."""
    if not t.has("available_at"):
        return ranked(conn, t, limit=most)

    def build() -> Any:
        c = t.cols()
        rank = (tables.ZERO - tables.priority_of(c)).label("r")
        due = due_rows(
            t, since is None, tables.ZERO.label("ranked"), tables.ONE.label("head"), rank
        )
        columns = hint_columns(t, c, instant_text(c["available_at"]))
        by_rank = _by_rank(t, *columns, tables.ONE.label("ranked"), _is_head(t), limit="most")
        return sa.union_all(in_union(t, due, "q0"), in_union(t, by_rank, "q1"))

    statement = t.built(("due_and_ranked", since is None), build)
    at, msg_id = since or (None, None)
    params = {"at": at, "id": msg_id, "mw_rows": limit, "most": most}
    rows = fetch(conn, statement, params)
    found = _as_ranked([row for row in rows if row[-3]], most, 3, {})
    due = [row for row in rows if not row[-3]]
    found.due = as_candidates([row[:-3] for row in due])
    found.priorities |= {row[0]: -row[-1] for row in due if row[-1]}
    return found


def _by_rank(t: tables.Tables, *columns: ColumnElement[Any], limit: str) -> Select[Any]:
    c = t.cols()
    query = t.hinted(sa.select(*columns, tables.rank_of(t, c).label("r")), t.message, URGENT)
    query = query.where(tables.urgent_rows(t, c)).order_by(*tables.urgent_order(t, c))
    return query.limit(bindparam(limit, type_=sa.Integer()))


def _is_head(t: tables.Tables) -> ColumnElement[Any]:
    return sa.case((t.earlier_unfinished(t.cols()), tables.ZERO), else_=tables.ONE).label("head")


def _as_ranked(found: Sequence[Any], limit: int, behind: int, values: dict[int, Any]) -> Ranked:
    """Rows end in: head or not, and the rank; `behind` columns follow those of the candidate."""
    heads = [row for row in found if row[-2]]
    made = as_candidates([row[:-behind] for row in heads])
    priorities = {row[0]: -row[-1] for row in heads}
    after = None
    if found and len(found) >= limit:
        after = (found[-1][-1], found[-1][0])
    return Ranked(made, after, values, priorities=priorities)
