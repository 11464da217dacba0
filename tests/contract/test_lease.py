"""The lease of an instance: kept, doubted, lost; and the new id after it."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from msgworker import App, Context, Message
from msgworker.clock import clock
from msgworker.errors import DatabaseUnavailable
from msgworker.events import Renewed
from msgworker.instance.running.in_flight import Execution
from msgworker.instance.running.outcome import DONE
from msgworker.store import lease, recover
from tests.support.apps import created
from tests.support.leases import beat_now, leases
from tests.support.rounds import beat, fetch, loses_its_lease, renewed_before, trust_until
from tests.support.rows import Table, send
from tests.support.waiting import in_thread, launched, until


def test_a_new_self_claims_nothing_that_the_old_one_looked_at(one, app, table):
    send(app, "a", "b")
    old = one.shared.identity.id
    look = one.fetcher.finder.look(4, 0)
    assert len(look.candidates) == 2
    loses_its_lease(one)
    assert one.fetcher.claim(look.candidates, look, old) == 0
    trust_until(one.shared.identity, 0.0)
    assert one.fetcher.claim(look.candidates, look, "new-self") == 0
    assert table.statuses == [0, 0]


def test_a_new_self_waits_for_the_handlers_of_the_old_one(one, app, table):
    (a, _) = send(app, "a", "a")
    assert fetch(one) == 1
    (lane,) = one.shared.in_flight.lanes
    one.shared.in_flight.running[1] = Execution(lane.row, lane.owner, time.monotonic(), None)
    loses_its_lease(one)
    table.edit(table.where(msg_id=a), status=2, claimed_by=None)  # recovered, and done elsewhere
    assert fetch(one) == 0
    assert table.statuses == [2, 0]
    one.shared.in_flight.running.clear()
    assert fetch(one) == 1
    assert table.statuses == [2, 1]


class Counted(threading.Event):
    """An event that counts who waits for it."""

    waits = 0

    def wait(self, timeout: float | None = None) -> bool:
        self.waits += 1
        return super().wait(timeout)


def test_no_handler_starts_while_the_lease_is_in_doubt(one, app, ran):
    ids = send(app, "a")
    assert fetch(one) == 1
    one.shared.stop.requested = asked = Counted()
    trust_until(one.shared.identity, 0.0)
    one.handlers.start()
    try:
        until(lambda: ran or asked.waits >= 3, "the handler thread has looked")
        assert ran == []
        trust_until(one.shared.identity, clock() + 3600)
        until(lambda: ran == ids, "started when the lease is sure again")
    finally:
        one.lanes.close()
        assert one.handlers.join(60)


def test_a_lease_is_not_dropped_while_a_row_is_flagged(one, app, table):
    ids = send(app, "a")
    assert fetch(one) == 1
    one.shared.in_flight.lanes.clear()
    one.shared.identity.tenure.stuck.update(ids)  # its outcome could not be written
    assert one.housekeeper.leave() is False
    assert table.statuses == [1]
    assert list(leases(app)) == [one.shared.identity.id]


@pytest.mark.long
def test_the_lease_is_kept_while_a_stop_waits_for_a_handler(app_with):
    app = app_with(lease_seconds=9)
    started, go = threading.Event(), threading.Event()

    @app.handler("t")
    def handle(msg: Message) -> None:
        started.set()
        go.wait(60)

    send(app, "o")
    worker = launched(app.worker(threads=1))
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


def test_a_housekeeper_does_not_wait_for_a_claim_to_take_a_new_id(app):
    app.add_handler("t", lambda msg: None)
    with launched(app.worker(threads=1)) as worker:
        assert worker.instance is not None
        identity, beat = worker.instance.shared.identity, worker.instance.housekeeper
        beat.ask_to_end()
        beat.join(60)
        with worker.instance.flagged.no_claim_in_flight():
            old = identity.id
            identity.retire()
            in_thread(beat.run_once)()  # it ends, although the claim does not
            assert (identity.id, identity.trusted()) == (old, True)
        beat.run_once()
        assert identity.id != old


def test_who_was_declared_dead_learns_it_from_the_first_message_it_lost(app_with):
    """Not from its next beat, minutes later: until then it would claim what others recover."""
    app = app_with(lease_seconds=900)
    started, go = threading.Event(), threading.Event()

    @app.handler("t")
    def handle(msg: Message) -> None:
        started.set()
        go.wait(60)

    (msg_id,) = send(app, "a")
    with launched(app.worker(threads=1)) as worker:
        assert started.wait(60)
        name = worker.instance_id
        instance = worker.instance
        assert instance is not None
        identity = instance.shared.identity
        until(lambda: identity.tenure.renewed_at, "the first beat")
        renewed_before(identity, 100.0)  # long ago: it may be doubted
        with app.engine.begin() as conn:
            assert lease.take_over_live(conn, app.tables, name, me="ops", ttl=900)
            text = "taken away"
            assert recover.recover(conn, app.tables, [msg_id], dead_id=name, text=text) == 1
        go.set()
        until(lambda: worker.instance_id != name, "it is another")
        until(lambda: Table(app).statuses == [2], "the message is done")


def test_a_renewal_is_not_doubted_again_and_again(app_with):
    """A handler that changes its own rows loses each of them: that costs no beats."""
    app = app_with(lease_seconds=3600)
    c = app.tables.cols()

    @app.handler("t")
    def handle(msg: Message) -> None:
        with app.engine.begin() as conn:
            conn.execute(sa.delete(app.tables.message).where(c.msg_id == msg.msg_id))

    send(app, *(f"o{i}" for i in range(30)))
    with launched(app.worker(threads=2)) as worker:
        until(lambda: Table(app).statuses == [], "all are gone")
        with app.engine.begin() as conn:
            ((term,),) = conn.execute(
                sa.select(app.tables.lease.c.term).where(
                    app.tables.lease.c.name == worker.instance_id
                )
            )
    assert term <= 2


@pytest.mark.requires("sessions")
@pytest.mark.quick("mariadb")
def test_who_stands_still_after_its_renewal_holds_no_lock(app_with):
    """Frozen there, it would keep what it holds from whoever takes over its lease."""
    app = app_with(lease_seconds=3.0)
    app.add_handler("t", lambda msg: None)
    other, seen = app.engine.connect(), list[list[Any]]()
    free = sa.select(app.tables.lease.c.name).with_for_update(skip_locked=True)

    def look(conn: Any, cursor: Any, statement: str, *rest: Any) -> None:
        if statement.startswith("UPDATE msgworker_lease SET term"):
            seen.append(list(other.execute(free).scalars()))
            other.rollback()

    sa.event.listen(app.engine, "after_cursor_execute", look)
    with other, app.worker(threads=1) as worker:
        worker.start()
        until(lambda: beat_now(worker) or len(seen) > 1, "it renews")
        assert worker.instance_id in seen[-1]
        raw = worker.instance.heartbeat.link.together.connection.dbapi_connection
        ask = getattr(raw, "get_autocommit", lambda: raw.autocommit)  # the first is PyMySQL's
        until(lambda: not ask(), "its other transactions are as before")


@pytest.mark.requires("sessions")
@pytest.mark.quick("mariadb")
@pytest.mark.requires("common_sql")
def test_listeners_of_the_user_s_engine_do_not_end_the_renewals(app_with):
    """What a listener says at the beginning of a transaction, for row level security, say."""
    app = app_with(lease_seconds=3.0)
    app.add_handler("t", lambda msg: None)
    sa.event.listen(app.engine, "begin", lambda conn: conn.exec_driver_sql("SELECT 1"))
    with app.worker(threads=1) as worker:
        worker.start()

        def term() -> int:
            with app.engine.begin() as conn:
                mine = (x for x in lease.read_all(conn, app.tables) if x.name == worker.instance_id)
                return max((x.term for x in mine), default=0)

        until(lambda: beat_now(worker) or term() > 2, "it renews")


@pytest.mark.requires("sessions")
@pytest.mark.quick("mariadb")
def test_who_is_being_taken_over_does_not_wait_for_its_lease(one, app, table):
    """Whoever takes it over has the lease locked, and may stand still."""
    send(app, "a")
    assert fetch(one) == 1
    old = one.shared.identity.id
    trust_until(one.shared.identity, 0.0)
    with app.engine.begin() as conn:
        mine = app.tables.lease.c.name == old
        conn.execute(sa.update(app.tables.lease).where(mine).values(in_hand=1))
        renewal = in_thread(one.heartbeat.run_once)
        until(one.shared.identity.trusted, "it has a new id")
        renewal()
        assert one.shared.identity.id != old
        assert one.shared.in_flight.lanes == set()
        conn.rollback()
    with app.engine.begin() as conn:
        assert {x.name: x.term for x in lease.read_all(conn, app.tables)}[old] == 0
    assert table.statuses == [1]


def _ends(app: App, name: str, **also: Any) -> None:
    """This lease is over by the database's clock."""
    past = datetime.now(UTC) - timedelta(hours=1)
    with app.engine.begin() as conn:
        mine = app.tables.lease.c.name == name
        conn.execute(sa.update(app.tables.lease).where(mine).values(expires_at=past, **also))


