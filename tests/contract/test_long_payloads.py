"""Payloads that are not read ahead: what an instance holds of them at once is bounded."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import sqlalchemy as sa

from msgworker import App, Message, MessageTable
from msgworker.instance.running import call, pool
from msgworker.instance.running.call import PayloadBudget
from msgworker.message import Outcome
from msgworker.store.rows import READ_AHEAD
from tests.support.rounds import fetch, trust_until
from tests.support.rows import Table, edit, send
from tests.support.waiting import in_thread, launched, until

LONG = "x" * (READ_AHEAD + 1)
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "transactional": {"transactional": True},
    "batch": {"batch": 5},
    "transactional batch": {"transactional": True, "batch": 5},
    "group": {"transactional": True, "group": 5},
}


@pytest.mark.parametrize("kind", KINDS)
def test_long_payloads_reach_their_handlers_in_order(app, kind):
    seen: list[tuple[str, int]] = []

    def one(msg: Message) -> None:
        seen.append((msg.object_id or "", len(msg.payload)))

    def many(messages: list[Message]) -> None:
        for msg in messages:
            one(msg)

    app.add_handler("t", many if "batch" in KINDS[kind] else one, **KINDS[kind])
    lengths = [3, READ_AHEAD - 2, READ_AHEAD - 1, READ_AHEAD + 5, 90_000]  # with two quotes
    for length in lengths:
        send(app, "a", "b", payload="y" * length)
    assert app.drain(linger=0, threads=2).done == 10
    assert [length for name, length in seen if name == "a"] == lengths
    assert [length for name, length in seen if name == "b"] == lengths


def test_what_is_sent_with_an_outcome_has_a_long_payload_too(app):
    told: list[Any] = []
    app.add_handler("t", lambda msg: None, on_done="told")
    app.add_handler("told", lambda msg: told.append(msg.payload["payload"]))
    send(app, "a", payload=LONG)
    assert app.drain(linger=0).done == 2
    assert told == [LONG]


def test_no_handler_starts_where_trust_ended_while_its_payload_was_read(one, app, ran, monkeypatch):
    read = call.with_payload

    def slowly(*given: Any) -> Any:
        found = read(*given)
        trust_until(one.shared.identity, 0.0)
        return found

    monkeypatch.setattr(call, "with_payload", slowly)
    send(app, "a", payload=LONG)
    fetch(one)
    lane = one.lanes.next()
    one.caller.handle(lane)
    assert (lane.result.outcome, ran) == (Outcome.RELEASED, [])


def test_handlers_hold_no_more_long_payloads_than_the_budget(app_with):
    app = app_with(payload_budget=3 * len(LONG))
    lock, inside, most = threading.Lock(), [0], [0]
    three, go_on = threading.Event(), threading.Event()

    @app.handler("t")
    def hold(msg: Message) -> None:
        with lock:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            if inside[0] == 3:
                three.set()
        go_on.wait(20)
        with lock:
            inside[0] -= 1

    send(app, *range(12), payload=LONG[:-2])
    send(app, "longer than all", payload=LONG * 4)
    ends = in_thread(lambda: app.drain(linger=0, threads=8))
    assert three.wait(20)
    until(lambda: Table(app).statuses.count(1) >= 4, "others are claimed")
    go_on.set()
    assert ends().done == 13
    assert most[0] == 3
    assert set(Table(app).statuses) == {2}


def test_who_waits_for_the_budget_when_the_instance_stops_is_released(app_with):
    app = app_with(payload_budget=1)
    begun, go_on = threading.Event(), threading.Event()

    @app.handler("t")
    def hold(msg: Message) -> None:
        begun.set()
        go_on.wait(20)

    send(app, "a", "b", payload=LONG)
    worker = launched(app.worker(threads=2))
    assert begun.wait(20)
    until(lambda: Table(app).statuses == [1, 1], "both are claimed")
    ends = in_thread(lambda: worker.stop(grace=20))
    until(lambda: 0 in Table(app).statuses, "the one that waits is released")
    go_on.set()
    assert ends()
    assert sorted(Table(app).rows("status", "error_try_times")) == [(0, 0), (2, 0)]


def test_a_message_that_is_deleted_before_its_payload_is_read_runs_nowhere(app: App) -> None:
    ran: list[int] = []
    first, second = send(app, "a", "a", payload=LONG)

    @app.handler("t")
    def handle(msg: Message) -> None:
        ran.append(msg.msg_id)
        with app.engine.begin() as conn:
            conn.execute(sa.delete(app.tables.message).where(app.tables.cols().msg_id == second))

    app.drain(linger=0)
    assert ran == [first]


@pytest.mark.parametrize("most", [1000, READ_AHEAD + 100], ids=["read ahead", "not read ahead"])
def test_a_payload_over_max_payload_is_never_read(app, most):
    small = App(app.engine, table=MessageTable(max_payload=most))
    small.add_handler("t", lambda msg: None, max_tries=1)
    fits, too_long = send(app, "a", "b", payload="y" * (most - 2))
    edit(app, too_long, payload='"' + "y" * most + '"')
    report = small.drain(linger=0)
    assert (report.done, report.failed) == (1, 1)
    assert app.ops.show(fits).status == "done"
    error = app.ops.show(too_long).last_error
    assert "too long to be read" in error
    assert str(most + 2) in error


def test_the_budget_lets_one_in_that_is_longer_and_the_holder_take_more() -> None:
    budget = PayloadBudget(10)
    assert budget.take(50, lambda: True)
    assert budget.take(5, lambda: True)
    assert in_thread(lambda: budget.take(1, lambda: True))() is False
    budget.give_back()
    budget.give_back()


def waits_for_the_budget(app: App, **options: Any) -> tuple[list[int], threading.Event]:
    """Two handlers of which one waits for the payload of the other; who ran, and what lets it go
    on."""
    ran: list[int] = []
    go_on = threading.Event()

    @app.handler("t", **options)
    def hold(messages: Any) -> None:
        ran.extend(msg.msg_id for msg in (messages if "batch" in options else [messages]))
        if len(ran) == 1:
            go_on.wait(20)

    send(app, "a", "b", payload=LONG)
    return ran, go_on


@pytest.mark.quick("sqlite")
@pytest.mark.parametrize("options", [{}, {"batch": 2}], ids=["plain", "batch"])
def test_who_waits_for_the_budget_while_its_message_is_recovered_does_not_start(
    app_with, monkeypatch, options
):
    monkeypatch.setattr(pool, "BYTES", 1)  # each is a batch of its own
    budget = PayloadBudget(1)
    monkeypatch.setattr(call, "PayloadBudget", lambda most: budget)
    app = app_with(payload_budget=1, lease_seconds=2.0)
    ran, go_on = waits_for_the_budget(app, **options)
    worker = launched(app.worker(threads=2))
    until(lambda: ran and Table(app).statuses == [1, 1], "both are claimed")
    assert worker.instance is not None
    assert worker.instance_id is not None
    # Under another id the instance may have them again: it claims nothing more.
    monkeypatch.setattr(worker.instance.fetcher.claimer, "claim", lambda *_, **options: ([], []))
    assert app.ops.release(worker.instance_id, force=True) == 2
    go_on.set()
    assert worker.stop(grace=20)
    assert len(ran) == 1
    assert in_thread(lambda: budget.take(1, lambda: True))()
    assert Table(app).rows("status", "error_try_times") == [(-1, 1), (-1, 1)]


def test_the_wait_for_the_budget_is_no_time_of_the_handler(app_with):
    app = app_with(payload_budget=1)
    ran, go_on = waits_for_the_budget(app, timeout=5)
    with launched(app.worker(threads=2)) as worker:
        until(lambda: ran and Table(app).statuses == [1, 1], "both are claimed")
        (waits,) = {1, 2} - set(ran)
        running = worker.instance.shared.in_flight.running
        assert [one.row.msg_id for one in running.values()] == ran
        go_on.set()
        until(lambda: set(Table(app).statuses) == {2}, "both are done")
    assert ran[1:] == [waits]
