"""What a batch writes: all of it, or nothing."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event

from msgworker.store.settle import OutOfDate, Share, settle_batch
from tests.support.flags import ME
from tests.support.rows import send
from tests.support.store import OTHER

LATER = datetime.now(UTC) + timedelta(days=1)


def test_heads_and_those_behind_them_are_done_and_the_flag_moves_on(store):
    a1, a2, a3, a4, b1, n = send(store.app, "a", "a", "a", "a", "b", None)
    store.flagged(a1, b1, n)
    shares = [Share(a1, [a2, a3], a4), Share(b1), Share(n)]
    assert store(settle_batch, shares, me=ME) == {a4}
    assert [store.state(i) for i in (a1, a2, a3, b1, n)] == [(2, 0, None)] * 5
    assert store.state(a4) == (1, 0, ME)
    assert None not in [row[0] for row in store.table.rows("finished_at", "status") if row[1] == 2]


WRONG: dict[str, tuple[str, dict[str, Any]]] = {
    "a head of another owner": ("b1", {"claimed_by": OTHER}),
    "a head that was recovered": ("b1", {"status": -1, "error_try_times": 1, "claimed_by": None}),
    "a head that was released": ("b1", {"status": 0, "claimed_by": None}),
    "a follower that was discarded": ("a2", {"status": -1, "error_try_times": 3}),
    "a follower that is done": ("a2", {"status": 2}),
    "a follower that waits": ("a2", {"available_at": LATER}),
    "a follower with a try": ("a2", {"error_try_times": 1}),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_one_wrong_row_leaves_all_of_a_batch_as_it_was(store, wrong):
    ids = send(store.app, "a", "a", "a", "b", "b")
    a1, a2, a3, b1, b2 = ids
    store.flagged(a1, b1)
    place, edit = WRONG[wrong]
    store.row({"a2": a2, "b1": b1}[place], **edit)
    before = store.table.rows("status", "error_try_times", "claimed_by", "finished_at")
    with pytest.raises(OutOfDate):
        store(settle_batch, [Share(a1, [a2], a3), Share(b1, (), b2)], me=ME)
    assert store.table.rows("status", "error_try_times", "claimed_by", "finished_at") == before


@pytest.mark.parametrize(
    "edit", [{"status": -1, "error_try_times": 3}, {"status": 2}, {"available_at": LATER}]
)
def test_a_next_message_that_is_not_free_gets_no_flag(store, edit):
    a1, a2, a3, b1, b2 = send(store.app, "a", "a", "a", "b", "b")
    store.flagged(a1, b1)
    store.row(a3, **edit)
    state = store.state(a3)
    assert store(settle_batch, [Share(a1, [a2], a3), Share(b1, (), b2)], me=ME) == {b2}
    assert store.state(a3) == state
    assert store.state(a2) == (2, 0, None)


@pytest.mark.requires("row_locks")
def test_all_rows_of_a_batch_are_locked_by_age_before_one_is_changed(store):
    """Otherwise two batches, or a claim beside one, deadlock."""
    ids = send(store.app, "b", "a", "a", "b", "a", "b")
    store.flagged(ids[0], ids[1])
    sent: list[tuple[str, Any]] = []

    def saw(conn: Any, cursor: Any, statement: str, params: Any, *_: Any) -> None:
        sent.append((" ".join(statement.split()), params))

    event.listen(store.app.engine, "before_cursor_execute", saw)
    try:
        shares = [Share(ids[1], [ids[2]], ids[4]), Share(ids[0], [ids[3]], ids[5])]
        store(settle_batch, shares, me=ME)
    finally:
        event.remove(store.app.engine, "before_cursor_execute", saw)
    kinds = [statement.split()[0] for statement, _ in sent]
    assert kinds in ([first, "UPDATE", "UPDATE", "UPDATE"] for first in ("SELECT", "WITH"))
    lock, params = sent[0]
    assert re.search(r"ORDER BY \S+ FOR UPDATE", lock)
    text = str(params)
    assert all(str(i) in text for i in ids)


def test_a_batch_larger_than_a_statement_is_sent_in_parts(store, monkeypatch):
    ids = send(store.app, *["a"] * 12)
    store.flagged(ids[0])
    small = replace(store.t, database=store.t.database.having(max_ids=5))
    monkeypatch.setattr(store, "t", small)
    assert store(settle_batch, [Share(ids[0], ids[1:11], ids[11])], me=ME) == {ids[11]}
    assert [store.state(i)[0] for i in ids] == [2] * 11 + [1]


def test_the_guard_refuses_a_next_message_beside_one_that_runs(store):
    a1, a2, a3 = send(store.app, "a", "a", "a")
    store.flagged(a1)
    store.row(a3, object_id="z")
    store.row(a3, status=1)
    store.row(a1, status=0, claimed_by=None)
    store.row(a3, object_id="a")
    with pytest.raises((OutOfDate, sa.exc.IntegrityError)):
        store(settle_batch, [Share(a1, (), a2)], me=ME)
    assert [store.state(i)[0] for i in (a1, a2, a3)] == [0, 0, 1]
