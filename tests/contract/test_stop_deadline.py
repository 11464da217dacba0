"""A stop says so first, then waits, with one deadline for all; a start that fails is undone."""

from __future__ import annotations

import asyncio
import gc
import re
import sys
import threading
import time
from contextlib import suppress
from contextvars import ContextVar
from typing import Any

import pytest
import sqlalchemy as sa

from msgworker import App, Context, Message
from msgworker.db.database import Trouble
from msgworker.db.errors import trouble
from msgworker.events import InstanceStopped
from msgworker.instance import counting
from msgworker.instance import instance as instance_module
from msgworker.instance.stop import StopOnce
from tests.engines import left_in_use
from tests.support.leases import leases
from tests.support.programs import python
from tests.support.rows import send
from tests.support.waiting import in_thread, launched, until

TENANT: ContextVar[Any] = ContextVar("tenant", default=None)


def threads_of_ours() -> list[str]:
    names = [one.name for one in threading.enumerate() if one.name.startswith("msgworker-")]
    return [name for name in names if not name.startswith("msgworker-web")]  # of other tests


def test_a_stop_cancels_a_handler_before_it_waits_for_what_that_holds(app, table):
    """On SQLite the handler has the turn that releasing the others needs."""
    started = threading.Event()

    @app.handler("long", transactional=True)
    def long(msg: Message, ctx: Context) -> None:
        started.set()
        until(lambda: ctx.cancelled, "it is told", seconds=30)

    app.add_handler("t", lambda msg: None)
    send(app, "long", topic="long")
    send(app, *range(20))
    worker = launched(app.worker(threads=2))
    assert started.wait(60)
    assert worker.stop(grace=25) is True
    assert table.statuses[0] == 2
    assert set(table.statuses) <= {0, 2}
    assert leases(app) == {}


LOCKS = {
    "postgresql": "LOCK TABLE {} IN ACCESS EXCLUSIVE MODE",
    "mysql": "LOCK TABLES {} WRITE",
    "mariadb": "LOCK TABLES {} WRITE",
}


@pytest.mark.requires("sessions")
@pytest.mark.parametrize("transactional", [False, True])
def test_a_stop_ends_at_its_deadline_beside_a_lock_on_the_table(app, transactional):
    lock = LOCKS.get(app.engine.dialect.name)
    if lock is None:
        pytest.skip("its lock is not tried")
    started = threading.Semaphore(0)

    @app.handler("t", transactional=transactional)
    def handle(msg: Message) -> None:
        started.release()
        time.sleep(0.2)

    send(app, *range(40))
    worker = launched(app.worker(threads=4))
    assert started.acquire(timeout=60)
    with app.engine.connect() as conn:
        conn.execute(sa.text(lock.format(app.tables.message.name)))
        begun = time.monotonic()
        worker.stop(grace=0.5)
        took = time.monotonic() - begun
        conn.invalidate()
    assert took < 0.5 + instance_module.GIVE_UP_SECONDS + 3  # the machine may be busy
    until(lambda: threads_of_ours() == [], "what it left has ended")


@pytest.mark.requires("sessions")
def test_a_stop_ends_a_start_that_waits_for_a_lock(app, table, monkeypatch):
    lock = LOCKS.get(app.engine.dialect.name)
    if lock is None:
        pytest.skip("its lock is not tried")
    app.add_handler("t", lambda msg: None)
    send(app, "a")
    worker = app.worker()
    errors: list[BaseException] = []

    def start() -> None:
        try:
            worker.start()
        except Exception as error:
            errors.append(error)

    with app.engine.connect() as conn:
        real = instance_module.Instance.start

        def locked(self: instance_module.Instance) -> None:
            monkeypatch.undo()
            monkeypatch.setattr(instance_module, "GIVE_UP_SECONDS", 0.5)
            conn.execute(sa.text(lock.format("msgworker_lease")))
            real(self)

        monkeypatch.setattr(instance_module.Instance, "start", locked)
        starting = threading.Thread(target=start, daemon=True)
        starting.start()
        until(lambda: "msgworker-keeper" in threads_of_ours(), "it starts")
        worker.stop(grace=0)
        starting.join()
        assert worker.instance_id is None
        conn.invalidate()  # until now it was held
    assert [trouble(error) for error in errors] == [Trouble.LOST]
    until(lambda: threads_of_ours() == [], "what it left has ended")
    worker.start()
    until(lambda: table.statuses == [2], "it is handled")
    assert worker.stop() is True


