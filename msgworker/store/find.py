"""Read-only: counts, lists and single messages for ops."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection

from msgworker.dialects import seconds_since
from msgworker.message import Status, Word, word_of
from msgworker.table import Cols, Tables, lit


@dataclass(frozen=True, slots=True)
class MessageInfo:
    """A message as ops see it: `status` is a word, times are aware UTC, absent columns None."""

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


@dataclass(frozen=True, slots=True)
class Count:
    """How many messages are in a state, and the age of the oldest in seconds (None = not known)."""

    status: Word
    topic: str | None
    count: int
    oldest_seconds: float | None


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


def counts(conn: Connection, t: Tables) -> list[Count]:
    """Messages by state and topic, states in the order of Word."""
    c = t.cols()
    topic = sa.null() if c.topic is None else c.topic
    left = sa.case((t.tries_left(c), 1), else_=0)
    age = sa.null() if c.created_at is None else seconds_since(sa.func.min(c.created_at))
    keys = [c.status, sa.case((c.status == lit(Status.FAILED), left), else_=0).label("left")]
    grouped = [*keys, *([c.topic] if c.topic is not None else [])]
    query: sa.Select[Any] = sa.select(*keys, topic, sa.func.count(), age).group_by(*grouped)
    found: dict[tuple[Word, str | None], tuple[int, float | None]] = {}
    for status, has_left, name, count, oldest in conn.execute(query).all():
        word = word_of(status, 0 if has_left else t.spec.max_tries, t.spec.max_tries)
        before, older = found.get((word, name), (0, None))
        ages = [float(a) for a in (older, oldest) if a is not None]
        found[word, name] = (before + count, max(ages) if ages else None)
    order = list(Word)
    rows = [Count(word, name, n, age) for (word, name), (n, age) in found.items()]
    return sorted(rows, key=lambda r: (order.index(r.status), r.topic or ""))


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
) -> list[MessageInfo]:
    """Messages by filter, lowest msg_id first, behind `after`; without payloads.

    error: a part of `last_error`. since: created at or after this instant.
    """
    c = t.cols()
    query = sa.select(*_columns(t, c, payload=False))
    query = query.where(*conditions(t, c, status, topic, object_id, error, since))
    if after is not None:
        query = query.where(c.msg_id > after)
    found = conn.execute(query.order_by(c.msg_id).limit(limit))
    return [_info(t, row) for row in found]


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
    """One message with its payload (at most 10,000 characters of it), None if there is none."""
    c = t.cols()
    row = conn.execute(sa.select(*_columns(t, c, payload=True)).where(c.msg_id == msg_id)).first()
    return None if row is None else _info(t, row)


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
)


def _columns(t: Tables, c: Cols, *, payload: bool) -> list[ColumnElement[Any]]:
    columns: list[ColumnElement[Any]] = []
    for role in _ROLES:
        column = getattr(c, role)
        if column is None or (role == "payload" and not payload):
            column = sa.null()
        elif role == "payload":
            column = sa.func.substr(sa.cast(column, sa.Text()), 1, 10_000)
        columns.append(column.label(f"f{len(columns)}"))
    return columns


def _info(t: Tables, row: Any) -> MessageInfo:
    values = dict(zip(_ROLES, row, strict=True))
    values["status"] = word_of(values["status"], values["error_try_times"], t.spec.max_tries)
    values["error_try_times"] = values["error_try_times"] or 0
    return MessageInfo(**values)
