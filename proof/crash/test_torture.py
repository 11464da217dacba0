"""A few seconds of what `make torture` does for a minute: every fault at once, then the verdict."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from proof.crash import torture
from proof.crash.feature_rules import LIMITED, ON_DONE, SENT_BY
from tests.plugin import NAMES
from tests.servers import CannotHave
from tests.support.cutting import Cutter

SECONDS = 7.0
PROCESSES = 4
KILL_SECONDS = 0.8
CRASH_SECONDS = 2.0  # one crash at least
LONG = [pytest.param(name, marks=pytest.mark.long) for name in ("oracle-mariadb", "partitions")]


@pytest.mark.quick("postgresql")
@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", [*NAMES, *LONG])
def test_torture_breaks_no_rule(name: str, tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    try:
        with torture.running(name, tmp_path, PROCESSES, seed) as run:
            run.kill_seconds, run.crash_seconds = KILL_SECONDS, CRASH_SECONDS
            verdict = run.run(SECONDS)
    except CannotHave as reason:
        pytest.skip(str(reason))
    assert not verdict.violations + run.broken, torture.report(run, verdict)
    assert not [row for row in verdict.rows.values() if row.status in (0, 1)]
    assert len(verdict.rows) > 100
    assert torture.behind(run) > 0
    features = run.features
    assert all(features.count(topic) for topic in (SENT_BY, ON_DONE, LIMITED))
    assert features.sends or name == "partitions"
    assert features.asked
    assert run.score.kills + run.score.pauses + run.score.orderly > 0
    assert run.score.crashes > 0 or name == "sqlite"


class Life:
    """A consumer, as far as faults look at it."""

    running, told_to_stop, is_ready = True, False, False

    def kill(self) -> None:
        self.running = False


def test_a_torture_spares_the_starts_and_the_last_one_that_is_ready() -> None:
    engine = SimpleNamespace(dialect=SimpleNamespace(name="sqlite"))
    trial: Any = SimpleNamespace(app=SimpleNamespace(engine=engine))
    cutter = Cutter("sqlite://", 1.0, random.Random(1))
    run = torture.Torture(trial, 3, random.Random(1), cutter)
    lives: Any = [Life() for _ in range(3)]
    run.lives = lives
    assert not run._kill()  # it is tried again
    assert not cutter.when()
    lives[0].is_ready = lives[1].is_ready = True
    assert cutter.when()
    assert run._kill()
    assert not run._kill()
    assert [life.running for life in lives].count(True) == 2
    assert lives[2].running
    assert run.score.kills == 1
