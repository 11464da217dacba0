"""Async handlers in the caller's event loop, and sends by what SQLAlchemy's asyncio gives."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from functools import partial
from typing import Any

import anyio
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine

from msgworker import App, AsyncContext, Context, Message, Reject
from msgworker.db.postgresql import Timelines
from msgworker.errors import ConfigError, DatabaseUnavailable, HandlerError, MsgworkerError
from msgworker.instance.instance import Instance
from tests.support.databases import SQLITE, async_url
from tests.support.leases import leases
from tests.support.refusing import refuse
from tests.support.rows import edit, send
from tests.support.sessions import cut
from tests.support.waiting import PATIENCE_SECONDS

WITH_DRIVER = pytest.mark.parametrize(
    "database", ["sqlite", "postgresql", "mariadb"], indirect=True
)
"""On the databases for which the tests have an async driver."""


async def until(condition: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not await asyncio.to_thread(condition):
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.02)


@asynccontextmanager
async def engine_of(app: App) -> AsyncIterator[AsyncEngine]:
    """An engine of the running loop, on the App's database."""
    engine = create_async_engine(async_url(app.engine.url))
    yield engine
    await engine.dispose()


# --- Handlers in the loop of the caller.


def test_async_handlers_run_in_the_loop_of_the_block_and_end_with_it(app, table):
    ran: list[Any] = []

    @app.handler("t")
    async def handle(msg: Message, ctx: Context) -> None:
        await asyncio.sleep(0)
        ran.append((asyncio.get_running_loop(), threading.current_thread(), ctx.instance_id))

    @app.handler("sync")
    def plain(msg: Message) -> None:
        assert threading.current_thread() is not threading.main_thread()

    async def main() -> None:
        async with app.running(threads=2) as worker:
            send(app, *range(5))
            send(app, *range(5), topic="sync")
            await until(lambda: table.statuses == [2] * 10, "all done")
            assert len(ran) == 5
            here = asyncio.get_running_loop(), threading.current_thread(), worker.instance_id
            assert set(ran) == {here}
        assert worker.instance_id is None
        assert worker.error is None

    asyncio.run(main())
    assert leases(app) == {}


@WITH_DRIVER
def test_a_handler_uses_the_engine_of_its_program(app, table):
    async def main() -> None:
        async with engine_of(app) as engine:

            @app.handler("t")
            async def handle(msg: Message) -> None:
                async with engine.connect() as conn:
                    assert await conn.scalar(sa.text("SELECT 1")) == 1

            async with app.running(threads=4):
                for n in range(20):
                    async with AsyncSession(engine) as session, session.begin():
                        await app.asend(session, "t", {"n": n}, object_id=n)
                await until(lambda: table.statuses == [2] * 20, "all done")

    asyncio.run(main())
    assert {row[0] for row in table.rows("error_try_times")} == {0}


def test_the_loop_goes_on_while_a_worker_starts_and_stops(app, table):
    started = threading.Event()
    gaps: list[float] = []

    @app.handler("t")
    def handle(msg: Message) -> None:
        started.set()
        time.sleep(0.5)

    async def beat() -> None:
        last = time.monotonic()
        while True:
            await asyncio.sleep(0.01)
            gaps.append(time.monotonic() - last)
            last = time.monotonic()

    async def main() -> None:
        beating = asyncio.create_task(beat())
        async with app.running():
            send(app, "a")
            # A message that is claimed and has not begun is given back by the stop.
            await until(started.is_set, "it runs")
        beating.cancel()
        assert table.statuses == [2]

    asyncio.run(main())
    assert len(gaps) > 5


def test_as_many_async_handlers_run_at_once_as_there_are_threads(app, table):
    now, most = [0], [0]

    @app.handler("t")
    async def handle(msg: Message) -> None:
        now[0] += 1
        most[0] = max(most[0], now[0])
        await asyncio.sleep(0.1)
        now[0] -= 1

    async def main() -> None:
        send(app, *range(12))
        async with app.running(threads=5):
            await until(lambda: table.statuses == [2] * 12, "all done")

    asyncio.run(main())
    assert most == [5]


