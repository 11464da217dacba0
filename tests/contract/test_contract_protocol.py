"""Conditions of the protocol that show only when something else has gone wrong, one by one.

The parts of an instance are wired as ever, but their rounds are called by hand.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from tenacity import wait_none

from msgworker import App, Message
from msgworker.clock import clock
from msgworker.errors import SchemaError
from msgworker.instance.hand import Running
from msgworker.message import Outcome, Settled, Settlement
from msgworker.store import candidates, claim, following, lease, recover, settle
from tests.support.rounds import fetch, loses_its_lease
from tests.support.rows import Table, send
from tests.support.waiting import in_thread, until

ME = "me-1"


def flagged(app: App, *ids: int, me: str = ME) -> None:
    """Flag these as `me` does."""
    c = app.tables.cols()
    columns = (c.msg_id, c.object_id, c.status, c.error_try_times, c.topic)
    with app.engine.begin() as conn:
        rows = conn.execute(sa.select(*columns).where(c.msg_id.in_(ids))).all()
        seen = [candidates.Candidate(r[0], r[1], r[2], r[3], 0, r[4], 1, None) for r in rows]
        assert len(claim.flag(conn, app.tables, seen, me=me)) == len(ids)


def leases(app: App) -> dict[str, lease.Lease]:
    with app.engine.begin() as conn:
        return {found.name: found for found in lease.read_all(conn, app.tables)}


# ---------------------------------------------------------------- claims


def test_the_database_refuses_a_second_running_row(app, table):
    first, second, other = send(app, "a", "a", "b")
    for msg_id in (first, other):
        table.edit(table.where(msg_id=msg_id), status=1)
    with pytest.raises(sa.exc.IntegrityError):
        table.edit(table.where(msg_id=second), status=1)
    assert table.statuses == [1, 0, 1]


def test_messages_without_an_object_are_claimed_together(one, app, table):
    send(app, None, None, None)
    assert fetch(one) == 3
    assert table.statuses == [1, 1, 1]


def test_a_message_in_quarantine_runs_alone(one, app, table):
    ids = send(app, "a", "b", "q", "c")
    last = table.where(msg_id=ids[2])
    table.edit(last, status=-1, error_try_times=2, crash_times=1)
    assert fetch(one) == 1
    assert table.statuses == [0, 0, 1, 0]
    assert fetch(one) == -1
    assert table.statuses == [0, 0, 1, 0]


def test_a_message_in_quarantine_waits_for_empty_hands(one, app, table):
    send(app, "a", "b")
    assert fetch(one) == 2
    (started,) = one.lanes.take_back()[:1]
    one.lanes.put(lane for lane in one.runtime.hand.lanes if lane is not started)
    send(app, "q")
    table.edit(table.where(object_id="q"), status=-1, error_try_times=2, crash_times=1)
    assert fetch(one) == 0
    assert table.statuses == [1, 0, -1]  # what has not started is given back
    assert table.rows("object_id")[0] == (started.row.object_id,)


def test_a_new_self_claims_nothing_that_the_old_one_looked_at(one, app, table):
    send(app, "a", "b")
    old = one.runtime.identity.id
    look = one.finder.look(4, 0)
    assert len(look.candidates) == 2
    loses_its_lease(one)
    assert one.fetcher._claim(look.candidates, old) == 0
    one.runtime.identity.trusted_until = 0.0
    assert one.fetcher._claim(look.candidates, "new-self") == 0
    assert table.statuses == [0, 0]


def test_a_new_self_waits_for_the_handlers_of_the_old_one(one, app, table):
    (a, _) = send(app, "a", "a")
    assert fetch(one) == 1
    (lane,) = one.runtime.hand.lanes
    one.runtime.hand.running[1] = Running(lane.row, lane.owner, time.monotonic(), None)
    loses_its_lease(one)
    table.edit(table.where(msg_id=a), status=2, claimed_by=None)  # recovered, and done elsewhere
    assert fetch(one) == 0
    assert table.statuses == [2, 0]
    one.runtime.hand.running.clear()
    assert fetch(one) == 1
    assert table.statuses == [2, 1]


def test_nothing_is_claimed_of_an_object_whose_settle_is_unanswered(one, app, table):
    (a, _) = send(app, "a", "a")
    assert fetch(one) == 1
    table.edit(table.where(msg_id=a), status=2, claimed_by=None)  # its settle, not known to us yet
    assert fetch(one) == 0
    assert table.statuses == [2, 0]


# ---------------------------------------------------------------- handlers and outcomes


class Counted(threading.Event):
    """An event that counts who waits for it."""

    waits = 0

    def wait(self, timeout: float | None = None) -> bool:
        self.waits += 1
        return super().wait(timeout)


def test_no_handler_starts_while_the_lease_is_in_doubt(one, app, ran):
    ids = send(app, "a")
    assert fetch(one) == 1
    one.runtime.stopping = asked = Counted()
    one.runtime.identity.trusted_until = 0.0
    one.handlers.start()
    try:
        until(lambda: ran or asked.waits >= 3, "the handler thread has looked")
        assert ran == []
        one.runtime.identity.trusted_until = clock() + 3600
        until(lambda: ran == ids, "started when the lease is sure again")
    finally:
        one.lanes.close()
        assert one.handlers.join(60)


def test_outcome_and_next_flag_commit_together(app, table):
    a1, a2, b1, b2 = send(app, "a", "a", "b", "b")
    flagged(app, a1, b1)
    before = table.rows("msg_id", "status", "claimed_by")
    batch = [Settlement(a1, next_id=a2), Settlement(b1, next_id=b2)]
    with app.engine.connect() as conn:
        conn.begin()
        assert set(settle.settle(conn, app.tables, batch, me=ME).values()) == {Settled.WENT_ON}
        conn.rollback()
    assert table.rows("msg_id", "status", "claimed_by") == before


def test_an_outcome_from_before_a_retry_later_is_not_written(app, table):
    """The same instance has the row again, with the same tries: only the count of RetryLater tells
    the claims apart."""
    (a,) = send(app, "a")
    late = Settlement(a, Outcome.FAILED, None, "E: x", 0.0, 0, 0)
    for times in (0, 1):
        flagged(app, a)
        if times == 0:
            now = Settlement(a, Outcome.LATER, None, "later", 0.0, 0, 0)
            with app.engine.begin() as conn:
                settle.settle(conn, app.tables, [now], me=ME)
            table.edit(available_at=None)
    with app.engine.begin() as conn:
        assert settle.settle_one(conn, app.tables, late, me=ME) is Settled.LOST
    assert table.rows("status", "error_try_times", "claimed_by") == [(1, 0, ME)]


def test_effects_of_a_lost_claim_are_rolled_back(app, table):
    """In the handler's own transaction somebody else gets the row: nothing may be committed."""
    effects = sa.Table("effects", sa.MetaData(), sa.Column("msg_id", sa.BigInteger))
    effects.create(app.engine)
    message = app.tables.message

    @app.handler("t", transactional=True, wait=wait_none())
    def handle(msg: Message, ctx: Any) -> None:
        ctx.connection.execute(effects.insert().values(msg_id=msg.msg_id))
        row = message.c.msg_id == msg.msg_id
        ctx.connection.execute(sa.update(message).where(row).values(claimed_by="other"))

    send(app, "a")
    app.drain(time_limit=30, linger=0.5)
    with app.engine.connect() as conn:
        assert conn.execute(sa.select(effects)).all() == []
    assert table.rows("status", "error_try_times", "claimed_by") == [(-1, 3, None)]


