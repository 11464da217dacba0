"""What an instance knows to be flagged by it, while other threads move its lanes."""

from __future__ import annotations

from typing import Any

import pytest

from msgworker.instance.running.in_flight import (
    LONGEST_SECONDS,
    PAUSE_SECONDS,
    Execution,
    InFlight,
    Lane,
    Quiesce,
    Reason,
    Step,
)
from msgworker.store.rows import Row
from tests.support.ticking import Ticking

# --- What an instance knows to be flagged by it, while other threads move its lanes.


def row(msg_id: int, object_id: str | None = "o") -> Row:
    return Row(msg_id, object_id, "t", None, 0, 0, 0, None, None)


class Moving(Lane):
    """A lane whose flag moves on between the reads of its place and its width."""

    armed = False

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if name in ("place", "width") and Moving.armed:
            Moving.armed = False
            self.advance()
        return value


@pytest.mark.parametrize("width", [1, 2, 3])
def test_a_message_that_gets_the_flag_is_known_whenever_the_lane_moves(width: int) -> None:
    lane, hand = Moving("a", [row(i) for i in range(1, 8)]), InFlight()
    lane.width = width
    hand.lanes = {lane}
    assert hand.flagged() == {1, 1 + width}
    Moving.armed = True
    assert 1 + width in hand.flagged()
    assert (lane.place, lane.width, lane.row.msg_id) == (width, 1, 1 + width)


@pytest.mark.parametrize(
    ("width", "taken", "ahead"), [(1, [1], 2), (3, [1, 2, 3], 4), (4, [1, 2, 3, 4], None)]
)
def test_a_try_takes_as_many_messages_of_the_run_as_the_lane_is_wide(
    width: int, taken: list[int], ahead: int | None
) -> None:
    lane = Lane("a", [row(i) for i in range(1, 5)])
    lane.width = width
    assert [one.msg_id for one in lane.taken()] == taken
    assert (lane.next_row and lane.next_row.msg_id) == ahead


def test_all_objects_of_a_call_are_waited_for_and_keep_their_slices() -> None:
    hand = InFlight()
    running = Execution(row(1), "old", 0.0, None, slice_value=4)
    running.beside = [(row(2, "p"), 5), (row(3, None), 6)]
    hand.running[1] = running
    assert hand.running_under_lost_ids(lambda owner: False) == ({"o", "p"}, {1, 2, 3})
    assert hand.running_under_lost_ids(lambda owner: True) == (set(), set())
    assert hand.slice_values() == {4, 5, 6}


# --- Hands run empty for a while, and work goes on where that lasts too long.


ALONE, NEW_ID = Reason.QUARANTINE, Reason.NEW_ID


def test_empty_hands_are_empty_at_once() -> None:
    one = Quiesce(Ticking())
    assert one.step(0, ALONE) is Step.EMPTY
    assert (one.active, one.reason) == (False, None)


def test_it_begins_once_and_lasts_until_nothing_is_in_hand() -> None:
    clock = Ticking()
    one = Quiesce(clock)
    assert one.step(3, ALONE) is Step.BEGUN
    assert (one.active, one.reason) == (True, ALONE)
    clock.now += 5.0
    assert one.step(1, ALONE) is Step.QUIESCING
    assert one.step(0, ALONE) is Step.EMPTY
    assert (one.active, one.reason) == (False, None)


def test_where_handlers_take_longer_work_goes_on_for_a_while_and_the_next_time_is_longer() -> None:
    clock = Ticking()
    one = Quiesce(clock)
    for seconds in (5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, LONGEST_SECONDS, LONGEST_SECONDS):
        assert one.step(1, NEW_ID) is Step.BEGUN
        clock.now += seconds
        assert one.step(1, NEW_ID) is Step.QUIESCING
        clock.now += 0.1
        assert one.step(1, NEW_ID) is Step.PAUSE
        assert not one.active
        clock.now += PAUSE_SECONDS - 0.2
        assert one.step(1, NEW_ID) is Step.PAUSE
        clock.now += 0.2
        assert one.step(1, NEW_ID) is Step.OPEN


def test_once_they_were_empty_it_is_short_again() -> None:
    clock = Ticking()
    one = Quiesce(clock)
    one.step(1, ALONE)
    clock.now += 5.1
    assert one.step(1, ALONE) is Step.PAUSE
    assert one.step(0, ALONE) is Step.EMPTY
    assert one.step(1, ALONE) is Step.BEGUN
    clock.now += 5.1
    assert one.step(1, ALONE) is Step.PAUSE


def test_without_a_reason_it_ends_and_the_next_time_is_as_long_as_it_had_become() -> None:
    clock = Ticking()
    one = Quiesce(clock)
    one.step(1, ALONE)
    clock.now += 5.1
    one.step(1, ALONE)
    one.end()
    assert one.step(1, NEW_ID) is Step.BEGUN
    assert one.reason is NEW_ID
    clock.now += 9.9
    assert one.step(1, NEW_ID) is Step.QUIESCING
