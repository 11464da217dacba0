"""Release: give back messages of an instance, or without an owner, in the same way as recovery.

The lease is taken over first, so that it can never be renewed. Rows of a live instance are
given back only when its lease would have expired: until then it may still start handlers.
"""

from __future__ import annotations

import threading
import uuid
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from msgworker.db import connecting, writing
from msgworker.errors import ConfigError, MsgworkerError, SchemaError
from msgworker.message import State
from msgworker.ops import call, steps
from msgworker.ops.call import Clock, Who
from msgworker.ops.operation import Bulk, Step
from msgworker.ops.results import Skip, Why
from msgworker.queries.instances import Life, instances
from msgworker.store import audit, change, done, lease, recover
from msgworker.store.lease import Lease
from msgworker.table import Tables

HOLD_SECONDS = 60.0
SHOWN = 1_000_000
AGAIN_AFTER_SECONDS = (0.0, 0.2, 1.0)
"""Pauses before a locked row is tried again: a settle, for example, locks it only briefly."""


@dataclass(frozen=True, slots=True)
class HeldMessages:
    """The messages of an instance. lease: None if it has none, or no longer."""

    instance_id: str
    lease: Lease | None
    ids: list[int]

    @property
    def lives(self) -> bool:
        """Whether its lease is live and not taken over."""
        return self.lease is not None and bool(self.lease.live) and self.lease.taken_by is None

    @property
    def lease_seconds(self) -> float:
        """How long it counts as alive without a heartbeat."""
        if self.lease is None:
            return 0.0
        return max(0.0, (self.lease.expires_at - self.lease.renewed_at).total_seconds())


def held_by(clock: Clock, engine: sa.Engine, t: Tables, instance: object) -> HeldMessages:
    """The messages of an instance now; raises ConfigError, SchemaError, TookTooLong."""
    if not isinstance(instance, str) or not 0 < len(instance) <= 64:
        raise ConfigError(
            f"an instance's id is a text of at most 64 characters, got {instance!r:.80}; see "
            "`msgworker instances`"
        )
    if not t.has("claimed_by"):
        raise SchemaError(
            f"table {t.spec.name} has no column claimed_by, so the owners of messages are unknown"
        )
    with clock.reading(engine) as conn:
        leases = {one.name: one for one in lease.read_all(conn, t)}
        ids = recover.flagged_by(conn, t, instance, limit=SHOWN)
    return HeldMessages(instance, leases.get(instance), ids)


def refuse_living(held: HeldMessages, force: bool) -> None:
    """Raise MsgworkerError if it is alive and not forced, or is being recovered."""
    one = held.lease
    if one is not None and one.live and one.taken_by is not None:
        raise MsgworkerError(
            f"instance {held.instance_id} is being recovered by {one.taken_by} already; wait for it"
        )
    if one is not None and held.lives and one.stopped and not force:
        raise MsgworkerError(
            f"instance {held.instance_id} has stopped, but its handler has outlived the grace time "
            f"and may still run; its lease ends in {one.left_seconds:.0f} s, then its messages are "
            "recovered by an instance that runs, or released; or take them away with --force "
            "(force=True), which waits for as long as a lease"
        )
    if held.lives and not force:
        raise MsgworkerError(
            f"instance {held.instance_id} is alive: stop it, and it releases its messages without "
            "a try counted; or take them away with --force (force=True): each counts as a crash, "
            "and its handlers may continue to run, although their writes are refused"
        )


def take_over(engine: sa.Engine, t: Tables, held: HeldMessages) -> str | None:
    """Take its lease over, and wait until it can no longer start handlers.

    Returns the name that holds the lease now, None if there is none. Raises MsgworkerError if
    another process was faster.
    """
    seen = held.lease
    if seen is None:
        # Read again in a separate statement: an instance may have registered between two reads.
        with connecting(engine) as conn:
            if any(one.name == held.instance_id for one in lease.read_all(conn, t)):
                raise MsgworkerError(
                    f"instance {held.instance_id} has just taken a lease; try again"
                )
        return None
    me = f"ops-{uuid.uuid4().hex}"
    ttl = held.lease_seconds + HOLD_SECONDS
    with writing(engine) as conn:
        if held.lives:
            won = lease.take_over_live(conn, t, seen.name, me=me, ttl=ttl)
        else:
            won = lease.take_over(conn, t, seen, me=me, ttl=ttl)
    if not won:
        raise MsgworkerError(
            f"instance {seen.name} has renewed its lease, or is being recovered by another "
            "instance meanwhile; check with `msgworker instances`"
        )
    if held.lives:
        threading.Event().wait(held.lease_seconds)
    return me


def give_back(bulk: Bulk, t: Tables, held: HeldMessages, by: Who) -> bool:
    """Give back its rows, with a try counted for each, as after a crash. False if some are left
    because other transactions have locked them."""
    left: set[int] = set()
    for pause in AGAIN_AFTER_SECONDS:
        threading.Event().wait(pause)
        left = _all_free(bulk, t, held, by)
        if not left:
            return True
    leave_alone(bulk, [Skip(i, Why.LOCKED) for i in sorted(left)])
    return False


