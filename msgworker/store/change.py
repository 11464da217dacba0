"""Changes by operators: rerun, discard, acknowledge and cancel; and the messages behind those of an
object."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection
from sqlalchemy.exc import DBAPIError

from msgworker.db import Trouble, joining_widely, now, trouble
from msgworker.message import ACKNOWLEDGED, CANCELLED, DISCARDED, State, Status, ends_at
from msgworker.store import bounded, controls
from msgworker.store.bounded import Filter, discarded, in_state, said, where
from msgworker.store.controls import Asked
from msgworker.store.rows import Wanted, check_written
from msgworker.store.tries import in_group
from msgworker.table import Cols, Tables, lit, text_lit
from msgworker.table.tables import ONE, ZERO, holds_key, key_counts, takes_keys

# --- Unique keys of messages that are set to new again: whose key another message has taken.


def taken(conn: Connection, t: Tables, ids: Sequence[int]) -> dict[int, int]:
    """Those of the ended messages whose key another one holds, or an earlier one of them would
    hold: msg_id -> the other one."""
    if not takes_keys(t) or not ids:
        return {}

    def build() -> sa.Select[Any]:
        c, other = t.cols(), t.cols(t.message.alias("h"))
        assert c.unique_key is not None
        held = sa.select(sa.func.min(other.msg_id)).where(*holds_key(t, other, c.unique_key))
        query = sa.select(c.msg_id, c.unique_key, held.scalar_subquery())
        ended = sa.case((key_counts(t, c), ONE), else_=ZERO) == ZERO  # also if NULL
        return query.where(t.among(c.msg_id), c.unique_key.is_not(None), ended).order_by(c.msg_id)

    found: dict[int, int] = {}
    first: dict[str, int] = {}
    for portion in t.portions(ids):
        for msg_id, key, other in conn.execute(t.built("keys_taken", build), {"mw_ids": portion}):
            holder = first.setdefault(key, msg_id) if other is None else other
            if holder != msg_id:
                found[msg_id] = holder
    return found


def free_keys(conn: Connection, t: Tables, ids: Sequence[int]) -> None:
    """Take their keys from messages, in the caller's transaction."""

    def build() -> sa.Update:
        without = {t.names["unique_key"]: sa.null()}
        return sa.update(t.message).where(t.among(t.cols().msg_id)).values(without)

    for portion in t.portions(ids):
        conn.execute(t.built("keys_freed", build), {"mw_ids": portion})


# --- Changes by operators: rerun, discard and cancel, and the selection of their rows.
#
# A row is locked, checked again, recorded and changed in one transaction. Running rows are never
# changed; rows that have changed meanwhile are skipped and reported by the caller.


class SeenRow(NamedTuple):
    """A row as read or locked."""

    msg_id: int
    status: int | None
    tries: int


def states(conn: Connection, t: Tables, ids: Sequence[int]) -> dict[int, SeenRow]:
    """Messages by id in their present state, without missing ones."""

    def build() -> sa.Select[Any]:
        c = t.cols()
        columns: list[Any] = [c.msg_id, c.status, t.tries(c)]
        return sa.select(*columns).where(t.among(c.msg_id))

    found: dict[int, SeenRow] = {}
    for portion in t.portions(ids):
        for row in conn.execute(t.built("change_states", build), {"mw_ids": portion}):
            found[row[0]] = SeenRow._make(row)
    return found


def given_up(conn: Connection, t: Tables, ids: Sequence[int]) -> set[int]:
    """Those of the messages that were discarded or cancelled; at most `max_ids` ids."""
    c = t.cols()
    query = sa.select(c.msg_id).where(t.among(c.msg_id), discarded(t, c))
    return set(conn.scalars(query, {"mw_ids": list(ids)})) if ids else set()


