"""A PgBouncer is killed, restarted and told to end sessions, beside all else of the torture."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from proof import pooled
from proof.crash import torture
from tests.servers import CannotHave

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

SECONDS = 60.0
PROCESSES = 6


@pytest.mark.parametrize("name", pooled.NAMES)
def test_a_torture_through_a_pooler_breaks_no_rule(name: str, tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    try:
        with torture.running(name, tmp_path, PROCESSES, seed) as run:
            verdict = run.run(SECONDS)
    except CannotHave as reason:
        pytest.skip(str(reason))
    said = torture.report(run, verdict)
    print(said)
    assert not verdict.violations, said
    assert not torture.left(verdict)
    assert len(verdict.rows) > 1000
    assert all(run.score.pooled[kind] for kind in pooled.HARMS), said
    assert min(run.score.kills, run.score.pauses, run.score.cuts) > 0
