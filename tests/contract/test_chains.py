"""Messages that a handler sends, and messages about messages: with the outcome, or not at all."""

from __future__ import annotations

import asyncio
import json
import pickle
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa
from tenacity.wait import wait_none

from msgworker import (
    App,
    Context,
    HandlerError,
    HandlerMisuse,
    Message,
    MessageTable,
    Reject,
    RetryLater,
)
from msgworker.errors import ConfigError, PayloadError, SchemaError
from msgworker.instance.claiming import capacity
from msgworker.instance.running.context import RunningItem
from msgworker.instance.settling import writer
from msgworker.store import jobs, settle
from msgworker.store import send as store
from msgworker.store.rows import READ_AHEAD
from msgworker.testing import Crashed, drain
from tests.support.apps import created
from tests.support.batches import claimed, work_off
from tests.support.fan_out import double
from tests.support.rounds import by_hand, recover_what_is_stale
from tests.support.rows import Table, edit, send
from tests.support.waiting import at_once, launched, until

NOW = {"linger": 0, "threads": 1}


def sent(app: App) -> list[tuple[Any, Any]]:
    """(topic, payload) of all messages but those of topic t."""
    with app.engine.connect() as conn:
        m = app.tables.message
        query = sa.select(m.c.topic, m.c.payload).where(m.c.topic != "t").order_by(m.c.msg_id)
        return [tuple(row) for row in conn.execute(query)]


@pytest.mark.parametrize("transactional", [False, True], ids=["plain", "transactional"])
def test_what_a_handler_sends_is_sent_with_its_outcome(app, transactional):
    seen: list[Any] = []

    def handle(msg: Message[Any], ctx: Context) -> None:
        seen.append(ctx.send("next", {"n": 1}, object_id="o", priority=2))
        seen.append(ctx.send("next", {"n": 2}))
        if not transactional:
            assert sent(app) == []

    app.add_handler("t", handle, transactional=transactional)
    send(app, "a")
    app.drain(**NOW)
    assert sent(app) == [("next", '{"n":1}'), ("next", '{"n":2}')]
    if transactional:
        assert seen == Table(app).column("msg_id")[1:]
    else:
        assert seen == [None, None]


@pytest.mark.parametrize("transactional", [False, True], ids=["plain", "transactional"])
def test_a_try_that_is_not_done_sends_nothing_and_the_next_sends_once(app, transactional):
    tries: list[tuple[str, int]] = []

    def handle(msg: Message[Any], ctx: Context) -> None:
        ctx.send("next", [msg.payload, ctx.attempt])
        tries.append((msg.payload, ctx.attempt))
        if ctx.attempt == 1:
            raise {"fails": ValueError("x"), "rejected": Reject("x")}.get(
                msg.payload, RetryLater(after=600)
            )

    app.add_handler("t", handle, transactional=transactional, wait=wait_none())
    for end in ("fails", "rejected", "later"):
        send(app, "a " + end, payload=end)
    app.drain(**NOW)
    assert sorted(tries) == [("fails", 1), ("fails", 2), ("later", 1), ("rejected", 1)]
    assert sent(app) == [("next", '["fails",2]')]


@pytest.mark.parametrize("ends", [Reject("no"), RetryLater(after=600)], ids=["reject", "later"])
def test_a_handler_that_returns_reject_sends_nothing(app, ends):
    def handle(msg: Message[Any], ctx: Context) -> Any:
        ctx.send("next")
        return ends

    app.add_handler("t", handle)
    send(app, "a")
    app.drain(**NOW)
    assert sent(app) == []


def test_what_is_sent_and_the_outcome_are_one_transaction(app, monkeypatch):
    """An INSERT that fails leaves the message as it was."""
    failed: list[int] = []
    real = settle.send_all

    def send_all(conn: Any, *how: Any) -> None:
        if not failed:
            failed.append(1)
            raise sa.exc.OperationalError("x", {}, Exception("gone"), connection_invalidated=True)
        real(conn, *how)

    monkeypatch.setattr(settle, "send_all", send_all)
    app.add_handler("t", lambda msg, ctx: ctx.send("next", 1))
    send(app, "a")
    assert app.drain(**NOW).done == 1
    assert sent(app) == [("next", "1")]


