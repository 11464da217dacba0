"""A fan-out lives no longer than its claim: take-overs, lost leases, stops, timeouts, cuts."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError
from tenacity.wait import wait_fixed

from msgworker import (
    Context,
    HandlerMisuse,
    HandlerTimeout,
    LostClaim,
    Message,
    MessageTable,
    RetryLater,
)
from msgworker.instance.handlerwatch import HandlerWatch
from msgworker.instance.heartbeat import Heartbeat
from msgworker.instance.itemrun import BATCH
from msgworker.store import items as store
from msgworker.store import lease, recover
from msgworker.store.items import Record
from tests.crash.sessions import Cutter, consumer_url
from tests.support.fan_out import (
    EFFECT,
    Ran,
    Trying,
    double,
    effects,
    records,
    run,
    take_over,
    write_effect,
)
from tests.support.rows import Table, send
from tests.support.waiting import in_thread, until

DONE, FAILED = 2, -1


def item_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("msgworker-item")]


# ---------------------------------------------------------------- take-over


def test_a_transactional_item_taken_over_before_its_commit_writes_nothing(app, database):
    if database.name == "sqlite":
        pytest.skip("nobody else can write while an item's transaction is open")
    EFFECT.create(app.engine)
    ran = Ran()

    def act(n: int, conn: sa.Connection) -> None:
        ran(n)
        write_effect(n, conn)
        if n == 5:
            take_over(app, trying.msg_id)

    def fan(ctx: Context) -> Any:
        return ctx.fan_out(act, range(300), threads=1, transactional_items=True)

    trying = Trying(app, fan)
    trying.drain()
    assert isinstance(trying.error, LostClaim)
    assert effects(app) == {str(n): 1 for n in range(5)}
    assert set(records(app)) == set(effects(app))
    assert ran.items == list(range(6))  # and no other item started


def test_transactional_items_after_a_take_over_write_nothing(app):
    EFFECT.create(app.engine)

    def source() -> Iterator[int]:
        yield 1
        until(lambda: records(app), "the first is recorded")
        take_over(app, trying.msg_id)
        yield from range(2, 50)

    def fan(ctx: Context) -> Any:
        return ctx.fan_out(write_effect, source(), threads=5, transactional_items=True)

    trying = Trying(app, fan)
    trying.drain()
    assert isinstance(trying.error, LostClaim)
    assert effects(app) == {"1": 1}
    assert set(records(app)) == {"1"}


def test_a_batch_after_a_take_over_is_refused_and_items_stop(app):
    ran, over = Ran(), threading.Event()

    def act(n: int) -> None:
        ran(n)
        if n == 0:
            take_over(app, trying.msg_id)
            over.set()
        assert over.wait(60)  # else others would be recorded before

    trying = Trying(app, lambda ctx: ctx.fan_out(act, range(100_000), threads=2))
    trying.drain()
    assert isinstance(trying.error, LostClaim)
    assert records(app) == {}
    assert len(ran.items) <= 2 * BATCH


def test_recovery_leaves_a_row_whose_item_is_committing(app, database):
    """The other way round: the look has been made, the commit has not. It must still count."""
    if database.name == "sqlite":
        pytest.skip("one writer: recovery waits for its turn")
    (msg_id,) = send(app, None)
    t = app.tables
    c = t.message.c
    with app.engine.begin() as conn:
        flag = {"status": 1, "claimed_by": "zombie"}
        conn.execute(sa.update(t.message).where(c.msg_id == msg_id).values(**flag))

    def recovery() -> int:
        with app.engine.begin() as conn:
            return recover.recover(conn, t, [msg_id], dead_id="zombie", text="died")

    with app.engine.begin() as conn:
        one = Record("a", True, 1, None)
        assert store.record_one(conn, t, msg_id, one, me="zombie", tries=0, there=False) is True
        assert in_thread(recovery)() == 0
    assert recovery() == 1
    assert set(records(app)) == {"a"}
    with app.engine.begin() as conn:
        late = Record("b", True, 1, None)
        assert store.record_one(conn, t, msg_id, late, me="zombie", tries=0, there=False) is None
        assert store.record(conn, t, msg_id, [late], me="zombie", tries=0, there=()) is False
    assert set(records(app)) == {"a"}


def test_two_items_commit_side_by_side(app, database):
    """The look at the message's row does not make items wait for each other."""
    if database.name in ("sqlite", "oracle"):
        pytest.skip("one writer; no shared row locks")
    (msg_id,) = send(app, None)
    t = app.tables
    with app.engine.begin() as conn:
        conn.execute(sa.update(t.message).values(status=1, claimed_by="me"))
    with app.engine.begin() as first, app.engine.begin() as second:
        for conn, key in ((first, "a"), (second, "b")):
            record = Record(key, True, 1, None)
            assert store.record_one(conn, t, msg_id, record, me="me", tries=0, there=False) is True


