"""How much an instance claims and reads ahead: the decisions, as tables."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from msgworker.instance.claiming.capacity import (
    FEW,
    FIRST_PAUSE_SECONDS,
    MOST,
    PAYLOAD_BUDGET,
    TOKENS_SECONDS,
    Contention,
    LaneLimit,
    LimitPoller,
    RunLength,
)
from msgworker.instance.claiming.heads import Look
from msgworker.instance.liveness.identity import Identity
from msgworker.instance.running.in_flight import InFlight, Lane
from msgworker.instance.running.pool import NEWEST_SHARE, LaneQueue
from msgworker.instance.state import Controls
from msgworker.limit import Limit
from msgworker.store.limits import Free
from msgworker.store.rows import Row
from tests.support.waiting import in_thread, until

# --- How many lanes an instance holds: the decision, as tables.


HELD = 1000
SECONDS = st.floats(0, 1e6)


def grown(threads: int, most: int = HELD) -> LaneLimit:
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
    (4, 0.001, [], HELD, 8000),
    (2, 0.0, [0.0, 0.0], HELD, 1_000_000),
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
    st.integers(1, 64), st.integers(1, HELD), st.none() | SECONDS, st.lists(SECONDS, max_size=70)
)
def test_a_thread_has_a_lane_and_what_is_claimed_is_kept(threads, most, mean, ages):
    lane_limit = grown(threads, most)
    lane_limit.update(mean, ages)
    assert min(threads, most) <= lane_limit.lanes <= most
    assert lane_limit.keep >= lane_limit.lanes
    assert not lane_limit.has_free(lane_limit.keep)
    assert lane_limit.has_free(min(threads, most) - 1)


def test_quick_work_grows_with_every_claim_that_finds_the_threads_dry():
    lane_limit, held = LaneLimit(4, HELD), []
    lane_limit.update(None, [])
    held.append(lane_limit.lanes)
    for _ in range(5):
        lane_limit.claimed(idled=True, full=True)
        lane_limit.update(0.00005, [0.00001] * 4)
        held.append(lane_limit.lanes)
    assert held == [4, 32, 128, 512, HELD, HELD]
    lane_limit.claimed(idled=False, full=True)
    lane_limit.update(0.00005, [])
    assert lane_limit.lanes == 900
    lane_limit.claimed(idled=True, full=False)
    lane_limit.update(0.00005, [])
    assert lane_limit.lanes == 900


def test_threads_that_run_dry_while_all_is_held_make_it_hold_more():
    lane_limit, held = LaneLimit(4, HELD), []
    lane_limit.claimed(idled=True, full=True)
    lane_limit.claimed(idled=False, full=True)  # others are ready: those of a settle, say
    for _ in range(3):
        lane_limit.update(0.00005, [])
        held.append(lane_limit.lanes)
        lane_limit.grow()
    assert held == [28, 112, 112]  # once for each claim
    lane_limit.claimed(idled=False, full=False)
    lane_limit.grow()
    lane_limit.update(0.00005, [])
    assert lane_limit.lanes <= 112  # there was no more to claim


def test_a_claim_waits_for_room_unless_a_thread_has_nothing_to_do():
    lane_limit = grown(4)
    lane_limit.update(0.02, [])
    assert lane_limit.lanes == 100
    assert [lane_limit.has_free(held) for held in (3, 50, 51, 100)] == [True, True, False, False]
    lane_limit.update(4.0, [])
    assert [lane_limit.has_free(held) for held in (0, 3, 4, 5)] == [True, True, False, False]


def test_the_mean_is_that_of_the_first_ones_and_then_follows():
    lanes = LaneQueue(Identity("me"), InFlight(), housekeep_now=lambda: None)
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
    lanes = LaneQueue(Identity("me"), InFlight(), housekeep_now=lambda: None)
    lanes.took(1.0)
    lanes.took(0.5, 3)
    assert lanes.mean_seconds == pytest.approx((1.0 + 3 * 0.5) / 4)
    lanes.took(0.1, 1000)
    assert lanes.mean_seconds == pytest.approx(0.1)


def test_a_thread_without_a_lane_is_told_to_the_next_claim():
    lanes = LaneQueue(Identity("me"), InFlight(), housekeep_now=lambda: None)
    ended = in_thread(lanes.next)
    until(lambda: lanes.threads_idled, "the thread has nothing to do")
    lane = Lane("me", [Row(1, "o", "t", None, 0, 0, 0, None, None)])
    lanes.put([lane])
    assert ended() is lane
    lanes.put([lane])
    assert [lanes.take_idled(), lanes.take_idled()] == [True, False]
    lanes.take_back()
    assert lanes.take_idled()  # it would have nothing to do now


# --- How much of other shares an instance takes, and when it counts the instances again.


class Clock:
    """Seconds that a test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def lose(contention: Contention, slots: int = 2) -> bool:
    return contention.claimed(40, 20, of_others=20, slots=slots)


