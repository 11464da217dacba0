"""Give back what a dead instance had flagged.

Only after its lease was taken over (lease.py), so that it can never renew again; each row only
while it is still flagged by the id that was read. A crash counts as a try: otherwise a message that
kills its process would kill one process after the other.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection, Select, bindparam

from msgworker.db import UtcDateTime, fetch, now, utc_of, whole_number
from msgworker.message import Status
from msgworker.payload import shown
from msgworker.store import tries
from msgworker.store.rows import (
    ME,
    MIN_ID,
    Row,
    Wanted,
    check_written,
    of_running,
    or_zero,
    row_columns,
    rows_of,
)
from msgworker.store.settle import one_more_try, released_values
from msgworker.table import Cols, Tables, lit
from msgworker.table.tables import ZERO

BATCH = 250
FOREIGN = "foreign consumer"
"""The name for the owner of a message that was flagged without `claimed_by`."""
Owner = str | bytes
"""The value of `claimed_by`; bytes only where columns hold to no type and it was not us."""


def _who(owner: Owner) -> ColumnElement[Any]:
    return ME if isinstance(owner, str) else bindparam("mw_me", type_=sa.LargeBinary())


def flagged_by(
    conn: Connection, t: Tables, instance_id: Owner, *, after: int = MIN_ID, limit: int = BATCH
) -> list[int]:
    """The msg_ids above `after` flagged by an instance, lowest first, at most `limit`."""
    if not t.has("claimed_by"):
        return []

    def build() -> Any:
        who = _who(instance_id)
        rows = of_running(
            t, lambda c: [_unordered(c).label("i")], lambda c: [_owner(c) == who, _behind(c)]
        )
        return _first(rows)

    params = {"mw_me": instance_id, "rows": limit, "after": after}
    return list(conn.scalars(t.built(("flagged_by", type(instance_id)), build), params))


def owners(conn: Connection, t: Tables) -> list[Owner]:
    """All instance ids in running rows."""
    if not t.has("claimed_by"):
        return []

    def build() -> Any:
        owned = of_running(t, lambda c: [_owner(c).label("o")], lambda c: [_owner(c).is_not(None)])
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
    `dead_id` and free to be changed. into: gets their ids.

    In the caller's transaction; at most BATCH ids. Rows that were settled meanwhile, or are locked,
    are left.
    """

    def whose(c: Cols) -> list[ColumnElement[bool]]:
        return [t.mine(c, _who(dead_id))]

    by = shown(dead_id)
    key = f"recover {type(dead_id).__name__}"
    return _recover(conn, t, key, ids, whose, {"mw_me": dead_id}, by=by, text=text, into=into)


def recover_foreign(
    conn: Connection, t: Tables, ids: Sequence[int], *, seen_tries: int, text: str
) -> int:
    """Give these rows of a foreign consumer back, each with a try counted; return how many were
    still flagged without an owner and with so many tries. In the caller's transaction; at most
    `max_ids` ids. On a table without owners the caller must know that no instance
    is alive."""

    def whose(c: Cols) -> list[ColumnElement[bool]]:
        return [t.stands_at(c, Status.PROCESSING), *_of_nobody(c), *t.same_tries(c, True)]

    params = {"mw_tries": seen_tries}
    return _recover(conn, t, "recover_foreign", ids, whose, params, by=FOREIGN, text=text)


def _recover(
    conn: Connection,
    t: Tables,
    key: str,
    ids: Sequence[int],
    whose: Callable[[Cols], list[ColumnElement[bool]]],
    params: dict[str, Any],
    *,
    by: str,
    text: str,
    into: list[int] | None = None,
) -> int:
    def build() -> sa.Update:
        c = t.cols()
        change = sa.update(t.message).where(t.among(c.msg_id), *whose(c))
        return change.ordered_values(*t.tries_last(_recovered_values(t)))

    # Locked, so that exactly the rows that are given back get a try in their history.
    mine = _locked(conn, t, key, ids, whose, params)
    if not mine:
        return 0
    wanted = _wanted(conn, t, mine) if t.on_update else {}
    params |= {"mw_ids": mine, "mw_text": t.error_text(text)}
    given_back = int(conn.execute(t.built(key, build), params).rowcount)
    check_written(conn, t, wanted, "its recovery")
    crashes = [tries.Failure(i, tries.Kind.CRASH, text) for i in mine]
    tries.keep(conn, t, crashes, instance=by)
    if into is not None:
        into += mine
    return given_back


