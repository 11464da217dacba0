"""Renew the lease on our own id, and nothing else.

Its thread waits for one statement, on one row of the lease table, on a connection of its own: not
for a message, a lock of the table of messages, a settle, a handler, or a subscriber of events.
All else that an instance does from time to time is the housekeeper's.

The database decides whether we hold our lease: a conditional UPDATE on its own clock. The local
clock may only shorten trust. We trust our lease for 2/3 of its time, counted from the START of the
last successful renewal; after that no handler starts until a renewal has succeeded. Messages that
are in flight stay ours until the lease was taken over: outcomes are written where the row is still
flagged by our id, which the settle itself asks for. Once it was taken over we go on under a new id.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from msgworker.clock import clock
from msgworker.errors import RuleChanged
from msgworker.events import Event, LeaseLost, Renewed
from msgworker.instance.liveness.ownlease import TRUST, OwnLease
from msgworker.instance.role import Role
from msgworker.instance.runtime import Runtime
from msgworker.payload import shown

TOLD = 10
"""So many handlers are named after a time in which the process did not run."""


class Heartbeat(Role):
    """The renewal of the lease of one instance.

    happened: events for the housekeeper to emit; who listens to them may take its time.
    """

    def __init__(
        self,
        runtime: Runtime,
        lease: OwnLease,
        *,
        wake: threading.Event,
        housekeep_now: Callable[[], None],
    ) -> None:
        """wake: ends its pause early. housekeep_now: wakes the housekeeper."""
        super().__init__(
            *("heartbeat", runtime.log, runtime.away, wake, runtime.leave_for),
            longest_pause=runtime.urgent_pause,
        )
        self._runtime = runtime
        self._lease = lease
        self._housekeep_now = housekeep_now
        self.link = runtime.link(urgent=True)
        self.happened: deque[Event] = deque()
        self.stood_still = ""  # what to tell about a time in which the process did not run
        self._begun = 0.0  # the last try to renew
        self._due = float("inf")  # when the pause before the next one is over

    def register(self) -> None:
        """Take the lease on our own id: before the first claim."""
        identity, self._begun = self._runtime.identity, time.monotonic()
        patience = self._runtime.settings.lease_seconds
        trusted_until = self._lease.register(self.link, identity.id, patience)
        identity.registered(trusted_until, self._begun)

    def run_once(self) -> int:
        """Renew, or go on as a new instance."""
        if self._runtime.has_left:
            return 0
        self._begun = time.monotonic()
        self._look_back()
        try:
            self.link.check_server()
            self._renew()
        except RuleChanged as changed:  # our statements are built for the old one
            self.log.error("%s", changed)
            self._runtime.leave_for(changed)
        return 0

    def pause_seconds(self, did: int) -> float:
        """Counted from the beginning of the renewal, so that a slow one does not cost the lease."""
        if self._runtime.has_left:
            return self._runtime.settings.heartbeat_seconds
        if self._runtime.identity.in_doubt:
            return 0.0
        now = time.monotonic()
        pause = max(0.0, self._runtime.settings.heartbeat_seconds - (now - self._begun))
        self._due = now + pause
        return pause

    def _look_back(self) -> None:
        """A pause that lasts much longer than it should: this thread could not run. The handlers
        of that time are named, since one of them may be why."""
        due, late = self._due, self._begun - self._due
        self._due = float("inf")  # an outage has pauses of its own
        if late <= self._runtime.settings.heartbeat_seconds:
            return
        hand = self._runtime.hand
        rows = [r.row for r in list(hand.running.values()) if r.since < due + late / 2]
        rows += [lane.row for lane in list(hand.lanes) if 0 < lane.started_at < due + late / 2]
        named = {row.msg_id: shown(row.topic) for row in rows}
        told = ", ".join(f"{msg_id} ({topic})" for msg_id, topic in list(named.items())[:TOLD])
        self.stood_still = (
            f"this process did not run for {late:.1f} s: it was suspended, or one call kept "
            f"Python's GIL; a lease is {self._runtime.settings.lease_seconds:g} s. Handlers that "
            f"ran then, by message: {told or 'none'}"
        )
        self._housekeep_now()

    def close(self) -> None:
        """Return the connection; the lease is not changed."""
        self.link.close()

    def _renew(self) -> None:
        identity, tenure = self._runtime.identity, self._runtime.identity.tenure
        begun, ttl = clock(), self._runtime.settings.lease_seconds
        late = begun >= tenure.trusted_until
        if tenure.lost or not self._lease.renew(self.link, tenure.id, trusted=not late):
            if identity.lost(tenure.id):
                self.reborn()
            return
        identity.renewed(tenure.id, begun + TRUST * ttl, self._begun, late=late)
        stream, hand = self._runtime.events, self._runtime.hand
        if stream.wants(Renewed):
            margin = tenure.trusted_until - begun
            self.happened.append(Renewed(tenure.id, margin, len(hand.lanes), len(hand.running)))

    def reborn(self) -> None:
        """Declared dead: go on under a new id, without the lanes of the old one.

        The lease of the new one comes first; an outage leaves all as it is. Rows that we may still
        have flagged are recovered under the old id. On a table without `claimed_by` they cannot be,
        so all lanes are kept; an operator may have released them while no instance was alive, so
        what has not started is checked first, by the housekeeper.
        """
        runtime = self._runtime
        old, new, begun = runtime.identity.id, self._lease.new_id(), time.monotonic()
        patience = runtime.settings.lease_seconds
        trusted_until = self._lease.register(self.link, new, patience)
        held = 0
        if runtime.tables.has("claimed_by"):
            runtime.go_on_as(new, trusted_until, begun)
        else:
            runtime.go_on_as(new, trusted_until, begun, with_all=True)
            held = len(runtime.hand.lanes)
        self.happened.append(LeaseLost(old, new, held))
        self._housekeep_now()
