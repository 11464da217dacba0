"""Processes that fire schedules are killed: a tick is one message, and none is missing."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from proof.crash.timers import NAMES, Torture, verdict


@pytest.mark.quick("sqlite")
def test_every_tick_is_one_message_while_processes_are_killed(database: Any) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    run = Torture(database.url, 2, seed)
    assert run.run(2.0, kill_every=0.7) == []
    assert run.deaths > 0
    assert all(len(run.ticks[name]) >= 2 for name in NAMES)


def test_the_verdict_on_ticks_tells_what_is_missing_or_sent_twice() -> None:
    first = datetime(2026, 3, 1, tzinfo=UTC)
    ticks = [first + timedelta(seconds=n) for n in range(5)]
    assert verdict("n", ticks) == []
    assert verdict("n", []) == ["n: no tick"]
    assert verdict("n", [*ticks[:2], *ticks[3:]]) == [f"n: {ticks[2]} is missing"]
    assert verdict("n", [*ticks, ticks[4]]) == [f"n: {ticks[4]} was sent 2 times"]
    assert verdict("n", [ticks[1], ticks[0]]) == ["n: ticks are out of order"]
