"""Two settles of one instance at once: who takes which lane, and what waits for both."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from msgworker import App, Worker
from msgworker.db.database import DATABASES
from msgworker.instance.instance import Instance
from msgworker.instance.running.in_flight import Lane
from msgworker.instance.running.outcome import DONE
from msgworker.instance.settling import settler
from msgworker.instance.settling.writer import Writer
from msgworker.message import Settled
from tests.support.leases import leases
from tests.support.rounds import by_hand, fetch, renewed_before
from tests.support.rows import Table, send
from tests.support.waiting import in_thread, launched, until
from tests.variants import database_name

MANY = settler.LEAST_BESIDE


@pytest.fixture
def overlap(database: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two settles of an instance at once on any database."""
    name = database_name(database.name)
    monkeypatch.setitem(DATABASES, name, DATABASES[name].having(settles_at_once=2))


@pytest.fixture
def pair(overlap: None, one: Instance) -> Iterator[Instance]:
    """`one`, with two writers."""
    assert len(one.settler.writers) == 2
    yield one
    one.shared.connector.close_spare()


class Hold:
    """Keeps the batches of a writer back until `go` is set. batches: the messages of each."""

    def __init__(self, writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go = threading.Event()
        self.came = threading.Event()
        self.batches: list[set[int]] = []
        self._write = writer.write
        monkeypatch.setattr(writer, "write", self._held)

    def _held(self, lanes: dict[int, Lane], me: str) -> dict[int, Settled]:
        self.batches.append(set(lanes))
        self.came.set()
        assert self.go.wait(60)
        return self._write(lanes, me)


@pytest.fixture
def holds(pair: Instance, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Hold]]:
    """Of both writers."""
    made = [Hold(writer, monkeypatch) for writer in pair.settler.writers]
    yield made
    for hold in made:
        hold.go.set()


def finished(one: Instance, app: App, count: int, name: str) -> list[Lane]:
    """Claimed lanes, as after their handlers."""
    send(app, *(f"{name}{i}" for i in range(count)))
    one.fetcher.lane_limit.claimed(idled=True, full=True)
    one.fetcher.lane_limit.claimed(idled=True, full=True)
    lanes: list[Lane] = []
    while len(lanes) < count:
        assert fetch(one) > 0
        lanes += one.lanes.take_back()
    return lanes


def settle_in_thread(one: Instance, lanes: list[Lane]) -> Any:
    """Put them into the queue, and settle as the last handler thread would."""
    now = time.monotonic()  # all at once: none waits long enough to be settled
    for lane in lanes[:-1]:
        lane.finished_at = now
        one.settler.add(lane, False)
    return in_thread(lambda: one.settler.add(lanes[-1], True))


def test_many_lanes_are_settled_beside_a_settle_under_way(pair, app, table, holds):
    held, beside = holds
    beside.go.set()
    lanes = finished(pair, app, 3 + MANY, "o")
    first = settle_in_thread(pair, lanes[:3])
    assert held.came.wait(60)
    settle_in_thread(pair, lanes[3:])()
    assert sorted(table.statuses) == [1] * 3 + [2] * MANY
    held.go.set()
    first()
    assert table.statuses == [2] * (3 + MANY)
    assert held.batches == [{lane.row.msg_id for lane in lanes[:3]}]
    assert beside.batches == [{lane.row.msg_id for lane in lanes[3:]}]
    assert not pair.shared.in_flight.lanes


def test_a_few_lanes_are_left_to_the_settle_under_way(pair, app, table, holds):
    held, beside = holds
    beside.go.set()
    lanes = finished(pair, app, 8, "o")
    first = settle_in_thread(pair, lanes[:3])
    assert held.came.wait(60)
    settle_in_thread(pair, lanes[3:])()
    assert set(table.statuses) == {1}
    held.go.set()
    first()
    assert table.statuses == [2] * 8
    assert (len(held.batches), beside.batches) == (2, [])


@pytest.fixture
def three(app_with: Any) -> Iterator[Instance]:
    """An instance that may hold three lanes, and eight objects to claim, two messages of each."""
    app = app_with(lanes_limit=3)
    app.add_handler("t", lambda msg: None)
    send(app, *"abcdefgh", *"abcdefgh")
    with by_hand(app) as made:
        yield made


def settled_with_a_claim(one: Instance) -> list[int | None]:
    """Settle all lanes together; returns what a claim wins as soon as some of them are leaving,
    before anything is written."""
    won: list[int | None] = []
    for each in one.settler.writers:
        each.on_leaving = lambda: won.append(fetch(one))
    lanes, now = one.lanes.take_back(), time.monotonic()
    for lane in lanes:
        lane.result, lane.finished_at = DONE, now
        one.settler.add(lane, lane is lanes[-1])
    return won


