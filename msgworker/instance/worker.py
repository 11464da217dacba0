"""A Worker runs one instance until it is stopped or its work is done; the report of a drain."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from shlex import quote

from msgworker.counted import plural
from msgworker.db.connections import connecting, reaching
from msgworker.errors import ExitCode, LocksUnavailable, MsgworkerError, RuleChanged
from msgworker.instance.claiming.loop import Drain
from msgworker.instance.counting import Patience, left_within, patience_of
from msgworker.instance.instance import AT_EXIT, TICK_SECONDS, Instance
from msgworker.instance.observers import Tally
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
from msgworker.logs import Said
from msgworker.processlock import ProcessLock
from msgworker.queries.explain import Waits
from msgworker.queries.remaining import Left, left
from msgworker.store import controls
from msgworker.store.controls import JOB_PAUSED, asking_jobs
from msgworker.table.columns import Slice

# --- The report of a drain: what it did, and which messages are left.

WORDS = {
    Waits.RETRY: "waiting for a retry",
    Waits.LATER: "due later",
    Waits.ELSEWHERE: "held elsewhere",
    Waits.SILENT: "held by a silent instance",
    Waits.NOBODY: "held by nobody",
    Waits.PAUSED: "paused",
    Waits.LIMITED: "topic limited",
    Waits.NO_HANDLER: "no handler",
    Waits.OTHER_TOPICS: "other topics",
    Waits.OTHER_SLICES: "other slices",
    Waits.OTHER_JOBS: "behind other jobs",
    Waits.DEAD: "behind a dead one",
    Waits.DUE: "due",
}
STUCK = (Waits.NOBODY, Waits.NO_HANDLER, Waits.DEAD)
"""Messages left that no instance will handle: the exit code is 1."""
AGAIN = (Waits.RETRY, Waits.SILENT, Waits.LIMITED, Waits.OTHER_JOBS)
"""Messages left that wait for a while: the exit code is 6."""


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a drain.

    done: messages done. failed: messages that became dead. retried: failed tries that will be tried
    again. released: messages released at a stop before they started. left: unfinished messages in
    the table, or of the job. seconds: wall time.
    skipped: another drain was running, nothing was done. database_lost: it ended because the
    database could not be reached.
    waiting: how many of `left` wait for a retry or for a later instant. left_by: counts of `left`
    by reason: "retry", "later" (an instant), "elsewhere" (claimed by another live instance),
    "silent" (by one that misses its heartbeat, or stopped before its handler ended), "nobody"
    (flagged without an owner), "paused", "limited" (by max_running or rate), "no handler", "other
    topics" (with `topics`), "other slices" (with a scope), "other jobs" (of a drain of a job:
    behind a message that is not of it, and that others may handle), "dead" (if dead ones block),
    "due". A message behind the head of its object has the reason of the head. The sum is less than
    `left` if only a part of very many messages was read.
    next_seconds: seconds to the first retry, else to the first other instant; None if nothing
    waits.
    lease_seconds: seconds until the leases of all other instances that hold messages of `left` have
    ended; messages of those that are dead are then recovered. None if no other holds any.
    refused: how many messages the database refused to flag; they, and those behind them, are
    left as "due".
    stopped: it ended by its time limit or a stop, not because nothing was due.
    undone: how many messages that it may handle were due when it ended and could not be claimed;
    later ones are in `left` only.
    dead_awaited: of a drain of a job, the dead messages that it waits for (on_dead="wait").
    """

    done: int = 0
    failed: int = 0
    retried: int = 0
    released: int = 0
    left: int = 0
    seconds: float = 0.0
    skipped: bool = False
    database_lost: bool = False
    waiting: int = 0
    left_by: dict[str, int] = field(default_factory=dict, hash=False)
    next_seconds: float | None = None
    stopped: bool = False
    refused: int = 0
    lease_seconds: float | None = None
    undone: int = 0
    dead_awaited: int = 0

    @property
    def exit_code(self) -> int:
        """3 database lost. 1 some became dead or were refused, or messages are left that no
        instance will handle: "nobody", "no handler", "dead", what is `undone`, `dead_awaited`, and
        "due" if the drain was stopped. 6 messages wait for their retry, for a limit of their topic,
        for messages of other jobs, or for the lease of a silent instance: run again. 0 otherwise;
        "later", "elsewhere", "paused", "other topics" or "other slices" may be left."""
        if self.database_lost:
            return ExitCode.UNREACHABLE
        stuck = any(self.left_by.get(waits) for waits in STUCK)
        if self.failed or self.refused or self.undone or self.dead_awaited or stuck:
            return ExitCode.REFUSED
        if self.stopped and self.left_by.get(Waits.DUE):
            return ExitCode.REFUSED
        again = any(self.left_by.get(waits) for waits in AGAIN)
        return ExitCode.RETRIES if again else ExitCode.OK

    def __str__(self) -> str:
        if self.skipped:
            return "skipped: another drain is running"
        text = (
            f"done={self.done} failed={self.failed} retried={self.retried} "
            f"released={self.released} left={self.left}{self._why}"
            f"{f' refused={self.refused}' if self.refused else ''} in {self.seconds:.1f}s"
        )
        return f"{text} (database lost)" if self.database_lost else text

    @property
    def _why(self) -> str:
        parts = [self._part(Waits(name), count) for name, count in self.left_by.items()]
        parts += [f"its job waits for dead ones: {self.dead_awaited}"] if self.dead_awaited else []
        some = "at least " if sum(self.left_by.values()) < self.left else ""
        return f" ({some}{'; '.join(parts)})" if parts else ""

    def _part(self, waits: Waits, count: int) -> str:
        text = f"{WORDS[waits]}: {count}"
        first = Waits.RETRY if self.left_by.get(Waits.RETRY) else Waits.LATER
        if waits is first and self.next_seconds is not None:
            text += f", next in {self.next_seconds:.0f} s"
        last = Waits.SILENT if self.left_by.get(Waits.SILENT) else Waits.ELSEWHERE
        if waits is last and self.lease_seconds is not None:
            text += f", recovered after {self.lease_seconds:.0f} s if that one is gone"
        return text

    def leaving(self, found: Left) -> Report:
        """The same with the messages left."""
        return replace(
            self,
            left=found.total,
            waiting=found.by.get(Waits.RETRY, 0) + found.by.get(Waits.LATER, 0),
            left_by={str(waits): count for waits, count in found.by.items()},
            next_seconds=found.next_seconds,
            lease_seconds=found.lease_seconds,
            # Otherwise they were fixed or removed since the database refused them.
            refused=self.refused if found.by.get(Waits.DUE) else 0,
            undone=min(self.undone, found.by.get(Waits.DUE, 0)),
            dead_awaited=max(1, found.dead_awaited.count) if found.dead_awaited else 0,
        )


