"""The difference between a table of ours as it should be and as it is: `create` makes what is
missing, `upgrade` makes it while others work, `doctor` prints it, and no start is without it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Inspector

from msgworker import db
from msgworker.table import ADDED, SLICES


@dataclass(frozen=True, slots=True)
class Difference:
    """exists: None = this login may not see the table; what it lacks is unknown where it is not
    seen. columns: those that are missing, in the order of the table."""

    exists: bool | None
    columns: tuple[sa.Column[Any], ...] = ()

    @property
    def hidden(self) -> list[sa.Column[Any]]:
        """Generated columns, which indexes are on."""
        return [column for column in self.columns if is_generated(column)]

    @property
    def plain(self) -> list[sa.Column[Any]]:
        """The others."""
        return [column for column in self.columns if not is_generated(column)]

    @property
    def required(self) -> list[sa.Column[Any]]:
        """Columns without which no instance works."""
        return [column for column in self.columns if ADDED not in column.info]

    @property
    def later(self) -> list[sa.Column[Any]]:
        """Columns that a later version has added: instances work without them."""
        return [column for column in self.columns if ADDED in column.info]


def difference(
    inspector: Inspector, table: sa.Table, there: Iterable[Any] | None = None
) -> Difference:
    """Of a table and its columns. there: its columns, if they are known."""
    if there is None:
        exists = db.is_there(inspector, table)
        if not exists:
            return Difference(exists)
        there = inspector.get_columns(table.name, schema=table.schema)
    names = {str(column["name"]).lower() for column in there}
    return Difference(True, tuple(c for c in table.c if c.name.lower() not in names))


def missing_indexes(conn: Connection, table: sa.Table) -> dict[sa.Index, bool]:
    """The indexes that a table which is there lacks, the guard first, and of each whether there is
    one of its name whose creation was interrupted."""
    database = db.of(conn)
    there, unfinished = database.index_names(conn, table), database.invalid_indexes(conn, table)
    return {
        index: str(index.name).lower() in unfinished
        for index in ordered_indexes(table)
        if str(index.name).lower() not in there - unfinished
    }


IN_ORDER = (
    "guard",
    "id",
    "object",
    "oldest",
    "due",
    "failed",
    "urgent",
    "unique",
    *SLICES.values(),
    "group",
    "owner",
    "key",
)
"""The suffixes of indexes."""


def ordered_indexes(table: sa.Table) -> list[sa.Index]:
    """The indexes of one of our tables, the guard first."""
    return sorted(table.indexes, key=lambda index: IN_ORDER.index(suffix(index)))


def suffix(index: sa.Index) -> str:
    """What distinguishes it from the others of its table."""
    return str(index.name).rpartition("_")[2]


def is_generated(column: sa.Column[Any]) -> bool:
    """Whether a column is one of our hidden, generated ones, which exist only for indexes."""
    return bool(column.info.get(db.HIDDEN))
