"""Instances and the rule: who may change it, and who leaves for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from tenacity.wait import wait_none

from msgworker import App, MessageTable
from msgworker.app import setup_of
from msgworker.db.database import DATABASES
from msgworker.errors import RuleChanged
from msgworker.instance.instance import Instance
from msgworker.ops.operation import RecordedOperation, Step
from msgworker.schema import rule
from msgworker.schema.rule import Answer, Rule
from msgworker.store import lease
from msgworker.store.audit import Who
from tests.support.leases import leases
from tests.support.rounds import beat, close, declared_dead, doubted, fetch, register
from tests.support.rows import Table, send
from tests.support.rule import FIVE, THREE, Crm, bare, drain, expire, recorded, rows, write
from tests.support.waiting import in_thread, launched, until
from tests.variants import database_name


def test_what_the_dead_hold_is_recovered_by_the_old_rule_first(crm):
    app = crm.app()
    (one,) = write(app, (1, 2))
    Table(app).edit(claimed_by="host-1-gone")
    other = crm.app(5)
    assert recorded(other) == FIVE
    assert rows(other) == [(-1, 5)]  # its third try was the last one
    drain(other)
    assert crm.times(one) == 0


def test_the_rule_is_kept_while_the_lease_of_the_dead_is_live(crm):
    app = crm.app()
    with app.engine.begin() as conn:
        lease.register(conn, app.tables, "host-1-killed", ttl=60.0)
    other = crm.app(5)
    assert recorded(other) == THREE
    t = app.tables.lease
    with app.engine.begin() as conn:  # one that does not say which table is its own
        conn.execute(sa.update(t).where(t.c.name == "host-1-killed").values(serves=None))
    other = crm.app(5)
    assert recorded(other) == THREE
    with app.engine.begin() as conn:
        past = datetime.now(UTC) - timedelta(minutes=5)
        conn.execute(sa.update(t).where(t.c.name == "host-1-killed").values(expires_at=past))
    drain(other)
    assert recorded(other) == FIVE


@pytest.mark.requires("row_locks")
@pytest.mark.quick("mariadb")
def test_the_rule_is_kept_while_a_message_of_the_dead_cannot_be_given_back(crm, caplog):
    app = crm.app()
    other = bare(crm, app, 5)
    write(app, (1, 0))
    Table(app).edit(claimed_by="host-1-gone")
    locks = sa.select(app.tables.message).with_for_update()
    with app.engine.begin() as conn:
        conn.execute(locks).all()
        drain(other)
    assert recorded(other) == THREE
    assert "dead instances whose messages cannot be given back now: 1" in caplog.text


def test_an_instance_of_another_table_is_not_in_the_way(crm):
    app = crm.app()
    beside = crm.app(name="other_message")
    with launched(beside.worker(threads=1)):
        crm.app(5)
        assert recorded(app) == FIVE


def test_a_change_that_is_cut_off_has_changed_nothing(crm):
    app = crm.app()
    write(app, (-1, 3), (-1, 2))
    t = app.tables
    with app.engine.connect() as conn:
        conn.begin()
        assert rule.change(conn, t, FIVE).state is Answer.CHANGED
        conn.rollback()
    assert recorded(app) == THREE
    assert rows(app) == [(-1, 3), (-1, 2)]
    assert crm.app(5).tables.spec.max_tries == 5


def instance(app: App) -> Instance:
    return Instance(setup_of(app))


@pytest.fixture
def old(crm: Crm) -> Iterator[Instance]:
    """An instance built for three tries, not registered."""
    made = instance(crm.app())
    yield made
    close(made)


def test_an_instance_of_an_older_rule_does_not_register(crm, old):
    other = crm.app(5)
    with pytest.raises(RuleChanged, match=r"max_tries=3.*max_tries=5.*start this again"):
        register(old)
    with other.engine.connect() as conn:
        assert lease.read_all(conn, other.tables) == []


def test_a_worker_whose_rule_changes_while_it_starts_goes_by_the_new_one(crm, make_app):
    crm.app(3)
    app = crm.app(5)
    stale = make_app(table=MessageTable(max_tries=3))
    stale.add_handler("fail", crm.fail, wait=wait_none())
    made = [setup_of(stale)]  # takes 3 for the rule
    assert recorded(app) == THREE
    crm.app(5)
    worker = stale.worker(threads=1)
    real = worker.make_setup
    worker.make_setup = lambda: made.pop() if made else real()  # type: ignore[method-assign]
    with worker:
        worker.start()
        assert worker.instance_id
        assert recorded(app) == THREE  # no instance lived: it is this App's again


def test_an_instance_that_was_declared_dead_leaves_where_the_rule_has_changed(crm, old, caplog):
    app = crm.app()
    register(old)
    send(app, "a", topic="fail")
    expire(app)
    other = crm.app(5)
    assert recorded(other) == FIVE
    beat(old)
    assert isinstance(old.shared.stop.stopped_for, RuleChanged)
    assert old.shared.stop.requested.is_set()
    assert not fetch(old)
    doubted(old.shared.identity)
    beat(old)  # once is enough
    assert caplog.text.count("was changed from max_tries=3") == 1
    assert old.heartbeat.pause_seconds(0) > 1.0
    assert crm.ran == []


def test_a_worker_that_was_declared_dead_raises_that_the_rule_has_changed(crm):
    app = crm.app()
    app.settings = app.settings.__class__(lease_seconds=5)
    other = bare(crm, app, 5)
    worker = app.worker(threads=1)
    join = in_thread(worker.run)
    until(lambda: worker.instance_id, "started")
    until(lambda: leases(app), "registered")

    def changed() -> bool:
        """Unless it has renewed its lease meanwhile."""
        expire(app)
        drain(other)
        return recorded(other) == FIVE

    until(changed, "its lease is over, and the rule another")
    with pytest.raises(RuleChanged):
        join()


@pytest.mark.requires("row_locks")
@pytest.mark.quick("postgresql")
def test_a_change_sees_who_is_just_registering(crm):
    """Both ways of the race, with the other one in the middle of its transaction."""
    app = crm.app()
    t = app.tables
    with app.engine.begin() as starting:
        assert rule.hold(starting, t)
        lease.register(starting, t, "host-1-new", ttl=60.0)
        with app.engine.begin() as conn:
            assert rule.change(conn, t, FIVE).state is Answer.LOCKED
    with app.engine.begin() as conn:
        assert rule.change(conn, t, FIVE).state is Answer.BUSY
        assert not _holds(app)  # while an instance reads whether it can be changed
    with app.engine.begin() as conn:
        lease.drop(conn, t, "host-1-new")
    with app.engine.begin() as conn:
        assert rule.change(conn, t, FIVE).state is Answer.CHANGED
        assert not _holds(app)
    with pytest.raises(RuleChanged):
        _holds(app)


@pytest.mark.requires("share_locks")
@pytest.mark.quick("postgresql")
@pytest.mark.requires("rows_in_two_transactions")
def test_registrations_do_not_wait_for_each_other(crm):
    app = crm.app()
    with app.engine.begin() as starting:
        assert rule.hold(starting, app.tables)
        assert _holds(app)


@pytest.fixture
def no_share_locks(database: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on MySQL 8 and Oracle, where each step has the rule locked alone."""
    name = database_name(database.name)
    monkeypatch.setitem(DATABASES, name, DATABASES[name].having(share_locks=False))


