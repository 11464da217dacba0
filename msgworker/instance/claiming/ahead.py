"""Look for the next heads while there is no room for them yet.

Handlers and settles run meanwhile, so that the next claim need not wait for its look. The heads are
candidates: hints, which the claim decides about. Where lanes hold runs, or handlers take
their time, they would be old by then, and nothing is looked for ahead.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable

from msgworker.instance.claiming.search import Look

OLD_SECONDS = 0.05
"""Heads that were looked for earlier are looked for again."""
REST_SECONDS = 0.5
"""The pause after a look ahead that did not help."""
ONE_EACH = 1.5
"""Lanes with more messages than that, in the mean, last too long."""


class Ahead:
    """Used by the fetcher's thread only."""

    def __init__(self, *, threads: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._threads = threads
        self._clock = clock
        self._look: Look | None = None
        self._under: Hashable = None
        self._at = self._rest_until = 0.0

    def pays(self, held: int, *, run_length: float, handler_seconds: float | None) -> bool:
        """Whether to look now: the `held` lanes will have ended before the look is old.

        run_length: the mean number of messages of a lane. handler_seconds: the mean of a handler,
        None while none has ended.
        """
        if self._look is not None or run_length > ONE_EACH or handler_seconds is None:
            return False
        lasts = held * run_length * handler_seconds / self._threads
        return lasts < OLD_SECONDS / 2 and self._clock() >= self._rest_until

    def keep(self, look: Look, under: Hashable) -> None:
        """Keep what was found. under: what must be the same at its claim, such as our id."""
        self._look, self._under, self._at = look, under, self._clock()

    def take(self, under: Hashable, room: int) -> Look | None:
        """The heads that were found, if they are new and fill the room. What else there may be is
        unknown by now: `complete` and `round_over` are False."""
        look, self._look = self._look, None
        if look is None:
            return None
        now = self._clock()
        old = self._under != under or now - self._at > OLD_SECONDS
        if old or look.quarantined is not None or len(look.candidates) < room:
            self._rest_until = now + REST_SECONDS
            return None
        del look.candidates[room:]
        look.complete = look.round_over = False
        return look

    def forget(self) -> None:
        """Drop it."""
        self._look = None
