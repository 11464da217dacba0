"""Which messages a write takes, piece by piece, and which it leaves alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import sqlalchemy as sa
from sqlalchemy import Connection

from msgworker.dialects import connecting
from msgworker.message import Word, word_of
from msgworker.ops.bulk import Skip, Why
from msgworker.store import change
from msgworker.store.change import Filter, Seen
from msgworker.table import Tables

CHUNK = 10_000
_WHY = {
    Word.NEW: Why.NEW,
    Word.PROCESSING: Why.RUNNING,
    Word.DONE: Why.DONE,
    Word.DEAD: Why.GIVEN_UP,
    Word.UNKNOWN: Why.UNKNOWN,
}


@dataclass(frozen=True, slots=True)
class Chunk:
    """Messages in order of msg_id; `skips`: those of them that are left alone."""

    ids: list[int]
    skips: dict[int, Skip]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Messages by id or by filter.

    ids: in order; None = by `wanted`. words: the states that may be changed. in_order: messages
    whose later ones have run are left alone. given_up: discarded ones may be changed.
    """

    engine: sa.Engine
    tables: Tables
    words: tuple[Word, ...]
    ids: list[int] | None = None
    wanted: Filter | None = None
    in_order: bool = False
    given_up: bool = True
    chunk_size: int = field(default=CHUNK)

    def chunks(self, after: int | None = None) -> Iterator[Chunk]:
        """All of them behind `after`, each piece as it is when it is its turn."""
        return self._of_ids(after) if self.ids is not None else self._of_filter(after)

    def _of_ids(self, after: int | None) -> Iterator[Chunk]:
        ids = [i for i in self.ids or () if after is None or i > after]
        size = min(self.tables.dialect.max_ids, self.chunk_size)
        for start in range(0, len(ids), size):
            part = ids[start : start + size]
            with connecting(self.engine) as conn:
                skips = self.refusals(conn, part)
                good = [i for i in part if i not in skips]
                yield Chunk(part, skips | self._late(conn, good, None))

    def _of_filter(self, after: int | None) -> Iterator[Chunk]:
        assert self.wanted is not None
        more = True
        while more:
            with connecting(self.engine) as conn:
                ids, behind = change.chunk(
                    conn, self.tables, self.wanted, after=after, limit=self.chunk_size
                )
                skips = self._late(conn, ids, self.wanted)
            if ids:
                yield Chunk(ids, skips)
            more, after = behind is not None, behind

    def _late(self, conn: Connection, ids: list[int], wanted: Filter | None) -> dict[int, Skip]:
        if not self.in_order:
            return {}
        late = change.ran_later(conn, self.tables, ids, wanted=wanted)
        return {i: Skip(i, Why.RAN_LATER, late[i]) for i in ids if i in late}

    def refusals(self, conn: Connection, ids: list[int]) -> dict[int, Skip]:
        """Those of the messages that may not be changed as they are now."""
        seen = change.states(conn, self.tables, ids)
        given_up = set() if self.given_up else change.given_up(conn, self.tables, ids)
        whys = {i: Why.GIVEN_UP if i in given_up else self._why(i, seen) for i in ids}
        return {i: Skip(i, why) for i, why in whys.items() if why is not None}

    def _why(self, msg_id: int, seen: Mapping[int, Seen]) -> Why | None:
        if msg_id not in seen:
            return Why.NOT_THERE
        row = seen[msg_id]
        word = word_of(row.status, row.tries, self.tables.spec.max_tries)
        return None if word in self.words else _WHY.get(word, Why.CHANGED)

    def lock(self, conn: Connection, ids: list[int]) -> tuple[list[int], list[Skip]]:
        """Lock those that are still as wanted; and why the others are not."""
        locked = change.lock(conn, self.tables, ids, words=self.words, wanted=self.wanted)
        if not self.given_up and locked:
            away = change.given_up(conn, self.tables, locked)
            locked = [i for i in locked if i not in away]
        have = set(locked)
        gone = [i for i in ids if i not in have]
        why = self.refusals(conn, gone) if gone else {}
        return locked, [why.get(i, Skip(i, Why.CHANGED)) for i in gone]