def test_a_bad_message_fails_in_the_handler(app):
    errors: list[type[BaseException]] = []

    def handle(msg: Message[Any], ctx: Context) -> None:
        for arguments in ({"payload": object()}, {"unique_key": ""}, {"object_id": 1.5}):
            with pytest.raises((PayloadError, ConfigError)) as found:
                ctx.send("next", **arguments)
            errors.append(found.type)

    app.add_handler("t", handle)
    send(app, "a")
    assert app.drain(**NOW).done == 1
    assert errors == [PayloadError, ConfigError, ConfigError]
    assert sent(app) == []


@pytest.mark.requires("unique_keys")
def test_a_plain_handler_cannot_ask_for_an_error_of_a_taken_key(app):
    def handle(msg: Message[Any], ctx: Context) -> None:
        with pytest.raises(HandlerMisuse, match="plain handler"):
            ctx.send("next", unique_key="k", on_duplicate="raise")

    app.add_handler("t", handle)
    send(app, "a")
    assert app.drain(**NOW).done == 1


def test_threads_and_async_handlers_may_send(app):
    def by_threads(msg: Message[Any], ctx: Context) -> None:
        at_once(*(partial(ctx.send, "next", n) for n in range(8)))

    async def in_tasks(msg: Message[Any], ctx: Context) -> None:
        async def one(n: int) -> None:
            await asyncio.sleep(0)
            ctx.send("next", n)

        await asyncio.gather(*(one(n) for n in range(8)))

    app.add_handler("t", by_threads)
    app.add_handler("u", in_tasks)
    send(app, "a")
    send(app, "b", topic="u")
    app.drain(**NOW)
    assert sorted(text for topic, text in sent(app) if topic == "next") == sorted(
        str(n) for n in [*range(8), *range(8)]
    )


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"batch": 2},
        {"transactional": True},
        {"transactional": True, "batch": 2},
        {"transactional": True, "group": 2},
    ],
    ids=["plain", "batch", "transactional", "batch in one", "group"],
)
def test_a_send_after_the_handler_has_returned_is_refused(app, how):
    """Also one that would be in the transaction of the message that comes next."""
    kept: list[Any] = []
    refused: list[Any] = []

    def handle(msg: Any, ctx: Any) -> None:
        of = {"of": kept[0][0][0]} if kept and "batch" in how else {}
        for job in (False, True) if kept else ():
            with pytest.raises(HandlerMisuse, match="after the handler has returned"):
                kept[0][1].send("next", job=job, **of)
            refused.append(job)
        kept.append((msg, ctx))

    app.add_handler("t", handle, **how)
    send(app, *["a"] * 4)
    assert app.drain(linger=0, threads=1).done == 4
    assert len(refused) >= 2
    with pytest.raises(HandlerMisuse, match="after the handler has returned"):
        kept[-1][1].send("next", **({"of": kept[-1][0][0]} if "batch" in how else {}))
    assert sent(app) == []


@pytest.mark.parametrize("database", ["postgresql", "mariadb"], indirect=True)
def test_a_handler_waits_for_a_thread_that_inserts_what_it_sends(app, monkeypatch):
    """A connection of SQLite is its thread's alone."""
    inserting, threads, insert = threading.Event(), [], store.send_one

    def late(*arguments: Any, **options: Any) -> Any:
        inserting.set()
        time.sleep(0.2)  # meanwhile the handler returns
        return insert(*arguments, **options)

    monkeypatch.setattr(store, "send_one", late)

    @app.handler("t", transactional=True)
    def handle(msg: Message[Any], ctx: Context) -> None:
        inserting.clear()
        threads.append(threading.Thread(target=ctx.send, args=("next", msg.payload)))
        threads[-1].start()
        inserting.wait()

    with app.engine.begin() as conn:
        app.send_many(conn, "t", [(1, "a"), (2, "a"), (3, "b")])
    assert app.drain(linger=0, threads=1).done == 3
    for thread in threads:
        thread.join()
    assert sorted(text for _, text in sent(app)) == ["1", "2", "3"]
    assert {row.error_try_times for row in app.ops.find()} == {0}


