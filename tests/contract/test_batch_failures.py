"""`ctx.fail` fails one message of a batch; the others go on."""

from __future__ import annotations

from typing import Any

import pytest
from tenacity.wait import wait_fixed, wait_none

from msgworker import App, BatchContext, HandlerMisuse, Message, Reject, RetryLater
from msgworker.events import Dead, Later, Retried
from msgworker.testing import drain
from tests.support.batches import Calls, claimed
from tests.support.rows import Table, send
from tests.support.waiting import until


@pytest.fixture
def calls(app: App) -> Calls:
    return Calls(app)


def test_one_that_is_failed_gets_a_try_and_holds_back_what_follows_it(
    app: App, calls: Calls, table: Table
) -> None:
    calls.add(transactional=True, batch=500, wait=wait_fixed(3600))
    ids = send(app, "a", "a", "a", "a", "b", "b", None)
    calls.names = {ids[2]: ValueError("no address")}
    told: list[Any] = []
    app.on(Retried, told.append)
    report = drain(app)
    assert (report.done, report.retried) == (5, 1)
    assert calls.of == [ids, [*ids[:2], *ids[4:]]]
    assert calls.effects == [*ids[:2], *ids[4:]]
    assert table.column("status") == [2, 2, -1, 0, 2, 2, 2]
    assert table.column("error_try_times") == [0, 0, 1, 0, 0, 0, 0]
    assert table.column("last_error")[2].startswith("ValueError: no address")
    assert [(e.message.msg_id, type(e.raised)) for e in told] == [(ids[2], ValueError)]
    (one_try,) = app.ops.show(ids[2]).tries
    assert one_try.error.startswith("ValueError: no address")


def test_a_failed_head_leaves_the_batch(app: App, calls: Calls, table: Table) -> None:
    calls.add(transactional=True, batch=500)
    ids = send(app, "a", "a", "b")
    calls.names = {ids[0]: ValueError("no")}
    assert drain(app).done == 1
    assert calls.of == [ids, ids[2:]]
    assert table.column("status") == [-1, 0, 2]
    assert calls.effects == ids[2:]


def test_where_all_are_failed_nothing_is_called_again(app: App, calls: Calls, table: Table) -> None:
    calls.add(transactional=True, batch=500)
    ids = send(app, "a", "b")
    calls.names = dict.fromkeys(ids, ValueError("no"))
    assert drain(app).retried == 2
    assert calls.of == [ids]
    assert calls.effects == []


def test_a_message_alone_is_failed_as_if_it_had_raised(
    app: App, calls: Calls, table: Table
) -> None:
    calls.add(transactional=True, batch=500, wait=wait_none())
    (only,) = send(app, "a")
    calls.names = {only: ValueError("no")}
    report = drain(app)
    assert (report.failed, report.retried) == (1, 2)
    assert calls.of == [[only]] * 3
    assert [ctx.attempt for ctx in calls.contexts] == [1, 2, 3]
    assert calls.effects == []


@pytest.mark.parametrize("options", [{"transactional": True}, {}])
def test_reject_and_retry_later_mean_what_they_mean_when_raised(
    app: App, calls: Calls, table: Table, options: dict[str, Any]
) -> None:
    calls.add(batch=500, **options)
    ids = send(app, "a", "b", "c")
    calls.names = {ids[0]: Reject("never"), ids[1]: RetryLater(3600)}
    told: list[Any] = []
    app.on(Dead, told.append)
    app.on(Later, told.append)
    assert drain(app).done == 1
    assert sorted(event.message.msg_id for event in told) == ids[:2]
    assert table.rows("status", "error_try_times") == [(-1, 3), (0, 0), (2, 0)]


def test_a_handler_that_names_others_again_and_again_is_not_called_without_end(
    app: App, calls: Calls, table: Table
) -> None:
    """Each call names another one: after a few calls the rest runs message by message."""
    calls.add(transactional=True, batch=500)
    ids = send(app, *["o"] * 8)

    class TheLast(dict):  # type: ignore[type-arg]
        def __contains__(self, msg_id: object) -> bool:
            return len(calls.of[-1]) > 1 and msg_id == calls.of[-1][-1]

        def __getitem__(self, msg_id: int) -> Exception:
            return ValueError("no")

    calls.names = TheLast()
    report = drain(app)
    assert (report.done, report.retried) == (8, 0)
    assert [len(call) for call in calls.of] == [8, 7, 6, 5] + [1] * 8
    assert calls.effects == ids


