"""Pause."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from typing import Any

import pytest
import sqlalchemy as sa

from msgworker import App, ConfigError, Message, MessageTable, SchemaError
from msgworker.app import setup_of
from msgworker.coordination import Instance
from msgworker.db.database import Trouble
from msgworker.db.errors import trouble
from msgworker.instance.claiming import capacity
from msgworker.instance.instance import Instance as InstanceOf
from msgworker.instance.liveness import requests
from msgworker.instance.state import Controls
from msgworker.queries.explain import Reason
from msgworker.store import controls
from tests.support.apps import created
from tests.support.leases import beat_now
from tests.support.ops import DONE, NEW
from tests.support.rounds import by_hand, fetch
from tests.support.rows import Table, edit, send
from tests.support.waiting import launched, until
from tests.support.watching import Watch

LONG_AGO = datetime(2026, 1, 1, tzinfo=UTC)


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


def test_instances_honour_a_pause_within_a_heartbeat(app_with):
    app = app_with(lease_seconds=9)
    table, watch = Table(app), Watch()
    hold = threading.Event()

    @app.handler("t")
    def handle(msg: Message) -> None:
        watch.saw(msg.object_id, msg.msg_id, lambda: hold.wait(60))

    send(app, *range(30))
    with launched(app.worker(threads=1)) as worker:
        until(lambda: watch.now, "one runs")
        app.ops.pause("t")
        until(lambda: beat_now(worker) or worker.paused == {"t"}, "heard of it")
        hold.set()
        until(lambda: table.statuses.count(DONE) == 1, "what ran is done")
        until(lambda: table.statuses.count(NEW) == 29, "the others are given back")
        assert len(watch.spans) == 1
        assert set(table.column("error_try_times")) == {0}
        app.ops.resume("t")
        until(lambda: beat_now(worker) or not worker.paused, "heard of that, too")
        until(lambda: table.statuses.count(DONE) == 30, "they go on")


def test_what_is_paused_meanwhile_does_not_follow_another_in_the_loop(app):
    async def handle(msg: Message) -> None:
        pass

    app.add_handler("t", handle)
    send(app, "a")
    with by_hand(app) as one:
        fetch(one)
        one.shared.controls = Controls(frozenset({"t"}))
        assert one.handlers.next_for_loop() is None
        (lane,) = one.lanes.ready
        one.shared.controls = Controls()
        assert one.handlers.next_for_loop() is lane


def test_pause_refuses_what_is_no_topic(sqlite, subtests):
    app = created(App(sqlite.url))
    for topic in ("", None, 7, "x" * 101):
        with subtests.test(topic=topic):
            with pytest.raises(ConfigError):
                app.ops.pause(topic)
            with pytest.raises(ConfigError):
                app.ops.resume(topic)


# ---------------------------------------------------------------- the pause of a job


def job_of(
    app: App, *objects: Any, topic: str = "t", over: str | None = "over", **options: Any
) -> tuple[int, list[int]]:
    """A sealed job with a message for each object; its id and theirs."""
    with app.engine.begin() as conn, app.job("month end", conn=conn, on_complete=over) as job:
        ids = [app.send(conn, topic, {}, object_id=o, job=job, **options) for o in objects]
    return job.job_id, ids


def test_a_paused_job_waits_and_keeps_its_objects_waiting(app, table):
    watch = Watch()
    app.add_handler(None, watch)
    (before,) = send(app, "a")
    job, (one, other) = job_of(app, "a", None)
    behind, free = send(app, "a", "b")
    assert app.ops.pause_job(job, dry_run=True) == 1
    assert app.ops.pause_job(job, reason="the bank is closed", actor="alice") == 1
    assert app.ops.pause_job(job) == 0
    assert [(p.job_id, p.name, p.told) for p in app.ops.paused_jobs()] == [
        (job, "month end", "paused by alice: the bank is closed")
    ]
    shown = app.ops.job(job)
    who = (shown.state, shown.paused_by, shown.paused_reason)
    assert who == ("paused", "alice", "the bank is closed")
    report = app.drain(linger=0)
    assert (report.done, report.left, report.left_by) == (2, 3, {"paused": 3})
    assert report.exit_code == 0
    assert set(watch.ids) == {before, free}
    assert app.ops.resume_job(job) == 1
    assert app.ops.resume_job(job) == 0
    assert app.ops.job(job).paused_reason is None
    assert app.drain(linger=0).done == 4
    assert watch.of("a") == [before, one, behind]
    assert set(watch.ids) >= {other}
    assert set(table.statuses) == {DONE}
    assert [(e.kind, e.about) for e in app.ops.audit()] == [
        ("resume-job", str(job)),
        ("pause-job", str(job)),
    ]


def test_why_a_message_of_a_paused_job_waits(app):
    app.add_handler("t", lambda msg: None)
    job, (one, _) = job_of(app, "a", "b")
    (behind,) = send(app, "a")
    app.ops.pause_job(job, actor="alice", reason="audit")
    found = app.ops.explain(one)
    assert (found.reason, found.text) == (Reason.JOB_PAUSED, f"job {job} is paused by alice: audit")
    assert app.ops.explain(behind).behind.reason is Reason.JOB_PAUSED
    with app.engine.begin() as conn:
        conn.execute(sa.text("UPDATE msgworker_job SET paused_by = NULL, paused_reason = NULL"))
    assert app.ops.explain(one).text == f"job {job} is paused by plain SQL"
    assert [p.job_id for p in app.ops.overview().paused_jobs] == [job]


def test_a_paused_job_that_has_nothing_left_completes(app):
    app.add_handler(None, lambda msg: None)
    job, (one,) = job_of(app, "a")
    app.ops.pause_job(job)
    app.ops.cancel(one, reason="not this one")
    assert app.drain(linger=0).done == 1  # its message
    assert app.ops.job(job).state == "completed"
    assert app.ops.paused_jobs() == []
    with pytest.raises(ConfigError, match="has completed; pause the topics"):
        app.ops.pause_job(job)
    with pytest.raises(ConfigError, match="no job 99"):
        app.ops.pause_job(99)
    with pytest.raises(ConfigError, match="no job 99"):
        app.ops.resume_job(99)


def test_retries_delays_and_priorities_of_a_paused_job_wait_too(make_app):
    app = created(make_app(table=MessageTable(priority="priority")))
    watch = Watch()
    app.add_handler(None, watch)
    job, ids = job_of(app, "a", "b", None, priority=9)
    edit(app, ids[0], status=-1, error_try_times=1)
    edit(app, ids[1], available_at=LONG_AGO)
    (late,) = send(app, "c")
    app.ops.pause_job(job)
    assert app.drain(linger=5).left_by == {"paused": 3}
    assert watch.ids == [late]
    app.ops.resume_job(job)
    assert app.drain(linger=0).done == 4


def test_a_limited_topic_of_a_paused_job_waits_and_holds_no_permit(app):
    watch = Watch()
    app.add_handler("t", watch, max_running=1)
    job, _ = job_of(app, *range(5))
    (free,) = send(app, "z")
    app.ops.pause_job(job)
    assert app.drain(linger=0).left_by == {"paused": 5}
    assert watch.ids == [free]


def test_a_slice_leaves_out_what_is_of_a_paused_job(app):
    watch = Watch()
    app.add_handler(None, watch)
    job, ids = job_of(app, "a", None)
    (behind, free) = send(app, "a", "b")
    app.ops.pause_job(job)
    edit_all = Table(app).edit
    edit_all(instance_type="asA")
    report = app.drain(linger=0, scope=Instance("asA"))
    assert (report.left_by, watch.ids) == ({"paused": 3}, [free])
    app.ops.resume_job(job)
    assert app.drain(linger=0, scope=Instance("asA")).done == 3
    assert watch.of("a") == [ids[0], behind]


def test_a_table_without_topics_has_paused_jobs(make_app):
    app = created(make_app(table=MessageTable("msg_plain", topic=None, job_id="job_id")))
    watch = Watch()
    app.add_handler(None, watch)
    job, _ = job_of(app, "a", None, topic="default", over=None)
    (free,) = send(app, "b", topic="default")
    app.ops.pause_job(job)
    assert app.drain(linger=0.1).left_by == {"paused": 2}
    assert watch.ids == [free]


def test_what_waits_behind_a_long_paused_job_is_found_soon(app_with, monkeypatch):
    monkeypatch.setattr(capacity, "FIRST_IDLE_SECONDS", 600.0)
    app = app_with(poll_seconds=600.0)
    ran: list[int] = []
    app.add_handler("t", lambda msg: ran.append(msg.msg_id))
    with app.engine.begin() as conn, app.job("all", conn=conn) as job:
        app.send_many(conn, "t", [(None, f"a{i:05}") for i in range(6000)], job=job)
    (wanted,) = send(app, "z")
    app.ops.pause_job(job.job_id)
    with launched(app.worker(threads=1)):
        until(lambda: ran == [wanted], "found")


def test_instances_honour_the_pause_of_a_job_within_a_heartbeat(app_with):
    """What is in flight, its run included, is given back, and goes on in order."""
    app = app_with(lease_seconds=9)
    table, watch = Table(app), Watch()
    hold = threading.Event()

    @app.handler("t")
    def handle(msg: Message) -> None:
        watch.saw(msg.object_id, msg.msg_id, lambda: hold.wait(60))

    app.add_handler("over", lambda msg: None)
    job, ids = job_of(app, *["a"] * 10, *range(20))
    with launched(app.worker(threads=1)) as worker:
        until(lambda: watch.now, "one runs")
        app.ops.pause_job(job)
        controls = lambda: worker.instance.shared.controls  # noqa: E731
        until(lambda: beat_now(worker) or controls().paused_ids, "heard of it")
        assert worker.paused == frozenset()
        hold.set()
        until(lambda: table.statuses.count(DONE) == 1, "what ran is done")
        until(lambda: table.statuses.count(NEW) == 29, "the others are given back")
        assert len(watch.spans) == 1
        assert set(table.column("error_try_times")) == {0}
        app.ops.resume_job(job)
        until(
            lambda: beat_now(worker) or controls().paused_ids == frozenset(), "heard of that, too"
        )
        until(lambda: table.statuses.count(DONE) == 31, "they go on, and it completes")
    assert watch.of("a") == ids[:10]


def test_an_instance_that_may_not_see_jobs_works_on(app, monkeypatch, caplog):
    app.add_handler("t", lambda msg: None)
    job, _ = job_of(app, "a")
    app.ops.pause_job(job)
    monkeypatch.setattr(
        requests, "trouble", lambda e: Trouble.REFUSED if isinstance(e, KeyError) else trouble(e)
    )

    def refused(*_: Any) -> Any:
        raise KeyError("permission denied")

    monkeypatch.setattr(controls, "paused_job_ids", refused)
    instance = InstanceOf(setup_of(app))
    for _ in range(2):
        instance.housekeeper.requests.read()
    assert instance.shared.controls.paused == frozenset()
    assert caplog.text.count("which jobs are paused") == 1
    instance.housekeeper.close()


def test_who_has_paused_a_topic_is_said_whatever_else_stands_in_its_row(sqlite_app):
    (waits,) = send(sqlite_app, "a")
    sqlite_app.ops.pause("t", actor="anna")
    with sqlite_app.engine.begin() as conn:
        conn.exec_driver_sql("UPDATE msgworker_pause SET paused_at = 'garbage'")
    assert sqlite_app.ops.explain(waits).text == "topic t is paused by anna"


def test_a_table_that_is_missing_is_named_with_what_it_is_for(sqlite):
    app = created(App(sqlite.url))
    with app.engine.begin() as conn:
        conn.exec_driver_sql("DROP TABLE msgworker_pause")
    other = App(app.engine)
    with pytest.raises(SchemaError, match=r"msgworker_pause \(topics whose .*\) is missing. Run"):
        other.ops.pause("t")


@pytest.mark.parametrize(
    ("gone", "told"),
    [
        (["limit"], ["which topics are limited"]),
        (["cancel"], ["which topics are limited", "which messages are to be cancelled"]),
        (["limit", "cancel", "pause"], ["which topics are paused"]),
    ],
    ids=["limits", "cancels", "all"],
)
def test_an_instance_obeys_what_it_can_read_of_what_is_asked_for(
    app: App, caplog: Any, gone: list[str], told: list[str]
) -> None:
    app.add_handler("x", lambda msg: None)
    app.ops.pause("x")
    with by_hand(app) as one:
        with app.engine.begin() as conn:
            for table in gone:
                conn.exec_driver_sql(f"DROP TABLE msgworker_{table}")
        for _ in range(3):
            one.housekeeper.requests.read()
        assert one.shared.controls.paused == {"x"}
    seen = [line for line in caplog.messages if "cannot see" in line]
    assert [line.partition(": ")[0] for line in seen] == [f"cannot see {text}" for text in told]
