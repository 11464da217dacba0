"""Processes die in batches, of kills and of their own messages: nothing is lost or done twice."""

from __future__ import annotations

import random
from typing import Any

import pytest

from proof.crash.batches import Torture, verdict


@pytest.mark.long
@pytest.mark.timeout(240)
@pytest.mark.parametrize("kind", ["batch", "group"])
def test_batches_of_processes_that_are_killed_are_done_exactly_once_in_order(
    database: Any, kind: str
) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    run = Torture(database.url, kind, 2, seed)
    assert run.run(2.0, 600) == []
    assert run.sent == 600
    assert run.deaths > 0


def test_the_verdict_on_batches_tells_what_is_lost_doubled_or_out_of_order() -> None:
    rows = [(1, "a", 2), (2, "a", 2), (3, None, -1), (4, "b", 0), (5, "a", 2)]
    assert verdict(rows, [2, 1, 5, 5, 3]) == [
        "message 4 is left at 0",
        "message 3 at -1 has 1 effects",
        "message 5 at 2 has 2 effects",
        "message 1 of a was done after 2",
    ]
    assert verdict(rows[:3], [1, 2]) == []
