"""Bounded reads of large tables: how far, from where, and whether that was all.

Rule: no look of operators may cost more on ten million finished rows than on ten thousand. Without
a suitable index it reads a window of the primary key, and the result says where it stopped.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection

from msgworker.db import real_instant
from msgworker.store.recover import running_rows
from msgworker.table import Cols, Tables

T = TypeVar("T")
SCAN = 100_000
"""Rows of the primary key that one look reads at most."""
OPEN_SCAN = 50_000
"""Entries of the index of unfinished rows by object that one look reads at most."""
SINCE_SLACK = 1000
LEAST, MOST = -(2**63), 2**63 - 1


class Found(list[T]):
    """The result of a look.

    complete: False if only a part of the table was read. next_after: where to continue, None at the
    end. looked_at: how many rows were read, where that is known.
    """

    def __init__(
        self,
        rows: Iterable[T] = (),
        *,
        complete: bool = True,
        next_after: Any = None,
        looked_at: int | None = None,
    ) -> None:
        super().__init__(rows)
        self.complete = complete
        self.next_after = next_after
        self.looked_at = looked_at


def last_of(conn: Connection, t: Tables, *, after: int, rows: int | None = None) -> int | None:
    """The msg_id up to which `rows` rows (SCAN) behind `after` reach, None if there are fewer."""
    rows = SCAN if rows is None else rows
    c = t.cols()
    query = sa.select(c.msg_id).where(c.msg_id > sa.literal(after, sa.BigInteger()))
    found = conn.scalar(query.order_by(c.msg_id).limit(1).offset(rows - 1))
    return None if found is None else int(found)


def ends(conn: Connection, t: Tables) -> tuple[int, int] | None:
    """The lowest and the highest msg_id, None in an empty table."""
    c = t.cols()
    first = conn.scalar(sa.select(sa.func.min(c.msg_id)))
    last = conn.scalar(sa.select(sa.func.max(c.msg_id)))
    return None if first is None or last is None else (int(first), int(last))


def before_instant(conn: Connection, t: Tables, instant: datetime) -> int:
    """A msg_id behind which all rows created since `instant` are.

    Ids and times of creation grow together, up to producers whose transactions overlap; so the
    place is found by halving, and a little is given back.
    """
    found = ends(conn, t)
    c = t.cols()
    if found is None or c.created_at is None:
        return LEAST
    low, high = found[0] - 1, found[1]
    while high - low > SINCE_SLACK:
        middle = (low + high) // 2
        query = sa.select(real_instant(c.created_at))
        query = query.where(c.msg_id > sa.literal(middle, sa.BigInteger()))
        created = conn.scalar(query.order_by(c.msg_id).limit(1))
        if created is None or created >= instant:
            high = middle
        else:
            low = middle
    return low - SINCE_SLACK


def lowest_open(conn: Connection, t: Tables) -> int | None:
    """The lowest msg_id of an unfinished message, None if there is none: reads the object index,
    all of it on databases that have no index of unfinished rows by age."""
    c = t.cols()
    query = t.hinted(sa.select(sa.func.min(t.open_msg_id(c))), t.message, "object")
    found = conn.scalar(query.where(t.all_open(c)))
    return None if found is None else int(found)


def first_open(conn: Connection, t: Tables) -> tuple[int, bool] | None:
    """The lowest msg_id among the first OPEN_SCAN unfinished rows that the object index holds, and
    whether those are all; None if there is none.

    For databases that have no index of unfinished rows by age: with more rows than that, older
    ones may stand before it.
    """
    c = t.cols()
    query = t.hinted(sa.select(c.msg_id.label("i")), t.message, "object")
    query = query.where(t.open_object(c).is_not(None)).limit(OPEN_SCAN)
    w = query.subquery("w").c
    lowest, count = conn.execute(sa.select(sa.func.min(w.i), sa.func.count())).one()
    return None if lowest is None else (int(lowest), int(count) < OPEN_SCAN)


def running(t: Tables) -> sa.Subquery:
    """The ids of all running rows, as a subquery with the column `i`: few, whatever the table."""
    parts = []
    for source, c, index, where in running_rows(t):
        parts.append(t.hinted(sa.select(c.msg_id.label("i")), source, index).where(where))
    found = parts[0] if len(parts) == 1 else sa.union_all(*parts)
    return found.subquery("rids")


def same_object(t: Tables, c: Cols, object_id: Any) -> ColumnElement[bool]:
    """Open rows of an object, as the object index finds them."""
    return sa.and_(t.open_object(c) == sa.literal(t.key(object_id), t.key_type), t.open_rows(c))
