"""Flag candidates, and read the runs behind the flagged heads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection, Select, bindparam
from sqlalchemy.exc import DBAPIError

from msgworker.db.connections import Escaped, fetch
from msgworker.db.database import Trouble
from msgworker.db.errors import trouble
from msgworker.db.types import JsonList, array_param, array_rows, array_text, json_rows
from msgworker.message import Status
from msgworker.store import items, rows
from msgworker.store.candidates import Candidate
from msgworker.store.controls import held
from msgworker.table.build import CANCEL
from msgworker.table.columns import Cols, Slice
from msgworker.table.tables import ONE, ZERO, Tables, lit

# --- Read runs: the messages behind a flagged head.
#
# A run is read in a new statement after the flag has committed. Read earlier it could be stale:
# without the flag, other instances may run its messages.

RUNS_PER_STATEMENT = 50


def at_once(t: Tables) -> int | None:
    """How many runs to read before their messages are handled, where one statement reads few: two
    statements, since lanes that begin apart are settled apart. None = all."""
    return None if t.database.json_lists or t.database.arrays else 2 * RUNS_PER_STATEMENT


def read_runs(
    conn: Connection,
    t: Tables,
    heads_flagged: Sequence[rows.Row],
    *,
    limit: int,
    within: Slice | None = None,
) -> dict[int, list[rows.Bare]]:
    """The run behind each flagged head: head's msg_id -> its next rows, perhaps empty.

    To be called after the flags have committed. A run holds rows at status 0 that are due and have
    no unique key, ends before the first unfinished row that is no such one, and is empty if a lower
    unfinished row has appeared. within: it also ends before the first row of another slice. All are
    empty where ids are reused: another message may have the id of one that is deleted meanwhile.
    """
    asked = [row for row in heads_flagged if row.object_id is not None]
    runs: dict[int, list[rows.Bare]] = {row.msg_id: [] for row in asked}
    if not asked or limit < 1 or t.reuses_ids:
        return runs
    role, values = (None, ()) if within is None else (within.by, within.values)
    before, head, run, ended = -1, 0, list[rows.Bare](), False
    for found, row in _read(conn, t, asked, limit + 1, role):
        if found[0] != before:
            before = found[0]
            head = asked[before].msg_id
            run = runs[head]
            ended = row[0] != head  # a lower unfinished row has appeared
        elif ended:
            continue
        elif found[1] and (role is None or found[2] in values) and row[0] > head:
            run.append(row)
        else:
            ended = True
    return runs


def _read(
    conn: Connection, t: Tables, asked: Sequence[rows.Row], limit: int, role: str | None
) -> Iterable[tuple[Any, rows.Bare]]:
    """The unfinished rows of each object, by the place of its head among those asked for, and by
    age. Before the columns of the row: the place, whether it may start, and, with a role, its
    slice."""
    other = _by_heads if t.database.json_lists else _union
    found = (_lateral if t.database.arrays else other)(conn, t, asked, limit, role)
    first = 2 if role is None else 3
    # Neither a join nor a union promises an order.
    in_order = sorted(found, key=itemgetter(0, first))
    found_rows = Escaped(in_order) if isinstance(found, Escaped) else in_order
    return zip(found_rows, rows.bare_rows(t, found_rows, first), strict=True)


def _startable(t: Tables, c: Cols) -> ColumnElement[Any]:
    free = sa.and_(c.status == lit(Status.NEW), t.due(c))
    # A rerun sets these to 0, and outcomes ask for what was read: so they are read under its flag.
    for times in (c.error_try_times, c.later_times):
        if times is not None:
            free = sa.and_(free, rows.or_zero(times) == ZERO)
    if c.unique_key is not None:  # it may be replaced: its payload is read under its flag
        free = sa.and_(free, c.unique_key.is_(None))
    waits = [(held(t, c), ZERO)] if t.asks_jobs else []
    return sa.case(*waits, (free, ONE), else_=ZERO)


def _run_columns(t: Tables, c: Cols, role: str | None) -> list[ColumnElement[Any]]:
    value = [] if role is None else [t.slice_value(c, role).label("v")]
    return [_startable(t, c).label("s"), *value, *rows.row_columns(t, c)]


def _lateral(
    conn: Connection, t: Tables, asked: Sequence[rows.Row], limit: int, role: str | None
) -> Sequence[Any]:
    def build() -> Select[Any]:
        places = array_param("places", sa.Integer())
        ids: Any = bindparam("objects", type_=sa.ARRAY(t.object_type))
        objects = array_rows("o", {"place": places, "object_id": ids})
        c = t.cols(t.message.alias("m"))
        read_rows = (
            sa.select(*_run_columns(t, c, role))
            .where(c.object_id == objects.c.object_id, t.open_rows(c))
            .order_by(c.msg_id)
            .limit(bindparam("mw_rows", type_=sa.Integer()))
            .lateral("r")
        )
        return sa.select(objects.c.place, read_rows).select_from(objects.join(read_rows, sa.true()))

    params = {
        "places": array_text(range(len(asked))),
        "objects": [row.object_id for row in asked],
        "mw_rows": limit,
    }
    return rows.sent_often(conn, t, ("runs_lateral", role), build, params)


def _by_heads(
    conn: Connection, t: Tables, asked: Sequence[rows.Row], limit: int, role: str | None
) -> Sequence[Any]:
    """One statement, whatever their number: the heads as a list, and for each an IN with a limit
    of its own."""

    def build() -> Select[Any]:
        heads: Any = bindparam("heads", type_=JsonList())
        listed = json_rows(heads, "key", "value", name="j")
        head, source, behind = (t.message.alias(name) for name in ("h", "m", "n"))
        h, c, n = t.cols(head), t.cols(source), t.cols(behind)
        ids = (
            t.hinted(sa.select(n.msg_id), behind, "object")
            .where(t.open_object(n) == t.object_key(h), t.open_rows(n))
            .order_by(t.open_msg_id(n))
            .limit(bindparam("mw_rows", type_=sa.Integer()))
            .correlate(head)
        )
        place = listed.c.key.label("p")
        joined = listed.join(head, h.msg_id == listed.c.value).join(source, c.msg_id.in_(ids))
        return sa.select(place, *_run_columns(t, c, role)).select_from(joined)

    params = {"heads": [row.msg_id for row in asked], "mw_rows": limit}
    return fetch(conn, t.built(("runs_by_heads", role), build), params)


def _union(
    conn: Connection, t: Tables, asked: Sequence[rows.Row], limit: int, role: str | None
) -> Sequence[Any]:
    """Their ids from the index, one branch per object, and a join for the rest of the rows: what a
    branch costs grows with its text. The statement always has the same number of branches, unused
    ones ask for no object, so it is built and prepared once."""

    def build(branches: int) -> Select[Any]:
        selects: list[Any] = []
        for i in range(branches):
            source = t.message.alias("n")
            n = t.cols(source)
            place = (bindparam("start", type_=sa.Integer()) + sa.literal_column(str(i))).label("p")
            pair: list[Any] = [place, t.open_msg_id(n).label("i")]
            ids = (
                t.hinted(sa.select(*pair), source, "object")
                .where(t.open_object(n) == bindparam(f"o{i}", type_=t.key_type), t.open_rows(n))
                .order_by(t.open_msg_id(n))
                .limit(bindparam("mw_rows", type_=sa.Integer()))
            )
            selects.append(rows.in_union(t, ids, f"q{i}"))
        union: Any = sa.union_all(*selects) if branches > 1 else selects[0]
        x = union.subquery("x")
        # Without the payloads: derived tables that hold them are written to disk by MariaDB (and
        # crashed a 10.11).
        source = t.message.alias("m")
        c = t.cols(source)
        joined = x.join(source, c.msg_id == x.c.i)
        return sa.select(x.c.p, *_run_columns(t, c, role)).select_from(joined)

    out: list[Any] = []
    odd = False
    for start in range(0, len(asked), RUNS_PER_STATEMENT):
        portion = asked[start : start + RUNS_PER_STATEMENT]
        branches = 1 if len(portion) == 1 else RUNS_PER_STATEMENT
        params: dict[str, Any] = {f"o{i}": None for i in range(branches)}
        params |= {f"o{i}": t.key(row.object_id) for i, row in enumerate(portion)}
        statement = t.built(("runs_union", branches, role), partial(build, branches))
        found = fetch(conn, statement, params | {"start": start, "mw_rows": limit})
        odd = odd or isinstance(found, Escaped)
        out += found
    return Escaped(out) if odd else out


# --- Flag candidates.
#
# Candidates are only hints: they may be stale, filtered or wrong. `flag` decides: it takes a row
# only with the status and tries that were read, if it is the head of its object, and if the guard
# allows it.


def flag(
    conn: Connection, t: Tables, candidates: Sequence[Candidate], *, me: str
) -> list[rows.Row]:
    """Flag the candidates that are unchanged since they were read; return the rows won, by msg_id.

    In the caller's transaction. Rows that another transaction has locked or changed, and rows that
    are no longer heads, are skipped; none won gives []. Raises IntegrityError or LeftAlone if the
    guard finds a running message that the statement could not see, or if the database refuses to
    change a row for any other reason: roll back and call `flag_apart`.
    """
    if t.database.arrays:
        return _flag_arrays(conn, t, candidates, me, loud=False)
    won: list[rows.Row] = []
    for portion in t.portions(candidates):
        won += _flag_locked(conn, t, portion, me, loud=False)
    return won


class LeftAlone(Exception):
    """Free rows have not been flagged, by a statement that suppresses the reason, or by a database
    that returns none: a trigger or a rule has set back what was written."""


OF_A_ROW = (Trouble.RACE, Trouble.OTHER)
"""Errors that may be about one row of a batch."""
REFUSED_ROW = (*OF_A_ROW, Trouble.REFUSED)
"""These, and those about the rights that a row needs."""


def flag_apart(
    conn: Connection, t: Tables, candidates: Sequence[Candidate], *, me: str
) -> tuple[list[rows.Row], dict[int, Exception]]:
    """`flag` in halves, each in its savepoint, down to single rows, so that a refused row affects
    no other. Returns the rows won and, by msg_id, why others were refused; the guard may be a
    reason."""
    if not candidates:
        return [], {}
    try:
        with conn.begin_nested():
            if t.database.arrays:
                return _flag_arrays(conn, t, candidates, me, loud=True), {}
            return _flag_locked(conn, t, candidates, me, loud=True), {}
    except (DBAPIError, rows.RowKept) as error:
        if trouble(error) not in OF_A_ROW:
            raise
        if len(candidates) == 1:
            return [], {candidates[0].msg_id: error}
    half = len(candidates) // 2
    won, refused = flag_apart(conn, t, candidates[:half], me=me)
    more, too = flag_apart(conn, t, candidates[half:], me=me)
    return won + more, refused | too


def free(conn: Connection, t: Tables, candidates: Sequence[Candidate]) -> set[int]:
    """Those that could be flagged as they were seen. After a claim that has not done it: either a
    transaction has them locked (`locked`), or the database changes nothing and says nothing."""
    c = t.cols()
    seen = {(one.msg_id, one.status, one.tries) for one in candidates}
    ids = [one.msg_id for one in candidates]
    query = sa.select(c.msg_id, c.status, t.tries(c)).where(t.among(c.msg_id), *_is_head(t, c))
    return {row[0] for row in conn.execute(query, {"mw_ids": ids}) if tuple(row) in seen}


def locked(conn: Connection, t: Tables, ids: Iterable[int]) -> set[int]:
    """Those that another transaction has locked. The others are locked by this one then."""
    found, c = set[int](), t.cols()
    for msg_id in ids if t.database.row_locks else ():
        query = sa.select(c.msg_id).where(c.msg_id == msg_id).with_for_update(nowait=True)
        try:
            with conn.begin_nested():
                conn.execute(query)
        except DBAPIError as error:
            if trouble(error) is not Trouble.AGAIN:
                raise
            found.add(msg_id)
    return found


def _is_head(t: Tables, c: Cols) -> list[ColumnElement[bool]]:
    return [
        t.claimable(c),
        t.due(c),
        sa.not_(t.earlier_unfinished(c)),
        sa.not_(t.object_is_running(c)),
    ]


_ID, _TRIES = (
    1 + rows.Row._fields.index(name) for name in ("msg_id", "tries")
)  # behind the status


def _flag_locked(
    conn: Connection, t: Tables, candidates: Sequence[Candidate], me: str, *, loud: bool
) -> list[rows.Row]:
    """Lock, compare, update by primary key. loud: raise the database's error for a row that the
    guard, or another constraint, refuses; otherwise raise LeftAlone."""

    def lock() -> Select[Any]:
        c = t.cols()
        query = sa.select(c.status, *rows.row_columns(t, c)).where(
            t.among(c.msg_id), *_is_head(t, c)
        )
        query = query.order_by(c.msg_id)
        if not t.database.row_locks:
            return query
        return query.with_for_update(skip_locked=t.database.skip_locked)

    def update(loud: bool) -> sa.Update:
        c = t.cols()
        mine = (t.among(c.msg_id), t.claimable(c))
        change = sa.update(t.message).where(*mine).values(rows.flagged_values(t))
        change = rows.in_guard_order(t, change)
        # What triggers write would be ignored with it.
        ignore = None if loud or t.on_update else t.database.update_ignore
        return change.prefix_with(ignore) if ignore else change

    seen = {c.msg_id: (c.status, c.tries) for c in candidates}
    found = fetch(conn, t.built("flag_lock", lock), {"mw_ids": list(seen)})
    same = [r for r in found if seen[r[_ID]] == (r[0], r[_TRIES])]
    found_rows = rows.rows_of(t, Escaped(same) if isinstance(found, Escaped) else same, 1)
    if not found_rows:
        return []
    ids = [row.msg_id for row in found_rows]
    if t.reuses_ids:
        _forget_deleted(conn, t, ids)
    key = ("flag_update", loud)
    change = t.built(key, partial(update, loud))
    written = rows.changed(conn, t, key, change, {"mw_ids": ids, "mw_me": me})
    if written == len(ids) and not t.database.rowcount_includes_ignored and not t.on_update:
        return found_rows
    back = set(conn.scalars(rows.mine_among(t), {"mw_ids": ids, "mw_me": me}))
    if len(back) < len(found_rows) and t.database.update_ignore and not loud:
        raise LeftAlone
    if len(back) < written:
        _refuse_kept(t, ids, back, loud)
    return [row for row in found_rows if row.msg_id in back]


def _forget_deleted(conn: Connection, t: Tables, ids: Sequence[int]) -> None:
    """Delete what stands beside of earlier messages that had the ids of these: those that have
    never been claimed have nothing of their own there. Without `claimed_at` nothing tells them."""
    if not t.has("claimed_at"):
        return

    def build(table: sa.Table, name: str) -> sa.Delete:
        c = t.cols()
        never = (c["claimed_at"].is_(None), t.tries(c) == ZERO)
        new = sa.select(c.msg_id).where(t.among(c.msg_id), *never)
        return sa.delete(table).where(table.c.table_name == name, table.c.msg_id.in_(new))

    beside = [(t.item, items.label(t.spec)), (t.failed_try, t.message.name)]
    beside += [(CANCEL.of(t), t.label)] if CANCEL.is_there(t) else []
    for table, name in beside:
        statement = t.built(("forget_deleted", table.name), partial(build, table, name))
        conn.execute(statement, {"mw_ids": ids})


def _refuse_kept(t: Tables, ids: Sequence[int], back: set[int], loud: bool) -> None:
    """Raise for rows of which the count says that they were changed, and which are not ours: some
    of what was written may be in them."""
    if not loud:
        raise LeftAlone
    raise rows.RowKept(t, next(i for i in ids if i not in back), "the flag")


def _flag_arrays(
    conn: Connection, t: Tables, candidates: Sequence[Candidate], me: str, *, loud: bool
) -> list[rows.Row]:
    """The same in one statement and one round trip, and another one where triggers or rules may set
    back what it writes."""

    def build() -> Any:
        columns = {
            "msg_id": array_param("mw_ids", sa.BigInteger()),
            # Of a type that can hold the value of any numeric column, also NaN.
            "status": array_param("mw_statuses", sa.Numeric()),
            "tries": array_param("mw_tries", sa.Numeric()),
        }
        seen = array_rows("seen", columns)
        target = t.message.alias("m")
        c = t.cols(target)
        # A condition on the read value, which the row must equal: on the row itself it would let
        # the planner use an index of open rows, which stale statistics may call empty.
        claimable = sa.or_(
            seen.c.status == lit(Status.NEW),
            sa.and_(
                seen.c.status == lit(Status.FAILED),
                seen.c.tries < sa.literal_column(str(t.spec.max_tries)),
            ),
        )
        locked = (
            sa.select(c.msg_id.label("msg_id"))
            .select_from(target.join(seen, c.msg_id == seen.c.msg_id))
            .where(c.status == seen.c.status, t.tries(c) == seen.c.tries, claimable)
            .where(*t.is_message(c), *_is_head(t, c)[1:])
            .order_by(c.msg_id)
            .with_for_update(skip_locked=True, of=target)
            .cte("locked")
            .prefix_with("MATERIALIZED")
        )
        plain = t.cols()
        return (
            sa.update(t.message)
            .where(plain.msg_id == locked.c.msg_id)
            .values(rows.flagged_values(t))
            .returning(*rows.row_columns(t, plain))
        )

    found = rows.sent_often(
        *(conn, t, "flag_arrays", build),
        {
            "mw_ids": array_text([c.msg_id for c in candidates]),
            "mw_statuses": array_text([c.status for c in candidates]),
            "mw_tries": array_text([c.tries for c in candidates]),
            "mw_me": me,
        },
    )
    found_rows = sorted(rows.rows_of(t, found), key=itemgetter(0))
    if found_rows and t.on_update:
        ids = [row.msg_id for row in found_rows]
        back = set(conn.scalars(rows.mine_among(t), {"mw_ids": ids, "mw_me": me}))
        if len(back) < len(ids):
            _refuse_kept(t, ids, back, loud)
    return found_rows
