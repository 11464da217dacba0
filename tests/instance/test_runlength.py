"""How many messages to read behind a head: the decision, as tables."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from msgworker.instance.claiming.capacity import PAYLOAD_BUDGET, RunLength
from msgworker.instance.running.in_flight import Lane
from msgworker.store.rows import Row

RUN, LANES = 20, 1000
ROWS = RUN * LANES


def lane(rows: int, payload: str = "{}") -> Lane:
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
        one = lane(1 + min(limit, waiting))
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
    heavy = lane(30, "x" * size)
    for _ in range(5):
        runs.read([heavy] * 20, 20, 0.0)
    assert runs.limit(lanes, 0) == longest


def test_the_first_heavy_run_is_enough_to_read_fewer_bytes() -> None:
    """A busy object of large payloads after small ones: its first run is a short one."""
    runs = RunLength(RUN, LANES)
    runs.read([lane(21, "x" * 1_000_000)], 20, 0.0)
    assert runs.limit(1, 0) <= 1.5 * PAYLOAD_BUDGET / 1_000_000


def test_only_a_sample_of_many_lanes_is_kept() -> None:
    runs = RunLength(RUN, LANES)
    for _ in range(50):
        runs.read([lane(2) for _ in range(500)], 20, 0.0)
    assert runs.watched <= 20


@pytest.mark.parametrize(
    ("batch", "lanes", "run"), [(1, 8, RUN), (3, 8, RUN), (500, 8, 2000), (500, 100, 200)]
)
def test_batches_have_runs_of_several_from_the_start(batch: int, lanes: int, run: int) -> None:
    assert RunLength(RUN, LANES, lambda: batch).limit(lanes, 0) == run


def test_a_batch_that_fails_does_not_shorten_the_runs_of_the_next() -> None:
    busy = Object(RunLength(RUN, LANES, lambda: 500), seconds=0.1)
    assert [busy.runs_once(done=3) for _ in range(3)] == [2000] * 3
