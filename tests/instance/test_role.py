"""The loop of a role: its pauses, and who cuts them short."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import pytest
import sqlalchemy as sa

from msgworker.app import setup_of
from msgworker.errors import MsgworkerError
from msgworker.events import Event, Events, OutageBegan, OutageEnded
from msgworker.instance import role as role_module
from msgworker.instance.instance import Instance
from msgworker.instance.role import Aside, Away, Outage, Role
from tests.support.rounds import register

LOG = logging.LoggerAdapter(logging.getLogger("msgworker.instance"), {})


class Idle(Role):
    """Does nothing, and would rest for ten minutes."""

    def __init__(
        self, wake: threading.Event, stop_for: Callable[[MsgworkerError], None] | None = None
    ) -> None:
        super().__init__("idle", LOG, wake=wake, stop_for=stop_for)
        self.rounds = threading.Semaphore(0)
        self.woken_after: list[int] = []
        self.round = 0

    def run_once(self) -> int:
        self.round += 1
        self.rounds.release()
        return 0

    def pause_seconds(self, did: int) -> float:
        return 600.0

    def woken(self) -> None:
        self.woken_after.append(self.round)


def test_whoever_has_the_event_wakes_a_role_and_it_knows_that_it_was_woken() -> None:
    event = threading.Event()
    role = Idle(event)
    role.start()
    try:
        for _ in range(3):
            assert role.rounds.acquire(timeout=60)
            event.set()
        assert role.rounds.acquire(timeout=60)
    finally:
        role.ask_to_end()
        role.join(60)
    assert not role.alive
    assert role.over.is_set()
    assert role.woken_after[:3] == [1, 2, 3]


def test_an_outage_of_two_parts_of_one_name_begins_and_ends_once(caplog) -> None:
    caplog.set_level(logging.DEBUG)
    stream, told = Events(), list[Event]()
    for kind in (OutageBegan, OutageEnded):
        stream.on(kind, told.append)
    away = Away(stream)
    parts = [Outage(LOG, "settle", away), Outage(LOG, "settle", away)]
    for part in parts:
        part.failed(ValueError("gone"))
    parts[0].over()
    assert away.seconds > 0
    assert [type(event) for event in told] == [OutageBegan]
    parts[1].over()
    assert away.seconds == 0
    assert [type(event) for event in told] == [OutageBegan, OutageEnded]
    lines = [r.message for r in caplog.records if r.levelno >= logging.WARNING]
    assert lines == [
        "settle: ValueError: gone; trying again",
        "settle: works again after 1 failure",
    ]


class AfterTheWait(threading.Event):
    """Set by another thread in the moment after each wait has ended without it."""

    def wait(self, timeout: float | None = None) -> bool:
        self.set()
        return False


def test_a_wake_between_the_wait_and_the_next_round_is_not_lost() -> None:
    role = Idle(AfterTheWait())
    role.start()
    try:
        for _ in range(3):
            assert role.rounds.acquire(timeout=60)
    finally:
        role.ask_to_end()
        role.join(60)
    assert role.woken_after[:2] == [1, 2]


def test_a_round_that_asks_nothing_does_not_end_an_outage(app, monkeypatch, caplog) -> None:
    """The fetcher has lost its connection; then it has no room, and asks nothing."""
    caplog.set_level(logging.DEBUG)
    app.add_handler("t", lambda msg: None)
    one = Instance(setup_of(app))
    fetcher = one.fetcher
    try:
        register(one)
        one.lanes.took(0.0)
        with monkeypatch.context() as patched:
            patched.setattr(one.fetcher.finder, "look", _gone)
            for _ in range(3):
                fetcher.round_once()
        with monkeypatch.context() as patched:
            patched.setattr(one.fetcher, "lanes_to_claim", lambda held: 0)
            fetcher.round_once()
        assert one.shared.away.seconds > 0
        assert "works again" not in caplog.text
        fetcher.round_once()
        assert one.shared.away.seconds == 0
        assert caplog.text.count("works again") == 1
    finally:
        one.settler.close()
        one.caller.close()
        for role in (fetcher, one.heartbeat, one.housekeeper):
            role.link.close()


@pytest.mark.parametrize("error", [MemoryError, SystemError, ValueError])
def test_an_instance_waits_for_memory_and_leaves_for_what_waiting_cannot_mend(
    app, monkeypatch, error: type[Exception]
) -> None:
    def fails(*_: object) -> None:
        raise error("of ours")

    app.add_handler("t", lambda msg: None)
    one = Instance(setup_of(app))
    monkeypatch.setattr(one.fetcher, "run_once", fails)
    for _ in range(20):
        one.fetcher.round_once()
    if error is not ValueError:
        one.raise_what_people_must_mend()
    else:
        with pytest.raises(error, match="of ours"):
            one.raise_what_people_must_mend()
    one.settler.close()
    one.caller.close()


def _gone(*_: object) -> None:
    raise sa.exc.OperationalError("SELECT", {}, OSError("gone"), connection_invalidated=True)


@pytest.mark.parametrize("needed", [True, False])
def test_a_role_outlives_one_error_of_its_loop_and_is_missed_after_two(
    monkeypatch: pytest.MonkeyPatch, needed: bool
) -> None:
    monkeypatch.setattr(role_module, "AGAIN_SECONDS", 0.05 if not needed else 60.0)
    left: list[MsgworkerError] = []
    event = threading.Event()

    class Broken(Idle):
        def woken(self) -> None:
            super().woken()
            raise SystemExit("of ours")

    role = Broken(event, left.append if needed else None)
    role.start()
    for _ in range(2):
        assert role.rounds.acquire(timeout=60)
        event.set()
    if needed:
        assert role.over.wait(60)
        assert "ended by a SystemExit twice" in str(left[0])
        return
    assert role.rounds.acquire(timeout=60)  # it does without it for a while, and begins again
    role.ask_to_end()
    role.join(60)
    assert not role.alive


def test_a_loop_without_memory_begins_again_however_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(role_module, "HUNGRY_SECONDS", 0.0)
    ends = [MemoryError(), MemoryError(), SystemError(), None]

    def loop() -> None:
        if (error := ends.pop(0)) is not None:
            raise error

    role_module.outlive("x", LOG, loop, lambda error: False)
    assert not ends


def test_the_outage_of_a_part_that_can_be_done_without_is_none_of_the_database(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stream, told = Events(), list[OutageBegan]()
    stream.on(OutageBegan, told.append)
    main = Away(stream)
    aside = Outage(LOG, "x", Aside(main))
    for _ in range(Aside.patience):
        aside.failed(RuntimeError("LISTEN is refused"))
    assert (main.seconds, told) == (0.0, [])
    assert [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING] == [
        "x: RuntimeError: LISTEN is refused; trying again"
    ]
    outage = Outage(LOG, "y", main)
    outage.failed(RuntimeError("gone"))
    other = Outage(LOG, "z", Aside(main))
    for _ in range(Aside.patience):
        other.failed(RuntimeError("gone"))
    other.over()
    assert "works again" not in caplog.text  # an outage of all is told by those that work
    aside.over()
    outage.over()
    assert caplog.text.count("works again") == 2


def test_a_part_that_stays_away_longer_than_the_others_is_told_then(
    caplog: pytest.LogCaptureFixture,
) -> None:
    main = Away()
    beat, aside = Outage(LOG, "heartbeat", main), Outage(LOG, "housekeeper", Aside(main))
    for _ in range(Aside.patience):
        beat.failed(RuntimeError("gone"))
        aside.failed(RuntimeError("gone"))
    assert "housekeeper" not in caplog.text
    beat.over()
    for _ in range(3):
        aside.failed(RuntimeError("permission denied"))
    assert caplog.text.count("housekeeper: RuntimeError: permission denied") == 1
    aside.over()
    assert "housekeeper: works again" in caplog.text
