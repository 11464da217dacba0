"""Tries, retries and dead messages."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tenacity.wait import (
    wait_base,
    wait_chain,
    wait_exponential,
    wait_fixed,
    wait_incrementing,
    wait_none,
)

from msgworker import Context, Message, MessageTable, Reject, RetryLater
from tests.support.apps import created
from tests.support.databases import SQLITE
from tests.support.rows import Table, send

DEAD, FAILED, LATER = (-1, 3), (-1, 1), (0, 0)
"""status and error_try_times after a try."""


@pytest.mark.quick
@pytest.mark.core
def test_three_tries_then_dead(app, table):
    attempts: list[int] = []

    @app.handler("t", wait=wait_none())
    def handle(msg: Message, ctx: Context) -> None:
        attempts.append(ctx.attempt)
        assert msg.error_try_times == ctx.attempt - 1
        raise ValueError("broken \u2603")

    send(app, "o")
    report = app.drain(linger=1)
    assert attempts == [1, 2, 3]
    assert (report.failed, report.retried, report.left, report.exit_code) == (1, 2, 0, 1)
    assert table.one("status", "error_try_times", "claimed_by") == (-1, 3, None)
    assert "ValueError: broken \u2603" in table.one("last_error")


@pytest.mark.core
def test_reject_is_dead_at_once(app, table):
    @app.handler("raised")
    def raised(msg: Message) -> None:
        raise Reject("no such customer")

    @app.handler("returned")
    def returned(msg: Message) -> Reject:
        return Reject("nor this one")

    send(app, "o", topic="raised")
    send(app, "p", topic="returned")
    report = app.drain(linger=0)
    assert (report.failed, report.retried, report.left) == (2, 0, 0)
    assert table.rows("status", "error_try_times") == [(-1, 3), (-1, 3)]
    first, second = table.column("last_error")
    assert "no such customer" in first
    assert "nor this one" in second


@SQLITE
@pytest.mark.parametrize(
    ("errors", "status", "error"),
    [
        ([Reject("no tariff")], DEAD, "rejected: no tariff"),
        ([RetryLater(600, "closed")], LATER, "retry later: closed"),
        ([RetryLater(600), Reject("no tariff")], DEAD, "rejected: no tariff"),
        ([KeyError("tariff")], FAILED, "KeyError: 'tariff'"),
        ([Reject("no"), OSError("away")], FAILED, "Reject: no; OSError: away"),
    ],
)
def test_a_group_of_errors_is_what_it_holds(app, table, errors, status, error):
    """As asyncio.TaskGroup raises one, also for a single error."""

    @app.handler("t", wait=wait_fixed(3600))
    async def handle(msg: Message) -> None:
        async def call(one: Exception) -> None:
            await asyncio.sleep(0)
            raise one

        async with asyncio.TaskGroup() as group:
            for one in errors:
                group.create_task(call(one))

    send(app, "o")
    app.drain(linger=0)
    assert table.one("status", "error_try_times") == status
    assert error in table.one("last_error")


@SQLITE
def test_a_returned_class_is_judged_as_a_raised_one(app, table):
    app.add_handler("reject", lambda msg: Reject)
    app.add_handler("later", lambda msg: RetryLater)
    for topic in ("reject", "later"):
        send(app, topic, topic=topic)
    app.drain(linger=0)
    assert table.rows("status", "error_try_times") == [DEAD, LATER]


def test_retry_later_is_not_counted(app, table):
    seen: list[int] = []

    @app.handler("t")
    def handle(msg: Message, ctx: Context) -> None:
        seen.append(ctx.attempt)
        if len(seen) < 5:
            raise RetryLater(after=0)

    send(app, "o")
    report = app.drain(linger=1)
    assert seen == [1] * 5
    assert (report.done, report.failed, report.retried) == (1, 0, 0)
    assert table.one("status", "error_try_times") == (2, 0)


def test_retry_later_waits(app, table):
    app.add_handler("t", lambda msg: RetryLater(after=timedelta(minutes=10)))
    send(app, "o")
    assert app.drain(linger=0).left == 1
    status, tries, at = table.one("status", "error_try_times", "available_at")
    assert (status, tries) == (0, 0)
    assert timedelta(minutes=5) < at - datetime.now(UTC) < timedelta(minutes=15)


def test_retry_later_is_told_while_it_waits_and_is_no_error(app, table, caplog):
    caplog.set_level("INFO", "msgworker")
    asked = [RetryLater(0, "the bank sleeps"), RetryLater(600, "it is closed")]
    app.add_handler("t", lambda msg: asked.pop(0) if asked else None)
    (only,) = send(app, "o")
    assert app.drain(linger=1).left == 1
    told = [record for record in caplog.records if "due again in" in record.getMessage()]
    assert [(record.levelname, record.getMessage()) for record in told] == [
        ("INFO", f"message {only} due again in 0 s (postponed 1 time): the bank sleeps"),
        ("INFO", f"message {only} due again in 600 s (postponed 2 times): it is closed"),
    ]
    for info in (app.ops.show(only), *app.ops.find(status="new")):
        assert (info.later_times, info.later_reason) == (2, "it is closed")
        assert info.last_error is None
    explained = app.ops.explain(only)
    assert explained.text == "its handler postponed it (2 so far): it is closed"
    assert explained.until is not None
    table.edit(available_at=None)
    assert app.drain(linger=0).done == 1
    done = app.ops.show(only)
    assert (done.status, done.later_times, done.last_error) == ("done", 2, None)


def test_retry_later_is_capped(make_app):
    app = created(make_app(table=MessageTable(later_limit=2)))
    calls: list[int] = []

    @app.handler("t")
    def handle(msg: Message) -> None:
        calls.append(msg.error_try_times)
        raise RetryLater(after=0)

    send(app, "o")
    report = app.drain(linger=1)
    assert (report.failed, report.left) == (1, 0)
    # Two `RetryLater` without a try, then each one is a failed try.
    assert calls == [0, 0, 0, 1, 2]
    assert "RetryLater" in Table(app).one("last_error")


def test_retry_later_after_a_failure_goes_back_to_failed(app, table):
    @app.handler("t", wait=wait_none())
    def handle(msg: Message, ctx: Context) -> None:
        if ctx.attempt == 1:
            raise ValueError("first")
        raise RetryLater(after=3600)

    send(app, "o")
    app.drain(linger=1)
    assert table.one("status", "error_try_times", "claimed_by") == (-1, 1, None)


class Seen(wait_base):
    """A wait strategy that remembers what it was asked."""

    def __init__(self) -> None:
        self.attempts: list[int] = []
        self.errors: list[BaseException | None] = []

    def __call__(self, retry_state: Any) -> float:
        self.attempts.append(retry_state.attempt_number)
        self.errors.append(retry_state.outcome.exception())
        return 0.0


def test_wait_strategy_is_asked_with_the_attempt_and_the_error(app):
    wait = Seen()

    @app.handler("t", wait=wait)
    def handle(msg: Message) -> None:
        raise KeyError("x")

    send(app, "o")
    app.drain(linger=1)
    assert wait.attempts[:2] == [1, 2]
    assert isinstance(wait.errors[0], KeyError)


def test_back_off_is_a_tenacity_wait_strategy(app, table):
    def fail(msg: Message) -> None:
        raise ValueError("x")

    waits = (
        wait_fixed(1000),
        wait_incrementing(start=1000, increment=500),
        wait_chain(wait_fixed(1000), wait_fixed(2000)),
        wait_fixed(500) + wait_fixed(500),
        wait_exponential(multiplier=1000, max=4000),
    )
    for number, wait in enumerate(waits):
        app.add_handler(f"t{number}", fail, wait=wait)
        send(app, None, topic=f"t{number}")
    app.drain(linger=0)
    rows = table.rows("status", "error_try_times", "available_at")
    assert [row[:2] for row in rows] == [(-1, 1)] * len(waits)
    for wait, (*_, at) in zip(waits, rows, strict=True):
        assert 840 < (at - datetime.now(UTC)).total_seconds() < 1100, wait


def test_on_dead_continue_goes_on_behind_the_dead_one(app, table):
    @app.handler("t", wait=wait_none())
    def handle(msg: Message) -> None:
        if msg.payload == "bad":
            raise ValueError("bad")

    send(app, "o", payload="bad")
    send(app, "o", "o", payload="good")
    report = app.drain(linger=1)
    assert (report.done, report.failed, report.left) == (2, 1, 0)
    assert table.statuses == [-1, 2, 2]


def test_on_dead_block_waits_for_ops(blocking_app):
    app, table = blocking_app, Table(blocking_app)
    broken = [True]

    @app.handler("t", wait=wait_none())
    def handle(msg: Message) -> None:
        if msg.payload == "bad" and broken[0]:
            raise ValueError("bad")

    (bad,) = send(app, "o", payload="bad")
    send(app, "o", "p", payload="good")
    report = app.drain(linger=1)
    assert (report.done, report.failed) == (1, 1)
    assert table.statuses == [-1, 0, 2]
    broken[0] = False
    assert app.ops.rerun([bad]) == 1
    assert app.drain(linger=0).done == 2
    assert table.statuses == [2, 2, 2]


@pytest.mark.core
def test_rerun_starts_again_from_zero(app, table):
    broken = [True]

    @app.handler("t", wait=wait_none())
    def handle(msg: Message) -> None:
        if broken[0]:
            raise ValueError

    (msg_id,) = send(app, "o")
    app.drain(linger=1)
    assert table.one("status", "error_try_times") == (-1, 3)
    assert app.ops.rerun([msg_id], dry_run=True) == 1
    assert table.one("status", "error_try_times") == (-1, 3)
    assert app.ops.rerun([msg_id]) == 1
    assert table.one("status", "error_try_times", "crash_times", "claimed_by") == (0, 0, 0, None)
    assert app.ops.rerun([msg_id]) == 0  # new already
    broken[0] = False
    assert app.drain(linger=0).done == 1
    assert app.ops.rerun([msg_id]) == 0  # done: only with force
    assert app.ops.rerun([msg_id], force=True) == 1
    assert app.drain(linger=0).done == 1


def test_claimed_by_is_empty_on_every_way_out_of_processing(app, table):
    @app.handler("t", wait=wait_fixed(3600))
    def handle(msg: Message) -> None:
        if msg.payload == "fail":
            raise ValueError
        if msg.payload == "reject":
            raise Reject
        if msg.payload == "later":
            raise RetryLater(3600)

    for payload in ("done", "fail", "reject", "later"):
        send(app, payload, payload=payload)
    app.drain(linger=0)
    assert table.statuses == [2, -1, -1, 0]
    assert table.column("claimed_by") == [None] * 4
