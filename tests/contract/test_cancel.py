"""Cancel: messages that wait."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from msgworker import App, ConfigError, MessageTable, Reject
from msgworker.message import State
from msgworker.ops.results import Why
from msgworker.table.build import CANCEL
from tests.support.apps import created
from tests.support.ops import DONE, FAILED, NEW, RUNNING, Cut, cut_after, put, requested
from tests.support.rows import Table, send


def test_cancel_ends_what_waits_and_requests_the_end_of_what_runs(app, table):
    ids = put(app, ("a", NEW), ("b", RUNNING), ("c", DONE), ("d", FAILED))
    ids += put(app, ("e", FAILED), tries=1)
    ids += put(app, ("f", RUNNING), claimed_by=None)
    done = app.ops.cancel([*ids, 99], reason="wrong file", actor="anna")
    assert (done, done.requested, done.skipped) == (3, 1, 4)
    assert {s.msg_id: s.why for s in done.skips} == {
        ids[2]: Why.TOO_LATE,
        ids[3]: Why.TOO_LATE,
        ids[5]: Why.FOREIGN,
        99: Why.NOT_THERE,
    }
    assert table.statuses == [-1, 1, 2, -1, -1, 1]
    assert table.column("last_error")[0] == "cancelled: wrong file (by anna)"
    assert table.column("finished_at")[0] is not None
    assert requested(app) == [ids[1]]
    again = app.ops.cancel(ids[:2], reason="x")
    assert (again, [s.why for s in again.skips]) == (0, [Why.TOO_LATE, Why.REQUESTED])
    told = app.ops.audit(msg_id=ids[1])[0]
    assert (told.kind, told.actor, told.reason) == ("cancel", "anna", "wrong file")
    assert told.was_status is State.PROCESSING


def test_cancel_lets_an_object_go_on_where_dead_ones_block(blocking_app):
    app, table = blocking_app, Table(blocking_app)
    app.add_handler("t", lambda msg: Reject("no") if msg.payload == "bad" else None)
    (first,) = send(app, "o", payload="bad")
    send(app, "o", payload="good")
    assert app.ops.cancel([first], reason="no use") == 1
    assert app.drain(linger=0).done == 1
    assert table.rows("status", "error_try_times") == [(-1, 4), (2, 0)]
    assert app.ops.rerun() == 0  # all dead ones, but not those that were given up
    assert app.ops.discard(topic="t", reason="x") == 0
    assert app.ops.rerun([first], force=True) == 1


def test_cancel_by_filter_takes_what_has_not_ended(app, table):
    put(app, ("a", NEW), ("b", DONE), ("c", RUNNING), ("d", FAILED))
    put(app, ("e", FAILED), tries=1)
    would = app.ops.cancel(topic="t", dry_run=True)
    assert (would, would.requested) == (3, 1)
    done = app.ops.cancel(topic="t", reason="r")
    assert (done, done.requested) == (3, 1)
    assert table.statuses == [-1, 2, 1, -1, -1]


def test_a_rerun_after_a_cancel_takes_the_request_away(app, table):
    (one,) = put(app, ("a", RUNNING))
    assert app.ops.cancel([one], reason="r").requested == 1
    table.edit(status=-1, error_try_times=3, claimed_by=None)
    assert app.ops.rerun([one]) == 1
    assert requested(app) == []


def test_a_request_from_before_a_rerun_by_plain_sql_stands_in_no_new_one_s_way(app, table):
    (msg_id,) = send(app, "a")
    table.edit(status=1, claimed_by="x", error_try_times=1)
    assert app.ops.cancel(msg_id, reason="wrong file").requested == 1
    assert app.ops.cancel(msg_id, reason="twice") == 0
    table.edit(error_try_times=0)
    assert app.ops.cancel(msg_id, reason="again").requested == 1


def test_the_end_of_a_message_leaves_requests_of_another_table_alone(app, make_app):
    other = created(make_app(table=MessageTable("tb_other")))
    for one in (app, other):
        assert put(one, ("a", RUNNING)) == [1]
        assert one.ops.cancel([1], reason="r").requested == 1
    Table(app).edit(status=-1, error_try_times=3, claimed_by=None)
    assert app.ops.rerun([1]) == 1
    with app.engine.connect() as conn:
        left = conn.scalars(sa.select(CANCEL.of(app.tables).c.table_name)).all()
    assert left == [other.tables.label]


def test_without_its_table_only_waiting_messages_are_cancelled(app, make_app, table):
    ids = put(app, ("a", NEW), ("b", RUNNING))
    with app.engine.begin() as conn:
        conn.exec_driver_sql("DROP TABLE msgworker_cancel")
    other = make_app()
    done = other.ops.cancel(ids, reason="r")
    assert (done, done.requested, done.skips[0].why) == (1, 0, Why.NO_REQUESTS)
    assert "init-db" in str(done.skips[0])
    assert table.statuses == [-1, 1]
    assert other.ops.rerun([ids[0]]) == 1
    (found,) = [one for one in other.ops.doctor() if CANCEL.name in one.text]
    assert "cannot be cancelled" in found.text
    assert app.create_schema() == [CANCEL.name]
    assert other.ops.cancel(ids, reason="r").requested == 1


def test_a_rerun_sees_the_table_of_requests_that_was_created_since(app, make_app, table):
    (one,) = put(app, ("a", RUNNING))
    with app.engine.begin() as conn:
        conn.exec_driver_sql("DROP TABLE msgworker_cancel")
    before = make_app().ops
    assert before.show(one)
    app.create_schema()
    assert app.ops.cancel([one], reason="r").requested == 1
    table.edit(status=-1, error_try_times=3, claimed_by=None)
    assert before.rerun([one]) == 1
    assert requested(app) == []


def test_an_interrupted_cancel_goes_on_where_it_stopped(app):
    ids = put(app, *[(f"o{i}", NEW) for i in range(250)], ("r", RUNNING))
    with pytest.raises(Cut):
        app.ops.cancel(ids, reason="r", progress=cut_after(1))
    op = app.ops.audit()[0]
    done = app.ops.cancel(operation=op.op_id)
    assert (done.changed, done.requested, done.op_id) == (251, 1, op.op_id)


def test_cancel_refuses(sqlite, subtests):
    app = created(App(sqlite.url))
    put(app, ("a", NEW))
    for given in (
        {"ids": [1]},
        {"ids": [1], "reason": " "},
        {"reason": "all"},
        {"status": "done", "reason": "r"},
        {"status": "dead", "reason": "r"},
        {"ids": [1], "topic": "t", "reason": "r"},
    ):
        with subtests.test(given=given):
            with pytest.raises(ConfigError):
                app.ops.cancel(**given)
            assert Table(app).statuses == [0]


def test_a_cancelled_follower_is_not_started_by_the_lane_that_read_it(app, table):
    started: list[int] = []

    def handler(msg):
        started.append(msg.msg_id)
        if len(started) == 1:
            assert app.ops.cancel([msg.msg_id + 1], reason="r") == 1

    app.add_handler("t", handler)
    first, _, third = send(app, "o", "o", "o")
    assert app.drain(linger=0, threads=1).done == 2
    assert started == [first, third]
    assert table.statuses == [2, -1, 2]
    assert sa.inspect(app.engine).has_table(CANCEL.name)
