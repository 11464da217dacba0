"""What a drain leaves, why, and the exit code for it."""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from tenacity.wait import wait_fixed

from msgworker import (
    App,
    ConfigError,
    Context,
    Message,
    MessageTable,
    Report,
    RetryLater,
    SchemaError,
)
from msgworker.coordination import Instance, OneJob
from msgworker.instance import worker as worker_module
from msgworker.instance.claiming.claimer import Claimer
from msgworker.instance.claiming.loop import DrainEnd
from msgworker.message import State
from msgworker.queries.explain import Asked, Waits
from msgworker.queries.remaining import left
from msgworker.store import lease
from msgworker.testing import Database, drain
from tests.support.apps import created
from tests.support.databases import SQLITE
from tests.support.leases import registered
from tests.support.rows import Table, edit, leave_rows_at_1, send
from tests.support.waiting import in_thread, until
from tests.support.watching import Watch

ALL = Asked(topics=None)
FAR = datetime.now(UTC) + timedelta(days=1)


def count(app: App, asked: Asked = ALL, **options: Any) -> dict[str, int]:
    with app.engine.connect() as conn:
        return {str(w): n for w, n in left(conn, app.tables, asked, **options).by.items()}


@pytest.fixture
def waiting(app: App) -> App:
    """An App whose handler fails, and whose failed messages wait for an hour."""

    @app.handler("t", wait=wait_fixed(3600))
    def handle(msg: Message) -> Any:
        if msg.payload == "fails":
            raise ValueError("no")
        return RetryLater(after=7200) if msg.payload == "later" else None

    return app


def test_a_drain_that_leaves_what_nobody_does_says_so(app, caplog):
    app.add_handler("t", lambda msg: None)
    held = leave_rows_at_1(app)
    send(app, "free")
    with caplog.at_level(logging.WARNING, "msgworker"):
        report = app.drain(linger=0)
    assert (report.done, report.left, report.left_by) == (1, 180, {"nobody": 180})
    assert (report.exit_code, report.waiting, report.stopped) == (1, 0, False)
    assert " left=180 (held by nobody: 180) in " in str(report)
    (line,) = [r.getMessage() for r in caplog.records if "180 messages left" in r.getMessage()]
    assert f"`msgworker explain pkg.module:app {held[0]}`" in line
    assert "`msgworker release pkg.module:app --nobody --older-than 1h`" in line


@pytest.mark.parametrize("lives", [False, True])
def test_on_a_table_without_owners_a_row_at_1_is_nobody_s_where_no_instance_lives(
    database, make_app, lives
):
    names = {"msg_id": "msgID", "object_id": "objectID", "error_try_times": "errorTryTimes"}
    with database.engine().begin() as conn:
        conn.exec_driver_sql(
            "CREATE TABLE tb_cus (msgID INTEGER PRIMARY KEY, objectID VARCHAR(20), "
            "status INTEGER DEFAULT 0 NOT NULL, errorTryTimes INTEGER DEFAULT 0 NOT NULL)"
        )
        for msg_id, object_id, status in ((1, "a", 1), (2, "a", 0), (3, "b", 0), (4, None, 1)):
            name = "NULL" if object_id is None else f"'{object_id}'"
            conn.exec_driver_sql(
                f"INSERT INTO tb_cus (msgID, objectID, status) VALUES ({msg_id}, {name}, {status})"
            )
    app = created(make_app(table=MessageTable("tb_cus", **names)))
    app.add_handler(None, lambda msg: None)
    if lives:
        registered(app, "another")
    report = app.drain(linger=0)
    reason = "elsewhere" if lives else "nobody"
    assert (report.done, report.left, report.left_by) == (1, 3, {reason: 3})
    assert report.exit_code == (0 if lives else 1)


def test_what_waits_for_its_retry_is_counted_apart_and_ends_a_drain_with_6(waiting, caplog):
    send(waiting, "o", payload="fails")
    send(waiting, "o", "o")
    with caplog.at_level(logging.WARNING, "msgworker"):
        report = waiting.drain(linger=0)
    assert (report.retried, report.left, report.left_by) == (1, 3, {"retry": 3})
    assert (report.waiting, report.exit_code) == (3, 6)
    assert 3000 < report.next_seconds <= 3600
    text = "done=0 failed=0 retried=1 released=0 left=3 (waiting for a retry: 3, next in "
    assert str(report).startswith(text)
    assert any("3 messages left waiting for a retry" in r.getMessage() for r in caplog.records)


