"""The threads that run handlers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from msgworker.dialects import NO_MEMORY
from msgworker.errors import MsgworkerError
from msgworker.instance.role import outlive
from msgworker.instance.running.hand import Lane
from msgworker.instance.running.lanes import Lanes
from msgworker.instance.running.outcome import Result, fault
from msgworker.instance.runtime import Runtime, facts
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
        self._gate = threading.Lock()
        self._working = 0
        self._at_end: Callable[[], None] | None = None

    def __len__(self) -> int:
        return len(self._threads)

    def start(self) -> None:
        for thread in self._threads:
            with self._gate:
                self._working += 1
            try:
                thread.start()
            except BaseException:
                self._ended()
                raise

    def when_ended(self, then: Callable[[], None]) -> None:
        """Call this when the last thread ends; at once if none runs."""
        with self._gate:
            self._at_end = then if self._working else None
        if self._at_end is None:
            then()

    def _ended(self) -> None:
        with self._gate:
            self._working -= 1
            then = None if self._working else self._at_end
        if then is not None:
            then()

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
        self._runtime.enter()
        name = threading.current_thread().name
        try:
            outlive(name, self._runtime.log, self._take_lanes, self._leave_for)
        finally:
            self._ended()

    def _leave_for(self, error: MsgworkerError) -> bool:
        self._runtime.leave_for(error)
        return False

    def _take_lanes(self) -> None:
        runtime, lanes, identity = self._runtime, self._lanes, self._runtime.identity
        while (lane := lanes.next()) is not None:
            ended: Sequence[Lane] | None = None
            try:
                trusted = identity.trusted()  # by the id of the lane, if that is the same since
                if lane.owner != identity.tenure.id and not lanes.may_start(lane):
                    continue
                if not trusted:  # wait until the heartbeat knows whether the lease is live
                    lanes.put_back(lane)
                    if runtime.stopping.wait(UNTRUSTED_PAUSE_SECONDS):
                        time.sleep(UNTRUSTED_PAUSE_SECONDS)  # until `close`, which follows soon
                    continue
                if runtime.paused and runtime.is_paused(lane.row):  # since it was claimed
                    lane.result = lane.result or Result(Outcome.RELEASED)
                    lane.finished_at = time.monotonic()
                elif runtime.registry.most > 1:
                    ended = self._handle_batch(lane)
                    if ended is None:
                        self.run(lane)
                else:
                    self.run(lane)
            except BaseException as error:
                self._failed(lane, error)
            if ended is None:
                self._settle(lane, not lanes.ready)
            else:
                for one in ended:
                    self._settle(one, one is ended[-1] and not lanes.ready)

    def run(self, lane: Lane) -> None:
        """Run the handler of a lane, and record for how long."""
        begin = time.monotonic()
        self._handle(lane)
        lane.finished_at = end = time.monotonic()
        lane.started_at, lane.ran_seconds = begin, end - begin
        self._lanes.took(end - begin)

    def _failed(self, lane: Lane, error: BaseException) -> None:
        """An error of ours, round the handler: a failed try, so that its object is not blocked."""
        self._runtime.hand.running.pop(threading.get_ident(), None)
        lane.result = lane.result or fault(error)
        lane.finished_at = time.monotonic()
        text = "message %s: an error round its handler"
        with suppress(*NO_MEMORY):
            self._runtime.log.error(text, lane.row.msg_id, exc_info=error, extra=facts(lane.row))
