"""Changes by operators: rerun, discard, acknowledge, cancel and edit; and the messages behind those
of an object.

A row is locked, checked again, recorded and changed in one transaction. Running rows are never
changed; rows that have changed meanwhile are skipped and reported by the caller.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection
from sqlalchemy.exc import DBAPIError

from msgworker.db.clock import instant_text, now
from msgworker.db.connections import fetch, joining_widely
from msgworker.db.errors import trouble
from msgworker.db.types import beginning, or_text, whole_number
from msgworker.message import ACKNOWLEDGED, CANCELLED, DISCARDED, State, Status, ends_at
from msgworker.store import bounded, controls, rows
from msgworker.store.bounded import Filter, an_id, discarded, in_state, said, where
from msgworker.store.claim import OF_A_ROW
from msgworker.store.controls import Asked
from msgworker.store.send import sent_values
from msgworker.store.tries import in_group
from msgworker.table.build import AUDIT, OPERATION
from msgworker.table.columns import Cols
from msgworker.table.tables import (
    ONE,
    ZERO,
    Tables,
    holds_key,
    key_counts,
    lit,
    takes_keys,
    text_lit,
)

# --- Unique keys of messages that are set to new again: whose key another message has taken.


def taken(conn: Connection, t: Tables, ids: Sequence[int]) -> dict[int, int]:
    """Those of the ended messages whose key another one holds, or an earlier one of them would
    hold: msg_id -> the other one."""
    if not takes_keys(t):
        return {}
    c, other = t.cols(), t.cols(t.message.alias("h"))
    # A row that has ended holds no key itself. Its id is named so that the subquery depends on the
    # row: MariaDB keeps answers by the key alone, and in the key's collation 'A' may equal 'a'.
    held = sa.select(sa.func.min(other.msg_id)).where(
        *holds_key(t, other, c["unique_key"]), other.msg_id != c.msg_id
    )
    query = sa.select(c.msg_id, c["unique_key"], held.scalar_subquery())
    ended = sa.case((key_counts(t, c), ONE), else_=ZERO) == ZERO  # also if NULL
    query = query.where(t.among(c.msg_id), c["unique_key"].is_not(None), ended).order_by(c.msg_id)
    found: dict[int, int] = {}
    first: dict[str, int] = {}
    for msg_id, key, another in rows.among_ids(conn, t, query, ids):
        holder = first.setdefault(key, msg_id) if another is None else another
        if holder != msg_id:
            found[msg_id] = holder
    return found


def free_keys(conn: Connection, t: Tables, ids: Sequence[int]) -> None:
    """Take their keys from messages, in the caller's transaction."""
    without = t.values(unique_key=sa.null())
    change = sa.update(t.message).where(t.among(t.cols().msg_id)).values(without)
    for portion in t.portions(ids):
        conn.execute(change, {"mw_ids": portion})


# --- The selection of rows.


class SeenRow(NamedTuple):
    """A row as read or locked."""

    msg_id: int
    status: int | None
    tries: int


def states(conn: Connection, t: Tables, ids: Sequence[int]) -> dict[int, SeenRow]:
    """Messages by id in their present state, without missing ones."""
    c = t.cols()
    query = sa.select(c.msg_id, c.status, t.tries(c)).where(t.among(c.msg_id))
    return {row[0]: SeenRow._make(row) for row in rows.among_ids(conn, t, query, ids)}


def given_up(conn: Connection, t: Tables, ids: Sequence[int]) -> set[int]:
    """Those of the messages that were discarded or cancelled."""
    return _those(conn, t, ids, discarded(t, t.cols()))


def known(conn: Connection, t: Tables, ids: Sequence[int]) -> set[int]:
    """Those of the messages that are acknowledged, discarded or cancelled."""
    return _those(conn, t, ids, bounded.acknowledged(t, t.cols()))


def _those(conn: Connection, t: Tables, ids: Iterable[int], which: ColumnElement[bool]) -> set[int]:
    c = t.cols()
    query = sa.select(c.msg_id).where(t.among(c.msg_id), which)
    return {row[0] for row in rows.among_ids(conn, t, query, ids)}


