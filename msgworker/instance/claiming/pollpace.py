"""How long the claim loop waits between two rounds.

Not at all while there is room and work, briefly while there is no room, longer and longer while
idle. While messages are in flight it goes round with every tick, so that finished lanes are settled
and threads woken, but it looks more and more rarely if nothing is found; a wake makes it look at
once. A round over many messages that may not be claimed (of a paused topic, for example) has no
idle pauses, but leaves the database most of the time to others: it rests longer than it took.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from msgworker.instance.claiming.search import Look

FIRST_PAUSE_SECONDS = 0.01
TICK_SECONDS = 0.01
SOME_WON_SECONDS = 0.001
"""The pause after a claim that won much less than there was room for."""
GROWTH = 1.3
BUSY_GROWTH = 2.0
LONGEST_BUSY_SECONDS = 0.25
"""The longest time between two looks while messages are in flight, if there is room."""
LEFT_TO_OTHERS = 4.0
"""The rest of an unfinished round, as a multiple of the time of its looks."""
LONGEST_REST_SECONDS = 30.0


class PollPace:
    """Used by the fetcher's thread only.

    poll_seconds: the longest pause while idle. drains: it waits only for known times.
    clock: monotonic seconds. jitter: the share of an idle pause that is waited.
    """

    def __init__(
        self,
        poll_seconds: float,
        *,
        drains: bool = False,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = lambda: random.uniform(0.75, 1.0),
    ) -> None:
        self._longest = poll_seconds
        self._drains = drains
        self._clock = clock
        self._jitter = jitter
        self._pause = FIRST_PAUSE_SECONDS
        self._busy = TICK_SECONDS  # between two looks while messages are in flight
        self._look_at = 0.0
        self._woken = False  # since the last look
        self._round_since: float | None = None  # when the unfinished round began
        self._look_seconds = 0.0  # of the last look of an unfinished round
        self._rest = 0.0  # owed for the last round

    def restart(self) -> None:
        """There may be work now: look at once, then start with the shortest idle pause."""
        self._pause = FIRST_PAUSE_SECONDS
        self._look_at, self._woken = 0.0, True

    @property
    def look_in(self) -> float:
        """The seconds until the next look while messages are in flight, 0 = now."""
        return max(0.0, self._look_at - self._clock())

    def looked(self, look: Look) -> None:
        """Nothing was claimed after this look."""
        now = self._clock()
        if look.complete or look.round_over:
            took = 0.0 if self._round_since is None else now - self._round_since
            self._rest = min(LEFT_TO_OTHERS * took, LONGEST_REST_SECONDS)
            self._round_since, self._look_seconds = None, 0.0
        else:
            self._round_since = now if self._round_since is None else self._round_since
            self._look_seconds = look.seconds

    def after(
        self, won: int, *, wanted: int, holding: bool, due_in: float | None, more: bool = True
    ) -> float:
        """The seconds to wait after a round.

        won: lanes that were claimed, -1 = it did not look. wanted: how many to hold at most.
        more: it may not have seen all that can be claimed.
        holding: messages are in flight. due_in: seconds until a drain has something to do again, if
        it waits for that.
        """
        if won > 0:
            self._round_since, self._look_seconds, self._rest = None, 0.0, 0.0
            self._pause = FIRST_PAUSE_SECONDS
        if won > 0 and more:
            self._look_at = 0.0
            return 0.0 if won * 4 >= wanted else SOME_WON_SECONDS
        if won < 0:
            return TICK_SECONDS
        woken, self._woken = self._woken, False
        if won > 0 or holding:
            wait = 0.0 if self._look_seconds else self._busy_seconds(found=won > 0, woken=woken)
            self._look_at = self._clock() + wait
            return TICK_SECONDS
        if self._look_seconds:
            return max(TICK_SECONDS, LEFT_TO_OTHERS * self._look_seconds)
        if self._drains and due_in is None:
            return FIRST_PAUSE_SECONDS
        self._pause = min(self._longest, self._pause * GROWTH)
        if due_in is not None:
            return max(FIRST_PAUSE_SECONDS, min(self._pause, due_in))
        return max(self._rest, self._pause * self._jitter())

    def _busy_seconds(self, *, found: bool, woken: bool) -> float:
        """The seconds until the next look while messages are in flight."""
        if found and woken:  # often it is the next run of the same object: no reason to hurry
            return TICK_SECONDS
        if found or woken:  # others send and do not wake us; or the wake came before its commit
            self._busy = TICK_SECONDS
        else:
            longest = max(TICK_SECONDS, min(LONGEST_BUSY_SECONDS, self._longest))
            self._busy = min(longest, self._busy * BUSY_GROWTH)
        return self._busy
