"""How long the claim loop waits between two rounds."""

from __future__ import annotations

import pytest

from msgworker.instance.claiming.pollpace import PollPace
from msgworker.instance.claiming.search import Look
from tests.support.ticking import Ticking

UNFINISHED = Look(seconds=0.5)
OVER = Look(round_over=True)


def pace(clock: Ticking | None = None, *, drains: bool = False) -> PollPace:
    return PollPace(1.0, drains=drains, clock=clock or Ticking(), jitter=lambda: 1.0)


def after(one: PollPace, won: int, *, holding: bool = False, due_in: float | None = None) -> float:
    return one.after(won, wanted=8, holding=holding, due_in=due_in)


@pytest.mark.parametrize(
    ("won", "holding", "pause"),
    [
        (8, True, 0.0),
        (2, True, 0.0),  # a quarter of what was wanted
        (1, True, 0.001),
        (-1, True, 0.01),
        (-1, False, 0.01),
        (0, True, 0.01),
    ],
)
def test_there_is_no_pause_while_there_is_work_and_a_tick_while_hands_are_full(won, holding, pause):
    assert after(pace(), won, holding=holding) == pause


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
    one.looked(OVER)
    assert after(one, 0) == rest
    one.looked(OVER)  # the next round took one look
    assert after(one, 0) < 0.1


def test_a_claim_ends_the_round_and_its_rest() -> None:
    clock = Ticking()
    one = pace(clock)
    one.looked(UNFINISHED)
    clock.now += 9.0
    one.looked(OVER)
    after(one, 1)
    assert after(one, 0) == pytest.approx(0.013)
