"""Release and purge messages, pause topics, and read the audit."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Container
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Unpack

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError, IntegrityError

from msgworker.config import HISTORY_SECONDS, whole
from msgworker.config.values import renamed
from msgworker.db.clock import instant_ago
from msgworker.db.connections import connecting, ignoring, reaching, unavailable, writing
from msgworker.db.database import Trouble
from msgworker.db.errors import reason_of, trouble
from msgworker.errors import ConfigError, MsgworkerError, SchemaError
from msgworker.message import State
from msgworker.ops.looks import AboutDead, Clock, check_since, check_text, filter_of
from msgworker.ops.operation import RecordedOperation, Step, Unchanged, Writing, check_all, in_one
from msgworker.ops.results import (
    Age,
    How,
    OnProgress,
    Repaired,
    Skip,
    Skips,
    Why,
    age_of,
    rate_of,
)
from msgworker.ops.selection import PAGE, SAMPLE, DryRun
from msgworker.producing import check_topic
from msgworker.schema.apply import add_columns
from msgworker.store import (
    audit,
    change,
    controls,
    done,
    history,
    jobs,
    lease,
    limits,
    purge,
    recover,
)
from msgworker.store.audit import AuditEntry, Kind, Who
from msgworker.store.bounded import LEAST, MOST, Found
from msgworker.store.controls import Pause
from msgworker.store.lease import Lease
from msgworker.store.purge import Archive, Old
from msgworker.store.rows import MIN_ID
from msgworker.table.build import HISTORY
from msgworker.table.tables import Tables

MAX_AUDIT = 10_000

# --- Purge: delete finished rows older than an instant, in short transactions.


def open_archive(engine: sa.Engine, t: Tables, name: str | None) -> Archive | None:
    """The archive table, created if necessary; raises SchemaError if it cannot be used."""
    if name is None:
        return None
    try:
        with connecting(engine) as conn:
            into = purge.open_archive(conn, t, name)
    except DBAPIError as error:
        if trouble(error) is Trouble.LOST:
            raise unavailable(engine, error) from error
        raise SchemaError(f"the archive table {name} cannot be used: {reason_of(error)}") from error
    if into.lacking:
        adding = "; ".join(add_columns(engine.dialect, into.table, [c]) for c in into.lacking)
        raise SchemaError(
            f"the archive table {name} lacks column {', '.join(c.name for c in into.lacking)}: run "
            f"`{adding}`, or name a table that is not there yet, which is then made"
        )
    return into


def purge_all(op: RecordedOperation, t: Tables, old: Old, into: Archive | None) -> None:
    """Purge all messages that are old enough, by msg_id, from the last step of the operation on."""
    with reaching(op.engine), connecting(op.engine) as conn:
        beside = purge.beside(conn, t)

    def work(op_id: int, part: list[int], conn: Connection) -> Step:
        ids = purge.lock(conn, t, part, old)
        gone = sorted(set(part).difference(ids))
        if ids:
            kept = len(ids) if into is None else purge.archive(conn, t, into, ids)
            if into is not None and (lost := purge.altered(conn, t, into, ids)):
                raise Unchanged(lost)
            check_all(len(ids), kept=kept, deleted=purge.delete(conn, t, ids, beside))
        return Step(len(part), len(ids), [Skip(i, Why.CHANGED) for i in gone])

    def page(conn: Connection, after: int | None) -> list[int]:
        return purge.page(conn, t, old, after=after, limit=PAGE)

    op.over_all(page, work, after=op.last_id, full=PAGE)


def forget(engine: sa.Engine, t: Tables, before: datetime, keep_seconds: float) -> None:
    """Delete what is older of the history for charts, an hour of it in a transaction; and jobs that
    have completed before this instant and have no message left."""
    with ignoring(Trouble.AGAIN, Trouble.REFUSED):
        more = HISTORY.is_there(t)
        while more:
            with writing(engine) as conn:
                more = history.forget(conn, t, keep_seconds) > 0
    with ignoring(Trouble.AGAIN, Trouble.REFUSED):
        after: int | None = 0 if jobs.is_there(t) else None
        while after is not None:
            with writing(engine) as conn:
                after = jobs.forget(conn, t, before=before, after=after)


SWEPT = 20
SWEPT_ROWS = 1_000


def sweep(engine: sa.Engine, t: Tables) -> None:
    """Delete what is left of messages whose rows are gone; of a large table a part is looked at."""
    with connecting(engine) as conn:
        begins = purge.begins(conn, t)
    for table, name, after in begins:
        with ignoring(Trouble.AGAIN, Trouble.REFUSED):
            for _ in range(SWEPT):
                with writing(engine) as conn:
                    last = purge.sweep(conn, t, table, name, after=after, rows=SWEPT_ROWS)
                if last is None:
                    break
                after = last


# --- Release: give back messages of an instance, or without an owner, in the same way as recovery.
#
# The lease is taken over first, so that it can never be renewed. Rows of a live instance are given
# back only when its lease would have expired: until then it may still start handlers.

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
        found = next((one for one in lease.read_all(conn, t) if one.name == instance), None)
        ids = recover.flagged_by(conn, t, instance, limit=SHOWN)
    there = None if found is None or ids else found.served.table
    if there not in (None, t.label):
        raise ConfigError(f"instance {instance} works on table {there}: release it there")
    return HeldMessages(instance, found, ids)


def refuse_living(held: HeldMessages, force: bool) -> None:
    """Raise MsgworkerError if it is alive and not forced, or if its messages are recovered."""
    one, who = held.lease, f"instance {held.instance_id}"
    if one is None or not one.live:
        return
    if one.taken_by is not None and held.ids:
        raise MsgworkerError(f"{who} is being recovered by {one.taken_by} already; wait for it")
    if force or one.taken_by is not None:
        return
    if one.served.stopped:
        raise MsgworkerError(
            f"{who} has stopped, but its handler has outlived the grace time and may still run; "
            f"its lease ends in {one.left_seconds:.0f} s, then its messages are recovered by an "
            "instance that runs, or released; or take them away with --force (force=True), which "
            "waits for as long as a lease"
        )
    raise MsgworkerError(
        f"{who} is alive: stop it, and it releases its messages without a try counted; or take "
        "them away with --force (force=True): each counts as a crash, and its handlers may "
        "continue to run, although their writes are refused"
    )


def take_over(engine: sa.Engine, t: Tables, held: HeldMessages) -> str | None:
    """Take its lease over, and wait until it can no longer start handlers.

    Returns the name that holds the lease now, None if there is none. Raises MsgworkerError if
    another process was faster.
    """
    seen = held.lease
    if seen is None:
        # Read again in a separate statement: an instance may have registered between two reads.
        with reaching(engine), connecting(engine) as conn:
            if any(one.name == held.instance_id for one in lease.read_all(conn, t)):
                raise MsgworkerError(
                    f"instance {held.instance_id} has just taken a lease; try again"
                )
        return None
    me = f"ops-{uuid.uuid4().hex}"
    alive_seconds = max(0.0, (seen.expires_at - seen.renewed_at).total_seconds())
    ttl = alive_seconds + HOLD_SECONDS
    take: Callable[..., bool] = partial(lease.take_over, seen=seen)
    if held.lives:
        take = partial(lease.take_over_live, name=seen.name)
    if not in_one(engine, lambda conn: take(conn, t, me=me, ttl=ttl)):
        raise MsgworkerError(
            f"instance {seen.name} has renewed its lease, or is being recovered by another "
            "instance meanwhile; check with `msgworker instances`"
        )
    if held.lives:
        threading.Event().wait(alive_seconds)  # for so long it counts as alive without a heartbeat
    return me


def give_back(
    op: RecordedOperation, t: Tables, held: HeldMessages, by: Who, about_dead: AboutDead
) -> bool:
    """Give back its rows, with a try counted for each, as after a crash. False if some are left, as
    others have locked them: it does not wait for a suspended process, nor lets recovery wait."""
    dead_id = held.instance_id
    text = _text(f"released from instance {dead_id} by {by.actor}", by)
    left: set[int] = set()

    def work(op_id: int, part: list[int], conn: Connection) -> Step:
        locked = change.lock(conn, t, part, words=(State.PROCESSING,), waits=False)
        mine = done.still_mine(conn, t, part, me=dead_id)
        busy, free = mine.difference(locked), sorted(mine.intersection(locked))
        audit.record(conn, t, op_id, free)
        changed = recover.recover(conn, t, free, dead_id=dead_id, text=text)
        cancelled = recover.end_requests(conn, t, free)
        about_dead(conn, t, [i for i in free if i not in cancelled], text)
        left.difference_update(part)  # it may be sent again
        left.update(busy)
        return Step(len(part) - len(busy), changed)

    for pause in AGAIN_AFTER_SECONDS:
        threading.Event().wait(pause)
        left.clear()
        op.over_all(lambda conn, i: recover.flagged_by(conn, t, dead_id, after=_behind(i)), work)
        if not left:
            return True
    op.skip([Skip(i, Why.LOCKED) for i in sorted(left)])
    return False


def _text(done: str, by: Who) -> str:
    """The last error of a message that was given back."""
    return f"{done}: {by.reason}"[:1000] if by.reason else done[:1000]


def _behind(after: int | None) -> int:
    return MIN_ID if after is None else after


# --- Release: messages without an owner.


def _flagged_for(t: Tables, older_than: Any, any_age: bool) -> float | datetime | None:
    """How long ago they were flagged, None = at any time; raises ConfigError."""
    if any_age:
        if older_than is not None:
            raise ConfigError("give older_than or any_age, not both")
        return None
    if older_than is None:
        raise ConfigError(
            "older_than is required, such as 1h: how long messages must have been at 1; or any_age "
            "(--any-age), if you know that no consumer works on them"
        )
    age = age_of(older_than)
    if not (t.has("claimed_at") or t.has("created_at")):
        raise ConfigError(
            f"table {t.spec.name} has neither claimed_at nor created_at, so the age of its "
            "messages is unknown; use --any-age (any_age=True) if no consumer works on those at 1"
        )
    return age


def _refuse_living(conn: Connection, t: Tables) -> None:
    """Raise MsgworkerError while an instance is alive, whose own any message at 1 may be."""
    from msgworker.queries.instances import instances, live

    lives = live(instances(conn, t))
    if lives:
        raise MsgworkerError(
            f"instance {lives[0].instance_id} is alive, and table {t.spec.name} has no column "
            "claimed_by, so any message at 1 may be its own; stop all instances first"
        )


def give_back_nobodys(
    op: RecordedOperation, t: Tables, before: datetime | None, by: Who, about_dead: AboutDead
) -> None:
    """Give back messages without an owner, with a try counted for each; skip locked ones."""
    text = _text(f"released by {by.actor}: it was at 1 without an owner", by)
    seen: dict[int, int] = {}

    def page(conn: Connection, after: int | None) -> list[int]:
        nonlocal seen
        seen = dict(recover.foreign(conn, t, after=_behind(after), before=before))
        return sorted(seen)

    def work(op_id: int, part: list[int], conn: Connection) -> Step:
        locked = change.lock(conn, t, part, words=(State.PROCESSING,), waits=False)
        # Check again under the lock: one may have ended, or have an owner, since it was read.
        now = dict(recover.foreign(conn, t, after=part[0] - 1, before=before, limit=len(seen)))
        free = [i for i in locked if now.get(i) == seen[i]]
        if free and not t.has("claimed_by"):
            _refuse_living(conn, t)  # an instance that has just flagged one has a lease by now
        audit.record(conn, t, op_id, free)
        changed = 0
        for tries in sorted({seen[i] for i in free}):
            same = [i for i in free if seen[i] == tries]
            changed += recover.recover_foreign(conn, t, same, seen_tries=tries, text=text)
        about_dead(conn, t, free, text)
        skips = [Skip(i, Why.CHANGED if i in locked else Why.LOCKED) for i in part if i not in free]
        return Step(len(part), changed, skips)

    op.over_all(page, work)


# --- What operators do in upkeep.


class Upkeep(Writing):
    """Releases, purges, pauses and the audit; `how` as in `How`."""

    def _before(self, age: float | datetime) -> datetime:
        """The instant of an age, by the database's clock."""
        if isinstance(age, datetime):
            return age
        with reaching(self._engine), connecting(self._engine) as conn:
            return instant_ago(conn, age)

    # ------------------------------------------------------------ release

    def release(
        self,
        instance: str,
        *,
        force: bool = False,
        progress: OnProgress | None = None,
        **how: Unpack[How],
    ) -> Repaired:
        """Give back the messages of a dead instance, with a try counted for each, as recovery does.

        A live instance needs force: its lease is taken over, and its messages are given back when
        it can no longer start handlers, after a lease; its later writes are refused. Messages that
        are locked are left to recovery. Raises MsgworkerError if it is alive or being recovered.
        """
        by, dry_run = self._asked("release", how)
        t = self._tables
        held = held_by(self._clock, self._engine, t, instance)
        refuse_living(held, force)
        if dry_run:
            return self._counted("release", DryRun(held.ids, len(held.ids)))
        self._ready()
        one = held.lease
        if not held.ids and (one is None or (one.live and one.taken_by is not None)):
            return Repaired(kind="release")
        asked = {"instance": instance, "force": force, "lived": held.lives}
        op = self._operation("release", by, asked, progress=progress)
        op.begin()  # it is in the audit before the lease is taken over
        try:
            me = take_over(self._engine, t, held)
        except MsgworkerError:  # another process was faster: end the recorded operation
            op.end()
            raise
        all_free = False
        try:
            all_free = give_back(op, t, held, by, self._about_dead)
        finally:
            if me is not None:  # what is left needs recovery, and so the lease
                over = lease.drop if all_free else lease.leave
                in_one(self._engine, lambda conn: over(conn, t, instance, taken_by=me))
        return op.end()

    def release_nobody(
        self,
        older_than: Age = None,
        *,
        any_age: bool = False,
        progress: OnProgress | None = None,
        **how: Unpack[How],
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
        by, dry_run = self._asked("release_nobody", how)
        t = self._tables
        age = _flagged_for(t, older_than, any_age)
        before = None if age is None else self._before(age)
        with reaching(self._engine), connecting(self._engine) as conn:
            if not t.has("claimed_by"):
                _refuse_living(conn, t)
            seen = [msg_id for msg_id, _ in recover.foreign(conn, t, before=before, limit=SHOWN)]
            lost = [] if before is None else recover.undated(conn, t, limit=SHOWN)
        undated, left = [Skip(i, Why.UNDATED) for i in lost], Skips()
        left.add(undated)
        if dry_run:
            return self._counted("release", DryRun(seen, len(seen) + left.count, skips=left))
        self._ready()
        if not seen:
            return Repaired(kind="release", matched=left.count, **left.as_counts)
        asked = {"nobody": True, "before": None if before is None else before.isoformat()}
        op = self._operation("release", by, asked, progress=progress)
        give_back_nobodys(op, t, before, by, self._about_dead)
        op.skip(undated)
        return op.end()

    # ------------------------------------------------------------ purge

    @renamed(resume="operation")
    def purge(
        self,
        older_than: Age = None,
        *,
        dead: bool = False,
        topic: str | None = None,
        archive_to: str | None = None,
        rate: float | None = None,
        operation: int | None = None,
        progress: OnProgress | None = None,
        **how: Unpack[How],
    ) -> Repaired:
        """Delete done messages that finished longer ago than this, lowest msg_id first.

        older_than: seconds, "30d", a timedelta, or an aware datetime in the past. dead: also dead
        ones, except those that hold back their object, or a job that waits for them. archive_to:
        copy them into this table in the same transaction; it is created if it does not exist. rate,
        operation, progress: as in `rerun`. The history for charts that is older than
        `history_seconds` of the App goes too, and so do jobs that have completed before and have no
        message left, and tries and items of messages whose rows are gone.
        """
        t = self._tables
        if not purge.has_age(t):
            raise SchemaError(
                f"table {t.spec.name} has neither finished_at nor created_at, so the age of its "
                "messages is unknown. Add one of them, or delete by a rule of your own"
            )
        by, dry_run = self._asked("purge", how)
        filter_of((State.DONE,), topic=topic)
        if archive_to is not None:
            purge.archive_name(t, archive_to)
        asked: dict[str, Any] = {"dead": dead, "topic": topic, "archive_to": archive_to}
        if operation is not None:
            nothing = asked | {"older_than": older_than, "dead": dead or None}
            interrupted = self._resumed("purge", operation, nothing)
            asked = {name: interrupted.filter.get(name) for name in (*asked, "before")}
            before = datetime.fromisoformat(str(asked["before"]))
        else:
            interrupted = None
            before = self._before(age_of(older_than))
            asked["before"] = before.isoformat()
        old = Old(before, bool(asked["dead"]), asked["topic"])
        if old.dead:  # which jobs wait for them
            with self._clock.reading(self._engine) as conn:
                t = jobs.readable(conn, t)
        unseen = self._of_unseen_jobs(t, old)
        if dry_run:
            with self._clock.reading(self._engine) as conn:
                count = purge.count(conn, t, old)
                first = purge.page(conn, t, old, after=None, limit=SAMPLE)
            return self._counted("purge", DryRun(first, count)).skipping(Why.UNSEEN_JOB, *unseen)
        self._ready()
        into = open_archive(self._engine, t, asked["archive_to"])
        pace = rate_of(rate)
        op = self._operation("purge", by, asked, interrupted, rate=pace, progress=progress)
        op.begin()
        purge_all(op, t, old, into)
        with reaching(self._engine):
            forget(self._engine, self._tables, before, self._history_seconds or HISTORY_SECONDS)
            sweep(self._engine, self._tables)
        return op.end().skipping(Why.UNSEEN_JOB, *unseen)

    def _of_unseen_jobs(self, t: Tables, old: Old) -> tuple[int, list[int]]:
        """How many dead messages are left because their jobs cannot be seen, and the first ones."""
        if not purge.hides_jobs(t, old):
            return 0, []
        with self._clock.reading(self._engine) as conn:
            first = purge.page(conn, t, old, after=None, limit=SAMPLE, hidden=True)
            return purge.count(conn, t, old, hidden=True), first

    # ------------------------------------------------------------ pause

    def pause(self, topic: str, **how: Unpack[How]) -> Repaired:
        """Stop handlers of a topic from starting, on every instance from its next heartbeat on.

        Running handlers continue to their end. Messages of the topic wait, and so do those behind
        them of the same object. Returns 1, or 0 if it was paused already.
        """
        asked = by, _ = self._asked("pause", how)
        act = partial(controls.pause, actor=by.actor, reason=by.reason)
        return self._switch("pause", topic, asked, act, controls.paused_by, there=False)

    def resume(self, topic: str, **how: Unpack[How]) -> Repaired:
        """Resume a paused topic. Returns 1, or 0 if it was not paused."""
        asked = self._asked("resume", how)
        return self._switch("resume", topic, asked, controls.resume, controls.paused_by)

    def _switch(
        self,
        kind: Kind,
        topic: Any,
        asked: tuple[Who, bool],
        act: Callable[[Connection, Tables, str], bool],
        recorded: Callable[[Connection, Tables], Container[str]],
        *,
        there: bool = True,
    ) -> Repaired:
        """Change what is recorded of a topic, if it is there, or is not."""
        check_topic(topic)
        self._ready()
        would = (topic in self._read(recorded)) is there
        try:
            return self._at_once(kind, asked, "topic", topic, act, would)
        except IntegrityError:  # another process pauses it at the same moment
            if (topic in self._read(recorded)) is there:
                raise
            return Repaired(kind=kind)

    def remove_limit(self, topic: str, **how: Unpack[How]) -> Repaired:
        """Forget the max_running and rate of a topic, on every instance from its next heartbeat on.

        For a topic whose handlers declare none any more; an instance whose handler does records
        them again. Returns 1, or 0 if the topic has no limits.
        """
        asked = self._asked("remove_limit", how)
        return self._switch("unlimit", topic, asked, limits.remove, limits.read_all)

    def pauses(self) -> list[Pause]:
        """The topics that are paused."""
        return self._read(controls.pauses)

    # ------------------------------------------------------------ audit

    def audit(
        self,
        msg_id: int | None = None,
        *,
        kind: str | None = None,
        actor: str | None = None,
        since: datetime | None = None,
        limit: int = 50,
        after: int | None = None,
    ) -> Found[AuditEntry]:
        """What operators did, newest first: to one message, or all operations on this table.

        kind: "rerun", "pause", ... actor: exactly. since: started at or after this instant. A list
        with `next_after` (None = no more), which is `after` of the next page. Raises ConfigError.
        """
        whole("limit", limit, 1, MAX_AUDIT)
        if msg_id is not None:
            whole("msg_id", msg_id, LEAST, MOST)
        if after is not None:
            whole("after", after, LEAST, MOST)
        check_text("kind", kind)
        check_text("actor", actor)
        check_since(since)
        self._ready()
        chosen: dict[str, Any] = {"msg_id": msg_id, "kind": kind, "actor": actor, "since": since}
        return self._read(audit.entries, **chosen, limit=limit, after=after)
