"""Sessions of a database server."""

from __future__ import annotations

import sqlalchemy as sa

from msgworker import App

SLEEP = {
    "postgresql": "SELECT pg_sleep(60)",
    **dict.fromkeys(("mysql", "mariadb"), "SELECT sleep(60) FROM (SELECT 1 UNION SELECT 2) a"),
}


def too_slow(conn: sa.Connection) -> object:
    """A query that runs for many seconds, if nothing ends it."""
    steps = "WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n WHERE i < 99999999)"
    text = SLEEP.get(conn.dialect.name, f"{steps} SELECT max(i) FROM n")
    return conn.exec_driver_sql(text).all()


def cut(app: App, conn: sa.Connection) -> None:
    """End the session of `conn`, from another one."""
    # An Oracle's stand-ins know the words of MariaDB.
    mysql = app.engine.dialect.name in ("mysql", "mariadb", "oracle")
    mine = sa.func.connection_id() if mysql else sa.func.pg_backend_pid()
    number = conn.scalar(sa.select(mine))
    end = f"KILL {number}" if mysql else f"SELECT pg_terminate_backend({number})"
    with app.engine.connect() as other:
        other.execute(sa.text(end))
