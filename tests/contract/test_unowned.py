"""A table without `claimed_by`: an instance that lost its lease keeps what it has in flight."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import sqlalchemy as sa

from msgworker import App, Message, MessageTable, Worker
from msgworker.instance.instance import Instance
from msgworker.instance.running.in_flight import Lane
from msgworker.instance.running.outcome import Result
from msgworker.message import Outcome, Settled, Settlement
from tests.support.apps import created
from tests.support.leases import beat_now, leases
from tests.support.rounds import beat, by_hand, fetch
from tests.support.rows import Table, send
from tests.support.store import Store
from tests.support.tables import SEED, seed_table
from tests.support.waiting import launched, until
from tests.support.watching import Watch


@pytest.fixture
def seed_app(database: Any, make_app: Any) -> App:
    """An App on the seed's own table of four columns."""
    seed_table(database)
    app: App = make_app(table=SEED, lease_seconds=60)
    app.create_schema()
    return app


@pytest.fixture
def idle(seed_app: App) -> App:
    """The same, with a handler that does nothing."""
    seed_app.add_handler(None, lambda msg: None)
    return seed_app


@pytest.fixture
def make_one(idle: App) -> Iterator[Callable[[], Instance]]:
    """Instances that hold their leases; no thread of theirs runs."""
    with ExitStack() as made:
        yield lambda: made.enter_context(by_hand(idle))


def end_lease(app: App, name: str | None) -> None:
    """As if the instance had been suspended for longer than its lease."""
    lease = app.tables.lease
    change = sa.update(lease).where(lease.c.name == name)
    with app.engine.begin() as conn:
        assert conn.execute(change.values(expires_at=lease.c.started_at)).rowcount == 1


def claims_ahead(worker: Worker) -> None:
    """More is claimed at once than there are threads."""
    assert worker.instance is not None
    worker.instance.lanes.took(0.0)


def queued(one: Instance) -> list[Lane]:
    """The lanes that a handler thread would take, and may start."""
    lanes = [one.lanes.ready.popleft() for _ in range(len(one.lanes.ready))]
    return [lane for lane in lanes if one.lanes.may_start(lane)]


@pytest.mark.requires("row_locks", of="transactional")
@pytest.mark.parametrize("transactional", [False, True], ids=["plain", "transactional"])
@pytest.mark.parametrize("taken", [False, True], ids=["expired", "taken over"])
def test_a_lost_lease_strands_nothing_and_runs_nothing_twice(seed_app, taken, transactional):
    app, watch, gate = seed_app, Watch(), threading.Event()
    running: list[int] = []

    def handle(msg: Message[Any]) -> None:
        running.append(msg.msg_id)
        watch.saw(msg.object_id, msg.msg_id, lambda: gate.wait(30))

    app.add_handler(None, handle, transactional=transactional)
    with app.worker(threads=2) as worker, app.worker(threads=2) as other:
        worker.start()
        claims_ahead(worker)
        ids = send(app, *"aabbccddee" * 3)
        until(lambda: len(running) == 2, "handlers run")
        until(lambda: Table(app).statuses.count(1) > 2, "more is in flight")
        old = worker.instance_id
        end_lease(app, old)
        if taken:
            other.start()
            until(lambda: old not in leases(app), "taken over")
        beat_now(worker)
        until(lambda: worker.instance_id != old, "declared dead")
        assert len(running) <= 4
        gate.set()
        until(lambda: set(Table(app).statuses) == {2}, "all done")
        tallies = worker.tally, other.tally
    # An outcome is counted after its commit; a worker that has stopped has counted all.
    assert sum(tally.done for tally in tallies) == len(ids)
    watch.assert_exclusive()
    watch.assert_in_order(ids)
    assert set(Table(app).column("error_try_times")) == {0}
    assert leases(app) == {}


def test_what_has_not_started_is_asked_for_before_it_starts(seed_app, make_one):
    one = make_one()
    first, kept, behind = send(seed_app, "a", "b", "b")
    assert fetch(one) == 2
    end_lease(seed_app, one.shared.identity.id)
    beat(one)
    assert queued(one) == []
    assert len(one.shared.in_flight.unsure) == 2
    beat(one)
    lanes = queued(one)
    assert [lane.row.msg_id for lane in lanes] == [first, kept]
    for lane in lanes:
        one.caller.handle(lane)
    assert [lane.row.msg_id for lane in one.settler.settle(lanes, one.settler.writers[0])] == [
        behind
    ]


def test_a_next_message_that_has_a_try_by_now_gets_no_flag(seed_app):
    """Its outcome would be written for a try that it was not read with: it would stay at 1."""
    store = Store(seed_app)
    head, behind = send(seed_app, "a", "a")
    store.row(head, status=1)
    store.row(behind, error_try_times=1)
    assert store.settle(Settlement(head, next_id=behind)) == {head: Settled.ENDED}
    assert store.table.rows("status", "error_try_times") == [(2, 0), (0, 1)]


