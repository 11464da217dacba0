"""Which heads a look chooses from the rows that it reads; and what every search for them has.

Read by search.py (the whole table) and passes.py (slices of it). Nothing here is a claim: the
candidates are hints, `claim.flag` decides.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection

from msgworker.message import in_quarantine, topic_of
from msgworker.payload import is_text
from msgworker.store import ranked
from msgworker.store.candidates import Candidate, Those, share_of_id
from msgworker.store.ranked import Ranked, RankedAt
from msgworker.table.columns import Slice
from msgworker.table.tables import Tables, prioritized

FORGET_SECONDS = 1.0
"""What a search keeps between looks is forgotten after this time."""
DUE_SECONDS = 0.02
"""The pause after a read of due rows, or of rows without an object, that found no more."""
LONGEST_REST_SECONDS = 30.0
"""The longest pause that follows from how long a look took: one slow answer of the database must
not delay messages for long."""
WHOLE_REACH = 1 << 31


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a look is for: up to `heads` heads.

    held: how many objects our lanes hold; their rows come first in the window. where: the slice to
    look in; None = the whole table. slot, slots: our share of the objects; if it has too few, up to
    `most_of_others` heads of others are taken. skip_objects, skip_ids: what is not to be found.
    paused: topics that are not claimed now. busy: no thread waits for work. rests: no round over
    the objects is wanted by a look that finds what is new without.
    """

    heads: int
    held: int = 0
    where: Slice | None = None
    slot: int = 0
    slots: int = 1
    most_of_others: int = WHOLE_REACH
    skip_objects: Set[Any] = frozenset()
    skip_ids: Set[int] = frozenset()
    paused: Set[str] = frozenset()
    busy: bool = False
    rests: bool = False