def test_a_start_that_fails_raises_before_the_block(app, make_app):
    async def main(one: App, **options: Any) -> None:
        async with one.running(**options):
            raise AssertionError("the block began")

    with pytest.raises(ConfigError, match="there is no handler"):
        asyncio.run(main(app))
    app.add_handler("t", lambda msg: None)
    with pytest.raises(ConfigError, match="threads"):
        asyncio.run(main(app, threads=0))
    with pytest.raises(ConfigError, match="grace"):
        asyncio.run(main(app, grace=float("nan")))
    away = make_app("postgresql+psycopg://nobody@127.0.0.1:1/nowhere")
    away.add_handler("t", lambda msg: None)
    with pytest.raises(DatabaseUnavailable):
        asyncio.run(main(away))


def test_an_error_in_the_block_stops_the_worker_and_comes_out(app, table):
    app.add_handler("t", lambda msg: None)

    async def main() -> None:
        async with app.running() as worker:
            assert worker.instance_id
            raise LookupError("of the program")

    with pytest.raises(LookupError, match="of the program"):
        asyncio.run(main())
    assert leases(app) == {}


@pytest.mark.parametrize("again", [False, True], ids=["once", "twice"])
def test_a_block_that_is_cancelled_stops_in_order(app, table, again):
    started, go, ended = threading.Event(), threading.Event(), []

    @app.handler("t")
    async def handle(msg: Message) -> None:
        started.set()
        try:
            while not go.is_set():
                await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise
        ended.append("done")

    async def block(within: asyncio.Event) -> None:
        async with app.running(threads=1):
            within.set()
            await asyncio.sleep(60)

    async def main() -> None:
        send(app, "a")
        within = asyncio.Event()
        task = asyncio.create_task(block(within))
        await within.wait()  # the handler may start before
        await asyncio.to_thread(started.wait, 60)
        task.cancel()
        await asyncio.sleep(0.1)
        assert not task.done()
        if again:  # the grace time is over
            task.cancel()
        else:
            go.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()

    begun = time.monotonic()
    asyncio.run(main())
    assert time.monotonic() - begun < 20
    assert ended == ["cancelled" if again else "done"]
    after = (0, 0, None) if again else (2, 0, None)
    assert table.rows("status", "error_try_times", "claimed_by") == [after]
    assert leases(app) == {}


def test_a_timeout_round_the_block_is_a_timeout(app):
    app.add_handler("t", lambda msg: None)

    async def main() -> None:
        async with asyncio.timeout(0.3), app.running():
            await asyncio.sleep(60)

    with pytest.raises(TimeoutError):
        asyncio.run(main())
    assert leases(app) == {}


@SQLITE
def test_a_scope_of_anyio_that_is_cancelled_ends_the_block_without_a_grace_time(app, table):
    started = threading.Event()

    @app.handler("t")
    async def handle(msg: Message) -> None:
        started.set()
        await asyncio.sleep(60)

    async def main() -> None:
        send(app, "a")
        with anyio.move_on_after(60) as scope:
            async with app.running(threads=1):
                await asyncio.to_thread(started.wait, 60)
                scope.cancel()
                await asyncio.sleep(60)
        assert scope.cancelled_caught

    begun = time.monotonic()
    asyncio.run(main())
    assert time.monotonic() - begun < 20
    assert table.rows("status", "error_try_times", "claimed_by") == [(0, 0, None)]
    assert leases(app) == {}


@SQLITE
def test_a_start_that_is_cancelled_leaves_nothing_behind(app, monkeypatch):
    app.add_handler("t", lambda msg: None)
    starts, go = threading.Event(), threading.Event()
    start = Instance.start

    def slow(self: Instance) -> None:
        starts.set()
        go.wait(60)
        start(self)

    monkeypatch.setattr(Instance, "start", slow)

    async def block() -> None:
        async with app.running():
            raise AssertionError("the block began")

    async def main() -> None:
        task = asyncio.create_task(block())
        await asyncio.to_thread(starts.wait, 60)
        task.cancel()
        await asyncio.sleep(0.1)
        assert not task.done()
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert leases(app) == {}


