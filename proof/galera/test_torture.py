"""Nodes of a cluster are killed, cut off and paused, beside all else that the torture does."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from proof.crash import torture
from proof.crash.scenarios import SCENARIOS
from tests.servers import CannotHave, Cluster

pytestmark = [pytest.mark.long, pytest.mark.timeout(600), pytest.mark.xdist_group("galera")]

SECONDS = 60.0
PROCESSES = 6
OFTEN = replace(SCENARIOS["everything"], crash=8.0)


@pytest.mark.parametrize("name", torture.CLUSTERS)
def test_a_torture_of_the_nodes_breaks_no_rule(name: str, tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    try:
        with torture.running(name, tmp_path, PROCESSES, seed, scenario=OFTEN) as run:
            verdict = run.run(SECONDS)
            cluster = run.server
            assert isinstance(cluster, Cluster)
            assert all(cluster.is_back(node) for node in cluster.nodes)
    except CannotHave as reason:
        pytest.skip(f"{name} is not there: {reason}")
    said = torture.report(run, verdict)
    print(said)
    assert not verdict.violations, said
    assert not torture.left(verdict)
    assert len(verdict.rows) > 1000
    score = run.score
    assert all(score.nodes[kind] for kind in cluster.harms), said
    assert score.rejoined == sum(score.nodes.values())
    assert min(score.kills, score.pauses, score.cuts) > 0
