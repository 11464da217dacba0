"""The threads that run handlers, and the lanes waiting for them.

A lane is handled one message at a time: its next handler starts only after the settle that moved
the flag has committed. Threads take lanes one by one from a common queue; only as many threads are
woken as the work is worth, because waking a thread costs more than a short handler.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress

from msgworker.instance.handling import Result
from msgworker.instance.state import Lane, State
from msgworker.message import Outcome

WORTH_A_THREAD_SECONDS = 0.002
UNKNOWN_SECONDS = 1.0  # of a handler while none has ended: worth waking everybody
NEWEST_SHARE = 0.05
UNTRUSTED_PAUSE_SECONDS = 0.05


class Lanes:
    """A queue of lanes and the handler threads that empty it."""

    def __init__(
        self,
        state: State,
        *,
        threads: int,
        handle: Callable[[Lane], None],
        settle: Callable[[Lane, bool], None],
    ) -> None:
        self._state = state
        self._handle = handle
        self._settle = settle
        self._ready: deque[Lane] = deque()
        self._gate = threading.Condition()
        self._idle = 0
        self._closed = False
        self.threads = threads
        self.mean_seconds: float | None = None  # of the handlers that have ended
        self._ended = 0
        self.on_unsure: Callable[[], None] = lambda: None
        self._pool = [
            threading.Thread(target=self._work, name=f"msgworker-handler-{i}", daemon=True)
            for i in range(threads)
        ]

    def start(self) -> None:
        for thread in self._pool:
            thread.start()

    @property
    def waiting(self) -> int:
        """Lanes that no thread has taken yet."""
        return len(self._ready)

    def put(self, lanes: Iterable[Lane], *, takes_one: bool = False) -> None:
        """Queue lanes whose current message is flagged.

        takes_one: the calling thread is a handler thread and will take the next lane itself.
        """
        self._ready.extend(lanes)
        with self._gate:
            if self._idle:
                worth = len(self._ready) * self.pace() / WORTH_A_THREAD_SECONDS
                wanted = min(self._idle, len(self._ready), int(worth) + 1) - takes_one
                self._gate.notify(max(0, wanted))

    def nudge(self) -> None:
        """Wake one more thread if lanes wait: called regularly, in case a handler is slower than
        most."""
        if self._ready and self._idle:
            with self._gate:
                self._gate.notify(1)

    def take_back(self, most: int | None = None) -> list[Lane]:
        """Lanes that no thread has taken, all of them or the newest, to be released."""
        back: deque[Lane] = deque()
        while self._ready and (most is None or len(back) < most):
            try:
                back.appendleft(self._ready.pop())
            except IndexError:
                break
        while most is None and self._state.unsure:
            with suppress(IndexError):
                back.append(self._state.unsure.popleft())
        return list(back)

    def may_start(self, lane: Lane) -> bool:
        """Whether the lane is ours under this id; else it is put aside: forgotten (recovery gives
        the rows back), or until the heartbeat has asked for it."""
        state = self._state
        if lane.owner == state.instance_id:
            return True
        if state.is_ours(lane.owner):
            state.unsure.append(lane)
            self.on_unsure()
        return False

    def pace(self) -> float:
        """Seconds a handler takes, on average; a guess while none has ended."""
        return UNKNOWN_SECONDS if self.mean_seconds is None else self.mean_seconds

    def took(self, seconds: float) -> None:
        """Note how long a handler has run."""
        self._ended += 1
        mean = seconds if self.mean_seconds is None else self.mean_seconds
        self.mean_seconds = mean + (seconds - mean) * max(NEWEST_SHARE, 1 / self._ended)

    def close(self) -> None:
        """Let the threads end after what they are doing; no other handler starts."""
        with self._gate:
            self._closed = True
            self._gate.notify_all()

    def join(self, timeout: float) -> bool:
        """Wait for the threads; False if a handler still runs after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        for thread in self._pool:
            if thread.ident is not None:
                thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._pool)

    @property
    def alive(self) -> int:
        """How many threads have not ended."""
        return sum(thread.is_alive() for thread in self._pool)

    def _next(self) -> Lane | None:
        while not self._closed:  # what is queued then was never started: it is taken back
            try:
                return self._ready.popleft()
            except IndexError:
                pass
            with self._gate:
                if self._ready:
                    continue
                if self._closed:
                    break
                self._idle += 1
                self._gate.wait()
                self._idle -= 1
        return None

    def _timed(self, lane: Lane) -> None:
        begin = time.monotonic()
        self._handle(lane)
        lane.finished_at = end = time.monotonic()
        self.took(end - begin)

    def _work(self) -> None:
        state = self._state
        state.enter()
        while (lane := self._next()) is not None:
            trusted = state.trusted()  # as whoever owns the lane, if that has not changed since
            if not self.may_start(lane):
                continue
            if not trusted:  # wait until the heartbeat has found out whether we still live
                self._ready.append(lane)
                if state.stopping.wait(UNTRUSTED_PAUSE_SECONDS):
                    time.sleep(UNTRUSTED_PAUSE_SECONDS)  # until `close`, which is not far
                continue
            if state.is_paused(lane.row):  # since it was claimed
                lane.result = Result(Outcome.RELEASED)
                lane.finished_at = time.monotonic()
            else:
                self._timed(lane)
            self._settle(lane, not self._ready)
