"""Where a look by age begins."""

from __future__ import annotations

import pytest

from msgworker.instance.claiming.search import LONGEST_FROM_LOW_SECONDS, Beginning
from msgworker.store.rows import MIN_ID

NEWEST = 1000


def looked(one: Beginning, now: float, seconds: float, first: int | None = 50) -> None:
    one.looked(now, seconds, first, lambda: NEWEST)


@pytest.mark.parametrize(
    ("seconds", "rest"), [(0.0, 0.0), (0.001, 0.02), (0.05, 1.0), (9.0, LONGEST_FROM_LOW_SECONDS)]
)
def test_a_look_from_the_very_start_is_due_after_a_multiple_of_its_time(seconds, rest):
    one = Beginning()
    assert one.is_due(0.0)
    looked(one, 100.0, seconds)
    assert one.is_due(100.0 + rest)
    assert rest == 0.0 or not one.is_due(100.0 + rest - 0.001)
    one.due()
    assert one.is_due(0.0)


def test_looks_that_cost_nothing_all_begin_at_the_very_start():
    one = Beginning()
    looked(one, 100.0, 1.0)
    looked(one, 102.0, 0.001)
    assert one.low == MIN_ID


def test_slow_looks_are_followed_by_looks_from_the_oldest_row_or_the_newest_of_before():
    one = Beginning()
    looked(one, 100.0, 1.0, first=5000)
    assert one.low == MIN_ID  # ids that are committed late may be anywhere
    looked(one, 102.0, 1.0, first=5000)
    assert one.low == NEWEST
    looked(one, 104.0, 1.0, first=50)
    assert one.low == 50
    looked(one, 106.0, 1.0, first=None)
    assert one.low == NEWEST
    one.lower(7)
    assert one.low == 7
