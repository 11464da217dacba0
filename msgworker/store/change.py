"""What ops may do to rows: rerun. Conditional, in bounded batches; running rows are never
touched."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from msgworker.message import Status, Word
from msgworker.store.find import in_state
from msgworker.table import Tables, lit

BATCH = 500


def ids_in_state(
    conn: Connection, t: Tables, word: Word, *, topic: str | None, after: int | None
) -> list[int]:
    """The next msg_ids in a state, behind `after`, at most BATCH."""
    c = t.cols()
    query = sa.select(c.msg_id).where(in_state(t, c, word))
    if topic is not None:
        query = query.where(sa.false() if c.topic is None else c.topic == topic)
    if after is not None:
        query = query.where(c.msg_id > after)
    return list(conn.scalars(query.order_by(c.msg_id).limit(BATCH)))


def rerun(conn: Connection, t: Tables, ids: Sequence[int], *, done_too: bool = False) -> int:
    """Put failed and dead messages back to new with no tries counted; return how many were.

    In the caller's transaction; at most BATCH ids. A row that is new or running stays as it is.
    """

    def build() -> sa.Update:
        c = t.cols()
        allowed = [lit(Status.FAILED), *([lit(Status.DONE)] if done_too else [])]
        zero: sa.ColumnElement[int] = sa.literal_column("0")
        values: dict[str, Any] = t.values(
            status=lit(Status.NEW),
            error_try_times=zero,
            crash_times=zero,
            later_times=zero,
            available_at=sa.null(),
            claimed_by=sa.null(),
            finished_at=sa.null(),
        )
        ids_in = t.among(c.msg_id)
        return sa.update(t.message).where(ids_in, c.status.in_(allowed)).values(values)

    if not ids:
        return 0
    return int(conn.execute(t.built(("rerun", done_too), build), {"mw_ids": list(ids)}).rowcount)
