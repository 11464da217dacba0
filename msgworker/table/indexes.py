"""The guard and the indexes by which messages are found, and why each exists."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy import ColumnElement
from sqlalchemy.sql.elements import Grouping
from sqlalchemy.types import TypeEngine

from msgworker import dialects
from msgworker.dialects import KeyText
from msgworker.table.columns import Cols
from msgworker.table.names import (
    FAILED,
    FAILED_MARK,
    MAX_OBJECT_ID,
    OPEN_OBJECT,
    RUNNING_OBJECT,
    SLICES,
)
from msgworker.table.tables import Tables


def add_indexes(t: Tables) -> None:
    """The guard and the claim indexes, attached to `t.message` with the reason for each.

    guard   at most one PROCESSING row per object: the database's own promise (P1)
    object  unfinished rows by object and age: heads, runs, "is an earlier one unfinished"
    oldest  unfinished rows by age: old before new
    due     rows that wait for an instant, by that instant: retries and delayed messages
    failed  failed and dead rows by age: what people look for among millions that are done
    shard, flag  unfinished rows by slice, object and age, where scopes are used (`spec.slices`);
            the object stands before the age, so that a deep one is passed in one step
    Finished rows stay out of all of them, so they cost nothing (P7; see docs/guarantees.md).
    """
    if t.dialect.case_index == "column":
        _add_generated_columns(t)
    c = t.cols()
    spec, kind = t.spec, t.dialect.name
    if t.dialect.partial_indexes:

        def partial(name: str, *keys: ColumnElement[Any], where: Any, unique: bool = False) -> None:
            option = {f"{kind}_where": where}
            sa.Index(spec.index_name(name), *keys, unique=unique, **option)

        partial("guard", c.object_id, where=t.running(c), unique=True)
        partial("object", c.object_id, c.msg_id, where=t.unfinished(c))
        partial("oldest", c.msg_id, where=t.waits_for_no_instant(c))
        if c.available_at is not None:
            waits = sa.and_(t.unfinished(c), c.available_at.is_not(None))
            partial("due", c.available_at, c.msg_id, where=waits)
        partial(FAILED, c.msg_id, where=t.failed(c))
        for role in (role for role in spec.slices if role in t.names):
            keys = (t.slice_key(c, role), c.object_id, c.msg_id)
            partial(SLICES[role], *keys, where=t.in_slices(c))
        return
    key = t.running_object(c)
    if t.dialect.case_index == "column" and t.dialect.guard_case == "function":
        key = Grouping(key)  # there, a key part that is an expression stands in parentheses
    sa.Index(spec.index_name("guard"), key, unique=True)
    sa.Index(spec.index_name("object"), t.open_object(c), t.open_msg_id(c))
    if t.dialect.oldest_index:
        sa.Index(spec.index_name("oldest"), t.oldest_case(c))
    if c.available_at is not None:
        # Flagging and finishing set available_at to NULL, so finished rows are not met here.
        sa.Index(spec.index_name("due"), c.available_at, c.msg_id)
    mark = [] if c.failed_column is None else [c.failed_column]
    sa.Index(spec.index_name(FAILED), *mark, t.failed_key(c))
    for role in (role for role in spec.slices if role in t.names):
        name = spec.index_name(SLICES[role])
        sa.Index(name, t.slice_key(c, role), t.open_object(c), t.open_msg_id(c))


def _add_generated_columns(t: Tables) -> None:
    c = t.message.c
    plain = Cols(**{role: c[name] for role, name in t.names.items()})
    kind = plain.object_id.type
    length = max(MAX_OBJECT_ID, getattr(kind, "length", 0) or 0)
    own = isinstance(kind, sa.String | KeyText) and t.key_collation is None
    room = dialects.key_room(t.dialect, kind if own else KeyText())
    length = length if room is None else min(length, room)
    key = dialects.key_like(kind, length) if own else dialects.key_text(length)
    wanted: dict[str, tuple[Any, TypeEngine[Any]]] = {
        OPEN_OBJECT + t.spec.rule: (t.open_case(plain), key)
    }
    if t.dialect.guard_case == "column":
        running = sa.case((t.running(plain), t.object_key(plain)))
        wanted[RUNNING_OBJECT] = (running, key)
    # Not the id itself: MySQL computes nothing from a column that counts itself up.
    wanted[FAILED_MARK] = (sa.case((t.failed(plain), sa.literal_column("1"))), sa.SmallInteger())
    for name, (expression, kind) in wanted.items():
        t.message.append_column(
            sa.Column(
                name,
                kind,
                sa.Computed(expression, persisted=t.dialect.stored_columns),
                nullable=True,
                info={dialects.HIDDEN: True},
            )
        )
