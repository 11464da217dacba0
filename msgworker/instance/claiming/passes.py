"""Passes over many objects, a page at a time, from where the last look stopped: the cursor over the
whole table, for when none of its oldest rows can run, and the searches in a slice of it.

The cursor belongs to `TableSearch` (search.py); `SliceSearch` and `AgeSearch` stand in its place
where the instance looks only in slices. Like all candidates theirs are hints: `claim.flag` checks
the whole table.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import Connection

from msgworker.instance.claiming import heads
from msgworker.store import candidates, ranked, slices
from msgworker.store.candidates import Candidate, Those
from msgworker.store.ranked import Ranked
from msgworker.store.slices import Page, Place
from msgworker.table.columns import SLICES, Slice
from msgworker.table.tables import Tables

# --- Ranges in which a look found none of its topics: the cursor skips them for a while, to spend
# its time where there is something.
#
# A pass is over all objects, or over all rows without an object (below). All of it is read once.
# Then each range is read again after a multiple of the time that all of them took, the one read
# longest ago first. While no thread waits for work, the rest of a range is also skipped after each
# page, for the same multiple of its time. Places are compared for equality only: their order is the
# database's.

READ_AGAIN = 20.0
"""Rows of other topics are read again after this times the time that reading them took, but after
LONGEST_REST_SECONDS at most."""
READ_AGAIN_IDLE = 4.0
"""The multiple while threads are idle."""
MOST_PAGES = 4
"""The most pages of one range, so that ranges are read again piece by piece."""


@dataclass(slots=True)
class _Range:
    """From behind `after` up to `last` (None = the end of the pass). read_at: when it was read;
    None = not yet. seconds, pages: what that took. under_way: a part of it was read again.
    rests_until: until when it is skipped while no thread waits for work."""

    after: Any
    last: Any
    seconds: float = 0.0
    pages: int = 1
    read_at: float | None = None
    under_way: bool = False
    rests_until: float = 0.0


class SkippedRanges:
    """The skipped ranges of one pass, in its order. For each step `_Pass` calls `skip`, reads a
    page from there up to `bound`, and calls `was_read`."""

    def __init__(self) -> None:
        self._ranges: list[_Range] = []
        self._next = 0  # the first range that is not behind the cursor
        self._afresh = False

    def clear(self) -> None:
        """Forget all ranges: until the end of the pass, skip only what is read from now on."""
        self._ranges.clear()
        self._next = 0
        self._afresh = True

    def start(self) -> None:
        """The next step begins at the start of the pass."""
        self._next = 0

    def skip(self, at: Any, now: float, *, busy: bool) -> tuple[Any, bool]:
        """Skip ranges from `at` on; returns where to read, and whether the pass has ended instead.
        busy: no thread waits for work."""
        busy = busy and not self._afresh
        turn = self._turn(now, busy)
        while (ahead := self._ahead()) is not None and ahead.after == at:
            rests = busy and now < ahead.rests_until
            if not rests and (ahead.read_at is None or ahead is turn):
                break
            if ahead.last is None:
                self._afresh = False
                return at, True
            at, self._next = ahead.last, self._next + 1
        return at, False

    def bound(self, at: Any) -> Any:
        """The place up to which to read from `at`, None = the end of the pass."""
        ahead = self._ahead()
        if ahead is None:
            return None
        return ahead.last if ahead.after == at else ahead.after

    def inside(self, at: Any) -> bool:
        """Whether a range begins at `at`: nothing was found there, or in the step before."""
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
            del self._ranges[self._next]
        elif again is not None:
            again.after, again.under_way, again.rests_until = to, True, 0.0
        if found or not self._add(at, to, full=full, seconds=seconds, now=now) or to == end:
            return
        if again is None:
            again = _Range(to, end)
            self._ranges.insert(self._next, again)
        again.rests_until = now + min(READ_AGAIN * seconds, heads.LONGEST_REST_SECONDS)

    # ------------------------------------------------------------

    def _ahead(self) -> _Range | None:
        return self._ranges[self._next] if self._next < len(self._ranges) else None

    def _turn(self, now: float, busy: bool) -> _Range | None:
        """The range to read again now: of those that are due, the one read longest ago."""
        if any(one.read_at is None for one in self._ranges):
            return None
        rest = sum(one.seconds for one in self._ranges)
        rest = min(rest * (READ_AGAIN if busy else READ_AGAIN_IDLE), heads.LONGEST_REST_SECONDS)
        due = [one for one in self._ranges if one.under_way or now >= _read_at(one) + rest]
        return min(due, key=_read_at, default=None)

    def _add(self, at: Any, to: Any, *, full: bool, seconds: float, now: float) -> bool:
        """Skip a page from now on; False = not worth it: a page with few entries alone."""
        before = self._ranges[self._next - 1] if self._next else None
        if (
            before is not None
            and (before.last == at and before.read_at is not None and not before.under_way)
            and (before.pages < MOST_PAGES or not full)
        ):
            # `read_at` stays that of its first page, so that no page waits longer.
            before.last, before.seconds = to, before.seconds + seconds
            before.pages += 1
            return True
        if full:
            self._ranges.insert(self._next, _Range(at, to, seconds, 1, now))
            self._next += 1
        return full


def _read_at(one: _Range) -> float:
    return one.read_at or 0.0


# --- The cursor, which visits each object once per round, then each row without an object.

WINDOW = 4000
IDLE_OBJECTS = 64


_Read = Callable[..., tuple[list[Candidate], Any]]


class _Pass:
    """The cursor over the objects, or over the rows without one. after: its place; None = at the
    start."""

    def __init__(self, read: _Read, skips: bool) -> None:
        self._read = read
        self._skips = skips
        self.after: Any = None
        self.skipped = SkippedRanges()
        self.found_none = False

    def start(self) -> None:
        self.after = None
        self.skipped.start()

    def step(
        self,
        conn: Connection,
        tables: Tables,
        limit: int,
        those: Those | None,
        busy: bool,
        **share: Any,
    ) -> list[Candidate]:
        """Read the next rows; `after` is None at the end of the pass. share: as of
        `candidates.without_object`."""
        self.found_none = False
        if those is None or not those.but or not self._skips:
            rows, self.after = self._read(
                conn, tables, after=self.after, limit=limit, those=those, until=None, **share
            )
            return rows
        begun = time.monotonic()
        at, over = self.skipped.skip(self.after, begun, busy=busy)
        if over:
            self.start()
            return []
        bound = self.skipped.bound(at)
        limit = WINDOW if self.skipped.inside(at) else limit
        rows, to = self._read(conn, tables, after=at, limit=limit, those=those, until=bound)
        self.found_none = not rows
        now, full = time.monotonic(), to != bound
        self.skipped.was_read(at, to, found=bool(rows), full=full, seconds=now - begun, now=now)
        self.after = to
        if to is None:
            self.start()
        return rows


class ObjectCursor:
    """A cursor over the objects, which keeps its place between looks. clean: no row of this round
    could run. rows: those that the last step has read. _many: more rows without an object follow.
    _left_out: this round has read only our share of some. _whole: the one before did, so this one
    reads those of all shares."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        # Where an index gives rows by age too, it pauses as a whole: `TableSearch._cursor_at`.
        skips = not tables.database.oldest_index
        self._objects = _Pass(lambda *a, **k: candidates.heads(*a, **k), skips)
        self._rows = _Pass(lambda *a, **k: candidates.without_object(*a, **k), skips)
        self._at_rows = self._many = self._left_out = self._whole = False
        self._stride = 0
        self._found_some = False
        self.clean = True
        self.rows: list[Candidate] = []

    def forget(self) -> None:
        """Forget the skipped ranges."""
        self._objects.skipped.clear()
        self._rows.skipped.clear()

    def found_nothing(self) -> None:
        """Return to the start if the last step read none of `those`, but this round had some."""
        if not self._found_some or not (self._objects.found_none or self._rows.found_none):
            return
        self._found_some = False
        self._objects.start()
        self._rows.start()
        self._at_rows, self._stride = False, 0

    def step(
        self,
        conn: Connection,
        chooser: heads.HeadChooser,
        want: int,
        *,
        idle: bool,
        busy: bool = False,
        those: Those | None = None,
        rows: bool = True,
    ) -> bool:
        """Offer the next heads; True if that ended a round. idle: see `Search`. busy: see `Wanted`.
        those: which topics to look for. rows: False = objects alone."""
        objects = IDLE_OBJECTS if idle else max(want * chooser.slots, IDLE_OBJECTS)
        objects = min(WINDOW, max(objects, self._stride))
        if self._objects.after is None and not self._at_rows:
            self._whole = self._left_out
            self.clean, self._found_some, self._left_out = True, False, False
        found: list[Candidate] = []
        round_is_over = False
        if not (rows and self._at_rows):
            found = self._objects.step(conn, self.tables, objects, those, busy)
            round_is_over = self._objects.after is None
            self._at_rows = rows and round_is_over
        if self._at_rows:
            found += self._step_rows(conn, chooser, objects, want, those, busy)
            self._at_rows = self._rows.after is not None
            round_is_over = not (self._at_rows or self._left_out)
        self.rows = found
        self._found_some |= bool(found)
        any_can_run = False
        for row in found:
            chooser.offer(row)
            any_can_run |= chooser.can_run(row)
        self.clean &= not any_can_run
        # Many heads that cannot be claimed now (a paused topic): longer steps pass them faster.
        nothing_free = not (any_can_run or round_is_over)
        self._stride = min(WINDOW, objects * 2) if nothing_free else 0
        return round_is_over

    def _step_rows(
        self,
        conn: Connection,
        chooser: heads.HeadChooser,
        size: int,
        want: int,
        those: Those | None,
        busy: bool,
    ) -> list[Candidate]:
        """Rows without an object: mostly those of our share alone, while there are many, so that
        not each instance reads all. Such a round is none of all messages; the next one is."""
        share: dict[str, Any] = {}
        alone = self._many and not self._whole and not chooser.oldest_of_others
        if alone and those is None and chooser.slots > 1:
            share = {"share": (chooser.slot, chooser.slots)}
            size, self._left_out = min(size, max(want, self._stride, IDLE_OBJECTS)), True
        found = self._rows.step(conn, self.tables, size, those, busy, **share)
        self._many = self._rows.after is not None
        return found


