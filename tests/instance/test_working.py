"""The type that a worker and the workers of several databases have in common."""

from __future__ import annotations

import inspect

import pytest

from msgworker import Worker, Workers
from msgworker.instance.stop import Working


@pytest.mark.parametrize("name", sorted(Working.__abstractmethods__))
def test_one_worker_and_several_take_the_same_keywords(name: str) -> None:
    said = inspect.signature(getattr(Working, name)).parameters
    for kind in (Worker, Workers):
        assert inspect.signature(getattr(kind, name)).parameters == said
        assert getattr(kind, name).__doc__


def test_the_end_of_the_block_stops_what_was_started_in_it() -> None:
    class Some(Workers):
        stopped = 0

        def stop(self, grace: float = 30.0) -> bool:
            self.stopped += 1
            return True

    with Some({}) as some:
        assert some.stopped == 0
    assert some.stopped == 1