def test_what_listens_to_the_insert_of_a_send_may_send_too(sqlite_app):
    more = [1]

    @sqlite_app.handler("t", transactional=True)
    def handle(msg: Message[Any], ctx: Context) -> None:
        @sa.event.listens_for(ctx.connection, "after_cursor_execute")
        def inserted(*_: Any) -> None:
            if more:
                more.pop()
                ctx.send("next", 2)

        ctx.send("next", 1)

    send(sqlite_app, "a")
    assert sqlite_app.drain(linger=0, threads=1).done == 1
    assert sorted(text for _, text in sent(sqlite_app)) == ["1", "2"]


@pytest.mark.parametrize("database", ["postgresql", "mariadb"], indirect=True)
def test_a_slow_send_of_an_item_keeps_no_other_handler_from_its_end(app, monkeypatch):
    reading, go, read = threading.Event(), threading.Event(), jobs.job_of

    def slowly(*arguments: Any) -> Any:
        reading.set()
        assert go.wait(30)
        return read(*arguments)

    monkeypatch.setattr(jobs, "job_of", slowly)

    def item(_: int, conn: sa.Connection) -> None:
        contexts[0].send("next", job=True)

    contexts: list[Context] = []

    @app.handler("fans")
    def fans(msg: Message[Any], ctx: Context) -> None:
        contexts.append(ctx)
        ctx.fan_out(item, [1], transactional_items=True).raise_for_failed()

    @app.handler("t")
    def handle(msg: Message[Any], ctx: Context) -> None:
        assert reading.wait(30)
        ctx.send("next")

    with app.engine.begin() as conn:
        app.send(conn, "fans", object_id="a")
        other = app.send(conn, "t", object_id="b")
    with launched(app.worker(threads=2)):
        until(lambda: app.ops.show(other).status == "done", "the other one is done")
        go.set()
        until(
            lambda: [topic for topic, _ in sent(app)] == ["fans", "next", "next"], "both are sent"
        )


def test_a_task_that_outlives_its_handler_sends_nothing(sqlite_app):
    refused: list[Any] = []
    tasks: list[Any] = []

    async def handle(msg: Message[Any], ctx: Context) -> None:
        async def late() -> None:
            while sqlite_app.ops.show(msg.msg_id).status != "done":
                await asyncio.sleep(0.01)
            with pytest.raises(HandlerMisuse, match="after the handler has returned"):
                ctx.send("next")
            refused.append(1)

        if msg.payload == 1:
            tasks.append(asyncio.create_task(late()))
        else:
            await tasks[0]

    sqlite_app.add_handler("t", handle)
    with sqlite_app.engine.begin() as conn:
        sqlite_app.send_many(conn, "t", [(1, "a"), (2, "a")])
    sqlite_app.drain(**NOW)
    assert refused == [1]
    assert sent(sqlite_app) == []


@pytest.mark.requires("unique_keys")
@pytest.mark.parametrize("transactional", [False, True], ids=["plain", "transactional"])
def test_a_message_may_send_another_with_its_own_key(app, transactional):
    """The key of a message is free for what it sends: it is done when that is there."""

    def handle(msg: Message[Any], ctx: Context) -> None:
        if msg.payload < 3:
            ctx.send("t", msg.payload + 1, unique_key="poll")

    app.add_handler("t", handle, transactional=transactional)
    with app.engine.begin() as conn:
        app.send(conn, "t", 1, unique_key="poll")
    assert app.drain(**NOW).done == 3
    assert Table(app).column("payload") == ["1", "2", "3"]


@pytest.mark.requires("unique_keys")
def test_a_key_that_is_taken_skips_that_message_alone(app):
    def handle(msg: Message[Any], ctx: Context) -> None:
        for key in ("k", None, "k", "l"):
            ctx.send("next", key, unique_key=key)

    app.add_handler("t", handle)
    send(app, "a", "b")
    assert app.drain(**NOW).done == 2
    assert sorted(text or "" for _, text in sent(app)) == ["", "", '"k"', '"l"']


