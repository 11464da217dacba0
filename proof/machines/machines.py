"""State machines of leases on the clock of the test, run for as long as is asked."""

from __future__ import annotations

import itertools
import logging
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from msgworker.coordination import DatabaseLocks
from msgworker.coordination import database as database_module
from msgworker.coordination import lease as lease_module
from msgworker.testing import Clock

LONG_RUNS = 800  # half an hour, the most a test may take, on a machine that is busy
log = logging.getLogger("msgworker.instance")
numbers = itertools.count()


def on_a_clock(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[sa.Engine, dict[str, Any]]:
    """SQLite, and what a machine has of time: the clock of the database, and the local seconds."""
    engine = sa.create_engine(f"sqlite:///{folder / 'machine.db'}", poolclass=sa.QueuePool)
    sa.event.listen(engine, "connect", lambda raw, _: raw.execute("PRAGMA synchronous=OFF"))
    clock, local = Clock(), [1000.0]
    clock.attach(engine)
    for module in (lease_module, database_module):
        monkeypatch.setattr(module, "clock", lambda: local[0])
    return engine, {"clock": clock, "local": local}


class Fleet(RuleBasedStateMachine):
    """Members that come and go."""

    clock: Clock
    local: list[float]
    lives: list[Any]

    def one(self, number: int) -> Any:
        return self.lives[number % len(self.lives)] if self.lives else None

    @rule(seconds=st.sampled_from([0.1, 0.5, 1.0, 2.0, 4.0]))
    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.local[0] += seconds


def forget_locks(locks: DatabaseLocks) -> None:
    """Take the rows of earlier runs away: each look would read them all, on a clock in Python."""
    with locks.engine.begin() as conn:
        conn.exec_driver_sql("DELETE FROM msgworker_lock")


def run(machine: type[Any], runs: int, *phases: Phase, steps: int = 25) -> None:
    """Without a log: members come and go some ten thousand times."""
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        _run(machine, runs, *phases, steps=steps)
    finally:
        log.setLevel(level)


def _run(machine: type[Any], runs: int, *phases: Phase, steps: int) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=runs,
            stateful_step_count=steps,
            deadline=None,
            database=None,
            report_multiple_bugs=False,
            derandomize=bool(phases),
            suppress_health_check=list(HealthCheck),
            phases=phases or (Phase.generate, Phase.shrink),
        ),
    )
