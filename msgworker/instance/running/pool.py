"""The lanes that wait for a thread, which of them share a batch, and the handler threads."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from itertools import islice, starmap

from msgworker.db.errors import NO_MEMORY
from msgworker.errors import MsgworkerError
from msgworker.instance.liveness.identity import Identity
from msgworker.instance.observers import facts
from msgworker.instance.role import outlive
from msgworker.instance.running.call import Caller, OnLoop
from msgworker.instance.running.handler import BatchSize, Handler
from msgworker.instance.running.in_flight import InFlight, Lane
from msgworker.instance.running.outcome import Result, fault
from msgworker.instance.state import Setup, Shared
from msgworker.message import Outcome, topic_of
from msgworker.store.rows import Row

# --- The lanes that wait for a handler thread.
#
# A lane is handled one message at a time: its next handler starts only after the settle that moved
# the flag has committed. Threads take lanes from a common queue, which wakes only as many threads
# as are useful, because waking a thread costs more than a short handler.

WORTH_A_THREAD_SECONDS = 0.002
UNKNOWN_SECONDS = 1.0  # assumed for a handler while none has ended: wakes all threads
NEWEST_SHARE = 0.05
MOST_PASSED = 100  # lanes of other handlers that a batch skips, at most


class LaneQueue:
    """The lanes that wait for a handler thread. Filled by the fetcher, settling threads and the
    housekeeper; emptied by handler threads, and by the fetcher and the stop to release lanes.

    housekeep_now: wakes the housekeeper. ready: lanes that no thread has taken yet. mean_seconds:
    of handlers that have ended, None while none has; written by handler threads. threads_idled: a
    thread had nothing to do since the last claim; set by handler threads, cleared by the fetcher.
    """

    def __init__(
        self, identity: Identity, in_flight: InFlight, *, housekeep_now: Callable[[], None]
    ) -> None:
        self._identity = identity
        self._in_flight = in_flight
        self._housekeep_now = housekeep_now
        self.ready: deque[Lane] = deque()
        self._gate = threading.Condition()
        self._idle = 0  # threads that wait and were not woken yet; written under the gate
        self._closed = False
        self._ended = 0
        self.mean_seconds: float | None = None
        self.threads_idled = False

    def put(self, lanes: Iterable[Lane], *, takes_one: bool = False, first: bool = False) -> None:
        """Queue lanes whose current message is flagged; if it raises, it has queued none. first:
        before all others. takes_one: the calling thread is a handler thread and will take the next
        lane itself."""
        if first:
            self.ready.extendleft(reversed(list(lanes)))
        else:
            self.ready.extend(lanes)
        try:
            with self._gate:
                if self._idle:
                    worth = len(self.ready) * self.handler_seconds() / WORTH_A_THREAD_SECONDS
                    self._wake(min(self._idle, len(self.ready), int(worth) + 1) - takes_one)
        except NO_MEMORY:  # a later `nudge` wakes them
            pass

    def take_more(self, wants: Callable[[Lane], bool | None]) -> list[Lane]:
        """Take waiting lanes that `wants` is true for, until it is None or none is left; does not
        wait. The others keep their places."""
        taken: list[Lane] = []
        passed: list[Lane] = []
        while len(passed) < MOST_PASSED:
            try:
                lane = self.ready.popleft()
            except IndexError:
                break
            try:
                wanted = wants(lane)
            except BaseException:
                back = (*taken, *passed, lane)
                for one in back:
                    one.width = 1  # another batch may take it
                self.put(back, first=True)
                raise
            (taken if wanted else passed).append(lane)
            if wanted is None:
                break
        if passed:
            self.ready.extendleft(reversed(passed))
            with self._gate:  # a handler thread may have found `ready` empty meanwhile, and wait
                self._wake(len(passed))
        return taken

    def take(self) -> Lane | None:
        """Take a lane; None = none waits, or closed."""
        if self._closed:
            return None
        if self._idle and len(self.ready) > 1:
            self.nudge()  # `put` relies on the mean, and this handler may be slower
        try:
            return self.ready.popleft()
        except IndexError:
            self.threads_idled = True
            return None

    def next(self) -> Lane | None:
        """Wait for a lane; None = closed. Lanes that are still queued then have not started, and
        are released."""
        while not self._closed:
            if (lane := self.take()) is not None:
                return lane
            with self._gate:
                if self.ready or self._closed:
                    continue
                self._idle += 1
                self._gate.wait()
        return None

    def take_idled(self) -> bool:
        """Whether a thread had nothing to do since the last call, or would have now."""
        idled, self.threads_idled = self.threads_idled or not self.ready, False
        return idled

    def nudge(self) -> None:
        """Wake one more thread if lanes wait. Called regularly, since a handler may be slower than
        the mean."""
        if self.ready and self._idle:
            with self._gate:
                self._wake(1)

    def _wake(self, threads: int) -> None:
        """Wake so many idle threads; the caller holds the gate. They no longer count as idle at
        once: a woken thread takes time to run, and callers would wake others meanwhile."""
        threads = min(threads, self._idle)
        if threads > 0:
            self._idle -= threads
            self._gate.notify(threads)

    def take_back(self, most: int | None = None) -> list[Lane]:
        """Take lanes that no thread has taken, to release them: all of them, or `most` of the
        newest, without those that must run alone (`Lane.alone`). Their rows do not say so, and
        another instance would call their batch again."""
        back: deque[Lane] = deque()
        kept: deque[Lane] = deque()
        while self.ready and (most is None or len(back) < most):
            try:
                lane = self.ready.pop()
            except IndexError:
                break
            (kept if most is not None and lane.alone else back).appendleft(lane)
        if kept:
            self.ready.extend(kept)
            with self._gate:  # as in `take_more`
                self._wake(len(kept))
        unsure = self._in_flight.unsure
        while most is None and unsure:
            with suppress(IndexError):
                back.append(unsure.popleft())
        return list(back)

    def may_start(self, lane: Lane) -> bool:
        """Whether the lane was claimed under our present id. One of a lost id is no longer in
        flight, and recovery releases its rows; without `claimed_by` it is kept until the
        housekeeper has checked it."""
        identity = self._identity
        if lane.owner == identity.id:
            return True
        if identity.is_ours(lane.owner):
            self._in_flight.unsure.append(lane)
            self._housekeep_now()
        return False

    def handler_seconds(self) -> float:
        """The mean seconds of a handler; a guess while none has ended."""
        return UNKNOWN_SECONDS if self.mean_seconds is None else self.mean_seconds

    def took(self, seconds: float, lanes: int = 1) -> None:
        """Record how long a handler has run for each of so many lanes."""
        self._ended = ended = self._ended + lanes
        mean = seconds if self.mean_seconds is None else self.mean_seconds
        share = lanes / ended if ended * NEWEST_SHARE < 1 else min(1.0, lanes * NEWEST_SHARE)
        self.mean_seconds = mean + (seconds - mean) * share

    def close(self) -> None:
        """Make the threads end after their present handler; no other handler starts."""
        with self._gate:
            self._closed = True
            self._gate.notify_all()


# --- Which messages share a batch: those that wait at this moment, of one handler.
#
# A lane joins only if its flagged message has no earlier try or crash; otherwise all of it runs
# alone. So a poison message costs the others of its batch one try at most.

BYTES = 8_000_000
"""Characters of payload in a batch, at most; one message may have more."""


@dataclass(slots=True)
class Batch:
    """Lanes whose handler is called for all of them together. Each takes `width` messages of its
    run."""

    handler: Handler
    lanes: list[Lane]

    def __len__(self) -> int:
        return sum(lane.width for lane in self.lanes)

    @property
    def is_single(self) -> bool:
        return len(self.lanes) == 1 and self.lanes[0].width == 1


class Gathering:
    """Puts batches together; called by handler threads. lanes: where further ones wait."""

    def __init__(self, setup: Setup, shared: Shared, lanes: LaneQueue) -> None:
        self._setup = setup
        self._shared = shared
        self._lanes = lanes
        self._sizes: dict[str | None, BatchSize] = {}

    def gather(self, lane: Lane) -> Batch | None:
        """The batch of this lane and of those that wait and fit; None if its handler has none."""
        setup, shared = self._setup, self._shared
        handler = setup.registry.get(topic_of(lane.row.topic))
        if handler is None or handler.batch_most == 1:
            return None
        batch = Batch(handler, [lane])
        if not self._may_lead(lane, handler):
            if not lane.alone:  # cut it to the longest batch in which its process may have died
                lane.rows = lane.rows[: lane.place + handler.batch_most]
            lane.alone = True
        elif not shared.stop.requested.is_set() and not shared.quiesce.active:
            self._fill(batch)
        return batch

    def size(self, handler: Handler) -> BatchSize:
        """The size of the handler's batches."""
        if (found := self._sizes.get(handler.topic)) is not None:
            return found
        lease = self._setup.settings.lease_seconds
        made = BatchSize(handler.batch_most, handler.batch_seconds, lease)
        return self._sizes.setdefault(handler.topic, made)

    def _may_lead(self, lane: Lane, handler: Handler) -> bool:
        """Whether its flagged message may share a batch."""
        return not lane.alone and _is_fresh(lane.row) and self._setup.tables.spec.max_tries > 1

    def _fill(self, batch: Batch) -> None:
        first, handler, registry = batch.lanes[0], batch.handler, self._setup.registry
        controls = self._shared.controls
        messages, characters = self.size(handler).now, BYTES  # what still fits

        def fits(row: Row) -> bool:
            """Whether it does; then it is counted. The first message does in any case."""
            nonlocal messages, characters
            read = len(row.payload) if isinstance(row.payload, str | bytes) else 0
            length = row.oversize or read
            if messages < 1 or (length > characters and row is not first.row):
                return False
            messages, characters = messages - 1, characters - length
            return True

        def take_behind(lane: Lane) -> None:
            for row in self._behind(lane, handler) if handler.transactional else ():
                if not fits(row):
                    break
                lane.width += 1

        def wants(lane: Lane) -> bool | None:
            if messages < 1:
                return None
            if (
                lane.owner != first.owner
                or lane.result is not None
                or registry.get(topic_of(lane.row.topic)) is not handler
                or not self._may_lead(lane, handler)
                or controls.is_paused(lane.row)
            ):
                return False
            if not fits(lane.row):
                return None
            take_behind(lane)
            return True

        fits(first.row)
        take_behind(first)
        if messages > 0:
            batch.lanes += self._lanes.take_more(wants)

    def _behind(self, lane: Lane, handler: Handler) -> Iterator[Row]:
        """The messages of its run that may follow the flagged one in a batch."""
        registry, controls = self._setup.registry, self._shared.controls
        for row in starmap(Row, islice(lane.rows, lane.place + 1, None)):
            other = registry.get(topic_of(row.topic)) is not handler
            if other or controls.is_apart(row) or not _is_fresh(row):
                return
            yield row