def test_the_end_of_a_program_whose_task_has_the_block_counts_no_try(app, table):
    started = threading.Event()

    @app.handler("t")
    async def handle(msg: Message) -> None:
        started.set()
        await asyncio.sleep(60)

    async def block() -> None:
        async with app.running(threads=1):
            await asyncio.sleep(60)

    async def main() -> None:
        send(app, "a")
        kept = asyncio.create_task(block())
        await asyncio.to_thread(started.wait, 60)
        assert not kept.done()  # `run` cancels it, and the handler's task beside it

    asyncio.run(main())
    assert table.rows("status", "error_try_times", "claimed_by") == [(0, 0, None)]
    assert leases(app) == {}


def test_a_handler_whose_task_others_cancel_fails_its_try(app, table):
    @app.handler("t", max_tries=1)
    async def handle(msg: Message) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(60)

    async def main() -> None:
        send(app, "a")
        async with app.running():
            await until(lambda: table.statuses == [-1], "it has failed")

    asyncio.run(main())
    assert "cancelled by other code" in table.one("last_error")


def test_each_of_many_async_handlers_has_its_own_context_outcome_and_end(app, table):
    """They follow each other in the loop, without a thread for each."""
    seen = ContextVar("seen", default="nothing")
    found: list[Any] = []

    @app.handler("t", timeout=PATIENCE_SECONDS, max_tries=1)
    async def handle(msg: Message, ctx: Context) -> Any:
        found.append((seen.get(), threading.current_thread().name))
        seen.set("something")
        number = msg.payload
        if number % 5 == 1:
            await asyncio.sleep(0)
        if number % 5 == 2:
            raise ValueError(f"number {number}")
        if number % 5 == 3:
            ctx.send("next", number)
        if number % 5 == 4:
            sys.exit(3)
        return Reject("no") if number % 25 == 0 else None

    app.add_handler("next", lambda msg: found.append(msg.payload))
    app.add_handler("plain", lambda msg: found.append(msg.payload))
    for number in range(100):
        send(app, number, payload=number)
        if number % 10 == 0:
            send(app, f"plain {number}", topic="plain", payload=-number)
    app.drain(threads=4)

    assert [one for one in found if isinstance(one, tuple)] == [
        ("nothing", "msgworker-async")
    ] * 100
    assert sorted(one for one in found if isinstance(one, int)) == sorted(
        [-number for number in range(0, 100, 10)] + [n for n in range(100) if n % 5 == 3]
    )
    rows = table.rows("topic", "payload", "status", "last_error")
    ends = {payload: end for topic, payload, *end in rows if topic == "t"}
    for number in range(100):
        status, error = ends[str(number)]
        failed = number % 5 in (2, 4) or number % 25 == 0
        assert status == (-1 if failed else 2), number
        if number % 5 == 2:
            assert f"number {number}" in error


def test_tasks_that_other_code_cancels_before_they_begin_do_not_hang(app, table):
    """One handler cancels all that its loop has, and so the ones that have not begun yet."""

    @app.handler("t", max_tries=1)
    async def handle(msg: Message) -> None:
        await asyncio.sleep(0.01)
        if msg.msg_id % 7 == 0:
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()

    send(app, *range(200))
    app.drain(threads=8)
    assert set(table.statuses) <= {2, -1}
    assert table.statuses.count(2) >= 29


FACTORIES = {
    "no context": lambda loop, coroutine: asyncio.Task(coroutine, loop=loop),
    "eager": getattr(asyncio, "eager_task_factory", None),
}


@SQLITE
@pytest.mark.parametrize("factory", [name for name in FACTORIES if FACTORIES[name] is not None])
def test_the_loop_of_the_caller_may_make_its_tasks_as_it_likes(app, table, factory):
    running, most = [0], [0]

    @app.handler("t", max_tries=1)
    async def handle(msg: Message) -> None:
        running[0] += 1
        most[0] = max(most[0], running[0])
        if msg.payload % 2:
            await asyncio.sleep(0.01)
        running[0] -= 1

    async def main() -> None:
        asyncio.get_running_loop().set_task_factory(FACTORIES[factory])
        for number in range(100):
            send(app, number, payload=number)
        async with app.running(threads=2):
            await until(lambda: table.statuses == [2] * 100, "all done")

    asyncio.run(main())
    assert most[0] <= 2


class Odd(Exception):
    def __bool__(self) -> bool:
        return False


