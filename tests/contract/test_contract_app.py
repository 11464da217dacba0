"""The public interface: schema, send, drain, outcomes."""

from __future__ import annotations

import contextlib
import enum
import itertools
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, TypedDict
from uuid import UUID

import pydantic
import pytest
import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from tenacity.wait import (
    wait_base,
    wait_chain,
    wait_exponential,
    wait_fixed,
    wait_incrementing,
    wait_none,
)

from msgworker import App, Context, Message, MessageTable, MsgworkerError, Reject, RetryLater
from msgworker.errors import SchemaError
from msgworker.instance import worker as worker_module
from msgworker.store import due
from msgworker.table import Tables
from tests.support.logged import assert_facts
from tests.support.rows import Table, send
from tests.support.waiting import in_thread, until
from tests.support.watching import Watch

NAMES = {
    f"msgworker_{name}" for name in ("message", "lease", "item", "operation", "audit", "pause")
}


# ---------------------------------------------------------------- schema


def test_create_schema_creates_and_then_finds_all_there(make_app):
    app = make_app()
    assert set(app.create_schema()) >= NAMES
    assert app.create_schema() == []
    assert make_app().create_schema() == []


def test_create_schema_by_eight_threads_at_once(make_app):
    apps = [make_app() for _ in range(8)]
    gate = threading.Barrier(8)

    def create(app: App) -> list[str]:
        gate.wait()
        return app.create_schema()

    joins = [in_thread(lambda app=app: create(app)) for app in apps]
    made = [name for join in joins for name in join()]
    assert set(made) >= NAMES
    assert len(made) == len(set(made))
    assert apps[0].create_schema() == []


def test_create_schema_by_four_processes_at_once(database, make_app):
    code = (
        "import sys; from msgworker import App; app = App(sys.argv[1]); sys.stdin.readline(); "
        "print(' '.join(app.create_schema()))"
    )
    command = [sys.executable, "-c", code, database.url]
    pipe = subprocess.PIPE
    started = [
        subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) for _ in range(4)
    ]
    for process in started:  # all are at the same line before the first goes on
        process.stdin.write("go\n")
        process.stdin.flush()
    out = [process.communicate(timeout=120) for process in started]
    assert [p.returncode for p in started] == [0] * 4, [o[1][-800:] for o in out]
    made = [name for text, _ in out for name in text.split()]
    assert set(made) >= NAMES
    assert len(made) == len(set(made))
    assert make_app().create_schema() == []


def test_app_takes_an_engine(database, make_app):
    app = make_app(database.engine())
    app.create_schema()
    app.add_handler(None, lambda msg: None)
    send(app, "a")
    assert app.drain(linger=0).done == 1


def test_two_apps_share_an_engine_and_one_takes_the_other_s(database, make_app):
    engine = database.engine()
    first, second = make_app(engine), make_app(engine)
    third = make_app(first.engine)
    first.create_schema()
    for app in (first, second, third):
        app.add_handler(None, lambda msg: None)
        send(app, "a")
        assert app.drain(linger=0).done == 1


def test_app_names_its_table_and_engine(app):
    assert app.table.name == "msgworker_message"
    assert app.engine.dialect.name in ("sqlite", "postgresql", "mysql", "mariadb")


# ---------------------------------------------------------------- send


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


def test_handler_without_topic_takes_every_topic_without_one_of_its_own(app):
    named: list[str] = []
    other: list[str] = []

    @app.handler("a")
    def one(msg: Message) -> None:
        named.append(msg.topic)

    @app.handler()
    def rest(msg: Message) -> None:
        other.append(msg.topic)

    for topic in ("a", "b", "c"):
        send(app, None, topic=topic)
    assert app.drain(linger=0).done == 3
    assert (named, sorted(other)) == (["a"], ["b", "c"])


def test_handler_decorator_without_parentheses(app):
    got: list[str] = []

    @app.handler
    def every(msg: Message) -> None:
        got.append(msg.topic)

    send(app, None, topic="x")
    app.drain(linger=0)
    assert got == ["x"]


