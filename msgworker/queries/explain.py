"""Why a message is not running, or how it has ended.

One file, because for `explain`, drains and `doctor` it is decided and said in one place.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cache

import sqlalchemy as sa
from sqlalchemy import Connection

from msgworker.counted import plural, span
from msgworker.db.clock import instant_ago
from msgworker.message import State, in_quarantine, topic_of
from msgworker.queries import instances, messages
from msgworker.queries.messages import MessageInfo
from msgworker.store import controls, items, jobs, ranked, schedules, send
from msgworker.store.bounded import WAITING
from msgworker.store.controls import Request
from msgworker.store.items import Items
from msgworker.store.recover import giving_back
from msgworker.table.columns import Slice
from msgworker.table.tables import Tables, prioritized


@dataclass(frozen=True, slots=True)
class Explanation:
    """The reason, as a word and as a sentence.

    since: of a running message, or of one that has ended. until: when it becomes due.
    started, running_seconds: of a claimed message, whether its handler has started and how long it
    has run, as far as the instance's last heartbeat says; None = not known.
    behind: the message it waits for, with that one's own reason. items: of its fan-outs. cancel: a
    request to cancel it that is not settled. limit: the limits of its topic, of one that has not
    ended. key_holder: the message that holds its unique key, which may be itself; None if it has
    none, or none holds it.
    """

    message: MessageInfo
    reason: Reason
    text: str
    since: datetime | None = None
    until: datetime | None = None
    instance: instances.InstanceInfo | None = None
    behind: Explanation | None = None
    items: Items | None = None
    started: bool | None = None
    running_seconds: float | None = None
    cancel: Request | None = None
    limit: instances.TopicLimit | None = None
    key_holder: int | None = None


def explain(conn: Connection, t: Tables, msg_id: int) -> Explanation | None:
    """Why this message is not running; None if there is no such message."""
    info = messages.show(conn, t, msg_id)
    if info is None:
        return None
    found = _explain(conn, t, info, World.read(conn, t))
    if info.unique_key is not None and "unique_key" not in info.odd:
        holder, told = send.key_text(conn, t, msg_id, info.unique_key)
        found = replace(found, text=found.text + told, key_holder=holder)
    if info.scheduled_for is not None:
        sender = schedules.sender_of(conn, t, topic_of(info.topic), info.object_id, info.unique_key)
        sent = f"; sent by {sender} for {info.scheduled_for:%Y-%m-%d %H:%M:%S} UTC"
        found = replace(found, text=found.text + sent)
    if info.status is State.DONE:
        return found
    if (request := controls.request_of(conn, t, msg_id)) is not None:
        found = replace(found, text=found.text + _cancel_text(conn, info, request), cancel=request)
    return replace(found, items=items.shown(conn, t, msg_id, limit=0))


def _cancel_text(conn: Connection, info: MessageInfo, request: Request) -> str:
    ago = (instant_ago(conn) - request.requested_at).total_seconds()
    text = f"; cancel requested by {request.actor} {span(max(0.0, ago))} ago: {request.reason}"
    if info.status is State.PROCESSING:
        return f"{text}; its instance sees that within a heartbeat, it ends with its handler"
    return f"{text}; the next heartbeat of an instance makes it dead"


def _explain(conn: Connection, t: Tables, info: MessageInfo, world: World) -> Explanation:
    """Of a message behind another one with the explanation of that one."""
    if info.status in WAITING and (other := _in_front(conn, t, info)) is not None:
        behind = _explain(conn, t, other, world)
        info = messages.with_past(conn, t, [info])[0]
        text, limit = _behind_text(info, other), world.limits().get(topic_of(info.topic))
        return Explanation(info, Reason.BEHIND, text, behind=behind, limit=limit)
    (found,) = of_heads(conn, t, [info], world)
    if found.reason is Reason.NEXT:
        return replace(found, text=found.text + _next_text(conn, t, info))
    return found


def of_heads(
    conn: Connection, t: Tables, infos: Iterable[MessageInfo], world: World
) -> list[Explanation]:
    """Why these do not run, or how they have ended, as if none of their objects stood before them;
    in as many statements for all of them as for one. `conn` commits each statement."""
    infos = messages.with_past(conn, t, infos)
    open_ones = [info for info in infos if info.status in WAITING]
    stands = instances.stands_of(conn, t, [info.msg_id for info in open_ones])
    of_jobs = {info.job_id for info in open_ones if info.job_id is not None}
    only = next(iter(of_jobs)) if len(of_jobs) == 1 else None
    paused = (
        {one.job_id: one for one in controls.paused_jobs(conn, t, job_id=only)} if of_jobs else {}
    )
    dead = [info.msg_id for info in infos if info.status is State.DEAD]
    holds = jobs.held_up(conn, t, dead) if dead else {}

    def row(info: MessageInfo) -> Facts:
        if info.status is State.PROCESSING:
            return _held(info, world)
        if info.status not in WAITING:
            return Facts(status=info.status, holds=holds.get(info.msg_id, ()))
        stand = stands.get(info.msg_id, instances.Stand())
        return _waiting(t, info, stand, paused.get(info.job_id or 0), world)

    return [_told(t, info, row(info), world) for info in infos]


def _told(t: Tables, info: MessageInfo, row: Facts, world: World) -> Explanation:
    found, ended = verdict(row, world), info.status in (State.DONE, State.DEAD)
    limit = None if ended else world.limits().get(topic_of(info.topic))
    if found.reason is Reason.NOT_DUE:
        return replace(_not_due(t, info), limit=limit)
    return Explanation(
        info,
        found.reason,
        _dead_text(info, row.holds) if found is Verdict.DEAD else sentence(found, row, world),
        since=info.finished_at if ended else None if info.status in WAITING else info.claimed_at,
        instance=world.holder(row.owner) if row.refused is None else row.refused[0],
        started=row.started.started,
        running_seconds=row.started.seconds,
        limit=limit,
    )


def _held(info: MessageInfo, world: World) -> Facts:
    holder = world.holder(info.claimed_by)
    return Facts(
        status=info.status,
        owner=info.claimed_by,
        started=instances.UNKNOWN if holder is None else holder.started(info),
        claimed_seconds=None if holder is None else holder.claimed_ago(info),
        dated=info.claimed_at is not None or info.created_at is not None,
    )


def _waiting(
    t: Tables,
    info: MessageInfo,
    stand: instances.Stand,
    held: controls.PausedJob | None,
    world: World,
) -> Facts:
    topic = topic_of(info.topic)
    able = world.handling(topic)
    scoped = bool(able) and all(one.scope for one in able)
    refusals = ((one, one.refused.get(str(info.msg_id))) for one in world.works)
    return Facts(
        status=info.status,
        topic=topic,
        due=stand.due,
        held=held.text if held else "",
        unseen=instances.why_not(able, stand.shard, stand.flag, stand.job) if scoped else "",
        alone=in_quarantine(info.crash_times or 0, info.error_try_times, t.spec.max_tries),
        refused=next(((one, why) for one, why in refusals if why), None),
    )


def _dead_text(info: MessageInfo, holds: Sequence[str]) -> str:
    how = info.ending.text if info.ending else "no tries left"
    text = f"it is {how}" if how.startswith("dead ") else f"it is dead: {how}"
    if holds:
        waits = "waits" if len(holds) == 1 else "wait"
        text += f"; {' and '.join(holds)} {waits} until it is rerun or discarded"
    if info.acknowledged is not None:
        text += f"; acknowledged by {info.acknowledged}"
    return f"{text}; a rerun tries it again"


def _behind_text(info: MessageInfo, other: MessageInfo) -> str:
    whose = f"of the same object {info.object_id}"
    if other.msg_id < info.msg_id and (other.priority or 0) < (info.priority or 0):
        return f"message {other.msg_id} {whose} comes first, although its priority is lower"
    if other.msg_id > info.msg_id:
        return f"the later message {other.msg_id} {whose} is running already"
    return f"message {other.msg_id} {whose} comes first"


def _in_front(conn: Connection, t: Tables, info: MessageInfo) -> MessageInfo | None:
    """The running message of the object, else the first unfinished one before this."""
    if info.object_id is None:
        return None
    source = t.message.alias("o")
    c = t.cols(source)
    own = sa.select(t.object_key(t.cols())).where(t.cols().msg_id == info.msg_id).scalar_subquery()
    query = t.hinted(sa.select(c.msg_id), source, "object")
    query = query.where(t.open_object(c) == own, t.open_rows(c))
    first = conn.scalar(
        query.where(t.open_msg_id(c) < info.msg_id).order_by(t.open_msg_id(c)).limit(1)
    )
    flagged = t.hinted(sa.select(c.msg_id), source, "guard").where(t.runs(c, own))
    held = conn.scalar(flagged.limit(1))
    for other in (held, first):
        if other is not None and other != info.msg_id:
            return messages.show(conn, t, int(other))
    return None


def _not_due(t: Tables, info: MessageInfo) -> Explanation:
    if "available_at" in info.odd:
        text = f"it is not due: its available_at holds {info.odd['available_at']}"
        return Explanation(info, Reason.NOT_DUE, text)
    if info.later_reason and info.later_times:
        text = f"its handler postponed it ({info.later_times} so far): {info.later_reason}"
    elif info.status is State.FAILED and info.error_try_times:
        tries = f"{info.error_try_times} of {plural(t.spec.max_tries, 'time')}"
        text = f"it has failed {tries} and waits for its back-off"
    elif info.available_at is not None and t.has("available_at"):
        text = "it is not due yet"
    else:
        text = f"it is younger than {t.spec.visibility_delay_seconds:g} s (visibility_delay)"
    return Explanation(info, Reason.NOT_DUE, text, until=info.available_at)


def _next_text(conn: Connection, t: Tables, info: MessageInfo) -> str:
    first = ranked.ranked(conn, t, limit=1) if prioritized(t) else ranked.Ranked()
    highest = max(first.priorities.values(), default=0)
    older = "older messages"
    if highest > (info.priority or 0):
        older = f"messages of a higher priority, up to {highest}, and older ones"
    elif info.priority:
        older = "older ones of its priority"
    return f"; an instance claims it when {older} leave room"


# --- Why a message does not run: decided and said here, for `explain`, for what a drain leaves,
# and for `doctor`.
#
# What is known of a row (`Facts`) and beside it (`World`) is read first; `verdict` only decides.


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
    JOB_PAUSED = "job paused"
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
    PAUSED = "paused"  # its topic or its job is paused
    LIMITED = "limited"  # a limit of its topic
    NO_HANDLER = "no handler"  # no live instance has a handler for its topic
    OTHER_TOPICS = "other topics"  # this instance was not asked to handle its topic
    OTHER_SLICES = "other slices"  # its scope does not look where the message stands
    OTHER_JOBS = "other jobs"  # a message of no such job before it, which others handle
    DEAD = "dead"  # a dead message, or one behind it, where those block their object
    DUE = "due"  # nothing: it can be claimed


class Verdict(enum.Enum):
    """Why a message does not run: the reason that `explain` gives; what a drain counts it as, None
    = it is not left by one; and the sentence, "" where it takes more than the row (see `sentence`).
    Of what the row alone shows (it has ended, or is not due) `explain` says more."""

    DONE = Reason.DONE, None, "it is done"
    UNKNOWN = (
        Reason.UNKNOWN_STATUS,
        None,
        "its status is none of 0 new, 1 processing, 2 done and -1 failed, so it is never claimed; "
        "fix the status",
    )
    DEAD = Reason.DEAD, Waits.DEAD, "it is dead"
    RUNNING = Reason.RUNNING, Waits.ELSEWHERE
    SILENT = Reason.RUNNING, Waits.SILENT  # its lease has not ended, but its instance may be dead
    OWN = Reason.RUNNING, Waits.DUE  # a handler of the asking instance outlived the grace time
    RECOVERED = Reason.RUNNING_DEAD, Waits.ELSEWHERE  # another instance gives it back
    ABANDONED = Reason.RUNNING_DEAD, Waits.NOBODY
    UNOWNED = Reason.RUNNING_FOREIGN, Waits.NOBODY
    UNNAMED = Reason.RUNNING_FOREIGN, Waits.ELSEWHERE  # the table does not say whose it is
    OTHER_SLICES = Reason.NOBODY_LOOKS, Waits.OTHER_SLICES, "{row.unseen}"
    OTHER_JOBS = Reason.BEHIND, Waits.OTHER_JOBS
    LATER = Reason.NOT_DUE, Waits.LATER, "it is not due yet"
    NO_HANDLER = Reason.NO_HANDLER, Waits.NO_HANDLER, "{none} a handler for topic {row.topic}"
    OTHER_TOPICS = (
        Reason.NO_HANDLER,
        Waits.OTHER_TOPICS,
        "this instance was not asked to handle topic {row.topic}",
    )
    ELSEWHERE = (
        Reason.NEXT,
        Waits.ELSEWHERE,
        "another live instance has a handler for topic {row.topic}",
    )
    HELD = Reason.JOB_PAUSED, Waits.PAUSED, "{row.held}"
    PAUSED = Reason.PAUSED, Waits.PAUSED, "topic {row.topic} is paused by {by}"
    RETRY = Reason.NOT_DUE, Waits.RETRY, "it waits for its back-off"
    NO_INSTANCE = (
        Reason.NO_INSTANCE,
        Waits.NO_HANDLER,
        "no instance lives that works on this table; start one",
    )
    LIMITED = Reason.LIMITED, Waits.LIMITED
    REFUSED = (
        Reason.REFUSED,
        Waits.DUE,
        "the database refuses to let {row.refused[0].instance_id} flag it: {row.refused[1]}; it is "
        "skipped, and tried again at growing intervals",
    )
    QUARANTINE = (
        Reason.QUARANTINE,
        Waits.DUE,
        "it is on its last try after a crash, so it runs alone: an instance takes it when it has "
        "no other message in flight",
    )
    NEXT = Reason.NEXT, Waits.DUE, "nothing holds it back"

    def __init__(self, reason: Reason, left_as: Waits | None, text: str = "") -> None:
        self.reason = reason
        self.left_as = left_as
        self.text = text


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

    @property
    def job(self) -> int | None:
        """The job whose messages alone are handled."""
        within = self.within
        return within.values[0] if within is not None and within.by == "job_id" else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known of a row. owner: its `claimed_by`. due: its instant has come. unseen: why
    no instance that handles it looks where it stands, or the one that asks does not; "" = one does.
    held: that its job is paused, "" = it is not. alone: it is to run alone. refused:
    the instance that the database does not let flag it, and why. holds: of a dead one, what waits
    for it.

    Of a running one, as far as it is known: started, whether its handler has; claimed_seconds,
    since it was claimed; dated, whether it is known since when it runs."""

    status: State
    topic: str = ""
    owner: str | None = None
    due: bool = True
    unseen: str = ""
    held: str = ""
    alone: bool = False
    refused: tuple[instances.InstanceInfo, str] | None = None
    holds: Sequence[str] = ()
    started: instances.Started = instances.UNKNOWN
    claimed_seconds: float | None = None
    dated: bool = True


