"""One segment at a time, under its lock."""

from __future__ import annotations

import itertools
import threading

import pytest
from tenacity.wait import wait_fixed

from msgworker.coordination import Lease, Segments, segments
from msgworker.coordination.segments import Walker
from msgworker.errors import ConfigError
from msgworker.instance.running.outcome import DONE
from tests.support.rounds import by_hand, fetch, standing, trust_until
from tests.support.rows import send
from tests.support.waiting import until

TWO = {"order:segment:0": [0, 1, 2, 3], "order:segment:1": [4, 5, 6, 7]}


def walker(app, scope):
    """A worker of the round whose steps are the test's."""
    one = Walker(scope, standing(app.tables), lambda: 100.0)
    one._offset = 0
    return one


def shards(one):
    """Those, of 8, that it looks at."""
    where = one.slice()
    if where is None:
        return []
    return sorted({k % 8 for k in where.values})


def test_a_lease_that_is_not_live_for_a_moment_is_kept(app, locks, monkeypatch):
    """As ZooKeeper's while the connection is lost: the lock stays, and could not be had again."""
    one = walker(app, Segments(locks, TWO))
    one.step()
    away = [False]
    monkeypatch.setattr(Lease, "live", lambda self: away.pop() if away else True)
    one.step()
    assert not away
    assert shards(one) == [0, 1, 2, 3]


def test_a_segment_is_not_given_up_between_a_look_and_its_claim(app, locks):
    one = walker(app, Segments(locks, TWO))
    one.step()
    assert shards(one) == [0, 1, 2, 3]
    one.leave()
    one.step()
    assert [lease.name for lease in locks.held("order:")] == ["order:segment:0"]
    one.looked(complete=False)
    one.step()
    assert locks.held("order:") == []


def test_shards_in_which_something_can_run_again_are_not_done(app, locks):
    one = walker(app, Segments(locks, {"s": [0, 1]}))
    one.step()
    for complete in (True, False, True):
        assert shards(one) == list(range(8))
        one.looked(complete=complete, rest=0.0)
        assert one.steady is complete


@pytest.mark.parametrize("late", [False, True])
def test_a_segment_whose_objects_run_here_is_looked_at_again_when_one_ends(app, locks, late):
    """It was skipped for 2 s, as if it were empty. late: it ends after the look was over."""
    app.add_handler("t", lambda msg: None)
    send(app, "a")
    with by_hand(app, scope=Segments(locks, {"s": [0, 1]})) as one:

        def end() -> None:
            lane = one.lanes.take()
            lane.result = DONE
            one.settler.add(lane, True)

        one.member.step()
        assert fetch(one) == 1
        send(app, "a")  # too late for the run of the first
        with one.fetcher.finder.round(one.fetcher.limit_poller):
            assert not one.fetcher.finder.look(1, 1).candidates
            if not late:
                end()
        one.member.step()
        if late:
            one.member.step()
            assert locks.held() == []
            end()
        fetch(one)
        one.member.step()
        one.member.step()
        assert fetch(one) == 1


def test_a_worker_that_can_claim_no_more_leaves_its_segment_to_others(app, locks, monkeypatch):
    """An idle one waited for the lock, up to `hold` seconds for each segment."""
    monkeypatch.setattr(segments, "FULL_SECONDS", 0.1)
    monkeypatch.setattr(segments, "EMPTY_SECONDS", 600.0)
    app.add_handler("t", lambda msg: None)
    send(app, "a")
    with by_hand(app, scope=Segments(locks, {"s": [0, 1]}, hold=600.0)) as one:
        identity, fetcher = one.shared.identity, one.fetcher
        one.member.start()
        until(locks.held, "it holds the segment")
        trusted = identity.tenure.trusted_until
        trust_until(identity, 0.0)  # so it claims nothing
        until(lambda: fetcher.run_once() == 0 and not locks.held(), "it leaves the segment")
        trust_until(identity, trusted)
        until(lambda: fetcher.run_once() == 1, "it is there again, and claims")
        one.member.stop(5.0)


def test_the_layout_may_be_changed_while_it_runs(app, locks):
    scope = Segments(locks, TWO)
    one = walker(app, scope)
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


def test_a_worker_says_which_segment_another_program_keeps(app, locks, caplog):
    """A drain waited for it, and said nothing."""
    locks.acquire("order:segment:1", "nightly", 30)
    now = itertools.count(0, 0.005)
    scope = Segments(locks, TWO, ttl=0.3, hold=0.01)
    one = Walker(scope, standing(app.tables), lambda: next(now))
    said = "segment order:segment:1: its messages wait for its lock, which nightly has held for"
    until(lambda: one.step() is not None and said in caplog.text, "it has said so")
    for _ in range(9):
        one.step()
    assert caplog.text.count("nightly") == 1


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
    with pytest.raises(ConfigError, match="shard 32767 is not 0 to 32766"):
        Segments(locks, {"s": [32_767]})
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
