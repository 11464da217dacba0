"""Write outcomes and move the flag, only while the flag is still ours.

One transaction settles many lanes. Outcomes are written first, then the next messages are flagged,
so the guard never sees two. A lane whose flag is gone is lost: nothing is written for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection, Select, bindparam
from sqlalchemy.exc import DBAPIError

from msgworker.dialects import now, now_plus, trouble
from msgworker.message import Outcome, Settled, Settlement, Status
from msgworker.store import tries
from msgworker.store.claim import (
    ME,
    OF_A_ROW,
    array_param,
    array_text,
    flagged_values,
    mine_among,
    refuse_at_once,
)
from msgworker.table import Cols, Tables, lit


class FlagMissing(Exception):
    """Some rows of a batch were no longer ours; the batch must be rolled back and settled one by
    one."""


def settle(
    conn: Connection, t: Tables, batch: Sequence[Settlement], *, me: str
) -> dict[int, Settled]:
    """Write a batch of settlements; return what became of each, by its msg_id.

    In the caller's transaction. Each settlement is of another lane.
    Raises FlagMissing if a flag is gone, IntegrityError if the guard forbids a next message: then
    nothing of the batch may be committed; settle each lane on its own with `settle_one`.
    """
    plain = [s for s in batch if s.outcome is Outcome.DONE]
    others = [s for s in batch if s.outcome is not Outcome.DONE]
    if t.dialect.arrays:
        settled = _done_arrays(conn, t, plain, me) if plain else {}
    else:
        settled = _done(conn, t, plain, others, me)
    for settlement in others:
        _write(conn, t, settlement, me)
        settled[settlement.msg_id] = Settled.ENDED
    _keep_tries(conn, t, others, me)
    return settled


def settle_one(
    conn: Connection, t: Tables, settlement: Settlement, *, me: str, at_once: bool = False
) -> Settled:
    """Write one settlement in the caller's transaction; LOST writes nothing at all.

    If the next message cannot be flagged (edited, claimed by a foreign consumer, refused by the
    database), the outcome is written all the same and the lane ends. at_once: also where a
    constraint would refuse it at the COMMIT only.
    """
    if at_once and settlement.next_id is not None:
        refuse_at_once(conn, t)
    if t.dialect.row_locks and settlement.next_id is not None:
        ids = sorted({settlement.msg_id, settlement.next_id})
        conn.execute(_locking(t), {"mw_ids": ids}).all()
    try:
        _write(conn, t, settlement, me)
    except FlagMissing:
        return Settled.LOST
    _keep_tries(conn, t, [settlement], me)
    if settlement.next_id is None:
        return Settled.ENDED
    try:
        with conn.begin_nested():
            moved = conn.execute(
                _advance(t), {"mw_ids": [settlement.next_id], "mw_me": me}
            ).rowcount
    except DBAPIError as error:
        if trouble(error) not in OF_A_ROW:
            raise
        moved = 0
    return Settled.WENT_ON if moved else Settled.ENDED


def still_mine(conn: Connection, t: Tables, ids: Iterable[int], *, me: str) -> set[int]:
    """Those of `ids` that are flagged by us: the answer to a COMMIT whose outcome is unknown."""
    wanted = list(ids)
    found: set[int] = set()
    for start in range(0, len(wanted), t.dialect.max_ids):
        part = wanted[start : start + t.dialect.max_ids]
        found |= set(conn.scalars(mine_among(t), {"mw_ids": part, "mw_me": me}))
    return found


# ---------------------------------------------------------------- done


def _done(
    conn: Connection,
    t: Tables,
    plain: Sequence[Settlement],
    others: Sequence[Settlement],
    me: str,
) -> dict[int, Settled]:
    """Lock everything in msg_id order (else two settles, or a claim, could deadlock), then
    write."""
    nexts = [s.next_id for s in plain if s.next_id is not None]
    if t.dialect.row_locks:
        ids = sorted({s.msg_id for s in plain} | {s.msg_id for s in others} | set(nexts))
        for part in _parts(t, ids):
            conn.execute(_locking(t), {"mw_ids": part}).all()
    written = 0
    for seen, same in _by_tries(t, plain):
        params: dict[str, Any] = {"mw_me": me} | ({} if seen is None else {"mw_tries": seen})
        for part in _parts(t, same):
            finish = _finish(t, seen is not None)
            written += conn.execute(finish, params | {"mw_ids": part}).rowcount
    if written != len(plain):
        raise FlagMissing
    moved = 0
    for part in _parts(t, nexts):
        moved += conn.execute(_advance(t), {"mw_ids": part, "mw_me": me}).rowcount
    flagged = set(nexts) if moved == len(nexts) else still_mine(conn, t, nexts, me=me)
    return {s.msg_id: Settled.WENT_ON if s.next_id in flagged else Settled.ENDED for s in plain}


def _by_tries(t: Tables, batch: Sequence[Settlement]) -> list[tuple[int | None, Sequence[int]]]:
    """Messages by the tries they were claimed with; all in one, with None, where they have an owner
    to be asked for."""
    if t.has("claimed_by"):
        return [(None, [s.msg_id for s in batch])]
    groups: dict[int | None, list[int]] = {}
    for s in batch:
        groups.setdefault(s.tries, []).append(s.msg_id)
    return list(groups.items())


def _parts(t: Tables, ids: Sequence[int]) -> Iterable[Sequence[int]]:
    size = t.dialect.max_ids
    return (ids[start : start + size] for start in range(0, len(ids), size))


def _locking(t: Tables) -> Select[Any]:
    def build() -> Select[Any]:
        c = t.cols()
        return sa.select(c.msg_id).where(t.among(c.msg_id)).order_by(c.msg_id).with_for_update()

    return t.built("settle_lock", build)


def _finish(t: Tables, counted: bool) -> sa.Update:
    def build() -> sa.Update:
        c = t.cols()
        mine = (t.among(c.msg_id), t.mine(c, ME), *t.same_tries(c, counted))
        return sa.update(t.message).where(*mine).values(_done_values(t))

    return t.built(("finish", counted), build)


def _done_values(t: Tables) -> dict[str, Any]:
    return t.values(status=lit(Status.DONE), finished_at=now(), claimed_by=sa.null())


def _advance(t: Tables) -> sa.Update:
    """Flag the next messages of lanes that go on: still new, still due."""

    def build() -> sa.Update:
        c = t.cols()
        return (
            sa.update(t.message)
            .where(t.among(c.msg_id), *_may_follow(t, c))
            .values(flagged_values(t))
        )

    return t.built("advance", build)


def _may_follow(t: Tables, c: Cols) -> list[ColumnElement[bool]]:
    """New and due; without owners also without a try, as the run was read: their settle asks for
    the same."""
    never_tried = [] if t.has("claimed_by") else [t.tries(c) == sa.literal_column("0")]
    return [c.status == lit(Status.NEW), t.due(c), *never_tried]


def _done_arrays(
    conn: Connection, t: Tables, batch: Sequence[Settlement], me: str
) -> dict[int, Settled]:
    """One statement, one round trip: the flag moves in a WITH that joins what was finished.

    `finished` runs before `moved` for each lane because `moved` reads its rows, so the guard never
    sees two; and a lane whose flag was gone moves nothing.
    """

    def build(moving: bool) -> Any:
        c = t.cols()
        ids = array_param("mw_ids", sa.BigInteger())
        finished = (
            sa.update(t.message)
            .where(*_named(t, c, ids), t.mine(c, ME))
            .values(_done_values(t))
            .returning(c.msg_id.label("msg_id"))
        )
        if not moving:
            return finished
        done = finished.cte("finished")
        pairs = (
            sa.func.unnest(
                array_param("mw_heads", sa.BigInteger()),
                array_param("mw_nexts", sa.BigInteger()),
            )
            .table_valued("head", "next")
            .render_derived(name="pairs")
        )
        moved = (
            sa.update(t.message)
            .where(
                done.c.msg_id == pairs.c.head,
                c.msg_id == pairs.c.next,
                *_may_follow(t, c),
            )
            .values(flagged_values(t))
            .returning(c.msg_id.label("msg_id"))
            .cte("moved")
        )
        both = sa.select(sa.literal_column("2").label("s"), done.c.msg_id)
        return both.union_all(sa.select(sa.literal_column("1"), moved.c.msg_id))

    moving = [s for s in batch if s.next_id is not None]
    params: dict[str, Any] = {"mw_ids": array_text(s.msg_id for s in batch), "mw_me": me}
    if not t.has("claimed_by"):
        params["mw_seen"] = array_text(ANY_TRIES if s.tries is None else s.tries for s in batch)
    if not moving:
        statement = t.built(("settle", False), lambda: build(False))
        written = {row[0] for row in conn.execute(statement, params).all()}
        flagged: set[int] = set()
    else:
        statement = t.built(("settle", True), lambda: build(True))
        params["mw_heads"] = array_text(s.msg_id for s in moving)
        params["mw_nexts"] = array_text(s.next_id for s in moving if s.next_id is not None)
        found = conn.execute(statement, params).all()
        written = {row[1] for row in found if row[0] == 2}
        flagged = {row[1] for row in found if row[0] == 1}
    return {s.msg_id: _became(s, written, flagged) for s in batch}


ANY_TRIES = -1


def _named(t: Tables, c: Cols, ids: ColumnElement[Any]) -> list[ColumnElement[bool]]:
    """The rows of a batch; where they have no owner, with the tries they were claimed with."""
    if t.has("claimed_by"):
        return [c.msg_id == sa.func.any(ids)]
    tries_seen = array_param("mw_seen", sa.BigInteger())
    seen = sa.func.unnest(ids, tries_seen).table_valued("msg_id", "tries")
    seen = seen.render_derived(name="seen")
    as_claimed = sa.or_(
        seen.c.tries == sa.literal_column(str(ANY_TRIES)), seen.c.tries == t.tries(c)
    )
    return [c.msg_id == seen.c.msg_id, as_claimed]


def _became(s: Settlement, written: set[int], flagged: set[int]) -> Settled:
    if s.msg_id not in written:
        return Settled.LOST
    return Settled.WENT_ON if s.next_id in flagged else Settled.ENDED


# ---------------------------------------------------------------- other outcomes


def _write(conn: Connection, t: Tables, s: Settlement, me: str) -> None:
    """Write one outcome; raises FlagMissing if the row is not ours."""
    params: dict[str, Any] = {"mw_ids": [s.msg_id], "mw_me": me}
    counted = s.tries is not None
    if s.outcome is Outcome.DONE:
        counted = counted and not t.has("claimed_by")
    else:
        params |= _outcome_params(t, s)
        if counted and t.has("later_times"):
            params["mw_times"] = s.later_times
    if counted:
        params["mw_tries"] = s.tries
    if conn.execute(_statement(t, s.outcome, counted), params).rowcount != 1:
        raise FlagMissing


_KINDS = {
    Outcome.FAILED: tries.Kind.FAILED,
    Outcome.SPENT: tries.Kind.FAILED,
    Outcome.DEAD: tries.Kind.REJECTED,
}


def _keep_tries(conn: Connection, t: Tables, written: Sequence[Settlement], me: str) -> None:
    failures = [
        tries.Failure(s.msg_id, _KINDS[s.outcome], s.error, s.trace)
        for s in written
        if s.outcome in _KINDS
    ]
    if failures:
        tries.keep(conn, t, failures, instance=me)


def _outcome_params(t: Tables, s: Settlement) -> dict[str, Any]:
    error = None if s.error is None else s.error[: t.error_room]
    if s.outcome is Outcome.RELEASED:
        return {}
    if s.outcome in (Outcome.DEAD, Outcome.SPENT):
        return {"mw_error": error}
    return {"mw_error": error, "mw_delay": float(s.delay_seconds)}


def _statement(t: Tables, outcome: Outcome, counted: bool) -> sa.Update:
    if outcome is Outcome.DONE:
        return _finish(t, counted)

    def build() -> sa.Update:
        c = t.cols()
        # These tell two claims of one instance apart: an outcome that was given up as lost and
        # arrives late must not end a newer claim of the same message.
        same_claim = t.same_tries(c, counted)
        if counted and c.later_times is not None:
            times = sa.func.coalesce(c.later_times, sa.literal_column("0"))
            same_claim.append(times == bindparam("mw_times", type_=sa.Integer()))
        mine = (t.among(c.msg_id), t.mine(c, ME), *same_claim)
        values = t.tries_last(_outcome_values(t, outcome))
        return sa.update(t.message).where(*mine).ordered_values(*values)

    return t.built(("outcome", outcome, counted), build)


def _outcome_values(t: Tables, outcome: Outcome) -> dict[str, Any]:
    c = t.cols()
    most: ColumnElement[int] = sa.literal_column(str(t.spec.max_tries))
    error = bindparam("mw_error", type_=sa.String())
    later = now_plus(bindparam("mw_delay", type_=sa.Float()))
    back = back_to(t)
    if outcome is Outcome.FAILED:
        # No more than all: a new row may hold any number, the highest its column takes, too.
        failed = sa.case((t.tries_left(c), t.tries(c) + 1), else_=most)
        dead = failed >= most
        return t.values(
            status=lit(Status.FAILED),
            error_try_times=failed,
            available_at=sa.case((dead, sa.null()), else_=later),
            finished_at=sa.case((dead, now())),
            last_error=error,
            claimed_by=sa.null(),
        )
    if outcome in (Outcome.DEAD, Outcome.SPENT):
        return t.values(
            status=lit(Status.FAILED),
            error_try_times=most,
            available_at=sa.null(),
            finished_at=now(),
            last_error=error,
            claimed_by=sa.null(),
        )
    if outcome is Outcome.LATER:
        zero: ColumnElement[int] = sa.literal_column("0")
        times = sa.null() if c.later_times is None else sa.func.coalesce(c.later_times, zero) + 1
        return t.values(
            status=back,
            available_at=later,
            later_times=times,
            last_error=error,
            claimed_by=sa.null(),
        )
    return t.values(status=back, available_at=sa.null(), claimed_by=sa.null())


def back_to(t: Tables) -> ColumnElement[int]:
    """The status of a row given back without a try: new, or failed if it has failed before."""
    failed = t.tries(t.cols())
    return sa.case((failed > sa.literal_column("0"), lit(Status.FAILED)), else_=lit(Status.NEW))