def _all_free(bulk: Bulk, t: Tables, held: HeldMessages, by: Who) -> set[int]:
    """Give back the rows that are not locked; return the others.

    It does not wait for locks: a suspended process would block this one indefinitely, and with it
    recovery of the rows that are locked here.
    """
    dead_id = held.instance_id
    why = f": {by.reason}" if by.reason else ""
    text = f"released from instance {dead_id} by {by.actor}{why}"[:1000]
    left: set[int] = set()
    after = recover.FIRST

    def work(conn: Connection, ids: list[int]) -> Step:
        locked = change.lock(conn, t, ids, words=(State.PROCESSING,), waits=False)
        mine = done.still_mine(conn, t, ids, me=dead_id)
        busy = mine.difference(locked)
        free = sorted(mine.intersection(locked))
        audit.record(conn, t, bulk.op.op_id, free)
        changed = recover.recover(conn, t, free, dead_id=dead_id, text=text)
        left.difference_update(ids)  # it may be sent again
        left.update(busy)
        return Step(len(ids) - len(busy), changed)

    while True:
        with connecting(bulk.engine) as conn:
            ids = recover.flagged_by(conn, t, dead_id, after=after)
        if not ids:
            return left
        bulk.over(ids, work, keeps_place=False)
        after = ids[-1]


# ---------------------------------------------------------------- without an owner


def before_of(engine: sa.Engine, t: Tables, older_than: Any, any_age: bool) -> datetime | None:
    """The instant before which messages without an owner were flagged; raises ConfigError."""
    if any_age:
        if older_than is not None:
            raise ConfigError("give older_than or any_age, not both")
        return None
    if older_than is None:
        raise ConfigError(
            "older_than is required, such as 1h: how long messages must have been at 1; or any_age "
            "(--any-age), if you know that no consumer works on them"
        )
    age = call.age_of(older_than)
    if not (t.has("claimed_at") or t.has("created_at")):
        raise ConfigError(
            f"table {t.spec.name} has neither claimed_at nor created_at, so the age of its "
            "messages is unknown; use --any-age (any_age=True) if no consumer works on those at 1"
        )
    return steps.before_of(engine, age)


def refuse_owners_unknown(engine: sa.Engine, t: Tables) -> None:
    """Raise MsgworkerError if messages without an owner may belong to a live instance."""
    if t.has("claimed_by"):
        return
    with connecting(engine) as conn:
        _refuse_living(conn, t)


def _refuse_living(conn: Connection, t: Tables) -> None:
    lives = [
        str(one.instance_id)
        for one in instances(conn, t)
        if one.life is Life.LIVE and one.other_table is None
    ]
    if lives:
        raise MsgworkerError(
            f"instance {lives[0]} is alive, and table {t.spec.name} has no column claimed_by, so "
            "any message at 1 may be its own; stop all instances first"
        )


def held_by_nobody(engine: sa.Engine, t: Tables, before: datetime | None) -> list[int]:
    """The messages at 1 without an owner."""
    with connecting(engine) as conn:
        found = recover.foreign(conn, t, before=before, limit=SHOWN)
    return [msg_id for msg_id, _ in found]


def of_unknown_age(engine: sa.Engine, t: Tables, before: datetime | None) -> list[Skip]:
    """The messages at 1 without an owner that an age cannot choose."""
    if before is None:
        return []
    with connecting(engine) as conn:
        return [Skip(i, Why.UNDATED) for i in recover.undated(conn, t, limit=SHOWN)]


def leave_alone(bulk: Bulk, skips: list[Skip]) -> None:
    """Count the skipped messages."""
    if skips:
        bulk.step(None, lambda conn: Step(len(skips), 0, skips))


def give_back_nobodys(
    bulk: Bulk, engine: sa.Engine, t: Tables, before: datetime | None, by: Who
) -> None:
    """Give back messages without an owner, with a try counted for each; skip locked ones."""
    why = f": {by.reason}" if by.reason else ""
    text = f"released by {by.actor}: it was at 1 without an owner{why}"[:1000]
    after = recover.FIRST

    def work(conn: Connection, ids: list[int]) -> Step:
        locked = change.lock(conn, t, ids, words=(State.PROCESSING,), waits=False)
        # Check again under the lock: one may have ended, or have an owner, since it was read.
        now = dict(recover.foreign(conn, t, after=ids[0] - 1, before=before, limit=len(seen)))
        free = [i for i in locked if now.get(i) == seen[i]]
        if free and not t.has(
            "claimed_by"
        ):  # an instance that has just flagged one has a lease by now
            _refuse_living(conn, t)
        audit.record(conn, t, bulk.op.op_id, free)
        changed = 0
        for tries in sorted({seen[i] for i in free}):
            same = [i for i in free if seen[i] == tries]
            changed += recover.recover_foreign(conn, t, same, seen_tries=tries, text=text)
        skips = [Skip(i, Why.CHANGED if i in locked else Why.LOCKED) for i in ids if i not in free]
        return Step(len(ids), changed, skips)

    while True:
        with connecting(engine) as conn:
            seen = dict(recover.foreign(conn, t, after=after, before=before))
        if not seen:
            return
        bulk.over(sorted(seen), work, keeps_place=False)
        after = max(seen)


def end(engine: sa.Engine, t: Tables, held: HeldMessages, me: str | None, *, drop: bool) -> None:
    """Give up the lease that was taken over. Not `drop`: rows are left, so recovery needs it."""
    if me is None:
        return
    with writing(engine) as conn:
        if drop:
            lease.drop(conn, t, held.instance_id, taken_by=me)
        else:
            lease.leave(conn, t, held.instance_id, taken_by=me)