@pytest.mark.requires("sessions")
@pytest.mark.parametrize("how", ["stopped", "at its end", "stopped at its end"])
def test_a_drain_does_not_wait_for_what_is_locked_to_count_what_is_left(app, how, monkeypatch):
    """Stopped: for as long as a stop may take. At its end: as long as for an outage."""
    lock = LOCKS.get(app.engine.dialect.name)
    if lock is None:
        pytest.skip("its lock is not tried")
    monkeypatch.setattr(counting, "GIVE_UP_SECONDS", 0.5)
    monkeypatch.setattr(counting, "LAST_COUNT_SECONDS", 0.1)
    app.add_handler("t", lambda msg: worker.ask() if how == "stopped" else None)
    worker = app.worker(threads=1)
    send(app, "a", "b")
    with app.engine.connect() as conn:
        locked = threading.Event()

        def stopped(event: InstanceStopped) -> None:
            conn.execute(sa.text(lock.format(app.tables.message.name)))
            locked.set()

        app.on("InstanceStopped", stopped)
        limit = 0.5 if how == "at its end" else 60.0
        report = in_thread(lambda: worker.drain(linger=0, outage_limit=limit))
        assert locked.wait(60)
        if how == "stopped at its end":
            worker.ask()
        begun = time.monotonic()
        assert report().database_lost
        assert time.monotonic() - begun < 30
        conn.invalidate()
    until(lambda: threads_of_ours() == [], "what it left has ended")


@pytest.mark.parametrize("options", [{}, {"batch": 5}], ids=["plain", "batch"])
@pytest.mark.parametrize("fails", [False, True], ids=["as told", "its cleanup fails"])
def test_async_handlers_are_cancelled_at_the_end_of_the_grace_time(app, table, options, fails):
    started, ended = threading.Event(), []

    @app.handler("t", **options)
    async def handle(msg: Any) -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError as error:
            ended.append(type(error))
            if fails:
                raise ConnectionError("a broken session") from error
            raise

    send(app, "a", "b")
    worker = launched(app.worker(threads=2))
    assert started.wait(60)
    assert worker.stop(grace=0.3) is False
    assert ended
    assert table.rows("status", "error_try_times", "claimed_by") == [(0, 0, None)] * 2
    assert leases(app) == {}
    assert threads_of_ours() == []


def test_an_async_handler_that_swallows_its_cancel_keeps_its_message(app, table, monkeypatch):
    monkeypatch.setattr(instance_module, "CANCEL_SECONDS", 0.3)
    started, go = threading.Event(), threading.Event()

    @app.handler("t")
    async def handle(msg: Message) -> None:
        started.set()
        while not go.is_set():
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.05)

    send(app, "a")
    worker = launched(app.worker(threads=1))
    assert started.wait(60)
    assert worker.stop(grace=0.1) is False
    assert table.statuses == [1]
    go.set()
    until(lambda: threads_of_ours() == [], "its loop has ended")


def test_after_a_stop_with_running_handlers_their_threads_and_connections_come_back(
    app, monkeypatch
):
    monkeypatch.setattr(instance_module, "CANCEL_SECONDS", 0.3)
    started, go = threading.Semaphore(0), threading.Event()

    @app.handler("sync", transactional=True)
    def sync(msg: Message) -> None:
        started.release()
        go.wait(60)

    @app.handler("async")
    async def not_sync(msg: Message) -> None:
        started.release()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        await asyncio.to_thread(go.wait, 60)

    send(app, "a", topic="async")
    send(app, "b", topic="sync")
    worker = launched(app.worker(threads=2))
    for _ in range(2):
        assert started.acquire(timeout=60)
    assert worker.stop(grace=0.1) is False
    go.set()
    until(lambda: threads_of_ours() == [], "threads")
    until(lambda: app.engine.pool.checkedout() == 0, "connections")


def test_a_stop_names_all_messages_of_a_batch_that_it_leaves(app, table, caplog):
    started, go, held = threading.Event(), threading.Event(), list[int]()

    @app.handler("t", batch=3)
    def handle(msgs: list[Message]) -> None:
        if len(msgs) == 3:
            held.extend(msg.msg_id for msg in msgs)
            started.set()
            go.wait(60)

    send(app, *map(str, range(50)))
    worker = app.worker(threads=1)
    worker.start()
    assert started.wait(60)
    assert worker.stop(grace=0.1) is False
    assert table.statuses.count(1) == 3
    (named,) = re.findall(r"handlers still run \(messages (.*)\); recovery follows", caplog.text)
    assert named == ", ".join(map(str, held))
    go.set()
    until(lambda: threads_of_ours() == [], "threads")


