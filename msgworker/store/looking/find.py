"""Read-only: lists and single messages for ops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection

from msgworker.dialects import UtcDateTime, holds_text, same_text, utc_of
from msgworker.message import State, Status
from msgworker.store.looking import window
from msgworker.store.looking.info import MessageInfo, columns_of, info_of
from msgworker.store.looking.window import Found
from msgworker.store.settling import tries
from msgworker.table import Cols, Tables, lit


def in_state(t: Tables, c: Cols, word: State) -> ColumnElement[bool]:
    """The predicate of a word; which index is read, a query says with another one."""
    if word is State.FAILED:
        return sa.and_(t.stands_at(c, Status.FAILED), t.tries_left(c))
    if word is State.DEAD:
        return sa.and_(t.stands_at(c, Status.FAILED), sa.not_(t.tries_left(c)))
    if word is State.UNKNOWN:
        known = [lit(status) for status in Status]
        return sa.or_(c.status.is_(None), c.status.not_in(known))
    return t.stands_at(c, Status[word.name])


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
    next window.SCAN rows. `Found.complete` and `Found.next_after` say how far it searched.
    """
    c = t.cols()
    query = sa.select(*columns_of(c, payload=False))
    query = query.where(*conditions(t, c, status, topic, object_id, error, since))
    query = query.order_by(c.msg_id).limit(limit)
    start = window.LEAST if after is None else after
    if object_id is not None and status in (
        State.NEW,
        State.PROCESSING,
        State.FAILED,
    ):
        behind = (window.same_object(t, c, object_id), c.msg_id > _id(start))
        return _page(t, conn, t.hinted(query, t.message, "object").where(*behind), limit)
    if status is State.PROCESSING:
        ids = window.running(t)
        among = c.msg_id.in_(sa.select(ids.c.i))
        return _page(t, conn, query.where(among, c.msg_id > _id(start)), limit)
    if status in (State.FAILED, State.DEAD):
        return _failed(conn, t, query, start, limit)
    if status is State.NEW:
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
    rows = [info_of(t, row) for row in conn.execute(query)]
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
    last = conn.scalar(bound.limit(1).offset(window.SCAN - 1))
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
        lowest = window.lowest_open(conn, t)
        return Found() if lowest is None else _window(conn, t, query, max(start, lowest - 1), limit)
    source = t.message.alias("b")
    b = t.cols(source)
    bound = t.hinted(sa.select(b.msg_id), source, "oldest")
    bound = bound.where(t.oldest_rows(b), t.oldest_key(b) > _id(start)).order_by(t.oldest_key(b))
    last = conn.scalar(bound.limit(1).offset(window.SCAN - 1))
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


def conditions(
    t: Tables,
    c: Cols,
    status: State | None,
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
        where.append(same_text(c.object_id, object_id))
    if topic is not None:
        where.append(sa.false() if c.topic is None else same_text(c.topic, topic))
    if error is not None:
        where.append(sa.false() if c.last_error is None else holds_text(c.last_error, error))
    if since is not None:
        begin = sa.literal(since, UtcDateTime())
        where.append(sa.false() if c.created_at is None else utc_of(c.created_at) >= begin)
    return where


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
