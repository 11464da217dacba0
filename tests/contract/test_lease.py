"""The lease of an instance: kept, doubted, lost; and the new id after it."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import sqlalchemy as sa

from msgworker import Message
from msgworker.clock import clock
from msgworker.errors import DatabaseUnavailable
from msgworker.instance.running.hand import Running
from msgworker.store.recovering import lease, recover
from tests.support.leases import leases
from tests.support.rounds import fetch, loses_its_lease
from tests.support.rows import Table, send
from tests.support.sessions import only_servers
from tests.support.waiting import in_thread, until


def test_a_new_self_claims_nothing_that_the_old_one_looked_at(one, app, table):
    send(app, "a", "b")
    old = one.runtime.identity.id
    look = one.finder.look(4, 0)
    assert len(look.candidates) == 2
    loses_its_lease(one)
    assert one.fetcher.claim(look.candidates, old) == 0
    one.runtime.identity.trusted_until = 0.0
    assert one.fetcher.claim(look.candidates, "new-self") == 0
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


def test_a_lease_is_not_dropped_while_a_row_is_flagged(one, app, table):
    ids = send(app, "a")
    assert fetch(one) == 1
    one.runtime.hand.lanes.clear()
    one.runtime.identity.stuck.update(ids)  # its outcome could not be written
    assert one.heartbeat.leave() is False
    assert table.statuses == [1]
    assert list(leases(app)) == [one.runtime.identity.id]


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


def test_a_heartbeat_does_not_wait_for_a_claim_to_take_a_new_id(app):
    app.add_handler("t", lambda msg: None)
    with app.worker(threads=1) as worker:
        worker.start()
        assert worker.instance is not None
        identity, beat = worker.instance.runtime.identity, worker.instance.heartbeat
        beat.stop()
        beat.join(60)
        with worker.instance.claimer.no_claim_in_flight():
            old = identity.id
            identity.retire()
            in_thread(beat.run_once)()  # it ends, although the claim does not
            assert (identity.id, identity.trusted()) == (old, True)
        beat.run_once()
        assert identity.id != old


def test_who_was_declared_dead_learns_it_from_the_first_message_it_lost(make_app):
    """Not from its next beat, minutes later: until then it would claim what others recover."""
    app = make_app(lease_seconds=900)
    app.create_schema()
    started, go = threading.Event(), threading.Event()

    @app.handler("t")
    def handle(msg: Message) -> None:
        started.set()
        go.wait(60)

    (msg_id,) = send(app, "a")
    with app.worker(threads=1) as worker:
        worker.start()
        assert started.wait(60)
        name = worker.instance_id
        instance = worker.instance
        assert instance is not None
        identity = instance.runtime.identity
        until(lambda: identity.renewed_at, "the first beat")
        identity.renewed_at -= 100.0  # long ago: it may be doubted
        with app.engine.begin() as conn:
            assert lease.take_over_live(conn, app.tables, name, me="ops", ttl=900)
            text = "taken away"
            assert recover.recover(conn, app.tables, [msg_id], dead_id=name, text=text) == 1
        go.set()
        until(lambda: worker.instance_id != name, "it is another")
        until(lambda: Table(app).statuses == [2], "the message is done")


def test_a_renewal_is_not_doubted_again_and_again(make_app):
    """A handler that changes its own rows loses each of them: that costs no beats."""
    app = make_app(lease_seconds=3600)
    app.create_schema()
    c = app.tables.cols()

    @app.handler("t")
    def handle(msg: Message) -> None:
        with app.engine.begin() as conn:
            conn.execute(sa.delete(app.tables.message).where(c.msg_id == msg.msg_id))

    send(app, *(f"o{i}" for i in range(30)))
    with app.worker(threads=2) as worker:
        worker.start()
        until(lambda: Table(app).statuses == [], "all are gone")
        with app.engine.begin() as conn:
            ((term,),) = conn.execute(
                sa.select(app.tables.lease.c.term).where(
                    app.tables.lease.c.name == worker.instance_id
                )
            )
    assert term <= 2


def test_who_stands_still_after_its_renewal_holds_no_lock(make_app):
    """Frozen there, it would keep what it holds from whoever takes over its lease."""
    app = make_app(lease_seconds=6.0)
    app.create_schema()
    only_servers(app)
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
        until(lambda: len(seen) > 2, "it renews")
        assert worker.instance_id in seen[-1]
        raw = worker.instance.heartbeat.link.together.connection.dbapi_connection
        ask = getattr(raw, "get_autocommit", lambda: raw.autocommit)  # the first is PyMySQL's
        until(lambda: not ask(), "its other transactions are as before")


def test_listeners_of_the_user_s_engine_do_not_end_the_renewals(make_app):
    """What a listener says at the beginning of a transaction, for row level security, say."""
    app = make_app(lease_seconds=3.0)
    app.create_schema()
    only_servers(app)
    app.add_handler("t", lambda msg: None)
    sa.event.listen(app.engine, "begin", lambda conn: conn.exec_driver_sql("SELECT 1"))
    with app.worker(threads=1) as worker:
        worker.start()

        def term() -> int:
            with app.engine.begin() as conn:
                mine = (x for x in lease.read_all(conn, app.tables) if x.name == worker.instance_id)
                return max((x.term for x in mine), default=0)

        until(lambda: term() > 3, "it renews")


def test_who_wakes_after_its_lease_is_over_does_not_ask_for_it(one, app, table):
    """Whoever recovers it may have the lease locked and stand still, too."""
    only_servers(app)
    send(app, "a")
    assert fetch(one) == 1
    old = one.runtime.identity.id
    one.runtime.identity.trusted_until = 0.0
    with app.engine.begin() as conn:
        mine = app.tables.lease.c.name == old
        conn.execute(sa.update(app.tables.lease).where(mine).values(in_hand=1))
        beat = in_thread(one.heartbeat.run_once)
        until(one.runtime.identity.trusted, "it has a new id")
        assert one.runtime.identity.id != old
        assert one.runtime.hand.lanes == set()
        conn.rollback()
    beat()
    with app.engine.begin() as conn:
        assert {x.name: x.term for x in lease.read_all(conn, app.tables)}[old] == 0
    assert table.statuses == [1]


def test_nothing_is_forgotten_while_the_database_is_away(one, app, monkeypatch, caplog):
    """Neither told in every beat: what was handled may still be settled."""
    send(app, "a")
    assert fetch(one) == 1
    old, held = one.runtime.identity.id, set(one.runtime.hand.lanes)
    one.runtime.identity.trusted_until = 0.0

    def away(*_: Any) -> None:
        raise DatabaseUnavailable("gone")

    with monkeypatch.context() as patch:
        patch.setattr(one.heartbeat.link, "connect", away)
        one.heartbeat.close()
        for _ in range(3):
            with pytest.raises(DatabaseUnavailable):
                one.heartbeat.run_once()
    assert (one.runtime.identity.id, one.runtime.hand.lanes) == (old, held)
    assert not one.runtime.identity.trusted()
    one.heartbeat.run_once()
    assert one.runtime.identity.id != old
    assert one.runtime.identity.trusted()
    assert [r.getMessage() for r in caplog.records if "lost its lease" in r.getMessage()] == [
        f"instance {old} lost its lease; continuing as {one.runtime.identity.id}"
    ]


def test_trust_goes_on_to_end_while_the_machine_sleeps(one, monkeypatch):
    real = time.clock_gettime
    assert one.runtime.identity.trusted()
    monkeypatch.setattr(time, "clock_gettime", lambda which: real(which) + 60)
    assert not one.runtime.identity.trusted()
    old = one.runtime.identity.id
    one.heartbeat.run_once()
    assert one.runtime.identity.trusted()
    assert one.runtime.identity.id != old
