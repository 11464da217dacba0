"""`ctx.fail` fails one message of a batch; the others go on."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase
from tenacity.wait import wait_fixed, wait_none

from msgworker import App, BatchContext, Context, HandlerMisuse, Message, Reject, RetryLater
from msgworker.events import Dead, FellBack, Later, Retried
from msgworker.instance.state import Controls
from msgworker.limit import Limit
from msgworker.message import Settled
from msgworker.testing import drain
from tests.support.batches import EFFECTS, Calls, claimed
from tests.support.rows import Table, send
from tests.support.waiting import until


class Base(DeclarativeBase):
    metadata = EFFECTS.metadata


class Effect(Base):
    __table__ = EFFECTS


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


class Nameless(type):
    @property
    def __name__(cls) -> str:  # type: ignore[override]
        raise RuntimeError("no name")


class Odd(Exception, metaclass=Nameless):
    pass


def test_a_failure_that_cannot_be_judged_makes_no_message_of_a_batch_done(
    app: App, calls: Calls, table: Table
) -> None:
    calls.add(batch=500)
    ids = send(app, "a", "b", "c")
    calls.names = {ids[1]: Odd("x")}
    assert drain(app).done == 2
    assert table.rows("status", "error_try_times") == [(2, 0), (-1, 1), (2, 0)]


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


@pytest.mark.parametrize("then", ["stop", "pause"])
def test_a_failure_named_before_a_stop_or_a_pause_is_written(
    app: App, calls: Calls, table: Table, then: str
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
        if then == "pause":
            one.shared.controls = Controls(frozenset({"t"}), {})
            one.handlers.start()
            until(lambda: not one.lanes.ready and not one.shared.in_flight.lanes, "it is written")
            one.lanes.close()
            assert one.handlers.join(10)
    assert table.rows("status", "error_try_times") == [(2, 0), (-1, 1), (0, 0)]
    assert table.column("last_error")[1].startswith("ValueError: no")


def test_a_batch_takes_no_message_that_needs_a_permit_behind_another(
    app: App, calls: Calls, table: Table
) -> None:
    calls.add(transactional=True, batch=500)
    ids = send(app, "a", "a", "a")
    with claimed(app) as (one, _):
        lane = one.lanes.next()
        assert lane is not None
        one.shared.controls = Controls(frozenset(), {"t": Limit(max_running=1)})
        (ended,) = one.batches.handle_beside(lane) or []
        one.settler.add(ended, True)
    assert calls.of == [ids[:1]]
    assert table.column("status") == [2, 0, 0]


def test_a_failure_named_after_its_topic_was_limited_takes_no_permit(
    app: App, calls: Calls, table: Table
) -> None:
    """The flag is the permit. Nothing of that message was committed: it runs again, with one."""
    calls.add(transactional=True, batch=500)
    ids = send(app, "a", "a", "a")
    calls.names = {ids[1]: ValueError("no")}
    with claimed(app) as (one, _):
        lane = one.lanes.next()
        assert lane is not None
        batch = one.batches.gathering.gather(lane)
        assert batch is not None
        one.shared.controls = Controls(frozenset(), {"t": Limit(max_running=1)})
        (ended,) = one.batches.handle(batch)
        assert calls.of == [ids, ids[:1]]
        assert ended.settled is Settled.ENDED
        one.settler.add(ended, True)
        assert not one.shared.in_flight.lanes
    assert table.rows("status", "error_try_times") == [(2, 0), (0, 0), (0, 0)]


def test_a_batch_flags_no_message_behind_it_whose_topic_was_paused(
    app: App, calls: Calls, table: Table
) -> None:
    calls.add(transactional=True, batch=2)
    send(app, "a", "a", "a")
    with claimed(app) as (one, _):
        lane = one.lanes.next()
        assert lane is not None
        batch = one.batches.gathering.gather(lane)
        assert batch is not None
        one.shared.controls = Controls(frozenset({"t"}), {})
        (ended,) = one.batches.handle(batch)
        assert ended.settled is Settled.ENDED
        one.settler.add(ended, True)
    assert table.column("status") == [2, 2, 0]


def test_a_failure_named_before_a_stop_at_once_is_written(
    app: App, calls: Calls, table: Table
) -> None:
    calls.add(transactional=True, batch=500)
    ids = send(app, "a", "a", "a", "b")
    calls.names = {ids[1]: ValueError("no")}
    told: list[Any] = []
    app.on(Retried, told.append)
    with claimed(app) as (one, (_, other)):
        lane = one.lanes.next()
        assert lane is not None
        one.lanes.take_back()
        (ended,) = one.batches.handle_beside(lane) or []
        one.settler.add(ended, True)
        one.lanes.put([other])
        one.release_unstarted()
        assert table.rows("status", "error_try_times") == [(2, 0), (-1, 1), (0, 0), (0, 0)]
    assert [event.message.msg_id for event in told] == [ids[1]]


@pytest.mark.parametrize("way", ["connection", "session"])
@pytest.mark.parametrize("first", ["named", "swallowed"])
def test_errors_that_follow_from_the_first_one_charge_no_other_message(
    app: App, calls: Calls, table: Table, way: str, first: str
) -> None:
    """After the first error the transaction, or the session, refuses every further statement."""
    ids = send(app, *"abcd")

    def handle(messages: list[Message], ctx: BatchContext) -> None:
        calls.of.append([message.msg_id for message in messages])
        for message in messages:
            try:
                if way == "session":
                    effect = Effect(msg_id=None if message.msg_id == ids[1] else message.msg_id)
                    ctx.session.add(effect)
                    ctx.session.flush()
                else:
                    value = "NULL" if message.msg_id == ids[1] else str(message.msg_id)
                    text = f"INSERT INTO {EFFECTS.name} (msg_id) VALUES ({value})"
                    ctx.connection.execute(sa.text(text))
            except Exception as error:
                if message.msg_id != ids[1] or first == "named":
                    ctx.fail(message, error)

    app.add_handler("t", handle, transactional=True, batch=100, wait=wait_fixed(3600))
    report = drain(app)
    breaks = way == "session" or app.engine.dialect.name == "postgresql"
    if first == "swallowed" and not breaks:
        assert report.done == 4  # its writes are undone by the database, and nothing else is
        return
    assert (report.done, report.retried) == (3, 1)
    assert table.rows("status", "error_try_times") == [(2, 0), (-1, 1), (2, 0), (2, 0)]
    assert calls.effects == [ids[0], *ids[2:]]
    again = [[ids[0], *ids[2:]]] if first == "named" else [[one] for one in ids]
    assert calls.of == [ids, *again]


def test_an_error_that_is_swallowed_does_not_make_a_batch_done(
    app: App, calls: Calls, table: Table
) -> None:
    """PostgreSQL refuses what follows it in the transaction."""
    ids = send(app, *"abc")

    def handle(messages: list[Message], ctx: BatchContext) -> None:
        calls.of.append([message.msg_id for message in messages])
        for message in messages:
            if message.msg_id == ids[2]:
                with pytest.raises(sa.exc.IntegrityError):
                    ctx.connection.execute(
                        sa.text(f"INSERT INTO {EFFECTS.name} (msg_id) VALUES (NULL)")
                    )
            else:
                ctx.connection.execute(EFFECTS.insert(), {"msg_id": message.msg_id})

    app.add_handler("t", handle, transactional=True, batch=100, wait=wait_fixed(3600))
    drain(app)
    broken = app.engine.dialect.name == "postgresql"
    assert table.rows("status", "error_try_times") == [(2, 0)] * 2 + [(-1, 1) if broken else (2, 0)]
    assert calls.of == ([ids, *([one] for one in ids)] if broken else [ids])
    assert calls.effects == ids[:2]


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
        assert ended.settled is Settled.ENDED
        one.settler.add(ended, True)
    assert table.rows("status", "error_try_times") == [(2, 0), (-1, 3), (0, 0)]


WRONG = {
    "another batch": (lambda ms: (Message(10**9, "o", "t", None), ValueError()), "of this batch"),
    "no message": (lambda ms: ("x", ValueError()), "of this batch"),
    "an id": (lambda ms: (ms[0].msg_id, ValueError()), "of this batch"),
    "no exception": (lambda ms: (ms[0], "no address"), 'takes an exception, got "no address";'),
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


@pytest.mark.parametrize("options", [{}, {"transactional": True, "group": 5}], ids=["one", "group"])
def test_the_context_of_one_message_says_that_its_error_is_raised(
    sqlite_app: App, options: dict[str, Any]
) -> None:
    raised: list[str] = []

    @sqlite_app.handler("t", **options)
    def handle(msg: Message, ctx: Context) -> None:
        with pytest.raises(HandlerMisuse) as misuse:
            ctx.fail(msg, ValueError())
        raised.append(str(misuse.value))

    send(sqlite_app, "a", "b")
    assert drain(sqlite_app).done == 2
    assert all("is for handlers with batch=" in text for text in raised)
    assert "raise the error" in raised[0]


def test_a_fan_out_in_a_transactional_batch_names_all_options_to_leave_out(sqlite_app: App) -> None:
    @sqlite_app.handler("t", batch=5, transactional=True)
    def handle(messages: list[Message], ctx: BatchContext) -> None:
        with pytest.raises(HandlerMisuse, match=r"leave out batch=\.\.\. and transactional=True"):
            ctx.fan_out(print, [1])

    send(sqlite_app, "a", "b")
    assert drain(sqlite_app).done == 2


@pytest.mark.parametrize("options", [{}, {"transactional": True}], ids=["plain", "transactional"])
def test_an_error_that_was_not_raised_has_the_place_of_its_fail(
    sqlite_app: App, options: dict[str, Any]
) -> None:
    def refuse(message: Message, ctx: BatchContext) -> None:
        ctx.fail(message, ValueError("negative amount"))

    @sqlite_app.handler("t", batch=10, wait=wait_fixed(3600), **options)
    def handle(messages: list[Message], ctx: BatchContext) -> None:
        for message in messages:
            if message.object_id == "b":
                refuse(message, ctx)

    ids = send(sqlite_app, "a", "b")
    assert drain(sqlite_app).retried == 1
    (one_try,) = sqlite_app.ops.show(ids[1]).tries
    assert "[test_batch_failures.py:" in one_try.error
    assert one_try.error.endswith(" in refuse]")
    assert "in handle" in one_try.traceback
    assert one_try.traceback.endswith("ValueError: negative amount")


@pytest.mark.quick("rollback")
@pytest.mark.parametrize("swallows", [True, False], ids=["goes on", "raises"])
@pytest.mark.parametrize("how", ["commit", "rollback", "close"])
def test_who_ends_the_transaction_of_a_batch_fails_its_heads_and_nothing_runs_again(
    sqlite_app: App, how: str, swallows: bool
) -> None:
    calls: list[list[int]] = []
    EFFECTS.create(sqlite_app.engine, checkfirst=True)

    @sqlite_app.handler("t", transactional=True, batch=10, wait=wait_fixed(3600))
    def handle(messages: list[Message], ctx: BatchContext) -> None:
        calls.append([message.msg_id for message in messages])
        rows = [{"msg_id": message.msg_id} for message in messages]
        ctx.connection.execute(EFFECTS.insert(), rows)
        getattr(ctx.connection, how)()
        if not swallows:
            ctx.connection.execute(EFFECTS.insert(), rows)

    ids = send(sqlite_app, "a", "a", "b")
    report = drain(sqlite_app)
    assert (report.done, report.retried) == (0, 2)
    assert calls == [ids]
    table = Table(sqlite_app)
    assert table.rows("status", "error_try_times") == [(-1, 1), (0, 0), (-1, 1)]
    for error in (table.column("last_error")[0], table.column("last_error")[2]):
        assert error.startswith("HandlerMisuse: the handler committed, rolled back or closed")
    (one_try,) = sqlite_app.ops.show(ids[0]).tries
    assert one_try.error.startswith("HandlerMisuse")


@pytest.mark.quick("group-rollback")
@pytest.mark.parametrize("how", ["commit", "rollback", "close"])
@pytest.mark.parametrize("options", [{}, {"group": 5}], ids=["one", "group"])
def test_who_ends_the_transaction_of_one_message_fails_with_that(
    sqlite_app: App, how: str, options: dict[str, Any]
) -> None:
    called: list[int] = []

    @sqlite_app.handler("t", transactional=True, wait=wait_fixed(3600), **options)
    def handle(msg: Message, ctx: Context) -> None:
        called.append(msg.msg_id)
        getattr(ctx.connection, how)()
        ctx.connection.execute(EFFECTS.select())

    ids = send(sqlite_app, "a", "b")
    assert drain(sqlite_app).retried == 2
    assert called == (ids[:1] if options else ids)  # the transaction of a group ends there
    errors = Table(sqlite_app).column("last_error")
    assert errors[0].startswith("HandlerMisuse: the handler committed, rolled back or closed")


def test_a_batch_that_falls_back_is_a_warning_once_and_says_why(
    sqlite_app: App, caplog: pytest.LogCaptureFixture
) -> None:
    @sqlite_app.handler("t", transactional=True, batch=8)
    def price(messages: list[Message], ctx: BatchContext) -> None:
        if len(messages) > 1:
            raise ValueError("more than one")

    caplog.set_level("INFO", "msgworker")
    told: list[Any] = []
    sqlite_app.on(FellBack, told.append)
    ids = send(sqlite_app, *[None] * 16)
    assert drain(sqlite_app).done == 16
    first, *others = [r for r in caplog.records if "runs alone" in r.getMessage()]
    assert first.levelname == "WARNING"
    assert {record.levelname for record in others} == {"INFO"}
    text = first.getMessage()
    assert " messages of topic t were rolled back (ValueError: more than one [test_" in text
    assert f" in price]); each runs alone: {ids[0]}, {ids[1]}, " in text
    assert text.endswith("(further ones of this handler are logged as INFO)")
    logged = [record.getMessage() for record in (first, *others)]
    assert all(event.error in text for event, text in zip(told, logged, strict=True))
    assert [m.msg_id for m in told[0].messages][:2] == ids[:2]
    assert {type(event.raised) for event in told} == {ValueError}
    assert "further ones" not in others[0].getMessage()
    assert first.exc_info is not None
    frame = first.exc_info[2]
    assert frame is not None
    assert frame.tb_frame.f_code.co_name == "price"


def test_the_message_of_a_group_that_raised_is_named(
    sqlite_app: App, caplog: pytest.LogCaptureFixture
) -> None:
    called: list[int] = []

    @sqlite_app.handler("t", transactional=True, group=5, wait=wait_none())
    def price(msg: Message, ctx: Context) -> None:
        called.append(msg.msg_id)
        if called.count(ids[1]) == 1 and msg.msg_id == ids[1]:
            raise ValueError("negative")

    ids = send(sqlite_app, "a", "b", "c")
    assert drain(sqlite_app).done == 3
    (record,) = [r for r in caplog.records if "runs alone" in r.getMessage()]
    assert f"(message {ids[1]}: ValueError: negative [" in record.getMessage()


def test_a_coroutine_that_was_returned_for_a_batch_is_told_as_itself(
    sqlite_app: App, caplog: pytest.LogCaptureFixture
) -> None:
    async def later() -> None:
        """Never awaited."""

    @sqlite_app.handler("t", batch=5, wait=wait_fixed(3600))
    def handle(messages: list[Message]) -> Any:
        return later()

    send(sqlite_app, "a", "b")
    assert drain(sqlite_app).retried == 2
    (record,) = [r for r in caplog.records if "runs alone" in r.getMessage()]
    assert "have no outcome (HandlerMisuse: the handler returned a coroutine" in record.getMessage()
    assert record.exc_info is not None
    assert record.exc_info[0] is HandlerMisuse


def test_a_value_that_a_batch_returns_is_told_with_the_way_to_fail_some(
    sqlite_app: App, caplog: pytest.LogCaptureFixture
) -> None:
    @sqlite_app.handler("t", batch=5)
    def handle(messages: list[Message]) -> Any:
        return {message.msg_id: False for message in messages}

    send(sqlite_app, "a", "b")
    assert drain(sqlite_app).done == 2
    (record,) = [r for r in caplog.records if "returned a dict" in r.getMessage()]
    assert "every message counts as done. To fail some: ctx.fail(message, error)" in (
        record.getMessage()
    )


def test_the_calls_after_a_failure_are_logged(
    sqlite_app: App, caplog: pytest.LogCaptureFixture
) -> None:
    @sqlite_app.handler("t", transactional=True, batch=20, wait=wait_fixed(3600))
    def handle(messages: list[Message], ctx: BatchContext) -> None:
        if len(messages) > 1:
            ctx.fail(messages[-1], ValueError("no"))

    caplog.set_level("INFO", "msgworker")
    ids = send(sqlite_app, *["a"] * 5, "b", "b")
    drain(sqlite_app)
    told = [r.getMessage() for r in caplog.records]
    text = f"message {ids[6]} failed; rolled back, 6 of 7 messages are called again (0 wait behind)"
    assert text in told
    (record,) = [r for r in caplog.records if "runs alone" in r.getMessage()]
    assert record.getMessage().startswith(
        "3 messages of topic t were rolled back (the handler named further ones in each of 4 calls)"
    )


def test_a_row_that_the_database_refuses_is_failed_from_a_savepoint(
    app: App, calls: Calls, table: Table
) -> None:

    @app.handler("t", transactional=True, batch=10, wait=wait_fixed(3600))
    def handle(messages: list[Message], ctx: BatchContext) -> None:
        for message in messages:
            row = {"msg_id": None if message.object_id == "b" else message.msg_id}
            try:
                with ctx.connection.begin_nested():
                    ctx.connection.execute(EFFECTS.insert(), row)
            except sa.exc.IntegrityError as error:
                ctx.fail(message, error)

    ids = send(app, "a", "b", "c")
    report = drain(app)
    assert (report.done, report.retried) == (2, 1)
    assert calls.effects == [ids[0], ids[2]]
    assert table.rows("status", "error_try_times") == [(2, 0), (-1, 1), (2, 0)]
