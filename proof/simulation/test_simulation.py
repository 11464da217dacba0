"""Thousands of interleavings find nothing; every planted bug is found; a seed replays exactly."""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Any

import pytest

from proof.judge import Rule
from proof.simulation.__main__ import main
from proof.simulation.configs import CONFIGS
from proof.simulation.plants import PLANTS, Plant
from proof.simulation.process import Process
from proof.simulation.schedule import Schedule, search_seeds
from proof.simulation.strands import PRODUCT, Gone, replaced_in
from proof.simulation.world import Act, World

SCHEDULES = 60
LONG_SCHEDULES = 6_000
SEED = int(os.environ.get("MSGWORKER_TEST_SEED", "0"))
"""The long test of each seed has schedules of its own."""
EACH = -(-SCHEDULES // len(CONFIGS))
LONG_EACH = -(-LONG_SCHEDULES // len(CONFIGS))


@pytest.mark.parametrize("name", CONFIGS)
def test_no_schedule_breaks_a_rule(name: str) -> None:
    report = search_seeds(CONFIGS[name], range(EACH))
    assert report is None, str(report)


@pytest.mark.long
@pytest.mark.parametrize("name", CONFIGS)
def test_no_schedule_of_many_breaks_a_rule(name: str) -> None:
    report = search_seeds(
        CONFIGS[name], range(EACH + SEED * LONG_EACH, EACH + (SEED + 1) * LONG_EACH)
    )
    assert report is None, str(report)


@pytest.mark.quick("guard-index|crash-counts|no-lease")
@pytest.mark.parametrize(
    "plant",
    [
        pytest.param(p, id=name.replace(" ", "-"), marks=[pytest.mark.long] if p.rare else [])
        for name, p in PLANTS.items()
    ],
)
def test_planted_bug_is_found(plant: Plant) -> None:
    report = plant.hunt()
    assert report is not None, f"{plant.name!r} was not found in {plant.seeds} schedules"


def test_a_move_that_nobody_may_make_is_told() -> None:
    world = World(CONFIGS["plain"])
    steps = (
        (Act.PRODUCE, "INSERT INTO msgworker_message (msg_id) VALUES (1)"),
        (Act.CLAIM, "UPDATE msgworker_message SET status = 1, claimed_by = 'a'"),
        (Act.CLAIM, "UPDATE msgworker_message SET status = 2, claimed_by = NULL"),
    )
    for act, text in steps:
        world.commit(act, "a", lambda _, text=text: world.raw.execute(text))
    (told,) = world.violations
    assert (told.rule, told.text) == (Rule.I7, "claim moved message 1 from processing to done")
    world.close()


@pytest.mark.parametrize(("error", "told"), [(ValueError("no"), True), (Gone(), False)])
def test_a_subscriber_that_fails_is_told_unless_its_process_is_gone(
    error: BaseException,
    told: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    calls = []

    def fail(self: Process, event: Any) -> None:
        calls.append(event)
        raise error

    monkeypatch.setattr(Process, "_stopped", fail)
    report = Schedule(World(CONFIGS["stops"]), CONFIGS["stops"], 1).run()
    assert len(report.errors) == told * len(calls)
    assert calls
    assert not caplog.records


@pytest.mark.quick("mixed|limits")
@pytest.mark.parametrize("name", ["mixed", "answers", "ticks", "keys", "limits"])
def test_seed_replays_exactly(name: str) -> None:
    world = World(CONFIGS[name])
    first = Schedule(world, CONFIGS[name], 11).run(tell=True)
    Schedule(world, CONFIGS[name], 12).run()
    again = Schedule(world, CONFIGS[name], 11).run(tell=True)
    other = Schedule(World(CONFIGS[name]), CONFIGS[name], 11).run(tell=True)
    assert first.trace == again.trace == other.trace
    assert len(first.trace) > 50


def test_each_planted_bug_changes_what_is_there() -> None:
    """What it replaces has the name that it says, also where the hunt for it is a long test."""
    for plant in PLANTS.values():
        with plant.planted():
            pass


def test_replay_by_command_prints_the_schedule(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["0", "--plant", "crash counts no try"]) == 1
    told = capsys.readouterr().out
    assert f"{Rule.I4}: message" in told
    assert "claimed message" in told
    assert main(["5", "--config", "plain"]) == 0
    assert "nothing found" in capsys.readouterr().out


def test_a_schedule_is_all_the_time_and_threads_that_an_instance_knows() -> None:
    schedule = Schedule(World(CONFIGS["plain"]), CONFIGS["plain"], 1)
    stage, known = schedule.stage, set()
    real = (time.monotonic, time.sleep, threading.Lock, threading.Event, threading.Thread)
    with replaced_in(stage, []):
        for name, module in list(sys.modules.items()):
            if name.startswith(PRODUCT):
                named = vars(module)
                assert not [n for n, value in named.items() if value in real], name
                known |= {n for n in ("time", "threading", "random") if n in named}
                assert named.get("time", stage.time) is stage.time
                assert named.get("threading", stage.threading) is stage.threading
                assert named.get("random", stage.random) is stage.random
    assert known == {"time", "threading", "random"}
