"""How long the claim loop waits between two rounds, and when a drain is over."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, auto

from msgworker.instance.claiming.search import Look
from msgworker.store.lease import Lease

# --- How long the claim loop waits between two rounds.
#
# Not at all while there is work and a free lane, briefly while no lane is free, longer and longer
# while idle. While messages are in flight there is a round at every tick, which settles finished
# lanes and wakes threads, but looks become rarer if they find nothing; after a wake it looks at
# once. Looks past many messages that may not be claimed (of a paused topic, for example) have no
# idle pauses, but a pause longer than they took, to leave the database to others.

FIRST_PAUSE_SECONDS = 0.01
TICK_SECONDS = 0.01
SOME_WON_SECONDS = 0.001
"""The pause after a claim that won far fewer lanes than were wanted."""
GROWTH = 1.3
BUSY_GROWTH = 2.0
LONGEST_BUSY_SECONDS = 0.25
"""The longest time between two looks while messages are in flight and lanes are free."""
LEFT_TO_OTHERS = 4.0
"""The pause in and after a round over the objects, as a multiple of its time."""
LONGEST_REST_SECONDS = 30.0


class PollPace:
    """Decides how long the claim loop pauses. Used by the fetcher's thread only.

    poll_seconds: the longest pause while idle. drains: a drain waits long only for known times.
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
        self._round_since: float | None = None  # when the unfinished round over the objects began
        self._look_seconds = 0.0  # of the last look of an unfinished round
        self._rest = 0.0  # the pause after the last round

    def restart(self) -> None:
        """There may be work now: look at once, then start with the shortest idle pause."""
        self._pause = FIRST_PAUSE_SECONDS
        self._look_at, self._woken = 0.0, True

    @property
    def look_in(self) -> float:
        """The seconds until the next look while messages are in flight, 0 = now."""
        return max(0.0, self._look_at - self._clock())

    def looked(self, look: Look) -> None:
        """After a look of which nothing was claimed."""
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

        won: how many lanes were claimed, -1 = it did not look. wanted: how many to hold at most.
        more: there may be more to claim. holding: messages are in flight. due_in: seconds until a
        drain has something to do again, if that is known.
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
        if found or woken:  # producers may not wake us, or wake us before their commit
            self._busy = TICK_SECONDS
        else:
            longest = max(TICK_SECONDS, min(LONGEST_BUSY_SECONDS, self._longest))
            self._busy = min(longest, self._busy * BUSY_GROWTH)
        return self._busy


# --- When a drain is over: after several complete looks that found nothing, with nothing to wait
# for, and with nothing due in the table that it may handle.
#
# Only `DrainEnd` decides that, for loop.py. Nothing here uses the database.

EMPTY_LOOKS = 3
"""How many complete looks in a row must find nothing before a drain may end."""
OVERDUE_LOOK_SECONDS = 0.1
"""The pause between two looks for due messages that could not be claimed."""