@dataclass(frozen=True, slots=True)
class World:
    """who: the instances. paused: topics, and by whom. limits: of topics, read when asked for.
    names_owners: whether the table says whose a running row is. asked: an instance that asks for
    itself, and is none of `who`."""

    who: Sequence[instances.InstanceInfo] = ()
    paused: Mapping[str, str] = field(default_factory=dict)
    limits: Callable[[], Mapping[str, instances.TopicLimit]] = dict
    names_owners: bool = True
    asked: Asked | None = None

    @classmethod
    def read(cls, conn: Connection, t: Tables, asked: Asked | None = None) -> World:
        mine = () if asked is None else asked.me
        who = [one for one in instances.instances(conn, t) if one.instance_id not in mine]
        limits = cache(lambda: {one.topic: one for one in instances.topics(conn, t)})
        return cls(who, controls.paused_by(conn, t), limits, t.has("claimed_by"), asked)

    def full(self) -> dict[str, str]:
        """The topics of which no message can start now because of their limits, and why."""
        return {topic: one.why for topic, one in self.limits().items() if one.why is not None}

    @property
    def works(self) -> list[instances.InstanceInfo]:
        """The instances that work on this table."""
        return [one for one in self.who if one.works]

    def handling(self, topic: str) -> list[instances.InstanceInfo]:
        """Those that have a handler for a topic."""
        return [one for one in self.who if one.handles(topic)]

    def holder(self, owner: str | None) -> instances.InstanceInfo | None:
        """Who has a running message with this `claimed_by`, if that one has a lease."""
        if owner is None:
            return None
        return next((one for one in self.who if one.instance_id == owner), None)


