"""Who lives, since when, with what in hand: leases beside the rows that are flagged."""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from msgworker.dialects import UtcDateTime, real_instant
from msgworker.store import lease, window
from msgworker.table import Tables


class Life(enum.StrEnum):
    """What is known about an instance."""

    LIVE = "live"
    DEAD = "dead"  # its lease has run out; others give its messages back
    LEAVING = "taken over"  # another instance is giving its messages back
    NO_LEASE = "no lease"  # messages name it, but it has no lease: they are given back too
    FOREIGN = "foreign"  # messages that somebody else flagged, without a name


@dataclass(frozen=True, slots=True)
class InstanceInfo:
    """One instance, or one name that stands in running messages.

    in_hand: lanes at its last heartbeat. running: messages of this table flagged by it now.
    topics: what it handles, None = every topic. other_table: the table it serves, if not this one.
    refused: by msg_id why the database does not let it flag a message, of a few of them.
    """

    instance_id: str | None
    life: Life
    label: str | None = None
    started_at: datetime | None = None
    renewed_at: datetime | None = None
    expires_at: datetime | None = None
    in_hand: int | None = None
    running: int = 0
    oldest_claim_at: datetime | None = None
    topics: tuple[str, ...] | None = None
    other_table: str | None = None
    taken_by: str | None = None
    refused: Mapping[str, str] = field(default_factory=dict)

    def handles(self, topic: str) -> bool:
        """Whether it lives, serves this table, and has a handler for the topic."""
        serves = self.life is Life.LIVE and self.other_table is None
        return serves and (self.topics is None or topic in self.topics)


def instances(conn: Connection, t: Tables) -> list[InstanceInfo]:
    """The living first, then the dead, then names without a lease."""
    held = _held(conn, t)
    rows = [_leased(t, one, held) for one in lease.read_all(conn, t)]
    known = {row.instance_id for row in rows}
    for name, (count, oldest) in held.items():
        if name not in known:
            life = Life.FOREIGN if name is None else Life.NO_LEASE
            rows.append(InstanceInfo(name, life, running=count, oldest_claim_at=oldest))
    order = list(Life)
    return sorted(rows, key=lambda row: (order.index(row.life), row.instance_id or ""))


def _leased(t: Tables, one: lease.Lease, held: dict[str | None, Any]) -> InstanceInfo:
    count, oldest = held.get(one.name, (0, None))
    life = Life.LEAVING if one.taken_by else Life.LIVE if one.live else Life.DEAD
    table, topics, refused = _serves(one.serves)
    return InstanceInfo(
        instance_id=one.name,
        life=life,
        label=one.label or None,
        started_at=one.started_at,
        renewed_at=one.renewed_at,
        expires_at=one.expires_at,
        in_hand=one.in_hand,
        running=count,
        oldest_claim_at=oldest,
        topics=topics,
        other_table=None if table in (None, t.message.name) else table,
        taken_by=one.taken_by,
        refused=refused,
    )


def _serves(text: str | None) -> tuple[str | None, tuple[str, ...] | None, dict[str, str]]:
    """What an instance says beside its lease; an older one says nothing: it may handle
    everything."""
    try:
        value = json.loads(text or "{}")
        topics = value.get("topics")
        refused = {str(i): str(why) for i, why in value.get("refused", {}).items()}
        return value.get("table"), None if topics is None else tuple(map(str, topics)), refused
    except (ValueError, AttributeError, TypeError):
        return None, None, {}


def _held(conn: Connection, t: Tables) -> dict[str | None, tuple[int, datetime | None]]:
    def build() -> sa.Select[Any]:
        c = t.cols()
        ids = window.running(t)
        joined = ids.join(t.message, ids.c.i == c.msg_id)
        first: Any = sa.null() if c.claimed_at is None else sa.func.min(real_instant(c.claimed_at))
        oldest = sa.type_coerce(first, UtcDateTime())
        if c.claimed_by is None:
            nobody: Any = sa.null()
            return sa.select(nobody, sa.func.count(), oldest).select_from(joined)
        query = sa.select(c.claimed_by, sa.func.count(), oldest).select_from(joined)
        return query.group_by(c.claimed_by)

    rows = conn.execute(t.built("held_by", build)).all()
    return {name: (int(count), oldest) for name, count, oldest in rows if count}