def test_what_is_done_stays_done_whatever_comes_late(app):
    (msg_id,) = send(app, None)
    t = app.tables
    with app.engine.begin() as conn:
        conn.execute(sa.update(t.message).values(status=1, claimed_by="me"))
        done = Record("a", True, 1, "7")
        assert store.record(conn, t, msg_id, [done], me="me", tries=0, there=())
    late = Record("a", False, 1, None, "late")
    with app.engine.begin() as conn:
        assert store.record(conn, t, msg_id, [late], me="me", tries=0, there=["a"])
    with pytest.raises(IntegrityError), app.engine.begin() as conn:
        store.record(conn, t, msg_id, [late], me="me", tries=0, there=())
    for there in (True, False):
        with app.engine.connect() as conn:
            assert store.record_one(conn, t, msg_id, done, me="me", tries=0, there=there) is False
    assert records(app) == {"a": (DONE, 1, "7", None)}


def test_a_lost_lease_stops_new_items_and_the_next_instance_runs_the_rest(make_app, monkeypatch):
    monkeypatch.setattr(HandlerWatch, "lease_over", lambda self: None)  # the heartbeat tells them
    app = make_app(lease_seconds=6.0, poll_seconds=0.02)
    app.create_schema()
    ran, once = Ran(), threading.Lock()

    def act(n: int) -> None:
        ran(n)
        if len(ran.items) >= 30 and once.acquire(blocking=False):
            name = worker.instance_id
            with app.engine.begin() as conn:
                assert lease.take_over_live(conn, app.tables, name=name, me="x", ttl=0.1)
        if len(ran.items) >= 30 and not trying.errors:
            time.sleep(0.05)

    trying = Trying(app, lambda ctx: ctx.fan_out(act, range(200), threads=2), tries=2)
    with app.worker(threads=1) as worker:
        worker.start()
        until(lambda: trying.results, "the second try is through")
    assert isinstance(trying.errors[0], LostClaim)
    assert trying.results[0].done == 200
    assert max(ran.counts.values()) <= 2
    assert len(ran.items) < 300


def test_a_lease_that_may_be_over_stops_new_items_and_counts_no_try(make_app, monkeypatch):
    """The watchdog tells the handlers before the heartbeat knows whether the lease is lost."""
    waiting, gate = threading.Event(), threading.Event()
    reborn = Heartbeat._reborn

    def later(self: Heartbeat) -> None:
        waiting.set()
        assert gate.wait(60)
        reborn(self)

    monkeypatch.setattr(Heartbeat, "_reborn", later)
    app = make_app(lease_seconds=6.0, poll_seconds=0.02)
    app.create_schema()
    table, ran = Table(app), Ran()

    def act(n: int) -> None:
        ran(n)
        if len(ran.items) == 30:
            assert worker._instance is not None
            while not waiting.wait(0.02):  # a renewal that is under way would put it right
                worker._instance.runtime.identity.trusted_until = 0.0  # as after a long silence
        if waiting.is_set() and not trying.errors:
            time.sleep(0.05)

    trying = Trying(app, lambda ctx: ctx.fan_out(act, range(200), threads=1))
    with app.worker(threads=1) as worker:
        worker.start()
        until(lambda: trying.errors, "the items were stopped")
        name = worker.instance_id
        until(lambda: table.statuses == [0], "the message is given back")
        assert table.one("error_try_times") == 0
        stopped_at = len(ran.items)
        assert len(records(app)) == stopped_at < 200
        gate.set()
        until(lambda: trying.results, "the rest is through")
        assert worker.instance_id != name
    assert isinstance(trying.errors[0], RetryLater)
    assert trying.results[0].done == 200
    assert ran.counts == {n: 1 for n in range(200)}


