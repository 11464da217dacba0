"""Stop claiming until nothing is in flight: nothing is claimed, and no lane passes its flag on.

OPEN ──begin──► QUIESCING ──nothing in flight──► EMPTY (do the purpose) ──end──► OPEN
 ▲                  │ it takes too long
 └─────end───────  PAUSE: claim again, so that long handlers do not block all other work
"""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import Enum, auto

FIRST_SECONDS = 5.0
LONGEST_SECONDS = 600.0
PAUSE_SECONDS = 30.0


class Reason(Enum):
    """Why."""

    QUARANTINE = "a message in quarantine must run alone"
    NEW_ID = "the instance must take a new id"


class Phase(Enum):
    """OPEN: claim as usual. BEGUN: from now on nothing new starts; waiting lanes are released.
    QUIESCING: still so. EMPTY: nothing is in flight. PAUSE: claim for a while."""

    OPEN = auto()
    BEGUN = auto()
    QUIESCING = auto()
    EMPTY = auto()
    PAUSE = auto()


class Quiesce:
    """Written by the fetcher's thread; `active` is read by settling threads.

    reason: its purpose; None while OPEN. active: no lane passes its flag on. If handlers
    take longer, each attempt lasts twice as long as the one before.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seconds = FIRST_SECONDS
        self._until: float | None = None  # None = OPEN
        self.reason: Reason | None = None
        self.active = False

    def step(self, held: int, reason: Reason) -> Phase:
        """Stop claiming until nothing is in flight; held: how many lanes are in flight."""
        now = self._clock()
        if held == 0:
            self.end()
            self._seconds = FIRST_SECONDS
            return Phase.EMPTY
        if self._until is None:
            self._until = now + self._seconds
            self.reason = reason
            self.active = True
            return Phase.BEGUN
        if now > self._until + PAUSE_SECONDS:
            self.end()
            return Phase.OPEN
        if self.active and now > self._until:
            self.active = False
            self._seconds = min(LONGEST_SECONDS, self._seconds * 2)
        return Phase.QUIESCING if self.active else Phase.PAUSE

    def end(self) -> None:
        """The purpose is gone: back to OPEN."""
        self._until = self.reason = None
        self.active = False
