"""The lease on our own id: its statements, and the thread that renews it and does nothing else."""

from __future__ import annotations

import os
import random
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from msgworker import __version__
from msgworker.clock import clock
from msgworker.db.database import Trouble
from msgworker.db.errors import trouble
from msgworker.errors import DatabaseUnavailable, RuleChanged, SchemaError
from msgworker.events import Event, LeaseLost, Renewed
from msgworker.instance.connections import Connections
from msgworker.instance.liveness.identity import new_instance_id
from msgworker.instance.role import Role
from msgworker.instance.state import ScopeMember, Setup, Shared
from msgworker.payload import shown
from msgworker.schema import rule
from msgworker.store import lease
from msgworker.table.columns import LONGEST_ID

# --- The lease on our own id, and all statements for it.

TRUST = 2 / 3
"""The share of the lease's time for which it is trusted, from the start of a renewal."""
AGAIN_SECONDS = 20.0
"""How long to retry a registration that the database rolls back."""


@dataclass(eq=False)
class OwnLease:
    """The statements about our lease, none of which reads or writes a message. The heartbeat and
    the housekeeper call them, each on its own connection.

    refused: returns the errors of messages that the database does not let us flag, for operators.
    """

    _setup: Setup
    _shared: Shared
    _member: ScopeMember | None
    _refused: Callable[[], Mapping[int, str]]

    def new_id(self) -> str:
        """An id of this instance that was not used before."""
        return new_instance_id(self._setup.label)

    def register(self, link: Connections, name: str, patience: float = 0.0) -> float:
        """Take the lease on an id; returns until when it may be trusted.

        It reads the rule of the table in the same transaction, so that a change of the rule sees
        this instance. patience: seconds to wait while the rule is being changed. Raises
        RuleChanged.
        """
        setup, shared = self._setup, self._shared
        ttl, look = setup.settings.lease_seconds, rule.look_seconds(setup.tables)
        deadline = time.monotonic() + patience
        rolled_back_until = time.monotonic() + AGAIN_SECONDS
        while True:
            now = clock()
            try:
                with link.transaction() as conn:
                    if rule.hold(conn, setup.tables):
                        self._take(conn, name)
                        return now + TRUST * ttl
            except DBAPIError as error:  # on Galera: another one has registered on another node
                over = time.monotonic() > rolled_back_until or trouble(error) is not Trouble.AGAIN
                if over or shared.stop.requested.wait(look * random.random()):
                    raise
                continue
            if time.monotonic() > deadline or shared.stop.requested.wait(look):
                raise self._rule_is_locked()

    def _rule_is_locked(self) -> DatabaseUnavailable:
        return DatabaseUnavailable(
            f"the rule of table {self._setup.tables.spec.name} is locked: another process is "
            "changing max_tries or on_dead, or is suspended while doing so"
        )

    def _take(self, conn: Connection, name: str) -> None:
        setup, t = self._setup, self._setup.tables
        lease.register(
            *(conn, t, name),
            ttl=setup.settings.lease_seconds,
            label=setup.label,
            topics=setup.topics,
            refused=self._refused(),
            scope=None if self._member is None else self._member.info(),
            process=self._process(),
        )
        if not lease.is_kept(conn, t, name):  # others could not find our lease
            raise SchemaError(
                f"table {t.lease.name} does not keep the id of an instance ({name}) "
                f"as it is written: its column name must be a VARCHAR({LONGEST_ID}) that "
                "nothing changes"
            )

    def renew(self, link: Connections, name: str, *, trusted: bool) -> bool:
        """Extend the lease of our present id; False if another instance took it over, or does so
        now.

        A lease that has expired, but was not taken over, is extended too: its messages are still
        ours. The rule of the table may have changed meanwhile: then raises RuleChanged. On a table
        without `claimed_by` an operator may have released the messages without a take-over, so
        there it is not extended. trusted: our own clock says that the lease is live.
        """
        tables, serves = self._setup.tables, self._serves()
        if not trusted:
            with link.single() as conn:  # an instance that takes it over may have it locked
                if not lease.is_free(conn, tables, name):
                    return False
        if not self._extend(link, name, serves, over=False):
            self._shared.identity.expired(name)
            trusted = False
            if not tables.has("claimed_by") or not self._extend(link, name, serves, over=True):
                return False
        if not trusted:
            with link.transaction() as conn:
                if not rule.hold(conn, tables):
                    raise self._rule_is_locked()
        return True

    def _extend(self, link: Connections, name: str, serves: str, *, over: bool) -> bool:
        setup, shared = self._setup, self._shared
        with link.single() as conn:  # a suspended process holds no lock on its lease
            return lease.renew(
                *(conn, setup.tables, name),
                ttl=setup.settings.lease_seconds,
                in_hand=len(shared.in_flight.lanes),
                serves=serves,
                over=over,
            )

    def _serves(self) -> str:
        setup, shared, now = self._setup, self._shared, time.monotonic()
        is_ours = shared.identity.is_ours
        running = [r for r in list(shared.in_flight.running.values()) if is_ours(r.owner)]
        handlers = [(row.msg_id, now - r.since) for r in running for row in r.rows()]
        return lease.serves_text(
            *(setup.tables, setup.topics, handlers, self._refused()),
            scope=None if self._member is None else self._member.info(),
            process=self._process(),
        )

    def record_stopped(self, link: Connections) -> None:
        """Record that only handlers still run, as of the last beat."""
        setup, shared, beat = self._setup, self._shared, self._shared.identity.tenure.renewed_at
        running = list(shared.in_flight.running.values())
        handlers = [(one.msg_id, max(0.0, beat - r.since)) for r in running for one in r.rows()]
        serves = lease.serves_text(
            setup.tables, setup.topics, handlers, stopped=True, process=self._process()
        )
        with link.transaction() as conn:
            lease.update_serves(conn, setup.tables, shared.identity.id, serves)

    def _process(self) -> Mapping[str, Any]:
        return {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "threads": self._setup.threads,
            "version": __version__,
        }

    def drop(self, link: Connections, name: str) -> None:
        """Drop the lease of this id; no row may be flagged by it."""
        with link.transaction() as conn:
            lease.drop(conn, self._setup.tables, name)


