"""Nodes of a cluster are killed, cut off and paused, beside all else that the torture does."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from proof.crash import torture
from tests.servers import CannotHave, Cluster

pytestmark = [pytest.mark.long, pytest.mark.timeout(600), pytest.mark.xdist_group("galera")]

SECONDS = 60.0
PROCESSES = 6
HARM_SECONDS = 8.0


@pytest.mark.parametrize("name", torture.CLUSTERS)
def test_a_torture_of_the_nodes_breaks_no_rule(name: str, tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    try:
        with torture.running(name, tmp_path, PROCESSES, seed) as run:
            run.crash_seconds = HARM_SECONDS
            verdict = run.run(SECONDS)
            cluster = run.server
            assert isinstance(cluster, Cluster)
            assert all(cluster.is_back(node) for node in cluster.nodes)
    except CannotHave as reason:
        pytest.skip(f"{name} is not there: {reason}")
    said = torture.report(run, verdict)
    print(said)
    assert not verdict.violations + run.broken, said
    assert not [row for row in verdict.rows.values() if row.status in (0, 1)]
    assert len(verdict.rows) > 1000
    score = run.score
    assert all(score.nodes[kind] for kind in cluster.harms), said
    assert score.rejoined == sum(score.nodes.values())
    assert min(score.kills, score.pauses, score.cuts) > 0