def test_fewer_heads_of_other_shares_are_taken_where_they_are_lost() -> None:
    contention = Contention(10.0)
    for _ in range(20):
        contention.claimed(40, 36, of_others=4, slots=2)
    assert contention.most_of_others(busy=True) == MOST
    lose(contention)
    assert contention.most_of_others(busy=True) == MOST // 4
    for _ in range(20):
        lose(contention)
    assert contention.most_of_others(busy=True) == 1
    assert contention.most_of_others(busy=False) == FEW  # a thread waits: some are always taken


def test_only_heads_of_other_shares_show_that_more_of_them_can_be_taken() -> None:
    contention = Contention(10.0)
    for _ in range(20):
        contention.claimed(40, 40, of_others=0, slots=2)
    assert contention.most_of_others(busy=True) == FEW


def test_the_instances_are_counted_again_at_growing_intervals_while_much_is_lost() -> None:
    clock = Clock()
    contention, counted = Contention(0.4, clock), []
    for tick in range(20):
        clock.now = tick * 0.101
        if lose(contention):
            counted.append(tick)
    assert counted == [0, 1, 3, 7, 11, 15, 19]
    clock.now += 0.5
    assert lose(contention, slots=3)
    clock.now += 0.11
    assert lose(contention, slots=3)  # there was news, so it may not be the last


def test_little_that_is_lost_says_nothing_but_all_of_a_small_claim_does() -> None:
    contention = Contention(10.0)
    assert not contention.claimed(0, 0, of_others=0, slots=2)
    assert not contention.claimed(FEW - 1, 1, of_others=3, slots=2)
    assert not contention.claimed(40, 35, of_others=20, slots=2)
    assert contention.claimed(4, 0, of_others=0, slots=1)


# --- When to try limited topics: the decision, as tables.


def poller(
    limit: Limit, *, threads: int = 4, clock: Callable[[], float] = lambda: 1000.0
) -> LimitPoller:
    """One that knows of this limit of the topic t."""
    one = LimitPoller(threads=threads, topics=None, longest=1.0, clock=clock)
    one.update(Controls(limits={"t": limit}), ())
    return one


def lane(topic: str = "t") -> Lane:
    return Lane("me", [Row(1, "o", topic, None, 0, 0, 0, None, None)])


TEN = Limit(starts=10, burst=10)  # a token each 0.1 s


@pytest.mark.parametrize(
    ("free", "won", "starts_in", "least", "most"),
    [
        pytest.param(None, 0, 0.0, 0.0, FIRST_PAUSE_SECONDS, id="its record is locked"),
        pytest.param(Free(Limit(4), 0, 0, 0), 0, None, 0.005, 0.015, id="others were faster"),
        pytest.param(Free(Limit(4), 0, 0, 0), 2, 0.0, 0.0, 0.0, id="permits are left"),
        pytest.param(Free(Limit(4), 0, 0, 0), 4, None, 0.02, 0.02, id="all are taken now"),
        pytest.param(Free(Limit(4), 4, 0, 0), 0, None, 0.02, 0.02, id="all were taken"),
        pytest.param(Free(TEN, 0, 1_000_000, 0), 0, 0.1, 0.1, 0.1, id="no token"),
        pytest.param(Free(TEN, 0, 0, 0), 10, 0.0, 0.1, 0.1, id="all tokens are taken now"),
    ],
)
def test_the_next_try_follows_from_what_the_last_one_found(
    free: Free | None, won: int, starts_in: float | None, least: float, most: float
) -> None:
    one = poller(Limit(4))
    one.tried("t", free, won)
    assert one.starts_in() == pytest.approx(starts_in)
    wait = one.wait()
    assert wait is not None
    assert least - 1e-9 <= wait <= most + 1e-9


def test_paused_topics_and_those_of_others_are_not_tried() -> None:
    one = LimitPoller(threads=1, topics={"t", "p"}, longest=1.0)
    limits = {name: Limit(1) for name in ("t", "p", "other")}
    one.update(Controls(frozenset({"p"}), limits), ())
    assert one.due() == ["t"]