def test_what_is_due_later_may_be_left(waiting, caplog):
    send(waiting, "o", payload="later")
    send(waiting, None, delay=5000)
    with caplog.at_level(logging.WARNING, "msgworker"):
        report = waiting.drain(linger=0)
    assert (report.left_by, report.waiting, report.exit_code) == ({"later": 2}, 2, 0)
    assert 4000 < report.next_seconds <= 5000
    assert "left=2 (due later: 2, next in " in str(report)
    assert caplog.records == []


def test_a_young_message_is_due_later(make_app):
    app = created(make_app(table=MessageTable(visibility_delay_seconds=3600)))
    app.add_handler("t", lambda msg: None)
    send(app, "o", None)
    report = app.drain(linger=0)
    assert (report.left_by, report.next_seconds, report.exit_code) == ({"later": 2}, None, 0)


def test_what_another_live_instance_has_may_be_left(app):
    app.add_handler("t", lambda msg: None)
    first, _, loose = send(app, "o", "o", None)
    registered(app, "another")
    for msg_id in (first, loose):
        edit(app, msg_id, status=1, claimed_by="another")
    report = app.drain(linger=0)
    assert (report.left_by, report.exit_code) == ({"elsewhere": 3}, 0)
    registered(app, "third", ttl=3600.0)
    edit(app, loose, claimed_by="third")
    assert app.drain(linger=0).lease_seconds > 3000  # until the last of them is over


def test_what_the_dead_had_is_elsewhere_only_if_somebody_lives_to_give_it_back(app):
    (msg_id,) = send(app, "o")
    edit(app, msg_id, status=1, claimed_by="dead")
    assert count(app) == {"nobody": 1}
    registered(app, "me")
    assert count(app, Asked(topics=None, me=("me",))) == {"nobody": 1}
    assert count(app) == {"elsewhere": 1}


def test_a_running_message_holds_its_object_wherever_it_stands(app):
    first, second = send(app, "o", "o")
    edit(app, second, status=1)
    with app.engine.connect() as conn:
        found = left(conn, app.tables, ALL)
    assert found.by == {Waits.NOBODY: 2}
    assert found.examples[Waits.NOBODY].msg_id == second
    edit(app, second, status=0)
    assert count(app) == {"due": 2}
    assert first < second


def test_a_paused_topic_may_be_left(app):
    app.add_handler("t", lambda msg: None)
    send(app, "o", "o")
    app.ops.pause("t")
    report = app.drain(linger=0)
    assert (report.left_by, report.exit_code) == ({"paused": 2}, 0)


def test_a_topic_without_a_handler_is_left_untouched_and_ends_a_drain_with_1(app, table, caplog):
    app.add_handler("t", lambda msg: None)
    send(app, "o", topic="u")
    send(app, "o")  # held back by the one before it
    with caplog.at_level(logging.WARNING, "msgworker"):
        report = app.drain(linger=0)
    assert (report.left_by, report.exit_code) == ({"no handler": 2}, 1)
    assert table.rows("status", "error_try_times", "claimed_by") == [(0, 0, None)] * 2
    assert any("a handler for topic u; register one" in r.getMessage() for r in caplog.records)
    registered(app, "of others", topics=["v"])
    assert app.drain(linger=0).exit_code == 1
    registered(app, "of theirs", topics=["u"])
    assert app.drain(linger=0).left_by == {"elsewhere": 2}


def test_topics_that_were_not_asked_for_may_be_left(app, caplog):
    app.add_handler("t", lambda msg: None)
    app.add_handler("u", lambda msg: None)
    send(app, "o", topic="u")
    send(app, None, topic="of nobody")
    send(app, "p")
    report = app.drain(topics=["t"], linger=0)
    assert (report.done, report.left_by, report.exit_code) == (1, {"other topics": 2}, 0)
    assert "'u'" not in caplog.text  # that no handler here is for it


def test_what_a_dead_message_blocks_ends_a_drain_with_1(blocking_app, caplog):
    app = blocking_app
    app.add_handler("t", lambda msg: None)
    first, _ = send(app, "o", "o")
    edit(app, first, status=-1, error_try_times=3)
    with caplog.at_level(logging.WARNING, "msgworker"):
        report = app.drain(linger=0)
    assert (report.left_by, report.exit_code) == ({"dead": 2}, 1)
    assert f"`msgworker rerun pkg.module:app {first}`" in caplog.text


