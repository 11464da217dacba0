"""What the roles of one instance share: its id, what it has in hand, what it has done.

An instance is one incarnation: with a lost lease its id changes, everything in hand is forgotten,
and only the handlers that still run are remembered, so that nothing of theirs is claimed again
here. On a table without `claimed_by`, where nobody can recover it, everything stays in hand.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, MutableMapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from msgworker.clock import clock
from msgworker.config import Settings
from msgworker.errors import MsgworkerError
from msgworker.instance.forks import end_if_forked
from msgworker.instance.handling import Registry, Result
from msgworker.instance.links import Link, Turns
from msgworker.instance.quiesce import Quiesce
from msgworker.instance.refusals import Refusals
from msgworker.instance.role import Away
from msgworker.instance.seat import Scope, Seat
from msgworker.logs import logger
from msgworker.message import topic_of
from msgworker.payload import shown
from msgworker.store.claim import Row
from msgworker.store.left import Asked
from msgworker.table import Tables

TRUST_PAUSE_SECONDS = 0.05
_WITHIN: ContextVar[object] = ContextVar("msgworker_within", default=None)


def new_instance_id(label: str = "") -> str:
    """host-pid-random, at most 64 characters; never the same twice."""
    host = label or socket.gethostname() or "host"
    host = re.sub(r"[^A-Za-z0-9_.-]", "_", host)[:30]
    return f"{host}-{os.getpid()}-{uuid.uuid4().hex[:16]}"


class Lane:
    """One object's run in our hands: `rows[place]` is flagged, those behind it are read ahead.

    part: of the slice in which its head was found.
    """

    __slots__ = ("finished_at", "owner", "part", "place", "result", "rows", "settled")

    def __init__(self, owner: str, rows: list[Row]) -> None:
        self.owner = owner
        self.rows = rows
        self.part: Any = None
        self.place = 0
        self.result: Result | None = None
        self.settled: bool | None = None  # a transactional handler has settled it: went on?
        self.finished_at = 0.0

    @property
    def row(self) -> Row:
        """The flagged message."""
        return self.rows[self.place]

    @property
    def next_row(self) -> Row | None:
        """The message that gets the flag next, if the lane goes on."""
        return self.rows[self.place + 1] if self.place + 1 < len(self.rows) else None


def in_quarantine(crash_times: int, tries: int, max_tries: int) -> bool:
    """Whether a message must run alone: on its last try, after a crash that may have been its
    doing."""
    return crash_times > 0 and tries >= max_tries - 1


@dataclass(slots=True)
class Tally:
    """What an instance has done so far; each field is written by one role.

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


@dataclass(slots=True)
class Running:
    """A handler that runs now: who, since when (monotonic), until when it may.

    part: of the slice that it was found in. fatal: if it runs longer than it may, the instance
    leaves. stuck: it did.
    """

    row: Row
    owner: str
    since: float
    until: float | None
    fatal: bool = False
    stuck: bool = False
    cancelled: bool = False
    reported: bool = False
    part: Any = None


class _Adapter(logging.LoggerAdapter[logging.Logger]):
    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> Any:
        kwargs["extra"] = {**(self.extra or {}), **kwargs.get("extra", {})}
        return msg, kwargs

    def log(self, level: int, msg: object, *args: Any, **kwargs: Any) -> None:
        """A log of the user's that fails (its stream is closed, say) costs no work."""
        with suppress(Exception):
            stacklevel = kwargs.pop("stacklevel", 1) + 1
            super().log(level, msg, *args, stacklevel=stacklevel, **kwargs)