# ---------------------------------------------------------------- stop and timeout


@pytest.mark.parametrize(
    "columns",
    [{}, {"later_times": None}, {"later_limit": 0}],
    ids=["ours", "no later_times", "no wishes"],
)
def test_a_stop_ends_new_items_and_counts_no_try(make_app, columns):
    app = make_app(table=MessageTable(**columns))
    app.create_schema()
    table, ran = Table(app), Ran()

    def act(n: int) -> None:
        ran(n)
        time.sleep(0.005 if len(ran.items) <= 20 or trying.errors else 0.05)

    trying = Trying(app, lambda ctx: ctx.fan_out(act, range(400), threads=2))
    worker = app.worker(threads=1)
    worker.start()
    until(lambda: len(ran.items) > 20, "items run")
    assert worker.stop(grace=30)
    assert isinstance(trying.errors[0], RetryLater)
    assert table.one("status", "error_try_times") == (0, 0)
    assert item_threads() == []
    stopped_at = len(ran.items)
    assert stopped_at < 400
    assert len(records(app)) == stopped_at  # what had ended is recorded
    trying.drain()
    assert trying.results[0].done == 400
    assert ran.counts == {n: 1 for n in range(400)}


def test_a_handler_s_timeout_ends_new_items_and_waits_for_running_ones(app, table: Table):
    ran, gate = Ran(), threading.Event()

    def act(n: int) -> None:
        ran(n)
        assert gate.wait(60)

    trying = Trying(app, lambda ctx: ctx.fan_out(act, range(10), threads=2), timeout=4.0)
    join = in_thread(trying.drain)
    until(lambda: len(ran.items) == 2, "both threads are busy")
    begun = time.monotonic()
    until(lambda: time.monotonic() > begun + 4.2, "the time is over")
    assert table.statuses == [1]  # flagged until the last item has ended
    gate.set()
    join()
    assert isinstance(trying.errors[0], HandlerTimeout)
    assert len(ran.items) == 2
    assert {key: row[0] for key, row in records(app).items()} == {"0": DONE, "1": DONE}
    assert item_threads() == []


def test_a_fan_out_left_behind_ends_with_its_handler(app):
    ran, started, found = Ran(), threading.Event(), []

    def act(n: int) -> None:
        ran(n)
        started.set()
        time.sleep(0.01)

    def forgetful(ctx: Context) -> None:
        def work() -> None:
            try:
                ctx.fan_out(act, range(10_000), threads=2)
            except HandlerMisuse as error:
                found.append(str(error))

        threading.Thread(target=work, daemon=True).start()
        assert started.wait(60)

    trying = Trying(app, forgetful)
    trying.drain()
    assert item_threads() == []
    until(lambda: found, "the thread has been told")
    assert "wait for it" in found[0]
    assert len(ran.items) < 10_000
    assert len(records(app)) == len(ran.items)


# ---------------------------------------------------------------- async handlers


