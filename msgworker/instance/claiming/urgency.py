"""Messages with a priority: when to read them, and how they are mixed with the others.

Heads of a higher priority come first. One of SHARE heads that an instance claims is the one that
would come first if no message had a priority, so none starves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import Connection

from msgworker.store.claiming import urgent
from msgworker.store.claiming.candidates import Candidate
from msgworker.store.claiming.urgent import Place, Ranked
from msgworker.table import Tables
from msgworker.table.priorities import prioritized

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
        more = urgent.ranked(conn, self._tables, limit=BEHIND, after=after, role=role)
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
