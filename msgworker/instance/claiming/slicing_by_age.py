"""Where to look for heads in a slice whose index is in order of age."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection

from msgworker.instance.claiming.slicing import LEAST_ROWS, WIDEST, Skip, SliceSearch
from msgworker.store.claiming import slices_by_age
from msgworker.store.claiming.candidates import Candidate
from msgworker.store.claiming.slices import Place
from msgworker.table import Slice

BEHIND = 1000
"""Entries that one look reads in all behind the oldest, where none of those can start."""


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
        fronts = slices_by_age.heads(conn, self.tables, where.role, places, rows)
        found: list[tuple[Candidate, Any]] = []
        goes = False
        behind: list[Place] = []
        for value, front in zip(where.values, fronts, strict=True):
            track = self._tracks[value]
            track.without_object.over = True  # this index has them among the others
            found += [(row, value) for row in front.found]
            could_go = self._goes(front, skip)
            goes |= could_go
            if front.after is None:
                track.heads.after, track.heads.over = None, not could_go
                continue
            track.heads.over &= not could_go
            after = track.heads.after
            behind.append(Place(value, front.after if after is None else max(after, front.after)))
        if behind and (not goes or self._wide >= WIDEST):
            rows = max(LEAST_ROWS, BEHIND // len(behind))
            pages = slices_by_age.heads(conn, self.tables, where.role, behind, rows)
            for place, page in zip(behind, pages, strict=True):
                self._tracks[place.value].heads.went(page, self._goes(page, skip))
                found += [(row, place.value) for row in page.found]
        return found, goes and bool(behind)
