"""The lease on our own id, and all statements for it."""

from __future__ import annotations

import os
import random
import socket
import time
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from msgworker import __version__
from msgworker.clock import clock
from msgworker.dialects import Trouble, trouble
from msgworker.errors import DatabaseUnavailable, SchemaError
from msgworker.instance.claiming.seat import Seat
from msgworker.instance.links import Link
from msgworker.instance.liveness.identity import new_instance_id
from msgworker.instance.runtime import Runtime
from msgworker.store.recovering import lease
from msgworker.store.tables import rule
from msgworker.table import LONGEST_ID

TRUST = 2 / 3
"""The share of the lease's time for which it is trusted, from the start of a renewal."""
AGAIN_SECONDS = 20.0
"""So long a registration that the database rolls back is sent again."""


class OwnLease:
    """The statements that the heartbeat sends, and the housekeeper for another id; each on its own
    connection. None of them reads or writes a message.

    threads: how many handlers run at once. label: of the instance; both for operators.
    """

    def __init__(
        self,
        runtime: Runtime,
        *,
        seat: Seat | None,
        threads: int,
        label: str,
    ) -> None:
        self._runtime = runtime
        self._seat = seat
        self._threads = threads
        self._label = label

    def new_id(self) -> str:
        """An id of this instance that was not used before."""
        return new_instance_id(self._label)

    def register(self, link: Link, name: str, patience: float = 0.0) -> float:
        """Take the lease on an id; returns until when it may be trusted.

        It reads the rule of the table in the same transaction, so that a change of the rule sees
        this instance. patience: seconds to wait while the rule is being changed. Raises
        RuleChanged.
        """
        runtime = self._runtime
        ttl, look = runtime.settings.lease_seconds, rule.look_seconds(runtime.tables)
        deadline = time.monotonic() + patience
        rolled_back_until = time.monotonic() + AGAIN_SECONDS
        while True:
            begun = clock()
            try:
                with link.transaction() as conn:
                    if rule.hold(conn, runtime.tables):
                        self._take(conn, name)
                        return begun + TRUST * ttl
            except DBAPIError as error:  # on Galera: another one has registered on another node
                late = time.monotonic() > rolled_back_until
                if (
                    trouble(error) is not Trouble.AGAIN
                    or late
                    or self._runtime.stopping.wait(look * random.random())
                ):
                    raise
                continue
            if time.monotonic() > deadline or runtime.stopping.wait(look):
                raise self._rule_is_locked()

    def _rule_is_locked(self) -> DatabaseUnavailable:
        return DatabaseUnavailable(
            f"the rule of table {self._runtime.tables.spec.name} is locked: another process is "
            "changing max_tries or on_dead, or is suspended while doing so"
        )

    def _take(self, conn: Connection, name: str) -> None:
        runtime = self._runtime
        t = runtime.tables
        lease.register(
            conn,
            t,
            name,
            ttl=runtime.settings.lease_seconds,
            label=self._label,
            topics=runtime.topics,
            refused=runtime.refusals.reasons(),
            scope=None if self._seat is None else self._seat.tells(),
            process=self._process(),
        )
        if not lease.is_kept(conn, t, name):  # others could not find our lease
            raise SchemaError(
                f"table {t.lease.name} does not keep the id of an instance ({name}) "
                f"as it is written: its column name must be a VARCHAR({LONGEST_ID}) that "
                "nothing changes"
            )

    def renew(self, link: Link, name: str, *, trusted: bool) -> bool:
        """Extend the lease of our present id; False if it was taken over, or is being so.

        A lease that is over, but was not taken over, is extended too: its messages are
        still ours. Then the rule of the table may have been changed meanwhile: raises RuleChanged.
        On a table without `claimed_by` an operator may have released them without a take-over, so
        there it is not extended. trusted: our own clock says that it is live.
        """
        tables, tells = self._runtime.tables, self._tells()
        if not trusted:
            with link.single() as conn:  # whoever takes it over may stand still, and have it locked
                if not lease.is_free(conn, tables, name):
                    return False
        if not self._extend(link, name, tells, over=False):
            self._runtime.identity.over(name)
            trusted = False
            if not tables.has("claimed_by") or not self._extend(link, name, tells, over=True):
                return False
        if not trusted:
            with link.transaction() as conn:
                if not rule.hold(conn, tables):
                    raise self._rule_is_locked()
        return True

    def _extend(self, link: Link, name: str, tells: str, *, over: bool) -> bool:
        runtime = self._runtime
        with link.single() as conn:  # a suspended process holds no lock on its lease
            return lease.renew(
                conn,
                runtime.tables,
                name,
                ttl=runtime.settings.lease_seconds,
                in_hand=len(runtime.hand.lanes),
                tells=tells,
                over=over,
            )

    def _tells(self) -> str:
        runtime, identity, now = self._runtime, self._runtime.identity, time.monotonic()
        running = [r for r in list(runtime.hand.running.values()) if identity.is_ours(r.owner)]
        handlers = [(row.msg_id, now - r.since) for r in running for row in r.rows()]
        return lease.told(
            runtime.tables,
            runtime.topics,
            handlers,
            runtime.refusals.reasons(),
            scope=None if self._seat is None else self._seat.tells(),
            process=self._process(),
        )

    def tell_stopped(self, link: Link) -> None:
        """Record that only handlers still run, as of the last beat."""
        runtime, beat = self._runtime, self._runtime.identity.renewed_at
        running = list(runtime.hand.running.values())
        handlers = [(one.msg_id, max(0.0, beat - r.since)) for r in running for one in r.rows()]
        tells = lease.told(
            runtime.tables, runtime.topics, handlers, stopped=True, process=self._process()
        )
        with link.transaction() as conn:
            lease.tell(conn, runtime.tables, runtime.identity.id, tells)

    def _process(self) -> Mapping[str, Any]:
        return {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "threads": self._threads,
            "version": __version__,
        }

    def drop(self, link: Link, name: str) -> None:
        """Drop it; no row may be flagged by this id."""
        with link.transaction() as conn:
            lease.drop(conn, self._runtime.tables, name)
