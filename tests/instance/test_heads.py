"""Which rows of a look become candidates, and in which order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest

from msgworker.db.database import DATABASES
from msgworker.instance.claiming.heads import (
    LEAST_ROWS,
    MOST_ROWS,
    SHARE,
    HeadChooser,
    Search,
    Urgent,
    Wanted,
    mixed,
    owed,
)
from msgworker.store.candidates import Candidate
from msgworker.store.ranked import Ranked
from msgworker.table.build import tables_for
from msgworker.table.spec import MessageTable

# --- Which rows of a look become candidates, without a database.


Offer = Callable[[HeadChooser, Sequence[Candidate]], None]


def looked(seed: int, offer: Offer) -> list[Any]:
    """What a look at many odd rows comes to."""
    chance = Random(seed)
    table = MessageTable(max_tries=chance.choice((1, 3)))
    topics = chance.choice((None, frozenset({"t", "u"})))
    search = Search(tables_for(table, DATABASES["postgresql"]), topics)
    paused = chance.choice((frozenset(), frozenset({"u"})))
    passed, skipped = {f"o{chance.randrange(9)}"}, {chance.randrange(60)}
    slots = chance.choice((1, 1, 3))
    skips = {"skip_objects": passed, "skip_ids": skipped, "paused": paused}
    pick = HeadChooser(search, Wanted(1, slot=chance.randrange(3), slots=slots, **skips))

    def row(msg_id: int) -> Candidate:
        return Candidate(
            msg_id,
            chance.choice((None, *(f"o{i}" for i in range(25)))),
            chance.choice((0, 0, 0, 0, 1, -1, 7)),
            chance.choice((0, 0, 0, 1, 2, 0.5)),
            chance.choice((0, 0, 0, 1)),
            chance.choice(("t", "t", "u", "x", "default", None)),
            chance.choice((1, 1, 1, 0)),
        )

    if chance.random() < 0.3:
        for msg_id in range(50, 55):
            pick.offer_waited(row(msg_id))
    if chance.random() < 0.3:
        heads = [row(40), row(41)]
        pick.offer_ranked(Ranked(heads, priorities={40: 2, 41: 1}))
    offer(pick, [row(msg_id) for msg_id in (*range(40), 3, 4)])
    want = chance.choice((4, 30))
    return [pick.quarantined, dict(search.unknown_topics), pick.chosen(want)]


def one_by_one(pick: HeadChooser, rows: Sequence[Candidate]) -> None:
    for row in rows:
        pick.offer(row)


def test_rows_that_are_offered_together_give_the_heads_that_they_give_one_by_one() -> None:
    quarantined = 0
    for seed in range(500):
        together = looked(seed, HeadChooser.offer_all)
        assert together == looked(seed, one_by_one), seed
        quarantined += together[0] is not None
    assert quarantined > 50


def test_the_head_of_an_object_that_cannot_run_holds_back_those_behind_it() -> None:
    search = Search(tables_for(MessageTable(), DATABASES["postgresql"]), None)
    pick = HeadChooser(search, Wanted(1))
    pick.offer_all(
        [Candidate(1, "a", 1, 0, 0, "t", 1)]
        + [Candidate(i, same, 0, 0, 0, "t", 1) for i, same in enumerate("abb", 2)]
        + [Candidate(i, None, 0, 0, 0, "t", 1) for i in (5, 6)]
    )
    assert [row.msg_id for row in pick.chosen(9)[0]] == [3, 5, 6]


def shared_out(
    *, oldest_of_others: int = 0, most_of_others: int = 100, want: int = 40
) -> tuple[list[int], int]:
    """The heads chosen among 40, of which one in four is of our share or so; and how many are of
    other shares."""
    search = Search(tables_for(MessageTable(), DATABASES["postgresql"]), None)
    pick = HeadChooser(search, Wanted(1, slot=1, slots=4))
    pick.oldest_of_others, pick.most_of_others = oldest_of_others, most_of_others
    pick.offer_all([Candidate(i, f"o{i}", 0, 0, 0, "t", 1) for i in range(1, 41)])
    return [row.msg_id for row in pick.chosen(want)[0]], pick.of_others


def test_the_eldest_of_other_shares_come_first_in_some_looks() -> None:
    own, none = shared_out(want=8)
    assert none == 0
    found, others = shared_out(want=8, oldest_of_others=2)
    assert others == 2
    assert found == [i for i in range(1, 41) if i not in own][:2] + own[:6]


def test_other_shares_are_chosen_only_as_far_as_they_are_in_reach() -> None:
    own, _ = shared_out(want=8)
    found, others = shared_out(want=200, most_of_others=3)
    assert others == 3
    assert set(own) < set(found)
    assert shared_out(want=200)[1] == 40 - (len(found) - 3)


# --- How messages with a priority are mixed with the others.


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
    chance = Random(seed)
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
    assert urgent.has_priority
    assert (urgent.rows(1), urgent.rows(10 * MOST_ROWS)) == (LEAST_ROWS, MOST_ROWS)
    urgent.found(False, 0.0)
    assert urgent.rows(10 * MOST_ROWS) == LEAST_ROWS
    urgent.found(True, 1.0)
    assert urgent.rows(10 * MOST_ROWS) == MOST_ROWS
