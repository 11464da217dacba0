"""When a handler is called at all."""

from __future__ import annotations

import os
import weakref

import pytest
import sqlalchemy as sa

from msgworker.config import Settings
from msgworker.db.database import DATABASES
from msgworker.instance.connections import call_user
from msgworker.instance.liveness.identity import Identity
from msgworker.instance.running.call import Caller
from msgworker.instance.running.handler import Registry, make_handler
from msgworker.instance.running.in_flight import Lane
from msgworker.instance.state import Setup, Shared
from msgworker.message import Message, Outcome
from msgworker.store.rows import Row
from msgworker.table.build import tables_for
from msgworker.table.spec import MessageTable


def test_a_handler_does_not_start_under_an_id_that_was_lost_since_its_thread_looked() -> None:
    handled: list[int] = []

    def handle(msg: Message[object]) -> None:
        handled.append(msg.msg_id)

    setup = Setup(
        engine=sa.create_engine("sqlite://"),
        tables=tables_for(MessageTable(), DATABASES["sqlite"]),
        registry=Registry({None: make_handler(None, handle)}),
        settings=Settings(),
    )
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