def test_what_a_lost_lane_would_have_sent_is_not_sent(app, table):
    """The settle sends only after it has found the flag to be ours."""

    def handle(msg: Message[Any], ctx: Context) -> None:
        ctx.send("next", msg.object_id)
        if msg.object_id == "a":
            table.edit(table.where(object_id="a"), status=2, claimed_by=None)

    app.add_handler("t", handle)
    send(app, "a", "b", "c")
    app.drain(**NOW, topics=["t"])
    assert sorted(sent(app)) == [("next", '"b"'), ("next", '"c"')]


def test_a_settle_whose_answer_is_lost_sends_once(app, monkeypatch):
    """The outcome and what is sent with it are one transaction: read, then never sent again."""
    real, lost = settle.settle, list[int]()

    def settle_and_lose(conn: Any, *args: Any, **options: Any) -> Any:
        done = real(conn, *args, **options)
        if not lost:
            lost.append(1)
            conn.commit()
            raise sa.exc.OperationalError("x", {}, Exception("gone"), connection_invalidated=True)
        return done

    monkeypatch.setattr(writer.store, "settle", settle_and_lose)
    app.add_handler("t", lambda msg, ctx: ctx.send("next", 1))
    send(app, "a")
    app.drain(**NOW)
    assert lost
    assert sent(app) == [("next", "1")]


@pytest.mark.parametrize("crash", ["handled", "settled"])
def test_a_crash_sends_with_the_outcome_or_not_at_all(app, crash):
    app.add_handler("t", lambda msg, ctx: ctx.send("next", ctx.attempt))
    send(app, "a")
    with pytest.raises(Crashed):
        drain(app, crash=crash)
    assert len(sent(app)) == (crash == "settled")


def refuse_to_send(monkeypatch: Any, refused: Callable[[dict[str, Any]], bool]) -> None:
    """Let the database refuse what is sent with an outcome, if one of its rows is so."""
    real = settle.send_all

    def send_all(conn: Any, t: Any, messages: Any) -> None:
        if any(refused(one.row) for one in messages):
            raise sa.exc.IntegrityError("INSERT", {}, Exception("no"))
        real(conn, t, messages)

    monkeypatch.setattr(settle, "send_all", send_all)


def test_what_the_database_refuses_to_send_fails_the_try_and_no_other_message(app, monkeypatch):
    """A message that was checked and is refused all the same, by a trigger, say."""
    refuse_to_send(monkeypatch, lambda row: row["b_payload"] == '"bad"')
    app.add_handler("t", lambda msg, ctx: ctx.send("next", msg.object_id), max_tries=1)
    send(app, "good", "bad", "better")
    report = app.drain(**NOW)
    assert (report.done, report.failed + report.retried) == (2, 1)
    assert sorted(sent(app)) == [("next", '"better"'), ("next", '"good"')]
    (error,) = [e for e in Table(app).column("last_error") if e]
    assert error.startswith("a message that is sent with its outcome was refused")


# ---------------------------------------------------------------- on_done, on_dead


def about(app: App, topic: str) -> list[dict[str, Any]]:
    got: list[dict[str, Any]] = []
    app.add_handler(topic, lambda msg: got.append(dict(msg.payload) | {"of": msg.object_id}))
    app.drain(**NOW, topics=[topic])
    return got


BATCHES: list[dict[str, Any]] = [
    {},
    {"transactional": True},
    {"transactional": True, "batch": 9},
    {"transactional": True, "group": 9},
    {"batch": 9},
]


@pytest.mark.parametrize("options", BATCHES, ids=["plain", "own", "batch", "group", "plain batch"])
def test_on_done_sends_a_message_about_each_that_is_done(app, options):
    app.add_handler("t", lambda msg: None, on_done="t.done", **options)
    ids = send(app, "a", "a", None, payload={"n": 1})
    app.drain(**NOW, topics=["t"])
    got = about(app, "t.done")
    assert sorted(one["msg_id"] for one in got) == ids
    first = next(one for one in got if one["msg_id"] == ids[0])
    assert first == {
        "msg_id": ids[0],
        "topic": "t",
        "object_id": "a",
        "outcome": "done",
        "error": None,
        "tries": 0,
        "payload": {"n": 1},
        "of": "a",
    }