@dataclass(slots=True)
class Look:
    """The result of one look.

    candidates: heads by priority, oldest first, at most as many as wanted.
    quarantined: a message that must run alone (promise P6), if one was seen.
    complete: everything was read from where the look began.
    from_start: it began at the very start of the table, see `Beginning`.
    round_over: a whole round over the objects has ended, perhaps with lost races.
    seconds: how long it took. places: by msg_id, the value of its slice.
    of_others: how many candidates are in the shares of other instances. finds_new: it has read the
    rows that came since, so that these need not wait for a round.
    """

    candidates: list[Candidate] = field(default_factory=list)
    quarantined: Candidate | None = None
    complete: bool = False
    round_over: bool = False
    from_start: bool = True
    seconds: float = 0.0
    places: dict[int, Any] = field(default_factory=dict)
    of_others: int = 0
    finds_new: bool = False

    @property
    def saw_all(self) -> bool:
        """Whether there was nothing else to claim."""
        return self.complete or self.round_over


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
    """When to read by priority, and how many rows.

    Each look reads the rows of the highest priority while some of them can start; if too few can,
    also behind them, from where the last such read ended. If none can, the next read takes few.
    """

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self._look_at = 0.0
        self._behind_at = 0.0
        self._most = MOST_ROWS
        self._after: RankedAt | None = None
        self.has_priority = prioritized(tables)

    def is_time(self, now: float) -> bool:
        return self.has_priority and now >= self._look_at

    def rows(self, want: int) -> int:
        """How many rows to read for `want` heads."""
        return min(self._most, max(LEAST_ROWS, 2 * want))

    def found(self, some: bool, now: float) -> None:
        """Record whether any of the rows with the highest priority can start."""
        self._look_at = 0.0 if some else now + LOOK_SECONDS
        self._most = MOST_ROWS if some else LEAST_ROWS

    def behind(
        self, conn: Connection, first: Ranked, now: float, by: str | None = None
    ) -> Ranked | None:
        """Read behind `first`, if too few of those can start; None = not now."""
        if first.after is None or now < self._behind_at:
            return None
        self._behind_at = now + LOOK_SECONDS
        after = first.after if self._after is None else max(first.after, self._after)
        more = ranked.ranked(conn, self.tables, limit=BEHIND, after=after, role=by)
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
    """Choose `want` heads: by priority, but at least every SHARE-th is the first of those left in
    the order `by_age`.

    whole: no head before them was left out. overtaken: how many were chosen since the last one that
    was first by age; the new one is returned with the heads.
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


class HeadChooser:
    """Chooses heads from the rows of one look: of each object the first, if it can run.

    slot, slots, most_of_others: see `Wanted`. oldest_of_others: how many of the first heads of
    other shares are chosen in any case. of_others: how many were chosen.
    """

    def __init__(self, search: Search, wanted: Wanted) -> None:
        self._search = search
        self._skipped = set(wanted.skip_objects)
        self._skip_ids = wanted.skip_ids
        self.wanted = wanted
        self._taken: set[int] = set()
        self._max_tries = search.tables.spec.max_tries
        # An index is faster than `same`, and this is read for every row of every look.
        self._key_at = Candidate._fields.index("object_id" if search.tables.fold is None else "key")
        self.slots = max(1, wanted.slots)
        self.slot = wanted.slot % self.slots
        self.own: list[Candidate] = []
        self.priorities: dict[int, int] = {}
        self._others: list[Candidate] = []
        self.most_of_others = wanted.most_of_others
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
        """Take a row if it is the first of its object and may run. The rows of an object are
        offered in order: if the first cannot run, it blocks the others."""
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
        """`offer` each row, in order. New, due ones of a handled topic take a shorter path, since
        this runs for every row of every look."""
        key_at, skipped, skip_ids, taken = self._key_at, self._skipped, self._skip_ids, self._taken
        topics, slots, slot = self._search.topics, self.slots, self.slot
        plain = not (self.wanted.paused or self.priorities or self._waited)
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
            if slots == 1 or _share(msg_id, same, slots) == slot:
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
        self.own.sort(key=lambda row: row.msg_id)

    def _take(self, row: Candidate) -> None:
        if not self.can_run(row):
            return
        self._taken.add(row.msg_id)
        if in_quarantine(row.crash_times, row.tries, self._max_tries):
            self.quarantined = self.quarantined or row
        elif self.slots == 1 or row.msg_id in self.priorities:
            self.own.append(row)
        else:
            own = _share(row.msg_id, row.same, self.slots) == self.slot
            (self.own if own else self._others).append(row)

    def can_run(self, row: Candidate) -> bool:
        """Whether the row can run now, by its status, tries, instant and topic."""
        free = row.status == 0 or (row.status == -1 and row.tries < self._max_tries)
        return free and bool(row.due) and self._handled(row.topic)

    def is_of_others(self, topic: str | None) -> bool:
        """Whether messages of a topic are not claimed here, or not now."""
        name, topics = topic_of(topic), self._search.topics
        if name in self.wanted.paused:
            return True
        if topics is None or name in topics:
            return False
        return isinstance(name, str) and is_text(name)  # SQLite also keeps bytes

    def _handled(self, topic: str | None) -> bool:
        topics, paused = self._search.topics, self.wanted.paused
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
        oldest = self.oldest_of_others
        first, self._others = self._others[:oldest], self._others[oldest:]
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
            more = self._others[: min(want - len(chosen), self.most_of_others)]
            self.of_others += len(more)
            chosen += more
        return chosen, overtaken


def _share(msg_id: int, same: Any, slots: int) -> int:
    """Whose a message is, of so many shares."""
    if same is None:
        return share_of_id(msg_id, slots)
    return zlib.crc32(str(same).encode("utf-8", "replace")) % slots


# --- What every search has.


class Search:
    """What it looks for, and what it skips for a while. Used by the fetcher's thread only.

    topics: those with a handler; None = all. those: the ones to look for, None = all; rows of
    others are read only now and then. unknown_topics: how many messages were seen of each topic
    without a handler. idle: the last look found nothing.
    """

    def __init__(
        self, tables: Tables, topics: frozenset[str] | None, blocked: set[Any] | None = None
    ) -> None:
        """blocked: objects to skip for a while; other threads may remove some."""
        self.tables = tables
        self.topics = topics
        self.those: Those | None = None
        self.idle = False
        self.unknown_topics: dict[str, int] = {}
        self._blocked: set[Any] = set() if blocked is None else blocked
        self._skipped_ids: set[int] = set()
        self._forget_at = 0.0
        self._urgent = Urgent(tables)
        self._overtaken = 0  # see `mixed`
        self._turn = 0

    def look(self, conn: Connection, wanted: Wanted) -> Look:
        raise NotImplementedError

    def use(self, tables: Tables, those: Those | None) -> None:
        """Look by these from now on: tables differ by whether a job is paused."""
        if tables is not self.tables or those != self.those:
            self.tables = self._urgent.tables = tables
            self.those = those
            self.forget()

    def lost(self, candidates: list[Candidate]) -> None:
        """These could not be flagged: skip their objects until `forget`."""
        self._blocked.update(
            c.same for c in candidates if c.object_id is not None and c.waits_until is None
        )

    def skip(self, candidate: Candidate) -> None:
        """Skip this message until `forget`."""
        self._skipped_ids.add(candidate.msg_id)

    def forget(self, *, start: bool = True) -> None:
        """Forget what earlier looks found. start: the next one begins at the very start."""
        self._forget_at = 0.0

    def look_again_from(self, msg_id: int) -> None:
        """We have given this message back, and perhaps those behind it: look there again."""

    def _forget_now(self, now: float) -> None:
        """Every FORGET_SECONDS, and after `forget`."""
        self._forget_at = now + FORGET_SECONDS
        self._blocked.clear()
        self._skipped_ids.clear()
        self.unknown_topics.clear()
