"""When a drain is over: after several complete looks that found nothing, with nothing to wait for,
and with nothing due in the table that it may handle.

It only decides, and no other place does; draining.py gathers what it is told, and acts on it.
Nothing here uses the database.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, auto

from msgworker.instance.claiming.search import Look
from msgworker.store.recovering.lease import Lease

EMPTY_LOOKS = 3
"""How many complete looks in a row must find nothing before a drain may end."""
OVERDUE_LOOK_SECONDS = 0.1
"""Between two looks for what is due and could not be claimed."""


class Next(Enum):
    """What to do after a round that claimed nothing.

    AGAIN: look again. LOOK_AFRESH: forget earlier looks and look again. SWEEP: first release
    rows of a claim whose answer was lost. ASK: read from the database what becomes due, then call
    `waits`. COUNT: count what is left in the table, then call `judge`. GO_ROUND: begin anew
    everywhere, also where others were to look before us. OVER: end the drain.
    """

    AGAIN = auto()
    LOOK_AFRESH = auto()
    SWEEP = auto()
    ASK = auto()
    COUNT = auto()
    GO_ROUND = auto()
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

    in_flight: it has lanes, or handlers that run, also under a lost id. settled: no further part
    of the table is about to become ours. starts_in: seconds until a message of a limited topic may
    start, 0 = to be tried now, None = none will. in_doubt: the answer to the last claim was lost.
    recovering: messages of dead instances are being given back.
    """

    in_flight: bool = False
    settled: bool = True
    starts_in: float | None = None
    in_doubt: bool = False
    recovering: bool = False


class DrainEnd:
    """Used by the fetcher's thread only. drain: None = it never ends.

    due_in: seconds until there is something to do again, from the last answer; None = unknown.
    overdue_since: on the clock, since when a message is due that cannot be claimed.
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
        """There is work, or there may be: start again with deciding the end."""
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
            return Next.SWEEP
        if seen.recovering:  # recovered messages may be claimable
            return Next.AGAIN
        if not self._looked_afresh:  # state kept between looks may have hidden a message
            self._looked_afresh = True
            return Next.LOOK_AFRESH
        return Next.ASK

    def waits(self, due_in: float | None, lease_ends_in: float | None = None) -> Next:
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

    def judge(self, *, due: int, refused: int) -> Next:
        """After COUNT. due: how many objects, and messages without one, the table has that we may
        handle now. refused: how many the database did not let us flag: they are told already."""
        if due <= refused:
            return Next.OVER
        now = self._clock()
        self.overdue_since = now if self.overdue_since is None else self.overdue_since
        if self._drain is None or now - self.overdue_since > self._drain.overdue:
            return Next.OVER
        self._empty_looks = 0
        self._looked_afresh = False
        self.due_in = OVERDUE_LOOK_SECONDS
        return Next.GO_ROUND

    def lease_ends_in(self, ending: Sequence[Lease]) -> float | None:
        """Seconds until the first of these leases ends (0 = it has ended), None if there is none to
        wait for: a drain does not wait for a lease that is renewed, or that cannot be taken
        over."""
        now, awaited = self._clock(), []
        for one in ending:
            left = one.left_seconds
            late = now + left + self._heartbeat_seconds
            renewed_at, until = self._leases.setdefault(one.name, (one.renewed_at, late))
            if one.renewed_at == renewed_at and now < until:
                awaited.append(left)
        return min(awaited, default=None)
