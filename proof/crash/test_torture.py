"""A few seconds of what `make torture` does for a minute: every fault at once, or one in mass."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from proof.crash import torture
from proof.crash.conftest import tortured
from proof.crash.consumer import LIMITED, METERED, SCHEDULES, TICK
from proof.crash.fleet import assert_clean
from proof.crash.scenarios import SCENARIOS
from proof.history import Kind
from proof.judge import JOB_OVER, ON_DONE, SENT_BY
from tests.plugin import NAMES, Database

SECONDS = 5.0
PROCESSES = 3
ALL = replace(SCENARIOS["everything"], kill=0.8, crash=2.0)  # one crash at least
LONG = [pytest.param(name, marks=pytest.mark.long) for name in ("oracle-mariadb", "partitions")]


@pytest.mark.quick("postgresql")
@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", [*NAMES, *LONG])
def test_torture_breaks_no_rule(name: str, tmp_path: Path) -> None:
    sent = {LIMITED, METERED, JOB_OVER}
    options = {"least": 1, "topics": sent, "scenario": ALL}
    with tortured(name, tmp_path, PROCESSES, SECONDS, **options) as (run, verdict):
        assert len(verdict.rows) > 100
        assert torture.behind(run) > 0
        assert all(run.features.of(topic) for topic in (SENT_BY, ON_DONE, *sent))
        assert run.trial.keyed or name == "partitions"
        assert run.trial.cancels
        assert run.score.kills + run.score.orderly > 0
        assert run.score.crashes > 0 or name == "sqlite"


@pytest.mark.quick("sqlite-limits")
@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", ["batches", "limits", "ticks"])
def test_kills_alone_break_no_rule(name: str, database: Database, tmp_path: Path) -> None:
    options = {"scenario": replace(SCENARIOS[name], kill=0.7, lease=2.0), "url": database.url}
    with tortured(name, tmp_path, 2, 3.0, least=2, **options) as (run, verdict):
        assert run.score.kills > 1
        if name == "batches":
            assert torture.behind(run) > 10
        if name == "limits":
            assert len({e.msg_id for e in verdict.events if e.kind == Kind.STARTED}) > 10
        ticks = [verdict.rows[i].object_id for i in run.features.of(TICK)]
        assert name != "ticks" or all(ticks.count(one) >= 2 for one in SCHEDULES)


@pytest.mark.long
@pytest.mark.timeout(420)
def test_fleet_that_comes_and_goes_loses_nothing_and_keeps_order(
    database: Database, tmp_path: Path
) -> None:
    few = database.name == "sqlite"
    workers = {"all_topics": False, "workers": 2 if few else 4}
    options = {"scenario": replace(SCENARIOS["comings"], consumer=workers), "url": database.url}
    where = database.name, tmp_path, 3 if few else 4
    with tortured(*where, 20.0, least=2, **options) as (run, verdict):
        assert {consumer.wait() for consumer in run.trial.consumers} == {0}
        assert_clean(run.trial, verdict)
        assert run.score.orderly > 1
        assert len(verdict.rows) > 100
        logs = [one.err.read_text() for one in run.trial.consumers]
    lost = [text for text in logs if "no longer claimed by us" in text]
    assert not lost, f"instances that live lost what they held: {lost[0][:500]}"
