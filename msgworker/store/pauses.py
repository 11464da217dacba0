"""Paused topics: one row each, read by every instance in its heartbeat."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from msgworker.db import now
from msgworker.table import PAUSE, Tables


@dataclass(frozen=True, slots=True)
class Pause:
    """A topic that is paused: by whom, since when, why."""

    topic: str
    actor: str
    reason: str | None
    paused_at: datetime


def topics(conn: Connection, t: Tables) -> frozenset[str]:
    """The topics that are paused; none where the table is not there."""
    if not PAUSE.is_there(t):
        return frozenset()

    def build() -> sa.Select[Any]:
        c = PAUSE.of(t).c
        return sa.select(c.topic).where(c.table_name == t.spec.bare_name)

    return frozenset(conn.scalars(t.built("paused", build)))


def read_all(conn: Connection, t: Tables) -> list[Pause]:
    """The topics that are paused, by name."""
    if not PAUSE.is_there(t):
        return []
    c = PAUSE.of(t).c
    query = sa.select(c.topic, c.actor, c.reason, c.paused_at)
    query = query.where(c.table_name == t.spec.bare_name).order_by(c.topic)
    return [Pause(*row) for row in conn.execute(query)]


def add(conn: Connection, t: Tables, topic: str, *, actor: str, reason: str | None) -> bool:
    """Pause a topic; False if it is paused already. In the caller's transaction.

    Raises IntegrityError if another process pauses it at the same moment.
    """
    if topic in topics(conn, t):
        return False
    values = {"table_name": t.spec.bare_name, "topic": topic, "actor": actor, "reason": reason}
    conn.execute(sa.insert(PAUSE.of(t)).values(paused_at=now(), **values))
    return True


def remove(conn: Connection, t: Tables, topic: str) -> bool:
    """Resume a topic; False if it was not paused. In the caller's transaction."""
    c = PAUSE.of(t).c
    where = (c.table_name == t.spec.bare_name, c.topic == topic)
    return bool(conn.execute(sa.delete(PAUSE.of(t)).where(*where)).rowcount)
