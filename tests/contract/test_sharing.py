"""What waits behind slow handlers is given back, so that others have it."""

from __future__ import annotations

import time
from typing import Any

import pytest

from msgworker import App
from msgworker.clock import clock
from msgworker.instance.running.in_flight import Execution
from msgworker.instance.state import Peers
from msgworker.store import lease
from tests.support.rounds import fetch, loses_its_lease, trust_until
from tests.support.rows import send


def keep_lease(one, app: App) -> None:
    """It is not renewed here, and must not end however long the test takes."""
    with app.engine.begin() as conn:
        assert lease.renew(conn, app.tables, one.shared.identity.id, ttl=3600.0)
    trust_until(one.shared.identity, clock() + 3600.0)


def in_hand_and_slow(one, app: App, *objects: Any, age: float = 1.5) -> list[Any]:
    """Claim all of these as quick work; then the first one's handler runs for so long."""
    keep_lease(one, app)
    ids = send(app, *objects)
    assert fetch(one) == len(set(objects))
    started, *waiting = sorted(one.lanes.take_back(), key=lambda lane: lane.row.msg_id)
    one.lanes.put(waiting)
    since = time.monotonic() - age
    one.shared.in_flight.running[1] = Execution(started.row, started.owner, since, None)
    return ids


def test_what_waits_behind_slow_handlers_is_given_back_where_others_live(one, app, table, ran):
    in_hand_and_slow(one, app, "a", "a", "b", "b", "c")
    one.shared.peers = Peers(0, 2)
    assert table.statuses == [1, 0, 1, 0, 1]
    assert fetch(one) == -1
    assert table.statuses == [1, 0, 0, 0, 0]
    assert set(table.column("error_try_times")) == {0}
    assert table.column("claimed_by")[1:] == [None] * 4
    tally = one.tally
    assert (tally.shared, tally.released, tally.done) == (2, 0, 0)
    for _ in range(5):  # and they are not claimed again
        assert fetch(one) == -1
    assert (tally.claims, tally.shared) == (1, 2)
    assert {lane.row.object_id for lane in one.shared.in_flight.lanes} == {"a"}
    app.drain(threads=1, linger=0)  # another instance has them now
    assert table.statuses == [1, 0, 2, 2, 2]
    assert sorted(ran) == [3, 4, 5]
    assert ran.index(3) < ran.index(4)


@pytest.mark.parametrize(("slots", "age"), [(1, 600.0), (2, 0.2)])
def test_what_waits_is_kept_while_nobody_else_lives_or_handlers_are_young(
    one, app, table, slots, age
):
    in_hand_and_slow(one, app, "a", "b", "c", age=age)
    one.shared.peers = Peers(0, slots)
    assert fetch(one) == -1
    assert table.statuses == [1, 1, 1]
    assert one.tally.shared == 0


def test_the_newest_are_given_back_first(one, app, table):
    in_hand_and_slow(one, app, "a", "b", "c", "d", age=0.0)
    one.shared.peers = Peers(0, 2)
    one.lane_limit.keep = 3
    one.fetcher.share(len(one.shared.in_flight.lanes))
    assert table.statuses == [1, 1, 1, 0]


def test_nothing_is_given_back_while_our_lease_is_in_doubt(one, app, table):
    in_hand_and_slow(one, app, "a", "b")
    one.shared.peers = Peers(0, 2)
    trust_until(one.shared.identity, 0.0)
    assert fetch(one) == -1
    assert table.statuses == [1, 1]


def test_a_slow_handler_of_a_lost_id_keeps_its_thread(one, app, table):
    (a, _) = send(app, "a", "b")
    assert fetch(one) == 2
    lane = next(lane for lane in one.shared.in_flight.lanes if lane.row.msg_id == a)
    one.shared.in_flight.running[1] = Execution(
        lane.row, lane.owner, time.monotonic() - 600.0, None
    )
    loses_its_lease(one)
    table.edit(status=0, claimed_by=None)
    assert fetch(one) == -1  # its one thread is not free: others may have them
    assert table.statuses == [0, 0]
    one.shared.in_flight.running.clear()
    assert fetch(one) == 2
