"""Cancel: messages that run, seen by the heartbeat of their instance."""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any

import pytest
import sqlalchemy as sa

from msgworker import App, BatchContext, Context, Message, MessageTable, Reject, RetryLater
from msgworker.events import Cancelled
from msgworker.instance.instance import Instance
from msgworker.instance.running.in_flight import Cancel, InFlight
from msgworker.store import change, controls, lease
from msgworker.store.controls import Request
from msgworker.store.rows import READ_AHEAD, Row
from tests.support.apps import created
from tests.support.leases import beat_now
from tests.support.ops import requested, why
from tests.support.rounds import beat, by_hand, fetch
from tests.support.rows import Table, edit, send
from tests.support.waiting import launched, until

GONE = "cancelled: wrong file (by anna)"


@pytest.fixture
def made_of() -> Iterator[Callable[[App], Instance]]:
    """Makes instances whose rounds are called by hand; no thread of them runs."""
    with ExitStack() as there:
        yield lambda app: there.enter_context(by_hand(app))


@pytest.fixture
def made(app: App, made_of: Callable[[App], Instance]) -> Callable[[], Instance]:
    return lambda: made_of(app)


@pytest.fixture
def cancelled(app: App) -> list[Any]:
    """What the events of cancelled messages say."""
    seen: list[Any] = []
    app.on(Cancelled, lambda e: seen.append((e.message.msg_id, e.message.topic, e.error)))
    return seen


@pytest.fixture
def concurrent(database: Any) -> None:
    """A database on which an operator writes while a transactional handler runs."""
    if database.name == "sqlite":
        pytest.skip("a transactional handler holds the only writer")


def step(one: Instance) -> None:
    """Handle and settle all that waits for a thread."""
    while one.lanes.ready:
        lane = one.lanes.next()
        assert lane is not None
        ended = one.batches.handle_beside(lane)
        if ended is None:
            one.caller.handle(lane)
            ended = [lane]
        for each in ended:
            one.settler.add(each, False)
        one.settler.flush_waiting()


def refuse_row(app: App, database: Any, condition: str) -> None:
    """Make a trigger that refuses an UPDATE."""
    before = "CREATE TRIGGER no BEFORE UPDATE ON msgworker_message FOR EACH ROW"
    with app.engine.begin() as conn:
        if database.name == "postgresql":
            conn.exec_driver_sql(
                "CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
                f"IF {condition} THEN RAISE EXCEPTION 'not this one'; END IF; RETURN NEW; END $$"
            )
            conn.exec_driver_sql(f"{before} EXECUTE FUNCTION no()")
        elif database.name == "sqlite":
            conn.exec_driver_sql(
                f"{before} WHEN {condition} BEGIN SELECT RAISE(ABORT, 'not this one'); END"
            )
        else:
            conn.exec_driver_sql(
                f"{before} BEGIN IF {condition} THEN SIGNAL SQLSTATE '45000' "
                "SET MESSAGE_TEXT = 'not this one'; END IF; END"
            )


def cancel(app: App, *ids: int) -> Any:
    return app.ops.cancel(list(ids), reason="wrong file", actor="anna")


def test_a_running_message_is_dead_when_its_handler_ends_after_the_request(
    app, table, made, subtests
):
    seen: list[Any] = []
    app.on(Cancelled, lambda event: seen.append(event.error))

    def handle(msg: Message, ctx: Context) -> None:
        assert (ctx.cancelled, ctx.cancel_reason) == (False, None)
        assert cancel(app, msg.msg_id).requested == 1
        beat(one)
        seen.append((ctx.cancelled, ctx.cancel_reason))
        if msg.topic == "raises":
            raise ValueError("x")
        if msg.topic == "retries later":
            raise RetryLater(5)

    ends = ("returns", "raises", "retries later")
    for end in ends:
        app.add_handler(end, handle)
    one = made()
    for end, payload in itertools.product(ends, (None, "x" * 2 * READ_AHEAD)):
        send(app, "o", topic=end, payload=payload)
        fetch(one)
        step(one)
        with subtests.test(end, long=payload is not None):
            assert seen == [(True, "wrong file"), GONE]
            roles = ("status", "error_try_times", "last_error", "claimed_by")
            assert table.rows(*roles)[-1] == (-1, 3, GONE, None)
            assert requested(app) != []
            beat(one)
            assert requested(app) == []
        seen.clear()
    assert app.ops.rerun() == 0


