"""The lanes that wait for a thread, the threads that run their handlers, and the loop of async
handlers."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from msgworker.db import NO_MEMORY
from msgworker.errors import HandlerTimeout, MsgworkerError, Reject, RetryLater
from msgworker.instance.connections import end_if_forked
from msgworker.instance.liveness.identity import Identity
from msgworker.instance.observers import facts
from msgworker.instance.role import outlive
from msgworker.instance.running.in_flight import Execution, InFlight, Lane
from msgworker.instance.running.outcome import LoopEnded, Result, fault
from msgworker.instance.state import Setup, Shared
from msgworker.instance.stop import Stop
from msgworker.logs import logger
from msgworker.message import Outcome

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

    housekeep_now: wakes the housekeeper. ready: lanes that no thread has taken yet; only the
    methods here write it, others check whether it is empty. mean_seconds: of handlers that
    have ended, None while none has; written by handler threads, read by the fetcher and
    settling threads. threads_idled: a thread had nothing to do since the last claim; set by handler
    threads, cleared by the fetcher.
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
        """Queue lanes whose current message is flagged. first: before all others.

        takes_one: the calling thread is a handler thread and will take the next lane itself.
        """
        if first:
            self.ready.extendleft(reversed(list(lanes)))
        else:
            self.ready.extend(lanes)
        with self._gate:
            if self._idle:
                worth = len(self.ready) * self.pace() / WORTH_A_THREAD_SECONDS
                self._wake(min(self._idle, len(self.ready), int(worth) + 1) - takes_one)

    def put_back(self, lane: Lane) -> None:
        """Queue a lane that its thread may not start yet."""
        self.ready.append(lane)

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
            wanted = wants(lane)
            (taken if wanted else passed).append(lane)
            if wanted is None:
                break
        if passed:
            self.ready.extendleft(reversed(passed))
            with self._gate:  # a handler thread may have found `ready` empty meanwhile, and wait
                self._wake(len(passed))
        return taken

    def next(self) -> Lane | None:
        """Wait for a lane; None = closed. Lanes that are still queued then have not started, and
        are released."""
        while not self._closed:
            try:
                lane = self.ready.popleft()
            except IndexError:
                self.threads_idled = True
            else:
                if self._idle and self.ready:
                    self.nudge()  # `put` relies on the mean, and this handler may be slower
                return lane
            with self._gate:
                if self.ready:
                    continue
                if self._closed:
                    break
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

    def pace(self) -> float:
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


# --- The threads that run handlers.

UNTRUSTED_PAUSE_SECONDS = 0.05


class HandlerThreads:
    """The handler threads of an instance: take lanes, run their handlers, and pass them on to be
    settled. Started and joined by the Instance.

    handle: stores its result in the lane. handle_batch: does so for the lane and for others that it
    takes, and returns those that have a result; None if its handler takes no batches. settle: gets
    a finished lane, and whether no other waits.
    """

    def __init__(
        self,
        setup: Setup,
        shared: Shared,
        lanes: LaneQueue,
        *,
        count: int,
        handle: Callable[[Lane], None],
        handle_batch: Callable[[Lane], list[Lane] | None],
        settle: Callable[[Lane, bool], None],
    ) -> None:
        self._setup = setup
        self._shared = shared
        self._lanes = lanes
        self._handle = handle
        self._handle_batch = handle_batch
        self._settle = settle
        self._long = setup.settings.heartbeat_seconds
        self._threads = [
            threading.Thread(target=self._work, name=f"msgworker-handler-{i}", daemon=True)
            for i in range(count)
        ]
        self._gate = threading.Lock()
        self._working = 0
        self._at_end: Callable[[], None] | None = None

    def __len__(self) -> int:
        return len(self._threads)

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
        try:
            outlive(name, self._shared.log, self._take_lanes, self._stop_for)
        finally:
            self._ended()

    def _stop_for(self, error: MsgworkerError) -> bool:
        self._shared.stop.stop_for(error)
        return False

    def _take_lanes(self) -> None:
        setup, shared, lanes, identity = (
            self._setup,
            self._shared,
            self._lanes,
            self._shared.identity,
        )
        while (lane := lanes.next()) is not None:
            ended: Sequence[Lane] | None = None
            try:
                trusted = identity.trusted()  # before the id is compared: so it is about that id
                if lane.owner != identity.tenure.id and not lanes.may_start(lane):
                    continue
                if not trusted:  # wait until the heartbeat knows whether the lease is live
                    lanes.put_back(lane)
                    if shared.stop.requested.wait(UNTRUSTED_PAUSE_SECONDS):
                        time.sleep(UNTRUSTED_PAUSE_SECONDS)  # do not spin until `close`
                    continue
                controls = shared.controls
                if controls.paused and controls.is_paused(lane.row):  # since the claim
                    lane.result = lane.result or Result(Outcome.RELEASED)
                    lane.finished_at = time.monotonic()
                elif setup.registry.most > 1:
                    ended = self._handle_batch(lane)
                    if ended is None:
                        self.run(lane)
                else:
                    self.run(lane)
            except BaseException as error:
                self._failed(lane, error)
            if ended is None:
                self._settle(lane, not lanes.ready)
            else:
                for one in ended:
                    self._settle(one, one is ended[-1] and not lanes.ready)

    def run(self, lane: Lane) -> None:
        """Run the handler of a lane, and record for how long."""
        begin = time.monotonic()
        self._handle(lane)
        lane.finished_at = end = time.monotonic()
        lane.started_at, lane.ran_seconds = begin, end - begin
        if end - begin > self._long:
            self._shared.in_flight.ran_long.append((lane.row, begin, end))
        self._lanes.took(end - begin)

    def _failed(self, lane: Lane, error: BaseException) -> None:
        """A bug of ours outside the handler is a failed try, so that the object is not blocked."""
        self._shared.in_flight.running.pop(threading.get_ident(), None)
        lane.result = lane.result or fault(error)
        lane.finished_at = time.monotonic()
        text = "message %s: an error round its handler"
        with suppress(*NO_MEMORY):
            self._shared.log.error(text, lane.row.msg_id, exc_info=error, extra=facts(lane.row))


# --- The event loop that async handlers run on: of the instance, or of the caller.

log = logger("msgworker.handling")


@dataclass(frozen=True, slots=True)
class _Escaping:
    """Carries an exception that would end the loop if it were raised there."""

    error: BaseException


_CANCELLED = object()
"""Returned for a handler whose task was cancelled, but not by us."""
LOOK_SECONDS = 1.0
"""How often a handler thread checks whether the caller's loop was closed."""
CLOSE_SECONDS = 5.0