def test_a_drain_that_is_stopped_ends_with_1_if_work_is_left(app):
    begun: list[int] = []

    @app.handler("t")
    def handle(msg: Message, ctx: Context) -> None:
        begun.append(msg.msg_id)
        until(lambda: ctx.cancelled, "the drain is over")

    send(app, *["o"] * 3, "p")
    with app.worker(threads=1) as worker:
        join = in_thread(lambda: worker.drain(linger=0))
        until(lambda: begun, "a handler has begun")
        worker.stop()
        report = join()
    assert (report.done, report.left_by, report.stopped) == (1, {"due": 3}, True)
    assert report.exit_code == 1
    assert "left=3 (due: 3)" in str(report)


def test_the_retries_of_a_drain_that_is_stopped_end_it_with_6(waiting):
    send(waiting, "o", payload="fails")
    report = waiting.drain(linger=0, retry_linger=10_000, time_limit=1)
    assert (report.stopped, report.left_by, report.exit_code) == (True, {"retry": 1}, 6)


def test_what_comes_after_the_end_of_a_drain_does_not_make_it_fail():
    report = Report(done=1, left=3, left_by={"due": 3})
    assert report.exit_code == 0


def test_the_worst_reason_gives_the_exit_code(subtests):
    for values, code in (
        ({"left_by": {"retry": 1, "nobody": 1}}, 1),
        ({"left_by": {"retry": 1}, "failed": 1}, 1),
        ({"left_by": {"retry": 1, "later": 1, "paused": 1}}, 6),
        ({"left_by": {"nobody": 1}, "database_lost": True}, 3),
        ({"left_by": {"later": 1, "elsewhere": 1, "paused": 1, "other topics": 1}}, 0),
        ({"left_by": {"retry": 1, "due": 2}, "undone": 2}, 1),
        ({"left_by": {"other slices": 2}}, 0),
        ({"skipped": True}, 0),
    ):
        with subtests.test(values=values, code=code):
            assert Report(**values).exit_code == code


def test_reasons_come_in_a_fixed_order(app):
    for msg_id in send(app, None, None)[:1]:
        edit(app, msg_id, status=1)
    send(app, None, delay=100)
    (failed,) = send(app, None, delay=100)
    edit(app, failed, status=-1, error_try_times=1)
    found = count(app)
    assert list(found.items()) == [("retry", 1), ("later", 1), ("nobody", 1), ("due", 1)]


def test_the_report_is_plain_json(waiting):
    send(waiting, "o", payload="fails")
    found = json.loads(json.dumps(asdict(waiting.drain(linger=0))))
    assert (found["left"], found["waiting"], found["left_by"]) == (1, 1, {"retry": 1})
    assert found["next_seconds"] > 3000
    assert found["stopped"] is False


def test_the_part_of_very_many_that_was_looked_at_is_told(app):
    ids = send(app, *(f"o{i:02}" for i in range(10)), *[None] * 10)
    for msg_id in ids[:2]:
        edit(app, msg_id, status=1)
    with app.engine.connect() as conn:
        found = left(conn, app.tables, ALL, most=5)
    assert (found.total, found.by) == (20, {Waits.NOBODY: 2, Waits.DUE: 8})
    report = Report().leaving(found)
    assert "left=20 (at least held by nobody: 2; due: 8)" in str(report)


def test_what_is_left_costs_one_statement_where_nothing_is(app):
    sent: list[str] = []

    def note(conn: Any, cursor: Any, statement: str, *rest: Any) -> None:
        sent.append(statement)

    with app.engine.connect() as conn:
        app.tables  # noqa: B018
        sa.event.listen(conn, "before_cursor_execute", note)
        assert left(conn, app.tables, ALL).total == 0
    assert len(sent) == 1


def test_a_drain_of_a_test_says_what_is_left_too(msgworker_db: Database):
    app = msgworker_db.app()
    app.add_handler("t", lambda msg: 1 / 0, wait=wait_fixed(1000))
    send(app, "o")
    report = drain(app)
    assert (report.left_by, round(report.next_seconds)) == ({"retry": 1}, 1000)
    assert (report.exit_code, report.stopped) == (6, False)


