"""What messages wait for beside their own rows: instances, their slices, limits and pauses."""

from __future__ import annotations

import enum
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import Connection

from msgworker.commands import command
from msgworker.db.clock import now_ms, real_instant
from msgworker.db.types import beginning, bytewise, text_of, whole_number
from msgworker.payload import shown
from msgworker.queries.messages import MessageInfo
from msgworker.store import lease, limits
from msgworker.store.limits import Free
from msgworker.store.recover import FOREIGN
from msgworker.store.rows import among_ids, of_running, running_ids
from msgworker.table.build import LIMIT
from msgworker.table.tables import Tables

# --- Instances and their messages: leases beside the flagged rows.


class Life(enum.StrEnum):
    """What is known about an instance."""

    LIVE = "live"
    DEAD = "dead"  # its lease has run out; others give its messages back
    TAKEN_OVER = "taken over"  # another instance is giving its messages back
    NO_LEASE = "no lease"  # messages name it, but it has no lease: they are given back too
    FOREIGN = "foreign"  # messages flagged without an owner


CLAIM_SECONDS = 1.0
"""A claim this short before a heartbeat may be missing in it."""


MOST_HELD = 1_000_000
"""Running messages are counted up to this number."""


MARGIN_SECONDS = 1.0
"""A heartbeat may be late by this, or by half its interval, before it counts as overdue."""


class Started(NamedTuple):
    """Whether the handler of a claimed message has started, None = not known; and for how many
    seconds it has run, or had when the instance was last heard of."""

    started: bool | None = None
    seconds: float | None = None


UNKNOWN = Started()


@dataclass(frozen=True, slots=True)
class InstanceInfo:
    """One instance, or one name in `claimed_by` of running messages.

    in_hand: lanes at its last heartbeat. running: messages of this table flagged by it now.
    handlers: how many handlers ran at its last heartbeat, and running_seconds, by msg_id, for how
    long each of the oldest 100 had; None and {} where it does not say.
    silent_seconds: since its last heartbeat, by the database's clock; None if it is not known.
    overdue_seconds: for how long a live one has missed its heartbeat, which comes every third of
    its lease; None if it has not, or by so little that it may only be slow.
    topics: what it handles, None = every topic. other_table: the table it serves, if not this one.
    refused: by msg_id why the database does not let it flag a message, of a few of them.
    scope: where it looks, {} = everywhere.
    stopped: it has stopped, and a handler has outlived the grace time: its lease is left to end,
    and what it has is recovered then. Its `life` is `live` until its lease ends.
    host, pid, threads, version: its process: where it runs, its number there, how many handlers run
    at once at most, and which version of msgworker; None where it does not say.
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
    handlers: int | None = None
    running_seconds: dict[int, float] = field(default_factory=dict)
    silent_seconds: float | None = None
    refused: Mapping[str, str] = field(default_factory=dict)
    scope: Mapping[str, Any] = field(default_factory=dict)
    overdue_seconds: float | None = None
    stopped: bool = False
    host: str | None = None
    pid: int | None = None
    threads: int | None = None
    version: str | None = None

    @property
    def works(self) -> bool:
        """Whether it is alive, serves this table and has not stopped."""
        return self.life is Life.LIVE and self.other_table is None and not self.stopped

    @property
    def silent(self) -> bool:
        """Whether it may be dead with a lease: it has stopped, or misses its heartbeat."""
        return self.life is Life.LIVE and (self.stopped or self.overdue_seconds is not None)

    @property
    def left_seconds(self) -> float | None:
        """Until its lease is over, by the database's clock; None if it is not known."""
        if self.renewed_at is None or self.expires_at is None or self.silent_seconds is None:
            return None
        whole = (self.expires_at - self.renewed_at).total_seconds()
        return max(0.0, whole - self.silent_seconds)

    def started(self, info: MessageInfo) -> Started:
        """Whether the handler of a message that it has claimed runs, as of its last heartbeat."""
        claimed, renewed = info.claimed_at, self.renewed_at
        if self.handlers is None or claimed is None or renewed is None or self.taken_by is not None:
            return UNKNOWN  # a take-over overwrites the last heartbeat
        before = (renewed - claimed).total_seconds()
        seconds = self.running_seconds.get(info.msg_id)
        if self.stopped:  # what had not started was given back
            known = None if seconds is None else seconds + self._since_then
            return Started(True, self.claimed_ago(info) if known is None else known)
        if seconds is not None and before >= 0:
            return Started(True, seconds + self._since_then)
        all_told = len(self.running_seconds) == self.handlers
        return Started(False) if all_told and before > CLAIM_SECONDS else UNKNOWN

    def claimed_ago(self, info: MessageInfo) -> float | None:
        """Seconds since it claimed a message, by the database's clock."""
        if info.claimed_at is None or self.renewed_at is None or self.silent_seconds is None:
            return None
        return max(0.0, self.silent_seconds + (self.renewed_at - info.claimed_at).total_seconds())

    @property
    def _since_then(self) -> float:
        """What a handler that ran at the last heartbeat has run since."""
        return (self.silent_seconds or 0.0) if self.life is Life.LIVE else 0.0

    def handles(self, topic: str) -> bool:
        """Whether it works on this table and has a handler for the topic."""
        return self.works and (self.topics is None or topic in self.topics)