def lock(
    conn: Connection,
    t: Tables,
    ids: Sequence[int],
    *,
    words: Sequence[State],
    wanted: Filter | None = None,
    waits: bool = True,
) -> list[int]:
    """Lock those of the messages that are in one of these states and still match; by msg_id. In the
    caller's transaction; at most `max_ids` ids. waits: False = skip rows locked by others, if the
    database can."""
    query = _matching(t, words, wanted)
    if t.database.row_locks:
        query = query.with_for_update(skip_locked=not waits and t.database.skip_locked)
    locked = list(conn.scalars(query, {"mw_ids": list(ids)})) if ids else []
    if wanted is None or wanted.fingerprint is None:
        return locked
    return in_group(conn, t, locked, wanted.fingerprint)


def matching(
    conn: Connection, t: Tables, ids: Sequence[int], *, words: Sequence[State], wanted: Filter
) -> list[int]:
    """Those of the messages that are in one of these states and match, without a lock."""
    found = [row[0] for row in rows.among_ids(conn, t, _matching(t, words, wanted), ids)]
    return found if wanted.fingerprint is None else in_group(conn, t, found, wanted.fingerprint)


def _matching(t: Tables, words: Sequence[State], wanted: Filter | None) -> sa.Select[Any]:
    c = t.cols()
    state = sa.or_(*(in_state(t, c, word) for word in words))
    query = sa.select(c.msg_id).where(t.among(c.msg_id), state)
    if wanted is not None:
        query = query.where(*where(t, c, wanted))
    return query.order_by(c.msg_id)


# --- Rerun, discard, acknowledge and cancel. In the caller's transaction; at most `max_ids` ids.


def rerun(conn: Connection, t: Tables, ids: Sequence[int], *, done_too: bool = False) -> int:
    """Set failed and dead messages to new, with their tries at 0; return how many. The status of
    one that has failed no try stays, and its instant: an edit has left it so (`edit`). What an
    operator said of it is gone: dead once more, it is not acknowledged. Requests to cancel them are
    deleted under the same locks: the next run is another one."""
    if not ids:
        return 0
    c = t.cols()
    allowed = [lit(Status.FAILED), *([lit(Status.DONE)] if done_too else [])]
    untried = t.untried(c)
    at = sa.null() if c.available_at is None else sa.case((untried, c.available_at))
    values: dict[str, Any] = t.values(
        status=sa.case((untried, lit(Status.FAILED)), else_=lit(Status.NEW)),
        error_try_times=ZERO,
        crash_times=ZERO,
        later_times=ZERO,
        available_at=at,
        claimed_by=sa.null(),
        finished_at=sa.null(),
    )
    if c.last_error is not None:  # what an operator said of it; its tries have the error
        operators = said(c.last_error, ACKNOWLEDGED, DISCARDED, CANCELLED)
        values[t.names["last_error"]] = sa.case((operators, sa.null()), else_=c.last_error)
    change = sa.update(t.message).where(t.among(c.msg_id), c.status.in_(allowed))
    change = change.ordered_values(*t.tries_last(values))
    before = states(conn, t, ids) if t.on_update else {}
    rerun = conn.execute(change, {"mw_ids": list(ids)}).rowcount
    expected = dict.fromkeys(ids, rows.Expected(Status.NEW, 0))
    for row in before.values():
        if row.status == Status.FAILED and row.tries == 0:
            expected[row.msg_id] = rows.Expected(Status.FAILED, 0)
    rows.check_written(conn, t, expected, "the rerun")
    controls.drop_requests(conn, t, ids)
    return rerun


def discard(conn: Connection, t: Tables, ids: Sequence[int], *, text: str) -> int:
    """Discard new, failed and dead messages, with `text` as the last error; return how many. Under
    on_dead="block" one more try than the rule allows is written, so that the object continues. A
    text that is too long for the column is truncated."""
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