@pytest.mark.requires("listen")
@pytest.mark.parametrize("options", BATCHES, ids=["plain", "own", "batch", "group", "plain batch"])
def test_another_instance_is_told_of_a_message_about_one_that_is_done(
    postgresql, options, monkeypatch
):
    monkeypatch.setattr(capacity, "IDLE_GROWTH", 1e9)  # then only a notification wakes it
    app, other = (App(postgresql.url, poll_seconds=600.0, notify=True) for _ in range(2))
    app.create_schema()
    app.add_handler("t", lambda msg: None, on_done="t.done", **options)
    ran: list[Any] = []
    other.add_handler("t.done", lambda msg: ran.append(msg.payload))
    with launched(other.worker(threads=1)):
        send(app, "first", topic="t.done")
        until(lambda: [one.status for one in app.ops.find()] == ["done"], "it listens", seconds=10)
        time.sleep(0.3)
        send(app, "a", topic="t")
        app.drain(**NOW)
        until(lambda: len(ran) == 2, "it is told", seconds=10)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"transactional": True},
        {"batch": 5},
        {"batch": 5, "transactional": True},
        {"group": 5, "transactional": True},
    ],
    ids=["plain", "transactional", "batch", "transactional batch", "group"],
)
def test_what_is_sent_about_a_message_has_its_payload_however_long(app, options):
    """A payload that is not read ahead is read for the handler: what is sent has that one."""
    app.add_handler("t", lambda given: None, on_done="done", **options)
    long = "x" * (READ_AHEAD + 1)
    for number, object_id in enumerate(["one", "two", "two", None]):
        send(app, object_id, payload={"n": number, "long": long})
    app.drain(**NOW)
    about = [json.loads(payload)["payload"] for _, payload in sent(app)]
    assert sorted(one["n"] for one in about) == [0, 1, 2, 3]
    assert {one["long"] for one in about} == {long}


@pytest.mark.parametrize("transactional", [False, True], ids=["plain", "transactional"])
def test_on_dead_sends_one_message_when_the_tries_are_used_up(app, subtests, transactional):
    def handle(msg: Message[Any]) -> None:
        raise Reject("no") if msg.topic == "reject" else ValueError("no")

    sent = {}
    for end in ("tries", "reject", "spent", "payload"):
        most = {"max_tries": 1} if end == "spent" else {}
        options = {"transactional": transactional, "wait": wait_none(), **most}
        app.add_handler(end, handle, on_dead=f"{end}.dead", **options)
        (sent[end],) = send(app, end, payload=5, topic=end)
    edit(app, sent["payload"], payload="{broken")
    app.drain(**NOW, topics=list(sent))
    for end, msg_id in sent.items():
        with subtests.test(end):
            (one,) = about(app, f"{end}.dead")
            assert (one["msg_id"], one["outcome"], one["object_id"]) == (msg_id, "dead", end)
            assert one["tries"] == (3 if end == "tries" else 1)
            assert one["payload"] == (None if end == "payload" else 5)
            assert one["of"] is None  # it waits behind nothing, on_dead="block" included
            assert ("payload" if end == "payload" else "no") in one["error"]


@pytest.mark.requires("sqlite_sql")
def test_on_dead_is_sent_also_where_the_table_refuses_the_text_of_the_error(app, database, table):
    """The text is at fault, not what is sent with it."""
    with app.engine.begin() as conn:
        conn.exec_driver_sql(
            "CREATE TRIGGER no BEFORE UPDATE ON msgworker_message WHEN NEW.last_error LIKE '%odd%'"
            " BEGIN SELECT RAISE(ABORT, 'not this text'); END"
        )

    def handle(msg: Message[Any]) -> None:
        raise Reject("odd")

    app.add_handler("t", handle, on_dead="t.dead")
    send(app, "a")
    app.drain(**NOW, topics=["t"])
    assert table.statuses[0] == -1
    (one,) = about(app, "t.dead")
    assert one["outcome"] == "dead"


def test_what_on_dead_sends_may_be_refused_and_the_error_is_kept(app, table, monkeypatch):
    """What is sent is at fault, not the text of the error."""
    refuse_to_send(monkeypatch, lambda row: row["b_topic"] == "t.dead")

    def handle(msg: Message[Any]) -> None:
        raise Reject("odd")

    app.add_handler("t", handle, on_dead="t.dead")
    (msg_id,) = send(app, "a")
    app.drain(**NOW, topics=["t"])
    assert table.statuses == [-1]
    assert "odd" in app.ops.show(msg_id).last_error
    assert "odd" in app.ops.show(msg_id).tries[0].error