@SQLITE
def test_an_error_beside_a_fan_out_in_a_thread_is_the_one_of_the_handler(app, table):
    @app.handler("t", max_tries=1)
    async def handle(msg: Message, ctx: Context) -> None:
        await asyncio.to_thread(ctx.fan_out, len, ["a"])
        raise Odd("of the handler")

    send(app, "a")
    app.drain()
    assert "of the handler" in table.one("last_error")


@pytest.mark.quick("sqlite")
@pytest.mark.parametrize("begun", [True, False], ids=["in handlers", "before they begin"])
def test_a_loop_that_is_closed_stops_the_worker_and_counts_no_try(app, table, begun):
    started = threading.Event()

    @app.handler("t")
    async def handle(msg: Message) -> None:
        started.set()
        await asyncio.sleep(60)

    async def begin() -> Any:
        block = app.running(threads=3)
        worker = await block.__aenter__()
        if begun:
            send(app, *range(20))
            await asyncio.to_thread(started.wait, 60)
        return block, worker

    loop = asyncio.new_event_loop()
    block, worker = loop.run_until_complete(begin())
    if not begun:
        send(app, *range(20))
        deadline = time.monotonic() + PATIENCE_SECONDS
        while 1 not in table.statuses and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.2)  # their threads wait for the loop
    loop.close()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while worker.instance_id is not None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert isinstance(worker.error, MsgworkerError)
    assert "was closed" in str(worker.error)
    assert table.rows("status", "error_try_times", "claimed_by") == [(0, 0, None)] * 20
    assert leases(app) == {}
    del block


@SQLITE
def test_a_stop_on_the_loop_itself_does_not_wait_for_it(app, table):
    app.add_handler("t", lambda msg: None)

    async def main() -> None:
        async with app.running() as worker:
            assert worker.stop() is False  # it is requested
            await until(lambda: worker.instance_id is None, "it has stopped")

    asyncio.run(main())
    assert leases(app) == {}


@SQLITE
def test_an_error_of_another_loop_says_which_loop_runs_handlers(app, table):
    locks: list[asyncio.Event] = []

    @app.handler("t", max_tries=1)
    async def handle(msg: Message) -> None:
        await asyncio.wait_for(locks[0].wait(), 5)

    async def main() -> None:
        locks.append(asyncio.Event())
        waits = asyncio.create_task(locks[0].wait())  # binds it to this loop
        await asyncio.sleep(0)
        send(app, "a")
        await asyncio.to_thread(app.drain, linger=0)
        waits.cancel()

    asyncio.run(main())
    assert "different event loop" in table.one("last_error")
    assert "app.running" in table.one("last_error")


# --- Sends by an AsyncSession and an AsyncConnection.


@pytest.mark.requires("unique_keys")
@WITH_DRIVER
def test_asend_is_part_of_the_transaction_of_an_async_session_and_connection(app, table):
    async def main() -> list[Any]:
        sent: list[Any] = []
        async with engine_of(app) as engine:
            async with AsyncSession(engine) as session, session.begin():
                sent.append(await app.asend(session, "t", {"n": 1}, object_id="a", unique_key="k"))
                assert await app.asend(session, "t", {"n": 1}, unique_key="k") == sent[0]
            async with engine.begin() as conn:
                sent.append(await app.asend(conn, "t", {"n": 2}))
                assert await app.asend_many(conn, "t", [({"n": 3}, "b"), ({"n": 4}, None)]) == 2
            async with AsyncSession(engine) as session:
                await app.asend(session, "t", {"n": 5})
                await session.rollback()
        return sent

    sent = asyncio.run(main())
    assert table.column("msg_id")[:2] == sent
    assert [p.replace(" ", "") for p in table.column("payload")] == [
        f'{{"n":{n}}}' for n in (1, 2, 3, 4)
    ]