@pytest.mark.parametrize("over", [False, True])
def test_a_lease_that_nobody_has_taken_over_is_renewed_however_late(one, app, table, over):
    """By its own clock it is not trusted, by the database's it is live, or over. What is in flight
    stays, and what has finished is written before the renewal, too."""
    first, second = send(app, "a", "b")
    assert fetch(one) == 2
    old, held = one.shared.identity.id, set(one.shared.in_flight.lanes)
    trust_until(one.shared.identity, clock() - 1.0)
    if over:
        _ends(app, old)
    lane = next(lane for lane in held if lane.row.msg_id == first)
    lane.result = DONE
    one.settler.add(lane, True)
    assert table.statuses == [2, 1]
    assert not one.shared.identity.trusted()
    assert not fetch(one)
    beat(one)
    assert one.shared.identity.trusted()
    assert one.shared.identity.id == old
    assert {lane.row.msg_id for lane in one.shared.in_flight.lanes} == {second}
    assert leases(app)[old].live
    assert table.rows("status", "error_try_times") == [(2, 0), (1, 0)]


def test_a_lease_that_was_taken_over_is_lost_though_it_looks_live(one, app, table):
    """Whoever takes it over extends it, so that others wait for him."""
    ids = send(app, "a", "b")
    assert fetch(one) == 2
    old, lanes = one.shared.identity.id, list(one.shared.in_flight.lanes)
    with app.engine.begin() as conn:
        assert lease.take_over_live(conn, app.tables, old, me="another", ttl=60.0)
        text = "taken away"
        assert recover.recover(conn, app.tables, ids[:1], dead_id=old, text=text) == 1
    for lane in lanes:
        lane.result, lane.finished_at = DONE, time.monotonic()
        one.settler.add(lane, True)
    assert table.statuses == [-1, 2]  # what is recovered is fenced; the other one was still ours
    beat(one)
    assert one.shared.identity.id != old
    assert leases(app)[old].taken_by == "another"