def _once(loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any] | None) -> Callable[[], None]:
    """A function for any thread that cancels a task once: a second cancel would interrupt the
    task's cleanup."""
    called: list[bool] = []

    def cancel() -> None:
        if task is not None and not called:
            called.append(True)
            task.cancel()

    def end() -> None:
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(cancel)

    return end


class _Loop:
    """An event loop with its thread. If a task ends the loop (`sys.exit` in a child task,
    `loop.stop()`), it is started again, so that other tasks continue; if the loop fails, handler
    threads that wait get an error."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.waiting: set[Future[Any]] = set()
        self.closing = False
        self.broken = False
        self.thread = threading.Thread(target=self._run, name="msgworker-async", daemon=True)
        try:
            self.thread.start()
        except RuntimeError:  # the interpreter ends
            self.loop.close()
            raise

    def _run(self) -> None:
        while not self.closing:
            try:
                self.loop.run_forever()
                why = "stopped"
            except (SystemExit, KeyboardInterrupt) as error:
                why = f"ended by {type(error).__name__} in a task beside its handler"
            except BaseException as error:
                log.error("the event loop of async handlers has failed", exc_info=error)
                self.broken = True
                for future in list(self.waiting):
                    self._fail(future)
                return
            if not self.closing:
                log.warning("the event loop of async handlers was %s; it goes on", why)
        with suppress(Exception):
            self.loop.close()

    def _fail(self, future: Future[Any]) -> None:
        with suppress(Exception):  # it is done already
            future.set_exception(
                MsgworkerError("the event loop of async handlers has failed; see the log")
            )

    def run(self, coroutine: Any) -> Any:
        """Run a coroutine to its end; raises what it raises."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        self.waiting.add(future)
        try:
            if self.broken:
                self._fail(future)
            return future.result()
        finally:
            self.waiting.discard(future)

    def close(self) -> None:
        """Stop the loop and its thread; coroutines that still run are dropped."""
        self.closing = True
        with suppress(RuntimeError):  # it is closed already
            self.loop.call_soon_threadsafe(self.loop.stop)


