"""Order and exclusion per object, over threads and instances."""

from __future__ import annotations

import threading

import pytest
import sqlalchemy as sa
from tenacity.wait import wait_fixed, wait_none

from msgworker import Context, Message
from tests.support.rows import edit, send
from tests.support.waiting import launched, until
from tests.support.watching import Watch, breathe


@pytest.mark.core
def test_order_and_exclusion_over_threads(app, table):
    watch = Watch()
    app.add_handler("t", lambda msg: watch.saw(msg.object_id, msg.msg_id, breathe))
    ids = send(app, *[f"o{i % 9}" for i in range(90)])
    assert app.drain(threads=8, linger=0).done == 90
    watch.assert_exclusive()
    watch.assert_in_order(ids)


@pytest.mark.quick
@pytest.mark.core
def test_order_and_exclusion_over_two_workers_and_apps(app, make_app, table):
    watch = Watch()
    other = make_app()
    for one in (app, other):
        one.add_handler("t", lambda msg: watch.saw(msg.object_id, msg.msg_id, breathe))
    with app.worker(threads=3) as a, app.worker(threads=3) as b, other.worker(threads=3) as c:
        for worker in (a, b, c):
            worker.start()
        ids: list[int] = []
        for _ in range(10):
            ids += send(app, *[f"o{i % 9}" for i in range(12)])
        until(lambda: set(table.statuses) == {2}, "all done")
    watch.assert_exclusive()
    watch.assert_in_order(ids)


def test_objects_run_beside_each_other(app):
    both = threading.Barrier(2)
    app.add_handler("t", lambda msg: both.wait(60))
    send(app, "o", "p")
    assert app.drain(threads=2, linger=0).done == 2


def test_messages_without_an_object_have_no_order(app):
    both = threading.Barrier(3)
    app.add_handler("t", lambda msg: both.wait(60))
    send(app, None, None, None)
    assert app.drain(threads=3, linger=0).done == 3


@pytest.mark.quick
@pytest.mark.core
def test_failed_head_holds_back_its_successors(app, table):
    @app.handler("t", wait=wait_fixed(3600))
    def handle(msg: Message) -> None:
        if msg.payload == "bad":
            raise ValueError("bad")

    send(app, "o", "o", payload="good")
    send(app, "o", payload="bad")
    send(app, "o", "o", "p", payload="good")
    report = app.drain(linger=0)
    assert (report.done, report.retried, report.left) == (3, 1, 3)
    assert table.statuses == [2, 2, -1, 0, 0, 2]


@pytest.mark.parametrize("why", ["paused", "no handler", "limited"])
def test_what_may_not_run_here_holds_back_its_successors_of_any_topic(app, table, why):
    """It stands in the middle of a run that was read ahead."""
    ran: list[int] = []
    app.add_handler("t", lambda msg: ran.append(msg.msg_id))
    if why != "no handler":
        limit = {"max_running": 1} if why == "limited" else {}
        app.add_handler("u", lambda msg: ran.append(msg.msg_id), **limit)
    if why == "paused":
        app.ops.pause(topic="u")
    ids = send(app, "o", "o") + send(app, "o", topic="u") + send(app, "o", "o")
    app.drain(threads=1, linger=0)
    if why == "limited":
        assert ran == ids
    else:
        assert ran == ids[:2]
        assert table.statuses == [2, 2, 0, 0, 0]


def test_a_failing_object_does_not_hold_up_others(app, table):
    @app.handler("t", wait=wait_fixed(3600))
    def handle(msg: Message) -> None:
        if str(msg.object_id).startswith("bad"):
            raise ValueError("bad")

    send(app, *[f"bad{i % 30}" for i in range(300)])
    ids = send(app, *range(30))
    report = app.drain(threads=4, linger=0)
    assert (report.done, report.retried) == (30, 30)
    t = app.tables
    with app.engine.connect() as conn:
        done = conn.scalars(sa.select(t.message.c.msg_id).where(t.message.c.status == 2))
        assert sorted(done) == ids


@pytest.mark.quick
def test_order_holds_over_failures_and_workers(app, make_app, table):
    watch = Watch()
    other = make_app()

    def handle(msg: Message, ctx: Context) -> None:
        watch.saw(msg.object_id, msg.msg_id, breathe)
        if msg.msg_id % 5 == 0 and ctx.attempt < 3:
            raise ValueError("again")

    for one in (app, other):
        one.add_handler("t", handle, wait=wait_none())
    send(app, *[f"o{i % 6}" for i in range(60)])
    with launched(app.worker(threads=3)), launched(other.worker(threads=3)):
        until(lambda: set(table.statuses) == {2}, "all done")
    watch.assert_exclusive()
    for object_id in {span[0] for span in watch.spans}:
        assert watch.of(object_id) == sorted(watch.of(object_id))


@pytest.mark.core
def test_a_message_that_is_moved_to_another_object_runs_once(app, table):
    """By a program, while it waits behind a running one with which it was read."""
    starts: list[int] = []
    ids = send(app, *"aaa")

    @app.handler("t")
    def handle(msg: Message) -> None:
        starts.append(msg.msg_id)
        if msg.msg_id == ids[0]:
            edit(app, ids[2], object_id="b")
            until(lambda: ids[2] in starts, "the moved one has started")
        elif msg.msg_id == ids[2]:
            until(lambda: table.statuses[:2] == [2, 2], "those before it are done")

    report = app.drain(threads=3, linger=0.2, time_limit=60)
    assert (report.done, report.left) == (3, 0)
    assert starts == [ids[0], ids[2], ids[1]]
