"""Pause."""

from __future__ import annotations

import threading

import pytest

from msgworker import App, ConfigError, Message
from tests.support.ops import DONE, NEW
from tests.support.rows import Table, send
from tests.support.waiting import until
from tests.support.watching import Watch


def test_a_paused_topic_waits_and_keeps_its_objects_waiting(app, table):
    watch = Watch()
    app.add_handler(None, watch)
    send(app, "a", topic="x")
    send(app, "a", "b", topic="y")
    assert app.ops.pause("x", reason="bank is closed", actor="alice") == 1
    assert app.ops.pause("x") == 0
    assert [(p.topic, p.actor, p.reason) for p in app.ops.pauses()] == [
        ("x", "alice", "bank is closed")
    ]
    report = app.drain(linger=0)
    assert (report.done, report.left) == (1, 2)
    assert table.statuses == [0, 0, 2]
    assert app.ops.resume("x") == 1
    assert app.ops.resume("x") == 0
    assert app.drain(linger=0).done == 2
    assert watch.of("a") == sorted(watch.of("a"))
    kinds = [entry.kind for entry in app.ops.audit()]
    assert kinds == ["resume", "pause"]


def test_a_pause_in_the_middle_of_a_run_keeps_order(app, table):
    watch = Watch()
    app.add_handler(None, watch)
    ids = send(app, "a", topic="y") + send(app, "a", topic="x") + send(app, "a", topic="y")
    app.ops.pause("x")
    report = app.drain(linger=0)
    assert (report.done, report.left) == (1, 2)
    assert watch.ids == ids[:1]


def test_instances_honour_a_pause_within_a_heartbeat(make_app):
    app = make_app(lease_seconds=9)
    app.create_schema()
    table, watch = Table(app), Watch()
    hold = threading.Event()

    @app.handler("t")
    def handle(msg: Message) -> None:
        watch.saw(msg.object_id, msg.msg_id, lambda: hold.wait(60))

    send(app, *range(30))
    with app.worker(threads=1) as worker:
        worker.start()
        until(lambda: watch.now, "one runs")
        app.ops.pause("t")
        until(lambda: worker.paused == {"t"}, "heard of it")
        hold.set()
        until(lambda: table.statuses.count(DONE) == 1, "what ran is done")
        until(lambda: table.statuses.count(NEW) == 29, "the others are given back")
        assert len(watch.spans) == 1
        assert set(table.column("error_try_times")) == {0}
        app.ops.resume("t")
        until(lambda: table.statuses.count(DONE) == 30, "they go on")


@pytest.mark.parametrize("topic", ["", None, 7, "x" * 101], ids=str)
def test_pause_refuses_what_is_no_topic(sqlite, topic):
    app = App(sqlite.url)
    app.create_schema()
    with pytest.raises(ConfigError):
        app.ops.pause(topic)
    with pytest.raises(ConfigError):
        app.ops.resume(topic)
