"""What a constraint or trigger of the user refuses."""

from __future__ import annotations

import re

from msgworker import App


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
