"""What becomes of a message after a try."""

from __future__ import annotations

import pytest

from msgworker.message import Outcome, State, becomes

DONE, FAILED, DEAD, SPENT, LATER, RELEASED, CANCELLED = Outcome


@pytest.mark.parametrize(
    ("outcome", "tries", "allowed", "later", "written", "state"),
    [
        (DONE, 0, None, True, DONE, State.DONE),
        (DONE, 2, 1, False, DONE, State.DONE),
        (FAILED, 0, None, True, FAILED, State.FAILED),
        (FAILED, 1, None, True, FAILED, State.FAILED),
        (FAILED, 2, None, True, FAILED, State.DEAD),  # the last try of the table
        (FAILED, 7, None, True, FAILED, State.DEAD),  # the table allows fewer by now
        (FAILED, 0, 2, True, FAILED, State.FAILED),
        (FAILED, 1, 2, True, SPENT, State.DEAD),  # the last one of its handler
        (FAILED, 0, 1, True, SPENT, State.DEAD),
        (FAILED, 1, 1, True, SPENT, State.DEAD),  # a crash has counted one, or the code has changed
        (FAILED, 2, 3, True, FAILED, State.DEAD),
        (LATER, 0, None, True, LATER, State.NEW),
        (LATER, 1, None, True, LATER, State.FAILED),
        (LATER, 2, 1, True, LATER, State.FAILED),  # it counts no try
        (LATER, 0, None, False, FAILED, State.FAILED),  # too often: a failed try
        (LATER, 2, None, False, FAILED, State.DEAD),
        (LATER, 0, 1, False, SPENT, State.DEAD),
        (RELEASED, 0, 1, True, RELEASED, State.NEW),
        (RELEASED, 2, 1, False, RELEASED, State.FAILED),
        (DEAD, 0, None, True, DEAD, State.DEAD),
        (SPENT, 0, None, True, SPENT, State.DEAD),
        (CANCELLED, 0, None, True, CANCELLED, State.DEAD),
    ],
)
def test_what_is_written_for_a_try_and_what_its_message_is_then(
    outcome: Outcome, tries: int, allowed: int | None, later: bool, written: Outcome, state: State
) -> None:
    found = becomes(outcome, tries, max_tries=3, allowed=allowed, later=later)
    assert found == (written, state)
