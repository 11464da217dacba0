"""The event loop of async handlers: of the instance, or of the caller."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from msgworker.errors import HandlerTimeout, MsgworkerError, Reject, RetryLater
from msgworker.instance.connections import end_if_forked
from msgworker.instance.running.in_flight import Execution
from msgworker.instance.running.outcome import LoopEnded
from msgworker.instance.stop import Stop
from msgworker.logs import logger

T = TypeVar("T")
log = logger("msgworker.handling")


@dataclass(frozen=True, slots=True)
class _Escaping:
    """Carries an exception that would end the loop if it were raised there."""

    error: BaseException


CANCELLED_BY_OTHERS = object()
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
    `loop.stop()`), it goes on; if it fails, handler threads that wait get an error."""

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

    def wait(self, future: Future[Any]) -> Any:
        """Wait for what the loop is at; returns or raises what it does."""
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
        self.loop = loop
        self._stop = stop

    def wait(self, future: Future[Any]) -> Any:
        """Wait for what the loop is at; returns or raises what it does, or LoopEnded."""
        while not wait([future], LOOK_SECONDS).done:
            self.refuse_closed()
        return future.result()

    def refuse_closed(self, error: BaseException | None = None) -> None:
        """Raise LoopEnded, and stop the instance, if the loop is closed."""
        if self.loop.is_closed():
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
        """Run the coroutine of a handler to its end. It is cancelled after `timeout` seconds, when
        an operator cancels its message, and at the end of the grace time."""
        found = self.wait_for(self.limited(coroutine, timeout, running), coroutine)
        return self.value_of(found, running)

    def wait_for(self, *coroutines: Any) -> Any:
        """Run a coroutine to its end; the others are those that it awaits. Raises LoopEnded."""
        loop = self._callers or self._get()
        try:
            try:
                future = asyncio.run_coroutine_threadsafe(coroutines[0], loop.loop)
            except RuntimeError as error:
                self._refuse_closed(error)
                raise
            return loop.wait(future)
        except LoopEnded:
            for one in coroutines:
                if inspect.getcoroutinestate(one) == inspect.CORO_CREATED:  # it would warn
                    one.close()
            raise
        except RuntimeError as error:
            say_which_loop(error)
            raise

    def while_there(self, begin: Callable[[], object], ended: Future[T]) -> T:
        """Call `begin` in the loop and wait until `ended` is set. Raises LoopEnded."""
        loop = self._callers or self._get()
        try:
            loop.loop.call_soon_threadsafe(begin)
        except RuntimeError as error:
            self._refuse_closed(error)
            raise
        found: T = loop.wait(ended)
        return found

    def _refuse_closed(self, error: RuntimeError) -> None:
        if self._callers is not None:
            self._callers.refuse_closed(error)

    def value_of(self, found: Any, running: Execution) -> Any:
        """What a handler has returned, or raised, from what `limited` has returned."""
        if isinstance(found, _Escaping):
            raise found.error
        if found is CANCELLED_BY_OTHERS:
            # By a stop, perhaps: if its loop ends all that runs there, the block ends, too.
            running.stopped = self._stop.requested.wait(LOOK_SECONDS)
            raise asyncio.CancelledError("the task of the handler was cancelled by other code")
        return found

    async def limited(self, coroutine: Any, timeout: float | None, running: Execution) -> Any:
        """Await a handler, as its task; see `run` and `value_of`."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        running.end_task = end = _once(loop, task)
        if running.cancel_reason is not None:  # cancelled before there was a task
            end()
        try:
            if timeout is None:
                return await self._here(coroutine)
            return await self._in_time(coroutine, timeout)
        except (SystemExit, KeyboardInterrupt) as error:
            return _Escaping(error)
        except asyncio.CancelledError:
            by_us = running.stopped or running.cancel_reason is not None
            if self._callers is not None and not by_us and task is not None and task.cancelling():
                return CANCELLED_BY_OTHERS
            raise
        finally:
            running.end_task = None

    async def _here(self, coroutine: Any) -> Any:
        try:
            return await coroutine
        finally:
            end_if_forked(self._pid)

    async def _in_time(self, coroutine: Any, timeout: float) -> Any:
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            async with asyncio.timeout(timeout) as limit:
                value = await self._here(coroutine)
        except TimeoutError:
            if not limit.expired():
                raise
            raise HandlerTimeout(f"timeout: the handler ran longer than {timeout:g} s") from None
        took = loop.time() - began  # late if it blocked, or swallowed the cancel
        if took > timeout and not isinstance(value, Reject | RetryLater):
            text = f"timeout: the handler took {took:.1f} s, its limit is {timeout:g} s"
            raise HandlerTimeout(text)
        return value

    def _get(self) -> _Loop:
        with self._lock:
            if self._loop is None or self._loop.broken:
                try:
                    self._loop = _Loop()
                except RuntimeError as error:
                    if not self._stop.requested.is_set():
                        raise
                    text = "the program ends: no thread starts for the loop of async handlers"
                    raise LoopEnded(text) from error
            return self._loop

    def close(self, last: Callable[[], Coroutine[Any, Any, None]] | None) -> None:
        """Stop the loop, if it is ours; what still runs is dropped. last: to be run before."""
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is not None:
            if last is not None and not loop.broken:
                with suppress(Exception):  # other code may block the loop
                    asyncio.run_coroutine_threadsafe(last(), loop.loop).result(CLOSE_SECONDS)
            loop.close()
            loop.thread.join(CLOSE_SECONDS)


def say_which_loop(error: BaseException) -> None:
    """Add to an error about another event loop what would help."""
    with suppress(Exception):  # its text may fail
        text = str(error)
        if any(part in text for part in _OF_ANOTHER_LOOP) and _HINT not in text:
            error.args = (f"{text}. {_HINT}", *error.args[1:])


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
