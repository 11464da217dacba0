"""Paused topics: one row each, read by every instance in its heartbeat."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from msgworker import db
from msgworker.db import UtcDateTime, now
from msgworker.store.audit import MAX_ACTOR, MAX_REASON, MAX_TABLE
from msgworker.table import Tables

NAME = "msgworker_pause"
MAX_TOPIC = 100
NAME = "msgworker_pause"


@dataclass(frozen=True, slots=True)
class Pause:
    """A topic that is paused: by whom, since when, why."""

    topic: str
    actor: str
    reason: str | None
    paused_at: datetime


def table(t: Tables) -> sa.Table:
    """One row for each paused topic of each message table."""

    def build() -> sa.Table:
        return sa.Table(
            NAME,
            t.message.metadata,
            sa.Column("table_name", db.key_text(MAX_TABLE), primary_key=True),
            sa.Column("topic", db.key_text(MAX_TOPIC), primary_key=True),
            sa.Column("actor", db.plain_text(MAX_ACTOR), nullable=False),
            sa.Column("reason", db.plain_text(MAX_REASON)),
            sa.Column("paused_at", UtcDateTime(), nullable=False),
            schema=t.spec.schema,
            **t.dialect.own_table_options(),
        )

    return t.built("pause_table", build)


def topics(conn: Connection, t: Tables) -> frozenset[str]:
    """The topics that are paused; none where the table is not there."""
    if NAME in t.missing:
        return frozenset()

    def build() -> sa.Select[Any]:
        c = table(t).c
        return sa.select(c.topic).where(c.table_name == t.spec.bare_name)

    return frozenset(conn.scalars(t.built("paused", build)))


def read_all(conn: Connection, t: Tables) -> list[Pause]:
    """The topics that are paused, by name."""
    if NAME in t.missing:
        return []
    c = table(t).c
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
    conn.execute(sa.insert(table(t)).values(paused_at=now(), **values))
    return True


def remove(conn: Connection, t: Tables, topic: str) -> bool:
    """Resume a topic; False if it was not paused. In the caller's transaction."""
    c = table(t).c
    where = (c.table_name == t.spec.bare_name, c.topic == topic)
    return bool(conn.execute(sa.delete(table(t)).where(*where)).rowcount)
