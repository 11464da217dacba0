"""One message, or a list of them, as operators see it."""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from functools import reduce
from operator import add
from typing import Any

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection

from msgworker.db.clock import instant_text, kind_of, read_instant
from msgworker.db.connections import ignoring
from msgworker.db.database import Trouble
from msgworker.db.types import beginning, shortened, text_length, whole_number
from msgworker.message import ACKNOWLEDGED, CANCELLED, DISCARDED, LATER, State, plain_error, word_of
from msgworker.payload import is_text, quoted, shown
from msgworker.schema.rule import Rule
from msgworker.store import bounded, tries
from msgworker.store.bounded import Filter, Found
from msgworker.store.controls import Request
from msgworker.store.items import Items
from msgworker.store.rows import among_ids, from_indexes
from msgworker.store.tries import Kind, Try
from msgworker.table.build import AUDIT, OPERATION
from msgworker.table.columns import INSTANTS, MAX_HEADERS, NUMBERS, ROLES, Cols
from msgworker.table.tables import Tables, lit
from msgworker.tracing import trace_id_of

# --- A message for operators.


class How(enum.StrEnum):
    """How a dead message has ended."""

    FAILED = "failed"  # at each of its tries
    REJECTED = "rejected"
    DISCARDED = "discarded"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"  # nothing of it was kept


@dataclass(frozen=True, slots=True)
class Ending:
    """How a dead message has ended, as a word and as a text; `tries`: how many it has had since its
    last rerun, None if unknown."""

    how: How
    text: str
    tries: int | None = None


@dataclass(frozen=True, slots=True)
class ByOperator:
    """A rerun, discard, cancel or edit of a message. was_error: its last error before, cut."""

    kind: str
    actor: str
    reason: str | None
    at: datetime
    was_error: str | None = None

    def __str__(self) -> str:
        return f"{'edited' if self.kind == 'edit' else self.kind} by {self.actor}"


@dataclass(frozen=True, slots=True)
class MessageInfo:
    """A message as ops see it: `status` is a word, times are aware UTC, absent columns None.

    later_times, later_reason: how often it was postponed (RetryLater), and the last reason, the
    last time, if that was the last thing it said; `last_error` is None then. priority, unique_key:
    as they are in the row. unique_kept: 1 if its key is kept after it has ended.
    acknowledged: of a dead one that an operator has acknowledged, who and why.
    scheduled_for: the tick of the schedule that sent it. job_id: the job that it belongs to.
    tries: the failed ones, oldest first. items: those of its fan-outs, None if it has none. `show`
    reads both, lists do not. ending: of a dead one. changed: the edit or rerun that an operator has
    done since it last failed, so its last error is of before. cancel: a request to cancel it that
    is not settled; `show` reads it. trace_id: of the trace in which it was sent, 32 hexadecimal
    digits; None if its headers have none; `show` reads it. payload_cut: whether `payload` is the
    beginning of a longer one, 10,000 characters.
    odd: by column (as in this class) a value in the row that is no valid one, as text; it
    reads as None, a counter as 0, and a text that is not UTF-8 with escapes. Names and errors of
    more than 2,000 characters are cut there, and end with "…".
    """

    msg_id: int
    object_id: str | None
    topic: str | None
    status: State
    error_try_times: int
    payload: str | None = None
    available_at: datetime | None = None
    claimed_by: str | None = None
    claimed_at: datetime | None = None
    crash_times: int | None = None
    last_error: str | None = None
    created_at: datetime | None = None
    finished_at: datetime | None = None
    later_times: int | None = None
    later_reason: str | None = None
    priority: int | None = None
    unique_key: str | None = None
    unique_kept: int | None = None
    scheduled_for: datetime | None = None
    job_id: int | None = None
    tries: tuple[Try, ...] = ()
    items: Items | None = None
    odd: Mapping[str, str] = field(default_factory=dict)
    ending: Ending | None = None
    cancel: Request | None = None
    trace_id: str | None = None
    acknowledged: str | None = None
    changed: ByOperator | None = None
    payload_cut: bool = False

    @property
    def word(self) -> str:
        """Its state for people: one that an edit has left failed, with no failed try, waits."""
        untried = self.status is State.FAILED and not self.error_try_times
        return "waiting" if untried else self.status.value