def test_lanes_that_end_with_the_settle_under_way_leave_their_room_to_others(three):
    assert fetch(three) == 3
    assert fetch(three) is None  # all that may be held
    before = set(three.shared.in_flight.lanes)
    for lane in before:
        lane.rows = lane.rows[:1]
    assert settled_with_a_claim(three) == [3]
    assert len(three.shared.in_flight.lanes) == 3
    assert before.isdisjoint(three.shared.in_flight.lanes)
    assert three.settler.leaving == 0
    assert fetch(three) is None


def test_lanes_that_go_on_with_the_settle_under_way_keep_their_room(three):
    assert fetch(three) == 3
    before = set(three.shared.in_flight.lanes)
    assert settled_with_a_claim(three) == []
    assert fetch(three) is None
    assert three.shared.in_flight.lanes == before


def test_behind_a_settle_that_takes_long_any_lane_is_settled(pair, app, table, holds, monkeypatch):
    held, beside = holds
    beside.go.set()
    monkeypatch.setattr(settler, "LONG_SECONDS", 0.0)
    lanes = finished(pair, app, 2, "o")
    first = settle_in_thread(pair, lanes[:1])
    assert held.came.wait(60)
    settle_in_thread(pair, lanes[1:])()
    assert table.statuses == [1, 2]
    held.go.set()
    first()
    assert table.statuses == [2, 2]


def test_a_connection_that_is_slow_to_open_holds_up_no_settle(pair, app, table, holds, monkeypatch):
    held, beside = holds
    beside.go.set()
    monkeypatch.setattr(settler, "LONG_SECONDS", 0.0)
    opening, go, spare = threading.Event(), threading.Event(), pair.settler.writers[1]
    connect = spare.link.connect

    def slow() -> Any:
        opening.set()
        assert go.wait(60)
        return connect()

    monkeypatch.setattr(spare.link, "connect", slow)
    lanes = finished(pair, app, 4, "o")
    settles = [settle_in_thread(pair, lanes[:1])]
    assert held.came.wait(60)
    settles.append(settle_in_thread(pair, lanes[1:2]))
    assert opening.wait(60)
    held.go.set()
    settles[0]()
    settle_in_thread(pair, lanes[2:])()
    assert table.statuses == [2] * 4
    go.set()
    settles[1]()


def test_a_connection_that_is_just_closed_holds_up_no_settle(pair, app, table, monkeypatch):
    spare = pair.settler.writers[1]
    assert spare.open()
    closing, go, close = threading.Event(), threading.Event(), spare.link.close

    def slow(**options: Any) -> None:
        closing.set()
        assert go.wait(60)
        close(**options)

    monkeypatch.setattr(spare.link, "close", slow)
    lanes = finished(pair, app, 1, "o")
    closed = in_thread(pair.shared.connector.close_idle)
    assert closing.wait(60)
    settle_in_thread(pair, lanes)()
    assert table.statuses == [2]
    go.set()
    closed()


def test_the_settles_of_one_object_stay_in_sequence(pair, app, table, holds):
    """Its lane is nowhere while it is settled: not in the queue, and not with a thread."""
    held, beside = holds
    beside.go.set()
    send(app, "a", "a")
    assert fetch(pair) == 1
    (lane,) = pair.lanes.take_back()
    first = settle_in_thread(pair, [lane])
    assert held.came.wait(60)
    settle_in_thread(pair, finished(pair, app, MANY, "o"))()
    assert fetch(pair) == 0
    assert not pair.lanes.ready
    assert table.statuses == [1, 0] + [2] * MANY
    held.go.set()
    first()
    assert [one.row.msg_id for one in pair.lanes.take_back()] == [lane.row.msg_id]
    assert table.statuses[:2] == [2, 1]


class Asked:
    """A lock in use. by: whoever waits for it is noted."""

    def __init__(self, lock: Any) -> None:
        self._lock = lock
        self.by: list[int] = []

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if blocking:
            self.by.append(threading.get_ident())
        return bool(self._lock.acquire(blocking, timeout))

    def release(self) -> None:
        self._lock.release()

    def locked(self) -> bool:
        return bool(self._lock.locked())

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *exc: object) -> None:
        self.release()


def test_waiting_for_all_settles_waits_for_both(pair, app, table, holds):
    held, beside = holds
    spare = pair.settler.writers[1]
    spare.lock = asked = Asked(spare.lock)
    lanes = finished(pair, app, 3 + MANY, "o")
    both = [settle_in_thread(pair, lanes[:3])]
    assert held.came.wait(60)
    both.append(settle_in_thread(pair, lanes[3:]))
    assert beside.came.wait(60)
    over: list[int] = []
    seen = in_thread(lambda: (pair.settler.flush_waiting(), over.append(1), table.statuses)[2])
    held.go.set()
    both[0]()
    until(lambda: asked.by or over, "it waits for the second one")
    assert asked.by
    beside.go.set()
    assert seen() == [2] * (3 + MANY)
    both[1]()