def test_the_end_of_a_message_of_ours_frees_its_permit() -> None:
    one, ours = poller(Limit(1), threads=2), lane()
    one.claimed([ours])
    one.tried("t", Free(Limit(1), 1, 0, 0), 1)
    controls = Controls(limits={"t": Limit(1)})
    one.update(controls, {ours})
    assert (one.held, one.due()) == (1, [])
    one.update(controls, ())
    assert (one.held, one.due()) == (0, ["t"])


def test_no_more_are_claimed_than_threads_are_free() -> None:
    one, ours = poller(Limit(9), threads=1), lane()
    one.claimed([ours])
    one.update(Controls(limits={"t": Limit(9)}), {ours})
    assert (one.due(), one.to_claim(5), one.wait()) == ([], 0, None)


def test_one_look_that_took_long_keeps_its_topic_waiting_for_seconds() -> None:
    clock = [1000.0]
    one = poller(Limit(1), threads=1, clock=lambda: clock[0])
    one.looked("t", Look(complete=True, seconds=600.0), busy=False)
    clock[0] += 30
    one.woken()
    assert one.due() == ["t"]


def test_a_topic_without_messages_is_asked_again_where_the_look_did_not_begin_at_the_start() -> (
    None
):
    one = poller(Limit(1), threads=1)
    one.looked("t", Look(complete=True, from_start=False), busy=False)
    assert (one.starts_in(), one.from_start) == (None, False)  # a drain looks afresh
    one.looked("t", Look(complete=True), busy=False)
    assert (one.starts_in(), one.from_start) == (None, True)


def test_who_finds_a_record_locked_again_and_again_looks_more_rarely() -> None:
    one = poller(Limit(1), threads=1)
    waits = []
    for _ in range(12):
        one.tried("t", None, 0)
        waits.append(one.wait() or 0.0)
    assert 0 < waits[0] <= 0.02
    assert min(waits[-3:]) > 0.04
    assert max(waits) <= TOKENS_SECONDS


def test_who_loses_every_race_for_heads_does_not_look_again_at_once() -> None:
    one = poller(Limit(4))
    one.tried("t", Free(Limit(4), 1, 0, 1), 0)
    assert 0 < (one.wait() or 0.0) < 0.02


# --- How many messages to read behind a head: the decision, as tables.


RUN, LANES = 20, 1000
ROWS = RUN * LANES


def run_of(rows: int, payload: str = "{}") -> Lane:
    return Lane("me", [Row(i, "a", "t", payload, 0, 0, 0, None, None) for i in range(rows)])


class Object:
    """One busy object: its lane is read, handled, and ends."""

    def __init__(self, runs: RunLength, seconds: float = 0.001) -> None:
        self.runs = runs
        self.seconds = seconds  # of a message
        self.now = 100.0

    def limit(self) -> int:
        return self.runs.limit(8, 0)

    def runs_once(self, *, waiting: int = 10**9, done: int | None = None) -> int:
        """How many messages were read ahead. done: so many were handled, None = all."""
        limit = self.limit()
        one = run_of(1 + min(limit, waiting))
        self.runs.read([one], limit, self.now)
        self.runs.learn({one})
        assert self.limit() == limit  # nothing is learned before its end
        handled = len(one.rows) if done is None else min(done, len(one.rows))
        one.place = handled - 1
        self.now += handled * self.seconds
        one.finished_at = self.now
        self.runs.learn(set())
        return limit


def test_runs_that_are_used_up_grow_to_what_lasts_a_second() -> None:
    busy = Object(RunLength(RUN, LANES))
    assert [busy.runs_once() for _ in range(6)] == [20, 80, 320, 1000, 1000, 1000]


