"""Let our hands run empty for a while: nothing is claimed, and no lane passes its flag on.

OPEN ──begin──► QUIESCING ──nothing in hand──► EMPTY (do what it was for) ──end──► OPEN
 ▲                  │ it lasts too long
 └─────end───────  PAUSE: claims go on, so that long handlers do not stop all other work
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
    NEW_ID = "the instance must go on under a new id"


class Phase(Enum):
    """OPEN: claims go on as ever. BEGUN: from now on nothing new starts; what waits is to be given
    back. QUIESCING: so it is still. EMPTY: nothing is in hand. PAUSE: claims go on for a while."""

    OPEN = auto()
    BEGUN = auto()
    QUIESCING = auto()
    EMPTY = auto()
    PAUSE = auto()


class Quiesce:
    """Written by the fetcher's thread; `active` is read by whoever settles.

    reason: for which it began; None while OPEN. active: no lane passes its flag on. Where handlers
    take longer, each time lasts twice as long as the one before.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seconds = FIRST_SECONDS
        self._until: float | None = None  # None = OPEN
        self.reason: Reason | None = None
        self.active = False

    def step(self, held: int, reason: Reason) -> Phase:
        """Hands are to run empty; held: how many lanes are in hand."""
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
        """There is no reason for it any more."""
        self._until = self.reason = None
        self.active = False
