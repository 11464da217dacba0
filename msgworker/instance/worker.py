"""A Worker: one running instance, its roles, and the order in which they start and stop.

Start: lease, handler threads, claim loop, heartbeat.
Stop: no new claims; unstarted lanes are released; running handlers get a grace time; everything
is settled; the lease goes last, after the last handler, or stays for recovery if one still runs.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType

from msgworker.dialects import Trouble, connecting, reaching, reason_of, refusal, trouble
from msgworker.errors import MsgworkerError, RuleChanged
from msgworker.instance.appetite import Appetite
from msgworker.instance.calling import Caller
from msgworker.instance.claimer import Claimer, release
from msgworker.instance.drainend import Drain
from msgworker.instance.fetcher import Fetcher
from msgworker.instance.finder import Finder
from msgworker.instance.handling import Result
from msgworker.instance.heartbeat import Heartbeat
from msgworker.instance.lanes import Lanes
from msgworker.instance.listener import Listener
from msgworker.instance.report import Report, complaints
from msgworker.instance.role import Role, outage_pause
from msgworker.instance.seat import Standing
from msgworker.instance.settler import Settler
from msgworker.instance.state import State, Tally
from msgworker.instance.stopping import (
    AT_EXIT,
    EXIT_GRACE,
    HELP_SECONDS,
    HURRY_SECONDS,
    Asked,
    Beside,
    Ending,
    Keeper,
    Signals,
    end_by,
)
from msgworker.instance.watchdog import Watchdog
from msgworker.message import Outcome
from msgworker.store.left import Left, left

HOPELESS_FAILURES = 4
GIVE_UP_SECONDS = 5.0
GRACE = 30.0
RETRY_LINGER = 300.0
OVERDUE_SECONDS = 2.5  # so long a drain waits for what is due and cannot be claimed
START_TRIES = 5
TICK_SECONDS = 0.05
ROLE_SECONDS = 5.0  # so long a role may take to end, after the last handler has


class Worker:
    """One instance. `run` until stopped, `drain` until empty, or `start` and `stop`.

    As a context manager it stops at the end of the block. A stopped worker can be started again;
    it is then a new instance with a new id.
    """

    def __init__(
        self,
        make_state: Callable[[], State],
        *,
        look: Callable[[], State],
        threads: int,
        label: str = "",
    ) -> None:
        self._make_state = make_state
        self._look = look  # as `make_state`, but changes nothing
        self._threads = threads
        self._label = label
        self._instance: Instance | None = None
        self._lock = threading.RLock()  # a signal handler may come in the middle of a start
        self._stop_asked = Asked()
        self.orders: Asked | None = None
        """Asks `run` and `drain` to stop, in the place of signals; set by the command line."""
        self.counts_left = True
        """Whether a drain says what is left; one of several processes leaves that to its parent."""

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def instance_id(self) -> str | None:
        """The id of the running instance, None while stopped."""
        return self._instance.state.instance_id if self._instance else None

    @property
    def paused(self) -> frozenset[str]:
        """The topics that are paused, as of the last heartbeat."""
        return self._instance.state.paused if self._instance else frozenset()

    @property
    def tally(self) -> Tally:
        """What the instance has done so far."""
        return self._instance.state.tally if self._instance else Tally()

    def start(self) -> None:
        """Start the instance's threads and return at once.

        `stop` belongs to it. A program that ends without one is stopped in order all the same, with
        a warning: handlers get 3 s, all of it takes 5 s at most. A signal whose default action ends
        the process, such as SIGTERM, and `os._exit` leave no time for that; nor does the end of a
        `multiprocessing.Process`.
        """
        instance = self._start(None, told=None)
        # Nobody waits for this worker's end, so nobody else would stop it.
        instance.keeper = Keeper(lambda: self._stop(instance, GRACE))
        if instance.state.stopping.is_set() or instance.state.left_for or instance.asked.in_order:
            instance.leave()

    def _start(self, drain: Drain | None, *, told: Asked | None) -> Instance:
        with self._lock:
            if self._here() is not None:
                raise MsgworkerError("this worker runs already; use another one beside it")
            self._stop_asked = told or Asked()
            instance = self._started(drain)
            self._stop_asked.begun = True
            self._instance = instance
            AT_EXIT.add(instance)
        return instance

    def _here(self) -> Instance | None:
        """The instance that runs, if it does so in this process and not in the one that has forked
        us."""
        instance = self._instance
        if instance is not None and instance.pid != os.getpid():
            instance = self._instance = None
        return instance

    def _started(self, drain: Drain | None) -> Instance:
        for attempt in range(1, START_TRIES + 1):
            instance = Instance(self._make_state(), self._threads, drain=drain, label=self._label)
            instance.asked = self._stop_asked
            try:
                instance.start()
                return instance
            except RuleChanged:  # since its statements were built
                if attempt == START_TRIES:
                    raise
        raise AssertionError("unreachable")

    def stop(self, grace: float = GRACE) -> bool:
        """Stop in order; returns True if every handler ended within `grace` seconds.

        Messages whose handler has not started are given back without a try counted. A handler that
        outlives the grace time keeps its message flagged, for recovery.

        From any thread, any number of times: each call, and `run` and `drain`, return when the one
        stop is complete, with its answer; handlers get the shortest grace that anybody gives. While
        the worker does not run, nothing is done.

        Inside a handler, a fan-out's item or another thread of the worker, nothing is waited for:
        it asks for the stop and returns False, and the stop goes on beside it.
        """
        instance = self._ask(grace)
        if instance is None:
            return True
        if instance.is_within:
            instance.leave()
            return False
        return self._stop(instance, grace)

    def ask(self, grace: float = GRACE) -> None:
        """Ask for a stop in order and return at once; `stop` waits for it."""
        instance = self._ask(grace)
        if instance is not None:
            instance.leave()

    def _ask(self, grace: float) -> Instance | None:
        """Ask for a stop, of the instance that runs and of whoever waits for it."""
        asked = self._stop_asked
        with self._lock:
            instance = self._here()
        if instance is not None:
            instance.ask(grace)
            instance.asked.stop()
        asked.stop()
        return instance

    @property
    def is_within(self) -> bool:
        """Whether this thread is one of the running instance, such as that of a handler."""
        instance = self._here()
        return instance is not None and instance.is_within

    def _stop(self, instance: Instance, grace: float) -> bool:
        """Stop this instance, or wait for its stop; grace counts if nobody has said one."""
        try:
            return instance.stop(grace)
        finally:
            if instance.ending.over.is_set():
                with self._lock:
                    if self._instance is instance:
                        self._instance = None
                if instance.keeper is not None:
                    instance.keeper.dismiss()

    @contextmanager
    def _listening(self, signals: bool) -> Iterator[Asked | None]:
        """What asks this thread to stop while the block runs; None if nothing does."""
        if self.orders is not None or not signals:
            yield self.orders
            return
        told = Asked()
        with Signals(told):
            yield told

    def _end(self, instance: Instance, grace: float, told: Asked | None) -> None:
        """Stop, or wait for the stop that somebody else has begun; if somebody insists, at once,
        which ends the process.

        It runs in a thread beside this one, where the handlers of signals run.
        """
        if told is None:
            self._stop(instance, grace)
            return
        stop, help_ = Beside(lambda: self._stop(instance, grace)), None
        insisted_at: float | None = None
        while stop.goes_on(TICK_SECONDS):
            if told.at_once is None:
                continue
            now = time.monotonic()
            if insisted_at is None:
                insisted_at = now
                instance.hurry()
            elif now - insisted_at > HURRY_SECONDS:
                instance.state.log.warning("the stop takes too long; recovery follows")
                break
            elif help_ is None and now - insisted_at > HELP_SECONDS:
                help_ = Beside(instance.release_unstarted)
        told.begun = False
        if told.at_once is not None and told.ends_process:
            end_by(told.at_once)
        stop.result()

    def wake(self) -> None:
        """Look for work now."""
        instance = self._instance
        if instance is not None:
            instance.fetcher.wake()

    def run(
        self, *, signals: bool = False, grace: float = GRACE, time_limit: float | None = None
    ) -> None:
        """Work until `stop` is called (from another thread), or a signal comes if asked for.

        signals: SIGTERM and SIGINT stop in order; one that comes more than 2 s later stops at once:
        no handler is waited for, and the process ends by it. In the main thread only.
        grace: seconds that running handlers may go on at a stop; that of `stop` goes before it.
        time_limit: seconds; None = none. It returns when the stop is complete, whoever asked.

        Raises DatabaseUnavailable if the database cannot be reached at the start or denies access;
        SchemaError for what is missing; HandlerStuck for a handler with timeout_action="restart"
        that did not end in time; MsgworkerError if this worker runs already.
        """
        deadline = None if time_limit is None else time.monotonic() + time_limit
        with self._listening(signals) as told:
            instance = self._start(None, told=told)
            try:
                while not self._should_stop(instance):
                    if deadline is not None and time.monotonic() >= deadline:
                        break
                    self._stop_asked.wait(0.2)
            except Exception:  # nothing can be written: no reason to wait for handlers
                instance.ask(0.0)
                raise
            finally:
                self._end(instance, grace, told)
            instance.raise_why_it_left()

    def _should_stop(self, instance: Instance) -> bool:
        instance.raise_what_people_must_mend()
        return self._stop_asked.in_order or instance.state.stopping.is_set()

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

        All times are in seconds. Within `linger` it also waits for the lease of another instance
        that has messages to end, unless that is renewed. retry_linger: so long it waits for the
        next try of what has failed; None = 300, or 0 where linger is 0. outage_limit: give up
        (Report.database_lost) when the database has been away for so long. signals, grace and what
        is raised: as in `run`.
        """
        begun = time.monotonic()
        deadline = None if time_limit is None else begun + time_limit
        lost = False
        if retry_linger is None:
            retry_linger = RETRY_LINGER if linger else 0.0
        with self._listening(signals) as told:
            until = Drain(linger=linger, retry_linger=retry_linger, overdue=OVERDUE_SECONDS)
            instance = self._start(until, told=told)
            try:
                while not self._should_stop(instance) and not instance.fetcher.exhausted:
                    lost = instance.database_gone_seconds() > outage_limit
                    if lost:
                        instance.ask(0.0)
                    if lost or (deadline is not None and time.monotonic() >= deadline):
                        break
                    instance.fetcher.over.wait(0.05)
            except Exception:
                instance.ask(0.0)
                raise
            finally:
                self._end(instance, grace, told)
            instance.raise_why_it_left()
        if deadline is not None:
            rest = max(GIVE_UP_SECONDS, deadline - time.monotonic())
            outage_limit = min(outage_limit, rest)
        return instance.report(
            begun,
            lost=lost,
            outage_limit=outage_limit,
            stopped=not instance.fetcher.exhausted,
            counts_left=self.counts_left,
        )

    def left(self) -> Left:
        """What is unfinished in the table now, by what it waits for. Raises DatabaseUnavailable,
        SchemaError."""
        state = self._look()
        with connecting(state.engine) as conn:
            return left(conn, state.tables, state.asked)


