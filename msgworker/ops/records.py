"""Locks and schedules: list them, and change them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection

from msgworker import ticks
from msgworker.config import nearest
from msgworker.db import writing
from msgworker.errors import ConfigError, MsgworkerError, SchemaError
from msgworker.ops import call
from msgworker.ops.operation import Writing
from msgworker.ops.results import Repaired
from msgworker.queries import messages
from msgworker.schedules import Schedule, next_times
from msgworker.store import audit
from msgworker.store import schedules as store
from msgworker.store.schedules import Stored
from msgworker.table import Tables

if TYPE_CHECKING:  # imported when locks are asked for
    from msgworker.coordination.lease import Lease, LockCentre

# --- List locks (msgworker.coordination) and take them away.

KIND: audit.Kind = "release-lock"


class Locking(Writing):
    """Operations on locks."""

    def locks(self, prefix: str = "", *, centre: LockCentre | None = None) -> list[Lease]:
        """The locks with this prefix that are held now: owner, token, `age` (seconds since it was
        acquired) and `ttl` (seconds left).

        centre: the lock centre; default: the table msgworker_lock of this database. Raises
        LocksUnavailable, SchemaError.
        """
        with self._centre(centre) as where:
            return where.held(prefix)

    def release_lock(
        self,
        name: str,
        *,
        centre: LockCentre | None = None,
        force: bool = False,
        dry_run: bool = False,
        actor: str | None = None,
        reason: str | None = None,
    ) -> Repaired:
        """Take a lock away from its holder. Returns 1, or 0 if the lock is not held.

        A lease that is not renewed expires, so a holder is alive or died less than its ttl ago:
        the call is refused without `force`. The holder notices at its next renewal, and may work
        beside the next holder until then; a check of the token refuses its writes. Recorded in the
        audit, if its tables exist. Raises ConfigError, LocksUnavailable.
        """
        from msgworker.coordination.centres import place_of
        from msgworker.coordination.lease import check_name

        check_name(name)
        by = self._who(actor, reason)
        with self._centre(centre) as where:
            lease = where.holder(name)
            if lease is None:
                return Repaired(kind=KIND, dry_run=dry_run)
            if not force:
                raise ConfigError(
                    f"lock {name!r} is held by {lease.owner}, whose lease lasts for "
                    f"{lease.ttl:.1f} s more unless it is renewed; take it away nevertheless with "
                    "force (--force)"
                )
            if dry_run:
                return Repaired(kind=KIND, matched=1, changed=1, dry_run=True)
            asked = {"lock": name, "owner": lease.owner, "token": lease.token}
            op_id = self._noted(by, asked | {"locks": place_of(where)})
            did = int(where.release(lease))
        if op_id is not None:
            with writing(self._engine) as conn:
                audit.end(conn, self._tables, op_id, changed=did, skipped=1 - did)
        return Repaired(kind=KIND, op_id=op_id, matched=1, changed=did, skipped=1 - did)

    @contextmanager
    def _centre(self, centre: LockCentre | None) -> Iterator[LockCentre]:
        if centre is not None:
            yield centre
            return
        from msgworker.coordination.database import DatabaseLocks

        own = DatabaseLocks(self._engine, schema=self._spec.schema)
        try:
            yield own
        finally:
            own.close()

    def _noted(self, by: call.Who, asked: dict[str, object]) -> int | None:
        """Record it first, so that an interrupted release is in the audit too."""
        t = self._tables
        if t.missing & {"msgworker_operation", "msgworker_audit"}:
            return None
        with writing(self._engine) as conn:
            return audit.begin(conn, t, kind=KIND, **by.fields, asked=asked)


# --- List schedules, pause, resume and delete them, and send the message of one now.

SHOWN_TICKS = 5
TRIES = 20
OnSchedule = Callable[[Connection, Tables, Stored, datetime], bool]


@dataclass(frozen=True, slots=True)
class ScheduleInfo:
    """A schedule as operators see it; instants are aware UTC.

    object_id, payload (JSON): of its messages. next_times: its next five ticks, or what is due
    since then; () while it is paused. late_seconds: how long the first of them has been due.
    declared: whether this App declares it; None if the App declares nothing and has no handler, as
    one that is made from the configuration alone. stored: whether it is in the table: it is
    written at the start of an instance. declared_by: the instance that has written it.
    problem: why it cannot fire. overlap: "allow", "skip" or "replace"; skipped, replaced: how many
    ticks were, since it is in the table. paused_reason: None where none was given.
    """

    name: str
    spec: str
    tz: str
    topic: str
    object_id: str | None
    payload: str | None
    catch_up: str
    next_times: tuple[datetime, ...]
    last_at: datetime | None
    late_seconds: float
    paused_at: datetime | None
    paused_by: str | None
    declared: bool | None
    stored: bool
    declared_by: str | None = None
    declared_at: datetime | None = None
    problem: str | None = None
    overlap: str = "allow"
    skipped: int = 0
    replaced: int = 0
    paused_reason: str | None = None


class _Changed(Exception):
    """The row is not as it was seen: roll back and look again."""


class _Unwanted(Exception):
    """The row is so already: nothing is done or recorded."""


class Scheduling(Writing):
    """Operations on schedules; `actor`, `reason` and `dry_run` as in `Repairs`."""

    def schedules(self) -> list[ScheduleInfo]:
        """The schedules in the table, and those that this App declares and no instance has written
        yet, by name."""
        declared = self._declared()
        ours = {one.name: one for one in declared or ()}
        with self._reading() as (conn, t):
            if not store.is_there(conn, t):
                now, rows = store.clock(conn), list[Stored]()
            else:
                now, rows = store.look(conn, t, whole=store.is_whole(conn, t))
        found = [_info(row, now, None if declared is None else row.name in ours) for row in rows]
        there = {row.name for row in rows}
        found += [_unwritten(one, now) for name, one in ours.items() if name not in there]
        return sorted(found, key=lambda one: one.name)

    def can_schedule(self) -> bool:
        """Whether the table of schedules is there: without it none can fire."""
        with self._reading() as (conn, t):
            return store.is_there(conn, t)

    def pause_schedule(
        self,
        name: str,
        *,
        dry_run: bool = False,
        actor: str | None = None,
        reason: str | None = None,
    ) -> Repaired:
        """Let a schedule not fire from now on. Returns 1, or 0 if it was paused already.

        Messages that it has sent are handled. Raises ConfigError for an unknown name.
        """
        by = self._who(actor, reason)

        def act(conn: Connection, t: Tables, row: Stored, now: datetime) -> bool:
            values = {"paused_at": now, "paused_by": by.actor, **_why(conn, t, by.reason)}
            return store.change(conn, t, row, values)

        return self._change_schedule(
            "pause-schedule", name, by, dry_run, act, lambda row: row.paused_at is None
        )

    def resume_schedule(
        self,
        name: str,
        *,
        dry_run: bool = False,
        actor: str | None = None,
        reason: str | None = None,
    ) -> Repaired:
        """Let a paused schedule fire again, from its next tick on: those of the pause are left out.
        Instances notice within a heartbeat. Returns 1, or 0 if it was not paused."""
        by = self._who(actor, reason)

        def act(conn: Connection, t: Tables, row: Stored, now: datetime) -> bool:
            after = now if row.last_at is None else max(now, row.last_at)
            next_at = ticks.read(row.spec, row.time_zone).after(after)
            values = {"paused_at": None, "paused_by": None, "next_at": next_at}
            values |= _why(conn, t, None)
            return store.change(conn, t, row, values)

        return self._change_schedule(
            "resume-schedule", name, by, dry_run, act, lambda row: row.paused_at is not None
        )

    def run_now(
        self,
        name: str,
        *,
        dry_run: bool = False,
        actor: str | None = None,
        reason: str | None = None,
    ) -> Repaired:
        """Send the message of a schedule now, also of a paused one; its ticks do not change.

        `scheduled_for` of the message is this instant. Returns 1; `sample` holds the message. With
        overlap="replace" it takes the place of one that has not ended, as a tick does. Raises
        DuplicateMessage, with overlap="skip", if one has not ended.
        """
        by = self._who(actor, reason)
        sent: list[Any] = []

        def act(conn: Connection, t: Tables, row: Stored, now: datetime) -> bool:
            (values,) = store.rows_of(t, row, [now])
            with self._tracer.sending(row.topic) as sending:
                sending.carry(values, t.max_headers)
                sent[:] = [store.send_now(conn, t, row, values)]
                sending.sent(msg_id=sent[0])
            return True

        done = self._change_schedule("run-schedule", name, by, dry_run, act, lambda row: True)
        if not sent or dry_run:
            return done
        with self._reading() as (conn, t):
            shown = messages.show(conn, t, sent[0])
        sample = () if shown is None else (shown,)
        return Repaired(kind=done.kind, op_id=done.op_id, matched=1, changed=1, sample=sample)

    def delete_schedule(
        self,
        name: str,
        *,
        dry_run: bool = False,
        actor: str | None = None,
        reason: str | None = None,
    ) -> Repaired:
        """Delete a schedule from the table; its messages stay. Where a program still declares it,
        its next start writes it again, as a new one. Returns 1."""
        by = self._who(actor, reason)

        def act(conn: Connection, t: Tables, row: Stored, now: datetime) -> bool:
            return store.delete(conn, t, row)

        return self._change_schedule("delete-schedule", name, by, dry_run, act, lambda row: True)

    def _change_schedule(
        self,
        kind: audit.Kind,
        name: Any,
        by: call.Who,
        dry_run: bool,
        act: OnSchedule,
        wanted: Callable[[Stored], bool],
    ) -> Repaired:
        """Change the row of a schedule as it is now, and record it, in one transaction."""
        self._ready()
        with self._reading() as (conn, t):
            if not store.is_there(conn, t):
                raise SchemaError(
                    "table msgworker_schedule is missing. Run App.create_schema() or `msgworker "
                    "init-db`, or see `msgworker ddl`"
                )
            row, _ = self._named(conn, t, name)
        if dry_run or not wanted(row):
            would = int(wanted(row))
            return Repaired(kind=kind, matched=would, changed=would, dry_run=dry_run)

        def once(conn: Connection, t: Tables) -> bool:
            row, now = self._named(conn, t, name)
            if not wanted(row):
                raise _Unwanted
            if not act(conn, t, row, now):
                raise _Changed
            return True

        for _ in range(TRIES):
            try:
                return self._at_once(kind, by, {"schedule": name}, once)
            except _Changed:  # an instance has just fired it
                continue
            except _Unwanted:
                return Repaired(kind=kind)
        raise MsgworkerError(f"schedule {name!r} is changed all the time; try again")

    def _named(self, conn: Connection, t: Tables, name: Any) -> tuple[Stored, datetime]:
        now, rows = store.look(conn, t, whole=store.is_whole(conn, t))
        for row in rows:
            if row.name == name:
                return row, now
        hint = nearest(str(name), [row.name for row in rows]) if rows else "there are none"
        if any(one.name == name for one in self._declared() or ()):
            hint = "the App declares it, and the first start of an instance or a drain writes it"
        raise ConfigError(f"there is no schedule {name!r:.120} in the table; {hint}")


def _why(conn: Connection, t: Tables, reason: str | None) -> dict[str, Any]:
    """The column of the reason, where the table has it."""
    return {"paused_reason": reason} if store.is_whole(conn, t) else {}


def _info(row: Stored, now: datetime, declared: bool | None) -> ScheduleInfo:
    coming: tuple[datetime, ...] = ()
    problem = None if row.next_at is not None else "its next_at is no instant"
    if row.next_at is not None and row.paused_at is None:
        coming = (row.next_at,)
        try:
            coming += tuple(next_times(row.spec, row.time_zone, row.next_at, SHOWN_TICKS - 1))
        except ConfigError as error:
            problem = str(error)
    return ScheduleInfo(
        name=row.name,
        spec=row.spec,
        tz=row.time_zone,
        topic=row.topic,
        object_id=row.object_id,
        payload=row.payload,
        catch_up=row.catch_up,
        next_times=coming,
        last_at=row.last_at,
        late_seconds=max(0.0, (now - coming[0]).total_seconds()) if coming else 0.0,
        paused_at=row.paused_at,
        paused_by=row.paused_by,
        declared=declared,
        stored=True,
        declared_by=row.declared_by,
        declared_at=row.declared_at,
        problem=problem,
        overlap=row.overlap,
        skipped=row.skipped,
        replaced=row.replaced,
        paused_reason=row.paused_reason,
    )


def _unwritten(one: Schedule, now: datetime) -> ScheduleInfo:
    return ScheduleInfo(
        name=one.name,
        spec=one.spec,
        tz=one.tz,
        topic=one.topic,
        object_id=one.object_id,
        payload=one.payload,
        catch_up=one.catch_up,
        next_times=tuple(one.next_times(now, SHOWN_TICKS)),
        last_at=None,
        late_seconds=0.0,
        paused_at=None,
        paused_by=None,
        declared=True,
        stored=False,
        overlap=one.overlap,
    )
