"""One segment at a time, under its lock."""

from __future__ import annotations

import logging
import threading

import pytest
from tenacity.wait import wait_fixed

from msgworker.coordination import Lease, Segments
from msgworker.coordination.segments import Walker
from msgworker.errors import ConfigError, LocksUnavailable
from msgworker.instance.state import InstanceView
from tests.support.waiting import until

TWO = {"order:segment:0": [0, 1, 2, 3], "order:segment:1": [4, 5, 6, 7]}


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def walker(app, scope):
    """A worker of the round whose steps and clock are the test's."""
    log = logging.LoggerAdapter(logging.getLogger("msgworker.instance"), {})
    standing = InstanceView(
        tables=app.tables,
        instance_id=lambda: "host-1-x",
        holding=lambda: set(),
        wake=lambda: None,
        log=log,
    )
    clock = Clock()
    one = Walker(scope, standing, clock)
    one._offset = 0
    return one, clock


def shards(one):
    """Those, of 8, that it looks at."""
    where = one.slice()
    if where is None:
        return []
    return sorted({k % 8 for k in where.values})


def test_a_worker_goes_on_to_the_next_segment_when_one_is_empty(app, locks):
    one, _ = walker(app, Segments(locks, TWO))
    one.step()
    assert shards(one) == [0, 1, 2, 3]
    one.looked(complete=True)
    assert one.step() == 0.0
    assert locks.holder("order:segment:0") is None
    one.step()
    assert shards(one) == [4, 5, 6, 7]


def test_a_lease_that_is_not_live_for_a_moment_is_kept(app, locks, monkeypatch):
    """As ZooKeeper's while the connection is lost: the lock stays, and could not be had again."""
    one, _ = walker(app, Segments(locks, TWO))
    one.step()
    away = [False]
    monkeypatch.setattr(Lease, "live", lambda self: away.pop() if away else True)
    one.step()
    assert not away
    assert shards(one) == [0, 1, 2, 3]


def test_an_empty_segment_is_left_alone_for_two_seconds_and_then_looked_at_again(app, locks):
    one, clock = walker(app, Segments(locks, {"s": [0]}))
    one.step()
    assert shards(one) == [0, 1, 2, 3, 4, 5, 6, 7]
    one.looked(complete=True)
    one.step()
    pause = one.step()
    assert 1.9 < pause <= 2.0
    assert one.steady
    clock.now += 1.9
    one.step()
    assert one.slice() is None
    clock.now += 0.2
    one.step()
    assert one.slice() is not None


def test_a_segment_that_somebody_else_has_is_tried_again_soon(app, locks):
    lease = locks.acquire("s", "else", 30)
    one, _ = walker(app, Segments(locks, {"s": [0]}))
    assert 0.05 <= one.step() <= 0.15
    assert not one.steady
    locks.release(lease)
    one.step()
    assert one.slice() is not None


def test_no_segment_is_held_for_longer_than_its_bound_while_work_goes_on(app, locks):
    one, clock = walker(app, Segments(locks, TWO, hold=5))
    one.step()
    assert shards(one) == [0, 1, 2, 3]
    one.looked(complete=False)
    clock.now += 4.9
    one.step()
    assert shards(one) == [0, 1, 2, 3]
    one.looked(complete=False)
    clock.now += 0.2
    one.step()
    one.step()
    assert shards(one) == [4, 5, 6, 7]


def test_what_a_look_finds_is_claimed_before_the_lock_is_given_up(app, locks):
    one, clock = walker(app, Segments(locks, TWO, hold=1))
    one.step()
    assert one.slice() is not None
    clock.now += 2
    one.step()
    assert locks.holder("order:segment:0") is not None
    one.looked(complete=False)
    one.step()
    assert locks.holder("order:segment:0") is None


def test_a_look_tells_of_the_shards_that_it_began_with(app, locks):
    """Its segment is lost and another one taken before it ends."""
    one, clock = walker(app, Segments(locks, TWO))
    one.step()
    assert shards(one) == [0, 1, 2, 3]
    locks.release(one._lease)
    clock.now += one._lease.ttl / 3
    one.step()  # the lease is lost
    one.step()  # the next segment is taken
    one.looked(complete=True)
    assert shards(one) == [4, 5, 6, 7]


