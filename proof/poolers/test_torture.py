"""A PgBouncer is killed, restarted and told to end sessions, beside all else of the torture."""

from __future__ import annotations

from pathlib import Path

import pytest

from proof import pooled
from proof.crash.conftest import tortured

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

SECONDS = 60.0
PROCESSES = 6


@pytest.mark.parametrize("name", pooled.NAMES)
def test_a_torture_through_a_pooler_breaks_no_rule(name: str, tmp_path: Path) -> None:
    with tortured(name, tmp_path, PROCESSES, SECONDS) as (run, verdict):
        assert len(verdict.rows) > 1000
        assert all(run.score.pooled[kind] for kind in pooled.HARMS)
        assert min(run.score.kills, run.score.pauses, run.score.cuts) > 0
