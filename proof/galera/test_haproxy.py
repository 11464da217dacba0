"""One writer behind HAProxy: the nodes of a cluster take turns, and nothing is lost."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from proof.crash.fleet import Trial, assert_clean
from proof.crash.probe import Probe
from proof.crash.scenarios import load
from proof.galera.conftest import fresh
from proof.galera.haproxy import in_front_of
from tests.servers import CannotHave, Galera

pytestmark = [pytest.mark.long, pytest.mark.timeout(300), pytest.mark.xdist_group("galera")]


def test_a_writer_that_haproxy_replaces_loses_nothing(cluster: Galera, tmp_path: Path) -> None:
    label = fresh(cluster)[0].rpartition("/")[2]
    chance = random.Random(1)
    try:
        with in_front_of(cluster) as proxy:
            trial = Trial(f"{proxy.url}{label}", tmp_path, lease=4.0)
            trial.app.engine.dispose()  # it waits for no answer of a paused node
            try:
                with Probe(trial.url) as probe:
                    _harm_the_writer(trial, cluster, chance)
                    outages = probe.past_outages()
                verdict = trial.judge(outages=outages)
            finally:
                trial.close()
    except CannotHave as reason:
        pytest.skip(f"haproxy is not there: {reason}")
    print(f"{len(verdict.rows)} messages, away for {[round(b - a, 1) for a, b in outages]} s")
    assert_clean(trial, verdict, quiet=False)
    assert (
        len(outages) >= len(cluster.harms) - 1
    )  # a node that is cut off for a moment may be waited for
    assert all(back - away < 12 for away, back in outages)


def _harm_the_writer(trial: Trial, cluster: Galera, chance: random.Random) -> None:
    for _ in range(4):
        trial.spawn(threads=2)
    for consumer in trial.consumers:
        consumer.ready()
    for kind in cluster.harms:
        trial.send_many(load(400, 60, chance, work=0.05))
        trial.pauses(1.0)
        cluster.harm(cluster.nodes[0], kind, 8.0)
        trial.finish(120)
    assert set(trial.stop_all()) <= {0}
