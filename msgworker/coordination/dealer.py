"""Deal messages to instance types, a few at a time, so that all get about as many.

One dealer deals at a time, under a lock. If it dies, another takes over; meanwhile messages
without an instance type wait for instances with one, and all others continue.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Protocol

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from msgworker import errors
from msgworker.config import YEAR_SECONDS, number, whole
from msgworker.config.values import renamed
from msgworker.coordination.centres import check_instance_type
from msgworker.coordination.database import DatabaseLocks
from msgworker.coordination.lease import LockCentre, group_of, hold
from msgworker.counted import plural
from msgworker.db.connections import Attempt, connecting, reaching, unavailable, watch, writing
from msgworker.db.database import Trouble
from msgworker.db.errors import outage_pause, trouble
from msgworker.logs import logger
from msgworker.queries import instances
from msgworker.schema import apply
from msgworker.store import locks as store
from msgworker.store.candidates import newest
from msgworker.store.locks import Undealt
from msgworker.table.build import MAX_LOCK
from msgworker.table.spec import MessageTable
from msgworker.table.tables import Tables

log = logger("msgworker.coordination")
POLL_SECONDS = 0.5
STOP_SECONDS = 4.0
STEP_SECONDS = 1.0
"""How often a dealer that stands by checks whether it has to stop."""


class _App(Protocol):
    @property
    def engine(self) -> sa.Engine: ...
    @property
    def table(self) -> MessageTable: ...
    @property
    def tables(self) -> Tables: ...


class Dealer:
    """Gives new messages of an App's table an instance type, in groups of `size`, each to the
    type that has received the fewest.

    A message whose object has an unfinished one gets its type, so that an object stays with
    one instance. Only types of live instances (`Instance(instance_type)`) take part; if none is
    alive, all of them. Messages of another type that have not started are dealt again.
    locks: the lock centre of the dealer's lock; default: the App's database. Raises ConfigError.
    """

    @renamed(flags="instance_types")
    def __init__(
        self,
        app: _App,
        instance_types: Sequence[str],
        size: int = 3,
        *,
        locks: LockCentre | None = None,
        ttl: float = 30.0,
    ) -> None:
        given = instance_types
        if isinstance(given, str) or not isinstance(given, Sequence) or not given:
            raise errors.ConfigError(
                f'instance_types must be a list, ["asA", "asB"] say; got {given!r:.80}'
            )
        self.instance_types = tuple(dict.fromkeys(check_instance_type(one) for one in given))
        self.size = whole("size", size, 1, store.BATCH)
        self.ttl = number("ttl", ttl, 0.3, 86_400)
        if app.table.instance_type is None:
            raise errors.ConfigError(
                f"Dealer needs a column instance_type in table {app.table.name}: name it, "
                "MessageTable(instance_type=...)"
            )
        self._app = app
        self._given = locks
        self._locks = DatabaseLocks(app.engine, schema=app.table.schema) if locks is None else locks
        self._dealt: dict[str, int] = {}
        self._stopping = threading.Event()

    @property
    def name(self) -> str:
        return f"dealer:{group_of(self._app.table, MAX_LOCK - 7)}"

    def deal_once(self) -> int:
        """Deal the messages that wait now; returns how many were dealt.

        Raises LeaseBusy while another dealer deals, DatabaseUnavailable, SchemaError.
        """
        t = self._tables()
        try:
            with hold(self._locks, self.name, ttl=self.ttl) as lease:
                return self._deal_all(t, lease.check, threading.Event())
        finally:
            self._leave()

    def run(self, *, poll_seconds: float = POLL_SECONDS, wait: float | None = None) -> None:
        """Deal until `stop`; while another dealer deals, stand by.

        poll_seconds: the pause if there was nothing to deal. wait: the most seconds of standing by;
        None = no limit. Raises LeaseBusy after `wait`, SchemaError; and DatabaseUnavailable at the
        start only: later it waits for the database, as a worker does.
        """
        longest = math.inf if wait is None else number("wait", wait, 0, YEAR_SECONDS)
        stopping = self._stopping
        if stopping.is_set():
            log.info("dealer: it was stopped before it has begun")
        try:
            with self._cut_after(stopping):
                self._deal_until(stopping, self._tables(), poll_seconds, longest)
        finally:
            if self._stopping is stopping:  # it may run again
                self._stopping = threading.Event()
            self._leave()

    def _deal_until(
        self, stopping: threading.Event, t: Tables, poll_seconds: float, longest: float
    ) -> None:
        until, failures, stands_by = time.monotonic() + longest, 0, False
        while not stopping.is_set():
            step = max(0.0, min(STEP_SECONDS, until - time.monotonic()))
            try:
                with hold(self._locks, self.name, ttl=self.ttl, wait=step) as lease:
                    while not stopping.is_set() and lease.live():
                        dealt = self._deal_all(t, lease.check, stopping)
                        failures, until, stands_by = 0, time.monotonic() + longest, False
                        if not dealt:
                            stopping.wait(poll_seconds)
            except errors.LeaseBusy as error:
                if time.monotonic() >= until:
                    raise
                if not stands_by:
                    log.info("dealer: standing by: %s", error)
                stands_by = True
            except (errors.LeaseLost, errors.LocksUnavailable, errors.DatabaseUnavailable) as error:
                failures += 1
                if failures == 1 and not stopping.is_set():
                    log.warning("dealer: %s; trying again", error)
                stopping.wait(outage_pause(failures))

    @contextmanager
    def _cut_after(self, stopping: threading.Event) -> Iterator[None]:
        """Cut the statement that the block still waits for STOP_SECONDS after the stop."""
        watch(self._app.engine)
        mine, over = Attempt(), threading.Event()

        def cut() -> None:
            stopping.wait()
            while not over.wait(STOP_SECONDS):
                mine.cut()

        with suppress(RuntimeError):  # no thread can start
            threading.Thread(target=cut, name="msgworker-dealer-stop", daemon=True).start()
        try:
            with mine.running():
                yield
        finally:
            over.set()
            stopping.set()

    def stop(self) -> None:
        """Make `run` return, from any thread, within 5 s also where a statement waits; if it does
        not run, the next one. It can run again afterwards."""
        self._stopping.set()

    def _leave(self) -> None:
        """Close the connections of a lock centre of its own; the next use opens others."""
        if self._given is None:
            self._locks.close()

    def _tables(self) -> Tables:
        t = self._app.tables
        if not t.has("instance_type"):
            needs = apply.column_needed(self._app.engine, t.spec, "instance_type")
            raise errors.SchemaError(f"a Dealer needs {needs}")
        return t

    def _deal_all(self, t: Tables, check: Any, stopping: threading.Event) -> int:
        """Deal what waits now, not what is sent meanwhile; how many that was."""
        with self._reaching():
            with connecting(self._app.engine) as conn:
                last = newest(conn, t)
            count, members, looked = 0, list[str](), -math.inf
            after: int | None = None  # what others have locked is left for the next round
            while not stopping.is_set():
                check()
                if time.monotonic() - looked >= POLL_SECONDS:
                    members, looked = self._members(t, last, check), time.monotonic()
                if not (rows := self._undealt(t, last, after=after)):
                    break
                count += self._deal_some(t, members, rows)
                after = rows[-1].msg_id
            return count

    def _undealt(self, t: Tables, last: int, **which: Any) -> list[Undealt]:
        """The next ones, none behind `last`: what is sent meanwhile would have no end."""
        with connecting(self._app.engine) as conn:
            return [row for row in store.undealt(conn, t, **which) if row.msg_id <= last]

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        """What the database has rolled back is dealt later: other programs lock messages, too."""
        engine = self._app.engine
        try:
            with reaching(engine):
                yield
        except DBAPIError as error:
            if trouble(error) is not Trouble.AGAIN:
                raise
            raise unavailable(engine, error) from error

    def _members(self, t: Tables, last: int, check: Any) -> list[str]:
        """The instance types that take part; take back messages of others, up to `last`."""
        with connecting(self._app.engine) as conn:
            live = instances.served(conn, t)
            members = [one for one in self.instance_types if one in live] or [*self.instance_types]
            new = any(kind not in self._dealt for kind in members)
            counts = store.flags(conn, t) if new else {}
            there = store.flags_there(conn, t)
        least = min((self._dealt[kind] for kind in members if kind in self._dealt), default=0)
        for kind in members:
            known = self._dealt.get(kind, counts.get(kind, 0))
            self._dealt[kind] = max(known, least)
        self._dealt = {kind: count for kind, count in self._dealt.items() if kind in members}
        back = 0
        for kind in there - set(members) - live:
            after: int | None = None
            while ids := [row.msg_id for row in self._undealt(t, last, flag=kind, after=after)]:
                check()
                with writing(self._app.engine) as conn:
                    back += store.take_back(conn, t, ids, kind)
                after = ids[-1]
        if back:
            facts = {"event": "dealt_again", "count": back}
            text = "dealer: took back %s whose instance type no live instance has"
            log.info(text, plural(back, "message"), extra=facts)
        return members

    def _deal_some(self, t: Tables, members: Sequence[str], rows: Sequence[store.Undealt]) -> int:
        with connecting(self._app.engine) as conn:
            objects = {row.object_id for row in rows if row.object_id is not None}
            follow = store.flags_of(conn, t, objects)
        follow = {one: kind for one, kind in follow.items() if kind in members}
        plan = shared_out(rows, members, self._dealt, follow, self.size)
        count = 0
        with writing(self._app.engine) as conn:
            for kind, ids in plan.items():
                dealt = store.deal(conn, t, ids, kind)
                self._dealt[kind] -= len(ids) - dealt
                count += dealt
        facts = {"event": "dealt", "count": count}
        log.debug("dealer: dealt %s", plural(count, "message"), extra=facts)
        return count


def shared_out(
    rows: Collection[Undealt],
    members: Sequence[str],
    dealt: dict[str, int],
    follow: dict[Any, str],
    size: int,
) -> dict[str, list[int]]:
    """The messages of each member. dealt: how many each has received, updated here; follow: by
    object, the type of its messages. Rows come oldest first; the order of `members` breaks ties."""
    plan: dict[str, list[int]] = {member: [] for member in members}
    whose = dict(follow)
    to, left = "", 0
    for row in rows:
        kind = whose.get(row.object_id) if row.object_id is not None else None
        if kind is None:
            if left == 0:
                to, left = min(members, key=lambda member: dealt[member]), size
            kind, left = to, left - 1
            if row.object_id is not None:
                whose[row.object_id] = kind
        plan[kind].append(row.msg_id)
        dealt[kind] += 1
    return {kind: ids for kind, ids in plan.items() if ids}
