"""What an instance is given, what its roles share and who writes it, and what a role is: a thread
with a loop that survives every error.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from msgworker.config import Settings
from msgworker.counted import plural
from msgworker.db import (
    LONGEST_PAUSE_SECONDS,
    NO_MEMORY,
    Trouble,
    outage_pause,
    reason_of,
    secrets_of,
    shows_a_row,
    trouble,
)
from msgworker.errors import ConfigError, MsgworkerError
from msgworker.events import Events, OutageBegan, OutageEnded
from msgworker.instance.connections import (
    Connections,
    FairLock,
    LentConnections,
    SpareConnections,
    end_if_forked,
)
from msgworker.instance.liveness.identity import Identity, new_instance_id
from msgworker.instance.observers import InstanceLog
from msgworker.instance.running.handler import Registry
from msgworker.instance.running.in_flight import InFlight, Quiesce
from msgworker.instance.running.outcome import Backoff, OutcomePolicy
from msgworker.instance.stop import Stop
from msgworker.limit import Limit
from msgworker.logs import Said
from msgworker.message import topic_of
from msgworker.queries.explain import Asked
from msgworker.schedules import Schedule
from msgworker.store.rows import Row
from msgworker.table import MessageTable, Slice, Tables
from msgworker.tracing import UNTRACED, NoTracer

# --- Where an instance looks: advice that may be stale, inconsistent or missing. The flagging
# statement checks the whole table, so wrong advice costs only time.


class ScopeMember(Protocol):
    """The place of one running instance in a scope. All methods but `stop` return at once.

    The instance starts and stops it; each thread that writes the lease calls `info`; the fetcher's
    thread calls the others.
    """

    def start(self) -> None:
        """Take part."""

    def leave(self) -> None:
        """Stop looking; release each slice as soon as none of its messages is in flight."""

    def stop(self, seconds: float) -> None:
        """Wait until `leave` has released all slices, at most so many seconds."""

    def slice(self) -> Slice | None:
        """Where to look now; None = nowhere. The returned slice is kept until `looked`."""

    def looked(self, *, complete: bool, rest: float | None = None) -> None:
        """The looks in the slice and their claims are over. complete: nothing there can run, for
        `rest` seconds as far as is known."""

    def reach(self) -> Slice | None:
        """All slices that it may look in, now or in turn; None = not known, perhaps everywhere."""

    def go_round(self) -> None:
        """The table has due messages within `reach`: look in all of it again."""

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
    """Where the instances of a worker look; see `msgworker.coordination`. role: the column that
    slices the table, shard or instance_type; None = all of it."""

    role: str | None = None

    @abstractmethod
    def join(self, standing: InstanceView) -> ScopeMember | None:
        """The member of one more instance; None = it looks everywhere."""

    def check(self, spec: MessageTable) -> None:
        """Raise ConfigError if it does not fit the table."""
        if self.role is not None and getattr(spec, self.role) is None:
            raise ConfigError(
                f"{self!r} needs a column {self.role} in table {spec.name}: name it, "
                f"MessageTable({self.role}=...)"
            )


# --- One background role: a thread, a loop, and one `run_once`.
#
# The loop survives every error. It logs an outage of the database when it begins and when it ends,
# and retries with growing, jittered pauses.

EVERYDAY = {Trouble.AGAIN: 10, Trouble.LOST: 2}
"""Deadlocks, lock waits and dead connections are common; only this many in a row give a warning."""
HUNGRY_SECONDS = 1.0
"""The pause before a loop that ran out of memory starts again."""
AGAIN_SECONDS = 60.0
"""A loop that raises twice within this time is not started again at once."""


def outlive(
    name: str,
    log: logging.LoggerAdapter[logging.Logger],
    loop: Callable[[], None],
    twice: Callable[[MsgworkerError], bool],
) -> None:
    """The outermost frame of a thread of an instance: runs `loop`, which returns when asked to end.
    An error that it raises is a bug of ours: it is logged, and the loop starts again, after a pause
    if memory ran out. twice: called with the second other error within AGAIN_SECONDS; returns
    whether to start once more."""
    failed_at, unlogged = float("-inf"), None
    while True:
        try:
            if unlogged is not None:
                log.critical("%s: its loop was ended by an error", name, exc_info=unlogged)
                unlogged = None
            loop()
            return
        except NO_MEMORY as error:
            unlogged = error  # logged after the pause: that needs memory
            time.sleep(HUNGRY_SECONDS)
            continue
        except BaseException as error:
            now = time.monotonic()
            again, failed_at = now - failed_at > AGAIN_SECONDS, now
            with suppress(BaseException):
                log.critical("%s: its loop was ended by an error", name, exc_info=error)
            text = f"{name}: its loop was ended by a {type(error).__name__} twice; see the log"
        if not again and not twice(MsgworkerError(text)):
            return


class Away:
    """The parts of an instance that cannot reach the database now; called by their threads. The
    first one logs the outage and the last one its end, so that an outage gives two log lines.

    patience: failures in a row before an outage is logged, if EVERYDAY says no more. quiet: now
    none is logged."""

    patience = 0
    quiet = False

    def __init__(self, stream: Events | None = None, instance: Callable[[], str] = str) -> None:
        """stream: gets an event from the first and the last. instance: returns the id."""
        self._stream = stream or Events()
        self._instance = instance
        self._since: dict[Outage, float] = {}
        self._lock = threading.Lock()

    def begins(self, who: Outage, name: str, reason: str) -> bool:
        """`who` is in an outage now; True if it is the first. name: may not be unique."""
        with self._lock:
            first = not self._since
            self._since.setdefault(who, time.monotonic())
        if first:
            self._stream.emit(OutageBegan(self._instance(), name, reason))
        return first

    def ends(self, who: Outage, name: str, failures: int) -> bool:
        """The outage of `who` is over; True if it was the last."""
        with self._lock:
            self._since.pop(who, None)
            last = not self._since
        if last:
            self._stream.emit(OutageEnded(self._instance(), name, failures))
        return last

    @property
    def outages(self) -> list[Outage]:
        """The present outages."""
        with self._lock:
            return list(self._since)

    @property
    def seconds(self) -> float:
        """The duration of the longest present outage; 0 if there is none."""
        with self._lock:
            return time.monotonic() - min(self._since.values()) if self._since else 0.0


class Aside(Away):
    """For a part that neither claims, settles nor renews the lease: its failures do not count as an
    outage of the instance, and end no drain. They are logged if they last while the others work."""

    patience = 6

    def __init__(self, main: Away) -> None:
        super().__init__()
        self._main = main

    @property
    def quiet(self) -> bool:  # type: ignore[override]
        return self._main.seconds > 0


class Outage:
    """Detects the beginning and the end of an outage, with one log line each; used by one
    thread."""

    def __init__(
        self,
        log: logging.LoggerAdapter[logging.Logger],
        what: str,
        away: Away | None = None,
        longest_pause: float = LONGEST_PAUSE_SECONDS + 0.5,
    ) -> None:
        self._log = log
        self._longest_pause = longest_pause
        self._what = what
        self._away = away or Away()
        self._logged = False
        self.failures = 0
        self.error: BaseException | None = None

    def failed(self, error: BaseException) -> float:
        """Record a failure; return the seconds to wait before the next try."""
        self.failures += 1
        self.error = error
        with suppress(*NO_MEMORY):
            self._log_failure(error)
        return outage_pause(self.failures, self._longest_pause)

    def _log_failure(self, error: BaseException) -> None:
        if self.failures < max(EVERYDAY.get(trouble(error), 0), self._away.patience):
            self._log.debug("%s: %s; trying again", self._what, reason_of(error))
        elif not (self._logged or self._away.quiet):
            self._logged = True
            why, extra = reason_of(error), {"event": Said.DATABASE_AWAY}
            first = self._away.begins(self, self._what, why)
            level = logging.WARNING if first else logging.DEBUG
            self._log.log(level, "%s: %s; trying again", self._what, why, extra=extra)

    def over(self) -> None:
        """Record a success."""
        if self._logged and self._away.ends(self, self._what, self.failures):
            text, extra = "%s: works again after %s", {"event": Said.DATABASE_BACK}
            self._log.warning(text, self._what, plural(self.failures, "failure"), extra=extra)
        self.failures = 0
        self.error = None
        self._logged = False


class Role:
    """A thread with start, stop and a loop; a subclass implements one round and its pause.

    link: its connections; the watchdog cuts them if a round hangs. None = it uses no database.
    """

    link: Connections | None = None

    def __init__(
        self,
        name: str,
        log: logging.LoggerAdapter[logging.Logger],
        away: Away | None = None,
        wake: threading.Event | None = None,
        stop_for: Callable[[MsgworkerError], None] | None = None,
        *,
        longest_pause: float = LONGEST_PAUSE_SECONDS + 0.5,
    ) -> None:
        """wake: set by others to end the pause early. stop_for: stops the instance if the loop
        cannot continue; None = the instance works without this role meanwhile. longest_pause:
        seconds, after a failure."""
        self.name = name
        self.log = log
        self._aside = isinstance(away, Aside)
        self.outage = Outage(log, name, away, longest_pause)
        self.busy_since: float | None = None  # when the current round began
        self._logged_error = ""
        self._stop_for = stop_for
        self._wake = wake or threading.Event()
        self._stopping = threading.Event()
        self.over = threading.Event()
        self._thread: threading.Thread | None = None

    def run_once(self) -> int:
        """One round; returns how much was done."""
        raise NotImplementedError

    def pause_seconds(self, did: int) -> float:
        """Seconds to wait after a round; did: what `run_once` returned."""
        raise NotImplementedError

    def answered(self) -> bool:
        """Whether a round without an error shows that the database works."""
        return True

    def failed(self, error: BaseException) -> None:
        """Called with every error of a round."""

    def woken(self) -> None:
        """Called when something has set `wake`, before the next round."""

    def ended(self) -> None:
        """Called by the thread when the loop is over."""

    def start(self) -> None:
        name = f"msgworker-{self.name}"
        self._thread = threading.Thread(target=self._loop, name=name, daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Cut the pause short."""
        self._wake.set()

    def stop(self) -> None:
        """Ask the loop to end after the current round; `join` waits for it."""
        self._stopping.set()
        self._wake.set()

    def join(self, timeout: float | None = None) -> None:
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout)

    @property
    def alive(self) -> bool:
        """Whether its thread has not ended."""
        return self._thread is not None and self._thread.is_alive()

    def _loop(self) -> None:
        try:
            outlive(self.name, self.log, self._rounds, self._failed_twice)
        finally:
            self.over.set()
            self.ended()

    def _rounds(self) -> None:
        while not self._stopping.is_set():
            pause = self.round_once()
            if pause > 0 and not self._stopping.is_set():
                self._wake.wait(pause)
            if self._wake.is_set():  # during the wait, after it, or without one
                self._wake.clear()
                self.woken()

    def _failed_twice(self, error: MsgworkerError) -> bool:
        if self._stop_for is None:
            return not self._stopping.wait(AGAIN_SECONDS)
        self._stop_for(error)
        return False

    @property
    def is_current(self) -> bool:
        """Whether the calling thread is its thread. Idents are not compared: they are reused."""
        return self._thread is threading.current_thread()

    @property
    def ident(self) -> int | None:
        """The ident of its thread."""
        return self._thread.ident if self._thread else None

    def round_once(self) -> float:
        self.busy_since = time.monotonic()
        try:
            did = self.run_once()
        except BaseException as error:
            self.failed(error)
            pause = self.outage.failed(error)
            if trouble(error) is Trouble.OTHER and reason_of(error) != self._logged_error:
                self._logged_error = reason_of(error)  # a repeated error is logged once
                plain = shows_a_row(error) or (self._aside and isinstance(error, DBAPIError))
                shown = None if plain else error
                why = "unexpected error; continuing" if shown else reason_of(error)
                self.log.error("%s: %s", self.name, why, exc_info=shown)
            return pause
        finally:
            self.busy_since = None
        self._logged_error = ""
        if self.answered():
            self.outage.over()
        return self.pause_seconds(did)


