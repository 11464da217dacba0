"""Read runs: the messages behind a flagged head.

A run is read in a new statement after the flag has committed. Read earlier it could be stale:
without the flag, other instances may run its messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection, Select, bindparam

from msgworker.dialects import Escaped, JsonList, fetch
from msgworker.message import Status
from msgworker.store.rows import (
    Bare,
    Row,
    array_param,
    array_text,
    bare_rows,
    row_columns,
    sent_often,
)
from msgworker.table import Cols, Slice, Tables, lit

RUNS_PER_STATEMENT = 50


def at_once(t: Tables) -> int | None:
    """How many runs to read before their messages are handled, where one statement reads few: two
    statements, since lanes that begin apart are settled apart. None = all."""
    return None if t.dialect.json_lists or t.dialect.arrays else 2 * RUNS_PER_STATEMENT


def read_runs(
    conn: Connection,
    t: Tables,
    heads_flagged: Sequence[Row],
    *,
    limit: int,
    within: Slice | None = None,
) -> dict[int, list[Bare]]:
    """The run behind each flagged head: head's msg_id -> its next rows, perhaps empty.

    To be called after the flags have committed. A run holds rows at status 0 that are due and have
    no unique key, ends before the first unfinished row that is no such one, and is empty if a lower
    unfinished row has appeared. within: it also ends before the first row of another slice.
    """
    asked = [row for row in heads_flagged if row.object_id is not None]
    runs: dict[int, list[Bare]] = {row.msg_id: [] for row in asked}
    if not asked or limit < 1:
        return runs
    role, values = (None, ()) if within is None else (within.role, within.values)
    before, head, run, ended = -1, 0, list[Bare](), False
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
    conn: Connection, t: Tables, asked: Sequence[Row], limit: int, role: str | None
) -> Iterable[tuple[Any, Bare]]:
    """The unfinished rows of each object, by the place of its head among those asked for, and by
    age. Before the columns of the row: the place, whether it may start, and, with a role, its
    slice."""
    other = _by_heads if t.dialect.json_lists else _union
    found = (_lateral if t.dialect.arrays else other)(conn, t, asked, limit, role)
    first = 2 if role is None else 3
    # Neither a join nor a union promises an order.
    in_order = sorted(found, key=itemgetter(0, first))
    rows = Escaped(in_order) if isinstance(found, Escaped) else in_order
    return zip(rows, bare_rows(t, rows, first), strict=True)


def _startable(t: Tables, c: Cols) -> ColumnElement[Any]:
    free = sa.and_(c.status == lit(Status.NEW), t.due(c))
    if c.unique_key is not None:  # it may be replaced: its payload is read under its flag
        free = sa.and_(free, c.unique_key.is_(None))
    return sa.case((free, sa.literal_column("1")), else_=sa.literal_column("0"))


def _slice_column(t: Tables, c: Cols, role: str | None) -> list[ColumnElement[Any]]:
    return [] if role is None else [t.slice_value(c, role).label("v")]


def _lateral(
    conn: Connection, t: Tables, asked: Sequence[Row], limit: int, role: str | None
) -> Sequence[Any]:
    def build() -> Select[Any]:
        objects = (
            sa.func.unnest(
                array_param("places", sa.Integer()),
                bindparam("objects", type_=sa.ARRAY(t.object_type)),
            )
            .table_valued("place", "object_id")
            .render_derived(name="o")
        )
        c = t.cols(t.message.alias("m"))
        rows = (
            sa.select(_startable(t, c).label("s"), *_slice_column(t, c, role), *row_columns(t, c))
            .where(c.object_id == objects.c.object_id, t.unfinished(c))
            .order_by(c.msg_id)
            .limit(bindparam("rows", type_=sa.Integer()))
            .lateral("r")
        )
        return sa.select(objects.c.place, rows).select_from(objects.join(rows, sa.true()))

    params = {
        "places": array_text(range(len(asked))),
        "objects": [row.object_id for row in asked],
        "rows": limit,
    }
    return sent_often(conn, t, ("runs_lateral", role), build, params)


def _by_heads(
    conn: Connection, t: Tables, asked: Sequence[Row], limit: int, role: str | None
) -> Sequence[Any]:
    """One statement, whatever their number: the heads as a list, and for each an IN with a limit
    of its own."""

    def build() -> Select[Any]:
        heads = sa.func.json_each(bindparam("heads", type_=JsonList()))
        listed = heads.table_valued("key", "value", name="j")
        head, source, behind = (t.message.alias(name) for name in ("h", "m", "n"))
        h, c, n = t.cols(head), t.cols(source), t.cols(behind)
        ids = (
            t.hinted(sa.select(n.msg_id), behind, "object")
            .where(t.open_object(n) == t.object_key(h), t.open_rows(n))
            .order_by(t.open_msg_id(n))
            .limit(bindparam("rows", type_=sa.Integer()))
            .correlate(head)
        )
        place = listed.c.key.label("p")
        columns = (_startable(t, c).label("s"), *_slice_column(t, c, role), *row_columns(t, c))
        joined = listed.join(head, h.msg_id == listed.c.value).join(source, c.msg_id.in_(ids))
        return sa.select(place, *columns).select_from(joined)

    params = {"heads": [row.msg_id for row in asked], "rows": limit}
    return fetch(conn, t.built(("runs_by_heads", role), build), params)


def _union(
    conn: Connection, t: Tables, asked: Sequence[Row], limit: int, role: str | None
) -> Sequence[Any]:
    """Their ids from the index, one branch per object, and a join for the rest of the rows: what a
    branch costs grows with its text. The statement always has the same number of branches, unused
    ones ask for no object, so it is built and prepared once."""

    def build(branches: int) -> Select[Any]:
        parts: list[Any] = []
        for i in range(branches):
            source = t.message.alias("n")
            n = t.cols(source)
            place = (bindparam("start", type_=sa.Integer()) + sa.literal_column(str(i))).label("p")
            pair: list[Any] = [place, t.open_msg_id(n).label("i")]
            ids = (
                t.hinted(sa.select(*pair), source, "object")
                .where(t.open_object(n) == bindparam(f"o{i}", type_=t.key_type), t.open_rows(n))
                .order_by(t.open_msg_id(n))
                .limit(bindparam("rows", type_=sa.Integer()))
            )
            parts.append(ids if t.dialect.bare_unions else sa.select(ids.subquery(f"q{i}")))
        union: Any = sa.union_all(*parts) if branches > 1 else parts[0]
        x = union.subquery("x")
        # Without the payloads: derived tables that hold them are written to disk by MariaDB (and
        # crashed a 10.11).
        source = t.message.alias("m")
        c = t.cols(source)
        columns: list[Any] = [x.c.p, _startable(t, c).label("s")]
        columns += (*_slice_column(t, c, role), *row_columns(t, c))
        return sa.select(*columns).select_from(x.join(source, c.msg_id == x.c.i))

    out: list[Any] = []
    odd = False
    for start in range(0, len(asked), RUNS_PER_STATEMENT):
        part = asked[start : start + RUNS_PER_STATEMENT]
        branches = 1 if len(part) == 1 else RUNS_PER_STATEMENT
        params: dict[str, Any] = {f"o{i}": None for i in range(branches)}
        params |= {f"o{i}": t.key(row.object_id) for i, row in enumerate(part)}
        statement = t.built(("runs_union", branches, role), partial(build, branches))
        found = fetch(conn, statement, params | {"start": start, "rows": limit})
        odd = odd or isinstance(found, Escaped)
        out += found
    return Escaped(out) if odd else out