class Instance:
    """The parts of one instance, wired."""

    def __init__(
        self,
        state: State,
        threads: int,
        *,
        drain: Drain | None = None,
        label: str = "",
    ) -> None:
        self.state = state
        self._hurried = False
        self.ending = Ending()
        self.asked = Asked()
        self.keeper: Keeper | None = None
        self.caller = Caller(state)
        self.settler = Settler(state, go_on=lambda *a, **k: self.lanes.put(*a, **k))
        self.lanes = Lanes(
            state, threads=threads, handle=self.caller.handle, settle=self.settler.add
        )
        self.seat = None if state.scope is None else state.scope.seat(self._standing())
        state.seat = self.seat
        settings, link = state.settings, state.link(tuned=True)
        self.appetite = Appetite(threads, settings.lanes_limit, settings.run_limit)
        self.finder = Finder(state, link, self.seat)
        self.claimer = Claimer(state, link, self.appetite)
        self.fetcher = Fetcher(
            state,
            lanes=self.lanes,
            settler=self.settler,
            appetite=self.appetite,
            finder=self.finder,
            claimer=self.claimer,
            drain=drain,
        )
        self.listener = Listener(state, heard=self.fetcher.wake)
        self.heartbeat = Heartbeat(
            state, claimer=self.claimer, label=label, on_recovered=self.fetcher.wake
        )
        self.heartbeat.on_leaving = self.caller.on_leaving = self.leave
        state.none_left = self.caller.spare
        self.watchdog = Watchdog(
            state, roles=(self.fetcher, self.heartbeat), settling=self.settler.link
        )
        self.fetcher.beat_now = self.heartbeat.wake
        self.settler.on_progress = self.fetcher.wake_if_room
        self.settler.on_lost = self.heartbeat.doubt
        self.lanes.on_unsure = self.heartbeat.wake
        self.heartbeat.on_sure = self.lanes.put
        self.heartbeat.on_lost = self.settler.lose
        self.settler.pace = self.lanes.pace

    def _standing(self) -> Standing:
        state = self.state
        return Standing(
            tables=state.tables,
            instance_id=lambda: state.instance_id,
            holding=state.holding,
            wake=lambda: self.fetcher.wake(),
            log=state.log,
        )

    def start(self) -> None:
        with reaching(self.state.engine):
            self.heartbeat.register()
        self.state.log.info("started with %d threads", self.lanes.threads)
        if self.seat is not None:
            self.seat.start()
        self.lanes.start()
        self.fetcher.start()
        self.heartbeat.start()
        self.watchdog.start()
        if self.state.channel is not None:
            self.listener.start()

    @property
    def pid(self) -> int:
        """The process it runs in."""
        return self.state.pid

    @property
    def is_within(self) -> bool:
        """Whether this thread is one of the instance, which its stop may wait for."""
        roles = (self.fetcher, self.heartbeat, self.watchdog, self.listener)
        return self.state.within or any(role.is_current for role in roles)

    def leave(self) -> None:
        """Have it stopped by whoever waits for that: its keeper, or `run` or `drain`."""
        if self.keeper is not None:
            self.keeper.ask()

    def end_with_program(self) -> None:
        """Have it stopped because the program ends."""
        if not self.ending.begun:
            self.state.log.warning("the program ends without a stop of this worker; it stops now")
        self.ask(EXIT_GRACE)
        self.asked.stop()
        self.leave()

    def say_what_is_left(self) -> None:
        """Log what a stop that takes too long leaves to recovery."""
        held = ", ".join(str(n.row.msg_id) for n in list(self.state.in_hand)[:10]) or "none"
        self.state.log.warning(
            "the stop takes too long, and the program ends (messages in hand: %s); "
            "recovery follows",
            held,
        )

    def ask(self, grace: float) -> None:
        """Give handlers so many seconds at most, also in a stop that is under way."""
        until = self.ending.ask(grace)
        if self.state.give_up_at is not None:
            self.state.give_up_at = min(self.state.give_up_at, until + GIVE_UP_SECONDS)

    def stop(self, grace: float) -> bool:
        """Stop, or wait for the stop; grace: where nobody has said one."""
        if self.ending.until is None:
            self.ask(grace)
        try:
            return self.ending.do(self._stop)
        finally:
            if self.ending.over.is_set():
                AT_EXIT.discard(self)

    @property
    def _deadline(self) -> float:
        return self.ending.until or 0.0

    def _stop(self) -> bool:
        self.state.stopping.set()
        self.state.give_up_at = self._deadline + GIVE_UP_SECONDS
        self.fetcher.stop()
        self.lanes.close()
        self.settler.give_back(self.lanes.take_back())
        if self.seat is not None:
            self.seat.leave()
        self._wait_for(self.fetcher, max(ROLE_SECONDS, self._deadline - time.monotonic()))
        self.settler.give_back(self.lanes.take_back())
        # Lanes that settle now and would go on are released too, by the loop below; a handler that
        # was just being started when the lanes closed is told in the next round.
        ended = False
        while not ended:
            for running in list(self.state.running.values()):
                running.cancelled = True
            ended = self.lanes.join(min(0.05, max(0.0, self._deadline - time.monotonic())))
            self.settler.give_back(self.lanes.take_back())
            stuck = sum(running.stuck for running in list(self.state.running.values()))
            late = self._hurried or time.monotonic() >= self._deadline
            if late or (stuck and stuck == self.lanes.alive):
                break
        self._settle_rest()
        if self.seat is not None:
            self.seat.stop(0.0 if self._hurried else ROLE_SECONDS)
        for role in (self.listener, self.heartbeat, self.watchdog):
            role.stop()
            self._wait_for(role, ROLE_SECONDS)
        if not self.heartbeat.over.is_set():  # it waits for an answer that does not come
            self.heartbeat.link.cut()
            self.heartbeat.join(ROLE_SECONDS)
        self._settle_rest()  # what it has put back into the queue meanwhile
        self._leave(ended)
        return ended

    def _wait_for(self, role: Role, seconds: float) -> None:
        """Until a role has ended; not for so long where somebody insists."""
        deadline = time.monotonic() + seconds
        while role.alive and time.monotonic() < deadline and not self._hurried:
            role.join(TICK_SECONDS)
        if self._hurried:
            role.join(HELP_SECONDS)

    def hurry(self) -> None:
        """Let a stop, which has begun or is about to, wait for no handler."""
        self.state.log.warning("stopping at once; what runs is left to recovery")
        self._hurried = True
        self.state.give_up_at = time.monotonic() + HURRY_SECONDS / 2
        self.lanes.close()

    def release_unstarted(self) -> None:
        """Give back what no handler has started, on a connection of its own: the settle that is to
        do it waits for something."""
        state = self.state
        for lane in self.lanes.take_back():
            lane.result = Result(Outcome.RELEASED)
        lanes = [lane for lane in list(state.in_hand) if state.is_ours(lane.owner)]
        results = [(lane.row, lane.result) for lane in lanes]  # a settle may take it away
        unstarted = [row for row, r in results if r is not None and r.outcome is Outcome.RELEASED]
        link = state.link()
        try:
            for tries in sorted({row.tries for row in unstarted}):
                ids = [row.msg_id for row in unstarted if row.tries == tries]
                release(state, link, ids, tries=tries)
        finally:
            link.close()

    def _settle_rest(self) -> None:
        self.settler.flush_waiting()
        self.settler.give_back(self.lanes.take_back())

    def _leave(self, ended: bool) -> None:
        state = self.state
        if not ended:
            held = ", ".join(str(r.row.msg_id) for r in list(state.running.values())[:10])
            state.log.warning(
                "stopped while handlers still run (messages %s); recovery follows", held
            )
            if self.heartbeat.over.is_set():
                self.heartbeat.say_stopped()
            return
        try:
            quiet = self.fetcher.over.is_set() and self.heartbeat.over.is_set()
            if not quiet or not self.heartbeat.leave():
                state.log.warning("stopped with messages still flagged; recovery follows")
        except Exception as error:
            state.log.warning("the lease is not dropped, it will expire: %s", reason_of(error))
        self.settler.close()
        self.caller.close()
        tally = state.tally
        state.log.info(
            "stopped: done=%d dead=%d retried=%d released=%d",
            tally.done,
            tally.dead,
            tally.retried,
            tally.released,
        )

    def database_gone_seconds(self) -> float:
        """How long some role has been without the database."""
        return self.state.away.seconds

    def raise_what_people_must_mend(self) -> None:
        """Raise an error that is met again and again and that waiting cannot cure."""
        outages = [self.fetcher.outage, self.settler.outage]
        if not self.state.trusted():  # without a lease these two ask the database nothing
            outages.append(self.heartbeat.outage)
        for outage in outages:
            error = outage.error
            if error is None or outage.failures < HOPELESS_FAILURES:
                continue
            kind = trouble(error)
            if kind is Trouble.REFUSED:
                raise refusal(self.state.engine, error) from error
            if kind is Trouble.OTHER:
                raise error

    def raise_why_it_left(self) -> None:
        """Raise the error for which the instance left on its own account, if it did."""
        if self.state.left_for is not None:
            raise self.state.left_for

    def report(
        self,
        begun: float,
        *,
        lost: bool = False,
        outage_limit: float = 0.0,
        stopped: bool = False,
        counts_left: bool = True,
    ) -> Report:
        """What was done since `begun` (monotonic), and what is left; lost: the database is given
        up, which it is too if it is away now and stays so for `outage_limit` seconds."""
        found = None if lost else Left()
        if counts_left and not lost:
            found = self._left_within(outage_limit)
        tally = self.state.tally
        report = Report(
            done=tally.done,
            failed=tally.dead,
            retried=tally.retried,
            released=tally.released,
            seconds=time.monotonic() - begun,
            database_lost=found is None,
            stopped=stopped,
            refused=len(self.state.refusals),
        )
        if found is None:
            return report
        report = report.leaving(found)
        for line in complaints(report, found):
            self.state.log.warning(line)
        return report

    def _left_within(self, seconds: float) -> Left | None:
        """What is left; None if the database is away, and still is after so many seconds."""
        until = time.monotonic() + seconds
        for attempt in itertools.count(1):
            try:
                return self._left()
            except Exception as error:
                if trouble(error) is not Trouble.LOST:
                    raise
            if time.monotonic() >= until:
                return None
            time.sleep(outage_pause(attempt))
        raise AssertionError("unreachable")

    def _left(self) -> Left:
        link = self.state.link()
        try:
            with link.statement() as conn:
                return left(conn, self.state.tables, self.state.asked)
        finally:
            link.close()