def lock(
    conn: Connection,
    t: Tables,
    ids: Sequence[int],
    *,
    words: Sequence[State],
    wanted: Filter | None = None,
    waits: bool = True,
) -> list[int]:
    """Lock those of the messages that are in one of these states and still match; by msg_id.

    In the caller's transaction; at most `max_ids` ids. waits: False = skip rows locked by others,
    if the database can.
    """

    def build() -> sa.Select[Any]:
        query = _matching(t, words, wanted)
        if not t.database.row_locks:
            return query
        return query.with_for_update(skip_locked=not waits and t.database.skip_locked)

    if not ids:
        return []
    key = ("change_lock", tuple(words), waits)
    query = build() if wanted is not None else t.built(key, build)
    locked = list(conn.scalars(query, {"mw_ids": list(ids)}))
    if wanted is None or wanted.fingerprint is None:
        return locked
    return in_group(conn, t, locked, wanted.fingerprint)


def matching(
    conn: Connection, t: Tables, ids: Sequence[int], *, words: Sequence[State], wanted: Filter
) -> list[int]:
    """Those of the messages that are in one of these states and match, without a lock."""
    found: list[int] = []
    for portion in t.portions(ids):
        found += conn.scalars(_matching(t, words, wanted), {"mw_ids": portion})
    return found if wanted.fingerprint is None else in_group(conn, t, found, wanted.fingerprint)


def _matching(t: Tables, words: Sequence[State], wanted: Filter | None) -> sa.Select[Any]:
    c = t.cols()
    state = sa.or_(*(in_state(t, c, word) for word in words))
    query = sa.select(c.msg_id).where(t.among(c.msg_id), state)
    if wanted is not None:
        query = query.where(*where(t, c, wanted))
    return query.order_by(c.msg_id)


def rerun(conn: Connection, t: Tables, ids: Sequence[int], *, done_too: bool = False) -> int:
    """Set failed and dead messages to new, with their tries at 0; return how many.

    In the caller's transaction; at most `max_ids` ids. A row that is new or running stays as it is.
    So does the status of one that has failed no try: an edit has left it so (store/edits.py). What
    an operator said of it is gone: dead once more, it is not acknowledged.
    Requests to cancel them are deleted under the same locks: the next run is another one.
    """

    def build() -> sa.Update:
        c = t.cols()
        allowed = [lit(Status.FAILED), *([lit(Status.DONE)] if done_too else [])]
        untried = sa.and_(c.status == lit(Status.FAILED), t.tries(c) == ZERO)
        values: dict[str, Any] = t.values(
            status=sa.case((untried, lit(Status.FAILED)), else_=lit(Status.NEW)),
            error_try_times=ZERO,
            crash_times=ZERO,
            later_times=ZERO,
            available_at=sa.null(),
            claimed_by=sa.null(),
            finished_at=sa.null(),
        )
        if c.last_error is not None:  # what an operator said of it; its tries have the error
            known = said(c.last_error, ACKNOWLEDGED, DISCARDED, CANCELLED)
            values[t.names["last_error"]] = sa.case((known, sa.null()), else_=c.last_error)
        ids_in = t.among(c.msg_id)
        change = sa.update(t.message).where(ids_in, c.status.in_(allowed))
        return change.ordered_values(*t.tries_last(values))

    if not ids:
        return 0
    before = states(conn, t, ids) if t.on_update else {}
    rerun = int(conn.execute(t.built(("rerun", done_too), build), {"mw_ids": list(ids)}).rowcount)
    wanted = dict.fromkeys(ids, Wanted(Status.NEW, 0))
    for row in before.values():
        if row.status == Status.FAILED and row.tries == 0:
            wanted[row.msg_id] = Wanted(Status.FAILED, 0)
    check_written(conn, t, wanted, "the rerun")
    controls.drop_requests(conn, t, ids)
    return rerun


def discard(conn: Connection, t: Tables, ids: Sequence[int], *, text: str) -> int:
    """Discard new, failed and dead messages, with `text` as the last error; return how many.

    In the caller's transaction; at most `max_ids` ids. Done and running rows stay as they are.
    Under on_dead="block" one more try than the rule allows is written, so that the object
    continues. A text that is too long for the column is truncated.
    """
    return _give_up(conn, t, ids, text, DISCARDED)


