"""Reading a part of a large table: how far, from where, and whether that was all.

Rule: no look of ops may cost more on ten million finished rows than on ten thousand. What no index
serves is read in windows of the primary key, and the answer says where it stopped.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection

from msgworker import dialects
from msgworker.table import Cols, Tables

T = TypeVar("T")
SCAN = 100_000
"""Rows of the primary key that one look reads at most."""
OPEN_SCAN = 2_000_000
"""Entries of the index of unfinished rows that are counted or searched at most."""
SINCE_SLACK = 1000
LEAST, MOST = -(2**63), 2**63 - 1


class Found(list[T]):
    """What a look has found.

    complete: False if only a part of the table was read. next_after: where to go on, None at the
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


def last_of(conn: Connection, t: Tables, *, after: int, rows: int = SCAN) -> int | None:
    """The msg_id up to which `rows` rows behind `after` reach, None if there are fewer."""
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
        query = sa.select(c.created_at).where(c.msg_id > sa.literal(middle, sa.BigInteger()))
        created = conn.scalar(query.order_by(c.msg_id).limit(1))
        if created is None or created >= instant:
            high = middle
        else:
            low = middle
    return low - SINCE_SLACK


def lowest_open(conn: Connection, t: Tables) -> int | None:
    """The lowest msg_id of an unfinished row, None if there is none; LEAST if it is not known.

    Where no index is ordered by age this reads all entries of unfinished rows, so not more than
    OPEN_SCAN of them are taken on.
    """
    c = t.cols()
    if t.dialect.oldest_index:
        key = t.oldest_key(c)
        query = t.hinted(sa.select(key), t.message, "oldest").where(t.oldest_rows(c))
        firsts = [conn.scalar(query.where(key.is_not(None)).order_by(key).limit(1))]
        waiting = sa.select(c.msg_id, c.available_at) if c.available_at is not None else None
        if waiting is not None:
            where = (t.unfinished(c), c.available_at.is_not(None))  # type: ignore[union-attr]
            part = t.hinted(waiting, t.message, "due").where(*where)
            part = part.order_by(c.available_at, c.msg_id).limit(SCAN)
            firsts.append(conn.scalar(sa.select(sa.func.min(part.subquery("w").c[0]))))
        known = [int(first) for first in firsts if first is not None]
        return min(known) if known else None
    rows = dialects.row_estimate(conn, t.message)
    if rows is None or rows > OPEN_SCAN:
        # How many of them are open nobody knows; one entry beyond the limit tells.
        beyond = t.hinted(sa.select(c.msg_id), t.message, "object")
        beyond = beyond.where(t.open_object(c).is_not(None)).limit(1).offset(OPEN_SCAN)
        if conn.scalar(beyond) is not None:
            return LEAST
    query = t.hinted(sa.select(sa.func.min(c.msg_id)), t.message, "object")
    found = conn.scalar(query.where(t.open_object(c).is_not(None)))
    return None if found is None else int(found)


def failed_ids(t: Tables, *, newest: int) -> sa.Subquery:
    """The ids of the newest failed and dead rows, as a subquery with the column `i`."""
    source = t.message.alias("fi")
    c = t.cols(source)
    query = t.hinted(sa.select(c.msg_id.label("i")), source, "failed").where(t.failed_rows(c))
    return query.order_by(t.failed_key(c).desc()).limit(newest).subquery("fids")


def running(t: Tables) -> sa.Subquery:
    """The ids of all running rows, as a subquery with the column `i`: few, whatever the table."""
    from msgworker.store.recover import running_rows

    parts = []
    for source, c, index, where in running_rows(t):
        parts.append(t.hinted(sa.select(c.msg_id.label("i")), source, index).where(where))
    found = parts[0] if len(parts) == 1 else sa.union_all(*parts)
    return found.subquery("rids")


def same_object(t: Tables, c: Cols, object_id: Any) -> ColumnElement[bool]:
    """Open rows of an object, as the object index finds them."""
    key = str(object_id) if t.dialect.case_index else object_id
    return sa.and_(t.open_object(c) == sa.literal(key, t.key_type), t.open_rows(c))
