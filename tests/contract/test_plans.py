"""Plans that must not depend on when statistics were gathered last."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from msgworker import App, dialects
from msgworker.store import claim
from msgworker.store.candidates import Candidate
from tests.support.rows import Table, send


def test_flagging_reads_its_candidates_by_key_although_statistics_say_nothing_waits(postgresql):
    """Statistics of a quiet hour, then a burst: an index of open rows looks empty to the planner,
    and is not."""
    app = App(postgresql.url)
    try:
        app.create_schema()
        table = Table(app)
        send(app, *(f"o{i}" for i in range(3000)))
        table.edit(status=2)
        with app.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
            conn.exec_driver_sql("VACUUM ANALYZE msgworker_message")
        ids = send(app, *(f"p{i}" for i in range(500)))[:100]
        candidates = [Candidate(i, None, 0, 0, 0, "t", 1, None) for i in ids]
        t = app.tables
        with app.engine.connect() as conn:
            conn.exec_driver_sql(dialects.DIALECTS["postgresql"].tuned[0])  # type: ignore[index]
            sent: list[Any] = []
            sa.event.listen(conn, "before_cursor_execute", lambda *a: sent.append(a[2:4]))
            assert len(claim.flag(conn, t, candidates, me="me")) == 100
            statement, parameters = sent[0]
            plan = conn.exec_driver_sql(f"EXPLAIN {statement}", parameters).scalars().all()
            conn.rollback()
        (read,) = [line for line in plan if line.split("  (")[0].endswith("msgworker_message m")]
        assert "msgworker_message_pkey" in read, "\n".join(plan)
    finally:
        app.engine.dispose()
