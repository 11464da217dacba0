"""Members share out shards."""

from __future__ import annotations

import logging
import threading
import time
import zlib
from collections import Counter

import pytest
import sqlalchemy as sa

from msgworker import MessageTable
from msgworker.coordination import Lease, Partitions, RedisLocks, Segments, partitions, round_robin
from msgworker.coordination.partitions import Member, columns, ranges, sticky
from msgworker.errors import ConfigError, LocksUnavailable
from msgworker.instance.role import Away
from msgworker.metrics.counting import known_of
from tests.support.apps import created
from tests.support.rounds import standing
from tests.support.rows import Table, send
from tests.support.waiting import launched, until

SHARDS = 8


def member(app, scope, holding=()):
    """A member whose steps the test takes."""
    return scope.join(standing(app.tables, lambda: holding))


def owned(one):
    return set(one.info()["owned"])


def settle(*members):
    for _ in range(3):
        for one in members:
            one.step()


def rows(locks):
    with locks.engine.connect() as conn:
        return set(conn.scalars(sa.text("SELECT name FROM msgworker_lock")))


def test_members_that_come_and_go_leave_no_rows_in_the_locks(app, locks):
    scope = Partitions(locks, shards=SHARDS)
    a = member(app, scope)
    settle(a)
    as_now = rows(locks)
    for _ in range(3):
        b = member(app, scope)
        settle(b)
        b.leaving = True
        while b.step() is not None:
            pass
    assert rows(locks) == as_now


def test_a_member_that_died_leaves_its_row_to_one_that_joins_an_hour_later(app, locks):
    scope = Partitions(locks, shards=SHARDS)
    dead, stopped = member(app, scope), member(app, scope)
    settle(dead, stopped)
    with locks.engine.begin() as conn:
        ago = sa.text(
            "UPDATE msgworker_lock SET expires_ms = expires_ms - 3700000 WHERE owner = :o"
        )
        conn.execute(ago, {"o": dead.owner})
    c = member(app, scope)
    c.step()
    members = {name for name in rows(locks) if ":member:" in name}
    assert {name.partition(":member:")[2] for name in members} == {stopped.owner, c.owner}
    stopped._renewed_at = 0.0
    settle(stopped, c)
    assert owned(stopped) | owned(c) == set(range(SHARDS))


def test_a_member_joins_where_its_login_may_not_delete(app, locks, monkeypatch):
    def refused(prefix):
        raise LocksUnavailable("permission denied")

    monkeypatch.setattr(locks, "forget_expired", refused)
    a = member(app, Partitions(locks, shards=SHARDS))
    settle(a)
    assert owned(a) == set(range(SHARDS))


def test_members_that_start_together_move_nothing(app, locks, caplog):
    caplog.set_level(logging.INFO, "msgworker.instance")
    scope = Partitions(locks, shards=SHARDS)
    a, b = member(app, scope), member(app, scope)
    settle(a, b)
    assert (len(owned(a)), len(owned(b))) == (4, 4)
    told = [r.getMessage() for r in caplog.records if r.name == "msgworker.instance"]
    assert ["4 of 8 are ours" in text for text in told] == [True, True]


def test_a_member_takes_all_its_shards_in_as_many_statements_as_one(app, locks):
    sent = []
    scope = Partitions(locks, shards=64)
    a = member(app, scope)
    settle(a)
    a.leave()
    while a.step() is not None:
        pass
    for engine in next(iter(locks._lines.values())).engines:
        sa.event.listen(engine, "before_cursor_execute", lambda *args: sent.append(args[2]))
    b = member(app, scope)
    settle(b)
    assert len(owned(b)) == 64
    assert len(sent) < 20


def test_a_shard_is_kept_while_something_of_it_is_in_hand(app, locks):
    scope = Partitions(locks, shards=SHARDS, drain_timeout=30)
    busy = set(range(SHARDS))
    a, b = member(app, scope, busy), member(app, scope)
    settle(a)
    settle(a, b)
    assert owned(b) == set()
    assert len(owned(a)) == 4  # the others are looked at no more
    busy -= set(range(SHARDS))
    settle(a, b)
    assert len(owned(b)) == 4