def end_request(conn: Connection, t: Tables, asked: Asked) -> bool:
    """Do what is left to do for a request, as it was read: a message that waits becomes dead; the
    request of one that has ended is deleted. True if the message became dead. It is locked first,
    without waiting for others, and what was seen is asked for again under that lock: a rerun
    deletes the request under the same."""
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
    change = sa.update(t.message).where(t.among(c.msg_id), open_ones).values(values)
    texts = [{"mw_text": fitting} for fitting in _shorter(t.error_text(text), prefix)]
    params = texts if t.has("last_error") else [{}]
    expected = dict.fromkeys(ids, rows.Expected(Status.FAILED, tries))
    return _first_taken(conn, t, change, params, expected, "its end")


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


def acknowledge(conn: Connection, t: Tables, ids: Sequence[int], *, text: str) -> int:
    """Put a line before the last error of dead messages: ACKNOWLEDGED, and who and why; return how
    many. What is too long is truncated."""
    c = t.cols()
    rest = sa.func.substr(c["last_error"], 1, sa.bindparam("mw_room", type_=sa.Integer()))
    begin = sa.bindparam("mw_text", type_=sa.String())
    values = t.values(last_error=begin + or_text(rest, text_lit("")))
    dead = (c.status == lit(Status.FAILED), sa.not_(t.tries_left(c)))
    change = sa.update(t.message).where(t.among(c.msg_id), *dead).values(values)
    line = t.error_text(" ".join(text.split()))
    plain = line.encode("ascii", "backslashreplace").decode()
    room = max(0, t.max_error - len(line) - 1)
    params: list[dict[str, Any]] = [
        {"mw_text": f"{line}\n", "mw_room": room},
        {"mw_text": f"{line[: t.max_error - 1]}\n", "mw_room": 0},
        {"mw_text": f"{plain[: t.max_error // 4]}\n", "mw_room": 0},
    ]
    expected = dict.fromkeys(ids, rows.Expected(Status.FAILED))
    return _first_taken(conn, t, change, params, expected, "it")


def _first_taken(
    conn: Connection,
    t: Tables,
    change: sa.Update,
    params: Sequence[Mapping[str, Any]],
    expected: Mapping[int, rows.Expected],
    what: str,
) -> int:
    """Send an UPDATE of rows with the first of some parameters that the table takes; returns how
    many it has changed. expected, what: for `check_written`."""
    for some in params if expected else ():
        try:
            with conn.begin_nested():
                done = conn.execute(change, {**some, "mw_ids": list(expected)}).rowcount
            rows.check_written(conn, t, expected, what)
            return done
        except DBAPIError as error:
            if some is params[-1] or trouble(error) not in OF_A_ROW:
                raise
    return 0


# --- Corrections of a message that waits or is dead, in its place.
#
# A waiting message may be in a run that an instance has read ahead with its payload (claim.py), and
# a candidate with its topic. Neither may start with what it was. So an edit of a new message leaves
# it at -1 with no failed try: it holds its place and its object as before, but no run has it, and a
# claim that has seen it at 0 loses; it is claimed again, and read under its flag. A failed one is
# in no run, and a claim reads its topic under its flag, too.


class Held(NamedTuple):
    """A message as it is read for an edit; what its table has no column for is None. length: of a
    payload that is too long to be read, which is None then. available_at, finished_at: as
    `instant_text` reads them."""

    status: Any
    tries: Any
    object_id: Any
    topic: Any
    payload: Any
    length: Any
    available_at: Any
    priority: Any
    unique_key: Any
    last_error: Any
    finished_at: Any
    crashes: Any
    postponed: Any

    @property
    def seen(self) -> str:
        """What says whether it has changed: the same for the same row."""
        text = json.dumps([None if one is None else str(one) for one in self])
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]

    @property
    def given_up(self) -> bool:
        """Whether it may have been discarded or cancelled while it waited."""
        if self.status != Status.FAILED:
            return False
        text = self.last_error
        return not isinstance(text, str) or text.startswith((DISCARDED, CANCELLED))