def test_who_was_late_itself_takes_over_nobody_who_may_have_been_late_too(one, app, table):
    """One transaction of one writer, or an outage, has kept all from it."""
    send(app, "a")
    table.edit(status=1, claimed_by="late-too")
    with app.engine.begin() as conn:
        lease.register(conn, app.tables, "late-too", ttl=30.0)
    now = datetime.now(UTC)
    ttl = one.setup.settings.lease_seconds
    _ends(app, "late-too", renewed_at=now - timedelta(seconds=1.5 * ttl))
    trust_until(one.shared.identity, clock() - 1.0)
    assert beat(one) == 0
    assert table.statuses == [1]
    assert beat(one) == 1  # not late again: a round later
    assert table.rows("status", "crash_times") == [(-1, 1)]


def test_who_is_late_each_time_takes_over_who_is_silent_for_long(one, app, table):
    send(app, "a")
    table.edit(status=1, claimed_by="dead-1")
    with app.engine.begin() as conn:
        lease.register(conn, app.tables, "dead-1", ttl=30.0)
    past = datetime.now(UTC) - timedelta(seconds=3 * one.setup.settings.lease_seconds)
    _ends(app, "dead-1", renewed_at=past)
    trust_until(one.shared.identity, clock() - 1.0)
    assert beat(one) == 1


@pytest.mark.requires("sessions")
@pytest.mark.quick("postgresql")
def test_a_lease_is_renewed_while_the_table_of_messages_is_locked(app_with):
    """ALTER TABLE, VACUUM FULL, a new index: for longer than a lease. Nothing is lost by it."""
    app = app_with(lease_seconds=2.0, backoff_seconds=0.0)
    table, starts = Table(app), list[int]()
    lock = "LOCK TABLE {} IN ACCESS EXCLUSIVE MODE"
    if app.engine.dialect.name != "postgresql":
        lock = "LOCK TABLES {} WRITE"

    @app.handler("t")
    def handle(msg: Message) -> None:
        starts.append(msg.msg_id)
        time.sleep(0.01)

    ids = send(app, *[None] * 150)
    with app.engine.connect() as other, app.worker(threads=4) as worker:
        worker.start()
        name = worker.instance_id
        until(lambda: len(starts) > 20, "it works")
        other.exec_driver_sql(lock.format(app.tables.message.name))
        before = leases_of(app, name)
        until(lambda: leases_of(app, name) >= before + 5, "renewed for more than a lease")
        assert worker.instance.shared.identity.trusted()
        other.rollback()
        if app.engine.dialect.name != "postgresql":
            other.exec_driver_sql("UNLOCK TABLES")
        until(lambda: table.statuses == [2] * len(ids), "all is done")
        assert worker.instance_id == name
    assert sorted(starts) == sorted(ids)
    assert set(table.column("crash_times")) == {0}


