"""Completes jobs of which nothing is unfinished.

A part of the housekeeping, on its connection, and of the end of a drain. Every instance looks each
`poll_seconds`, at least a second apart, and all may find the same job: the lock of its row lets one
complete it. Nothing is remembered of messages that were settled, so a crash loses nothing.
"""

from __future__ import annotations

import time

from msgworker.db import Trouble, reason_of, shows_a_row, trouble
from msgworker.events import JobCompleted
from msgworker.instance.connections import Connections
from msgworker.instance.state import Setup, Shared
from msgworker.store import jobs
from msgworker.store.jobs import Completed
from msgworker.store.send import notify

EVERY_SECONDS = 1.0
SHARE = 0.05
"""The share of its time that an instance looks for jobs to complete, at most."""
AGAIN_SECONDS = 60.0
"""When a job whose message is refused is tried again."""


class JobCloser:
    """Completes jobs. Used by the housekeeper, and by the fetcher at the end of a drain, each with
    one of its own.

    next_at: when the housekeeper looks next, by the monotonic clock.
    """

    def __init__(
        self,
        setup: Setup,
        shared: Shared,
        link: Connections,
        *,
        ends: bool = False,
    ) -> None:
        """ends: it is that of a drain's end, which looks whenever it is asked, and waits for who is
        completing a job just then."""
        self._setup = setup
        self._shared = shared
        self._link = link
        self._log = shared.log
        self._ends = ends
        self._failed: dict[int, float] = {}  # jobs whose message is refused: when to try again
        self._warned: set[str] = set()  # for what an operator must act
        self._every = max(EVERY_SECONDS, setup.settings.poll_seconds)
        self.next_at = 0.0 if jobs.is_there(setup.tables) else float("inf")

    @property
    def pause(self) -> float:
        """Seconds until the next look."""
        return max(0.0, self.next_at - time.monotonic())

    def run(self) -> int:
        """Complete what has ended, if it is time to look; returns how many jobs. Without the rights
        on the table of jobs nothing is done."""
        begun, did = time.monotonic(), 0
        if begun < self.next_at and not (self._ends and self.next_at < float("inf")):
            return 0
        self._failed = {job: until for job, until in self._failed.items() if until > begun}
        after: int | None = 0
        try:
            while after is not None:
                with self._link.statement() as conn:
                    found, after = jobs.ended(conn, self._setup.tables, after=after)
                did += sum(map(self._complete, found))
        except Exception as error:
            if trouble(error) is not Trouble.REFUSED:
                raise
            self._warn_once("no job is completed by this instance: %s", error)
            self.next_at = time.monotonic() + AGAIN_SECONDS
            return did
        now = time.monotonic()
        self.next_at = now + max(self._every, (now - begun) / SHARE)
        return did

    def _complete(self, job_id: int) -> bool:
        setup = self._setup
        if self._failed.get(job_id, 0.0) > time.monotonic():
            return False
        try:
            had = jobs.ended_of(self._link.statement, setup.tables, job_id)
            with self._link.transaction() as conn:
                over = jobs.complete(conn, setup.tables, job_id, had=had, waits=self._ends)
                if over is not None and over.topic is not None and setup.channel is not None:
                    notify(conn, setup.channel)
        except Exception as error:
            if trouble(error) is Trouble.LOST:
                raise
            if trouble(error) is not Trouble.AGAIN:
                self._log_failure(job_id, error)
            return False
        self._failed.pop(job_id, None)
        if over is not None:
            self._completed(over)
        return over is not None

    def _completed(self, over: Completed) -> None:
        self._setup.events.emit(
            JobCompleted(
                *(self._shared.identity.id, over.job_id, over.name),
                done=over.done,
                dead=over.dead,
                topic=over.topic,
                report_id=over.report_id,
            )
        )
        if over.topic is not None:
            self._shared.look_now.set()

    def _log_failure(self, job_id: int, error: BaseException) -> None:
        self._failed[job_id] = time.monotonic() + AGAIN_SECONDS
        if trouble(error) is Trouble.REFUSED:
            self._warn_once(f"job {job_id} has ended, and cannot be completed here: %s", error)
            return
        shown = None if shows_a_row(error) else error
        text = "job %s has ended, and its message cannot be sent: %s; it is tried again in %d s"
        self._log.error(text, job_id, reason_of(error), AGAIN_SECONDS)
        self._log.debug("job %s", job_id, exc_info=shown)

    def _warn_once(self, text: str, error: BaseException) -> None:
        if (reason := reason_of(error)) not in self._warned:
            self._warned.add(reason)
            self._log.warning(text, reason)
