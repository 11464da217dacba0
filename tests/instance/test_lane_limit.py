"""How many lanes an instance holds: the decision, as tables."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from msgworker.instance.claiming.capacity import LaneLimit
from msgworker.instance.liveness.identity import Identity
from msgworker.instance.running.in_flight import InFlight, Lane
from msgworker.instance.running.pool import NEWEST_SHARE, Lanes
from msgworker.store.rows import Row
from tests.support.waiting import in_thread, until

MOST = 1000
SECONDS = st.floats(0, 1e6)


def grown(threads: int, most: int = MOST) -> LaneLimit:
    """One whose threads have always run dry."""
    lane_limit = LaneLimit(threads, most)
    for _ in range(10):
        lane_limit.claimed(idled=True, full=True)
    return lane_limit


# threads, mean of a handler, ages of those that run, lanes to hold, lanes beyond which some are
# given back
DECISIONS = [
    (2, None, [], 2, 2),  # nothing is known yet
    (2, None, [0.1, 0.1], 2, 2),
    (2, None, [60.0, 60.0], 2, 2),
    (2, 4.0, [], 2, 2),  # slow: as many as threads
    (2, 4.0, [1.0, 3.0], 2, 2),
    (16, 1.0, [0.5] * 16, 16, 32),
    (2, 0.5, [0.1, 0.1], 2, 8),
    (2, 0.1, [0.05, 0.05], 10, 40),  # half a second's worth, and two seconds'
    (4, 0.02, [0.01] * 4, 100, 400),
    (4, 0.001, [], MOST, 8000),
    (2, 0.0, [0.0, 0.0], MOST, 1_000_000),
    (2, 0.001, [0.1, 0.1], 10, 4000),  # they were quick; those that run now are not
    (2, 0.001, [0.5, 0.5], 2, 4000),
    (2, 0.001, [1.5, 1.5], 2, 2),  # what was claimed for them is given back
    (2, 0.01, [600.0, 0.0], 51, 201),  # one thread is taken, the other goes on with quick ones
    (2, 0.01, [600.0], 51, 201),
    (2, 0.3, [600.0, 0.1], 2, 7),
    (1, 0.001, [5.0, 5.0], 1, 1),  # a handler of an id that was lost beside ours
]


@pytest.mark.parametrize(("threads", "mean", "ages", "lanes", "keep"), DECISIONS)
def test_what_is_in_hand_lasts_half_a_second_and_two_at_most(threads, mean, ages, lanes, keep):
    lane_limit = grown(threads)
    lane_limit.update(mean, ages)
    assert (lane_limit.lanes, lane_limit.keep) == (lanes, keep)


@given(
    st.integers(1, 64), st.integers(1, MOST), st.none() | SECONDS, st.lists(SECONDS, max_size=70)
)
def test_a_thread_has_a_lane_and_what_is_claimed_is_kept(threads, most, mean, ages):
    lane_limit = grown(threads, most)
    lane_limit.update(mean, ages)
    assert min(threads, most) <= lane_limit.lanes <= most
    assert lane_limit.keep >= lane_limit.lanes
    assert not lane_limit.has_room(lane_limit.keep)
    assert lane_limit.has_room(min(threads, most) - 1)


def test_quick_work_grows_with_every_claim_that_finds_the_threads_dry():
    lane_limit, held = LaneLimit(4, MOST), []
    lane_limit.update(None, [])
    held.append(lane_limit.lanes)
    for _ in range(5):
        lane_limit.claimed(idled=True, full=True)
        lane_limit.update(0.00005, [0.00001] * 4)
        held.append(lane_limit.lanes)
    assert held == [4, 32, 128, 512, MOST, MOST]
    lane_limit.claimed(idled=False, full=True)
    lane_limit.update(0.00005, [])
    assert lane_limit.lanes == 900
    lane_limit.claimed(idled=True, full=False)
    lane_limit.update(0.00005, [])
    assert lane_limit.lanes == 900


def test_threads_that_run_dry_while_all_is_held_make_it_hold_more():
    lane_limit, held = LaneLimit(4, MOST), []
    lane_limit.claimed(idled=True, full=True)
    lane_limit.claimed(idled=False, full=True)  # others are ready: those of a settle, say
    for _ in range(3):
        lane_limit.update(0.00005, [])
        held.append(lane_limit.lanes)
        lane_limit.threads_idled()
    assert held == [28, 112, 112]  # once for each claim
    lane_limit.claimed(idled=False, full=False)
    lane_limit.threads_idled()
    lane_limit.update(0.00005, [])
    assert lane_limit.lanes <= 112  # there was no more to claim


def test_a_claim_waits_for_room_unless_a_thread_has_nothing_to_do():
    lane_limit = grown(4)
    lane_limit.update(0.02, [])
    assert lane_limit.lanes == 100
    assert [lane_limit.has_room(held) for held in (3, 50, 51, 100)] == [True, True, False, False]
    lane_limit.update(4.0, [])
    assert [lane_limit.has_room(held) for held in (0, 3, 4, 5)] == [True, True, False, False]


def test_the_mean_is_that_of_the_first_ones_and_then_follows():
    lanes = Lanes(Identity("me"), InFlight(), housekeep_now=lambda: None)
    assert lanes.mean_seconds is None
    lanes.took(4.0)
    assert lanes.mean_seconds == 4.0
    lanes.took(2.0)
    assert lanes.mean_seconds == 3.0
    for _ in range(1000):
        lanes.took(1.0)
    assert lanes.mean_seconds == pytest.approx(1.0)
    lanes.took(2.0)
    assert lanes.mean_seconds == pytest.approx(1.0 + NEWEST_SHARE)


def test_a_batch_counts_in_the_mean_as_each_of_its_lanes():
    """Or the first small batches would keep the next claims small."""
    lanes = Lanes(Identity("me"), InFlight(), housekeep_now=lambda: None)
    lanes.took(1.0)
    lanes.took(0.5, 3)
    assert lanes.mean_seconds == pytest.approx((1.0 + 3 * 0.5) / 4)
    lanes.took(0.1, 1000)
    assert lanes.mean_seconds == pytest.approx(0.1)


def test_a_thread_without_a_lane_is_told_to_the_next_claim():
    lanes = Lanes(Identity("me"), InFlight(), housekeep_now=lambda: None)
    ended = in_thread(lanes.next)
    until(lambda: lanes.threads_idled, "the thread has nothing to do")
    lane = Lane("me", [Row(1, "o", "t", None, 0, 0, 0, None, None)])
    lanes.put([lane])
    assert ended() is lane
    lanes.put([lane])
    assert [lanes.take_idled(), lanes.take_idled()] == [True, False]
    lanes.take_back()
    assert lanes.take_idled()  # it would have nothing to do now
