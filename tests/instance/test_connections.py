"""Connections of a role."""

from __future__ import annotations

import threading
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from msgworker.db.database import Trouble
from msgworker.db.errors import trouble
from msgworker.errors import DatabaseUnavailable
from msgworker.instance.connections import Connections, FairLock


def test_a_connection_whose_set_up_failed_is_given_up(app):
    """Cut in its first statement, it would be kept in an invalid transaction for the next use."""
    link = Connections(app.engine, None, ("SELECT 1 FROM not_there", "SELECT 1"))
    for _ in range(2):
        with pytest.raises(DBAPIError), link.statement():
            pytest.fail("it was not set up")
    link.close()


def test_no_connection_at_all_is_an_outage_whatever_the_driver_says(app) -> None:
    told: list[int] = []

    def connect(*args: Any, **options: Any) -> Any:
        raise psycopg.OperationalError("an error of no known kind")

    engine = sa.create_engine("postgresql+psycopg://", creator=connect)
    link = Connections(engine, none_left=lambda: told.append(1))
    with pytest.raises(DatabaseUnavailable) as error, link.transaction():
        pytest.fail("there is no connection")
    assert trouble(error.value) is Trouble.LOST
    assert told == []  # no other role need give back its own


def _taken(turns: FairLock) -> bool:
    """Whether the turn cannot be had at once."""
    got = threading.Event()
    thread = threading.Thread(target=lambda: (turns.__enter__(), got.set()), daemon=True)
    thread.start()
    return not got.wait(0.5)


class Holder:
    """A thread that holds the turn until it is told to give it back, or ends with it."""

    def __init__(self, turns: FairLock) -> None:
        self._turns = turns
        self._told, self._gives = threading.Event(), True
        self._thread = threading.Thread(target=self._hold, daemon=True)
        took = self._took = threading.Event()
        self._thread.start()
        assert took.wait(60)

    def _hold(self) -> None:
        self._turns.__enter__()
        self._took.set()
        self._told.wait()
        if self._gives:
            self._turns.__exit__()

    def end(self, *, gives: bool) -> None:
        self._gives = gives
        self._told.set()
        self._thread.join(60)


@pytest.mark.parametrize("handed_over", [False, True])
def test_who_is_interrupted_while_waiting_for_a_turn_does_not_keep_it(handed_over: bool) -> None:
    turns = FairLock()
    holder = Holder(turns)

    def interrupted() -> bool:
        if handed_over:
            holder.end(gives=True)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        turns.take(interrupted)
    if not handed_over:
        holder.end(gives=True)
    assert not _taken(turns)


def test_who_stops_waits_for_a_turn_no_longer_than_the_stop() -> None:
    turns, over = FairLock(), threading.Event()
    Holder(turns)
    threading.Timer(0.2, over.set).start()
    with pytest.raises(DatabaseUnavailable, match="turn"), turns.until(over.is_set):
        raise AssertionError
    assert _taken(turns)


@pytest.mark.parametrize("waits", [False, True])
def test_a_turn_that_a_thread_could_not_give_back_is_taken_from_it(waits: bool) -> None:
    turns = FairLock()
    with turns:
        pass
    turns.__enter__()
    turns.__enter__()  # this thread has lost it: it asks for another
    turns.__exit__()
    holder = Holder(turns)
    if waits:
        threading.Timer(0.2, lambda: holder.end(gives=False)).start()
    else:
        holder.end(gives=False)
    with turns:
        assert _taken(turns)


def test_a_thread_that_runs_out_of_memory_while_it_gives_back_its_turn_gives_it_back(sqlite):
    """Else all others would wait for it, and it may wait for them."""
    failed: list[int] = []

    class Hungry(FairLock):
        def __exit__(self, *exc: object) -> None:
            if not failed:
                failed.append(1)
                raise MemoryError
            super().__exit__(*exc)

    turns = Hungry()
    link = Connections(sqlite.engine(), turns)
    with link.transaction():
        assert _taken(turns)
    assert failed
    turns.__exit__()  # that of `_taken`
    assert not _taken(turns)
    link.close()