def test_what_finishes_in_a_stop_is_written_while_others_use_their_grace_time(app, table):
    started, go, stop = threading.Barrier(3), threading.Event(), threading.Event()

    @app.handler("t")
    def handle(msg: Message) -> None:
        started.wait(60)
        (go if msg.payload == "long" else stop).wait(60)

    send(app, "a", payload="long")
    send(app, "b", payload="short")
    worker = launched(app.worker(threads=2))
    started.wait(60)
    join = in_thread(lambda: worker.stop(grace=60))
    until(lambda: worker.instance and worker.instance.ending.begun, "it stops")
    stop.set()
    until(lambda: table.statuses == [1, 2], "written", seconds=8)
    go.set()
    assert join() is True
    assert table.statuses == [2, 2]


@pytest.mark.quick("sqlite-7|postgresql-[14]|mariadb-5")
@pytest.mark.parametrize("place", range(1, 10))
def test_a_start_that_fails_half_way_leaves_nothing(app, monkeypatch, place):
    started, real = [], threading.Thread.start

    def start(self: threading.Thread) -> None:
        if self.name.startswith("msgworker-"):
            started.append(self.name)
            if len(started) == place:
                raise RuntimeError("can't start new thread")
        real(self)

    app.add_handler("t", lambda msg: None)
    app.every(3600, topic="t", name="hourly")
    worker = app.worker(threads=2)
    monkeypatch.setattr(threading.Thread, "start", start)
    with suppress(RuntimeError):
        worker.start()
    monkeypatch.setattr(threading.Thread, "start", real)
    if len(started) < place:  # it has fewer threads
        worker.stop()
    assert worker.instance_id is None
    until(lambda: threads_of_ours() == [], "its threads have ended")
    assert leases(app) == {}
    gc.disable()  # which would give back what it has left
    try:
        assert left_in_use(seconds=2.0) == []
    finally:
        gc.enable()
    send(app, "a")
    assert worker.drain(linger=0).done == 1  # and it can be started again


@pytest.mark.parametrize("how", ["start", "run"])
def test_a_stop_that_is_interrupted_goes_on_and_the_next_one_waits_for_it(app, monkeypatch, how):
    started, interrupt, stopping = threading.Event(), [True], threading.Event()

    @app.handler("t")
    def handle(msg: Message, ctx: Context) -> None:
        started.set()
        until(lambda: ctx.cancelled, "it is told")

    ends_within = StopOnce.ends_within

    def interrupted(self: StopOnce, seconds: float) -> bool:
        stopping.set()
        if interrupt and interrupt.pop():
            raise KeyboardInterrupt
        return ends_within(self, seconds)

    send(app, "a")
    worker = app.worker(threads=1)
    monkeypatch.setattr(StopOnce, "ends_within", interrupted)
    if how == "start":
        worker.start()
        assert started.wait(60)
        with pytest.raises(KeyboardInterrupt):
            worker.stop()
    else:
        join = in_thread(lambda: worker.run(time_limit=60))
        assert started.wait(60)
        worker.ask()
        with pytest.raises(KeyboardInterrupt):
            join()
    worker.stop()
    assert worker.instance_id is None
    assert leases(app) == {}
    assert threads_of_ours() == []


ENDS: dict[str, Any] = {
    "exit": lambda: sys.exit(3),
    "stop the loop": lambda: asyncio.get_running_loop().stop(),
}


@pytest.mark.parametrize("how", ["exit", "stop the loop"])
def test_a_task_beside_its_handler_that_ends_the_loop_harms_no_other_handler(app, table, how):
    waiting, go, started = threading.Event(), [], []

    async def child() -> None:
        ENDS[how]()

    @app.handler("bad", max_tries=1)
    async def bad(msg: Message) -> None:
        await asyncio.to_thread(waiting.wait, 60)
        await asyncio.create_task(child())

    @app.handler("beside")
    async def beside(msg: Message) -> None:
        waiting.set()
        while not go:
            await asyncio.sleep(0.01)

    @app.handler("good")
    async def good(msg: Message) -> None:
        started.append(msg.msg_id)

    send(app, "a", topic="bad")
    send(app, "b", topic="beside")
    worker = launched(app.worker(threads=3))
    until(lambda: table.statuses[0] != 1 and waiting.is_set(), "the bad one has ended")
    send(app, *"cde", topic="good")
    until(lambda: len(started) == 3, "others run")
    go.append(True)
    until(lambda: table.statuses[1:] == [2] * 4, "all are done")
    assert table.statuses[0] == (-1 if how == "exit" else 2)
    assert worker.stop() is True