def test_send_of_a_transaction_rolled_back_sends_nothing(app, table):
    class Undo(Exception):
        pass

    def fail() -> None:
        with app.engine.begin() as conn:
            app.send(conn, "t", {"n": 1}, object_id="o")
            app.send_many(conn, "t", [({"n": 2}, "o"), ({"n": 3}, None)])
            raise Undo

    with pytest.raises(Undo):
        fail()
    assert table.statuses == []


def test_send_in_a_session(app, table):
    with Session(app.engine) as session, session.begin():
        assert app.send(session, "t", 1, object_id="o") is not None
        assert app.send_many(session, "t", [(2, "o"), (3, "o")]) == 2
    with Session(app.engine) as session:
        app.send(session, "t", 4, object_id="o")
        app.send_many(session, "t", [(5, "o")])
        session.rollback()
    assert table.column("payload") == ["1", "2", "3"]


def test_send_many_keeps_order_and_counts(app):
    watch = Watch()
    app.add_handler("t", watch)
    with app.engine.begin() as conn:
        assert app.send_many(conn, "t", [({"n": i}, f"C-{i % 7}") for i in range(6000)]) == 6000
    assert app.drain(threads=2, linger=0).done == 6000
    watch.assert_in_order()


def test_send_many_of_nothing_sends_nothing(app, table):
    with app.engine.begin() as conn:
        assert app.send_many(conn, "t", []) == 0
        assert app.send_many(conn, "t", iter(())) == 0
    assert table.statuses == []


def test_a_plain_insert_is_enough(app, table):
    got: list[Any] = []

    @app.handler("t")
    def handle(msg: Message) -> None:
        got.append((msg.object_id, msg.payload))

    with app.engine.begin() as conn:
        conn.exec_driver_sql(
            "INSERT INTO msgworker_message (topic, object_id, payload) "
            """VALUES ('t', 'C-1', '{"n": 1}'), ('t', 'C-1', NULL), ('t', NULL, '[]')"""
        )
    assert app.drain(linger=0, threads=1).done == 3
    assert [g for g in got if g[0]] == [("C-1", {"n": 1}), ("C-1", None)]
    assert table.statuses == [2, 2, 2]
    assert None not in table.column("finished_at")


def test_delayed_messages_wait_for_their_instant(app, table):
    app.add_handler("t", lambda msg: None)
    send(app, "soon", delay=0.2)
    send(app, "later", delay=timedelta(hours=1))
    send(app, "at", at=datetime.now(UTC) + timedelta(hours=1))
    send(app, "past", at=datetime.now(UTC) - timedelta(hours=1))
    report = app.drain(linger=5)
    assert (report.done, report.left) == (2, 2)
    assert table.statuses == [2, 0, 0, 2]


def test_a_delayed_message_holds_back_its_successors(app, table):
    app.add_handler("t", lambda msg: None)
    send(app, "o", delay=3600)
    send(app, "o", "p")
    assert app.drain(linger=0).done == 1
    assert table.statuses == [0, 0, 2]


# ---------------------------------------------------------------- drain


def test_report_says_what_was_done(app):
    @app.handler("t", wait=wait_fixed(3600))
    def handle(msg: Message) -> None:
        if msg.payload == "bad":
            raise ValueError("bad")
        if msg.payload == "never":
            raise Reject("no such customer")

    for payload in ("good", "good", "bad", "never"):
        send(app, None, payload=payload)
    report = app.drain(linger=0)
    assert (report.done, report.failed, report.retried, report.released) == (2, 1, 1, 0)
    assert report.left == 1
    assert not report.skipped
    assert report.exit_code == 1
    assert report.seconds > 0
    assert str(report) == (
        "done=2 failed=1 retried=1 released=0 left=1 (waiting for a retry: 1, next in "
        f"{report.next_seconds:.0f} s) in {report.seconds:.1f}s"
    )
    assert 3000 < report.next_seconds <= 3600


def test_report_of_an_empty_table(app):
    app.add_handler("t", lambda msg: None)
    report = app.drain(linger=0)
    assert (report.done, report.left, report.exit_code) == (0, 0, 0)


