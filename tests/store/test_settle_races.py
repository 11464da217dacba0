"""Two settles of one instance at the same time: other lanes, rows side by side in every index."""

from __future__ import annotations

import threading

from sqlalchemy.exc import DBAPIError

from msgworker.db import Trouble, trouble
from msgworker.message import Outcome, Settled, Settlement
from tests.support.flags import ME
from tests.support.rows import send
from tests.support.waiting import in_thread

OBJECTS = 40
MESSAGES = 8


def test_two_settles_of_other_lanes_neither_deadlock_nor_lose_a_row(store):
    """Their objects alternate, every fifth outcome is a failure; both start together each time."""
    sent = send(store.app, *[f"o{n:02}" for _ in range(MESSAGES) for n in range(OBJECTS)])
    lanes = [sent[n::OBJECTS] for n in range(OBJECTS)]
    store.flagged(*(lane[0] for lane in lanes))
    gate = threading.Barrier(2)

    def settle(mine: list[list[int]]) -> int:
        deadlocks = 0
        for place in range(MESSAGES - 1):
            batch = [Settlement(lane[place], next_id=lane[place + 1]) for lane in mine]
            gate.wait(60)
            while True:
                try:
                    became = store.settle(*batch)
                    break
                except DBAPIError as error:
                    if trouble(error) is not Trouble.AGAIN:
                        raise
                    deadlocks += 1
            assert set(became.values()) == {Settled.ADVANCED}
        gate.wait(60)
        last = [
            Settlement(lane[-1], Outcome.FAILED if n % 5 == 0 else Outcome.DONE, error="E: x")
            for n, lane in enumerate(mine)
        ]
        assert set(store.settle(*last).values()) == {Settled.ENDED}
        return deadlocks

    halves = [in_thread(lambda half=half: settle(lanes[half::2])) for half in (0, 1)]
    deadlocks = sum(half() for half in halves)
    assert deadlocks == 0
    found = store.table.rows("status", "claimed_by")
    assert found.count((2, None)) == OBJECTS * MESSAGES - OBJECTS // 5
    assert found.count((-1, None)) == OBJECTS // 5
    assert ME not in [row[1] for row in found]