# ---------------------------------------------------------------- life and death


def test_a_drain_that_claims_is_held_up_by_nothing(one, app):
    one.draining.end.overdue_since = 1.0
    send(app, "a")
    assert fetch(one) == 1
    assert one.draining.end.overdue_since is None


def test_rows_of_ours_that_no_lane_knows_are_given_back(one, app, table):
    send(app, "a", "b")
    table.edit(table.where(object_id="a"), status=1, claimed_by=one.runtime.identity.id)
    one.heartbeat.run_once()
    assert table.rows("status", "error_try_times", "claimed_by") == [(0, 0, None)] * 2


@pytest.mark.parametrize(("lost", "told"), [(True, 0), (False, 1)])
def test_heads_run_though_their_runs_could_not_be_read(one, app, monkeypatch, caplog, lost, told):
    """A lost connection is told by the next round: an outage is one line in the log."""

    def fails(*arguments: Any, **options: Any) -> Any:
        raise sa.exc.DBAPIError("SELECT", {}, Exception("x"), connection_invalidated=lost)

    monkeypatch.setattr(following, "read_runs", fails)
    ids = send(app, "a", "a")
    assert fetch(one) == 1
    assert [lane.row.msg_id for lane in one.runtime.hand.lanes] == ids[:1]
    assert len([r for r in caplog.records if "runs could not be read" in r.getMessage()]) == told


