"""The shared state of the roles of one instance."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import sqlalchemy as sa

from msgworker import events
from msgworker.config import Settings
from msgworker.db import kind_of
from msgworker.errors import MsgworkerError, RuleChanged
from msgworker.events import Events
from msgworker.instance.claiming.scope import Scope
from msgworker.instance.connections import Connections, FairLock, LentConnections, SpareConnections
from msgworker.instance.history import Spans
from msgworker.instance.liveness.identity import Identity
from msgworker.instance.role import Away
from msgworker.instance.running.handler import Registry
from msgworker.instance.running.in_flight import InFlight, Quiesce
from msgworker.instance.usercode import end_if_forked
from msgworker.limit import Limit
from msgworker.logs import logger
from msgworker.message import topic_of
from msgworker.payload import shown
from msgworker.queries.verdict import Asked
from msgworker.schedules import Schedule
from msgworker.store.candidates import Candidate
from msgworker.store.rows import Row
from msgworker.table import Tables
from msgworker.tracing import UNTRACED, NoTracer

# --- Messages that the database refuses to flag: a trigger, a CHECK or a constraint forbids it.
#
# Such a row is the head of its object and can neither run nor become dead, since it cannot be
# changed. So it is skipped, with its object, and tried again separately, at growing intervals: it
# would make a whole batch fail each time.

FIRST_PAUSE_SECONDS = 5.0
LONGEST_PAUSE_SECONDS = 300.0
SUSPECT_AFTER = 4
"""A candidate that was lost this often is tried separately, to get the database's error."""
ALONE_AT_ONCE = 8
FORGET_LOSSES_SECONDS = 60.0
FORGET_SECONDS = 60.0
TELL_SECONDS = 10.0
MOST = 10_000
SHOWN = 20
SHOWN_LENGTH = 200


@dataclass(slots=True)
class RejectedRow:
    """same: the key of the skipped object, as in a candidate. reason: the database's error.
    until: when it is tried again, by the monotonic clock."""

    same: Any
    reason: str
    pause: float
    until: float


class RejectedRows:
    """The refused messages, as remembered by the claim loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._found: dict[int, RejectedRow] = {}
        self._losses: dict[int, int] = {}
        self._losses_since = clock()
        self._untold: dict[int, str] = {}
        self._told_at = -TELL_SECONDS

    def __len__(self) -> int:
        return len(self._found)

    def reasons(self) -> dict[int, str]:
        """The database's errors by msg_id, of the lowest few, for operators."""
        found = sorted((msg_id, one.reason) for msg_id, one in self._found.copy().items())
        return {msg_id: reason[:SHOWN_LENGTH] for msg_id, reason in found[:SHOWN]}

    def waiting(self) -> tuple[set[Any], set[int]]:
        """The objects and messages to skip now."""
        now = self._clock()
        for msg_id, one in list(self._found.items()):
            if now > one.until + FORGET_SECONDS:  # not offered again: perhaps fixed
                del self._found[msg_id]
        kept = {msg_id: one for msg_id, one in self._found.items() if now < one.until}
        return {one.same for one in kept.values() if one.same is not None}, set(kept)

    def suspects(self, candidate: Candidate) -> bool:
        """Whether it was refused before, or lost repeatedly."""
        i = candidate.msg_id
        return i in self._found or self._losses.get(i, 0) >= SUSPECT_AFTER

    def sorted_out(self, candidates: list[Candidate]) -> tuple[list[Candidate], list[Candidate]]:
        """Candidates to try together, and a few to try separately."""
        if not (self._found or self._losses):
            return candidates, []
        alone = [c for c in candidates if self.suspects(c)]
        if not alone:
            return candidates, []
        chosen = {c.msg_id for c in alone[:ALONE_AT_ONCE]}
        together = [c for c in candidates if c.msg_id not in chosen and c.msg_id not in self._found]
        return together, alone[:ALONE_AT_ONCE]

    def lost(self, candidates: Sequence[Candidate], *, alone: bool = False) -> None:
        """These could not be flagged; most likely another instance was faster, unless we are
        alone."""
        now = self._clock()
        if now - self._losses_since > FORGET_LOSSES_SECONDS:
            self._losses.clear()
            self._losses_since = now
        for one in candidates:
            if one.msg_id not in self._found:
                self._losses[one.msg_id] = self._losses.get(one.msg_id, 0) + (2 if alone else 1)

    def heard(self, candidate: Candidate, reason: str | None) -> None:
        """It was tried separately. reason: why the database refuses it, logged the first time; None
        if it does not."""
        known = self._found.pop(candidate.msg_id, None)
        self._losses.pop(candidate.msg_id, None)
        if reason is None:
            return
        pause = FIRST_PAUSE_SECONDS if known is None else 2 * known.pause
        pause = min(pause, LONGEST_PAUSE_SECONDS)
        until = self._clock() + pause
        self._found[candidate.msg_id] = RejectedRow(candidate.same, reason, pause, until)
        if len(self._found) > MOST:
            self._found.pop(next(iter(self._found)))
        if known is None:
            self._untold[candidate.msg_id] = reason

    def tell(self, log: logging.LoggerAdapter[logging.Logger]) -> None:
        """Log new refusals, at a limited rate."""
        if not self._untold or self._clock() - self._told_at < TELL_SECONDS:
            return
        self._told_at = self._clock()
        by_reason: dict[str, list[int]] = {}
        for msg_id, reason in self._untold.items():
            by_reason.setdefault(reason, []).append(msg_id)
        self._untold.clear()
        for reason, ids in by_reason.items():
            shown = ", ".join(map(str, ids[:10])) + (", ..." if len(ids) > 10 else "")
            what = f"message {shown}" if len(ids) == 1 else f"{len(ids)} messages ({shown})"
            text = "the database refuses to flag %s; skipped, and tried again at growing intervals"
            log.warning(f"{text}: %s", what, reason)


