"""Which rows of a look become candidates, and in which order."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest

from msgworker.db import DATABASES
from msgworker.instance.claiming.choice import (
    LEAST_ROWS,
    LONGEST_REST_SECONDS,
    MOST_ROWS,
    READ_AGAIN,
    SHARE,
    HeadChooser,
    SkippedRanges,
    Urgent,
    mixed,
    owed,
)
from msgworker.instance.claiming.search import Search
from msgworker.store.candidates import Candidate
from msgworker.store.ranked import Ranked
from msgworker.table import MessageTable, tables_for

# --- Which stretches of a way are passed over, and until when.


PAGE = 10


class Way:
    """Numbers up to `end`, of which some are looked for; a page takes a second."""

    def __init__(self, end: int, *ours: int) -> None:
        self.skipped, self.end, self.ours = SkippedRanges(), end, set(ours)
        self.now, self.pages = 0.0, list[tuple[int, int]]()
        self.at: int | None = None
        self.met = set[int]()
        self.met_now = False
        self.seconds = 1.0

    def step(self, *, busy: bool) -> bool:
        """Whether the way is at its end."""
        self.met_now = False
        at, over = self.skipped.skip(self.at, self.now, busy=busy)
        if not over:
            bound = self.skipped.bound(at)
            low, last = at or 0, self.end if bound is None else bound
            to = low + PAGE if low + PAGE < last else bound
            high = self.end if to is None else to
            self.pages.append((low, high))
            found = {one for one in self.ours if low < one <= high}
            self.met |= found
            self.met_now = bool(found)
            self.now += self.seconds
            full = to != bound
            self.skipped.was_read(
                at, to, found=bool(found), full=full, seconds=self.seconds, now=self.now
            )
            self.at = to
            over = to is None
        if over:
            self.at = None
            self.skipped.start()
        return over

    def look(self, *, busy: bool, pages: int = 2) -> None:
        """As a look does it: so many steps, then again from the start where there was something."""
        for _ in range(pages):
            over, met = self.step(busy=busy), self.met_now
            if over or met:
                return
        self.at = None
        self.skipped.start()

    def round(self, *, busy: bool) -> list[tuple[int, int]]:
        """The pages read in one round."""
        self.pages = []
        while not self.step(busy=busy):
            pass
        return self.pages


def test_where_nothing_was_found_is_passed_over_in_the_next_round():
    way = Way(100, 5, 95)
    assert len(way.round(busy=False)) == 10
    assert way.round(busy=True) == [(0, 10), (90, 100)]
    assert way.met == {5, 95}


def test_while_there_is_other_work_a_twentieth_of_the_time_is_for_what_was_not_read():
    way = Way(100, 5)
    pages = [len(way.round(busy=True)) for _ in range(5)]
    assert pages == [2, 1, 1, 1, 1]  # one of them is that with ours
    way.now += READ_AGAIN
    assert way.round(busy=True)[-1] == (20, 30)


def test_who_has_no_other_work_reads_all_at_once():
    way = Way(100, 5)
    way.round(busy=True)
    way.round(busy=False)
    assert (0, 10) in way.pages
    assert way.pages[-1] == (90, 100)


def test_what_comes_into_a_stretch_is_met_after_a_multiple_of_the_time_that_all_took():
    way = Way(100, 5)
    way.seconds = 0.1
    way.round(busy=False)
    way.ours |= {55, 35}
    read, waited = way.now, 0.0
    while not {55, 35} <= way.met:
        way.round(busy=True)
        waited = way.now - read
        assert waited < 60
    assert READ_AGAIN * 0.9 - 1 < waited < 2 * READ_AGAIN


def test_who_has_no_other_work_meets_it_sooner():
    way = Way(100, 5)
    way.seconds = 0.1
    way.round(busy=False)
    way.ours.add(55)
    read = way.now
    while 55 not in way.met:
        way.round(busy=False)
    assert way.now - read < READ_AGAIN / 2


def test_a_page_that_took_long_keeps_nothing_waiting_for_longer_than_the_longest_rest():
    way = Way(20)
    way.seconds = 600.0
    way.round(busy=False)
    way.ours.add(15)
    way.now += LONGEST_REST_SECONDS
    way.round(busy=True)
    way.now += LONGEST_REST_SECONDS
    way.round(busy=True)
    assert way.met == {15}


@pytest.mark.parametrize("busy", [False, True])
def test_looks_that_begin_again_at_the_start_reach_the_end(busy):
    way = Way(3000)
    way.seconds = 0.02
    way.look(busy=busy)
    way.ours.add(2995)
    for round_ in range(2):
        begun = way.now
        while 2995 not in way.met:
            way.look(busy=busy)
            way.now += 0.01 if busy else 4 * 2 * way.seconds
            assert way.now - begun < 2 * READ_AGAIN * 300 * way.seconds, round_
        way.met.clear()


def test_few_entries_alone_are_read_each_time():
    way = Way(8)
    assert way.round(busy=True) == way.round(busy=True) == [(0, 8)]


def test_nothing_is_passed_over_after_a_clear():
    way = Way(100, 5)
    way.round(busy=False)
    way.skipped.clear()
    assert len(way.round(busy=True)) == 10
    assert way.round(busy=True) == [(0, 10)]


@pytest.mark.parametrize("seed", range(30))
def test_whatever_comes_and_goes_is_met(seed):
    rng = random.Random(seed)
    way = Way(rng.randint(1, 300))
    way.seconds = rng.choice([0.001, 0.01, 0.1])
    for _ in range(30):
        new = {rng.randint(1, way.end) for _ in range(rng.randint(0, 4))}
        way.ours = {one for one in way.ours if rng.random() < 0.7} | new
        way.met.clear()
        begun = way.now
        while not way.ours <= way.met and way.now - begun <= 3 * LONGEST_REST_SECONDS:
            if rng.random() < 0.02:
                way.skipped.clear()
            way.step(busy=rng.random() < 0.9)
            way.now += rng.choice([0.0, 0.01, 0.5])
        assert way.ours <= way.met


# --- Which rows of a look become candidates, without a database.


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