def report_of(
    instance: Instance,
    begun: float,
    *,
    lost: bool = False,
    patience: Patience | None = None,
    counts_left: bool = True,
    within: Slice | None = None,
) -> Report:
    """The counts since `begun` (monotonic), and the messages left. lost: the database is lost; it
    also counts as lost if they cannot be counted with this `patience`; None = one try, in this
    thread. within: the slice that the instance claims from; None = all."""
    shared, exhausted = instance.shared, instance.fetcher.exhausted
    counts_left = counts_left and not lost
    found = left_within(instance, within, patience) if counts_left else None
    report = Report(
        **instance.tally.reported,
        seconds=time.monotonic() - begun,
        database_lost=lost or (counts_left and found is None),
        stopped=not exhausted,
        refused=len(instance.refused_rows),
        undone=instance.fetcher.drain_end.undone if exhausted else 0,
    )
    if found is None:
        return report
    report = report.leaving(found)
    for line in complaints(report, found):
        shared.log.warning(line, extra={"event": Said.DRAIN_LEFT})
    return report


def complaints(report: Report, found: Left) -> Iterator[str]:
    """One line for each reason of messages left that changes the exit code; of a job for each,
    and for the dead ones that it waits for."""
    for waits, count in found.by.items():
        say = _SAYS.get(waits) or (None if found.job is None else _OF_A_JOB.get(waits))
        if waits is Waits.DUE and not report.stopped:
            say = _UNDONE if report.undone else None
        if say is None or waits not in found.examples:
            continue
        one = found.examples[waits]
        retry = waits is Waits.RETRY
        when = round(found.next_seconds or 0.0) if retry else math.ceil(found.lease_seconds or 0.0)
        text = say.format(id=one.msg_id, why=one.text, when=when)
        if waits is Waits.NOBODY and one.claimed_by is not None:
            text += f"; the next drain does, or `msgworker release {quote(one.claimed_by)}`"
        if one.beside:
            text += f"; {one.beside}"
        yield f"{plural(count, 'message')} left {text}"
    yield from found.job_waits