# --- The shared state of the roles of one instance.
#
# An instance is one incarnation: when it loses its lease its id changes (identity.py), its lanes
# are dropped (in_flight.py), and only the running handlers are remembered, so that no message of
# their objects is claimed here. On a table without `claimed_by`, where no other instance can
# recover them, all lanes are kept.

URGENT_SHARE = 0.1
_WITHIN: ContextVar[object] = ContextVar("msgworker_within", default=None)


@dataclass(slots=True)
class Tally:
    """Counts of an instance, from its events: `claims`, `offered` and `won` are written in
    the fetcher's thread, the others under the lock, since several threads may settle at once.

    released: released at a stop. shared: released while running, for other instances.
    """

    done: int = 0
    dead: int = 0
    retried: int = 0
    released: int = 0
    shared: int = 0
    lost: int = 0
    claims: int = 0
    offered: int = 0
    won: int = 0
    settles: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def count(self, stream: Events) -> None:
        """Subscribe."""
        stream.on(events.Claimed, self._claimed)
        stream.on(events.Settled, self._settled)
        stream.on(events.Retried, self._retried)
        stream.on(events.Dead, self._dead)
        stream.on(events.Cancelled, self._dead)
        stream.on(events.Released, self._released)
        stream.on(events.Lost, self._lost)

    def _claimed(self, event: events.Claimed) -> None:
        self.claims += 1
        self.offered += event.offered
        self.won += len(event.messages)

    def _settled(self, event: events.Settled) -> None:
        with self._lock:
            self.settles += 1
            self.done += len(event.done)

    def _retried(self, _: events.Retried) -> None:
        with self._lock:
            self.retried += 1

    def _dead(self, _: events.Dead | events.Cancelled) -> None:
        with self._lock:
            self.dead += 1

    def _released(self, event: events.Released) -> None:
        with self._lock:
            self.released += event.stopping
            self.shared += not event.stopping

    def _lost(self, _: events.Lost) -> None:
        with self._lock:
            self.lost += 1


