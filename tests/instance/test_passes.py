"""What a cursor over many objects passes over, and until when."""

from __future__ import annotations

import random

import pytest

from msgworker.instance.claiming.heads import LONGEST_REST_SECONDS
from msgworker.instance.claiming.passes import READ_AGAIN, SkippedRanges

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