PAYLOAD_SHOWN = 10_000
"""Characters of a payload, the first ones."""
_ROLES = (*(one.name for one in fields(MessageInfo) if one.name in ROLES), "headers")
_WHOLE_ONLY = ("payload", "headers")
"""What is read of one message, not of those of a list."""
_TEXTS = tuple(name for name, role in ROLES.items() if role.holds in ("text", "key"))


def columns_of(c: Cols, *, payload: bool) -> list[ColumnElement[Any]]:
    columns: list[ColumnElement[Any]] = []
    for role in _ROLES:
        column = getattr(c, role)
        if column is None or (role in _WHOLE_ONLY and not payload):
            column = sa.null()
        elif role in INSTANTS:
            column = instant_text(column)
        elif role == "payload":
            column = sa.func.substr(sa.cast(column, sa.Text()), 1, PAYLOAD_SHOWN + 1)
        elif role == "headers":
            plain = isinstance(column.type, sa.String)
            text = column if plain else sa.cast(column, sa.Text())
            column = sa.case((text_length(text) <= lit(MAX_HEADERS), text))
        elif role in _TEXTS:
            column = beginning(column)
        columns.append(column.label(f"f{len(columns)}"))
    return columns


def info_of(t: Tables, row: Any) -> MessageInfo:
    values = dict(zip(_ROLES, row, strict=True))
    headers = values.pop("headers")
    trace_id = None if headers is None else trace_id_of(headers)
    payload = values["payload"]
    is_cut = isinstance(payload, str) and len(payload) > PAYLOAD_SHOWN
    if is_cut:
        values["payload"] = payload[:PAYLOAD_SHOWN]
    odd: dict[str, str] = {}
    raw_status = values["status"]
    for role, value in values.items():
        if value is None or role == "status":
            continue
        if role in _TEXTS:
            value = values[role] = shortened(value)
        if role in INSTANTS:
            values[role] = _instant(t, role, value)
        elif role in NUMBERS:
            values[role] = whole_number(value)
        elif role in _TEXTS and role != "object_id" and isinstance(value, bytes):  # a BLOB (SQLite)
            odd[role] = f"{quoted(value)}, which is not a text"
            values[role] = shown(value, len(value))
        elif isinstance(value, str) and not is_text(value):
            held = "a text" if role == "payload" else quoted(value)  # it is shown on request only
            odd[role] = f"{held}, which is not UTF-8"
            values[role] = shown(value, len(value))
        if values[role] is None:
            odd[role] = quoted(value)
    # In SQL their comparison finds no tries left, so the state must be dead here, too.
    tries = t.spec.max_tries if "error_try_times" in odd else values["error_try_times"]
    values["status"] = word_of(raw_status, tries, t.spec.max_tries)
    if values["status"] is State.UNKNOWN and raw_status is not None:
        odd["status"] = quoted(raw_status)
    values["error_try_times"] = values["error_try_times"] or 0
    if (values["last_error"] or "").startswith(LATER):
        values["later_reason"] = values["last_error"].removeprefix(LATER)
        values["last_error"] = None
    known = None
    if isinstance(text := values["last_error"], str) and text.startswith(ACKNOWLEDGED):
        line, _, error = text.partition("\n")
        values["last_error"] = error or None
        if values["status"] is State.DEAD:
            known = line.removeprefix(ACKNOWLEDGED)
    more: dict[str, Any] = {"odd": odd, "trace_id": trace_id, "acknowledged": known}
    return MessageInfo(**values, **more, payload_cut=is_cut)


def _instant(t: Tables, role: str, value: Any) -> datetime | None:
    try:
        return read_instant(value, kind_of(getattr(t.cols(), role)).zone)
    except ValueError:
        return None