def leases_of(app: App, name: str) -> int:
    return leases(app)[name].term


def test_who_listens_to_renewals_for_long_costs_no_lease(app_with):
    app = app_with(lease_seconds=2.0)
    gate = threading.Event()
    app.add_handler("t", lambda msg: None)
    app.on(Renewed, lambda event: gate.wait(60))
    with launched(app.worker(threads=1)) as worker:
        name = worker.instance_id
        until(lambda: leases_of(app, name) >= 5, "renewed for more than a lease")
        gate.set()
        assert worker.instance_id == name


def test_nothing_is_forgotten_while_the_database_is_away(one, app, monkeypatch, caplog):
    """Neither told in every beat: what was handled may still be settled."""
    send(app, "a")
    assert fetch(one) == 1
    old, held = one.shared.identity.id, set(one.shared.in_flight.lanes)
    trust_until(one.shared.identity, 0.0)

    def away(*_: Any) -> None:
        raise DatabaseUnavailable("gone")

    with monkeypatch.context() as patch:
        patch.setattr(one.heartbeat.link, "connect", away)
        one.heartbeat.link.close()
        for _ in range(3):
            with pytest.raises(DatabaseUnavailable):
                beat(one)
    assert (one.shared.identity.id, one.shared.in_flight.lanes) == (old, held)
    assert not one.shared.identity.trusted()
    one.shared.identity.lost(old)
    with monkeypatch.context() as patch:
        patch.setattr(one.heartbeat.link, "connect", away)
        one.heartbeat.link.close()
        for _ in range(3):
            with pytest.raises(DatabaseUnavailable):
                beat(one)
    assert (one.shared.identity.id, one.shared.in_flight.lanes) == (old, held)
    beat(one)
    assert one.shared.identity.id != old
    assert one.shared.identity.trusted()
    assert one.shared.in_flight.lanes == set()
    assert [r.getMessage() for r in caplog.records if "lost its lease" in r.getMessage()] == [
        f"instance {old} lost its lease; continuing as {one.shared.identity.id}"
    ]


def test_trust_goes_on_to_end_while_the_machine_sleeps(one, monkeypatch):
    real = time.clock_gettime
    assert one.shared.identity.trusted()
    monkeypatch.setattr(time, "clock_gettime", lambda which: real(which) + 60)
    assert not one.shared.identity.trusted()
    beat(one)
    assert one.shared.identity.trusted()


@pytest.mark.long
def test_a_handler_s_transaction_longer_than_the_lease_costs_nobody_the_lease(make_app, sqlite):
    """On SQLite no other can write meanwhile: neither renew nor take over."""
    app = created(make_app(lease_seconds=3.0, backoff_seconds=0.0))
    table, starts = Table(app), list[int]()
    gate, over = threading.Event(), threading.Event()

    @app.handler("tx", transactional=True)
    def tx(msg: Message, ctx: Context) -> None:
        starts.append(msg.msg_id)
        assert not over.wait(4.5)  # longer than the lease

    @app.handler("t")
    def plain(msg: Message) -> None:
        starts.append(msg.msg_id)
        assert gate.wait(60)

    with launched(app.worker(threads=3)) as worker:
        name = worker.instance_id
        ids = send(app, "a", "b")
        until(lambda: sorted(starts) == sorted(ids), "both run")
        (long,) = send(app, "c", topic="tx")
        until(lambda: long in starts, "it has the turn")
        begun = leases_of(app, name)
        until(lambda: leases_of(app, name) > begun, "renewed after it")
        assert worker.instance_id == name
        gate.set()
        until(lambda: table.statuses == [2, 2, 2], "all is done")
    assert sorted(starts) == sorted([*ids, long])
    assert set(table.column("crash_times")) == {0}