def test_all_rows_that_no_lane_knows_are_given_back_at_once(one, app, table, monkeypatch):
    monkeypatch.setattr(recover, "BATCH", 2)
    send(app, *"abcde")
    table.edit(None, status=1, claimed_by=one.runtime.identity.id)
    one.heartbeat.run_once()
    assert table.statuses == [0] * 5


def test_a_beat_that_has_taken_long_recovers_all_the_same(one, app, table):
    send(app, "a", "b")
    table.edit(None, status=1, claimed_by="dead-1")
    assert one.heartbeat.recovery.run(time.monotonic() - 100.0) == 2
    assert table.rows("status", "error_try_times") == [(-1, 1)] * 2


def test_a_sweep_leaves_what_is_in_hand(one, app, table):
    send(app, "a", "a", None)
    assert fetch(one) == 2
    one.heartbeat.run_once()
    assert table.statuses == [1, 0, 1]


def test_a_lease_is_not_dropped_while_a_row_is_flagged(one, app, table):
    ids = send(app, "a")
    assert fetch(one) == 1
    one.runtime.hand.lanes.clear()
    one.runtime.identity.stuck.update(ids)  # its outcome could not be written
    assert one.heartbeat.leave() is False
    assert table.statuses == [1]
    assert list(leases(app)) == [one.runtime.identity.id]


def test_a_dead_lease_is_taken_over_and_then_goes(one, app, table):
    """Its rows are given back only by who has won the lease, and the lease goes last."""
    send(app, "a")
    with app.engine.begin() as conn:
        lease.register(conn, app.tables, "dead-1", ttl=30.0)
    table.edit(status=1, claimed_by="dead-1")
    one.heartbeat.run_once()
    assert table.statuses == [1]
    names = app.tables.lease.c
    past = datetime.now(UTC) - timedelta(hours=1)
    with app.engine.begin() as conn:
        dead = sa.update(app.tables.lease).where(names.name == "dead-1")
        conn.execute(dead.values(expires_at=past))
    assert one.heartbeat.run_once() == 1
    rows = table.rows("status", "error_try_times", "crash_times", "claimed_by")
    assert rows == [(-1, 1, 1, None)]
    assert list(leases(app)) == [one.runtime.identity.id]


