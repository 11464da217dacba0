"""The event loop that async handlers run on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from msgworker.errors import HandlerTimeout, MsgworkerError, Reject, RetryLater
from msgworker.instance.running.in_flight import Execution
from msgworker.instance.usercode import no_child_returns
from msgworker.logs import logger

log = logger("msgworker.handling")


@dataclass(frozen=True, slots=True)
class _Escaping:
    """Carries an exception that would end the loop if it were raised there."""

    error: BaseException


def _once(loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any] | None) -> Callable[[], None]:
    """A function for any thread that cancels a task, once: a second cancel would interrupt what it
    does at its end."""
    told: list[bool] = []

    def cancel() -> None:
        if task is not None and not told:
            told.append(True)
            task.cancel()

    def end() -> None:
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(cancel)

    return end


class _Loop:
    """A loop with its thread. What ends it (`sys.exit` in a child task, `loop.stop()`) is no end of
    the others' tasks: it is begun again. If that is not possible, those that wait get an error."""

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
        with suppress(Exception):  # it has ended
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
        """Stop it; its thread ends, and coroutines that still run are dropped."""
        self.closing = True
        with suppress(RuntimeError):  # closed
            self.loop.call_soon_threadsafe(self.loop.stop)


class LoopThread:
    """One event loop on one thread, started at the first async handler.

    pid: the process; a child that returns from a handler here ends.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._lock = threading.Lock()
        self._loop: _Loop | None = None

    def run(self, coroutine: Any, timeout: float | None, running: Execution) -> Any:
        """Run a coroutine to its end; after `timeout` it is cancelled and HandlerTimeout raised.
        It is cancelled too when an operator cancels its message, and at the end of a stop."""
        value = self._get().run(self._limited(coroutine, timeout, running))
        if isinstance(value, _Escaping):
            raise value.error
        return value

    async def _limited(self, coroutine: Any, timeout: float | None, running: Execution) -> Any:
        began = asyncio.get_running_loop().time()
        end = _once(asyncio.get_running_loop(), asyncio.current_task())
        running.end_task = end
        if running.cancel_reason is not None:  # before there was a task
            end()
        try:
            async with asyncio.timeout(timeout) as limit:
                with no_child_returns(self._pid):
                    value = await coroutine
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
        finally:
            running.end_task = None

    def _get(self) -> _Loop:
        with self._lock:
            if self._loop is None or self._loop.broken:
                self._loop = _Loop()
            return self._loop

    def close(self) -> None:
        """Stop the loop; coroutines that still run are dropped."""
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is not None:
            loop.close()
            loop.thread.join(5)
