"""When a failed message is tried again, how often, and how long a drain waits for it."""

from __future__ import annotations

import logging
import time
from typing import Any

import pytest
import sqlalchemy as sa
from tenacity.wait import wait_fixed, wait_none

from msgworker import App, Context, HandlerError, Message, MessageTable, RetryLater
from msgworker.db.errors import outage_pause
from msgworker.instance import worker as worker_module
from msgworker.instance.running.outcome import Backoff
from msgworker.store import ranked
from msgworker.store.tries import fingerprint
from msgworker.testing import Crashed, Database, drain
from tests.support.apps import created
from tests.support.rows import send
from tests.support.waiting import in_thread, until

OUTAGE = "the neighbour is away"


def fail(msg: Message) -> None:
    raise ConnectionError(OUTAGE)


# ---------------------------------------------------------------- the default


PAUSES = [
    *(
        (Backoff(20), *case)
        for case in ((1, 20, 25), (2, 100, 125), (3, 480, 600), (900, 480, 600))
    ),
    *(
        (outage_pause, *case)
        for case in ((1, 0.05, 0.55), (3, 0.2, 0.7), (9, 5, 5.5), (9000, 5, 5.5))
    ),
]
"""Of messages, five times the one before, and ten minutes at most; of roles that wait for the
database, five seconds at most: for an attempt, the least and the most."""


def test_pauses_grow_with_a_part_by_chance_and_have_an_end():
    for pause, attempt, least, most in PAUSES:
        pauses = [pause(attempt) for _ in range(200)]
        assert least <= min(pauses) < max(pauses) <= most, (pause, attempt)
    assert {Backoff(0)(attempt) for attempt in (1, 2, 3)} == {0.0}


def test_a_message_outlives_an_outage_of_a_minute(msgworker_db: Database):
    app, clock = msgworker_db.app(), msgworker_db.clock
    back_at = clock.now.timestamp() + 60

    @app.handler("t")
    def call_neighbour(msg: Message) -> None:
        if clock.now.timestamp() < back_at:
            raise ConnectionError(OUTAGE)

    send(app, "o")
    done = []
    for _ in range(10):
        done.append(drain(app).done)
        clock.advance(20)
    assert sum(done) == 1


def test_the_first_pause_is_a_setting_of_the_app_or_the_handler_s_own_wait(msgworker_db: Database):
    for settings, wait, least, most in (
        ({}, None, 20, 25),
        ({"backoff_seconds": 3}, None, 3, 3.75),
        ({"backoff_seconds": 3}, wait_fixed(1000), 1000, 1000),
    ):
        app = msgworker_db.app(**settings)
        app.add_handler("t", fail, wait=wait)
        (msg_id,) = send(app, None)
        assert drain(app).retried == 1
        pause = (app.ops.show(msg_id).available_at - msgworker_db.clock.now).total_seconds()
        assert least - 0.01 <= pause <= most + 0.01, (settings, wait)


# ---------------------------------------------------------------- a drain waits


@pytest.fixture
def flaky(app: App) -> list[int]:
    """The tries of messages that succeed at their second one; it comes after 0.7 s."""
    tries: list[int] = []

    @app.handler("t", wait=wait_fixed(0.7))
    def handle(msg: Message, ctx: Context) -> None:
        tries.append(ctx.attempt)
        if msg.payload != "good" and ctx.attempt < 2:
            raise ConnectionError(OUTAGE)

    return tries


def test_a_drain_waits_for_a_retry_beyond_its_linger(app, flaky):
    send(app, "o")
    report = app.drain(linger=0.05)
    assert (report.done, report.retried, report.left, flaky) == (1, 1, 0, [1, 2])


def test_a_drain_waits_for_retries_alone_if_told_so(app, flaky):
    send(app, "o")
    send(app, "p", delay=600)
    report = app.drain(linger=0, retry_linger=60)
    assert (report.done, report.retried, report.left) == (1, 1, 1)


def test_a_drain_leaves_a_retry_that_comes_too_late(app):
    app.add_handler("t", fail, wait=wait_fixed(3600))
    send(app, "o")
    report = app.drain(linger=0.05)
    assert (report.retried, report.left, report.seconds < 30) == (1, 1, True)


@pytest.mark.long
def test_a_drain_that_waits_takes_new_work_as_it_comes(app, flaky):
    app.add_handler("slow", fail, wait=wait_fixed(2))
    send(app, "o", topic="slow")
    join = in_thread(lambda: app.drain(linger=0.05, time_limit=60))
    until(lambda: app.ops.find(status="failed"), "the first try has failed")
    send(app, "p", payload="good")
    until(lambda: app.ops.find(status="done"), "the new one is done")
    assert app.ops.find(status="failed")  # and the drain has not ended
    assert (join().done, join().failed) == (1, 1)


@pytest.mark.long
def test_a_drain_that_waits_looks_at_the_pace_of_polling(app_with, monkeypatch):
    app = app_with(poll_seconds=0.4)
    app.add_handler("t", fail, wait=wait_fixed(2))
    looks: list[float] = []
    real = ranked.due_in

    def due_in(*args: Any, **more: Any) -> float | None:
        looks.append(time.monotonic())
        return real(*args, **more)

    monkeypatch.setattr(ranked, "due_in", due_in)
    send(app, "o")
    app.drain(linger=0.05, time_limit=30)
    # Two pauses of 2 s: each begins with a dozen short looks, and goes on with one in 0.4 s.
    assert 5 < len(looks) < 60