@pytest.mark.parametrize("owner", ["gone-1", None])
def test_a_crash_on_the_last_try_sends_on_dead_in_recovery(app, table, owner, monkeypatch):
    """None: of a foreign consumer."""
    app.settings = replace(app.settings, foreign_stale_after=30.0)
    app.add_handler("t", lambda msg: None, on_dead="t.dead")
    (msg_id,) = send(app, "a", payload=5)
    last = {"status": 1, "error_try_times": 2, "claimed_by": owner, "crash_times": 0}
    table.edit(table.where(msg_id=msg_id), **last)
    with by_hand(app) as other:
        recover_what_is_stale(other, monkeypatch)
    (one,) = about(app, "t.dead")
    assert (one["msg_id"], one["tries"], one["payload"]) == (msg_id, 3, 5)
    assert "held this message" in one["error"]


def test_a_message_about_a_dead_one_has_as_much_of_its_error_as_there_is_room_for(make_app):
    app = created(make_app(table=MessageTable(max_payload=500)))

    def handle(msg: Message[Any]) -> None:
        raise Reject("no" * 500)

    app.add_handler("t", handle, on_dead="t.dead")
    send(app, "a", payload=5)
    assert app.drain(**NOW, topics=["t"]).failed == 1
    (one,) = about(app, "t.dead")
    assert one["error"].startswith("rejected: nono")
    assert (one["tries"], one["payload"]) == (1, None)


@pytest.mark.parametrize("owner", ["gone-1", None])
def test_a_release_on_the_last_try_sends_on_dead(app, table, owner):
    """None: of a foreign consumer. A message with a try left is not dead."""
    app.add_handler("t", lambda msg: None, on_dead="t.dead")
    last, _ = send(app, "a", "b", payload=5)
    table.edit(sa.true(), status=1, error_try_times=1, claimed_by=owner, crash_times=0)
    table.edit(table.where(msg_id=last), error_try_times=2)
    ops = app.ops
    assert (ops.release(owner) if owner else ops.release_nobody(any_age=True)) == 2
    (one,) = about(app, "t.dead")
    assert (one["msg_id"], one["tries"], one["payload"]) == (last, 3, 5)
    assert one["error"].startswith("released ")
    assert ops.release("gone-1") == 0
    assert len(sent(app)) == 1


def test_a_release_ends_a_request_to_cancel_and_sends_nothing_of_it(app, table):
    app.add_handler("t", lambda msg: None, on_dead="t.dead")
    send(app, "a", "b")
    table.edit(sa.true(), status=1, error_try_times=2, claimed_by="gone-1", crash_times=0)
    table.edit(table.where(object_id="b"), error_try_times=0)
    app.ops.cancel(ids=table.column("msg_id"), reason="wrong file", actor="anna")
    assert app.ops.release("gone-1") == 2
    assert table.column("last_error") == ["cancelled: wrong file (by anna)"] * 2
    assert table.rows("status", "error_try_times") == [(-1, 3)] * 2
    assert sent(app) == []


def test_a_release_sends_nothing_of_a_cancelled_message_without_a_last_error_either(make_app):
    made = created(make_app(table=MessageTable("tb")))
    with made.engine.begin() as conn:
        conn.exec_driver_sql("ALTER TABLE tb DROP COLUMN last_error")
    app = make_app(table=MessageTable("tb", last_error=None))
    app.add_handler("t", lambda msg: None, on_dead="t.dead")
    (msg_id,) = send(app, "a")
    table = Table(app)
    table.edit(sa.true(), status=1, error_try_times=0, claimed_by="gone-1", crash_times=0)
    app.ops.cancel(msg_id, reason="wrong file", actor="anna")
    assert app.ops.release("gone-1") == 1
    assert table.rows("status", "topic") == [(-1, "t")]


