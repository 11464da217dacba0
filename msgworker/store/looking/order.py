"""The messages behind a message of the same object, and those that ran after it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection

from msgworker.dialects import joining_widely
from msgworker.message import Status
from msgworker.store.changing.change import Filter, SeenRow, where
from msgworker.store.looking import window
from msgworker.table import Cols, Tables, lit


def ran_later(
    conn: Connection, t: Tables, ids: Sequence[int], *, wanted: Filter | None = None
) -> dict[int, int]:
    """Messages behind which a later one of their object is done or runs: msg_id -> that one.

    ids: those that have an object, in order; without a filter at most `max_ids`. Costs one walk
    over the table from the lowest id on, since finished rows stand in no index of ours; of a single
    message it ends at the first one found, and uses an index by object if the table has one.
    """
    if len(ids) < 2:
        return {i: late for i in ids if (late := _ran_later(conn, t, i)) is not None}

    def chosen(c: Cols) -> list[ColumnElement[bool]]:
        if wanted is None:
            return [t.among(c.msg_id)]
        return [c.msg_id.between(ids[0], ids[-1]), *where(t, c, wanted)]

    first_row, later_row, row = (t.message.alias(name) for name in ("f", "s", "c"))
    f, s, c = t.cols(first_row), t.cols(later_row), t.cols(row)
    first = (
        sa.select(f.object_id.label("o"))
        .where(f.object_id.is_not(None), *chosen(f))
        .group_by(f.object_id)
        .subquery("g")
    )
    # An outer join, so that the table is walked once and looked up in the few: planners that think
    # it is small would walk it once for each of them.
    last = (
        sa.select(first.c.o.label("o"), sa.func.max(s.msg_id).label("hi"))
        .select_from(later_row.outerjoin(first, first.c.o == s.object_id))
        .where(s.msg_id > ids[0], s.status.in_([lit(Status.DONE), lit(Status.PROCESSING)]))
        .group_by(first.c.o)
        .subquery("h")
    )
    before = sa.and_(c.object_id == last.c.o, c.msg_id < last.c.hi)
    query = sa.select(c.msg_id, last.c.hi).select_from(row.join(last, before)).where(*chosen(c))
    params = {} if wanted is not None else {"mw_ids": list(ids)}
    with joining_widely(conn, t.dialect):
        return {found[0]: found[1] for found in conn.execute(query, params)}


def _ran_later(conn: Connection, t: Tables, msg_id: int) -> int | None:
    def build() -> sa.Select[Any]:
        c = t.cols()
        ran = c.status.in_([lit(Status.DONE), lit(Status.PROCESSING)])
        query = sa.select(c.msg_id).where(_behind_it(t, c), ran)
        return query.order_by(c.msg_id.desc()).limit(sa.literal_column("1"))

    found = conn.scalar(t.built("ran_later", build), {"head": msg_id})
    return None if found is None else int(found)


def runs_later(conn: Connection, t: Tables, ids: Sequence[int]) -> dict[int, int]:
    """The same for later ones that run at this moment: cheap, by the guard's index.

    At most `max_ids` ids.
    """

    def build() -> sa.Select[Any]:
        source = t.message.alias("r")
        c, other = t.cols(), t.cols(source)
        columns: list[Any] = [c.msg_id, other.msg_id.label("other_id")]
        query = t.hinted(sa.select(*columns), source, "guard")
        behind = sa.and_(t.runs(other, t.object_key(c)), other.msg_id > c.msg_id)
        return query.select_from(t.message.join(source, behind)).where(t.among(c.msg_id))

    if not ids:
        return {}
    found = conn.execute(t.built("runs_later", build), {"mw_ids": list(ids)})
    return {row[0]: row[1] for row in found}


class Behind(NamedTuple):
    """The messages behind others when they were read, to detect later whether one of them has run.

    objects: of each message that has one. first: the lowest unfinished one behind it, of its
    object; nothing behind that one starts before it has ended. high: rows above this msg_id may
    have come since.
    """

    objects: dict[int, Any]
    first: dict[int, int]
    high: int


def behind(conn: Connection, t: Tables, ids: Sequence[int]) -> Behind:
    """What stands behind these messages now: one step into the object index for each."""

    def build() -> sa.Select[Any]:
        c = t.cols()
        source = t.message.alias("n")
        n = t.cols(source)
        first = t.hinted(sa.select(t.open_msg_id(n)), source, "object").where(
            t.open_object(n) == t.object_key(c), t.open_msg_id(n) > c.msg_id, t.open_rows(n)
        )
        lowest = first.order_by(t.open_msg_id(n)).limit(sa.literal_column("1")).scalar_subquery()
        columns: list[Any] = [c.msg_id, c.object_id, lowest.label("n")]
        return sa.select(*columns).where(t.among(c.msg_id), c.object_id.is_not(None))

    last = window.ends(conn, t)
    # An id is given at the INSERT and shows at the COMMIT: a few below the highest may yet come.
    seen = Behind({}, {}, window.LEAST if last is None else last[1] - window.SINCE_SLACK)
    for start in range(0, len(ids), t.dialect.max_ids):
        part = list(ids[start : start + t.dialect.max_ids])
        for msg_id, object_id, first in conn.execute(t.built("behind", build), {"mw_ids": part}):
            seen.objects[msg_id] = object_id
            if first is not None:
                seen.first[msg_id] = first
    return seen


def done_above(conn: Connection, t: Tables, msg_id: int) -> dict[Any, int]:
    """The highest done message of each object, among those above `msg_id`: object -> msg_id."""

    def build() -> sa.Select[Any]:
        c = t.cols()
        columns: list[Any] = [c.object_id, sa.func.max(c.msg_id)]
        query = sa.select(*columns).group_by(c.object_id)
        # With both ends: a planner that does not know the values takes an open range for a third
        # of the table and reads all of it.
        low, high = (sa.bindparam(name, type_=sa.BigInteger()) for name in ("low", "high"))
        came = c.msg_id.between(low, high)
        return query.where(came, c.status == lit(Status.DONE), c.object_id.is_not(None))

    params = {"low": msg_id + 1, "high": window.MOST}
    return {row[0]: row[1] for row in conn.execute(t.built("done_above", build), params)}


def tail(
    conn: Connection, t: Tables, msg_id: int, *, done: Sequence[int] | None, limit: int
) -> list[SeenRow]:
    """A message and those of its object behind it, in order, at most `limit`.

    done: of those that are done only these, at most `max_ids`; None = all.
    """

    def build() -> sa.Select[Any]:
        c = t.cols()
        where = sa.or_(c.msg_id == sa.bindparam("head"), _behind_it(t, c))
        if done is not None:
            where = sa.and_(where, sa.or_(c.status != lit(Status.DONE), t.among(c.msg_id)))
        columns: list[Any] = [c.msg_id, c.status, t.tries(c)]
        query = sa.select(*columns).where(where).order_by(c.msg_id)
        return query.limit(sa.bindparam("rows", type_=sa.Integer()))

    params: dict[str, Any] = {"head": msg_id, "rows": limit}
    if done is not None:
        params["mw_ids"] = list(done)
    found = conn.execute(t.built(("tail", done is None), build), params)
    return [SeenRow._make(row) for row in found]


def done_behind(conn: Connection, t: Tables, msg_id: int) -> int:
    """How many messages of its object behind a message are done."""

    def build() -> sa.Select[Any]:
        c = t.cols()
        query = sa.select(sa.func.count(c.msg_id))
        return query.where(_behind_it(t, c), c.status == lit(Status.DONE))

    return int(conn.scalar(t.built("done_behind", build), {"head": msg_id}) or 0)


def _behind_it(t: Tables, c: Cols) -> ColumnElement[bool]:
    h = t.cols(t.message.alias("h"))
    mine = sa.select(h.object_id).where(h.msg_id == sa.bindparam("head")).scalar_subquery()
    return sa.and_(c.msg_id > sa.bindparam("head"), c.object_id == mine)
