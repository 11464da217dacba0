"""Stretches of a way on which a look has met nothing that it looks for: they are passed over for a
while, so that most of the time is left for where there is something.

The way is one round over the objects, or over the rows without one (ring.py). First all of it is
read; then each stretch again after a multiple of the time that all of them took, the oldest first.
While there is other work, the rest of a stretch waits after each page for the same multiple of the
time of that page. Places are compared for equality only: their order is the database's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

READ_AGAIN, LONGEST_REST_SECONDS = 20.0, 30.0
"""Rows that are not looked for are read again after this multiple of the time that it took, but not
later than that: a database that hangs once would keep others waiting for long."""
READ_AGAIN_IDLE = 4.0
"""The multiple where threads have nothing to do."""
MOST_PAGES = 4
"""Pages in one stretch: it is read again piece by piece."""


@dataclass(slots=True)
class _Stretch:
    """Behind `after`, up to `last` (None = the end of the way).

    read_at: when it was read, in so many seconds and pages; None = it was not yet. under_way: a
    part of it was read again. rests_until: an instant, for who has other work.
    """

    after: Any
    last: Any
    seconds: float = 0.0
    pages: int = 1
    read_at: float | None = None
    under_way: bool = False
    rests_until: float = 0.0


class Barren:
    """The stretches of one way, in its order. Each step is: `pass_over`, a page from there as far
    as `bound` at most, `was_read`; `start` at the start of the way."""

    def __init__(self) -> None:
        self._stretches: list[_Stretch] = []
        self._next = 0  # the first one that is not behind us
        self._afresh = False

    def clear(self) -> None:
        """Pass over nothing until the end of the way has been reached, but what is read from now
        on."""
        self._stretches.clear()
        self._next = 0
        self._afresh = True

    def start(self) -> None:
        """The next step begins at the start of the way."""
        self._next = 0

    def pass_over(self, at: Any, now: float, *, busy: bool) -> tuple[Any, bool]:
        """Where to read on, from `at`, and whether the way is at its end instead. busy: no thread
        waits for work."""
        busy = busy and not self._afresh
        turn = self._turn(now, busy)
        while (ahead := self._ahead()) is not None and ahead.after == at:
            if not self._rests(ahead, turn, now, busy):
                break
            if ahead.last is None:
                self._afresh = False
                return at, True
            at, self._next = ahead.last, self._next + 1
        return at, False

    def bound(self, at: Any) -> Any:
        """The place up to which to read from `at`, None = the end of the way."""
        ahead = self._ahead()
        if ahead is None:
            return None
        return ahead.last if ahead.after == at else ahead.after

    def inside(self, at: Any) -> bool:
        """Whether `at` is where nothing was found the last time, or in the step before."""
        ahead = self._ahead()
        return ahead is not None and ahead.after == at

    def was_read(
        self, at: Any, to: Any, *, found: bool, full: bool, seconds: float, now: float
    ) -> None:
        """A page was read from `at` to `to`. full: it had as many entries as were asked for."""
        ahead, end = self._ahead(), self.bound(at)
        self._afresh &= to is not None
        again = ahead if ahead is not None and ahead.after == at else None
        if again is not None and to == end:
            del self._stretches[self._next]
        elif again is not None:
            again.after, again.under_way, again.rests_until = to, True, 0.0
        if found or not self._add(at, to, full=full, seconds=seconds, now=now) or to == end:
            return
        if again is None:
            again = _Stretch(to, end)
            self._stretches.insert(self._next, again)
        again.rests_until = now + min(READ_AGAIN * seconds, LONGEST_REST_SECONDS)

    # ------------------------------------------------------------

    def _ahead(self) -> _Stretch | None:
        return self._stretches[self._next] if self._next < len(self._stretches) else None

    def _rests(self, one: _Stretch, turn: _Stretch | None, now: float, busy: bool) -> bool:
        if busy and now < one.rests_until:
            return True
        return one.read_at is not None and one is not turn

    def _turn(self, now: float, busy: bool) -> _Stretch | None:
        """The stretch to read again now: the oldest, so that each has its turn."""
        if any(one.read_at is None for one in self._stretches):
            return None
        rest = sum(one.seconds for one in self._stretches)
        rest = min(rest * (READ_AGAIN if busy else READ_AGAIN_IDLE), LONGEST_REST_SECONDS)
        ages = [
            (one.read_at, place)
            for place, one in enumerate(self._stretches)
            if one.read_at is not None and (one.under_way or now >= one.read_at + rest)
        ]
        return self._stretches[min(ages)[1]] if ages else None

    def _add(self, at: Any, to: Any, *, full: bool, seconds: float, now: float) -> bool:
        """Whether it is worth it: a few entries alone are not."""
        before = self._stretches[self._next - 1] if self._next else None
        joins = before is not None and before.last == at and before.read_at is not None
        joins = joins and before is not None and not before.under_way
        if before is not None and joins and (before.pages < MOST_PAGES or not full):
            # Its instant stays that of its first page, so that none waits longer.
            before.last, before.seconds = to, before.seconds + seconds
            before.pages += 1
            return True
        if full:
            self._stretches.insert(self._next, _Stretch(at, to, seconds, 1, now))
            self._next += 1
        return full
