"""Signals, heard in this process: while an instance is being started, and one after the other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from msgworker import App
from msgworker.instance import stop as stopping
from msgworker.instance.stop import Signals, StopRequest
from tests.support.apps import created


@pytest.mark.parametrize("mode", ["run", "drain"])
def test_signal_during_start_stops_in_order(tmp_path: Path, mode: str) -> None:
    app = created(App(f"sqlite:///{tmp_path / 'q.db'}"))
    app.add_handler("t", lambda msg: None)
    worker = app.worker(threads=1)
    make = worker.make_setup
    before = signal.getsignal(signal.SIGTERM)

    def make_and_be_told_to_stop() -> object:
        os.kill(os.getpid(), signal.SIGTERM)
        return make()

    worker.make_setup = make_and_be_told_to_stop  # type: ignore[assignment]
    signal.signal(signal.SIGTERM, lambda *_: pytest.fail("the signal met no handler of the worker"))
    try:
        if mode == "run":
            worker.run(signals=True, time_limit=30)
        else:
            worker.drain(signals=True, linger=30, time_limit=30)
        assert worker.instance_id is None
        with app.engine.connect() as conn:
            count = "SELECT count(*) FROM msgworker_lease WHERE kind = 'instance'"
            assert conn.exec_driver_sql(count).scalar() == 0
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """What the rule of signals takes for now; the handlers of signals are put back at the end."""
    now = [100.0]
    monkeypatch.setattr(stopping.time, "monotonic", lambda: now[0])
    before = {number: signal.getsignal(number) for number in stopping.NUMBERS}
    yield now
    for number, handler in before.items():
        signal.signal(number, handler)


def test_only_who_comes_back_after_two_seconds_insists(clock: list[float]) -> None:
    asked, last = StopRequest(), []
    asked.begun = True
    found = []
    with Signals(asked, last.append):
        for later, number in [
            (0.0, signal.SIGTERM),
            (1.0, signal.SIGINT),
            (0.9, signal.SIGTERM),
            (0.2, signal.SIGINT),  # 2.1 s after the first
            (1.9, signal.SIGTERM),
            (0.2, signal.SIGTERM),  # 2.1 s after that
        ]:
            clock[0] += later
            signal.raise_signal(number)
            found.append((asked.in_order, asked.at_once, list(last)))
    assert found == [
        (True, None, []),
        (True, None, []),
        (True, None, []),
        (True, signal.SIGINT, []),
        (True, signal.SIGINT, []),
        (True, signal.SIGINT, [signal.SIGTERM]),
    ]


def test_who_insists_before_there_is_work_ends_the_process(clock: list[float]) -> None:
    asked, last = StopRequest(), []
    with Signals(asked, last.append):
        signal.raise_signal(signal.SIGTERM)
        clock[0] += 2.1
        signal.raise_signal(signal.SIGTERM)
    assert (asked.at_once, last) == (None, [signal.SIGTERM])


def test_a_signal_of_the_same_stop_that_comes_after_it_does_nothing(clock: list[float]) -> None:
    heard = []
    mine = lambda number, frame: heard.append(number)  # noqa: E731
    signal.signal(signal.SIGTERM, mine)
    with Signals(StopRequest()):
        signal.raise_signal(signal.SIGTERM)
    clock[0] += 1.9
    signal.raise_signal(signal.SIGTERM)
    assert heard == []
    clock[0] += 0.2
    signal.raise_signal(signal.SIGTERM)
    assert heard == [signal.SIGTERM]
    assert signal.getsignal(signal.SIGTERM) is mine


def test_signals_are_what_they_were_where_none_came() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with Signals(StopRequest()):
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before


def test_process_1_which_has_no_default_action_ends_with_the_code_of_the_signal() -> None:
    program = (
        "from msgworker.instance import stop\n"
        "stop.signal.raise_signal = lambda number: None\n"
        "stop.end_by(15)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], check=False, timeout=60)
    assert done.returncode == 143


def test_a_stop_runs_where_it_is_if_no_thread_can_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_thread(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", no_thread)
    done: list[int] = []
    stopping.beside(lambda: done.append(threading.get_ident())).result(60.0)
    assert done == [threading.get_ident()]


@pytest.mark.parametrize(
    ("heard", "words"),
    [
        ([], (0, float("-inf"))),
        ([5.0], (1, 5.0)),
        ([5.0, 5.0, 6.9], (1, 5.0)),
        ([5.0, 6.9, 7.0], (2, 7.0)),  # counted from the first one, not from the one before
        ([5.0, 7.0, 8.9, 9.0], (3, 9.0)),
        ([5.1, 5.0], (1, 5.1)),  # noted by one that came in the middle of the other
    ],
)
def test_signals_within_two_seconds_are_one_word(
    heard: list[float], words: tuple[int, float]
) -> None:
    assert stopping.requests_of(heard) == words


def test_a_signal_in_the_middle_of_another_is_the_same_stop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = StopRequest()
    asked.begun = True
    now = stopping.time.monotonic
    with Signals(asked, lambda number: None) as signals:

        def interrupted() -> float:
            monkeypatch.setattr(stopping.time, "monotonic", now)
            signals.received(signal.SIGTERM, None)
            return now()

        monkeypatch.setattr(stopping.time, "monotonic", interrupted)
        signals.received(signal.SIGTERM, None)
    assert asked.in_order
    assert asked.at_once is None