def instances(conn: Connection, t: Tables) -> list[InstanceInfo]:
    """Live instances first, then dead ones, then names without a lease."""
    held = _held(conn, t)
    rows = [_leased(t, one, held) for one in lease.read_all(conn, t)]
    known = {row.instance_id for row in rows}
    for name, (count, oldest) in held.items():
        if name not in known:
            life = Life.FOREIGN if name is None else Life.NO_LEASE
            rows.append(InstanceInfo(name, life, running=count, oldest_claim_at=oldest))
    order = list(Life)
    return sorted(rows, key=lambda row: (order.index(row.life), row.instance_id or ""))


def leased(conn: Connection, t: Tables) -> list[InstanceInfo]:
    """Who has a lease, without what it has of messages."""
    return [_leased(t, one, {}) for one in lease.read_all(conn, t)]


def leases_ending(conn: Connection, t: Tables, *, within: float, but: str) -> list[lease.Lease]:
    """The leases of instances other than `but` with messages that end within so many seconds, or
    have ended. A taken-over lease ends, too: its new holder may die before it gives rows back."""
    rows = [
        one
        for one in lease.read_all(conn, t)
        if but not in (one.name, one.taken_by)
        and one.silent is not None
        and one.left_seconds <= within
    ]
    held = _held(conn, t) if rows else {}
    return [one for one in rows if one.name in held]


def _leased(t: Tables, one: lease.Lease, held: dict[str | None, Any]) -> InstanceInfo:
    count, oldest = held.get(one.name, (0, None))
    life = Life.TAKEN_OVER if one.taken_by else Life.LIVE if one.live else Life.DEAD
    told = one.served
    silent = None if one.taken_by or one.silent is None else max(0.0, one.silent)
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
        topics=told.topics,
        other_table=None if told.table in (None, t.label) else told.table,
        taken_by=one.taken_by,
        handlers=told.handlers,
        running_seconds=told.running,
        silent_seconds=silent,
        refused=told.refused,
        overdue_seconds=overdue(one, silent) if life is Life.LIVE and not told.stopped else None,
        stopped=told.stopped,
        scope=told.scope,
        **told.process,
    )


def overdue(one: lease.Lease, silent: float | None) -> float | None:
    """For how long its heartbeat is missed; None if it is not, or may only be slow."""
    beat = (one.expires_at - one.renewed_at).total_seconds() / 3
    if silent is None or silent <= beat + max(MARGIN_SECONDS, beat / 2):
        return None
    return silent - beat


def _held(conn: Connection, t: Tables) -> dict[str | None, tuple[int, datetime | None]]:
    def build() -> sa.Select[Any]:
        c = t.cols()
        ids = running_ids(t)
        joined = ids.join(t.message, ids.c.i == c.msg_id)
        nothing: Any = sa.null()
        owner = nothing if c.claimed_by is None else bytewise(beginning(c.claimed_by))
        claimed: Any = nothing if c.claimed_at is None else real_instant(c.claimed_at)
        found = sa.select(owner.label("b"), claimed.label("a")).select_from(joined)
        w = found.limit(MOST_HELD).subquery("w").c  # see counts.counts of the limit
        oldest = nothing if c.claimed_at is None else sa.func.min(w.a)
        if c.claimed_by is None:
            return sa.select(nothing, sa.func.count(), oldest).select_from(w.b.table)
        return sa.select(w.b, sa.func.count(), oldest).group_by(w.b)

    rows = conn.execute(t.built("held_by", build)).all()
    return {text_of(owner): (int(count), oldest) for owner, count, oldest in rows if count}


