"""Writes that pages have asked for, each in a thread of its own, so that no request waits for them.

A write of many messages at a rate may take hours: its page shows how far it is, and ends it. What
was done by then is in the audit, also if this process ends before the write does.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from msgworker.counted import plural
from msgworker.db import Attempt, AttemptCancelled
from msgworker.errors import MsgworkerError
from msgworker.logs import Said, logger
from msgworker.ops.results import OnProgress, Progress, Repaired
from msgworker.web.threads import Watch

MOST_RUNNING = 4
MOST_KEPT = 200
"""Jobs that have ended, whose results can still be looked at."""
ANSWER_SECONDS = 120.0
"""How long one of them may hold a connection: its transactions are short, so after this the
database does not answer."""
STOP_SECONDS = 2.0
"""How long a stop waits for steps in progress."""
log = logger("msgworker.web")
Work = Callable[[OnProgress], Repaired | int]
Words = Callable[[BaseException], str]


class TooMany(MsgworkerError):
    """As many writes run as may run at the same time."""


class _Ended(BaseException):
    """Ends an operation between two of its transactions."""


@dataclass(slots=True)
class Job:
    """A write. title: in words. by: the actor. back, back_text: the page that it concerns.

    resumes: whether the command line can continue it. error: why it has failed, as text. left:
    whether it was ended before it was finished. attempt: in the database, to cancel it.
    """

    job_id: str
    title: str
    by: str
    back: str
    back_text: str
    expected: int | None = None
    resumes: bool = False
    begun_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    ended_at: datetime | None = None
    progress: Progress | None = None
    result: Repaired | int | None = None
    error: str | None = None
    left: bool = False
    attempt: Attempt = field(default_factory=Attempt)
    ending: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)

    @property
    def op_id(self) -> int | None:
        """Its number in the audit."""
        of_result = getattr(self.result, "op_id", None)
        if of_result is not None:
            return int(of_result)
        return None if self.progress is None else self.progress.op_id

    @property
    def seconds(self) -> float:
        """How long it has run, or took."""
        return ((self.ended_at or datetime.now(UTC)) - self.begun_at).total_seconds()

    def end(self) -> None:
        """End it after its present transaction."""
        self.ending.set()


class Jobs:
    """Runs writes and keeps their results. words: the text of an error, without secrets."""

    def __init__(self, words: Words, watch: Watch) -> None:
        self._words = words
        self._watch = watch
        self._lock = threading.Lock()
        self._jobs: OrderedDict[str, Job] = OrderedDict()
        self._closed = False

    def start(self, work: Work, **about: Any) -> Job:
        """Begin a write; `about`: fields of Job. Raises TooMany."""
        job = Job(secrets.token_hex(8), **about)
        with self._lock:
            if self._closed:
                raise TooMany("the dashboard is stopping; nothing was done")
            running = sum(not one.over.is_set() for one in self._jobs.values())
            if running >= MOST_RUNNING:
                raise TooMany(
                    f"{running} writes of this dashboard run already; wait for one to end, or end "
                    "one. Nothing was done"
                )
            self._jobs[job.job_id] = job
            ended = [name for name, one in self._jobs.items() if one.over.is_set()]
            for name in ended[: max(0, len(ended) - MOST_KEPT)]:
                del self._jobs[name]
        name = f"msgworker-web-job-{job.job_id}"
        thread = threading.Thread(target=self._run, args=(job, work), name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            job.over.set()  # or it would count as running
            raise TooMany(f"no thread for it: {error}; nothing was done") from error
        return job

    def get(self, job_id: str) -> Job | None:
        """A job that runs or has ended; None if this process does not know it."""
        with self._lock:
            return self._jobs.get(job_id)

    def running(self) -> list[Job]:
        """Those that have not ended."""
        with self._lock:
            return [one for one in self._jobs.values() if not one.over.is_set()]

    def stop(self, seconds: float = STOP_SECONDS) -> None:
        """Begin no more, end those that run, and log what each has not done."""
        with self._lock:
            self._closed = True
        running = self.running()
        for job in running:
            job.end()
        until = time.monotonic() + seconds
        for job in running:
            job.over.wait(max(0.0, until - time.monotonic()))
            if not job.over.is_set():
                log.warning("%s: still running as the dashboard stops%s", job.title, _rest(job))

    def _run(self, job: Job, work: Work) -> None:
        def on_progress(progress: Progress) -> None:
            job.progress = progress
            if job.ending.is_set():
                raise _Ended

        try:
            with self._watch.following(job.attempt, ANSWER_SECONDS, job.title):
                job.result = work(on_progress)
        except (_Ended, AttemptCancelled):
            job.left = True
            log.warning("%s was ended by its viewer%s", job.title, _rest(job))
        except (MsgworkerError, SQLAlchemyError) as error:
            job.error = self._words(error)
            extra = {"event": Said.WEB_FAILED}
            log.warning("%s failed: %s", job.title, job.error, extra=extra)
        except Exception as error:
            job.error = f"an unexpected {type(error).__name__}; the log of the dashboard says more"
            log.exception("%s failed", job.title, extra={"event": Said.WEB_FAILED})
        finally:
            job.ended_at = datetime.now(UTC)
            job.over.set()


def _rest(job: Job) -> str:
    if job.progress is None or job.op_id is None:
        return ": nothing was changed by then"
    again = f"; `--operation {job.progress.op_id}` continues it" if job.resumes else ""
    return f": {plural(job.progress.changed, 'message')} changed by then{again}"