def test_a_failure_named_before_a_stop_is_written_by_the_stop(
    app: App, calls: Calls, table: Table
) -> None:
    calls.add(transactional=True, batch=500)
    ids = send(app, "a", "a", "a")
    calls.names = {ids[1]: ValueError("no")}
    with claimed(app) as (one, _):
        lane = one.lanes.next()
        assert lane is not None
        (ended,) = one.batches.handle_beside(lane) or []
        one.settler.add(ended, True)
        assert table.column("status") == [2, 1, 0]
    assert table.column("status") == [2, -1, 0]
    assert table.column("last_error")[1].startswith("ValueError: no")


def test_a_failure_named_before_its_topic_was_paused_is_written(
    app: App, calls: Calls, table: Table
) -> None:
    calls.add(transactional=True, batch=500)
    ids = send(app, "a", "a", "a")
    calls.names = {ids[1]: ValueError("no")}
    with claimed(app) as (one, _):
        lane = one.lanes.next()
        assert lane is not None
        (ended,) = one.batches.handle_beside(lane) or []
        one.settler.add(ended, True)
        one.runtime.paused = frozenset({"t"})
        one.handlers.start()
        until(lambda: not one.lanes.ready and not one.runtime.hand.lanes, "it is written")
        one.lanes.close()
        assert one.handlers.join(10)
    assert table.rows("status", "error_try_times") == [(2, 0), (-1, 1), (0, 0)]


def test_the_next_message_that_is_gone_takes_its_failure_with_it(
    app: App, calls: Calls, table: Table
) -> None:
    ids = send(app, "a", "a", "a")

    def discarding(messages: list[Message], ctx: BatchContext) -> None:
        calls.of.append([message.msg_id for message in messages])
        if len(messages) == 3:
            ctx.fail(messages[1], ValueError("no"))
        else:
            t = app.tables
            change = t.message.update().where(t.message.c.msg_id == ids[1])
            ctx.connection.execute(change.values(status=-1, error_try_times=3))

    app.add_handler("t", discarding, transactional=True, batch=10)
    with claimed(app) as (one, _):
        lane = one.lanes.next()
        assert lane is not None
        (ended,) = one.batches.handle_beside(lane) or []
        assert ended.settled is False
        one.settler.add(ended, True)
    assert table.rows("status", "error_try_times") == [(2, 0), (-1, 3), (0, 0)]


WRONG = {
    "another batch": (lambda ms: (Message(10**9, "o", "t", None), ValueError()), "of this batch"),
    "no message": (lambda ms: ("x", ValueError()), "of this batch"),
    "an id": (lambda ms: (ms[0].msg_id, ValueError()), "of this batch"),
    "no exception": (lambda ms: (ms[0], "no address"), "takes an exception"),
    "a type": (lambda ms: (ms[0], ValueError), "takes an exception"),
    "an interrupt": (lambda ms: (ms[0], KeyboardInterrupt()), "takes an exception"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_bad_failures_say_what_to_do(sqlite_app: App, wrong: str) -> None:
    made, text = WRONG[wrong]
    raised: list[str] = []

    @sqlite_app.handler("t", batch=10)
    def handle(messages: list[Message], ctx: BatchContext) -> None:
        with pytest.raises(HandlerMisuse) as misuse:
            ctx.fail(*made(messages))  # type: ignore[arg-type]
        raised.append(str(misuse.value))

    send(sqlite_app, "a", "b")
    assert drain(sqlite_app).done == 2
    assert text in raised[0]


def test_one_message_is_failed_once_and_before_the_handler_returns(sqlite_app: App) -> None:
    kept: list[Any] = []

    @sqlite_app.handler("t", batch=10, wait=wait_fixed(3600))
    def handle(messages: list[Message], ctx: BatchContext) -> None:
        ctx.fail(messages[0], ValueError())
        with pytest.raises(HandlerMisuse, match="failed already"):
            ctx.fail(messages[0], ValueError())
        kept.extend((ctx, messages[1]))

    send(sqlite_app, "a", "b")
    assert drain(sqlite_app).done == 1
    ctx, message = kept[:2]
    with pytest.raises(HandlerMisuse, match="after the handler has returned"):
        ctx.fail(message, ValueError())