def test_the_dead_do_not_live_on_where_the_clock_was_put_back(one, app, table, caplog):
    send(app, "a")
    with app.engine.begin() as conn:
        for name in ("dead-1", "dead-2"):
            lease.register(conn, app.tables, name, ttl=30.0)
    table.edit(status=1, claimed_by="dead-1")
    c = app.tables.lease.c
    day = datetime.now(UTC) + timedelta(days=1)
    for columns in ({"renewed_at": day, "expires_at": day + timedelta(seconds=30)}, {}):
        with app.engine.begin() as conn:  # our own too: we renew it
            conn.execute(sa.update(app.tables.lease).values(**columns or {"label": "x"}))
        assert one.heartbeat.run_once() == 0
        assert table.statuses == [1]
        soon = datetime.now(UTC) + timedelta(seconds=60)
        assert all(found.live and found.expires_at < soon for found in leases(app).values())
    told = [r.getMessage() for r in caplog.records if "put back" in r.getMessage()]
    assert told == ["the database's clock was put back: the time of 2 leases counts from now"]
    with app.engine.begin() as conn:
        past = datetime.now(UTC) - timedelta(hours=1)
        conn.execute(sa.update(app.tables.lease).where(c.name == "dead-1").values(expires_at=past))
    assert one.heartbeat.run_once() == 1


def test_a_recovery_makes_way_for_a_doubt_of_our_own_lease(one, app, table):
    send(app, *(f"o{i}" for i in range(recover.BATCH + 1)))
    table.edit(status=1, claimed_by="gone-1")
    assert one.runtime.identity.renewed_at == 0.0
    assert one.runtime.identity.doubt(least_age=1.0)
    assert not one.runtime.identity.trusted()
    assert one.heartbeat.recovery.run(time.monotonic()) == recover.BATCH
    assert one.heartbeat.pause_seconds(0) == 0.0
    assert one.heartbeat.run_once() == 1
    assert one.runtime.identity.trusted()
    assert one.heartbeat.pause_seconds(1) > 0.0


def test_rows_of_an_id_without_a_lease_are_recovered(one, app, table):
    send(app, "a", "b")
    table.edit(table.where(object_id="a"), status=1, claimed_by="gone-1")
    table.edit(table.where(object_id="b"), status=1)  # a foreign consumer's
    assert one.heartbeat.run_once() == 1
    rows = table.rows("status", "error_try_times", "crash_times", "claimed_by")
    assert rows == [(-1, 1, 1, None), (1, 0, 0, None)]


def test_each_death_is_told_also_of_an_instance_with_empty_hands(one, app, table, caplog):
    send(app, "a")
    names = ("idle-1", "busy-1", "taken-over-before", "alive-1")
    with app.engine.begin() as conn:
        for name in names:
            lease.register(conn, app.tables, name, ttl=30.0)
        past, c = datetime.now(UTC) - timedelta(hours=1), app.tables.lease.c
        changed = sa.update(app.tables.lease).where(c.name.in_(names[:3]))
        conn.execute(changed.values(renewed_at=past, expires_at=past))
        conn.execute(changed.where(c.name == names[2]).values(taken_by="somebody"))
    table.edit(status=1, claimed_by="busy-1")
    assert one.heartbeat.run_once() == 1
    assert set(leases(app)) == {"alive-1", one.runtime.identity.id}
    one.heartbeat.run_once()
    told = sorted(r.getMessage() for r in caplog.records if r.levelname == "WARNING")
    assert told == [
        "instance idle-1 is dead; it had nothing in hand",
        "recovered 1 messages of dead instance busy-1",
    ]


def test_a_topic_without_handler_is_told_once_an_hour_and_a_new_one_at_once(one, app, caplog):
    def told() -> list[str]:
        caplog.clear()
        for _ in range(3):
            fetch(one)
        return [r.getMessage() for r in caplog.records if "no handler" in r.getMessage()]

    one.finder.search.topics = frozenset({"t"})
    text = "messages wait whose topic has no handler here: "
    send(app, "a", topic="x")
    assert told() == [text + "'x'"]
    assert told() == []
    send(app, "b", topic="y")
    assert told() == [text + "'y'"]
    assert told() == []
    at = one.finder.unhandled.told
    at["x"] -= 3601
    assert told() == [text + "'x'"]
    send(app, "c", topic="z")
    at = one.finder.unhandled.told
    for topic in at:
        at[topic] -= 3601
    for n in range(10):
        send(app, f"d{n}", topic=f"n{n}")
    names = ", ".join(repr(f"n{n}") for n in range(10))
    assert told() == [f"{text}{names} and 3 more"]


