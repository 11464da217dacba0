"""Choose heads from the rows that a look reads: of each object the first one, if it may run."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any, Protocol

from msgworker.instance.claiming import urgency
from msgworker.message import in_quarantine, topic_of
from msgworker.payload import is_text
from msgworker.store.claiming.candidates import Candidate
from msgworker.store.claiming.urgent import Ranked
from msgworker.table import Tables

WHOLE_REACH = 1 << 31


class Looking(Protocol):
    """What a search knows of its instance. topics: with a handler; None = all. unknown_topics: how
    many messages were seen of each of the others."""

    tables: Tables
    topics: frozenset[str] | None
    paused: frozenset[str]
    unknown_topics: dict[str, int]


class Pick:
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

    def is_of_others(self, row: Candidate) -> bool:
        """Whether messages of its topic are not claimed here, or not now."""
        name, topics = topic_of(row.topic), self._search.topics
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
        have the same priority. overtaken, whole: see `urgency.mixed`."""
        first, self._others = self._others[: self.eldest], self._others[self.eldest :]
        found, self.own = first + self.own, []
        for row in self._waited.values():
            self._take(row)
        self._waited.clear()
        if self.priorities:
            self.own += sorted(found, key=lambda row: row.msg_id)
            chosen, overtaken = urgency.mixed(
                self.own, self.priorities, want, overtaken, whole=whole
            )
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
