"""The limits of topics, for operators: who holds the permits, when the next token comes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from msgworker.dialects import now_ms
from msgworker.limit import Limit
from msgworker.payload import shown
from msgworker.store.claiming import limits
from msgworker.store.claiming.limits import Free
from msgworker.store.recovering.recover import FOREIGN
from msgworker.table import Tables

MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class TopicLimit:
    """The limits of a topic, and what is used of them now.

    max_running: None = any number. running: messages at 1, also those of dead instances that are
    not recovered yet. holders: how many of them each instance has. rate: "20/s", None = any; burst,
    tokens: how many may start at once, after a pause and now; None without a rate. next_seconds:
    until the next token, 0 = there is one. declared_by: the instance that has recorded it.
    declared_at: when.
    """

    topic: str
    max_running: int | None
    running: int
    holders: Mapping[str, int]
    rate: str | None
    burst: int | None
    tokens: int | None
    next_seconds: float | None
    declared_by: str
    declared_at: datetime

    @property
    def why(self) -> str | None:
        """Why no message of the topic can start now; None if one can."""
        if self.max_running is not None and self.running >= self.max_running:
            most = sorted(self.holders.items(), key=lambda one: -one[1])
            named = ", ".join(f"{name} ({count})" for name, count in most[:MOST_NAMED])
            more = ", ..." if len(most) > MOST_NAMED else ""
            text = f"a permit of {self.topic}: {self.running} of {self.max_running} running"
            return f"{text}, held by {named}{more}"
        if self.tokens == 0:
            wait = f"the next in {self.next_seconds or 0.0:.3g} s"
            return f"a token of {self.topic}: its rate is {self.rate}, {wait}"
        return None


def topics(conn: Connection, t: Tables) -> list[TopicLimit]:
    """The limited topics, by name."""
    if limits.NAME in t.missing or not t.has("topic"):
        return []
    c = limits.table(t).c
    columns = (c.topic, c.full_us, c.declared_by, c.declared_at, now_ms())
    query = sa.select(*columns).where(c.table_name == t.spec.bare_name).order_by(c.topic)
    recorded = limits.read_all(conn, t)
    if not recorded:
        return []
    everywhere = limits.all_holders(conn, t)
    found = []
    for topic, full_us, by, at, ms in conn.execute(query).all():
        if topic in recorded:
            limit = recorded[topic].limit
            held = everywhere.get(topic, Counter())
            free = Free(limit, sum(held.values()), int(full_us), int(ms) * 1000)
            found.append(_told(topic, limit, free, held, by, at))
    return found


def _told(
    topic: str, limit: Limit, free: Free, held: Mapping[Any, int], by: str, at: datetime
) -> TopicLimit:
    has_rate = limit.starts > 0
    return TopicLimit(
        topic=topic,
        max_running=limit.max_running,
        running=free.running,
        holders={FOREIGN if who is None else shown(who): n for who, n in held.items()},
        rate=limit.rate,
        burst=limit.burst if has_rate else None,
        tokens=free.tokens if has_rate else None,
        next_seconds=free.next_in if has_rate else None,
        declared_by=by,
        declared_at=at,
    )


def waiting(conn: Connection, t: Tables) -> dict[str, str]:
    """The topics of which no message can start now because of their limits, and why."""
    return {one.topic: one.why for one in topics(conn, t) if one.why is not None}