def test_a_shard_is_not_given_up_between_a_look_and_its_claim(app, locks):
    scope = Partitions(locks, shards=SHARDS)
    a, b = member(app, scope), member(app, scope)
    settle(a)
    assert a.slice() is not None
    settle(a, b)
    assert owned(b) == set()
    a.looked(complete=False)
    settle(a, b)
    assert len(owned(b)) == 4


def test_a_shard_whose_release_has_no_answer_is_looked_at_only_when_it_is_taken_anew(app, locks):
    scope = Partitions(locks, shards=SHARDS)
    a, b = member(app, scope), member(app, scope)
    settle(a)
    b.step()
    free = locks.release_all

    def without_answer(leases):
        for lease in leases:
            assert locks._release(lease)
        raise LocksUnavailable("the answer is lost")

    locks.release_all = without_answer
    with pytest.raises(LocksUnavailable):
        a.step()
    locks.release_all = free
    b.leave()
    assert b.step() is None  # now all are a's again
    assert len(owned(a)) == SHARDS // 2
    settle(a)
    assert owned(a) == set(range(SHARDS))
    held = {one.name: one.token for one in locks.held("msgworker_message:shard:")}
    assert held == {lease.name: lease.token for lease in a._held.values()}


def test_a_shard_is_given_up_after_the_drain_timeout_whatever_is_in_hand(app, locks):
    scope = Partitions(locks, shards=SHARDS, drain_timeout=0)
    a, b = member(app, scope, set(range(SHARDS))), member(app, scope)
    settle(a)
    settle(a, b)
    assert len(owned(b)) == 4


def test_a_member_that_leaves_renews_what_is_still_in_hand(app, locks, monkeypatch):
    now, renew, renewed = [time.monotonic()], locks.renew_all, []
    monkeypatch.setattr("msgworker.coordination.partitions.monotonic", lambda: now[0])
    monkeypatch.setattr(locks, "renew_all", lambda some: renewed.append(len(some)) or renew(some))
    busy = set(range(SHARDS))
    one = member(app, Partitions(locks, shards=SHARDS), busy)
    settle(one)
    one.leave()
    one.step()
    now[0] += 10.0
    one.step()
    assert renewed == [SHARDS]
    busy.clear()
    assert one.step() is None


def test_leases_that_are_not_live_for_a_moment_are_kept(app, locks, monkeypatch):
    """ZooKeeper's, while the connection is lost and the session goes on: no other can have them,
    so a member that began under another name never got them again."""
    a = member(app, Partitions(locks, shards=SHARDS))
    settle(a)
    first, away = a.owner, [False]
    monkeypatch.setattr(Lease, "live", lambda self: away.pop() if away else True)
    a.step()
    assert not away
    assert a.owner == first
    assert owned(a) == set(range(SHARDS))


def test_a_member_whose_name_is_taken_away_leaves_its_shards_to_others(app, locks):
    """`msgworker locks --release`: ZooKeeper's stay as long as the session of the process."""
    a = member(app, Partitions(locks, shards=SHARDS, ttl=30, heartbeat=0.01))
    settle(a)
    (name,) = (one for one in locks.held() if ":member:" in one.name)
    locks.release(name)
    until(lambda: a.step() is not None and a.owner not in name.name, "it has noticed")
    settle(a)
    assert owned(a) == set(range(SHARDS))


def test_a_lock_of_a_program_beside_those_of_the_members_gets_no_shard(app, locks):
    assert locks.acquire("msgworker_message:member:42", "nightly", 30)
    a = member(app, Partitions(locks, shards=SHARDS))
    settle(a)
    assert owned(a) == set(range(SHARDS))