def test_a_release_gives_back_what_on_dead_is_refused_for(app, table, caplog, monkeypatch):
    def refuse(conn: sa.Connection, *_: Any) -> None:
        conn.exec_driver_sql("INSERT INTO msgworker_lease (instance_id) VALUES (NULL)")

    app.add_handler("t", lambda msg: None, on_dead="t.dead")
    last, _ = send(app, "a", "b")
    table.edit(sa.true(), status=1, error_try_times=0, claimed_by="gone-1", crash_times=0)
    table.edit(table.where(msg_id=last), error_try_times=2)
    monkeypatch.setattr(writer, "send_all", refuse)
    assert app.ops.release("gone-1") == 2
    assert table.rows("status", "error_try_times") == [(-1, 3), (-1, 1)]
    assert f"message {last} is dead, and its message of on_dead is refused" in caplog.text


def test_what_operators_end_sends_nothing(app):
    app.add_handler("t", lambda msg: None, on_dead="t.dead")
    (msg_id,) = send(app, "a")
    app.ops.discard(ids=[msg_id], reason="r")
    app.drain(**NOW)
    assert sent(app) == []


def test_on_done_and_on_dead_are_refused_where_they_would_never_end(make_app):
    app = make_app()
    with pytest.raises(HandlerError, match="its own topic"):
        app.add_handler("t", lambda msg: None, on_dead="t")
    app.add_handler("a", lambda msg: None, on_done="b", on_dead="x")
    app.add_handler("b", lambda msg: None, on_done="c", on_dead="x")
    with pytest.raises(HandlerError, match="circle: c -> a -> b -> c"):
        app.add_handler("c", lambda msg: None, on_done="a")
    with pytest.raises(HandlerError, match="circle: c -> a -> b -> c"):
        app.add_handler("c", lambda msg: None, on_dead="a")
    for bad in ("", 5, "x" * 101):
        with pytest.raises(HandlerError, match="must be a topic"):
            app.add_handler("z", lambda msg: None, on_dead=bad)


@pytest.mark.parametrize("option", ["on_done", "on_dead"])
def test_a_circle_by_the_handler_of_every_topic_is_refused_at_the_start(app, option):
    """Only then is it known of which topics it is that."""
    app.add_handler(None, lambda msg: None, on_dead="x")  # about its own topic it sends none
    app.add_handler("x", lambda msg: None, **{option: "y"})
    with pytest.raises(HandlerError, match="circle: x -> y -> x"):
        app.drain(**NOW)
    app.add_handler("y", lambda msg: None)
    assert app.drain(**NOW).left == 0


def test_on_dead_of_a_handler_is_not_the_rule_of_the_table(make_app):
    for word in ("block", "continue"):
        with pytest.raises(HandlerError, match=rf"MessageTable\(on_dead='{word}'\)"):
            make_app().add_handler("t", lambda msg: None, on_dead=word)
    make_app().add_handler("t", lambda msg: None, on_done="block")


@pytest.mark.parametrize("lacking", ["topic", "payload"])
def test_on_done_is_refused_at_the_start_where_the_table_cannot_hold_the_message(tmp_path, lacking):
    columns = {"id": "INTEGER PRIMARY KEY", "object_id": "VARCHAR(190)"}
    columns |= {"status": "SMALLINT DEFAULT 0", "error_try_times": "SMALLINT DEFAULT 0"}
    columns |= {"topic": "VARCHAR(100)", "payload": "TEXT"}
    del columns[lacking]
    table = MessageTable("jobs", msg_id="id", **{lacking: None})
    app = App(f"sqlite:///{tmp_path / 'jobs.db'}", table=table)
    with app.engine.begin() as conn:
        listed = ", ".join(f"{name} {kind}" for name, kind in columns.items())
        conn.exec_driver_sql(f"CREATE TABLE jobs ({listed})")
        conn.exec_driver_sql("INSERT INTO jobs (object_id) VALUES ('a')")
    app.create_schema()
    app.add_handler(None, lambda msg: None, on_done="told")
    with pytest.raises(SchemaError, match=rf"no column {lacking}: name it, MessageTable"):
        app.drain(**NOW)
    assert Table(app).statuses == [0]


def test_a_message_about_one_of_its_own_topic_is_not_sent(app):
    def handle(msg: Message[Any]) -> None:
        raise Reject("no")

    app.add_handler(None, handle, on_dead="dead")
    send(app, "a")
    app.drain(**NOW)
    assert [topic for topic, _ in sent(app)] == ["dead"]