def age_lease(app: App, name: str, *, silent: float, left: float) -> None:
    """The last heartbeat of `name` was so many seconds ago, and its lease ends in so many."""
    t, now = app.tables, datetime.now(UTC)
    times = {"renewed_at": now - timedelta(seconds=silent)}
    times["expires_at"] = now + timedelta(seconds=left)
    with app.engine.begin() as conn:
        conn.execute(sa.update(t.lease).where(t.lease.c.name == name).values(**times))


def held_by(app: App, name: str, **lease_of: Any) -> int:
    """A message whose handler runs on instance `name`."""
    app.add_handler("t", lambda msg: None)
    (msg_id,) = send(app, "o")
    registered(app, name, **lease_of)
    edit(app, msg_id, status=1, claimed_by=name)
    return int(msg_id)


def test_a_drain_tells_when_what_another_instance_has_would_be_recovered(app):
    held_by(app, "another")
    report = app.drain(linger=0)
    assert (report.left_by, report.exit_code) == ({"elsewhere": 1}, 0)
    assert 500 < report.lease_seconds <= 600
    assert re.search(r"held elsewhere: 1, recovered after \d+ s if that one is gone", str(report))


def test_what_an_instance_without_a_heartbeat_has_ends_a_drain_with_6(app, caplog):
    msg_id = held_by(app, "another")
    age_lease(app, "another", silent=400, left=200)
    report = app.drain(linger=0)
    assert (report.left_by, report.exit_code) == ({"silent": 1}, 6)
    assert 150 < report.lease_seconds <= 200
    assert "held by a silent instance: 1, recovered after " in str(report)
    (line,) = [r.getMessage() for r in caplog.records if "1 message left" in r.getMessage()]
    assert f"message {msg_id}: it is running on another, last heard of 6 min ago; its" in line
    assert "the message is recovered when its lease is over, in about 3 min" in line
    assert "run again then, or with --linger" in line


def test_a_drain_waits_for_a_lease_that_ends_within_its_linger(app):
    held_by(app, "another", ttl=1.0)
    report = app.drain(linger=60)
    assert (report.done, report.left) == (1, 0)


def test_a_drain_does_not_end_while_its_own_heartbeat_recovers(make_app, app, monkeypatch):
    """The lease is taken over between its two last looks: at the messages that become due, where
    the other still has this one, and at the leases that end, of which this is none any more."""
    quick = make_app(app.engine.url, lease_seconds=3.0)
    msg_id = held_by(quick, "another")
    looked = DrainEnd.read_due_in

    def recovered_meanwhile(self: DrainEnd, drain: Any) -> Any:
        due_in = looked(self, drain)
        if quick.ops.show(msg_id).status is State.PROCESSING:
            age_lease(quick, "another", silent=700, left=-100)
            until(lambda: quick.ops.show(msg_id).status is State.FAILED, "it is recovered")
        return due_in

    monkeypatch.setattr(DrainEnd, "read_due_in", recovered_meanwhile)
    report = quick.drain(linger=60)
    assert (report.done, report.left) == (1, 0)


def test_a_drain_whose_lease_was_lost_waits_for_its_own_handlers(app_with):
    """They run under the lost id: until they have ended, no message of their objects is claimed."""
    app = app_with(lease_seconds=3.0, backoff_seconds=0)
    starts: list[int] = []

    @app.handler("t")
    def handle(msg: Message, ctx: Context) -> None:
        starts.append(msg.msg_id)
        if len(starts) == 1:
            with app.engine.begin() as conn:
                conn.execute(
                    sa.delete(app.tables.lease).where(app.tables.lease.c.kind == "instance")
                )
            until(lambda: ctx.cancelled, "its lease is lost")
            time.sleep(1.0)  # longer than the drain waits for what is due

    send(app, "o")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker_module, "OVERDUE_SECONDS", 0.3)
        report = app.drain(linger=5)
    assert (report.done, report.left, report.exit_code) == (1, 0, 0)
    assert len(starts) == 2


def test_what_is_due_and_never_claimed_ends_a_drain_with_1(app, monkeypatch, caplog):
    """As if the database dropped the claim without a word, or no look found the message."""
    monkeypatch.setattr(worker_module, "OVERDUE_SECONDS", 0.3)
    monkeypatch.setattr(Claimer, "claim", lambda self, found, me, **more: ([], found))
    app.add_handler("t", lambda msg: None)
    (msg_id,) = send(app, "o")
    report = app.drain(linger=0)
    assert (report.left_by, report.undone, report.exit_code) == ({"due": 1}, 1, 1)
    assert not report.stopped
    text = "\n".join(r.getMessage() for r in caplog.records)
    assert f"1 message left though due, message {msg_id} first: it could not be claimed" in text


