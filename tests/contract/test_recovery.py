"""What the dead had is given back."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa

from msgworker import MessageTable
from msgworker.events import Dead, LeaseLost
from msgworker.instance.liveness import recovery
from msgworker.instance.liveness.housekeeper import HistoryWriter, Housekeeper
from msgworker.instance.liveness.lease import OwnLease
from msgworker.instance.liveness.requests import OperatorRequests
from msgworker.store import lease, recover
from tests.support.leases import dead_holds, leases, registered, renewed
from tests.support.refusing import refuse
from tests.support.rounds import beat, by_hand, declared_dead, doubted, fetch, recover_what_is_stale
from tests.support.rows import Table, send
from tests.support.waiting import launched, until


@pytest.mark.requires("sessions")
@pytest.mark.quick("mariadb")
def test_recovery_does_not_wait_for_a_row_that_somebody_has_locked(app_with):
    """A frozen instance may hold the lock: whoever waited for it would lose its own lease."""
    app = app_with(lease_seconds=3.0, poll_seconds=0.05)
    table, ran = Table(app), list[int]()
    app.add_handler("t", lambda msg: ran.append(msg.msg_id))
    first, second, third = send(app, "a", "b", "c")
    dead_holds(app, table)
    c = app.tables.message.c
    with app.worker(threads=1) as worker, app.engine.connect() as frozen:
        frozen.execute(sa.select(c.msg_id).where(c.msg_id == first).with_for_update()).all()
        worker.start()
        me = worker.instance_id
        until(lambda: sorted(ran) == [second, third], "the others are recovered")
        renewed(app, me)
        assert worker.instance_id == me
        until(lambda: table.statuses == [1, 2, 2], "their outcomes are written")
        frozen.rollback()
        until(lambda: table.statuses == [2, 2, 2], "and the last one, when it is free")
    with app.engine.begin() as conn:
        assert lease.read_all(conn, app.tables) == []


@pytest.mark.long
@pytest.mark.requires("common_sql")
def test_a_long_recovery_does_not_cost_us_our_own_lease(app_with, monkeypatch):
    monkeypatch.setattr(recovery, "REST_FACTOR", 1e9)
    monkeypatch.setattr(recovery, "REST_SHARE", 0.5)
    monkeypatch.setattr(recover, "BATCH", 5)
    app = app_with(lease_seconds=6.0, poll_seconds=0.05)
    table, ran = Table(app), list[int]()
    app.add_handler("t", lambda msg: ran.append(msg.msg_id))
    ids = send(app, *(f"o{i}" for i in range(30)))
    for name, where in (("dead-1", "msg_id % 2 = 0"), ("dead-2", "msg_id % 2 = 1")):
        dead_holds(app, table, name, where=sa.text(where))
    with launched(app.worker(threads=1)) as worker:
        me = worker.instance_id
        until(lambda: sorted(ran) == ids, "all are recovered and done")
        assert worker.instance_id == me


def test_a_row_that_cannot_be_recovered_does_not_hold_up_the_others(app_with, caplog):
    app = app_with(lease_seconds=15.0, poll_seconds=0.05)
    table = Table(app)
    app.add_handler("t", lambda msg: None)
    send(app, "refused", "a", "b")
    for name, object_id in (("dead-1", "refused"), ("dead-2", "b")):
        dead_holds(app, table, name, object_id=object_id)
    table.edit(table.where(object_id="a"), status=1, claimed_by="dead-1")
    refuse(app, "status <> -1 OR object_id <> 'refused'")
    with launched(app.worker(threads=1)) as worker:
        me = worker.instance_id
        until(lambda: table.statuses == [1, 2, 2], "the others are recovered and done")
        assert worker.instance_id == me
    told = [r for r in caplog.records if "cannot be recovered" in r.getMessage()]
    assert len(told) == 1


@pytest.mark.long
def test_rows_that_cannot_be_recovered_do_not_use_up_the_time_of_others(app_with, monkeypatch):
    """Time runs out after each batch here: the next round goes on where the last one ended."""
    monkeypatch.setattr(recovery, "REST_FACTOR", 1e9)
    monkeypatch.setattr(recovery, "REST_SHARE", 0.5)
    monkeypatch.setattr(recover, "BATCH", 2)
    app = app_with(lease_seconds=9.0, poll_seconds=0.05)
    table = Table(app)
    app.add_handler("t", lambda msg: None)
    send(app, "refused", "refused2", "refused3", "refused4", "a", "b", "c")
    dead_holds(app, table)
    refuse(app, "status <> -1 OR substr(object_id, 1, 7) <> 'refused'")
    with launched(app.worker(threads=1)) as worker:
        me = worker.instance_id
        until(lambda: table.statuses == [1, 1, 1, 1, 2, 2, 2], "the others are recovered and done")
        assert worker.instance_id == me


@pytest.mark.requires("sessions")
@pytest.mark.quick("postgresql")
def test_recovery_into_a_column_that_is_too_short_for_its_words(app_with):
    app = app_with(poll_seconds=0.05)
    with app.engine.begin() as conn:
        kind = "MODIFY last_error varchar(35)"
        if app.engine.dialect.name == "postgresql":
            kind = "ALTER last_error TYPE varchar(35)"
        conn.exec_driver_sql(f"ALTER TABLE msgworker_message {kind}")
    table = Table(app)
    app.add_handler("t", lambda msg: None)
    ids = send(app, *(f"o{i}" for i in range(240)))
    dead_holds(app, table)
    with launched(app.worker(threads=1)):
        until(lambda: table.statuses == [2] * len(ids), "recovered and done")
    cut = "instance dead-1 died while it held this message"[:35]
    assert set(table.rows("error_try_times", "last_error")) == {(1, cut)}


@pytest.mark.requires("common_sql")
def test_recovery_on_a_table_with_a_small_key(make_app):
    app = make_app(table=MessageTable("small", payload=None), poll_seconds=0.05)
    name = app.engine.dialect.name
    keys = {"postgresql": "SERIAL", "sqlite": "INTEGER"}
    key = keys.get(name, "INT AUTO_INCREMENT")
    with app.engine.begin() as conn:
        conn.exec_driver_sql(
            f"CREATE TABLE small (msg_id {key} PRIMARY KEY, object_id VARCHAR(20), status INT "
            "NOT NULL DEFAULT 0, error_try_times INT NOT NULL DEFAULT 0, claimed_by VARCHAR(64), "
            "topic VARCHAR(100))"
        )
    app.create_schema()
    table = Table(app)
    app.add_handler("t", lambda msg: None)
    with app.engine.begin() as conn:
        conn.exec_driver_sql("INSERT INTO small (object_id, topic) VALUES ('a', 't'), ('b', 't')")
    dead_holds(app, table)
    with launched(app.worker(threads=1)):
        until(lambda: table.statuses == [2, 2], "recovered and done")
    with app.engine.begin() as conn:
        assert lease.read_all(conn, app.tables) == []


@pytest.mark.requires("sessions")
@pytest.mark.long
def test_a_lease_that_somebody_has_locked_is_not_waited_for(app_with):
    """A session of its frozen holder, say: the others are recovered all the same."""
    app = app_with(lease_seconds=6.0, poll_seconds=0.05)
    table, ran = Table(app), list[int]()
    app.add_handler("t", lambda msg: ran.append(msg.msg_id))
    frozen, other = send(app, "a", "b")
    dead_holds(app, table, "dead-1", where=sa.text(f"msg_id = {frozen}"))
    dead_holds(app, table, "dead-2", where=sa.text(f"msg_id = {other}"))
    with app.engine.begin() as conn:
        own = app.tables.lease.c.name == "dead-1"  # the first to be looked at
        conn.execute(sa.update(app.tables.lease).where(own).values(in_hand=1))
        with launched(app.worker(threads=1)) as worker:
            me = worker.instance_id
            until(lambda: ran == [other], "the other is recovered")
            renewed(app, me)
            (later,) = send(app, "c")
            until(lambda: ran == [other, later], "we are trusted")
            assert worker.instance_id == me
            conn.rollback()
            until(lambda: ran == [other, later, frozen], "then this one, too")


def test_a_beat_that_has_taken_long_recovers_all_the_same(one, app, table):
    send(app, "a", "b")
    table.edit(None, status=1, claimed_by="dead-1")
    assert one.housekeeper.recovery.run(time.monotonic() - 100.0) == 2
    assert table.rows("status", "error_try_times") == [(-1, 1)] * 2


def test_a_dead_lease_is_taken_over_and_then_goes(one, app, table):
    """Its rows are given back only by who has won the lease, and the lease goes last."""
    send(app, "a")
    with app.engine.begin() as conn:
        lease.register(conn, app.tables, "dead-1", ttl=30.0)
    table.edit(status=1, claimed_by="dead-1")
    beat(one)
    assert table.statuses == [1]
    names = app.tables.lease.c
    past = datetime.now(UTC) - timedelta(hours=1)
    with app.engine.begin() as conn:
        dead = sa.update(app.tables.lease).where(names.name == "dead-1")
        conn.execute(dead.values(expires_at=past))
    assert beat(one) == 1
    rows = table.rows("status", "error_try_times", "crash_times", "claimed_by")
    assert rows == [(-1, 1, 1, None)]
    assert list(leases(app)) == [one.shared.identity.id]


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
        assert beat(one) == 0
        assert table.statuses == [1]
        soon = datetime.now(UTC) + timedelta(seconds=60)
        assert all(found.live and found.expires_at < soon for found in leases(app).values())
    told = [r.getMessage() for r in caplog.records if "set back" in r.getMessage()]
    assert told == ["the database's clock was set back: 2 leases start again from now"]
    with app.engine.begin() as conn:
        past = datetime.now(UTC) - timedelta(hours=1)
        conn.execute(sa.update(app.tables.lease).where(c.name == "dead-1").values(expires_at=past))
    assert beat(one) == 1


def test_a_recovery_makes_way_for_a_doubt_of_our_own_lease(one, app, table):
    send(app, *(f"o{i}" for i in range(recover.BATCH + 1)))
    table.edit(status=1, claimed_by="gone-1")
    doubted(one.shared.identity)
    assert not one.shared.identity.trusted()
    assert one.housekeeper.recovery.run(time.monotonic()) == recover.BATCH
    assert one.heartbeat.pause_seconds(0) == 0.0
    assert beat(one) == 1
    assert one.shared.identity.trusted()
    assert one.heartbeat.pause_seconds(1) > 0.0


def test_the_patience_with_a_foreign_consumer_begins_anew_with_its_next_try(
    app, table, ran, monkeypatch
):
    app.settings = replace(app.settings, foreign_stale_after=60.0)
    app.add_handler("t", lambda msg: ran.append(msg.msg_id))
    send(app, "a")
    table.edit(status=1, error_try_times=0)
    with by_hand(app) as one:
        now = [time.monotonic()]
        monkeypatch.setattr(time, "monotonic", lambda: now[0])

        def recover_foreign() -> int:
            return one.housekeeper.recovery.run(now[0])

        assert recover_foreign() == 0
        now[0] += 50
        table.edit(error_try_times=1)
        assert recover_foreign() == 0
        now[0] += 50  # 50 s of its second try
        assert recover_foreign() == 0
        now[0] += 20
        assert recover_foreign() == 1
    assert table.rows("status", "error_try_times", "crash_times") == [(-1, 2, 1)]


def test_rows_of_an_id_without_a_lease_are_recovered(one, app, table):
    send(app, "a", "b")
    table.edit(table.where(object_id="a"), status=1, claimed_by="gone-1")
    table.edit(table.where(object_id="b"), status=1)  # a foreign consumer's
    assert beat(one) == 1
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
        conn.execute(changed.where(c.name == names[2]).values(taken_by="another"))
    table.edit(status=1, claimed_by="busy-1")
    assert beat(one) == 1
    assert set(leases(app)) == {"alive-1", one.shared.identity.id}
    beat(one)
    told = sorted(r.getMessage() for r in caplog.records if r.levelname == "WARNING")
    assert told == [
        "instance idle-1 is dead; it had no message",
        "recovered 1 message of dead instance busy-1",
    ]


def test_the_dead_of_another_table_are_left_to_the_instances_of_that_table(
    one, app, make_app, table, caplog
):
    """Their leases were dropped with "it had no message", before anyone could give back theirs."""
    other = make_app(table=MessageTable("another"))
    other.create_schema()
    c = app.tables.lease.c
    for name, hours in (("theirs", 0.5), ("has-ours", 0.5), ("long-dead", 2)):
        registered(other, name)
        past = datetime.now(UTC) - timedelta(hours=hours)
        with app.engine.begin() as conn:
            lapsed = sa.update(app.tables.lease).values(renewed_at=past, expires_at=past)
            conn.execute(lapsed.where(c.name == name))
    send(app, "a")
    table.edit(status=1, claimed_by="has-ours")
    assert beat(one) == 1
    assert set(leases(app)) == {"theirs", one.shared.identity.id}
    told = [r.getMessage() for r in caplog.records if "theirs" in r.getMessage()]
    assert told == []
    overview = app.ops.overview()
    assert (overview.live, overview.dead, other.ops.overview().dead) == (1, 0, 1)


def test_an_outage_longer_than_the_lease_costs_what_others_have_taken_over(one, app, table):
    """No instance could renew: all leases have expired when the database is back."""
    send(app, "a", "a")
    assert fetch(one) == 1
    old = one.shared.identity.id
    past = datetime.now(UTC) - timedelta(hours=1)
    with app.engine.begin() as conn:
        conn.execute(sa.update(app.tables.lease).values(expires_at=past, taken_by="another"))
    assert beat(one) == 1
    assert one.shared.identity.id != old
    assert not one.shared.in_flight.lanes
    rows = table.rows("status", "error_try_times", "crash_times", "claimed_by")
    assert rows == [(-1, 1, 1, None), (0, 0, 0, None)]


def test_what_a_dead_instance_held_is_recovered_with_a_try_counted(app_with):
    app = app_with()
    table = Table(app)
    send(app, "o", "o", "p")
    t = app.tables
    first = t.message.c.msg_id == table.column("msg_id")[0]
    table.edit(first, status=1, claimed_by="host-1-gone")
    app.add_handler("t", lambda msg: None)
    with launched(app.worker(threads=1)):
        until(lambda: table.statuses == [2, 2, 2], "recovered and done")
    rows = table.rows("error_try_times", "crash_times", "claimed_by")
    assert rows == [(1, 1, None), (0, 0, None), (0, 0, None)]


@pytest.mark.parametrize("owner", ["gone-1", None])
def test_what_dies_by_its_last_crash_is_told_counted_and_logged(
    app, table, caplog, owner, monkeypatch
):
    """None: of a foreign consumer."""
    app.settings = replace(app.settings, foreign_stale_after=30.0)
    app.add_handler("t", lambda msg: None)
    seen = list[tuple[int, int]]()
    app.on(Dead, lambda event: seen.append((event.message.msg_id, event.message.tries)))
    last, _ = send(app, "a", "b")
    table.edit(status=1, claimed_by=owner)
    table.edit(table.where(msg_id=last), error_try_times=2)
    with by_hand(app) as one:
        recover_what_is_stale(one, monkeypatch)
        (minute,) = one.housekeeper.history_writer.minutes.over(last=True)
    assert (table.statuses, seen) == ([-1, -1], [(last, 2)])
    assert (one.tally.dead, minute.topics["t"].dead) == (1, 1)
    assert [r.msg_id for r in caplog.records if getattr(r, "event", "") == "message.dead"] == [last]


@pytest.mark.parametrize("part", ["_recheck_unsure", "_take_new_id", "_release_unknown", "read"])
def test_an_error_of_one_part_of_the_housekeeping_keeps_no_other_from_its_own(
    app_with, part, monkeypatch
):
    app = app_with(lease_seconds=3.0, poll_seconds=0.05)
    table, ran, wrote = Table(app), list[int](), list[bool]()
    app.add_handler("t", lambda msg: ran.append(msg.msg_id))
    (first,) = send(app, "a")
    dead_holds(app, table)

    def fail(*_: object) -> None:
        if threading.current_thread() is not threading.main_thread():  # which prepares the start
            raise ValueError("not today")

    monkeypatch.setattr(OperatorRequests if part == "read" else Housekeeper, part, fail)
    monkeypatch.setattr(HistoryWriter, "write", lambda self, last=False: wrote.append(last))
    with launched(app.worker(threads=1)):
        until(lambda: ran == [first], "it is recovered all the same")
        until(lambda: False in wrote, "and the history written")


def test_a_dead_instance_that_cannot_be_recovered_holds_up_no_other(app_with, monkeypatch):
    app = app_with(lease_seconds=3.0, poll_seconds=0.05)
    table, ran = Table(app), list[int]()
    app.add_handler("t", lambda msg: ran.append(msg.msg_id))
    first, second, third = send(app, "a", "b", "c")
    for name, msg_id in (("dead-1", first), ("dead-2", second), ("dead-3", third)):
        dead_holds(app, table, name, where=sa.text(f"msg_id = {msg_id}"))
    take_over = lease.take_over

    def refused(conn, t, seen, **options):
        if seen.name == "dead-2":
            raise ValueError("not this one")
        return take_over(conn, t, seen, **options)

    monkeypatch.setattr(recovery.lease, "take_over", refused)
    with launched(app.worker(threads=1)):
        until(lambda: sorted(ran) == [first, third], "the others are recovered", seconds=6)


def test_who_takes_a_new_id_as_its_lease_is_found_lost_has_one_lease(app, monkeypatch):
    """The heartbeat registers another id while the housekeeper adopts its own."""
    app.add_handler(None, lambda msg: None)
    with by_hand(app) as one:
        identity = one.shared.identity
        old, register = identity.id, OwnLease.register
        identity.retire()

        def meanwhile(lease_of, link, new, *patience):
            until_when = register(lease_of, link, new, *patience)
            own = f"{old}-own"
            if identity.id == old:
                register(lease_of, link, own)
                assert identity.adopt(old, own, until_when, time.monotonic())
            return until_when

        monkeypatch.setattr(OwnLease, "register", meanwhile)
        declared_dead(one)
        assert identity.id == f"{old}-own"
        assert set(leases(app)) == {old, f"{old}-own"}  # the first one is taken over by another
        lost = [event for event in one.heartbeat.to_emit if isinstance(event, LeaseLost)]
        assert [(event.instance, event.now) for event in lost] == [(old, f"{old}-own")]
        fetch(one)


def test_a_stop_that_is_recorded_is_not_cut_off_by_who_needs_a_connection(app, monkeypatch):
    closed = list[bool]()
    app.add_handler(None, lambda msg: None)
    with by_hand(app) as one:

        def meanwhile(_, link):
            with link.transaction() as conn:
                one.shared.connector.close_idle()  # a handler finds no connection left
                closed.append(conn.closed)

        monkeypatch.setattr(OwnLease, "record_stopped", meanwhile)
        one.housekeeper.record_stop()
    assert closed == [False]
