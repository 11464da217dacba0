"""How a running worker is asked to stop: in order, or at once.

The first SIGTERM or SIGINT asks for a stop in order. What comes within INSIST_SECONDS of it is the
same stop: a manager that signals a whole group reaches a process by several ways, and people press
Ctrl-C twice. A later one insists: the stop goes on without waiting for handlers, for HURRY_SECONDS
at most, and the process ends by that signal's default action. One later still ends it where it
stands.
"""

from __future__ import annotations

import atexit
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Any

INSIST_SECONDS = 2.0
"""So long after a signal others are the same stop."""
HURRY_SECONDS = 3.0
"""What a stop at once may take to give back what has not started."""
HELP_SECONDS = 0.5
"""So long it may take in the usual way, before it is given back beside a settle that hangs."""
NUMBERS = (signal.SIGTERM, signal.SIGINT)


class Beside:
    """A call that runs in a thread of its own, so that this one can hear signals."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._work = work
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="msgworker-stop", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:
            self._error = error

    def goes_on(self, seconds: float) -> bool:
        """Wait so long for its end; whether it has not come."""
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


class Asked:
    """Whether a stop is asked for. Whoever asks may be a signal handler: nothing here takes a lock,
    which the thread that the signal interrupts may hold just then.

    in_order: a stop is asked for. at_once: somebody insists; the signal by which to end. begun:
    there is work to stop; while there is none, who insists ends the process.
    """

    def __init__(self) -> None:
        self._rung: SimpleQueue[None] = SimpleQueue()
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
        self._words = 0
        self._word_at = 0.0

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            for number in NUMBERS:
                self._before[number] = signal.signal(number, self._on)
        return self

    def _is_the_same(self) -> bool:
        return self._words > 0 and time.monotonic() - self._word_at < INSIST_SECONDS

    def _on(self, number: int, frame: FrameType | None) -> None:
        if self._is_the_same():
            return
        self._word_at = time.monotonic()
        self._words += 1
        if self._words == 1:
            self._asked.stop()
        elif self._words == 2 and self._asked.begun:
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
