"""How many lanes to hold, how far to read ahead, and how many heads of other shares to try."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterable, Sequence
from itertools import starmap

from msgworker.instance.running.in_flight import Lane
from msgworker.store.rows import Row

# --- How many lanes an instance holds, by how long they would last.
#
# Few with slow handlers, so that other instances get a share; many with fast ones, so that one
# claim or settle serves many messages. Nothing here reads a clock or a table.

WORTH_SECONDS = 0.5
"""Seconds for which claimed messages may last; it claims no more."""
KEPT_SECONDS = 2.0
"""Lanes that would last longer than this are released if other instances are alive."""
TAKEN_SECONDS = 1.0
"""After so many seconds the end of a handler cannot be predicted: its thread counts as busy."""
LEAST_SECONDS = 1e-6


class LaneLimit:
    """How many lanes to hold. It grows while the threads run dry, up to what is used up soon.

    lanes: how many to hold at most. kept: lanes beyond this number are released. Both are
    written by the fetcher; `has_room` is also called by settling threads.
    """

    def __init__(self, threads: int, most: int) -> None:
        self._threads = threads
        self._most = most
        self._least = min(max(4, 2 * threads), most)
        self._grown = self._least
        self._full = False  # after the last claim all was held that may be: there may be more
        self.lanes = min(threads, most)
        self.kept = self.lanes

    def sees(self, mean: float | None, ages: Sequence[float]) -> None:
        """Compute `lanes` and `kept` again.

        mean: seconds of a handler; None while none has ended, and then each thread has one lane.
        ages: for how many seconds each handler that has not ended has run.
        """
        soon = late = self._threads
        if mean is not None:
            mean = max(mean, LEAST_SECONDS)
            young = [age for age in ages if age <= TAKEN_SECONDS]
            taken = min(len(ages) - len(young), self._threads)
            free = self._threads - taken
            # A handler that has run for longer than the mean is slower than expected.
            slower = sum(1 / age - 1 / mean for age in young if age > mean)
            rate = max(0.0, free / mean + slower)
            soon = taken + max(free, _whole(WORTH_SECONDS * rate))
            # Releasing a lane that would soon be used costs more than holding it for a moment.
            late = taken + max(free, _whole(KEPT_SECONDS * free / mean))
        self.lanes = min(soon, self._grown, self._most)
        self.kept = late

    def fed(self, *, dry: bool, full: bool) -> None:
        """After a claim: dry = since the last one a thread had nothing to do; full = all that
        may be held is held now."""
        self._full = full
        if dry and full:
            self._grown = min(self._most, self._grown * 4)
        elif not dry and self._grown > self._least:
            self._grown = max(self._least, int(self._grown * 0.9))

    def ran_dry(self) -> None:
        """A thread had nothing to do although all that may be held was: hold more. Otherwise few
        lanes, most of them being settled, would keep the threads waiting until they have ended."""
        if self._full:
            self._full = False
            self._grown = min(self._most, self._grown * 4)

    def has_room(self, held: int) -> bool:
        """Whether to claim: half of it is used up, or a thread has nothing to do."""
        room = self.lanes - held
        return room > 0 and (room * 2 >= self.lanes or held < self._threads)

    def room(self, held: int) -> int:
        """How many lanes to claim now beside the `held` ones: all that may be held. Claims of half
        of it would overlap with settles better, and cost a tenth of the speed."""
        return self.lanes - held


def _whole(lanes: float) -> int:
    return int(min(lanes, 1_000_000.0))


# --- How many messages behind a new head to read ahead.
#
# `run_limit` of them if `lanes_limit` lanes are held. Fewer lanes have longer runs, so that a busy
# object needs few claims: all lanes together hold at most run_limit * lanes_limit rows, of
# PAYLOAD_BUDGET bytes by the mean size. Longer ones are read only for batches, or where runs are
# handled to their end, and then only as long as LASTS_SECONDS. Nothing here reads a clock or a
# table.

PAYLOAD_BUDGET = 32_000_000
LASTS_SECONDS = 1.0
"""A run beyond `run_limit` may last so long: a lower id that is committed late, or that an operator
reruns, waits for its end."""
RUN_OF_BATCHES = 4
"""So many batches of one object are read ahead at least."""
GROWTH = 4
SAMPLE = 20
"""So many lanes, and rows, of a claim are looked at."""
NEWEST_SHARE = 0.25


class RunLength:
    """Used by the fetcher's thread only. run, lanes: `run_limit` and `lanes_limit`. batch: returns
    how many messages of an object may share a batch."""

    def __init__(self, run: int, lanes: int, batch: Callable[[], int] = lambda: 1) -> None:
        self._run = run
        self._batch = batch
        self._rows = run * lanes
        self._grown = run
        self._mean_payload = 0.0
        self._mean_seconds: float | None = None  # of one message in its lane
        self._watched: list[tuple[Lane, int, float]] = []

    def limit(self, lanes: int, ahead: int) -> int:
        """How many messages to read behind each new head, 0 = none.

        lanes: how many lanes share what may still be held: the new ones, and those that may be
        claimed beside them. ahead: messages that wait behind the heads of all other lanes.
        """
        if not self._run:
            return 0
        fits = min(self._rows, int(PAYLOAD_BUDGET / max(self._mean_payload, 1.0)))
        share = (fits - ahead) // max(1, lanes)
        batch = self._batch()
        least = max(self._run, RUN_OF_BATCHES * batch if batch > 1 else 0)
        return max(1, min(max(least, min(self._grown, self._lasting())), share))

    def _lasting(self) -> int:
        """How many messages of a lane last as long as a run may."""
        mean = LASTS_SECONDS if self._mean_seconds is None else self._mean_seconds
        return round(LASTS_SECONDS / max(mean, 1e-6))

    def read(self, lanes: Sequence[Lane], limit: int, now: float) -> None:
        """The runs of new lanes have been read; now: monotonic seconds."""
        some = [lane for lane in lanes[:SAMPLE] if len(lane.rows) > 1]
        self._watched = [*self._watched, *((lane, limit, now) for lane in some)][-SAMPLE:]
        rows = [row for lane in lanes[:SAMPLE] for row in lane.rows[-SAMPLE:]][-SAMPLE:]
        self._saw(starmap(Row, rows))

    def _saw(self, rows: Iterable[Row]) -> None:
        for row in rows:
            size = len(row.payload) if isinstance(row.payload, str | bytes) else 0
            self._mean_payload += (size - self._mean_payload) * 0.1

    @property
    def watched(self) -> int:
        """How many lanes it will learn from."""
        return len(self._watched)

    def learn(self, held: Container[Lane]) -> None:
        """Adjust to the lanes that have ended since the last call. held: those that have not."""
        ended = [one for one in self._watched if one[0] not in held]
        if not ended:
            return
        self._watched = [one for one in self._watched if one[0] in held]
        grown, cut = self._grown, self._rows
        for lane, limit, since in ended:
            done = lane.place + lane.width
            if lane.finished_at > since:
                self._took((lane.finished_at - since) / done)
            if done < len(lane.rows):  # a failure, a stop, a pause: what is behind is read again
                cut = min(cut, 2 * done)
            elif len(lane.rows) > limit:
                grown = max(grown, GROWTH * limit)
        self._grown = max(self._run, min(grown, cut))

    def _took(self, seconds: float) -> None:
        mean = seconds if self._mean_seconds is None else self._mean_seconds
        self._mean_seconds = mean + (seconds - mean) * NEWEST_SHARE


# --- What lost claims say about other instances: they look for the same heads at the same time.
#
# Each instance prefers the objects of its share, so little is lost while all of them count the
# same instances. Where much was lost they are counted again. And an instance whose share gives too
# little takes few heads of other shares, more with every claim of such heads that lost little:
# those are often about to be claimed by the instance whose share they are in. Nothing here reads a
# table.

MUCH_LOST = 1 / 8
FEW = 8
"""A claim of fewer heads that wins some says nothing. So many of other shares are taken where a
thread waits."""
MOST = 4096
CUT = 4
SHARE_GROWTH = 2
COUNT_SECONDS = 0.1
"""The first pause between two counts; they double, up to that between two heartbeats."""


class Contention:
    """Used by the fetcher's thread only. longest: seconds between two heartbeats. clock: monotonic
    seconds."""

    def __init__(self, longest: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._longest = longest
        self._clock = clock
        self._pause = COUNT_SECONDS
        self._count_at = 0.0
        self._slots = 1
        self._reach = FEW

    def reach(self, *, busy: bool) -> int:
        """How many heads of other shares a look may take. busy: no thread waits for work."""
        return self._reach if busy else max(self._reach, FEW)

    def claimed(self, offered: int, won: int, *, of_others: int, slots: int) -> bool:
        """After a claim of so many heads, among so many instances; returns whether these should be
        counted again now. of_others: how many of them were in other shares."""
        if offered < FEW and (won or not offered):
            return False
        if offered - won <= offered * MUCH_LOST:
            if of_others:
                self._reach = min(MOST, self._reach * SHARE_GROWTH)
            return False
        self._reach = max(1, self._reach // CUT)
        if slots != self._slots:
            self._slots, self._pause = slots, COUNT_SECONDS
        now = self._clock()
        if now < self._count_at:
            return False
        self._count_at = now + self._pause
        self._pause = min(self._longest, self._pause * 2)
        return True
