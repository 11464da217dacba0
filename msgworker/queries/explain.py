"""Why a message is not running, or how it has ended."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from msgworker.counted import plural
from msgworker.message import State, in_quarantine, topic_of
from msgworker.queries import messages
from msgworker.queries.instances import (
    UNKNOWN,
    Holder,
    InstanceInfo,
    Life,
    Started,
    World,
    part_of,
    why_not,
)
from msgworker.queries.messages import MessageInfo
from msgworker.schema.rule import Rule
from msgworker.store import cancels, items, purge, ranked, schedules, send
from msgworker.store.cancels import Request
from msgworker.store.items import Items
from msgworker.store.recover import giving_back
from msgworker.table import Tables
from msgworker.table.tables import prioritized

# --- Why a message is not running.
#
# It checks the conditions of a claim one after the other, and returns the first that fails. The
# explanation of a message behind another one includes the reason of that one.


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


@dataclass(frozen=True, slots=True)
class Explanation:
    """The reason, as a word and as a sentence.

    since: of a running message, or of one that has ended. until: when it becomes due.
    started, running_seconds: of a claimed message, whether its handler has started and how long it
    has run, as far as the instance's last heartbeat says; None = not known.
    behind: the message it waits for, with that one's own reason. items: of its fan-outs. cancel: a
    request to cancel it that is not settled.
    """

    message: MessageInfo
    reason: Reason
    text: str
    since: datetime | None = None
    until: datetime | None = None
    instance: InstanceInfo | None = None
    behind: Explanation | None = None
    items: Items | None = None
    started: bool | None = None
    running_seconds: float | None = None
    cancel: Request | None = None


def explain(conn: Connection, t: Tables, msg_id: int) -> Explanation | None:
    """Why this message is not running; None if there is no such message."""
    info = messages.show(conn, t, msg_id)
    if info is None:
        return None
    found = _explain(conn, t, info, World.read(conn, t))
    if info.unique_key is not None and "unique_key" not in info.odd:
        found = replace(found, text=found.text + send.told(conn, t, msg_id, info.unique_key))
    if info.scheduled_for is not None:
        sender = schedules.sender_of(conn, t, topic_of(info.topic), info.object_id)
        sent = f"; sent by {sender} for {info.scheduled_for:%Y-%m-%d %H:%M:%S} UTC"
        found = replace(found, text=found.text + sent)
    if info.status is State.DONE:
        return found
    if (request := cancels.of(conn, t, msg_id)) is not None:
        found = replace(found, text=found.text + _cancel_text(conn, info, request), cancel=request)
    return replace(found, items=items.shown(conn, t, msg_id, limit=0))


def _cancel_text(conn: Connection, info: MessageInfo, request: Request) -> str:
    ago = (purge.cutoff(conn, 0.0) - request.requested_at).total_seconds()
    text = f"; cancel requested by {request.actor} {_span(max(0.0, ago))} ago: {request.reason}"
    if info.status is State.PROCESSING:
        return f"{text}; its instance sees that within a heartbeat, it ends with its handler"
    return f"{text}; the next heartbeat of an instance makes it dead"


def _explain(
    conn: Connection,
    t: Tables,
    info: MessageInfo,
    world: World,
) -> Explanation:
    if info.status in (State.DONE, State.DEAD, State.UNKNOWN):
        return _ended(t, messages.with_endings(conn, t, [info])[0])
    if info.status is State.PROCESSING:
        return _running(t, info, world)
    other = _in_front(conn, t, info)
    if other is not None:
        behind = _explain(conn, t, other, world)
        return Explanation(info, Reason.BEHIND, _behind_text(info, other), behind=behind)
    late = _not_due(conn, t, info)
    return late or _unclaimed(conn, t, info, world)


def _ended(t: Tables, info: MessageInfo) -> Explanation:
    if info.status is State.DONE:
        return Explanation(info, Reason.DONE, "it is done", since=info.finished_at)
    if info.status is State.UNKNOWN:
        text = (
            "its status is none of 0 new, 1 processing, 2 done and -1 failed, so it is never "
            "claimed; fix the status"
        )
        return Explanation(info, Reason.UNKNOWN_STATUS, text)
    how = info.ending.text if info.ending else "no tries left"
    text = f"it is {how}" if how.startswith("dead ") else f"it is dead: {how}"
    if Rule.of(t.spec).holds_dead(info.error_try_times):
        text += "; its object waits until it is rerun or discarded"
    return Explanation(info, Reason.DEAD, f"{text}; a rerun tries it again", since=info.finished_at)


def _running(t: Tables, info: MessageInfo, world: World) -> Explanation:
    held, holder = world.holder(info.claimed_by)
    if held is Holder.NOBODY:
        text = (
            "a foreign consumer has flagged it, without a name, and only that consumer can end it"
            if t.has("claimed_by")
            else "it is flagged; the table has no column claimed_by, so its owner is unknown"
        )
        dated = info.claimed_at is not None or info.created_at is not None
        text += "" if dated else "; since when is not known"
        text += f"; if that one is gone, {giving_back(dated=dated)} gives it back"
        return Explanation(info, Reason.RUNNING_FOREIGN, text, since=info.claimed_at)
    told = UNKNOWN if holder is None else holder.started(info)
    if holder is not None and held is not Holder.DEAD:
        text = _held_text(info, holder, told) + _overdue_text(holder, world.who)
        text = _stopped_text(holder, world.who) if holder.stopped else text
        return _claimed(info, Reason.RUNNING, text, holder, told)
    alive = any(one.life is Life.LIVE and not one.stopped for one in world.who)
    how = (
        "it has no lease" if holder is None else f"its lease has run out{_last_sign(holder, told)}"
    )
    then = (
        "another instance gives the message back within a few heartbeats"
        if alive
        else "the message is given back when an instance is started"
    )
    text = f"{info.claimed_by} has it and is dead: {how}; {then}"
    return _claimed(info, Reason.RUNNING_DEAD, text, holder, told)


def _claimed(
    info: MessageInfo, reason: Reason, text: str, holder: InstanceInfo | None, told: Started
) -> Explanation:
    return Explanation(
        info,
        reason,
        text,
        since=info.claimed_at,
        instance=holder,
        started=told.started,
        running_seconds=told.seconds,
    )


def _held_text(info: MessageInfo, holder: InstanceInfo, told: Started) -> str:
    who, heard = info.claimed_by, _span(holder.silent_seconds)
    claimed = holder.claimed_ago(info)
    if told.started:
        return f"its handler has run for {_span(told.seconds)} on {who}, last heard of {heard} ago"
    if told.started is False:
        return f"claimed {_span(claimed)} ago by {who}, not started as of its heartbeat {heard} ago"
    if holder.handlers is None or claimed is None:
        return f"it is running on {who}, last heard of {heard} ago"
    if holder.overdue_seconds is not None:
        return f"claimed {_span(claimed)} ago by {who}, last heard of {heard} ago"
    return (
        f"claimed {_span(claimed)} ago by {who}, last heard of {heard} ago; whether its handler "
        "has started is told with the next heartbeat"
    )


def _stopped_text(holder: InstanceInfo, who: Sequence[InstanceInfo]) -> str:
    return (
        f"{holder.instance_id} has stopped, and its handler has outlived the grace time: the "
        f"message is recovered when the lease is over, in about {_span(holder.left_seconds)}"
        f"{_by(holder, who)}"
    )


def _by(holder: InstanceInfo, who: Sequence[InstanceInfo]) -> str:
    others = any(one.life is Life.LIVE and not one.stopped and one is not holder for one in who)
    return "" if others else ", by an instance that runs then"


def _overdue_text(holder: InstanceInfo, who: Sequence[InstanceInfo]) -> str:
    if holder.overdue_seconds is None:
        return ""
    return (
        f"; its heartbeat has been overdue for {_span(holder.overdue_seconds)}; if it is dead, the "
        f"message is recovered when its lease is over, in about {_span(holder.left_seconds)}"
        f"{_by(holder, who)}"
    )


def _last_sign(holder: InstanceInfo, told: Started) -> str:
    if holder.silent_seconds is None:  # it was taken over since
        return ""
    text = f", it was last heard of {_span(holder.silent_seconds)} ago"
    if told.started is None:
        return text
    if not told.started:
        return f"{text} and had not started the handler then"
    return f"{text}, when the handler had run for {_span(told.seconds)}"


def _span(seconds: float | None) -> str:
    """How long, as a text: "12 s", "15 min", "3 h"."""
    if seconds is None:
        return "an unknown time"
    for size, unit in ((3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds // size:,.0f} {unit}"
    return f"{seconds:.0f} s"


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


def _not_due(conn: Connection, t: Tables, info: MessageInfo) -> Explanation | None:
    c = t.cols()
    query = sa.select(sa.case((t.due(c), 1), else_=0)).where(c.msg_id == info.msg_id)
    if conn.scalar(query) != 0:
        return None
    until: Any = info.available_at
    if "available_at" in info.odd:
        held = info.odd["available_at"]
        text = f"it is not due: its available_at holds {held}"
        return Explanation(info, Reason.NOT_DUE, text)
    if info.later_reason and info.later_times:
        text = f"its handler postponed it ({info.later_times} so far): {info.later_reason}"
    elif info.status is State.FAILED:
        tries = f"{info.error_try_times} of {plural(t.spec.max_tries, 'time')}"
        text = f"it has failed {tries} and waits for its back-off"
    elif until is not None and t.has("available_at"):
        text = "it is not due yet"
    else:
        text = f"it is younger than {t.spec.visibility_delay_seconds:g} s (visibility_delay)"
    return Explanation(info, Reason.NOT_DUE, text, until=until)


def _unclaimed(
    conn: Connection,
    t: Tables,
    info: MessageInfo,
    world: World,
) -> Explanation:
    topic = topic_of(info.topic)
    if topic in world.paused:
        return Explanation(info, Reason.PAUSED, f"topic {topic} is paused")
    live, able = world.works, world.handling(topic)
    if not live:
        return Explanation(
            info, Reason.NO_INSTANCE, "no instance lives that works on this table; start one"
        )
    if not able:
        text = f"none of the {len(live)} live instances has a handler for topic {topic}"
        return Explanation(info, Reason.NO_HANDLER, text)
    if all(one.scope for one in able):
        unseen = why_not(able, *part_of(conn, t, info.msg_id))
        if unseen:
            return Explanation(info, Reason.NOBODY_LOOKS, unseen)
    if (why := world.full().get(topic)) is not None:
        return Explanation(info, Reason.LIMITED, f"it waits for {why}")
    for one in live:
        if why := one.refused.get(str(info.msg_id)):
            text = (
                f"the database refuses to let {one.instance_id} flag it: {why}; it is skipped, "
                "and tried again at growing intervals"
            )
            return Explanation(info, Reason.REFUSED, text, instance=one)
    if in_quarantine(info.crash_times or 0, info.error_try_times, t.spec.max_tries):
        text = (
            "it is on its last try after a crash, so it runs alone: an instance takes it when it "
            "has no other message in flight"
        )
        return Explanation(info, Reason.QUARANTINE, text)
    return Explanation(info, Reason.NEXT, _next_text(conn, t, info))


def _next_text(conn: Connection, t: Tables, info: MessageInfo) -> str:
    text = "nothing holds it back; an instance claims it when "
    first = ranked.ranked(conn, t, limit=1) if prioritized(t) else ranked.Ranked()
    highest = max(first.priorities.values(), default=0)
    if highest > (info.priority or 0):
        return f"{text}messages of a higher priority, up to {highest}, and older ones leave room"
    older = "older ones of its priority" if info.priority else "older messages"
    return f"{text}{older} leave room"