def test_a_handler_of_every_topic_sends_none_about_those_that_it_sends(app):
    def handle(msg: Message[Any]) -> None:
        if msg.topic == "audit":
            raise Reject("no")

    app.add_handler(None, handle, on_done="audit", on_dead="alarm")
    send(app, "a")
    app.drain(**NOW, time_limit=5)
    assert [topic for topic, _ in sent(app)] == ["audit"]


def test_a_batch_sends_in_its_transaction(app):
    seen: list[Any] = []

    def handle(msgs: Any, ctx: Any) -> None:
        seen.append(ctx.send("next", len(msgs)))

    app.add_handler("t", handle, transactional=True, batch=9)
    send(app, "a", "b")
    app.drain(**NOW)
    assert len(sent(app)) == len(seen)


def test_a_plain_batch_sends_with_the_outcome_of_the_message_it_names(app):
    """What is sent for one that fails is not sent, nor with a call that raises for one of them."""
    calls: list[int] = []

    def handle(msgs: Any, ctx: Any) -> None:
        calls.append(len(msgs))
        for msg in msgs:
            assert ctx.send("next", msg.payload, of=msg) is None
            if msg.payload == 3:
                ctx.fail(msg, Reject("no"))
        if len(calls) == 1:
            raise ValueError("each runs alone")

    app.add_handler("t", handle, batch=9, wait=wait_none())
    with app.engine.begin() as conn:
        app.send_many(conn, "t", [(n, f"o{n}") for n in (1, 2, 3)])
    with claimed(app) as (one, _):
        work_off(one)
    assert calls == [3, 1, 1, 1]
    with app.engine.begin() as conn:
        app.send_many(conn, "t", [(n, f"o{n}") for n in (4, 5, 3)])
    with claimed(app) as (one, _):
        work_off(one)
    assert calls[4:] == [3]
    assert sorted(sent(app)) == [("next", str(n)) for n in (1, 2, 4, 5)]


def test_what_a_plain_batch_sends_names_a_message_of_it(app):
    kept: list[Any] = []

    def handle(msgs: Any, ctx: Any) -> None:
        for options, says in (
            ({}, "say of which"),
            ({"of": 5}, "a message of this batch"),
            ({"of": kept[0] if kept else None}, "of"),
        ):
            with pytest.raises(HandlerMisuse, match=says):
                ctx.send("next", **options)
        kept.append(msgs[0])

    app.add_handler("t", handle, batch=9)
    for name in "ab":
        send(app, name)
        assert app.drain(**NOW).done == 1
    assert sent(app) == []


@pytest.mark.quick("postgresql")
def test_a_plain_batch_sends_nothing_for_a_message_it_has_lost(app, table):
    def handle(msgs: Any, ctx: Any) -> None:
        for msg in msgs:
            ctx.send("next", msg.payload, of=msg)
        edit(app, msgs[0].msg_id, claimed_by="other")

    app.add_handler("t", handle, batch=9)
    with app.engine.begin() as conn:
        app.send_many(conn, "t", [(n, f"o{n}") for n in (1, 2)])
    with claimed(app) as (one, _):
        work_off(one)
    assert sent(app) == [("next", "2")]


def test_the_function_of_a_fan_out_is_pickled_alone():
    found = pickle.loads(pickle.dumps(RunningItem(double, object())))
    assert (type(found), found(4)) == (partial, 8)


def test_a_batch_that_is_rolled_back_has_sent_nothing(app):
    def handle(msgs: Any, ctx: Any) -> None:
        ctx.send("next", [msg.payload for msg in msgs])
        bad = [msg for msg in msgs if msg.payload == 2]
        if bad:
            ctx.fail(bad[0], Reject("no"))

    app.add_handler("t", handle, transactional=True, batch=9)
    with app.engine.begin() as conn:
        app.send_many(conn, "t", [(n, f"o{n}") for n in (1, 2, 3)])
    app.drain(**NOW)
    numbers = sorted(n for _, text in sent(app) for n in json.loads(text))
    assert numbers == [1, 3]