def cancel(conn: Connection, t: Tables, ids: Sequence[int], *, text: str) -> int:
    """Cancel messages that wait: as `discard`, with a text that begins with CANCELLED."""
    return _give_up(conn, t, ids, text, CANCELLED)


def cancel_or_request(
    conn: Connection, t: Tables, ids: Sequence[int], *, actor: str, reason: str
) -> int:
    """Cancel messages that are locked: those that wait at once; those that run, and have an owner,
    by a request. Returns how many that were."""
    running = controls.running(conn, t, ids)
    waiting = [i for i in ids if i not in running]
    cancelled = cancel(conn, t, waiting, text=controls.cancel_text(actor, reason))
    controls.drop_requests(conn, t, waiting)
    return cancelled + controls.request_cancel(conn, t, running, actor=actor, reason=reason)


def known(conn: Connection, t: Tables, ids: Sequence[int]) -> set[int]:
    """Those of the messages that are acknowledged, discarded or cancelled; at most `max_ids`."""
    c = t.cols()
    query = sa.select(c.msg_id).where(t.among(c.msg_id), bounded.acknowledged(t, c))
    return set(conn.scalars(query, {"mw_ids": list(ids)})) if ids else set()


def acknowledge(conn: Connection, t: Tables, ids: Sequence[int], *, text: str) -> int:
    """Put a line before the last error of dead messages: ACKNOWLEDGED, and who and why; return how
    many. In the caller's transaction; at most `max_ids` ids. What is too long is truncated."""

    def build() -> sa.Update:
        c = t.cols()
        assert c.last_error is not None
        rest = sa.func.substr(c.last_error, 1, sa.bindparam("mw_room", type_=sa.Integer()))
        line = sa.bindparam("mw_text", type_=sa.String())
        values = t.values(last_error=line + sa.func.coalesce(rest, text_lit("")))
        dead = (c.status == lit(Status.FAILED), sa.not_(t.tries_left(c)))
        return sa.update(t.message).where(t.among(c.msg_id), *dead).values(values)

    if not ids:
        return 0
    statement = t.built("acknowledge", build)
    line = t.error_text(" ".join(text.split()))
    plain = line.encode("ascii", "backslashreplace").decode()
    lines = [f"{line}\n", f"{line[: t.max_error - 1]}\n", f"{plain[: t.max_error // 4]}\n"]
    for place, one in enumerate(lines):
        room = max(0, t.max_error - len(one)) if place == 0 else 0
        try:
            with conn.begin_nested():
                params = {"mw_ids": list(ids), "mw_text": one, "mw_room": room}
                done = int(conn.execute(statement, params).rowcount)
            check_written(conn, t, dict.fromkeys(ids, Wanted(Status.FAILED)), "it")
            return done
        except DBAPIError as error:
            if place == len(lines) - 1 or trouble(error) not in (Trouble.RACE, Trouble.OTHER):
                raise
    raise AssertionError("unreachable")


def end_request(conn: Connection, t: Tables, asked: Asked) -> bool:
    """Do what is left to do for a request, as it was read: a message that waits becomes dead; the
    request of one that has ended is deleted. True if the message became dead.

    In the caller's transaction. The message is locked first, without waiting for others, and
    what was seen is asked for again under that lock: a rerun deletes the request under the same.
    """
    request, ids = asked.request, [asked.request.msg_id]
    if asked.rerun or asked.state is None:
        controls.drop_seen(conn, t, request)
        return False
    if not lock(conn, t, ids, words=(asked.state,), waits=False):
        return False
    if not controls.drop_seen(conn, t, request) or asked.over:
        return False
    return bool(cancel(conn, t, ids, text=request.text))