# --- What an instance is given, what its roles share, and which role writes each part of it.

URGENT_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class Controls:
    """What operators have set for topics, as of the last housekeeping; replaced as a whole, so a
    caller reads it once for each decision.

    paused: topics whose handlers do not start; `HELD` while a job is paused. held: messages in
    flight that belong to one. limits: by topic, over all instances. apart: the topics of both.
    """

    paused: frozenset[str] = frozenset()
    limits: Mapping[str, Limit] = field(default_factory=dict)
    held: frozenset[int] = frozenset()
    apart: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "apart", self.paused | self.limits.keys())

    def is_apart(self, row: Row) -> bool:
        """Whether the flag may not pass to this message from the one before it in its lane: its
        topic or its job is paused, or its topic is limited, so that it needs a permit."""
        return bool(self.apart) and (topic_of(row.topic) in self.apart or row.msg_id in self.held)

    def needs_permit(self, row: Row) -> bool:
        """Whether the message may be flagged only where a permit is free: its topic is limited."""
        return bool(self.limits) and topic_of(row.topic) in self.limits

    def is_paused(self, row: Row) -> bool:
        """Whether the message's handler may not start now because its topic or job is paused."""
        return bool(self.paused) and (topic_of(row.topic) in self.paused or row.msg_id in self.held)


