"""The settle of messages that are done, and the flag's move to the next message of each lane."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection, Select, bindparam
from sqlalchemy.exc import DBAPIError

from msgworker.db.clock import now
from msgworker.db.drivers import text_kind
from msgworker.db.types import array_param, array_rows, array_text
from msgworker.message import Outcome, Settled, Settlement, Status
from msgworker.store import rows
from msgworker.table.columns import Cols
from msgworker.table.tables import ONE, ZERO, Tables, lit

# --- The settle of messages that are done: whole batches at once, the flag moved along the run.


class FlagMissing(Exception):
    """Some rows of a batch were no longer ours; the batch must be rolled back and settled one by
    one."""


def check_not_kept(conn: Connection, t: Tables, msg_id: int, *, me: str) -> None:
    """Where a settle has changed nothing: raise RowKept if the message is still ours."""
    if t.has("claimed_by") and still_mine(conn, t, [msg_id], me=me):
        raise rows.RowKept(t, msg_id)


def look(conn: Connection, t: Tables, ids: Iterable[int], *, me: str) -> set[int]:
    """Those of `ids` that are flagged by us, after a COMMIT whose outcome is unknown.

    The server may still be at work on that commit, so the rows are locked first: a plain read would
    see the state before it, and the handler would start again while the old commit goes through.
    """
    wanted = set(ids)
    lock(conn, t, wanted)
    return still_mine(conn, t, wanted, me=me)


def still_mine(conn: Connection, t: Tables, ids: Iterable[int], *, me: str) -> set[int]:
    """Those of `ids` that are flagged by us."""
    found: set[int] = set()
    for portion in t.portions(list(ids)):
        found |= set(conn.scalars(rows.mine_among(t), {"mw_ids": portion, "mw_me": me}))
    return found


def moved_on(conn: Connection, t: Tables, nexts: Sequence[int], moved: int, *, me: str) -> set[int]:
    """Those of the next messages that are flagged by us now. moved: how many were to be. Raises
    FlagMissing if the database has kept some of those as they were, in whole or in part, or if
    another lane of ours has the flag of one, which was given another object meanwhile."""
    if moved == len(nexts) and not t.on_update:
        return set(nexts)
    flagged = still_mine(conn, t, nexts, me=me)
    if len(flagged) > moved or (t.on_update and len(flagged) < moved):
        raise FlagMissing
    return flagged


def write_done(
    conn: Connection, t: Tables, plain: Sequence[Settlement], others: Sequence[Settlement], me: str
) -> dict[int, Settled]:
    """Lock everything in msg_id order (otherwise two settles, or a claim, could deadlock), then
    write."""
    nexts = [s.next_id for s in plain if s.next_id is not None]
    lock(conn, t, {s.msg_id for s in (*plain, *others)} | {*nexts})
    written, owned = 0, t.has("claimed_by")
    alike: dict[tuple[int | None, bool], list[int]] = {}
    for s in plain:
        alike.setdefault((None if owned else s.tries, s.deletes), []).append(s.msg_id)
    for (seen, deletes), same in alike.items():
        written += finish(conn, t, same, me, seen, deletes=deletes)
    if written != len(plain):
        raise FlagMissing
    flagged = move(conn, t, nexts, me)
    return {s.msg_id: Settled.ADVANCED if s.next_id in flagged else Settled.ENDED for s in plain}


def lock(conn: Connection, t: Tables, ids: Iterable[int]) -> None:
    """Lock these in the order of their ids."""
    for params in portions(t, sorted(ids)) if t.database.row_locks else ():
        conn.execute(locking(t), params).all()


def locking(t: Tables) -> Select[Any]:
    """Only their number is sent back where a lock may be in a WITH."""

    def build() -> Select[Any]:
        c = t.cols()
        query = rows.locked_by_key(t, sa.select(c.msg_id).where(among(t, c)))
        if not t.database.arrays:
            return query
        locked = query.cte("locked").prefix_with("MATERIALIZED")
        return sa.select(sa.func.count()).select_from(locked)

    return t.built("settle_lock", build)


def portions(t: Tables, ids: Sequence[int], **params: Any) -> Iterator[dict[str, Any]]:
    """The parameters for so many ids as one statement may have."""
    for portion in t.portions(ids):
        yield params | {"mw_ids": array_text(portion) if t.database.arrays else portion}


def among(t: Tables, c: Cols) -> ColumnElement[bool]:
    """The ids of `portions`."""
    if t.database.arrays:
        return t.within(c, c.msg_id == sa.func.any(array_param("mw_ids", sa.BigInteger())))
    return t.among(c.msg_id)


def finish(
    conn: Connection,
    t: Tables,
    ids: Sequence[int],
    me: str,
    seen: int | None,
    *,
    free: bool = False,
    deletes: bool = False,
) -> int:
    """End messages that are done; returns how many rows were ours. seen: the tries that they were
    claimed with; None = not asked for, as where rows have owners. free: those that stand behind a
    head of ours, new and due, instead. deletes: as of Settlement."""
    counted = seen is not None and not free
    params: dict[str, Any] = {} if free else {"mw_me": me}
    if counted:
        params["mw_tries"] = seen

    def change(*, deletes: bool) -> int:
        def build() -> sa.Update | sa.Delete:
            c = t.cols()
            if not free:
                return finishing(t, among(t, c), counted, deletes=deletes)
            never = (t.stands_at(c, Status.NEW), t.due(c), t.tries(c) == ZERO)
            return rows.by_key(t, ending(t, deletes=deletes).where(among(t, c), *never))

        key = ("finish", free, counted, deletes)
        statement = t.built(key, build)
        return sum(
            rows.changed(conn, t, key, statement, some) for some in portions(t, ids, **params)
        )

    gone = deleted(conn, t, ids, lambda: change(deletes=True)) if deletes else 0
    return gone if gone == len(ids) else gone + change(deletes=False)


def delete_none(conn: Connection, t: Tables) -> None:
    """Raises what the database does where this login may not delete messages."""
    conn.execute(sa.delete(t.message).where(sa.false()))


def ids_given_again(table: str, ids: str, *, deletes: bool = True) -> str:
    """What is wrong with a table on SQLite that does so. ids: the column. deletes: a handler would
    delete messages when they are done, which is refused."""
    begins = 'a handler has when_done="delete", and ' if deletes else ""
    return (
        f"{begins}table {table} gives the id of a deleted last message to the next one, which "
        "outside systems would take for it: both have one idempotency key. Make the table anew "
        f"with {ids} INTEGER PRIMARY KEY AUTOINCREMENT, or "
        + ("leave when_done out" if deletes else "let its last row stand")
    )


def deleted(conn: Connection, t: Tables, ids: Sequence[int], delete: Callable[[], int]) -> int:
    """How many of these rows `delete` has deleted: a trigger may keep some, or put them back,
    without an error."""

    def there() -> int:
        these = t.built("there", lambda: sa.select(sa.func.count()).where(t.among(t.cols().msg_id)))
        return int(conn.scalar(these, {"mw_ids": list(ids)}) or 0)

    if not t.on_delete:
        return delete()
    before = there()
    delete()
    return before - there()


def finishing(
    t: Tables, among: ColumnElement[bool], counted: bool, *, deletes: bool = False
) -> sa.Update | sa.Delete:
    """Of the rows that we have flagged. among: their ids, as the database takes a list."""
    mine = (among, t.mine(t.cols(), rows.ME), *t.same_tries(t.cols(), counted))
    return rows.by_key(t, ending(t, deletes=deletes).where(*mine))


def ending(t: Tables, *, deletes: bool) -> sa.Update | sa.Delete:
    """What ends the row of a message that is done; or deletes it, unless it is needed: a job counts
    its rows, a key that is kept is held by its own, and people ask about one that has failed."""
    if not deletes:
        return sa.update(t.message).values(done_values(t))
    c, change = t.cols(), sa.delete(t.message)
    if c.last_error is not None:
        change = change.where(c.last_error.is_(None))
    if c.job_id is not None:
        change = change.where(c.job_id.is_(None))
    return change if c.unique_kept is None else change.where(rows.or_zero(c.unique_kept) != ONE)


def done_values(t: Tables) -> dict[str, Any]:
    """What a row gets with "done"."""
    return t.values(status=lit(Status.DONE), finished_at=now(), claimed_by=sa.null())


def advance(t: Tables) -> sa.Update:
    """Flag the next messages of lanes that continue: still new, still due."""

    def build() -> sa.Update:
        c = t.cols()
        free = (among(t, c), *may_follow(t, c))
        return rows.in_guard_order(
            t, sa.update(t.message).where(*free).values(rows.flagged_values(t))
        )

    return t.built("advance", build)


def move(conn: Connection, t: Tables, nexts: Sequence[int], me: str) -> set[int]:
    """Flag the next messages; returns those that are flagged by us now, see `moved_on`."""
    some = portions(t, nexts, mw_me=me)
    moved = sum(rows.changed(conn, t, "advance", advance(t), params) for params in some)
    return moved_on(conn, t, nexts, moved, me=me)


def may_follow(t: Tables, c: Cols) -> list[ColumnElement[bool]]:
    """New and due; without owners also without a try, as the run was read: their settle asks for
    the same."""
    never_tried = [] if t.has("claimed_by") else [t.tries(c) == ZERO]
    return [t.stands_at(c, Status.NEW), t.due(c), *never_tried]


def done_arrays(
    conn: Connection, t: Tables, batch: Sequence[Settlement], me: str
) -> dict[int, Settled]:
    """One statement, one round trip; where rows are deleted, another one for those that stay."""
    deleting = [s for s in batch if s.deletes]
    if not deleting:
        return _arrays(conn, t, batch, me)
    settled = _arrays(conn, t, deleting, me)
    lost = Settled.LOST
    left = [s._replace(deletes=False) for s in batch if settled.get(s.msg_id, lost) is lost]
    return settled | _arrays(conn, t, left, me) if left else settled


def _arrays(
    conn: Connection, t: Tables, batch: Sequence[Settlement], me: str
) -> dict[int, Settled]:
    """Of a batch of which all are deleted, or none: the flag moves in a WITH that joins what was
    finished.

    `finished` runs before `moved` for each lane because `moved` reads its rows, so the guard never
    sees two; and a lane whose flag was gone moves nothing.
    """

    def build(moving: bool) -> Any:
        c = t.cols()
        ids = array_param("mw_ids", sa.BigInteger())
        mine = ending(t, deletes=deletes).where(*_named(t, c, ids), t.mine(c, rows.ME))
        done = mine.returning(c.msg_id.label("msg_id")).cte("finished")
        if not moving:
            return sa.select(_ids_of(done))
        names = {"head": "mw_heads", "next": "mw_nexts"}
        pairs = array_rows(
            "pairs", {key: array_param(name, sa.BigInteger()) for key, name in names.items()}
        )
        moved = (
            sa.update(t.message)
            .where(done.c.msg_id == pairs.c.head, c.msg_id == pairs.c.next, *may_follow(t, c))
            .values(rows.flagged_values(t))
            .returning(c.msg_id.label("msg_id"))
            .cte("moved")
        )
        return sa.select(_ids_of(done), _ids_of(moved))

    deletes = batch[0].deletes
    moving = [s for s in batch if s.next_id is not None]
    if len(batch) == 1 and alone_fits(t, batch[0]):
        return {batch[0].msg_id: done_alone(conn, t, batch[0], me)}
    ids = array_text(sorted([s.msg_id for s in batch]))
    params: dict[str, Any] = {"mw_ids": ids, "mw_me": me}
    if not t.has("claimed_by"):
        seen = {s.msg_id: ANY_TRIES if s.tries is None else s.tries for s in batch}
        params["mw_seen"] = array_text(seen[msg_id] for msg_id in sorted(seen))
    nexts = ""
    if moving:
        after = [s.next_id for s in moving if s.next_id is not None]
        params["mw_heads"] = array_text([s.msg_id for s in moving])
        params["mw_nexts"] = array_text(after)
        nexts = array_text(sorted(after))
    key = ("settle", bool(moving), deletes)
    texts = rows.sent_often(conn, t, key, lambda: build(bool(moving)), params)[0]
    if texts[0] == ids and (not moving or texts[1] == nexts):  # all is as it was read
        on, ended = Settled.ADVANCED, Settled.ENDED
        return {s.msg_id: ended if s.next_id is None else on for s in batch}
    written, flagged = _ids_in(texts[0]), _ids_in(texts[1]) if moving else set()
    return {s.msg_id: became_of(s, written, flagged) for s in batch}


def _ids_of(rows: sa.CTE) -> ColumnElement[Any]:
    """All ids of some rows as one text, as `array_text` makes it; NULL if there are none. It is
    much cheaper to send and to read than a row for each. Whole numbers: a NUMERIC may say 3.0."""
    number = sa.cast(rows.c.msg_id, sa.BigInteger()).label("msg_id")
    ids = sa.select(number).order_by(number).subquery()
    text = sa.cast(sa.func.array_agg(ids.c.msg_id), sa.Text())
    return sa.select(text).scalar_subquery()


def _ids_in(text: str | None) -> set[int]:
    return set() if text is None else set(map(int, text[1:-1].split(",")))


def alone_fits(t: Tables, s: Settlement) -> bool:
    """Whether `done_alone` can write it: where one statement can, and rows have owners, whose tries
    need not be asked for."""
    able = t.database.arrays and t.has("claimed_by") and not (s.deletes and t.on_delete)
    return able and s.outcome is Outcome.DONE


def done_alone(conn: Connection, t: Tables, s: Settlement, me: str) -> Settled:
    """`done_arrays` for one lane, whose next message, or whose thread, waits for the answer, as
    that of a hot object or of a transactional handler: without arrays it is the sooner there."""
    deletes, params = s.deletes, {"mw_head": s.msg_id, "mw_me": me}
    key: Any = ("settle_alone", s.next_id is not None, deletes)
    if s.next_id is None:
        found = rows.sent_often(conn, t, key, lambda: _finish_alone(t, deletes), params, kept=True)
    else:
        params["mw_next"] = s.next_id
        found = rows.sent_often(conn, t, key, lambda: _move_alone(t, deletes), params, kept=True)
    if not found:  # lost, or needed
        return done_alone(conn, t, s._replace(deletes=False), me) if deletes else Settled.LOST
    if s.next_id is None:
        return Settled.ENDED
    return Settled.ENDED if found[0][0] is None else Settled.ADVANCED


_HEAD = bindparam("mw_head", type_=sa.BigInteger())


def _finish_alone(t: Tables, deletes: bool) -> Any:
    c = t.cols()
    mine = ending(t, deletes=deletes).where(c.msg_id == _HEAD, t.mine(c, rows.ME))
    return mine.returning(c.msg_id.label("msg_id"))


def _move_alone(t: Tables, deletes: bool) -> Any:
    c, finished = t.cols(), _finish_alone(t, deletes).cte("finished")
    next_one = c.msg_id == bindparam("mw_next", type_=sa.BigInteger())
    # Else SQLAlchemy warns of a product of two tables, though each gives one row.
    another = c.msg_id != finished.c.msg_id
    moved = (
        sa.update(t.message)
        .where(finished.c.msg_id == _HEAD, next_one, another, *may_follow(t, c))
        .values(rows.flagged_values(t))
        .returning(c.msg_id.label("msg_id"))
        .cte("moved")
    )
    return sa.select(sa.select(moved.c.msg_id).scalar_subquery()).select_from(finished)


ANY_TRIES = -1


def _named(t: Tables, c: Cols, ids: ColumnElement[Any]) -> list[ColumnElement[bool]]:
    """The rows of a batch; where they have no owner, with the tries they were claimed with."""
    if t.has("claimed_by"):
        return [c.msg_id == sa.func.any(ids)]
    tries_seen = array_param("mw_seen", sa.BigInteger())
    seen = array_rows("seen", {"msg_id": ids, "tries": tries_seen})
    as_claimed = sa.or_(
        seen.c.tries == sa.literal_column(str(ANY_TRIES)), seen.c.tries == t.tries(c)
    )
    return [c.msg_id == seen.c.msg_id, as_claimed]


def became_of(s: Settlement, written: set[int], flagged: set[int]) -> Settled:
    if s.msg_id not in written:
        return Settled.LOST
    return Settled.ADVANCED if s.next_id in flagged else Settled.ENDED


# --- The settle of messages that are done, in one statement: it ends the old rows and flags the
# next ones. A statement and the COMMIT, instead of a lock, two statements and the COMMIT.
#
# Where an UPDATE keeps to an order of rows it is one UPDATE. Rows are read and locked by msg_id,
# as everywhere, since the ids are given; then they are changed in the order of the guard
# (`rows.in_guard_order`). Elsewhere it is one block of the lock and the two UPDATEs.


class NotTogether(FlagMissing):
    """A row of the batch was not as expected, and the statement does not say which: roll back and
    settle it in steps."""


def fits(conn: Connection, t: Tables, batch: Sequence[Settlement]) -> bool:
    """Whether a batch of messages that are done can be written so: where rows have owners, whose
    tries need not be asked for, and stay, and not in several statements."""
    able = t.orders_updates or (t.database.blocks and t.database.can_block(conn))
    able = able and t.has("claimed_by") and 2 * len(batch) <= t.database.max_ids
    return able and not any([s.deletes for s in batch])


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
        written = rows.changed(conn, t, key, change, params)
    else:
        written = _in_block(conn, t, heads, nexts, params)
    if written != len(heads) + len(nexts):
        raise NotTogether
    return {s.msg_id: Settled.ENDED if s.next_id is None else Settled.ADVANCED for s in batch}


def _build(t: Tables, *, moving: bool) -> sa.Update:
    c = t.cols()
    change = sa.update(t.message).where(t.among(c.msg_id))
    if not moving:
        return rows.by_key(t, change.where(t.mine(c, rows.ME)).values(done_values(t)))
    ended = sa.and_(_one_of(c, "mw_heads"), t.mine(c, rows.ME))
    next_one = sa.and_(_one_of(c, "mw_nexts"), *may_follow(t, c))
    change = change.where(sa.or_(ended, next_one)).ordered_values(*_values(t, c))
    return rows.in_guard_order(t, change)


def _in_block(
    conn: Connection, t: Tables, heads: list[int], nexts: list[int], params: dict[str, Any]
) -> int:
    """How many rows were changed. The text depends on the lengths of the lists, so the next ones
    are made as many as the heads."""

    def build() -> sa.TextClause:
        c = t.cols()
        ended = sa.update(t.message).where(_one_of(c, "mw_heads"), t.mine(c, rows.ME))
        changes = {"mw_ended": ended.values(done_values(t))}
        if nexts:
            moved = sa.update(t.message).where(_one_of(c, "mw_nexts"), *may_follow(t, c))
            changes["mw_moved"] = moved.values(rows.flagged_values(t))
        return t.database.block_of(conn, locking(t), changes)

    params |= {"mw_heads": heads}
    if nexts:
        params |= {"mw_nexts": nexts + nexts[-1:] * (len(heads) - len(nexts))}
    try:
        block = t.built(("block", bool(nexts), *text_kind(conn)), build)
        return sum(t.database.send_block(conn, block, params))
    except DBAPIError as error:
        if t.database.refuses_block(conn, error):
            raise NotTogether from error
        raise


def _one_of(c: Cols, name: str) -> ColumnElement[bool]:
    return c.msg_id.in_(bindparam(name, expanding=True))


def _values(t: Tables, c: Cols) -> list[tuple[str, Any]]:
    """By the status that a row had: assigned last, since assignments see those before them."""
    was_running = c.status == lit(Status.PROCESSING)
    ended, flagged = done_values(t), rows.flagged_values(t)
    last = t.names["status"]
    values = []
    for name in sorted(ended.keys() | flagged.keys(), key=lambda name: (name == last, name)):
        column = t.message.c[name]
        value = sa.case((was_running, ended.get(name, column)), else_=flagged.get(name, column))
        values.append((name, value))
    return values
