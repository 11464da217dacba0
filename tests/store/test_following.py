"""The run of messages that is read behind each head."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
import sqlalchemy as sa

from msgworker.store import claim
from msgworker.store.rows import Row
from tests.support.rows import send
from tests.support.store import Store, ids_of


def _run(store: Store, head: Row, limit: int = 10) -> list[int]:
    return ids_of(store(claim.read_runs, [head], limit=limit)[head.msg_id])


def test_read_runs_gives_what_stands_behind_each_head(store):
    ids = send(store.app, "a", "b", "a", "a", "b", None)
    rows = store.flagged(ids[0], ids[1], ids[5])
    runs = store(claim.read_runs, rows, limit=10)
    assert {head: ids_of(run) for head, run in runs.items()} == {
        ids[0]: [ids[2], ids[3]],
        ids[1]: [ids[4]],
    }
    assert store(claim.read_runs, rows, limit=1)[ids[0]] == runs[ids[0]][:1]
    assert store(claim.read_runs, rows, limit=0) == {ids[0]: [], ids[1]: []}
    assert store(claim.read_runs, [], limit=10) == {}


@pytest.mark.parametrize(
    "wall",
    [
        {"status": -1, "error_try_times": 1},
        {"status": 1},
        {"available_at": datetime(2999, 1, 1, tzinfo=UTC)},
    ],
    ids=["failed", "running", "not due"],
)
def test_a_run_ends_before_the_first_unfinished_row_that_cannot_follow(store, wall):
    ids = send(store.app, *["a"] * 5)
    if "status" in wall and wall["status"] == 1:
        store.row(ids[3], status=1)
        head = Row(ids[0], "a", "t", None, 0, 0, 0, None, None)
    else:
        (head,) = store.flagged(ids[0])
        store.row(ids[3], **wall)
    assert _run(store, head) == ids[1:3]


def test_a_run_passes_over_finished_and_dead_rows(store):
    ids = send(store.app, *["a"] * 5)
    (head,) = store.flagged(ids[0])
    store.row(ids[1], status=2)
    store.row(ids[2], status=-1, error_try_times=3)
    assert _run(store, head) == ids[3:]


def test_a_run_of_a_blocking_table_ends_before_a_dead_row(blocking_app):
    store = Store(blocking_app)
    ids = send(store.app, *["a"] * 4)
    (head,) = store.flagged(ids[0])
    store.row(ids[2], status=-1, error_try_times=3)
    assert _run(store, head) == [ids[1]]


def test_a_run_is_empty_if_a_lower_unfinished_row_has_appeared(store):
    late, head_id, *behind = send(store.app, "a", "a", "a", "a")
    store.row(late, status=2)
    (head,) = store.flagged(head_id)
    store.row(late, status=0)  # a rerun, or a producer that committed late
    assert _run(store, head) == []
    store.row(late, status=-1, error_try_times=1)
    assert _run(store, head) == []
    store.row(late, status=2)
    assert _run(store, head) == behind
    store.row(head_id, status=2)  # the claim is lost, and its message done by another
    assert _run(store, head) == []


def test_runs_of_many_heads(store):
    objects = [f"o{i}" for i in range(130)]
    ids = send(store.app, *objects, *objects)
    runs = store(claim.read_runs, store.flagged(*ids[:130]), limit=5)
    assert {head: ids_of(run) for head, run in runs.items()} == {
        ids[i]: [ids[130 + i]] for i in range(130)
    }


def test_the_runs_of_all_heads_are_read_by_one_statement_where_it_can_name_them_in_a_list(store):
    objects = [f"o{i}" for i in range(60)]
    rows = store.flagged(*send(store.app, *objects, *objects)[:60])
    sent: list[str] = []
    with store.app.engine.connect() as conn:
        sa.event.listen(conn, "before_cursor_execute", lambda *given: sent.append(given[2]))
        runs = claim.read_runs(conn, store.t, rows, limit=5)
    assert all(len(run) == 1 for run in runs.values())
    takes_lists = store.t.database.arrays or store.t.database.json_lists
    assert len(sent) == (1 if takes_lists else 2)
