"""One message, or a list of them, as operators see it."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection

from msgworker.db import (
    beginning,
    instant_text,
    kind_of,
    read_instant,
    text_length,
    whole_number,
)
from msgworker.message import LATER, State, word_of
from msgworker.payload import is_text, quoted, shown, told
from msgworker.store import bounded, tries
from msgworker.store.bounded import Found
from msgworker.store.cancels import Request
from msgworker.store.items import Items
from msgworker.store.selection import conditions
from msgworker.store.tries import Try
from msgworker.table import MAX_HEADERS, Cols, Tables
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
class MessageInfo:
    """A message as ops see it: `status` is a word, times are aware UTC, absent columns None.

    later_times, later_reason: how often it was postponed (RetryLater), and the last reason, the
    last time, if that was the last thing it said; `last_error` is None then. priority, unique_key:
    as they stand in the row. unique_kept: 1 if its key is kept after it has ended.
    scheduled_for: the tick of the schedule that sent it.
    tries: the failed ones, oldest first. items: those of its fan-outs, None if it has none. `show`
    reads both, lists do not. ending: of a dead one. cancel: a request to cancel it that is not
    settled; `show` reads it. trace_id: of the trace in which it was sent, 32 hexadecimal digits;
    None if its headers have none; `show` reads it.
    odd: by column (as in this class) what stands in the row and is no such value, as text; it
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
    tries: tuple[Try, ...] = ()
    items: Items | None = None
    odd: Mapping[str, str] = field(default_factory=dict)
    ending: Ending | None = None
    cancel: Request | None = None
    trace_id: str | None = None


_ROLES = (
    "msg_id",
    "object_id",
    "topic",
    "status",
    "error_try_times",
    "payload",
    "available_at",
    "claimed_by",
    "claimed_at",
    "crash_times",
    "last_error",
    "created_at",
    "finished_at",
    "later_times",
    "priority",
    "unique_key",
    "unique_kept",
    "scheduled_for",
    "headers",
)


_INSTANTS = ("available_at", "claimed_at", "created_at", "finished_at", "scheduled_for")
_NUMBERS = (
    "msg_id",
    "error_try_times",
    "crash_times",
    "later_times",
    "priority",
    "unique_kept",
)
_WHOLE_ONLY = ("payload", "headers")
"""What is read of one message, not of those of a list."""
_FOR_PEOPLE = ("topic", "claimed_by", "last_error", "unique_key")
_TEXTS = ("object_id", *_FOR_PEOPLE)


def columns_of(c: Cols, *, payload: bool) -> list[ColumnElement[Any]]:
    columns: list[ColumnElement[Any]] = []
    for role in _ROLES:
        column = getattr(c, role)
        if column is None or (role in _WHOLE_ONLY and not payload):
            column = sa.null()
        elif role in _INSTANTS:
            column = instant_text(column)
        elif role == "payload":
            column = sa.func.substr(sa.cast(column, sa.Text()), 1, 10_000)
        elif role == "headers":
            plain = isinstance(column.type, sa.String)
            text = column if plain else sa.cast(column, sa.Text())
            column = sa.case((text_length(text) <= sa.literal_column(str(MAX_HEADERS)), text))
        elif role in _TEXTS:
            column = beginning(column)
        columns.append(column.label(f"f{len(columns)}"))
    return columns


def info_of(t: Tables, row: Any) -> MessageInfo:
    values = dict(zip(_ROLES, row, strict=True))
    trace_id = trace_id_of(values.pop("headers"))
    odd: dict[str, str] = {}
    raw_status = values["status"]
    for role, value in values.items():
        if value is None or role == "status":
            continue
        if role in _TEXTS:
            value = values[role] = told(value)
        if role in _INSTANTS:
            values[role] = _instant(t, role, value)
        elif role in _NUMBERS:
            values[role] = whole_number(value)
        elif role in _FOR_PEOPLE and isinstance(value, bytes):  # a BLOB (SQLite)
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
    return MessageInfo(**values, odd=odd, trace_id=trace_id)


