"""How long the handler of a message has run, and how long the message waited before.

A message is sent on the database's clock and starts on ours: `ahead` is how many seconds the
database's clock is before ours, as the heartbeat last saw it; 0 where nobody asked.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any

from msgworker.dialects import read_instant
from msgworker.events import Span
from msgworker.store.rows import Row

Ran = tuple[float, float]
"""When a handler started, on the monotonic clock (0 = it did not), and for how many seconds it ran;
of a batch each message has its share."""


class Spans:
    """Makes the spans of events. ahead: written by the heartbeat."""

    def __init__(
        self,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        zone: str = "UTC",
    ) -> None:
        self._zone = zone
        self._wall = wall
        self._monotonic = monotonic
        self.ahead = 0.0

    def set_clock(self, database: float) -> float:
        """The database's clock has just been read, in seconds since 1970; returns `ahead`."""
        self.ahead = database - self._wall()
        return self.ahead

    def of(self, rows: Sequence[Row], ran: Iterable[Ran]) -> list[Span | None]:
        """The span of each message."""
        to_database = self._wall() - self._monotonic() + self.ahead
        return [
            (seconds, _waited(row, begin + to_database, self._zone)) if begin else None
            for row, (begin, seconds) in zip(rows, ran, strict=True)
        ]


def _waited(row: Row, started: float, zone: str) -> float | None:
    """Seconds from the sending to the first start; None for a later start, and where unknown."""
    if row.created_at is None or row.tries or row.later_times or row.crash_times:
        return None
    sent = _seconds(row.created_at, zone)
    return None if sent is None else max(0.0, started - sent)


@lru_cache(maxsize=256)  # messages that are sent together have the same one
def _seconds(instant: Any, zone: str) -> float | None:
    try:
        found = read_instant(instant, zone)
    except ValueError:
        return None
    return None if found is None else found.timestamp()
