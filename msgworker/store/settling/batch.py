"""The outcome of a batch, in the transaction of its handler: all of it is written, or nothing.

The head of each lane is flagged by us and goes from 1 to 2. The messages behind it are at 0, held
by their head, and go from 0 to 2. All rows are locked first, in msg_id order over all lanes:
otherwise a batch could deadlock with another one, a claim, a foreign consumer or people.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection

from msgworker.dialects import now
from msgworker.message import Status
from msgworker.store.rows import (
    ME,
    Wanted,
    array_param,
    array_text,
    changed,
    check_written,
    flagged_values,
    in_guard_order,
)
from msgworker.store.settling.done import FlagMissing, done_values, may_follow, moved_on
from msgworker.table import Cols, Tables, lit

_Change = tuple[Any, sa.Update]
"""An UPDATE and its key."""


class Share(NamedTuple):
    """What a batch takes of a lane: its head, which is flagged, and those right behind it. next_id:
    the message that gets the flag, None if the lane ends."""

    head: int
    followers: Sequence[int] = ()
    next_id: int | None = None


class OutOfDate(Exception):
    """A head is no longer ours, or a follower no longer free: nothing may be committed."""


def settle_batch(
    conn: Connection, t: Tables, shares: Sequence[Share], *, me: str, tries: int | None = 0
) -> set[int]:
    """Write that all messages are done; return the next ones that are flagged by us now.

    In the caller's transaction, after the handler. tries: of the heads, as they were claimed; one
    with a try behind it is alone. Raises OutOfDate, IntegrityError if the guard forbids a next
    message, or RowKept: then nothing may be committed.
    """
    heads = [share.head for share in shares]
    followers = [msg_id for share in shares for msg_id in share.followers]
    nexts = [share.next_id for share in shares if share.next_id is not None]
    if t.dialect.row_locks:
        for part in _parts(t, sorted({*heads, *followers, *nexts})):
            conn.execute(_lock(t), part).all()
    counted = tries is not None and not t.has("claimed_by")
    params: dict[str, Any] = {"mw_me": me} | ({"mw_tries": tries} if counted else {})
    if _changed(conn, t, _finish_heads(t, counted), heads, params) != len(heads):
        raise OutOfDate
    if _changed(conn, t, _finish_followers(t), followers, {}) != len(followers):
        raise OutOfDate
    done = Wanted(Status.DONE)
    check_written(conn, t, dict.fromkeys((*heads, *followers), done))
    moved = _changed(conn, t, _advance(t), nexts, {"mw_me": me})
    try:
        return moved_on(conn, t, nexts, moved, me=me)
    except FlagMissing:
        raise OutOfDate from None


def _changed(
    conn: Connection, t: Tables, change: _Change, ids: Sequence[int], params: dict[str, Any]
) -> int:
    key, statement = change
    return sum(changed(conn, t, key, statement, params | part) for part in _parts(t, ids))


def _parts(t: Tables, ids: Sequence[int]) -> Iterable[dict[str, Any]]:
    """The parameter for so many ids as one statement may have."""
    size = t.dialect.max_ids
    parts = (ids[start : start + size] for start in range(0, len(ids), size))
    return ({"mw_ids": array_text(part) if t.dialect.arrays else part} for part in parts)


def _among(t: Tables, c: Cols) -> ColumnElement[bool]:
    if t.dialect.arrays:
        return c.msg_id == sa.func.any(array_param("mw_ids", sa.BigInteger()))
    return t.among(c.msg_id)


def _lock(t: Tables) -> sa.Select[Any]:
    """Only their number is sent back where a lock may stand in a WITH."""

    def build() -> sa.Select[Any]:
        c = t.cols()
        rows = sa.select(c.msg_id).where(_among(t, c)).order_by(c.msg_id).with_for_update()
        if not t.dialect.arrays:
            return rows
        locked = rows.cte("locked").prefix_with("MATERIALIZED")
        return sa.select(sa.func.count()).select_from(locked)

    return t.built("batch_lock", build)


def _finish_heads(t: Tables, counted: bool) -> _Change:
    def build() -> sa.Update:
        c = t.cols()
        mine = (_among(t, c), t.mine(c, ME), *t.same_tries(c, counted))
        return sa.update(t.message).where(*mine).values(done_values(t))

    key = ("batch_heads", counted)
    return key, t.built(key, build)


def _finish_followers(t: Tables) -> _Change:
    """Still new, due and never tried: as the run was read."""

    def build() -> sa.Update:
        c = t.cols()
        free = (t.stands_at(c, Status.NEW), t.due(c), t.tries(c) == sa.literal_column("0"))
        values = t.values(status=lit(Status.DONE), finished_at=now())
        return sa.update(t.message).where(_among(t, c), *free).values(values)

    return "batch_followers", t.built("batch_followers", build)


def _advance(t: Tables) -> _Change:
    def build() -> sa.Update:
        c = t.cols()
        free = (_among(t, c), *may_follow(t, c))
        return in_guard_order(t, sa.update(t.message).where(*free).values(flagged_values(t)))

    return "batch_advance", t.built("batch_advance", build)
