"""Topics that nobody is to start for now."""

from __future__ import annotations

from sqlalchemy import Connection

from msgworker.table import Tables


def paused_topics(conn: Connection, tables: Tables) -> set[str]:
    """The topics that are paused; none."""
    return set()
