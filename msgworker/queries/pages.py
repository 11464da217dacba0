"""Pages of messages, newest or oldest first, and the cursors between them."""

from __future__ import annotations

import base64
import binascii
import json
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection

from msgworker.db import AnyText, beginning, instant_of, instant_text, read_instant
from msgworker.errors import ConfigError
from msgworker.message import State
from msgworker.payload import is_text
from msgworker.queries import explain, messages
from msgworker.queries.messages import MessageInfo, columns_of, info_of
from msgworker.store import bounded, selection
from msgworker.store.bounded import Found
from msgworker.store.tries import fingerprint
from msgworker.table import Cols, Tables

# --- Numbers that were counted only so far, and cursors of lists.

MOST_CURSOR = 2_000
NO_CURSOR = "after is no cursor of this list; leave it out to begin anew"


@dataclass(frozen=True, slots=True)
class Capped:
    """A number. more: it is at least that, because counting stopped there; about: it is an estimate
    from the database's statistics. As a text: "1,204", "10,000+", "about 9,990,000"."""

    count: int
    more: bool = False
    about: bool = False

    def __str__(self) -> str:
        return f"{'about ' if self.about else ''}{self.count:,}{'+' if self.more else ''}"

    def __add__(self, other: Capped) -> Capped:
        total = self.count + other.count
        return Capped(total, self.more or other.more, self.about or other.about)


