"""Nodes of a cluster are killed, cut off and paused, beside all else that the torture does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from proof.crash import torture
from proof.crash.conftest import tortured
from proof.crash.scenarios import SCENARIOS
from tests.servers import Cluster

pytestmark = [pytest.mark.long, pytest.mark.timeout(600), pytest.mark.xdist_group("galera")]

SECONDS = 60.0
PROCESSES = 6
OFTEN = replace(SCENARIOS["everything"], crash=8.0)


@pytest.mark.parametrize("name", torture.CLUSTERS)
def test_a_torture_of_the_nodes_breaks_no_rule(name: str, tmp_path: Path) -> None:
    with tortured(name, tmp_path, PROCESSES, SECONDS, scenario=OFTEN) as (run, verdict):
        cluster, score = run.server, run.score
        assert isinstance(cluster, Cluster)
        assert all(cluster.is_back(node) for node in cluster.nodes)
        assert len(verdict.rows) > 1000
        assert all(score.nodes[kind] for kind in cluster.harms)
        assert score.rejoined == sum(score.nodes.values())
        assert min(score.kills, score.pauses, score.cuts) > 0
