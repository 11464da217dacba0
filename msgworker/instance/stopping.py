"""How a running worker is asked to stop: in order, or at once.

The first SIGTERM or SIGINT asks for a stop in order. What comes within INSIST_SECONDS of it is the
same stop: a manager that signals a whole group reaches a process by several ways, and people press
Ctrl-C twice. A later one insists: the stop goes on without waiting for handlers, for HURRY_SECONDS
at most, and the process ends by that signal's default action. One later still ends it where it
stands.

An instance stops once, whoever asks: see `Ending`. A program that ends without a stop is stopped by
`AT_EXIT`.
"""

from __future__ import annotations

import atexit
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Any, Protocol

INSIST_SECONDS = 2.0
"""So long after a signal others are the same stop."""
HURRY_SECONDS = 3.0
"""What a stop at once may take to give back what has not started."""
HELP_SECONDS = 0.5
"""So long it may take in the usual way, before it is given back beside a settle that hangs."""
NUMBERS = (signal.SIGTERM, signal.SIGINT)
EXIT_GRACE = 3.0
"""So long handlers may go on where the program ends without a stop."""
EXIT_SECONDS = 5.0
"""What all stops may take there."""


class Ending:
    """The one stop of an instance: the first thread that comes does it, others wait for its end.

    until: when handlers must have ended (monotonic), the earliest that anybody has said.
    over: the stop is complete.
    """

    def __init__(self) -> None:
        self._callers: list[list[int]] = []
        self._complete = False
        self.until: float | None = None
        self.over = threading.Event()

    def ask(self, grace: float) -> float:
        """Give handlers so many seconds at most; returns until when."""
        until = time.monotonic() + grace
        self.until = until if self.until is None else min(self.until, until)
        return self.until

    @property
    def begun(self) -> bool:
        """Whether somebody stops the instance, or has."""
        return bool(self._callers)

    def do(self, stop: Callable[[], bool]) -> bool:
        """Stop, or wait for the stop; whether every handler has ended in time.

        A thread that comes again, from a signal handler in the middle of its own stop, does not
        wait for itself: False. So nothing here takes a lock.
        """
        me = [threading.get_ident()]
        self._callers.append(me)
        first = self._callers[0]
        if first is me:
            try:
                self._complete = stop()
            finally:
                self.over.set()
        elif first != me:
            self.over.wait()
        return self._complete