# --- Renew the lease on our own id, and nothing else.
#
# Its thread waits for one statement, on one row of the lease table, on a connection of its own:
# not for a message, a lock of the table of messages, a settle, a handler, or a subscriber of
# events. All other periodic work is the housekeeper's.
#
# The database decides whether we hold our lease: a conditional UPDATE on its own clock. The local
# clock may only shorten trust. We trust our lease for 2/3 of its time, counted from the START of
# the last successful renewal; after that no handler starts until a renewal has succeeded. Messages
# that are in flight stay ours until the lease is taken over: the fence of a settle is that the row
# is still flagged by our id. After a take-over we continue under a new id.

TOLD = 10
"""The most handlers that are named after a time in which the process did not run."""


class Heartbeat(Role):
    """The renewal of the lease of one instance: a thread with its own connection.

    to_emit: events for the housekeeper to emit, since their subscribers may be slow.
    """

    link: Connections

    def __init__(self, setup: Setup, shared: Shared, lease: OwnLease) -> None:
        super().__init__(
            *("heartbeat", shared.log, shared.away, shared.renew_now, shared.stop.stop_for),
            longest_pause=setup.urgent_pause,
        )
        self._setup = setup
        self._shared = shared
        self.lease = lease
        self.link = shared.connector.new(urgent=True)
        self.to_emit: deque[Event] = deque()
        self.standstills: deque[str] = deque()  # for the housekeeper to log
        self._begun = 0.0  # when the last try to renew began (monotonic)
        self._due = float("inf")  # when the pause before the next one is over

    def register(self) -> None:
        """Take the lease on our own id: before the first claim."""
        identity, self._begun = self._shared.identity, time.monotonic()
        patience = self._setup.settings.lease_seconds
        trusted_until = self.lease.register(self.link, identity.id, patience)
        identity.registered(trusted_until, self._begun)

    def run_once(self) -> int:
        """Renew the lease, or continue under a new id."""
        if self._shared.stop.rule_changed:
            return 0
        self._begun = time.monotonic()
        self._check_own_delay()
        try:
            self.link.check_server()
            self._renew()
        except RuleChanged as changed:  # our statements are built for the old rule
            self.log.error("%s", changed)
            self._shared.stop.stop_for(changed)
        return 0

    def pause_seconds(self, did: int) -> float:
        """Counted from the beginning of the renewal, so that a slow one does not cost the lease."""
        if self._shared.stop.rule_changed:
            return self._setup.settings.heartbeat_seconds
        if self._shared.identity.in_doubt:
            return 0.0
        now = time.monotonic()
        pause = max(0.0, self._setup.settings.heartbeat_seconds - (now - self._begun))
        self._due = now + pause
        return pause

    def _check_own_delay(self) -> None:
        """Detect a pause much longer than planned, and name the handlers of that time: one of them
        may be why."""
        due, late = self._due, self._begun - self._due
        self._due = float("inf")  # an outage has pauses of its own
        if late <= self._setup.settings.heartbeat_seconds:
            return
        in_flight = self._shared.in_flight
        at = due + late / 2
        rows = [r.row for r in list(in_flight.running.values()) if r.since < at]
        rows += [row for row, since, until in list(in_flight.ran_long) if since < at < until]
        named = {row.msg_id: shown(row.topic) for row in rows}
        told = ", ".join(f"{msg_id} ({topic})" for msg_id, topic in list(named.items())[:TOLD])
        self.standstills.append(
            f"this process did not run for {late:.1f} s: it was suspended, or one call kept "
            f"Python's GIL; a lease is {self._setup.settings.lease_seconds:g} s. Handlers that "
            f"ran then, by message: {told or 'none'}"
        )
        self._shared.housekeep_now.set()

    def _renew(self) -> None:
        identity, tenure = self._shared.identity, self._shared.identity.tenure
        now, ttl = clock(), self._setup.settings.lease_seconds
        late = now >= tenure.trusted_until
        if tenure.lost or not self.lease.renew(self.link, tenure.id, trusted=not late):
            if identity.lost(tenure.id):
                self.re_register()
            return
        margin = tenure.trusted_until - now
        identity.renewed(tenure.id, now + TRUST * ttl, self._begun, late=late, margin=margin)
        stream, in_flight = self._setup.events, self._shared.in_flight
        if stream.wants(Renewed):
            self.to_emit.append(
                Renewed(tenure.id, margin, len(in_flight.lanes), len(in_flight.running))
            )

    def re_register(self) -> None:
        """Declared dead: continue under a new id, without the lanes of the old one.

        The new id gets its lease first; if that fails, nothing has changed. Rows still flagged by
        the old id are recovered. On a table without `claimed_by` they cannot be, so all lanes are
        kept; an operator may have released their messages while no instance was alive, so the
        housekeeper checks those that have not started.
        """
        setup, shared = self._setup, self._shared
        old, new, begun = shared.identity.id, self.lease.new_id(), time.monotonic()
        trusted_until = self.lease.register(self.link, new, setup.settings.lease_seconds)
        unowned = not setup.tables.has("claimed_by")
        adopted = shared.continue_as(old, new, trusted_until, begun, with_all=unowned)
        held = len(shared.in_flight.lanes) if unowned else 0
        self.to_emit.append(LeaseLost(old, shared.identity.id, held))
        shared.housekeep_now.set()
        if not adopted:  # the housekeeper has taken a new id meanwhile, as it was to
            self.lease.drop(self.link, new)