def test_a_topic_that_was_not_chosen_is_not_told_to_have_no_handler(app, caplog):
    app.add_handler("t", lambda msg: None)
    app.add_handler("u", lambda msg: None)
    send(app, "a", topic="u")
    send(app, "b", topic="t")
    assert app.drain(topics=["t"], linger=0).done == 1
    assert "no handler" not in caplog.text


def test_a_topic_that_another_live_instance_handles_is_not_told_until_that_is_gone(
    one, app, caplog
):
    one.finder.search.topics = frozenset({"t"})
    with app.engine.begin() as conn:
        lease.register(conn, app.tables, "theirs", ttl=600.0, topics=["x"])
    send(app, "a", topic="x")
    fetch(one)
    assert "no handler" not in caplog.text
    with app.engine.begin() as conn:
        lease.drop(conn, app.tables, "theirs")
    fetch(one)
    assert "no handler" not in caplog.text  # it is asked once a minute
    one.finder.unhandled.told["x"] -= 61
    fetch(one)
    assert "messages wait whose topic has no handler here: 'x'" in caplog.text


def test_the_lease_is_kept_while_a_stop_waits_for_a_handler(make_app):
    app = make_app(lease_seconds=9)
    app.create_schema()
    started, go = threading.Event(), threading.Event()

    @app.handler("t")
    def handle(msg: Message) -> None:
        started.set()
        go.wait(60)

    send(app, "o")
    worker = app.worker(threads=1)
    worker.start()
    name = worker.instance_id
    assert started.wait(60)
    join = in_thread(worker.stop)
    try:
        term = leases(app)[name].term
        until(lambda: leases(app)[name].term >= term + 3, "renewed beyond its time")
    finally:
        go.set()
    assert join() is True
    assert Table(app).statuses == [2]
    assert leases(app) == {}


def test_leases_are_judged_by_the_database_s_clock(sqlite):
    """Its clock is two days behind ours."""

    def strftime(_format: str, _now: str, modifier: str = "0 seconds") -> str:
        seconds = float(modifier.removesuffix(" seconds"))
        moment = datetime.now(UTC) - timedelta(days=2) + timedelta(seconds=seconds)
        return moment.replace(tzinfo=None).isoformat(" ", "milliseconds")

    engine = sa.create_engine(sqlite.url)

    @sa.event.listens_for(engine, "connect")
    def shift(raw: sqlite3.Connection, _record: Any) -> None:
        raw.create_function("strftime", -1, strftime)

    app = App(engine)
    app.create_schema()
    try:
        with app.engine.begin() as conn:
            lease.register(conn, app.tables, ME, ttl=3600.0)
            assert lease.renew(conn, app.tables, ME, ttl=3600.0)
            (seen,) = lease.read_all(conn, app.tables)
            assert seen.live
            assert not lease.take_over(conn, app.tables, seen, me="other", ttl=3600.0)
    finally:
        app.engine.dispose()
        engine.dispose()


def test_an_outage_longer_than_the_lease_counts_a_try(one, app, table):
    """Nobody could renew: all leases have expired when the database is back."""
    send(app, "a", "a")
    assert fetch(one) == 1
    old = one.runtime.identity.id
    past = datetime.now(UTC) - timedelta(hours=1)
    with app.engine.begin() as conn:
        conn.execute(sa.update(app.tables.lease).values(expires_at=past))
    assert one.heartbeat.run_once() == 1
    assert one.runtime.identity.id != old
    assert not one.runtime.hand.lanes
    rows = table.rows("status", "error_try_times", "crash_times", "claimed_by")
    assert rows == [(-1, 1, 1, None), (0, 0, 0, None)]


