"""A message that may have killed an instance runs alone."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa

from msgworker.instance.running import in_flight
from tests.support.rounds import beat, by_hand, fetch
from tests.support.rows import edit, send
from tests.support.waiting import launched, until
from tests.support.watching import Watch


@pytest.mark.quick
def test_a_message_in_quarantine_runs_alone(one, app, table):
    ids = send(app, "a", "b", "q", "c")
    last = table.where(msg_id=ids[2])
    table.edit(last, status=-1, error_try_times=2, crash_times=1)
    assert fetch(one) == 1
    assert table.statuses == [0, 0, 1, 0]
    assert fetch(one) is None
    assert table.statuses == [0, 0, 1, 0]


def test_a_message_in_quarantine_waits_for_empty_hands(one, app, table):
    send(app, "a", "b")
    assert fetch(one) == 2
    (started,) = one.lanes.take_back()[:1]
    one.lanes.put(lane for lane in one.shared.in_flight.lanes if lane is not started)
    send(app, "q")
    table.edit(table.where(object_id="q"), status=-1, error_try_times=2, crash_times=1)
    assert fetch(one) == 0
    assert table.statuses == [1, 0, -1]  # what has not started is given back
    assert table.rows("object_id")[0] == (started.row.object_id,)


@pytest.mark.parametrize("other", [0, 2], ids=["an earlier one waits", "a later one runs"])
def test_one_in_quarantine_that_waits_for_another_of_its_object_holds_up_no_other(
    one, app, table, other
):
    send(app, "a")
    assert fetch(one) == 1
    ids, now = send(app, "q", "q", "q", "b"), datetime.now(UTC)
    last = {"status": -1, "error_try_times": 2, "crash_times": 1}
    edit(app, ids[1], available_at=now - timedelta(hours=1), **last)
    edit(app, ids[0], **({"status": 2} if other else {"available_at": now + timedelta(hours=1)}))
    edit(app, ids[other], status=1 if other else 0)
    assert fetch(one) == 1
    assert one.shared.quiesce.reason is None
    assert table.statuses == ([1, 2, -1, 1, 1] if other else [1, 0, -1, 0, 1])


@pytest.mark.parametrize("by", ["topic", "job"])
def test_what_is_paused_is_not_claimed_though_it_waited_for_empty_hands(one, app, table, by):
    send(app, "a")
    assert fetch(one) == 1
    (started,) = one.lanes.take_back()
    job = app.job("j")
    with app.engine.begin() as conn:
        app.send(conn, "t", object_id="q", job=job)
    table.edit(table.where(object_id="q"), status=-1, error_try_times=2, crash_times=1)
    assert fetch(one) == 0
    assert one.shared.quiesce.active
    if by == "topic":
        app.ops.pause("t")
    else:
        app.ops.pause_job(job.job_id)
    beat(one)
    one.caller.handle(started)
    one.settler.add(started, True)
    assert fetch(one) == 0
    assert table.statuses == [2, -1]
    assert not one.shared.quiesce.active


@pytest.mark.quick
def test_looks_that_read_on_behind_a_message_in_quarantine_do_not_forget_it(
    one, app, table, monkeypatch
):
    """As in slices, and where no index gives rows by age: the others were claimed meanwhile, so
    that it waited as long as there were some."""
    search = one.fetcher.finder.search
    look = search.look
    send(app, "a")
    assert fetch(one) == 1
    (started,) = one.lanes.take_back()
    send(app, "q", "b")
    table.edit(table.where(object_id="q"), status=-1, error_try_times=2, crash_times=1)
    assert fetch(one) == 0

    def reads_on(conn, wanted):
        return replace(look(conn, wanted), quarantined=None)

    monkeypatch.setattr(search, "look", reads_on)
    assert not fetch(one)
    one.caller.handle(started)
    one.settler.add(started, True)
    until(lambda: fetch(one), "it is claimed")
    assert table.statuses == [2, 1, 0]


@pytest.mark.parametrize("by", ["claimed by another", "done"])
def test_others_are_claimed_where_a_message_in_quarantine_does_not_wait(one, app, table, by):
    send(app, "a")
    assert fetch(one) == 1
    one.lanes.take_back()
    send(app, "q", "b")
    in_quarantine = table.where(object_id="q")
    table.edit(in_quarantine, status=-1, error_try_times=2, crash_times=1)
    assert fetch(one) == 0
    assert one.shared.quiesce.active
    table.edit(in_quarantine, status=2 if by == "done" else 1)
    assert fetch(one) == 1
    assert not one.shared.quiesce.active


def test_limited_topics_go_on_in_the_pauses_of_a_wait_for_empty_hands(app, table, monkeypatch):
    monkeypatch.setattr(in_flight, "FIRST_SECONDS", 0.0)
    app.add_handler("t", lambda msg: None)
    app.add_handler("limited", lambda msg: None, max_running=1)
    send(app, "long")
    with by_hand(app, threads=3) as one:
        assert fetch(one) == 1
        one.lanes.take_back()
        send(app, "q")
        table.edit(table.where(object_id="q"), status=-1, error_try_times=2, crash_times=1)
        assert fetch(one) == 0
        send(app, "a", topic="limited")
        until(lambda: fetch(one), "it is claimed")
        assert one.shared.quiesce.reason is in_flight.Reason.QUARANTINE
    assert table.statuses == [1, -1, 1]


@pytest.mark.requires("sessions")
@pytest.mark.quick("postgresql")
def test_a_locked_message_in_quarantine_does_not_stop_the_others(app, table):
    app.add_handler("t", lambda msg: None)
    (poison,) = send(app, None)
    table.edit(status=-1, error_try_times=2, crash_times=1)
    c = app.tables.message.c
    with app.worker(threads=1) as worker, app.engine.connect() as another:
        another.execute(sa.select(c.msg_id).where(c.msg_id == poison).with_for_update()).all()
        send(app, *["a"] * 5, *range(15))
        worker.start()
        until(lambda: table.statuses == [-1] + [2] * 20, "the others are done")
        another.rollback()
        until(lambda: table.statuses == [2] * 21, "and that one")


@pytest.mark.requires("sessions")
@pytest.mark.parametrize("topic", ["t", "limited"])
def test_nothing_waits_for_a_message_in_quarantine_that_is_locked(app, table, topic):
    app.add_handler("t", lambda msg: None)
    app.add_handler("limited", lambda msg: None, max_running=1)
    c = app.tables.message.c
    with by_hand(app, threads=3) as one, app.engine.connect() as another:
        send(app, "a")
        assert fetch(one) == 1
        send(app, "q", topic=topic)
        send(app, "b")
        table.edit(table.where(object_id="q"), status=-1, error_try_times=2, crash_times=1)
        locked = sa.select(c.msg_id).where(table.where(object_id="q")).with_for_update()
        another.execute(locked).all()
        one.fetcher.limit_poller.forget()
        assert fetch(one) == 1
        assert (one.shared.quiesce.reason, table.statuses) == (None, [1, -1, 1])
        another.rollback()
        one.fetcher.finder.forget()
        one.fetcher.limit_poller.forget()
        until(lambda: fetch(one) is not None and one.shared.quiesce.reason, "it is waited for")


def test_a_message_in_quarantine_gets_its_turn_among_slow_handlers(app, table, monkeypatch):
    """Runs behind the heads would never let the instance run empty."""
    monkeypatch.setattr(in_flight, "FIRST_SECONDS", 0.2)
    monkeypatch.setattr(in_flight, "PAUSE_SECONDS", 0.2)
    watch = Watch()
    app.add_handler("t", lambda msg: watch.saw(msg.object_id, msg.msg_id, lambda: time.sleep(0.1)))
    send(app, *["a", "b", "c", "d", "e", "f"] * 100)
    (poison,) = send(app, "q")
    table.edit(table.where(object_id="q"), status=-1, error_try_times=2, crash_times=1)
    with launched(app.worker(threads=2)) as worker:
        until(lambda: poison in watch.ids, "it had its turn")
        until(lambda: len(watch.ids) > watch.ids.index(poison) + 4, "the others go on")
        worker.stop(grace=30)
    assert len(watch.ids) < 300  # before half of the others
    (turn,) = [span for span in watch.spans if span[1] == poison]
    beside = [span for span in watch.spans if span[2] < turn[3] and turn[2] < span[3]]
    assert beside == [turn]
    assert table.rows("status", "error_try_times", "crash_times")[-1] == (2, 2, 1)
