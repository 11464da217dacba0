"""Give back what a dead instance had flagged.

Only after its lease was taken over (lease.py), so that it can never renew again; each row only
while it is still flagged by the id that was read. A crash counts as a try: otherwise a message that
kills its process would kill one process after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection, bindparam

from msgworker.commands import command
from msgworker.db.clock import UtcDateTime, now, utc_of
from msgworker.db.connections import fetch, ignoring
from msgworker.db.database import Trouble
from msgworker.db.types import AnyText, whole_number
from msgworker.message import Status
from msgworker.payload import shown
from msgworker.store import change, controls, rows, tries
from msgworker.store.claim import REFUSED_ROW
from msgworker.store.settle import one_more_try, released_values
from msgworker.table.columns import Cols
from msgworker.table.tables import ZERO, Tables, lit

BATCH = 250
FOREIGN = "foreign consumer"
"""The name for the owner of a message that was flagged without `claimed_by`."""
Owner = str | bytes
"""The value of `claimed_by`; bytes only where columns hold to no type and it was not us."""


def flagged_by(
    conn: Connection, t: Tables, instance_id: Owner, *, after: int = rows.MIN_ID, limit: int = BATCH
) -> list[int]:
    """The msg_ids above `after` flagged by an instance, lowest first, at most `limit`."""
    if not t.has("claimed_by"):
        return []

    def build() -> Any:
        who = bindparam("who", type_=_kind(instance_id))
        behind = bindparam("after", type_=sa.BigInteger())
        most = bindparam("most", type_=sa.Integer())
        running = rows.of_running(
            t,
            lambda c: [_unordered(c).label("i")],
            lambda c: [c["claimed_by"] == who, _unordered(c) > behind],
        )
        f = running.subquery("f").c
        return sa.select(f.i).order_by(f.i).limit(most)

    query = t.built(("flagged_by", type(instance_id)), build)
    return list(conn.scalars(query, {"who": instance_id, "after": after, "most": limit}))


def owners(conn: Connection, t: Tables) -> list[Owner]:
    """All instance ids in running rows."""
    if not t.has("claimed_by"):
        return []

    def build() -> Any:
        owned = rows.of_running(
            t, lambda c: [c["claimed_by"].label("o")], lambda c: [c["claimed_by"].is_not(None)]
        )
        return sa.select(owned.subquery("f").c.o).distinct()

    return [row[0] for row in fetch(conn, t.built("owners", build), {})]


def recover(
    conn: Connection,
    t: Tables,
    ids: Sequence[int],
    *,
    dead_id: Owner,
    text: str,
    into: list[int] | None = None,
) -> int:
    """Give these rows back, each with a try counted; return how many were still flagged by
    `dead_id` and free to be changed: neither settled meanwhile nor locked. into: gets their ids. In
    the caller's transaction; at most BATCH ids."""
    whose = [t.mine(t.cols(), sa.literal(dead_id, _kind(dead_id)))]
    return _recover(conn, t, ids, whose, by=shown(dead_id), text=text, into=into)


def recover_foreign(
    conn: Connection,
    t: Tables,
    ids: Sequence[int],
    *,
    seen_tries: int,
    text: str,
    into: list[int] | None = None,
) -> int:
    """Give these rows of a foreign consumer back, each with a try counted; return how many were
    still flagged without an owner and with so many tries. into: gets their ids. In the caller's
    transaction; at most `max_ids` ids. On a table without owners the caller must know that no
    instance is alive."""
    c = t.cols()
    whose = [t.stands_at(c, Status.PROCESSING), *_of_nobody(c), _tried(t, c, seen_tries)]
    return _recover(conn, t, ids, whose, by=FOREIGN, text=text, into=into)