@pytest.mark.parametrize("on_outage", ["stop", "unscoped"])
def test_without_the_locks_it_stops_or_looks_everywhere_as_it_was_told(app, locks, on_outage):
    one, _ = walker(app, Segments(locks, TWO, on_outage=on_outage))
    acquire = locks._acquire

    def fails(*_):
        raise LocksUnavailable("away")

    locks._acquire = fails
    one._guarded()
    assert (one.slice() is None) is (on_outage == "stop")
    one.looked(complete=False)
    locks._acquire = acquire
    one._guarded()
    assert shards(one) == [0, 1, 2, 3]


def test_the_layout_may_be_changed_while_it_runs(app, locks):
    scope = Segments(locks, TWO)
    one, _ = walker(app, scope)
    one.step()
    assert shards(one) == [0, 1, 2, 3]
    scope.change({f"s{i}": [i] for i in range(8)})
    one.looked(complete=True)
    one.step()
    one._offset = 5
    one.step()
    assert shards(one) == [5]
    with pytest.raises(ConfigError, match="shard 1 is in no segment"):
        scope.change({"s": [0, 2]})


def test_layouts_that_cannot_be_are_refused(locks):
    for wrong in (
        {},
        {"": [0]},
        {"s": []},
        {"s": ["0"]},
        {"s": [-1]},
        {"s": "01"},
        [0],
        {"s": [1]},
    ):
        with pytest.raises(ConfigError):
            Segments(locks, wrong)
    with pytest.raises(ConfigError, match="on_outage"):
        Segments(locks, TWO, on_outage="go")


def test_workers_that_walk_round_do_all_in_order(app, locks):
    done: list[tuple[str, int]] = []
    lock = threading.Lock()

    @app.handler("t")
    def handle(msg):
        with lock:
            done.append((msg.object_id, msg.msg_id))

    with app.engine.begin() as conn:
        app.send_many(conn, "t", [({}, f"o{i % 30}") for i in range(300)])
    scopes = [Segments(locks, TWO), Segments(locks, {"all": list(range(8))})]  # they overlap
    workers = [app.worker(scope=scope, threads=2) for scope in scopes]
    for worker in workers:
        worker.start()
    try:
        until(lambda: len(done) == 300, "all are done")
    finally:
        for worker in workers:
            worker.stop()
    for i in range(30):
        mine = [m for o, m in done if o == f"o{i}"]
        assert mine == sorted(mine)
    assert locks.held() == []


def test_a_drain_goes_once_round_and_ends(app, locks):
    app.add_handler("t", lambda msg: None)
    with app.engine.begin() as conn:
        app.send_many(conn, "t", [({}, f"o{i}") for i in range(50)])
    report = app.drain(scope=Segments(locks, TWO), linger=0, threads=2)
    assert report.done == 50


def test_a_drain_that_walks_round_does_all_of_a_limited_topic(app, locks):
    """A look that leaves limited topics out says nothing of these."""
    app.handler("t", max_running=2)(lambda msg: None)
    app.add_handler("free", lambda msg: None)
    with app.engine.begin() as conn:
        app.send_many(conn, "t", [({}, f"o{i}") for i in range(20)])
        app.send_many(conn, "free", [({}, f"f{i}") for i in range(5)])
    report = app.drain(scope=Segments(locks, TWO), linger=0, threads=4)
    assert (report.done, report.left, report.exit_code) == (25, 0, 0)


def test_a_drain_that_walks_round_waits_for_retries_and_delays(app, locks):
    tries = []

    @app.handler("t", wait=wait_fixed(0.5))
    def handle(msg):
        tries.append(msg.payload)
        if tries.count("fails") == 1 and msg.payload == "fails":
            raise ValueError("no")

    with app.engine.begin() as conn:
        app.send(conn, "t", "fails", object_id="a")
        app.send(conn, "t", "later", object_id="b", delay=1)
    report = app.drain(scope=Segments(locks, TWO), linger=10, threads=2)
    assert (report.done, report.retried, report.left, report.exit_code) == (2, 1, 0, 0)


def test_a_drain_that_walks_round_ends_where_a_topic_has_no_token(app, locks):
    app.handler("t", rate="1/h")(lambda msg: None)
    with app.engine.begin() as conn:
        app.send_many(conn, "t", [({}, f"o{i}") for i in range(3)])
    report = app.drain(scope=Segments(locks, TWO), linger=1, threads=2, time_limit=60)
    assert (report.done, report.left_by, report.exit_code) == (1, {"limited": 2}, 6)
    assert not report.stopped
