"""Flag candidates.

Candidates are only hints: they may be stale, filtered or wrong. `flag` decides: it takes a row
only with the status and tries that were read, if it is the head of its object, and if the guard
allows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection, Select
from sqlalchemy.exc import DBAPIError

from msgworker.dialects import (
    Escaped,
    Trouble,
    fetch,
    trouble,
)
from msgworker.message import Status
from msgworker.store.claiming.candidates import Candidate
from msgworker.store.rows import (
    Row,
    RowKept,
    array_param,
    array_text,
    changed,
    flagged_values,
    in_guard_order,
    mine_among,
    row_columns,
    rows_of,
    sent_often,
)
from msgworker.table import Cols, Tables, lit


def flag(conn: Connection, t: Tables, candidates: Sequence[Candidate], *, me: str) -> list[Row]:
    """Flag the candidates that are unchanged since they were read; return the rows won, by msg_id.

    In the caller's transaction. Rows that another transaction has locked or changed, and rows that
    are no longer heads, are skipped; none won gives []. Raises IntegrityError or LeftAlone if the
    guard finds a running message that the statement could not see, or if the database refuses to
    change a row for any other reason: roll back and call `flag_apart`.
    """
    if t.dialect.arrays:
        return _flag_arrays(conn, t, candidates, me, loud=False)
    won: list[Row] = []
    for start in range(0, len(candidates), t.dialect.max_ids):
        part = candidates[start : start + t.dialect.max_ids]
        won += _flag_locked(conn, t, part, me, loud=False)
    return won


class LeftAlone(Exception):
    """Free rows have not been flagged, by a statement that suppresses the reason, or by a database
    that tells none: a trigger or a rule has set back what was written."""


OF_A_ROW = (Trouble.RACE, Trouble.OTHER)
"""Errors that may be about one row of a batch."""


def refuse_at_once(conn: Connection, t: Tables) -> None:
    """Make deferred constraints check at each statement until the end of the transaction: an error
    at COMMIT does not name its row, and rolls back all others."""
    if t.dialect.defers:
        conn.execute(t.built("immediate", lambda: sa.text("SET CONSTRAINTS ALL IMMEDIATE")))


def flag_apart(
    conn: Connection, t: Tables, candidates: Sequence[Candidate], *, me: str
) -> tuple[list[Row], dict[int, Exception]]:
    """`flag` in halves, each in its savepoint, down to single rows, so that a refused row affects
    no other. Returns the rows won and, by msg_id, why others were refused; the guard may be a
    reason."""
    if not candidates:
        return [], {}
    try:
        with conn.begin_nested():
            if t.dialect.arrays:
                return _flag_arrays(conn, t, candidates, me, loud=True), {}
            return _flag_locked(conn, t, candidates, me, loud=True), {}
    except (DBAPIError, RowKept) as error:
        if trouble(error) not in OF_A_ROW:
            raise
        if len(candidates) == 1:
            return [], {candidates[0].msg_id: error}
    half = len(candidates) // 2
    won, refused = flag_apart(conn, t, candidates[:half], me=me)
    more, too = flag_apart(conn, t, candidates[half:], me=me)
    return won + more, refused | too


def kept(conn: Connection, t: Tables, candidates: Sequence[Candidate]) -> set[int]:
    """Those that could be flagged as they were seen, after a claim that has not done it: either
    a transaction has them locked, or the database changes nothing and says nothing."""

    def build() -> Any:
        c = t.cols()
        return sa.select(c.msg_id, c.status, t.tries(c)).where(t.among(c.msg_id), *_is_head(t, c))

    seen = {(one.msg_id, one.status, one.tries) for one in candidates}
    ids = [one.msg_id for one in candidates]
    rows = conn.execute(t.built("flag_kept", build), {"mw_ids": ids}).all()
    return {row[0] for row in rows if tuple(row) in seen}


def _is_head(t: Tables, c: Cols) -> list[ColumnElement[bool]]:
    return [
        t.claimable(c),
        t.due(c),
        sa.not_(t.earlier_unfinished(c)),
        sa.not_(t.object_is_running(c)),
    ]


def _flag_locked(
    conn: Connection, t: Tables, candidates: Sequence[Candidate], me: str, *, loud: bool
) -> list[Row]:
    """Lock, compare, update by primary key. loud: raise the database's error for a row that the
    guard, or another constraint, refuses; otherwise raise LeftAlone."""

    def lock() -> Select[Any]:
        c = t.cols()
        query = sa.select(c.status, *row_columns(t, c)).where(t.among(c.msg_id), *_is_head(t, c))
        query = query.order_by(c.msg_id)
        if not t.dialect.row_locks:
            return query
        return query.with_for_update(skip_locked=t.dialect.skip_locked)

    def update(loud: bool) -> sa.Update:
        c = t.cols()
        mine = (t.among(c.msg_id), t.claimable(c))
        change = sa.update(t.message).where(*mine).values(flagged_values(t))
        change = in_guard_order(t, change)
        ignore = None if loud else t.dialect.update_ignore
        return change.prefix_with(ignore) if ignore else change

    seen = {c.msg_id: (c.status, c.tries) for c in candidates}
    found = fetch(conn, t.built("flag_lock", lock), {"mw_ids": list(seen)})
    same = [r for r in found if seen[r[1]] == (r[0], r[5])]
    rows = rows_of(t, Escaped(same) if isinstance(found, Escaped) else same, 1)
    if not rows:
        return []
    ids = [row.msg_id for row in rows]
    key = ("flag_update", loud)
    change = t.built(key, partial(update, loud))
    written = changed(conn, t, key, change, {"mw_ids": ids, "mw_me": me})
    if written == len(ids) and not t.dialect.rowcount_includes_ignored and not t.on_update:
        return rows
    back = set(conn.scalars(mine_among(t), {"mw_ids": ids, "mw_me": me}))
    if len(back) < len(rows) and t.dialect.update_ignore and not loud:
        raise LeftAlone
    if len(back) < written:
        _refuse_kept(t, ids, back, loud)
    return [row for row in rows if row.msg_id in back]


def _refuse_kept(t: Tables, ids: Sequence[int], back: set[int], loud: bool) -> None:
    """Raise for rows of which the count says that they were changed, and which are not ours: some
    of what was written may stand in them."""
    if not loud:
        raise LeftAlone
    raise RowKept(t, next(i for i in ids if i not in back), "the flag")


def _flag_arrays(
    conn: Connection, t: Tables, candidates: Sequence[Candidate], me: str, *, loud: bool
) -> list[Row]:
    """The same in one statement and one round trip, and another one where triggers or rules may set
    back what it writes."""

    def build() -> Any:
        seen = (
            sa.func.unnest(
                array_param("mw_ids", sa.BigInteger()),
                # Of a type that can hold the value of any numeric column, also NaN.
                array_param("mw_statuses", sa.Numeric()),
                array_param("mw_tries", sa.Numeric()),
            )
            .table_valued("msg_id", "status", "tries")
            .render_derived(name="seen")
        )
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
            .where(*_is_head(t, c)[1:])
            .order_by(c.msg_id)
            .with_for_update(skip_locked=True, of=target)
            .cte("locked")
            .prefix_with("MATERIALIZED")
        )
        plain = t.cols()
        return (
            sa.update(t.message)
            .where(plain.msg_id == locked.c.msg_id)
            .values(flagged_values(t))
            .returning(*row_columns(t, plain))
        )

    found = sent_often(
        *(conn, t, "flag_arrays", build),
        {
            "mw_ids": array_text([c.msg_id for c in candidates]),
            "mw_statuses": array_text([c.status for c in candidates]),
            "mw_tries": array_text([c.tries for c in candidates]),
            "mw_me": me,
        },
    )
    rows = sorted(rows_of(t, found), key=itemgetter(0))
    if rows and t.on_update:
        ids = [row.msg_id for row in rows]
        back = set(conn.scalars(mine_among(t), {"mw_ids": ids, "mw_me": me}))
        if len(back) < len(ids):
            _refuse_kept(t, ids, back, loud)
    return rows
