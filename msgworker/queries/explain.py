"""Why a message is not running, or how it has ended."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy import Connection

from msgworker.counted import plural
from msgworker.message import State, in_quarantine, topic_of
from msgworker.queries import messages
from msgworker.queries.instances import UNKNOWN, InstanceInfo, part_of, why_not
from msgworker.queries.messages import MessageInfo
from msgworker.queries.verdict import Facts, Reason, Verdict, World, sentence, span, verdict
from msgworker.schema.rule import Rule
from msgworker.store import cancels, items, purge, ranked, schedules, send
from msgworker.store.cancels import Request
from msgworker.store.items import Items
from msgworker.table import Tables
from msgworker.table.tables import prioritized


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
    text = f"; cancel requested by {request.actor} {span(max(0.0, ago))} ago: {request.reason}"
    if info.status is State.PROCESSING:
        return f"{text}; its instance sees that within a heartbeat, it ends with its handler"
    return f"{text}; the next heartbeat of an instance makes it dead"


def _explain(conn: Connection, t: Tables, info: MessageInfo, world: World) -> Explanation:
    """Of a message behind another one with the explanation of that one."""
    opened = info.status in (State.NEW, State.FAILED)
    if info.status is State.PROCESSING:
        row = _held(info, world)
    elif opened and (other := _in_front(conn, t, info)) is not None:
        behind = _explain(conn, t, other, world)
        return Explanation(info, Reason.BEHIND, _behind_text(info, other), behind=behind)
    else:
        row = _waiting(conn, t, info, world) if opened else Facts(status=info.status)
    found = verdict(row, world)
    text = sentence(found, row, world)
    if found is Verdict.NEXT:
        text += _next_text(conn, t, info)
    elif found.reason is Reason.NOT_DUE:
        return _not_due(t, info)
    elif found.reason in (Reason.DONE, Reason.DEAD):
        info = messages.with_endings(conn, t, [info])[0]
        text = text if info.status is State.DONE else _dead_text(t, info)
    ended = info.status in (State.DONE, State.DEAD)
    return Explanation(
        info,
        found.reason,
        text,
        since=info.finished_at if ended else None if opened else info.claimed_at,
        instance=world.holder(row.owner) if row.refused is None else row.refused[0],
        started=row.started.started,
        running_seconds=row.started.seconds,
    )


def _held(info: MessageInfo, world: World) -> Facts:
    holder = world.holder(info.claimed_by)
    return Facts(
        status=info.status,
        owner=info.claimed_by,
        started=UNKNOWN if holder is None else holder.started(info),
        claimed_seconds=None if holder is None else holder.claimed_ago(info),
        dated=info.claimed_at is not None or info.created_at is not None,
    )


def _waiting(conn: Connection, t: Tables, info: MessageInfo, world: World) -> Facts:
    topic, c = topic_of(info.topic), t.cols()
    due = sa.select(sa.case((t.due(c), 1), else_=0)).where(c.msg_id == info.msg_id)
    able = world.handling(topic)
    scoped = bool(able) and all(one.scope for one in able)
    refusals = ((one, one.refused.get(str(info.msg_id))) for one in world.works)
    return Facts(
        status=info.status,
        topic=topic,
        due=conn.scalar(due) != 0,
        unseen=why_not(able, *part_of(conn, t, info.msg_id)) if scoped else "",
        alone=in_quarantine(info.crash_times or 0, info.error_try_times, t.spec.max_tries),
        refused=next(((one, why) for one, why in refusals if why), None),
    )


def _dead_text(t: Tables, info: MessageInfo) -> str:
    how = info.ending.text if info.ending else "no tries left"
    text = f"it is {how}" if how.startswith("dead ") else f"it is dead: {how}"
    if Rule.of(t.spec).holds_dead(info.error_try_times):
        text += "; its object waits until it is rerun or discarded"
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
    elif info.status is State.FAILED:
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
