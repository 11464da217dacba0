"""What doctor finds, and its statements, run as an operator would."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from msgworker import App
from msgworker.doctor import Finding, Severity
from tests import variants

OF_MYSQL = {
    "utf8mb4_nopad_bin": "utf8mb4_0900_bin",
    "utf8mb4_general_nopad_ci": "utf8mb4_0900_ai_ci",
    "INET6": "POINT",
    " UUID": " POINT",
}


def needed(app: App) -> list[Finding]:
    return [one for one in app.ops.doctor() if one.severity is Severity.NEEDED]


def run(on: Any, *statements: str) -> None:
    """Each in a transaction of its own; on an App or a Database. What is written for MariaDB names
    collations and types that a MySQL in its place does not have."""
    engine: sa.Engine = on.engine() if callable(on.engine) else on.engine
    other = OF_MYSQL if variants.is_mysql() and engine.dialect.name in ("mysql", "mariadb") else {}
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
        for statement in statements:
            for ours, theirs in other.items():
                statement = statement.replace(ours, theirs)
            conn.execute(sa.text(statement.replace(":", r"\:")))
