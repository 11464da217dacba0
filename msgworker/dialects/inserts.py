"""An INSERT that steps back from a conflict, and the ids that an INSERT tells."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa


def insert_unless(
    name: str,
    table: sa.Table,
    values: dict[str, Any],
    column: sa.ColumnElement[Any],
    where: sa.ColumnElement[bool],
) -> sa.Insert:
    """An INSERT of nothing where the partial unique index on this column has the entry already."""
    unless: dict[str, Any] = {"index_elements": [column], "index_where": where}
    if name == "sqlite":
        from sqlalchemy.dialects import sqlite

        return sqlite.insert(table).values(values).on_conflict_do_nothing(**unless)
    from sqlalchemy.dialects import postgresql

    return postgresql.insert(table).values(values).on_conflict_do_nothing(**unless)


def tells_no_other_ids(dialect: sa.Dialect) -> bool:
    """Whether the driver knows of an INSERT only what the counter of a table has given: not an id
    that comes by a trigger, or from a sequence."""
    return dialect.name in ("mysql", "mariadb", "sqlite")


def returns_ids(dialect: sa.Dialect) -> bool:
    """Whether an INSERT can return what it has inserted."""
    version = dialect.server_version_info or ()
    if dialect.name == "sqlite":
        return version >= (3, 35)
    return bool(getattr(dialect, "is_mariadb", False)) and version >= (10, 5)