def to_edit(conn: Connection, t: Tables, msg_id: int, *, lock: bool = False) -> Held | None:
    """One message, None if there is none. lock: until the end of the caller's transaction."""
    c = t.cols()
    none: ColumnElement[Any] = sa.null()
    columns = (
        c.status,
        t.tries(c),
        c.object_id,
        none if c.topic is None else c.topic,
        *rows.payload_columns(t, c, t.spec.max_payload),
        none if c.available_at is None else instant_text(c.available_at),
        none if c.priority is None else c.priority,
        none if c.unique_key is None else c.unique_key,
        none if c.last_error is None else beginning(c.last_error),
        none if c.finished_at is None else instant_text(c.finished_at),
        rows.or_zero(c.crash_times),
        rows.or_zero(c.later_times),
    )
    query = sa.select(*(column.label(f"e{i}") for i, column in enumerate(columns)))
    query = query.where(t.among(c.msg_id), *t.is_message(c))
    if lock and t.database.row_locks:
        query = query.with_for_update()
    found = fetch(conn, query, {"mw_ids": [msg_id]})
    return Held(*found[0]) if found else None


def object_runs(conn: Connection, t: Tables, msg_id: int) -> bool:
    """Whether a message of its object runs, so that an instance may have read this one ahead."""
    return bool(_those(conn, t, [msg_id], t.object_is_running(t.cols())))


def read_ahead(conn: Connection, t: Tables, ids: Iterable[int]) -> set[int]:
    """Those of the messages that were edited, and are of an object of which one runs."""
    c, o, a = t.cols(), OPERATION.of(t).c, AUDIT.of(t).c
    ours = (o.table_name == t.label, o.kind == "edit")
    edited = sa.select(ONE).where(a.msg_id == c.msg_id, o.op_id == a.op_id, *ours)
    return _those(conn, t, sorted(ids), sa.and_(t.object_is_running(c), sa.exists(edited)))


def parks(held: Held, names: frozenset[str]) -> bool:
    """Whether an edit leaves a message at -1, since others may have read what changes."""
    if held.status != Status.NEW:
        return False
    ahead = held.object_id is not None and held.unique_key is None
    return "b_topic" in names or ("b_payload" in names and ahead)


def edit(
    conn: Connection, t: Tables, msg_id: int, held: Held, params: dict[str, Any], *, at_once: bool
) -> int:
    """Write new values (params: of `sent_values`) to a message that is locked and still `held`;
    returns how many were changed. at_once: it waits for no instant."""
    c, names = t.cols(), frozenset(params)
    parked = parks(held, names)
    roles = sent_values(t, names) | ({"available_at": sa.null()} if at_once else {})
    if parked:
        roles |= {"status": lit(Status.FAILED), "claimed_by": sa.null()}
    waits = c.status.in_([lit(Status.NEW), lit(Status.FAILED)])
    change = sa.update(t.message).where(t.among(c.msg_id), waits).values(t.values(**roles))
    done = conn.execute(rows.by_key(t, change), params | {"mw_ids": [msg_id]}).rowcount
    after = Status.FAILED if parked else Status(held.status)
    rows.check_written(
        conn, t, {msg_id: rows.Expected(after, whole_number(held.tries))}, "the edit"
    )
    return done


# --- The messages behind a message of the same object, and those that ran after it.


def ran_later(
    conn: Connection, t: Tables, ids: Sequence[int], *, wanted: Filter | None = None
) -> dict[int, int]:
    """Messages behind which a later one of their object is done or runs: msg_id -> that one. ids:
    those that have an object, in order; without a filter at most `max_ids`. Costs one walk over the
    table from the lowest id on, since finished rows are in no index of ours; of a single message it
    ends at the first one found, and uses an index by object if the table has one."""
    if len(ids) < 2:
        c = t.cols()
        later = sa.select(c.msg_id).where(*_ran(t, c)).order_by(c.msg_id.desc()).limit(ONE)
        found = {i: conn.scalar(later.where(_behind_it(t, c, i))) for i in ids}
        return {i: late for i, late in found.items() if late is not None}

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
        .where(s.msg_id > ids[0], *_ran(t, s))
        .group_by(first.c.o)
        .subquery("h")
    )
    before = sa.and_(c.object_id == last.c.o, c.msg_id < last.c.hi)
    query = sa.select(c.msg_id, last.c.hi).select_from(row.join(last, before)).where(*chosen(c))
    params = {} if wanted is not None else {"mw_ids": list(ids)}
    with joining_widely(conn, t.database):
        return {found[0]: found[1] for found in conn.execute(query, params)}


