"""What an instance claims, and what it leaves to others."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa

from msgworker import App, MessageTable
from msgworker.events import Claimed, Event, Events
from msgworker.instance.claiming import capacity, search
from msgworker.instance.claiming.capacity import TICK_SECONDS
from msgworker.instance.claiming.heads import Wanted
from msgworker.store import candidates, claim, lease, recover
from msgworker.store.candidates import Those
from msgworker.store.rows import MIN_ID
from tests.support.apps import created
from tests.support.rounds import beat, fetch
from tests.support.rows import edit, send
from tests.support.waiting import launched, until


@pytest.mark.quick
@pytest.mark.core
def test_the_database_refuses_a_second_running_row(app, table):
    first, second, other = send(app, "a", "a", "b")
    for msg_id in (first, other):
        table.edit(table.where(msg_id=msg_id), status=1)
    with pytest.raises(sa.exc.IntegrityError):
        table.edit(table.where(msg_id=second), status=1)
    assert table.statuses == [1, 0, 1]


@pytest.mark.core
def test_messages_without_an_object_are_claimed_together(one, app, table):
    send(app, None, None, None)
    assert fetch(one) == 3
    assert table.statuses == [1, 1, 1]


def test_more_is_claimed_while_lanes_are_in_flight_if_the_threads_ran_dry(one, app, table):
    send(app, *range(40))
    assert [fetch(one), fetch(one)] == [4, 12]
    assert fetch(one) is None  # all that may be held is held, and lanes wait for a thread
    assert one.fetcher.pause_seconds(0) == TICK_SECONDS
    assert len(one.lanes.ready) == 16
    one.lanes.threads_idled = True
    assert fetch(one) == 24
    assert len(one.shared.in_flight.lanes) == 40


def test_nothing_is_claimed_of_an_object_whose_settle_is_unanswered(one, app, table):
    (a, _) = send(app, "a", "a")
    assert fetch(one) == 1
    table.edit(table.where(msg_id=a), status=2, claimed_by=None)  # its settle, not known to us yet
    assert fetch(one) == 0
    assert table.statuses == [2, 0]


def test_rows_of_ours_that_no_lane_knows_are_given_back(one, app, table):
    send(app, "a", "b")
    table.edit(table.where(object_id="a"), status=1, claimed_by=one.shared.identity.id)
    beat(one)
    assert table.rows("status", "error_try_times", "claimed_by") == [(0, 0, None)] * 2


def test_a_claim_that_fails_behind_its_commit_is_released(one, app, table, monkeypatch):
    send(app, "a", "b", None)
    emit = Events.emit

    def no_memory(self: Events, event: Event) -> None:
        if isinstance(event, Claimed):
            raise MemoryError
        emit(self, event)

    monkeypatch.setattr(Events, "emit", no_memory)
    with pytest.raises(MemoryError):
        fetch(one)
    assert table.statuses == [1, 1, 1]
    monkeypatch.undo()
    beat(one)  # or the next claim: it releases what has no lane
    assert fetch(one) == 3
    assert len(one.shared.in_flight.lanes) == 3
    assert table.rows("status", "error_try_times") == [(1, 0)] * 3


@pytest.mark.parametrize(("lost", "told"), [(True, 0), (False, 1)])
def test_heads_run_though_their_runs_could_not_be_read(one, app, monkeypatch, caplog, lost, told):
    """A lost connection is told by the next round: an outage is one line in the log."""

    def fails(*arguments: Any, **options: Any) -> Any:
        raise sa.exc.DBAPIError("SELECT", {}, Exception("x"), connection_invalidated=lost)

    monkeypatch.setattr(claim, "read_runs", fails)
    ids = send(app, "a", "a")
    assert fetch(one) == 1
    assert [lane.row.msg_id for lane in one.shared.in_flight.lanes] == ids[:1]
    assert len([r for r in caplog.records if "runs could not be read" in r.getMessage()]) == told


def test_lanes_are_handed_over_while_further_runs_are_read(one, app, monkeypatch):
    monkeypatch.setattr(claim, "RUNS_PER_STATEMENT", 1)
    read, waiting = claim.read_runs, []

    def watched(*arguments: Any, **options: Any) -> Any:
        waiting.append(len(one.lanes.ready))
        return read(*arguments, **options)

    monkeypatch.setattr(claim, "read_runs", watched)
    send(app, *"abcd", *"abcd")
    assert fetch(one) == 4
    together = app.tables.database.arrays or app.tables.database.json_lists
    assert waiting == ([0] if together else [0, 2])
    assert [lane.row.object_id for lane in one.lanes.ready] == [*"abcd"]
    assert [len(lane.rows) for lane in one.lanes.ready] == [2] * 4


def test_all_heads_run_though_the_runs_of_some_could_not_be_read(one, app, monkeypatch, caplog):
    monkeypatch.setattr(claim, "at_once", lambda _: 1)
    read, heads = claim.read_runs, []

    def fails_then(conn: Any, t: Any, rows: Any, **options: Any) -> Any:
        heads.append(len(rows))
        if len(heads) == 2:
            raise sa.exc.DBAPIError("SELECT", {}, Exception("x"))
        return read(conn, t, rows, **options)

    monkeypatch.setattr(claim, "read_runs", fails_then)
    send(app, *"abcd", *"abcd")
    assert fetch(one) == 4
    assert [len(lane.rows) for lane in one.lanes.ready] == [2, 1, 1, 1]
    assert heads == [1, 1]
    assert len([r for r in caplog.records if "runs could not be read" in r.getMessage()]) == 1


def test_all_rows_that_no_lane_knows_are_given_back_at_once(one, app, table, monkeypatch):
    monkeypatch.setattr(recover, "BATCH", 2)
    send(app, *"abcde")
    table.edit(None, status=1, claimed_by=one.shared.identity.id)
    beat(one)
    assert table.statuses == [0] * 5


def test_a_sweep_leaves_what_is_in_hand(one, app, table):
    send(app, "a", "a", None)
    assert fetch(one) == 2
    beat(one)
    assert table.statuses == [1, 0, 1]


def test_what_waits_behind_a_paused_topic_is_found_soon(app_with, monkeypatch):
    """Many looks, and no idle pause between them: a single one would take longer than we wait."""
    monkeypatch.setattr(capacity, "FIRST_IDLE_SECONDS", 600.0)
    app = app_with(poll_seconds=600.0)
    app.add_handler("t", lambda msg: None)
    ran: list[int] = []
    app.add_handler("b", lambda msg: ran.append(msg.msg_id))
    with app.engine.begin() as conn:
        app.send_many(conn, "t", [(None, f"a{i:05}") for i in range(6000)])
    (wanted,) = send(app, "z", topic="b")
    app.ops.pause("t")
    with launched(app.worker(threads=1)):
        until(lambda: ran == [wanted], "found")


def test_an_instance_whose_claims_are_lost_counts_the_others_at_once(one, app, monkeypatch):
    """Else it would look for the same heads as they until its next heartbeat."""
    beat(one)
    beats = one.setup.settings.heartbeat_seconds
    with app.engine.begin() as conn:
        lease.register(conn, app.tables, "another", ttl=3600.0)
    send(app, *range(40))
    monkeypatch.setattr(one.fetcher.claimer, "claim", lambda tried, *_, **__: ([], tried))
    one.housekeeper.start()
    try:
        until(lambda: one.shared.peers.slots == 2, "the first beat counts them", seconds=beats)
        with app.engine.begin() as conn:
            lease.register(conn, app.tables, "a third", ttl=3600.0)
        assert fetch(one) == 0
        until(lambda: one.shared.peers.slots == 3, "it counts the instances", seconds=beats / 2)
    finally:
        one.housekeeper.ask_to_end()
        one.housekeeper.join()


def test_instances_of_other_message_tables_are_no_peers(one, app, make_app):
    other = created(make_app(table=MessageTable("other_message")))
    for of, slots in ((other, 1), (app, 2)):
        with of.engine.begin() as conn:
            lease.register(conn, of.tables, f"of {of.table.name}", ttl=3600.0)
        beat(one)
        assert one.shared.peers.slots == slots


class Held:
    """As where a snapshot is held: a look from the very start takes `seconds`, by a clock that
    stands still otherwise; `starts` counts them."""

    def __init__(self, app: App, monkeypatch: pytest.MonkeyPatch, seconds: float = 0.5) -> None:
        self.app, self.now, self.seconds, self.starts = app, 1000.0, seconds, 0
        for name in ("oldest", "oldest_among"):
            read = getattr(candidates, name)
            monkeypatch.setattr(candidates, name, lambda *a, read=read, **k: self._read(read, a, k))
        monkeypatch.setattr(search, "time", SimpleNamespace(monotonic=lambda: self.now))
        self.search = search.TableSearch(app.tables, None)
        edit(app, *send(app, "ended"), status=2)

    def _read(self, read: Any, what: Any, how: Any) -> Any:
        if how["mark"] == MIN_ID:
            self.starts += 1
            self.now += self.seconds
        return read(*what, **how)

    def look(self, after: float = 0.0, skip: set[Any] | None = None) -> list[int]:
        self.now += after
        with self.app.engine.connect() as conn:
            self.last = self.search.look(conn, Wanted(10, skip_objects=skip or set()))
        return [c.msg_id for c in self.last.candidates]

    def in_between(self) -> None:
        """Until a look does not begin at the very start."""
        starts = None
        while starts != self.starts:
            starts = self.starts
            self.look(0.5)
            assert starts is None or starts < 20


@pytest.fixture(params=["all", "limited"])
def held(app, request, monkeypatch) -> Iterator[Held]:
    one = Held(app, monkeypatch)
    if request.param == "limited":
        one.search.those = Those(frozenset(["limited"]), True)
    return one


@pytest.mark.quick("all-sqlite")
@pytest.mark.requires("index_by_age")
def test_looks_from_the_start_take_a_twentieth_of_the_time_or_are_two_seconds_apart(held):
    held.in_between()
    begun, starts = held.now, held.starts
    while held.now < begun + 30.0:
        held.look(0.05)
    assert held.starts - starts in range(10, 17)  # the pause and the look, and what it rounds up to


@pytest.mark.requires("index_by_age")
def test_where_a_look_from_the_start_is_short_nearly_every_look_is_one(app, monkeypatch):
    held = Held(app, monkeypatch, seconds=0.0005)
    for _ in range(100):
        held.look(0.011)
    assert held.starts == 100


@pytest.mark.requires("index_by_age")
def test_what_comes_is_found_at_once_and_a_lower_id_within_two_seconds(held, app, table):
    late, _ = send(app, "a", "b")
    table.edit(status=2)
    held.in_between()
    (new,) = send(app, "c")
    starts = held.starts
    assert held.look(0.01) == [new]
    assert held.starts == starts
    edit(app, late, status=0)  # as if it were committed now
    begun = held.now
    while late not in held.look(0.05):
        assert held.now < begun + 2.5  # with the look that was under way
    assert new in held.look()


@pytest.mark.requires("index_by_age")
def test_an_id_that_was_taken_before_another_and_committed_after_it_is_found_at_once(held, app):
    held.in_between()
    first, second = send(app, "a", "b")
    edit(app, first, status=2)  # as if its transaction went on
    assert held.look(0.01) == [second]
    edit(app, second, status=2)
    held.look(2.5)
    edit(app, first, status=0)
    starts = held.starts
    assert held.look(0.01) == [first]
    assert held.starts == starts


@pytest.mark.requires("index_by_age")
def test_a_look_in_between_does_not_say_that_nothing_is_left(held, app):
    held.in_between()
    assert held.last.saw_all
    assert not held.last.from_start
    assert held.look(3.0) == []
    assert held.last.from_start
    held.search.forget(start=False)
    held.look()
    assert not held.last.from_start
    held.search.forget()
    held.look()
    assert held.last.complete
    assert held.last.from_start


@pytest.mark.requires("index_by_age")
def test_a_look_that_goes_on_where_one_from_the_start_stopped_is_from_the_start(app, monkeypatch):
    """Or a drain would look afresh without end."""
    held = Held(app, monkeypatch)
    held.search.those = Those(frozenset(["limited"]), True)
    send(app, "waits")
    send(app, *[None] * 400, topic="limited")  # more than a look comes past that takes long
    for _ in range(8):
        held.look(0.6, {"waits"})
    held.search.forget()
    looks = []
    for _ in range(3):
        assert held.look(skip={"waits"}) == []
        looks.append((held.last.complete, held.last.from_start))
    assert looks[0] == (False, True)
    assert (True, True) in looks


@pytest.mark.requires("index_by_age")
@pytest.mark.parametrize("how", ["released", "swept", "recovered"])
def test_what_we_give_back_ourselves_is_found_by_the_next_look(one, app, table, monkeypatch, how):
    held = Held(app, monkeypatch)
    one.fetcher.finder.search = held.search
    msg_id, last = send(app, None, None)
    edit(app, last, status=2)
    if how == "released":
        assert fetch(one) == 1
    else:
        owner = "dead" if how == "recovered" else one.shared.identity.id
        edit(app, msg_id, status=1, claimed_by=owner)
    held.in_between()
    starts = held.starts
    if how == "released":
        one.settler.release(one.lanes.take_back())
    else:
        beat(one)
    assert [c.msg_id for c in one.fetcher.finder.look(1, 0).candidates] == [msg_id]
    assert held.starts == starts
