"""The threads that run handlers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from msgworker.instance.running.hand import Lane
from msgworker.instance.running.lanes import Lanes
from msgworker.instance.running.outcome import Result
from msgworker.instance.runtime import Runtime
from msgworker.message import Outcome

UNTRUSTED_PAUSE_SECONDS = 0.05


class HandlerThreads:
    """Take lanes, run their handlers, and pass them on to be settled.

    handle: stores its result in the lane. handle_batch: does so for the lane and for others that it
    takes, and returns those that have a result; None if its handler takes no batches. settle: gets
    a finished lane, and whether no other waits.
    """

    def __init__(
        self,
        runtime: Runtime,
        lanes: Lanes,
        *,
        count: int,
        handle: Callable[[Lane], None],
        handle_batch: Callable[[Lane], list[Lane] | None],
        settle: Callable[[Lane, bool], None],
    ) -> None:
        self._runtime = runtime
        self._lanes = lanes
        self._handle = handle
        self._handle_batch = handle_batch
        self._settle = settle
        self._threads = [
            threading.Thread(target=self._work, name=f"msgworker-handler-{i}", daemon=True)
            for i in range(count)
        ]

    def __len__(self) -> int:
        return len(self._threads)

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

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
        runtime, lanes, identity = self._runtime, self._lanes, self._runtime.identity
        runtime.enter()
        while (lane := lanes.next()) is not None:
            trusted = identity.trusted()  # by the id of the lane, if that has not changed since
            if lane.owner != identity.id and not lanes.may_start(lane):
                continue
            if not trusted:  # wait until the heartbeat knows whether the lease is live
                lanes.put_back(lane)
                if runtime.stopping.wait(UNTRUSTED_PAUSE_SECONDS):
                    time.sleep(UNTRUSTED_PAUSE_SECONDS)  # until `close`, which follows soon
                continue
            if runtime.paused and runtime.is_paused(lane.row):  # since it was claimed
                lane.result = lane.result or Result(Outcome.RELEASED)
                lane.finished_at = time.monotonic()
            elif runtime.registry.most > 1 and self._in_batch(lane):
                continue
            else:
                self.run(lane)
            self._settle(lane, not lanes.ready)

    def run(self, lane: Lane) -> None:
        """Run the handler of a lane, and record for how long."""
        begin = time.monotonic()
        self._handle(lane)
        lane.finished_at = end = time.monotonic()
        lane.started_at, lane.ran_seconds = begin, end - begin
        self._lanes.took(end - begin)

    def _in_batch(self, lane: Lane) -> bool:
        """Run a lane with those that wait beside it; False if its handler takes no batches."""
        ended = self._handle_batch(lane)
        if ended is None:
            return False
        for one in ended:
            self._settle(one, one is ended[-1] and not self._lanes.ready)
        return True