def _instant(t: Tables, role: str, value: Any) -> datetime | None:
    try:
        return read_instant(value, kind_of(getattr(t.cols(), role)).zone)
    except ValueError:
        return None


# --- Read-only: lists and single messages for ops.


def unfinished(conn: Connection, t: Tables) -> int:
    """How many messages are unfinished."""

    def build() -> Any:
        c = t.cols()
        query = t.hinted(sa.select(sa.func.count()).select_from(t.message), t.message, "object")
        return query.where(t.all_open(c))

    return int(conn.execute(t.built("unfinished", build)).scalar_one())


def find(
    conn: Connection,
    t: Tables,
    *,
    status: State | None = None,
    topic: str | None = None,
    object_id: Any = None,
    error: str | None = None,
    since: datetime | None = None,
    limit: int = 50,
    after: int | None = None,
) -> Found[MessageInfo]:
    """Messages by filter, lowest msg_id first, behind `after`; without payloads.

    error: a part of `last_error`. since: created at or after this instant.
    Open and failed messages are found by their indexes; all others are searched in the
    next bounded.SCAN rows. `Found.complete` and `Found.next_after` say how far it searched.
    """
    c = t.cols()
    query = sa.select(*columns_of(c, payload=False))
    query = query.where(*conditions(t, c, status, topic, object_id, error, since))
    query = query.order_by(c.msg_id).limit(limit)
    start = bounded.LEAST if after is None else after
    if object_id is not None and status in (
        State.NEW,
        State.PROCESSING,
        State.FAILED,
    ):
        behind = (bounded.same_object(t, c, object_id), c.msg_id > _id(start))
        return _page(t, conn, t.hinted(query, t.message, "object").where(*behind), limit)
    if status is State.PROCESSING:
        ids = bounded.running(t)
        among = c.msg_id.in_(sa.select(ids.c.i))
        return _page(t, conn, query.where(among, c.msg_id > _id(start)), limit)
    if status in (State.FAILED, State.DEAD):
        return _failed(conn, t, query, start, limit)
    if status is State.NEW:
        return _new(conn, t, query, start, limit)
    if since is not None:
        start = max(start, bounded.before_instant(conn, t, since))
    found = _window(conn, t, query, start, limit)
    if object_id is None or after is not None or found.complete:
        return found
    # What is not finished is found wherever it stands; the first page shows it.
    seen = {info.msg_id for info in found}
    opened = t.hinted(query, t.message, "object").where(bounded.same_object(t, c, object_id))
    more = [info for info in _page(t, conn, opened, limit) if info.msg_id not in seen]
    both = sorted([*found, *more], key=lambda info: info.msg_id)
    return Found(both[:limit], complete=False, next_after=found.next_after)


def _id(msg_id: int) -> ColumnElement[int]:
    return sa.literal(msg_id, sa.BigInteger())


def _page(t: Tables, conn: Connection, query: sa.Select[Any], limit: int) -> Found[MessageInfo]:
    """All that a query by an index has found, up to its limit."""
    rows = [info_of(t, row) for row in conn.execute(query)]
    return Found(rows, next_after=rows[-1].msg_id if len(rows) == limit else None)


def _window(
    conn: Connection, t: Tables, query: sa.Select[Any], start: int, limit: int
) -> Found[MessageInfo]:
    """What the next rows of the primary key hold."""
    c = t.cols()
    last = bounded.last_of(conn, t, after=start)
    query = query.where(c.msg_id > _id(start))
    if last is not None:
        query = query.where(c.msg_id <= _id(last))
    rows = [info_of(t, row) for row in conn.execute(query)]
    if len(rows) == limit:
        return Found(rows, next_after=rows[-1].msg_id)
    return Found(rows, complete=last is None, next_after=last)


