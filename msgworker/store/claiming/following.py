"""Read runs: the messages behind a flagged head.

A run is read in a new statement after the flag has committed. Read earlier it could be stale:
without the flag, other instances may run its messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection, Select, bindparam

from msgworker.dialects import (
    fetch,
)
from msgworker.message import Status
from msgworker.store.rows import (
    Bare,
    Row,
    array_param,
    array_text,
    bare_rows,
    row_columns,
)
from msgworker.table import Cols, Slice, Tables, lit

RUNS_PER_STATEMENT = 50
Placed = tuple[int, int, Any, Bare]
"""The place of its head among those asked for, whether it may start, its slice, and the row."""


def read_runs(
    conn: Connection,
    t: Tables,
    heads_flagged: Sequence[Row],
    *,
    limit: int,
    within: Slice | None = None,
) -> dict[int, list[Bare]]:
    """The run behind each flagged head: head's msg_id -> its next rows, perhaps empty.

    To be called after the flags have committed. A run holds rows at status 0 that are due, ends
    before the first unfinished row that is not, and is empty if a lower unfinished row has
    appeared. within: it also ends before the first row of another slice.
    """
    asked = [row for row in heads_flagged if row.object_id is not None]
    runs: dict[int, list[Bare]] = {row.msg_id: [] for row in asked}
    if not asked or limit < 1:
        return runs
    read = _runs_lateral if t.dialect.arrays else _runs_union
    first: set[int] = set()
    ended: set[int] = set()
    role = None if within is None else within.role
    for place, startable, slice_value, row in read(conn, t, asked, limit + 1, role):
        if within is not None and slice_value not in within.values:
            startable = 0
        head = asked[place].msg_id
        if head in ended:
            continue
        if head not in first:
            first.add(head)
            if row[0] != head:  # a lower unfinished row has appeared
                ended.add(head)
        elif startable and row[0] > head:
            runs[head].append(row)
        else:
            ended.add(head)
    return runs


def _startable(t: Tables, c: Cols) -> ColumnElement[Any]:
    free = sa.and_(c.status == lit(Status.NEW), t.due(c))
    return sa.case((free, sa.literal_column("1")), else_=sa.literal_column("0"))


def _slice_column(t: Tables, c: Cols, role: str | None) -> list[ColumnElement[Any]]:
    return [] if role is None else [t.slice_value(c, role).label("v")]


def _runs_lateral(
    conn: Connection, t: Tables, asked: Sequence[Row], limit: int, role: str | None
) -> Iterable[Placed]:
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

    found = conn.execute(
        t.built(("runs_lateral", role), build),
        {
            "places": array_text(range(len(asked))),
            "objects": [row.object_id for row in asked],
            "rows": limit,
        },
    ).all()
    return _placed(t, found, 0, role)


def _placed(t: Tables, found: Sequence[Any], start: int, role: str | None) -> Iterable[Placed]:
    if role is None:
        rows = zip(found, bare_rows(t, found, 2), strict=True)
        return ((start + f[0], f[1], None, row) for f, row in rows)
    rows = zip(found, bare_rows(t, found, 3), strict=True)
    return ((start + f[0], f[1], f[2], row) for f, row in rows)


def _runs_union(
    conn: Connection, t: Tables, asked: Sequence[Row], limit: int, role: str | None
) -> Iterable[Placed]:
    """One branch per object; the statement always has the same number of branches, unused ones ask
    for no object, so it is built and prepared once."""

    def build(branches: int) -> Any:
        parts = []
        for i in range(branches):
            source = t.message.alias("m")
            c = t.cols(source)
            place: ColumnElement[Any] = sa.literal_column(str(i)).label("p")
            query = sa.select(
                place, _startable(t, c).label("s"), *_slice_column(t, c, role), *row_columns(t, c)
            )
            branch = (
                t.hinted(query, source, "object")
                .where(t.open_object(c) == bindparam(f"o{i}", type_=t.key_type), t.open_rows(c))
                .order_by(t.open_msg_id(c))
                .limit(bindparam("rows", type_=sa.Integer()))
            )
            # Derived tables that hold payloads are written to disk by MariaDB (and crashed a
            # 10.11).
            bare = t.dialect.bare_unions
            parts.append(branch if bare else sa.select(branch.subquery(f"q{i}")))
        return sa.union_all(*parts) if branches > 1 else parts[0]

    out: list[Placed] = []
    for start in range(0, len(asked), RUNS_PER_STATEMENT):
        part = asked[start : start + RUNS_PER_STATEMENT]
        branches = 1 if len(part) == 1 else RUNS_PER_STATEMENT
        params: dict[str, Any] = {f"o{i}": None for i in range(branches)}
        params |= {f"o{i}": t.key(row.object_id) for i, row in enumerate(part)}
        params["rows"] = limit
        statement = t.built(("runs_union", branches, role), partial(build, branches))
        found = _placed(t, fetch(conn, statement, params), start, role)
        # A union promises no order; each object's rows must come by age.
        out += sorted(found, key=lambda f: (f[0], f[3][0]))
    return out
