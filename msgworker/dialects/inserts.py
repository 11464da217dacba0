"""An INSERT that steps back from a conflict."""

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
