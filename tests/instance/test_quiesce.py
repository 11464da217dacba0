"""Hands run empty for a while, and work goes on where that lasts too long."""

from __future__ import annotations

from msgworker.instance.running.in_flight import (
    LONGEST_SECONDS,
    PAUSE_SECONDS,
    Phase,
    Quiesce,
    Reason,
)
from tests.support.ticking import Ticking

ALONE, NEW_ID = Reason.QUARANTINE, Reason.NEW_ID


def test_empty_hands_are_empty_at_once() -> None:
    one = Quiesce(Ticking())
    assert one.step(0, ALONE) is Phase.EMPTY
    assert (one.active, one.reason) == (False, None)


def test_it_begins_once_and_lasts_until_nothing_is_in_hand() -> None:
    clock = Ticking()
    one = Quiesce(clock)
    assert one.step(3, ALONE) is Phase.BEGUN
    assert (one.active, one.reason) == (True, ALONE)
    clock.now += 5.0
    assert one.step(1, ALONE) is Phase.QUIESCING
    assert one.step(0, ALONE) is Phase.EMPTY
    assert (one.active, one.reason) == (False, None)


def test_where_handlers_take_longer_work_goes_on_for_a_while_and_the_next_time_is_longer() -> None:
    clock = Ticking()
    one = Quiesce(clock)
    for seconds in (5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, LONGEST_SECONDS, LONGEST_SECONDS):
        assert one.step(1, NEW_ID) is Phase.BEGUN
        clock.now += seconds
        assert one.step(1, NEW_ID) is Phase.QUIESCING
        clock.now += 0.1
        assert one.step(1, NEW_ID) is Phase.PAUSE
        assert not one.active
        clock.now += PAUSE_SECONDS - 0.2
        assert one.step(1, NEW_ID) is Phase.PAUSE
        clock.now += 0.2
        assert one.step(1, NEW_ID) is Phase.OPEN


def test_once_they_were_empty_it_is_short_again() -> None:
    clock = Ticking()
    one = Quiesce(clock)
    one.step(1, ALONE)
    clock.now += 5.1
    assert one.step(1, ALONE) is Phase.PAUSE
    assert one.step(0, ALONE) is Phase.EMPTY
    assert one.step(1, ALONE) is Phase.BEGUN
    clock.now += 5.1
    assert one.step(1, ALONE) is Phase.PAUSE


def test_without_a_reason_it_ends_and_the_next_time_is_as_long_as_it_had_become() -> None:
    clock = Ticking()
    one = Quiesce(clock)
    one.step(1, ALONE)
    clock.now += 5.1
    one.step(1, ALONE)
    one.end()
    assert one.step(1, NEW_ID) is Phase.BEGUN
    assert one.reason is NEW_ID
    clock.now += 9.9
    assert one.step(1, NEW_ID) is Phase.QUIESCING