# --- What has become of messages: from their stored tries and from the audit.
#
# How dead ones have ended: the number of tries in a row only shows that none is left; it is the
# same for a message that was rejected at its first try, or discarded, and for one that has failed
# each time. And whether the last error of one is older than what an operator has changed.

ORDINALS = ("first", "second", "third", "fourth", "fifth")


def with_past(conn: Connection, t: Tables, infos: Iterable[MessageInfo]) -> list[MessageInfo]:
    """The same messages, dead ones with how they have ended, and with what an operator has changed
    since they failed. `conn` commits each statement."""
    infos = list(infos)
    dead = {info.msg_id for info in infos if info.status is State.DEAD}
    failing = {info.msg_id for info in infos if info.status is State.FAILED}
    waits = (State.NEW, State.PROCESSING)
    again = {info.msg_id for info in infos if info.status in waits and info.last_error is not None}
    told = dead | failing | again
    if not told:
        return infos
    by_id = _acts(conn, t, [info.msg_id for info in infos if info.msg_id in told])
    tried = tries.of(conn, t, sorted(dead | by_id.keys()))
    found = []
    for info in infos:
        failed, acts = tried.get(info.msg_id, []), by_id.get(info.msg_id, [])
        ending = _ending(info, failed, acts) if info.msg_id in dead else None
        last = acts[-1] if acts and acts[-1].kind in ("edit", "rerun") else None
        if last is not None and _failed_since(info, failed, last):
            last = None
        found.append(replace(info, ending=ending, changed=last))
    return found


def _failed_since(info: MessageInfo, failed: Sequence[Try], act: ByOperator) -> bool:
    if failed:
        return failed[-1].ended_at > act.at
    was, now = str(plain_error(act.was_error) or ""), info.last_error or ""
    return now[: len(was)] != was if was else bool(now)  # of a foreign consumer


def _ending(info: MessageInfo, failed: Sequence[Try], acts: Sequence[ByOperator]) -> Ending:
    last = max((i for i, act in enumerate(acts) if act.kind == "rerun"), default=-1)
    since = [one for one in failed if last < 0 or one.ended_at >= acts[last].at]
    number = since[-1].number - since[0].number + 1 if since else 0
    if since and last < 0:
        number = since[-1].number  # older ones may have been dropped
    discards = [act for act in acts[last + 1 :] if act.kind == "discard"]
    if discards and not any(one.ended_at > discards[-1].at for one in since):
        by = f"{DISCARDED}{discards[-1].actor}"
        return Ending(How.DISCARDED, f"{by}: {discards[-1].reason}", number)
    if (info.last_error or "").startswith(DISCARDED):
        return Ending(How.DISCARDED, info.last_error or "", None)
    if (info.last_error or "").startswith(CANCELLED):
        return Ending(How.CANCELLED, info.last_error or "", number)
    if not since:
        return Ending(How.UNKNOWN, "no tries left", None)
    if since[-1].kind == Kind.REJECTED:
        place = ORDINALS[number - 1] if number <= len(ORDINALS) else f"{number}th"
        return Ending(How.REJECTED, f"rejected at its {place} try", number)
    crashes = sum(one.kind == Kind.CRASH for one in since)
    text = f"dead after {number} failed {'try' if number == 1 else 'tries'}"
    text += f", {crashes} of them by a crash" if crashes else ""
    return Ending(How.FAILED, text, number)


def _acts(conn: Connection, t: Tables, ids: Sequence[int]) -> dict[int, list[ByOperator]]:
    """The operations on messages, the oldest first; empty if the audit cannot be read."""
    found: defaultdict[int, list[ByOperator]] = defaultdict(list)
    if {OPERATION.of(t).name, AUDIT.of(t).name} & t.missing:
        return found

    def build() -> sa.Select[Any]:
        o, a = OPERATION.of(t), AUDIT.of(t)
        act: list[Any] = [o.c.kind, o.c.actor, o.c.reason, a.c.changed_at, a.c.was_error]
        query = sa.select(a.c.msg_id, *act).join_from(a, o, a.c.op_id == o.c.op_id)
        of_ours = (o.c.table_name == t.label, o.c.kind.in_(("rerun", "discard", "cancel", "edit")))
        return query.where(t.among(a.c.msg_id), *of_ours).order_by(a.c.changed_at, a.c.op_id)

    with ignoring(Trouble.REFUSED):
        for msg_id, *act in among_ids(conn, t, t.built("acts_of", build), ids):
            found[msg_id].append(ByOperator(*act))
    return found