def test_an_async_handler_calls_it_in_a_thread(app):
    kept: list[Any] = []

    async def handle(msg: Message[Any], ctx: Context) -> None:
        with pytest.raises(HandlerMisuse, match=r"asyncio\.to_thread"):
            ctx.fan_out(double, [1])
        kept.append(await asyncio.to_thread(ctx.fan_out, double, [1, 2]))

    app.add_handler("a", handle)
    send(app, None, topic="a")
    assert app.drain(linger=0).done == 1
    assert kept[0].values == [2, 4]


def test_the_timeout_of_an_async_handler_ends_its_fan_out_first(app, table: Table):
    ran = Ran()

    def act(n: int) -> None:
        ran(n)
        time.sleep(0.01)

    async def handle(msg: Message[Any], ctx: Context) -> None:
        await asyncio.to_thread(ctx.fan_out, act, range(10_000))

    app.add_handler("a", handle, timeout=0.3, wait=wait_fixed(3600))
    send(app, None, topic="a")
    assert app.drain(linger=0).retried == 1
    assert "timeout" in table.one("last_error")
    assert item_threads() == []
    assert len(records(app)) == len(ran.items) < 10_000


# ---------------------------------------------------------------- the database goes away


@pytest.mark.parametrize("exact", [True, False], ids=["exact", "plain"])
def test_cut_sessions_lose_nothing_and_repeat_no_transactional_item(make_app, database, exact):
    if database.name == "sqlite":
        pytest.skip("has no sessions")
    app = make_app(consumer_url(database.url))
    app.create_schema()
    watcher = make_app()
    EFFECT.create(watcher.engine)
    ran, cutter = Ran(), Cutter(database.url, 0.06, random.Random(7))

    def act(n: int, conn: sa.Connection | None = None) -> None:
        ran(n)
        if n == 0:
            until(lambda: cutter.count, "a session was cut")
        if conn is not None:
            write_effect(n, conn)
        time.sleep(0.005)

    def fan(ctx: Context) -> Any:
        found = ctx.fan_out(act, range(200), threads=4, transactional_items=exact)
        return found.raise_for_failed()

    trying = Trying(app, fan, tries=3)
    join = in_thread(lambda: trying.drain(linger=30))
    until(lambda: ran.items, "items run")
    with cutter.cutting():
        assert join().done == 1
    assert trying.results[-1].done == 200
    found = records(watcher)
    assert {row[0] for row in found.values()} == {DONE}
    assert len(found) == 200
    if exact:
        assert effects(watcher) == {str(n): 1 for n in range(200)}
    else:
        assert ran.counts == {n: 1 for n in range(200)}


def test_a_fan_out_works_beside_others_in_one_instance(app):
    for _ in range(3):
        assert run_many(app) == [list(range(50))] * 8


def run_many(app: Any) -> list[Any]:
    app._registry.handlers.clear()
    kept = []

    def handle(msg: Message[Any], ctx: Context) -> None:
        kept.append(ctx.fan_out(lambda n: n, range(50), threads=3).raise_for_failed().values)

    app.add_handler("m", handle)
    send(app, *[None] * 8, topic="m")
    assert app.drain(linger=0, threads=4).done == 8
    return kept


def test_an_item_s_own_deadlock_is_run_again(app, database):
    """Two items that lock two rows in opposite order: one of them is rolled back, both end."""
    if database.name == "sqlite":
        pytest.skip("one writer at a time: no deadlocks")
    EFFECT.create(app.engine)
    with app.engine.begin() as conn:
        conn.execute(EFFECT.insert(), [{"id": 1, "item": "x"}, {"id": 2, "item": "y"}])
    both = threading.Barrier(2)
    met: list[int] = []

    def act(n: int, conn: sa.Connection) -> None:
        for row in (n, 3 - n):
            conn.execute(sa.update(EFFECT).where(EFFECT.c.id == row).values(item=f"by {n}"))
            if len(met) < 2 and row == n:
                met.append(n)
                both.wait(30)

    def fan(ctx: Context) -> Any:
        return ctx.fan_out(act, [1, 2], threads=2, transactional_items=True)

    assert run(app, fan).raise_for_failed().done == 2
