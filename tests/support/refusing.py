"""What a constraint or trigger of the user refuses, and what fails once."""

from __future__ import annotations

import re
import sqlite3
from typing import Any

import pytest
import sqlalchemy as sa

from msgworker import App

ROLLED_BACK = sa.exc.OperationalError("", {}, sqlite3.OperationalError("database is locked"))
LOST = sa.exc.OperationalError("", {}, sqlite3.OperationalError("disk I/O error"))
"""What they mean is the same on every database."""


def refuse(app: App, check: str, *, on: str = "UPDATE") -> None:
    """Forbid what does not fulfil `check`, as a constraint or trigger of the user's would. on: when
    a trigger looks; a constraint always does."""
    if app.engine.dialect.name == "sqlite":
        new = re.sub(r"\b(status|topic|object_id|error_try_times|crash_times)\b", r"NEW.\1", check)
        statement = (
            f"CREATE TRIGGER theirs BEFORE {on} ON msgworker_message WHEN NOT ({new}) "
            "BEGIN SELECT RAISE(ABORT, 'theirs'); END"
        )
    else:
        statement = f"ALTER TABLE msgworker_message ADD CONSTRAINT theirs CHECK ({check})"
    with app.engine.begin() as conn:
        conn.exec_driver_sql(statement)


def fails_once(
    patch: pytest.MonkeyPatch, module: Any, name: str, error: Exception, *, after: bool = False
) -> None:
    """The next call of a function raises an error; after: when it has done what it does."""
    real, left = getattr(module, name), [error]

    def call(*args: Any, **options: Any) -> Any:
        found = real(*args, **options) if after or not left else None
        if left:
            raise left.pop()
        return found

    patch.setattr(module, name, call)
