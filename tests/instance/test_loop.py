"""Heads that are looked for while there is no room for them yet."""

from __future__ import annotations

import pytest

from msgworker.instance.claiming.loop import OLD_SECONDS, REST_SECONDS, LookAhead
from msgworker.instance.claiming.search import Look
from msgworker.store.candidates import Candidate


class Clock:
    """Seconds that a test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ahead(clock: Clock) -> LookAhead:
    return LookAhead(threads=2, clock=clock)


def head(msg_id: int) -> Candidate:
    return Candidate(msg_id, None, 0, 0, 0, "t", None)


def look(count: int, *, quarantined: bool = False) -> Look:
    alone = head(1) if quarantined else None
    return Look([head(i) for i in range(count)], alone, complete=True, round_over=True)


def pays(ahead: LookAhead, held: int = 10, run: float = 1.0, seconds: float | None = 1e-6) -> bool:
    return ahead.pays(held, run_length=run, handler_seconds=seconds)


def test_it_gives_what_fits_and_no_longer_knows_what_else_there_is(ahead: LookAhead) -> None:
    ahead.keep(look(5), "me")
    taken = ahead.take("me", 3)
    assert taken is not None
    assert [c.msg_id for c in taken.candidates] == [0, 1, 2]
    assert not taken.saw_all
    assert ahead.take("me", 3) is None


def test_what_is_old_or_too_little_or_of_another_id_is_looked_for_again(
    ahead: LookAhead, clock: Clock
) -> None:
    ahead.keep(look(2), "me")
    assert ahead.take("me", 3) is None
    ahead.keep(look(3), "me")
    assert ahead.take("another", 3) is None
    ahead.keep(look(3, quarantined=True), "me")
    assert ahead.take("me", 3) is None
    ahead.keep(look(3), "me")
    clock.now += OLD_SECONDS * 1.01
    assert ahead.take("me", 3) is None
    ahead.keep(look(3), "me")
    ahead.forget()
    assert ahead.take("me", 3) is None


def test_it_rests_after_a_look_that_did_not_help(ahead: LookAhead, clock: Clock) -> None:
    assert pays(ahead)
    ahead.keep(look(2), "me")
    assert not pays(ahead)  # there is one
    ahead.take("me", 3)
    assert not pays(ahead)
    clock.now += REST_SECONDS
    assert pays(ahead)


def test_it_does_not_pay_where_lanes_last(ahead: LookAhead) -> None:
    assert not pays(ahead, seconds=None)
    assert not pays(ahead, run=20.0)
    assert not pays(ahead, held=1000, seconds=0.001)
    assert pays(ahead, held=1000, seconds=4e-6)