def _is_fresh(row: Row) -> bool:
    return row.tries == 0 and row.crash_times == 0 and row.odd is None


# --- The threads that run handlers.

UNTRUSTED_PAUSE_SECONDS = 0.05


@dataclass(eq=False)
class HandlerThreads:
    """The handler threads: take lanes, run their handlers, and pass them on to be settled.

    handle_batch: see `BatchCaller.handle_beside`. finished: gets the lanes that are. is_due: called
    with one that is there, and whether no other waits; returns whether to call settle now.
    """

    _setup: Setup
    _shared: Shared
    _lanes: LaneQueue
    caller: Caller
    handle_batch: Callable[[Lane], list[Lane] | None]
    finished: deque[Lane]
    is_due: Callable[[Lane, bool], bool]
    settle: Callable[[], None]

    def __post_init__(self) -> None:
        self._long = self._setup.settings.heartbeat_seconds
        self._threads = [
            threading.Thread(target=self._work, name=f"msgworker-handler-{i}", daemon=True)
            for i in range(self._setup.threads)
        ]
        self._gate = threading.Lock()
        self._working = 0
        self._at_end: Callable[[], None] | None = None

    def start(self) -> None:
        for thread in self._threads:
            with self._gate:
                self._working += 1
            try:
                thread.start()
            except BaseException:
                self._ended()
                raise

    def when_ended(self, then: Callable[[], None]) -> None:
        """Call this when the last thread ends; at once if none runs."""
        with self._gate:
            self._at_end = then if self._working else None
        if self._at_end is None:
            then()

    def _ended(self) -> None:
        with self._gate:
            self._working -= 1
            then = None if self._working else self._at_end
        if then is not None:
            then()

    def join(self, timeout: float) -> bool:
        """Wait for the threads; False if a handler still runs after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    @property
    def alive(self) -> int:
        """How many threads have not ended."""
        return sum(thread.is_alive() for thread in self._threads)

    def _work(self) -> None:
        self._shared.stop.enter()
        name = threading.current_thread().name
        take_lanes = partial(self._take_lanes, list[Lane]())
        try:
            outlive(name, self._shared.log, take_lanes, self._stop_for)
        finally:
            self._ended()

    def _stop_for(self, error: MsgworkerError) -> bool:
        self._shared.stop.stop_for(error)
        return False

    def _take_lanes(self, held: list[Lane]) -> None:
        """held: the lanes that only this thread has. There are some at the start if an error has
        ended the loop: their rows stay flagged until this instance takes a new id."""
        setup, shared, lanes = self._setup, self._shared, self._lanes
        identity, registry, caller = shared.identity, setup.registry, self.caller
        for one in held:
            identity.cannot_write(one.owner, [one.row.msg_id])
        shared.in_flight.drop(held)
        held.clear()
        while (lane := lanes.next()) is not None:
            held.append(lane)
            ended: Sequence[Lane] = (lane,)
            due = False
            try:
                trusted = identity.trusted()  # before the id is compared: so it is about that id
                if lane.owner != identity.tenure.id and not lanes.may_start(lane):
                    held.clear()
                    continue
                if not trusted:  # wait until the heartbeat knows whether the lease is live
                    lanes.ready.append(lane)
                    held.clear()
                    if shared.stop.requested.wait(UNTRUSTED_PAUSE_SECONDS):
                        time.sleep(UNTRUSTED_PAUSE_SECONDS)  # do not spin until `close`
                    continue
                controls = shared.controls
                if controls.paused and controls.is_paused(lane.row):  # since the claim
                    lane.result = lane.result or Result(Outcome.RELEASED)
                    lane.finished_at = time.monotonic()
                elif registry.has_async and caller.suits_loop(lane):
                    held.clear()  # its loop has it, and more
                    ended, due = self._run_on_loop(lane)
                elif registry.batch_most > 1 and (batch := self.handle_batch(lane)) is not None:
                    ended = batch
                else:
                    begin = time.monotonic()
                    caller.handle(lane)
                    self.record(lane, begin)
            except BaseException as error:
                self.fail(lane, error)
            held[:] = ended
            for one in ended:
                self.finished.append(one)
                held.pop(0)
                due = self.is_due(one, not held and not lanes.ready) or due
            if due:
                self.settle()

    def record(self, lane: Lane, begin: float) -> None:
        """Record how long the handler of a lane has run."""
        lane.finished_at = end = time.monotonic()
        lane.started_at, lane.ran_seconds = begin, end - begin
        if end - begin > self._long:
            self._shared.in_flight.ran_long.append((lane.row, begin, end))
        self._lanes.took(end - begin)

    def _run_on_loop(self, lane: Lane) -> tuple[Sequence[Lane], bool]:
        """Run the async handlers of this lane and of more that wait in their event loop. Returns
        the lanes whose result is not queued yet, and whether it is time to settle."""
        turn = LoopTurn(self, self._lanes, lane)
        try:
            due = self.caller.while_there(turn.begin, turn.over)
        except BaseException as error:  # the loop has ended, for one
            return turn.rest(error), False
        return turn.rest(None), due

    def next_for_loop(self) -> Lane | None:
        """A waiting lane whose handler may be begun in the event loop now; None = the next one is
        another, or none waits."""
        lanes, identity, controls = self._lanes, self._shared.identity, self._shared.controls
        while (lane := lanes.take()) is not None:
            trusted = identity.trusted()
            if lane.owner != identity.tenure.id and not lanes.may_start(lane):
                continue
            if trusted and not controls.is_paused(lane.row) and self.caller.suits_loop(lane):
                return lane
            lanes.put([lane], takes_one=True, first=True)  # for the handler thread
            return None
        return None

    def fail(self, lane: Lane | None, error: BaseException) -> None:
        """A bug of ours outside the handler is a failed try, so that the object is not blocked; the
        end of its loop is none. lane: None = of no message."""
        self._shared.in_flight.running.pop(threading.get_ident(), None)
        stopped, log = self.caller.outcomes.is_of_a_stop(error, stopped=False), self._shared.log
        if lane is not None:
            lane.result = lane.result or (Result(Outcome.RELEASED) if stopped else fault(error))
            lane.finished_at = time.monotonic()
        if stopped:
            return
        with suppress(*NO_MEMORY):
            if lane is None:
                log.error("an error between two async handlers", exc_info=error)
                return
            text, extra = "message %s: an error round its handler", facts(lane.row)
            log.error(text, lane.row.msg_id, exc_info=error, extra=extra)


class LoopTurn:
    """Async handlers of one handler thread, one after the other in the event loop, while the thread
    waits: to change threads for each message costs more than most handlers.

    The loop's thread has it until `over` is set, to whether it is time to settle; then the handler
    thread has it. What may block is left to that one.
    """

    def __init__(self, threads: HandlerThreads, lanes: LaneQueue, lane: Lane) -> None:
        self._threads = threads
        self._lanes = lanes
        self._ident = threading.get_ident()
        self._context = copy_context()
        self._lane: Lane | None = lane  # None = the last one is queued to be settled
        self._one: OnLoop | None = None  # its handler, from its begin until the lane has its result
        self._task: asyncio.Task[None] | None = None
        self.over: Future[bool] = Future()

    def begin(self) -> None:
        """Begin with the lane, in a task and a context of their own."""
        assert self._lane is not None
        try:
            # Not by the loop's task factory: that may begin the task at once, within this call.
            loop, context = asyncio.get_running_loop(), self._context.copy()
            self._task = asyncio.Task(self._run(self._lane), loop=loop, context=context)
            self._task.add_done_callback(self._stopped, context=context)
        except BaseException as error:
            self.over.set_exception(error)

    async def _run(self, lane: Lane) -> None:
        threads, began = self._threads, time.monotonic()
        try:
            self._one = one = threads.caller.begin_on_loop(lane, self._ident)
            if one is not None:
                try:
                    one.found = await one.call
                except BaseException as error:
                    one.error = error
                if self._one is not one:  # the loop is gone, and the thread has ended it
                    return
                if one.may_block():
                    return
                threads.caller.end_on_loop(one)
                self._one = None
            threads.record(lane, began)
            threads.finished.append(lane)
            self._lane = None
            due = threads.is_due(lane, not self._lanes.ready)
            if due or (following := threads.next_for_loop()) is None:
                self.over.set_result(due)
            else:
                self._lane = following
                self.begin()
        except BaseException as error:
            self.over.set_exception(error)
            if type(error) is KeyboardInterrupt:  # for the program whose loop it is
                raise

    def _stopped(self, task: asyncio.Task[None]) -> None:
        """A task has ended: leave the lane to the thread, unless it went on with another."""
        if self._task is task and not self.over.done():
            self.over.set_result(False)

    def rest(self, error: BaseException | None) -> Sequence[Lane]:
        """For the handler thread: end what the loop has left; the lanes to queue. error: why the
        loop has left it."""
        one, lane = self._one, self._lane
        self._one = None  # where the loop is gone, Python closes `_run` at any time
        if lane is None:
            if error is not None:
                self._threads.fail(None, error)
            return ()
        if one is None and error is None:  # its task was cancelled before it began
            self._lanes.put([lane], takes_one=True, first=True)
            return ()
        try:
            if one is None:
                assert error is not None
                raise error
            if one.cancelled:
                one.error = error
            self._threads.caller.end_on_loop(one)
            self._threads.record(lane, one.running.since)
        except BaseException as failed:
            self._threads.fail(lane, failed)
        return (lane,)