def _recover(
    conn: Connection,
    t: Tables,
    ids: Sequence[int],
    whose: Sequence[ColumnElement[bool]],
    *,
    by: str,
    text: str,
    into: list[int] | None = None,
) -> int:
    # Locked, so that exactly the rows that are given back get a try in their history.
    mine = _locked(conn, t, ids, whose)
    if not mine:
        return 0
    c, most = t.cols(), lit(t.spec.max_tries)
    failed, crashes = one_more_try(t, most), rows.or_zero(c.crash_times)
    values = t.values(
        status=lit(Status.FAILED),
        error_try_times=failed,
        crash_times=sa.case((crashes < most, crashes + 1), else_=most),
        last_error=t.error_text(text),
        finished_at=sa.case((failed >= most, now())),
        available_at=sa.null(),
        claimed_by=sa.null(),
    )
    change = sa.update(t.message).where(t.among(c.msg_id), *whose)
    change = change.ordered_values(*t.tries_last(values))
    expected = _expected(conn, t, mine) if t.on_update else {}
    given_back = conn.execute(change, {"mw_ids": mine}).rowcount
    rows.check_written(conn, t, expected, "its recovery")
    crashed = [tries.Failure(i, tries.Kind.CRASH, text) for i in mine]
    tries.keep(conn, t, crashed, instance=by)
    if into is not None:
        into += mine
    return given_back


def _expected(conn: Connection, t: Tables, ids: Sequence[int]) -> dict[int, rows.Expected]:
    """What these rows will hold: one more try, or all."""
    c = t.cols()
    query = sa.select(c.msg_id, t.tries(c).label("n")).where(t.among(c.msg_id))
    seen = {row[0]: whole_number(row[1]) for row in fetch(conn, query, {"mw_ids": list(ids)})}
    most = t.spec.max_tries
    return {
        i: rows.Expected(Status.FAILED, None if n is None else min(n + 1, most))
        for i, n in seen.items()
    }


def died(conn: Connection, t: Tables, ids: Sequence[int], *, ahead: bool = False) -> list[rows.Row]:
    """Those of the rows, which were given back, that are dead; with the tries that they had before.
    ahead: without long payloads."""
    c = t.cols()
    dead = read(conn, t, ids, t.stands_at(c, Status.FAILED), sa.not_(t.tries_left(c)), ahead=ahead)
    return [row._replace(tries=row.tries - 1) for row in dead]


def end_requests(conn: Connection, t: Tables, ids: Sequence[int]) -> set[int]:
    """End the requests to cancel messages that were given back, as far as this login may; returns
    the messages that are dead by that."""
    dead, asked = set[int](), list[controls.Asked]()
    with ignoring(Trouble.REFUSED), conn.begin_nested():
        asked = controls.requests(conn, t, ids)
    for one in asked:
        with ignoring(*REFUSED_ROW), conn.begin_nested():
            if change.end_request(conn, t, one):
                dead.add(one.request.msg_id)
    return dead


def read(
    conn: Connection, t: Tables, ids: Sequence[int], *which: ColumnElement[bool], ahead: bool = True
) -> list[rows.Row]:
    """The rows as they are now, lowest first."""
    c = t.cols()
    query = sa.select(*rows.row_columns(t, c, ahead=ahead)).where(t.among(c.msg_id), *which)
    return (
        rows.rows_of(t, fetch(conn, query.order_by(c.msg_id), {"mw_ids": list(ids)})) if ids else []
    )


def _locked(
    conn: Connection,
    t: Tables,
    ids: Sequence[int],
    whose: Sequence[ColumnElement[bool]],
    me: str = "",
) -> list[int]:
    """Lock those rows that still have the same owner, without waiting for rows locked by others."""
    c = t.cols()
    query = sa.select(c.msg_id).where(t.among(c.msg_id), *whose).order_by(c.msg_id)
    if t.database.row_locks:
        query = query.with_for_update(skip_locked=t.database.skip_locked)
    return list(conn.scalars(query, {"mw_ids": list(ids), "mw_me": me})) if ids else []


def foreign(
    conn: Connection,
    t: Tables,
    *,
    after: int = rows.MIN_ID,
    before: datetime | None = None,
    limit: int = BATCH,
) -> list[tuple[int, int]]:
    """(msg_id, tries) of rows flagged without an owner, lowest first, at most `limit`, above the
    msg_id `after`. before: only those claimed (where that is not known: made) until this instant; a
    row of which neither is known is none of them: see `undated`."""

    def which(c: Cols) -> list[ColumnElement[bool]]:
        aged = [] if before is None else [flagged_at(c) <= sa.literal(before, UtcDateTime())]
        return [_unordered(c) > sa.literal(after, sa.BigInteger()), *aged]

    found = _foreign(conn, t, which, limit)
    return [(row[0], tries) for row in found if (tries := whole_number(row[1])) is not None]


