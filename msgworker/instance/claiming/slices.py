"""The search for heads in a slice of the table, by either order of its index."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection

from msgworker.instance.claiming.choice import WHOLE_REACH, WINDOW, HeadChooser
from msgworker.instance.claiming.search import DUE_SECONDS, Look, Search
from msgworker.store import ranked, shards
from msgworker.store.candidates import Candidate
from msgworker.store.ranked import Ranked
from msgworker.store.shards import Page, Place
from msgworker.table import Slice, Tables

# --- A slice whose index is in the order of objects: read a page of each part at a time.
#
# Like all candidates these are hints: `claim.flag` checks the whole table.

LEAST_ROWS = 8
LEAST_WANT = 32
WIDEST = 64
DEEP = 24
"""From this many messages per object on, skipping to the next object costs less than reading on."""
ASK_DEPTH = 16
Skip = tuple[set[Any], Collection[int]]
"""Objects and messages to skip."""
MOST_ENTRIES = 16_000


@dataclass(slots=True)
class _Lap:
    """A repeated pass through a part of a slice. after: its place. clean: this pass has found no
    message that can run. over: nor has the last complete one."""

    after: Any = None
    clean: bool = True
    over: bool = False

    def advance(self, page: Page, can_run: bool) -> None:
        if can_run:
            self.clean = self.over = False
        self.after = page.after
        if page.after is None:
            self.over, self.clean = self.clean, True


@dataclass(slots=True)
class _Track:
    heads: _Lap = field(default_factory=_Lap)
    without_object: _Lap = field(default_factory=_Lap)


class SliceSearch(Search):
    """Finds candidates in a slice: object by object along its index, in repeated passes that keep a
    place in each of its parts. The oldest candidates of a look come first."""

    def __init__(
        self, tables: Tables, topics: frozenset[str] | None, blocked: set[Any] | None = None
    ) -> None:
        super().__init__(tables, topics, blocked)
        self._tracks: dict[Any, _Track] = {}
        self._factor = 1
        self._depth = 1.0
        self._without_object_at = 0.0

    def look_in(
        self,
        conn: Connection,
        where: Slice,
        *,
        want: int,
        slot: int = 0,
        slots: int = 1,
        reach: int = WHOLE_REACH,
        skip_objects: set[Any] | None = None,
        skip_ids: set[int] | frozenset[int] = frozenset(),
    ) -> Look:
        """As `Search.look`, in a slice."""
        now = time.monotonic()
        if now >= self._forget_at:
            self._forget(now)
        slots = 1 if where.exclusive else slots
        chooser = HeadChooser(
            self, set(skip_objects or ()), skip_ids | self._skipped_ids, slot, slots
        )
        chooser.reach = reach
        chooser.skip(self._blocked)
        self._tracks = {v: self._tracks.get(v) or _Track() for v in where.values}
        budget = min(WINDOW, max(want, LEAST_WANT) * slots * self._factor)
        each = math.ceil(budget / len(where.values))
        skip = (set(skip_objects or ()) | self._blocked, skip_ids | self._skipped_ids)
        places = self._look_urgent_in(conn, where, chooser, now, want)
        ranked = len(chooser.own)
        found, widen = self._gather(conn, where, each, skip)
        for row, _ in sorted(found, key=lambda one: one[0].msg_id):
            chooser.offer(row)
        can_run = len(chooser.own) - ranked
        chosen, self._overtaken = chooser.chosen(want, self._overtaken)
        tracks = self._tracks.values()
        complete = all(track.heads.over and track.without_object.over for track in tracks)
        if complete:
            for track in tracks:
                track.heads.over = False
        if can_run >= 2 * want:
            self._factor = max(1, self._factor // 2)
        elif can_run < want and widen:
            self._factor = min(WIDEST, self._factor * 2)
        self.idle = not chosen and chooser.quarantined is None
        look = Look(chosen, chooser.quarantined, complete, seconds=time.monotonic() - now)
        look.of_others = chooser.of_others
        look.places = {row.msg_id: value for row, value in found} | places
        return look

    def _look_urgent_in(
        self, conn: Connection, where: Slice, chooser: HeadChooser, now: float, want: int
    ) -> dict[int, Any]:
        """Offer heads with a priority; returns the part of the slice of each."""
        if not self._urgent.is_time(now):
            return {}
        limit = self._urgent.rows(want)
        first = _within(ranked.ranked(conn, self.tables, limit=limit, role=where.role), where)
        found = chooser.offer_ranked(first)
        self._urgent.found(found > 0, now)
        places = first.values
        if found < want:
            more = self._urgent.behind(conn, first, now, where.role)
            if more is not None:
                chooser.offer_ranked(_within(more, where))
                places = places | more.values
        return places

    def _gather(
        self, conn: Connection, where: Slice, each: int, skip: Skip
    ) -> tuple[list[tuple[Candidate, Any]], bool]:
        """Continue each lap. Returns the rows, each with its slice's value, and whether a longer
        step would find more."""
        laps = [track.heads for track in self._tracks.values()]
        found = self._read(conn, where, each, laps, skip)
        now = time.monotonic()
        if now >= self._without_object_at:
            laps = [track.without_object for track in self._tracks.values()]
            more = self._read(conn, where, each, laps, skip, without_object=True)
            self._without_object_at = 0.0 if more else now + DUE_SECONDS
            found += more
        tracks = self._tracks.values()
        return found, any(
            t.heads.after is not None or t.without_object.after is not None for t in tracks
        )

    def _read(
        self,
        conn: Connection,
        where: Slice,
        each: int,
        laps: Sequence[_Lap],
        skip: Skip,
        *,
        without_object: bool = False,
    ) -> list[tuple[Candidate, Any]]:
        """Continue each lap by about `each` heads; returns the rows, each with its slice's
        value."""
        places = [Place(v, lap.after) for v, lap in zip(where.values, laps, strict=True)]
        if without_object:
            pages = shards.without_object(
                conn, self.tables, where.role, places, max(each, LEAST_ROWS)
            )
        else:
            pages = self._read_heads(conn, where, places, each)
        found: list[tuple[Candidate, Any]] = []
        for value, lap, page in zip(where.values, laps, pages, strict=True):
            lap.advance(page, self._any_can_run(page, skip))
            found += [(row, value) for row in page.found]
        return found

    def _any_can_run(self, page: Page, skip: Skip) -> bool:
        """Whether a row of the page could run now."""
        judge = HeadChooser(self, set(), frozenset(), 0, 1)
        free = (row for row in page.found if judge.can_run(row))
        return any(row.same not in skip[0] and row.msg_id not in skip[1] for row in free)

    def _read_heads(
        self, conn: Connection, where: Slice, places: Sequence[Place], each: int
    ) -> list[Page]:
        """Read heads: by skips from object to object where objects have many messages, else by
        pages. Only a page shows how many messages an object has, so one is read now and then."""
        self._turn += 1
        if shards.may_skip(self.tables) and self._depth >= DEEP and self._turn % ASK_DEPTH:
            return shards.heads(conn, self.tables, where.role, places, each, deep=True)
        depth = min(self._depth, DEEP) if shards.may_skip(self.tables) else self._depth
        rows = max(LEAST_ROWS, min(MOST_ENTRIES // len(places), math.ceil(each * depth)))
        pages = shards.heads(conn, self.tables, where.role, places, rows)
        objects = sum(len(page.found) for page in pages)
        if objects:
            self._depth = max(1.0, sum(page.entries for page in pages) / objects)
        return pages


def _within(found: Ranked, where: Slice) -> Ranked:
    """Only the heads in the slice."""
    found.heads = [row for row in found.heads if found.values.get(row.msg_id) in where.values]
    return found


# --- A slice whose index is in the order of age.

BEHIND = 1000
"""How many entries a look reads behind the oldest, if too few of those can start."""


class AgeSearch(SliceSearch):
    """Reads the oldest messages of each part at every look. Where none of them, or too few, can
    start, it also reads one long page behind them, and remembers in each part how far it has read.

    A page has the heads only: messages behind a head of their object are read and left out.
    """

    def _gather(
        self, conn: Connection, where: Slice, each: int, skip: Skip
    ) -> tuple[list[tuple[Candidate, Any]], bool]:
        places = [Place(value) for value in where.values]
        rows = max(LEAST_ROWS, each)
        fronts = shards.heads_by_age(conn, self.tables, where.role, places, rows)
        found: list[tuple[Candidate, Any]] = []
        some_can_run = False
        behind: list[Place] = []
        for value, front in zip(where.values, fronts, strict=True):
            track = self._tracks[value]
            track.without_object.over = True  # this index has them among the others
            found += [(row, value) for row in front.found]
            can_run = self._any_can_run(front, skip)
            some_can_run |= can_run
            if front.after is None:
                track.heads.after, track.heads.over = None, not can_run
                continue
            track.heads.over &= not can_run
            after = track.heads.after
            behind.append(Place(value, front.after if after is None else max(after, front.after)))
        if behind and (not some_can_run or self._factor >= WIDEST):
            rows = max(LEAST_ROWS, BEHIND // len(behind))
            pages = shards.heads_by_age(conn, self.tables, where.role, behind, rows)
            for place, page in zip(behind, pages, strict=True):
                self._tracks[place.value].heads.advance(page, self._any_can_run(page, skip))
                found += [(row, place.value) for row in page.found]
        return found, some_can_run and bool(behind)