_SAYS = {
    Waits.RETRY: "waiting for a retry, such as message {id}, the first in {when} s: run again then",
    Waits.LIMITED: (
        "of a limited topic, message {id} first: {why}; run again, or see `msgworker limits`"
    ),
    Waits.OTHER_JOBS: (
        "behind messages that are not of the job, message {id} first: {why}; run again when that "
        "one has ended"
    ),
    Waits.SILENT: (
        "held by an instance that is silent or has stopped, such as message {id}: {why}; run again "
        "then, or with --linger {when}"
    ),
    Waits.NOBODY: (
        "that no instance handles: message {id} (see `msgworker explain {id}`), or the one before "
        "them: {why}"
    ),
    Waits.NO_HANDLER: (
        "that no instance handles, such as message {id}: {why}; register one, or name the topics "
        "to drain"
    ),
    Waits.DEAD: (
        "dead or behind a dead one, such as message {id}: {why}, and blocks its object; `msgworker "
        "rerun {id}` or `msgworker discard {id} --reason ...`"
    ),
    Waits.DUE: (
        "though due, message {id} first: the drain was stopped, or its time was over; run again"
    ),
}
_OF_A_JOB = {
    Waits.LATER: "due later, such as message {id}: {why}; run again then",
    Waits.ELSEWHERE: "held elsewhere, such as message {id}: {why}; run again when it has ended",
    Waits.PAUSED: "paused, such as message {id}: {why}; resume that, and run again",
    Waits.OTHER_TOPICS: "of other topics, such as message {id}: {why}; name its topic, too",
}
_UNDONE = (
    "though due, message {id} first: it could not be claimed, or its outcome not be written; see "
    "the warnings, `msgworker explain {id}` and `msgworker doctor`"
)


# --- The Worker.

RETRY_LINGER = 300.0
OVERDUE_SECONDS = 2.5  # how long a drain waits for due messages that cannot be claimed
START_TRIES = 5