class Next(Enum):
    """What to do after a round that claimed nothing.

    AGAIN: look again. LOOK_AFRESH: forget earlier looks and look again. RELEASE_UNKNOWN: first
    release rows of a claim whose answer was lost. ASK: read from the database what becomes due,
    then call `after_ask`. COUNT: count what is left in the table, then call `after_count`.
    LOOK_EVERYWHERE: as LOOK_AFRESH, in all slices that we may look in. OVER: end the drain.
    """

    AGAIN = auto()
    LOOK_AFRESH = auto()
    RELEASE_UNKNOWN = auto()
    ASK = auto()
    COUNT = auto()
    LOOK_EVERYWHERE = auto()
    OVER = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """How long a drain waits, in seconds. linger: for messages that become due and for leases of
    other instances. retry_linger: for the next try of failed messages. overdue: for due messages
    that cannot be claimed."""

    linger: float
    retry_linger: float
    overdue: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What an instance knows after a round that claimed nothing.

    in_flight: it has lanes, or handlers that run, also under a lost id. settled: no further slice
    of the table is about to become ours. starts_in: seconds until a message of a limited topic may
    start, 0 = try now, None = none will. from_start: the looks that found no message of a limited
    topic began at the very start of the table. in_doubt: the answer to the last claim was lost.
    recovering: messages of dead instances are being given back.
    """

    in_flight: bool = False
    settled: bool = True
    starts_in: float | None = None
    from_start: bool = True
    in_doubt: bool = False
    recovering: bool = False


class DrainEnd:
    """Decides when a drain is over. Used by the fetcher's thread only. drain: None = it never ends.

    due_in: seconds until there is something to do again, as last read; None = unknown.
    overdue_since: on the clock, since when messages are due that cannot be claimed.
    """

    def __init__(
        self,
        drain: Drain | None,
        *,
        heartbeat_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._drain = drain
        self._heartbeat_seconds = heartbeat_seconds
        self._clock = clock
        self._empty_looks = 0
        self._looked_afresh = False
        self.overdue_since: float | None = None
        self._waited_for_a_lease = False
        self._leases: dict[str, tuple[datetime, float]] = {}
        self.due_in: float | None = None

    def saw_work(self) -> None:
        """There is work, or there may be: count empty looks from 0 again."""
        self._empty_looks = 0
        self._looked_afresh = False
        self.overdue_since = None

    def saw_nothing(self, look: Look, seen: Seen) -> Next:
        """After a look of which nothing was claimed."""
        self.due_in = None
        if seen.in_flight or self._will_start(seen):
            self.saw_work()
        elif not seen.settled:
            self._empty_looks = 0
        elif look.complete or (look.round_over and not look.candidates):
            if self._drain is not None and not (look.from_start and seen.from_start):
                return Next.LOOK_AFRESH
            return self._saw_everything(seen)
        return Next.AGAIN

    def _will_start(self, seen: Seen) -> bool:
        if self._drain is None or seen.starts_in is None:
            return False
        return seen.starts_in <= self._drain.linger

    def _saw_everything(self, seen: Seen) -> Next:
        self._empty_looks += 1
        if self._empty_looks == 1:  # skipped objects may be free by now
            return Next.LOOK_AFRESH
        if self._drain is None or self._empty_looks < EMPTY_LOOKS:
            return Next.AGAIN
        if seen.in_doubt:
            self._empty_looks = 0
            return Next.RELEASE_UNKNOWN
        if seen.recovering:  # recovered messages may be claimable
            return Next.AGAIN
        if not self._looked_afresh:  # state kept between looks may have hidden a message
            self._looked_afresh = True
            return Next.LOOK_AFRESH
        return Next.ASK

    def after_ask(self, due_in: float | None, lease_ends_in: float | None = None) -> Next:
        """After ASK. due_in: seconds until the first message becomes due that is worth waiting for;
        lease_ends_in: until the end of a lease that it waits for. None = there is none, or it was
        not read."""
        self.due_in = due_in
        if due_in is None:
            waited, self._waited_for_a_lease = self._waited_for_a_lease, lease_ends_in is not None
            if waited and lease_ends_in is None:  # its messages may be free since the last look
                self._looked_afresh = False
                return Next.AGAIN
            self.due_in = lease_ends_in
        if self.due_in is None:
            return Next.COUNT
        self.overdue_since = None
        return Next.AGAIN

    def after_count(self, *, due: int, refused: int) -> Next:
        """After COUNT. due: how many objects, and messages without one, the table has that we may
        handle now. refused: how many the database did not let us flag: those were logged."""
        if due <= refused:
            return Next.OVER
        now = self._clock()
        self.overdue_since = now if self.overdue_since is None else self.overdue_since
        if self._drain is None or now - self.overdue_since > self._drain.overdue:
            return Next.OVER
        self._empty_looks = 0
        self._looked_afresh = False
        self.due_in = OVERDUE_LOOK_SECONDS
        return Next.LOOK_EVERYWHERE

    def lease_ends_in(self, ending: Sequence[Lease]) -> float | None:
        """Seconds until the first of these leases ends (0 = it has ended); None if there is none to
        wait for: a drain does not wait for a lease that is renewed, or that is not taken over in
        time."""
        now, awaited = self._clock(), []
        for one in ending:
            left = one.left_seconds
            late = now + left + self._heartbeat_seconds
            renewed_at, until = self._leases.setdefault(one.name, (one.renewed_at, late))
            if one.renewed_at == renewed_at and now < until:
                awaited.append(left)
        return min(awaited, default=None)
