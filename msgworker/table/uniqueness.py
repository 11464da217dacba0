"""Unique keys: which rows hold theirs, and the unique index that enforces it for all producers.

unique  the keys that count: of rows that have not ended, and of those that keep theirs
A row without a key has no entry where an index can be partial, or of a function. The index asks
nothing of tries, so it is the same under every rule of the table: whatever ends a message writes
`finished_at`. A row enters the index when it is sent or rerun, and never by a claim or a settle,
which therefore cannot violate it.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy import ColumnElement, FromClause

from msgworker import dialects
from msgworker.message import Status
from msgworker.table.columns import Cols, lit
from msgworker.table.names import HELD_KEY, MAX_KEY, UNIQUE
from msgworker.table.tables import Tables

COLUMNS = ("unique_key", "unique_kept", "finished_at")
ONE: ColumnElement[int] = sa.literal_column("1")


def index_name(t: Tables) -> str:
    """The name of the unique index."""
    return t.spec.index_name(UNIQUE)


def enforced(t: Tables) -> bool:
    """Whether the table has the columns of keys and their index."""
    return able(t) and (t.indexes is None or index_name(t) in t.indexes)


def able(t: Tables) -> bool:
    """Whether the table has the columns of keys, each of use with the others only, and can have
    their index."""
    return not t.dialect.partitioned and all(map(t.has, COLUMNS))


def counts(c: Cols) -> ColumnElement[bool]:
    """The row holds its key, if it has one: the predicate of the index."""
    assert c.unique_key is not None
    assert c.unique_kept is not None
    assert c.finished_at is not None
    running_or_new = c.status.in_([lit(Status.NEW), lit(Status.PROCESSING)])
    to_be_tried = sa.and_(c.status == lit(Status.FAILED), c.finished_at.is_(None))
    return sa.and_(
        c.unique_key.is_not(None), sa.or_(c.unique_kept == ONE, running_or_new, to_be_tried)
    )


def held_key(t: Tables, c: Cols) -> ColumnElement[Any]:
    """The key of a row that holds it, as in the index."""
    assert c.unique_key is not None
    if t.dialect.partial_indexes:
        return c.unique_key
    if t.dialect.case_index == "column":
        source: FromClause = c.msg_id.table
        found: ColumnElement[Any] = source.c[HELD_KEY]
        return found
    return sa.case((counts(c), c.unique_key))


def holds(t: Tables, c: Cols, key: ColumnElement[Any]) -> list[ColumnElement[bool]]:
    """It is the row that holds this key."""
    mine = held_key(t, c) == key
    return [mine, counts(c)] if t.dialect.partial_indexes else [mine]


def add_index(t: Tables) -> None:
    """Attach the index, and the generated column that it is on, to the message table."""
    if not able(t):
        return
    c = t.cols()
    assert c.unique_key is not None
    if t.dialect.case_index == "column":
        key = sa.case((counts(c), c.unique_key))
        computed = sa.Computed(key, persisted=t.dialect.stored_columns)
        hidden = {dialects.HIDDEN: True}
        kind = dialects.key_text(MAX_KEY)  # byte by byte, whatever the collation of the column
        column = sa.Column(HELD_KEY, kind, computed, nullable=True, info=hidden)
        t.message.append_column(column)
    option: dict[str, Any] = {}
    if t.dialect.partial_indexes:
        option = {f"{t.dialect.name}_where": counts(c)}
    sa.Index(index_name(t), held_key(t, c), unique=True, **option)
