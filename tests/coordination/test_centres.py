"""What every lock centre promises, on real servers; the same tests for all of them."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from msgworker import App
from msgworker.coordination import (
    DatabaseLocks,
    Lease,
    LeaseBusy,
    LeaseLost,
    LockCentre,
    LocksUnavailable,
    RedisLocks,
    database,
    hold,
    new_owner,
)
from tests.coordination.places import Place, connect
from tests.servers import CannotHave, Fleet, Redis, free_port, running, start
from tests.support.browsing import Browser
from tests.support.proxy import Proxy
from tests.support.refusing import ROLLED_BACK, fails_once
from tests.support.waiting import until

ROUNDS = 20
CONTENDERS = 10


def take(locks: LockCentre, name: str, ttl: float = 30.0) -> Lease:
    """Take a lock as soon as it is free."""
    owner = new_owner()
    lease: Lease = until(lambda: locks.acquire(name, owner, ttl), f"{name} is free")
    return lease


@pytest.mark.quick("sqlite|redis")
def test_one_of_ten_wins_each_round_and_tokens_rise(place):
    centres, name = [place.locks(), place.locks()], place.name()
    tokens = []
    with ThreadPoolExecutor(CONTENDERS) as pool:
        for number in range(ROUNDS):
            gate = threading.Barrier(CONTENDERS)

            def contend(
                i: int, number: int = number, gate: threading.Barrier = gate
            ) -> Lease | None:
                gate.wait(30)
                return centres[i % 2].acquire(name, f"owner {number} {i}", 30)

            won = [lease for lease in pool.map(contend, range(CONTENDERS)) if lease is not None]
            assert len(won) == 1
            tokens.append(won[0].token)
            assert centres[0].release(won[0])
    assert tokens == sorted(set(tokens))


def test_a_lock_is_held_by_one_and_told_of(place):
    locks, name = place.locks(), place.name("a_%!b")
    lease = locks.acquire(name, "anna", 30)
    assert (lease.name, lease.owner, lease.live()) == (name, "anna", True)
    assert locks.acquire(name, "ben", 30) is None
    assert locks.acquire(name, "anna", 30) is None  # who is reentrant is known to `hold` only
    found = place.locks().holder(name)
    assert (found.owner, found.token) == ("anna", lease.token)
    assert 0 <= found.age < 30
    assert 0 < found.ttl <= 30
    assert [one.name for one in locks.held(place.mark)] == [name]
    assert locks.held(place.name("a_%!b").upper()) == []
    assert locks.held(place.name("a_xx")) == []
    assert locks.release(lease)
    assert (locks.holder(name), locks.held(place.mark)) == (None, [])
    assert not lease.live()


def test_a_lease_that_is_not_renewed_ends(place):
    name, ttl = place.name(), 0.4
    proxy = Proxy.before(place.url) if place.kind == "zookeeper" else None  # who is silent there
    holder = place.locks(proxy and proxy.url_of(place.url), session=1.0)
    other = place.locks()
    began = time.monotonic()
    lease = holder.acquire(name, "dead", ttl)
    second = other.acquire(name, "early", ttl)
    assert second is None or time.monotonic() - began >= ttl
    if proxy is not None:
        proxy.close()
    if second is None:
        second = take(other, name, 30)
    assert second.token > lease.token
    assert not lease.live()


def test_a_former_holder_changes_nothing(place):
    """Late renewals and releases; also of one that is asked for by the same owner."""
    name = place.name()
    locks = place.locks()
    late = locks.acquire(name, "me", 30)
    again = Lease(name, "me", late.token, late.ttl, asked_at=late.deadline)
    assert locks.release(late)
    assert not locks.renew(again)  # although it is free
    now = locks.acquire(name, "me", 30)
    assert now.token > late.token
    assert not locks.renew(again)
    assert locks.renew_all([again, now]) == [now]
    assert not locks.release(again)
    assert not locks.release(Lease(name, "you", now.token, 30, asked_at=0))
    assert locks.renew(now)
    assert locks.holder(name).token == now.token


def test_of_many_locks_those_that_are_free_are_taken_at_once(place):
    locks, names = place.locks(), [place.name(str(n)) for n in range(5)]
    other = place.locks().acquire(names[2], "you", 30)
    taken = locks.acquire_all(names, "me", 30)
    assert [lease.name for lease in taken] == names[:2] + names[3:]
    assert {one.name: one.owner for one in locks.held(place.mark)} == {
        name: "you" if name == other.name else "me" for name in names
    }
    assert locks.renew_all(taken) == taken
    assert locks.acquire_all(names, "me", 30) == []
    before = [lease.token for lease in taken]
    for lease in [*taken, other]:
        assert locks.release(lease)
    again = locks.acquire_all(names, "you", 30)
    assert all(b.token > a for a, b in zip(before, again[:2] + again[3:], strict=True))
    assert locks.acquire_all([], "me", 30) == []


def test_what_was_taken_before_the_centre_was_lost_is_had(place, monkeypatch):
    """Nobody renewed or released it: ZooKeeper kept it for as long as the process lived."""
    locks, names, asked = place.locks(), [place.name(str(n)) for n in range(5)], []
    some = locks._acquire_some

    def lost(*given):
        asked.append(given)
        if len(asked) == 2:
            raise LocksUnavailable("gone")
        return some(*given)

    monkeypatch.setattr(locks, "_most_at_once", lambda: 2)
    monkeypatch.setattr(locks, "_acquire_some", lost)
    taken = locks.acquire_all(names, "me", 30)
    assert [lease.name for lease in taken] == names[:2]
    assert [one.name for one in locks.held(place.mark)] == names[:2]
    asked[:] = asked[:1]
    with pytest.raises(LocksUnavailable):
        locks.acquire_all(names, "me", 30)
    assert [lease.name for lease in locks.acquire_all(names, "me", 30)] == names[2:]


def test_many_leases_are_renewed_at_once(place):
    locks = place.locks()
    leases = [locks.acquire(place.name(str(n)), "me", 30) for n in range(5)]
    locks.release(locks.holder(leases[2].name))
    kept = locks.renew_all(leases)
    assert kept == leases[:2] + leases[3:]
    assert [lease.live() for lease in leases] == [True, True, False, True, True]


@pytest.mark.xdist_group("redis")
def test_a_cluster_of_redis_does_all_that_a_centre_does():
    """Its client sends no script in a pipeline."""
    import redis

    class OneNode(Redis):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            while self.port > 55_535:  # its bus is on a port 10,000 higher
                self.port = free_port()

        def command(self) -> list[str]:
            return [*super().command(), "--cluster-enabled", "yes"]

    try:
        with running(OneNode(durable=False)) as server:
            node = redis.Redis(port=server.port)
            node.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
            until(lambda: node.cluster("info")["cluster_state"] == "ok", "it serves")
            locks = RedisLocks(redis.RedisCluster(host="127.0.0.1", port=server.port))
            taken = locks.acquire_all(["a", "b", "c"], "me", 30)
            assert locks.renew(taken[0])
            assert locks.renew_all(taken) == taken
            assert [one.name for one in locks.held()] == ["a", "b", "c"]
            assert locks.release_all(taken) == taken
            assert locks.renew_all(taken) == []
            assert f":{server.port})" in repr(locks)
            server.kill()
            with pytest.raises(LocksUnavailable):
                locks.acquire("a", "me", 30)
            locks.client.close()
    except CannotHave as reason:
        pytest.skip(f"redis is not there: {reason}")


@pytest.mark.xdist_group("redis")
def test_redis_forgets_a_lock_in_the_end(servers: Fleet) -> None:
    """Each member of `Partitions` takes one under a name that is never used again."""
    try:
        place = Place("redis", servers.url("redis"))
    except CannotHave as reason:
        pytest.skip(f"redis is not there: {reason}")
    locks = place.locks()
    assert isinstance(locks, RedisLocks)
    lease = locks.acquire(place.name(), "me", 3)
    assert lease is not None
    kept = locks.client.keys(f"*{place.mark}*")
    assert len(kept) == 2
    assert all(0 < locks.client.ttl(key) <= 86_403 for key in kept)
    locks.release(lease)
    place.close()


def test_many_locks_are_freed_at_once_and_those_of_others_are_left(place):
    locks, names = place.locks(), [place.name(str(n)) for n in range(4)]
    mine = locks.acquire_all(names, "me", 30)
    assert locks.release(mine[0])
    theirs = locks.acquire(names[0], "you", 30)
    assert locks.release_all(mine) == mine[1:]
    assert [one.token for one in locks.held(place.mark)] == [theirs.token]
    assert not any(lease.live() for lease in mine)
    assert locks.release_all([]) == []


def test_threads_of_a_process_exclude_each_other_and_blocks_inside_count(place):
    locks, name = place.locks(), place.name()
    with hold(locks, name) as outer:
        with hold(locks, name) as inner:
            assert inner is outer
        assert outer.live()

        def other() -> str:
            with pytest.raises(LeaseBusy) as busy, hold(locks, name):
                pass
            return str(busy.value.owner)

        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(other).result() == outer.owner
    assert locks.holder(name) is None


def test_renewing_many_leaves_what_others_of_the_process_acquire_and_frees_what_nobody_knows(place):
    locks = place.locks()
    known = locks.acquire(place.name("known"), "me", 30)
    beside = locks.acquire(place.name("beside"), "me", 30)  # by another thread, say
    if isinstance(locks, DatabaseLocks):
        lost = place.locks().acquire(place.name("lost"), "me", 30)  # its reply never came here
    assert locks.renew_all([known]) == [known]
    assert locks.holder(beside.name).token == beside.token
    if isinstance(locks, DatabaseLocks):
        assert locks.holder(lost.name) is None


def test_a_renewal_at_the_end_of_an_acquire_leaves_the_lock_to_it(place):
    locks = place.locks()
    if not isinstance(locks, DatabaseLocks):
        pytest.skip("it forgets no lock by itself")
    known = locks.acquire(place.name("known"), "me", 30)

    class Asking(set[tuple[str, str]]):
        def __isub__(self, ended: Any) -> Any:
            super().__isub__(ended)
            assert locks.renew_all([known]) == [known]  # as another thread does
            return self

    locks._asking = Asking()
    taken = locks.acquire(place.name("now"), "me", 30)
    assert locks.holder(taken.name).token == taken.token


def test_who_stands_still_in_the_middle_of_an_acquire_keeps_no_row_locked(far):
    """Between the statements of an acquire nothing is locked."""
    if far.kind in ("redis", "zookeeper"):
        pytest.skip("one request")
    from msgworker.store import locks as statements

    first, second, name = far.locks(), far.locks(), far.name()
    first.release(first.acquire(name, "me", 0.1))
    seen: list[Lease | None] = []

    def look(*args: object) -> dict[str, int]:
        if not seen:  # here the first one stands still; it holds the lock, nothing else
            seen.append(second.acquire(name, "other", 30))
        return real(*args)

    real = statements.acquired
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(statements, "acquired", look)
        began = time.monotonic()
        lease = first.acquire(name, "me", 30)
    assert seen == [None]
    assert lease.live()
    assert time.monotonic() - began < 15


def test_a_lock_that_was_taken_is_had_though_its_token_could_not_be_read(far, monkeypatch):
    """A limit of the server may end that statement alone: its owner would not know of the lock."""
    if far.kind in ("redis", "zookeeper"):
        pytest.skip("one request")
    from msgworker.store import locks as statements

    locks, name = far.locks(), far.name()
    locks.release(locks.acquire(name, "me", 30))
    fails_once(monkeypatch, statements, "acquired", ROLLED_BACK)
    lease = locks.acquire(name, "me", 30)
    assert locks.holder(name).token == lease.token


LOST_REPLY = {
    "postgresql": "SET owner=",
    "mariadb": "SET owner=",
    "redis": "anna",
    "zookeeper": "op 15",
}


def test_the_lost_reply_to_an_acquire_loses_no_lock(far):
    name = far.name()
    proxy = Proxy.before(far.url)
    try:
        locks = far.locks(proxy.url_of(far.url))
        locks.release(locks.acquire(name, "first", 30))
        cut = proxy.cut_at(LOST_REPLY[far.kind], "after")
        lease = locks.acquire(name, "anna", 30)
        assert cut.done == 1
        assert lease.live()
        assert far.locks().holder(name).token == lease.token
        assert locks.release(lease)
        assert far.locks().holder(name) is None
    finally:
        proxy.close()


def test_an_outage_shorter_than_the_lease_costs_nothing(far):
    name = far.name()
    proxy = Proxy.before(far.url)
    try:
        locks = far.locks(proxy.url_of(far.url))
        lease = locks.acquire(name, "me", 30)
        proxy.refuse()
        with pytest.raises(LocksUnavailable):
            locks.renew(lease)
        with pytest.raises(LocksUnavailable):
            locks.acquire(far.name("other"), "me", 30)
        proxy.heal()

        def renewed() -> bool:
            try:
                return locks.renew(lease)
            except LocksUnavailable:
                return False

        until(renewed, "the centre is back")
        assert lease.live()
    finally:
        proxy.close()


@pytest.mark.quick("zookeeper|sqlite")
def test_an_outage_longer_than_the_lease_loses_it(far):
    name, told = far.name(), threading.Event()
    proxy = Proxy.before(far.url)
    try:
        locks = far.locks(proxy.url_of(far.url), session=0.6)

        def work() -> None:
            with hold(locks, name, ttl=0.6, wait=30, on_lost=lambda _: told.set()) as lease:
                proxy.hole()
                assert told.wait(30)
                assert not lease.live()
                proxy.refuse()  # a release that waits for an answer would take long
                tokens.append(lease.token)

        tokens: list[int] = []
        with pytest.raises(LeaseLost):
            work()
        proxy.heal()
        assert take(far.locks(), name).token > tokens[0]
    finally:
        proxy.close()


@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=pytest.mark.xdist_group(k)) for k in ("redis", "zookeeper")]
)
def test_a_killed_server_that_is_back_goes_on(kind):
    """Redis forgets all; tokens rise all the same."""
    try:
        server = start(kind, durable=kind == "zookeeper")
    except CannotHave as reason:
        pytest.skip(f"{kind} is not there: {reason}")
    locks = connect(server.url, session=4.0)
    try:
        lease = locks.acquire("x", "me", 0.5)
        server.kill()
        with pytest.raises(LocksUnavailable):
            locks.acquire("y", "me", 0.5)
        server.start()

        def taken() -> Lease | None:
            try:
                return locks.acquire("y", "me", 0.5)
            except LocksUnavailable:
                return None

        assert until(taken, "it is back").token > lease.token
    finally:
        locks.close()
        server.remove()


@pytest.mark.quick("sqlite")
def test_a_holder_that_is_stopped_for_too_long_knows_it_and_changes_nothing(place):
    name = place.name()
    command = [sys.executable, "-m", "tests.coordination.holder", place.url, name, "1.0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            first = process.stdout.readline().split()
            assert first[0] == "held"
            process.send_signal(signal.SIGSTOP)
            locks = place.locks()
            lease = take(locks, name)
            assert lease.token > int(first[1])
            process.send_signal(signal.SIGCONT)
            said = process.stdout.read().splitlines()
        finally:
            process.kill()
    assert said in (
        ["lost", "renewed False", "released False", "told at the end"],
        # ZooKeeper may be asked before the client has heard that its session is over.
        ["lost"],
    )
    assert locks.holder(name).token == lease.token
    assert locks.renew(lease)


@pytest.mark.xdist_group("zookeeper")
def test_a_session_that_is_lost_takes_its_leases_with_it(servers):
    try:
        url = servers.url("zookeeper")
    except CannotHave as reason:
        pytest.skip(f"zookeeper is not there: {reason}")
    place = Place("zookeeper", url)
    proxy = Proxy.before(url)
    try:
        locks, name = place.locks(proxy.url_of(url), session=0.6), place.name()
        lease = locks.acquire(name, "me", 30)
        session = locks.client.client_id[0]
        assert lease.ttl == 0.6
        proxy.refuse()
        until(lambda: not lease.live(), "it is suspended")
        take(place.locks(), name)
        proxy.heal()
        until(lambda: (locks.client.client_id or [session])[0] != session, "a new session")
        assert not lease.live()
        assert not locks.renew(lease)
        assert not locks.release(lease)
    finally:
        place.close()
        proxy.close()


@pytest.fixture
def ensemble(servers):
    """A place on ZooKeeper."""
    try:
        place = Place("zookeeper", servers.url("zookeeper"))
    except CannotHave as reason:
        pytest.skip(f"zookeeper is not there: {reason}")
    yield place
    place.close()


@pytest.mark.xdist_group("zookeeper")
def test_a_server_that_only_reads_keeps_no_lease(ensemble):
    """One without its majority shows what it last knew, whatever others have expired since."""
    locks, name = ensemble.locks(), ensemble.name()
    lease = locks.acquire(name, "me", 30)
    locks.client._state = "CONNECTED_RO"
    assert not lease.live()
    for ask in (locks.renew, locks.release):
        with pytest.raises(LocksUnavailable, match="CONNECTED_RO"):
            ask(lease)
    locks.client._state = "CONNECTED"
    assert locks.renew(lease)
    assert lease.live()


@pytest.mark.xdist_group("zookeeper")
def test_a_node_of_an_unknown_acquire_is_looked_for_where_it_must_be(ensemble, monkeypatch):
    """The next server of the ensemble may be behind the one that made it."""
    from kazoo.exceptions import ConnectionLoss

    locks, asked = ensemble.locks(), []
    client = locks.client
    create, sync, get = client.create_async, client.sync_async, client.get_async

    def lost(*given, **options):
        create(*given, **options).get()
        raise ConnectionLoss

    monkeypatch.setattr(client, "create_async", lost)
    monkeypatch.setattr(client, "sync_async", lambda path: asked.append("sync") or sync(path))
    monkeypatch.setattr(client, "get_async", lambda path: asked.append("get") or get(path))
    assert locks.acquire(ensemble.name(), "me", 30)
    assert asked == ["sync", "get"]


def test_a_lock_whose_row_is_gone_is_made_again(near, monkeypatch):
    """After a restore, a fail-over that lost seconds, or a DELETE; it could not be had until the
    process ended."""
    monkeypatch.setattr(database, "KNOWN_SECONDS", 0.0)
    locks = near.locks()
    assert locks.release(take(locks, near.name()))
    with locks.engine.begin() as conn:
        conn.exec_driver_sql("DELETE FROM msgworker_lock")
    assert locks.acquire(near.name(), "me", 30) is not None


def test_a_database_without_the_table_says_how_to_make_it(sqlite):
    from msgworker import SchemaError

    locks = DatabaseLocks(sqlite.url)
    with pytest.raises(SchemaError, match=r"msgworker_lock: run DatabaseLocks.create_schema\(\)"):
        locks.acquire("x", "me", 30)
    assert locks.create_schema() == ["msgworker_lock", "msgworker_lock_owner"]
    assert locks.create_schema() == []
    assert locks.acquire("x", "me", 30)
    locks.close()


@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=pytest.mark.xdist_group(k)) for k in ("redis", "zookeeper")]
)
def test_the_dashboard_opens_the_lock_centre_of_a_url_and_shows_its_locks(
    kind: str, servers: Fleet, sqlite_app: App
) -> None:
    try:
        place = Place(kind, servers.url(kind))
    except CannotHave as reason:
        pytest.skip(f"{kind} is not there: {reason}")
    name = place.name("night")
    assert place.locks().acquire(name, "crm-9", ttl=60)
    ann = Browser(sqlite_app, locks=place.url)
    try:
        page = ann.get("/locks").main
        assert name in page
        assert "crm-9" in page
        assert {"redis": "RedisLocks", "zookeeper": "ZooKeeperLocks"}[kind] in page
        found = ann.client.get("/api/v1/locks?centre=other").json()["items"]
        assert name in [one["name"] for one in found]
    finally:
        ann.close()
        place.close()
