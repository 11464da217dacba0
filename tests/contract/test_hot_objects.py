"""Few busy objects: long runs, and looks that are rare but never late."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from tenacity.wait import wait_none

from msgworker import App, Message
from msgworker.app import setup_of
from msgworker.events import Claimed
from msgworker.instance.claiming import capacity
from msgworker.instance.instance import Instance
from tests.support.apps import created
from tests.support.rounds import register
from tests.support.rows import send
from tests.support.waiting import launched, until


@pytest.fixture
def rare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks beside a running message, after the last reason for one: 0.01, 0.1, 1, 10, ... s."""
    monkeypatch.setattr(capacity, "BUSY_GROWTH", 10.0)
    monkeypatch.setattr(capacity, "LONGEST_BUSY_SECONDS", 1e9)


class Holding:
    """A worker with a message that runs until `free`."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.ran: list[str] = []
        self.free, self.go = threading.Event(), threading.Event()
        app.add_handler("t", self._handle)
        self.worker = app.worker(threads=3)

    def _handle(self, msg: Message[Any]) -> None:
        self.ran.append(str(msg.payload or msg.object_id))
        if msg.object_id == "hot":
            self.free.wait(60)
        elif msg.payload == "first":
            self.go.wait(60)

    def begin(self) -> None:
        self.worker.start()
        send(self.app, "hot")
        until(lambda: self.ran == ["hot"], "it runs")

    def end(self) -> None:
        self.free.set()
        self.go.set()
        self.worker.stop()

    def until_quiet(self) -> None:
        pace = self.worker.instance.fetcher.pace
        until(lambda: pace.look_in > 5, "it looks rarely")

    def until_ran(self, name: str, *, seconds: float = 5.0) -> None:
        until(lambda: name in self.ran, f"{name} runs beside it", seconds=seconds)
        assert not self.free.is_set()


@pytest.fixture
def make_holding(make_app: Any) -> Iterator[Any]:
    made: list[Holding] = []

    def make(**settings: Any) -> Holding:
        app = created(make_app(poll_seconds=600.0, **settings))
        made.append(Holding(app))
        return made[-1]

    yield make
    for one in made:
        one.end()


@pytest.mark.usefixtures("rare")
def test_a_message_of_this_process_starts_at_once_beside_a_busy_object(make_holding):
    holding = make_holding()
    holding.begin()
    holding.until_quiet()
    send(holding.app, "new")
    holding.until_ran("new")


@pytest.mark.requires("listen")
@pytest.mark.usefixtures("rare")
def test_a_notification_starts_a_message_at_once_beside_a_busy_object(postgresql):
    app, other = (App(postgresql.url, poll_seconds=600.0, notify=True) for _ in range(2))
    app.create_schema()
    holding = Holding(app)
    try:
        holding.begin()
        holding.until_quiet()
        send(other, "new")  # as another process: this App does not know the worker
        holding.until_ran("new")
    finally:
        holding.end()
        app.engine.dispose()
        other.engine.dispose()


@pytest.mark.usefixtures("rare")
def test_the_end_of_a_lane_is_a_look_for_what_came_behind_it(make_holding, make_app):
    holding = make_holding()
    holding.begin()
    send(holding.app, "b", payload="first")
    holding.until_ran("first")
    holding.until_quiet()
    send(make_app(), "b", payload="second")  # too late for the run of the first
    holding.go.set()
    holding.until_ran("second")


@pytest.mark.usefixtures("rare")
def test_rounds_beside_a_busy_object_send_nothing_before_the_next_look(make_holding, monkeypatch):
    holding = make_holding()
    holding.begin()
    holding.until_quiet()
    rounds, sent = [0], list[str]()
    lanes = holding.worker.instance.lanes
    nudge = lanes.nudge

    def counted() -> None:
        rounds[0] += 1
        nudge()

    @sa.event.listens_for(holding.app.engine, "before_cursor_execute")
    def note(conn: Any, cursor: Any, statement: str, *_: object) -> None:
        if threading.current_thread().name == "msgworker-fetcher":
            sent.append(statement)

    monkeypatch.setattr(lanes, "nudge", counted)
    until(lambda: rounds[0] > 20, "it goes round")
    assert sent == []


def test_a_message_of_another_process_starts_soon_beside_a_busy_object(make_holding, make_app):
    """An idle instance would not look so soon: `poll_seconds` is ten minutes."""
    holding, other = make_holding(), make_app()
    holding.begin()
    for name in ("new", "newer"):
        send(other, name)
        holding.until_ran(name, seconds=60)


@pytest.mark.usefixtures("rare")
def test_a_drain_ends_with_the_last_run_of_a_busy_object(app):
    app.add_handler("t", lambda msg: None)
    send(app, *["hot"] * 150)
    assert app.drain(threads=3, linger=0).done == 150


def test_a_busy_object_is_claimed_ever_more_rarely(app, monkeypatch):
    monkeypatch.setattr(capacity, "LASTS_SECONDS", 600.0)
    claimed: list[int] = []
    ran: list[int] = []
    app.on(Claimed, lambda event: claimed.extend(row.msg_id for row in event.messages))
    app.add_handler("t", lambda msg: ran.append(msg.msg_id))
    ids = send(app, *["hot"] * 450)
    assert app.drain(threads=2, linger=0).done == 450
    assert ran == ids
    # Itself and 20, then 80 and 320 behind it.
    assert [ids.index(one) for one in claimed] == [0, 21, 102, 423]


def test_a_busy_object_costs_few_statements_beside_its_settles(app):
    """A look every 10 ms for nothing would be hundreds a second."""
    app.add_handler("t", lambda msg: None)
    send(app, *["hot"] * 400)
    sent: list[str] = []

    @sa.event.listens_for(app.engine, "before_cursor_execute")
    def note(*_: object) -> None:
        if threading.current_thread().name == "msgworker-fetcher":
            sent.append("")

    report = app.drain(threads=2, linger=0)
    assert report.done == 400
    # Claims and the end of the drain, and some looks each second.
    assert len(sent) < 100 + 40 * report.seconds


def test_lanes_with_long_runs_leave_less_to_others(app_with):
    """Two lanes of four may hold 40 messages ahead together: the first has 10 of them."""
    app = app_with(run_limit=10, lanes_limit=4)
    app.add_handler("t", lambda msg: None)
    one = Instance(setup_of(app))
    register(one)
    one.lanes.took(0.0)
    try:
        send(app, *["a"] * 50)
        one.fetcher.run_once()
        (lane,) = one.shared.in_flight.lanes
        assert len(lane.rows) == 1 + 10
        lane.rows *= 4  # as if it had a long run
        send(app, *["b"] * 50)
        one.fetcher.run_once()
        assert sorted(len(lane.rows) for lane in one.shared.in_flight.lanes) == [1 + 1, 44]
    finally:
        one.settler.close()
        for role in (one.fetcher, one.heartbeat, one.housekeeper):
            role.link.close()


def test_a_retry_in_the_middle_of_a_long_run_keeps_the_order(app_with):
    app = app_with(run_limit=1000)
    ran: list[int] = []

    @app.handler("t", wait=wait_none())
    def handle(msg: Message[Any]) -> None:
        ran.append(msg.msg_id)
        if msg.msg_id in ids[40:42] and ran.count(msg.msg_id) == 1:
            raise ValueError("once")

    ids = send(app, *["hot"] * 100)
    assert app.drain(threads=2, linger=0).done == 100
    assert ran == [*ids[:41], *ids[40:42], *ids[41:]]


def test_a_lower_id_that_appears_waits_for_the_end_of_the_run_alone(app_with):
    app = app_with(run_limit=5, lanes_limit=1)
    ran: list[int] = []
    c = app.tables.cols()

    @app.handler("t")
    def handle(msg: Message[Any]) -> None:
        ran.append(msg.msg_id)
        if msg.msg_id == ids[2]:  # as one that another transaction commits late
            with app.engine.begin() as conn:
                conn.execute(
                    sa.update(app.tables.message).where(c.msg_id == ids[0]).values(status=0)
                )

    ids = send(app, *["hot"] * 12)
    app.drain(threads=2, linger=0)
    assert ran == [*ids[:6], ids[0], *ids[6:]]


def test_a_stop_in_the_middle_of_a_long_run_leaves_the_rest_new(app_with, table):
    app = app_with(run_limit=1000)
    ran: list[int] = []
    reached = threading.Event()

    @app.handler("t")
    def handle(msg: Message[Any]) -> None:
        ran.append(msg.msg_id)
        if len(ran) == 30:
            reached.set()
            stopping.wait(60)

    stopping = threading.Event()
    send(app, *["hot"] * 100)
    with launched(app.worker(threads=2)) as worker:
        assert reached.wait(60)
        worker.instance.shared.stop.requested.set()  # as the stop does, first of all
        stopping.set()
    done = len(ran)  # a claim that was under way may have found the next one free
    assert 30 <= done <= 31
    assert table.statuses == [2] * done + [0] * (100 - done)