class InstanceLog(logging.LoggerAdapter[logging.Logger]):
    """The log of an instance; every record carries its id of that moment."""

    def __init__(self, identity: Identity) -> None:
        super().__init__(logger("msgworker.instance"), {})
        self._identity = identity

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> Any:
        kwargs["extra"] = {"instance": self._identity.id, **kwargs.get("extra", {})}
        return msg, kwargs

    def log(self, level: int, msg: object, *args: Any, **kwargs: Any) -> None:
        """A failing log of the user (a closed stream, for example) must not stop the work."""
        with suppress(BaseException):
            stacklevel = kwargs.pop("stacklevel", 1) + 1
            super().log(level, msg, *args, stacklevel=stacklevel, **kwargs)


@dataclass(frozen=True, slots=True)
class Controls:
    """What operators have set for topics, as of the last housekeeping; replaced as a whole, so
    whoever decides something takes it once.

    paused: no handler of these starts. limits: over all instances. apart: the topics of both.
    """

    paused: frozenset[str] = frozenset()
    limits: Mapping[str, Limit] = field(default_factory=dict)
    apart: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "apart", self.paused | self.limits.keys())

    def is_apart(self, row: Row) -> bool:
        """Whether the message does not get its flag from the one in front of it in its lane: its
        topic is paused, or is limited, so that it needs a permit."""
        return bool(self.apart) and topic_of(row.topic) in self.apart

    def needs_permit(self, row: Row) -> bool:
        """Whether the message may be flagged only where a permit is free: its topic is limited."""
        return bool(self.limits) and topic_of(row.topic) in self.limits

    def is_paused(self, row: Row) -> bool:
        """Whether the message's handler may not start now because its topic is paused."""
        return bool(self.paused) and topic_of(row.topic) in self.paused


class Peers(NamedTuple):
    """The live instances: our place among them, from 0, and their number, us included."""

    slot: int = 0
    slots: int = 1