def test_a_drain_does_not_wait_for_a_lease_that_is_renewed(app):
    held_by(app, "another", ttl=20.0)
    over = threading.Event()

    def live() -> None:
        while not over.wait(0.1):
            with app.engine.begin() as conn:
                lease.renew(conn, app.tables, "another", ttl=20.0)

    join = in_thread(live)
    report = app.drain(linger=30, time_limit=18)
    over.set()
    join()
    assert (report.left_by, report.stopped) == ({"elsewhere": 1}, False)


# ---------------------------------------------------------------- a drain of one job


def job_of(app: Any, *objects: Any, **options: Any) -> tuple[Any, list[int]]:
    """A sealed job with a message for each object, and their ids."""
    with app.engine.begin() as conn, app.job("month end", conn=conn, on_complete="over") as job:
        ids = [app.send(conn, "t", {}, object_id=o, job=job, **options) for o in objects]
    return job, ids


def test_a_drain_of_a_job_handles_its_messages_alone(app, table):
    watch = Watch()
    app.add_handler(None, watch)
    (other,) = send(app, "x")
    job, ids = job_of(app, *["a"] * 3, *range(30), None, None)
    (behind,) = send(app, "a")
    more, _ = job_of(app, "y")
    report = app.drain(job=job, linger=0)
    assert (report.done, report.left, report.left_by, report.exit_code) == (35, 0, {}, 0)
    assert sorted(watch.ids) == ids
    assert watch.of("a") == ids[:3]
    assert app.ops.job(job.job_id).state == "completed"  # its message is of no job
    assert app.drain(job=more.job_id, linger=0).done == 1
    assert app.drain(linger=0).done == 4
    assert set(watch.ids) >= {other, behind}


def test_a_drain_of_a_job_names_what_stands_before_its_messages(app, caplog):
    app.add_handler(None, lambda msg: None)
    (first,) = send(app, "a")
    job, _ = job_of(app, "a", "a", "b")
    with caplog.at_level(logging.WARNING, "msgworker"):
        report = app.drain(job=job, linger=0)
    assert (report.done, report.left, report.left_by) == (1, 2, {"other jobs": 2})
    assert report.exit_code == 6
    assert "left=2 (behind other jobs: 2)" in str(report)
    says = f"2 messages left behind messages that are not of the job, message {first} first"
    assert any(says in r.getMessage() for r in caplog.records)
    found = app.worker(threads=1, scope=OneJob(job)).left()
    assert (found.total, found.by) == (2, {Waits.OTHER_JOBS: 2})
    app.drain(linger=0)
    assert app.drain(job=job, linger=0).left == 0