def test_a_message_that_has_not_started_ends_without_a_start(app, table, made, ran):
    app.add_handler("t", lambda msg: ran.append(msg.msg_id))
    one = made()
    first, second = send(app, "o", "o")
    one.fetcher.run_once()
    cancel(app, first)
    beat(one)
    step(one)
    assert (ran, table.statuses) == ([], [-1, 0])
    one.fetcher.run_once()
    step(one)
    assert (ran, table.statuses) == ([second], [-1, 2])


def test_a_request_that_comes_after_the_end_is_dropped(app, table, made):
    """The handler ends before its instance has seen the request: done stays done."""
    app.add_handler("t", lambda msg: cancel(app, msg.msg_id) and None)
    one = made()
    send(app, "o")
    one.fetcher.run_once()
    step(one)
    assert (table.statuses, len(requested(app))) == ([2], 1)
    beat(one)
    assert (table.statuses, requested(app)) == ([2], [])


def test_a_message_that_fails_before_the_request_is_seen_is_not_tried_again(app, table, made, ran):
    def handle(msg: Message) -> None:
        ran.append(msg.msg_id)
        cancel(app, msg.msg_id)
        raise ValueError("x")

    app.add_handler("t", handle, wait=lambda _: 0.0)
    one, other = made(), made()
    send(app, "o")
    one.fetcher.run_once()
    step(one)
    beat(other)
    assert table.one("status", "error_try_times", "last_error") == (-1, 3, GONE)
    assert (requested(app), len(ran)) == ([], 1)


def test_a_message_that_is_released_before_the_request_is_seen_is_dead(
    app, table, made, ran, cancelled
):
    app.add_handler("t", lambda msg: ran.append(msg.msg_id))
    one, other = made(), made()
    (msg_id,) = send(app, "o")
    one.fetcher.run_once()
    cancel(app, msg_id)
    one.settler.release(one.lanes.take_back())
    assert table.statuses == [0]
    beat(other)
    assert (table.statuses, table.one("last_error"), ran) == ([-1], GONE, [])
    assert (cancelled, other.tally.dead) == ([(msg_id, "t", GONE)], 1)


@pytest.mark.parametrize("failed", [0, 2], ids=["first try", "last try"])
def test_a_message_of_an_instance_that_died_is_not_tried_again(
    app, table, made, ran, cancelled, failed
):
    app.add_handler("t", lambda msg: ran.append(msg.msg_id), on_dead="told")
    one, other = made(), made()
    (msg_id,) = send(app, "o")
    edit(app, msg_id, status=-1 if failed else 0, error_try_times=failed)
    one.fetcher.run_once()
    cancel(app, msg_id)
    beat(other)
    with app.engine.begin() as conn:
        lease.drop(conn, app.tables, one.shared.identity.id)
    beat(other)
    assert (table.statuses, table.one("last_error"), requested(app)) == ([-1], GONE, [])
    assert table.one("error_try_times") == 3
    assert (cancelled, other.tally.dead) == ([(msg_id, "t", GONE)], 1)
    step(one)
    assert table.one("last_error") == GONE


@pytest.mark.parametrize("which", ["waits", "is recovered"])
def test_a_request_that_the_database_refuses_to_end_stops_no_recovery(
    app, database, table, made, which
):
    """A message that cannot be made dead, because of a trigger."""
    app.add_handler("t", lambda msg: RetryLater(3600) if msg.object_id == "bad" else None)
    one, other = made(), made()
    ids = send(app, "bad", "good")
    one.fetcher.run_once()
    cancel(app, ids[0])
    if which == "waits":
        one.lanes.ready.clear()
        lanes = {lane.row.msg_id: lane for lane in one.shared.in_flight.lanes}
        one.lanes.put([lanes[ids[0]]])
        step(one)
    refuse_row(app, database, "NEW.object_id = 'bad' AND NEW.error_try_times = 3")
    with app.engine.begin() as conn:
        lease.drop(conn, app.tables, one.shared.identity.id)
    beat(other)
    beat(other)
    assert table.statuses == [0 if which == "waits" else -1, -1]
    assert table.column("claimed_by") == [None, None]


