"""Choose heads from the rows that a look reads, the highest priority first; and the cursor
over all objects, for when none of the oldest rows can run."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from sqlalchemy import Connection

from msgworker.message import in_quarantine, topic_of
from msgworker.payload import is_text
from msgworker.store import candidates, ranked
from msgworker.store.candidates import Candidate, Those
from msgworker.store.ranked import Place, Ranked
from msgworker.table import Tables
from msgworker.table.tables import prioritized

# --- Messages with a priority: when to read them, and how they are mixed with the others.
#
# Heads of a higher priority come first. Of every SHARE heads that an instance claims, one is chosen
# as if there were no priorities, so that none starves.

SHARE = 8
LEAST_ROWS = 64
MOST_ROWS = 1000
BEHIND = 500
"""How many more rows a look reads, if too few of those with the highest priority can start."""
LOOK_SECONDS = 0.02
"""The pause between two reads by priority, unless the last one found something."""


class Urgent:
    """When to read by priority, and how many rows. Used by a search.

    Each look reads the rows of the highest priority while some of them can start. If too few can,
    it also reads behind them, from where the last such read ended. If none can, the next read takes
    few rows: most of them then wait behind others of their objects.
    """

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self._look_at = 0.0
        self._behind_at = 0.0
        self._most = MOST_ROWS
        self._after: Place | None = None
        self.there = prioritized(tables)

    def is_time(self, now: float) -> bool:
        """Whether to read now."""
        return self.there and now >= self._look_at

    def rows(self, want: int) -> int:
        """How many rows to read for `want` heads."""
        return min(self._most, max(LEAST_ROWS, 2 * want))

    def found(self, some: bool, now: float) -> None:
        """Record whether any of the rows with the highest priority can start."""
        self._look_at = 0.0 if some else now + LOOK_SECONDS
        self._most = MOST_ROWS if some else LEAST_ROWS

    def behind(
        self, conn: Connection, first: Ranked, now: float, role: str | None = None
    ) -> Ranked | None:
        """Read behind `first`, if too few of those can start; None = not now."""
        if first.after is None or now < self._behind_at:
            return None
        self._behind_at = now + LOOK_SECONDS
        after = first.after if self._after is None else max(first.after, self._after)
        more = ranked.ranked(conn, self.tables, limit=BEHIND, after=after, role=role)
        self._after = more.after
        return more


def owed(want: int, overtaken: int) -> int:
    """How many of the next `want` heads are chosen as if no message had a priority."""
    return (overtaken + want) // SHARE


def mixed(
    by_age: Sequence[Candidate],
    priorities: Mapping[int, int],
    want: int,
    overtaken: int,
    *,
    whole: bool = True,
) -> tuple[list[Candidate], int]:
    """Choose `want` heads: by priority, equal ones in the order given, but at least every SHARE-th
    is the first of those left in the order given.

    by_age: the heads in the order that they have without priorities. whole: no head before them was
    left out. overtaken: how many were chosen since the last one that was first in that order.
    Returns the heads, and the new `overtaken`.
    """
    ranks = sorted(by_age, key=lambda row: -priorities.get(row.msg_id, 0))
    if not whole:
        return ranks[:want], overtaken + min(want, len(ranks))
    chosen: list[Candidate] = []
    taken: set[int] = set()
    first = best = 0
    while len(chosen) < min(want, len(by_age)):
        while by_age[first].msg_id in taken:
            first += 1
        while ranks[best].msg_id in taken:
            best += 1
        row = by_age[first] if overtaken >= SHARE - 1 else ranks[best]
        overtaken = 0 if row is by_age[first] else overtaken + 1
        chosen.append(row)
        taken.add(row.msg_id)
    return chosen, overtaken


# --- Choose heads from the rows that a look reads: of each object the first one, if it may run.

WHOLE_REACH = 1 << 31


class Looking(Protocol):
    """What a chooser reads of its search. topics: those with a handler; None = all. unknown_topics:
    how many messages were seen of each other topic."""

    tables: Tables
    topics: frozenset[str] | None
    paused: frozenset[str]
    unknown_topics: dict[str, int]


class HeadChooser:
    """Chooses heads from the rows of one look: of each object the first, if it can run.

    slot, slots: our share of the objects. reach: how many heads of other shares may be chosen if
    ours has too few. oldest_of_others: how many of their first ones are chosen in any case.
    of_others: how many were chosen.
    """

    def __init__(
        self,
        search: Looking,
        skip_objects: set[Any],
        skip_ids: set[int] | frozenset[int],
        slot: int,
        slots: int,
    ) -> None:
        self._search = search
        self._skipped = skip_objects
        self._skip_ids = skip_ids
        self._taken: set[int] = set()
        self._max_tries = search.tables.spec.max_tries
        # An index is faster than `same`, and this is read for every row of every look.
        self._key_at = Candidate._fields.index("object_id" if search.tables.fold is None else "key")
        self.slot = slot % max(1, slots)
        self.slots = max(1, slots)
        self.own: list[Candidate] = []
        self.priorities: dict[int, int] = {}
        self._others: list[Candidate] = []
        self.reach = WHOLE_REACH
        self.oldest_of_others = self.of_others = 0
        self._waited: dict[Any, Candidate] = {}
        self.quarantined: Candidate | None = None

    def skip(self, objects: set[Any]) -> None:
        """Objects to skip from now on."""
        self._skipped |= objects

    def offer_waited(self, row: Candidate) -> None:
        """Take a row whose instant has come (a retry, a delayed message): the lowest id of each
        object. It need not be the head: a lower one that is offered later replaces it."""
        same = row[self._key_at]
        if same is None:
            self.offer(row)
        elif same not in self._skipped and row.msg_id not in self._skip_ids:
            known = self._waited.get(same)
            if self.can_run(row) and (known is None or row.msg_id < known.msg_id):
                self._waited[same] = row

    def offer(self, row: Candidate) -> None:
        """Take a row if it is the first of its object and may run.

        The rows of an object are offered in order: if the first cannot run, it blocks the others.
        """
        same = row[self._key_at]
        if same is not None:
            waited = self._waited.get(same)
            if waited is not None and waited.msg_id < row.msg_id:
                return
            self._waited.pop(same, None)
            if same in self._skipped:
                return
            self._skipped.add(same)
        if row.msg_id not in self._taken and row.msg_id not in self._skip_ids:
            self._take(row)

    def offer_all(self, rows: Iterable[Candidate]) -> None:
        """`offer` each row, in order. Nearly all are new, due and of a handled topic: these take a
        shorter path, since this runs for every row of every look."""
        key_at, skipped, skip_ids, taken = self._key_at, self._skipped, self._skip_ids, self._taken
        topics, slots, slot = self._search.topics, self.slots, self.slot
        plain = not (self._search.paused or self.priorities or self._waited)
        for row in rows:
            msg_id, _, status, tries, crashes, topic, due, _, _ = row
            usual = plain and status == tries == crashes == 0 and due
            if not usual or not (topics is None or topic in topics):
                self.offer(row)
                continue
            same = row[key_at]
            if same is not None:
                if same in skipped:
                    continue
                skipped.add(same)
            if msg_id in taken or msg_id in skip_ids:
                continue
            taken.add(msg_id)
            if slots == 1 or _share(msg_id if same is None else same, slots) == slot:
                self.own.append(row)
            else:
                self._others.append(row)

    def offer_ranked(self, found: Ranked) -> int:
        """Take the heads that have a priority, of all shares; returns how many."""
        before = len(self.own)
        self.priorities |= found.priorities
        for row in found.heads:
            same = row[self._key_at]
            if self.can_run(row) and (same is None or same not in self._skipped):
                self.offer(row)
        return len(self.own) - before

    def oldest_first(self) -> None:
        """Sort the heads by age: they were offered from several sources."""
        self.own.sort(key=lambda row: row.msg_id)

    def _take(self, row: Candidate) -> None:
        if not self.can_run(row):
            return
        self._taken.add(row.msg_id)
        if in_quarantine(row.crash_times, row.tries, self._max_tries):
            self.quarantined = self.quarantined or row
        elif self._is_own(row):
            self.own.append(row)
        else:
            self._others.append(row)

    def _is_own(self, row: Candidate) -> bool:
        if self.slots == 1 or row.msg_id in self.priorities:
            return True
        same = row.same
        return _share(row.msg_id if same is None else same, self.slots) == self.slot

    def can_run(self, row: Candidate) -> bool:
        """Whether the row can run now, by its status, tries, instant and topic."""
        free = row.status == 0 or (row.status == -1 and row.tries < self._max_tries)
        return free and bool(row.due) and self._handled(row.topic)

    def is_of_others(self, topic: str | None) -> bool:
        """Whether messages of a topic are not claimed here, or not now."""
        name, topics = topic_of(topic), self._search.topics
        if name in self._search.paused:
            return True
        if topics is None or name in topics:
            return False
        return isinstance(name, str) and is_text(name)  # SQLite also keeps bytes

    def _handled(self, topic: str | None) -> bool:
        topics, paused = self._search.topics, self._search.paused
        if topics is None and not paused:
            return True
        name = topic_of(topic)
        if name in paused:
            return False
        if topics is None or name in topics:
            return True
        if isinstance(name, str) and not is_text(name):  # no valid text: claimed, to become dead
            return True
        unknown = self._search.unknown_topics
        unknown[name] = unknown.get(name, 0) + 1
        return False

    def chosen(
        self, want: int, overtaken: int = 0, *, whole: bool = True
    ) -> tuple[list[Candidate], int]:
        """Up to `want` heads: by priority; with the same one, due retries and delayed messages
        first, then our share by age. overtaken, whole: see `mixed`."""
        first, self._others = (
            self._others[: self.oldest_of_others],
            self._others[self.oldest_of_others :],
        )
        found, self.own = first + self.own, []
        for row in self._waited.values():
            self._take(row)
        self._waited.clear()
        if self.priorities:
            self.own += sorted(found, key=lambda row: row.msg_id)
            chosen, overtaken = mixed(self.own, self.priorities, want, overtaken, whole=whole)
        else:
            self.own += found
            chosen, overtaken = self.own[:want], 0
        self.of_others = len(first)
        if len(chosen) < max(1, want // 4):
            more = self._others[: min(want - len(chosen), self.reach)]
            self.of_others += len(more)
            chosen += more
        return chosen, overtaken


def _share(key: Any, slots: int) -> int:
    return zlib.crc32(str(key).encode("utf-8", "replace")) % slots


# --- Ranges in which a look found none of its topics: the cursor skips them for a while, to spend
# its time where there is something.
#
# A way is one pass over all objects, or over all rows without an object (below). All of it is read
# once. Then each range is read again after a multiple of the time that all of them took, the one
# read longest ago first. While no thread waits for work, the rest of a range is also skipped after
# each page, for the same multiple of its time. Places are compared for equality only: their order
# is the database's.

READ_AGAIN, LONGEST_REST_SECONDS = 20.0, 30.0
"""Rows of other topics are read again after READ_AGAIN times the time that reading them took, but
after LONGEST_REST_SECONDS at most: one slow answer must not delay their messages for long."""
READ_AGAIN_IDLE = 4.0
"""The multiple while threads are idle."""
MOST_PAGES = 4
"""The most pages of one range, so that ranges are read again piece by piece."""


@dataclass(slots=True)
class _Range:
    """From behind `after` up to `last` (None = the end of the way).

    read_at: when it was read; None = not yet. seconds, pages: what that took. under_way: a part of
    it was read again. rests_until: until when it is skipped while no thread waits for work.
    """

    after: Any
    last: Any
    seconds: float = 0.0
    pages: int = 1
    read_at: float | None = None
    under_way: bool = False
    rests_until: float = 0.0


class SkippedRanges:
    """The skipped ranges of one way, in its order. For each step `_Way` calls `skip`, reads a
    page from there up to `bound` at most, and calls `was_read`."""

    def __init__(self) -> None:
        self._ranges: list[_Range] = []
        self._next = 0  # the first range that is not behind the cursor
        self._afresh = False

    def clear(self) -> None:
        """Forget all ranges: until the end of the way, skip only what is read from now on."""
        self._ranges.clear()
        self._next = 0
        self._afresh = True

    def start(self) -> None:
        """The next step begins at the start of the way."""
        self._next = 0

    def skip(self, at: Any, now: float, *, busy: bool) -> tuple[Any, bool]:
        """Skip ranges from `at` on; returns where to read, and whether the way has ended instead.
        busy: no thread waits for work."""
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
        again.rests_until = now + min(READ_AGAIN * seconds, LONGEST_REST_SECONDS)

    # ------------------------------------------------------------

    def _ahead(self) -> _Range | None:
        return self._ranges[self._next] if self._next < len(self._ranges) else None

    def _rests(self, one: _Range, turn: _Range | None, now: float, busy: bool) -> bool:
        if busy and now < one.rests_until:
            return True
        return one.read_at is not None and one is not turn

    def _turn(self, now: float, busy: bool) -> _Range | None:
        """The range to read again now: of those that are due, the one read longest ago."""
        if any(one.read_at is None for one in self._ranges):
            return None
        rest = sum(one.seconds for one in self._ranges)
        rest = min(rest * (READ_AGAIN if busy else READ_AGAIN_IDLE), LONGEST_REST_SECONDS)
        ages = [
            (one.read_at, place)
            for place, one in enumerate(self._ranges)
            if one.read_at is not None and (one.under_way or now >= one.read_at + rest)
        ]
        return self._ranges[min(ages)[1]] if ages else None

    def _add(self, at: Any, to: Any, *, full: bool, seconds: float, now: float) -> bool:
        """Skip a page from now on; False = not worth it: a page with few entries alone."""
        before = self._ranges[self._next - 1] if self._next else None
        joins = before is not None and before.last == at and before.read_at is not None
        joins = joins and before is not None and not before.under_way
        if before is not None and joins and (before.pages < MOST_PAGES or not full):
            # `read_at` stays that of its first page, so that no page waits longer.
            before.last, before.seconds = to, before.seconds + seconds
            before.pages += 1
            return True
        if full:
            self._ranges.insert(self._next, _Range(at, to, seconds, 1, now))
            self._next += 1
        return full


# --- The cursor, which visits each object once per round, then each row without an object.

WINDOW = 4000
IDLE_OBJECTS = 64


_Read = Callable[..., tuple[list[Candidate], Any]]


class _Way:
    """The cursor over the objects, or over the rows without one. after: its place; None = at the
    start."""

    def __init__(self, read: _Read, passes_over: bool) -> None:
        self._read = read
        self._passes_over = passes_over
        self.after: Any = None
        self.skipped = SkippedRanges()
        self.found_none = False

    def start(self) -> None:
        self.after = None
        self.skipped.start()

    def step(
        self, conn: Connection, tables: Tables, limit: int, those: Those | None, busy: bool
    ) -> list[Candidate]:
        """Read the next rows; if the way has ended, `after` is None afterwards."""
        self.found_none = False
        if those is None or not those.but or not self._passes_over:
            rows, self.after = self._read(
                conn, tables, after=self.after, limit=limit, those=those, until=None
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
    could run. rows: those that the last step has read."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        # Where an index gives rows by age too, the cursor pauses as a whole: `Search._cursor_at`.
        passes_over = not tables.database.oldest_index
        self._objects = _Way(lambda *a, **k: candidates.heads(*a, **k), passes_over)
        self._rows = _Way(lambda *a, **k: candidates.without_object(*a, **k), passes_over)
        self._at_rows = False
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
        chooser: HeadChooser,
        want: int,
        *,
        idle: bool,
        busy: bool = False,
        those: Those | None = None,
        rows: bool = True,
    ) -> bool:
        """Offer the next heads; True if that ended a round. idle: the last look found nothing.
        busy: no thread waits for work. those: which topics to look for. rows: False = objects
        alone."""
        objects = IDLE_OBJECTS if idle else max(want * chooser.slots, IDLE_OBJECTS)
        objects = min(WINDOW, max(objects, self._stride))
        if self._objects.after is None and not self._at_rows:
            self.clean, self._found_some = True, False
        found: list[Candidate] = []
        round_is_over = False
        if not (rows and self._at_rows):
            found = self._objects.step(conn, self.tables, objects, those, busy)
            round_is_over = self._objects.after is None
            self._at_rows = rows and round_is_over
        if self._at_rows:
            found += self._rows.step(conn, self.tables, objects, those, busy)
            round_is_over = self._rows.after is None
            self._at_rows = not round_is_over
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
