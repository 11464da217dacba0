"""One running fan-out: pass items to their executor, take the results, record them.

All of it happens on the handler's own thread: items are read here, as far ahead as there is
room, and only the items' function runs elsewhere. At most BATCH items at a time are
started or ended without a record, which bounds both memory and the repeats after a crash.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any

from msgworker.dialects import reason_of
from msgworker.errors import MsgworkerError
from msgworker.instance.fan_out.fence import Fence
from msgworker.instance.fan_out.hands import Ended, Remote, Task, Threads, value_of
from msgworker.instance.fan_out.recorder import Recorder
from msgworker.instance.runtime import facts
from msgworker.instance.usercode import end_if_forked
from msgworker.store.items import LOOK

BATCH = 200
POLL_SECONDS = 0.05
LOOK_SECONDS = 0.05
FAILED_KEPT = 10_000


@dataclass(slots=True)
class ItemCounts:
    """The results so far. failed: the first FAILED_KEPT, key -> text."""

    values: list[Any] = field(default_factory=list)
    failed: dict[Any, str] = field(default_factory=dict)
    failed_count: int = 0
    done: int = 0
    ran: int = 0
    held_back: int = 0
    first_error: BaseException | None = None


class ItemRun:
    """Runs the tasks of one fan-out; used once.

    in_flight: how many tasks the executor holds at most. text_of: an error as text.
    """

    def __init__(
        self,
        fence: Fence,
        hands: Threads | Remote,
        ended: SimpleQueue[Ended],
        *,
        in_flight: int,
        text_of: Callable[[BaseException], str],
    ) -> None:
        self._fence = fence
        self._hands = hands
        self._ended = ended
        self._in_flight = in_flight
        self._open_at_most = max(BATCH, in_flight)
        self._text_of = text_of
        self._recorder = Recorder(fence, at_most=BATCH // 2)
        self._running = 0
        self._behind: dict[Any, deque[Task]] = {}
        self._queued = 0
        self._broken: set[Any] = set()
        self.tally = ItemCounts()

    def run(self, tasks: Iterable[Task]) -> ItemCounts:
        """Run all items that are not done. If it ends early, it raises the reason when every
        started item has ended, and is recorded if the message is still ours."""
        try:
            for task in self._undone(tasks):
                self._make_room()
                self._start(task)
            while self._running:
                self._take()
            self._recorder.write()
        except BaseException:
            self._wind_up()
            raise
        finally:
            self._hands.close()
            self._recorder.close()
        return self.tally

    # ------------------------------------------------------------ what is left to do

    def _undone(self, tasks: Iterable[Task]) -> Iterator[Task]:
        """The tasks that are not done; done ones are counted in the tally."""
        values = self.tally.values
        if not self._recorder.any_recorded():
            for task in tasks:
                values.append(None)
                yield task
            return
        for part in _parts(tasks):
            records = self._recorder.known([task.text for task in part])
            for task in part:
                values.append(None)
                record = records.get(task.text)
                if record is not None and record.done:
                    values[task.place] = value_of(record.value)
                    self.tally.done += 1
                    continue
                if record is not None:
                    task.there, task.tries = True, record.tries
                yield task
            self._go_on()

    # ------------------------------------------------------------ start and take

    def _make_room(self) -> None:
        self._go_on()
        while self._running >= self._in_flight or self._open >= self._open_at_most:
            self._take()

    @property
    def _open(self) -> int:
        return self._running + self._queued + len(self._recorder)

    def _go_on(self) -> None:
        """Take the available results; raises if items may no longer start."""
        end_if_forked(self._fence.runtime.pid)  # by the user's iterable
        while True:
            try:
                ended = self._ended.get_nowait()
            except Empty:
                break
            self._returned(ended)
        if self._recorder.due_in() <= 0:
            self._recorder.write()
        self._raise_if_over()

    def _take(self) -> None:
        """Wait for the next outcome, or until records are due."""
        try:
            pause = max(0.0, min(POLL_SECONDS, self._recorder.due_in()))
            self._returned(self._ended.get(timeout=pause))
        except Empty:
            pass
        self._go_on()

    def _raise_if_over(self) -> None:
        reason = self._fence.reason()
        if reason is not None:
            raise reason

    def _start(self, task: Task) -> None:
        if task.group is not None:
            if task.group in self._broken:
                self.tally.held_back += 1
                return
            behind = self._behind.get(task.group)
            if behind is not None:
                behind.append(task)
                self._queued += 1
                return
            self._behind[task.group] = deque()
        self._hand_out(task)

    def _hand_out(self, task: Task) -> None:
        self._hands.start(task)
        self._running += 1

    def _returned(self, ended: Ended) -> None:
        self._running -= 1
        if ended.skipped:
            self._raise_if_over()
            raise ended.error or MsgworkerError(
                f"the executor cancelled item {ended.task.key!r:.80}; the next try runs it"
            )
        self._note(ended)
        if ended.task.group is not None:
            self._next_of_group(ended.task.group, failed=ended.error is not None)

    def _note(self, ended: Ended) -> None:
        task, tally = ended.task, self.tally
        tally.ran += 1
        text = None
        if ended.error is None:
            tally.done += 1
            tally.values[task.place] = value_of(ended.value)
        else:
            text = self._text_of(ended.error)
            tally.failed_count += 1
            tally.first_error = tally.first_error or ended.error
            if len(tally.failed) < FAILED_KEPT:
                tally.failed[task.key] = text
        if not ended.recorded:
            self._recorder.add(task, ended.value, text)

    def _next_of_group(self, group: Any, *, failed: bool) -> None:
        """One at a time, in order; after a failed item no other of its group runs in this try."""
        behind = self._behind[group]
        if failed:
            self._broken.add(group)
            self.tally.held_back += len(behind)
            self._queued -= len(behind)
            del self._behind[group]
        elif behind:
            self._queued -= 1
            self._hand_out(behind.popleft())
        else:
            del self._behind[group]

    # ------------------------------------------------------------ the early end

    def _wind_up(self) -> None:
        """End early: wait for running items, and record them if the message is still ours."""
        self._fence.closing = True
        self._hands.cancel()
        while self._running:
            ended = self._ended.get()
            self._running -= 1
            if not ended.skipped:
                self._note(ended)
        if self._fence.gone:
            return
        try:
            self._recorder.write()
        except Exception as error:  # the reason for the early end is what the handler must see
            self._fence.runtime.log.warning(
                "message %s: items that ended last are not recorded and run again: %s",
                self._fence.msg_id,
                reason_of(error),
                extra=facts(self._fence.row),
            )


def _parts(tasks: Iterable[Task]) -> Iterator[list[Task]]:
    """Tasks in lists for one read each; it does not wait for a slow source."""
    part: list[Task] = []
    begun = time.monotonic()
    for task in tasks:
        part.append(task)
        if len(part) >= LOOK or time.monotonic() - begun > LOOK_SECONDS:
            yield part
            part = []
            begun = time.monotonic()
    if part:
        yield part