def test_what_people_gave_back_while_the_lease_was_lost_is_not_started(seed_app, make_one, caplog):
    one = make_one()
    send(seed_app, "a", "b")
    assert fetch(one) == 2
    with pytest.raises(Exception, match="is alive"):
        seed_app.ops.release_nobody(any_age=True)
    end_lease(seed_app, one.shared.identity.id)
    assert seed_app.ops.release_nobody(any_age=True) == 2
    beat(one)
    assert queued(one) == []
    beat(one)
    assert (queued(one), one.shared.in_flight.lanes, one.tally.lost) == ([], set(), 2)
    assert "is no longer claimed by us" in caplog.text
    assert Table(seed_app).rows("status", "error_try_times") == [(-1, 1)] * 2
    assert fetch(one) == 2
    assert len(queued(one)) == 2


@pytest.mark.parametrize("outcome", [Outcome.DONE, Outcome.FAILED, Outcome.DEAD, Outcome.RELEASED])
def test_an_outcome_is_not_written_under_the_claim_of_another(seed_app, make_one, outcome):
    one = make_one()
    send(seed_app, "a", "a", "b")
    assert fetch(one) == 2
    lanes = queued(one)
    end_lease(seed_app, one.shared.identity.id)
    assert seed_app.ops.release_nobody(any_age=True) == 2
    two = make_one()
    assert fetch(two) == 2
    for lane in lanes:
        lane.result = Result(outcome, "why")
    assert one.settler.settle(lanes, one.settler.writers[0]) == []
    assert one.tally.lost == 2
    assert Table(seed_app).rows("status", "error_try_times") == [(1, 1), (0, 0), (1, 1)]
    one.release_unstarted()
    assert Table(seed_app).statuses == [1, 0, 1]
    theirs = queued(two)
    for lane in theirs:
        two.caller.handle(lane)
    two.settler.settle(theirs, two.settler.writers[0])
    assert Table(seed_app).statuses == [2, 1, 2]


@pytest.mark.requires("row_locks")
@pytest.mark.quick("postgresql")
def test_a_message_that_somebody_has_locked_is_asked_for_again(seed_app, make_one):
    one = make_one()
    (held,) = send(seed_app, "a")
    fetch(one)
    end_lease(seed_app, one.shared.identity.id)
    beat(one)
    assert queued(one) == []
    t = seed_app.tables
    with seed_app.engine.begin() as conn:
        conn.execute(sa.select(t.message).with_for_update()).all()
        beat(one)
        assert (queued(one), len(one.shared.in_flight.unsure)) == ([], 1)
        assert one.housekeeper.pause_seconds(0) < 1
    beat(one)
    assert [lane.row.msg_id for lane in queued(one)] == [held]


@pytest.mark.long
def test_a_stop_gives_back_what_nobody_is_sure_of(seed_app, make_one):
    one = make_one()
    send(seed_app, "a", "b")
    fetch(one)
    end_lease(seed_app, one.shared.identity.id)
    beat(one)
    assert queued(one) == []
    one.stop(0.0)
    assert Table(seed_app).rows("status", "error_try_times") == [(0, 0)] * 2
    assert one.shared.in_flight.lanes == set()


@pytest.mark.long
def test_who_finds_another_rule_after_its_pause_gives_back_what_it_has_in_hand(seed_app, make_app):
    app, gate, running = seed_app, threading.Event(), []

    def handle(msg: Message[Any]) -> None:
        running.append(msg.msg_id)
        gate.wait(30)

    app.add_handler(None, handle)
    with launched(app.worker(threads=1)) as worker:
        claims_ahead(worker)
        send(app, *"abc")
        until(lambda: Table(app).statuses.count(1) > 1 and running, "more in flight than one")
        end_lease(app, worker.instance_id)
        other = make_app(table=SEED.replace(max_tries=5))
        assert other.create_schema()[-1] == "rule max_tries=5, on_dead=continue"
        beat_now(worker)
        until(
            lambda: worker.instance is None or worker.instance.shared.stop.requested.is_set(),
            "left",
        )
        gate.set()
        until(lambda: worker.instance_id is None, "stopped")
    done = len(running)
    assert (
        sorted(Table(app).rows("status", "error_try_times"))
        == [(0, 0)] * (3 - done) + [(2, 0)] * done
    )


def test_a_message_in_hand_stays_ours_when_the_id_changes(make_app, sqlite):
    app = created(make_app(table=MessageTable(claimed_by=None)))
    app.add_handler("t", lambda msg: None)
    with by_hand(app) as one:
        send(app, "a")
        fetch(one)
        old = one.shared.identity.id
        for _ in range(3):
            end_lease(app, one.shared.identity.id)
            beat(one)
        assert one.shared.identity.is_ours(old)
        assert one.shared.identity.tenure.carried == {old, *one.shared.identity.tenure.carried}
        assert (
            len(one.shared.identity.tenure.carried) == 2
        )  # only what a message in flight was claimed under, and the last
