"""The ring: one step per object from a moving cursor, where the oldest rows cannot go."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from msgworker.instance.claiming.choice import HeadChooser
from msgworker.store import candidates
from msgworker.store.candidates import Candidate, Those
from msgworker.table import Tables

# --- Stretches of a way on which a look has met nothing that it looks for: they are passed over
# for a while, so that most of the time is left for where there is something.
#
# The way is one round over the objects, or over the rows without one (ring.py). First all of it is
# read; then each stretch again after a multiple of the time that all of them took, the oldest
# first. While there is other work, the rest of a stretch waits after each page for the same
# multiple of the time of that page. Places are compared for equality only: their order is the
# database's.

READ_AGAIN, LONGEST_REST_SECONDS = 20.0, 30.0
"""Rows that are not looked for are read again after this multiple of the time that it took, but not
later than that: a database that hangs once would keep others waiting for long."""
READ_AGAIN_IDLE = 4.0
"""The multiple where threads have nothing to do."""
MOST_PAGES = 4
"""Pages in one stretch: it is read again piece by piece."""


@dataclass(slots=True)
class _Range:
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


class SkippedRanges:
    """The stretches of one way, in its order. Each step is: `pass_over`, a page from there as far
    as `bound` at most, `was_read`; `start` at the start of the way."""

    def __init__(self) -> None:
        self._stretches: list[_Range] = []
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
            again = _Range(to, end)
            self._stretches.insert(self._next, again)
        again.rests_until = now + min(READ_AGAIN * seconds, LONGEST_REST_SECONDS)

    # ------------------------------------------------------------

    def _ahead(self) -> _Range | None:
        return self._stretches[self._next] if self._next < len(self._stretches) else None

    def _rests(self, one: _Range, turn: _Range | None, now: float, busy: bool) -> bool:
        if busy and now < one.rests_until:
            return True
        return one.read_at is not None and one is not turn

    def _turn(self, now: float, busy: bool) -> _Range | None:
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
            self._stretches.insert(self._next, _Range(at, to, seconds, 1, now))
            self._next += 1
        return full


# --- The ring: one step per object from a moving cursor, then one per row without an object.

WINDOW = 4000
IDLE_OBJECTS = 64


_Read = Callable[..., tuple[list[Candidate], Any]]


class _Way:
    """The cursor on the objects, or on the rows without one; None = at the start."""

    def __init__(self, read: _Read, passes_over: bool) -> None:
        self._read = read
        self._passes_over = passes_over
        self.after: Any = None
        self.barren = SkippedRanges()
        self.met_nothing = False

    def start(self) -> None:
        self.after = None
        self.barren.start()

    def step(
        self, conn: Connection, tables: Tables, limit: int, those: Those | None, busy: bool
    ) -> list[Candidate]:
        """The next rows; `after` is None then if the way is at its end."""
        self.met_nothing = False
        if those is None or not those.but or not self._passes_over:
            rows, self.after = self._read(
                conn, tables, after=self.after, limit=limit, those=those, until=None
            )
            return rows
        begun = time.monotonic()
        at, over = self.barren.pass_over(self.after, begun, busy=busy)
        if over:
            self.start()
            return []
        bound = self.barren.bound(at)
        limit = WINDOW if self.barren.inside(at) else limit
        rows, to = self._read(conn, tables, after=at, limit=limit, those=those, until=bound)
        self.met_nothing = not rows
        now, full = time.monotonic(), to != bound
        self.barren.was_read(at, to, found=bool(rows), full=full, seconds=now - begun, now=now)
        self.after = to
        if to is None:
            self.start()
        return rows


class ObjectCursor:
    """The place on the way round, kept between looks.

    clean: in the round that has ended nothing could run. rows: what the last step has read.
    """

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        # Where rows are read by age too, the ring is the second way to find them, and rests.
        passes_over = not tables.database.oldest_index
        self._objects = _Way(lambda *a, **k: candidates.heads(*a, **k), passes_over)
        self._rows = _Way(lambda *a, **k: candidates.without_object(*a, **k), passes_over)
        self._at_rows = False
        self._stride = 0
        self._met_some = False
        self.clean = True
        self.rows: list[Candidate] = []

    def forget(self) -> None:
        """Pass over nothing the next time."""
        self._objects.barren.clear()
        self._rows.barren.clear()

    def found_nothing(self) -> None:
        """In the middle of a stretch without any of `those` begin again where there were some."""
        if not self._met_some or not (self._objects.met_nothing or self._rows.met_nothing):
            return
        self._met_some = False
        self._objects.start()
        self._rows.start()
        self._at_rows, self._stride = False, 0

    def step(
        self,
        conn: Connection,
        chooser: HeadChooser,
        want: int,
        *,
        idle: bool,
        busy: bool = False,
        those: Those | None = None,
        rows: bool = True,
    ) -> bool:
        """True if a whole round has ended. idle: the last look found nothing. busy: no thread waits
        for work. those: the only heads to look for. rows: False = go round the objects alone."""
        objects = IDLE_OBJECTS if idle else max(want * chooser.slots, IDLE_OBJECTS)
        objects = min(WINDOW, max(objects, self._stride))
        if self._objects.after is None and not self._at_rows:
            self.clean, self._met_some = True, False
        found: list[Candidate] = []
        round_is_over = False
        if not (rows and self._at_rows):
            found = self._objects.step(conn, self._tables, objects, those, busy)
            round_is_over = self._objects.after is None
            self._at_rows = rows and round_is_over
        if self._at_rows:
            found += self._rows.step(conn, self._tables, objects, those, busy)
            round_is_over = self._rows.after is None
            self._at_rows = not round_is_over
        self.rows = found
        self._met_some |= bool(found)
        any_could_go = False
        for row in found:
            chooser.offer(row)
            any_could_go |= chooser.could_go(row)
        self.clean &= not any_could_go
        # Many in a row that cannot be claimed now (a paused topic): longer steps skip them faster.
        nothing_free = not (any_could_go or round_is_over)
        self._stride = min(WINDOW, objects * 2) if nothing_free else 0
        return round_is_over
