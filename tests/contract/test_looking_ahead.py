"""Heads that were found before there was room for them, and what may happen to them meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from msgworker import App
from msgworker.instance.claiming.loop import LookAhead
from msgworker.instance.instance import Instance
from msgworker.instance.running.outcome import Result
from msgworker.instance.state import Peers
from msgworker.message import Outcome
from tests.support.rounds import beat, declared_dead
from tests.support.rows import send

ROOM = 4


@pytest.fixture
def looks() -> list[int]:
    """How many heads each look was to find."""
    return []


@pytest.fixture
def app(make_app: Any) -> App:
    made: App = make_app(lanes_limit=ROOM)
    made.create_schema()
    return made


@pytest.fixture
def full(one: Instance, app: App, looks: list[int], monkeypatch: Any) -> Instance:
    """It holds all that it may hold, and its next round looks ahead."""
    look = one.finder.look

    def watched(room: int, held: int) -> Any:
        looks.append(room)
        return look(room, held)

    monkeypatch.setattr(one.finder, "look", watched)
    one.fetcher.kept_look = LookAhead(threads=1, clock=lambda: 0.0)  # nothing is old
    send(app, *[None] * ROOM)
    assert one.fetcher.run_once() == ROOM
    looks.clear()
    return one


def end_all(one: Instance) -> None:
    """The messages of all lanes are done."""
    lanes = one.lanes.take_back()
    for lane in lanes:
        lane.result = Result(Outcome.DONE)
        one.settler.add(lane, False)
    one.settler.flush_waiting()


def held(one: Instance) -> list[int]:
    return sorted(lane.row.msg_id for lane in one.shared.in_flight.lanes)


def test_the_next_claim_needs_no_look(full, app, looks):
    ids = send(app, *[None] * 6)
    assert full.fetcher.run_once() == -1
    assert full.fetcher.run_once() == -1
    assert looks == [ROOM]  # once
    end_all(full)
    looks.clear()
    assert full.fetcher.run_once() == ROOM
    assert looks == []
    assert held(full) == ids[:ROOM]


def test_what_is_taken_meanwhile_is_not_claimed(full, app, table):
    ids = send(app, *[None] * 6)
    full.fetcher.run_once()
    table.edit(table.where(msg_id=ids[0]), status=1, claimed_by="another")
    table.edit(table.where(msg_id=ids[1]), status=2)
    table.edit(table.where(msg_id=ids[2]), status=-1, error_try_times=1)
    end_all(full)
    assert full.fetcher.run_once() == 1
    assert held(full) == [ids[3]]
    assert full.fetcher.run_once() == 3  # looked for again
    assert held(full) == [ids[2], *ids[3:]]


def test_what_is_no_longer_the_head_of_its_object_waits(full, app, table):
    first, second, *others = send(app, "a", "a", "b", "c", "d")
    table.edit(table.where(msg_id=first), status=2)
    full.fetcher.run_once()
    table.edit(table.where(msg_id=first), status=0)  # an operator reruns it
    end_all(full)
    full.fetcher.run_once()
    assert second not in held(full)
    assert held(full) == others


def test_topics_that_are_paused_meanwhile_are_not_claimed(full, app, looks):
    ids = send(app, *[None] * 6)
    full.fetcher.run_once()
    app.ops.pause("t")
    beat(full)
    assert full.shared.controls.apart == {"t"}
    end_all(full)
    looks.clear()
    assert full.fetcher.run_once() == 0
    assert looks != []
    assert held(full) == []
    app.ops.resume("t")
    beat(full)
    full.finder.search.forget()
    assert full.fetcher.run_once() == ROOM
    assert held(full) == ids[:ROOM]


def test_what_was_found_under_a_lost_id_is_not_claimed(full, app, looks):
    send(app, *[None] * 6)
    full.fetcher.run_once()
    declared_dead(full)
    looks.clear()
    full.fetcher.run_once()
    assert looks != []


def test_what_was_found_says_nothing_about_what_is_left(full, app, table, looks):
    ids = send(app, *[None] * ROOM)
    full.fetcher.run_once()
    for msg_id in ids:
        table.edit(table.where(msg_id=msg_id), status=2)
    end_all(full)
    looks.clear()
    assert full.fetcher.run_once() == 0
    assert full.fetcher.run_once() == 0
    assert looks != []


def test_nothing_is_looked_for_where_lanes_hold_runs(one, app, looks, monkeypatch):
    send(app, *"abcd", *"abcd", *"efgh")
    assert one.fetcher.run_once() == ROOM
    monkeypatch.setattr(one.finder, "look", lambda *_: looks.append(0))
    assert one.fetcher.run_once() == -1
    assert looks == []


def test_nothing_is_looked_for_beside_another_instance(full, app, looks):
    send(app, *[None] * 6)
    full.shared.peers = Peers(0, 2)
    assert full.fetcher.run_once() == -1
    assert looks == []