def test_drain_skips_while_another_runs(app):
    inner = []

    @app.handler("t")
    def handle(msg: Message) -> None:
        inner.append(app.drain(linger=0))

    send(app, "o")
    assert app.drain(linger=0).done == 1
    assert inner[0].skipped
    assert inner[0].done == 0
    assert inner[0].exit_code == 0


def test_drains_overlap_where_that_is_allowed(app):
    inner = []

    @app.handler("a")
    def handle(msg: Message) -> None:
        inner.append(app.drain(topics=["b"], linger=0, overlap="allow"))

    app.add_handler("b", lambda msg: None)
    send(app, None, topic="a")
    send(app, None, topic="b")
    assert app.drain(topics=["a"], linger=0, overlap="allow").done == 1
    assert (inner[0].skipped, inner[0].done) == (False, 1)


def test_drain_of_a_third_is_refused(app):
    third = []
    both = threading.Barrier(2)

    @app.handler("a")
    @app.handler("b")
    def handle(msg: Message) -> None:
        if both.wait(60) == 0:
            third.append(app.drain(linger=0, overlap="allow", max_concurrent=2))
        both.wait(60)

    send(app, None, topic="a")
    send(app, None, topic="b")

    def drain(topic: str) -> Any:
        return app.drain(topics=[topic], linger=0, overlap="allow", max_concurrent=2)

    joins = [in_thread(lambda topic=topic: drain(topic)) for topic in "ab"]
    assert sum(join().done for join in joins) == 2
    assert third[0].skipped


def test_one_thread_means_one_thread(app):
    watch = Watch()
    app.add_handler("t", watch)
    with app.engine.begin() as conn:
        app.send_many(conn, "t", [(None, f"o{i % 10}") for i in range(200)])
    assert app.drain(threads=1, linger=0).done == 200
    assert watch.most == 1
    assert len(watch.threads) == 1


def test_time_limit_ends_a_drain(app, table):
    @app.handler("t")
    def handle(msg: Message, ctx: Context) -> None:
        if next(calls) > 0:  # the first one is quick, so some are held beside those that run
            until(lambda: ctx.cancelled, "the drain is over")

    calls = itertools.count()
    send(app, *["o"] * 5, *range(5, 10))
    report = app.drain(threads=2, time_limit=4.0, linger=0)
    assert report.done == 3
    assert report.left == 7
    assert report.released >= 1
    assert 1 not in table.statuses
    assert set(table.column("error_try_times")) == {0}


def assert_the_third_try_is_waited_for(app: App, back_off: float) -> None:
    @app.handler("t", wait=wait_fixed(back_off))
    def handle(msg: Message, ctx: Context) -> None:
        if ctx.attempt < 3:
            raise ValueError("not yet")

    send(app, "o")
    report = app.drain(linger=5)
    assert (report.done, report.retried, report.left) == (1, 2, 0)


def test_linger_sits_out_short_back_offs(app):
    assert_the_third_try_is_waited_for(app, 0.3)


def test_a_message_that_becomes_due_while_a_drain_looks_is_not_left(app, monkeypatch):
    """Found by no look, then due when it asks how long to wait: no sign of something in the way."""
    ask, asked = due.coming, itertools.count()

    def due_now(conn: sa.Connection, tables: Tables, **waits: Any) -> due.Coming:
        found = ask(conn, tables, **waits)
        return due.Coming(True) if found.seconds and next(asked) % 2 else found

    monkeypatch.setattr(due, "coming", due_now)
    monkeypatch.setattr(worker_module, "OVERDUE_SECONDS", 0.5)

    assert_the_third_try_is_waited_for(app, 1.0)


def test_no_linger_leaves_what_is_not_due(app):
    @app.handler("t", wait=wait_fixed(60))
    def handle(msg: Message) -> None:
        raise ValueError("no")

    send(app, "o")
    report = app.drain(linger=0)
    assert (report.done, report.retried, report.left, report.exit_code) == (0, 1, 1, 6)


def test_drain_of_some_topics_only(app, table):
    @app.handler("a")
    @app.handler("b")
    def handle(msg: Message) -> None: ...

    send(app, None, topic="a")
    send(app, None, topic="b")
    assert app.drain(linger=0, topics=["b"]).done == 1
    assert table.statuses == [0, 2]


