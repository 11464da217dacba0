"""Start and stop of workers, and requests to stop: in order, or at once."""

from __future__ import annotations

import asyncio
import atexit
import os
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from contextvars import ContextVar
from math import inf
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Any, Self, TypeVar

from msgworker.errors import MsgworkerError, RuleChanged

# --- What can be started and stopped: the worker of one database, or those of several.

T = TypeVar("T")
GRACE = 30.0
"""Seconds that running handlers may take at a stop."""


class Working(ABC):
    """Stops what was started at the end of a `with` block."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    @abstractmethod
    def stop(self, grace: float = GRACE) -> bool:
        """Stop in order; True if every handler ended within `grace` seconds."""


# --- Calls in a thread of their own, so that the thread that waits can handle signals, or is free
# for an event loop.


def beside(work: Callable[[], T]) -> Future[T]:
    """Call `work` in a thread of its own; here if no other thread can be started."""
    ended: Future[T] = Future()

    def run() -> None:
        try:
            ended.set_result(work())
        except BaseException as error:
            ended.set_exception(error)

    try:
        threading.Thread(target=run, name="msgworker-beside", daemon=True).start()
    except RuntimeError:
        run()
    return ended


async def in_thread(work: Callable[[], T], interrupted: Callable[[], object] = lambda: None) -> T:
    """Call `work` in a thread of its own, and wait for its end; its error is raised here. If the
    waiting task is cancelled, `interrupted` is called, and CancelledError raised after the end."""
    waiting = asyncio.wrap_future(beside(work))
    cancelled: asyncio.CancelledError | None = None
    while not waiting.done():
        try:
            await asyncio.wait([waiting])
        except asyncio.CancelledError as error:
            cancelled = error
            interrupted()
    if cancelled is not None:
        raise cancelled from waiting.exception()
    return waiting.result()


# --- Stop requests for a running worker: in order, or at once.
#
# The first SIGTERM, SIGINT, SIGHUP or SIGQUIT requests an orderly stop. Signals within
# INSIST_SECONDS of it count as the same stop: a manager that signals a whole group may reach a
# process several times, and people press Ctrl-C twice. A later signal stops at once: the stop no
# longer waits for handlers, takes HURRY_SECONDS at most, and the process ends by that signal's
# default action. A third one ends it immediately.
#
# An instance stops once, see `StopOnce`.

INSIST_SECONDS = 2.0
"""Seconds after a signal in which further ones count as the same stop."""
HURRY_SECONDS = 3.0
"""The most seconds that a stop at once takes to release what has not started."""
WAIT_SECONDS = 0.005
"""How often a thread that waits for a stop checks whether it is complete."""
HELP_SECONDS = 0.5
"""The part of HURRY_SECONDS after which lanes are released beside a settle that hangs."""
ASKING = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")
"""The signals that request a stop, as far as the system has them: SIGHUP of a closed terminal, and
SIGQUIT, which base images of containers send."""
NUMBERS = tuple(getattr(signal, name) for name in ASKING if hasattr(signal, name))


def asking() -> list[signal.Signals]:
    """Those of `NUMBERS` that this process listens to: without SIGHUP or SIGQUIT if that is
    ignored, as under `nohup`."""
    always = (signal.SIGTERM, signal.SIGINT)
    return [n for n in NUMBERS if n in always or signal.getsignal(n) is not signal.SIG_IGN]


_WITHIN: ContextVar[object] = ContextVar("msgworker_within", default=None)


class Stop:
    """Whether an instance is to stop, why, and until when.

    requested: set by any thread, read by all. stopped_for: the error for which it stops by itself;
    written by any thread (`stop_for`), read by the thread that waits for the end. give_up_at: when
    the stop no longer waits for the database (monotonic); written by the stop, read by all.
    """

    __slots__ = ("give_up_at", "requested", "stopped_for")

    def __init__(self, requested: threading.Event | None = None) -> None:
        self.requested = requested or threading.Event()
        self.stopped_for: MsgworkerError | None = None
        self.give_up_at: float | None = None

    def stop_for(self, error: MsgworkerError) -> None:
        """Make the instance stop in order, for this error."""
        self.stopped_for = error
        self.requested.set()

    @property
    def rule_changed(self) -> bool:
        """Whether it stops because the rule of the table has changed: then no lease is renewed."""
        return isinstance(self.stopped_for, RuleChanged)

    def gave_up(self) -> bool:
        """Whether the stop no longer waits for the database."""
        return self.give_up_at is not None and time.monotonic() >= self.give_up_at

    def enter(self) -> None:
        """Mark this thread as one of the instance, and copies of its context: tasks of the event
        loop, `asyncio.to_thread`, the items of a fan-out."""
        _WITHIN.set(self)

    @property
    def within(self) -> bool:
        """Whether this thread runs code of the instance, so that it must not wait for a stop."""
        return _WITHIN.get() is self


class StopOnce:
    """The only stop of an instance, in the keeper's thread. A signal handler may call any method
    while its thread is inside another one, so nothing here takes a lock.

    until: when handlers must have ended (monotonic). over: the stop is complete.
    """

    def __init__(self) -> None:
        self._callers: list[object] = []
        self._complete = False
        self._error: BaseException | None = None
        self.until: float | None = None
        self.over = threading.Event()

    def limit_grace(self, grace: float) -> float:
        """Limit the grace time of handlers; returns when it ends (monotonic)."""
        until = time.monotonic() + grace
        self.until = until if self.until is None else min(self.until, until)
        return self.until

    @property
    def begun(self) -> bool:
        return bool(self._callers)

    def do(self, stop: Callable[[], bool]) -> None:
        """Stop, if no other thread does."""
        me = object()
        self._callers.append(me)
        if self._callers[0] is not me:
            return
        try:
            self._complete = stop()
        except BaseException as error:
            self._error = error
        finally:
            self.over.set()

    def ends_within(self, seconds: float) -> bool:
        """Wait at most so long for its end; returns whether it has ended."""
        until = time.monotonic() + seconds
        while not self.over.is_set() and time.monotonic() < until:
            time.sleep(WAIT_SECONDS)
        return self.over.is_set()

    def result(self) -> bool:
        """Whether every handler ended in time; raises the error of a stop that failed."""
        if self._error is not None:
            raise self._error
        return self._complete


def end_by(number: int) -> None:
    """End this process by the default action of a signal; in the main thread only."""
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)
    os._exit(128 + number)  # process 1 of a container has no default action


class StopRequest:
    """Stop requests for one waiting thread. A signal handler may make them, so nothing here takes a
    lock, which the interrupted thread may hold.

    in_order: a stop is requested. grace: the shortest one of all stops. at_once: the signal of a
    requested stop at once, by which the process is to end. begun: there is work to stop; otherwise
    a stop at once ends the process. ends_process: a stop at once also ends the process; False if
    the caller does that.
    """

    def __init__(self, *, ends_process: bool = True) -> None:
        self._rung: SimpleQueue[None] = SimpleQueue()
        self.ends_process = ends_process
        self.in_order = False
        self.grace = inf
        self.at_once: int | None = None
        self.begun = False

    def stop(self, grace: float = inf) -> None:
        """Request an orderly stop; any number of times."""
        self.grace = min(self.grace, grace)
        self.in_order = True
        self._rung.put(None)

    def insist(self, number: int) -> None:
        """Request a stop at once; the first signal remains the one by which to end."""
        self.at_once = self.at_once or number
        self.stop()

    def wait(self, timeout: float) -> None:
        """Wait for a stop request; for a single waiter."""
        if not self.in_order:
            with suppress(Empty):
                self._rung.get(timeout=timeout)


def requests_of(received: Sequence[float]) -> tuple[int, float]:
    """The number of stop requests, and the time of the last one, of signals at these times."""
    count, last = 0, float("-inf")
    for at in received:
        if at - last >= INSIST_SECONDS:
            count, last = count + 1, at
    return count, last


class Signals:
    """While the block runs, `asking()` signals become requests in `asked`; main thread only.
    Further signals of a stop that was requested are ignored afterwards, too.

    last: called at a third signal, or at a second one if there is no work to stop.
    """

    def __init__(self, asked: StopRequest, last: Callable[[int], None] = end_by) -> None:
        self._asked = asked
        self._last = last
        self._before: dict[int, Any] = {}
        self._received_at: list[float] = []

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            for number in asking():
                self._before[number] = signal.signal(number, self.received)
        return self

    def _is_the_same(self) -> bool:
        return time.monotonic() - requests_of(self._received_at)[1] < INSIST_SECONDS

    def received(self, number: int, frame: FrameType | None) -> None:
        # Another signal may interrupt this call: then both have the same effect.
        self._received_at.append(time.monotonic())
        count, _ = requests_of(self._received_at)
        if count == 1:
            self._asked.stop()
        elif count == 2 and self._asked.begun:
            self._asked.insist(number)
        else:
            self._last(number)

    def __exit__(self, *exc: object) -> None:
        late = self._is_the_same()
        for number, handler in self._before.items():
            signal.signal(number, self._late if late else handler)
        if late and self._before:
            atexit.register(self._at_exit)

    def _late(self, number: int, frame: FrameType | None) -> None:
        if not self._is_the_same():
            signal.signal(number, self._before[number])
            signal.raise_signal(number)

    def _at_exit(self) -> None:
        """Ignore late signals: the interpreter restores default actions while the process ends."""
        for number in NUMBERS:
            if signal.getsignal(number) == self._late and self._is_the_same():
                signal.signal(number, signal.SIG_IGN)
