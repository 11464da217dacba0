"""Which messages a write changes, page by page, and which it skips."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

import sqlalchemy as sa
from sqlalchemy import Connection

from msgworker import dialects
from msgworker.errors import TookTooLong
from msgworker.message import State, Status, word_of
from msgworker.ops.results import Skip, Why
from msgworker.ops.timing import ENDLESS, Clock
from msgworker.store.changing import change, chunks, keys
from msgworker.store.changing.change import Filter, SeenRow
from msgworker.store.looking import order
from msgworker.store.looking.order import Behind
from msgworker.store.tables.rule import Rule
from msgworker.table import Tables

CHUNK = 10_000
ORDER_SECONDS = 10.0
"""The time to find out of messages by id, in each page, whether later ones of their objects have
run."""
WALK_RATIO = 10
LEAST_WALK = 5_000
"""A chunk goes over so many times its size of rows that do not match, and at least over so many."""
WHY: Mapping[State, Why] = {
    State.NEW: Why.NEW,
    State.PROCESSING: Why.RUNNING,
    State.DONE: Why.DONE,
    State.DEAD: Why.GIVEN_UP,
    State.UNKNOWN: Why.UNKNOWN,
}
"""Why messages in a state that may not be changed are skipped."""
_WENT_ON = {
    State.PROCESSING: Why.RUNS_LATER,
    State.DONE: Why.RAN_LATER,
    State.UNKNOWN: Why.CHANGED,
}


@dataclass(frozen=True, slots=True)
class Chunk:
    """Messages in order of msg_id. skips: those that are skipped. behind: the messages behind the
    others when they were read, if their order matters. next_after: where the next chunk begins,
    None = there is none."""

    ids: list[int]
    skips: dict[int, Skip]
    behind: Behind | None = None
    next_after: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Messages by id or by filter.

    ids: in order; None = by `wanted`. words: the states that may be changed. in_order: skip
    messages whose later ones have run. given_up: discarded ones may be changed. unfit: says which
    ones may not be changed for another reason than their state. key_taken: what happens to a
    message whose unique key another one holds: "skip" it, or it goes on "without" it; None = it
    needs no key. clock: the time of all reads of messages that are not locked; each raises
    TookTooLong when it is up.
    """

    engine: sa.Engine
    tables: Tables
    words: tuple[State, ...]
    ids: list[int] | None = None
    wanted: Filter | None = None
    in_order: bool = False
    given_up: bool = True
    why: Mapping[State, Why] = field(default_factory=lambda: WHY)
    unfit: Callable[[Connection, list[int]], dict[int, Skip]] | None = None
    key_taken: Literal["skip", "without"] | None = None
    chunk_size: int = field(default=CHUNK)
    clock: Clock = ENDLESS

    def chunks(self, after: int | None = None) -> Iterator[Chunk]:
        """All of them after `after`, in pages that are read one by one."""
        while True:
            found = self.chunk(after, self.chunk_size)
            if found.ids:
                yield found
            after = found.next_after
            if after is None:
                return

    def chunk(self, after: int | None, size: int) -> Chunk:
        """The next ones after `after`, at most `size`; maybe none, with more behind them."""
        return self._of_ids(after, size) if self.ids is not None else self._of_filter(after, size)

    def _of_ids(self, after: int | None, size: int) -> Chunk:
        ids = self.ids or []
        start = 0 if after is None else bisect_right(ids, after)
        part = ids[start : start + min(self.tables.dialect.max_ids, size)]
        if not part:
            return Chunk([], {})
        ends = self.in_order and self.clock.seconds is None
        clock = Clock(ORDER_SECONDS) if ends else self.clock
        try:
            with clock.reading(self.engine) as conn:
                skips = self.refusals(conn, part)
                good = [i for i in part if i not in skips]
                behind, late = self._late(conn, good, None)
                taken = self._taken(conn, [i for i in good if i not in late])
        except TookTooLong as error:
            raise TookTooLong(error.seconds, self._by_object(part) if ends else None) from error
        more = start + len(part) < len(ids)
        return Chunk(part, skips | late | taken, behind, part[-1] if more else None)

    def _by_object(self, ids: list[int]) -> str:
        t = self.tables
        quote = dialects.compiler_for(t.dialect.name).identifier_preparer
        object_id, msg_id = (quote.quote(t.names[role]) for role in ("object_id", "msg_id"))
        one = len(ids) == 1
        left = f"message {ids[0]} was" if one else f"messages {ids[0]} to {ids[-1]} were"
        return (
            f"{left} left alone. Whether a later message of its object has run is found fast, of "
            "one message, by an index of your own on "
            f"{quote.format_table(t.message)} ({object_id}, {msg_id}): with it rerun "
            f"{'it' if one else 'them one by one'}. Without it, --force (force=True) reruns "
            f"{'it' if one else 'them'} and does not ask"
        )

    def _of_filter(self, after: int | None, size: int) -> Chunk:
        assert self.wanted is not None
        walk = min(chunks.WALK, max(LEAST_WALK, WALK_RATIO * size))
        with self.clock.reading(self.engine) as conn:
            ids, next_after = chunks.chunk(
                conn, self.tables, self.wanted, after=after, limit=size, walk=walk
            )
            behind, skips = self._late(conn, ids, self.wanted)
            skips |= self._unfit_among(conn, ids)
            skips |= self._taken(conn, [i for i in ids if i not in skips])
        return Chunk(ids, skips, behind, next_after)

    def ends_at(self, last: int) -> bool:
        """Whether nothing is chosen behind this message; of a group of failures, whether no failed
        message is there."""
        if self.ids is not None:
            return last >= self.ids[-1]
        assert self.wanted is not None
        with self.clock.reading(self.engine) as conn:
            found = chunks.chunk(conn, self.tables, self.wanted, after=last, limit=1)
        return found[1] is None

    def _late(
        self, conn: Connection, ids: list[int], wanted: Filter | None
    ) -> tuple[Behind | None, dict[int, Skip]]:
        if not self.in_order or not ids:
            return None, {}
        # In this order: the second read sees messages that end between the two.
        behind = order.behind(conn, self.tables, ids)
        ordered = [i for i in ids if i in behind.ids]
        late = order.ran_later(conn, self.tables, ordered, wanted=wanted)
        return behind, {i: Skip(i, Why.RAN_LATER, late[i]) for i in ids if i in late}

    def _taken(self, conn: Connection, ids: list[int]) -> dict[int, Skip]:
        if self.key_taken != "skip":
            return {}
        taken = keys.taken(conn, self.tables, ids)
        return {i: Skip(i, Why.KEY_TAKEN, other) for i, other in taken.items()}

    def free_keys(self, conn: Connection, ids: list[int]) -> dict[int, Skip]:
        """Those of the locked messages whose key is taken, unless they go on without it: then it
        is taken from them."""
        if self.key_taken == "without":
            keys.give_up(conn, self.tables, list(keys.taken(conn, self.tables, ids)))
        return self._taken(conn, ids)

    def overtaken(self, conn: Connection, ids: list[int], behind: Behind) -> dict[int, Skip]:
        """Those of the messages behind which a later one of their object has run since the read."""
        t = self.tables
        runs = order.runs_later(conn, t, ids)
        found = {i: Skip(i, Why.RUNS_LATER, other) for i, other in runs.items()}
        # Read after that: a message that no longer runs has an outcome by now.
        firsts = sorted({behind.first[i] for i in ids if i in behind.first})
        seen = change.states(conn, t, firsts)
        came: dict[int, int] = {}
        for start in range(0, len(ids), t.dialect.max_ids):
            came |= order.done_above(conn, t, ids[start : start + t.dialect.max_ids], behind.high)
        for i in ids:
            first, last = behind.first.get(i), came.get(i, i)
            why = None if first is None else self._went_on(seen.get(first))
            if why is not None:
                found.setdefault(i, Skip(i, why, first))
            elif last > i:
                found.setdefault(i, Skip(i, Why.RAN_LATER, last))
        return found

    def _went_on(self, first: SeenRow | None) -> Why | None:
        """Why messages before this one are skipped; None while it holds its object."""
        if first is None:
            return Why.CHANGED
        rule = Rule.of(self.tables.spec)
        word = word_of(first.status, first.tries, rule.max_tries)
        if word in _WENT_ON:
            return _WENT_ON[word]
        if word is State.DEAD and not rule.holds_dead(first.tries):
            return Why.CHANGED  # those behind it may have run: only a new read could tell
        return None

    def refusals(self, conn: Connection, ids: list[int]) -> dict[int, Skip]:
        """Those of the messages that may not be changed in their present state."""
        seen = change.states(conn, self.tables, ids)
        given_up = set() if self.given_up else change.given_up(conn, self.tables, ids)
        whys = {i: Why.GIVEN_UP if i in given_up else self._why(i, seen) for i in ids}
        refused = {i: Skip(i, why) for i, why in whys.items() if why is not None}
        return refused | self._unfit_among(conn, [i for i in ids if i not in refused])

    def _unfit_among(self, conn: Connection, ids: list[int]) -> dict[int, Skip]:
        found: dict[int, Skip] = {}
        if self.unfit is not None:
            size = self.tables.dialect.max_ids
            for start in range(0, len(ids), size):
                self.clock.check()
                found |= self.unfit(conn, ids[start : start + size])
        return found

    def count_among(self, ids: list[int], status: Status) -> int:
        """How many of the messages are done, or running, now."""
        with self.clock.reading(self.engine) as conn:
            seen = change.states(conn, self.tables, ids)
        return sum(row.status == status for row in seen.values())

    def _why(self, msg_id: int, seen: Mapping[int, SeenRow]) -> Why | None:
        if msg_id not in seen:
            return Why.NOT_THERE
        row = seen[msg_id]
        word = word_of(row.status, row.tries, self.tables.spec.max_tries)
        return None if word in self.words else self.why.get(word, Why.CHANGED)

    def lock(self, conn: Connection, ids: list[int]) -> tuple[list[int], list[Skip]]:
        """Lock the messages that still match; and say why the others do not."""
        locked = change.lock(conn, self.tables, ids, words=self.words, wanted=self.wanted)
        if not self.given_up and locked:
            away = change.given_up(conn, self.tables, locked)
            locked = [i for i in locked if i not in away]
        unfit = self._unfit_among(conn, locked)
        locked = [i for i in locked if i not in unfit]
        have = set(locked)
        gone = [i for i in ids if i not in have]
        why = self.refusals(conn, gone) if gone else {}
        return locked, [why.get(i, Skip(i, Why.CHANGED)) for i in gone]