# ---------------------------------------------------------------- outcomes


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


def test_max_tries_is_a_setting_of_the_table(make_app):
    app = make_app(table=MessageTable(max_tries=5))
    app.create_schema()
    attempts: list[int] = []

    @app.handler("t", wait=wait_none())
    def handle(msg: Message, ctx: Context) -> None:
        attempts.append(ctx.attempt)
        raise ValueError

    send(app, "o")
    app.drain(linger=1)
    assert attempts == [1, 2, 3, 4, 5]


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
    told = [record for record in caplog.records if "comes back in" in record.getMessage()]
    assert [(record.levelname, record.getMessage()) for record in told] == [
        ("INFO", f"message {only} comes back in 0 s (asked 1 time): the bank sleeps"),
        ("INFO", f"message {only} comes back in 600 s (asked 2 times): it is closed"),
    ]
    for info in (app.ops.show(only), *app.ops.find(status="new")):
        assert (info.later_times, info.later_reason) == (2, "it is closed")
        assert info.last_error is None
    explained = app.ops.explain(only)
    assert explained.text == "it asked to come back later (2 so far): it is closed"
    assert explained.until is not None
    table.edit(available_at=None)
    assert app.drain(linger=0).done == 1
    done = app.ops.show(only)
    assert (done.status, done.later_times, done.last_error) == ("done", 2, None)


def test_retry_later_is_capped(make_app):
    app = make_app(table=MessageTable(later_limit=2))
    app.create_schema()
    calls: list[int] = []

    @app.handler("t")
    def handle(msg: Message) -> None:
        calls.append(msg.error_try_times)
        raise RetryLater(after=0)

    send(app, "o")
    report = app.drain(linger=1)
    assert (report.failed, report.left) == (1, 0)
    # Two free wishes, then each one is a failed try.
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


@pytest.mark.parametrize(
    ("wait", "least", "most"),
    [
        (wait_fixed(1000), 900, 1100),
        (wait_incrementing(start=1000, increment=500), 900, 1100),
        (wait_chain(wait_fixed(1000), wait_fixed(2000)), 900, 1100),
        (wait_fixed(500) + wait_fixed(500), 900, 1100),
        (wait_exponential(multiplier=1000, max=4000), 900, 1100),
    ],
)
def test_back_off_is_a_tenacity_wait_strategy(app, table, wait, least, most):
    def fail(msg: Message) -> None:
        raise ValueError("x")

    app.add_handler("t", fail, wait=wait)
    send(app, "o")
    app.drain(linger=0)
    status, tries, at = table.one("status", "error_try_times", "available_at")
    assert (status, tries) == (-1, 1)
    assert least - 60 < (at - datetime.now(UTC)).total_seconds() < most


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


def test_rerun_of_all_dead_ones_of_a_topic(app, table):
    @app.handler()
    def reject(msg: Message) -> Reject:
        return Reject("no")

    send(app, *range(600), topic="a")
    send(app, None, topic="b")
    assert app.drain(linger=0).failed == 601
    assert app.ops.rerun(topic="a", dry_run=True) == 600
    assert app.ops.rerun(topic="a") == 600
    assert table.statuses == [0] * 600 + [-1]


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


# ---------------------------------------------------------------- transactional

effects = sa.Table(
    "effects",
    sa.MetaData(),
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("msg_id", sa.BigInteger, nullable=False),
    sa.Column("amount", sa.Integer),
)


class Base(DeclarativeBase):
    pass


class Ledger(Base):
    __tablename__ = "ledger"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    msg_id: Mapped[int] = mapped_column(sa.BigInteger)


def _effects(app: App, table: sa.Table = effects) -> list[int]:
    with app.engine.connect() as conn:
        return sorted(conn.scalars(sa.select(table.c.msg_id)))


