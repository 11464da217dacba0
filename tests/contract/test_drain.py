"""A drain: when it is over, and what it reports."""

from __future__ import annotations

import itertools
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa
from tenacity.wait import wait_fixed

from msgworker import App, Context, Message, Reject
from msgworker.errors import DatabaseUnavailable
from msgworker.instance import worker as worker_module
from msgworker.instance.claiming.capacity import LaneLimit
from msgworker.instance.liveness import recovery
from msgworker.queries import messages
from msgworker.store import lease, ranked, recover
from msgworker.table.tables import Tables
from tests.support.leases import dead_holds, leases
from tests.support.rounds import fetch
from tests.support.rows import Table, send
from tests.support.waiting import in_thread, until
from tests.support.watching import Watch


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


def test_time_limit_ends_a_drain(app, table, monkeypatch):
    """Its clock is put forward when two messages run and two are held beside them."""
    begun: list[int] = []

    @app.handler("t")
    def handle(msg: Message, ctx: Context) -> None:
        begun.append(msg.msg_id)
        until(lambda: ctx.cancelled, "the drain is over")

    late = threading.Event()
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + 600 * late.is_set())
    monkeypatch.setattr(worker_module, "time", clock)
    monkeypatch.setattr(LaneLimit, "update", lambda self, mean, ages: vars(self).update(lanes=4))
    send(app, *["o"] * 5, *range(5, 10))
    report = in_thread(lambda: app.drain(threads=2, time_limit=600, linger=0))
    until(lambda: len(begun) == 2 and table.statuses.count(1) == 4, "two run, and two are held")
    late.set()
    done = report()
    assert (done.done, done.released, done.left) == (2, 2, 8)
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
    ask, asked = ranked.due_in, itertools.count()

    def due_now(conn: sa.Connection, tables: Tables, **waits: Any) -> float | None:
        found = ask(conn, tables, **waits)
        if found and next(asked) % 2:
            time.sleep(min(1.0, found + 0.01))
            return None
        return found

    monkeypatch.setattr(ranked, "due_in", due_now)
    monkeypatch.setattr(worker_module, "OVERDUE_SECONDS", 0.5)

    assert_the_third_try_is_waited_for(app, 1.0)


def test_worker_drains(app):
    app.add_handler("t", lambda msg: None)
    send(app, *range(7))
    with app.worker(threads=2) as worker:
        assert worker.drain(linger=0).done == 7
        report = worker.drain(linger=0)
        assert (report.done, report.left, report.exit_code) == (0, 0, 0)
        send(app, 1)
        assert worker.drain(linger=0).done == 1


def test_drain_finds_what_stands_behind_many_blocked_objects(app, table):
    app.add_handler("t", lambda msg: None)
    with app.engine.begin() as conn:
        app.send_many(conn, "t", [(None, f"blocked{i}") for i in range(1000)], delay=3600)
        app.send_many(conn, "t", [(None, f"blocked{i % 1000}") for i in range(3000)])
        app.send_many(conn, "t", [(None, f"free{i}") for i in range(100)])
    report = app.drain(linger=0)
    assert (report.done, report.left) == (100, 4000)


def test_drain_finds_what_stands_behind_messages_of_unknown_topics(app):
    app.add_handler("t", lambda msg: None)
    with app.engine.begin() as conn:
        app.send_many(conn, "nobody's", [(None, None) for i in range(2000)])
        app.send_many(conn, "nobody's", [(None, f"x{i}") for i in range(1000)])
        app.send_many(conn, "t", [(None, f"o{i}") for i in range(50)])
        app.send_many(conn, "t", [(None, None) for i in range(50)])
    report = app.drain(linger=0)
    assert (report.done, report.left) == (100, 3000)


def test_a_drain_waits_for_what_it_recovers(app_with, monkeypatch):
    monkeypatch.setattr(recovery, "REST_FACTOR", 1e9)
    monkeypatch.setattr(recovery, "REST_SHARE", 0.2)
    monkeypatch.setattr(recover, "BATCH", 2)
    app = app_with(lease_seconds=6.0, poll_seconds=0.05)
    table = Table(app)
    app.add_handler("t", lambda msg: None)
    begun = "the recovery has begun"
    app.add_handler("first", lambda msg: until(lambda: any(table.column("crash_times")), begun))
    send(app, *"abcdefgh")
    dead_holds(app, table)
    send(app, "first", topic="first")
    assert app.drain(linger=0).done == 9


def test_a_drain_waits_for_the_dead_whom_another_took_over_and_died_of_it(app, table):
    app.add_handler("t", lambda msg: None)
    send(app, "a")
    dead_holds(app, table)
    seen = leases(app)["dead-1"]
    with app.engine.begin() as conn:
        assert lease.take_over(conn, app.tables, seen, me="dead-2", ttl=1.0)
    report = app.drain(linger=30)
    assert (report.done, report.left) == (1, 0)


def test_a_session_that_ends_at_the_last_count_does_not_fail_a_drain(app, monkeypatch):
    app.add_handler("t", lambda msg: None)
    real, asked = messages.unfinished, []

    def unfinished(conn: Any, t: Any) -> int:
        if threading.current_thread().name != "msgworker-beside":
            return real(conn, t)  # the count of the table before it ends
        asked.append(1)
        if len(asked) < 3:
            raise DatabaseUnavailable("gone")
        return real(conn, t)

    monkeypatch.setattr(messages, "unfinished", unfinished)
    send(app, "a")
    assert outcome_of(app.drain(linger=0)) == (1, 0, False)
    asked.clear()
    assert outcome_of(app.drain(linger=0, outage_limit=0.0)) == (0, 0, True)


def outcome_of(report: Any) -> tuple[int, int, bool]:
    return report.done, report.left, report.database_lost


def test_a_drain_that_claims_is_held_up_by_nothing(one, app):
    one.fetcher.drain_end.overdue_since = 1.0
    send(app, "a")
    assert fetch(one) == 1
    assert one.fetcher.drain_end.overdue_since is None


@pytest.mark.quick("sqlite-a lost")
@pytest.mark.parametrize("lost", [False, True], ids=["an error", "a lost connection"])
def test_what_is_done_beside_messages_ends_no_drain(ready, app_with, lost, caplog):
    """Pauses, requests, limits, the history, recovery: while none of it can be read or written,
    messages are claimed and settled and the lease is renewed."""
    app = app_with(lease_seconds=3.0)
    failed: list[str] = []

    def fail(conn: Any, cursor: Any, statement: str, *_: Any) -> None:
        if armed.is_set() and threading.current_thread().name == "msgworker-housekeeper":
            failed.append(statement)
            raise sa.exc.OperationalError(
                "SELECT", {}, OSError("gone"), connection_invalidated=lost
            )

    armed = threading.Event()
    sa.event.listen(app.engine, "before_cursor_execute", fail)

    def told() -> list[str]:
        return [text for text in caplog.messages if text.startswith("housekeeper: ")]

    def handle(msg: Message[Any]) -> None:
        armed.set()
        until(lambda: len(failed) > 3 and len(told()) >= most, "it is told")

    most = 1 if lost else 2  # an error that is no loss is told at once, too
    app.add_handler("t", handle)
    send(app, *(f"o{n % 10}" for n in range(20)))
    report = app.drain(linger=0.5, threads=1, outage_limit=0.5, time_limit=60)
    assert (report.done, report.left, report.exit_code) == (20, 0, 0), report
    assert len(told()) == most, told()