def _give_up(conn: Connection, t: Tables, ids: Sequence[int], text: str, prefix: str) -> int:

    def build() -> sa.Update:
        c = t.cols()
        tries = ends_at(t.spec.max_tries, t.spec.on_dead)
        values = t.values(
            status=lit(Status.FAILED),
            error_try_times=lit(tries),
            available_at=sa.null(),
            claimed_by=sa.null(),
            finished_at=now(),
            last_error=sa.bindparam("mw_text", type_=sa.String()),
        )
        open_ones = c.status.in_([lit(Status.NEW), lit(Status.FAILED)])
        return sa.update(t.message).where(t.among(c.msg_id), open_ones).values(values)

    if not ids:
        return 0
    statement, params = t.built("discard", build), {"mw_ids": list(ids)}
    dead = dict.fromkeys(ids, Wanted(Status.FAILED, ends_at(t.spec.max_tries, t.spec.on_dead)))
    if not t.has("last_error"):
        given_up = int(conn.execute(statement, params).rowcount)
        check_written(conn, t, dead, "its end")
        return given_up
    for fitting in _shorter(t.error_text(text), prefix):
        try:
            with conn.begin_nested():
                given_up = int(conn.execute(statement, params | {"mw_text": fitting}).rowcount)
            check_written(conn, t, dead, "its end")
            return given_up
        except DBAPIError as error:
            if fitting is None or trouble(error) not in (Trouble.RACE, Trouble.OTHER):
                raise
    raise AssertionError("unreachable")


def _shorter(text: str, prefix: str) -> Iterator[str | None]:
    """A text, and its replacements if the table refuses it because of its character set or length:
    first only the prefix of discarded or cancelled messages, then NULL.
    """
    if text.startswith(prefix):  # else the column is too short for it
        yield text
        plain = text.encode("ascii", "backslashreplace").decode()
        length = len(plain)
        while length > len(prefix):
            yield plain[:length]
            length //= 2
        yield prefix
    yield None


# --- The messages behind a message of the same object, and those that ran after it.


def ran_later(
    conn: Connection, t: Tables, ids: Sequence[int], *, wanted: Filter | None = None
) -> dict[int, int]:
    """Messages behind which a later one of their object is done or runs: msg_id -> that one.

    ids: those that have an object, in order; without a filter at most `max_ids`. Costs one walk
    over the table from the lowest id on, since finished rows are in no index of ours; of a single
    message it ends at the first one found, and uses an index by object if the table has one.
    """
    if len(ids) < 2:
        return {i: late for i in ids if (late := _ran_later(conn, t, i)) is not None}

    def chosen(c: Cols) -> list[ColumnElement[bool]]:
        if wanted is None:
            return [t.among(c.msg_id)]
        return [c.msg_id.between(ids[0], ids[-1]), *where(t, c, wanted)]

    first_row, later_row, row = (t.message.alias(name) for name in ("f", "s", "c"))
    f, s, c = t.cols(first_row), t.cols(later_row), t.cols(row)
    first = (
        sa.select(f.object_id.label("o"))
        .where(f.object_id.is_not(None), *chosen(f))
        .group_by(f.object_id)
        .subquery("g")
    )
    # An outer join, so that the table is walked once and looked up in the few: planners that think
    # it is small would walk it once for each of them.
    last = (
        sa.select(first.c.o.label("o"), sa.func.max(s.msg_id).label("hi"))
        .select_from(later_row.outerjoin(first, first.c.o == s.object_id))
        .where(s.msg_id > ids[0], s.status.in_([lit(Status.DONE), lit(Status.PROCESSING)]))
        .where(*t.is_message(s))
        .group_by(first.c.o)
        .subquery("h")
    )
    before = sa.and_(c.object_id == last.c.o, c.msg_id < last.c.hi)
    query = sa.select(c.msg_id, last.c.hi).select_from(row.join(last, before)).where(*chosen(c))
    params = {} if wanted is not None else {"mw_ids": list(ids)}
    with joining_widely(conn, t.database):
        return {found[0]: found[1] for found in conn.execute(query, params)}


def _ran_later(conn: Connection, t: Tables, msg_id: int) -> int | None:
    def build() -> sa.Select[Any]:
        c = t.cols()
        ran = t.within(c, c.status.in_([lit(Status.DONE), lit(Status.PROCESSING)]))
        query = sa.select(c.msg_id).where(_behind_it(t, c), ran)
        return query.order_by(c.msg_id.desc()).limit(ONE)

    found = conn.scalar(t.built("ran_later", build), {"head": msg_id})
    return None if found is None else int(found)


