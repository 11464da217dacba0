"""After a round that claimed nothing: a fresh look, or the end of a drain.

drainend.py decides; this module acts.
"""

from __future__ import annotations

from collections.abc import Callable

from msgworker.errors import SchemaError
from msgworker.instance.claiming.claimer import Claimer
from msgworker.instance.claiming.drainend import Drain, DrainEnd, Next, Seen
from msgworker.instance.claiming.finder import Finder
from msgworker.instance.claiming.permits import Permits
from msgworker.instance.claiming.search import Look
from msgworker.instance.liveness.recovery import Recovery
from msgworker.instance.runtime import Runtime
from msgworker.store.looking.left import Waits


class Draining:
    """Used by the fetcher's thread only. drain: None = it never ends. housekeep_now: wakes
    the housekeeper. linger: see Drain. undone: how many messages that it may handle were due at the
    last count of the table; written before the drain ends, read after it."""

    def __init__(
        self,
        runtime: Runtime,
        drain: Drain | None,
        *,
        finder: Finder,
        claimer: Claimer,
        permits: Permits,
        recovery: Recovery,
        housekeep_now: Callable[[], None],
    ) -> None:
        self._runtime = runtime
        self._drain = drain
        self._finder = finder
        self._claimer = claimer
        self._permits = permits
        self._recovery = recovery
        self._housekeep_now = housekeep_now
        beat = runtime.settings.heartbeat_seconds
        self.linger = None if drain is None else drain.linger
        self.undone = 0
        self.end = DrainEnd(drain, heartbeat_seconds=beat, clock=runtime.clock)

    def saw_nothing(self, look: Look) -> bool:
        """Nothing of this look was claimed; True = the drain is over."""
        runtime, recoveries = self._runtime, self._recovery.begun
        seen = Seen(
            in_flight=bool(runtime.hand.lanes or runtime.hand.running),
            settled=self._finder.settled,
            starts_in=self._permits.starts_in(),
            in_doubt=self._claimer.in_doubt,
            recovering=self._recovery.under_way,
        )
        then = self.end.saw_nothing(look, seen)
        if then is Next.ASK:
            then = self._ask_what_is_coming()
        if then is Next.COUNT:
            then = self._count()
            if then is Next.OVER and self._recovery.begun != recoveries:
                then = Next.LOOK_AFRESH  # its messages may have been read as those of another
        if then is Next.SWEEP:
            self._claimer.resolve_doubt()
        if then is Next.GO_ROUND:
            self._finder.go_round()
        if then in (Next.SWEEP, Next.LOOK_AFRESH, Next.GO_ROUND):
            self._finder.forget(start=self._drain is not None)
            self._permits.forget()
        return then is Next.OVER

    def _ask_what_is_coming(self) -> Next:
        if self._drain is None:
            return Next.AGAIN
        due_in = self._finder.due_in(self._drain)
        if due_in is not None or self._drain.linger <= 0:
            return self.end.waits(due_in)
        ending = self._finder.leases_ending(self._drain.linger)
        lease_ends_in = self.end.lease_ends_in(ending)
        if lease_ends_in == 0.0:
            self._housekeep_now()  # it takes the lease over
        return self.end.waits(None, lease_ends_in)

    def _count(self) -> Next:
        found = self._finder.left()
        due, refused = found.due_heads, len(self._runtime.refusals)
        self.undone = found.by[Waits.DUE] if due > refused else 0
        if self._finder.hides_rows():
            name = self._runtime.tables.spec.name
            self._runtime.leave_for(
                SchemaError(
                    f"row-level security of table {name} was switched on, or changed, while this "
                    "drain ran: what it may not see is not counted. See `msgworker doctor`, and "
                    "start it again"
                )
            )
        return self.end.judge(due=due, refused=refused)
