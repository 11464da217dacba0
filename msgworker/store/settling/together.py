"""The settle of messages that are done, in one UPDATE, where an UPDATE keeps to an order of rows.

It ends the old rows and flags the next ones: a statement and the COMMIT, in place of a lock, two
statements and the COMMIT. Rows are read and locked by msg_id, as everywhere, since the ids are
given; then they are changed in the order of the guard (`rows.in_guard_order`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection, bindparam

from msgworker.message import Settled, Settlement, Status
from msgworker.store.rows import ME, changed, flagged_values, in_guard_order
from msgworker.store.settling.done import FlagMissing, done_values, may_follow
from msgworker.table import Cols, Tables, lit


class NotTogether(FlagMissing):
    """A row of the batch was not as expected, and the statement does not say which: roll back and
    settle it in steps."""


def fits(t: Tables, batch: Sequence[Settlement]) -> bool:
    """Whether a batch of messages that are done can be written so: where rows have owners, whose
    tries need not be asked for, and not in several statements."""
    able = t.orders_updates and t.has("claimed_by")
    return able and 2 * len(batch) <= t.dialect.max_ids


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
    key = ("together", bool(nexts))
    change = t.built(key, lambda: _build(t, moving=bool(nexts)))
    if changed(conn, t, key, change, params) != len(heads) + len(nexts):
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
