"""What handlers are given; topics; async handlers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from msgworker import Context, Message, MsgworkerError
from msgworker.store import lease
from tests.support.rounds import fetch
from tests.support.rows import send


def test_handler_gets_what_was_sent(app):
    got: list[Message] = []

    @app.handler("customer.settle")
    def settle(msg: Message, ctx: Context) -> None:
        assert ctx.attempt == 1
        assert ctx.instance_id
        assert not ctx.cancelled
        ctx.log.info("settling")
        got.append(msg)

    with app.engine.begin() as conn:
        msg_id = app.send(conn, "customer.settle", {"month": "2026-10"}, object_id="C-1001")
    assert app.drain(linger=0).done == 1
    (msg,) = got
    assert (msg.msg_id, msg.object_id, msg.topic) == (msg_id, "C-1001", "customer.settle")
    assert msg.payload == {"month": "2026-10"}
    assert msg.error_try_times == 0
    assert abs(msg.created_at - datetime.now(UTC)) < timedelta(hours=1)
    assert str(msg_id) in msg.idempotency_key


def test_handler_without_topic_takes_every_topic_without_one_of_its_own(app, make_app):
    named: list[str] = []
    other: list[str] = []

    @app.handler("a")
    def one(msg: Message) -> None:
        named.append(msg.topic)

    @app.handler
    def rest(msg: Message) -> None:
        other.append(msg.topic)

    for topic in ("a", "b", "c"):
        send(app, None, topic=topic)
    assert app.drain(linger=0).done == 3
    assert (named, sorted(other)) == (["a"], ["b", "c"])
    assert make_app().handler()(rest) is rest  # with parentheses it means the same


@pytest.mark.requires("empty_text")
def test_an_empty_topic_is_a_topic_of_its_own(app, table):
    app.add_handler("default", lambda msg: None)
    _, second = send(app, "o", "o", topic="default")
    table.edit(table.where(msg_id=second), topic="")
    report = app.drain(linger=0)
    assert (report.done, report.released, report.left) == (1, 0, 1)


def test_drain_without_any_handler_is_an_error(app):
    for _ in range(2):  # one that was refused is no drain that runs
        with pytest.raises(MsgworkerError, match="no handler"):
            app.drain()


def test_a_topic_without_handler_is_told_once_an_hour_and_a_new_one_at_once(one, app, caplog):
    def logged_at() -> list[str]:
        caplog.clear()
        for _ in range(3):
            fetch(one)
        return [r.getMessage() for r in caplog.records if "no handler" in r.getMessage()]

    one.fetcher.finder.search.topics = frozenset({"t"})
    text = "messages wait whose topic has no handler here: "
    send(app, "a", topic="x")
    assert logged_at() == [text + "'x'"]
    assert logged_at() == []
    send(app, "b", topic="y")
    assert logged_at() == [text + "'y'"]
    assert logged_at() == []
    at = one.fetcher.finder.unhandled.logged_at
    at["x"] -= 3601
    assert logged_at() == [text + "'x'"]
    send(app, "c", topic="z")
    at = one.fetcher.finder.unhandled.logged_at
    for topic in at:
        at[topic] -= 3601
    for n in range(10):
        send(app, f"d{n}", topic=f"n{n}")
    names = ", ".join(repr(f"n{n}") for n in range(10))
    assert logged_at() == [f"{text}{names} and 3 more"]


def test_a_topic_that_another_live_instance_handles_is_not_told_until_that_is_gone(
    one, app, caplog
):
    one.fetcher.finder.search.topics = frozenset({"t"})
    with app.engine.begin() as conn:
        lease.register(conn, app.tables, "theirs", ttl=600.0, topics=["x"])
    send(app, "a", topic="x")
    fetch(one)
    assert "no handler" not in caplog.text
    with app.engine.begin() as conn:
        lease.drop(conn, app.tables, "theirs")
    fetch(one)
    assert "no handler" not in caplog.text  # it is asked once a minute
    one.fetcher.finder.unhandled.logged_at["x"] -= 61
    fetch(one)
    assert "messages wait whose topic has no handler here: 'x'" in caplog.text
