"""Pages of messages, newest or oldest first, for the lists that people look through.

A list is a chain of walks, each along one index; a cursor names the walk and the place in it. A
walk whose filter no index serves goes over at most bounded.SCAN rows per page: the page then says
that it is not complete, and where to continue.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from msgworker.db.clock import instant_of, instant_text, read_instant
from msgworker.db.types import AnyText
from msgworker.errors import ConfigError
from msgworker.message import State
from msgworker.queries import messages
from msgworker.queries.messages import MessageInfo, columns_of, info_of
from msgworker.store import bounded
from msgworker.store.bounded import NO_CURSOR, Filter, Found, Page, Walk, an_id
from msgworker.store.tries import group_columns, group_of
from msgworker.table.columns import Cols
from msgworker.table.tables import Tables

GROUP_WALK = 5_000
"""Failed rows that one page of a group looks at, as `failures` does."""


def page(
    conn: Connection, t: Tables, wanted: Filter, *, newest: bool, limit: int, after: str | None
) -> Found[MessageInfo]:
    """Messages without their payloads, behind the cursor `after`; `next_after` is the next one.

    Those of one object that are unfinished come before the finished ones; new ones that wait for an
    instant after the others, by that instant.
    """
    if not bounded.walks(t, t.cols(), wanted):
        return Found()
    if wanted.fingerprint is not None:
        at = None if after is None else bounded.cursor_place(after, int)[0]
        found = of_group(conn, t, wanted, newest=newest, limit=limit, after=at)
        if found.next_after is not None:
            found.next_after = bounded.cursor_text([found.next_after])
        return found
    if wanted.words == (State.DONE,) and newest and wanted.job is None:
        found = _done(conn, t, wanted, limit, after)
    else:
        found = _chain(conn, t, wanted, newest, limit, after)
    found[:] = messages.with_past(conn, t, found)
    return found


def _chain(
    conn: Connection, t: Tables, wanted: Filter, newest: bool, limit: int, after: str | None
) -> Found[MessageInfo]:
    walks = _walks(t, t.cols(), wanted)
    number, at = (0, None) if after is None else bounded.cursor_place(after, int, (int, list))
    low = None if wanted.since is None else bounded.before_instant(conn, t, wanted.since)
    rows: list[MessageInfo] = []
    while 0 <= number < len(walks):
        walk, by_id = walks[number], partial(_along, newest=newest, low=low)
        read = by_id if walk.instant is None else _late
        found = read(conn, t, walk, wanted, limit=limit - len(rows), at=at)
        rows += found.rows
        if found.next_at is not None:
            following = bounded.cursor_text([number, found.next_at])
            return Found(rows, complete=not found.cut, next_after=following)
        number, at = number + 1, None
    return Found(rows)


def _walks(t: Tables, c: Cols, wanted: Filter) -> list[Walk]:
    """The walks of a list, in the order in which they are shown."""
    ended = not set(wanted.words) <= {State.NEW, State.PROCESSING, State.FAILED}
    if wanted.object_id is None or wanted.job is not None or not ended:
        return bounded.walks(t, c, wanted)
    opened = Walk("object", (bounded.same_object(t, c, wanted.object_id),), c.msg_id)
    return [opened, Walk(None, (), c.msg_id, but=t.unfinished(c))]


def _along(
    conn: Connection,
    t: Tables,
    walk: Walk,
    wanted: Filter,
    *,
    newest: bool,
    low: int | None,
    limit: int,
    at: Any,
) -> Page:
    """Page of a walk by msg_id, behind `at`; low: all rows that are wanted stand behind it."""
    if at is not None and not isinstance(at, int):
        raise ConfigError(NO_CURSOR)
    c = t.cols()
    walk = walk.behind(at, newest=newest).behind(low)
    columns, where = columns_of(c, payload=False), bounded.where(t, c, wanted)
    found = bounded.page_of(conn, t, [walk], columns, where, limit=limit, newest=newest)
    return found._replace(rows=[info_of(t, row) for row in found.rows])


def _late(conn: Connection, t: Tables, walk: Walk, wanted: Filter, *, limit: int, at: Any) -> Page:
    """Rows that wait for an instant, the next one first. at: the instant, as a text, and the msg_id
    behind which it continues."""
    c, where = t.cols(), list(walk.where)
    instant, key = walk.order
    if at is not None:
        text, msg_id = _place(at)
        from_there: Any = instant_of(sa.literal(text, AnyText()), instant)
        where.append(instant >= from_there)
        where.append(sa.or_(instant > from_there, key > an_id(msg_id)))
    shown: Any = instant_text(instant)
    bound: sa.Select[Any] = sa.select(shown, key).where(*where).order_by(*walk.order)
    last = conn.execute(walk.hinted(t, bound).limit(1).offset(bounded.SCAN - 1)).first()
    query: sa.Select[Any] = sa.select(*columns_of(c, payload=False), shown)
    query = walk.hinted(t, query).where(*where, *bounded.where(t, c, wanted))
    if last is not None:
        end: Any = instant_of(sa.literal(str(last[0]), AnyText()), instant)
        query = query.where(instant <= end)
        query = query.where(sa.or_(instant < end, key <= an_id(int(last[1]))))
    found = conn.execute(query.order_by(*walk.order).limit(limit)).all()
    rows = [info_of(t, row[:-1]) for row in found]
    if len(rows) == limit:
        return Page(rows, [str(found[-1][-1]), rows[-1].msg_id])
    return Page(rows, None if last is None else [str(last[0]), int(last[1])], last is not None)


def _place(at: Any) -> tuple[str, int]:
    """The parts of a cursor into rows that wait for an instant."""
    with suppress(ValueError, TypeError):
        text, msg_id = at
        if isinstance(text, str) and type(msg_id) is int and -(2**63) <= msg_id < 2**63:
            read_instant(text)
            return text, msg_id
    raise ConfigError(NO_CURSOR)


def _done(
    conn: Connection, t: Tables, wanted: Filter, limit: int, after: str | None
) -> Found[MessageInfo]:
    """Done ones, the newest first. Where a backlog stands on top of them, so that SCAN rows hold
    none, those below the oldest waiting message come next, and what is among the backlog last."""
    stage, at, top, low_open = 0, None, None, None
    if after is not None:
        place = (int, type(None))
        stage, at, top, low_open = bounded.cursor_place(after, int, place, place, place)
    walk = _walks(t, t.cols(), wanted)[-1]
    low = None if wanted.since is None else bounded.before_instant(conn, t, wanted.since)
    read = partial(_along, conn, t, walk, wanted, newest=True, limit=limit)
    found = read(low=low if stage < 2 else low_open, at=at)
    if stage == 0 and found.cut and not found.rows:
        split = _lowest_open(conn, t)
        if split is not None and split <= found.next_at and (low is None or split > low):
            stage, top, low_open = 1, found.next_at, split
            found = read(low=low, at=split)
    following = None if found.next_at is None else [stage, found.next_at, top, low_open]
    if stage == 1 and following is None and top is not None and low_open is not None:
        following, found = [2, top, None, low_open], found._replace(cut=False)
    cursor = None if following is None else bounded.cursor_text(following)
    return Found(found.rows, complete=not found.cut, next_after=cursor)


def _lowest_open(conn: Connection, t: Tables) -> int | None:
    """The lowest msg_id of an unfinished message, as far as an index shows it."""
    if not t.database.oldest_index:
        return (bounded.first_open(conn, t) or (None,))[0]
    return bounded.walks(t, t.cols(), Filter((State.NEW,)))[0].end(conn, t, rows=1)


def of_group(
    conn: Connection, t: Tables, wanted: Filter, *, newest: bool, limit: int, after: int | None
) -> Found[MessageInfo]:
    """The failed messages of a group, by the last try, else by the last error. after: a msg_id."""
    c, job = t.cols(), None if wanted.job is None else an_id(wanted.job)
    walk = bounded.failed(t, c, job).behind(after, newest=newest)
    last = walk.end(conn, t, rows=GROUP_WALK, newest=newest)
    columns = [c.msg_id.label("i"), *group_columns(t, c)]
    where = bounded.where(t, c, wanted)
    inner = walk.query(t, columns, where, end=last, limit=GROUP_WALK, newest=newest)
    q = inner.subquery("q").c
    text = sa.case((q.p.is_(None), q.e))
    query = sa.select(q.i, q.p, text, q.n)
    query = query.where(sa.or_(q.p == wanted.fingerprint, q.p.is_(None)))
    ids = []
    for msg_id, *decides in conn.execute(query.order_by(q.i.desc() if newest else q.i)):
        if group_of(*decides) == wanted.fingerprint:
            ids.append(int(msg_id))
        if len(ids) == limit:
            break
    infos = messages.by_ids(conn, t, ids)
    rows = messages.with_past(conn, t, [infos[i] for i in ids if i in infos])
    if len(ids) == limit:
        return Found(rows, next_after=ids[-1])
    return Found(rows, complete=last is None, next_after=last)
