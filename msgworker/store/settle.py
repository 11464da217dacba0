"""Write outcomes and move the flag, only while the flag is still ours.

One transaction settles many lanes. Outcomes are written first, then the next messages are flagged,
so the guard never sees two. A lane whose flag is gone is lost: nothing is written for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, assert_never

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection, bindparam
from sqlalchemy.exc import DBAPIError

from msgworker.db.clock import now, now_plus
from msgworker.db.database import Trouble
from msgworker.db.drivers import change_each, committing_each, has_sent_nothing, saving
from msgworker.db.errors import trouble
from msgworker.message import Outcome, Settled, Settlement, Status, ends_at
from msgworker.store import done, tries
from msgworker.store.claim import OF_A_ROW
from msgworker.store.rows import ME, Expected, by_key, check_written, refuse_at_once
from msgworker.store.send import send_all
from msgworker.table.tables import ZERO, Tables, lit


def settle(
    conn: Connection,
    t: Tables,
    batch: Sequence[Settlement],
    *,
    me: str,
    in_steps: bool = False,
    sending: bool = False,
) -> dict[int, Settled]:
    """Write a batch of settlements; return the result of each, by its msg_id. sending: some have
    messages to be sent with them.

    In the caller's transaction. Each settlement is of another lane.
    Raises FlagMissing if a flag is gone, IntegrityError if the guard forbids a next message,
    RowKept if the database keeps a row as it was: then nothing of the batch may be committed;
    settle each lane on its own with `settle_one`.
    NotTogether, a FlagMissing: call this again first, with in_steps.
    """
    ended = Outcome.DONE
    plain = [s for s in batch if s.outcome is ended]
    others = [] if len(plain) == len(batch) else [s for s in batch if s.outcome is not ended]
    if t.database.arrays and not (t.on_delete and any([s.deletes for s in plain])):
        settled = done.done_arrays(conn, t, plain, me) if plain else {}
    elif not others and not in_steps and done.fits(conn, t, plain):
        settled = done.done_together(conn, t, plain, me)
    else:
        settled = done.write_done(conn, t, plain, others, me)
    if others:
        _write(conn, t, others, me)
        settled |= dict.fromkeys((s.msg_id for s in others), Settled.ENDED)
        _keep_tries(conn, t, others, me)
    if t.on_update:
        _check_settled(conn, t, batch, settled, me)
    if sending:
        # Last: only now is known whose flag was ours, and the keys of those that have ended are
        # free.
        written = (s for s in batch if s.sends and settled[s.msg_id] is not Settled.LOST)
        send_all(conn, t, [one for s in written for one in s.sends])
    return settled


def settle_one(conn: Connection, t: Tables, settlement: Settlement, *, me: str) -> Settled:
    """Write one settlement in the caller's transaction; LOST writes nothing at all.

    If the next message cannot be flagged (edited, claimed by a foreign consumer, refused by the
    database before the COMMIT), the outcome is written all the same and the lane ends.
    """
    settled = _settle_alone(conn, t, settlement, me)
    if settlement.sends and settled is not Settled.LOST:
        send_all(conn, t, settlement.sends)
    return settled


def settle_at_once(conn: Connection, t: Tables, s: Settlement, *, me: str) -> Settled | None:
    """Write one settlement by a statement that commits itself, in a transaction of the caller that
    has sent nothing. None: nothing was written, and it must be settled in that transaction."""
    if s.sends or t.on_update or not done.alone_fits(t, s) or not has_sent_nothing(conn):
        return None
    try:
        with committing_each(conn):
            return done.done_alone(conn, t, s, me)
    except DBAPIError as error:
        if (s.next_id is None and not s.deletes) or not of_a_row(error, deletes=s.deletes):
            raise
        return None


def _settle_alone(conn: Connection, t: Tables, settlement: Settlement, me: str) -> Settled:
    if settlement.deletes or (t.on_update and settlement.next_id is not None):
        refuse_at_once(conn, t)
    settled = _settle_in_one(conn, t, settlement, me)
    if settled is not None:
        return settled
    if settlement.next_id is not None:
        done.lock(conn, t, {settlement.msg_id, settlement.next_id})
    try:
        if settlement.outcome is Outcome.DONE:
            if not _end_alone(conn, t, settlement, me):
                return Settled.LOST
        else:
            _write(conn, t, [settlement], me)
    except done.FlagMissing:
        return Settled.LOST
    check_written(conn, t, {settlement.msg_id: _expected(t, settlement)})
    _keep_tries(conn, t, [settlement], me)
    if settlement.next_id is None:
        return Settled.ENDED
    try:
        with conn.begin_nested():
            moved = done.move(conn, t, [settlement.next_id], me)
    except done.FlagMissing:
        return Settled.ENDED
    except DBAPIError as error:
        if trouble(error) not in OF_A_ROW:
            raise
        return Settled.ENDED
    return Settled.ADVANCED if moved else Settled.ENDED


def _settle_in_one(conn: Connection, t: Tables, s: Settlement, me: str) -> Settled | None:
    """In one statement; None where that cannot be, or if the next message cannot be flagged."""
    if t.on_update:
        return None
    alone = done.alone_fits(t, s)
    if alone and s.next_id is None and not s.deletes:
        return done.done_alone(conn, t, s, me)
    goes_on = s.outcome is Outcome.DONE and s.next_id is not None
    if not alone and not (goes_on and done.fits(conn, t, [s])):
        return None
    try:
        with saving(conn) if alone else conn.begin_nested():
            if alone:
                return done.done_alone(conn, t, s, me)
            return done.done_together(conn, t, [s], me)[s.msg_id]
    except done.NotTogether:
        return None
    except DBAPIError as error:
        if not of_a_row(error, deletes=s.deletes):
            raise
        return None


def of_a_row(error: BaseException, *, deletes: bool = False) -> bool:
    """Whether an error may be about one row of a batch. deletes: the right to delete one, or to do
    what a trigger then does, may lack, too; and the row can stay."""
    kind = trouble(error)
    return kind in OF_A_ROW or (deletes and kind is Trouble.REFUSED)


def _end_alone(conn: Connection, t: Tables, s: Settlement, me: str) -> int:
    """End a message that is done; how many rows were ours."""
    seen = None if t.has("claimed_by") else s.tries
    if s.deletes:
        with undone_if_refused(conn):
            return done.finish(conn, t, [s.msg_id], me, seen, deletes=True)
    return done.finish(conn, t, [s.msg_id], me, seen)


@contextmanager
def undone_if_refused(conn: Connection) -> Iterator[None]:
    """A DELETE that the database may refuse, as where a row of another table refers to it."""
    try:
        with conn.begin_nested():
            yield
    except DBAPIError as error:
        if not of_a_row(error, deletes=True):
            raise


def _write(conn: Connection, t: Tables, some: Sequence[Settlement], me: str) -> None:
    """Write outcomes other than done, those of one kind in one call of the driver; raises
    FlagMissing if a row is not ours."""
    alike: dict[tuple[Outcome, bool], list[dict[str, Any]]] = {}
    for s in some:
        params = {"mw_id": s.msg_id, "mw_me": me} | _outcome_params(t, s)
        counted = s.tries is not None
        if counted:
            params["mw_tries"] = s.tries
            if t.has("later_times"):
                params["mw_times"] = s.later_times
        alike.setdefault((s.outcome, counted), []).append(params)
    for kind, rows in alike.items():
        if change_each(conn, _statement(t, *kind), rows) != len(rows):
            raise done.FlagMissing


_KINDS = {
    Outcome.FAILED: tries.Kind.FAILED,
    Outcome.SPENT: tries.Kind.FAILED,
    Outcome.DEAD: tries.Kind.REJECTED,
}


def _check_settled(
    conn: Connection, t: Tables, batch: Sequence[Settlement], settled: dict[int, Settled], me: str
) -> None:
    """Raise if a row does not hold what was written."""
    written = [s for s in batch if settled[s.msg_id] is not Settled.LOST]
    check_written(conn, t, {s.msg_id: _expected(t, s) for s in written})
    advanced = [s.next_id for s in written if settled[s.msg_id] is Settled.ADVANCED]
    nexts = [msg_id for msg_id in advanced if msg_id is not None]
    done.moved_on(conn, t, nexts, len(nexts), me=me)


def _expected(t: Tables, s: Settlement) -> Expected:
    """What the row of a message holds after this."""
    most, seen = t.spec.max_tries, s.tries
    if s.outcome is Outcome.DONE:
        return Expected(Status.DONE)
    if s.outcome is Outcome.FAILED:
        failed = None if seen is None else min(seen + 1, most)
        waits = failed is not None and failed < most and t.has("available_at")
        return Expected(Status.FAILED, failed, waits=waits)
    if s.outcome in (Outcome.DEAD, Outcome.SPENT):
        return Expected(Status.FAILED, most)
    if s.outcome is Outcome.CANCELLED:
        return Expected(Status.FAILED, ends_at(most, t.spec.on_dead))
    back = None if seen is None else Status.FAILED if seen else Status.NEW
    if s.outcome is Outcome.LATER:
        times = s.later_times + 1 if t.has("later_times") else None
        return Expected(back, seen, times, waits=t.has("available_at"))
    if s.outcome is not Outcome.RELEASED:
        assert_never(s.outcome)
    return Expected(back, seen)


def _keep_tries(conn: Connection, t: Tables, written: Sequence[Settlement], me: str) -> None:
    failures = [
        tries.Failure(s.msg_id, _KINDS[s.outcome], s.error, s.trace, s.ran_seconds)
        for s in written
        if s.outcome in _KINDS
    ]
    if failures:
        tries.keep(conn, t, failures, instance=me)


def _outcome_params(t: Tables, s: Settlement) -> dict[str, Any]:
    error = None if s.error is None else t.error_text(s.error)
    if s.outcome is Outcome.RELEASED:
        return {}
    if s.outcome in (Outcome.DEAD, Outcome.SPENT, Outcome.CANCELLED):
        return {"mw_error": error}
    return {"mw_error": error, "mw_delay": float(s.delay_seconds)}


def _statement(t: Tables, outcome: Outcome, counted: bool) -> sa.Update:
    def build() -> sa.Update:
        c = t.cols()
        # These distinguish two claims of one instance: an outcome that was taken for lost and
        # arrives late must not end a newer claim of the same message.
        same_claim = t.same_tries(c, counted)
        if counted and c.later_times is not None:
            times = sa.func.coalesce(c.later_times, ZERO)
            same_claim.append(times == bindparam("mw_times", type_=sa.Integer()))
        this = t.within(c, c.msg_id == bindparam("mw_id", type_=sa.BigInteger()))
        mine = (this, t.mine(c, ME), *same_claim)
        values = t.tries_last(_outcome_values(t, outcome))
        return by_key(t, sa.update(t.message).where(*mine).ordered_values(*values))

    return t.built(("outcome", outcome, counted), build)


def _outcome_values(t: Tables, outcome: Outcome) -> dict[str, Any]:
    c = t.cols()
    most: ColumnElement[int] = sa.literal_column(str(t.spec.max_tries))
    error = bindparam("mw_error", type_=sa.String())
    later = now_plus(bindparam("mw_delay", type_=sa.Float()))
    if outcome is Outcome.FAILED:
        failed = one_more_try(t, most)
        dead = failed >= most
        return t.values(
            status=lit(Status.FAILED),
            error_try_times=failed,
            available_at=sa.case((dead, sa.null()), else_=later),
            finished_at=sa.case((dead, now())),
            last_error=error,
            claimed_by=sa.null(),
        )
    if outcome in (Outcome.DEAD, Outcome.SPENT, Outcome.CANCELLED):
        last = most
        if outcome is Outcome.CANCELLED:  # as after a discard its object continues
            last = sa.literal_column(str(ends_at(t.spec.max_tries, t.spec.on_dead)))
        return t.values(
            status=lit(Status.FAILED),
            error_try_times=last,
            available_at=sa.null(),
            finished_at=now(),
            last_error=error,
            claimed_by=sa.null(),
        )
    if outcome is Outcome.LATER:
        times = sa.null() if c.later_times is None else sa.func.coalesce(c.later_times, ZERO) + 1
        return t.values(
            status=back_to(t),
            available_at=later,
            later_times=times,
            last_error=error,
            claimed_by=sa.null(),
        )
    if outcome is not Outcome.RELEASED:
        raise AssertionError(f"{outcome} is written by no statement of its own")
    return released_values(t)


def one_more_try(t: Tables, most: ColumnElement[int]) -> ColumnElement[int]:
    """The tries after one more has failed. No more than all: a row may hold any number, the highest
    its column takes, too."""
    c = t.cols()
    return sa.case((t.tries_left(c), t.tries(c) + 1), else_=most)


def released_values(t: Tables) -> dict[str, Any]:
    """What a row gets that is released without a try."""
    return t.values(status=back_to(t), available_at=sa.null(), claimed_by=sa.null())


def back_to(t: Tables) -> ColumnElement[int]:
    """The status of a row given back without a try: new, or failed if it has failed before."""
    failed = t.tries(t.cols())
    return sa.case((failed > ZERO, lit(Status.FAILED)), else_=lit(Status.NEW))


# --- The outcome of a batch, in the transaction of its handler: all of it is written, or nothing.
#
# The head of each lane is flagged by us and goes from 1 to 2. The messages behind it are at 0,
# held by their head, and go from 0 to 2. All rows are locked first, in msg_id order over all
# lanes: otherwise a batch could deadlock with another one, a claim, a foreign consumer or people.


class Share(NamedTuple):
    """What a batch takes of a lane: its head, which is flagged, and those right behind it. next_id:
    the message that gets the flag, None if the lane ends."""

    head: int
    followers: Sequence[int] = ()
    next_id: int | None = None


class OutOfDate(Exception):
    """A head is no longer ours, or a follower no longer free: nothing may be committed."""


def settle_batch(
    conn: Connection,
    t: Tables,
    shares: Sequence[Share],
    *,
    me: str,
    tries: int | None = 0,
    deletes: bool = False,
) -> set[int]:
    """Write that all messages are done; return the next ones that are flagged by us now.

    In the caller's transaction, after the handler. tries: of the heads, as they were claimed; one
    with a try behind it is alone. deletes: as of Settlement. Raises OutOfDate, IntegrityError if
    the guard forbids a next message, or RowKept: then nothing may be committed.
    """
    heads = [share.head for share in shares]
    followers = [msg_id for share in shares for msg_id in share.followers]
    nexts = [share.next_id for share in shares if share.next_id is not None]
    done.lock(conn, t, {*heads, *followers, *nexts})
    if deletes:
        refuse_at_once(conn, t)
    seen = None if t.has("claimed_by") else tries
    for ids, free in ((heads, False), (followers, True)):
        ended = 0
        if deletes and ids:
            with undone_if_refused(conn):
                ended = done.finish(conn, t, ids, me, seen, free=free, deletes=True)
        if ended != len(ids) and done.finish(conn, t, ids, me, seen, free=free) != len(ids):
            raise OutOfDate
    check_written(conn, t, dict.fromkeys((*heads, *followers), Expected(Status.DONE)))
    try:
        return done.move(conn, t, nexts, me)
    except done.FlagMissing:
        raise OutOfDate from None
