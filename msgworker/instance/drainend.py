"""When a drain is over: after several looks at everything that found nothing, and no wait ahead.

It decides; what it asks for is done by draining.py. Nothing here touches the database.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, auto

from msgworker.instance.search import Look
from msgworker.store.due import Coming
from msgworker.store.instances import InstanceInfo

EMPTY_LOOKS = 3
"""So many looks at everything in a row must find nothing before a drain may end."""


class Next(Enum):
    """What to do after a round that claimed nothing.

    AGAIN: look again. LOOK_AFRESH: look again, with nothing remembered of earlier looks. SWEEP:
    first give back what the last claim may have flagged without our knowing. ASK: ask the database
    what becomes due, then ask `verdict`. OVER: end the drain.
    """

    AGAIN = auto()
    LOOK_AFRESH = auto()
    SWEEP = auto()
    ASK = auto()
    OVER = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """How long a drain waits, in seconds. linger: for what becomes due and for the leases of
    others. retry_linger: for the next try of what has failed. overdue: for what is due and cannot
    be claimed."""

    linger: float
    retry_linger: float
    overdue: float


class DrainEnd:
    """Used by the fetcher's thread only. drain: None = it never ends.

    due_in: seconds until there is something to do again, as of the last verdict; None = unknown.
    overdue_since: on the clock, since when something is due that cannot be claimed.
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
        self._leases: dict[str | None, tuple[datetime | None, float]] = {}
        self.due_in: float | None = None

    def saw_work(self) -> None:
        """There is work, or there may be: the end begins anew."""
        self._empty_looks = 0
        self._looked_afresh = False
        self.overdue_since = None

    def saw_nothing(
        self, look: Look, *, holding: bool, settled: bool, in_doubt: bool, recovering: bool
    ) -> Next:
        """After a look of which nothing was claimed.

        holding: something is in hand. settled: no more of the table is about to be ours to look at.
        in_doubt: the answer to the last claim was lost. recovering: what the dead had is being
        given back.
        """
        self.due_in = None
        if holding:
            self.saw_work()
        elif not settled:
            self._empty_looks = 0
        elif look.complete or (look.round_over and not look.candidates):
            return self._saw_everything(in_doubt, recovering)
        return Next.AGAIN

    def _saw_everything(self, in_doubt: bool, recovering: bool) -> Next:
        self._empty_looks += 1
        if self._empty_looks == 1:  # what was passed over a moment ago may be free by now
            return Next.LOOK_AFRESH
        if self._drain is None or self._empty_looks < EMPTY_LOOKS:
            return Next.AGAIN
        if in_doubt:
            self._empty_looks = 0
            return Next.SWEEP
        if recovering:  # what is given back may be ours to do
            return Next.AGAIN
        if not self._looked_afresh:  # what was remembered between looks may have hidden something
            self._looked_afresh = True
            return Next.LOOK_AFRESH
        return Next.ASK

    def verdict(self, coming: Coming, lease_ends_in: float | None = None) -> Next:
        """After ASK: whether it is over, by what becomes due and by the seconds until a lease ends
        that is waited for (None = none is, or it was not asked)."""
        self.due_in = coming.seconds
        if coming.seconds is None:
            waited, self._waited_for_a_lease = self._waited_for_a_lease, lease_ends_in is not None
            if waited and lease_ends_in is None:  # what it had may be free since we looked
                self._looked_afresh = False
                return Next.AGAIN
            self.due_in = lease_ends_in
        if self.due_in is not None:
            self.overdue_since = None
            return Next.AGAIN
        if not coming.overdue:
            return Next.OVER
        # Due, but nothing could be claimed: it waits behind something that is not ours.
        now = self._clock()
        self.overdue_since = now if self.overdue_since is None else self.overdue_since
        most = 0.0 if self._drain is None else self._drain.overdue
        return Next.OVER if now - self.overdue_since > most else Next.AGAIN

    def lease_ends_in(self, ending: Sequence[InstanceInfo]) -> float | None:
        """Seconds until the first of these leases ends (0 = it has), None if none is waited for: a
        lease that is renewed meanwhile, or that no instance can take over, is not."""
        now, awaited = self._clock(), []
        for one in ending:
            left = one.left_seconds or 0.0
            late = now + left + self._heartbeat_seconds
            renewed_at, until = self._leases.setdefault(one.instance_id, (one.renewed_at, late))
            if one.renewed_at == renewed_at and now < until:
                awaited.append(left)
        return min(awaited, default=None)
