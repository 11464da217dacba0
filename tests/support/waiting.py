"""Waiting with a deadline, for a condition or a thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from msgworker import Worker

PATIENCE_SECONDS = 60.0


def until(
    condition: Callable[[], Any],
    what: str,
    *,
    seconds: float = PATIENCE_SECONDS,
    every: float = 0.02,
) -> Any:
    """Wait until the condition holds and return its value; fail with `what` after the deadline.

    every: seconds between the first looks; up to five times as long where it takes time.
    """
    deadline = time.monotonic() + seconds
    pause, longest = threading.Event(), 5 * every
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        pause.wait(every)
        every = min(1.2 * every, longest)
    return found


def launched(worker: Worker) -> Worker:
    """The same worker, which has started."""
    worker.start()
    return worker


def in_thread(work: Callable[[], Any]) -> Callable[[], Any]:
    """Run in a thread; the function returned joins it, and returns or raises what came out."""
    out: list[Any] = []
    trouble: list[BaseException] = []

    def run() -> None:
        try:
            out.append(work())
        except BaseException as error:
            trouble.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def join() -> Any:
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive(), f"{work} has not ended"
        if trouble:
            raise trouble[0]
        return out[0]

    return join


def at_once(*works: Callable[[], Any]) -> list[Any]:
    """What comes out of each, in a thread of its own at the same time; raises the first error."""
    return [join() for join in [in_thread(work) for work in works]]