def acts(info: MessageInfo, t: Tables) -> tuple[str, ...]:
    """What an operator may do with a message, as `show` has read it: the names of commands."""
    state = info.status
    waits, dead = state in (State.NEW, State.FAILED), state is State.DEAD
    away = info.ending is not None and info.ending.how in (How.DISCARDED, How.CANCELLED)
    if Rule.of(t.spec).holds_dead(info.error_try_times):  # given up under another rule
        away = False
    known = info.acknowledged is not None or not t.has("last_error")
    roles = ("topic", "payload", "priority", *(() if dead else ("available_at",)))
    editable = any(map(t.has, roles))
    may = {
        "rerun": dead or state in (State.FAILED, State.DONE),
        "discard": waits or (dead and not away),
        "cancel": waits or state is State.PROCESSING,
        "acknowledge": dead and not known and not away,
        "edit": (waits or dead) and editable,
    }
    return tuple(name for name, can in may.items() if can)


# --- Read-only: lists and single messages for ops.


def unfinished(conn: Connection, t: Tables) -> int:
    """How many messages are unfinished."""

    def build() -> Any:
        counts = from_indexes(t, t.all_open, lambda _: [sa.func.count()])
        return sa.select(reduce(add, (one.scalar_subquery() for one in counts)))

    return int(conn.execute(t.built("unfinished", build)).scalar_one())


def find(
    conn: Connection, t: Tables, wanted: Filter, *, limit: int = 50, after: int | None = None
) -> Found[MessageInfo]:
    """Messages of a filter, lowest msg_id first, behind `after`; without payloads.

    Open and failed messages are found by their indexes; all others are searched in the
    next bounded.SCAN rows. `Found.complete` and `Found.next_after` say how far it searched.
    """
    c = t.cols()
    columns = columns_of(c, payload=False)
    found = bounded.of_filter(conn, t, wanted, columns, after=after, limit=limit)
    infos = [info_of(t, row) for row in found.rows]
    if found.cut and after is None and wanted.object_id is not None:
        # What is not finished is found wherever it stands; the first page shows it.
        walk = bounded.Walk("object", (bounded.same_object(t, c, wanted.object_id),), c.msg_id)
        where = bounded.where(t, c, wanted)
        opened = conn.execute(walk.query(t, columns, where, end=None, limit=limit))
        both = {info.msg_id: info for info in [*infos, *(info_of(t, row) for row in opened)]}
        infos = [both[i] for i in sorted(both)][:limit]
    return Found(infos, complete=not found.cut, next_after=found.next_at)


def show(conn: Connection, t: Tables, msg_id: int) -> MessageInfo | None:
    """One message with the first 10,000 characters of its payload and its failed tries, or None."""
    c = t.cols()
    query = sa.select(*columns_of(c, payload=True)).where(t.within(c, c.msg_id == msg_id))
    row = conn.execute(query).first()
    if row is None:
        return None
    found = tries.of(conn, t, [msg_id], traces=True)
    return replace(info_of(t, row), tries=tuple(found.get(msg_id, ())))


def by_ids(conn: Connection, t: Tables, ids: Sequence[int]) -> dict[int, MessageInfo]:
    """These messages, without their payloads."""
    c = t.cols()
    query = sa.select(*columns_of(c, payload=False)).where(t.among(c.msg_id))
    infos = (info_of(t, row) for row in among_ids(conn, t, query, ids))
    return {info.msg_id: info for info in infos}
