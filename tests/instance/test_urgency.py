"""How messages with a priority are mixed with the others."""

from __future__ import annotations

import random

import pytest

from msgworker.db import DATABASES
from msgworker.instance.claiming.choice import LEAST_ROWS, MOST_ROWS, SHARE, Urgent, mixed, owed
from msgworker.store.candidates import Candidate
from msgworker.table import MessageTable, tables_for


def rows(*ids: int) -> list[Candidate]:
    return [Candidate(i, f"o{i}", 0, 0, 0, "t", 1) for i in ids]


def ids(chosen: list[Candidate]) -> list[int]:
    return [row.msg_id for row in chosen]


@pytest.mark.parametrize(
    ("priorities", "want", "overtaken", "chosen", "after"),
    [
        ({}, 3, 0, [1, 2, 3], 0),
        ({4: 1, 5: 2}, 3, 0, [5, 4, 1], 0),
        ({4: 1, 5: 1}, 2, 0, [4, 5], 2),
        ({4: 1, 5: 1}, 2, SHARE - 1, [1, 4], 1),
        ({4: 1, 5: 1}, 2, SHARE - 2, [4, 1], 0),
        ({1: 1}, 1, 5, [1], 0),
        ({5: 9}, 0, 3, [], 3),
        ({5: 9}, 9, 0, [5, 1, 2, 3, 4], 0),
    ],
    ids=[
        "by age alone",
        "the highest first",
        "by age among equals",
        "the oldest is owed",
        "the oldest is owed after one",
        "the oldest has the priority",
        "none wanted",
        "more wanted than there are",
    ],
)
def test_the_highest_come_first_and_the_oldest_in_its_turn(
    priorities, want, overtaken, chosen, after
):
    found, left = mixed(rows(1, 2, 3, 4, 5), priorities, want, overtaken)
    assert (ids(found), left) == (chosen, after)


def test_where_the_oldest_were_not_read_all_that_are_chosen_overtake_them():
    found, overtaken = mixed(rows(7, 8), {7: 1, 8: 2}, 2, 3, whole=False)
    assert (ids(found), overtaken) == ([8, 7], 5)


def test_one_of_eight_is_owed_to_the_oldest_however_the_claims_are_cut():
    for want in range(20):
        for overtaken in range(SHARE):
            left, count = overtaken, 0
            for _ in range(want):
                count, left = (count + 1, 0) if left == SHARE - 1 else (count, left + 1)
            assert owed(want, overtaken) == count


@pytest.mark.parametrize("seed", range(50))
def test_any_mix_takes_one_of_eight_in_the_order_without_priorities(seed):
    """Random claims of random sizes, while messages of higher priority come all the time."""
    chance = random.Random(seed)
    waiting = rows(*range(100))
    priorities = {i: chance.choice((0, 0, 1, 5)) for i in range(100)}
    order: list[int] = []
    overtaken, newest = 0, 100
    while any(row.msg_id < 100 for row in waiting):
        for _ in range(chance.randrange(12)):
            waiting += rows(newest)
            priorities[newest] = chance.choice((0, 5, 9))
            newest += 1
        found, overtaken = mixed(waiting, priorities, chance.randrange(1, 11), overtaken)
        order += ids(found)
        taken = set(ids(found))
        waiting = [row for row in waiting if row.msg_id not in taken]
        assert len(order) < SHARE * 101
    for msg_id in range(100):
        in_front = sum(other < msg_id for other in range(100))
        assert order.index(msg_id) < SHARE * (in_front + 1)


def test_few_rows_are_read_by_priority_while_none_of_the_highest_can_start():
    """Where all their objects are at work, a thousand would be read at each look for nothing."""
    urgent = Urgent(tables_for(MessageTable(priority="priority"), DATABASES["sqlite"]))
    assert urgent.there
    assert (urgent.rows(1), urgent.rows(10 * MOST_ROWS)) == (LEAST_ROWS, MOST_ROWS)
    urgent.found(False, 0.0)
    assert urgent.rows(10 * MOST_ROWS) == LEAST_ROWS
    urgent.found(True, 1.0)
    assert urgent.rows(10 * MOST_ROWS) == MOST_ROWS