def test_a_request_whose_end_is_rolled_back_harms_no_start_and_is_ended_later(
    sqlite_app, made_of, monkeypatch
):
    """Two instances end it at once: a deadlock for one of them, on Galera at its COMMIT."""
    sqlite_app.add_handler("t", lambda msg: None)
    one = made_of(sqlite_app)
    send(sqlite_app, "o")
    one.fetcher.run_once()
    cancel(sqlite_app, *Table(sqlite_app).column("msg_id"))
    one.settler.release(one.lanes.take_back())
    end, asked = change.end_request, []

    def rolled_back(*given: Any) -> bool:
        asked.append(given)
        raise sa.exc.OperationalError("", {}, sqlite3.OperationalError("database is locked"))

    monkeypatch.setattr(change, "end_request", rolled_back)
    other = made_of(sqlite_app)
    assert asked
    monkeypatch.setattr(change, "end_request", end)
    beat(other)
    assert (Table(sqlite_app).statuses, requested(sqlite_app)) == ([-1], [])


def test_requests_that_others_do_not_end_hide_none_of_ours(app, table, made):
    if not app.tables.database.partial_indexes:
        pytest.skip("many rows, on two databases")
    app.add_handler("t", lambda msg: None)
    others = controls.BATCH + 1
    with app.engine.begin() as conn:
        app.send_many(conn, "t", [(None, None)] * others)
    table.edit(status=1, claimed_by="other-1")
    one = made()
    (msg_id,) = send(app, "a")
    one.fetcher.run_once()
    running = {i: ("other-1", 0) for i in table.column("msg_id")[:others]}
    with app.engine.begin() as conn:
        controls.request_cancel(conn, app.tables, running, actor="anna", reason="wrong file")
    cancel(app, msg_id)
    one.housekeeper.requests.read()
    step(one)
    assert table.rows("status", "last_error")[-1] == (-1, GONE)


def test_a_rerun_is_not_cancelled_by_the_request_before_it(app, table, made, ran):
    """Not by one that is recorded, nor by one that the instance remembers."""

    def handle(msg: Message, ctx: Context) -> None:
        ran.append(ctx.cancelled)
        if len(ran) == 1:
            cancel(app, msg.msg_id)
            beat(one)
            with app.engine.begin() as conn:  # an operator ends it beside us
                conn.execute(
                    sa.update(app.tables.message).values(
                        app.tables.values(status=-1, error_try_times=3, claimed_by=None)
                    )
                )
            assert app.ops.rerun([msg.msg_id]) == 1

    app.add_handler("t", handle)
    one, other = made(), made()
    send(app, "o")
    one.fetcher.run_once()
    step(one)  # its settle is refused
    assert table.statuses == [0]
    beat(other)
    beat(one)
    one.fetcher.run_once()
    step(one)
    assert (ran, table.statuses) == ([False, False], [2])


@pytest.mark.parametrize("tries", [0, 1])
def test_a_rerun_of_the_same_moment_keeps_its_message(app, table, tries):
    """The heartbeat has read a request; the message is rerun before it acts."""
    (msg_id,) = send(app, "o")
    table.edit(status=1, claimed_by="X")
    cancel(app, msg_id)
    table.edit(status=-1 if tries else 0, error_try_times=tries, claimed_by=None)
    with app.engine.connect() as conn:
        (seen,) = controls.requests(conn, app.tables)
    assert seen.waits
    if not tries:
        assert app.ops.discard([msg_id], reason="it is new, and a rerun is not for new ones") == 1
    assert app.ops.rerun([msg_id]) == 1
    with app.engine.begin() as conn:
        assert not change.end_request(conn, app.tables, seen)
    assert table.statuses == [0]


@pytest.mark.parametrize("on_dead", ["continue", "block"])
def test_a_message_that_dies_of_itself_before_is_given_up(make_app, database, on_dead):
    """Else its object waits, or a rerun of all that are dead runs it again."""
    app = created(make_app(table=MessageTable(on_dead=on_dead, max_tries=1)))
    table = Table(app)

    def handle(msg: Message) -> None:
        if msg.payload == "bad":
            cancel(app, msg.msg_id)
            raise ValueError("x")

    app.add_handler("t", handle)
    send(app, "o", payload="bad")
    send(app, "o")
    app.drain(linger=0)  # leaves it so, unless a heartbeat of it sees the request before its end
    with launched(app.worker(threads=1)) as worker:
        assert worker.instance is not None
        ended = [(-1, GONE), (2, None)]
        both = ("status", "last_error")
        until(lambda: worker.instance.housekeeper.wake() or table.rows(*both) == ended, "goes on")
    assert table.column("error_try_times") == [2 if on_dead == "block" else 1, 0]
    assert (app.ops.rerun(), requested(app)) == (0, [])


