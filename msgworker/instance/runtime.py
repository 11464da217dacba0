"""What the roles of one instance share.

An instance is one incarnation: with a lost lease its id changes (identity.py), everything in hand
is forgotten (hand.py), and only the handlers that still run are remembered, so that nothing of
theirs is claimed again here. On a table without `claimed_by`, where no other can recover it,
everything stays in hand.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import MutableMapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from msgworker import events
from msgworker.config import Settings
from msgworker.errors import MsgworkerError
from msgworker.events import Events
from msgworker.instance.forks import end_if_forked
from msgworker.instance.hand import Hand
from msgworker.instance.handler import Registry
from msgworker.instance.identity import Identity
from msgworker.instance.links import Link, SpareLinks, Turns
from msgworker.instance.quiesce import Quiesce
from msgworker.instance.refusals import Refusals
from msgworker.instance.role import Away
from msgworker.instance.seat import Scope
from msgworker.logs import logger
from msgworker.message import topic_of
from msgworker.payload import shown
from msgworker.store.left import Asked
from msgworker.store.rows import Row
from msgworker.table import Tables

_WITHIN: ContextVar[object] = ContextVar("msgworker_within", default=None)


@dataclass(slots=True)
class Tally:
    """What an instance has done so far, counted from its events: `claims`, `offered` and `won` in
    the fetcher's thread, all else in that of whoever settles.

    released: given back unstarted at a stop. shared: given back unstarted while it went on.
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

    def count(self, stream: Events) -> None:
        """Subscribe."""
        stream.on(events.Claimed, self._claimed)
        stream.on(events.Settled, self._settled)
        stream.on(events.Retried, self._retried)
        stream.on(events.Dead, self._dead)
        stream.on(events.Released, self._released)
        stream.on(events.Lost, self._lost)

    def _claimed(self, event: events.Claimed) -> None:
        self.claims += 1
        self.offered += event.offered
        self.won += len(event.messages)

    def _settled(self, event: events.Settled) -> None:
        self.settles += 1
        self.done += len(event.done)

    def _retried(self, _: events.Retried) -> None:
        self.retried += 1

    def _dead(self, _: events.Dead) -> None:
        self.dead += 1

    def _released(self, event: events.Released) -> None:
        self.released += event.stopping
        self.shared += not event.stopping

    def _lost(self, _: events.Lost) -> None:
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
        """A log of the user's that fails (its stream is closed, say) costs no work."""
        with suppress(Exception):
            stacklevel = kwargs.pop("stacklevel", 1) + 1
            super().log(level, msg, *args, stacklevel=stacklevel, **kwargs)


@dataclass(slots=True, eq=False)
class Runtime:
    """First what never changes while the instance lives, then what is shared by its roles.

    topics: None = all that have a handler. chosen: they are a choice of those. turns: where a
    database has one writer at a time. channel: on which producers notify. scope: where it looks;
    None = everywhere. pid: its process; a child that a handler forks is none of it. spare_links:
    connections that may be given back where there are none left.

    identity, hand, quiesce, refusals, away, tally: see there who writes them.
    events: what happens here, for the log, the tally and who asked the App.
    paused: topics of which no handler starts; written by the heartbeat, read by the fetcher, by
    handler threads and whoever settles.
    slot, slots: our place among the live instances, and how many they are; written by the
    heartbeat, read by the fetcher.
    left_for: why the instance leaves on its own account; written by the heartbeat (`Instance.
    leave_for`), read by whoever waits for the end.
    stopping: set by the stop, or by a handler that got KeyboardInterrupt; read by all.
    give_up_at: when, on the monotonic clock, a stop waits for the database no longer; written by
    the stop, read by all.
    """

    engine: sa.Engine
    tables: Tables
    registry: Registry
    settings: Settings
    identity: Identity
    log: logging.LoggerAdapter[logging.Logger]
    topics: frozenset[str] | None = None
    chosen: bool = False
    turns: Turns | None = None
    channel: str | None = None
    scope: Scope | None = None
    pid: int = field(default_factory=os.getpid)
    spare_links: SpareLinks = field(default_factory=SpareLinks)

    hand: Hand = field(default_factory=Hand)
    quiesce: Quiesce = field(default_factory=Quiesce)
    refusals: Refusals = field(default_factory=Refusals)
    events: Events = field(default_factory=Events)
    away: Away = field(init=False)
    tally: Tally = field(default_factory=Tally)
    paused: frozenset[str] = frozenset()
    slot: int = 0
    slots: int = 1
    left_for: MsgworkerError | None = None
    stopping: threading.Event = field(default_factory=threading.Event)
    give_up_at: float | None = None

    def __post_init__(self) -> None:
        self.away = Away(self.events, lambda: self.identity.id)
        self.tally.count(self.events)

    def enter(self) -> None:
        """Note that this thread is one of the instance; what copies its context is, too: the tasks
        of the event loop, `asyncio.to_thread`, the items of a fan-out."""
        _WITHIN.set(self)

    @property
    def within(self) -> bool:
        """Whether this thread runs handlers of the instance, or something of theirs."""
        return _WITHIN.get() is self

    @property
    def asked(self) -> Asked:
        """For whom it is asked what is left."""
        return Asked(topics=self.topics, chosen=self.chosen, me=(self.identity.id,))

    def link(self, *, tuned: bool = False) -> Link:
        """New connections for a role; tuned: for the claim's statements."""
        end_if_forked(self.pid)
        tuning = self.tables.dialect.tuned if tuned else None
        return Link(self.engine, self.turns, tuning, self.spare_links.close_idle)

    def is_paused(self, row: Row) -> bool:
        """Whether the message's handler may not start now because its topic is paused."""
        if not self.paused:
            return False
        return topic_of(row.topic) in self.paused

    def gave_up(self) -> bool:
        """Whether a stop has waited long enough for the database to come back."""
        return self.give_up_at is not None and time.monotonic() >= self.give_up_at

    def known(self) -> set[int]:
        """The messages that are flagged by us as far as we know."""
        return self.identity.stuck | self.hand.flagged()

    def forget_all(self, new_id: str) -> None:
        """Our lease is lost: go on as another instance, with empty hands."""
        self.identity.lost()
        self.identity.become(new_id)
        self.hand.forget()

    def carry_all(self, new_id: str) -> None:
        """Our lease is lost, on a table without `claimed_by`: go on as another instance with what
        is in hand, which no other can have recovered. No claim may be in flight."""
        identity = self.identity
        identity.lost()
        identity.become(new_id, carried=frozenset(self.hand.owners() | {identity.id}))


def facts(row: Row) -> dict[str, Any]:
    """What a log record about a message carries, besides the instance's id."""
    return {
        "msg_id": row.msg_id,
        "object_id": row.object_id if row.odd is None else shown(row.object_id),
        "topic": row.topic if row.odd is None else shown(row.topic),
        "try": row.tries + 1,
    }
