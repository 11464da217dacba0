"""Handlers that take too long, or outlive the lease, are told."""

from __future__ import annotations

import gc
import logging
import sys
from types import SimpleNamespace
from typing import Any, cast

import pytest

from msgworker.errors import HandlerStuck, MsgworkerError
from msgworker.instance.liveness import watchdog
from msgworker.instance.liveness.identity import Identity
from msgworker.instance.liveness.watchdog import Watchdog
from msgworker.instance.role import Away
from msgworker.instance.running.in_flight import Execution, InFlight
from msgworker.store.rows import Row
from tests.support.ticking import Ticking


class Watched:
    """A watch over handlers on a clock that is moved by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = Ticking()
        monkeypatch.setattr(watchdog, "clock", self.clock)
        monkeypatch.setattr(watchdog.time, "monotonic", self.clock)
        self.left: list[MsgworkerError] = []
        self.in_flight = InFlight()
        self.identity = Identity("a")
        self.setup = SimpleNamespace(
            settings=SimpleNamespace(heartbeat_seconds=10.0, lease_seconds=30.0),
            registry=SimpleNamespace(has_timeouts=False),
        )
        self.shared = SimpleNamespace(
            in_flight=self.in_flight,
            identity=self.identity,
            log=logging.getLogger("msgworker.instance"),
            away=Away(),
            stop=SimpleNamespace(stop_for=self.left.append, give_up_at=None, gave_up=lambda: False),
        )
        setup, shared = cast(Any, self.setup), cast(Any, self.shared)
        self.watch = Watchdog(setup, shared, roles=(), settling=())

    def runs(self, until: float | None, *, fatal: bool = False) -> Execution:
        """A handler that runs since 100.0."""
        row = Row(7, "o", "t", None, 0, 0, 0, None, None)
        running = Execution(row, "a", 100.0, until, fatal)
        self.in_flight.running[len(self.in_flight.running)] = running
        return running


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(monkeypatch)


@pytest.mark.parametrize(("until", "told"), [(None, 0), (200.0, 0), (149.0, 1)])
def test_a_handler_over_its_time_is_cancelled_and_told_of_once(
    watched: Watched, caplog: pytest.LogCaptureFixture, until: float | None, told: int
) -> None:
    running = watched.runs(until)
    watched.clock.now = 150.0
    for _ in range(3):
        watched.watch.overtime()
    assert running.cancelled is bool(told)
    assert [r.getMessage()[:46] for r in caplog.records] == (
        ["message 7: its handler has run for 50.0 s, lon"] * told
    )
    assert watched.left == []


def test_of_a_group_the_message_that_runs_is_named(watched, caplog) -> None:
    running = watched.runs(149.0, fatal=True)
    running.beside = [(running.row._replace(msg_id=9, object_id="p"), None)]
    running.called = 9
    watched.clock.now = 150.0
    watched.watch.overtime()
    (record,) = caplog.records
    assert record.getMessage().startswith("message 9: ")
    assert (record.msg_id, record.object_id) == (9, "p")
    assert str(watched.left[0]).startswith("message 9: ")


def test_one_that_must_end_in_time_makes_the_instance_leave_once(watched: Watched) -> None:
    running = watched.runs(149.0, fatal=True)
    watched.clock.now = 150.0
    for _ in range(3):
        watched.watch.overtime()
    assert running.stuck
    assert [type(error) for error in watched.left] == [HandlerStuck]


def test_handlers_hear_of_the_end_of_the_lease_not_of_trust(watched: Watched) -> None:
    running = watched.runs(None)
    watched.identity.registered(120.0, 100.0)
    watched.clock.now = 130.0  # trust ended ten seconds ago, the lease ends now
    watched.watch.lease_over()
    assert not running.cancelled
    watched.clock.now = 130.1
    watched.watch.lease_over()
    assert running.cancelled


@pytest.mark.parametrize(
    ("timeouts", "until", "give_up_at", "pause"),
    [
        (False, None, None, 5.0),
        (True, None, None, 0.2),
        (False, 152.0, None, 2.0),
        (False, 149.0, None, 0.1),
        (False, None, 153.0, 3.0),
    ],
)
def test_it_rests_until_the_next_deadline(
    watched: Watched, timeouts: bool, until: float | None, give_up_at: float | None, pause: float
) -> None:
    watched.runs(until)
    watched.clock.now = 150.0
    watched.setup.registry.has_timeouts = timeouts
    watched.shared.stop.give_up_at = give_up_at
    assert watched.watch.pause_seconds(0) == pytest.approx(pause)


@pytest.mark.parametrize("on", [True, False])
def test_threads_are_looked_at_without_a_collection_in_between(
    monkeypatch: pytest.MonkeyPatch, on: bool
) -> None:
    collects: list[bool] = []
    monkeypatch.setattr(sys, "_current_frames", lambda: collects.append(gc.isenabled()) or {})
    (gc.enable if on else gc.disable)()
    try:
        assert watchdog.place_of(1) == "no place: its thread has ended"
        assert (collects, gc.isenabled()) == ([False], on)
    finally:
        gc.enable()