def test_a_member_that_does_not_see_itself_looks_again_after_a_pause(app, locks, monkeypatch):
    """The locks are read from a replica that is behind, say."""
    a = member(app, Partitions(locks, shards=SHARDS))
    monkeypatch.setattr(locks, "held", lambda prefix: [])
    assert a.step() > 0
    assert a.step() > 0


def test_a_member_without_the_table_of_locks_says_how_to_make_it(app, locks, caplog):
    a = member(app, Partitions(locks, shards=SHARDS))
    with locks.engine.begin() as conn:
        conn.exec_driver_sql("DROP TABLE msgworker_lock")
    assert a._guarded() == 1
    assert "create_schema() or `msgworker init-db" in caplog.text
    assert "Traceback" not in caplog.text


def test_a_member_whose_assign_fails_says_so_and_blames_no_locks(app, locks, caplog):
    def assign(members, shards, owners):
        return {}[members[0]] if broken else sticky(members, shards, owners)

    a, broken = member(app, Partitions(locks, shards=SHARDS, assign=assign)), True
    while a._guarded() != 1:
        pass
    assert "not known where to look: assign=test_a_member" in caplog.text
    assert "return {}[members[0]]" in caplog.text
    broken = False
    settle(a)
    a._guarded()
    assert "it is known where to look again" in caplog.text
    assert "the locks" not in " ".join(r.getMessage() for r in caplog.records)


def test_a_member_says_which_shards_it_waits_for_and_who_holds_them(app, locks, caplog):
    """A drain waited for a lock that another program held, and said nothing."""
    other = locks.acquire("g:shard:3", "nightly", 30)
    a = member(app, Partitions(locks, shards=SHARDS, ttl=0.3, group="g"))
    settle(a)
    assert "missing" not in caplog.text
    said = "shards 3 missing: their messages wait for locks of group g that nightly holds"
    until(lambda: a.step() is not None and said in caplog.text, "it has said so")
    settle(a)
    assert caplog.text.count("missing") == 1
    assert not a.steady
    locks.release(other)
    settle(a)
    assert a.steady


def test_a_member_says_so_only_when_a_live_one_keeps_shards_beyond_its_drain_timeout(
    app, locks, caplog, monkeypatch
):
    scope = Partitions(locks, shards=SHARDS, ttl=30, drain_timeout=5)
    a, b = member(app, scope), member(app, scope)
    settle(a)
    begun = time.monotonic()
    settle(b)
    for later, said in ((34.0, 0), (99.0, 1)):
        monkeypatch.setattr(partitions, "monotonic", lambda later=later: begun + later)
        b.step()
        assert caplog.text.count(f"that {a.owner} holds") == said


def test_more_members_than_shards_leave_some_idle_and_nothing_moves(app, locks):
    scope = Partitions(locks, shards=2)
    all_ = [member(app, scope) for _ in range(4)]
    settle(*all_)
    before = [owned(one) for one in all_]
    assert sorted(map(len, before)) == [0, 0, 1, 1]
    settle(*all_)
    assert [owned(one) for one in all_] == before


def test_the_table_for_people_says_who_has_a_shard_and_who_is_to_have_it(app, locks):
    scope = Partitions(locks, shards=5, assign=round_robin)
    a, b = member(app, scope, set(range(5))), member(app, scope)
    settle(a)
    settle(a, b)
    found = scope.status(app.table)
    assert [one.cur for one in found] == [a.owner] * 5
    first = sorted([a.owner, b.owner])[0]
    wanted = [None, b.owner, None, b.owner, None] if first == a.owner else None
    wanted = wanted or [b.owner, None, b.owner, None, b.owner]
    assert [one.req for one in found] == wanted


def test_settings_that_cannot_be_are_refused(app, locks):
    for wrong in (
        {"ttl": 30, "heartbeat": 11},
        {"shards": 0},
        {"assign": "sticky"},
        {"drain_timeout": -1},
        {"group": "x" * 101},
    ):
        with pytest.raises(ConfigError):
            Partitions(locks, **wrong)
    with pytest.raises(ConfigError, match="lock centre"):
        Partitions(app.engine)