def _wanted(conn: Connection, t: Tables, ids: Sequence[int]) -> dict[int, Wanted]:
    """What these rows will hold: one more try, or all."""

    def build() -> Any:
        c = t.cols()
        return sa.select(c.msg_id, t.tries(c).label("n")).where(t.among(c.msg_id))

    found = fetch(conn, t.built("recover_tries", build), {"mw_ids": list(ids)})
    seen = {row[0]: whole_number(row[1]) for row in found}
    most = t.spec.max_tries
    return {
        i: Wanted(Status.FAILED, None if n is None else min(n + 1, most)) for i, n in seen.items()
    }


def died(conn: Connection, t: Tables, ids: Sequence[int]) -> list[Row]:
    """Those of the rows that are dead, as they are now."""

    def build() -> Select[Any]:
        c = t.cols()
        dead = (t.stands_at(c, Status.FAILED), sa.not_(t.tries_left(c)))
        return (
            sa.select(*row_columns(t, c, ahead=False))
            .where(t.among(c.msg_id), *dead)
            .order_by(c.msg_id)
        )

    return rows_of(t, fetch(conn, t.built("died", build), {"mw_ids": list(ids)})) if ids else []


def _locked(
    conn: Connection,
    t: Tables,
    key: str,
    ids: Sequence[int],
    whose: Callable[[Cols], list[ColumnElement[bool]]],
    params: dict[str, Any],
) -> list[int]:
    """Lock those rows that still have the same owner, without waiting for rows locked by others."""

    def build() -> Select[Any]:
        c = t.cols()
        query = sa.select(c.msg_id).where(t.among(c.msg_id), *whose(c)).order_by(c.msg_id)
        if not t.database.row_locks:
            return query
        return query.with_for_update(skip_locked=t.database.skip_locked)

    if not ids:
        return []
    return list(conn.scalars(t.built((key, "held"), build), params | {"mw_ids": list(ids)}))


def _recovered_values(t: Tables) -> dict[str, Any]:
    c = t.cols()
    most = lit(t.spec.max_tries)
    failed = one_more_try(t, most)
    crashes = or_zero(c.crash_times)
    dead = failed >= most
    return t.values(
        status=lit(Status.FAILED),
        error_try_times=failed,
        crash_times=sa.case((crashes < most, crashes + 1), else_=most),
        last_error=bindparam("mw_text", type_=sa.String()),
        finished_at=sa.case((dead, now())),
        available_at=sa.null(),
        claimed_by=sa.null(),
    )


def foreign(
    conn: Connection,
    t: Tables,
    *,
    after: int = MIN_ID,
    before: datetime | None = None,
    limit: int = BATCH,
) -> list[tuple[int, int]]:
    """(msg_id, tries) of rows flagged without an owner, lowest first, at most `limit`.

    after: only above this msg_id. before: only those claimed (where that is not known: made) until
    this instant; a row of which neither is known is none of them: see `undated`.
    """
    aged = before is not None
    params = {"rows": limit, "after": after} | ({"before": before} if aged else {})
    statement = t.built(("foreign", aged), partial(_foreign, t, _Ages.UNTIL if aged else _Ages.ALL))
    found = fetch(conn, statement, params)
    return [(row[0], tries) for row in found if (tries := whole_number(row[1])) is not None]


def undated(conn: Connection, t: Tables, *, limit: int) -> list[int]:
    """The rows flagged without an owner whose age is unknown."""
    statement = t.built("foreign undated", partial(_foreign, t, _Ages.UNKNOWN))
    return [row[0] for row in fetch(conn, statement, {"rows": limit, "after": MIN_ID})]


class _Ages(enum.Enum):
    """Which rows flagged without an owner: until an instant, or of which it is not known."""

    ALL = enum.auto()
    UNTIL = enum.auto()
    UNKNOWN = enum.auto()


