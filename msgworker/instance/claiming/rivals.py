"""What lost claims say about other instances: they look for the same heads at the same time.

Each instance prefers the objects of its share, so little is lost while all of them count the same
instances. Where much was lost they are counted again. And an instance whose share gives too little
takes few heads of other shares, more with every claim of such heads that lost little: those are
often about to be claimed by the instance whose share they are in. Nothing here reads a table.
"""

from __future__ import annotations

import time
from collections.abc import Callable

MUCH_LOST = 1 / 8
FEW = 8
"""A claim of fewer heads that wins some says nothing. So many of other shares are taken where a
thread waits."""
MOST = 4096
CUT = 4
GROWTH = 2
COUNT_SECONDS = 0.1
"""The first pause between two counts; they double, up to that between two heartbeats."""


class Rivals:
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
                self._reach = min(MOST, self._reach * GROWTH)
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
