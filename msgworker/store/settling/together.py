"""The settle of messages that are done, in one statement: it ends the old rows and flags the next
ones. A statement and the COMMIT, instead of a lock, two statements and the COMMIT.

Where an UPDATE keeps to an order of rows it is one UPDATE. Rows are read and locked by msg_id, as
everywhere, since the ids are given; then they are changed in the order of the guard
(`rows.in_guard_order`). Elsewhere it is one block of the lock and the two UPDATEs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection, bindparam
from sqlalchemy.exc import DBAPIError

from msgworker.dialects import block_of, can_block, refuses_block, send_block, text_kind
from msgworker.message import Settled, Settlement, Status
from msgworker.store.rows import ME, changed, flagged_values, in_guard_order
from msgworker.store.settling.done import FlagMissing, done_values, locking, may_follow
from msgworker.table import Cols, Tables, lit


class NotTogether(FlagMissing):
    """A row of the batch was not as expected, and the statement does not say which: roll back and
    settle it in steps."""


def fits(conn: Connection, t: Tables, batch: Sequence[Settlement]) -> bool:
    """Whether a batch of messages that are done can be written so: where rows have owners, whose
    tries need not be asked for, and not in several statements."""
    able = t.orders_updates or (t.dialect.blocks and can_block(conn))
    return able and t.has("claimed_by") and 2 * len(batch) <= t.dialect.max_ids


def done_together(
    conn: Connection, t: Tables, batch: Sequence[Settlement], me: str
) -> dict[int, Settled]:
    """Write all of it, in the caller's transaction; raises NotTogether if a row is not as it was
    read, whether it is ours no longer or a next one that cannot be flagged."""
    heads = [s.msg_id for s in batch]
    nexts = [s.next_id for s in batch if s.next_id is not None]
    params: dict[str, Any] = {"mw_ids": sorted({*heads, *nexts}), "mw_me": me}
    if nexts:
        params |= {"mw_heads": heads, "mw_nexts": nexts}
    if t.orders_updates:
        key = ("together", bool(nexts))
        change = t.built(key, lambda: _build(t, moving=bool(nexts)))
        written = changed(conn, t, key, change, params)
    else:
        written = _in_block(conn, t, heads, nexts, params)
    if written != len(heads) + len(nexts):
        raise NotTogether
    return {s.msg_id: Settled.ENDED if s.next_id is None else Settled.WENT_ON for s in batch}


def _build(t: Tables, *, moving: bool) -> sa.Update:
    c = t.cols()
    change = sa.update(t.message).where(t.among(c.msg_id))
    if not moving:
        return change.where(t.mine(c, ME)).values(done_values(t))
    ended = sa.and_(_one_of(c, "mw_heads"), t.mine(c, ME))
    next_one = sa.and_(_one_of(c, "mw_nexts"), *may_follow(t, c))
    change = change.where(sa.or_(ended, next_one)).ordered_values(*_values(t, c))
    return in_guard_order(t, change)


def _in_block(
    conn: Connection, t: Tables, heads: list[int], nexts: list[int], params: dict[str, Any]
) -> int:
    """How many rows were changed. The text depends on the lengths of the lists, so the next ones
    are made as many as the heads."""

    def build() -> sa.TextClause:
        c = t.cols()
        ended = sa.update(t.message).where(_one_of(c, "mw_heads"), t.mine(c, ME))
        changes = {"mw_ended": ended.values(done_values(t))}
        if nexts:
            moved = sa.update(t.message).where(_one_of(c, "mw_nexts"), *may_follow(t, c))
            changes["mw_moved"] = moved.values(flagged_values(t))
        return block_of(conn, locking(t), changes)

    params |= {"mw_heads": heads}
    if nexts:
        params |= {"mw_nexts": nexts + nexts[-1:] * (len(heads) - len(nexts))}
    try:
        block = t.built(("block", bool(nexts), *text_kind(conn)), build)
        return sum(send_block(conn, block, params))
    except DBAPIError as error:
        if refuses_block(conn, error):
            raise NotTogether from error
        raise


def _one_of(c: Cols, name: str) -> ColumnElement[bool]:
    return c.msg_id.in_(bindparam(name, expanding=True))


def _values(t: Tables, c: Cols) -> list[tuple[str, Any]]:
    """By the status that a row had: assigned last, since assignments see those before them."""
    was_running = c.status == lit(Status.PROCESSING)
    ended, flagged = done_values(t), flagged_values(t)
    last = t.names["status"]
    values = []
    for name in sorted(ended.keys() | flagged.keys(), key=lambda name: (name == last, name)):
        column = t.message.c[name]
        value = sa.case((was_running, ended.get(name, column)), else_=flagged.get(name, column))
        values.append((name, value))
    return values
