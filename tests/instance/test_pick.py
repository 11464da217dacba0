"""Which rows of a look become candidates, without a database."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from msgworker.db import DATABASES
from msgworker.instance.claiming.choice import HeadChooser
from msgworker.instance.claiming.search import Search
from msgworker.store.candidates import Candidate
from msgworker.store.ranked import Ranked
from msgworker.table import MessageTable, tables_for

Offer = Callable[[HeadChooser, Sequence[Candidate]], None]


def looked(seed: int, offer: Offer) -> list[Any]:
    """What a look at many odd rows comes to."""
    chance = Random(seed)
    table = MessageTable(max_tries=chance.choice((1, 3)))
    topics = chance.choice((None, frozenset({"t", "u"})))
    search = Search(tables_for(table, DATABASES["postgresql"]), topics)
    search.paused = chance.choice((frozenset(), frozenset({"u"})))
    passed, skipped = {f"o{chance.randrange(9)}"}, {chance.randrange(60)}
    slots = chance.choice((1, 1, 3))
    pick = HeadChooser(search, passed, skipped, chance.randrange(3), slots)

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
    pick = HeadChooser(search, set(), set(), 0, 1)
    pick.offer_all(
        [Candidate(1, "a", 1, 0, 0, "t", 1)]
        + [Candidate(i, same, 0, 0, 0, "t", 1) for i, same in enumerate("abb", 2)]
        + [Candidate(i, None, 0, 0, 0, "t", 1) for i in (5, 6)]
    )
    assert [row.msg_id for row in pick.chosen(9)[0]] == [3, 5, 6]


def shared_out(
    *, oldest_of_others: int = 0, reach: int = 100, want: int = 40
) -> tuple[list[int], int]:
    """The heads chosen among 40, of which one in four is of our share or so; and how many are of
    other shares."""
    search = Search(tables_for(MessageTable(), DATABASES["postgresql"]), None)
    pick = HeadChooser(search, set(), set(), 1, 4)
    pick.oldest_of_others, pick.reach = oldest_of_others, reach
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
    found, others = shared_out(want=200, reach=3)
    assert others == 3
    assert set(own) < set(found)
    assert shared_out(want=200)[1] == 40 - (len(found) - 3)
