"""The event loop that async handlers run on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from msgworker.errors import (
    HandlerTimeout,
    Reject,
    RetryLater,
)
from msgworker.instance.running.hand import Running
from msgworker.instance.usercode import no_child_returns

if TYPE_CHECKING:  # what only some handlers use is imported for them alone
    pass


@dataclass(frozen=True, slots=True)
class _Escaping:
    """Carries an exception that would end the loop's thread, and hang all waiters, if raised
    there."""

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


class LoopThread:
    """One event loop on one thread, started at the first async handler.

    pid: the process; a child that returns from a handler here ends.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def run(self, coroutine: Any, timeout: float | None, running: Running) -> Any:
        """Run a coroutine to its end; after `timeout` it is cancelled and HandlerTimeout raised.
        It is cancelled too when an operator cancels its message."""
        limited = self._limited(coroutine, timeout, running)
        future = asyncio.run_coroutine_threadsafe(limited, self._get())
        value = future.result()
        if isinstance(value, _Escaping):
            raise value.error
        return value

    async def _limited(self, coroutine: Any, timeout: float | None, running: Running) -> Any:
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

    def _get(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                loop = asyncio.new_event_loop()
                thread = threading.Thread(
                    target=loop.run_forever, name="msgworker-async", daemon=True
                )
                try:
                    thread.start()
                except RuntimeError:  # the interpreter ends
                    loop.close()
                    raise
                self._loop, self._thread = loop, thread
            return self._loop

    def close(self) -> None:
        """Stop the loop; coroutines that still run are dropped."""
        with self._lock:
            if self._loop is None or self._thread is None:
                return
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(5)
            if not self._thread.is_alive():
                self._loop.close()
            self._loop = self._thread = None
