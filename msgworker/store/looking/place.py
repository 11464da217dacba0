"""Where a message stands among the unfinished ones of its object, and how many wait behind it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, bindparam

from msgworker.dialects import beginning
from msgworker.payload import told
from msgworker.store.looking.capped import Capped
from msgworker.table import Tables

MOST = 1_000
"""Messages before and behind are counted up to this number."""


@dataclass(frozen=True, slots=True)
class LanePlace:
    """The place of an unfinished message. ahead, behind: unfinished messages of its object before
    and after it, by msg_id. head: the first unfinished one, which may be itself."""

    object_id: Any
    head: int
    ahead: Capped
    behind: Capped


def place(conn: Connection, t: Tables, msg_id: int) -> LanePlace | None:
    """The place of a message; None if it has no object, has ended, or does not exist."""
    c = t.cols()
    own = sa.select(beginning(c.object_id)).where(c.msg_id == msg_id, t.unfinished(c))
    row = conn.execute(own).first()
    if row is None or row[0] is None:
        return None
    params = {"id": msg_id}
    head, ahead = conn.execute(t.built("place_ahead", partial(_side, t, True)), params).one()
    _, behind = conn.execute(t.built("place_behind", partial(_side, t, False)), params).one()
    return LanePlace(
        told(row[0]), msg_id if head is None else int(head), _upto(ahead), _upto(behind)
    )


def _upto(count: int) -> Capped:
    return Capped(min(int(count), MOST), int(count) > MOST)


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
