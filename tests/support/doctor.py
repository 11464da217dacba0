"""What doctor finds, and its statements, run as an operator would."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from msgworker import App
from msgworker.store.looking.doctor import Finding, Severity


def needed(app: App) -> list[Finding]:
    return [one for one in app.ops.doctor() if one.severity is Severity.NEEDED]


def run(on: Any, *statements: str) -> None:
    """Each in a transaction of its own; on an App or a Database."""
    engine: sa.Engine = on.engine() if callable(on.engine) else on.engine
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
        for statement in statements:
            conn.execute(sa.text(statement.replace(":", r"\:")))
