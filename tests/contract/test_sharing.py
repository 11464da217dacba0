"""What waits behind slow handlers is given back, so that others have it."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from msgworker import App
from msgworker.clock import clock
from msgworker.instance.claiming import heads, search
from msgworker.instance.claiming.heads import Wanted
from msgworker.instance.claiming.search import TableSearch
from msgworker.instance.running.in_flight import Execution
from msgworker.instance.state import Peers
from msgworker.store import candidates, lease
from msgworker.table.columns import Slice
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
    assert fetch(one) is None
    assert table.statuses == [1, 0, 0, 0, 0]
    assert set(table.column("error_try_times")) == {0}
    assert table.column("claimed_by")[1:] == [None] * 4
    tally = one.tally
    assert (tally.given_back, tally.released, tally.done) == (2, 0, 0)
    for _ in range(5):  # and they are not claimed again
        assert fetch(one) is None
    assert (tally.claims, tally.given_back) == (1, 2)
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
    assert fetch(one) is None
    assert table.statuses == [1, 1, 1]
    assert one.tally.given_back == 0


def test_the_newest_are_given_back_first(one, app, table):
    in_hand_and_slow(one, app, "a", "b", "c", "d", age=0.0)
    one.shared.peers = Peers(0, 2)
    one.fetcher.lane_limit.keep = 3
    one.fetcher.finder.where = Slice("shard", (0,))  # ours alone: no other would claim them
    one.fetcher.release_excess(len(one.shared.in_flight.lanes))
    assert table.statuses == [1, 1, 1, 1]
    one.fetcher.finder.where = None
    one.fetcher.release_excess(len(one.shared.in_flight.lanes))
    assert table.statuses == [1, 1, 1, 0]


def test_nothing_is_given_back_while_our_lease_is_in_doubt(one, app, table):
    in_hand_and_slow(one, app, "a", "b")
    one.shared.peers = Peers(0, 2)
    trust_until(one.shared.identity, 0.0)
    assert fetch(one) is None
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
    assert fetch(one) is None  # its one thread is not free: others may have them
    assert table.statuses == [0, 0]
    one.shared.in_flight.running.clear()
    assert fetch(one) == 2


class Sharing:
    """Several searches that look in turn; what one finds is claimed. read: of each look, how many
    rows it has read, and whether of one share alone."""

    def __init__(self, app: App, slots: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.app, self.slots = app, slots
        self.searches = [TableSearch(app.tables, None) for _ in range(slots)]
        self.read: list[tuple[int, bool]] = []
        name = "oldest" if app.tables.database.oldest_index else "without_object"
        read = getattr(candidates, name)

        def counted(*args: Any, **options: Any) -> Any:
            found = read(*args, **options)
            rows = found[0] if isinstance(found, tuple) else found
            self.read.append((len(rows), "share" in options))
            return found

        monkeypatch.setattr(candidates, name, counted)
        # However slow the machine is: a look that took long looks past its share the next time, and
        # so does one after a second, when all is forgotten.
        monkeypatch.setattr(search, "PASSING_SECONDS", 10.0)
        monkeypatch.setattr(heads, "FORGET_SECONDS", 600.0)

    def look(self, slot: int, want: int = 40) -> list[int]:
        with self.app.engine.connect() as conn:
            look = self.searches[slot].look(conn, Wanted(want, slot=slot, slots=self.slots))
        self.complete = look.complete or look.round_over
        return [c.msg_id for c in look.candidates]

    def claim(self, ids: list[int]) -> None:
        t = self.app.tables.cols()
        with self.app.engine.begin() as conn:
            conn.execute(t.msg_id.table.update().where(t.msg_id.in_(ids)).values(status=2))


@pytest.mark.quick("mariadb")
def test_instances_read_the_rows_without_an_object_of_their_own_share(app, monkeypatch):
    sharing = Sharing(app, 4, monkeypatch)
    left = set(send(app, *[None] * 3000))
    for turn in range(200):
        if turn == 12:
            alone = [many for many, own in sharing.read if own]
            assert len(alone) > 36
            assert max(alone) <= 2 * 40
            assert len(left) < 3000 - 36 * 40
        for slot in range(4):
            found = sharing.look(slot)
            assert set(found) <= left
            left -= set(found)
            sharing.claim(found)
        if not left:
            break
    assert not left


def test_what_an_instance_leaves_of_its_share_is_found_by_the_others(app, monkeypatch):
    """The second one looks for nothing: its oldest come first in some looks of the first one, and
    all of them when that has no more of its own."""
    sharing = Sharing(app, 2, monkeypatch)
    ids = send(app, *[None] * 1200)
    order: list[int] = []
    while (found := sharing.look(0)) or not sharing.complete:
        order += found
        sharing.claim(found)
    assert sorted(order) == ids
    assert any(candidates.share_of_id(i, 2) == 1 for i in order[: 9 * 40])
    assert any(own for _, own in sharing.read)


def test_rounds_over_many_that_cannot_start_end_beside_another_instance(app):
    """A drain waits for a whole round of all messages."""
    ids = send(app, *[None] * 300)
    looks, wanted = TableSearch(app.tables, None), Wanted(40, slots=2, skip_ids=frozenset(ids))
    with app.engine.connect() as conn:
        assert any(looks.look(conn, wanted).round_over for _ in range(30))


@pytest.mark.requires("index_by_age")
def test_a_long_read_past_the_rows_of_others_is_not_repeated_at_each_look(app, table, monkeypatch):
    """Ours are done: a read of our share goes over all of others, however many they are."""
    sharing = Sharing(app, 2, monkeypatch)
    now, read = time.monotonic(), candidates.oldest
    ids = send(app, *[None] * 1200)

    def long(*args: Any, share: Any = None, **options: Any) -> Any:
        nonlocal now
        now += 0.001 if share is None else 0.5
        return read(*args, share=share, **options) if share else read(*args, **options)

    monkeypatch.setattr(candidates, "oldest", long)
    monkeypatch.setattr(search, "time", SimpleNamespace(monotonic=lambda: now))
    sharing.claim([i for i in ids if candidates.share_of_id(i, 2) == 0])
    for _ in range(20):
        sharing.claim(sharing.look(0, want=8))
    assert sum(own for _, own in sharing.read) == 1


@pytest.mark.quick("postgresql")
@pytest.mark.requires("index_by_age")
def test_a_message_that_was_given_back_is_read_again_in_its_share(app, table, monkeypatch):
    sharing = Sharing(app, 2, monkeypatch)
    send(app, *[None] * 1200)
    first = sharing.look(0)
    sharing.claim(first)
    for _ in range(3):
        sharing.claim(sharing.look(0))
    table.edit(table.where(msg_id=first[0]), status=0)
    sharing.searches[0].look_again_from(first[0])
    assert sharing.look(0)[0] == first[0]
    assert sharing.read[-1][1]
