"""Which messages share a batch: those that wait at this moment, of one handler.

Only a message without a try or a crash behind it leads a lane into a batch; any other runs alone,
and so does the rest of its lane. So a poison message costs those beside it one try at most.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, starmap

from msgworker.instance.running.batchsize import BYTES, BatchSize
from msgworker.instance.running.hand import Lane
from msgworker.instance.running.handler import Handler
from msgworker.instance.running.lanes import Lanes
from msgworker.instance.runtime import Runtime
from msgworker.message import topic_of
from msgworker.store.rows import Row


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
        """Whether it is one message, whose handler ends for it alone."""
        return len(self.lanes) == 1 and self.lanes[0].width == 1


class Gathering:
    """Used by the handler threads. lanes: where further ones wait."""

    def __init__(self, runtime: Runtime, lanes: Lanes) -> None:
        self._runtime = runtime
        self._lanes = lanes
        self._sizes: dict[str | None, BatchSize] = {}

    def gather(self, lane: Lane) -> Batch | None:
        """The batch of this lane and of those that wait and fit; None if its handler has none."""
        runtime = self._runtime
        handler = runtime.registry.get(topic_of(lane.row.topic))
        if handler is None or handler.most == 1:
            return None
        batch = Batch(handler, [lane])
        if not self._may_lead(lane, handler):
            if not lane.alone:  # as far as a batch can have reached, in which its process died
                lane.rows = lane.rows[: lane.place + handler.most]
            lane.alone = True
        elif not runtime.stopping.is_set() and not runtime.quiesce.active:
            self._fill(batch)
        return batch

    def size(self, handler: Handler) -> BatchSize:
        """The size of the handler's batches."""
        found = self._sizes.get(handler.topic)
        if found is None:
            lease = self._runtime.settings.lease_seconds
            found = BatchSize(handler.most, handler.batch_seconds, lease)
            found = self._sizes.setdefault(handler.topic, found)
        return found

    def _may_lead(self, lane: Lane, handler: Handler) -> bool:
        """Whether its flagged message may share a batch."""
        return (
            not lane.alone and self._is_fresh(lane.row) and self._runtime.tables.spec.max_tries > 1
        )

    @staticmethod
    def _is_fresh(row: Row) -> bool:
        return row.tries == 0 and row.crash_times == 0 and row.odd is None

    def _fill(self, batch: Batch) -> None:
        first, handler, registry = batch.lanes[0], batch.handler, self._runtime.registry
        room = _Room(self.size(handler).now)

        def take(lane: Lane) -> None:
            room.take(lane.row)
            if handler.transactional:
                for row in self._behind(lane, handler):
                    if not room.fits(row):
                        break
                    room.take(row)
                    lane.width += 1

        def wants(lane: Lane) -> bool | None:
            if room.messages < 1:
                return None
            if (
                lane.owner != first.owner
                or lane.result is not None
                or registry.get(topic_of(lane.row.topic)) is not handler
                or not self._may_lead(lane, handler)
                or self._runtime.is_paused(lane.row)
            ):
                return False
            if not room.fits(lane.row):
                return None
            take(lane)
            return True

        take(first)
        if room.messages > 0:
            batch.lanes += self._lanes.take_more(wants)

    def _behind(self, lane: Lane, handler: Handler) -> Iterator[Row]:
        """The messages of its run that may follow the flagged one in a batch."""
        runtime = self._runtime
        for row in starmap(Row, islice(lane.rows, lane.place + 1, None)):
            if (
                not self._is_fresh(row)
                or runtime.registry.get(topic_of(row.topic)) is not handler
                or runtime.is_apart(row)
            ):
                return
            yield row


class _Room:
    """How many messages, and characters of payload, still fit into a batch."""

    def __init__(self, messages: int) -> None:
        self.messages = messages
        self._bytes = BYTES

    def fits(self, row: Row) -> bool:
        return self.messages > 0 and _length(row) <= self._bytes

    def take(self, row: Row) -> None:
        self.messages -= 1
        self._bytes -= _length(row)


def _length(row: Row) -> int:
    read = len(row.payload) if isinstance(row.payload, str | bytes) else 0
    return row.oversize or read
