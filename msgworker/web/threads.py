"""Threads that wait for the database, so that the event loop need not: each call is an `Attempt`.

A server may stop answering while its kernel, a pooler or a proxy still acknowledges what is sent:
then no timeout of its own or of TCP ends a wait. So what holds a connection for longer than it may
is cut off from it, by a thread that uses no database, as the watchdog of an instance does. All of
these threads are daemons: one that waits nevertheless does not keep the process from ending.
"""

from __future__ import annotations

import functools
import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar

from msgworker.dialects import Attempt
from msgworker.logs import logger

R = TypeVar("R")
LOOK_SECONDS = 1.0
STUCK_SECONDS = 60.0
"""If all threads are busy for so long with one call each, the process does not work any more."""
log = logger("msgworker.web")


class Watch:
    """Cuts the connections of attempts that wait for too long."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._followed: dict[Attempt, tuple[float, str]] = {}
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    @contextmanager
    def following(self, attempt: Attempt, seconds: float, what: str) -> Iterator[None]:
        """The block, on this thread, is the attempt; no use of a connection takes longer."""
        with self._lock:
            self._followed[attempt] = seconds, what
            if self._thread is None:
                self._thread = _daemon(self._run, "msgworker-web-watch")
        try:
            with attempt.running():
                yield
        finally:
            with self._lock:
                del self._followed[attempt]

    def close(self) -> None:
        """End its thread."""
        self._ended.set()

    def _run(self) -> None:
        told: set[Attempt] = set()
        while not self._ended.wait(LOOK_SECONDS):
            with self._lock:
                followed = list(self._followed.items())
            late = {one: of for one, of in followed if one.held_seconds > of[0]}
            for attempt, (seconds, what) in late.items():
                if attempt not in told:
                    text = "%s: no answer of the database for %.0f s, its connection is cut"
                    log.warning(text, what, seconds)
                attempt.cut()
            told = set(late)


class Threads:
    """So many threads; `seconds`: how long a call may hold a connection."""

    def __init__(self, count: int, watch: Watch, seconds: float) -> None:
        self._count = count
        self._watch = watch
        self._seconds = seconds
        self._lock = threading.Lock()
        self._calls: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._busy: dict[int, float] = {}

    def submit(self, attempt: Attempt, call: Callable[[], R]) -> Future[R]:
        """Run it in the next thread that is free."""
        with self._lock:
            if len(self._threads) < self._count:
                number = len(self._threads)
                run = functools.partial(self._run, number)
                self._threads.append(_daemon(run, f"msgworker-web-{number}"))
        made: Future[R] = Future()
        self._calls.put((made, attempt, call))
        return made

    @property
    def busy(self) -> int:
        """How many calls run."""
        return len(self._busy)

    @property
    def stuck(self) -> bool:
        """Whether none has been free for a minute."""
        now, since = time.monotonic(), list(self._busy.values())
        late = sum(now - one > STUCK_SECONDS for one in since)
        return late >= self._count

    def close(self) -> None:
        """End them, each after its call."""
        for _ in range(self._count):
            self._calls.put(None)

    def _run(self, number: int) -> None:
        while (given := self._calls.get()) is not None:
            made, attempt, call = given
            if not made.set_running_or_notify_cancel():
                continue
            self._busy[number] = time.monotonic()
            try:
                with self._watch.following(attempt, self._seconds, "a read of the dashboard"):
                    found = call()
            except BaseException as error:  # for the one who waits
                made.set_exception(error)
            else:
                made.set_result(found)
            del self._busy[number], given, made, attempt, call


def _daemon(run: Callable[[], None], name: str) -> threading.Thread:
    made = threading.Thread(target=run, name=name, daemon=True)
    made.start()
    return made