@pytest.mark.parametrize("how", ["stop", "time_limit"])
def test_a_stop_ends_a_drain_that_waits(app, how):
    app.add_handler("t", fail, wait=wait_fixed(250))
    send(app, "o")
    with app.worker() as worker:
        limit = 2.0 if how == "time_limit" else None  # the first try is over by then
        join = in_thread(lambda: worker.drain(linger=0.05, time_limit=limit))
        until(lambda: app.ops.find(status="failed"), "the first try has failed")
        if how == "stop":
            worker.stop()
        report = join()
    assert (report.retried, report.left, report.seconds < 30) == (1, 1, True)


def test_what_is_overdue_and_not_ours_to_do_does_not_end_a_drain_that_waits(
    app, flaky, monkeypatch
):
    monkeypatch.setattr(worker_module, "OVERDUE_SECONDS", 0.1)
    send(app, "x", topic="of nobody", delay=0)
    send(app, "o")
    report = app.drain(linger=0.05)
    assert (report.done, report.retried, report.left) == (1, 1, 1)


def test_a_drain_does_not_wait_for_a_retry_of_a_topic_that_it_does_not_handle(app, flaky, table):
    app.add_handler("u", fail, wait=wait_fixed(200))
    send(app, "o", topic="u")
    assert app.drain(topics=["u"], linger=0).retried == 1
    report = app.drain(topics=["t"], linger=0.05)
    assert (report.left, report.seconds < 30) == (1, True)


# ---------------------------------------------------------------- fewer tries for a handler


def _tries(app: App) -> list[Any]:
    with app.engine.connect() as conn:
        tried = app.tables.failed_try.c
        return list(conn.execute(sa.select(tried.kind, tried.error).order_by(tried.try_no)))


def test_a_handler_may_allow_fewer_tries_than_the_table(app, table, caplog):
    ran: list[str] = []

    @app.handler("t", wait=wait_none(), max_tries=2)
    def handle(msg: Message, ctx: Context) -> None:
        ran.append(f"{msg.payload} {ctx.attempt}")
        if msg.payload == "bad":
            raise ConnectionError(OUTAGE)

    send(app, "o", payload="bad")
    send(app, "o", payload="good")
    with caplog.at_level(logging.WARNING, "msgworker"):
        report = app.drain(linger=1)
    assert (report.done, report.failed, report.retried, report.left) == (1, 1, 1, 0)
    assert ran == ["bad 1", "bad 2", "good 1"]
    why = "(dead after 2 of 2 tries that its handler allows)"
    (dead,) = app.ops.find(status="dead")
    assert f"ConnectionError: {OUTAGE}" in dead.last_error
    assert dead.last_error.endswith(why)
    assert [kind for kind, _ in _tries(app)] == ["failed", "failed"]
    assert any("is dead" in r.getMessage() and why in r.getMessage() for r in caplog.records)
    (group,) = app.ops.failures()
    assert (group.dead, group.failing) == (1, 0)
    assert fingerprint(_tries(app)[0][1]) == fingerprint(_tries(app)[1][1]) == group.fingerprint


def test_a_handler_of_one_try_is_not_tried_again(blocking_app):
    blocking_app.add_handler("t", fail, max_tries=1)
    send(blocking_app, "o", "o")
    report = blocking_app.drain(linger=0)
    assert (report.done, report.failed, report.retried) == (0, 1, 0)  # and it blocks its object


def test_a_handler_that_asks_for_retry_later_too_often_has_its_own_number_of_tries(make_app):
    app = created(make_app(table=MessageTable(later_limit=0)))
    app.add_handler("t", lambda msg: RetryLater(after=0), max_tries=1)
    send(app, "o")
    assert app.drain(linger=0).failed == 1


def test_tries_that_a_crash_ended_go_by_the_table_s_rule(msgworker_db: Database):
    app = msgworker_db.app(lease_seconds=9, table=MessageTable(max_tries=4))
    ran: list[int] = []

    @app.handler("t", max_tries=1)
    def handle(msg: Message, ctx: Context) -> None:
        ran.append(ctx.attempt)

    send(app, "o")
    for _ in range(2):
        with pytest.raises(Crashed):
            drain(app, crash="claimed")
        msgworker_db.clock.advance(10)
    assert drain(app).done == 1
    assert ran == [3]


def test_a_handler_s_tries_are_a_number_from_one_to_those_of_its_table(subtests):
    app = App("sqlite:///x.db", table=MessageTable(max_tries=5))
    app.add_handler("a", fail, max_tries=5)
    with pytest.raises(HandlerError, match=r"MessageTable\(max_tries=\.\.\.\)"):
        app.add_handler("b", fail, max_tries=6)
    for tries in (0, -1, True, 1.5, "2", float("nan")):
        with subtests.test(tries=tries), pytest.raises(HandlerError, match="max_tries of handler"):
            app.add_handler("b", fail, max_tries=tries)
    assert app.topics == {"a"}