def test_transactional_effects_commit_with_the_outcome(app, database, table):
    effects.metadata.create_all(app.engine)
    early: list[int] = []

    @app.handler("t", transactional=True, wait=wait_none())
    def post(msg: Message, ctx: Context) -> None:
        ctx.connection.execute(effects.insert().values(msg_id=msg.msg_id, amount=1))
        with outside.connect() as other:  # not to be seen before the outcome
            mine = effects.c.msg_id == msg.msg_id
            early.extend(other.scalars(sa.select(effects.c.msg_id).where(mine)))

    outside = database.engine()
    ids = send(app, *[f"o{i % 5}" for i in range(40)])
    assert app.drain(linger=1).done == 40
    assert early == []
    assert _effects(app) == ids
    assert set(table.statuses) == {2}


def test_transactional_effects_are_rolled_back_on_failure(app, table):
    effects.metadata.create_all(app.engine)

    @app.handler("t", transactional=True, wait=wait_none())
    def post(msg: Message, ctx: Context) -> Any:
        ctx.connection.execute(effects.insert().values(msg_id=msg.msg_id, amount=1))
        if msg.payload == "reject":
            return Reject("no")
        if msg.payload == "later":
            raise RetryLater(3600)
        if ctx.attempt < 3:
            raise ValueError("not yet")
        return None

    (first,) = send(app, "o", payload="twice")
    send(app, "p", payload="reject")
    send(app, "q", payload="later")
    report = app.drain(linger=1)
    assert (report.done, report.failed, report.retried) == (1, 1, 2)
    assert _effects(app) == [first]
    assert table.rows("status", "error_try_times") == [(2, 2), (-1, 3), (0, 0)]


def test_transactional_handler_with_an_orm_session(app):
    Base.metadata.create_all(app.engine)

    @app.handler("t", transactional=True, wait=wait_none())
    def post(msg: Message, ctx: Context) -> None:
        ctx.session.add(Ledger(msg_id=msg.msg_id))
        if msg.payload == "flush":
            ctx.session.flush()
        if msg.payload == "commit":
            ctx.session.commit()  # its savepoint only
        if msg.payload == "fail" and ctx.attempt == 1:
            ctx.session.commit()
            raise ValueError

    ids = [send(app, "o", payload=payload)[0] for payload in ("add", "flush", "commit", "fail")]
    assert app.drain(linger=1).done == 4
    assert _effects(app, Ledger.__table__) == ids


def test_transactional_handler_may_send(app, table):
    @app.handler("t", transactional=True)
    def handle(msg: Message, ctx: Context) -> None:
        if msg.payload < 3:
            app.send(ctx.connection, "t", msg.payload + 1, object_id=msg.object_id)

    send(app, "o", payload=0)
    assert app.drain(linger=0).done == 4
    assert table.column("payload") == ["0", "1", "2", "3"]


def test_connection_is_for_transactional_handlers_only(app, table):
    @app.handler("t", wait=wait_fixed(3600))
    def handle(msg: Message, ctx: Context) -> None:
        _ = ctx.connection

    send(app, "o")
    app.drain(linger=0)
    assert "transactional=True" in table.one("last_error")


# ---------------------------------------------------------------- async, timeout


def test_async_handlers_run_on_one_loop_thread(app):
    import asyncio

    threads: set[int] = set()

    @app.handler("t")
    async def handle(msg: Message, ctx: Context) -> None:
        await asyncio.sleep(0)
        threads.add(threading.get_ident())

    send(app, *range(20))
    assert app.drain(threads=4, linger=0).done == 20
    assert len(threads) == 1


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


def test_handler_over_its_timeout_is_told_and_its_try_fails(make_app, caplog):
    app = make_app(lease_seconds=6.0)
    app.create_schema()

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


# ---------------------------------------------------------------- typed payloads


@dataclass
class Invoice:
    id: int
    amount: float


class Order(TypedDict):
    id: int


class Customer(pydantic.BaseModel):
    name: str