# --- A slice whose index is in the order of objects: read a page of each part at a time.

LEAST_ROWS = 8
LEAST_WANT = 32
WIDEST = 64
DEEP = 24
"""From this many messages per object on, skipping to the next object costs less than reading on."""
ASK_DEPTH = 16
MOST_ENTRIES = 16_000


@dataclass(slots=True)
class _SlicePass:
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
class _Passes:
    heads: _SlicePass = field(default_factory=_SlicePass)
    without_object: _SlicePass = field(default_factory=_SlicePass)


class SliceSearch(heads.Search):
    """Finds candidates in a slice: object by object along its index, in repeated passes that keep a
    place in each of its parts. The oldest candidates of a look come first."""

    def __init__(
        self, tables: Tables, topics: frozenset[str] | None, blocked: set[Any] | None = None
    ) -> None:
        super().__init__(tables, topics, blocked)
        self._passes: dict[Any, _Passes] = {}
        self._factor = 1
        self._depth = 1.0
        self._without_object_at = 0.0

    def look(self, conn: Connection, wanted: heads.Wanted) -> heads.Look:
        now, want, where = time.monotonic(), wanted.heads, wanted.where
        if where is None:
            return heads.Look(complete=True)
        if now >= self._forget_at:
            self._forget_now(now)
        slots = 1 if where.exclusive else wanted.slots
        objects, ids = wanted.skip_objects | self._blocked, wanted.skip_ids | self._skipped_ids
        wanted = replace(wanted, slots=slots, skip_objects=objects, skip_ids=ids)
        chooser = heads.HeadChooser(self, wanted)
        self._passes = {v: self._passes.get(v) or _Passes() for v in where.values}
        budget = min(WINDOW, max(want, LEAST_WANT) * slots * self._factor)
        each = math.ceil(budget / len(where.values))
        places = self._look_urgent_in(conn, where, chooser, now, want)
        ranked = len(chooser.own)
        found, widen = self._gather(conn, where, each, wanted)
        for row, _ in sorted(found, key=lambda one: one[0].msg_id):
            chooser.offer(row)
        free = len(chooser.own) - ranked
        chosen, self._overtaken = chooser.chosen(want, self._overtaken)
        all_passes = self._passes.values()
        complete = all(one.heads.over and one.without_object.over for one in all_passes)
        if complete:
            for one in all_passes:
                one.heads.over = False
        if free >= 2 * want:
            self._factor = max(1, self._factor // 2)
        elif free < want and widen:
            self._factor = min(WIDEST, self._factor * 2)
        self.idle = not chosen and chooser.quarantined is None
        look = heads.Look(chosen, chooser.quarantined, complete, seconds=time.monotonic() - now)
        look.of_others = chooser.of_others
        look.places = {row.msg_id: value for row, value in found} | places
        return look

    def _look_urgent_in(
        self, conn: Connection, where: Slice, chooser: heads.HeadChooser, now: float, want: int
    ) -> dict[int, Any]:
        """Offer heads with a priority; returns the part of the slice of each."""
        if not self._urgent.is_time(now):
            return {}
        limit = self._urgent.rows(want)
        first = _within(ranked.ranked(conn, self.tables, limit=limit, role=where.by), where)
        found = chooser.offer_ranked(first)
        self._urgent.found(found > 0, now)
        places = first.values
        if found < want:
            more = self._urgent.behind(conn, first, now, where.by)
            if more is not None:
                chooser.offer_ranked(_within(more, where))
                places = places | more.values
        return places

    def _gather(
        self, conn: Connection, where: Slice, each: int, wanted: heads.Wanted
    ) -> tuple[list[tuple[Candidate, Any]], bool]:
        """Continue each pass. Returns rows, each with its slice's value, and whether a longer step
        would find more."""
        passes = [one.heads for one in self._passes.values()]
        found = self._read(conn, where, each, passes, wanted)
        now = time.monotonic()
        if now >= self._without_object_at:
            passes = [one.without_object for one in self._passes.values()]
            more = self._read(conn, where, each, passes, wanted, without_object=True)
            self._without_object_at = 0.0 if more else now + heads.DUE_SECONDS
            found += more
        both = [it for one in self._passes.values() for it in (one.heads, one.without_object)]
        return found, any(it.after is not None for it in both)

    def _read(
        self,
        conn: Connection,
        where: Slice,
        each: int,
        passes: Sequence[_SlicePass],
        wanted: heads.Wanted,
        *,
        without_object: bool = False,
    ) -> list[tuple[Candidate, Any]]:
        """Continue each pass by about `each` heads; returns rows, each with its slice's value."""
        places = [Place(v, one.after) for v, one in zip(where.values, passes, strict=True)]
        if without_object:
            rows = max(each, LEAST_ROWS)
            pages = slices.without_object(conn, self.tables, where.by, places, rows)
        else:
            pages = self._read_heads(conn, where, places, each)
        found: list[tuple[Candidate, Any]] = []
        for value, one, page in zip(where.values, passes, pages, strict=True):
            one.advance(page, self._any_can_run(page, wanted))
            found += [(row, value) for row in page.found]
        return found

    def _any_can_run(self, page: Page, wanted: heads.Wanted) -> bool:
        """Whether a row of the page could run now."""
        judge, objects, ids = heads.HeadChooser(self, wanted), wanted.skip_objects, wanted.skip_ids
        free = (row for row in page.found if judge.can_run(row))
        return any(row.same not in objects and row.msg_id not in ids for row in free)

    def _read_heads(
        self, conn: Connection, where: Slice, places: Sequence[Place], each: int
    ) -> list[Page]:
        """Read heads: by skips from object to object where objects have many messages, else by
        pages, which alone show how many: so one is read now and then."""
        self._turn += 1
        if slices.may_skip(self.tables) and self._depth >= DEEP and self._turn % ASK_DEPTH:
            return slices.heads(conn, self.tables, where.by, places, each, deep=True)
        depth = min(self._depth, DEEP) if slices.may_skip(self.tables) else self._depth
        rows = max(LEAST_ROWS, min(MOST_ENTRIES // len(places), math.ceil(each * depth)))
        pages = slices.heads(conn, self.tables, where.by, places, rows)
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
    """Reads the oldest heads of each part at every look. Where none of them, or too few, can start,
    it also reads one long page behind them, and remembers in each part how far it has read."""

    def _gather(
        self, conn: Connection, where: Slice, each: int, wanted: heads.Wanted
    ) -> tuple[list[tuple[Candidate, Any]], bool]:
        places = [Place(value) for value in where.values]
        rows = max(LEAST_ROWS, each)
        fronts = self._by_age(conn, where.by, places, rows)
        found: list[tuple[Candidate, Any]] = []
        some_can_run = False
        behind: list[Place] = []
        for value, front in zip(where.values, fronts, strict=True):
            passes = self._passes[value]
            passes.without_object.over = True  # this index has them among the others
            found += [(row, value) for row in front.found]
            can_run = self._any_can_run(front, wanted)
            some_can_run |= can_run
            if front.after is None:
                passes.heads.after, passes.heads.over = None, not can_run
                continue
            passes.heads.over &= not can_run
            after = passes.heads.after
            behind.append(Place(value, front.after if after is None else max(after, front.after)))
        if behind and (not some_can_run or self._factor >= WIDEST):
            rows = max(LEAST_ROWS, BEHIND // len(behind))
            pages = self._by_age(conn, where.by, behind, rows)
            for place, page in zip(behind, pages, strict=True):
                self._passes[place.value].heads.advance(page, self._any_can_run(page, wanted))
                found += [(row, place.value) for row in page.found]
        return found, some_can_run and bool(behind)

    def _by_age(self, conn: Connection, by: str, places: Sequence[Place], rows: int) -> list[Page]:
        if by in SLICES:
            return slices.heads_by_age(conn, self.tables, by, places, rows)
        return [slices.heads_of_job(conn, self.tables, place, rows) for place in places]
