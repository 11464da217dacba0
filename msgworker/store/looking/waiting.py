"""Objects that wait: their head, its state, and how many messages are behind it.

A million waiting messages have too many objects to read each. Candidates are the objects
whose head runs longest, whose head has failed, whose messages are oldest, and those with most
messages among the first window.OPEN_SCAN entries of the index. Then each of these is read exactly.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection, bindparam

from msgworker.dialects import AnyText
from msgworker.errors import ConfigError
from msgworker.message import State, topic_of
from msgworker.store.looking import find, limited, window
from msgworker.store.looking.capped import NO_CURSOR, cursor_place, cursor_text
from msgworker.store.looking.info import MessageInfo
from msgworker.store.looking.instances import UNKNOWN, Started, leased
from msgworker.store.looking.window import Found
from msgworker.table import Cols, Tables

OPEN = (State.NEW, State.FAILED)
BEHIND = 1000
"""Messages behind a head are counted up to this number."""
LANES_PER_STATEMENT = 10
PAGE_SCAN = 10_000


@dataclass(frozen=True, slots=True)
class LaneInfo:
    """An object with its head; `behind`: unfinished messages after it, at least so many if
    `at_least`.

    started, running_seconds: of a head that an instance has claimed, whether its handler has
    started and how long it has run, as far as the last heartbeat tells; None = not known.
    limited: the permit or token for which a head that is not running waits, None = none.
    """

    object_id: Any
    head: MessageInfo
    behind: int
    at_least: bool = False
    started: bool | None = None
    running_seconds: float | None = None
    limited: str | None = None


def lanes(
    conn: Connection, t: Tables, *, limit: int = 50, scan: int = window.OPEN_SCAN
) -> Found[LaneInfo]:
    """Objects with unfinished messages, those with most behind their head first.

    `complete` is False if there are more of them than were looked at.
    """
    keys: dict[Any, None] = {}
    failing = _failing(conn, t, limit, scan)
    for key in (*_running(conn, t, limit), *failing, *_oldest(conn, t, limit)):
        keys.setdefault(key)
    deepest, objects, entries = _deepest(conn, t, limit, scan)
    for key in deepest:
        keys.setdefault(key)
    heads = _heads(conn, t, list(keys))
    place = {key: number for number, key in enumerate(keys)}
    ranked = sorted(heads.items(), key=lambda item: (-item[1][1], place[item[0]]))[:limit]
    rows = _infos(conn, t, heads, [key for key, _ in ranked])
    return Found(rows, complete=entries < scan and objects <= len(rows), looked_at=entries)


def by_object(
    conn: Connection,
    t: Tables,
    *,
    limit: int = 50,
    after: str | None = None,
) -> Found[LaneInfo]:
    """The same of every object in the order of its key, behind the cursor `after`.

    One page goes over PAGE_SCAN unfinished messages at most: of more it has fewer objects.
    """
    scan = min(window.OPEN_SCAN, PAGE_SCAN)
    last = None if after is None else _key_of(t, after)

    def build() -> sa.Select[Any]:
        query, key, order = _entries(t)
        if last is not None:
            query = query.where(key > bindparam("last", type_=t.key_type))
        e = query.order_by(key, order).limit(bindparam("scan", type_=sa.Integer())).subquery("e").c
        most = bindparam("rows", type_=sa.Integer())
        return sa.select(e.o, sa.func.count()).group_by(e.o).order_by(e.o).limit(most)

    params = {"scan": scan, "rows": limit} | ({} if last is None else {"last": last})
    statement = t.built(("lanes_by_object", last is None), build)
    found = conn.execute(statement, params).all()
    keys = [row[0] for row in found]
    entries = sum(int(row[1]) for row in found)
    rows = _infos(conn, t, _heads(conn, t, keys), keys)
    more = len(keys) == limit or entries >= scan
    return Found(rows, next_after=cursor_text([str(keys[-1])]) if more else None, looked_at=entries)


def _key_of(t: Tables, after: str) -> Any:
    """The key in a cursor."""
    (text,) = cursor_place(after, str)
    try:
        text_key = isinstance(t.key_type, sa.String | AnyText)
        return text if text_key else t.key_type.python_type(text)
    except (ValueError, TypeError, ArithmeticError):
        raise ConfigError(NO_CURSOR) from None


def _infos(
    conn: Connection, t: Tables, heads: Mapping[Any, tuple[int, int]], keys: Sequence[Any]
) -> list[LaneInfo]:
    """The objects of these keys, in this order."""
    infos = find.by_ids(conn, t, [heads[key][0] for key in keys if key in heads])
    started, full = _started(conn, t, infos.values()), limited.waiting(conn, t)
    return [
        LaneInfo(
            infos[head].object_id,
            infos[head],
            min(count - 1, BEHIND),
            count - 1 > BEHIND,
            *started.get(head, UNKNOWN),
            limited=full.get(topic_of(infos[head].topic)) if infos[head].status in OPEN else None,
        )
        for head, count in (heads[key] for key in keys if key in heads)
        if head in infos
    ]


def _started(conn: Connection, t: Tables, heads: Iterable[MessageInfo]) -> dict[int, Started]:
    """Data of the instances on the heads that they have claimed."""
    claimed = [info for info in heads if info.status is State.PROCESSING and info.claimed_by]
    holders = {one.instance_id: one for one in leased(conn, t)} if claimed else {}
    return {
        info.msg_id: holders[info.claimed_by].started(info)
        for info in claimed
        if info.claimed_by in holders
    }


def _key(t: Tables, c: Cols) -> ColumnElement[Any]:
    """The object as the object index names it."""
    return t.object_key(c)


def _running(conn: Connection, t: Tables, limit: int) -> Iterable[Any]:
    def build() -> sa.Select[Any]:
        c = t.cols()
        ids = window.running(t)
        query = sa.select(_key(t, c)).select_from(ids.join(t.message, ids.c.i == c.msg_id))
        order = c.msg_id if c.claimed_at is None else c.claimed_at
        rows = bindparam("rows", type_=sa.Integer())
        return query.where(c.object_id.is_not(None)).order_by(order).limit(rows)

    return conn.scalars(t.built("lanes_running", build), {"rows": limit}).all()


def _failing(conn: Connection, t: Tables, limit: int, scan: int) -> Iterable[Any]:
    """Heads that have failed: those that wait for their instant; dead ones if they block."""
    if t.spec.on_dead == "block" or not t.has("available_at"):
        return _failed(conn, t, limit)

    def build() -> sa.Select[Any]:
        c = t.cols()
        assert c.available_at is not None
        failing = sa.case((sa.and_(t.failed(c), t.unfinished(c)), 1), else_=0)
        columns: list[ColumnElement[Any]] = [
            _key(t, c).label("o"),
            failing.label("f"),
            c.available_at.label("a"),
            c.msg_id.label("i"),
        ]
        waits = t.hinted(sa.select(*columns), t.message, "due")
        waits = waits.where(c.available_at.is_not(None), *t.due_rows(c))
        # Not all that wait have failed: a million may be delayed.
        most = bindparam("scan", type_=sa.Integer())
        w = waits.order_by(c.available_at, c.msg_id).limit(most).subquery("w").c
        query = sa.select(w.o).where(w.f == 1, w.o.is_not(None)).order_by(w.a, w.i)
        return query.limit(bindparam("rows", type_=sa.Integer()))

    params = {"rows": limit, "scan": scan}
    return conn.scalars(t.built("lanes_failing", build), params).all()


def _failed(conn: Connection, t: Tables, limit: int) -> Iterable[Any]:
    def build() -> sa.Select[Any]:
        c = t.cols()
        query = sa.select(_key(t, c)).where(c.object_id.is_not(None), t.unfinished(c))
        query = t.hinted(query, t.message, "failed").where(t.failed_rows(c))
        return query.order_by(t.failed_key(c)).limit(bindparam("rows", type_=sa.Integer()))

    return conn.scalars(t.built("lanes_failed", build), {"rows": limit}).all()


def _oldest(conn: Connection, t: Tables, limit: int) -> Iterable[Any]:
    if not t.dialect.oldest_index:
        return []

    def build() -> sa.Select[Any]:
        c = t.cols()
        key = t.oldest_key(c)
        query = t.hinted(sa.select(_key(t, c)), t.message, "oldest")
        query = query.where(t.oldest_rows(c), key.is_not(None), c.object_id.is_not(None))
        return query.order_by(key).limit(bindparam("rows", type_=sa.Integer()))

    return conn.scalars(t.built("lanes_oldest", build), {"rows": limit}).all()


def _deepest(conn: Connection, t: Tables, limit: int, scan: int) -> tuple[list[Any], int, int]:
    """The objects with most entries; how many objects and how many entries were read."""
    if t.dialect.index_hint is None:
        return _deepest_of_entries(conn, t, limit, scan)

    # Grouped as the index is walked: a copy of the entries, grouped, takes several times as long.
    def scanned() -> sa.Select[Any]:
        query, key, order = _entries(t)
        return query.order_by(key, order).limit(1).offset(bindparam("scan", type_=sa.Integer()))

    def grouped(bounded: bool) -> sa.Select[Any]:
        query, key, _ = _entries(t)
        if bounded:
            query = query.where(key < bindparam("last", type_=t.key_type))
        return query.add_columns(sa.func.count().label("n")).group_by(key)

    def deepest(bounded: bool) -> sa.Select[Any]:
        g = grouped(bounded).subquery("g").c
        query = sa.select(g.o).order_by(g.n.desc(), g.o)
        return query.limit(bindparam("rows", type_=sa.Integer()))

    def total() -> sa.Select[Any]:
        g = grouped(False).subquery("g").c
        columns: list[Any] = [sa.func.count(), sa.func.sum(g.n)]
        return sa.select(*columns)

    last = conn.scalar(t.built("lanes_scanned", scanned), {"scan": scan - 1})
    bounded = last is not None
    params: dict[str, Any] = {"rows": limit} | ({"last": last} if bounded else {})
    statement = t.built(("lanes_deepest", bounded), partial(deepest, bounded))
    keys = list(conn.scalars(statement, params))
    if bounded:  # the last one is among them, however much of it was read
        return [*keys, last], len(keys) + 1, scan
    found = conn.execute(t.built("lanes_total", total)).first()
    return (keys, int(found[0]), int(found[1] or 0)) if found else ([], 0, 0)


def _deepest_of_entries(
    conn: Connection, t: Tables, limit: int, scan: int
) -> tuple[list[Any], int, int]:
    """The same in one statement whose planner has no choice of the index."""

    def build() -> sa.Select[Any]:
        query, key, order = _entries(t)
        entries = query.order_by(key, order).limit(bindparam("scan", type_=sa.Integer()))
        e = entries.subquery("e")
        grouped = sa.select(e.c.o.label("o"), sa.func.count().label("n")).group_by(e.c.o)
        g = grouped.subquery("g")
        objects = sa.func.count().over()
        total = sa.func.sum(g.c.n).over()
        query = sa.select(g.c.o, g.c.n, objects, total).order_by(g.c.n.desc(), g.c.o)
        return query.limit(bindparam("rows", type_=sa.Integer()))

    params = {"scan": scan, "rows": limit}
    found = conn.execute(t.built("lanes_deepest", build), params).all()
    if not found:
        return [], 0, 0
    return [row[0] for row in found], int(found[0][2]), int(found[0][3])


def _entries(t: Tables) -> tuple[sa.Select[Any], ColumnElement[Any], ColumnElement[int]]:
    """Every entry of the object index that has an object, as `o`; and what it is ordered by."""
    c = t.cols()
    key = t.open_object(c)
    query = t.hinted(sa.select(key.label("o")), t.message, "object").where(t.open_rows(c))
    return query.where(t.between_objects(key)), key, t.open_msg_id(c)


def _heads(conn: Connection, t: Tables, keys: Sequence[Any]) -> dict[Any, tuple[int, int]]:
    """By object: its head and its unfinished messages, counted up to BEHIND + 2."""

    def build(branches: int) -> sa.Select[Any]:
        parts = []
        for i in range(branches):
            source = t.message.alias("m")
            c = t.cols(source)
            place: ColumnElement[int] = sa.literal_column(str(i))
            columns: list[ColumnElement[Any]] = [place.label("p"), c.msg_id.label("i")]
            query = t.hinted(sa.select(*columns), source, "object").where(
                t.open_object(c) == bindparam(f"o{i}", type_=t.key_type), t.open_rows(c)
            )
            branch = query.order_by(t.open_msg_id(c)).limit(sa.literal_column(str(BEHIND + 2)))
            parts.append(branch if t.dialect.bare_unions else sa.select(branch.subquery(f"q{i}")))
        u = (sa.union_all(*parts) if branches > 1 else parts[0]).subquery("u")
        return sa.select(u.c.p, sa.func.min(u.c.i), sa.func.count()).group_by(u.c.p)

    out: dict[Any, tuple[int, int]] = {}
    for start in range(0, len(keys), LANES_PER_STATEMENT):
        part = keys[start : start + LANES_PER_STATEMENT]
        branches = 1 if len(part) == 1 else LANES_PER_STATEMENT
        params: dict[str, Any] = {f"o{i}": None for i in range(branches)}
        params |= {f"o{i}": key for i, key in enumerate(part)}
        statement = t.built(("lanes_heads", branches), partial(build, branches))
        for place, head, count in conn.execute(statement, params).all():
            if head is not None:  # else its id is no whole number
                out[part[place]] = (int(head), int(count))
    return out
