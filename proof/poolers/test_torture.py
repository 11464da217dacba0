"""A PgBouncer is killed, restarted and told to end sessions, beside all else of the torture."""

from __future__ import annotations

from pathlib import Path

import pytest

from proof import pooled
from proof.crash.conftest import tortured
from proof.crash.torture import Torture

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

SECONDS = 60.0
PROCESSES = 6


def enough(run: Torture) -> bool:
    """Whether each kind of fault was done."""
    others = (run.score.kills, run.score.pauses, run.cutter.count)
    return min(*others, *(run.score.pooled[kind] for kind in pooled.HARMS)) > 0


@pytest.mark.parametrize("name", pooled.NAMES)
def test_a_torture_through_a_pooler_breaks_no_rule(name: str, tmp_path: Path) -> None:
    with tortured(name, tmp_path, PROCESSES, SECONDS, enough=enough) as (run, verdict):
        assert len(verdict.rows) > 1000
        assert enough(run)
