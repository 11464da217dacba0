"""How long the claim loop waits between two rounds.

Not at all while there is room and work, briefly while there is no room, longer and longer while
idle. A round over many messages that may not be claimed (of a paused topic, for example) has no
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
        self._round_since: float | None = None  # when the unfinished round began
        self._look_seconds = 0.0  # of the last look of an unfinished round
        self._rest = 0.0  # owed for the last round

    def restart(self) -> None:
        """There may be work now: start again with the shortest idle pause."""
        self._pause = FIRST_PAUSE_SECONDS

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

    def after(self, won: int, *, wanted: int, holding: bool, due_in: float | None) -> float:
        """The seconds to wait after a round.

        won: lanes that were claimed, -1 = there was no room. wanted: how many to hold at most.
        holding: messages are in flight. due_in: seconds until a drain has something to do again, if
        it waits for that.
        """
        if won > 0:
            self._round_since, self._look_seconds, self._rest = None, 0.0, 0.0
            self.restart()
            return 0.0 if won * 4 >= wanted else SOME_WON_SECONDS
        if won < 0 or holding:
            return TICK_SECONDS
        if self._look_seconds:
            return max(TICK_SECONDS, LEFT_TO_OTHERS * self._look_seconds)
        if self._drains and due_in is None:
            return FIRST_PAUSE_SECONDS
        self._pause = min(self._longest, self._pause * GROWTH)
        if due_in is not None:
            return max(FIRST_PAUSE_SECONDS, min(self._pause, due_in))
        return max(self._rest, self._pause * self._jitter())