def test_handlers_of_a_loop_that_cannot_go_on_fail_and_later_ones_get_another(app, table):
    def broken() -> None:
        raise OSError("no selector")

    @app.handler("bad", max_tries=1)
    async def bad(msg: Message) -> None:
        loop = asyncio.get_running_loop()
        loop.run_forever = broken  # type: ignore[method-assign]
        loop.stop()
        await asyncio.sleep(60)

    @app.handler("good")
    async def good(msg: Message) -> None:
        pass

    send(app, "a", topic="bad")
    worker = launched(app.worker(threads=1))
    until(lambda: table.statuses == [-1], "failed")
    send(app, "b", topic="good")
    until(lambda: table.statuses == [-1, 2], "another loop")
    assert "event loop" in table.column("last_error")[0]
    assert worker.stop() is True


def test_the_timeout_of_a_plain_handler_is_seen_in_a_fraction_of_a_second(app: App):
    late: list[float] = []

    @app.handler("t", timeout=0.5, max_tries=1)
    def handle(msg: Message, ctx: Context) -> None:
        begun = time.monotonic()
        until(lambda: ctx.cancelled, "it is told", seconds=9)  # a heartbeat is 10 s
        late.append(time.monotonic() - begun - 0.5)

    send(app, "a")
    app.drain(threads=1, linger=0)
    assert late[0] < 5  # the machine may be busy


@pytest.mark.parametrize(
    "options",
    [{}, {"transactional": True}, {"group": 5, "transactional": True}],
    ids=["plain", "transactional", "group"],
)
def test_each_handler_finds_the_context_variables_as_they_were(app: App, options: Any):
    seen: list[Any] = []

    def handle(msg: Any) -> None:
        seen.append(TENANT.get())
        TENANT.set("north")

    app.add_handler("t", handle, **options)
    send(app, *"abc")
    app.drain(threads=1, linger=0)
    assert seen == [None] * 3


def test_each_item_finds_the_context_variables_of_its_handler(app: App):
    seen: list[Any] = []

    def item(n: int) -> None:
        seen.append(TENANT.get())
        TENANT.set(n)

    @app.handler("t")
    def handle(msg: Message, ctx: Context) -> None:
        TENANT.set("south")
        ctx.fan_out(item, range(5), threads=1)

    send(app, "a")
    app.drain(threads=1, linger=0)
    assert seen == ["south"] * 5


def test_lanes_do_not_wait_beside_idle_threads_while_the_fetcher_is_busy(one: Any, app: App):
    """The mean says that one thread is enough."""
    lanes, taken = one.lanes, threading.Semaphore(0)
    lanes.took(0.0)

    def take() -> None:
        if lanes.next() is not None:
            taken.release()

    takers = [threading.Thread(target=take, daemon=True) for _ in range(4)]
    for thread in takers:
        thread.start()
    send(app, *"abcd")
    one.fetcher.run_once()
    for _ in takers:
        assert taken.acquire(timeout=20)


IMPORTS = """
import sys, threading
from msgworker import App
seen = []

class Finder:
    def find_spec(self, name, path=None, target=None):
        if threading.current_thread() is not threading.main_thread():
            seen.append(name)

app = App({url!r}, backoff_seconds=0)
done = []

@app.handler("orm", transactional=True)
def orm(msg, ctx):
    ctx.session.connection()
    done.append(msg.msg_id)

@app.handler("items")
def items(msg, ctx):
    ctx.fan_out(lambda item: item, range(3), executor=pool)
    done.append(msg.msg_id)

@app.handler("fails", max_tries=1)
def fails(msg, ctx):
    done.append(msg.msg_id)
    raise ValueError("as handlers do")

@app.handler("app")
def uses_the_app(msg):
    app.on("Dead", print)()
    with app.engine.begin() as conn:
        app.send(conn, "fails", {{}})
    app.ops.counts()
    app.ops.show(msg.msg_id)
    done.append(msg.msg_id)

@app.handler("async")
async def not_sync(msg):
    done.append(msg.msg_id)

from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(1) as pool:
    sys.meta_path.insert(0, Finder())
    report = app.drain(threads=3, linger=0)
    sys.meta_path.pop(0)
print(len(done), sorted(set(seen)))
"""


def test_no_thread_of_an_instance_imports_anything(database: Any, app: App):
    for topic in ("orm", "items", "fails", "async", "app"):
        send(app, "a", "b", topic=topic)
    found = python("-c", IMPORTS.format(url=database.url))
    assert found.stdout == "12 []\n", found.stderr
