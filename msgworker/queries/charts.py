"""The history: what was done in each step of a window, or of each topic, and how long it took."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy import Connection

from msgworker.db import UtcDateTime, now_plus, step_of
from msgworker.latency import RAN, WAITED, percentile
from msgworker.store import history
from msgworker.table import COUNTED, HISTORY, RAN_COUNTS, WAITED_COUNTS, Tables

Window = Literal["1h", "6h", "24h"]
WINDOWS: dict[Window, tuple[int, int]] = {"1h": (60, 60), "6h": (360, 300), "24h": (1440, 900)}
"""The windows: their minutes, and the seconds of a step."""
MOST_TOPICS = 500
RUNS = (*COUNTED, "ran_ms", *RAN_COUNTS)
NUMBERS = (*RUNS, *WAITED_COUNTS)
"""The columns that are added up: the sums take longer than reading the rows."""
Sums = list[int]
"""Sums of `NUMBERS`, or of `RUNS`."""


@dataclass(frozen=True, slots=True)
class HistoryPoint:
    """One step. at: its begin, UTC. done, retried, dead, postponed: messages by outcome; retried:
    failed tries with a further try, dead: cancelled ones too.

    busy_seconds: handlers have run, in all. ran_p50, ran_p95: seconds within which half, and 95 of
    100, handlers have ended, of a batch the share of a message: each the least that is known to be
    enough, of 0.001, 0.003, 0.01, 0.03 and so on to 300; 1000 = more than 300. waited_p50,
    waited_p95: the same from the sending of a message to its first start, or the first after a
    rerun, of 0.01, 0.03 and so on to 3600; 10800 = more than 3600. None if there was none.
    """

    at: datetime
    done: int = 0
    retried: int = 0
    dead: int = 0
    postponed: int = 0
    busy_seconds: float = 0.0
    ran_p50: float | None = None
    ran_p95: float | None = None
    waited_p50: float | None = None
    waited_p95: float | None = None


@dataclass(frozen=True, slots=True)
class History:
    """What instances did in a window, up to now.

    points: one for each step of `step_seconds`, oldest first, the last one being the present step;
    a minute is written when it is over, within a third of the lease. recorded: False if the table
    of the history is missing; then there are no points.
    """

    window: str
    topic: str | None
    step_seconds: int
    recorded: bool
    points: list[HistoryPoint]


@dataclass(frozen=True, slots=True)
class TopicTimes:
    """What was done of one topic in a window; the fields are those of a `HistoryPoint`."""

    topic: str
    done: int = 0
    retried: int = 0
    dead: int = 0
    postponed: int = 0
    busy_seconds: float = 0.0
    ran_p50: float | None = None
    ran_p95: float | None = None
    waited_p50: float | None = None
    waited_p95: float | None = None


@dataclass(frozen=True, slots=True)
class Timings:
    """The topics with work in a window up to now, those first on which handlers have spent the
    most time, 500 at most. recorded: False if the table of the history is missing."""

    window: str
    recorded: bool
    topics: list[TopicTimes]


def timings(conn: Connection, t: Tables, *, window: Window, waits: bool = True) -> Timings:
    """The times of each topic in a window of `WINDOWS`, in one read of the history. waits: False
    leaves `waited_p50` and `waited_p95` None."""
    if not HISTORY.is_there(t):
        return Timings(window, recorded=False, topics=[])
    c = HISTORY.of(t).c
    names = NUMBERS if waits else RUNS

    def build() -> sa.Select[Any]:
        query = sa.select(c.topic, *(_sum(t, c[name]) for name in names))
        since = now_plus(sa.bindparam("mw_since", type_=sa.Float()))
        recent = sa.and_(c.minute_at > since, c.minute_at <= now_plus(sa.literal(0.0)))
        query = query.where(c.table_name == t.label, recent)
        query = query.group_by(c.topic)
        return query.order_by(_sum(t, c.ran_ms).desc(), c.topic).limit(MOST_TOPICS)

    minutes, _ = WINDOWS[window]
    rows = conn.execute(t.built(("timings", waits), build), {"mw_since": -60.0 * minutes})
    found = [TopicTimes(str(row[0]), **_figures([int(n) for n in row[1:]])) for row in rows]
    return Timings(window, recorded=True, topics=found)


def read(conn: Connection, t: Tables, *, window: Window, topic: str | None) -> History:
    """The history of a window of `WINDOWS`; topic: only of this one."""
    minutes, step = WINDOWS[window]
    if not HISTORY.is_there(t):
        return History(window, topic, step, recorded=False, points=[])
    last = int(history.database_seconds(conn, t) // step)
    first = last - minutes * 60 // step + 1
    begin = datetime.fromtimestamp(first * step, UTC)
    sums = {place: [0] * len(NUMBERS) for place in range(first, last + 1)}
    for row in _by_step(conn, t, begin, step, topic):
        if row[0] in sums:  # not ahead of the clock, which may have been put back
            numbers: list[Any] = list(row[1:])
            sums[row[0]] = [int(n) for n in numbers]
    length = timedelta(seconds=step)
    points = [_point(begin + i * length, one) for i, one in enumerate(sums.values())]
    return History(window, topic, step, recorded=True, points=points)


def _by_step(
    conn: Connection, t: Tables, begin: datetime, step: int, topic: str | None
) -> Iterable[sa.Row[Any]]:
    """The sums of each step of so many seconds from `begin` on: a range of the primary key."""
    table = HISTORY.of(t)
    c = table.c

    def build() -> sa.Select[Any]:
        place = step_of(c.minute_at, sa.literal_column(str(step)))
        query = sa.select(place, *(_sum(t, c[name]) for name in NUMBERS))
        since = sa.bindparam("mw_begin", type_=UtcDateTime())
        query = query.where(c.table_name == t.label, c.minute_at >= since)
        if topic is not None:
            query = query.where(c.topic == sa.bindparam("mw_topic", type_=c.topic.type))
        return query.group_by(place)

    params: dict[str, Any] = {"mw_begin": begin}
    if topic is not None:
        params["mw_topic"] = topic
    return conn.execute(t.built(("history", step, topic is None), build), params)


def _sum(t: Tables, column: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    """Of whole numbers; as floating-point ones, which are exact up to 2**53, where that is
    faster."""
    return sa.func.sum(column + sa.literal_column("0e0") if t.database.slow_sums else column)


def _point(at: datetime, sums: Sums) -> HistoryPoint:
    return HistoryPoint(at, **_figures(sums))


def _figures(sums: Sums) -> dict[str, Any]:
    """The fields of a `HistoryPoint`."""
    numbers = dict.fromkeys(NUMBERS, 0) | dict(zip(NUMBERS, sums, strict=False))
    ran = [numbers[name] for name in RAN_COUNTS]
    waited = [numbers[name] for name in WAITED_COUNTS]
    return {name: numbers[name] for name in COUNTED} | {
        "busy_seconds": numbers["ran_ms"] / 1000,
        "ran_p50": percentile(RAN, ran, 0.5),
        "ran_p95": percentile(RAN, ran, 0.95),
        "waited_p50": percentile(WAITED, waited, 0.5),
        "waited_p95": percentile(WAITED, waited, 0.95),
    }
