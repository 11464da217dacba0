"""How much of other shares an instance takes, and when it counts the instances again."""

from __future__ import annotations

from msgworker.instance.claiming.capacity import FEW, MOST, Contention


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
    assert contention.reach(busy=True) == MOST
    lose(contention)
    assert contention.reach(busy=True) == MOST // 4
    for _ in range(20):
        lose(contention)
    assert contention.reach(busy=True) == 1
    assert contention.reach(busy=False) == FEW  # a thread waits: some are always taken


def test_only_heads_of_other_shares_show_that_more_of_them_can_be_taken() -> None:
    contention = Contention(10.0)
    for _ in range(20):
        contention.claimed(40, 40, of_others=0, slots=2)
    assert contention.reach(busy=True) == FEW


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
