"""When a handler is called at all, and which message follows it."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Sequence

import pytest
import sqlalchemy as sa

from msgworker.config import Settings
from msgworker.db.database import DATABASES
from msgworker.instance.connections import call_user
from msgworker.instance.liveness.identity import Identity
from msgworker.instance.running.call import Caller
from msgworker.instance.running.handler import Registry, make_handler
from msgworker.instance.running.in_flight import Lane
from msgworker.instance.running.outcome import DONE
from msgworker.instance.settling.writer import settlements
from msgworker.instance.state import Controls, Setup, Shared
from msgworker.limit import Limit
from msgworker.message import Message, Outcome
from msgworker.store.controls import JOB_PAUSED
from msgworker.store.rows import Row
from msgworker.table.build import tables_for
from msgworker.table.spec import MessageTable


def setup_with(handle: Callable[[Message[object]], None]) -> Setup:
    return Setup(
        engine=sa.create_engine("sqlite://"),
        tables=tables_for(MessageTable(), DATABASES["sqlite"]),
        registry=Registry({None: make_handler(None, handle)}),
        settings=Settings(),
    )


def test_a_handler_does_not_start_under_an_id_that_was_lost_since_its_thread_looked() -> None:
    handled: list[int] = []

    def handle(msg: Message[object]) -> None:
        handled.append(msg.msg_id)

    setup = setup_with(handle)
    shared = Shared(setup, Identity("a1"))
    caller = Caller(setup, shared)
    ours, lost = (Lane("a1", [Row(i, "x", "t", None, 0, 0, 0, None, None)]) for i in (1, 2))
    caller.handle(ours)
    shared.identity.lost("a1")
    shared.continue_as("a1", "a2", 0.0, 0.0)
    caller.handle(lost)
    assert handled == [1]
    assert lost.result is not None
    assert lost.result.outcome is Outcome.RELEASED
    assert not shared.in_flight.running


def paused(*topics: str, ids: Sequence[int] = ()) -> Controls:
    job = [JOB_PAUSED] if ids else []
    return Controls(frozenset([*topics, *job]), paused_ids=frozenset(ids))


@pytest.mark.parametrize(
    ("controls", "next_id"),
    [
        (Controls(), 2),
        (paused("t"), 2),
        (paused("u"), None),
        (paused(ids=[1]), 2),
        (paused(ids=[2]), None),
        (Controls(limits={"u": Limit(1)}), None),
    ],
)
def test_what_is_done_passes_the_flag_on_but_to_what_is_paused_or_limited(
    controls: Controls, next_id: int | None
) -> None:
    setup = setup_with(lambda msg: None)
    shared = Shared(setup, Identity("a1"))
    shared.controls = controls
    rows = [Row(i, "x", topic, None, 0, 0, 0, None, None) for i, topic in ((1, "t"), (2, "u"))]
    lane = Lane("a1", rows)
    lane.result = DONE
    (found,) = settlements([lane], setup, shared)
    assert (found.msg_id, found.outcome, found.next_id) == (1, Outcome.DONE, next_id)
    shared.stop.requested.set()
    assert [one.next_id for one in settlements([lane], setup, shared)] == [None]


@pytest.mark.parametrize("hidden", [False, True])
def test_what_has_taken_all_memory_is_given_back_before_its_outcome_is_written(
    hidden: bool,
) -> None:
    class Taken:
        pass

    held: list[weakref.ref[Taken]] = []

    def hog() -> None:
        taken = Taken()
        held.append(weakref.ref(taken))
        try:
            raise MemoryError
        except MemoryError:
            if hidden:
                raise ValueError("not now") from None
            raise

    with pytest.raises(ValueError if hidden else MemoryError) as caught:
        call_user(os.getpid(), hog)
    assert held[0]() is None
    assert caught.traceback