@pytest.mark.quick("mariadb-paused|postgresql-later|sqlite-(dead|limited|job)")
@pytest.mark.parametrize(
    ("why", "reason", "code", "says"),
    [
        ("paused", "paused", 0, "topic u is paused by anna; resume that"),
        ("job paused", "paused", 0, "is paused by anna; resume that"),
        ("dead", "dead", 1, "blocks its object; `msgworker rerun pkg.module:app "),
        ("later", "later", 0, "it is not due yet; run again then"),
        ("retry", "retry", 6, "the first in 8"),
        ("runs", "other jobs", 6, "it is running on another"),
        ("nobody", "nobody", 1, "a foreign consumer has flagged it"),
        ("no handler", "no handler", 1, "a handler for topic v"),
        ("handled elsewhere", "other jobs", 6, "another live instance has a handler for topic v"),
        ("limited", "limited", 6, "a start of u: its rate is 1/h"),
        ("free", "other jobs", 6, "nothing holds it back; run again when that one has ended"),
    ],
)
def test_a_drain_of_a_job_says_what_holds_back_those_before_it(
    blocking_app, caplog, why, reason, code, says
):
    app = blocking_app
    app.add_handler("t", lambda msg: None)
    app.add_handler("u", lambda msg: None, rate="1/h", burst=1)
    other = app.job("other").job_id if why == "job paused" else None
    if why == "limited":
        send(app, None, topic="u")
        assert app.drain(linger=0).done == 1
    (first,) = send(app, "a", topic="v" if "handle" in why else "u", job=other)
    job, _ = job_of(app, "a", "a", "b")
    if why == "paused":
        app.ops.pause("u", actor="anna")
    elif other is not None:
        app.ops.pause_job(other, actor="anna")
    elif why == "handled elsewhere":
        registered(app, "another", topics=["v"])
    elif why == "runs":
        registered(app, "another")
        edit(app, first, status=1, claimed_by="another")
    elif why in ("dead", "later", "retry", "nobody"):
        change = {
            "dead": {"status": -1, "error_try_times": 3},
            "later": {"available_at": FAR},
            "retry": {"status": -1, "error_try_times": 1, "available_at": FAR},
            "nobody": {"status": 1},
        }
        edit(app, first, **change[why])
    with caplog.at_level(logging.WARNING, "msgworker"):
        report = app.drain(job=job, linger=1)
    assert (report.done, report.left, report.left_by) == (1, 2, {reason: 2})
    assert (report.exit_code, report.stopped, report.undone) == (code, False, 0)
    assert report.seconds < 20
    (said,) = [line for line in caplog.messages if line.startswith("2 messages left")]
    assert says in said
    end = f"it is not of job {job.job_id}: a worker, or a drain without --job, handles it"
    assert said.endswith(end)
    if why in ("paused", "later", "runs", "free"):
        app.ops.resume("u")
        edit(app, first, status=2, claimed_by=None, available_at=None)
        assert app.drain(job=job, linger=0).done == 2


def test_a_drain_of_a_job_waits_for_retries_and_counts_what_is_dead_or_paused(app, table):
    fails = [False, False, True, True]

    def handle(msg: Any) -> None:
        if msg.object_id == "bad" or (msg.object_id == "again" and fails.pop()):
            raise ValueError("no")

    app.add_handler("t", handle, wait=wait_fixed(0))
    job, ids = job_of(app, "bad", "again", "again", "late")
    edit(app, ids[3], available_at=FAR)
    report = app.drain(job=job, linger=0, retry_linger=30)
    assert (report.done, report.failed, report.left_by) == (2, 1, {"later": 1})
    app.ops.pause_job(job.job_id)
    edit(app, ids[3], available_at=None)
    assert app.drain(job=job, linger=0).left_by == {"paused": 1}


def test_a_drain_of_a_job_with_priorities_and_a_limit(make_app):
    app = created(make_app(table=MessageTable(priority="priority")))
    watch = Watch()
    app.add_handler("t", watch, max_running=1)
    send(app, "u", priority=9)
    job, ids = job_of(app, *range(5))
    _, urgent = job_of(app, "v", priority=9)
    table = Table(app)
    table.edit(table.where(msg_id=urgent[0]), job_id=job.job_id)
    assert app.drain(job=job, linger=1, threads=1).done == 6
    assert sorted(watch.ids) == [*ids, *urgent]


def test_a_deep_job_is_drained_page_by_page(app, monkeypatch):
    """Pages of messages that stand behind others are passed."""
    watch = Watch()
    app.add_handler(None, watch)
    with app.engine.begin() as conn, app.job("all", conn=conn) as job:
        app.send_many(conn, "t", [(None, "deep")] * 1500, job=job)
        app.send_many(conn, "t", [(None, f"o{n}") for n in range(300)], job=job)
    first = Table(app).column("msg_id")[0]
    edit(app, first, available_at=FAR)
    report = app.drain(job=job, linger=0)
    assert (report.done, report.left_by) == (300, {"later": 1500})


@SQLITE
def test_a_drain_of_a_job_that_cannot_be(app, subtests):
    app.add_handler("t", lambda msg: None)
    for job, options, says in (
        (99, {}, "no job 99"),
        (0, {}, "job"),
        (True, {}, "job"),
        ("x", {}, "job"),
        (2**63, {}, "job"),
        (1, {"scope": Instance("asA")}, "leave out"),
    ):
        with (
            subtests.test(job=job, options=options, says=says),
            pytest.raises(ConfigError, match=says),
        ):
            app.drain(job=job, **options)


def test_a_table_without_jobs_is_not_drained_by_job(make_app):
    app = created(make_app(table=MessageTable("msg_plain")))
    app.add_handler("t", lambda msg: None)
    with pytest.raises((ConfigError, SchemaError), match="job"):
        app.drain(job=1)
