"""What an instance knows to be flagged by it, while other threads move its lanes."""

from __future__ import annotations

from typing import Any

import pytest

from msgworker.instance.running.in_flight import Execution, InFlight, Lane
from msgworker.store.rows import Row


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


def test_all_objects_of_a_call_are_waited_for_and_keep_their_parts() -> None:
    hand = InFlight()
    running = Execution(row(1), "old", 0.0, None, part=4)
    running.beside = [(row(2, "p"), 5), (row(3, None), 6)]
    hand.running[1] = running
    assert hand.running_under_lost_ids(lambda owner: False) == ({"o", "p"}, {1, 2, 3})
    assert hand.running_under_lost_ids(lambda owner: True) == (set(), set())
    assert hand.parts() == {4, 5, 6}
