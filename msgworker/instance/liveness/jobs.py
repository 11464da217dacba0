"""Completes jobs of which nothing is unfinished.

A part of the housekeeping, on its connection, and of the end of a drain. Every instance looks each
`poll_seconds`, at least a second apart, and all may find the same job: the lock of its row lets one
complete it. Nothing is remembered of messages that were settled, so a crash loses nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

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

    pause: seconds until the next look.
    """

    def __init__(
        self,
        setup: Setup,
        shared: Shared,
        link: Connections,
        *,
        log: logging.LoggerAdapter[logging.Logger],
        look_now: Callable[[], None],
    ) -> None:
        """look_now: makes the fetcher look for what was sent."""
        self._setup = setup
        self._shared = shared
        self._link = link
        self._log = log
        self._look_now = look_now
        self._failed: dict[int, float] = {}  # jobs whose message is refused: when to try again
        self._refused = not jobs.is_there(setup.tables)
        self._every = max(EVERY_SECONDS, setup.settings.poll_seconds)
        self.pause = float("inf") if self._refused else self._every

    def run(self) -> int:
        """Complete what has ended; returns how many jobs. Without the rights on the table of jobs
        nothing is done."""
        if self._refused:
            return 0
        begun, did = time.monotonic(), 0
        after: int | None = 0
        try:
            while after is not None:
                with self._link.statement() as conn:
                    found, after = jobs.ended(conn, self._setup.tables, after=after)
                did += sum(map(self._complete, found))
        except Exception as error:
            if trouble(error) is not Trouble.REFUSED:
                raise
            self._log.warning("no job is completed by this instance: %s", reason_of(error))
            self._refused, self.pause = True, float("inf")
            return did
        self.pause = max(self._every, (time.monotonic() - begun) / SHARE)
        return did

    def _complete(self, job_id: int) -> bool:
        setup = self._setup
        if self._failed.get(job_id, 0.0) > time.monotonic():
            return False
        try:
            with self._link.transaction() as conn:
                over = jobs.complete(conn, setup.tables, job_id)
                if over is not None and over.topic is not None and setup.channel is not None:
                    notify(conn, setup.channel)
        except Exception as error:
            if trouble(error) in (Trouble.LOST, Trouble.REFUSED):
                raise
            if trouble(error) is not Trouble.AGAIN:
                self._tell(job_id, error)
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
            self._look_now()

    def _tell(self, job_id: int, error: BaseException) -> None:
        self._failed[job_id] = time.monotonic() + AGAIN_SECONDS
        shown = None if shows_a_row(error) else error
        text = "job %s has ended, and its message cannot be sent: %s; it is tried again in %d s"
        self._log.error(text, job_id, reason_of(error), AGAIN_SECONDS)
        self._log.debug("job %s", job_id, exc_info=shown)
