"""Why a message does not run: decided and said here, for `explain`, for what a drain leaves, and
for `doctor`.

What is known of a row (`Facts`) and beside it (`World`) is read first; `verdict` only decides.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial

from sqlalchemy import Connection

from msgworker.message import State
from msgworker.queries.instances import (
    UNKNOWN,
    InstanceInfo,
    Life,
    Started,
    instances,
    live,
    waiting,
)
from msgworker.store import pauses
from msgworker.store.recover import giving_back
from msgworker.table import Slice, Tables


class Reason(enum.StrEnum):
    """Why a message is not running."""

    DONE = "done"
    DEAD = "dead"
    UNKNOWN_STATUS = "unknown status"
    RUNNING = "running"
    RUNNING_DEAD = "held by a dead instance"
    RUNNING_FOREIGN = "held by a foreign consumer"
    BEHIND = "waits behind another message"
    NOT_DUE = "not due"
    PAUSED = "topic paused"
    LIMITED = "topic limited"
    NO_INSTANCE = "no live instance"
    NO_HANDLER = "no live handler"
    NOBODY_LOOKS = "no live instance looks there"
    REFUSED = "refused"
    QUARANTINE = "quarantine"
    NEXT = "nothing holds it back"


class Waits(enum.StrEnum):
    """What a message that a drain has left waits for."""

    RETRY = "retry"  # its next try after a failed one
    LATER = "later"  # an instant: a delayed send, RetryLater, the visibility delay
    ELSEWHERE = "elsewhere"  # another live instance has it, or the one before it
    SILENT = "silent"  # the same, but that instance may be dead: its lease has not ended yet
    NOBODY = "nobody"  # it is at 1 without an owner
    PAUSED = "paused"  # its topic is paused
    LIMITED = "limited"  # a limit of its topic
    NO_HANDLER = "no handler"  # no live instance has a handler for its topic
    OTHER_TOPICS = "other topics"  # this instance was not asked to handle its topic
    OTHER_SLICES = "other slices"  # its scope does not look where the message stands
    DEAD = "dead"  # a dead message, or one behind it, where those block their object
    DUE = "due"  # nothing: it can be claimed


class Verdict(enum.Enum):
    """Why a message does not run: the reason that `explain` gives, and what a drain counts it as;
    None = it is not left by one."""

    DONE = Reason.DONE, None
    UNKNOWN = Reason.UNKNOWN_STATUS, None
    DEAD = Reason.DEAD, Waits.DEAD
    RUNNING = Reason.RUNNING, Waits.ELSEWHERE
    SILENT = Reason.RUNNING, Waits.SILENT  # its lease has not ended, but its instance may be dead
    OWN = Reason.RUNNING, Waits.DUE  # a handler of the asking instance outlived the grace time
    RECOVERED = Reason.RUNNING_DEAD, Waits.ELSEWHERE  # another instance gives it back
    ABANDONED = Reason.RUNNING_DEAD, Waits.NOBODY
    UNOWNED = Reason.RUNNING_FOREIGN, Waits.NOBODY
    UNNAMED = Reason.RUNNING_FOREIGN, Waits.ELSEWHERE  # the table does not say whose it is
    BEHIND = Reason.BEHIND, None
    OTHER_SLICES = Reason.NOBODY_LOOKS, Waits.OTHER_SLICES
    LATER = Reason.NOT_DUE, Waits.LATER
    NO_HANDLER = Reason.NO_HANDLER, Waits.NO_HANDLER
    OTHER_TOPICS = Reason.NO_HANDLER, Waits.OTHER_TOPICS
    ELSEWHERE = Reason.NEXT, Waits.ELSEWHERE  # another instance has a handler for it
    PAUSED = Reason.PAUSED, Waits.PAUSED
    RETRY = Reason.NOT_DUE, Waits.RETRY
    NO_INSTANCE = Reason.NO_INSTANCE, Waits.NO_HANDLER
    LIMITED = Reason.LIMITED, Waits.LIMITED
    REFUSED = Reason.REFUSED, Waits.DUE
    QUARANTINE = Reason.QUARANTINE, Waits.DUE
    NEXT = Reason.NEXT, Waits.DUE

    def __init__(self, reason: Reason, left_as: Waits | None) -> None:
        self.reason = reason
        self.left_as = left_as


# --- What is known.


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The instance that asks. topics: those handled, None = all. chosen: they are a choice of
    those that have a handler. me: the ids of the asking instances. within: where it looks, now or
    in turn; None = everywhere, or not known."""

    topics: Collection[str] | None
    chosen: bool = False
    me: Collection[str] = ()
    within: Slice | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known of a row. owner: its `claimed_by`. due: its instant has come. unseen: why
    no instance that handles it looks where it stands; "" = one does. alone: it is to run alone.
    refused: the instance that the database does not let flag it, and why.

    Of a running one, as far as it is known: started, whether its handler has; claimed_seconds,
    since it was claimed; dated, whether it is known since when it runs."""

    status: State
    topic: str = ""
    owner: str | None = None
    due: bool = True
    unseen: str = ""
    behind: bool = False
    alone: bool = False
    refused: tuple[InstanceInfo, str] | None = None
    started: Started = UNKNOWN
    claimed_seconds: float | None = None
    dated: bool = True


@dataclass(frozen=True, slots=True)
class World:
    """who: the instances. paused: topics. full: those of which no message can start now because of
    their limits, and why; read when it is asked for. names_owners: whether the table says whose a
    running row is. asked: an instance that asks for itself, and is none of `who`."""

    who: Sequence[InstanceInfo] = ()
    paused: Collection[str] = ()
    full: Callable[[], Mapping[str, str]] = dict
    names_owners: bool = True
    asked: Asked | None = None

    @classmethod
    def read(cls, conn: Connection, t: Tables, asked: Asked | None = None) -> World:
        """As it is now."""
        mine = () if asked is None else asked.me
        who = [one for one in instances(conn, t) if one.instance_id not in mine]
        full = cache(partial(waiting, conn, t))
        return cls(who, pauses.topics(conn, t), full, t.has("claimed_by"), asked)

    @property
    def works(self) -> list[InstanceInfo]:
        """The instances that work on this table."""
        return [one for one in self.who if one.works]

    def handling(self, topic: str) -> list[InstanceInfo]:
        """Those that have a handler for a topic."""
        return [one for one in self.who if one.handles(topic)]

    def holder(self, owner: str | None) -> InstanceInfo | None:
        """Who has a running message with this `claimed_by`, if that one has a lease."""
        if owner is None:
            return None
        return next((one for one in self.who if one.instance_id == owner), None)


# --- The decision.

_ENDED = {State.DONE: Verdict.DONE, State.DEAD: Verdict.DEAD, State.UNKNOWN: Verdict.UNKNOWN}


def verdict(row: Facts, world: World) -> Verdict:
    """Why a message does not run: the first of these that holds. What lasts until an operator or
    an instance acts comes before what ends by itself."""
    if row.status is State.PROCESSING:
        return _held(row.owner, world)
    if row.status in _ENDED:
        return _ENDED[row.status]
    if row.behind:
        return Verdict.BEHIND
    if row.unseen:
        return Verdict.OTHER_SLICES
    if not row.due and row.status is State.NEW:
        return Verdict.LATER
    unhandled = _unhandled(row.topic, world)
    if unhandled is not None:
        return unhandled
    if row.topic in world.paused:
        return Verdict.PAUSED
    if not row.due:
        return Verdict.RETRY
    if world.asked is None and not world.works:
        return Verdict.NO_INSTANCE
    if row.topic in world.full():
        return Verdict.LIMITED
    if row.refused is not None:
        return Verdict.REFUSED
    return Verdict.QUARANTINE if row.alone else Verdict.NEXT


def _held(owner: str | None, world: World) -> Verdict:
    if world.asked is not None and owner in world.asked.me:
        return Verdict.OWN
    if owner is None:
        # One that has stopped may have it; a drain does not count on that, and says so.
        others = live(world.who) if world.asked is None else world.works
        may_be_theirs = not world.names_owners and others
        return Verdict.UNNAMED if may_be_theirs else Verdict.UNOWNED
    holder = world.holder(owner)
    if holder is None or holder.life is not Life.LIVE:
        return Verdict.RECOVERED if world.works else Verdict.ABANDONED
    return Verdict.SILENT if holder.silent else Verdict.RUNNING


def _unhandled(topic: str, world: World) -> Verdict | None:
    """That no handler for a topic is there, or none with the instance that asks."""
    asked = world.asked
    if asked is None:
        lacking = world.works and not world.handling(topic)
        return Verdict.NO_HANDLER if lacking else None
    if asked.topics is None or topic in asked.topics:
        return None
    if world.handling(topic):
        return Verdict.ELSEWHERE
    return Verdict.OTHER_TOPICS if asked.chosen else Verdict.NO_HANDLER


# --- The sentences.


def sentence(found: Verdict, row: Facts, world: World) -> str:
    """A verdict as a sentence, with what is known. Of what the row alone shows (it has ended, or is
    not due) `explain` says more."""
    if found.reason is Reason.RUNNING:
        return _running(row, world)
    if found.reason is Reason.RUNNING_DEAD:
        return _of_the_dead(row, world)
    if found.reason is Reason.RUNNING_FOREIGN:
        return _of_nobody(row, world)
    if found is Verdict.OTHER_SLICES:
        return row.unseen
    if found is Verdict.LIMITED:
        return f"it waits for {world.full()[row.topic]}"
    if found is Verdict.REFUSED and row.refused is not None:
        one, why = row.refused
        return (
            f"the database refuses to let {one.instance_id} flag it: {why}; it is skipped, and "
            "tried again at growing intervals"
        )
    if found is Verdict.NO_HANDLER:
        none = (
            f"none of the {len(world.works)} live instances has"
            if world.asked is None
            else "neither this instance nor another live one has"
        )
        return f"{none} a handler for topic {row.topic}"
    return _SENTENCES[found].format(topic=row.topic)


_SENTENCES = {
    Verdict.DONE: "it is done",
    Verdict.DEAD: "it is dead",
    Verdict.UNKNOWN: (
        "its status is none of 0 new, 1 processing, 2 done and -1 failed, so it is never claimed; "
        "fix the status"
    ),
    Verdict.LATER: "it is not due yet",
    Verdict.RETRY: "it waits for its back-off",
    Verdict.BEHIND: "it waits behind another message",
    Verdict.OTHER_TOPICS: "this instance was not asked to handle topic {topic}",
    Verdict.ELSEWHERE: "another live instance has a handler for topic {topic}",
    Verdict.PAUSED: "topic {topic} is paused",
    Verdict.NO_INSTANCE: "no instance lives that works on this table; start one",
    Verdict.QUARANTINE: (
        "it is on its last try after a crash, so it runs alone: an instance takes it when it has "
        "no other message in flight"
    ),
    Verdict.NEXT: "nothing holds it back",
}


def _of_nobody(row: Facts, world: World) -> str:
    text = (
        "a foreign consumer has flagged it, without a name, and only that consumer can end it"
        if world.names_owners
        else "it is flagged; the table has no column claimed_by, so its owner is unknown"
    )
    text += "" if row.dated else "; since when is not known"
    return f"{text}; if that one is gone, {giving_back(dated=row.dated)} gives it back"


def _of_the_dead(row: Facts, world: World) -> str:
    holder = world.holder(row.owner)
    how = "it has no lease"
    if holder is not None:
        how = f"its lease has run out{_last_sign(holder, row.started)}"
    then = (
        "another instance gives the message back within a few heartbeats"
        if world.works
        else "the message is given back when an instance is started"
    )
    return f"{row.owner} has it and is dead: {how}; {then}"


def _running(row: Facts, world: World) -> str:
    holder = world.holder(row.owner)
    if holder is None:
        return f"it is running on {row.owner}"
    others = any(one.works and one is not holder for one in world.who)
    after = f"when its lease is over, in about {span(holder.left_seconds)}"
    after += "" if others else ", by an instance that runs then"
    if holder.stopped:
        return (
            f"{holder.instance_id} has stopped, and its handler has outlived the grace time: the "
            f"message is recovered {after}"
        )
    text = _held_text(row, holder)
    if holder.overdue_seconds is None:
        return text
    return (
        f"{text}; its heartbeat has been overdue for {span(holder.overdue_seconds)}; if it is "
        f"dead, the message is recovered {after}"
    )


def _held_text(row: Facts, holder: InstanceInfo) -> str:
    who, heard = row.owner, span(holder.silent_seconds)
    claimed = span(row.claimed_seconds)
    if row.started.started:
        ran = span(row.started.seconds)
        return f"its handler has run for {ran} on {who}, last heard of {heard} ago"
    if row.started.started is False:
        return f"claimed {claimed} ago by {who}, not started as of its heartbeat {heard} ago"
    if holder.handlers is None or row.claimed_seconds is None:
        return f"it is running on {who}, last heard of {heard} ago"
    text = f"claimed {claimed} ago by {who}, last heard of {heard} ago"
    if holder.overdue_seconds is not None:
        return text
    return f"{text}; the next heartbeat says whether its handler has started"


def _last_sign(holder: InstanceInfo, told: Started) -> str:
    if holder.silent_seconds is None:  # it was taken over since
        return ""
    text = f", it was last heard of {span(holder.silent_seconds)} ago"
    if told.started is None:
        return text
    if not told.started:
        return f"{text} and had not started the handler then"
    return f"{text}, when the handler had run for {span(told.seconds)}"


def span(seconds: float | None) -> str:
    """How long, as a text: "12 s", "15 min", "3 h"."""
    if seconds is None:
        return "an unknown time"
    for size, unit in ((3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds // size:,.0f} {unit}"
    return f"{seconds:.0f} s"
