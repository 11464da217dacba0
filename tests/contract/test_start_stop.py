"""A worker starts, and stops in order, whoever asks for it."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from msgworker import App, Context, Message
from msgworker.errors import ExitCode, MsgworkerError, SchemaError
from msgworker.instance import instance as instance_module
from msgworker.instance.connections import Connections
from msgworker.instance.liveness import housekeeper
from msgworker.store import lease
from tests.support.databases import SQLITE
from tests.support.leases import leases
from tests.support.rows import send
from tests.support.sessions import SLEEP
from tests.support.waiting import at_once, in_thread, launched, until


def test_worker_as_context_manager_works_and_stops(app, table):
    app.add_handler("t", lambda msg: None)
    send(app, *range(20))
    with launched(app.worker(threads=2)) as worker:
        assert worker.instance_id
        until(lambda: set(table.statuses) == {2}, "all done")
        send(app, *range(5))
        until(lambda: table.statuses == [2] * 25, "the later ones too")
    assert worker.instance_id is None
    assert leases(app) == {}


def test_worker_can_be_started_again_as_a_new_instance(app, table):
    app.add_handler("t", lambda msg: None)
    worker = launched(app.worker(threads=1))
    first = worker.instance_id
    with pytest.raises(MsgworkerError, match="runs already"):
        worker.start()
    worker.stop()
    send(app, 1)
    worker.start()
    assert worker.instance_id not in (None, first)
    until(lambda: table.statuses == [2], "done by the second")
    worker.stop()


@pytest.mark.quick
def test_graceful_stop_releases_without_counting_a_try(app, table):
    started, go = threading.Event(), threading.Event()
    ran: list[int] = []

    @app.handler("t")
    def handle(msg: Message) -> None:
        ran.append(msg.msg_id)
        if len(ran) > 1:  # the first one is quick, so some are held beside the one that runs
            started.set()
            go.wait(60)

    send(app, *["o"] * 5, *["p"] * 5, *range(10))
    worker = launched(app.worker(threads=1))
    assert started.wait(60)
    until(lambda: table.statuses.count(1) > 1, "some in flight")
    join = in_thread(worker.stop)
    until(lambda: table.statuses.count(1) == 1, "all but the running one are given back")
    go.set()
    assert join() is True
    assert len(ran) == 2
    assert sorted(table.statuses) == [0] * 18 + [2] * 2
    assert set(table.column("error_try_times")) == {0}
    assert set(table.column("claimed_by")) == {None}
    assert leases(app) == {}


def test_a_release_of_a_message_that_has_failed_before_goes_back_to_failed(app, table):
    started, go = threading.Event(), threading.Event()

    @app.handler("t")
    def handle(msg: Message) -> None:
        if next(calls) > 0:
            started.set()
            go.wait(60)

    calls = itertools.count()
    send(app, *range(10))
    table.edit(status=-1, error_try_times=1)
    worker = launched(app.worker(threads=1))
    assert started.wait(60)
    until(lambda: table.statuses.count(1) > 1, "some in flight")
    join = in_thread(worker.stop)
    until(lambda: table.statuses.count(1) == 1, "given back")
    go.set()
    join()
    assert sorted(table.rows("status", "error_try_times")) == [(-1, 1)] * 8 + [(2, 1)] * 2


def test_a_handler_that_outlives_the_grace_time_keeps_its_flag(app, table):
    started, go = threading.Event(), threading.Event()

    @app.handler("t")
    def handle(msg: Message, ctx: Context) -> None:
        started.set()
        go.wait(60)

    send(app, "o", "o")
    worker = launched(app.worker(threads=1))
    assert started.wait(60)
    assert worker.stop(grace=0.1) is False
    assert table.statuses == [1, 0]
    assert len(leases(app)) == 1  # left for recovery
    go.set()


@pytest.mark.quick
def test_a_worker_without_the_guard_does_not_start(app):
    app.add_handler("t", lambda msg: None)
    guard = next(i for i in app.tables.message.indexes if i.name == app.tables.guard_name)
    guard.drop(app.engine)
    with pytest.raises(SchemaError, match=app.tables.guard_name):
        app.worker().start()


def test_a_keyboard_interrupt_in_a_handler_stops_a_worker_in_the_background(app, table):
    def interrupted(msg: Any) -> None:
        raise KeyboardInterrupt

    app.add_handler("t", interrupted)
    worker = launched(app.worker(threads=1))
    send(app, "a")
    until(lambda: worker.instance_id is None, "stopped")

    until(lambda: leases(app) == {}, "in order")
    assert table.one("status", "error_try_times") == (-1, 1)


@pytest.mark.requires("sessions")
@pytest.mark.quick("postgresql")
def test_a_stop_does_not_wait_for_a_heartbeat_without_an_answer(app, monkeypatch):
    monkeypatch.setattr(instance_module, "ROLE_SECONDS", 0.7)
    app.add_handler("t", lambda msg: None)
    worker = launched(app.worker(threads=1))
    assert worker.instance is not None
    beat, hangs, answered = worker.instance.heartbeat, threading.Event(), threading.Event()

    def hang() -> int:
        with beat.link.statement() as conn:
            hangs.set()
            conn.exec_driver_sql(SLEEP[app.engine.dialect.name])
            answered.set()
        return 0

    beat.run_once = hang  # type: ignore[method-assign]
    beat.wake()
    assert hangs.wait(60)
    assert worker.stop() is True
    assert not answered.is_set()
    with app.engine.begin() as conn:
        assert lease.read_all(conn, app.tables) == []


@pytest.mark.requires("sessions")
@pytest.mark.quick("mariadb")
def test_a_stop_does_not_wait_for_a_row_that_somebody_has_locked(one, app, table):
    """Flagged by us and in no hand: it is left for recovery."""
    ids = send(app, "a", "b")
    table.edit(status=1, claimed_by=one.shared.identity.id)
    with app.engine.begin() as conn:
        c = app.tables.cols()
        conn.execute(sa.select(c.msg_id).where(c.msg_id == ids[0]).with_for_update())
        assert in_thread(one.housekeeper.leave)() is False
        conn.rollback()
    assert table.statuses == [1, 0]


@pytest.mark.requires("sessions")
@pytest.mark.quick("mariadb")
@pytest.mark.requires("common_sql")
def test_a_stop_does_not_wait_for_ever_for_an_answer(one, app, monkeypatch):
    monkeypatch.setattr(housekeeper, "LEAVE_SECONDS", 0.7)
    hangs, answered = iter([True]), threading.Event()

    def none_left(link: Connections) -> bool:
        with link.transaction() as conn:
            if next(hangs, False):
                conn.exec_driver_sql(SLEEP[app.engine.dialect.name])
                answered.set()
        return True

    monkeypatch.setattr(one.flagged, "none_left", none_left)
    assert in_thread(one.housekeeper.leave)() is True
    assert not answered.is_set()
    with app.engine.begin() as conn:
        assert lease.read_all(conn, app.tables) == []


SLOW_SECONDS = 1.0


@pytest.fixture
def slow(app: App) -> threading.Event:
    """Six messages for handlers that take a second; set when the first has started."""
    started = threading.Event()

    @app.handler("t")
    def handler(msg: Any) -> None:
        started.set()
        time.sleep(SLOW_SECONDS)

    send(app, *"abcdef")
    return started


@SQLITE
@pytest.mark.parametrize("how", ["run", "drain"])
def test_run_returns_when_the_stop_of_another_thread_is_complete(app, table, slow, how):
    worker = app.worker(threads=6)
    stopper = threading.Thread(target=lambda: slow.wait(60) and worker.stop())
    stopper.start()
    getattr(worker, how)()
    assert set(table.statuses) <= {0, 2}
    assert 2 in table.statuses
    assert leases(app) == {}
    stopper.join(60)


@SQLITE
def test_every_stop_waits_for_the_one_under_way_and_has_its_answer(app, table, slow):
    worker = launched(app.worker(threads=6))
    assert slow.wait(60)
    assert at_once(*[lambda: (worker.stop(), len(leases(app)))] * 4) == [(True, 0)] * 4
    assert worker.stop()
    assert worker.instance_id is None


@SQLITE
def test_of_several_stops_the_shortest_grace_counts_and_all_have_one_answer(app, table):
    over, started = threading.Event(), threading.Event()

    @app.handler("t")
    def handler(msg: Any) -> None:
        started.set()
        over.wait(60)

    send(app, "a")
    worker = launched(app.worker(threads=1))
    assert started.wait(60)
    answers: list[bool] = []
    first = threading.Thread(target=lambda: answers.append(worker.stop(grace=60)))
    first.start()
    time.sleep(0.2)
    answers.append(worker.stop(grace=0.2))
    first.join(10)
    assert answers == [False, False]
    over.set()


@SQLITE
def test_the_grace_of_stop_goes_before_that_of_run(app, table, slow):
    worker = app.worker(threads=6)
    stopper = threading.Thread(target=lambda: slow.wait(60) and worker.stop(grace=30))
    stopper.start()
    worker.run(grace=0)
    stopper.join(60)
    assert 1 not in table.statuses


@SQLITE
def test_an_instance_whose_handler_outlives_its_stop_is_shown_as_stopped(app, table):
    started, over = threading.Event(), threading.Event()

    @app.handler("t")
    def handler(msg: Any) -> None:
        started.set()
        over.wait(60)

    (msg_id,) = send(app, "a")
    worker = launched(app.worker(threads=1))
    try:
        assert started.wait(60)
        name = worker.instance_id
        assert worker.stop(grace=0.1) is False
        (told,) = app.ops.instances()
        assert (told.instance_id, told.life, told.stopped) == (name, "live", True)
        assert (told.works, told.overdue_seconds) == (False, None)
        assert 0 < told.left_seconds <= app.settings.lease_seconds
        why = app.ops.explain(msg_id)
        assert f"{name} has stopped, and its handler has outlived the grace time" in why.text
        assert "recovered when its lease is over, in about " in why.text
        with pytest.raises(
            MsgworkerError, match=r"has stopped.*its lease ends in \d+ s"
        ) as refused:
            app.ops.release(name)
        assert refused.value.exit_code == ExitCode.REFUSED
        other = app.drain(linger=0)
        assert (other.left_by, other.exit_code) == ({"silent": 1}, ExitCode.RETRIES)
    finally:
        over.set()


def test_a_worker_can_be_started_again_as_soon_as_stop_returns(app):
    app.add_handler("t", lambda msg: None)
    worker = app.worker(threads=4)
    for _ in range(10):
        worker.start()
        joins = [in_thread(worker.stop) for _ in range(3)]
        assert worker.stop()
        worker.start()
        assert worker.instance_id is not None
        assert worker.stop()
        for join in joins:
            join()
    assert leases(app) == {}


@SQLITE
def test_a_stop_in_a_signal_handler_in_the_middle_of_a_stop_does_not_wait_for_itself(app):
    """The signal interrupts the thread that stops."""
    worker = app.worker(threads=1) if app.add_handler("t", lambda msg: None) is None else None
    assert worker is not None
    worker.start()
    instance = worker.instance
    assert instance is not None
    answers = []
    wait = instance.settle_rest
    instance.settle_rest = lambda: (answers.append(worker.stop()), wait())[1]  # type: ignore[method-assign]
    assert worker.stop()
    assert answers
    assert not any(answers)  # each asks and returns at once


def sync_stop(app: App, stop: Callable[[], bool]) -> None:
    app.add_handler("t", lambda msg: stop() and None)


def async_stop(app: App, stop: Callable[[], bool]) -> None:
    @app.handler("t")
    async def handler(msg: Any) -> None:
        stop()


def to_thread_stop(app: App, stop: Callable[[], bool]) -> None:
    @app.handler("t")
    async def handler(msg: Any) -> None:
        await asyncio.to_thread(stop)


def transactional_stop(app: App, stop: Callable[[], bool]) -> None:
    app.add_handler("t", lambda msg: stop() and None, transactional=True)


def item_stop(app: App, stop: Callable[[], bool]) -> None:
    @app.handler("t")
    def handler(msg: Any, ctx: Any) -> None:
        ctx.fan_out(lambda item: stop() and None, [1], threads=1)


WITHIN = [sync_stop, async_stop, to_thread_stop, transactional_stop, item_stop]


@SQLITE
@pytest.mark.parametrize("how", ["start", "run", "drain"])
@pytest.mark.parametrize("within", WITHIN, ids=lambda w: w.__name__)
def test_a_stop_from_within_asks_and_returns_at_once(app, table, within, how, caplog):
    answers: list[tuple[bool, bool]] = []

    def stop() -> bool:
        begin = time.monotonic()
        answer = worker.stop(grace=20)
        answers.append((answer, time.monotonic() - begin < 10))
        return answer

    within(app, stop)
    send(app, *"abc")
    worker = app.worker(threads=1)
    getattr(worker, how)()
    until(lambda: worker.instance_id is None, "it has stopped", seconds=30)
    assert answers == [(False, True)]
    first, *behind = table.statuses
    # A fan-out that the stop meets before its end runs later.
    assert first in ((0, 2) if within is item_stop else (2,))
    assert behind == [0, 0]
    assert table.column("error_try_times") == [0, 0, 0]
    assert leases(app) == {}
    assert "cannot join" not in caplog.text