@pytest.mark.parametrize(
    ("seconds", "longest"),
    [
        (0.0001, ROWS // 8),  # what eight lanes may hold
        (0.002, 500),
        (0.04, 25),
        (0.05, RUN),
        (30.0, RUN),  # as many as ever, however slow
    ],
)
def test_no_run_beyond_run_limit_lasts_longer_than_a_second(seconds: float, longest: int) -> None:
    busy = Object(RunLength(RUN, LANES), seconds)
    assert max(busy.runs_once() for _ in range(12)) == longest


def test_a_run_that_ends_with_its_object_says_nothing_about_longer_ones() -> None:
    busy = Object(RunLength(RUN, LANES))
    assert [busy.runs_once(waiting=5) for _ in range(4)] == [RUN] * 4


def test_a_run_that_is_cut_short_is_followed_by_one_twice_as_long_as_was_used() -> None:
    busy = Object(RunLength(RUN, LANES))
    for _ in range(5):
        busy.runs_once()
    assert busy.runs_once(done=100) == 1000
    assert busy.limit() == 200
    assert busy.runs_once(done=3) == 200
    assert busy.limit() == RUN
    assert [busy.runs_once() for _ in range(3)] == [20, 80, 320]


def test_no_more_is_read_than_one_failure_in_so_many_messages_wastes() -> None:
    busy = Object(RunLength(RUN, LANES))
    read = sum(busy.runs_once(done=50) for _ in range(40))
    assert read <= 2 * 50 * 40


# run_limit, lanes_limit, new lanes and those to come, messages ahead, the longest runs
SHARES = [
    (20, 1000, 1, 0, 20_000),
    (20, 1000, 8, 0, 2_500),
    (20, 1000, 1000, 0, 20),
    (20, 1000, 8, 19_000, 125),
    (20, 1000, 8, 30_000, 1),  # payloads have become heavier since
    (20, 10, 1, 0, 200),
    (1, 1000, 4, 0, 250),
    (20, 1, 1, 0, 20),
    (0, 1000, 1, 0, 0),
]


@pytest.mark.quick("20-1000-8-0-2500|20-10-1-0|1-1000-4")
@pytest.mark.parametrize(("run", "lanes", "share", "ahead", "longest"), SHARES)
def test_all_lanes_together_hold_run_limit_times_lanes_limit(run, lanes, share, ahead, longest):
    runs = RunLength(run, lanes)
    busy = Object(runs, 0.000001)
    busy.limit = lambda: runs.limit(1, 0)  # type: ignore[method-assign]
    for _ in range(10):
        busy.runs_once()
    assert runs.limit(share, ahead) == longest


@given(st.lists(st.tuples(st.integers(1, 1000), st.integers(1, 500)), max_size=30))
def test_lanes_claimed_one_after_another_never_hold_more(claims: list[tuple[int, int]]) -> None:
    """lanes to come, lanes of the claim: each gets a run as long as it may be."""
    runs, ahead, lanes = RunLength(RUN, LANES), 0, 0
    busy = Object(runs, 0.000001)
    for _ in range(8):
        busy.runs_once()
    for to_come, new in claims:
        ahead += new * runs.limit(max(new, to_come), ahead)
        lanes += new
    assert ahead <= ROWS + lanes  # one message at least for each


@pytest.mark.parametrize(
    ("size", "lanes", "longest"),
    [(10, 8, 2500), (100_000, 8, 40), (1_000_000, 8, 4), (1_000_000, 64, 1)],
)
def test_runs_shrink_with_heavy_payloads(size: int, lanes: int, longest: int) -> None:
    runs = RunLength(RUN, LANES)
    busy = Object(runs, 0.000001)
    for _ in range(8):
        busy.runs_once()
    heavy = run_of(30, "x" * size)
    for _ in range(5):
        runs.read([heavy] * 20, 20, 0.0)
    assert runs.limit(lanes, 0) == longest


def test_the_first_heavy_run_is_enough_to_read_fewer_bytes() -> None:
    """A busy object of large payloads after small ones: its first run is a short one."""
    runs = RunLength(RUN, LANES)
    runs.read([run_of(21, "x" * 1_000_000)], 20, 0.0)
    assert runs.limit(1, 0) <= 1.5 * PAYLOAD_BUDGET / 1_000_000


def test_only_a_sample_of_many_lanes_is_kept() -> None:
    runs = RunLength(RUN, LANES)
    for _ in range(50):
        runs.read([run_of(2) for _ in range(500)], 20, 0.0)
    assert len(runs.watched) <= 20


@pytest.mark.parametrize(
    ("batch", "lanes", "run"), [(1, 8, RUN), (3, 8, RUN), (500, 8, 2000), (500, 100, 200)]
)
def test_batches_have_runs_of_several_from_the_start(batch: int, lanes: int, run: int) -> None:
    assert RunLength(RUN, LANES, lambda: batch).limit(lanes, 0) == run


def test_a_batch_that_fails_does_not_shorten_the_runs_of_the_next() -> None:
    busy = Object(RunLength(RUN, LANES, lambda: 500), seconds=0.1)
    assert [busy.runs_once(done=3) for _ in range(3)] == [2000] * 3
