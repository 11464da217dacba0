"""The measure of the work: instances that come and go at random over thousands of messages."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from proof.crash.fleet import Trial, assert_clean
from proof.crash.scenarios import load

SHAPES = {"sqlite": (3, 2, 2000), "other": (4, 4, 5000)}  # processes, instances in each, messages
OBJECTS = 300
LATE_COMMITS = 20
STOP_EVERY_SECONDS = 2.5
DEADLINE_SECONDS = 300.0


@pytest.fixture
def trial(database: Any, tmp_path: Path) -> Iterator[Trial]:
    made = Trial(database.url, tmp_path)
    yield made
    made.close()


def produce(
    trial: Trial, count: int, chance: random.Random, stopped: threading.Event, *, late: bool
) -> None:
    """Send the second half of the messages while the fleet works, with some that commit late.

    The last of them wait until an instance was told to stop: however quick the machine, the
    fleet then works with one less.
    """
    messages = load(count, OBJECTS, chance)
    pause = threading.Event()
    holders = []
    if late:  # not where writers wait for each other: then nothing can commit late
        for i in range(LATE_COMMITS):
            args = (f"o{chance.randrange(OBJECTS)}", ("plain", "exact")[i % 2], 0.3)
            holders.append(threading.Thread(target=trial.send_late, args=args))
    while messages:
        part, messages = messages[:50], messages[50:]
        if not messages:
            stopped.wait(DEADLINE_SECONDS)
        trial.send_many(part)
        if holders:
            holders[0].start()
            holders.append(holders.pop(0))
            if all(holder.ident for holder in holders):
                for holder in holders:
                    holder.join()
                holders = []
        pause.wait(0.05)
    for holder in holders:
        if holder.ident is None:
            holder.start()
        holder.join()


@pytest.mark.long
@pytest.mark.timeout(420)
@pytest.mark.parametrize("share", [0.15, pytest.param(1.0, marks=pytest.mark.long)])
def test_fleet_that_comes_and_goes_loses_nothing_and_keeps_order(
    trial: Trial, database: Any, share: float
) -> None:
    processes, workers, count = SHAPES.get(database.name, SHAPES["other"])
    count = int(count * share)
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    for part in range(0, count // 2, 100):
        trial.send_many(load(min(100, count // 2 - part), OBJECTS, chance))
    stopped = threading.Event()
    producer = threading.Thread(
        target=produce,
        args=(trial, count - count // 2, chance, stopped),
        kwargs={"late": database.name != "sqlite"},
        daemon=True,
    )
    lives = [trial.spawn(workers=workers, seed=f"{seed}-{i}") for i in range(processes)]
    producer.start()
    deadline = time.monotonic() + DEADLINE_SECONDS
    stop_at = time.monotonic() + STOP_EVERY_SECONDS
    pause = threading.Event()
    while producer.is_alive() or trial.unfinished():
        assert time.monotonic() < deadline, (
            f"{trial.unfinished()} messages left after {len(trial.consumers) - processes} stops"
        )
        pause.wait(0.1)
        if not all(life.is_ready for life in lives):
            stop_at = time.monotonic() + STOP_EVERY_SECONDS  # they work together for so long
        elif time.monotonic() > stop_at:
            life = chance.choice(lives)
            lives.remove(life)
            life.send(signal.SIGTERM)
            stopped.set()
            lives.append(trial.spawn(workers=workers, seed=f"{seed}-{len(trial.consumers)}"))
    producer.join()
    assert stopped.is_set(), "no instance was stopped: this was no fleet that comes and goes"
    trial.stop_all()
    assert {consumer.wait() for consumer in trial.consumers} == {0}
    verdict = trial.judge(orderly=True)
    assert_clean(trial, verdict)
    assert len(verdict.rows) >= count
    lost = [c for c in trial.consumers if "no longer claimed by us" in c.err.read_text()]
    assert not lost, f"instances that live lost what they held: {lost[0].err.read_text()[:500]}"
