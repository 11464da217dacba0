"""The offsets of time zones and their changes, as Python knows them; pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

from msgworker.ticks import zone_of

Pieces = tuple[tuple[datetime | None, int], ...]
"""Offsets in seconds, each until a time without a zone; the last one has no end."""
YEARS_BEFORE, YEARS_AHEAD = 10, 10
"""In these the changes of a zone are known to statements; outside, its offsets of the ends hold."""
RECENT_DAYS = 400
"""What is written or due now looks no further back: fewer pieces in frequent statements."""


@dataclass(frozen=True, slots=True)
class Change:
    """A zone goes from one offset to another at an instant, UTC without a zone."""

    at: datetime
    before: int
    after: int


def offset_at(zone: Any, at: datetime) -> int:
    """The offset of a zone at an instant, UTC without a zone."""
    local = at.replace(tzinfo=UTC).astimezone(zone)
    return int((local.replace(tzinfo=UTC, fold=0) - at.replace(tzinfo=UTC)).total_seconds())


@lru_cache(64)
def changes_of(name: str, first: int, last: int) -> tuple[Change, ...]:
    """The changes of a zone in these years."""
    zone, day, found = zone_of(name), timedelta(days=1), list[Change]()
    begin, end = datetime(first, 1, 1), datetime(last + 1, 1, 1)  # noqa: DTZ001
    while begin < end:
        low, high = begin, begin + day
        before, after = offset_at(zone, low), offset_at(zone, high)
        if before != after:
            while high - low > timedelta(seconds=1):
                middle = low + (high - low) // 2
                middle = middle.replace(microsecond=0)
                low, high = (middle, high) if offset_at(zone, middle) == before else (low, middle)
            found.append(Change(high, before, after))
        begin += day
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Offsets:
    """The offsets of a zone as pieces. by_instant: of UTC; recent: the same, of late; lowest: the
    same, but around a change the lower one of the two; by_clock: of the local time, as it is read;
    recent_clock: the same, of late."""

    by_instant: Pieces
    recent: Pieces
    lowest: Pieces
    by_clock: Pieces
    recent_clock: Pieces

    @property
    def fixed(self) -> bool:
        """Whether the zone has one offset in all these years."""
        return len(self.by_instant) == 1


def offsets_of(name: str) -> Offsets:
    """The offsets of a zone, around this year."""
    return _offsets(name, datetime.now(UTC).year)


@lru_cache(64)
def _offsets(name: str, year: int) -> Offsets:
    every = changes_of(name, year - YEARS_BEFORE, year + YEARS_AHEAD)
    since = datetime(year, 1, 1) - timedelta(days=RECENT_DAYS)  # noqa: DTZ001
    last = offset_at(zone_of(name), datetime(year, 7, 1))  # noqa: DTZ001
    recent = tuple(change for change in every if change.at >= since)
    return Offsets(
        _pieces(every, last), _pieces(recent, last), _lowest(recent, last),
        _pieces(every, last, clock=True), _pieces(recent, last, clock=True),
    )  # fmt: skip


def _pieces(changes: tuple[Change, ...], last: int, *, clock: bool = False) -> Pieces:
    # By the clock: what is left out has the offset of before, what comes twice that of after.
    ends = [c.at + timedelta(seconds=c.after if clock else 0) for c in changes]
    parts = [(end, c.before) for end, c in zip(ends, changes, strict=True)]
    return (*parts, (None, changes[-1].after if changes else last))


def _lowest(changes: tuple[Change, ...], last: int) -> Pieces:
    parts: list[tuple[datetime | None, int]] = []
    for change in changes:
        wide = timedelta(seconds=abs(change.after - change.before))
        if change.after < change.before:
            parts.append((change.at - wide, change.before))
        else:
            parts.append((change.at + wide, change.before))
    return (*parts, (None, changes[-1].after if changes else last))