def test_what_waits_for_a_settle_that_hangs_is_settled_by_the_other_one(pair, app, table, holds):
    held, beside = holds
    beside.go.set()
    lanes = finished(pair, app, 3, "o")
    first = settle_in_thread(pair, lanes[:1])
    assert held.came.wait(60)
    back = in_thread(lambda: pair.settler.release(lanes[1:]))
    until(lambda: table.statuses == [1, 0, 0], "released by the other one")
    held.go.set()
    back()
    first()


def test_connections_are_closed_after_the_settles_that_use_them(pair, app, table, monkeypatch):
    first, spare = pair.settler.writers
    spare.lock = asked = Asked(spare.lock)
    sent, go = threading.Event(), threading.Event()
    write = spare.write_once

    def slow(*args: Any) -> None:
        sent.set()
        assert go.wait(60)
        assert spare.link.together is not None
        write(*args)

    monkeypatch.setattr(spare, "write_once", slow)
    lanes = finished(pair, app, 2, "o")
    assert first.lock.acquire(timeout=60)
    monkeypatch.setattr(settler, "LEAST_BESIDE", 1)
    settling = settle_in_thread(pair, lanes)
    assert sent.wait(60)
    first.link.open()
    first.lock.release()
    pair.shared.connector.close_idle()
    over: list[int] = []
    closing = in_thread(lambda: (pair.settler.close(), over.append(1)))
    until(lambda: asked.by or over, "it waits for the second one")
    assert asked.by
    assert first.link.together is None
    go.set()
    settling()
    closing()
    assert table.statuses == [2, 2]
    assert [link.together for link in pair.settler.links] == [None, None]


def test_a_stop_waits_for_both_settles_and_leaves_nothing(overlap, app_with, monkeypatch):
    app = app_with(poll_seconds=0.02)
    app.add_handler("t", lambda msg: None)
    monkeypatch.setattr(settler, "LEAST_BESIDE", 1)
    monkeypatch.setattr(settler, "SHARE_BESIDE", 0.0)
    came, go, write = threading.Semaphore(0), threading.Event(), Writer.write_once

    def slow(*args: Any) -> None:
        came.release()
        assert go.wait(60)
        write(*args)

    monkeypatch.setattr(Writer, "write_once", slow)
    send(app, *range(40))
    worker = launched(app.worker(threads=4))
    assert came.acquire(timeout=60)
    assert came.acquire(timeout=60)  # both are at it
    stopping = in_thread(worker.stop)
    assert list(leases(app)) == [worker.instance_id]
    go.set()
    assert stopping()
    assert leases(app) == {}
    assert 1 not in Table(app).statuses


def test_an_unanswered_settle_is_looked_up_while_the_other_one_goes_on(
    pair, app, table, holds, monkeypatch
):
    """Its COMMIT has arrived, its answer has not."""
    held, beside = holds
    one = pair.settler.writers[0]
    write, sent = one.write_once, []

    def unanswered(*args: Any) -> None:
        sent.append(args)
        write(*args)
        args[2].clear()
        raise DBAPIError("", {}, psycopg.errors.AdminShutdown(), connection_invalidated=True)

    monkeypatch.setattr(one, "write_once", unanswered)
    lanes = finished(pair, app, 3 + MANY, "o")
    first = settle_in_thread(pair, lanes[:3])
    assert held.came.wait(60)
    second = settle_in_thread(pair, lanes[3:])
    assert beside.came.wait(60)
    held.go.set()
    first()
    assert len(sent) == 1
    assert sorted(table.statuses) == [1] * MANY + [2] * 3
    beside.go.set()
    second()
    assert table.statuses == [2] * (3 + MANY)
    assert (pair.tally.done, pair.tally.lost) == (3 + MANY, 0)
    assert pair.shared.identity.tenure.doubtful == {lane.row.msg_id for lane in lanes[:3]}


@pytest.mark.parametrize("which", [0, 1])
def test_a_lane_lost_in_one_of_two_settles_is_lost_alone_and_makes_us_ask(
    pair, app, table, holds, which
):
    held, beside = holds
    lanes = finished(pair, app, 2 * MANY, "o")
    halves = lanes[:MANY], lanes[MANY:]
    first = settle_in_thread(pair, halves[0])
    assert held.came.wait(60)
    second = settle_in_thread(pair, halves[1])
    assert beside.came.wait(60)
    taken = halves[which][0].row.msg_id
    assert table.edit(table.where(msg_id=taken), status=0, claimed_by=None) == 1
    renewed_before(pair.shared.identity, 3600.0)
    held.go.set()
    beside.go.set()
    first()
    second()
    assert sorted(table.statuses) == [0] + [2] * (2 * MANY - 1)
    assert pair.tally.lost == 1
    assert pair.shared.identity.in_doubt
    assert not pair.shared.in_flight.lanes