def test_fleets_on_other_rows_of_a_table_have_locks_of_their_own(locks):
    """Two Apps with a `where` each would keep the other from half of its messages."""
    scope = Partitions(locks, shards=SHARDS)
    mine = [MessageTable("crm.tb_msg", where={"tenant": n}) for n in (1, 2)]
    long = [MessageTable(f"{'s' * 60}.{'t' * 60}{n}") for n in (1, 2)]
    for tables in (mine, long):
        assert len({scope.prefix(one) for one in tables}) == 2
    assert all(len(scope.prefix(one)) <= 101 for one in [*mine, *long])
    assert scope.prefix(MessageTable("crm.tb_msg")) == "crm.tb_msg:"  # as in older versions
    assert Partitions(locks, group="north").prefix(mine[0]) == "north:"


def test_each_number_of_the_column_belongs_to_one_shard():
    assert columns([1], 4, 8) == (1, 5)
    assert columns([70], 100, 64) == (70,)
    for count in (1, 3, 8, 64, 100):
        parts = [columns([n], count, 64) for n in range(count)]
        assert sorted(k for part in parts for k in part) == list(range(max(64, count)))
    assert ranges([3, 1, 2, 7]) == "1-3, 7"


def work(app, scope, **options):
    return launched(app.worker(scope=scope, threads=2, **options))


def test_two_workers_do_all_of_it_and_each_looks_at_its_own(app, locks):
    done, by = [], Counter()
    lock = threading.Lock()

    @app.handler("t")
    def handle(msg, ctx):
        with lock:
            done.append((msg.object_id, msg.msg_id))
            by[ctx.instance_id] += 1

    scope = Partitions(locks, shards=16)
    workers = [work(app, scope), work(app, scope)]
    try:
        until(lambda: _balance(scope, app) == [8, 8], "both own half")
        with app.engine.begin() as conn:
            app.send_many(conn, "t", [({}, f"o{i % 40}") for i in range(400)])
        until(lambda: len(done) == 400, "all are done")
        assert len(by) == 2
        for i in range(40):
            mine = [m for o, m in done if o == f"o{i}"]
            assert mine == sorted(mine)
        workers[0].stop()
        left_at = time.monotonic()
        until(lambda: _balance(scope, app) == [16], "the other owns all")
        took = time.monotonic() - left_at
        with app.engine.begin() as conn:
            app.send_many(conn, "t", [({}, f"o{i}") for i in range(40)])
        until(lambda: len(done) == 440, "the other does all")
        assert took < 5
    finally:
        for worker in workers:
            worker.stop()
    assert locks.held("msgworker_message:") == []


def _balance(scope, app):
    members, owners = scope.view(app.table)
    counts = Counter(owners.values())
    return [counts[one] for one in members]


def test_a_shard_is_kept_while_a_handler_of_a_lost_id_still_runs(app, locks):
    begun, go, heirs = threading.Event(), threading.Event(), []

    @app.handler("t")
    def handle(msg):
        begun.set()
        go.wait(30)

    def to_the_heir(members, shards, owners):
        return dict.fromkeys(shards, heirs[0] if heirs else members[0])

    scope = Partitions(locks, shards=SHARDS, assign=to_the_heir)
    worker, heir = work(app, scope), member(app, scope)
    try:
        with app.engine.begin() as conn:
            app.send(conn, "t", {}, object_id="a")
        assert begun.wait(10)
        kept = zlib.crc32(b"a") % SHARDS
        first = worker.instance_id
        with app.engine.begin() as conn:
            conn.exec_driver_sql("DELETE FROM msgworker_lease WHERE kind = 'instance'")
        worker.instance.heartbeat.wake()
        until(lambda: worker.instance_id != first, "it goes on under another id")
        heir.step()
        heirs.append(heir.owner)

        def takes(count):
            heir.step()
            return len(owned(heir)) >= count

        until(lambda: takes(SHARDS - 1), "the others are handed over")
        assert kept not in owned(heir)
        assert locks.holder(f"msgworker_message:shard:{kept}") is not None
        go.set()
        until(lambda: takes(SHARDS), "the last one, too")
    finally:
        go.set()
        worker.stop()