class _CallersLoop:
    """The event loop of the caller, which may end it at any time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, stop: Stop) -> None:
        self._loop = loop
        self._stop = stop

    def run(self, coroutine: Any) -> Any:
        """Run a coroutine to its end; raises what it raises, LoopEnded if it will not go on."""
        try:
            future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        except RuntimeError as error:
            self._refuse_closed(error)
            raise
        while not wait([future], LOOK_SECONDS).done:
            self._refuse_closed()
        return future.result()

    def _refuse_closed(self, error: BaseException | None = None) -> None:
        if self._loop.is_closed():
            text = "the event loop in which async handlers run was closed, with handlers in it"
            self._stop.stop_for(
                MsgworkerError(f"{text}; leave the block of app.running(...) first")
            )
            raise LoopEnded(text) from error


class AsyncCalls:
    """Runs async handlers in one event loop; called by handler threads.

    pid: the process; a forked child that returns from a handler is ended. loop: the caller's, see
    App.running; None = one on a thread of its own, started at the first async handler.
    """

    def __init__(self, pid: int, loop: asyncio.AbstractEventLoop | None, stop: Stop) -> None:
        self._pid = pid
        self._stop = stop
        self._lock = threading.Lock()
        self._callers = None if loop is None else _CallersLoop(loop, stop)
        self._loop: _Loop | None = None

    def run(self, coroutine: Any, timeout: float | None, running: Execution) -> Any:
        """Run a coroutine to its end. After `timeout` seconds it is cancelled and HandlerTimeout
        raised. It is also cancelled when an operator cancels its message, and at the end of the
        grace time."""
        value = self.wait_for(self._limited(coroutine, timeout, running), coroutine)
        if isinstance(value, _Escaping):
            raise value.error
        if value is _CANCELLED:
            # With its loop, say, which ends all that runs there: then the block ends, too.
            running.stopped = self._stop.requested.wait(LOOK_SECONDS)
            raise asyncio.CancelledError("the task of the handler was cancelled by other code")
        return value

    def wait_for(self, *coroutines: Any) -> Any:
        """Run a coroutine to its end; the others are those that it awaits. Raises what it raises,
        and LoopEnded."""
        try:
            return (self._callers or self._get()).run(coroutines[0])
        except LoopEnded:
            for one in coroutines:
                if inspect.getcoroutinestate(one) == inspect.CORO_CREATED:
                    one.close()
            raise
        except RuntimeError as error:
            self._say_which_loop(error)
            raise

    async def _limited(self, coroutine: Any, timeout: float | None, running: Execution) -> Any:
        task = asyncio.current_task()
        began = asyncio.get_running_loop().time()
        end = _once(asyncio.get_running_loop(), task)
        running.end_task = end
        if running.cancel_reason is not None:  # cancelled before there was a task
            end()
        try:
            async with asyncio.timeout(timeout) as limit:
                try:
                    value = await coroutine
                finally:
                    end_if_forked(self._pid)
            took = asyncio.get_running_loop().time() - began
            late = timeout is not None and took > timeout  # it blocked, or swallowed the cancel
            if late and not isinstance(value, Reject | RetryLater):
                raise HandlerTimeout(
                    f"timeout: the handler took {took:.1f} s, its limit is {timeout:g} s"
                )
            return value
        except TimeoutError:
            if limit.expired():
                raise HandlerTimeout(
                    f"timeout: the handler ran longer than {timeout:g} s"
                ) from None
            raise
        except (SystemExit, KeyboardInterrupt) as error:
            return _Escaping(error)
        except asyncio.CancelledError:
            by_us = running.stopped or running.cancel_reason is not None
            if self._callers is not None and not by_us and task is not None and task.cancelling():
                return _CANCELLED
            raise
        finally:
            running.end_task = None

    @staticmethod
    def _say_which_loop(error: RuntimeError) -> None:
        """Add to an error about another event loop what would help."""
        with suppress(Exception):  # its text may fail
            text = str(error)
            if any(part in text for part in _OF_ANOTHER_LOOP) and _HINT not in text:
                error.args = (f"{text}. {_HINT}", *error.args[1:])

    def _get(self) -> _Loop:
        with self._lock:
            if self._loop is None or self._loop.broken:
                self._loop = _Loop()
            return self._loop

    def close(self, last: Callable[[], Coroutine[Any, Any, None]] | None) -> None:
        """Stop the loop, if it is ours; coroutines that still run are dropped. last: what is to run
        there before."""
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is not None:
            if last is not None and not loop.broken:
                with suppress(Exception):  # other code may block the loop
                    asyncio.run_coroutine_threadsafe(last(), loop.loop).result(CLOSE_SECONDS)
            loop.close()
            loop.thread.join(CLOSE_SECONDS)


_OF_ANOTHER_LOOP = ("attached to a different loop", "bound to a different event loop")
_HINT = (
    "Async handlers run in a loop of msgworker's own, unless the worker was started by "
    "`async with app.running(...)`: what belongs to a loop, such as an AsyncEngine, is made for "
    "the loop that uses it, see docs/guides/asyncio.md"
)


def runs_here(loop: asyncio.AbstractEventLoop | None) -> bool:
    """Whether this thread is the one in which the loop runs, and code of it calls."""
    if loop is None:
        return False
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False
