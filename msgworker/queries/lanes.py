"""Objects that wait: their head, its state, and how many messages are behind it.

A million waiting messages have too many objects to read each. Candidates are the objects
whose head runs longest, whose head has failed, whose messages are oldest, and those with most
messages among the first bounded.OPEN_SCAN entries of the index. Then each of these is read exactly.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection, bindparam

from msgworker.db.types import AnyId, AnyText, beginning, shortened
from msgworker.errors import ConfigError
from msgworker.message import State, topic_of
from msgworker.payload import BEGINNING, is_text
from msgworker.queries import messages
from msgworker.queries.explain import Reason, World, of_heads
from msgworker.queries.messages import MessageInfo
from msgworker.store import bounded, candidates, controls
from msgworker.store.rows import MIN_ID, running_ids
from msgworker.table.columns import Cols
from msgworker.table.tables import Tables, lit

BEHIND = 1000
"""Messages behind a head are counted up to this number."""
LANES_PER_STATEMENT = 10
PAGE_SCAN = 10_000


@dataclass(frozen=True, slots=True)
class LaneInfo:
    """An object with its head; `behind`: unfinished messages after it, at least so many if
    `at_least`.

    reason, why: why the head does not run, or what it does, as of `explain`, a word and a sentence.
    started, running_seconds: of a head that an instance has claimed, whether its handler has
    started and how long it has run, as far as the last heartbeat says; None = not known.
    limited: what reason and why say of a limit, under its name until 0.2; it goes in 1.0.
    """

    object_id: Any
    head: MessageInfo
    behind: int
    at_least: bool
    reason: Reason
    why: str
    started: bool | None = None
    running_seconds: float | None = None
    limited: str | None = None


BLOCKED = (
    Reason.NO_HANDLER,
    Reason.NOBODY_LOOKS,
    Reason.DEAD,
    Reason.UNKNOWN_STATUS,
    Reason.RUNNING_FOREIGN,
    Reason.REFUSED,
    Reason.PAUSED,
    Reason.JOB_PAUSED,
    Reason.RUNNING_DEAD,
    Reason.LIMITED,
)
"""Why a head is blocked, what ends by itself last. That no instance lives is said of all, and
blocks none."""
STATES = (State.FAILED, State.PROCESSING)
STUCK = 1_000
"""Messages that may be blocked, of which objects are chosen."""


def rank(one: LaneInfo) -> tuple[int, int]:
    """What is blocked first, then what is tried again, runs, and waits; most behind first."""
    if one.reason in BLOCKED:
        return BLOCKED.index(one.reason), -one.behind
    status = one.head.status
    place = STATES.index(status) if status in STATES else len(STATES)
    return len(BLOCKED) + place, -one.behind


def lanes(
    conn: Connection, t: Tables, *, limit: int, scan: int = bounded.OPEN_SCAN, blocked: bool = False
) -> bounded.Found[LaneInfo]:
    """Objects with unfinished messages, those with most behind their head first; or by `rank`,
    those whose head is blocked first.

    `complete` is False if there are more of them than were looked at.
    """
    world = World.read(conn, t)
    failing = _failing(conn, t, limit, scan)
    found = [*_running(conn, t, limit), *failing]
    if t.database.oldest_index:
        found += _first(conn, t, bounded.oldest(t, t.cols()), [], limit)
    found += _stuck(conn, t, world) if blocked else []
    deepest, objects, entries = _deepest(conn, t, limit, scan)
    ids = [*_one_of_each(found), *deepest]
    heads = _heads(conn, t, ids)
    counts = dict(heads[one] for one in ids if one in heads)
    if blocked:
        rows = sorted(_shares(sorted(_infos(conn, t, world, counts), key=rank), limit), key=rank)
    else:
        ranked = sorted(counts, key=lambda head: -counts[head])[:limit]
        rows = _infos(conn, t, world, {head: counts[head] for head in ranked})
    return bounded.Found(rows, complete=entries < scan and objects <= len(rows), looked_at=entries)


def _shares(rows: Iterable[LaneInfo], limit: int) -> list[LaneInfo]:
    """The first of what is blocked, of each reason its share; then the first of the others."""
    seen: Counter[Reason] = Counter()
    turns = []
    for one in rows:
        seen[one.reason] += 1
        turns.append((seen[one.reason] if one.reason in BLOCKED else sys.maxsize, one))
    return [one for _, one in sorted(turns, key=itemgetter(0))[:limit]]


def _stuck(conn: Connection, t: Tables, world: World) -> Iterable[Any]:
    """Messages of which none of their topic, or of their job, can start, among the oldest."""
    held = {*world.paused, *world.full()}
    topics: set[str] = {topic for one in world.works for topic in one.topics or ()}
    but = bool(world.works) and all(one.topics is not None for one in world.works)
    if controls.paused_jobs(conn, t):
        held, t = {*held, controls.JOB_PAUSED}, controls.asking_jobs(t)
    mark: int | None = MIN_ID
    if not t.database.oldest_index:
        mark = (bounded.first_open(conn, t) or (None,))[0]
    if mark is None or not (but or held):
        return []
    chosen = topics - held if but else held
    how: dict[str, Any] = {"but": but, "mark": mark, "limit": STUCK, "span": PAGE_SCAN}
    rows = candidates.oldest_among(conn, t, chosen, **how).rows
    return [(one.msg_id, one.same) for one in rows if one.object_id is not None]


def by_object(
    conn: Connection, t: Tables, *, limit: int = 50, after: str | None = None
) -> bounded.Found[LaneInfo]:
    """The same of every object in the order of its key, behind the cursor `after`.

    One page goes over PAGE_SCAN unfinished messages at most: of more it has fewer objects.
    """
    scan = min(bounded.OPEN_SCAN, PAGE_SCAN)
    last = None if after is None else _place_of(conn, t, after)

    def build() -> sa.Select[Any]:
        query, key, order = _entries(t)
        if last is not None:
            query = query.where(key > _bound(t, last))
        e = query.order_by(key, order).limit(bindparam("scan", type_=sa.Integer())).subquery("e").c
        most = bindparam("mw_rows", type_=sa.Integer())
        columns: list[Any] = [sa.func.min(e.i), beginning(e.o), sa.func.count()]
        return sa.select(*columns).group_by(e.o).order_by(e.o).limit(most)

    params = {"scan": scan, "mw_rows": limit} | ({} if last is None else {"last": last.value})
    by_key = None if last is None else last.by_key
    found = conn.execute(t.built(("lanes_by_object", by_key), build), params).all()
    ids = [int(row[0]) for row in found if row[0] is not None]
    entries = sum(int(row[2]) for row in found)
    heads = _heads(conn, t, ids)
    rows = _infos(conn, t, World.read(conn, t), dict(heads[one] for one in ids if one in heads))
    more = len(found) == limit or entries >= scan
    cursor = _cursor(t, found[-1][0], found[-1][1]) if more else None
    return bounded.Found(rows, next_after=cursor, looked_at=entries)


class _Place(NamedTuple):
    """An object in the order of the object index: its key or, where that cannot be said, the msg_id
    of one of its messages."""

    value: Any
    by_key: bool


def _bound(t: Tables, place: _Place) -> ColumnElement[Any]:
    """The key of a place, for the parameter `last`."""
    if place.by_key:
        return bindparam("last", type_=t.key_type)
    c = t.cols(t.message.alias("p"))
    own = c.msg_id == bindparam("last", type_=sa.BigInteger())
    return sa.select(t.object_key(c)).where(own).scalar_subquery()


def _text_key(t: Tables) -> bool:
    return isinstance(t.key_type, sa.String | AnyText)


def _is_whole(key: Any) -> bool:
    """Whether a key that was read by `beginning` is all of it, and can be said as a text."""
    if isinstance(key, str):
        return len(key) <= BEGINNING and is_text(key)
    return isinstance(key, int | Decimal | UUID)


def _place(t: Tables, msg_id: Any, key: Any) -> _Place:
    """The place of an object by its key as it was read, and one of its messages."""
    said = isinstance(key, str) if _text_key(t) else not isinstance(t.key_type, AnyId)
    return _Place(key, True) if said and _is_whole(key) else _Place(msg_id, False)


def _cursor(t: Tables, msg_id: Any, key: Any) -> str:
    place = _place(t, msg_id, key)
    text = bounded.cursor_text([str(place.value) if place.by_key else place.value])
    return text if len(text) <= bounded.MOST_CURSOR else bounded.cursor_text([msg_id])


def _place_of(conn: Connection, t: Tables, after: str) -> _Place:
    """The place in a cursor."""
    (given,) = bounded.cursor_place(after, (str, int))
    if isinstance(given, int):
        c = t.cols()
        query = sa.select(c.msg_id).where(c.msg_id == sa.literal(given, sa.BigInteger()))
        if conn.scalar(query) is None:
            raise ConfigError(bounded.NO_CURSOR)
        return _Place(given, False)
    try:
        return _Place(given if _text_key(t) else t.key_type.python_type(given), True)
    except (ValueError, TypeError, ArithmeticError, NotImplementedError):
        raise ConfigError(bounded.NO_CURSOR) from None


def _one_of_each(found: Iterable[Any]) -> list[int]:
    """Of rows (msg_id, key) one of each object, as far as the key identifies it."""
    seen: dict[Any, int] = {}
    for msg_id, key in found:
        if msg_id is not None:  # else it is no whole number
            seen.setdefault(key if _is_whole(key) else (msg_id,), int(msg_id))
    return list(seen.values())


def _infos(conn: Connection, t: Tables, world: World, heads: Mapping[int, int]) -> list[LaneInfo]:
    """The objects of these heads, with how many messages each has, in this order."""
    infos, full = messages.by_ids(conn, t, list(heads)), world.full()
    found = []
    for one in of_heads(conn, t, [infos[head] for head in heads if head in infos], world):
        head, behind = one.message, heads[one.message.msg_id] - 1
        limited = full.get(topic_of(head.topic)) if head.status in bounded.WAITING else None
        told = (one.reason, one.text, one.started, one.running_seconds, limited)
        found.append(LaneInfo(head.object_id, head, min(behind, BEHIND), behind > BEHIND, *told))
    return found


def _key(t: Tables, c: Cols) -> ColumnElement[Any]:
    """The object as the object index names it, of a very long one the beginning."""
    return beginning(t.object_key(c))


def _running(conn: Connection, t: Tables, limit: int) -> Iterable[Any]:
    def build() -> sa.Select[Any]:
        c = t.cols()
        ids = running_ids(t)
        columns: list[Any] = [c.msg_id, _key(t, c)]
        query = sa.select(*columns).select_from(ids.join(t.message, ids.c.i == c.msg_id))
        order = c.msg_id if c.claimed_at is None else c.claimed_at
        rows = bindparam("mw_rows", type_=sa.Integer())
        return query.where(c.object_id.is_not(None)).order_by(order).limit(rows)

    return conn.execute(t.built("lanes_running", build), {"mw_rows": limit}).all()


def _failing(conn: Connection, t: Tables, limit: int, scan: int) -> Iterable[Any]:
    """Heads that have failed: those that wait for their instant; dead ones if they block."""
    if t.spec.on_dead == "block" or not t.has("available_at"):
        c = t.cols()
        return _first(conn, t, bounded.failed(t, c), [t.unfinished(c)], limit)

    def build() -> sa.Select[Any]:
        c = t.cols()
        walk = bounded.waiting(t, c)
        failing = sa.case((sa.and_(t.failed(c), t.unfinished(c)), 1), else_=0)
        at, i = (column.label(name) for column, name in zip(walk.order, "ai", strict=True))
        waits = walk.hinted(t, sa.select(_key(t, c).label("o"), failing.label("f"), at, i))
        # Not all that wait have failed: a million may be delayed.
        most = bindparam("scan", type_=sa.Integer())
        w = waits.where(*walk.where).order_by(*walk.order).limit(most).subquery("w").c
        query = sa.select(w.i, w.o).where(w.f == 1, w.o.is_not(None)).order_by(w.a, w.i)
        return query.limit(bindparam("mw_rows", type_=sa.Integer()))

    params = {"mw_rows": limit, "scan": scan}
    return conn.execute(t.built("lanes_failing", build), params).all()


def _first(
    conn: Connection, t: Tables, walk: bounded.Walk, where: list[ColumnElement[bool]], limit: int
) -> Iterable[Any]:
    """The first rows of a walk that have an object. where: the same for each walk of one `by`."""

    def build() -> sa.Select[Any]:
        c = t.cols()
        rows = bindparam("mw_rows", type_=sa.Integer())
        wanted = [c.object_id.is_not(None), *where]
        return walk.query(t, [c.msg_id, _key(t, c)], wanted, end=None, limit=rows)

    return conn.execute(t.built(("lanes", walk.by), build), {"mw_rows": limit}).all()


def _deepest(conn: Connection, t: Tables, limit: int, scan: int) -> tuple[list[int], int, int]:
    """A message of each object with most entries; how many objects and entries were read."""
    if t.database.index_hint is None:
        return _deepest_of_entries(conn, t, limit, scan)

    # Grouped as the index is walked: a copy of the entries, grouped, takes several times as long.
    def scanned() -> sa.Select[Any]:
        query, key, order = _entries(t)
        query = query.with_only_columns(order.label("i"), beginning(key).label("k"))
        return query.order_by(key, order).limit(1).offset(bindparam("scan", type_=sa.Integer()))

    def grouped(last: _Place | None) -> Any:
        query, key, order = _entries(t)
        columns: list[Any] = [sa.func.min(order).label("i"), sa.func.count().label("n")]
        query = query if last is None else query.where(key < _bound(t, last))
        return query.with_only_columns(*columns).group_by(key).subquery("g").c

    def deepest(last: _Place | None) -> sa.Select[Any]:
        g = grouped(last)
        query = sa.select(g.i).order_by(g.n.desc(), g.i)
        return query.limit(bindparam("mw_rows", type_=sa.Integer()))

    def total() -> sa.Select[Any]:
        columns: list[Any] = [sa.func.count(), sa.func.sum(grouped(None).n)]
        return sa.select(*columns)

    end = conn.execute(t.built("lanes_scanned", scanned), {"scan": scan - 1}).first()
    last = None if end is None else _place(t, end[0], end[1])
    params: dict[str, Any] = {"mw_rows": limit} | ({} if last is None else {"last": last.value})
    by_key = None if last is None else last.by_key
    statement = t.built(("lanes_deepest", by_key), partial(deepest, last))
    ids = [int(one) for one in conn.scalars(statement, params) if one is not None]
    if end is not None:  # the last one is among them, however much of it was read
        return [*ids, end[0]], len(ids) + 1, scan
    found = conn.execute(t.built("lanes_total", total)).first()
    return (ids, int(found[0]), int(found[1] or 0)) if found else ([], 0, 0)


def _deepest_of_entries(
    conn: Connection, t: Tables, limit: int, scan: int
) -> tuple[list[int], int, int]:
    """The same in one statement whose planner has no choice of the index."""

    def build() -> sa.Select[Any]:
        query, key, order = _entries(t)
        e = query.order_by(key, order).limit(bindparam("scan", type_=sa.Integer())).subquery("e").c
        columns: list[Any] = [sa.func.min(e.i).label("i"), sa.func.count().label("n")]
        g = sa.select(*columns).group_by(e.o).subquery("g").c
        objects, total = sa.func.count().over(), sa.func.sum(g.n).over()
        query = sa.select(g.i, g.n, objects, total).order_by(g.n.desc(), g.i)
        return query.limit(bindparam("mw_rows", type_=sa.Integer()))

    params = {"scan": scan, "mw_rows": limit}
    found = conn.execute(t.built("lanes_deepest", build), params).all()
    if not found:
        return [], 0, 0
    ids = [int(row[0]) for row in found if row[0] is not None]
    return ids, int(found[0][2]), int(found[0][3])


def _entries(t: Tables) -> tuple[sa.Select[Any], ColumnElement[Any], ColumnElement[int]]:
    """The entries of the object index with an object, as `o` and `i`; and what it is ordered by."""
    c = t.cols()
    key, order = t.open_object(c), t.open_msg_id(c)
    query = t.hinted(sa.select(key.label("o"), order.label("i")), t.message, "object")
    return query.where(t.open_rows(c), t.between_objects(key)), key, order


def _heads(conn: Connection, t: Tables, ids: Sequence[int]) -> dict[int, tuple[int, int]]:
    """The head of the object of each of these messages, and how many are unfinished of it, counted
    up to BEHIND + 2."""

    def build(branches: int) -> sa.Select[Any]:
        parts = []
        for i in range(branches):
            source, one = t.message.alias("m"), t.message.alias("k")
            c, k = t.cols(source), t.cols(one)
            columns: list[ColumnElement[Any]] = [lit(i).label("p"), c.msg_id.label("i")]
            own = k.msg_id == bindparam(f"i{i}", type_=sa.BigInteger())
            key = sa.select(t.object_key(k)).where(own).scalar_subquery()
            query = t.hinted(sa.select(*columns), source, "object")
            query = query.where(t.open_object(c) == key, t.open_rows(c))
            branch = query.order_by(t.open_msg_id(c)).limit(lit(BEHIND + 2))
            parts.append(branch if t.database.bare_unions else sa.select(branch.subquery(f"q{i}")))
        u = (sa.union_all(*parts) if branches > 1 else parts[0]).subquery("u")
        return sa.select(u.c.p, sa.func.min(u.c.i), sa.func.count()).group_by(u.c.p)

    out: dict[int, tuple[int, int]] = {}
    for start in range(0, len(ids), LANES_PER_STATEMENT):
        part = ids[start : start + LANES_PER_STATEMENT]
        branches = 1 if len(part) == 1 else LANES_PER_STATEMENT
        params: dict[str, Any] = {f"i{i}": None for i in range(branches)}
        params |= {f"i{i}": one for i, one in enumerate(part)}
        statement = t.built(("lanes_heads", branches), partial(build, branches))
        for place, head, count in conn.execute(statement, params).all():
            if head is not None:  # else its id is no whole number
                out[part[place]] = (int(head), int(count))
    return out


# --- Where a message stands among the unfinished ones of its object, and how many wait behind it.

MOST = 1_000
"""Messages before and behind are counted up to this number."""


@dataclass(frozen=True, slots=True)
class LanePlace:
    """The place of an unfinished message. ahead, behind: unfinished messages of its object before
    and after it, by msg_id. head: the first unfinished one, which may be itself."""

    object_id: Any
    head: int
    ahead: bounded.Capped
    behind: bounded.Capped


def place(conn: Connection, t: Tables, msg_id: int) -> LanePlace | None:
    """The place of a message; None if it has no object, has ended, or does not exist."""
    c = t.cols()
    own = sa.select(beginning(c.object_id)).where(c.msg_id == msg_id, t.unfinished(c))
    row = conn.execute(own).first()
    if row is None or row[0] is None:
        return None
    params = {"id": msg_id}
    head, *sides = conn.execute(t.built("place_ahead", partial(_side, t, True)), params).one()
    sides += conn.execute(t.built("place_behind", partial(_side, t, False)), params).one()[1:]
    ahead, behind = (bounded.Capped(min(int(count), MOST), int(count) > MOST) for count in sides)
    return LanePlace(shortened(row[0]), msg_id if head is None else int(head), ahead, behind)


def _side(t: Tables, ahead: bool) -> sa.Select[Any]:
    """The first msg_id, and how many there are, on one side."""
    c = t.cols()
    order = t.open_msg_id(c)
    own = bindparam("id", type_=sa.BigInteger())
    query = t.hinted(sa.select(c.msg_id.label("i")), t.message, "object")
    m = t.cols(t.message.alias("m"))
    key = sa.select(t.object_key(m)).where(m.msg_id == own).scalar_subquery()
    query = query.where(t.open_object(c) == key, t.open_rows(c))
    query = query.where(order < own if ahead else order > own)
    w = query.order_by(order).limit(MOST + 1).subquery("w").c
    columns: list[Any] = [sa.func.min(w.i), sa.func.count()]
    return sa.select(*columns)
