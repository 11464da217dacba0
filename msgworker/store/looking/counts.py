"""How many messages are in each state.

A small table is counted. In a large one each state is counted by its index, up to COUNTED rows,
and the number of finished ones comes from the database's statistics, so that the cost does not
depend on the size. Each number says how exact it is.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection

from msgworker import dialects
from msgworker.dialects import beginning, bytewise, real_instant, seconds_since
from msgworker.message import State, Status, word_of
from msgworker.payload import shown, told
from msgworker.store.looking import window
from msgworker.table import Cols, Tables, lit

COUNTED = 20_000


class Exact(enum.StrEnum):
    """How good a number is."""

    EXACT = "exact"
    AT_LEAST = "at least"
    ABOUT = "about"


@dataclass(frozen=True, slots=True)
class Count:
    """How many messages are in a state, and the age of the oldest in seconds (None = not known).

    exact: "at least": only so many were looked at; "about": from statistics, over all topics.
    """

    status: State
    topic: str | None
    count: int
    oldest_seconds: float | None
    exact: Exact = Exact.EXACT


def counts(conn: Connection, t: Tables, *, most: int = COUNTED) -> list[Count]:
    """Messages by state and topic, states in the order of State; see the module about large tables.

    The DONE of a large table has no topic: it is an estimate from statistics for all topics.
    """
    c = t.cols()
    if window.last_of(conn, t, after=window.LEAST, rows=most + 1) is None:
        # With an end, though there is none: else SQLite would sort the topics whole, however long.
        every = sa.select(*_facts(t, c)).limit(10 * most).subquery("w")
        return _sorted(_grouped(conn, t, every))
    rows: list[Count] = []
    for parts in (_processing(t), _failing(t, most), _new(conn, t, most)):
        found: list[Count] = []
        cut = False
        for part, is_cut in parts:
            some = list(_grouped(conn, t, part))
            cut |= is_cut or sum(one.count for one in some) >= most
            found += some
        rows += _merged(found, Exact.AT_LEAST if cut else Exact.EXACT)
    total = dialects.row_estimate(conn, t.message)
    if total is not None:
        done = max(0, total - sum(row.count for row in rows))
        rows.append(Count(State.DONE, None, done, None, Exact.ABOUT))
    return _sorted(rows)


def _sorted(rows: Iterable[Count]) -> list[Count]:
    order = list(State)
    return sorted(rows, key=lambda row: (order.index(row.status), row.topic or ""))


def _merged(rows: Iterable[Count], exact: Exact) -> Iterator[Count]:
    sums: dict[tuple[State, str | None], tuple[int, float | None]] = {}
    for row in rows:
        count, oldest = sums.get((row.status, row.topic), (0, None))
        ages = [age for age in (oldest, row.oldest_seconds) if age is not None]
        sums[row.status, row.topic] = (count + row.count, max(ages) if ages else None)
    for (word, topic), (count, oldest) in sums.items():
        yield Count(word, topic, count, oldest, exact)


def _facts(t: Tables, c: Cols) -> list[ColumnElement[Any]]:
    left = sa.case((t.tries_left(c), sa.literal_column("1")), else_=sa.literal_column("0"))
    topic = sa.null() if c.topic is None else bytewise(beginning(c.topic))
    created: Any = sa.null() if c.created_at is None else real_instant(c.created_at)
    failed = sa.case((c.status == lit(Status.FAILED), left), else_=sa.literal_column("0"))
    return [c.status.label("s"), failed.label("l"), topic.label("t"), created.label("c")]


def _grouped(conn: Connection, t: Tables, rows: sa.Subquery) -> Iterator[Count]:
    w = rows.c
    has_age = t.has("created_at")
    age: Any = seconds_since(sa.func.min(w.c)) if has_age else sa.null()
    keys = [w.s, w.l, *([w.t] if t.has("topic") else [])]
    query = sa.select(w.s, w.l, w.t if t.has("topic") else sa.null(), sa.func.count(), age)
    found: list[Count] = []
    for status, left, topic, count, oldest in conn.execute(query.group_by(*keys)).all():
        word = word_of(status, 0 if left else t.spec.max_tries, t.spec.max_tries)
        oldest = None if oldest is None else float(oldest)
        found.append(Count(word, topic_text(topic), int(count), oldest))
    return _merged(found, Exact.EXACT)


def topic_text(topic: Any) -> str | None:
    """A topic as it stands in a row, the beginning of a very long one; what is no text (a BLOB in
    SQLite) as one."""
    return told(topic) if topic is None or isinstance(topic, str) else shown(topic)


_Parts = list[tuple[sa.Subquery, bool]]
"""Rows to count, and whether there may be more of them."""


def _processing(t: Tables) -> _Parts:
    c = t.cols()
    ids = window.running(t)
    query = sa.select(*_facts(t, c)).select_from(ids.join(t.message, ids.c.i == c.msg_id))
    return [(query.subquery("w"), False)]


def _failing(t: Tables, most: int) -> _Parts:
    c = t.cols()
    query = t.hinted(sa.select(*_facts(t, c)), t.message, "failed").where(t.failed_rows(c))
    # The newest: what still has tries left is among them.
    return [(query.order_by(t.failed_key(c).desc()).limit(most).subquery("w"), False)]


def _new(conn: Connection, t: Tables, most: int) -> _Parts:
    """New rows: by age where an index says so, else from the lowest unfinished row on."""
    c = t.cols()
    is_new = c.status == lit(Status.NEW)
    if not t.dialect.oldest_index:
        found = window.first_open(conn, t)
        if found is None:
            return []
        start, all_seen = found
        last = window.last_of(conn, t, after=start - 1)
        where = [is_new, c.msg_id >= sa.literal(start, sa.BigInteger())]
        if last is not None:
            where.append(c.msg_id <= sa.literal(last, sa.BigInteger()))
        query = sa.select(*_facts(t, c)).where(*where).order_by(c.msg_id).limit(most)
        return [(query.subquery("w"), last is not None or not all_seen)]
    key = t.oldest_key(c)
    by_age = t.hinted(sa.select(*_facts(t, c)), t.message, "oldest")
    by_age = by_age.where(t.oldest_rows(c), key.is_not(None), is_new).order_by(key).limit(most)
    parts = [(by_age.subquery("w"), False)]
    if c.available_at is not None:
        due = t.hinted(sa.select(*_facts(t, c)), t.message, "due")
        due = due.where(t.unfinished(c), c.available_at.is_not(None), is_new)
        parts.append((due.order_by(c.available_at, c.msg_id).limit(most).subquery("w"), False))
    return parts