def test_a_worker_without_the_guard_does_not_start(app):
    app.add_handler("t", lambda msg: None)
    guard = next(i for i in app.tables.message.indexes if i.name == app.tables.guard_name)
    guard.drop(app.engine)
    with pytest.raises(SchemaError, match=app.tables.guard_name):
        app.worker().start()


# ---------------------------------------------------------------- slow work is shared


def keep_lease(one, app: App) -> None:
    """Nobody renews it here, and it is not to end however long the test takes."""
    with app.engine.begin() as conn:
        assert lease.renew(conn, app.tables, one.runtime.identity.id, ttl=3600.0)
    one.runtime.identity.trusted_until = clock() + 3600.0


def in_hand_and_slow(one, app: App, *objects: Any, age: float = 1.5) -> list[Any]:
    """Claim all of these as quick work; then the first one's handler runs for so long."""
    keep_lease(one, app)
    ids = send(app, *objects)
    assert fetch(one) == len(set(objects))
    started, *waiting = sorted(one.lanes.take_back(), key=lambda lane: lane.row.msg_id)
    one.lanes.put(waiting)
    since = time.monotonic() - age
    one.runtime.hand.running[1] = Running(started.row, started.owner, since, None)
    return ids


def test_what_waits_behind_slow_handlers_is_given_back_where_others_live(one, app, table, ran):
    in_hand_and_slow(one, app, "a", "a", "b", "b", "c")
    one.runtime.slots = 2
    assert table.statuses == [1, 0, 1, 0, 1]
    assert fetch(one) == -1
    assert table.statuses == [1, 0, 0, 0, 0]
    assert set(table.column("error_try_times")) == {0}
    assert table.column("claimed_by")[1:] == [None] * 4
    tally = one.runtime.tally
    assert (tally.shared, tally.released, tally.done) == (2, 0, 0)
    for _ in range(5):  # and they are not claimed again
        assert fetch(one) == -1
    assert (tally.claims, tally.shared) == (1, 2)
    assert {lane.row.object_id for lane in one.runtime.hand.lanes} == {"a"}
    app.drain(threads=1, linger=0)  # another instance has them now
    assert table.statuses == [1, 0, 2, 2, 2]
    assert sorted(ran) == [3, 4, 5]
    assert ran.index(3) < ran.index(4)


@pytest.mark.parametrize(("slots", "age"), [(1, 600.0), (2, 0.2)])
def test_what_waits_is_kept_while_nobody_else_lives_or_handlers_are_young(
    one, app, table, slots, age
):
    in_hand_and_slow(one, app, "a", "b", "c", age=age)
    one.runtime.slots = slots
    assert fetch(one) == -1
    assert table.statuses == [1, 1, 1]
    assert one.runtime.tally.shared == 0


def test_the_newest_are_given_back_first(one, app, table):
    in_hand_and_slow(one, app, "a", "b", "c", "d", age=0.0)
    one.runtime.slots = 2
    one.appetite.kept = 3
    one.room.share(len(one.runtime.hand.lanes), None)
    assert table.statuses == [1, 1, 1, 0]


def test_nothing_is_given_back_while_our_lease_is_in_doubt(one, app, table):
    in_hand_and_slow(one, app, "a", "b")
    one.runtime.slots, one.runtime.identity.trusted_until = 2, 0.0
    assert fetch(one) == -1
    assert table.statuses == [1, 1]


def test_a_slow_handler_of_a_lost_id_keeps_its_thread(one, app, table):
    (a, _) = send(app, "a", "b")
    assert fetch(one) == 2
    lane = next(lane for lane in one.runtime.hand.lanes if lane.row.msg_id == a)
    one.runtime.hand.running[1] = Running(lane.row, lane.owner, time.monotonic() - 600.0, None)
    loses_its_lease(one)
    table.edit(status=0, claimed_by=None)
    assert fetch(one) == -1  # its one thread is not free: others may have them
    assert table.statuses == [0, 0]
    one.runtime.hand.running.clear()
    assert fetch(one) == 2
