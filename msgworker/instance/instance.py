"""One running instance: its parts, wired, and the order in which they start and stop.

Start: the keeper, the watchdog, the lease, then `Instance.parts`, in their order.
Stop: all parts are asked to end, then each is ended, in the reverse order: running handlers get a
grace time, what has not started is released, and everything is settled. The lease is dropped last,
after the last handler, or left for recovery if one still runs.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple

from msgworker import events
from msgworker.counted import few
from msgworker.db.connections import reaching, refusal
from msgworker.db.database import Trouble
from msgworker.db.errors import reason_of, trouble
from msgworker.instance.claiming.claimer import FlaggedRows, RefusedRows
from msgworker.instance.claiming.loop import Drain, Fetcher, Listener
from msgworker.instance.liveness.housekeeper import Housekeeper
from msgworker.instance.liveness.lease import Heartbeat, OwnLease
from msgworker.instance.liveness.schedules import Timer
from msgworker.instance.liveness.watchdog import Watchdog
from msgworker.instance.observers import EventLog, LogThrottle, Tally
from msgworker.instance.role import Role
from msgworker.instance.running.batch import BatchCaller
from msgworker.instance.running.call import Caller
from msgworker.instance.running.on_loop import runs_here
from msgworker.instance.running.outcome import Result
from msgworker.instance.running.pool import HandlerThreads, LaneQueue
from msgworker.instance.settling import writer
from msgworker.instance.settling.settler import Settler
from msgworker.instance.state import InstanceView, ScopeMember, Setup, Shared
from msgworker.instance.stop import GRACE, HELP_SECONDS, HURRY_SECONDS, StopOnce, StopRequest
from msgworker.logs import Said
from msgworker.message import Outcome
from msgworker.store.rows import Row

HOPELESS_FAILURES = 4
GIVE_UP_SECONDS = 5.0
TICK_SECONDS = 0.05
CANCEL_SECONDS = 2.0  # the most that a cancelled async handler may take to end
ROLE_SECONDS = 5.0  # the most that a role may take to end, after the last handler
EXIT_GRACE = 3.0
"""The grace time of handlers when the program ends without a stop."""
EXIT_SECONDS = 5.0
"""The most seconds for the stops of all instances when the program ends."""


class _Part(NamedTuple):
    """ask: makes it end, without waiting. end: waits for its end, until the deadline of the stop at
    most. Both may be called if it was not started. role: its thread, if it is a role."""

    start: Callable[[], object]
    end: Callable[[], object]
    ask: Callable[[], object] = lambda: None
    role: Role | None = None


class Instance:
    """The parts of one instance, wired. A Worker starts it; the keeper's thread stops it."""

    def __init__(
        self,
        setup: Setup,
        *,
        shared: Shared | None = None,
        drain: Drain | None = None,
        stop_request: StopRequest | None = None,
        retry_level: int = logging.INFO,
        grace: float = GRACE,
        stopped: Callable[[Instance], None] = lambda instance: None,
    ) -> None:
        """stop_request: for the thread that waits for the instance to end. grace: seconds
        for handlers in a stop that names none. stopped: called at the end of the stop. retry_level:
        for tests, see EventLog."""
        self.setup = setup
        self.shared = shared = shared or Shared(setup)
        self.tally = Tally()
        self.tally.count(setup.events)
        every = setup.settings.log_every_failure or retry_level != logging.INFO
        throttle = None if every else LogThrottle()
        EventLog(setup.events, shared.log, retry_level=retry_level, throttle=throttle)
        self._hurried = False
        self.ending = StopOnce()
        self.stop_request = stop_request or StopRequest()
        self._start_ended = threading.Event()
        # It stops the instance on request: a thread that waits for the stop may be interrupted.
        # Started with the instance, because none can be started while the interpreter ends.
        self._keeper = threading.Thread(target=self._keep, name="msgworker-keeper", daemon=True)
        self._grace, self._stopped = grace, stopped
        self._in_time = self._handlers_ended = True
        self.member: ScopeMember | None = None
        if setup.scope is not None:
            view = InstanceView(
                tables=setup.tables,
                instance_id=lambda: shared.identity.id,
                holding=shared.in_flight.slice_values,
                wake=shared.look_now.set,
                log=shared.log,
            )
            self.member = setup.scope.join(view)
        housekeep_now = shared.housekeep_now.set
        self.lanes = LaneQueue(shared.identity, shared.in_flight, housekeep_now=housekeep_now)
        self.settler = Settler(setup, shared, lanes=self.lanes, on_progress=self._look_if_free)
        self.caller = Caller(setup, shared)
        self.batches = BatchCaller(setup, shared, self.caller, self.lanes)
        self.handlers = HandlerThreads(
            *(setup, shared, self.lanes),
            caller=self.caller,
            handle_batch=self.batches.handle_beside,
            finished=self.settler.finished,
            is_due=self.settler.is_due,
            settle=partial(self.settler.flush, takes_one=True),
        )
        self.refused_rows = RefusedRows(setup.clock)
        self.flagged = FlaggedRows(setup, shared)
        lease = OwnLease(setup, shared, self.member, self.refused_rows.reasons)
        self.heartbeat = Heartbeat(setup, shared, lease)
        self.housekeeper = Housekeeper(
            *(setup, shared),
            heartbeat=self.heartbeat,
            flagged=self.flagged,
            lanes=self.lanes,
            settler=self.settler,
        )
        self.fetcher = Fetcher(
            *(setup, shared, drain, self.member),
            refused_rows=self.refused_rows,
            flagged=self.flagged,
            recovery=self.housekeeper.recovery,
            lanes=self.lanes,
            settler=self.settler,
        )
        self.listener = Listener(shared, setup.channel)
        self.timer = Timer(setup, shared) if setup.schedules else None
        self.parts = list(self._parts())
        self.roles = [part.role for part in self.parts if part.role is not None]
        self.watchdog = Watchdog(setup, shared, roles=self.roles, settling=self.settler.links)

    def _parts(self) -> Iterator[_Part]:
        """In the order of the start; the stop asks and ends them in the reverse order."""
        for beat in (self.heartbeat, self.housekeeper):
            yield _Part(beat.start, partial(self._end, beat), role=beat)
        if self.setup.channel is not None:
            one = self.listener
            yield _Part(one.start, partial(self._end, one), one.ask_to_end, one)
        if self.member is not None:
            yield _Part(self.member.start, self._end_member, self.member.leave)
        settler = self.settler.thread
        yield _Part(settler.start, self._end_settler, role=settler)
        for claims in (self.timer, self.fetcher):  # as long as it may take: a claim gets its lanes
            if claims is not None:
                end = partial(self._wait_for, claims, float("inf"))
                yield _Part(claims.start, end, claims.ask_to_end, claims)
        yield _Part(self.handlers.start, self._end_handlers, self.lanes.close)

    def _look_if_free(self) -> None:
        """Wake the fetcher if lanes are free. Called when lanes have ended, or end with the settle
        under way."""
        if self.fetcher.lane_limit.has_free(
            len(self.shared.in_flight.lanes) - self.settler.leaving
        ):
            self.shared.look_now.set()

    def start(self) -> None:
        """Take the lease and start the threads; a start that fails is undone. Where the database
        does not answer, a stop that is requested meanwhile makes it fail."""
        try:
            self._start()
        except BaseException:
            self._undo_start()
            raise
        self._start_ended.set()

    def _start(self) -> None:
        self._keeper.start()
        self.watchdog.start()
        with reaching(self.setup.engine):
            writer.check(self.setup.registry, self.setup.tables, self.shared.connector)
            if self.timer is not None:
                self.timer.register()
            self.housekeeper.prepare()
            self.heartbeat.register()
        setup, shared = self.setup, self.shared
        setup.events.emit(events.InstanceStarted(shared.identity.id, setup.threads))
        for part in self.parts:
            part.start()

    def _undo_start(self) -> None:
        """Undo a failed start: after the lease was taken, by a stop."""
        self._start_ended.set()
        if self.shared.identity.tenure.registered:
            self.stop(EXIT_GRACE)
        else:
            self.watchdog.ask_to_end()
        for role in self.roles:
            if role.link is not None and not role.alive:
                role.link.close()

    @property
    def is_within(self) -> bool:
        """Whether its stop may wait for this thread: also that of the caller's loop in which its
        async handlers run."""
        stop, here = self.shared.stop, threading.current_thread()
        within = stop.within or here is self._keeper or runs_here(self.setup.loop)
        return within or any(role.is_current for role in (self.watchdog, *self.roles))

    def request_stop(self) -> None:
        """Ask the keeper to stop the instance; returns at once."""
        self.shared.stop.requested.set()

    def end_with_program(self) -> None:
        """Request a stop because the program ends."""
        if not self.ending.begun:
            self.shared.log.warning("the program ends without a stop of this worker; it stops now")
        self.limit_grace(EXIT_GRACE)
        self.stop_request.stop()
        self.request_stop()

    def log_what_is_left(self) -> None:
        """Log what a stop that takes too long leaves to recovery."""
        left = _ids(lane.row for lane in list(self.shared.in_flight.lanes))
        text = "the stop takes too long, and the program ends (messages in flight: %s); "
        self.shared.log.warning(text + "recovery follows", left)

    def limit_grace(self, grace: float) -> None:
        """Limit the grace time of handlers, also in a stop in progress."""
        until = self.ending.limit_grace(min(grace, self.stop_request.grace))
        if self.shared.stop.give_up_at is not None:
            self._give_up_at(until + GIVE_UP_SECONDS)

    def _give_up_at(self, at: float) -> None:
        """Set the deadline of the whole stop; the earliest one counts."""
        before = self.shared.stop.give_up_at
        self.shared.stop.give_up_at = at if before is None else min(before, at)
        self.watchdog.wake()

    def stop(self, grace: float) -> bool:
        """Stop, or wait for the stop, which continues if this call is interrupted. grace: seconds,
        unless others were set before."""
        self.begin_stop(grace)
        while not self.ending.ends_within(TICK_SECONDS):
            pass
        return self.ending.result()

    def begin_stop(self, grace: float) -> None:
        """Have the keeper stop the instance. grace: as in `stop`."""
        if self.ending.until is None:
            self.limit_grace(grace)
        self.request_stop()
        if not self._keeper.is_alive():  # the start failed before it was started
            self.ending.do(self._stop)

    def _keep(self) -> None:
        """Stop when that is requested. A start that is under way may take as long as the stop; then
        the watchdog cuts its connections."""
        stop = self.shared.stop
        while not self._start_ended.wait(TICK_SECONDS):
            requested = self.stop_request.in_order or stop.requested.is_set()
            if requested and stop.give_up_at is None:
                if self.ending.until is None:
                    self.limit_grace(self._grace)
                self._give_up_at(self._deadline + GIVE_UP_SECONDS)
        if self.shared.identity.tenure.registered:  # else the start has failed
            stop.requested.wait()
            self.ending.do(self._stop)

    @property
    def _deadline(self) -> float:
        return self.ending.until or 0.0

    def _stop(self) -> bool:
        if self.ending.until is None:  # requested by a thread of the instance
            self.limit_grace(self._grace)
        try:
            return self._stop_in_order()
        finally:
            self.watchdog.ask_to_end()
            if self.watchdog.alive:
                self.watchdog.join(HELP_SECONDS)
            self._stopped(self)
            AT_EXIT.discard(self)

    def _stop_in_order(self) -> bool:
        """Ask all parts to stop before waiting for one. Each wait ends at the deadline of the whole
        stop, when the watchdog cuts the connections."""
        self._give_up_at(self._deadline + GIVE_UP_SECONDS)
        self.shared.in_flight.cancel_all()
        parts = self.parts[::-1]
        for part in parts:
            part.ask()
        for part in parts:
            part.end()
        self.settle_rest()  # lanes that the housekeeper has queued meanwhile
        self._leave(self._handlers_ended)
        return self._in_time

    @property
    def _rest(self) -> float:
        """The seconds that the stop may still take."""
        return max(0.0, (self.shared.stop.give_up_at or 0.0) - time.monotonic())

    def _end_handlers(self) -> None:
        self._in_time = self._wait_for_handlers()
        self._handlers_ended = not self.handlers.alive

    def _wait_for_handlers(self) -> bool:
        """Wait for the handlers; whether all ended within the grace time. Async ones that did not
        are cancelled."""
        cancelled = False
        while True:
            # In each round: a handler thread may just have started another handler, and a settle
            # may just have queued a lane for its next message.
            self.shared.in_flight.cancel_all()
            self.settler.release(self.lanes.take_back(), wait=False)
            now = time.monotonic()
            pause = TICK_SECONDS if cancelled else min(TICK_SECONDS, self._deadline - now)
            if self.handlers.join(max(0.0, pause)):
                return not cancelled
            running = list(self.shared.in_flight.running.values())
            stuck = sum(one.stuck for one in running)
            if self._hurried or (stuck and stuck == self.handlers.alive):
                return False
            if (now := time.monotonic()) >= self._deadline:
                cancelled = True
                ending = [one.end_at_stop() or one.stopped for one in running]
                only_late = bool(running) and not any(ending)
                if only_late or now >= self._deadline + CANCEL_SECONDS:
                    return False

    def _wait_for(self, role: Role, seconds: float) -> None:
        """Wait until a role has ended; shorter in a stop at once."""
        deadline = time.monotonic() + min(seconds, self._rest + HELP_SECONDS)
        while role.alive and time.monotonic() < deadline and not self._hurried:
            role.join(TICK_SECONDS)
        if self._hurried:
            role.join(HELP_SECONDS)

    def _end(self, role: Role) -> None:
        role.ask_to_end()
        self._wait_for(role, ROLE_SECONDS)
        if role.alive and role.link is not None:  # it hangs in a call to the database
            role.link.cut()
            role.join(min(ROLE_SECONDS, max(HELP_SECONDS, self._rest)))

    def _end_settler(self) -> None:
        self.settle_rest()
        self._end(self.settler.thread)

    def _end_member(self) -> None:
        if self.member is not None:
            self.member.stop(0.0 if self._hurried else min(ROLE_SECONDS, self._rest))

    def stop_now(self) -> None:
        """Make the stop, which has begun or is about to, wait for no handler."""
        self.shared.log.warning("stopping at once; what runs is left to recovery")
        self._hurried = True
        self._give_up_at(time.monotonic() + HURRY_SECONDS / 2)
        self.lanes.close()

    def release_unstarted(self) -> None:
        """Release messages that have not started, on a connection of its own, because the settle
        that should do it hangs; also write results that are known."""
        shared = self.shared
        back = self.lanes.take_back()
        known = [lane for lane in back if lane.result is not None]  # see `Lane.verdict`
        for lane in back:
            lane.result = lane.result or Result(Outcome.RELEASED)
        lanes = [n for n in list(shared.in_flight.lanes) if shared.identity.is_ours(n.owner)]
        results = [(lane.row, lane.result) for lane in lanes]  # read once: a settle may replace it
        unstarted = [row for row, r in results if r is not None and r.outcome is Outcome.RELEASED]
        with shared.connector.once() as link:
            for tries in sorted({row.tries for row in unstarted}):
                ids = [row.msg_id for row in unstarted if row.tries == tries]
                self.flagged.release(link, ids, me=shared.identity.id, tries=tries)
        self.settler.settle_apart(known)

    def settle_rest(self) -> None:
        self.settler.flush_waiting()
        self.settler.release(self.lanes.take_back())

    def _close(self) -> None:
        """Return the connections and end the event loop, after the last handler."""
        self.settler.close()
        self.caller.close()

    def _leave(self, ended: bool) -> None:
        setup, shared = self.setup, self.shared
        if not ended:
            running = list(shared.in_flight.running.values())
            left = _ids(row for one in running for row in one.rows())
            text = "stopped while handlers still run (messages %s); recovery follows"
            shared.log.warning(text, left)
            setup.events.emit(events.InstanceStopped(shared.identity.id, clean=False))
            if self._beats_are_over:
                self.housekeeper.record_stop()
            self.handlers.when_ended(self._close)
            return
        clean = False
        try:
            quiet = self._beats_are_over and not (self.fetcher.alive or shared.stop.gave_up())
            clean = quiet and self.housekeeper.leave()
            if not clean:
                shared.log.warning("stopped with messages still flagged; recovery follows")
        except Exception as error:
            shared.log.warning("the lease is not dropped, it will expire: %s", reason_of(error))
        self._close()
        tally, text = self.tally, "stopped: done=%d dead=%d retried=%d released=%d"
        counts = tally.done, tally.dead, tally.retried, tally.released
        shared.log.info(text, *counts, extra={"event": Said.INSTANCE_STOPPED})
        setup.events.emit(events.InstanceStopped(shared.identity.id, clean=clean))

    @property
    def _beats_are_over(self) -> bool:
        return not (self.heartbeat.alive or self.housekeeper.alive)

    def raise_what_people_must_mend(self) -> None:
        """Raise a repeated error that waiting cannot fix."""
        for outage in self.shared.away.outages:
            error = outage.error
            if error is None or outage.failures < HOPELESS_FAILURES:
                continue
            # While the lease is in doubt, the others do not use the database.
            if outage is self.heartbeat.outage and self.shared.identity.trusted():
                continue
            kind = trouble(error)
            if kind is Trouble.REFUSED:
                gone = self.housekeeper.file_gone()  # a reconnect has made an empty one
                raise gone or refusal(self.setup.engine, error) from error
            if kind is Trouble.OTHER:
                raise error


def _ids(rows: Iterable[Row]) -> str:
    return few([row.msg_id for row in rows], 10) or "none"


# --- A program that ends without a stop.


class AtExit:
    """Stops running instances when the program ends: after all non-daemon threads have ended, while
    our daemon threads still run. In a forked child it does nothing."""

    def __init__(self) -> None:
        # Without a lock: the thread that adds one may be interrupted by a signal that stops it.
        self._running: set[Instance] = set()
        self._registered = False

    def add(self, instance: Instance) -> None:
        self._running.add(instance)
        if not self._registered:
            self._registered = True
            atexit.register(self._stop_all)

    def discard(self, instance: Instance) -> None:
        self._running.discard(instance)

    def _stop_all(self) -> None:
        here = os.getpid()
        mine = [instance for instance in list(self._running) if instance.setup.pid == here]
        deadline = time.monotonic() + EXIT_SECONDS
        for instance in mine:
            instance.end_with_program()
        for instance in mine:
            if not instance.ending.over.wait(max(0.0, deadline - time.monotonic())):
                instance.log_what_is_left()


AT_EXIT = AtExit()
