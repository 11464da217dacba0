"""Release: give back messages of an instance, or without an owner, in the same way as recovery.

The lease is taken over first, so that it can never be renewed. Rows of a live instance are
given back only when its lease would have expired: until then it may still start handlers.
"""

from __future__ import annotations

import threading
import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from msgworker.db import connecting, writing
from msgworker.errors import ConfigError, MsgworkerError, SchemaError
from msgworker.message import State
from msgworker.ops import call
from msgworker.ops.call import Clock, Who
from msgworker.ops.operation import Bulk, Step, Writing
from msgworker.ops.results import OnProgress, Repaired, Skip, Skips, Why
from msgworker.ops.selection import Counted
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


def age_of(t: Tables, older_than: Any, any_age: bool) -> float | datetime | None:
    """How long ago messages without an owner were flagged, None = at any time; raises
    ConfigError."""
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
    return age


def refuse_owners_unknown(engine: sa.Engine, t: Tables) -> None:
    """Raise MsgworkerError if messages without an owner may belong to a live instance."""
    if t.has("claimed_by"):
        return
    with connecting(engine) as conn:
        _refuse_living(conn, t)


def _refuse_living(conn: Connection, t: Tables) -> None:
    from msgworker.queries.instances import Life, instances

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
    """End the lease that was taken over. Not `drop`: rows are left, so recovery needs it."""
    if me is None:
        return
    with writing(engine) as conn:
        if drop:
            lease.drop(conn, t, held.instance_id, taken_by=me)
        else:
            lease.leave(conn, t, held.instance_id, taken_by=me)


class Releases(Writing):
    """Releases; `actor`, `reason` and `dry_run` as in `Repairs`."""

    def release(
        self,
        instance: str,
        *,
        force: bool = False,
        dry_run: bool = False,
        actor: str | None = None,
        reason: str | None = None,
        progress: OnProgress | None = None,
    ) -> Repaired:
        """Give back the messages of a dead instance, with a try counted for each, as recovery does.

        A live instance needs force: its lease is taken over, and its messages are given back when
        it can no longer start handlers, which takes as long as its lease; its later writes are
        refused. Messages locked by other transactions are skipped and left to recovery. Raises
        MsgworkerError if it is alive or is being recovered.
        """
        by = self._who(actor, reason)
        t = self._tables
        held = held_by(self._clock, self._engine, t, instance)
        refuse_living(held, force)
        if dry_run:
            return self._told("release", Counted(held.ids, len(held.ids)))
        self._ready()
        if held.lease is None and not held.ids:
            return Repaired(kind="release")
        asked = {"instance": instance, "force": force, "lived": held.lives}
        bulk = self._bulk("release", by, asked, None, progress=progress)
        try:
            me = take_over(self._engine, t, held)
        except MsgworkerError:  # another process was faster: end the recorded operation
            bulk.finish()
            raise
        all_free = give_back(bulk, t, held, by)
        end(self._engine, t, held, me, drop=all_free)
        bulk.finish()
        return bulk.result()

    def release_nobody(
        self,
        older_than: float | str | timedelta | datetime | None = None,
        *,
        any_age: bool = False,
        dry_run: bool = False,
        actor: str | None = None,
        reason: str | None = None,
        progress: OnProgress | None = None,
    ) -> Repaired:
        """Give back messages at 1 without an owner: left by a foreign consumer that no longer runs,
        or from before the table was adopted.

        A try and a crash are counted for each, as in recovery: it may have killed its process.
        older_than: seconds, "1h", a timedelta, or an aware datetime in the past; by `claimed_at`,
        else by `created_at`. Neither records when a foreign consumer flagged a message, only the
        earliest possible time: a consumer that is only slow is not excluded. Messages with neither
        are skipped. any_age: of any age, known or not. On a
        table without `claimed_by` it means every message at 1, and MsgworkerError is raised
        while an instance is alive. Raises ConfigError for a wrong age.
        """
        by = self._who(actor, reason)
        t = self._tables
        age = age_of(t, older_than, any_age)
        before = None if age is None else self._before(age)
        refuse_owners_unknown(self._engine, t)
        seen = held_by_nobody(self._engine, t, before)
        undated = of_unknown_age(self._engine, t, before)
        left = Skips()
        left.add(undated)
        if dry_run:
            return self._told("release", Counted(seen, len(seen) + left.count, skips=left))
        self._ready()
        if not seen:
            return Repaired(kind="release", matched=left.count, **left.as_counts)
        asked = {"nobody": True, "before": None if before is None else before.isoformat()}
        bulk = self._bulk("release", by, asked, None, progress=progress)
        give_back_nobodys(bulk, self._engine, t, before, by)
        leave_alone(bulk, undated)
        bulk.finish()
        return bulk.result()
