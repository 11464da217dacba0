"""UPDATEs of rows that are given by lists of ids."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from msgworker.message import Settlement
from msgworker.store import settle
from msgworker.store.rows import changed
from msgworker.table import Tables
from tests.support.flags import ME
from tests.support.rows import send


def _done(t: Tables) -> sa.Update:
    c = t.cols()
    return (
        sa.update(t.message).where(t.among(c.msg_id)).values(t.values(status=2, last_error="50%"))
    )


def test_it_changes_the_rows_that_are_listed_and_says_how_many_there_were(store):
    ids = send(store.app, *"abcd")
    change = _done(store.t)
    assert store(changed, "test", change, {"mw_ids": [ids[1], ids[3], ids[3] + 1]}) == 2
    assert store.table.rows("status", "last_error") == [(0, None), (2, "50%")] * 2
    assert store(changed, "test", change, {"mw_ids": [ids[0]]}) == 1


def test_nothing_but_whole_numbers_gets_into_a_text(store):
    ids = send(store.app, "a")
    change = _done(store.t)
    with pytest.raises((TypeError, sa.exc.DBAPIError)):
        store(changed, "test", change, {"mw_ids": [f"{ids[0]}) OR (1 = 1"]})
    assert store.table.rows("status") == [(0,)]


def test_a_settle_hands_no_id_to_a_driver_that_would_write_it_into_the_text(store):
    """PyMySQL does that for one value after the other, and takes longer than for all the rest."""
    ids = send(store.app, *"abcd", *"abcd")
    rows = store.flagged(*ids[:4])
    given: list[Any] = []
    with store.app.engine.connect() as conn:
        sa.event.listen(conn, "before_cursor_execute", lambda *sent: given.append(sent[3]))
        batch = [Settlement(row.msg_id, next_id=row.msg_id + 4) for row in rows]
        settle.settle(conn, store.t, batch, me=ME)
        conn.commit()
    assert [s for (s,) in store.table.rows("status")] == [2] * 4 + [1] * 4
    assert max(map(len, given)) <= 5