class Peers(NamedTuple):
    """The live instances: our place among them, from 0, and their number, us included."""

    slot: int = 0
    slots: int = 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Setup:
    """What an App gives to one instance; it does not change while the instance runs.

    engine: for statements of ours only. lent: for transactions that run user code; None = `engine`
    is for both. topics: None = all that have a handler. chosen: `topics` is a selection of those.
    turns: for a database with a single writer. channel: where producers notify. scope: which slices
    of the table it claims from; None = all. schedules: those that the App declares. pid: its
    process; a forked child is not part of it. clock: monotonic seconds. tracer: makes spans.
    events: for the log, the tally and subscribers. loop, async_engine: of async handlers.
    """

    engine: sa.Engine
    tables: Tables
    registry: Registry
    settings: Settings
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

    def asked(self, ids: Collection[str] = ()) -> Asked:
        """The instance for which messages left are counted. ids: see `Identity.ids`."""
        return Asked(topics=self.topics, chosen=self.chosen, me=ids)

    @property
    def urgent_pause(self) -> float:
        """The longest pause after a failure of a renewal or of a settle, in seconds: so short that
        an outage that ends within a lease costs nothing."""
        return URGENT_SHARE * self.settings.lease_seconds


class Connector:
    """Makes the connections of one instance; called by any of its threads.

    spare: those that may be closed while idle, if the pool has none left. lent: those of handlers,
    their items and their records.
    """

    def __init__(self, setup: Setup, gave_up: Callable[[], bool]) -> None:
        self._setup = setup
        self._gave_up = gave_up
        self.spare = SpareConnections()
        self.lent = LentConnections()

    def new(
        self,
        *,
        tuned: bool = False,
        urgent: bool = False,
        spare: bool = False,
        lends: bool = False,
        beside: bool = False,
    ) -> Connections:
        """New connections for a role or a thread. tuned: for the claim's statements. urgent: where
        writers take turns, it gets the next one. spare: may be closed while idle; its user holds
        `lock` during use. lends: for transactions that run user code. beside: for statements of
        ours about a message whose handler runs."""
        setup = self._setup
        end_if_forked(setup.pid)
        tuning = setup.tables.database.tuned if tuned else None
        turns = None if setup.turns is None else setup.turns.until(self._gave_up, urgent=urgent)
        engine = setup.engine if setup.lent is None or not lends else setup.lent
        link = Connections(engine, turns, tuning, self._close_idle)
        if spare:
            self.spare.add(link)
        if lends or beside:
            self.lent.add(link, ours=beside)
        return link

    def _close_idle(self) -> None:
        """No connection is left: close those that are idle, also in the pools."""
        self.spare.close_idle()
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
    handler's return or exception becomes.
    controls: replaced by the housekeeper, read by the fetcher, by handler threads and settling
    threads. peers: replaced by the housekeeper, read by the fetcher.
    """

    __slots__ = (
        *("away", "connector", "controls", "identity", "in_flight", "log", "outcomes", "peers"),
        *("quiesce", "stop"),
    )

    def __init__(
        self,
        setup: Setup,
        identity: Identity | None = None,
        *,
        log: logging.LoggerAdapter[logging.Logger] | None = None,
        stop: Stop | None = None,
    ) -> None:
        self.identity = mine = identity or Identity(new_instance_id())
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

    def continue_as(
        self, old: str, new: str, trusted_until: float, begun: float, *, with_all: bool = False
    ) -> bool:
        """The lease of `old` is lost: continue under another id, without the lanes of the old one.
        False if the id is not `old` any more. begun: when the lease of the new id was taken
        (monotonic). A claim under way drops its own lanes. with_all: keep all lanes, since no
        instance can have recovered them."""
        identity = self.identity
        kept = frozenset(self.in_flight.owners() | {old}) if with_all else frozenset()
        adopted = identity.adopt(old, new, trusted_until, begun, carried=kept)
        self.in_flight.forget(identity.is_ours)
        return adopted