@dataclass(slots=True, eq=False)
class Runtime:
    """First constants of the instance, then state that its roles share.

    engine: its connections are for statements of ours alone; lent: those of this one are for
    transactions that run user code; None = there is no other.
    topics: None = all that have a handler. chosen: they are a selection of those. turns: for a
    database with a single writer. channel: on which producers notify. scope: where it looks;
    None = everywhere. schedules: those that the App declares. pid: its process; a forked child is
    not part of it. spare_links: connections that may be closed if none are left.
    lent_links: those of handlers. clock: monotonic
    seconds, for the objects that decide without a thread of their own. tracer: makes spans, or not.

    identity, in_flight, quiesce, rejected_rows, away, tally, spans: see their classes for their
    writers.
    events: the event stream, for the log, the tally and subscribers of the App.
    controls: replaced by the housekeeper, read by the fetcher, by handler threads and settling
    threads. peers: replaced by the housekeeper, read by the fetcher.
    unreleased: messages that the database does not let us release, told once; by any thread.
    left_for: why the instance leaves by itself; written by any thread (`leave_for`), read by the
    thread that waits for the end.
    stopping: the instance is to stop; set by any thread, read by all.
    give_up_at: when, on the monotonic clock, a stop no longer waits for the database; written by
    the stop, read by all.
    """

    engine: sa.Engine
    tables: Tables
    registry: Registry
    settings: Settings
    identity: Identity
    log: logging.LoggerAdapter[logging.Logger]
    lent: sa.Engine | None = None
    topics: frozenset[str] | None = None
    chosen: bool = False
    turns: FairLock | None = None
    channel: str | None = None
    scope: Scope | None = None
    schedules: tuple[Schedule, ...] = ()
    pid: int = field(default_factory=os.getpid)
    spare_links: SpareConnections = field(default_factory=SpareConnections)
    lent_links: LentConnections = field(default_factory=LentConnections)
    clock: Callable[[], float] = time.monotonic
    tracer: NoTracer = UNTRACED

    in_flight: InFlight = field(default_factory=InFlight)
    quiesce: Quiesce = field(init=False)
    rejected_rows: RejectedRows = field(init=False)
    events: Events = field(default_factory=Events)
    away: Away = field(init=False)
    tally: Tally = field(default_factory=Tally)
    spans: Spans = field(init=False)
    controls: Controls = field(default_factory=Controls)
    peers: Peers = field(default_factory=Peers)
    unreleased: set[int] = field(default_factory=set)
    left_for: MsgworkerError | None = None
    stopping: threading.Event = field(default_factory=threading.Event)
    give_up_at: float | None = None

    def __post_init__(self) -> None:
        self.quiesce = Quiesce(self.clock)
        self.rejected_rows = RejectedRows(self.clock)
        self.away = Away(self.events, lambda: self.identity.id)
        self.tally.count(self.events)
        self.spans = Spans(zone=kind_of(self.tables.cols().created_at).zone)

    def enter(self) -> None:
        """Mark this thread as one of the instance; copies of its context are marked too: tasks
        of the event loop, `asyncio.to_thread`, the items of a fan-out."""
        _WITHIN.set(self)

    @property
    def within(self) -> bool:
        """Whether this thread belongs to the instance, or runs code of its handlers."""
        return _WITHIN.get() is self

    @property
    def asked(self) -> Asked:
        """The instance for which messages left are counted; those whose outcome it could not write
        are its own."""
        tenure = self.identity.tenure
        return Asked(topics=self.topics, chosen=self.chosen, me=(tenure.id, *tenure.left))

    def link(
        self, *, tuned: bool = False, urgent: bool = False, lends: bool = False
    ) -> Connections:
        """New connections for a role; tuned: for the claim's statements. urgent: where writers
        take turns, it has the next one. lends: for transactions that run user code."""
        end_if_forked(self.pid)
        tuning = self.tables.dialect.tuned if tuned else None
        turns = None if self.turns is None else self.turns.until(self.gave_up, urgent=urgent)
        engine = self.engine if self.lent is None or not lends else self.lent
        return Connections(engine, turns, tuning, self._close_idle)

    def _close_idle(self) -> None:
        """No connection is left: close those that nothing uses now, also in the pools."""
        self.spare_links.close_idle()
        for engine in (self.engine, self.lent):
            if engine is not None:
                engine.pool.dispose()

    def leave_for(self, error: MsgworkerError) -> None:
        """Make the instance finish its in-flight messages, and leave for this reason."""
        self.left_for = error
        self.stopping.set()

    def gave_up(self) -> bool:
        """Whether a stop has waited long enough for the database to come back."""
        return self.give_up_at is not None and time.monotonic() >= self.give_up_at

    def known(self) -> set[int]:
        """The messages that we know to be flagged by us."""
        return self.identity.stuck | self.in_flight.flagged()

    @property
    def urgent_pause(self) -> float:
        """The longest pause after a failure of a renewal or of a settle, in seconds: so short that
        an outage that ends within a lease costs nothing."""
        return URGENT_SHARE * self.settings.lease_seconds

    @property
    def has_left(self) -> bool:
        """Whether it left because the rule of the table has changed: no lease is renewed then."""
        return isinstance(self.left_for, RuleChanged)

    def go_on_as(
        self, new_id: str, trusted_until: float, begun: float, *, with_all: bool = False
    ) -> None:
        """Our lease is lost: continue under another id, without the lanes of the old one; begun:
        when the lease of the new one was taken (monotonic). A claim in flight drops its lanes
        itself.

        with_all: keep all lanes, since no instance can have recovered them.
        """
        identity = self.identity
        kept = frozenset(self.in_flight.owners() | {identity.id}) if with_all else frozenset()
        identity.become(identity.id, new_id, trusted_until, begun, carried=kept)
        self.in_flight.forget(identity.is_ours)


def facts(row: Row) -> dict[str, Any]:
    """The attributes of a log record about a message, besides the instance's id."""
    return {
        "msg_id": row.msg_id,
        "object_id": row.object_id if row.odd is None else shown(row.object_id),
        "topic": row.topic if row.odd is None else shown(row.topic),
        "try": row.tries + 1,
    }


def tell_of_limit(log: logging.LoggerAdapter[logging.Logger], row: Row, reason: str) -> None:
    """A line for operators: a time limit of the server has ended the message's handler."""
    text = (
        "message %s: a time limit of the server ended its handler, and would again, so that its "
        "try has failed: %s; raise the limit for this login, or make the handler's transaction "
        "shorter, see docs/guides/retries.md"
    )
    log.warning(text, row.msg_id, reason, extra=facts(row))