@SQLITE
def test_send_and_asend_say_which_of_them_is_meant(app):
    from sqlalchemy.ext.asyncio import async_scoped_session, async_sessionmaker

    async def main() -> None:
        async with engine_of(app) as engine:
            async with AsyncSession(engine) as session:
                with pytest.raises(ConfigError, match=r"await app\.asend"):
                    app.send(session, "t")
                with pytest.raises(ConfigError, match=r"await app\.asend"):
                    app.send_many(session, "t", [])
            with app.engine.connect() as conn:
                with pytest.raises(ConfigError, match="send, without await"):
                    await app.asend(conn, "t")
                with pytest.raises(ConfigError, match="send_many, without await"):
                    await app.asend_many(conn, "t", [])
            with pytest.raises(ConfigError, match="AsyncConnection or AsyncSession"):
                await app.asend(engine, "t")
            scoped = async_scoped_session(async_sessionmaker(engine), asyncio.current_task)
            with pytest.raises(ConfigError, match=r"await app\.asend"):
                app.send(scoped, "t")
            assert await app.asend(scoped, "t")
            await scoped.commit()
            await scoped.remove()

    asyncio.run(main())
    assert sum(1 for _ in app.ops.find()) == 1


# --- Transactional async handlers: their writes and their outcome are one transaction.


@asynccontextmanager
async def crm(app: App, make_app: Any) -> AsyncIterator[tuple[App, sa.Table, AsyncEngine]]:
    """An App of an AsyncEngine, and a table for the writes of handlers."""
    ledger = sa.Table("ledger", sa.MetaData(), sa.Column("n", sa.Integer, nullable=False))
    await asyncio.to_thread(ledger.create, app.engine)
    async with engine_of(app) as engine:
        yield make_app(engine), ledger, engine
    app.engine.dispose()
    await asyncio.to_thread(ledger.drop, app.engine)


async def written(engine: AsyncEngine, ledger: sa.Table) -> list[int]:
    async with engine.connect() as conn:
        return sorted((await conn.scalars(sa.select(ledger.c.n))).all())


@WITH_DRIVER
@pytest.mark.parametrize("options", [{}, {"group": 5}, {"batch": 5}], ids=["one", "group", "batch"])
def test_what_a_transactional_async_handler_writes_is_there_once(app, table, make_app, options):
    failed: set[int] = set()

    def fail_once(n: int) -> None:
        if n % 4 == 0 and n not in failed:
            failed.add(n)
            raise ValueError(f"{n} fails once")

    async def main() -> None:
        async with crm(app, make_app) as (own, ledger, engine):

            async def write(messages: list[Message], ctx: Any) -> None:
                for msg in messages:
                    n = msg.payload["n"]
                    await ctx.connection.execute(ledger.insert().values(n=n))
                    await ctx.session.execute(ledger.insert().values(n=100 + n))
                    of = {"of": msg} if "batch" in options else {}
                    assert ctx.send("next", {"n": n}, object_id=n, **of) is None
                    fail_once(n)

            @own.handler("one", transactional=True, **options)
            async def one(msg: Any, ctx: AsyncContext) -> None:
                await write(msg if "batch" in options else [msg], ctx)

            @own.handler("next")
            async def following(msg: Message) -> None: ...

            for n in range(12):
                send(own, n % 3, topic="one", payload={"n": n})
            async with own.running(threads=3):
                await until(lambda: table.statuses == [2] * 24, "all done")
            assert await written(engine, ledger) == [*range(12), *range(100, 112)]

    asyncio.run(main())
    assert len(failed) == 3


@WITH_DRIVER
def test_a_transactional_async_handler_runs_in_a_drain_too(app, table, make_app):
    async def main() -> None:
        async with crm(app, make_app) as (own, ledger, engine):

            @own.handler("one", transactional=True)
            async def one(msg: Message, ctx: AsyncContext) -> None:
                await ctx.connection.execute(ledger.insert().values(n=msg.payload))

            for n in range(3):  # each in a loop of its own, beside that of the engine
                assert await written(engine, ledger) == [*range(n)]
                send(own, "a", topic="one", payload=n)
                await asyncio.to_thread(own.drain, linger=0)
            assert await written(engine, ledger) == [0, 1, 2]

    asyncio.run(main())
    assert table.statuses == [2, 2, 2]


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_a_transactional_async_handler_does_not_run_on_an_old_primary(
    app, table, make_app, monkeypatch, caplog
):
    old, ran = threading.Event(), list[int]()
    monkeypatch.setattr(Timelines, "is_old", lambda self, found: old.is_set())

    async def main() -> None:
        async with crm(app, make_app) as (own, _, _):

            @own.handler("one", transactional=True)
            async def one(msg: Message, ctx: AsyncContext) -> None:
                ran.append(msg.msg_id)

            own.add_handler("plain", lambda msg: None)
            send(own, "a", topic="plain")
            async with own.running(threads=1):
                await until(lambda: table.statuses == [2], "the instance is connected")
                old.set()  # whatever is connected from now on
                send(own, "b", topic="one")
                await until(lambda: ran or "it is an old primary" in caplog.text, "it is refused")
                assert ran == []
                old.clear()
                await until(lambda: table.statuses == [2, 2], "it runs on the newer one")

    asyncio.run(main())
    assert table.column("error_try_times") == [0, 0]


