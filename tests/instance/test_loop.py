"""How long the claim loop waits between two rounds."""

from __future__ import annotations

import pytest

from msgworker.instance.claiming.capacity import PollPace
from msgworker.instance.claiming.heads import Look
from tests.support.ticking import Ticking

UNFINISHED = Look(seconds=0.5)
ROUND_OVER = Look(round_over=True)


def pace(clock: Ticking | None = None, *, drains: bool = False) -> PollPace:
    return PollPace(1.0, drains=drains, clock=clock or Ticking(), jitter=lambda: 1.0)


def after(
    one: PollPace,
    won: int,
    *,
    holding: bool = False,
    due_in: float | None = None,
    more: bool = True,
) -> float:
    return one.after(won, wanted=8, holding=holding, due_in=due_in, more=more)


class Busy:
    """A claim loop that has room while one of its messages runs for a long time."""

    def __init__(self, longest: float = 1.0) -> None:
        self.clock = Ticking()
        self.begun = self.clock.now
        self.pace = PollPace(longest, clock=self.clock, jitter=lambda: 1.0)

    def looks(self, won: int = 0, *, more: bool = False) -> None:
        self.pace.looked(ROUND_OVER)
        assert after(self.pace, won, holding=True, more=more) == 0.01

    def until_the_next_look(self) -> float:
        """In the rounds of the loop, one each 10 ms."""
        since = self.clock.now
        while self.pace.look_in > 1e-9:
            self.clock.now += 0.01
        return round(self.clock.now - since, 6)

    def pauses(self, looks: int) -> list[float]:
        found = []
        for _ in range(looks):
            self.looks()
            found.append(self.until_the_next_look())
        return found


@pytest.mark.parametrize(
    ("won", "holding", "pause"),
    [
        (8, True, 0.0),
        (2, True, 0.0),  # a quarter of what was wanted
        (1, True, 0.001),
        (0, True, 0.01),
    ],
)
def test_there_is_no_pause_while_there_is_work_and_a_tick_while_hands_are_full(won, holding, pause):
    assert after(pace(), won, holding=holding) == pause


@pytest.mark.parametrize("drains", [False, True])
def test_looks_that_find_what_is_new_go_on_between_two_rounds(drains: bool) -> None:
    clock = Ticking()
    one = pace(drains=drains, clock=clock)
    one.looked(Look(seconds=0.5, finds_new=True))
    clock.now += 2.0
    one.looked(Look(round_over=True, seconds=0.5, finds_new=True))
    assert after(one, 0) < 0.1
    assert one.rests is not drains
    clock.now += 7.9  # four times the time of the round
    one.looked(Look(seconds=0.5, finds_new=True))
    assert one.rests is not drains
    clock.now += 0.2
    assert not one.rests


def test_idle_pauses_grow_to_the_longest_and_begin_anew_with_work_or_a_call() -> None:
    one = pace()
    grown = [after(one, 0) for _ in range(30)]
    assert grown[:3] == pytest.approx([0.013, 0.0169, 0.02197])
    assert grown == sorted(grown)
    assert grown[-1] == 1.0
    for again in (lambda: after(one, 1), one.restart):
        again()
        assert after(one, 0) == pytest.approx(0.013)
        for _ in range(30):
            after(one, 0)


def test_an_idle_pause_is_shorter_by_chance() -> None:
    one = PollPace(1.0, clock=Ticking())
    pauses = [after(one, 0) for _ in range(200)][30:]
    assert 0.75 <= min(pauses) < max(pauses) <= 1.0


def test_a_drain_waits_for_what_is_known_to_come_and_not_longer() -> None:
    one = pace(drains=True)
    assert after(one, 0) == after(one, 0) == 0.01
    assert after(one, 0, due_in=0.0) == 0.01
    for _ in range(30):
        after(one, 0, due_in=60.0)
    assert after(one, 0, due_in=60.0) == 1.0
    assert after(one, 0, due_in=0.3) == 0.3


def test_an_unfinished_round_leaves_the_database_four_times_as_long_as_its_look_took() -> None:
    one = pace()
    one.looked(UNFINISHED)
    assert after(one, 0) == 2.0
    one.looked(Look(seconds=0.001))
    assert after(one, 0) == 0.01


@pytest.mark.parametrize(("took", "rest"), [(2.0, 8.0), (60.0, 30.0)])
def test_after_a_long_round_it_rests_longer_than_that_took(took: float, rest: float) -> None:
    clock = Ticking()
    one = pace(clock)
    one.looked(UNFINISHED)
    clock.now += took / 2
    one.looked(UNFINISHED)
    clock.now += took / 2
    one.looked(ROUND_OVER)
    assert after(one, 0) == rest
    one.looked(ROUND_OVER)  # the next round took one look
    assert after(one, 0) < 0.1


def test_a_claim_ends_the_round_and_its_rest() -> None:
    clock = Ticking()
    one = pace(clock)
    one.looked(UNFINISHED)
    clock.now += 9.0
    one.looked(ROUND_OVER)
    after(one, 1)
    assert after(one, 0) == pytest.approx(0.013)


def test_fruitless_looks_become_rarer_while_something_runs_and_never_rarer_than_four_a_second():
    assert Busy().pauses(7) == [0.02, 0.04, 0.08, 0.16, 0.25, 0.25, 0.25]


def test_fruitless_looks_are_no_rarer_than_those_of_an_idle_instance() -> None:
    assert Busy(0.05).pauses(4) == [0.02, 0.04, 0.05, 0.05]
    assert Busy(0.001).pauses(3) == [0.01, 0.01, 0.01]


def test_a_wake_is_a_look_at_once_and_more_soon_after_for_a_commit_under_way() -> None:
    busy = Busy()
    busy.pauses(6)
    busy.looks()
    assert busy.pace.look_in > 0
    busy.pace.restart()
    assert busy.pace.look_in == 0
    assert busy.pauses(7) == [0.01, 0.02, 0.04, 0.08, 0.16, 0.25, 0.25]


def test_what_is_found_without_a_wake_makes_looks_frequent_again() -> None:
    busy = Busy()
    busy.pauses(6)
    busy.looks(won=1)
    assert busy.until_the_next_look() == 0.01
    assert busy.pauses(2) == [0.02, 0.04]


def test_the_next_run_of_a_busy_object_does_not_make_looks_frequent() -> None:
    busy = Busy()
    busy.pauses(6)
    busy.pace.restart()  # its lane has ended
    busy.looks(won=1)
    assert busy.until_the_next_look() == 0.01
    assert busy.pauses(2) == [0.25, 0.25]


@pytest.mark.parametrize("won", [1, 2])
def test_where_more_may_be_left_the_next_look_follows_at_once(won: int) -> None:
    busy = Busy()
    busy.pauses(6)
    busy.looks()
    after(busy.pace, won, holding=True, more=True)
    assert busy.pace.look_in == 0


def test_an_unfinished_round_goes_on_with_every_tick_while_something_runs() -> None:
    busy = Busy()
    busy.pauses(6)
    busy.pace.looked(UNFINISHED)
    assert after(busy.pace, 0, holding=True) == 0.01
    assert busy.pace.look_in == 0


def test_the_tail_of_a_claim_without_more_is_a_tick() -> None:
    one = pace()
    assert after(one, 8, more=False) == after(one, 1, more=False) == 0.01
