"""State machines of leases, run for as long as is asked."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from msgworker.coordination import DatabaseLocks

LONG_RUNS = 5000


def forget_locks(locks: DatabaseLocks) -> None:
    """Take the rows of earlier runs away: each look would read them all, on a clock in Python."""
    with locks.engine.begin() as conn:
        conn.exec_driver_sql("DELETE FROM msgworker_lock")


def run(machine: type[Any], runs: int, *phases: Phase, steps: int = 25) -> None:
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
