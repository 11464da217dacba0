"""When a drain is over: after several complete looks that found nothing, with nothing to wait for,
and with nothing due in the table that it may handle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from msgworker.db import Trouble, reason_of, trouble
from msgworker.errors import SchemaError
from msgworker.instance.claiming.claimer import Claimer
from msgworker.instance.claiming.finder import Finder
from msgworker.instance.claiming.heads import Look
from msgworker.instance.liveness.jobs import JobCloser
from msgworker.instance.liveness.recovery import Recovery
from msgworker.instance.state import Setup, Shared
from msgworker.queries.explain import Waits
from msgworker.queries.instances import leases_ending
from msgworker.queries.remaining import Left, left
from msgworker.schema import known
from msgworker.store import ranked
from msgworker.store.lease import Lease
from msgworker.store.pauses import asking_jobs

EMPTY_LOOKS = 3
"""How many complete looks in a row must find nothing before a drain may end."""
OVERDUE_LOOK_SECONDS = 0.1
"""The pause between two looks for due messages that could not be claimed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """How long a drain waits, in seconds. linger: for messages that become due and for leases of
    other instances. retry_linger: for the next try of failed messages. overdue: for due messages
    that cannot be claimed."""

    linger: float
    retry_linger: float
    overdue: float


class DrainEnd:
    """Decides when a drain is over. Used by the fetcher's thread only.

    drain: None = it never ends, and `drains` is False. due_in: seconds until there is something to
    do again, as last read; None = unknown. overdue_since: on the clock, since when messages are due
    that cannot be claimed. undone: how many of those there were at the last count.
    """

    def __init__(
        self,
        setup: Setup,
        shared: Shared,
        drain: Drain | None,
        *,
        finder: Finder,
        claimer: Claimer,
        recovery: Recovery,
        jobs: JobCloser,
    ) -> None:
        self._setup, self._shared = setup, shared
        self._drain, self.drains = drain, drain is not None
        self._finder, self._claimer = finder, claimer
        self._limit_poller, self._recovery = claimer.limit_poller, recovery
        self._jobs = jobs
        self._empty_looks = 0
        self._looked_afresh = False
        self._waited_for_a_lease = False
        self._leases: dict[str, tuple[datetime, float]] = {}
        self.overdue_since: float | None = None
        self.due_in: float | None = None
        self.undone = 0

    def saw_work(self) -> None:
        """There is work, or there may be: count empty looks from 0 again."""
        self._empty_looks = 0
        self._looked_afresh = False
        self.overdue_since = None

    def is_over(self, look: Look) -> bool:
        """After a look of which nothing was claimed; if it is not over, prepares the next look."""
        self.due_in = None
        in_flight = self._shared.in_flight
        if in_flight.lanes or in_flight.running or self._limited_starts_soon():
            self.saw_work()
        elif not self._finder.steady:
            self._empty_looks = 0
        elif look.complete or (look.round_over and not look.candidates):
            if self.drains and not (look.from_start and self._limit_poller.from_start):
                return self._look_afresh()
            return self._saw_everything()
        return False

    def _limited_starts_soon(self) -> bool:
        starts_in = self._limit_poller.starts_in()
        return self._drain is not None and starts_in is not None and starts_in <= self._drain.linger

    def _look_afresh(self) -> bool:
        self._finder.forget(start=self.drains)
        self._limit_poller.forget()
        return False

    def _saw_everything(self) -> bool:
        recoveries = self._recovery.begun
        self._empty_looks += 1
        if self._empty_looks == 1:  # skipped objects may be free by now
            return self._look_afresh()
        if self._drain is None or self._empty_looks < EMPTY_LOOKS:
            return False
        flagged = self._claimer.flagged
        if flagged.unanswered:
            self._empty_looks = 0
            with flagged.no_claim_in_flight():
                flagged.release_unknown(self._claimer.link)
            flagged.unanswered = False
            return self._look_afresh()
        if self._recovery.under_way:  # recovered messages may be claimable
            return False
        if not self._looked_afresh:  # state kept between looks may have hidden a message
            self._looked_afresh = True
            return self._look_afresh()
        if self._waits(self._drain):
            return False
        if self._complete_jobs():  # what they have sent is there now
            self.saw_work()
            return self._look_afresh()
        if self._is_due(self._drain):
            self._empty_looks = 0
            self._looked_afresh = False
            self.due_in = OVERDUE_LOOK_SECONDS
            self._finder.go_round()
            return self._look_afresh()
        if self._recovery.begun != recoveries:  # its messages may have counted as another's
            return self._look_afresh()
        return True

    def _waits(self, drain: Drain) -> bool:
        """Whether a message becomes due, or a lease ends, for which it waits."""
        self.due_in = self.read_due_in(drain)
        if self.due_in is None:
            waited, self.due_in = self._waited_for_a_lease, self._lease_ends_in(drain)
            self._waited_for_a_lease = self.due_in is not None
            if waited and self.due_in is None:  # its messages may be free since the last look
                self._looked_afresh = False
                return True
        if self.due_in is None:
            return False
        self.overdue_since = None
        return True

    def read_due_in(self, drain: Drain) -> float | None:
        """Seconds until the first message where we look becomes due that is worth waiting for."""
        setup, paused = self._setup, self._shared.controls.paused
        with self._claimer.link.statement() as conn:
            return ranked.due_in(
                conn,
                asking_jobs(setup.tables, paused),
                topics=setup.topics,
                paused=paused,
                linger=drain.linger,
                retry_linger=drain.retry_linger,
                within=self._finder.reach,
            )

    def _lease_ends_in(self, drain: Drain) -> float | None:
        if drain.linger <= 0:
            return None
        ends_in = self.lease_ends_in(self.read_ending(drain))
        if ends_in == 0.0:
            self._shared.housekeep_now.set()  # which takes the lease over
        return ends_in

    def read_ending(self, drain: Drain) -> Sequence[Lease]:
        """The leases of other instances with messages that end within the linger."""
        me = self._shared.identity.id
        with self._claimer.link.statement() as conn:
            return leases_ending(conn, self._setup.tables, within=drain.linger, but=me)

    def lease_ends_in(self, ending: Sequence[Lease]) -> float | None:
        """Seconds until the first of these leases ends (0 = it has ended); None if there is none to
        wait for: a drain does not wait for a lease that is renewed, or that is not taken over in
        time."""
        now, awaited = self._setup.clock(), []
        for one in ending:
            left = one.left_seconds
            late = now + left + self._setup.settings.heartbeat_seconds
            renewed_at, until = self._leases.setdefault(one.name, (one.renewed_at, late))
            if one.renewed_at == renewed_at and now < until:
                awaited.append(left)
        return min(awaited, default=None)

    def _complete_jobs(self) -> int:
        try:
            return self._jobs.run()
        except Exception as error:  # it is not to decide whether a drain ends
            if trouble(error) is Trouble.LOST:
                raise
            self._shared.log.warning("the look for ended jobs has failed: %s", reason_of(error))
            return 0

    def _is_due(self, drain: Drain) -> bool:
        """Whether the table has due messages that it may handle, and it still waits for those. It
        does not for what the database refuses to flag, which was logged."""
        found, refused = self.read_left(), len(self._claimer.rejected_rows)
        due = found.due_heads > refused
        self.undone = found.by[Waits.DUE] if due else 0
        if not due:
            return False
        now = self._setup.clock()
        self.overdue_since = now if self.overdue_since is None else self.overdue_since
        return now - self.overdue_since <= drain.overdue

    def read_left(self) -> Left:
        """Count what is left. Stops the instance if what it may see has changed."""
        setup, shared = self._setup, self._shared
        asked = setup.asked(shared.identity.ids, self._finder.reach)
        with self._claimer.link.statement() as conn:
            found = left(conn, asking_jobs(setup.tables, shared.controls.paused), asked)
            hides_rows = known.policies_changed(conn, setup.tables)
        if hides_rows:
            shared.stop.stop_for(
                SchemaError(
                    f"row-level security of table {setup.tables.spec.name} was switched on, or "
                    "changed, while this drain ran: what it may not see is not counted. See "
                    "`msgworker doctor`, and start it again"
                )
            )
        return found