class Worker(Working):
    """One instance. `run` until stopped, `drain` until empty, or `start` and `stop`.

    As a context manager it stops at the end of the block. A stopped worker can be started again;
    it is then a new instance with a new id.
    """

    def __init__(self, make_setup: Callable[[], Setup], *, look: Callable[[], Setup]) -> None:
        # For the package and the tests of it; no part of the public contract.
        self.make_setup = make_setup
        self._instance: Instance | None = None
        self._starting: Instance | None = None
        self._look = look  # as `make_setup`, but changes nothing
        self._lock = ProcessLock()  # a signal handler may interrupt a start
        self._stop_request = StopRequest()
        self.error: MsgworkerError | None = None
        """The error for which the last instance stopped by itself, as `run` raises it; None while
        one runs, and after a requested stop. The worker can be started again."""
        self.stop_requests: StopRequest | None = None
        """Stop requests for `run` and `drain`, instead of signals; set by the command line."""
        self.ran = Tally()  # the counts of the last instance
        self.counts_left = True
        """Whether a drain counts the messages left; with several processes the parent does."""

    @property
    def instance(self) -> Instance | None:
        # For the package and the tests of it: the running one. That of the parent of a fork, of
        # whose threads this process has none, does not run here.
        instance = self._instance
        if instance is not None and instance.setup.pid != os.getpid():
            instance = self._instance = None
        return instance

    @instance.setter
    def instance(self, instance: Instance | None) -> None:
        self._instance = instance

    @property
    def instance_id(self) -> str | None:
        """The id of the running instance, None while stopped."""
        instance = self.instance
        return None if instance is None else instance.shared.identity.id

    @property
    def paused(self) -> frozenset[str]:
        """The topics that are paused, as last read from the database."""
        instance = self.instance
        paused = frozenset[str]() if instance is None else instance.shared.controls.paused
        return paused - {JOB_PAUSED}

    @property
    def tally(self) -> Tally:
        """The counts of the running instance."""
        instance = self.instance
        return Tally() if instance is None else instance.tally

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
            if self.instance is not None:
                raise MsgworkerError("this worker runs already; use another one beside it")
            self._stop_request = request or StopRequest()
            self.error = None
            try:
                instance = self._started(drain, grace)
                self._stop_request.begun = True
                AT_EXIT.add(instance)
                self.instance, self.ran = instance, instance.tally
                if self._starting is None:  # it has stopped by itself already, see `_stopped`
                    self.instance = None
                    AT_EXIT.discard(instance)
            finally:
                self._starting = None
        return instance

    def _started(self, drain: Drain | None, grace: float) -> Instance:
        for attempt in range(1, START_TRIES + 1):
            instance = self._starting = Instance(
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
        self._ask(grace)
        with self._lock:  # a start that is under way ends first
            instance = self.instance
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
        """Request a stop of the running instance, or of the one that starts, and of the thread that
        waits for it."""
        request = self._stop_request
        instance = self.instance or self._starting
        if instance is not None:
            instance.limit_grace(grace)
            instance.stop_request.stop(grace)
        request.stop(grace)
        return instance

    @property
    def is_within(self) -> bool:
        """Whether this thread is one of the running instance, such as that of a handler."""
        instance = self.instance
        return instance is not None and instance.is_within

    def _stopped(self, instance: Instance) -> None:
        # Without the lock, which a start holds that is under way: it looks at `_starting` after it
        # has set `instance`, this one the other way round.
        if instance in (self._starting, self.instance):
            self.error = instance.shared.stop.stopped_for
        if self._starting is instance:
            self._starting = None
        if self.instance is instance:
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
            except LocksUnavailable:
                raise
            except Exception:  # outcomes cannot be written: do not wait for handlers
                instance.limit_grace(0.0)
                raise
            finally:
                self._end(instance, grace, request)
            if (why := instance.shared.stop.stopped_for) is not None:
                raise why

    def _end(self, instance: Instance, grace: float, request: StopRequest | None) -> None:
        """Stop, or wait for the stop in progress: the keeper's thread stops the instance, so that
        this one can handle signals. After a request to stop at once, end the process."""
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
        if instance is not None:
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
        and exceptions: as in `run`; and LocksUnavailable once the locks of its scope have been
        unreachable for as long.
        """
        begun = time.monotonic()
        deadline = None if time_limit is None else begun + time_limit
        lost = False
        if retry_linger is None:
            retry_linger = RETRY_LINGER if linger else 0.0
        until = Drain(linger=linger, retry_linger=retry_linger, overdue=OVERDUE_SECONDS)
        with self._running(until, signals=signals, grace=grace) as instance:
            while not self._should_stop(instance) and not instance.fetcher.exhausted:
                outage, member = instance.shared.away.seconds, instance.member
                # Locks that are kept in a database that is lost are away with it.
                if not outage and member is not None and member.away() > outage_limit:
                    raise LocksUnavailable(
                        "the locks of the scope could not be reached, or its assign failed, for "
                        f"{outage_limit:g} s; what is left waits for the next drain"
                    )
                lost = outage > outage_limit
                if lost:
                    instance.limit_grace(0.0)
                if lost or (deadline is not None and time.monotonic() >= deadline):
                    break
                instance.fetcher.over.wait(0.05)
            within = instance.fetcher.finder.reach
        asked = self._stop_request
        return report_of(
            instance,
            begun,
            lost=lost,
            patience=patience_of(instance, asked, outage_limit, deadline),
            counts_left=self.counts_left,
            within=within,
        )

    def left(self) -> Left:
        """Count the unfinished messages of the table, or of its job, by what they wait for. Raises
        DatabaseUnavailable, SchemaError."""
        setup = self._look()
        with reaching(setup.engine), connecting(setup.engine) as conn:
            jobs = controls.paused_jobs(conn, setup.tables)
        with reaching(setup.engine), connecting(setup.engine) as conn:
            t = setup.tables
            within = None if setup.scope is None else setup.scope.where
            return left(conn, asking_jobs(t) if jobs else t, setup.asked(within=within))
