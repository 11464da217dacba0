"""What ends a fan-out: a lost claim, a stop, a timeout."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import suppress
from typing import Any

import pytest
from tenacity.wait import wait_fixed

from msgworker import (
    App,
    Context,
    HandlerMisuse,
    HandlerTimeout,
    LostClaim,
    Message,
    MessageTable,
    Reject,
    RetryLater,
)
from msgworker.instance.fan_out.items import BATCH
from msgworker.instance.liveness.lease import Heartbeat, OwnLease
from msgworker.instance.liveness.watchdog import Watchdog
from msgworker.store import lease
from tests.support.apps import created
from tests.support.databases import SQLITE
from tests.support.fan_out import DONE, Fan, Ran, Trying, records, take_over
from tests.support.rounds import trust_until
from tests.support.rows import Table, send
from tests.support.waiting import in_thread, launched, until


def item_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("msgworker-item")]


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


def test_a_lost_lease_stops_new_items_and_the_next_instance_runs_the_rest(app_with, monkeypatch):
    monkeypatch.setattr(Watchdog, "lease_over", lambda self: None)  # the heartbeat tells them
    app = app_with(lease_seconds=6.0, poll_seconds=0.02)
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
    with launched(app.worker(threads=1)) as worker:
        until(lambda: trying.results, "the second try is through")
    assert isinstance(trying.errors[0], LostClaim)
    assert trying.results[0].done == 200
    assert max(ran.counts.values()) <= 2
    assert len(ran.items) < 300


def test_a_lease_that_may_be_over_stops_new_items_and_counts_no_try(app_with, monkeypatch):
    """The watchdog tells the handlers before the heartbeat knows whether the lease is lost."""
    silent, waiting, gate = threading.Event(), threading.Event(), threading.Event()
    re_register, renew = Heartbeat.re_register, OwnLease.renew

    def later(self: Heartbeat) -> None:
        if silent.is_set():  # else its own lease was lost, on a machine that is very slow
            waiting.set()
            assert gate.wait(60)
        re_register(self)

    def lost(self: OwnLease, *asked: Any, **more: Any) -> bool:
        return not silent.is_set() and renew(self, *asked, **more)

    monkeypatch.setattr(Heartbeat, "re_register", later)
    monkeypatch.setattr(OwnLease, "renew", lost)
    app = app_with(lease_seconds=6.0, poll_seconds=0.02)
    table, ran = Table(app), Ran()

    def act(n: int) -> None:
        ran(n)
        assert worker.instance is not None
        if len(ran.items) == 30:
            silent.set()
        while silent.is_set() and not trying.errors:
            # As after a long silence; a renewal that was under way would put it right.
            trust_until(worker.instance.shared.identity, 0.0)
            if waiting.wait(0.02):
                time.sleep(0.05)
                break

    trying = Trying(app, lambda ctx: ctx.fan_out(act, range(200), threads=1))
    with launched(app.worker(threads=1)) as worker:
        until(lambda: trying.errors, "the items were stopped")
        name = worker.instance_id
        until(lambda: table.statuses == [0], "the message is given back")
        assert table.one("error_try_times") == 0
        stopped_at = len(ran.items)
        assert len(records(app)) == stopped_at < 200
        silent.clear()
        gate.set()
        until(lambda: trying.results, "the rest is through")
        assert worker.instance_id != name
    assert isinstance(trying.errors[0], RetryLater)
    assert trying.results[0].done == 200
    assert ran.counts == {n: 1 for n in range(200)}


@pytest.mark.parametrize(
    "columns",
    [{}, {"later_times": None}, {"later_limit": 0}],
    ids=["ours", "no later_times", "later_times at its limit"],
)
def test_a_stop_ends_new_items_and_counts_no_try(make_app, columns):
    app = created(make_app(table=MessageTable(**columns)))
    table, ran = Table(app), Ran()

    def act(n: int) -> None:
        ran(n)
        time.sleep(0.005 if len(ran.items) <= 20 or trying.errors else 0.05)

    trying = Trying(app, lambda ctx: ctx.fan_out(act, range(120), threads=2))
    worker = launched(app.worker(threads=1))
    until(lambda: len(ran.items) > 20, "items run")
    assert worker.stop(grace=30)
    assert isinstance(trying.errors[0], RetryLater)
    assert table.one("status", "error_try_times") == (0, 0)
    assert item_threads() == []
    stopped_at = len(ran.items)
    assert stopped_at < 120
    assert len(records(app)) == stopped_at  # what had ended is recorded
    trying.drain()
    assert trying.results[0].done == 120
    assert ran.counts == {n: 1 for n in range(120)}


class Unsettled(Exception):
    """What a handler makes of the error of its fan-out."""


def wraps(fan: Fan, ctx: Context) -> None:
    try:
        fan(ctx)
    except Exception as error:
        raise Unsettled from error


def swallows(fan: Fan, ctx: Context) -> None:
    with suppress(Exception):
        fan(ctx)


def postpones(fan: Fan, ctx: Context) -> Any:
    try:
        fan(ctx)
    except RetryLater:
        return RetryLater(3600)


def in_a_group(fan: Fan, ctx: Context) -> None:
    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.to_thread(fan, ctx))

    asyncio.run(main())


def rejects(fan: Fan, ctx: Context) -> None:
    try:
        fan(ctx)
    except RetryLater as error:
        raise Reject("no tariff") from error


def stopped_in(app: App, handle: Any) -> Ran:
    """The items of a message whose fan-out a stop has ended, in this handler."""
    ran, asked = Ran(), threading.Event()

    def fan(ctx: Context) -> Any:
        def act(n: int) -> None:
            ran(n)
            if not asked.is_set():
                asked.set()
                worker.stop()  # from within: it asks, and returns at once
                until(lambda: ctx.cancelled, "the stop has begun")

        return ctx.fan_out(act, range(10), threads=1)

    app.add_handler("t", lambda msg, ctx: handle(fan, ctx))
    send(app, "o")
    worker = app.worker(threads=1)
    worker.run()
    assert len(ran.items) < 10
    return ran


@SQLITE
@pytest.mark.parametrize("handle", [wraps, swallows, postpones, in_a_group])
def test_a_stop_in_a_fan_out_counts_no_try_whatever_its_handler_does(app, table: Table, handle):
    ran = stopped_in(app, handle)
    assert table.one("status", "error_try_times", "later_times") == (0, 0, 0)
    app.drain(linger=0)
    assert table.statuses == [2]
    assert ran.counts == {n: 1 for n in range(10)}


@SQLITE
def test_a_handler_that_rejects_after_a_stop_in_its_fan_out_is_dead(app, table: Table):
    stopped_in(app, rejects)
    assert table.one("status", "last_error") == (-1, "rejected: no tariff")


@pytest.mark.parametrize("transactional", [False, True])
def test_an_item_that_raises_lost_claim_itself_has_failed(app, table: Table, transactional):
    def act(n: int, *rest: Any) -> None:
        raise LostClaim(n, "of another program")

    def fan(ctx: Context) -> None:
        ctx.fan_out(act, [1], transactional_items=transactional).raise_for_failed()

    Trying(app, fan, max_tries=1).drain()
    assert "of another program" in table.one("last_error")
    assert table.statuses == [-1]


def test_a_handler_s_timeout_ends_new_items_and_waits_for_running_ones(app, table: Table):
    ran, gate = Ran(), threading.Event()

    def act(n: int) -> None:
        ran(n)
        assert gate.wait(60)

    trying = Trying(app, lambda ctx: ctx.fan_out(act, range(10), threads=2), timeout=2.0)
    join = in_thread(trying.drain)
    until(lambda: len(ran.items) == 2, "both threads are busy")
    begun = time.monotonic()
    until(lambda: time.monotonic() > begun + 2.2, "the time is over")
    assert table.statuses == [1]  # flagged until the last item has ended
    gate.set()
    join()
    assert isinstance(trying.errors[0], HandlerTimeout)
    assert len(ran.items) == 2
    assert {key: row[0] for key, row in records(app).items()} == {"0": DONE, "1": DONE}
    assert item_threads() == []


@pytest.mark.parametrize("raises", [False, True], ids=["returns", "raises"])
def test_a_fan_out_left_behind_ends_with_its_handler_and_fails_its_try(app, table: Table, raises):
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
        if raises:
            raise LookupError("no account")

    trying = Trying(app, forgetful, max_tries=1)
    trying.drain()
    error = "no account" if raises else "the handler ended while its fan-out ran"
    assert error in table.one("last_error")
    assert table.statuses == [-1]
    assert item_threads() == []
    until(lambda: found, "the thread has been told")
    assert "wait for it" in found[0]
    assert len(ran.items) < 10_000
    assert len(records(app)) == len(ran.items)


def test_a_fan_out_that_begins_after_its_handler_has_ended_runs_nothing(app):
    ran, over, found = Ran(), threading.Event(), []

    def forgetful(ctx: Context) -> None:
        def work() -> None:
            assert over.wait(60)
            try:
                ctx.fan_out(ran, range(100), threads=2)
            except HandlerMisuse as error:
                found.append(str(error))

        threading.Thread(target=work, daemon=True).start()

    trying = Trying(app, forgetful)
    trying.drain()
    over.set()
    until(lambda: found, "the thread has been told")
    assert "wait for it" in found[0]
    assert ran.items == []
    assert records(app) == {}


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