# --- The slices of live instances, from their leases, for operators.


def live(who: Sequence[InstanceInfo]) -> list[InstanceInfo]:
    """Those that work on this table."""
    return [one for one in who if one.life is Life.LIVE and one.other_table is None]


class Stand(NamedTuple):
    """Whether the instant of a message has come; its shard, its instance type and its job, None
    where there is none."""

    due: bool = True
    shard: int | None = None
    flag: str | None = None
    job: int | None = None


def stands_of(conn: Connection, t: Tables, ids: Sequence[int]) -> dict[int, Stand]:
    """Where these messages stand."""
    c = t.cols()
    nothing: Any = sa.null()
    columns: list[Any] = [c.msg_id, sa.case((t.due(c), 1), else_=0)]
    columns.append(nothing if c.shard is None else t.slice_value(c, "shard"))
    columns += [nothing if one is None else one for one in (c.instance_type, c.job_id)]
    query, found = sa.select(*columns).where(t.among(c.msg_id)), {}
    for i, due, shard, flag, job in among_ids(conn, t, query, ids):
        kind = None if flag is None else str(flag)
        found[int(i)] = Stand(due != 0, whole_number(shard), kind, whole_number(job))
    return found


def why_not(
    who: Sequence[InstanceInfo], shard: int | None, flag: str | None, job: int | None = None
) -> str:
    """Why none of these, which live, looks at a message, as of their heartbeats; "" if one does."""

    def looks(scope: Mapping[str, Any]) -> bool:
        kind = scope.get("kind")
        if kind == "job":
            return job is not None and scope.get("job") == job
        if kind == "instance":
            return scope.get("flag") == flag
        if kind == "partitions":
            return shard is not None and shard % _count(scope) in scope.get("owned", ())
        return True

    if any(looks(one.scope) for one in who):
        return ""
    kinds = {str(one.scope.get("kind")) for one in who}
    told = []
    if "partitions" in kinds and shard is None:
        told.append("its shard is no whole number, so no member looks at it")
    elif "partitions" in kinds:
        told.append(f"no live member that handles it owns shard {shard}, as of the last heartbeats")
    if "instance" in kinds and flag is None:
        types = shlex.join(sorted({str(one.scope["flag"]) for one in who if "flag" in one.scope}))
        deal = command(f"deal {types}")
        told.append(f"it has no instance type yet: a Dealer (`{deal}`) gives it one")
    elif "instance" in kinds:
        told.append(f"no live instance has its instance type {flag}; a Dealer deals it again")
    if "job" in kinds:
        told.append("what lives handles other jobs alone")
    return "; ".join(told)


def unowned(who: Sequence[InstanceInfo], kept: int) -> list[int]:
    """The shards that none of the members among them owns; [] where others look everywhere. Where
    members have different numbers of shards, by the numbers of the column, of which there are
    `kept`."""
    scopes = [one.scope for one in who]
    members = [scope for scope in scopes if scope.get("kind") == "partitions"]
    if not members or len(members) < len(scopes):
        return []
    owned = [(_count(scope), set(scope.get("owned", ()))) for scope in members]
    counts = {count for count, _ in owned}
    most = max(counts) if len(counts) == 1 else max(kept, *counts)
    return [n for n in range(most) if not any(n % count in own for count, own in owned)]


def unlike(who: Sequence[InstanceInfo]) -> dict[str, list[int]]:
    """Groups of members with different numbers of shards, and these numbers."""
    found: dict[str, set[int]] = {}
    for one in who:
        if one.scope.get("kind") == "partitions" and "group" in one.scope:
            found.setdefault(str(one.scope["group"]), set()).add(_count(one.scope))
    return {group: sorted(counts) for group, counts in found.items() if len(counts) > 1}


def _count(scope: Mapping[str, Any]) -> int:
    found = scope.get("shards")
    return found if isinstance(found, int) and found > 0 else 1