def undated(conn: Connection, t: Tables, *, limit: int) -> list[int]:
    """The rows flagged without an owner whose age is unknown."""
    return [row[0] for row in _foreign(conn, t, lambda c: [flagged_at(c).is_(None)], limit)]


def _foreign(
    conn: Connection, t: Tables, which: Callable[[Cols], list[ColumnElement[bool]]], limit: int
) -> Sequence[Any]:
    running = rows.of_running(
        t,
        lambda c: [_unordered(c).label("i"), t.tries(c).label("n")],
        lambda c: [*_of_nobody(c), *which(c)],
    )
    f = running.subquery("f").c
    return fetch(conn, sa.select(f.i, f.n).order_by(f.i).limit(limit), {})


def _of_nobody(c: Cols) -> list[ColumnElement[bool]]:
    """Without an owner; where there is no column for one, every row is."""
    return [] if c.claimed_by is None else [c.claimed_by.is_(None)]


def flagged_at(c: Cols) -> ColumnElement[Any]:
    """The earliest time at which a row may have been flagged, UTC; NULL if unknown."""
    known = [utc_of(column) for column in (c.claimed_at, c.created_at) if column is not None]
    return sa.func.coalesce(*known) if len(known) == 2 else known[0] if known else sa.null()


def giving_back(*, dated: bool) -> str:
    """The command that gives back messages without an owner. dated: whether all ages are known."""
    age = "--older-than 1h" if dated else "--any-age"
    return f"`{command(f'release --nobody {age}')}`"


def release(
    conn: Connection, t: Tables, ids: Sequence[int], *, me: str, tries: int | None = None
) -> int:
    """Release our own rows without a try; return how many were still ours. Locked rows are left.
    tries: as these were when claimed, for a table without owners."""
    whose = _ours(t, tries)
    free = _locked(conn, t, ids, whose, me)
    if not free:
        return 0
    change = sa.update(t.message).where(t.among(t.cols().msg_id), *whose)
    params = {"mw_ids": free, "mw_me": me}
    released = conn.execute(change.values(released_values(t)), params).rowcount
    rows.check_written(conn, t, dict.fromkeys(free, rows.Expected(None)), "its release")
    return released


def _ours(t: Tables, tries: int | None) -> list[ColumnElement[bool]]:
    """Flagged by us (ME); without owners, with as many tries as when claimed."""
    c = t.cols()
    same = [] if tries is None or t.has("claimed_by") else [_tried(t, c, tries)]
    return [t.mine(c, rows.ME), *same]


def _tried(t: Tables, c: Cols, times: int) -> ColumnElement[bool]:
    """A column of the user's may hold more than one of ours, whose type a parameter would have."""
    return t.tries(c) == sa.literal(times, sa.Integer())


class Found(NamedTuple):
    """Messages that are flagged as they were: unlocked ones, which stay ours, and locked ones, of
    which that is not known."""

    free: set[int]
    locked: set[int]


def still_flagged(conn: Connection, t: Tables, seen: Mapping[int, int]) -> Found:
    """Which messages, given with their tries as they were claimed, are flagged as they were then.
    For a table without owners, after a new lease was registered: until its end they cannot be
    released (ops/upkeep.py). It does not wait for the locks of a release that had begun before."""
    c, found = t.cols(), Found(set(), set())
    for tries_seen in sorted(set(seen.values())):
        whose = _ours(t, tries_seen)
        ids = sorted(i for i, tries in seen.items() if tries == tries_seen)
        for begin in range(0, len(ids), BATCH):
            portion = ids[begin : begin + BATCH]
            found.free.update(_locked(conn, t, portion, whose))
            left = [i for i in portion if i not in found.free]
            query = sa.select(c.msg_id).where(t.among(c.msg_id), *whose)
            found.locked.update(row[0] for row in rows.among_ids(conn, t, query, left))
    return found


def _kind(owner: Owner) -> Any:
    return AnyText() if isinstance(owner, str) else sa.LargeBinary()


def _unordered(c: Cols) -> ColumnElement[Any]:
    """The msg_id in a form that no index has: else a planner may read the primary key from there,
    or in its order, with all finished rows."""
    return c.msg_id + ZERO
