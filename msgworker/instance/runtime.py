"""The shared state of the roles of one instance.

An instance is one incarnation: when it loses its lease its id changes (identity.py), its lanes are
dropped (hand.py), and only the running handlers are remembered, so that no message of their objects
is claimed here. On a table without `claimed_by`, where no other instance can recover them, all
lanes are kept.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, MutableMapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from msgworker import events
from msgworker.config import Settings
from msgworker.dialects import kind_of
from msgworker.errors import MsgworkerError, RuleChanged
from msgworker.events import Events
from msgworker.instance.claiming.quiesce import Quiesce
from msgworker.instance.claiming.refusals import Refusals
from msgworker.instance.claiming.seat import Scope
from msgworker.instance.links import Link, SpareLinks, Turns
from msgworker.instance.liveness.identity import Identity
from msgworker.instance.liveness.lentlinks import LentLinks
from msgworker.instance.role import Away
from msgworker.instance.running.hand import Hand
from msgworker.instance.running.handler import Registry
from msgworker.instance.spans import Spans
from msgworker.instance.usercode import end_if_forked
from msgworker.limit import Limit
from msgworker.logs import logger
from msgworker.message import topic_of
from msgworker.payload import shown
from msgworker.schedules import Schedule
from msgworker.store.looking.left import Asked
from msgworker.store.rows import Row
from msgworker.table import Tables
from msgworker.tracing import UNTRACED, NoTracer

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

    identity, hand, quiesce, refusals, away, tally, spans: see their classes for their writers.
    events: the event stream, for the log, the tally and subscribers of the App.
    paused: topics of which no handler starts; limits: of topics, over all instances; apart: the
    topics of both; written by the housekeeper (`hold`), read by the fetcher, by handler threads and
    settling threads.
    unreleased: messages that the database does not let us release, told once; by any thread.
    slot, slots: our place among the live instances, and their number; written by the
    housekeeper, read by the fetcher.
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
    turns: Turns | None = None
    channel: str | None = None
    scope: Scope | None = None
    schedules: tuple[Schedule, ...] = ()
    pid: int = field(default_factory=os.getpid)
    spare_links: SpareLinks = field(default_factory=SpareLinks)
    lent_links: LentLinks = field(default_factory=LentLinks)
    clock: Callable[[], float] = time.monotonic
    tracer: NoTracer = UNTRACED

    hand: Hand = field(default_factory=Hand)
    quiesce: Quiesce = field(init=False)
    refusals: Refusals = field(init=False)
    events: Events = field(default_factory=Events)
    away: Away = field(init=False)
    tally: Tally = field(default_factory=Tally)
    spans: Spans = field(init=False)
    paused: frozenset[str] = frozenset()
    limits: Mapping[str, Limit] = field(default_factory=dict)
    apart: frozenset[str] = frozenset()
    unreleased: set[int] = field(default_factory=set)
    slot: int = 0
    slots: int = 1
    left_for: MsgworkerError | None = None
    stopping: threading.Event = field(default_factory=threading.Event)
    give_up_at: float | None = None

    def __post_init__(self) -> None:
        self.quiesce = Quiesce(self.clock)
        self.refusals = Refusals(self.clock)
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

    def link(self, *, tuned: bool = False, urgent: bool = False, lends: bool = False) -> Link:
        """New connections for a role; tuned: for the claim's statements. urgent: where writers
        take turns, it has the next one. lends: for transactions that run user code."""
        end_if_forked(self.pid)
        tuning = self.tables.dialect.tuned if tuned else None
        turns = None if self.turns is None else self.turns.until(self.gave_up, urgent=urgent)
        engine = self.engine if self.lent is None or not lends else self.lent
        return Link(engine, turns, tuning, self._close_idle)

    def _close_idle(self) -> None:
        """No connection is left: close those that nothing uses now, also in the pools."""
        self.spare_links.close_idle()
        for engine in (self.engine, self.lent):
            if engine is not None:
                engine.pool.dispose()

    def hold(self, paused: frozenset[str], limits: Mapping[str, Limit]) -> None:
        """These topics are paused, and these are limited."""
        self.paused, self.limits = paused, limits
        self.apart = paused | limits.keys()

    def is_apart(self, row: Row) -> bool:
        """Whether the message does not get its flag from the one in front of it in its lane: its
        topic is paused, or is limited, so that it needs a permit."""
        return bool(self.apart) and topic_of(row.topic) in self.apart

    def needs_permit(self, row: Row) -> bool:
        """Whether the message may be flagged only where a permit is free: its topic is limited."""
        return bool(self.limits) and topic_of(row.topic) in self.limits

    def is_paused(self, row: Row) -> bool:
        """Whether the message's handler may not start now because its topic is paused."""
        if not self.paused:
            return False
        return topic_of(row.topic) in self.paused

    def leave_for(self, error: MsgworkerError) -> None:
        """Make the instance finish its in-flight messages, and leave for this reason."""
        self.left_for = error
        self.stopping.set()

    def gave_up(self) -> bool:
        """Whether a stop has waited long enough for the database to come back."""
        return self.give_up_at is not None and time.monotonic() >= self.give_up_at

    def known(self) -> set[int]:
        """The messages that we know to be flagged by us."""
        return self.identity.stuck | self.hand.flagged()

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
        kept = frozenset(self.hand.owners() | {identity.id}) if with_all else frozenset()
        identity.become(identity.id, new_id, trusted_until, begun, carried=kept)
        self.hand.forget(identity.is_ours)


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
