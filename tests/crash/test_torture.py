"""A few seconds of what `make torture` does for a minute: every fault at once, then the verdict."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.conftest import NAMES
from tests.crash import torture
from tests.servers import CannotHave

SECONDS = 7.0
PROCESSES = 4
KILL_SECONDS = 0.8
CRASH_SECONDS = 2.0  # one crash at least


@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", NAMES)
def test_torture_breaks_no_rule(name: str, tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    try:
        with torture.running(name, tmp_path, PROCESSES, seed) as run:
            run.kill_seconds, run.crash_seconds = KILL_SECONDS, CRASH_SECONDS
            verdict = run.run(SECONDS)
    except CannotHave as reason:
        pytest.skip(str(reason))
    assert not verdict.violations, torture.report(run, verdict)
    assert not [row for row in verdict.rows.values() if row.status in (0, 1)]
    assert len(verdict.rows) > 100
    assert run.score.kills + run.score.pauses + run.score.orderly > 0
    assert run.score.crashes > 0 or name == "sqlite"
