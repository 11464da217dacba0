"""The guard and the claim indexes, the reason for each, and a class of `Tables` for each way to
keep finished rows out of an index.

PartialIndexes     an index has a WHERE
GeneratedColumns   an index of a generated column with a CASE: NULL for finished rows
FunctionIndexes    an index of the CASE itself

guard   at most one PROCESSING row per object, enforced by the database (P1)
object  unfinished rows by object and age: heads, runs, "is an earlier one unfinished"
oldest  unfinished rows by age: old before new
        (both without rows that run and have no object: nothing waits behind them, and a claim of
        one writes two entries less; the guard has them)
due     rows that wait for an instant, by that instant: retries and delayed messages
failed  failed and dead rows by age: operators search them among millions of done ones
id      all rows by id, where partitions allow no primary key
urgent  rows with a priority, by priority and age; unique  keys that count; job  rows that belong
        to a job, by status: their predicates are functions of tables.py
shard, flag  unfinished rows by slice, object and age, if scopes are used (`spec.slices`);
        the object comes before the age, so that a deep object is one step; or behind it, see
        `Database.slices_by_age`
Finished rows are in none of them, so they cost nothing (P7; see docs/reference/guarantees.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import sqlalchemy as sa
from sqlalchemy import ColumnElement
from sqlalchemy.sql.elements import Grouping
from sqlalchemy.types import TypeEngine

from msgworker.db.database import HIDDEN, Database
from msgworker.db.types import KeyText, cast_text, or_text
from msgworker.table import columns, tables


def indexing(database: Database) -> type[tables.Tables]:
    if database.partial_indexes:
        return PartialIndexes
    return GeneratedColumns if database.case_index == "column" else FunctionIndexes


class PartialIndexes(tables.Tables):
    """The index is partial: Tables has its keys and predicates."""

    def add_indexes(self) -> None:
        c = self.cols()
        self._add("guard", c.object_id, where=self.running(c), unique=True)
        self._add("object", c.object_id, c.msg_id, where=self.open_rows(c), wide=self.unfinished(c))
        wide = self.waits_for_no_instant(c)
        self._add("oldest", c.msg_id, where=self.oldest_rows(c), wide=wide)
        if c.available_at is not None:
            waits = sa.and_(self.unfinished(c), c.available_at.is_not(None))
            self._add("due", c.available_at, c.msg_id, where=waits)
        self._add(columns.FAILED, c.msg_id, where=self.failed(c))
        if self.database.partitioned:  # instead of a primary key
            sa.Index(self.spec.index_name("id"), c.msg_id)
        for role in self.sliced:
            by: list[ColumnElement[Any]] = [c.object_id, c.msg_id]
            if self.database.slices_by_age:  # with what its predicate reads, so that no row is read
                by = [c.msg_id, c.object_id, c.status, c.error_try_times]
            self._add(columns.SLICES[role], self.slice_key(c, role), *by, where=self.in_slices(c))

    def _add(
        self, name: str, *keys: Any, where: Any, unique: bool = False, wide: Any = None
    ) -> None:
        option = self.database.index_where(where)
        info = {} if wide is None else {columns.WIDE: wide}
        sa.Index(self.spec.index_name(name), *keys, unique=unique, info=info, **option)


class CaseIndexes(tables.Tables):
    """The key of an index is a CASE that is NULL for all other rows; it holds ids as texts, and
    unfinished rows without an object under special names."""

    def add_indexes(self) -> None:
        c, name = self.cols(), self.spec.index_name
        sa.Index(name("guard"), self._guard_key(c), unique=True)
        sa.Index(name("object"), self.open_object(c), self.open_msg_id(c))
        if self.database.oldest_index:
            sa.Index(name("oldest"), self._oldest_case(c))
        if c.available_at is not None:
            # Flagging and finishing set available_at to NULL: finished rows are not in this index.
            sa.Index(name("due"), c.available_at, c.msg_id)
        sa.Index(name(columns.FAILED), *self._failed_keys(c))
        for role in self.sliced:
            keys = (self.slice_key(c, role), self.open_object(c), self.open_msg_id(c))
            sa.Index(name(columns.SLICES[role]), *keys)

    def _guard_key(self, c: columns.Cols) -> Any:
        return self.running_object(c)

    def _failed_keys(self, c: columns.Cols) -> Sequence[ColumnElement[Any]]:
        return (self.failed_key(c),)

    def _open_case(self, c: columns.Cols) -> ColumnElement[Any]:
        running, other = map(tables.text_lit, (columns.NO_OBJECT_RUNNING, columns.NO_OBJECT))
        none = sa.case((self.running(c), running), else_=other)
        national = isinstance(c.object_id.type, sa.NVARCHAR | sa.NCHAR)
        or_none = or_text if national else sa.func.coalesce  # existing indexes have it
        return sa.case((self.unfinished(c), or_none(self.object_key(c), none)))

    def _oldest_case(self, c: columns.Cols) -> ColumnElement[Any]:
        return sa.case((self.waits_for_no_instant(c), c.msg_id))

    def key(self, object_id: Any) -> Any:
        return str(object_id)

    @property
    def key_type(self) -> TypeEngine[Any]:
        return sa.String()

    def object_key(self, c: columns.Cols) -> ColumnElement[Any]:
        if not isinstance(c.object_id.type, sa.String | KeyText):
            return sa.cast(c.object_id, sa.String(columns.MAX_OBJECT_ID))
        key = self._text_key(c.object_id)
        return self.database.recollated(key) if self.key_collation else key

    def _text_key(self, object_id: ColumnElement[Any]) -> ColumnElement[Any]:
        return object_id

    def running_object(self, c: columns.Cols) -> ColumnElement[Any]:
        return sa.case((self.running(c), self.object_key(c)))

    def runs(self, c: columns.Cols, key: Any) -> ColumnElement[bool]:
        found: ColumnElement[bool] = self.running_object(c) == key
        return found

    def open_rows(self, c: columns.Cols) -> ColumnElement[bool]:
        return sa.true()

    def all_open(self, c: columns.Cols, d: columns.Cols) -> Sequence[tables.Entries]:
        return ((c, "object", self.open_object(c).is_not(None)),)

    def running_rows(self, c: columns.Cols, d: columns.Cols) -> Sequence[tables.Entries]:
        return (
            (c, "guard", self.running_object(c).is_not(None)),
            (d, "object", self.open_object(d) == tables.text_lit(columns.NO_OBJECT_RUNNING)),
        )

    def between_objects(self, key: ColumnElement[Any]) -> ColumnElement[bool]:
        none, busy = tables.text_lit(columns.NO_OBJECT), tables.text_lit(columns.NO_OBJECT_RUNNING)
        return sa.or_(key < none, sa.and_(key > none, key < busy), key > busy)

    def without_object(self, c: columns.Cols, d: columns.Cols) -> Sequence[tables.Entries]:
        none = [tables.text_lit(columns.NO_OBJECT), tables.text_lit(columns.NO_OBJECT_RUNNING)]
        return ((c, "object", self.open_object(c).in_(none)),)

    def waiting_without_object(self, c: columns.Cols) -> Sequence[ColumnElement[bool]]:
        return (self.open_object(c) == tables.text_lit(columns.NO_OBJECT),)

    def due_rows(self, c: columns.Cols) -> Sequence[ColumnElement[bool]]:
        return ()

    def oldest_rows(self, c: columns.Cols) -> ColumnElement[bool]:
        return self.holds_or_waits(c)

    def slice_rows(self, c: columns.Cols, role: str) -> ColumnElement[bool]:
        return self.open_object(c).is_not(None)

    def slice_entries(self, c: columns.Cols, role: str) -> Sequence[ColumnElement[bool]]:
        return ()

    def slice_without_object(self, c: columns.Cols, role: str) -> Sequence[ColumnElement[bool]]:
        return self.waiting_without_object(c)


class GeneratedColumns(CaseIndexes):
    """The CASE is in a generated column; that of the guard only if a key part must be a column
    (`Database.guard_case`)."""

    def add_indexes(self) -> None:
        self._add_columns()
        super().add_indexes()

    def _add_columns(self) -> None:
        t, plain = self, self.cols()
        kind = plain.object_id.type
        length = max(columns.MAX_OBJECT_ID, getattr(kind, "length", 0) or 0)
        own = isinstance(kind, sa.String | KeyText) and t.key_collation is None
        longest = t.database.max_key(kind if own else KeyText())
        length = length if longest is None else min(length, longest)
        key = self.database.key_like(kind, length) if own else KeyText(length)
        wanted: dict[str, tuple[Any, TypeEngine[Any]]] = {
            columns.OPEN_OBJECT + t.spec.part + t.spec.rule: (self._open_case(plain), key)
        }
        if t.database.guard_case == "column":
            wanted[columns.RUNNING_OBJECT + t.spec.part] = (super().running_object(plain), key)
        # Not the id itself: in MySQL a generated column cannot use an AUTO_INCREMENT column.
        failed = sa.case((t.failed(plain), tables.ONE))
        wanted[columns.FAILED_MARK + t.spec.part] = (failed, sa.SmallInteger())
        for name, (expression, kind) in wanted.items():
            add_generated(t, name, expression, kind)

    def key(self, object_id: Any) -> Any:
        return self.built("key", partial(cast_text, self.object_type))(object_id)

    def _guard_key(self, c: columns.Cols) -> Any:
        # A key part that is an expression needs parentheses.
        key = self.running_object(c)
        return Grouping(key) if self.database.guard_case == "function" else key

    def _failed_keys(self, c: columns.Cols) -> Sequence[ColumnElement[Any]]:
        return tables.generated(c, columns.FAILED_MARK + self.spec.part), c.msg_id

    def _text_key(self, object_id: ColumnElement[Any]) -> ColumnElement[Any]:
        # Independent of settings of the session.
        return sa.func.rtrim(object_id) if isinstance(object_id.type, sa.CHAR) else object_id

    def running_object(self, c: columns.Cols) -> ColumnElement[Any]:
        if self.database.guard_case == "function":
            return super().running_object(c)
        return tables.generated(c, columns.RUNNING_OBJECT + self.spec.part)

    def running_rows(self, c: columns.Cols, d: columns.Cols) -> Sequence[tables.Entries]:
        with_object, without = super().running_rows(c, d)
        if self.database.guard_case == "function":
            # Where it IS NOT NULL, but to MySQL no index on an expression answers that.
            key, empty = self.running_object(c), tables.text_lit("")
            with_object = (c, "guard", sa.or_(key >= empty, key < empty))
        return with_object, without

    def open_object(self, c: columns.Cols) -> ColumnElement[Any]:
        return tables.generated(c, columns.OPEN_OBJECT + self.spec.part + self.spec.rule)

    def failed_rows(self, c: columns.Cols) -> ColumnElement[bool]:
        return tables.generated(c, columns.FAILED_MARK + self.spec.part) == tables.ONE


class FunctionIndexes(CaseIndexes):
    """The CASE is the key. Each key part has one, because an entry of only NULLs is not in the
    index."""

    def open_object(self, c: columns.Cols) -> ColumnElement[Any]:
        return self._open_case(c)

    def open_msg_id(self, c: columns.Cols) -> ColumnElement[int]:
        return sa.case((self.unfinished(c), c.msg_id))

    def oldest_key(self, c: columns.Cols) -> ColumnElement[Any]:
        return self._oldest_case(c)

    def failed_key(self, c: columns.Cols) -> ColumnElement[Any]:
        return sa.case((self.failed(c), c.msg_id))

    def failed_rows(self, c: columns.Cols) -> ColumnElement[bool]:
        return self.failed_key(c).is_not(None)

    def slice_key(self, c: columns.Cols, role: str) -> ColumnElement[Any]:
        return sa.case((self.unfinished(c), self.slice_value(c, role)))

    def null_shard_apart(self, role: str) -> bool:
        return False


# --- The indexes `urgent`, `unique` and `job`, each made only if the table has its column.


def add_generated(
    t: tables.Tables, name: str, of: ColumnElement[Any], kind: TypeEngine[Any]
) -> None:
    """Attach one to the message table."""
    computed = sa.Computed(of, persisted=t.database.stored_columns)
    hidden = {HIDDEN: True}
    t.message.append_column(sa.Column(name, kind, computed, nullable=True, info=hidden))


def add_priority_index(t: tables.Tables) -> None:
    """Attach the index, and the generated column that it is on, to the message table."""
    c = t.cols()
    if c.priority is None:
        return
    if t.database.case_index == "column":
        name = columns.URGENT_RANK + t.spec.part + t.spec.rule
        add_generated(t, name, tables.urgent_rank(t, c), sa.Integer())
    option = t.database.index_where(tables.urgent_rows(t, c))
    sa.Index(t.spec.index_name(columns.URGENT), *tables.urgent_order(t, c), **option)


def add_unique_index(t: tables.Tables) -> None:
    """Attach the index, and the generated column that it is on, to the message table."""
    c = t.cols()
    if c.unique_key is None or not tables.takes_keys(t):
        return
    if t.database.case_index == "column":
        held = sa.case((tables.key_counts(t, c), c.unique_key))
        # byte by byte, whatever the collation of the column
        add_generated(t, columns.HELD_KEY + t.spec.part, held, KeyText(columns.MAX_KEY))
    option = t.database.index_where(tables.key_counts(t, c))
    sa.Index(tables.unique_index_name(t), tables.held_key(t, c), unique=True, **option)


def add_job_index(t: tables.Tables) -> None:
    """Attach the index, and the generated column that it is on, to the message table."""
    c = t.cols()
    if c.job_id is None:
        return
    keys: list[ColumnElement[Any]] = [c.msg_id, c.error_try_times]
    if t.database.case_index == "column":
        status = tables.if_of_a_job(t, c, c.status)
        add_generated(t, columns.JOB_STATUS + t.spec.part, status, sa.SmallInteger())
    if t.database.case_index == "function":  # an entry of only NULLs is not in an index
        keys = [tables.if_of_a_job(t, c, key) for key in keys]
    option = t.database.index_where(tables.of_a_job(t, c))
    sa.Index(t.spec.index_name(columns.JOB), c.job_id, tables.job_status(t, c), *keys, **option)
