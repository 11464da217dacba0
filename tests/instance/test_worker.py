"""The type that a worker and the workers of several databases have in common."""

from __future__ import annotations

import inspect

import pytest

from msgworker import Worker, Workers


@pytest.mark.parametrize("name", ["start", "stop", "wake", "run", "drain"])
def test_one_worker_and_several_take_the_same_keywords(name: str) -> None:
    one, several = getattr(Worker, name), getattr(Workers, name)
    assert inspect.signature(one).parameters == inspect.signature(several).parameters
    assert one.__doc__
    assert several.__doc__


def test_the_end_of_the_block_stops_what_was_started_in_it() -> None:
    class Some(Workers):
        stopped = 0

        def stop(self, grace: float = 30.0) -> bool:
            self.stopped += 1
            return True

    with Some({}) as some:
        assert some.stopped == 0
    assert some.stopped == 1