class Keeper:
    """A thread that stops an instance when it is asked to, of which nobody waits for the end.

    It waits from the start on: no thread can be started while the interpreter ends.
    """

    def __init__(self, stop: Callable[[], object]) -> None:
        self._stop = stop
        self._asked = threading.Event()
        self._thread = threading.Thread(target=self._run, name="msgworker-keeper", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self._asked.wait()
        self._stop()

    def ask(self) -> None:
        """Have the instance stopped; returns at once."""
        self._asked.set()

    def dismiss(self) -> None:
        """The instance has stopped: end the thread."""
        self._asked.set()
        if self._thread is not threading.current_thread():
            self._thread.join(HELP_SECONDS)


class Unstopped(Protocol):
    """An instance that runs, as seen by who ends the program."""

    ending: Ending

    @property
    def pid(self) -> int:
        """Its process."""

    def end_with_program(self) -> None:
        """Have it stopped, by a thread that is there; returns at once."""

    def say_what_is_left(self) -> None:
        """Log what a stop that takes too long leaves to recovery."""


class AtExit:
    """Stops the instances that still run when the program ends: after all other threads that are
    no daemons have ended, while ours, which are, still run. In a forked child it does nothing."""

    def __init__(self) -> None:
        self._running: set[Unstopped] = set()
        self._lock = threading.Lock()

    def add(self, instance: Unstopped) -> None:
        """An instance has started."""
        with self._lock:
            if not self._running:
                atexit.register(self._stop_all)
            self._running.add(instance)

    def discard(self, instance: Unstopped) -> None:
        """An instance has stopped."""
        with self._lock:
            self._running.discard(instance)
            if not self._running:
                atexit.unregister(self._stop_all)

    def _stop_all(self) -> None:
        here = os.getpid()
        mine = [instance for instance in list(self._running) if instance.pid == here]
        deadline = time.monotonic() + EXIT_SECONDS
        for instance in mine:
            instance.end_with_program()
        for instance in mine:
            if not instance.ending.over.wait(max(0.0, deadline - time.monotonic())):
                instance.say_what_is_left()


AT_EXIT = AtExit()


class Beside:
    """A call that runs in a thread of its own, so that this one can hear signals; in this one where
    there is no memory for another."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._work = work
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="msgworker-stop", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            self._run()

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:
            self._error = error

    def goes_on(self, seconds: float) -> bool:
        """Wait so long for its end; whether it has not come."""
        if self._thread.ident is not None:
            self._thread.join(seconds)
        return self._thread.is_alive()

    def result(self) -> None:
        """Raise what the call raised."""
        if self._error is not None:
            raise self._error


def end_by(number: int) -> None:
    """End this process by the default action of a signal; in the main thread only."""
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)
    os._exit(128 + number)  # process 1 of a container has no default action


class Asked:
    """Whether a stop is asked for. Whoever asks may be a signal handler: nothing here takes a lock,
    which the thread that the signal interrupts may hold just then.

    in_order: a stop is asked for. at_once: somebody insists; the signal by which to end. begun:
    there is work to stop; while there is none, who insists ends the process. ends_process: who has
    stopped at once ends the process, too; else that is for whoever has passed the word on.
    """

    def __init__(self, *, ends_process: bool = True) -> None:
        self._rung: SimpleQueue[None] = SimpleQueue()
        self.ends_process = ends_process
        self.in_order = False
        self.at_once: int | None = None
        self.begun = False

    def stop(self) -> None:
        """Ask for a stop in order; any number of times."""
        self.in_order = True
        self._rung.put(None)

    def insist(self, number: int) -> None:
        """Ask for a stop at once; the first signal stays the one by which to end."""
        self.at_once = self.at_once or number
        self.stop()

    def wait(self, timeout: float) -> None:
        """Wait for a stop to be asked for, by one waiter."""
        if not self.in_order:
            with suppress(Empty):
                self._rung.get(timeout=timeout)


def words_of(heard: Sequence[float]) -> tuple[int, float]:
    """How often somebody has asked, and when last (-inf: never); heard: when signals came."""
    words, last = 0, float("-inf")
    for at in heard:
        if at - last >= INSIST_SECONDS:
            words, last = words + 1, at
    return words, last


class Signals:
    """While a block runs, SIGTERM and SIGINT are words for `asked`; in the main thread only.

    Afterwards they are what they were, but for one that still belongs to a stop that was asked for
    in the block: it does nothing.

    last: what somebody gets who insists once more.
    """

    def __init__(self, asked: Asked, last: Callable[[int], None] = end_by) -> None:
        self._asked = asked
        self._last = last
        self._before: dict[int, Any] = {}
        self._heard: list[float] = []

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            for number in NUMBERS:
                self._before[number] = signal.signal(number, self.received)
        return self

    def _is_the_same(self) -> bool:
        return time.monotonic() - words_of(self._heard)[1] < INSIST_SECONDS

    def received(self, number: int, frame: FrameType | None) -> None:
        # Another signal may come in the middle of this: both then find the same and say the same.
        self._heard.append(time.monotonic())
        words, _ = words_of(self._heard)
        if words == 1:
            self._asked.stop()
        elif words == 2 and self._asked.begun:
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
        """The interpreter gives signals their default action back while the process ends."""
        for number in NUMBERS:
            if signal.getsignal(number) == self._late and self._is_the_same():
                signal.signal(number, signal.SIG_IGN)