def cursor_text(place: list[Any]) -> str:
    """A place in a list as an opaque text, safe in a URL."""
    raw = json.dumps(place, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def cursor_place(text: str, *kinds: type | tuple[type, ...]) -> list[Any]:
    """The place that `cursor_text` was given. Raises ConfigError for any other text, or if its
    parts are not of these types."""
    wrong = ConfigError(NO_CURSOR)
    if not isinstance(text, str) or not text.isascii() or len(text) > MOST_CURSOR:
        raise wrong
    try:
        raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        place = json.loads(raw)
    except (ValueError, binascii.Error, RecursionError):
        raise wrong from None
    if not isinstance(place, list) or len(place) != len(kinds):
        raise wrong
    for part, kind in zip(place, kinds, strict=True):
        if not isinstance(part, kind) or isinstance(part, bool) or _not_stored(part):
            raise wrong
    return place


def _not_stored(part: Any) -> bool:
    """Whether no database has such a value: it was not we who wrote it."""
    if isinstance(part, str):
        return "\x00" in part or not is_text(part)
    return isinstance(part, int) and not -(2**63) <= part < 2**63


# --- Pages of messages, newest or oldest first, for lists that people leaf through.
#
# A list is a chain of walks, each along one index; a cursor names the walk and the place in it. A
# walk whose filter no index serves goes over at most WALK rows per page: the page then says that
# it is not complete, and where to go on.

WALK = 100_000
"""Rows that one page walks over at most, where its filter is not that of an index."""
GROUP_WALK = 5_000
"""Failed rows that one page of a group looks at, as `failures` does."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a list shows: conditions that all hold. fingerprint: of a group of `failures`."""

    status: State | None = None
    topic: str | None = None
    object_id: Any = None
    error: str | None = None
    since: datetime | None = None
    fingerprint: str | None = None

    @property
    def by_status(self) -> bool:
        """Whether nothing but the status is asked for."""
        others = (self.topic, self.object_id, self.error, self.since, self.fingerprint)
        return all(one is None for one in others)


class _Walk(NamedTuple):
    """Rows in the order of an index. by: its suffix, None = the primary key. where: its predicate.
    key: what it is ordered by, a msg_id. exact: the filter keeps all of its rows. late: rows that
    wait for an instant, ordered by that first. but: rows that an earlier walk has shown."""

    by: str | None
    where: tuple[ColumnElement[bool], ...]
    key: ColumnElement[Any]
    exact: bool = False
    late: bool = False
    but: ColumnElement[bool] | None = None

    def hinted(self, t: Tables, query: sa.Select[Any]) -> sa.Select[Any]:
        return query if self.by is None else t.hinted(query, t.message, self.by)


class _Leaf(NamedTuple):
    """What one walk adds to a page. next_at: where it goes on, None at its end. cut: it has gone
    over as many rows as it may."""

    rows: list[MessageInfo]
    next_at: Any = None
    cut: bool = False


def page(
    conn: Connection,
    t: Tables,
    wanted: Wanted,
    *,
    newest: bool = True,
    limit: int = 50,
    after: str | None = None,
) -> Found[MessageInfo]:
    """Messages without their payloads, behind the cursor `after`; `next_after` is the next one.

    Those of one object that are unfinished come before the finished ones; new ones that wait for an
    instant after the others, by that instant.
    """
    if wanted.fingerprint is not None:
        found = _group(conn, t, wanted, newest, limit, after)
    elif wanted.status is State.DONE and newest:
        found = _done(conn, t, wanted, limit, after)
    else:
        found = _chain(conn, t, wanted, newest, limit, after)
    found[:] = explain.told(conn, t, found)
    return found


def _chain(
    conn: Connection, t: Tables, wanted: Wanted, newest: bool, limit: int, after: str | None
) -> Found[MessageInfo]:
    walks = _walks(t, t.cols(), wanted)
    number, at = (0, None) if after is None else cursor_place(after, int, (int, list))
    low = None if wanted.since is None else bounded.before_instant(conn, t, wanted.since)
    rows: list[MessageInfo] = []
    while 0 <= number < len(walks):
        step = _late if walks[number].late else partial(_along, newest=newest, low=low)
        leaf = step(conn, t, walks[number], wanted, limit=limit - len(rows), at=at)
        rows += leaf.rows
        if leaf.next_at is not None:
            following = cursor_text([number, leaf.next_at])
            return Found(rows, complete=not leaf.cut, next_after=following)
        number, at = number + 1, None
    return Found(rows)


def _walks(t: Tables, c: Cols, wanted: Wanted) -> list[_Walk]:
    """The walks of a list, in the order in which they are shown."""
    status, only = wanted.status, wanted.by_status
    key = _Walk(None, (), c.msg_id, exact=status is None and only)
    if wanted.object_id is not None:
        opened = _Walk("object", (bounded.same_object(t, c, wanted.object_id),), c.msg_id)
        if status in (State.NEW, State.PROCESSING, State.FAILED):
            return [opened]
        return [opened, key._replace(but=t.unfinished(c))]
    if status is State.PROCESSING:
        ids = bounded.running(t)
        return [_Walk(None, (c.msg_id.in_(sa.select(ids.c.i)),), c.msg_id, exact=True)]
    if status in (State.FAILED, State.DEAD):
        return [_Walk("failed", (t.failed_rows(c),), t.failed_key(c))]
    if status is State.NEW and t.dialect.oldest_index:
        rows = (t.oldest_rows(c), t.oldest_key(c).is_not(None))
        found = [_Walk("oldest", rows, t.oldest_key(c))]
        if c.available_at is not None:
            due = (*t.due_rows(c), c.available_at.is_not(None))
            found.append(_Walk("due", due, c.msg_id, late=True))
        return found
    return [key]


def _conditions(t: Tables, c: Cols, wanted: Wanted) -> list[ColumnElement[bool]]:
    return selection.conditions(
        t, c, wanted.status, wanted.topic, wanted.object_id, wanted.error, wanted.since
    )


def _id(msg_id: int) -> ColumnElement[int]:
    return sa.literal(msg_id, sa.BigInteger())


def _behind(key: ColumnElement[Any], at: int, newest: bool) -> ColumnElement[bool]:
    return key < _id(at) if newest else key > _id(at)


def _along(
    conn: Connection,
    t: Tables,
    walk: _Walk,
    wanted: Wanted,
    *,
    newest: bool,
    low: int | None,
    limit: int,
    at: Any,
    high: int | None = None,
) -> _Leaf:
    """Part of a walk by msg_id, behind `at`; low: all rows that are wanted stand behind it; high:
    and before that."""
    c = t.cols()
    if at is not None and not isinstance(at, int):
        raise ConfigError(NO_CURSOR)
    where = list(walk.where)
    if at is not None:
        where.append(_behind(walk.key, at, newest))
    if low is not None:
        where.append(walk.key > _id(low))
    if high is not None:
        where.append(walk.key < _id(high))
    order = walk.key.desc() if newest else walk.key.asc()
    last = None
    if not walk.exact:
        bound = sa.select(c.msg_id).where(*where).order_by(order).limit(1).offset(WALK - 1)
        last = conn.scalar(walk.hinted(t, bound))
    query = sa.select(*columns_of(c, payload=False)).where(*where, *_conditions(t, c, wanted))
    query = walk.hinted(t, query)
    if walk.but is not None:
        query = query.where(sa.not_(walk.but))
    if last is not None:
        end = _id(int(last))
        query = query.where(walk.key >= end if newest else walk.key <= end)
    rows = [info_of(t, row) for row in conn.execute(query.order_by(order).limit(limit))]
    if len(rows) == limit:
        return _Leaf(rows, rows[-1].msg_id)
    return _Leaf(rows, None if last is None else int(last), cut=last is not None)


def _late(
    conn: Connection, t: Tables, walk: _Walk, wanted: Wanted, *, limit: int, at: Any
) -> _Leaf:
    """Rows that wait for an instant, the next one first. at: the instant, as a text, and the msg_id
    behind which it goes on."""
    c = t.cols()
    assert c.available_at is not None
    where, order = list(walk.where), (c.available_at, c.msg_id)
    if at is not None:
        text, msg_id = _place(at)
        from_there: Any = instant_of(sa.literal(text, AnyText()), c.available_at)
        where.append(c.available_at >= from_there)
        where.append(sa.or_(c.available_at > from_there, c.msg_id > _id(msg_id)))
    instant: Any = instant_text(c.available_at)
    bound: sa.Select[Any] = sa.select(instant, c.msg_id).where(*where).order_by(*order)
    last = conn.execute(walk.hinted(t, bound).limit(1).offset(WALK - 1)).first()
    query: sa.Select[Any] = sa.select(*columns_of(c, payload=False), instant)
    query = walk.hinted(t, query).where(*where, *_conditions(t, c, wanted))
    if last is not None:
        end: Any = instant_of(sa.literal(str(last[0]), AnyText()), c.available_at)
        query = query.where(c.available_at <= end)
        query = query.where(sa.or_(c.available_at < end, c.msg_id <= _id(int(last[1]))))
    found = conn.execute(query.order_by(*order).limit(limit)).all()
    rows = [info_of(t, row[:-1]) for row in found]
    if len(rows) == limit:
        return _Leaf(rows, [str(found[-1][-1]), rows[-1].msg_id])
    return _Leaf(rows, None if last is None else [str(last[0]), int(last[1])], last is not None)


def _place(at: Any) -> tuple[str, int]:
    """The parts of a cursor into rows that wait for an instant."""
    if isinstance(at, list) and len(at) == 2 and isinstance(at[0], str) and _whole(at[1]):
        with suppress(ValueError):
            read_instant(at[0])
            return at[0], at[1]
    raise ConfigError(NO_CURSOR)


def _whole(part: Any) -> bool:
    return isinstance(part, int) and not isinstance(part, bool) and -(2**63) <= part < 2**63


def _done(
    conn: Connection, t: Tables, wanted: Wanted, limit: int, after: str | None
) -> Found[MessageInfo]:
    """Done ones, the newest first. Where a backlog stands on top of them, so that WALK rows hold
    none, those below the oldest waiting message come next, and what is among the backlog last."""
    stage, at, top, low_open = 0, None, None, None
    if after is not None:
        kinds = (int, (int, type(None)), (int, type(None)), (int, type(None)))
        stage, at, top, low_open = cursor_place(after, *kinds)
    walk = _walks(t, t.cols(), wanted)[-1]
    low = None if wanted.since is None else bounded.before_instant(conn, t, wanted.since)
    step = partial(_along, conn, t, walk, wanted, newest=True, limit=limit)
    if stage == 0:
        leaf = step(low=low, at=at)
        if leaf.rows or not leaf.cut:
            return _told(leaf, [0, leaf.next_at, None, None])
        split = _lowest_open(conn, t)
        if split is None or split > leaf.next_at or (low is not None and split <= low):
            return _told(leaf, [0, leaf.next_at, None, None])
        stage, at, top, low_open = 1, split, leaf.next_at, split
    if stage == 1:
        leaf = step(low=low, at=at)
        if leaf.next_at is not None or top is None or low_open is None:
            return _told(leaf, [1, leaf.next_at, top, low_open])
        return Found(leaf.rows, next_after=cursor_text([2, top, None, low_open]))
    leaf = step(low=low_open, at=at)
    return _told(leaf, [2, leaf.next_at, None, low_open])


def _told(leaf: _Leaf, place: list[Any]) -> Found[MessageInfo]:
    following = None if leaf.next_at is None else cursor_text(place)
    return Found(leaf.rows, complete=not leaf.cut, next_after=following)


def _lowest_open(conn: Connection, t: Tables) -> int | None:
    """The lowest msg_id of an unfinished message, as far as an index tells."""
    if not t.dialect.oldest_index:
        first = bounded.first_open(conn, t)
        return None if first is None else first[0]
    c = t.cols()
    key = t.oldest_key(c)
    query = t.hinted(sa.select(c.msg_id), t.message, "oldest")
    query = query.where(t.oldest_rows(c), key.is_not(None)).order_by(key)
    found = conn.scalar(query.limit(1))
    return None if found is None else int(found)


def _group(
    conn: Connection, t: Tables, wanted: Wanted, newest: bool, limit: int, after: str | None
) -> Found[MessageInfo]:
    """The failed messages of a group: by the last try, without one by the last error."""
    at = None if after is None else cursor_place(after, int)[0]
    source = t.message.alias("f")
    c = t.cols(source)
    key = t.failed_key(c)
    where: list[ColumnElement[bool]] = [t.failed_rows(c)]
    if at is not None:
        where.append(_behind(key, at, newest))
    order = key.desc() if newest else key.asc()
    x = t.failed_try.alias("x").c
    last_try = (
        sa.select(x.fingerprint)
        .where(x.table_name == t.message.name, x.msg_id == c.msg_id)
        .order_by(x.try_no.desc())
        .limit(sa.literal_column("1"))
        .scalar_subquery()
    )
    bound = t.hinted(sa.select(c.msg_id), source, "failed").where(*where).order_by(order)
    last = conn.scalar(bound.limit(1).offset(GROUP_WALK - 1))
    error: Any = sa.null() if c.last_error is None else beginning(c.last_error)
    conditions = _conditions(t, c, replace(wanted, fingerprint=None))
    inner = t.hinted(
        sa.select(c.msg_id.label("i"), last_try.label("p"), error.label("e")), source, "failed"
    )
    inner = inner.where(*where, *conditions)
    if last is not None:
        inner = inner.where(key >= _id(int(last)) if newest else key <= _id(int(last)))
    q = inner.subquery("q").c
    text = sa.case((q.p.is_(None), q.e))
    query = sa.select(q.i, text).where(sa.or_(q.p == wanted.fingerprint, q.p.is_(None)))
    ids = []
    for msg_id, bare in conn.execute(query.order_by(q.i.desc() if newest else q.i)):
        if bare is None or fingerprint(bare) == wanted.fingerprint:
            ids.append(int(msg_id))
        if len(ids) == limit:
            break
    infos = messages.by_ids(conn, t, ids)
    rows = [infos[i] for i in ids if i in infos]
    if len(ids) == limit:
        return Found(rows, next_after=cursor_text([ids[-1]]))
    following = None if last is None else cursor_text([int(last)])
    return Found(rows, complete=last is None, next_after=following)