# --- The decision.

_ENDED = {State.DONE: Verdict.DONE, State.DEAD: Verdict.DEAD, State.UNKNOWN: Verdict.UNKNOWN}


def verdict(row: Facts, world: World) -> Verdict:
    """Why a message does not run: the first of these that holds. What lasts until an operator or
    an instance acts comes before what ends by itself. Of one that is not of the job of a drain:
    what holds it back from others, too."""
    if row.unseen and world.asked is not None and world.asked.job is not None:
        found = verdict(replace(row, unseen=""), world)
        return Verdict.OTHER_JOBS if found.left_as in (Waits.DUE, Waits.ELSEWHERE) else found
    if row.status is State.PROCESSING:
        return _verdict_of_held(row.owner, world)
    if row.status in _ENDED:
        return _ENDED[row.status]
    if row.unseen:
        return Verdict.OTHER_SLICES
    if not row.due and row.status is State.NEW:
        return Verdict.LATER
    if row.held:
        return Verdict.HELD
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


def _verdict_of_held(owner: str | None, world: World) -> Verdict:
    if world.asked is not None and owner in world.asked.me:
        return Verdict.OWN
    if owner is None:
        # One that has stopped may have it; a drain does not count on that, and says so.
        others = instances.live(world.who) if world.asked is None else world.works
        may_be_theirs = not world.names_owners and others
        return Verdict.UNNAMED if may_be_theirs else Verdict.UNOWNED
    holder = world.holder(owner)
    if holder is None or holder.life is not instances.Life.LIVE:
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
    """A verdict as a sentence, with what is known."""
    if found.reason is Reason.RUNNING:
        return _running(row, world)
    if found.reason is Reason.RUNNING_DEAD:
        return _of_the_dead(row, world)
    if found.reason is Reason.RUNNING_FOREIGN:
        return _of_nobody(row, world)
    if found is Verdict.OTHER_JOBS:
        return sentence(verdict(alone := replace(row, unseen=""), world), alone, world)
    if found is Verdict.LIMITED:
        return f"it waits for {world.full()[row.topic]}"
    none = "neither this instance nor another live one has"
    if world.asked is None:
        none = f"none of the {len(world.works)} live instances has"
    return found.text.format(row=row, none=none, by=world.paused.get(row.topic))


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


def _held_text(row: Facts, holder: instances.InstanceInfo) -> str:
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


def _last_sign(holder: instances.InstanceInfo, told: instances.Started) -> str:
    if holder.silent_seconds is None:  # it was taken over since
        return ""
    text = f", it was last heard of {span(holder.silent_seconds)} ago"
    if told.started is None:
        return text
    if not told.started:
        return f"{text} and had not started the handler then"
    return f"{text}, when the handler had run for {span(told.seconds)}"
