"""Handlers that take longer than they may."""

from __future__ import annotations

import contextlib
import threading
import time

import pytest
import sqlalchemy as sa
from tenacity.wait import wait_fixed, wait_none

from msgworker import Context, Message, Reject
from msgworker.errors import HandlerError, HandlerStuck
from tests.support.databases import SQLITE
from tests.support.leases import leases
from tests.support.logged import assert_facts
from tests.support.rows import Table, send
from tests.support.waiting import launched, until
from tests.support.watching import breathe


def test_async_handler_that_fails_and_one_over_its_timeout(app, table):
    import asyncio

    @app.handler("fails", wait=wait_fixed(3600))
    async def fails(msg: Message) -> None:
        raise ValueError("async")

    @app.handler("hangs", timeout=0.05, wait=wait_fixed(3600))
    async def hangs(msg: Message) -> None:
        await asyncio.Event().wait()

    send(app, "o", topic="fails")
    send(app, "p", topic="hangs")
    assert app.drain(linger=0).retried == 2
    first, second = table.column("last_error")
    assert "ValueError: async" in first
    assert "timeout" in second


def test_an_async_handler_that_blocks_or_swallows_the_cancel_fails_at_its_timeout(app, table):
    import asyncio

    @app.handler("blocks", timeout=0.05, wait=wait_fixed(3600))
    async def blocks(msg: Message) -> None:
        time.sleep(0.2)

    @app.handler("swallows", timeout=0.05, wait=wait_fixed(3600))
    async def swallows(msg: Message) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()

    @app.handler("rejects", timeout=0.05)
    async def rejects(msg: Message) -> Reject:
        time.sleep(0.2)
        return Reject("no such contract")

    send(app, "o", topic="blocks")
    send(app, "p", topic="swallows")
    send(app, "q", topic="rejects")
    report = app.drain(linger=0)
    assert (report.done, report.retried, report.failed) == (0, 2, 1)
    first, second, third = table.column("last_error")
    assert "HandlerTimeout: timeout: the handler took" in first
    assert "HandlerTimeout: timeout: the handler took" in second
    assert "no such contract" in third


@pytest.mark.parametrize("kind", ["async", "plain"])
def test_an_error_after_the_timeout_is_a_timeout_that_tells_the_error_too(app, table, kind):
    import asyncio

    if kind == "async":

        @app.handler("t", timeout=0.05, wait=wait_fixed(3600))
        async def handle(msg: Message) -> None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                raise ValueError("no connection to give back") from None

    else:

        @app.handler("t", timeout=0.05, wait=wait_fixed(3600))
        def handle(msg: Message) -> None:
            time.sleep(0.1)
            raise ValueError("no connection to give back")

    send(app, "o")
    assert app.drain(linger=0).retried == 1
    (text,) = table.column("last_error")
    assert text.startswith("HandlerTimeout: timeout: the handler took ")
    assert "s, its limit is 0.05 s; then it raised ValueError: no connection to give back" in text


def test_handler_over_its_timeout_is_told_and_its_try_fails(app_with, caplog):
    app = app_with(lease_seconds=6.0)

    @app.handler("t", timeout=0.05, wait=wait_fixed(3600))
    def handle(msg: Message, ctx: Context) -> None:
        until(lambda: ctx.cancelled, "told to end")

    send(app, "o")
    report = app.drain(linger=0)
    assert (report.done, report.retried) == (0, 1)
    row = Table(app).one("status", "error_try_times", "last_error")
    assert row[:2] == (-1, 1)
    assert "timeout" in row[2]
    assert_facts(caplog, "longer than its timeout")


def test_a_transactional_handler_that_returns_after_its_timeout_has_done_nothing(app, table):
    wrote = sa.Table("wrote", sa.MetaData(), sa.Column("n", sa.Integer))
    wrote.create(app.engine)

    @app.handler("t", transactional=True, timeout=0.05, wait=wait_fixed(3600))
    def handle(msg: Message, ctx: Context) -> None:
        ctx.connection.execute(wrote.insert().values(n=1))
        until(lambda: ctx.cancelled, "told to end")

    send(app, "o")
    assert app.drain(linger=0).retried == 1
    assert table.one("status", "error_try_times") == (-1, 1)
    assert "HandlerTimeout: timeout: its limit is 0.05 s; rolled back" in table.one("last_error")
    with app.engine.connect() as conn:
        assert conn.execute(sa.select(wrote)).all() == []


@pytest.fixture
def hangs(app_with):
    """An App whose handler "hangs" runs, longer than it may, until the event that comes with it."""
    app = app_with(lease_seconds=6.0)
    end = threading.Event()
    app.add_handler(
        "hangs", lambda msg: end.wait(60), timeout=0.05, timeout_action="restart", wait=wait_none()
    )
    app.add_handler("t", lambda msg: breathe())
    yield app, end
    end.set()


def test_a_worker_in_the_background_says_why_it_ended_and_can_be_started_again(hangs):
    app, end = hangs
    send(app, "o", topic="hangs")
    with launched(app.worker(threads=2)) as worker:
        assert worker.error is None
        until(lambda: worker.instance_id is None, "it has left")
        assert isinstance(worker.error, HandlerStuck)
        end.set()
        worker.start()
        assert worker.error is None
        (again,) = send(app, "p")
        until(lambda: app.ops.show(again).status == "done", "it works again")
    assert worker.error is None


@pytest.mark.long
@pytest.mark.parametrize("way", ["run", "drain"])
def test_instance_leaves_for_a_handler_that_hangs_and_others_recover(hangs, make_app, way):
    app, end = hangs
    table = Table(app)
    (stuck,) = send(app, "o", topic="hangs")
    with pytest.raises(HandlerStuck, match=f"message {stuck}"):
        getattr(app.worker(threads=2), way)()
    assert table.one("claimed_by") in leases(app)  # left to expire: then the crash is counted
    assert table.one("status", "error_try_times") == (1, 0)
    other = make_app(lease_seconds=6.0)
    other.add_handler("hangs", lambda msg: None)
    with launched(other.worker(threads=1)):
        until(lambda: table.statuses == [2], "the heir has done it")
    assert table.one("error_try_times", "crash_times") == (1, 1)
    end.set()


def test_worker_in_the_background_leaves_too_and_gives_back_the_rest(hangs):
    app, _end = hangs
    table = Table(app)
    send(app, "o", topic="hangs")
    worker = launched(app.worker(threads=1))
    until(lambda: table.statuses == [1], "it hangs")
    behind = send(app, "o", "p", "q")
    until(lambda: worker.instance_id is None, "it has left")
    until(lambda: table.rows("status")[1:] == [(0,)] * len(behind), "the rest is given back")


@SQLITE
def test_bad_timeout_actions_are_refused(app, subtests):
    for options in ({"timeout_action": "restart"}, {"timeout": 1, "timeout_action": "kill"}):
        with subtests.test(options=options), pytest.raises(HandlerError, match="timeout"):
            app.add_handler("t", lambda msg: None, **options)