@dataclass(slots=True, eq=False)
class State:
    """Shared by the roles; `in_hand` and `running` are touched with single, atomic operations only.

    scope, seat: where it looks; None = everywhere.
    pid: the process of the instance; a child that a handler forks is none of it.
    chosen: `topics` are a choice of those that have a handler.
    blocked: objects whose head could not be flagged a moment ago; a settle takes its own out again.
    refusals: messages that the database does not let us flag.
    none_left: what to do when a role gets no connection: others may have one to spare.
    stuck: messages whose outcome could not be written; their rows stay flagged by our id until its
    lease ends, and then a crash is counted for them.
    doubtful: messages of which a settle that we gave up may still arrive at the database. It names
    our id, so under this id they are not claimed again.
    wants_new_id: there are stuck messages, or a doubtful one is to be claimed: as soon as our hands
    are empty, we go on under another id.
    quiesce: whether our hands are to run empty.
    recovering: what the dead had is being given back now, some of it perhaps to us.
    left_for: why the instance leaves on its own account.
    paused: topics of which no handler starts; read in every heartbeat.
    trusted_until: by `clock`, so long we believe that our lease is ours.
    doubted_at: since when, on the monotonic clock, we are in doubt whether we were declared dead; 0
    for not.
    carried: lost ids of ours under which something in hand was claimed; on a table without
    `claimed_by` only.
    unsure: lanes of such an id whose message has not started: not before the heartbeat has asked
    whether it is flagged still.
    """

    engine: sa.Engine
    tables: Tables
    registry: Registry
    settings: Settings
    instance_id: str
    log: logging.LoggerAdapter[logging.Logger]
    topics: frozenset[str] | None = None
    chosen: bool = False
    paused: frozenset[str] = frozenset()
    turns: Turns | None = None
    channel: str | None = None
    in_hand: set[Lane] = field(default_factory=set)
    blocked: set[Any] = field(default_factory=set)
    running: dict[int, Running] = field(default_factory=dict)
    stuck: set[int] = field(default_factory=set)
    doubtful: set[int] = field(default_factory=set)
    wants_new_id: bool = False
    quiesce: Quiesce = field(default_factory=Quiesce)
    tally: Tally = field(default_factory=Tally)
    trusted_until: float = 0.0
    doubted_at: float = 0.0
    carried: frozenset[str] = frozenset()
    unsure: deque[Lane] = field(default_factory=deque)
    stopping: threading.Event = field(default_factory=threading.Event)
    give_up_at: float | None = None
    left_for: MsgworkerError | None = None
    slot: int = 0
    slots: int = 1
    recovering: bool = False
    away: Away = field(default_factory=Away)
    refusals: Refusals = field(default_factory=Refusals)
    none_left: Callable[[], None] = lambda: None
    pid: int = field(default_factory=os.getpid)
    scope: Scope | None = None
    seat: Seat | None = None

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
        return Asked(topics=self.topics, chosen=self.chosen, me=(self.instance_id,))

    def link(self, *, tuned: bool = False) -> Link:
        """New connections for a role; tuned: for the claim's statements."""
        end_if_forked(self.pid)
        tuning = self.tables.dialect.tuned if tuned else None
        return Link(self.engine, self.turns, tuning, lambda: self.none_left())

    def trusted(self) -> bool:
        """Whether we may still claim and start handlers: a renewal has succeeded lately enough, and
        after what made us doubt it."""
        return not self.doubted_at and clock() < self.trusted_until

    def wait_for_trust(self, over: Callable[[], bool]) -> bool:
        """Wait while our lease is in doubt; False as soon as `over` tells that waiting is in
        vain."""
        while True:
            trusted = self.trusted()  # as whom we were then, which `over` may ask
            if over():
                return False
            if trusted:
                return True
            time.sleep(TRUST_PAUSE_SECONDS)

    def is_paused(self, row: Row) -> bool:
        """Whether the message's handler may not start now because its topic is paused."""
        if not self.paused:
            return False
        return topic_of(row.topic) in self.paused

    def gave_up(self) -> bool:
        """Whether a stop has waited long enough for the database to come back."""
        return self.give_up_at is not None and time.monotonic() >= self.give_up_at

    def cannot_write(self, ids: Iterable[int]) -> None:
        """Note that the outcome of these messages cannot be written."""
        self.stuck.update(ids)
        self.wants_new_id = True

    def known(self) -> set[int]:
        """The messages that lanes in hand hold a flag on, or are just passing it to."""
        known: set[int] = set(self.stuck)
        for lane in list(self.in_hand):
            place = lane.place  # read once: a settle may move it at any moment
            known.update(row.msg_id for row in lane.rows[place : place + 2])
        return known

    def held(self) -> tuple[set[Any], set[int]]:
        """The objects and messages of all lanes in hand.

        A message whose settle is under way may look free because it was written already, while we
        do not know that yet. To claim of its object then would make two claims indistinguishable.
        """
        rows = [lane.rows[0] for lane in list(self.in_hand)]
        return {row.same for row in rows if row.object_id is not None}, {row.msg_id for row in rows}

    def holding(self) -> set[Any]:
        """The parts of slices of which something is in hand, or which a handler that runs under a
        lost id was started for: while its part is ours nobody runs a message of its object beside
        it, for we claim none (`held_by_ghosts`) and others do not look there."""
        lanes = {lane.part for lane in list(self.in_hand)}
        return lanes | {running.part for running in list(self.running.values())}

    def is_ours(self, owner: str) -> bool:
        """Whether what was claimed under this id is in hand: it is ours, or was."""
        return owner == self.instance_id or owner in self.carried

    def become(self, new_id: str, *, carried: frozenset[str] = frozenset()) -> None:
        """Take another id: nothing that was sent under the old one can mean us any more."""
        self.carried = carried  # before: what is in hand is ours at every moment
        self.instance_id = new_id
        self.log.extra = {"instance": new_id}
        self.doubted_at = 0.0
        self.doubtful.clear()
        self.stuck = set()
        self.wants_new_id = False

    def forget_all(self, new_id: str) -> None:
        """Our lease is lost: go on as another instance, with empty hands."""
        self.become(new_id)
        self.in_hand = set()
        for running in list(self.running.values()):
            running.cancelled = True

    def carry_all(self, new_id: str) -> None:
        """Our lease is lost, on a table without `claimed_by`: go on as another instance with what
        is in hand, which no other can have recovered. No claim may be in flight."""
        kept = {lane.owner for lane in list(self.in_hand)}
        kept |= {running.owner for running in list(self.running.values())}
        self.become(new_id, carried=frozenset(kept | {self.instance_id}))

    def held_by_ghosts(self) -> tuple[set[Any], set[int]]:
        """Objects and messages whose handler still runs here under an id that was lost."""
        old = [r.row for r in list(self.running.values()) if not self.is_ours(r.owner)]
        return {r.same for r in old if r.object_id is not None}, {r.msg_id for r in old}


def facts(row: Row) -> dict[str, Any]:
    """What a log record about a message carries, besides the instance's id."""
    return {
        "msg_id": row.msg_id,
        "object_id": row.object_id if row.odd is None else shown(row.object_id),
        "topic": row.topic if row.odd is None else shown(row.topic),
        "try": row.tries + 1,
    }


def logger_for(instance_id: str) -> logging.LoggerAdapter[logging.Logger]:
    """The logger of an instance; every record carries its id."""
    return _Adapter(logger("msgworker.instance"), {"instance": instance_id})