@WITH_DRIVER
@pytest.mark.parametrize("options", [{}, {"group": 5}, {"batch": 5}], ids=["one", "group", "batch"])
def test_an_async_handler_that_only_sends_is_not_done_without_what_it_sends(
    app, table, make_app, options
):
    refuse(app, "topic <> 'next'", on="INSERT")

    async def main() -> None:
        async with crm(app, make_app) as (own, _, _):

            @own.handler("one", transactional=True, **options)
            async def one(msg: Any, ctx: AsyncContext) -> None:
                ctx.send("next", **({"of": msg[0]} if "batch" in options else {}))

            send(own, "a", topic="one")
            async with own.running(threads=1):
                await until(lambda: table.statuses == [-1], "it has failed")

    asyncio.run(main())
    assert len(table.rows("msg_id")) == 1


@pytest.mark.quick(
    "one-sqlite|raises-batch-postgresql|(timeout|claim)-batch-mariadb|claim-one-postgresql"
)
@WITH_DRIVER
@pytest.mark.requires("row_locks", of="loses its claim")
@pytest.mark.parametrize("options", [{}, {"batch": 5}], ids=["one", "batch"])
@pytest.mark.parametrize("how", ["raises", "commits", "timeout", "rejects", "loses its claim"])
def test_what_a_transactional_async_handler_wrote_is_gone_where_it_is_not_done(
    app, table, make_app, how, options
):
    async def main() -> None:
        async with crm(app, make_app) as (own, ledger, engine):

            @own.handler(
                "one", transactional=True, timeout=0.2 if how == "timeout" else 60, **options
            )
            async def one(msg: Any, ctx: AsyncContext) -> Any:
                await ctx.connection.execute(ledger.insert().values(n=1))
                ctx.send("next", **({"of": msg[0]} if options else {}))
                if how == "raises":
                    raise ValueError("no")
                if how == "commits":
                    await ctx.connection.rollback()
                if how == "timeout":
                    await asyncio.sleep(60)
                if how == "loses its claim":
                    msg_id = msg[0].msg_id if options else msg.msg_id
                    await asyncio.to_thread(edit, app, msg_id, status=2, claimed_by=None)
                return Reject("no") if how == "rejects" else None

            send(own, "a", topic="one")
            async with own.running(threads=1):
                wanted = 2 if how == "loses its claim" else -1
                await until(lambda: table.statuses == [wanted], "it has ended")
            assert await written(engine, ledger) == []

    asyncio.run(main())
    assert len(table.rows("msg_id")) == 1
    said = {"raises": "ValueError", "commits": "HandlerMisuse", "timeout": "timeout"}
    assert said.get(how, "") in (table.one("last_error") or "")


@pytest.mark.parametrize("database", ["postgresql", "mariadb"], indirect=True)
@pytest.mark.parametrize("options", [{}, {"group": 5}, {"batch": 5}], ids=["one", "group", "batch"])
def test_a_transaction_of_an_async_handler_that_is_lost_runs_again_and_counts_no_try(
    app, table, make_app, options
):
    lost, ran = list[int](), list[int]()

    async def main() -> None:
        async with crm(app, make_app) as (own, ledger, engine):

            @own.handler("one", transactional=True, **options)
            async def one(msg: Any, ctx: AsyncContext) -> None:
                for each in msg if "batch" in options else [msg]:
                    await ctx.connection.execute(ledger.insert().values(n=each.payload))
                    ctx.send("next", each.payload, **({"of": each} if "batch" in options else {}))
                    ran.append(each.payload)
                if len(ran) > 1 and not lost:
                    lost.append(1)
                    await ctx.connection.run_sync(partial(cut, app))
                    with suppress(sa.exc.SQLAlchemyError):
                        await ctx.connection.execute(sa.text("SELECT 1"))

            own.add_handler("next", lambda msg: None)
            for n in range(3):
                send(own, "a", topic="one", payload=n)
            async with own.running(threads=1):
                await until(lambda: table.statuses.count(2) >= 6, "done")
            assert await written(engine, ledger) == [0, 1, 2]

    asyncio.run(main())
    assert lost == [1]
    assert table.rows("status", "error_try_times") == [(2, 0)] * 6