def _ran(t: Tables, c: Cols) -> list[ColumnElement[bool]]:
    return [c.status.in_([lit(Status.DONE), lit(Status.PROCESSING)]), *t.is_message(c)]


def runs_later(conn: Connection, t: Tables, ids: Sequence[int]) -> dict[int, int]:
    """The same for later ones that run at this moment: cheap, by the guard's index."""
    source = t.message.alias("r")
    c, other = t.cols(), t.cols(source)
    query: Any = sa.select(c.msg_id, other.msg_id.label("other_id"))
    query = t.hinted(query, source, "guard")
    behind = sa.and_(t.runs(other, t.object_key(c)), other.msg_id > c.msg_id)
    query = query.select_from(t.message.join(source, behind)).where(t.among(c.msg_id))
    return {row[0]: row[1] for row in rows.among_ids(conn, t, query, ids)}


class Behind(NamedTuple):
    """The messages behind others when they were read, to detect later whether one has run."""

    ids: set[int]  # those that have an object
    # The lowest unfinished one behind each, of its object: nothing behind that one starts before it
    # has ended.
    first: dict[int, int]
    high: int  # rows above this msg_id may have come since


def behind(conn: Connection, t: Tables, ids: Sequence[int]) -> Behind:
    """What stands behind these messages now: one step into the object index for each."""
    c, source = t.cols(), t.message.alias("n")
    n = t.cols(source)
    first = t.hinted(sa.select(t.open_msg_id(n)), source, "object").where(
        t.open_object(n) == t.object_key(c), t.open_msg_id(n) > c.msg_id, t.open_rows(n)
    )
    lowest = first.order_by(t.open_msg_id(n)).limit(ONE).scalar_subquery()
    query = sa.select(c.msg_id, lowest.label("n"))
    query = query.where(t.among(c.msg_id), c.object_id.is_not(None))
    last = bounded.ends(conn, t)
    # An id is given at the INSERT and shows at the COMMIT: a few below the highest may yet come.
    high = bounded.LEAST if last is None else max(bounded.LEAST, last[1] - bounded.SINCE_SLACK)
    found = {row[0]: row[1] for row in rows.among_ids(conn, t, query, ids)}
    return Behind({*found}, {i: one for i, one in found.items() if one is not None}, high)


def done_above(conn: Connection, t: Tables, ids: Sequence[int], msg_id: int) -> dict[int, int]:
    """Of these messages those of whose object a message above `msg_id` is done: the highest one.
    Which objects are the same says the database, as everywhere."""
    d, c = t.cols(t.message.alias("d")), t.cols()
    # With both ends: a planner that does not know the values takes an open range for a third
    # of the table and reads all of it.
    came = sa.select(d.object_id.label("o"), sa.func.max(d.msg_id).label("hi"))
    came = came.where(d.msg_id > an_id(msg_id), d.msg_id <= an_id(bounded.MOST))
    came = came.where(d.status == lit(Status.DONE), *t.is_message(d), d.object_id.is_not(None))
    g = came.group_by(d.object_id).subquery("g")
    query = sa.select(c.msg_id, g.c.hi).select_from(t.message.join(g, g.c.o == c.object_id))
    query = query.where(t.among(c.msg_id))
    return {row[0]: row[1] for row in rows.among_ids(conn, t, query, ids)}


def lowest(conn: Connection, t: Tables, ids: Sequence[int]) -> dict[int, int]:
    """The lowest of these messages that is of the same object, of each; at most `max_ids` ids."""
    first, c = _firsts(t), t.cols()
    same = sa.and_(t.object_key(c) == first.c.k, c.object_id.is_not(None))
    query = sa.select(c.msg_id, first.c.lo).select_from(t.message.join(first, same))
    found = conn.execute(query.where(t.among(c.msg_id)), {"mw_ids": list(ids)})
    return {i: i for i in ids} | {row[0]: row[1] for row in found}


