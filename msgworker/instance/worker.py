"""A Worker: runs one instance until it is stopped or its work is done."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from msgworker.db import connecting
from msgworker.errors import MsgworkerError, RuleChanged
from msgworker.instance.claiming.drain import Drain
from msgworker.instance.instance import AT_EXIT, GIVE_UP_SECONDS, TICK_SECONDS, Instance
from msgworker.instance.observers import Tally
from msgworker.instance.report import Report, report_of
from msgworker.instance.state import Setup
from msgworker.instance.stop import (
    GRACE,
    HELP_SECONDS,
    HURRY_SECONDS,
    Signals,
    StopRequest,
    Working,
    beside,
    end_by,
)
from msgworker.processlock import ProcessLock
from msgworker.queries.remaining import Left, left
from msgworker.store import pauses
from msgworker.store.pauses import HELD, asking_jobs
from msgworker.table import Slice

RETRY_LINGER = 300.0
OVERDUE_SECONDS = 2.5  # how long a drain waits for due messages that cannot be claimed
START_TRIES = 5


class Worker(Working):
    """One instance. `run` until stopped, `drain` until empty, or `start` and `stop`.

    As a context manager it stops at the end of the block. A stopped worker can be started again;
    it is then a new instance with a new id.
    """

    def __init__(
        self,
        make_setup: Callable[[], Setup],
        *,
        look: Callable[[], Setup],
    ) -> None:
        # For the package and the tests of it; no part of the public contract.
        self.make_setup = make_setup
        self.instance: Instance | None = None
        self._look = look  # as `make_setup`, but changes nothing
        self._lock = ProcessLock()  # a signal handler may interrupt a start
        self._stop_request = StopRequest()
        self.error: MsgworkerError | None = None
        """The error for which the last instance stopped by itself, as `run` raises it; None while
        one runs, and after a requested stop. The worker can be started again."""
        self.stop_requests: StopRequest | None = None
        """Stop requests for `run` and `drain`, instead of signals; set by the command line."""
        self.counts_left = True
        """Whether a drain counts the messages left; with several processes the parent does."""

    @property
    def instance_id(self) -> str | None:
        """The id of the running instance, None while stopped."""
        return self.instance.shared.identity.id if self.instance else None

    @property
    def paused(self) -> frozenset[str]:
        """The topics that are paused, as last read from the database."""
        paused = self.instance.shared.controls.paused if self.instance else frozenset[str]()
        return paused - {HELD}

    @property
    def tally(self) -> Tally:
        """The counts of the running instance."""
        return self.instance.tally if self.instance else Tally()

    def start(self) -> None:
        """Start the instance's threads and return at once.

        End with `stop`. If the program ends without it, the worker logs a warning and stops in
        order: handlers get 3 s, the whole stop 5 s at most. That does not happen after a signal
        whose default action ends the process, such as SIGTERM, after `os._exit`, and at the end of
        a `multiprocessing.Process`.
        """
        instance = self._start(None, request=None)
        if instance.stop_request.in_order:
            instance.request_stop()

    def _start(
        self, drain: Drain | None, *, request: StopRequest | None, grace: float = GRACE
    ) -> Instance:
        with self._lock:
            if self._here() is not None:
                raise MsgworkerError("this worker runs already; use another one beside it")
            self._stop_request = request or StopRequest()
            self.error = None
            instance = self._started(drain, grace)
            self._stop_request.begun = True
            self.instance = instance
            AT_EXIT.add(instance)
            if instance.ending.over.is_set():  # it has stopped by itself already
                self._stopped(instance)
                AT_EXIT.discard(instance)
        return instance

    def _here(self) -> Instance | None:
        """The running instance, if it runs in this process and not in the parent of a fork."""
        instance = self.instance
        if instance is not None and instance.pid != os.getpid():
            instance = self.instance = None
        return instance

    def _started(self, drain: Drain | None, grace: float) -> Instance:
        for attempt in range(1, START_TRIES + 1):
            instance = Instance(
                self.make_setup(),
                drain=drain,
                stop_request=self._stop_request,
                grace=grace,
                stopped=self._stopped,
            )
            try:
                instance.start()
                return instance
            except RuleChanged:  # since its statements were built
                if attempt == START_TRIES:
                    raise
        raise AssertionError("unreachable")

    def stop(self, grace: float = GRACE) -> bool:
        """Stop in order; returns True if every handler ended within `grace` seconds.

        Messages whose handler has not started are released. Async handlers are cancelled at the end
        of the grace time, and their messages released. Any other handler that still runs then keeps
        its message flagged, for recovery. The stop takes at most 5 s more than `grace`, even if the
        database does not answer. If the call is interrupted, as by a second Ctrl-C, the stop
        continues.

        From any thread, any number of times: each call, and `run` and `drain`, return when the
        stop is complete, with its result; handlers get the shortest grace of all calls. It does
        nothing while the worker does not run.

        Inside a handler, a fan-out's item or another thread of the worker it does not wait: it
        requests the stop and returns False, and the stop continues in the background.
        """
        instance = self._ask(grace)
        if instance is None:
            return True
        if instance.is_within:
            instance.lanes.close()  # no handler starts before the stop has begun
            instance.request_stop()
            return False
        return instance.stop(grace)

    def ask(self, grace: float = GRACE) -> None:
        """Request an orderly stop and return at once; `stop` waits for it."""
        instance = self._ask(grace)
        if instance is not None:
            instance.request_stop()

    def _ask(self, grace: float) -> Instance | None:
        """Request a stop of the running instance and of the thread that waits for it."""
        request = self._stop_request
        with self._lock:
            instance = self._here()
        if instance is not None:
            instance.limit_grace(grace)
            instance.stop_request.stop()
        request.stop()
        return instance

    @property
    def is_within(self) -> bool:
        """Whether this thread is one of the running instance, such as that of a handler."""
        instance = self._here()
        return instance is not None and instance.is_within

    def _stopped(self, instance: Instance) -> None:
        if self.instance is instance:  # without the lock: a start that is undone holds it
            self.error = instance.shared.stop.stopped_for
            self.instance = None

    @contextmanager
    def _listening(self, signals: bool) -> Iterator[StopRequest | None]:
        """The stop requests for this thread while the block runs; None if there are none."""
        if self.stop_requests is not None or not signals:
            yield self.stop_requests
            return
        request = StopRequest()
        with Signals(request):
            yield request

    @contextmanager
    def _running(self, drain: Drain | None, *, signals: bool, grace: float) -> Iterator[Instance]:
        """An instance that runs while the block does. Raises the error for which it stopped by
        itself."""
        with self._listening(signals) as request:
            instance = self._start(drain, request=request, grace=grace)
            try:
                yield instance
            except Exception:  # outcomes cannot be written: do not wait for handlers
                instance.limit_grace(0.0)
                raise
            finally:
                self._end(instance, grace, request)
            instance.raise_why_it_left()

    def _end(self, instance: Instance, grace: float, request: StopRequest | None) -> None:
        """Stop, or wait for the stop in progress. After a request to stop at once, wait for no
        handler, and end the process.

        The keeper's thread stops the instance, so that this one can handle signals.
        """
        if request is None:
            instance.stop(grace)
            return
        instance.begin_stop(grace)
        helped = False
        insisted_at: float | None = None
        while not instance.ending.ends_within(TICK_SECONDS):
            if request.at_once is None:
                continue
            now = time.monotonic()
            if insisted_at is None:
                insisted_at = now
                instance.stop_now()
            elif now - insisted_at > HURRY_SECONDS:
                instance.shared.log.warning("the stop takes too long; recovery follows")
                break
            elif not helped and now - insisted_at > HELP_SECONDS:
                helped = True
                beside(instance.release_unstarted)
        request.begun = False
        if request.at_once is not None and request.ends_process:
            end_by(request.at_once)
        if instance.ending.over.is_set():
            instance.ending.result()

    def wake(self) -> None:
        """Claim now instead of at the next poll. Does nothing in a forked child: it has none of the
        worker's threads, one of which may have held the event's lock at the fork."""
        instance = self.instance
        if instance is not None and instance.pid == os.getpid():
            instance.fetcher.wake()

    def run(
        self, *, signals: bool = False, grace: float = GRACE, time_limit: float | None = None
    ) -> None:
        """Work until `stop` is called (from another thread), or a signal arrives if `signals`.

        signals: SIGTERM, SIGINT, SIGHUP and SIGQUIT (the last two unless they are ignored) stop in
        order; a second one more than 2 s later stops at once, without waiting for handlers, and
        ends the process. In the main thread only.
        grace: seconds for running handlers at a stop; that of `stop` has precedence.
        time_limit: seconds; None = none. It returns when the stop is complete.

        Raises DatabaseUnavailable if the database cannot be reached at the start or denies access;
        SchemaError for what is missing; HandlerStuck for a handler with timeout_action="restart"
        that did not end in time; MsgworkerError if this worker runs already.
        """
        deadline = None if time_limit is None else time.monotonic() + time_limit
        with self._running(None, signals=signals, grace=grace) as instance:
            while not self._should_stop(instance):
                if deadline is not None and time.monotonic() >= deadline:
                    break
                self._stop_request.wait(0.2)

    def _should_stop(self, instance: Instance) -> bool:
        instance.raise_what_people_must_mend()
        return self._stop_request.in_order or instance.shared.stop.requested.is_set()

    def drain(
        self,
        *,
        time_limit: float | None = None,
        linger: float = 5.0,
        retry_linger: float | None = None,
        grace: float = GRACE,
        signals: bool = False,
        outage_limit: float = 60.0,
    ) -> Report:
        """Work until nothing is due now or within `linger` seconds, or until `time_limit`.

        All times are in seconds. Within `linger` it also waits for the end of leases of other
        instances with messages, unless they are renewed. retry_linger: how long it waits for the
        next try of failed messages; None = 300, or 0 if linger is 0. outage_limit: end
        (Report.database_lost) once the database has been unreachable for this long. signals, grace
        and exceptions: as in `run`.
        """
        begun = time.monotonic()
        deadline = None if time_limit is None else begun + time_limit
        lost = False
        if retry_linger is None:
            retry_linger = RETRY_LINGER if linger else 0.0
        until = Drain(linger=linger, retry_linger=retry_linger, overdue=OVERDUE_SECONDS)
        with self._running(until, signals=signals, grace=grace) as instance:
            while not self._should_stop(instance) and not instance.fetcher.exhausted:
                lost = instance.database_gone_seconds() > outage_limit
                if lost:
                    instance.limit_grace(0.0)
                if lost or (deadline is not None and time.monotonic() >= deadline):
                    break
                instance.fetcher.over.wait(0.05)
            within = instance.finder.reach
        if deadline is not None:
            rest = max(GIVE_UP_SECONDS, deadline - time.monotonic())
            outage_limit = min(outage_limit, rest)
        return report_of(
            instance,
            begun,
            lost=lost,
            outage_limit=outage_limit,
            counts_left=self.counts_left,
            within=within,
        )

    def left(self, *, job: int | None = None) -> Left:
        """Count the unfinished messages of the table, or of a job, by what they wait for. Raises
        DatabaseUnavailable, SchemaError."""
        setup = self._look()
        with connecting(setup.engine) as conn:
            held = pauses.read_jobs(conn, setup.tables)
        with connecting(setup.engine) as conn:
            t = setup.tables
            within = None if job is None else Slice("job_id", (job,), exclusive=False)
            return left(conn, asking_jobs(t) if held else t, setup.asked(within=within))