@WITH_DRIVER
def test_a_stop_cancels_a_transactional_async_handler_and_rolls_back(app, table, make_app):
    async def main() -> None:
        async with crm(app, make_app) as (own, ledger, engine):
            started = asyncio.Event()

            @own.handler("one", transactional=True)
            async def one(msg: Message, ctx: AsyncContext) -> None:
                await ctx.connection.execute(ledger.insert().values(n=1))
                started.set()
                await asyncio.sleep(60)

            send(own, "a", topic="one")
            async with own.running(threads=1, grace=0.2):
                await started.wait()
            assert await written(engine, ledger) == []

    asyncio.run(main())
    assert table.rows("status", "error_try_times", "claimed_by") == [(0, 0, None)]
    assert leases(app) == {}


def test_a_transactional_async_handler_needs_an_async_engine(app):
    async def handle(msg: Message) -> None: ...

    with pytest.raises(HandlerError, match=r"App\(create_async_engine"):
        app.add_handler("t", handle, transactional=True)
    with pytest.raises(HandlerError, match=r"App\(create_async_engine"):
        app.handler("t", transactional=True, group=5)(handle)
    assert app.topics == frozenset()


# --- An App on the database of an AsyncEngine.


@WITH_DRIVER
def test_an_app_of_an_async_engine_connects_beside_it(app, table, make_app):
    async def main() -> None:
        async with engine_of(app) as engine:
            own = make_app(engine)
            assert not own.engine.dialect.is_async

            @own.handler("t")
            async def handle(msg: Message) -> None:
                async with engine.connect() as conn:
                    await conn.execute(sa.text("SELECT 1"))

            async with own.running(), engine.begin() as conn:
                await own.asend(conn, "t", object_id="a")
            async with own.running():
                await until(lambda: table.statuses == [2], "done")

    asyncio.run(main())


def test_the_url_of_an_async_engine_is_that_of_our_driver(subtests):
    from sqlalchemy.engine import make_url

    from msgworker.db.engine import plain_url

    for url, plain in (
        (
            "postgresql+asyncpg://u:p@h/n?ssl=require&prepared_statement_cache_size=0&port=1",
            "postgresql+psycopg://u:p@h/n?port=1&sslmode=require",
        ),
        ("postgresql+psycopg://u:p@h/n", "postgresql+psycopg://u:p@h/n"),
        ("mysql+asyncmy://u:p@h/n?charset=utf8mb4", "mysql+pymysql://u:p@h/n?charset=utf8mb4"),
        ("mariadb+aiomysql://u:p@h/n", "mariadb+pymysql://u:p@h/n"),
        (
            "oracle+oracledb_async://u:p@h/?service_name=n",
            "oracle+oracledb://u:p@h/?service_name=n",
        ),
        ("sqlite+aiosqlite:////tmp/a.db", "sqlite:////tmp/a.db"),
    ):
        with subtests.test(url=url, plain=plain):
            found = plain_url(make_url(url))
            assert found.set(query=sorted(found.query.items())) == make_url(plain)


def test_what_an_app_cannot_take_over_of_an_async_engine_is_said():
    pytest.importorskip("asyncpg")
    engine = create_async_engine("postgresql+asyncpg://u:secret@h/n?command_timeout=5")
    with pytest.raises(ConfigError, match=r"command_timeout.*postgresql\+psycopg") as raised:
        App(engine)
    assert "secret" not in str(raised.value)
    with pytest.raises(ConfigError, match="in-memory"):
        App(create_async_engine("sqlite+aiosqlite://"))
