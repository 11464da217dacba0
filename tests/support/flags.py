"""Flags set as an instance does."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from msgworker import App
from msgworker.store import claim
from msgworker.store.candidates import Candidate
from msgworker.store.rows import Row

ME = "me-1"


def seen(app: App, *ids: Any) -> list[Candidate]:
    """Candidates as the rows stand now."""
    c = app.tables.cols()
    query = sa.select(c.msg_id, c.object_id, c.status, c.error_try_times, c.topic)
    with app.engine.connect() as conn:
        rows = {row[0]: row for row in conn.execute(query)}
    return [Candidate(i, *rows[i][1:4], 0, rows[i][4], 1, None) for i in ids]


def flagged(app: App, *ids: Any, me: str = ME) -> list[Row]:
    """Flag all of these as `me` does."""
    found = seen(app, *ids)
    with app.engine.begin() as conn:
        rows = claim.flag(conn, app.tables, found, me=me)
    assert [row.msg_id for row in rows] == sorted(ids)
    return rows
