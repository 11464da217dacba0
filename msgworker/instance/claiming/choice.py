"""Choose heads from the rows that a look reads, those with a priority first."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from sqlalchemy import Connection

from msgworker.message import in_quarantine, topic_of
from msgworker.payload import is_text
from msgworker.store import ranked
from msgworker.store.candidates import Candidate
from msgworker.store.ranked import Place, Ranked
from msgworker.table import Tables
from msgworker.table.tables import prioritized

# --- Messages with a priority: when to read them, and how they are mixed with the others.
#
# Heads of a higher priority come first. One of SHARE heads that an instance claims is the one that
# would come first if no message had a priority, so none starves.

SHARE = 8
LEAST_ROWS = 64
MOST_ROWS = 1000
BEHIND = 500
"""Rows that one look reads behind the first, where too few of those can start."""
LOOK_SECONDS = 0.02
"""The pause between two looks, unless the last one has found something."""


class Urgent:
    """When to read by priority, and how far: the highest at each look while there are any, and
    where too few of them can start, as far behind as the look before came to. Where none of the
    highest could start, only a few of them are read the next time: most are behind others of their
    objects then."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
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
        """Record whether a read of the highest has given heads that can start."""
        self._look_at = 0.0 if some else now + LOOK_SECONDS
        self._most = MOST_ROWS if some else LEAST_ROWS

    def behind(
        self, conn: Connection, first: Ranked, now: float, role: str | None = None
    ) -> Ranked | None:
        """Continue behind the highest, of which too few can start; None = not now."""
        if first.after is None or now < self._behind_at:
            return None
        self._behind_at = now + LOOK_SECONDS
        after = first.after if self._after is None else max(first.after, self._after)
        more = ranked.ranked(conn, self._tables, limit=BEHIND, after=after, role=role)
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
    """Choose `want` heads: by priority, then in the order given, and each SHARE-th at the latest
    the first in the order given.

    by_age: the heads as they come without priorities; whole: none that comes before them has been
    left out. overtaken: how many have been chosen since one that was the first in that order.
    Returns the heads, and `overtaken` after them.
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
    """What a search knows of its instance. topics: with a handler; None = all. unknown_topics: how
    many messages were seen of each of the others."""

    tables: Tables
    topics: frozenset[str] | None
    paused: frozenset[str]
    unknown_topics: dict[str, int]


class HeadChooser:
    """Chooses heads from rows in order.

    reach: how many heads of other shares are chosen, where ours gives too few. eldest: how many of
    them are chosen in any case, the first ones. of_others: how many were.
    """

    def __init__(
        self,
        search: Looking,
        passed_objects: set[Any],
        skip_ids: set[int] | frozenset[int],
        slot: int,
        slots: int,
    ) -> None:
        self._search = search
        self._passed = passed_objects
        self._skip_ids = skip_ids
        self._taken: set[int] = set()
        self._max_tries = search.tables.spec.max_tries
        # By its place, not by `same`: this is done for every row of every look.
        self._key_at = Candidate._fields.index("object_id" if search.tables.fold is None else "key")
        self.slot = slot % max(1, slots)
        self.slots = max(1, slots)
        self.own: list[Candidate] = []
        self.priorities: dict[int, int] = {}
        self._others: list[Candidate] = []
        self.reach = WHOLE_REACH
        self.eldest = self.of_others = 0
        self._waited: dict[Any, Candidate] = {}
        self.quarantined: Candidate | None = None

    def pass_over(self, objects: set[Any]) -> None:
        """Objects to skip from now on."""
        self._passed |= objects

    def offer_waited(self, row: Candidate) -> None:
        """Take a row that has waited for its instant: of each object the lowest.

        It need not be the head: a lower one that waits for nothing, seen later, takes its place.
        """
        same = row[self._key_at]
        if same is None:
            self.offer(row)
        elif same not in self._passed and row.msg_id not in self._skip_ids:
            known = self._waited.get(same)
            if self.could_go(row) and (known is None or row.msg_id < known.msg_id):
                self._waited[same] = row

    def offer(self, row: Candidate) -> None:
        """Take a row if it is the first of its object and may run.

        The source gives an object's rows in order: the first one that cannot run blocks the others.
        """
        same = row[self._key_at]
        if same is not None:
            waited = self._waited.get(same)
            if waited is not None and waited.msg_id < row.msg_id:
                return
            self._waited.pop(same, None)
            if same in self._passed:
                return
            self._passed.add(same)
        if row.msg_id not in self._taken and row.msg_id not in self._skip_ids:
            self._take(row)

    def offer_all(self, rows: Iterable[Candidate]) -> None:
        """`offer` of each, in order. Nearly all are new, due and handled: those are asked for no
        more than that, since this is done for every row of every look."""
        key_at, passed, skipped, taken = self._key_at, self._passed, self._skip_ids, self._taken
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
                if same in passed:
                    continue
                passed.add(same)
            if msg_id in taken or msg_id in skipped:
                continue
            taken.add(msg_id)
            if slots == 1 or _share(msg_id if same is None else same, slots) == slot:
                self.own.append(row)
            else:
                self._others.append(row)

    def offer_ranked(self, found: Ranked) -> int:
        """Take the heads that have a priority, whosever share they are in; returns how many."""
        before = len(self.own)
        self.priorities |= found.priorities
        for row in found.heads:
            same = row[self._key_at]
            if self.could_go(row) and (same is None or same not in self._passed):
                self.offer(row)
        return len(self.own) - before

    def oldest_first(self) -> None:
        """Heads of several sources were offered, not by age."""
        self.own.sort(key=lambda row: row.msg_id)

    def _take(self, row: Candidate) -> None:
        if not self.could_go(row):
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

    def could_go(self, row: Candidate) -> bool:
        """By its status, tries, instant and topic."""
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
        if isinstance(name, str) and not is_text(name):  # no handler: it is claimed to become dead
            return True
        unknown = self._search.unknown_topics
        unknown[name] = unknown.get(name, 0) + 1
        return False

    def chosen(
        self, want: int, overtaken: int = 0, *, whole: bool = True
    ) -> tuple[list[Candidate], int]:
        """Up to `want` heads: due retries and delayed ones first, then our share, by age, if they
        have the same priority. overtaken, whole: see `mixed`."""
        first, self._others = self._others[: self.eldest], self._others[self.eldest :]
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
