"""Locks, schedules and jobs: list them, and change them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from dataclasses import dataclass, fields, replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

from sqlalchemy import Connection

from msgworker import schedules
from msgworker.config import nearest, whole
from msgworker.errors import ConfigError, KeyUsed, MsgworkerError, SchemaError
from msgworker.message import State
from msgworker.ops.looks import MAX_PAGE
from msgworker.ops.operation import Writing, in_one
from msgworker.ops.repairs import Repairs
from msgworker.ops.results import How, OnProgress, Repaired
from msgworker.producing import refuse_jobs
from msgworker.queries import messages
from msgworker.schedules import Schedule, next_times
from msgworker.store import audit, controls
from msgworker.store import jobs as jobs_store
from msgworker.store import schedules as schedules_store
from msgworker.store.audit import Who
from msgworker.store.bounded import MOST, Found
from msgworker.store.controls import PausedJob
from msgworker.store.schedules import Stored
from msgworker.table.build import JOB_TABLE, MAX_ACTOR, MAX_REASON
from msgworker.table.tables import Tables

if TYPE_CHECKING:
    from msgworker.coordination.lease import Lease, LockCentre
    from msgworker.queries.jobs import JobInfo

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
        **how: Unpack[How],
    ) -> Repaired:
        """Take a lock away from its holder. Returns 1, or 0 if the lock is not held.

        A lease that is not renewed expires, so a holder is alive or died less than its ttl ago:
        the call is refused without `force`. The holder notices at its next renewal, and may work
        beside the next holder until then; a check of the token refuses its writes. Recorded in the
        audit, if its tables exist. Raises ConfigError, LocksUnavailable.
        """
        from msgworker.coordination.lease import check_name

        check_name(name)
        by, dry_run = self._asked("release_lock", how)
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
            asked["locks"] = repr(where)
            op_id, t = None, self._tables
            if not t.missing & {"msgworker_operation", "msgworker_audit"}:
                # before, so that the audit has an interrupted one
                op_id = in_one(self._engine, lambda conn: audit.begin(conn, t, KIND, by, asked))
            did = int(where.release(lease))
        if op_id is not None:
            counts = {"changed": did, "skipped": 1 - did}
            in_one(self._engine, lambda conn: audit.end(conn, t, op_id, **counts))
        return Repaired(kind=KIND, op_id=op_id, matched=1, changed=did, skipped=1 - did)

    def _centre(self, centre: LockCentre | None) -> AbstractContextManager[LockCentre]:
        if centre is not None:
            return nullcontext(centre)
        from msgworker.coordination.database import DatabaseLocks

        return closing(DatabaseLocks(self._engine, schema=self._spec.schema))


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


class Scheduling(Writing):
    """Operations on schedules; `how` as in `How`."""

    def schedules(self) -> list[ScheduleInfo]:
        """The schedules in the table, and those that this App declares and no instance has written
        yet, by name."""
        declared = self._declared()
        ours = {one.name: one for one in declared or ()}
        with self._reading() as (conn, t):
            if not schedules_store.is_there(conn, t):
                now, rows = schedules_store.clock(conn), list[Stored]()
            else:
                now, rows = schedules_store.look(conn, t)
        found = [_info(row, now, None if declared is None else row.name in ours) for row in rows]
        there = {row.name for row in rows}
        found += [_unwritten(one, now) for name, one in ours.items() if name not in there]
        return sorted(found, key=lambda one: one.name)

    def can_schedule(self) -> bool:
        """Whether the table of schedules is there: without it none can fire."""
        with self._reading() as (conn, t):
            return schedules_store.is_there(conn, t)

    def pause_schedule(self, name: str, **how: Unpack[How]) -> Repaired:
        """Let a schedule not fire from now on. Returns 1, or 0 if it was paused already.

        Messages that it has sent are handled. Raises ConfigError for an unknown name.
        """
        asked = by, _ = self._asked("pause_schedule", how)

        def act(conn: Connection, t: Tables, row: Stored, now: datetime) -> bool:
            who = t.own_text(by.actor, MAX_ACTOR)
            values = {"paused_at": now, "paused_by": who, **_why(conn, t, by.reason)}
            return schedules_store.change(conn, t, row, values)

        return self._change_schedule(
            "pause-schedule", name, asked, act, lambda row: row.paused_at is None
        )

    def resume_schedule(self, name: str, **how: Unpack[How]) -> Repaired:
        """Let a paused schedule fire again, from its next tick on: those of the pause are left out.
        Instances notice within a heartbeat. Returns 1, or 0 if it was not paused."""
        asked = self._asked("resume_schedule", how)

        def act(conn: Connection, t: Tables, row: Stored, now: datetime) -> bool:
            after = now if row.last_at is None else max(now, row.last_at)
            next_at = schedules.ticks_of(row.spec, row.time_zone).after(after)
            values = {"paused_at": None, "paused_by": None, "next_at": next_at}
            values |= _why(conn, t, None)
            return schedules_store.change(conn, t, row, values)

        return self._change_schedule(
            "resume-schedule", name, asked, act, lambda row: row.paused_at is not None
        )

    def run_now(self, name: str, **how: Unpack[How]) -> Repaired:
        """Send the message of a schedule now, also of a paused one; its ticks do not change.

        `scheduled_for` of the message is this instant. Returns 1; `sample` holds the message. With
        overlap="replace" it takes the place of one that has not ended, as a tick does. Raises
        DuplicateMessage, with overlap="skip", if one has not ended.
        """
        asked = self._asked("run_now", how)
        sent: list[messages.MessageInfo] = []

        def act(conn: Connection, t: Tables, row: Stored, now: datetime) -> bool:
            (values,) = schedules_store.rows_of(t, row, [now])
            with self._tracer.sending(row.topic) as sending:
                sending.carry((values,), t.max_headers)
                msg_id = schedules_store.send_now(conn, t, row, values)
                sending.sent(msg_id=msg_id)
            # Before the COMMIT: after it an error would look as if nothing was sent.
            sent[:] = filter(None, [messages.show(conn, t, msg_id)])
            return True

        done = self._change_schedule("run-schedule", name, asked, act)
        return replace(done, sample=tuple(sent))

    def delete_schedule(self, name: str, **how: Unpack[How]) -> Repaired:
        """Delete a schedule from the table; its messages stay. Where a program still declares it,
        its next start writes it again, as a new one. Returns 1."""
        asked = self._asked("delete_schedule", how)
        act: OnSchedule = lambda conn, t, row, now: schedules_store.delete(conn, t, row)  # noqa: E731
        return self._change_schedule("delete-schedule", name, asked, act)

    def _change_schedule(
        self,
        kind: audit.Kind,
        name: Any,
        asked: tuple[Who, bool],
        act: OnSchedule,
        wanted: Callable[[Stored], bool] = lambda row: True,
    ) -> Repaired:
        """Change the row of a schedule as it is now, and record it, in one transaction."""
        self._ready()
        if not self.can_schedule():
            raise SchemaError(
                "table msgworker_schedule is missing. Run App.create_schema() or `msgworker "
                "init-db`, or see `msgworker ddl --dialect NAME`"
            )

        def once(conn: Connection, t: Tables, name: Any) -> bool:
            row, now = self._named(conn, t, name)
            if not (wanted(row) and act(conn, t, row, now)):
                raise _Changed
            return True

        for _ in range(TRIES):
            with self._reading() as (conn, t):
                would = wanted(self._named(conn, t, name)[0])
            with suppress(_Changed):  # an instance has just fired it
                return self._at_once(kind, asked, "schedule", name, once, would)
        raise MsgworkerError(f"schedule {name!r} is changed all the time; try again")

    def _named(self, conn: Connection, t: Tables, name: Any) -> tuple[Stored, datetime]:
        now, rows = schedules_store.look(conn, t)
        for row in rows:
            if row.name == name:
                return row, now
        hint = nearest(str(name), [row.name for row in rows]) if rows else "there are none"
        if any(one.name == name for one in self._declared() or ()):
            hint = "the App declares it, and the first start of an instance or a drain writes it"
        raise ConfigError(f"there is no schedule {name!r:.120} in the table; {hint}")


def _why(conn: Connection, t: Tables, reason: str | None) -> dict[str, Any]:
    """The column of the reason, where the table has it."""
    if not schedules_store.is_whole(conn, t):
        return {}
    return {"paused_reason": t.own_text(reason, MAX_REASON)}


def _info(row: Stored, now: datetime, declared: bool | None) -> ScheduleInfo:
    coming: tuple[datetime, ...] = ()
    problem = None if row.next_at is not None else "its next_at is no instant"
    if row.next_at is not None and row.paused_at is None:
        coming = (row.next_at,)
        try:
            coming += tuple(next_times(row.spec, row.time_zone, row.next_at, SHOWN_TICKS - 1))
        except ConfigError as error:
            problem = str(error)
    others = ("time_zone", "next_at", "version")
    same = {one.name: getattr(row, one.name) for one in fields(row) if one.name not in others}
    return ScheduleInfo(
        **same,
        tz=row.time_zone,
        next_times=coming,
        late_seconds=max(0.0, (now - coming[0]).total_seconds()) if coming else 0.0,
        declared=declared,
        stored=True,
        problem=problem,
    )


def _unwritten(one: Schedule, now: datetime) -> ScheduleInfo:
    said = (one.name, one.spec, one.tz, one.topic, one.object_id, one.payload, one.catch_up)
    instants = ("next_at", "last_at", "paused_at", "declared_at")
    none: dict[str, Any] = dict.fromkeys((*instants, "paused_by", "declared_by"))
    row = Stored(*said, version=0, overlap=one.overlap, **none)
    coming = tuple(one.next_times(now, SHOWN_TICKS))
    return replace(_info(row, now, True), stored=False, problem=None, next_times=coming)


# --- Jobs: list them, seal one, pause one, and cancel one with all its messages.


class Jobs(Repairs):
    """Operations on jobs; `how` as in `How`."""

    def jobs(
        self, *, is_open: bool | None = None, limit: int = 50, after: int | None = None
    ) -> Found[JobInfo]:
        """Jobs, the newest first, with how far each is, counted up to 100,000 messages of a state
        (10,000 behind the first 500,000); none where the database has no jobs. A list with
        `next_after` (None = no more), which is `after` of the next page.

        is_open: True = only those that have not completed, False = only the others. Raises
        ConfigError.
        """
        whole("limit", limit, 1, MAX_PAGE)
        if after is not None:
            whole("after", after, 1, MOST)
        from msgworker.queries import jobs

        if not jobs_store.is_there(self._tables_with(JOB_TABLE)):
            return Found()
        return self._read(jobs.find, is_open=is_open, limit=limit, after=after)

    def job(self, job_id: int) -> JobInfo | None:
        """One job, counted up to 1,000,000 messages of a state; None if there is no such one."""
        whole("job_id", job_id, 1, MOST)
        from msgworker.queries import jobs

        if not jobs_store.is_there(self._tables_with(JOB_TABLE)):
            return None
        return self._read(jobs.show, job_id)

    def seal_job(self, job_id: int, **how: Unpack[How]) -> Repaired:
        """Say that all messages of a job were sent, as `Job.seal`; for one whose producer has ended
        before that. Returns 1, or 0 if it was sealed already. Raises ConfigError for an unknown
        job."""
        asked = self._asked("seal_job", how)
        return self._on_job("seal-job", job_id, asked, jobs_store.seal, "sealed_at")

    def pause_job(self, job_id: int, **how: Unpack[How]) -> Repaired:
        """Let no message of a job start, on any instance, from its next heartbeat on: what runs
        ends, what waits keeps its place, and so does what stands behind it in the same object.

        It waits for those who have sent into the job and not committed. Returns 1, or 0 if it was
        paused already. Raises ConfigError for an unknown job, and for one that has completed.
        """
        asked = by, _ = self._asked("pause_job", how)
        self._refuse_completed(job_id, "pause the topics of what was rerun of it")
        act = partial(jobs_store.pause, by=by.actor, why=by.reason)
        return self._on_job("pause-job", job_id, asked, act, "paused_at")

    def resume_job(self, job_id: int, **how: Unpack[How]) -> Repaired:
        """Let the messages of a paused job start again. Returns 1, or 0 if it was not paused.
        Raises ConfigError for an unknown job."""
        asked, act = self._asked("resume_job", how), jobs_store.resume
        return self._on_job("resume-job", job_id, asked, act, "paused_at", is_set=True)

    def paused_jobs(self) -> list[PausedJob]:
        """The jobs that are paused and have not completed, the newest first, 1,000 at most."""
        return self._read(controls.paused_jobs)

    def cancel_job(
        self,
        job_id: int,
        *,
        rate: float | None = None,
        progress: OnProgress | None = None,
        **how: Unpack[How],
    ) -> Repaired:
        """Cancel a job: it is sealed, its message is never sent, and all its messages that have not
        ended are cancelled, as by `cancel(job=...)`, whose result is returned.

        An interrupted call is continued by another one. A reason is required. What handlers of its
        messages have sent into it meanwhile is cancelled, too. Raises ConfigError for an unknown
        job, and for one that has completed.
        """
        # The key of a request is that of the cancel: all before that may be done again.
        keyless = self._keyless()
        by, dry_run = keyless._asked("cancel_job", how, needs_reason="cancel-job")
        key = self._acting.key
        if key is not None and not dry_run and self.recorded(key) is not None:
            raise KeyUsed(audit.KEY_USED)
        self._refuse_completed(job_id)
        asked: dict[str, Any] = {**how, "job": job_id, "rate": rate}
        if dry_run:
            return self.cancel(**asked)
        self._on_job("cancel-job", job_id, (by, False), jobs_store.cancel, "cancelled_at")
        if self._known_job(job_id).cancelled_at is None:  # it has just completed
            self._refuse_completed(job_id)
        done = more = self.cancel(**asked, progress=progress)
        while more and self._known_job(job_id).waiting:
            more = keyless.cancel(**asked, status=State.NEW)  # what was sent by those that ran
            done = replace(
                done, matched=done.matched + more.matched, changed=done.changed + more.changed
            )
        return done

    def _refuse_completed(self, job_id: int, then: str = "") -> None:
        if self._known_job(job_id).completed_at is not None:
            ends = f"`msgworker cancel --job {job_id} --reason TEXT` cancels what was rerun of it"
            raise ConfigError(f"job {job_id} has completed; {then or ends}")

    def _on_job(
        self,
        kind: audit.Kind,
        job_id: int,
        asked: tuple[Who, bool],
        act: Callable[[Connection, Tables, int], bool],
        field: str,
        *,
        is_set: bool = False,
    ) -> Repaired:
        """Change the row of a job, if this instant of it is set, or is not."""
        self._ready()
        would = (getattr(self._known_job(job_id), field) is not None) is is_set
        return self._at_once(kind, asked, "job", job_id, act, would)

    def _known_job(self, job_id: int) -> JobInfo:
        """The job, of which only is counted whether there are any messages of a state."""
        from msgworker.queries import jobs

        whole("job_id", job_id, 1, MOST)
        refuse_jobs(self._tables_with(JOB_TABLE))
        found = self._read(jobs.show, job_id, most=1, looks=0)
        if found is None:
            raise ConfigError(f"there is no job {job_id} of table {self._tables.spec.name}")
        return found