@pytest.mark.quick("postgresql-None")
@pytest.mark.requires("row_locks")
@pytest.mark.parametrize("rate", [None, 1e6])
def test_a_start_comes_between_two_steps_of_an_operation(no_share_locks, app, one, rate):
    t = one.setup.tables
    assert not t.database.share_locks
    by = Who("anna", None)
    operation = RecordedOperation(app.engine, app.tables, "rerun", by, {}, rate=rate)
    operation.begin()
    begun = time.monotonic()
    operation.pace.took(1, 0.03)
    assert time.monotonic() - begun >= 0.01 > 2 * rule.look_seconds(t)
    over = threading.Event()

    def work(_: sa.Connection) -> Step:
        over.wait(0.03)
        return Step(1)

    def operate() -> None:
        while not over.is_set():
            operation.step(None, work)

    join = in_thread(operate)
    try:
        for _ in range(3):
            until(lambda: operation.op.steps > 2, "it is at work")
            before = operation.op.steps
            declared_dead(one)
            assert operation.op.steps - before < 8
    finally:
        over.set()
        join()


def _holds(app: App) -> bool:
    with app.engine.begin() as conn:
        return rule.hold(conn, app.tables)


@pytest.mark.requires("row_locks")
@pytest.mark.quick("postgresql")
def test_who_starts_waits_for_a_change_that_goes_on(crm, old):
    app = crm.app()
    with app.engine.connect() as conn:
        conn.begin()
        assert rule.change(conn, app.tables, FIVE).state is Answer.CHANGED
        join = in_thread(old.heartbeat.register)
        time.sleep(0.3)
        assert leases(app) == {}
        conn.rollback()
    join()
    assert list(leases(app)) == [old.shared.identity.id]


def test_changes_and_starts_at_once_leave_one_rule_for_all(crm):
    """Whoever is at work at any moment was built for the rule that is recorded."""
    apps = [crm.app(3), crm.app(5, schema=False)]
    if apps[0].tables.database.case_index == "column":
        crm.app(5)
    odd: list[str] = []
    rounds = [0, 0]
    over = threading.Event()

    def work(number: int, app: App) -> None:
        while not over.is_set():
            rounds[number] += 1
            made = instance(app)
            try:
                register(made)
                now = recorded(app)
                if now != Rule.of(made.setup.tables.spec):
                    odd.append(f"{made.setup.tables.spec.max_tries} beside {now}")
                made.housekeeper.leave()
            except RuleChanged:
                pass
            finally:
                close(made)

    joins = [in_thread(lambda n=n, app=app: work(n, app)) for n, app in enumerate(apps)]
    until(lambda: min(rounds) > 8, "each has begun some times")
    over.set()
    for join in joins:
        join()
    assert odd == []


def test_an_instance_that_has_left_for_the_rule_does_not_beat_without_a_pause(crm):
    app = crm.app()
    instance = Instance(setup_of(app))
    try:
        instance.shared.stop.stopped_for = RuleChanged("t", "old", "new")
        assert beat(instance) == 0
        assert instance.heartbeat.pause_seconds(0) > 1
    finally:
        instance.housekeeper.close()