def runs_later(conn: Connection, t: Tables, ids: Sequence[int]) -> dict[int, int]:
    """The same for later ones that run at this moment: cheap, by the guard's index.

    At most `max_ids` ids.
    """

    def build() -> sa.Select[Any]:
        source = t.message.alias("r")
        c, other = t.cols(), t.cols(source)
        columns: list[Any] = [c.msg_id, other.msg_id.label("other_id")]
        query = t.hinted(sa.select(*columns), source, "guard")
        behind = sa.and_(t.runs(other, t.object_key(c)), other.msg_id > c.msg_id)
        return query.select_from(t.message.join(source, behind)).where(t.among(c.msg_id))

    if not ids:
        return {}
    found = conn.execute(t.built("runs_later", build), {"mw_ids": list(ids)})
    return {row[0]: row[1] for row in found}


class Behind(NamedTuple):
    """The messages behind others when they were read, to detect later whether one of them has run.

    ids: the messages that have an object. first: the lowest unfinished one behind it, of its
    object; nothing behind that one starts before it has ended. high: rows above this msg_id may
    have come since.
    """

    ids: set[int]
    first: dict[int, int]
    high: int


def behind(conn: Connection, t: Tables, ids: Sequence[int]) -> Behind:
    """What stands behind these messages now: one step into the object index for each."""

    def build() -> sa.Select[Any]:
        c = t.cols()
        source = t.message.alias("n")
        n = t.cols(source)
        first = t.hinted(sa.select(t.open_msg_id(n)), source, "object").where(
            t.open_object(n) == t.object_key(c), t.open_msg_id(n) > c.msg_id, t.open_rows(n)
        )
        lowest = first.order_by(t.open_msg_id(n)).limit(ONE).scalar_subquery()
        columns: list[Any] = [c.msg_id, lowest.label("n")]
        return sa.select(*columns).where(t.among(c.msg_id), c.object_id.is_not(None))

    last = bounded.ends(conn, t)
    # An id is given at the INSERT and shows at the COMMIT: a few below the highest may yet come.
    seen = Behind(set(), {}, bounded.LEAST if last is None else last[1] - bounded.SINCE_SLACK)
    for portion in t.portions(ids):
        for msg_id, first in conn.execute(t.built("behind", build), {"mw_ids": portion}):
            seen.ids.add(msg_id)
            if first is not None:
                seen.first[msg_id] = first
    return seen


def done_above(conn: Connection, t: Tables, ids: Sequence[int], msg_id: int) -> dict[int, int]:
    """Of these messages those of whose object a message above `msg_id` is done: the highest one. At
    most `max_ids` ids. Which objects are the same says the database, as everywhere."""

    def build() -> sa.Select[Any]:
        source = t.message.alias("d")
        d, c = t.cols(source), t.cols()
        # With both ends: a planner that does not know the values takes an open range for a third
        # of the table and reads all of it.
        low, high = (sa.bindparam(name, type_=sa.BigInteger()) for name in ("low", "high"))
        came = sa.select(d.object_id.label("o"), sa.func.max(d.msg_id).label("hi"))
        came = came.where(d.msg_id.between(low, high), d.status == lit(Status.DONE))
        came = came.where(*t.is_message(d))
        g = came.where(d.object_id.is_not(None)).group_by(d.object_id).subquery("g")
        query = sa.select(c.msg_id, g.c.hi).select_from(t.message.join(g, g.c.o == c.object_id))
        return query.where(t.among(c.msg_id))

    params = {"low": msg_id + 1, "high": bounded.MOST, "mw_ids": list(ids)}
    return {row[0]: row[1] for row in conn.execute(t.built("done_above", build), params)}


def lowest(conn: Connection, t: Tables, ids: Sequence[int]) -> dict[int, int]:
    """The lowest of these messages that is of the same object, of each; at most `max_ids` ids."""

    def build() -> sa.Select[Any]:
        first, c = _firsts(t), t.cols()
        same = sa.and_(t.object_key(c) == first.c.k, c.object_id.is_not(None))
        query = sa.select(c.msg_id, first.c.lo).select_from(t.message.join(first, same))
        return query.where(t.among(c.msg_id))

    found = conn.execute(t.built("lowest", build), {"mw_ids": list(ids)})
    return {i: i for i in ids} | {row[0]: row[1] for row in found}


