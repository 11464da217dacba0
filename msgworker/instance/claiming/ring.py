"""The ring: one step per object from a moving cursor, then one per row without an object."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection

from msgworker.instance.claiming.barren import Barren
from msgworker.instance.claiming.pick import Pick
from msgworker.store.claiming import candidates
from msgworker.store.claiming.candidates import Candidate, Those
from msgworker.table import Tables

WINDOW = 4000
IDLE_OBJECTS = 64


_Read = Callable[..., tuple[list[Candidate], Any]]


class _Way:
    """The cursor on the objects, or on the rows without one; None = at the start."""

    def __init__(self, read: _Read, passes_over: bool) -> None:
        self._read = read
        self._passes_over = passes_over
        self.after: Any = None
        self.barren = Barren()
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


class Ring:
    """The place on the way round, kept between looks.

    clean: in the round that has ended nothing could run. rows: what the last step has read.
    """

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        # Where rows are read by age too, the ring is the second way to find them, and rests.
        passes_over = not tables.dialect.oldest_index
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
        pick: Pick,
        want: int,
        *,
        idle: bool,
        busy: bool = False,
        those: Those | None = None,
        rows: bool = True,
    ) -> bool:
        """True if a whole round has ended. idle: the last look found nothing. busy: no thread waits
        for work. those: the only heads to look for. rows: False = go round the objects alone."""
        objects = IDLE_OBJECTS if idle else max(want * pick.slots, IDLE_OBJECTS)
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
            pick.offer(row)
            any_could_go |= pick.could_go(row)
        self.clean &= not any_could_go
        # Many in a row that cannot be claimed now (a paused topic): longer steps skip them faster.
        nothing_free = not (any_could_go or round_is_over)
        self._stride = min(WINDOW, objects * 2) if nothing_free else 0
        return round_is_over
