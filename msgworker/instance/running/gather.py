"""Which waiting messages share a batch, and how many it takes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, starmap

from msgworker.instance.running.handler import Handler
from msgworker.instance.running.in_flight import Lane
from msgworker.instance.running.pool import LaneQueue
from msgworker.instance.state import Setup, Shared
from msgworker.message import topic_of
from msgworker.store.rows import Row

# --- How many messages a batch takes, by how long the last ones took.
#
# Nothing here reads a clock or a table.

FIRST = 16
"""Messages of the first batch."""
BYTES = 8_000_000
"""Characters of payload in a batch, at most; one message may have more."""
LEASE_SHARE = 1 / 3
"""The share of a lease that a batch may take: others wait behind its locks."""


class BatchSize:
    """The size of the batches of one handler. It starts small; it is doubled if a full batch takes
    at most half of the aimed time, cut to fit if it takes longer than that time, and halved if a
    batch is rolled back, so that after rare failures most batches are not.

    now: how many messages the next one takes. Written by handler threads without a lock: of two
    updates at the same time one may be lost.
    """

    def __init__(self, most: int, aim_seconds: float, lease_seconds: float) -> None:
        self._most = most
        self._aim = min(aim_seconds, lease_seconds * LEASE_SHARE)
        self.now = min(FIRST, most)

    def took(self, messages: int, seconds: float) -> None:
        """A batch of so many messages took so many seconds."""
        if seconds > self._aim:
            self.now = max(1, min(self.now, int(messages * self._aim / seconds)))
        elif messages >= self.now and seconds * 2 <= self._aim:
            self.now = min(self._most, self.now * 2)

    def failed(self) -> None:
        """A batch was rolled back."""
        self.now = max(1, self.now // 2)


# --- Which messages share a batch: those that wait at this moment, of one handler.
#
# A lane joins a batch only if its flagged message has no earlier try or crash; otherwise that
# message runs alone, and so does the rest of its lane. So a poison message costs the others of its
# batch one try at most.


@dataclass(slots=True)
class Batch:
    """Lanes whose handler is called for all of them together. Each takes `width` messages of its
    run."""

    handler: Handler
    lanes: list[Lane]

    def __len__(self) -> int:
        return sum(lane.width for lane in self.lanes)

    @property
    def is_single(self) -> bool:
        return len(self.lanes) == 1 and self.lanes[0].width == 1


class Gathering:
    """Puts batches together; called by handler threads. lanes: where further ones wait."""

    def __init__(self, setup: Setup, shared: Shared, lanes: LaneQueue) -> None:
        self._setup = setup
        self._shared = shared
        self._lanes = lanes
        self._sizes: dict[str | None, BatchSize] = {}

    def gather(self, lane: Lane) -> Batch | None:
        """The batch of this lane and of those that wait and fit; None if its handler has none."""
        setup, shared = self._setup, self._shared
        handler = setup.registry.get(topic_of(lane.row.topic))
        if handler is None or handler.most == 1:
            return None
        batch = Batch(handler, [lane])
        if not self._may_lead(lane, handler):
            if not lane.alone:  # cut it to the longest batch in which its process may have died
                lane.rows = lane.rows[: lane.place + handler.most]
            lane.alone = True
        elif not shared.stop.requested.is_set() and not shared.quiesce.active:
            self._fill(batch)
        return batch

    def size(self, handler: Handler) -> BatchSize:
        """The size of the handler's batches."""
        found = self._sizes.get(handler.topic)
        if found is None:
            lease = self._setup.settings.lease_seconds
            found = BatchSize(handler.most, handler.batch_seconds, lease)
            found = self._sizes.setdefault(handler.topic, found)
        return found

    def _may_lead(self, lane: Lane, handler: Handler) -> bool:
        """Whether its flagged message may share a batch."""
        return not lane.alone and self._is_fresh(lane.row) and self._setup.tables.spec.max_tries > 1

    @staticmethod
    def _is_fresh(row: Row) -> bool:
        return row.tries == 0 and row.crash_times == 0 and row.odd is None

    def _fill(self, batch: Batch) -> None:
        first, handler, registry = batch.lanes[0], batch.handler, self._setup.registry
        controls = self._shared.controls
        messages, characters = self.size(handler).now, BYTES  # what still fits

        def fits(row: Row) -> bool:
            """Whether it does; then it is counted. The first message does in any case."""
            nonlocal messages, characters
            length = _length(row)
            if messages < 1 or (length > characters and row is not first.row):
                return False
            messages, characters = messages - 1, characters - length
            return True

        def take_behind(lane: Lane) -> None:
            for row in self._behind(lane, handler) if handler.transactional else ():
                if not fits(row):
                    break
                lane.width += 1

        def wants(lane: Lane) -> bool | None:
            if messages < 1:
                return None
            if (
                lane.owner != first.owner
                or lane.result is not None
                or registry.get(topic_of(lane.row.topic)) is not handler
                or not self._may_lead(lane, handler)
                or controls.is_paused(lane.row)
            ):
                return False
            if not fits(lane.row):
                return None
            take_behind(lane)
            return True

        fits(first.row)
        take_behind(first)
        if messages > 0:
            batch.lanes += self._lanes.take_more(wants)

    def _behind(self, lane: Lane, handler: Handler) -> Iterator[Row]:
        """The messages of its run that may follow the flagged one in a batch."""
        setup, controls = self._setup, self._shared.controls
        for row in starmap(Row, islice(lane.rows, lane.place + 1, None)):
            if (
                not self._is_fresh(row)
                or setup.registry.get(topic_of(row.topic)) is not handler
                or controls.is_apart(row)
            ):
                return
            yield row


def _length(row: Row) -> int:
    read = len(row.payload) if isinstance(row.payload, str | bytes) else 0
    return row.oversize or read