def test_a_message_cancelled_while_it_runs_lets_its_object_go_on_where_dead_ones_block(
    blocking_app, made_of
):
    app, table = blocking_app, Table(blocking_app)

    def handle(msg: Message, ctx: Context) -> None:
        if msg.payload == "bad":
            cancel(app, msg.msg_id)
            beat(one)

    app.add_handler("t", handle)
    one = made_of(app)
    send(app, "o", payload="bad")
    send(app, "o")
    for _ in range(2):
        one.fetcher.run_once()
        step(one)
    assert table.rows("status", "error_try_times") == [(-1, 4), (2, 0)]


def test_a_cancelled_message_sends_nothing_and_tells_nobody(app, table, made):
    def handle(msg: Message, ctx: Context) -> None:
        ctx.send("next", 1)
        cancel(app, msg.msg_id)
        beat(one)

    app.add_handler("t", handle, on_done="done", on_dead="dead")
    one = made()
    send(app, "o")
    one.fetcher.run_once()
    step(one)
    assert (table.statuses, table.column("topic")) == ([-1], ["t"])


def test_a_request_is_for_one_claim_of_its_message():
    """Claimed again, even by the same instance, it is another one."""
    old, new = (Row(7, "o", "t", None, 0, 0, 0, None, None) for _ in range(2))
    hand, request = InFlight(), Request(7, "anna", "r", datetime.now(UTC), "X", 0)
    hand.cancels = {7: Cancel(old, request)}
    assert hand.request_for(old) is request
    assert hand.request_for(new) is None


@pytest.mark.quick("mariadb")
def test_a_transactional_handler_that_returns_after_the_request_is_rolled_back(
    app, table, made, concurrent
):
    ledger = sa.Table("ledger", sa.MetaData(), sa.Column("n", sa.Integer))
    ledger.create(app.engine)

    def handle(msg: Message, ctx: Context) -> None:
        ctx.connection.execute(ledger.insert().values(n=msg.msg_id))
        cancel(app, msg.msg_id)
        beat(one)
        assert ctx.cancelled

    app.add_handler("t", handle, transactional=True)
    one = made()
    send(app, "o")
    one.fetcher.run_once()
    step(one)
    assert (table.statuses, table.one("last_error")) == ([-1], GONE)
    with app.engine.connect() as conn:
        assert conn.execute(sa.select(ledger)).all() == []


@pytest.mark.quick("postgresql")
def test_a_batch_is_rolled_back_and_all_but_the_cancelled_run(app, table, made, concurrent):
    calls: list[list[int]] = []

    def handle(messages: list[Message], ctx: BatchContext) -> None:
        calls.append([m.msg_id for m in messages])
        if len(calls) == 1:
            cancel(app, messages[1].msg_id)
            beat(one)
            assert not ctx.cancelled

    app.add_handler("t", handle, transactional=True, batch=10)
    one = made()
    a, b, c = send(app, "a", "b", "c")
    one.fetcher.run_once()
    step(one)
    assert calls == [[a, b, c], [a], [c]]
    assert (table.statuses, table.column("last_error")[1]) == ([2, -1, 2], GONE)


def test_a_batch_without_a_transaction_ends_the_cancelled_one_alone(app, table, made):
    def handle(messages: list[Message]) -> None:
        cancel(app, messages[1].msg_id)
        beat(one)

    app.add_handler("t", handle, batch=10)
    one = made()
    send(app, "a", "b", "c")
    one.fetcher.run_once()
    step(one)
    assert table.statuses == [2, -1, 2]