def _foreign(t: Tables, ages: _Ages) -> Any:
    def where(c: Cols) -> list[ColumnElement[bool]]:
        found = [*_of_nobody(c), _behind(c)]
        if ages is _Ages.UNTIL:
            found.append(flagged_at(c) <= bindparam("before", type_=UtcDateTime()))
        if ages is _Ages.UNKNOWN:
            found.append(flagged_at(c).is_(None))
        return found

    rows = of_running(t, lambda c: [_unordered(c).label("i"), t.tries(c).label("n")], where)
    rows = rows.subquery("f")
    limited = bindparam("rows", type_=sa.Integer())
    return sa.select(rows.c.i, rows.c.n).order_by(rows.c.i).limit(limited)


def _of_nobody(c: Cols) -> list[ColumnElement[bool]]:
    """Without an owner; where there is no column for one, every row is."""
    return [] if c.claimed_by is None else [c.claimed_by.is_(None)]


def flagged_at(c: Cols) -> ColumnElement[Any]:
    """The earliest time at which a row may have been flagged, UTC; NULL if unknown."""
    known = [utc_of(column) for column in (c.claimed_at, c.created_at) if column is not None]
    return sa.func.coalesce(*known) if len(known) == 2 else known[0] if known else sa.null()


def giving_back(*, dated: bool) -> str:
    """The command that gives back messages without an owner. dated: whether all ages are known."""
    return f"`msgworker release --nobody {'--older-than 1h' if dated else '--any-age'}`"


def release(
    conn: Connection, t: Tables, ids: Sequence[int], *, me: str, tries: int | None = None
) -> int:
    """Release our own rows without a try; return how many were still ours. Locked rows are left.
    tries: as these were when claimed, for a table without owners."""
    counted = tries is not None and not t.has("claimed_by")

    def whose(c: Cols) -> list[ColumnElement[bool]]:
        return [t.mine(c, ME), *t.same_tries(c, counted)]

    def build() -> sa.Update:
        c = t.cols()
        return sa.update(t.message).where(t.among(c.msg_id), *whose(c)).values(released_values(t))

    params: dict[str, Any] = {"mw_me": me} | ({"mw_tries": tries} if counted else {})
    free = _locked(conn, t, f"release{counted:d}", ids, whose, params)
    if not free:
        return 0
    update = t.built(("release", counted), build)
    released = int(conn.execute(update, params | {"mw_ids": free}).rowcount)
    check_written(conn, t, dict.fromkeys(free, Wanted(None)), "its release")
    return released


class Found(NamedTuple):
    """Messages that are flagged as they were: unlocked ones, which stay ours, and locked ones, of
    which that is not known."""

    free: set[int]
    locked: set[int]


def still_flagged(conn: Connection, t: Tables, seen: Mapping[int, int]) -> Found:
    """Which messages, given with their tries as they were claimed, are flagged as they were then.

    For a table without owners, after a new lease was registered: until its end they cannot be
    released (ops/upkeep.py). A release that had begun before holds their locks, for which this
    does not wait.
    """

    def whose(c: Cols) -> list[ColumnElement[bool]]:
        return [t.mine(c, ME), *t.same_tries(c, True)]

    def build() -> Select[Any]:
        c = t.cols()
        return sa.select(c.msg_id).where(t.among(c.msg_id), *whose(c))

    found = Found(set(), set())
    for tries_seen in sorted(set(seen.values())):
        ids = sorted(i for i, tries in seen.items() if tries == tries_seen)
        params: dict[str, Any] = {"mw_me": "", "mw_tries": tries_seen}
        for begin in range(0, len(ids), BATCH):
            portion = ids[begin : begin + BATCH]
            found.free.update(_locked(conn, t, "sure", portion, whose, params))
            left = [i for i in portion if i not in found.free]
            if left:
                query = t.built("sure_left", build)
                found.locked.update(conn.scalars(query, params | {"mw_ids": left}))
    return found


def _owner(c: Cols) -> ColumnElement[Any]:
    assert c.claimed_by is not None
    return c.claimed_by


def _behind(c: Cols) -> ColumnElement[bool]:
    return _unordered(c) > bindparam("after", type_=sa.BigInteger())  # whatever the column is


def _unordered(c: Cols) -> ColumnElement[Any]:
    """The msg_id in a form that no index has: else a planner may read the primary key from there,
    or in its order, with all finished rows."""
    return c.msg_id + ZERO


def _first(found: Any) -> Select[Any]:
    rows = found.subquery("f")
    return sa.select(rows.c.i).order_by(rows.c.i).limit(bindparam("rows", type_=sa.Integer()))
