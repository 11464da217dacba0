"""Errors of Oracle's at the statements and COMMITs of the life of a message: as elsewhere, nothing
is lost, and nothing takes effect twice."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
import sqlalchemy as sa

from msgworker import App, Context, Message
from proof.oracle.faults import Place, faults
from tests.plugin import Database
from tests.ready import EFFECTS
from tests.support.rows import Table

LOST = ["ORA-03113", "ORA-12541", "ORA-01034", "ORA-25408", "DPY-4011"]
AGAIN = ["ORA-00060", "ORA-01013", "ORA-08177"]
CLAIM = r"^UPDATE\s+msgworker_message\s+SET\s+status\s*=\s*1"
SETTLE = r"^(UPDATE|DECLARE\b.*?;\s*UPDATE)\s+msgworker_message\s+SET\s+status\s*=\s*2"
EFFECT = r"^INSERT\s+INTO\s+batch_effects"
FAULTS: list[tuple[str, Place, str]] = [
    *((code, "statement", only) for code in LOST + AGAIN for only in (CLAIM, SETTLE, EFFECT)),
    *(("ORA-01654", "statement", only) for only in (CLAIM, SETTLE, EFFECT)),  # a full tablespace
    *(("DPY-4024", "statement", only) for only in (CLAIM, SETTLE)),  # in a handler it is its limit
    *((code, "before commit", only) for code in [*LOST, "ORA-08177"] for only in (CLAIM, EFFECT)),
    *((code, "after commit", only) for code in LOST for only in (CLAIM, SETTLE, EFFECT)),
]
NAMES = {CLAIM: "claim", SETTLE: "settle", EFFECT: "effect"}


@pytest.mark.quick("03113-before-commit-eff|00060-statement-cl")
@pytest.mark.parametrize(
    ("code", "place", "only"),
    FAULTS,
    ids=[f"{code}-{place.replace(' ', '-')}-{NAMES[only]}" for code, place, only in FAULTS],
)
def test_an_error_of_oracle_s_loses_nothing_and_repeats_no_effect(
    over_mariadb: Database, code: str, place: Place, only: str
) -> None:
    app = App(over_mariadb.url, backoff_seconds=1, poll_seconds=0.1)
    order: dict[Any, list[int]] = defaultdict(list)

    @app.handler("t", transactional=True)
    def handle(msg: Message[Any], ctx: Context) -> None:
        ctx.connection.execute(EFFECTS.insert(), {"msg_id": msg.msg_id})
        order[msg.object_id].append(msg.msg_id)

    try:
        with app.engine.begin() as conn:
            messages = [({}, f"o{number % 3}") for number in range(9)]
            app.send_many(conn, "t", messages)
        with faults.planned(code, place, only=only) as fault:
            report = app.drain(linger=2)
        table = Table(app)
        assert fault.raised == 1, "the statement was never sent"
        assert set(table.rows("status", "error_try_times", "claimed_by")) == {(2, 0, None)}
        assert report.left == 0
        with app.engine.connect() as conn:
            effects = list(conn.scalars(sa.select(EFFECTS.c.msg_id).order_by(EFFECTS.c.id)))
        ids = table.column("msg_id")
        assert sorted(effects) == ids
        for object_id in ("o0", "o1", "o2"):
            mine = [i for i, o in table.rows("msg_id", "object_id") if o == object_id]
            assert [i for i in effects if i in mine] == mine
    finally:
        app.engine.dispose()