@pytest.mark.parametrize("error", [ValueError("x"), Reject("x")], ids=["fails", "rejects"])
def test_a_cancelled_message_of_a_batch_is_cancelled_though_its_handler_fails_it(
    app, table, made, error
):
    def handle(messages: list[Message], ctx: BatchContext) -> None:
        if messages[0].msg_id == a:
            cancel(app, a)
            beat(one)
            ended.append(ctx.cancelled)
            ctx.fail(messages[0], error)

    ended: list[bool] = []
    app.add_handler("t", handle, batch=10, on_dead="stuck")
    one = made()
    a, *_ = send(app, "a", "b")
    one.fetcher.run_once()
    step(one)
    assert table.rows("status", "last_error") == [(-1, GONE), (2, None)]
    assert ended == [False]  # the others of the batch go on


def test_a_request_for_what_a_stop_gives_back_is_done_before_the_instance_is_gone(app, table, made):
    app.add_handler("t", lambda msg: None)
    one = made()
    (a,) = send(app, "o")
    fetch(one)
    cancel(app, a)
    beat(one)
    one.settler.release(one.lanes.take_back())
    assert table.statuses == [0]
    assert one.housekeeper.leave()
    assert (table.statuses, requested(app)) == ([-1], [])


def test_an_async_handler_is_cancelled_while_it_waits(app, table, made):
    out: list[Any] = []
    waits = threading.Event()

    async def handle(msg: Message, ctx: Context) -> None:
        try:
            waits.set()
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            out.append(ctx.cancel_reason)
            await asyncio.sleep(0)  # its end is not cancelled again
            out.append("ended")
            raise

    app.add_handler("t", handle)
    one = made()
    (msg_id,) = send(app, "o")
    one.fetcher.run_once()
    thread = threading.Thread(target=step, args=(one,))
    thread.start()
    assert waits.wait(60)
    cancel(app, msg_id)
    beat(one)
    beat(one)
    thread.join(60)
    assert out == ["wrong file", "ended"]
    assert (table.statuses, table.one("last_error")) == ([-1], GONE)


def test_a_fan_out_starts_no_further_items(app, table, made):
    items: list[int] = []

    def handle(msg: Message, ctx: Context) -> None:
        def work(n: int) -> None:
            items.append(n)
            if n == 3:
                cancel(app, msg.msg_id)
                beat(one)

        ctx.fan_out(work, range(1000), threads=1)

    app.add_handler("t", handle)
    one = made()
    send(app, "o")
    one.fetcher.run_once()
    step(one)
    assert (len(items) < 1000, table.one("last_error")) == (True, GONE)


def test_explain_and_show_tell_of_a_request(app, table, made):
    app.add_handler("u", lambda msg: None)
    one = made()
    (msg_id,) = send(app, "o", topic="u")
    one.fetcher.run_once()
    cancel(app, msg_id)
    found = app.ops.explain(msg_id)
    assert "cancel requested by anna" in found.text
    assert found.cancel.reason == "wrong file"
    assert app.ops.show(msg_id).cancel.actor == "anna"
    assert why(app, msg_id) is found.reason


def test_a_heartbeat_without_requests_sends_no_further_statement(app, made):
    """Requests ride on the statement that reads the pauses."""
    app.add_handler("t", lambda msg: None)
    one = made()
    beat(one)

    def sent() -> list[str]:
        texts: list[str] = []

        def note(conn: Any, cursor: Any, statement: str, *_: Any) -> None:
            texts.append(statement)

        sa.event.listen(app.engine, "before_cursor_execute", note)
        beat(one)
        sa.event.remove(app.engine, "before_cursor_execute", note)
        return texts

    both = [text for text in sent() if "msgworker_cancel" in text or "msgworker_pause" in text]
    assert len(both) == 1


def test_a_worker_cancels_within_a_heartbeat(app_with):
    app = app_with(lease_seconds=3)
    table, running, seen = Table(app), threading.Event(), threading.Event()

    @app.handler("t")
    def handle(msg: Message, ctx: Context) -> None:
        running.set()
        until(lambda: ctx.cancelled, "cancelled", seconds=20)
        seen.set()

    (msg_id,) = send(app, "a")
    with launched(app.worker(threads=1)) as worker:
        until(running.is_set, "it runs")  # a claimed message may be cancelled before its handler
        cancel(app, msg_id)
        until(lambda: beat_now(worker) or table.statuses == [-1], "it ends")
        until(lambda: requested(app) == [], "the request is gone")
    assert seen.is_set()
