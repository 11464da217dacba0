"""Where looks by age begin, and how far they step past messages of other topics."""

from __future__ import annotations

import pytest

from msgworker.instance.claiming.heads import LONGEST_REST_SECONDS
from msgworker.instance.claiming.passes import READ_AGAIN
from msgworker.instance.claiming.search import (
    LEAST_SPAN,
    LONGEST_FROM_LOW_SECONDS,
    MOST_SPAN,
    Beginning,
    Steps,
    widened,
)
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


def test_a_look_by_topic_goes_on_where_the_last_one_stopped_until_it_is_to_read_again():
    one = Steps()
    assert (one.begin(0.0, by_age=True), one.from_start) == (MIN_ID, True)
    one.stepped(0.1, 0.1)
    one.ended(500, whole=False, full=False)
    one.forget(1.0)  # not yet: a step took a tenth of a second, so it rests for two
    assert (one.begin(1.0, by_age=True), one.from_start) == (500, True)
    one.forget(0.1 + READ_AGAIN * 0.1)
    assert one.begin(2.1, by_age=True) == MIN_ID


@pytest.mark.parametrize(
    ("at", "due", "begins", "from_start"),
    [
        (MIN_ID, True, MIN_ID, True),  # the very start
        (MIN_ID, False, 40, False),  # behind what has ended
        (90, False, 90, None),  # it continues: as the pass began
        (90, True, MIN_ID, True),
    ],
)
def test_a_pass_begins_at_the_start_or_behind_what_has_ended(at, due, begins, from_start):
    one = Steps(at=at)
    one.beginning.low = 40
    one.beginning.looked(0.0, 0.0 if due else 1.0, 40, lambda: 40)
    one.beginning.low = 40
    assert one.begin(1.0, by_age=True) == begins
    assert one.from_start is (True if from_start is None else from_start)


@pytest.mark.parametrize(
    ("seconds", "rests"), [((0.1,), 2.0), ((0.1, 0.1), 4.0), ((9.0,), LONGEST_REST_SECONDS)]
)
def test_steps_past_others_are_paid_for_with_a_rest(seconds, rests):
    one = Steps()
    for took in seconds:
        one.stepped(100.0, took)
    assert one.read_again_at == pytest.approx(100.0 + rests)


def test_steps_grow_until_they_find_enough():
    one = Steps()
    for _ in range(10):
        one.stepped(0.0, 0.0)
    assert one.span == MOST_SPAN
    one.ended(7, whole=False, full=False)
    assert one.span == MOST_SPAN
    for _ in range(10):
        one.ended(7, whole=False, full=True)
    assert one.span == LEAST_SPAN


def test_what_is_committed_late_before_the_end_is_read_again():
    one = Steps(at=900, end=900, ends=(100, 500), read_again_at=9e9)
    one.forget(0.0)
    assert (one.at, one.end) == (500, 500)
    one.forget(0.0)
    assert one.ends == (900, 500)


@pytest.mark.parametrize(
    ("width", "few", "then"), [(1, True, 2), (8, True, 8), (8, False, 7), (1, False, 1)]
)
def test_windows_widen_quickly_and_narrow_slowly(width, few, then):
    assert widened(width, few=few) == then
