"""What instances did in each minute, by topic: for charts, so that no message has to be read.

A row is written once, after its minute, and never changed: an instance writes a minute once, and
its id is never used again. So a row that is there already was written by a COMMIT without answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import sqlalchemy as sa
from sqlalchemy import Connection

from msgworker.db.clock import UtcDateTime, now_ms, now_plus
from msgworker.message import DEFAULT_TOPIC
from msgworker.payload import is_text
from msgworker.table.build import HISTORY, NUMBERS_OF_HISTORY, RAN_COUNTS, WAITED_COUNTS
from msgworker.table.columns import MAX_TOPIC
from msgworker.table.tables import Tables

STEP_OF_FORGETTING = timedelta(hours=1)
MOST_TOPICS = 100
"""Topics that are counted separately in one minute, and in metrics."""
OTHERS = "(others)"
"""The name under which all other topics are counted."""


def countable(topic: object) -> str:
    """The name under which a topic is counted; `OTHERS` for what a column of texts cannot hold."""
    name = DEFAULT_TOPIC if topic is None else topic
    if not isinstance(name, str) or len(name) > MAX_TOPIC or "\0" in name or not is_text(name):
        return OTHERS
    return name


@dataclass(slots=True)
class Counts:
    """What was done of a topic: messages by outcome; sums in seconds, and counts by the bounds of
    latency.py, of handlers (tries that failed, too) and of the waits before a first start."""

    done: int = 0
    retried: int = 0
    dead: int = 0
    postponed: int = 0
    ran_seconds: float = 0.0
    waited_seconds: float = 0.0
    ran: list[int] = field(default_factory=lambda: [0] * len(RAN_COUNTS))
    waited: list[int] = field(default_factory=lambda: [0] * len(WAITED_COUNTS))


@dataclass(frozen=True, slots=True)
class Minute:
    """What an instance did in one minute, by topic. at: its begin, UTC."""

    at: datetime
    instance: str
    topics: dict[str, Counts]


def database_seconds(conn: Connection, t: Tables) -> float:
    """The database's clock, as seconds since 1970."""
    return int(conn.execute(sa.select(now_ms())).scalar_one()) / 1000


def written(
    conn: Connection, t: Tables, minutes: Sequence[Minute]
) -> set[tuple[str, datetime | None]]:
    """Those of the minutes that are written already: instance and begin."""
    c = HISTORY.of(t).c
    at = [minute.at for minute in minutes]
    instances = sorted({minute.instance for minute in minutes})
    query = sa.select(c.instance, c.minute_at).distinct()
    query = query.where(c.table_name == t.label, c.minute_at >= min(at))
    query = query.where(c.minute_at <= max(at), c.instance.in_(instances))
    return {(row[0], row[1]) for row in conn.execute(query)}


def write(conn: Connection, t: Tables, minutes: Iterable[Minute]) -> None:
    """Write minutes that are over. In the caller's transaction. Raises IntegrityError if one is
    written already."""
    rows = []
    for minute in minutes:
        begun = {"table_name": t.label, "minute_at": minute.at, "instance": minute.instance}
        for topic, did in minute.topics.items():
            of_outcomes = (did.done, did.retried, did.dead, did.postponed)
            sums = (round(did.ran_seconds * 1000), round(did.waited_seconds * 1000))
            numbers = (*of_outcomes, *sums, *did.ran, *did.waited)
            counted = dict(zip(NUMBERS_OF_HISTORY, numbers, strict=True))
            rows.append({**begun, "topic": topic, **counted})
    if rows:
        conn.execute(sa.insert(HISTORY.of(t)), rows)


def forget(conn: Connection, t: Tables, keep_seconds: float) -> int:
    """Delete the rows of the oldest hour, as far as they are older than this; returns how many. In
    the caller's transaction."""
    c = HISTORY.of(t).c
    ours = c.table_name == t.label
    oldest = conn.scalar(sa.select(sa.func.min(c.minute_at, type_=UtcDateTime())).where(ours))
    if oldest is None:
        return 0
    until = sa.literal(oldest + STEP_OF_FORGETTING, UtcDateTime())
    old = now_plus(sa.literal(-keep_seconds, sa.Float()))
    gone = sa.delete(HISTORY.of(t)).where(ours, c.minute_at < old, c.minute_at < until)
    return int(conn.execute(gone).rowcount)