def not_done_behind(conn: Connection, t: Tables, ids: Sequence[int]) -> dict[int, list[SeenRow]]:
    """What stands behind these messages, of their objects, and is not done, by msg_id; under the
    lowest of each object. By the indexes of unfinished and of failed rows; at most `max_ids` ids.
    """

    def build(failed: bool) -> sa.Select[Any]:
        first, source = _firsts(t), t.message.alias("n")
        n = t.cols(source)
        if failed:
            same = sa.and_(t.object_key(n) == first.c.k, t.failed_key(n) > first.c.lo)
            rows = t.failed_rows(n)
        else:
            same = sa.and_(t.open_object(n) == first.c.k, t.open_msg_id(n) > first.c.lo)
            rows = t.open_rows(n)
        columns: list[Any] = [first.c.lo, n.msg_id, n.status, t.tries(n)]
        query = t.hinted(sa.select(*columns), source, "failed" if failed else "object")
        return query.select_from(first.join(source, same)).where(rows)

    found: dict[int, dict[int, SeenRow]] = {}
    # In this order: one that is unfinished when it is read may be dead a moment later.
    for failed in (False, True):
        statement = t.built(("not_done_behind", failed), partial(build, failed))
        for lo, *row in conn.execute(statement, {"mw_ids": list(ids)}):
            found.setdefault(lo, {})[row[0]] = SeenRow._make(row)
    return {lo: [rows[i] for i in sorted(rows)] for lo, rows in found.items()}


def done_behind(conn: Connection, t: Tables, lows: Sequence[int]) -> dict[int, list[SeenRow]]:
    """The same of those that are done, behind the lowest of each object; at most `max_ids` of them.

    One walk over the table from the lowest id on; of one object, by an index by object if the table
    has one.
    """
    alone = len(lows) == 1

    def build() -> sa.Select[Any]:
        source = t.message.alias("s")
        s = t.cols(source)
        done = t.within(s, s.status == lit(Status.DONE))
        columns: list[Any] = [s.msg_id, s.status, t.tries(s)]
        if alone:
            return sa.select(*columns).where(_behind_it(t, s), done).order_by(s.msg_id)
        first = _firsts(t)
        # An outer join: see `ran_later`.
        joined = source.outerjoin(first, first.c.k == t.object_key(s))
        low = sa.bindparam("low", type_=sa.BigInteger())
        query = sa.select(first.c.lo, *columns).select_from(joined)
        query = query.where(s.msg_id > low, done, s.object_id.is_not(None))
        return query.where(s.msg_id > first.c.lo).order_by(s.msg_id)

    statement = t.built(("done_behind", alone), build)
    if alone:
        rows = conn.execute(statement, {"head": lows[0]})
        return {lows[0]: [SeenRow._make(row) for row in rows]}
    found: dict[int, list[SeenRow]] = {}
    with joining_widely(conn, t.database):
        for lo, *row in conn.execute(statement, {"mw_ids": list(lows), "low": min(lows)}):
            found.setdefault(lo, []).append(SeenRow._make(row))
    return found


def _firsts(t: Tables) -> sa.Subquery:
    """The objects of some messages, and the lowest of these messages of each."""
    f = t.cols(t.message.alias("f"))
    query = sa.select(t.object_key(f).label("k"), sa.func.min(f.msg_id).label("lo"))
    query = query.where(t.among(f.msg_id), f.object_id.is_not(None))
    return query.group_by(t.object_key(f)).subquery("g")


def _behind_it(t: Tables, c: Cols) -> ColumnElement[bool]:
    h = t.cols(t.message.alias("h"))
    mine = sa.select(h.object_id).where(h.msg_id == sa.bindparam("head")).scalar_subquery()
    return sa.and_(c.msg_id > sa.bindparam("head"), c.object_id == mine)
