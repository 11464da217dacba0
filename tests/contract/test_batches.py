"""A handler of a batch gets a list of messages; all of it is done in one transaction, or none."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import psycopg
import pymysql
import pytest
import sqlalchemy as sa
from tenacity.wait import wait_none

from msgworker import App, BatchContext, Message, MessageTable
from msgworker.events import Lost, Retried, Settled, Started
from msgworker.instance.connections import Connections
from msgworker.instance.state import Peers
from msgworker.message import Settled as Became
from msgworker.testing import drain
from proof.oracle.errors import by_name
from tests.support.apps import created
from tests.support.batches import EFFECTS, Calls, claimed, work_off
from tests.support.rounds import fetch
from tests.support.rows import Table, edit, send

DEADLOCKS: dict[str, Exception] = {
    "sqlite": sqlite3.OperationalError("database is locked"),
    "postgresql": psycopg.errors.DeadlockDetected("deadlock"),
    **dict.fromkeys(("mysql", "mariadb"), pymysql.err.OperationalError(1213, "Deadlock found")),
    "oracle": by_name("ORA-00060"),
}


def test_a_batch_takes_the_runs_of_its_objects_in_order(
    app: App, calls: Calls, table: Table
) -> None:
    calls.add(transactional=True, batch=500)
    ids = send(app, *[f"o{i % 3}" for i in range(12)])
    assert drain(app).done == 12
    assert calls.of == [[i for n in range(3) for i in ids[n::3]]]
    assert calls.effects == ids
    assert set(table.rows("status", "error_try_times", "claimed_by")) == {(2, 0, None)}
    assert all(table.column("finished_at"))


def test_messages_behind_a_batch_get_the_flag_one_batch_after_the_other(
    app: App, calls: Calls, table: Table
) -> None:
    calls.add(transactional=True, batch=4)
    ids = send(app, *["o"] * 10, *[None] * 3)
    assert drain(app).done == 13
    assert calls.of == [ids[:4], ids[10:] + ids[4:5], ids[5:9], ids[9:10]]
    assert calls.effects == ids


def test_after_an_exception_each_message_runs_alone_and_only_the_guilty_one_has_a_try(
    app: App, calls: Calls, table: Table
) -> None:
    calls.add(transactional=True, batch=500, wait=wait_none())
    ids = send(app, "a", "a", "b", "a", "b")
    calls.fails = {ids[1]: 2}
    told: list[Any] = []
    app.on(Retried, told.append)
    report = drain(app)
    assert (report.done, report.retried) == (5, 1)
    assert calls.of[0] == [ids[0], ids[1], ids[3], ids[2], ids[4]]
    assert all(len(call) == 1 for call in calls.of[1:])
    assert table.column("error_try_times") == [0, 1, 0, 0, 0]
    assert [event.message.msg_id for event in told] == [ids[1]]
    assert calls.effects == ids


def test_messages_that_run_alone_after_an_exception_are_not_shared_out(
    app: App, calls: Calls, table: Table
) -> None:
    """Another instance would claim them as a batch, which would raise again, and so on."""
    calls.add(transactional=True, batch=3)
    ids = send(app, *"abcde")
    calls.fails = {ids[0]: 99}
    with claimed(app) as (one, _):
        lane = one.lanes.next()
        assert lane is not None
        assert one.batches.handle_beside(lane) == []
        one.shared.peers, one.fetcher.lane_limit.keep = Peers(0, 2), 1
        one.fetcher.release_excess(5)
        assert table.statuses == [1, 1, 1, 0, 0]
        assert [lane.row.msg_id for lane in one.lanes.ready] == ids[:3]
        work_off(one)
    assert calls.of == [ids[:3], *([one] for one in ids[:3])]
    assert table.rows("status", "error_try_times") == [(-1, 1), (2, 0), (2, 0), (0, 0), (0, 0)]


def test_a_message_with_a_try_behind_it_shares_no_batch_nor_does_its_lane(
    app: App, calls: Calls
) -> None:
    calls.add(transactional=True, batch=500)
    ids = send(app, "a", "a", "a", "b", "b", "c")
    edit(app, ids[0], status=-1, error_try_times=1)
    edit(app, ids[5], crash_times=1)
    assert drain(app).done == 6
    assert sorted(calls.of) == [[ids[0]], [ids[1]], [ids[2]], ids[3:5], [ids[5]]]


def test_where_a_message_has_one_try_only_nothing_shares_a_batch(make_app: Any) -> None:
    app = created(make_app(table=MessageTable("once", max_tries=1)))
    calls = Calls(app)
    calls.add(transactional=True, batch=500)
    calls.add("u", transactional=True, batch=500)
    ids = send(app, "a", "a", "b")
    assert drain(app).done == 3
    assert sorted(calls.of) == [[i] for i in ids]


@pytest.mark.parametrize("change", ["discarded", "tried", "later"])
def test_a_follower_that_is_no_longer_free_rolls_everything_back(
    app: App, calls: Calls, table: Table, change: str
) -> None:
    calls.add(transactional=True, batch=500)
    ids = send(app, "a", "a", "a", "b", "b")
    with claimed(app) as (one, lanes):
        batch = one.batches.gathering.gather(one.lanes.next())
        assert batch is not None
        assert len(batch) == 5
        if change == "discarded":
            app.ops.discard(ids=[ids[1]], reason="wrong", actor="anna")
        elif change == "tried":
            edit(app, ids[1], error_try_times=1)
        else:
            edit(app, ids[1], available_at=datetime(2099, 1, 1, tzinfo=UTC))
        assert one.batches.handle(batch) == []
        assert calls.effects == []
        assert set(table.column("status")) <= {0, 1, -1}
        assert [lane.alone for lane in lanes] == [True, True]
        work_off(one)
    assert calls.of[0] == ids
    assert all(len(call) == 1 for call in calls.of[1:])
    gone = [] if change != "discarded" else [ids[1]]
    assert set(calls.effects) >= {ids[0], ids[3], ids[4]}
    assert not set(calls.effects) & set(gone)


def test_a_lane_whose_head_is_gone_is_lost_and_the_others_run_alone(
    app: App, calls: Calls, table: Table
) -> None:
    calls.add(transactional=True, batch=500)
    ids = send(app, "a", "a", "b", "b")
    lost: list[Any] = []
    app.on(Lost, lost.append)
    with claimed(app) as (one, _):
        batch = one.batches.gathering.gather(one.lanes.next())
        edit(app, ids[0], claimed_by="other")
        ended = one.batches.handle(batch)
        assert [lane.row.msg_id for lane in ended] == [ids[0]]
        assert calls.effects == []
        for lane in ended:
            one.settler.add(lane, True)
        work_off(one)
    assert [event.message.msg_id for event in lost] == [ids[0]]
    assert table.rows("status", "claimed_by") == [(1, "other"), (0, None), (2, None), (2, None)]
    assert calls.effects == ids[2:]


def test_the_lane_ends_where_the_next_message_is_no_longer_free(
    app: App, calls: Calls, table: Table
) -> None:
    calls.add(transactional=True, batch=2)
    ids = send(app, "a", "a", "a", "a")
    with claimed(app) as (one, _):
        batch = one.batches.gathering.gather(one.lanes.next())
        app.ops.discard(ids=[ids[2]], reason="wrong", actor="anna")
        (lane,) = one.batches.handle(batch)
        assert lane.settled is Became.ENDED
        one.settler.add(lane, True)
    assert table.column("status") == [2, 2, -1, 0]
    assert calls.effects == ids[:2]


def test_a_message_of_another_handler_or_one_that_cannot_be_read_ends_the_run_of_a_batch(
    app: App, calls: Calls, table: Table
) -> None:
    calls.add(transactional=True, batch=500)
    calls.add("u", transactional=True, batch=500)
    ids = [send(app, "a", topic=topic)[0] for topic in "ttutttt"]
    edit(app, ids[4], payload="{")
    assert drain(app).done == 6
    assert calls.of == [ids[:2], ids[2:3], ids[3:4], ids[5:]]
    assert table.column("status") == [2, 2, 2, 2, -1, 2, 2]


def test_payloads_are_read_by_the_annotation_of_the_list(app: App) -> None:
    got: list[Any] = []

    @app.handler("t", transactional=True, batch=10)
    def handle(messages: list[Message[dict[str, int]]]) -> None:
        got.extend(message.payload for message in messages)

    send(app, "a", payload={"n": 1})
    send(app, "b", payload={"n": "x"})
    report = drain(app)
    assert (report.done, report.failed) == (1, 1)
    assert got == [{"n": 1}]


def test_events_and_counts_name_every_message_of_a_batch(app: App, calls: Calls) -> None:
    calls.add(transactional=True, batch=500)
    started: list[int] = []
    settled: list[int] = []
    app.on(Started, lambda event: started.append(event.message.msg_id))
    app.on(Settled, lambda event: settled.extend(row.msg_id for row in event.done))
    ids = send(app, "a", "a", "b", "b", None)
    assert drain(app).done == 5
    assert sorted(started) == ids
    assert sorted(settled) == ids


def test_threads_share_the_batches_of_many_objects(app: App, calls: Calls, table: Table) -> None:
    calls.add(transactional=True, batch=50)
    ids = send(app, *[f"o{i % 40}" for i in range(400)])
    report = app.drain(threads=3, linger=0)
    assert report.done == 400
    assert calls.effects == ids
    assert len(calls.of) < 200
    last: dict[int, int] = {}
    for call in calls.of:
        for msg_id in call:
            assert last.get(msg_id % 40, -1) < msg_id
            last[msg_id % 40] = msg_id


def test_a_handler_over_its_time_rolls_the_batch_back(app: App, calls: Calls, table: Table) -> None:
    begun = threading.Event()

    @app.handler("t", transactional=True, batch=10, timeout=0.5)
    def handle(messages: list[Message], ctx: BatchContext) -> None:
        calls.of.append([message.msg_id for message in messages])
        if len(messages) > 1:
            begun.wait(0.6)

    ids = send(app, "a", "a", "b")
    assert drain(app).done == 3
    assert calls.of == [ids, *[[i] for i in (ids[0], ids[2], ids[1])]]
    assert table.column("error_try_times") == [0, 0, 0]


@pytest.mark.parametrize("committed", [True, False], ids=["committed", "not committed"])
@pytest.mark.parametrize("most", [3, 500], ids=["goes on", "ends"])
def test_all_of_a_batch_was_committed_or_nothing_where_the_answer_is_lost(
    app: App,
    calls: Calls,
    table: Table,
    monkeypatch: pytest.MonkeyPatch,
    committed: bool,
    most: int,
) -> None:
    calls.add(transactional=True, batch=most)
    ids = send(app, "a", "a", "a", "a", "b", "b")
    real = Connections.transaction
    lost = sa.exc.OperationalError("COMMIT", {}, Exception("gone"), connection_invalidated=True)
    answers = [lost]

    @contextmanager
    def losing(link: Connections) -> Iterator[sa.Connection]:
        handled = len(calls.of)
        with real(link) as conn:
            yield conn
            if len(calls.of) > handled and answers and not committed:
                raise answers.pop()
        if len(calls.of) > handled and answers:
            raise answers.pop()

    monkeypatch.setattr(Connections, "transaction", losing)
    assert drain(app).done == 6
    assert answers == []
    assert calls.effects == ids
    assert set(table.rows("status", "error_try_times", "claimed_by")) == {(2, 0, None)}
    started = [msg_id for call in calls.of for msg_id in call]
    again = sorted(msg_id for msg_id in ids if started.count(msg_id) > 1)
    assert again == ([] if committed else sorted(calls.of[0]))


@pytest.mark.parametrize("also", [False, True], ids=["database", "handler"])
def test_a_rollback_by_the_database_runs_the_batch_again_and_counts_no_try(
    app: App, calls: Calls, table: Table, also: bool
) -> None:
    """also: the handler rolls back after it."""
    rolled_back = sa.exc.OperationalError("INSERT", {}, DEADLOCKS[app.engine.dialect.name])

    @app.handler("t", transactional=True, batch=10)
    def handle(messages: list[Message], ctx: BatchContext) -> None:
        rows = [{"msg_id": message.msg_id} for message in messages]
        ctx.connection.execute(EFFECTS.insert(), rows)
        calls.of.append([message.msg_id for message in messages])
        if len(calls.of) < 3:
            if also:
                ctx.connection.rollback()
            raise rolled_back

    ids = send(app, "a", "a", "b")
    assert drain(app).done == 3
    assert calls.of == [ids] * 3
    assert calls.effects == ids
    assert set(table.column("error_try_times")) == {0}


@pytest.mark.parametrize(("batch", "claims"), [(None, 1), (60, 4)])
def test_heads_for_batches_are_claimed_a_batch_at_a_time(
    app: App, calls: Calls, batch: int | None, claims: int
) -> None:
    """So that threads run one beside the claim of the next ones."""
    if batch is None:
        app.add_handler("t", lambda msg: None)
    else:
        calls.add(transactional=True, batch=batch)
    ids = send(app, *[f"o{i}" for i in range(244)])
    with claimed(app) as (one, lanes):
        assert len(lanes) == 4
        for _ in range(4):
            one.fetcher.lane_limit.claimed(idled=True, full=True)
        before = one.tally.claims
        assert fetch(one) == 240
        assert one.tally.claims - before == claims
        assert sorted(lane.row.msg_id for lane in one.lanes.ready) == ids