def not_done_behind(conn: Connection, t: Tables, ids: Sequence[int]) -> dict[int, list[SeenRow]]:
    """What stands behind these messages, of their objects, and is not done, by msg_id; under the
    lowest of each object. By the indexes of unfinished rows, and of failed ones, which is walked
    once; at most `max_ids` ids."""
    first, source = _firsts(t), t.message.alias("n")
    n = t.cols(source)
    opened = sa.and_(t.open_object(n) == first.c.k, t.open_msg_id(n) > first.c.lo)
    after = (t.failed_key(n) > an_id(min(ids)), t.failed_key(n) > first.c.lo)
    # An outer join: see `ran_later`.
    failed = source.outerjoin(first, first.c.k == t.object_key(n))
    columns: list[Any] = [first.c.lo, n.msg_id, n.status, t.tries(n)]
    by_object = t.hinted(sa.select(*columns), source, "object")
    by_object = by_object.select_from(first.join(source, opened)).where(t.open_rows(n))
    among_failed = t.hinted(sa.select(*columns), source, "failed").select_from(failed)
    among_failed = among_failed.where(t.failed_rows(n), *after, n.object_id.is_not(None))
    # In this order: one that is unfinished when it is read may be dead a moment later.
    read = conn.execute(by_object, {"mw_ids": list(ids)}).all()
    with joining_widely(conn, t.database):
        read = [*read, *conn.execute(among_failed, {"mw_ids": list(ids)})]
    found: dict[int, dict[int, SeenRow]] = {}
    for lo, *row in read:
        found.setdefault(lo, {})[row[0]] = SeenRow._make(row)
    return {lo: [rows[i] for i in sorted(rows)] for lo, rows in found.items()}


def done_behind(conn: Connection, t: Tables, lows: Sequence[int]) -> dict[int, list[SeenRow]]:
    """The same of those that are done, behind the lowest of each object; at most `max_ids` of them.
    One walk over the table from the lowest id on; of one object, by an index by object if there is
    one."""
    source = t.message.alias("s")
    s = t.cols(source)
    done = t.within(s, s.status == lit(Status.DONE))
    columns: list[Any] = [s.msg_id, s.status, t.tries(s)]
    query = sa.select(*columns).where(done).order_by(s.msg_id)
    if len(lows) == 1:
        rows = conn.execute(query.where(_behind_it(t, s, lows[0])))
        return {lows[0]: [SeenRow._make(row) for row in rows]}
    first = _firsts(t)
    # An outer join: see `ran_later`.
    query = query.add_columns(first.c.lo)
    query = query.select_from(source.outerjoin(first, first.c.k == t.object_key(s)))
    query = query.where(s.msg_id > an_id(min(lows)), s.object_id.is_not(None))
    query = query.where(s.msg_id > first.c.lo)
    found: dict[int, list[SeenRow]] = {}
    with joining_widely(conn, t.database):
        for *row, lo in conn.execute(query, {"mw_ids": list(lows)}):
            found.setdefault(lo, []).append(SeenRow._make(row))
    return found


def _firsts(t: Tables) -> sa.Subquery:
    """The objects of some messages, and the lowest of these messages of each."""
    f = t.cols(t.message.alias("f"))
    query = sa.select(t.object_key(f).label("k"), sa.func.min(f.msg_id).label("lo"))
    query = query.where(t.among(f.msg_id), f.object_id.is_not(None))
    return query.group_by(t.object_key(f)).subquery("g")


def _behind_it(t: Tables, c: Cols, msg_id: int) -> ColumnElement[bool]:
    """A later message of the object of this one."""
    h = t.cols(t.message.alias("h"))
    mine = sa.select(h.object_id).where(h.msg_id == an_id(msg_id)).scalar_subquery()
    return sa.and_(c.msg_id > an_id(msg_id), c.object_id == mine)
