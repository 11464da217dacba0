"""What an instance is given, and what its roles share and who writes it."""

from __future__ import annotations

import logging
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import sqlalchemy as sa

from msgworker.config import Settings
from msgworker.db.errors import secrets_of
from msgworker.errors import ConfigError
from msgworker.events import Events
from msgworker.instance.connections import Connections, FairLock, Lendable, end_if_forked
from msgworker.instance.liveness.identity import Identity, new_instance_id
from msgworker.instance.observers import InstanceLog
from msgworker.instance.role import Away
from msgworker.instance.running.handler import Registry
from msgworker.instance.running.in_flight import InFlight, Quiesce
from msgworker.instance.running.outcome import Backoff, OutcomePolicy
from msgworker.instance.stop import Stop
from msgworker.limit import Limit
from msgworker.message import topic_of
from msgworker.queries.explain import Asked
from msgworker.schedules import Schedule
from msgworker.store.rows import Row
from msgworker.table.columns import Slice
from msgworker.table.spec import MessageTable
from msgworker.table.tables import Tables
from msgworker.tracing import UNTRACED, NoTracer

# --- Where an instance looks: advice that may be stale, inconsistent or missing. The flagging
# statement checks the whole table, so wrong advice costs only time.


class ScopeMember(Protocol):
    """The place of one running instance in a scope. All methods but `stop` return at once. Threads
    that write the lease call `info`, a drain calls `away`, the fetcher's thread all others from
    `slice` to `steady`, and writes `others`: the numbers in the column shard that `App.send` does
    not write."""

    others: frozenset[int]

    def start(self) -> None:
        """Take part."""

    def leave(self) -> None:
        """Stop looking; release each slice as soon as none of its messages is in flight."""

    def stop(self, seconds: float) -> None:
        """Wait until `leave` has released all slices, at most so many seconds."""

    def slice(self) -> Slice | None:
        """Where to look now; None = nowhere. The returned slice is kept until `looked`."""

    def looked(self, *, complete: bool, rest: float | None = None, full: bool = False) -> None:
        """The looks in the slice and their claims are over. complete: nothing there can run, for
        `rest` seconds as far as is known. full: there was no look, since no lane is free."""

    def away(self) -> float:
        """For how many seconds its locks cannot be reached, and it looks nowhere for that."""

    def reach(self) -> Slice | None:
        """All slices that it may look in, now or in turn; None = not known, perhaps everywhere."""

    def go_round(self, values: Collection[Any] | None = None) -> None:
        """There may be messages that can run in the slices of these values (None = all of `reach`):
        look there again."""

    @property
    def steady(self) -> bool:
        """Whether it has looked in all of `reach`, and no more is about to be added."""

    def info(self) -> Mapping[str, Any]:
        """For operators, in the lease. kind: the scope; flag, or shards (how many) and owned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceView:
    """What a member knows of its instance. holding: the values of slices with messages in flight.
    wake: wakes the fetcher when there is a slice to look in."""

    tables: Tables
    instance_id: Callable[[], str]
    holding: Callable[[], Collection[Any]]
    wake: Callable[[], None]
    log: logging.LoggerAdapter[logging.Logger]


class Scope(ABC):
    """Where the instances of a worker look; see `msgworker.coordination`. by: the column that
    slices the table: shard, instance_type or job_id; None = all of it. where: the slice of all;
    None = the whole table, or each gets its own of all."""

    by: str | None = None
    where: Slice | None = None

    @abstractmethod
    def join(self, instance: InstanceView) -> ScopeMember | None:
        """The member of one more instance; None = it looks everywhere."""

    def check(self, spec: MessageTable) -> None:
        """Raise ConfigError if it does not fit the table."""
        if self.by is not None and getattr(spec, self.by) is None:
            raise ConfigError(
                f"{self!r} needs a column {self.by} in table {spec.name}: name it, "
                f"MessageTable({self.by}=...)"
            )


# --- What an instance is given, what its roles share, and which role writes each part of it.

URGENT_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class Controls:
    """What operators have set for topics, as of the last housekeeping; replaced as a whole.

    paused: topics whose handlers do not start; `JOB_PAUSED` while a job is. paused_ids: messages
    in flight that belong to one. limits: by topic, over all instances. apart: the topics of both.
    """

    paused: frozenset[str] = frozenset()
    limits: Mapping[str, Limit] = field(default_factory=dict)
    paused_ids: frozenset[int] = frozenset()
    apart: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "apart", self.paused | self.limits.keys())

    def is_apart(self, row: Row) -> bool:
        """Whether the flag may not pass to this message from the one before it in its lane: it is
        paused, or needs a permit."""
        return bool(self.apart) and (
            topic_of(row.topic) in self.apart or row.msg_id in self.paused_ids
        )

    def needs_permit(self, row: Row) -> bool:
        """Whether the message may be flagged only where a permit is free."""
        return bool(self.limits) and topic_of(row.topic) in self.limits

    def is_paused(self, row: Row) -> bool:
        """Whether its topic or its job is paused."""
        return bool(self.paused) and (
            topic_of(row.topic) in self.paused or row.msg_id in self.paused_ids
        )


class Peers(NamedTuple):
    """The live instances: our place among them, from 0, and their number, us included.

    A hint. Until the first round of the housekeeper an instance takes itself to be alone, as others
    do of it until they count again: their shares overlap, so both read the same rows and lose some
    claims, which nothing but the work done twice comes of. Neither gives back waiting lanes then.
    """

    slot: int = 0
    slots: int = 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Setup:
    """What an App gives to one instance; it does not change while the instance runs.

    engine: for statements of ours only. lent: for transactions that run user code; None = `engine`
    is for both. threads: how many handlers run at once. label: of its ids, for operators. topics:
    None = all that have a handler. chosen: `topics` is a selection of those.
    turns: for a database with a single writer. channel: where producers notify. scope: which slices
    of the table it claims from; None = all. schedules: those that the App declares. pid: its
    process; a forked child is not part of it. clock: monotonic seconds, see clock.py. tracer: makes
    spans. events: for the log, the tally and subscribers. loop, async_engine: of async handlers.
    """

    engine: sa.Engine
    tables: Tables
    registry: Registry
    settings: Settings
    threads: int = 1
    label: str = ""
    lent: sa.Engine | None = None
    topics: frozenset[str] | None = None
    chosen: bool = False
    turns: FairLock | None = None
    channel: str | None = None
    scope: Scope | None = None
    schedules: tuple[Schedule, ...] = ()
    pid: int = field(default_factory=os.getpid)
    clock: Callable[[], float] = time.monotonic
    tracer: NoTracer = UNTRACED
    events: Events = field(default_factory=Events)
    loop: Any = None
    async_engine: Any = None

    def asked(self, ids: Collection[str] = (), within: Slice | None = None) -> Asked:
        """The instance for which messages left are counted, and where. ids: see `Identity.ids`."""
        return Asked(topics=self.topics, chosen=self.chosen, me=ids, within=within)

    @property
    def urgent_pause(self) -> float:
        """The longest pause after a failed renewal or settle, in seconds: so short that an outage
        that ends within a lease costs nothing."""
        return URGENT_SHARE * self.settings.lease_seconds


class Connector:
    """Makes the connections of one instance; called by any of its threads.

    lent: those of handlers, their items and their records, which the watchdog may cut; True = only
    for statements of ours, none of which takes as long as a lease.
    """

    def __init__(self, setup: Setup, gave_up: Callable[[], bool]) -> None:
        self._setup = setup
        self._gave_up = gave_up
        self._spare: list[Connections] = []
        self.lent: dict[Lendable, bool] = {}

    def new(
        self,
        *,
        tuned: bool = False,
        urgent: bool = False,
        spare: bool = False,
        lends: bool = False,
        beside: bool = False,
    ) -> Connections:
        """tuned: for the claim's statements. urgent: where writers take turns, it gets the next
        one. spare: may be closed while idle; its user holds `lock` during use. lends: for
        transactions that run user code. beside: for statements of ours while a handler runs."""
        setup = self._setup
        end_if_forked(setup.pid)
        tuning = setup.tables.database.tuned if tuned else None
        turns = None if setup.turns is None else setup.turns.until(self._gave_up, urgent=urgent)
        engine = setup.engine if setup.lent is None or not lends else setup.lent
        link = Connections(engine, turns, tuning, self._none_left)
        if spare:
            self._spare.append(link)
        if lends or beside:
            self.lent[link] = beside
        return link

    @contextmanager
    def once(self) -> Iterator[Connections]:
        """New connections for statements of ours, closed at the end."""
        link = self.new()
        self.lent[link] = False
        try:
            yield link
        finally:
            self.close(link)

    def close(self, link: Connections) -> None:
        """Close connections that are `lent`."""
        self.lent.pop(link, None)
        link.close()

    def close_spare(self) -> None:
        """Close all spare connections; the threads must have ended."""
        for link in self._spare:
            link.close()

    def close_idle(self) -> None:
        """Close the spare connections that are idle."""
        for link in list(self._spare):
            if link.lock.acquire(blocking=False):
                try:
                    link.close()
                finally:
                    link.lock.release()

    def _none_left(self) -> None:
        """No connection is left, and a settle that gets none would block all: close idle ones."""
        self.close_idle()
        for engine in (self._setup.engine, self._setup.lent):
            if engine is not None:
                engine.pool.dispose()


class Shared:
    """What the roles of one instance share; each part is written by its owner only.

    An instance is one incarnation: when it loses its lease its id changes (identity.py), its lanes
    are dropped (in_flight.py), and only the running handlers are remembered, so that no message of
    their objects is claimed here. On a table without `claimed_by`, where no other instance can
    recover them, all lanes are kept.

    identity, in_flight, quiesce, away, stop: see their classes for their writers. outcomes: what a
    handler's return or exception becomes. look_now, renew_now, housekeep_now: end the pause of the
    fetcher, of the heartbeat, of the housekeeper; set by any thread.
    controls: replaced by the housekeeper, read by the fetcher, by handler threads and settling
    threads. peers: replaced by the housekeeper, read by the fetcher.
    """

    __slots__ = (
        *("away", "connector", "controls", "housekeep_now", "identity", "in_flight", "log"),
        *("look_now", "outcomes", "peers", "quiesce", "renew_now", "stop"),
    )

    def __init__(
        self,
        setup: Setup,
        identity: Identity | None = None,
        *,
        log: logging.LoggerAdapter[logging.Logger] | None = None,
        stop: Stop | None = None,
    ) -> None:
        self.identity = mine = identity or Identity(new_instance_id(setup.label))
        self.log = log or InstanceLog(mine)
        self.in_flight = InFlight()
        self.quiesce = Quiesce(setup.clock)
        self.away = Away(setup.events, lambda: mine.id)
        self.stop = stop or Stop()
        spec, has = setup.tables.spec, setup.tables.has
        self.outcomes = OutcomePolicy(
            Backoff(setup.settings.backoff_seconds),
            secrets=secrets_of(setup.engine.url),
            max_tries=spec.max_tries,
            later_limit=spec.later_limit if has("later_times") and has("available_at") else 0,
            stop=self.stop,
        )
        self.connector = Connector(setup, self.stop.gave_up)
        self.controls = Controls()
        self.peers = Peers()
        self.look_now, self.renew_now, self.housekeep_now = (threading.Event() for _ in range(3))

    def continue_as(
        self, old: str, new: str, trusted_until: float, begun: float, *, with_all: bool = False
    ) -> bool:
        """The lease of `old` is lost: continue under another id, without the lanes of the old one;
        a claim under way drops its own. begun, and False: see `Identity.adopt`. with_all: keep all
        lanes, since no instance can have recovered them."""
        identity = self.identity
        kept = frozenset(self.in_flight.owners() | {old}) if with_all else frozenset()
        adopted = identity.adopt(old, new, trusted_until, begun, carried=kept)
        self.in_flight.forget(identity.is_ours)
        return adopted