def running_slices(conn: Connection, t: Tables, role: str) -> set[Any]:
    """The slices of running messages that have an object, which no index of slices holds."""

    def build() -> Any:
        found = of_running(
            t,
            lambda c: [t.slice_value(c, role).label("value")],
            lambda c: [c.object_id.is_not(None)],
        )
        return sa.select(found.subquery("r").c.value).distinct()

    return set(conn.scalars(t.built(("running_slices", role), build)))


def served(conn: Connection, t: Tables) -> set[str]:
    """The instance types that a live instance of this table looks at."""
    found = live(instances(conn, t))
    return {str(one.scope["flag"]) for one in found if "flag" in one.scope}


# --- The limits of topics, for operators: who holds the permits, when the next may start.

MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class TopicLimit:
    """The limits of a topic, and what is used of them now.

    max_running: None = any number. running: messages at 1, also those of dead instances that are
    not recovered yet. holders: how many of them each instance has. rate: "20/s", None = any; burst,
    starts: how many may start at once, after a pause and now; None without a rate. next_seconds:
    until the next start, 0 = at once. declared_by: the instance that has recorded it.
    declared_at: when. tokens: the name of starts until 0.2; it goes in 1.0.
    """

    topic: str
    max_running: int | None
    running: int
    holders: Mapping[str, int]
    rate: str | None
    burst: int | None
    starts: int | None
    next_seconds: float | None
    declared_by: str
    declared_at: datetime
    tokens: int | None

    @property
    def use(self) -> str:
        """What of them is used: "4 of 4 running, rate 20/s (3 of 20 starts)"."""
        most = "" if self.max_running is None else f" of {self.max_running}"
        text = f"{self.running}{most} running"
        if self.rate is None:
            return text
        next_one = f"next start in {self.next_seconds or 0.0:.3g} s"
        left = f"{self.starts} of {self.burst} starts" if self.starts else next_one
        return f"{text}, rate {self.rate} ({left})"

    @property
    def lacks(self) -> str | None:
        """What a message of the topic waits for now, a permit or a start; None if it can start."""
        if self.max_running is not None and self.running >= self.max_running:
            return "a permit"
        return "a start" if self.starts == 0 else None

    @property
    def why(self) -> str | None:
        """Why no message of the topic can start now; None if one can."""
        if self.lacks == "a permit":
            most = sorted(self.holders.items(), key=lambda one: -one[1])
            named = ", ".join(f"{name} ({count})" for name, count in most[:MOST_NAMED])
            more = ", ..." if len(most) > MOST_NAMED else ""
            text = f"a permit of {self.topic}: {self.running} of {self.max_running} running"
            return f"{text}, held by {named}{more}"
        if self.lacks is not None:
            wait = f"the next in {self.next_seconds or 0.0:.3g} s"
            return f"a start of {self.topic}: its rate is {self.rate}, {wait}"
        return None


def topics(conn: Connection, t: Tables) -> list[TopicLimit]:
    """The limited topics, by name."""
    if not LIMIT.is_there(t) or not t.has("topic"):
        return []
    c = LIMIT.of(t).c
    columns = (c.topic, c.full_us, c.declared_by, c.declared_at, now_ms())
    query = sa.select(*columns).where(c.table_name == t.label).order_by(c.topic)
    recorded = limits.read_all(conn, t)
    if not recorded:
        return []
    everywhere = limits.all_holders(conn, t)
    found = []
    for topic, full_us, by, at, ms in conn.execute(query).all():
        if topic not in recorded:
            continue
        limit, held = recorded[topic].limit, everywhere.get(topic, Counter())
        free = Free(limit, sum(held.values()), int(full_us), int(ms) * 1000)
        has_rate = limit.starts > 0
        starts = free.tokens if has_rate else None
        found.append(
            TopicLimit(
                topic=topic,
                max_running=limit.max_running,
                running=free.running,
                holders={FOREIGN if who is None else shown(who): n for who, n in held.items()},
                rate=limit.rate,
                burst=limit.burst if has_rate else None,
                starts=starts,
                next_seconds=free.next_in if has_rate else None,
                declared_by=by,
                declared_at=at,
                tokens=starts,
            )
        )
    return found
