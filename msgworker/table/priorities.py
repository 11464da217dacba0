"""Priorities: the predicates of rows that have one, and the index by which these are found.

urgent  rows with a priority that may be claimed and wait for no instant, by priority and age
It is made only if the table has the column, and holds no other row: messages without a priority
cost nothing. A row leaves it when it is flagged.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy import ColumnElement, FromClause

from msgworker import dialects
from msgworker.message import Status
from msgworker.table.columns import Cols, lit
from msgworker.table.names import MOST_PRIORITY, URGENT, URGENT_RANK
from msgworker.table.tables import Tables

ONE: ColumnElement[int] = sa.literal_column("1")
ZERO: ColumnElement[int] = sa.literal_column("0")


def prioritized(t: Tables) -> bool:
    """Whether the table has the column of priorities and its index."""
    name = t.spec.index_name(URGENT)
    return t.has("priority") and (t.indexes is None or name in t.indexes)


def priority_of(c: Cols) -> ColumnElement[Any]:
    """The priority of a row; what is none counts as 0."""
    return sa.case((_has_one(c), c.priority), else_=ZERO)


def rank_of(t: Tables, c: Cols) -> ColumnElement[Any]:
    """The priority, negated, so that the highest comes first; as in the index, where its key is a
    CASE."""
    if t.dialect.partial_indexes:
        return _rank(c)
    if t.dialect.case_index == "column":
        source: FromClause = c.msg_id.table
        found: ColumnElement[Any] = source.c[_column_name(t)]
        return found
    return sa.case((_urgent(t, c), _rank(c)))


def urgent_order(t: Tables, c: Cols) -> tuple[ColumnElement[Any], ColumnElement[Any]]:
    """The keys of the index."""
    if t.dialect.partial_indexes:  # of columns alone: tools do not read indexes on expressions
        assert c.priority is not None
        return c.priority.desc(), c.msg_id
    return rank_of(t, c), _msg_id(t, c)


def urgent_behind(
    t: Tables, c: Cols, rank: ColumnElement[int], msg_id: ColumnElement[int]
) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    """The rows behind this one in the order of the index."""
    own = _msg_id(t, c)
    if t.dialect.partial_indexes:
        assert c.priority is not None
        priority = ZERO - rank
        return c.priority <= priority, sa.or_(c.priority < priority, own > msg_id)
    key = rank_of(t, c)
    return key >= rank, sa.or_(key > rank, own > msg_id)


def urgent_rows(t: Tables, c: Cols) -> ColumnElement[bool]:
    """The rows of the index, as a query by it selects them."""
    if not t.dialect.partial_indexes:
        return rank_of(t, c).is_not(None)
    # Written in this form, no planner uses the indexes of open rows for it.
    return sa.case((_urgent(t, c), ONE), else_=ZERO) == ONE


def add_index(t: Tables) -> None:
    """Attach the index, and the generated column that it is on, to the message table."""
    c = t.cols()
    if c.priority is None:
        return
    if t.dialect.case_index == "column":
        rank = sa.case((_urgent(t, c), _rank(c)))
        computed = sa.Computed(rank, persisted=t.dialect.stored_columns)
        hidden = {dialects.HIDDEN: True}
        column = sa.Column(_column_name(t), sa.Integer(), computed, nullable=True, info=hidden)
        t.message.append_column(column)
    option: dict[str, Any] = {}
    if t.dialect.partial_indexes:
        option = {f"{t.dialect.name}_where": urgent_rows(t, c)}
    sa.Index(t.spec.index_name(URGENT), *urgent_order(t, c), **option)


def _column_name(t: Tables) -> str:
    return URGENT_RANK + t.spec.rule


def _msg_id(t: Tables, c: Cols) -> ColumnElement[int]:
    """A CASE too where the rank is one, because an entry of only NULLs is not in an index."""
    return sa.case((_urgent(t, c), c.msg_id)) if t.dialect.case_index == "function" else c.msg_id


def _urgent(t: Tables, c: Cols) -> ColumnElement[bool]:
    # As `claimable`, but in the words of the indexes that are there: a query must repeat them.
    free = sa.or_(
        c.status == lit(Status.NEW), sa.and_(c.status == lit(Status.FAILED), t.tries_left(c))
    )
    parts = [free, _has_one(c)]
    if c.available_at is not None:
        parts.append(c.available_at.is_(None))
    return sa.and_(*parts)


def _has_one(c: Cols) -> ColumnElement[bool]:
    """Between two numbers, because a text and NaN are greater than any."""
    assert c.priority is not None
    return c.priority.between(ONE, sa.literal_column(str(MOST_PRIORITY)))


def _rank(c: Cols) -> ColumnElement[Any]:
    assert c.priority is not None
    return -c.priority
