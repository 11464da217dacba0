"""Jobs: list them, seal one, pause one, and cancel one with all its messages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from msgworker.config import whole
from msgworker.db import Trouble, trouble, writing
from msgworker.errors import ConfigError
from msgworker.message import State
from msgworker.ops import call
from msgworker.ops.queries import MAX_PAGE
from msgworker.ops.repairs import Repairs
from msgworker.ops.results import OnProgress, Repaired
from msgworker.producing import refuse_jobs
from msgworker.store import audit, pauses
from msgworker.store import jobs as store
from msgworker.store.bounded import MOST, Found
from msgworker.store.pauses import PausedJob
from msgworker.table import JOB_TABLE, Tables

if TYPE_CHECKING:  # the methods that read import it
    from msgworker.queries.jobs import JobInfo

CANCEL_RERUN = "`cancel` cancels what was rerun of it"


def forget_jobs(engine: sa.Engine, t: Tables, before: datetime) -> None:
    """Delete what has completed before this instant of the jobs that have no message left. What
    cannot be deleted now is left to the next purge."""
    after: int | None = 0 if store.is_there(t) else None
    try:
        while after is not None:
            with writing(engine) as conn:
                after = store.forget(conn, t, before=before, after=after)
    except DBAPIError as error:
        if trouble(error) not in (Trouble.AGAIN, Trouble.REFUSED):
            raise


class Jobs(Repairs):
    """Operations on jobs; `actor`, `reason` and `dry_run` as in `Repairs`."""

    def jobs(
        self, *, is_open: bool | None = None, limit: int = 50, after: int | None = None
    ) -> Found[JobInfo]:
        """Jobs, the newest first, with how far each is, counted up to 10,000 messages of a state;
        none where the database has no jobs. A list with `next_after` (None = no more), which is
        `after` of the next page.

        is_open: True = only those that have not completed, False = only the others. Raises
        ConfigError.
        """
        whole("limit", limit, 1, MAX_PAGE)
        if after is not None:
            whole("after", after, 1, MOST)
        from msgworker.queries import jobs

        if not store.is_there(self._job_tables()):
            return Found()
        return self._read(jobs.find, is_open=is_open, limit=limit, after=after)

    def job(self, job_id: int) -> JobInfo | None:
        """One job, counted up to 1,000,000 messages of a state; None if there is no such one."""
        whole("job_id", job_id, 1, MOST)
        from msgworker.queries import jobs

        if not store.is_there(self._job_tables()):
            return None
        return self._read(jobs.show, job_id)

    def seal_job(
        self,
        job_id: int,
        *,
        dry_run: bool = False,
        actor: str | None = None,
        reason: str | None = None,
    ) -> Repaired:
        """Say that all messages of a job were sent, as `Job.seal`; for one whose producer has ended
        before that. Returns 1, or 0 if it was sealed already. Raises ConfigError for an unknown
        job."""
        by = self._who(actor, reason)
        return self._on_job(
            "seal-job", job_id, by, dry_run, store.seal, lambda job: not job.sealed_at
        )

    def pause_job(
        self,
        job_id: int,
        *,
        dry_run: bool = False,
        actor: str | None = None,
        reason: str | None = None,
    ) -> Repaired:
        """Let no message of a job start, on any instance, from its next heartbeat on: what runs
        ends, what waits keeps its place, and so does what stands behind it in the same object.

        It waits for those who have sent into the job and not committed. Returns 1, or 0 if it was
        paused already. Raises ConfigError for an unknown job, and for one that has completed.
        """
        by = self._who(actor, reason)
        self._refuse_completed(job_id, "pause the topics of what was rerun of it")
        act = partial(store.pause, by=by.actor, why=by.reason)
        return self._on_job("pause-job", job_id, by, dry_run, act, lambda job: not job.paused_at)

    def resume_job(
        self,
        job_id: int,
        *,
        dry_run: bool = False,
        actor: str | None = None,
        reason: str | None = None,
    ) -> Repaired:
        """Let the messages of a paused job start again. Returns 1, or 0 if it was not paused.
        Raises ConfigError for an unknown job."""
        by = self._who(actor, reason)
        wanted: Callable[[JobInfo], bool] = lambda job: job.paused_at is not None  # noqa: E731
        return self._on_job("resume-job", job_id, by, dry_run, store.resume, wanted)

    def paused_jobs(self) -> list[PausedJob]:
        """The jobs that are paused and have not completed, the newest first, 1,000 at most."""
        return self._read(pauses.read_jobs)

    def cancel_job(
        self,
        job_id: int,
        *,
        dry_run: bool = False,
        actor: str | None = None,
        reason: str | None = None,
        rate: float | None = None,
        progress: OnProgress | None = None,
    ) -> Repaired:
        """Cancel a job: it is sealed, its message is never sent, and all its messages that have not
        ended are cancelled, as by `cancel(job=...)`, whose result is returned.

        An interrupted call is continued by another one. A reason is required. What handlers of its
        messages have sent into it meanwhile is cancelled, too. Raises ConfigError for an unknown
        job, and for one that has completed.
        """
        by = self._who(actor, reason, needs_reason=None if dry_run else "cancel-job")
        self._refuse_completed(job_id)
        how: dict[str, Any] = {"job": job_id, "reason": reason, "actor": actor, "rate": rate}
        if dry_run:
            return self.cancel(**how, dry_run=True)
        wanted: Callable[[JobInfo], bool] = lambda job: not job.cancelled_at  # noqa: E731
        self._on_job("cancel-job", job_id, by, False, store.cancel, wanted)
        if self._known_job(job_id).cancelled_at is None:  # it has just completed
            self._refuse_completed(job_id)
        done = more = self.cancel(**how, progress=progress)
        while more and self._known_job(job_id).waiting:
            more = self.cancel(**how, status=State.NEW)  # what was sent by those that ran
            done = replace(
                done, matched=done.matched + more.matched, changed=done.changed + more.changed
            )
        return done

    def _refuse_completed(self, job_id: int, then: str = CANCEL_RERUN) -> None:
        if self._known_job(job_id).completed_at is not None:
            raise ConfigError(f"job {job_id} has completed; {then}")

    def _on_job(
        self,
        kind: audit.Kind,
        job_id: int,
        by: call.Who,
        dry_run: bool,
        act: Callable[[Connection, Tables, int], bool],
        wanted: Callable[[JobInfo], bool],
    ) -> Repaired:
        """Change the row of a job, if it is as wanted, and record it, in one transaction."""
        self._ready()
        would = int(wanted(self._known_job(job_id)))
        if dry_run or not would:
            return Repaired(kind=kind, matched=would, changed=would, dry_run=dry_run)
        return self._at_once(kind, by, {"job": job_id}, lambda conn, t: act(conn, t, job_id))

    def _known_job(self, job_id: int) -> JobInfo:
        """The job, of which only is counted whether there are any messages of a state."""
        from msgworker.queries import jobs

        whole("job_id", job_id, 1, MOST)
        refuse_jobs(self._job_tables())
        found = self._read(jobs.show, job_id, most=1, looks=0)
        if found is None:
            raise ConfigError(f"there is no job {job_id} of table {self._tables.spec.name}")
        return found

    def _job_tables(self) -> Tables:
        """The tables, with the table of jobs if it was created since they were read."""
        if not JOB_TABLE.is_there(self._tables):
            from msgworker.schema import known

            missing = known.missing_tables(self._engine, self._tables)
            self._found = replace(self._tables, missing=missing)
        return self._tables
