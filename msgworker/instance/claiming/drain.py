"""When a drain is over: after several complete looks that found nothing, with nothing to wait for,
and with nothing due in the table that it may handle.

`DrainEnd` decides that, from what it is told; `DrainCheck` reads what it must know.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum, auto

from msgworker.db import Trouble, reason_of, trouble
from msgworker.errors import SchemaError
from msgworker.instance.claiming.capacity import LimitPoller
from msgworker.instance.claiming.claimer import Claimer
from msgworker.instance.claiming.finder import Finder
from msgworker.instance.claiming.heads import Look
from msgworker.instance.liveness.jobs import JobCloser
from msgworker.instance.liveness.recovery import Recovery
from msgworker.instance.state import Setup, Shared
from msgworker.queries.explain import Waits
from msgworker.queries.instances import leases_ending
from msgworker.queries.remaining import left
from msgworker.schema import known
from msgworker.store import ranked
from msgworker.store.lease import Lease
from msgworker.store.pauses import asking_jobs

# --- The decision, without a database.

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

    in_flight: it has lanes, or handlers that run, also under a lost id. steady: no further slice
    of the table is about to become ours. starts_in: seconds until a message of a limited topic may
    start, 0 = try now, None = none will. from_start: the looks that found no message of a limited
    topic began at the very start of the table. unanswered: the answer to the last claim was lost.
    recovering: messages of dead instances are being given back.
    """

    in_flight: bool = False
    steady: bool = True
    starts_in: float | None = None
    from_start: bool = True
    unanswered: bool = False
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
        elif not seen.steady:
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
        if seen.unanswered:
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


# --- What `DrainEnd` asks for is read here, and what it decides is done.


class DrainCheck:
    """Called by the fetcher's thread alone, after each look of which nothing was claimed. drain:
    None = it never ends, and `drains` is False.

    undone: how many due messages that it may handle the table had at the last count.
    """

    def __init__(
        self,
        setup: Setup,
        shared: Shared,
        drain: Drain | None,
        *,
        finder: Finder,
        claimer: Claimer,
        limit_poller: LimitPoller,
        recovery: Recovery,
        jobs: JobCloser,
    ) -> None:
        self._setup, self._shared, self._link = setup, shared, claimer.link
        self._drain, self.drains = drain, drain is not None
        heartbeat = setup.settings.heartbeat_seconds
        self.end = DrainEnd(drain, heartbeat_seconds=heartbeat, clock=setup.clock)
        self._finder, self._claimer = finder, claimer
        self._limit_poller, self._recovery = limit_poller, recovery
        self._jobs = jobs
        self.undone = 0

    def is_over(self, look: Look) -> bool:
        """Whether the drain is over; if not, prepares the next look."""
        in_flight, recoveries = self._shared.in_flight, self._recovery.begun
        seen = Seen(
            in_flight=bool(in_flight.lanes or in_flight.running),
            steady=self._finder.steady,
            starts_in=self._limit_poller.starts_in(),
            from_start=self._limit_poller.from_start,
            unanswered=self._claimer.unanswered,
            recovering=self._recovery.under_way,
        )
        then = self.end.saw_nothing(look, seen)
        if then is Next.ASK:
            then = self._ask_what_is_coming()
        if then is Next.COUNT:
            then = self._count()
            if then is Next.OVER and self._recovery.begun != recoveries:
                then = Next.LOOK_AFRESH  # its messages may have been counted as another instance's
        if then is Next.RELEASE_UNKNOWN:
            self._claimer.release_unanswered()
        if then is Next.LOOK_EVERYWHERE:
            self._finder.go_round()
        if then in (Next.RELEASE_UNKNOWN, Next.LOOK_AFRESH, Next.LOOK_EVERYWHERE):
            self._finder.forget(start=self._drain is not None)
            self._limit_poller.forget()
        return then is Next.OVER

    def _ask_what_is_coming(self) -> Next:
        if self._drain is None:
            return Next.AGAIN
        due_in = self.due_in(self._drain)
        if due_in is not None or self._drain.linger <= 0:
            return self.end.after_ask(due_in)
        with self._link.statement() as conn:
            ending = leases_ending(
                *(conn, self._setup.tables),
                within=self._drain.linger,
                but=self._shared.identity.id,
            )
        lease_ends_in = self.end.lease_ends_in(ending)
        if lease_ends_in == 0.0:
            self._shared.housekeep_now.set()  # which takes the lease over
        return self.end.after_ask(None, lease_ends_in)

    def due_in(self, drain: Drain) -> float | None:
        """Seconds until the first message where we look becomes due, if a drain waits for it."""
        setup, paused = self._setup, self._shared.controls.paused
        with self._link.statement() as conn:
            return ranked.due_in(
                conn,
                asking_jobs(setup.tables, paused),
                topics=setup.topics,
                paused=paused,
                linger=drain.linger,
                retry_linger=drain.retry_linger,
                within=self._finder.reach,
            )

    def _count(self) -> Next:
        if self._drain is not None and self._complete_jobs():  # what they have sent is there now
            self.end.saw_work()
            return Next.LOOK_AFRESH
        setup, shared = self._setup, self._shared
        asked = replace(setup.asked(shared.identity.ids), within=self._finder.reach)
        with self._link.statement() as conn:
            found = left(conn, asking_jobs(setup.tables, shared.controls.paused), asked)
        due, refused = found.due_heads, len(self._claimer.rejected_rows)
        self.undone = found.by[Waits.DUE] if due > refused else 0
        with self._link.statement() as conn:
            hides_rows = known.policies_changed(conn, setup.tables)
        if hides_rows:
            shared.stop.stop_for(
                SchemaError(
                    f"row-level security of table {setup.tables.spec.name} was switched on, or "
                    "changed, while this drain ran: what it may not see is not counted. See "
                    "`msgworker doctor`, and start it again"
                )
            )
        return self.end.after_count(due=due, refused=refused)

    def _complete_jobs(self) -> int:
        try:
            return self._jobs.run()
        except Exception as error:  # it is not to decide whether a drain ends
            if trouble(error) is Trouble.LOST:
                raise
            self._shared.log.warning("the look for ended jobs has failed: %s", reason_of(error))
            return 0