def _failed(
    conn: Connection, t: Tables, query: sa.Select[Any], start: int, limit: int
) -> Found[MessageInfo]:
    """Failed and dead rows, by their index."""
    source = t.message.alias("b")
    b, c = t.cols(source), t.cols()
    bound = t.hinted(sa.select(b.msg_id), source, "failed")
    bound = bound.where(t.failed_rows(b), t.failed_key(b) > _id(start)).order_by(t.failed_key(b))
    last = conn.scalar(bound.limit(1).offset(bounded.SCAN - 1))
    query = t.hinted(query, t.message, "failed")
    query = query.where(t.failed_rows(c), t.failed_key(c) > _id(start))
    query = query.order_by(None).order_by(t.failed_key(c))  # the order that the index gives
    if last is not None:
        query = query.where(t.failed_key(c) <= _id(last))
    rows = [info_of(t, row) for row in conn.execute(query)]
    if len(rows) == limit:
        return Found(rows, next_after=rows[-1].msg_id)
    return Found(rows, complete=last is None, next_after=last)


def _new(
    conn: Connection, t: Tables, query: sa.Select[Any], start: int, limit: int
) -> Found[MessageInfo]:
    """New rows: by age where an index says so, else from the lowest unfinished row on."""
    c = t.cols()
    if not t.dialect.oldest_index:
        lowest = bounded.lowest_open(conn, t)
        return Found() if lowest is None else _window(conn, t, query, max(start, lowest - 1), limit)
    source = t.message.alias("b")
    b = t.cols(source)
    bound = t.hinted(sa.select(b.msg_id), source, "oldest")
    bound = bound.where(t.oldest_rows(b), t.oldest_key(b) > _id(start)).order_by(t.oldest_key(b))
    last = conn.scalar(bound.limit(1).offset(bounded.SCAN - 1))
    key = t.oldest_key(c)
    by_age = t.hinted(query, t.message, "oldest").where(t.oldest_rows(c), key > _id(start))
    by_age = by_age.order_by(None).order_by(key)
    if last is not None:
        by_age = by_age.where(key <= _id(last))
    parts = [by_age]
    if c.available_at is not None:  # ordered by their instant there: all of them are read
        late = t.hinted(query, t.message, "due").where(*t.due_rows(c), c.msg_id > _id(start))
        parts.append(late.where(c.available_at.is_not(None)))
    found = [[info_of(t, row) for row in conn.execute(part)] for part in parts]
    # A part that was cut says nothing of what is behind its end, so the page ends at the first one.
    ends = [rows[-1].msg_id for rows in found if len(rows) == limit]
    if last is not None and len(found[0]) < limit:
        ends.append(last)
    end = min(ends, default=None)
    rows = sorted(
        {info.msg_id: info for part in found for info in part}.values(),
        key=lambda info: info.msg_id,
    )
    rows = [info for info in rows if end is None or info.msg_id <= end]
    if len(rows) >= limit:
        return Found(rows[:limit], next_after=rows[limit - 1].msg_id)
    return Found(rows, complete=end is None, next_after=end)


def show(conn: Connection, t: Tables, msg_id: int) -> MessageInfo | None:
    """One message with its payload (at most 10,000 characters of it) and its failed tries, None if
    there is none."""
    c = t.cols()
    row = conn.execute(sa.select(*columns_of(c, payload=True)).where(c.msg_id == msg_id)).first()
    if row is None:
        return None
    found = tries.of(conn, t, [msg_id], traces=True)
    return replace(info_of(t, row), tries=tuple(found.get(msg_id, ())))


def by_ids(conn: Connection, t: Tables, ids: Sequence[int]) -> dict[int, MessageInfo]:
    """These messages, without their payloads."""
    c = t.cols()
    found: dict[int, MessageInfo] = {}
    for start in range(0, len(ids), t.dialect.max_ids):
        query = sa.select(*columns_of(c, payload=False)).where(t.among(c.msg_id))
        part = list(ids[start : start + t.dialect.max_ids])
        for row in conn.execute(query, {"mw_ids": part}):
            info = info_of(t, row)
            found[info.msg_id] = info
    return found