def test_without_a_second_connection_one_writer_settles_all(pair, app, table, holds, monkeypatch):
    held, beside = holds
    beside.go.set()
    spare, asked = pair.settler.writers[1], []

    def none_left() -> Any:
        asked.append(1)
        raise sa.exc.TimeoutError("QueuePool limit")

    monkeypatch.setattr(spare.link, "connect", none_left)
    lanes = finished(pair, app, 3 + 2 * MANY, "o")
    first = settle_in_thread(pair, lanes[:3])
    assert held.came.wait(60)
    settle_in_thread(pair, lanes[3 : 3 + MANY])()
    settle_in_thread(pair, lanes[3 + MANY :])()
    held.go.set()
    first()
    assert table.statuses == [2] * len(lanes)
    assert (asked, beside.batches) == ([1], [])


def test_an_idle_second_connection_is_given_to_whoever_has_none(pair, app):
    spare = pair.settler.writers[1]
    assert spare.open()
    assert spare.link.together is not None
    pair.shared.connector.close_idle()
    assert spare.link.together is None


def test_an_outage_of_an_idle_writer_ends_with_the_next_answer(pair, app, table, caplog):
    """The lanes of its settle are lost, so it is not sent again."""
    spare = pair.settler.writers[1]
    spare.outage.failed(ValueError("gone"))
    assert pair.shared.away.seconds
    settle_in_thread(pair, finished(pair, app, 1, "o"))()
    assert table.statuses == [2]
    assert pair.shared.away.seconds == 0
    assert (spare.outage.failures, spare.outage.error) == (0, None)
    assert caplog.text.count("settle: works again") == 1


def test_the_watchdog_sees_both_settles(pair, monkeypatch, caplog):
    cut: list[Any] = []
    for link in pair.settler.links:
        link.busy_since = -3600.0
        monkeypatch.setattr(link, "cut", lambda link=link: cut.append(link))
    assert pair.watchdog.run_once() == 2
    assert pair.watchdog.run_once() == 2
    assert cut == pair.settler.links
    assert caplog.text.count("settle: no progress") == 2
    for link in pair.settler.links:
        link.busy_since = None
    assert pair.watchdog.run_once() == 0


@pytest.fixture
def working(overlap: None, app: App) -> Iterator[Worker]:
    """Two threads and handlers of 5 ms, started."""
    app.add_handler("t", lambda msg: time.sleep(0.005))
    with launched(app.worker(threads=2)) as worker:
        yield worker


def settling_threads(instance: Instance, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the threads that settle from now on."""
    names: list[str] = []
    settle = instance.settler.settle

    def told(batch: Any, writer: Writer) -> Any:
        names.append(threading.current_thread().name)
        return settle(batch, writer)

    monkeypatch.setattr(instance.settler, "settle", told)
    return names


def test_a_thread_of_its_own_settles_for_long_handlers(working, app, table, monkeypatch):
    names = settling_threads(working.instance, monkeypatch)
    send(app, *(f"o{i % 20}" for i in range(80)))
    until(lambda: table.statuses.count(2) == 80, "all are done")
    assert "msgworker-settler" in names


def test_handler_threads_settle_for_short_handlers(working, app, table, monkeypatch):
    monkeypatch.setattr(settler, "LONG_HANDLER_SECONDS", 60.0)
    names = settling_threads(working.instance, monkeypatch)
    send(app, *(f"o{i % 20}" for i in range(80)))
    until(lambda: table.statuses.count(2) == 80, "all are done")
    assert "msgworker-settler" not in names


def test_others_settle_while_the_settling_thread_hangs(working, app, table, monkeypatch):
    first = working.instance.settler.writers[0]
    go, came, write = threading.Event(), list[int](), first.write

    def held(lanes: dict[int, Lane], me: str) -> dict[int, Settled]:
        if threading.current_thread().name == "msgworker-settler":
            came.append(len(lanes))
            assert go.wait(60)
        return write(lanes, me)

    monkeypatch.setattr(first, "write", held)
    try:
        ids = send(app, *(f"o{i}" for i in range(80)))
        until(lambda: came and table.statuses.count(2) == len(ids) - came[0], "the others are done")
    finally:
        go.set()
    until(lambda: table.statuses.count(2) == len(ids), "all are done")
