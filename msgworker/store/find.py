"""Read-only: lists and single messages for ops."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection

from msgworker.dialects import instant_text, read_instant, whole_number
from msgworker.message import LATER, Status, Word, word_of
from msgworker.payload import is_text, quoted, shown
from msgworker.store import tries, window
from msgworker.store.items import Items
from msgworker.store.tries import Try
from msgworker.store.window import Found
from msgworker.table import Cols, Tables, lit


class How(enum.StrEnum):
    """How a dead message has ended."""

    FAILED = "failed"  # at each of its tries
    REJECTED = "rejected"
    DISCARDED = "discarded"
    UNKNOWN = "unknown"  # nothing of it was kept


@dataclass(frozen=True, slots=True)
class Ending:
    """How a dead message has ended, in a word and in words; `tries`: how many it has had since it
    was rerun last, None where that is not known."""

    how: How
    text: str
    tries: int | None = None


@dataclass(frozen=True, slots=True)
class MessageInfo:
    """A message as ops see it: `status` is a word, times are aware UTC, absent columns None.

    later_times, later_reason: how often it has asked to come back later (RetryLater), and why, the
    last time, if that was the last thing it said; `last_error` is None then.
    tries: the failed ones, oldest first. items: those of its fan-outs, None if it has none. `show`
    reads both, lists do not. ending: of a dead one.
    odd: by column (as in this class) what stands in the row and is no such value, for people; it
    reads as None, a counter as 0, and a text that is not UTF-8 with escapes.
    """

    msg_id: int
    object_id: str | None
    topic: str | None
    status: Word
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
    tries: tuple[Try, ...] = ()
    items: Items | None = None
    odd: Mapping[str, str] = field(default_factory=dict)
    ending: Ending | None = None


def in_state(t: Tables, c: Cols, word: Word) -> ColumnElement[bool]:
    """The predicate of a word."""
    if word is Word.FAILED:
        return sa.and_(c.status == lit(Status.FAILED), t.tries_left(c))
    if word is Word.DEAD:
        return sa.and_(c.status == lit(Status.FAILED), sa.not_(t.tries_left(c)))
    if word is Word.UNKNOWN:
        known = [lit(status) for status in Status]
        return sa.or_(c.status.is_(None), c.status.not_in(known))
    return c.status == lit(Status[word.name])


def unfinished(conn: Connection, t: Tables) -> int:
    """How many messages are unfinished."""

    def build() -> Any:
        c = t.cols()
        query = t.hinted(sa.select(sa.func.count()).select_from(t.message), t.message, "object")
        if t.dialect.partial_indexes:
            return query.where(t.unfinished(c))
        return query.where(t.open_object(c).is_not(None))

    return int(conn.execute(t.built("unfinished", build)).scalar_one())


def find(
    conn: Connection,
    t: Tables,
    *,
    status: Word | None = None,
    topic: str | None = None,
    object_id: Any = None,
    error: str | None = None,
    since: datetime | None = None,
    limit: int = 50,
    after: int | None = None,
) -> Found[MessageInfo]:
    """Messages by filter, lowest msg_id first, behind `after`; without payloads.

    error: a part of `last_error`. since: created at or after this instant.
    Open and failed messages are found by their indexes; everything else is looked for among the
    next window.SCAN rows. `Found.complete` and `Found.next_after` say how far that was.
    """
    c = t.cols()
    query = sa.select(*_columns(c, payload=False))
    query = query.where(*conditions(t, c, status, topic, object_id, error, since))
    query = query.order_by(c.msg_id).limit(limit)
    start = window.LEAST if after is None else after
    if object_id is not None and status in (Word.NEW, Word.PROCESSING, Word.FAILED):
        behind = (window.same_object(t, c, object_id), c.msg_id > _id(start))
        return _page(t, conn, t.hinted(query, t.message, "object").where(*behind), limit)
    if status is Word.PROCESSING:
        ids = window.running(t)
        among = c.msg_id.in_(sa.select(ids.c.i))
        return _page(t, conn, query.where(among, c.msg_id > _id(start)), limit)
    if status in (Word.FAILED, Word.DEAD):
        return _failed(conn, t, query, start, limit)
    if status is Word.NEW:
        return _new(conn, t, query, start, limit)
    if since is not None:
        start = max(start, window.before_instant(conn, t, since))
    found = _window(conn, t, query, start, limit)
    if object_id is None or after is not None or found.complete:
        return found
    # What is not finished is found wherever it stands; the first page shows it.
    seen = {info.msg_id for info in found}
    opened = t.hinted(query, t.message, "object").where(window.same_object(t, c, object_id))
    more = [info for info in _page(t, conn, opened, limit) if info.msg_id not in seen]
    both = sorted([*found, *more], key=lambda info: info.msg_id)
    return Found(both[:limit], complete=False, next_after=found.next_after)


def _id(msg_id: int) -> ColumnElement[int]:
    return sa.literal(msg_id, sa.BigInteger())


def _page(t: Tables, conn: Connection, query: sa.Select[Any], limit: int) -> Found[MessageInfo]:
    """All that a query by an index has found, up to its limit."""
    rows = [_info(t, row) for row in conn.execute(query)]
    return Found(rows, next_after=rows[-1].msg_id if len(rows) == limit else None)


def _window(
    conn: Connection, t: Tables, query: sa.Select[Any], start: int, limit: int
) -> Found[MessageInfo]:
    """What the next rows of the primary key hold."""
    c = t.cols()
    last = window.last_of(conn, t, after=start)
    query = query.where(c.msg_id > _id(start))
    if last is not None:
        query = query.where(c.msg_id <= _id(last))
    rows = [_info(t, row) for row in conn.execute(query)]
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
    last = conn.scalar(bound.limit(1).offset(window.SCAN - 1))
    query = t.hinted(query, t.message, "failed")
    query = query.where(t.failed_rows(c), t.failed_key(c) > _id(start))
    if t.dialect.case_index == "function":  # the order that the index gives
        query = query.order_by(None).order_by(t.failed_key(c))
    if last is not None:
        query = query.where(t.failed_key(c) <= _id(last))
    rows = [_info(t, row) for row in conn.execute(query)]
    if len(rows) == limit:
        return Found(rows, next_after=rows[-1].msg_id)
    return Found(rows, complete=last is None, next_after=last)


def _new(
    conn: Connection, t: Tables, query: sa.Select[Any], start: int, limit: int
) -> Found[MessageInfo]:
    """New rows: by age where an index says so, else from the lowest unfinished row on."""
    c = t.cols()
    if not t.dialect.oldest_index:
        first = window.first_open(conn, t)
        if first is None:
            return Found()
        found = _window(conn, t, query, max(start, first[0] - 1), limit)
        found.complete &= first[1] or start >= first[0]
        return found
    source = t.message.alias("b")
    b = t.cols(source)
    key = t.oldest_key(b)
    bound = t.hinted(sa.select(b.msg_id), source, "oldest")
    bound = bound.where(t.oldest_rows(b), key > _id(start)).order_by(key)
    last = conn.scalar(bound.limit(1).offset(window.SCAN - 1))
    key = t.oldest_key(c)
    by_age = t.hinted(query, t.message, "oldest").where(t.oldest_rows(c), key > _id(start))
    by_age = by_age.order_by(None).order_by(key)
    if last is not None:
        by_age = by_age.where(key <= _id(last))
    rows = [_info(t, row) for row in conn.execute(by_age)]
    cut = last is not None and len(rows) < limit
    if c.available_at is not None:
        waiting = t.hinted(sa.select(b.msg_id.label("i")), source, "due")
        assert b.available_at is not None
        waiting = waiting.where(t.unfinished(b), b.available_at.is_not(None))
        ids = waiting.order_by(b.available_at, b.msg_id).limit(window.SCAN).subquery("w")
        counted = conn.scalar(sa.select(sa.func.count()).select_from(ids)) or 0
        cut |= counted >= window.SCAN
        if counted:
            late = query.where(c.msg_id.in_(sa.select(ids.c.i)), c.msg_id > _id(start))
            rows += [_info(t, row) for row in conn.execute(late)]
    rows = sorted({info.msg_id: info for info in rows}.values(), key=lambda info: info.msg_id)
    full = len(rows) >= limit
    after = rows[limit - 1].msg_id if full else last
    return Found(rows[:limit], complete=not cut or full, next_after=after)


def conditions(
    t: Tables,
    c: Cols,
    status: Word | None,
    topic: str | None,
    object_id: Any,
    error: str | None,
    since: datetime | None,
) -> list[ColumnElement[bool]]:
    """The WHERE of a filter; a filter on a column that is not there matches nothing."""
    where: list[ColumnElement[bool]] = []
    if status is not None:
        where.append(in_state(t, c, status))
    if object_id is not None:
        where.append(c.object_id == object_id)
    if topic is not None:
        where.append(sa.false() if c.topic is None else c.topic == topic)
    if error is not None:
        found = (
            sa.false() if c.last_error is None else c.last_error.contains(error, autoescape=True)
        )
        where.append(found)
    if since is not None:
        where.append(sa.false() if c.created_at is None else c.created_at >= since)
    return where


def show(conn: Connection, t: Tables, msg_id: int) -> MessageInfo | None:
    """One message with its payload (at most 10,000 characters of it) and its failed tries, None if
    there is none."""
    c = t.cols()
    row = conn.execute(sa.select(*_columns(c, payload=True)).where(c.msg_id == msg_id)).first()
    if row is None:
        return None
    found = tries.of(conn, t, [msg_id], traces=True)
    return replace(_info(t, row), tries=tuple(found.get(msg_id, ())))


def by_ids(conn: Connection, t: Tables, ids: Sequence[int]) -> dict[int, MessageInfo]:
    """These messages, without their payloads."""
    c = t.cols()
    found: dict[int, MessageInfo] = {}
    for start in range(0, len(ids), t.dialect.max_ids):
        query = sa.select(*_columns(c, payload=False)).where(t.among(c.msg_id))
        part = list(ids[start : start + t.dialect.max_ids])
        for row in conn.execute(query, {"mw_ids": part}):
            info = _info(t, row)
            found[info.msg_id] = info
    return found


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
)


_INSTANTS = ("available_at", "claimed_at", "created_at", "finished_at")
_NUMBERS = ("msg_id", "error_try_times", "crash_times", "later_times")
_FOR_PEOPLE = ("topic", "claimed_by", "last_error")


def _columns(c: Cols, *, payload: bool) -> list[ColumnElement[Any]]:
    columns: list[ColumnElement[Any]] = []
    for role in _ROLES:
        column = getattr(c, role)
        if column is None or (role == "payload" and not payload):
            column = sa.null()
        elif role in _INSTANTS:
            column = instant_text(column)
        elif role == "payload":
            column = sa.func.substr(sa.cast(column, sa.Text()), 1, 10_000)
        columns.append(column.label(f"f{len(columns)}"))
    return columns


def _info(t: Tables, row: Any) -> MessageInfo:
    values = dict(zip(_ROLES, row, strict=True))
    odd: dict[str, str] = {}
    raw_status = values["status"]
    for role, value in values.items():
        if value is None or role == "status":
            continue
        if role in _INSTANTS:
            values[role] = _instant(value)
        elif role in _NUMBERS:
            values[role] = whole_number(value)
        elif role in _FOR_PEOPLE and isinstance(value, bytes):  # a BLOB (SQLite)
            odd[role] = f"{quoted(value)}, which is not a text"
            values[role] = shown(value, len(value))
        elif isinstance(value, str) and not is_text(value):
            odd[role] = f"{quoted(value)}, which is not UTF-8"
            values[role] = shown(value, len(value))
        if values[role] is None:
            odd[role] = quoted(value)
    # Whoever compares them in SQL finds no tries left, so that the word must be dead, too.
    tries = t.spec.max_tries if "error_try_times" in odd else values["error_try_times"]
    values["status"] = word_of(raw_status, tries, t.spec.max_tries)
    if values["status"] is Word.UNKNOWN and raw_status is not None:
        odd["status"] = quoted(raw_status)
    values["error_try_times"] = values["error_try_times"] or 0
    if (values["last_error"] or "").startswith(LATER):
        values["later_reason"] = values["last_error"].removeprefix(LATER)
        values["last_error"] = None
    return MessageInfo(**values, odd=odd)


def _instant(value: Any) -> datetime | None:
    try:
        return read_instant(value)
    except ValueError:
        return None