without_locks = pytest.mark.parametrize(
    "scope",
    [
        lambda: Partitions(RedisLocks.from_url("redis://127.0.0.1:1/0"), shards=4),
        lambda: Segments(RedisLocks.from_url("redis://127.0.0.1:1/0"), {"a": [0], "b": [1]}),
    ],
    ids=["partitions", "segments"],
)


@without_locks
def test_a_drain_without_its_locks_ends_when_an_outage_of_the_database_would_end_it(app, scope):
    app.add_handler("t", lambda msg: None)
    send(app, "a")
    with pytest.raises(LocksUnavailable, match=r"could not be reached, .* for 0\.2 s"):
        app.drain(threads=1, linger=0, outage_limit=0.2, scope=scope())
    assert Table(app).statuses == [0]


def _away(*_):
    raise LocksUnavailable("away")


def test_a_drain_that_loses_its_locks_says_so_and_lets_its_handlers_end(app, locks, monkeypatch):
    """It ended with 0 and took its shards for those of others, or gave up what still ran."""

    @app.handler("t")
    def handle(msg, ctx):
        if msg.object_id == "a":
            monkeypatch.setattr(locks, "renew_all", _away)
            monkeypatch.setattr(Lease, "live", lambda self: False)
            send(app, "b")
        if msg.payload == "slow":
            until(lambda: ctx.cancelled, "the drain stops")
            time.sleep(0.5)

    for payload in ("quick", "slow"):
        send(app, "a", payload=payload)
        with pytest.raises(LocksUnavailable, match="could not be reached"):
            app.drain(linger=0, outage_limit=0.3, scope=Partitions(locks, shards=4))
        monkeypatch.undo()
        found = Table(app).statuses  # a look that was under way may have claimed "b"
        assert set(found[::2]) == {2}
        assert set(found[1::2]) <= {0, 2}


@pytest.mark.parametrize("also", [True, False], ids=["database too", "locks alone"])
def test_a_drain_whose_database_is_lost_with_its_locks_reports_that(app, locks, monkeypatch, also):
    app.add_handler("t", lambda msg: None)
    worker = app.worker(threads=1, scope=Partitions(locks, shards=4))
    monkeypatch.setattr(Member, "away", lambda self: 100.0)
    monkeypatch.setattr(Away, "seconds", 100.0 if also else 0.0)
    if also:
        assert worker.drain(linger=0).database_lost
    else:
        with pytest.raises(LocksUnavailable):
            worker.drain(linger=0)


@without_locks
def test_an_instance_that_waits_for_its_locks_is_a_metric(app, scope):
    app.add_handler("t", lambda msg: None)
    with launched(app.worker(threads=1, scope=scope())):
        until(lambda: known_of(app).locks_away == 1, "it has asked for them")
    assert known_of(app).locks_away == 0


def test_a_scope_with_more_shards_than_the_table_says_so(make_app, locks, caplog):
    app = created(make_app(table=MessageTable(shard="shard", shards=8)))
    member(app, Partitions(locks, shards=8))
    assert caplog.text == ""
    member(app, Partitions(locks, shards=64))
    assert "App.send writes the shards 0 to 7" in caplog.text


def test_a_drain_ends_when_its_shards_are_empty(app, locks):
    app.add_handler("t", lambda msg: None)
    with app.engine.begin() as conn:
        app.send_many(conn, "t", [({}, f"o{i}") for i in range(50)])
    report = app.drain(scope=Partitions(locks, shards=4), linger=0, threads=2)
    assert report.done == 50
    assert Table(app).statuses == [2] * 50
    assert MessageTable().shards == 64