def test_typed_payloads(app, table):
    got: list[Any] = []

    @app.handler("dataclass")
    def one(msg: Message[Invoice]) -> None:
        got.append(msg.payload)

    @app.handler("typed-dict")
    def two(msg: Message[Order], ctx: Context) -> None:
        got.append(msg.payload)

    @app.handler("model")
    async def three(msg: Message[Customer]) -> None:
        got.append(msg.payload)

    @app.handler("list")
    def four(msg: Message[list[int]]) -> None:
        got.append(msg.payload)

    payloads = {
        "dataclass": {"id": 1, "amount": 2.5},
        "typed-dict": {"id": 2},
        "model": {"name": "Ann"},
        "list": [1, 2],
    }
    for topic, payload in payloads.items():
        send(app, "o", topic=topic, payload=payload)
    assert app.drain(linger=0).done == 4
    assert got == [Invoice(1, 2.5), {"id": 2}, Customer(name="Ann"), [1, 2]]


class Currency(enum.Enum):
    EUR = "EUR"


@dataclass
class Booking:
    account: UUID
    amount: Decimal
    on: date
    at: datetime
    currency: Currency
    customer: Customer
    tags: frozenset[str]


def test_a_sent_object_comes_back_as_it_was(app, table):
    got: list[Any] = []

    @app.handler("t")
    def handle(msg: Message[Booking]) -> None:
        got.append(msg.payload)

    sent = [
        Booking(
            account=UUID(int=n),
            amount=Decimal("12345678901234567890.10"),
            on=date(2026, 10, 31),
            at=datetime(2026, 10, 31, 8, 30, tzinfo=UTC),
            currency=Currency.EUR,
            customer=Customer(name="Ann"),
            tags=frozenset({"a", "b"}),
        )
        for n in range(2)
    ]
    send(app, "o", payload=sent[0])
    with app.engine.begin() as conn:
        app.send_many(conn, "t", [(sent[1], "o")])
    assert app.drain(linger=0).done == 2
    assert got == sent
    assert str(got[0].amount) == "12345678901234567890.10"


def test_a_payload_that_does_not_fit_is_dead_at_once(app, table):
    @app.handler("t")
    def handle(msg: Message[Invoice]) -> None:
        raise AssertionError("never called")

    for payload in ({"id": "x", "amount": 1}, {}, None, [1]):
        send(app, "o", payload=payload)
    report = app.drain(linger=0)
    assert (report.failed, report.retried) == (4, 0)
    assert table.statuses == [-1] * 4
    assert all(text.startswith("PayloadError") for text in table.column("last_error"))


# ---------------------------------------------------------------- what nobody handles


def test_unknown_topic_is_left_untouched_and_reported(app, table, caplog):
    app.add_handler("known", lambda msg: None)
    send(app, "o", topic="nobody's")
    send(app, "p", topic="known")
    with caplog.at_level("WARNING", "msgworker"):
        report = app.drain(linger=0)
    assert (report.done, report.left, report.exit_code) == (1, 1, 1)
    assert table.rows("status", "error_try_times", "claimed_by") == [(0, 0, None), (2, 0, None)]
    assert any("nobody's" in record.getMessage() for record in caplog.records)


def test_unknown_topic_at_the_head_holds_its_object_back(app, table):
    app.add_handler("known", lambda msg: None)
    send(app, "o", topic="nobody's")
    send(app, "o", topic="known")
    assert app.drain(linger=0).done == 0
    assert table.statuses == [0, 0]


def test_an_empty_topic_is_a_topic_of_its_own(app, table):
    app.add_handler("default", lambda msg: None)
    _, second = send(app, "o", "o", topic="default")
    table.edit(table.where(msg_id=second), topic="")
    report = app.drain(linger=0)
    assert (report.done, report.released, report.left) == (1, 0, 1)


def test_drain_without_any_handler_is_an_error(app):
    with pytest.raises(MsgworkerError, match="no handler"):
        app.drain()


def test_a_schema_whose_index_names_another_table_has_is_refused(sqlite):
    """On SQLite the names of indexes stay with a table that is renamed."""
    app = App(sqlite.url)
    app.create_schema()
    with app.engine.begin() as conn:
        conn.exec_driver_sql("ALTER TABLE msgworker_message RENAME TO old")
    with pytest.raises(SchemaError, match="msgworker_message_guard already exists"):
        app.create_schema()
    app.engine.dispose()
