"""`hold`: what it promises whatever the centre is."""

from __future__ import annotations

import logging
import math
import os
import sys
import threading
import time

import pytest
import sqlalchemy as sa

from msgworker import ConfigError, SchemaError
from msgworker.coordination import (
    DatabaseLocks,
    Lease,
    LeaseBusy,
    LeaseLost,
    LocksUnavailable,
    RedisLocks,
    ZooKeeperLocks,
    hold,
)
from msgworker.coordination import lease as lease_module
from msgworker.coordination.centres import LazyCentre, masked_centre, open_centre
from tests.support.programs import python
from tests.support.waiting import in_thread, until


@pytest.fixture
def locks(near):
    return near.locks()


def test_a_block_that_ends_frees_the_lock_at_once(locks):
    with hold(locks, "x") as first:
        assert locks.holder("x").token == first.token
    assert locks.holder("x") is None
    with hold(locks, "x") as second:
        assert second.token > first.token
    with pytest.raises(ZeroDivisionError), hold(locks, "x"):
        _ = 1 / 0
    assert locks.holder("x") is None


def test_a_lease_is_renewed_while_the_block_runs(locks):
    with hold(locks, "x", ttl=3.0) as lease:
        first = lease.deadline
        until(lambda: lease.deadline > first, "it is renewed")
        assert lease.live()


def test_nobody_waits_unless_told_to(locks):
    other = DatabaseLocks(locks.engine)
    with hold(locks, "x", label="anna's laptop") as held, pytest.raises(LeaseBusy) as busy:
        hold(other, "x").__enter__()
    other.close()
    assert (busy.value.name, busy.value.owner) == ("x", held.owner)
    assert "anna's laptop:" in str(busy.value)


def test_waiting_ends_with_the_release_or_with_the_time(locks):
    other = DatabaseLocks(locks.engine)
    lease = locks.acquire("x", "me", 30)
    began = time.monotonic()
    with pytest.raises(LeaseBusy, match="waited 0"):
        hold(other, "x", wait=0.2).__enter__()
    assert time.monotonic() - began >= 0.2
    threading.Timer(0.1, locks.release, [lease]).start()
    with hold(other, "x", wait=30) as got:
        assert got.token > lease.token
    other.close()


def test_settle_gives_the_lease_after_so_many_renewals(locks, monkeypatch):
    renewals = []
    renew = locks._renew
    monkeypatch.setattr(locks, "_renew", lambda lease: renewals.append(lease) or renew(lease))
    with hold(locks, "x", ttl=3.0, settle=2) as lease:
        assert len(renewals) >= 2
        assert lease.live()


def test_a_lease_that_is_lost_while_it_settles_is_not_given(locks, monkeypatch):
    monkeypatch.setattr(locks, "_renew", lambda lease: False)
    with pytest.raises(LeaseLost):
        hold(locks, "x", ttl=0.3, settle=2).__enter__()
    assert locks.holder("x") is None


def test_a_lock_that_is_taken_away_is_told_at_once_and_at_the_end(locks, caplog):
    told = []
    caplog.set_level(logging.WARNING, "msgworker.coordination")
    with pytest.raises(LeaseLost, match=r"lock 'x' is lost to .* \(token \d+\)"):  # noqa: PT012, SIM117
        with hold(locks, "x", ttl=0.3, on_lost=told.append) as lease:
            with hold(locks, "x", on_lost=told.append):
                assert locks.release(locks.holder("x"))
                until(lambda: len(told) == 2, "both are told")
                assert not lease.live()
                with pytest.raises(LeaseLost):
                    lease.check()
            with pytest.raises(LeaseLost):
                hold(locks, "x").__enter__()
    assert told == [lease, lease]
    assert "lock x is lost" in caplog.text


def test_a_lock_that_was_taken_away_since_the_last_renewal_is_found_out_at_the_end(locks):
    with pytest.raises(LeaseLost), hold(locks, "x"):
        locks.release(locks.holder("x"))


def test_a_block_that_raises_keeps_its_own_error(locks):
    with pytest.raises(ZeroDivisionError), hold(locks, "x"):  # noqa: PT012
        locks.release(locks.holder("x"))
        _ = 1 / 0


def test_a_renewal_that_hangs_does_not_keep_the_loss_secret(locks, monkeypatch):
    told, over = threading.Event(), threading.Event()

    def gone(_: Lease) -> None:
        told.set()

    monkeypatch.setattr(locks, "_renew", lambda lease: over.wait(60) and False)
    try:
        with pytest.raises(LeaseLost), hold(locks, "x", 0.3, on_lost=gone) as lease:  # noqa: PT012
            assert told.wait(30)
            assert not lease.live()
            over.set()
    finally:
        over.set()


def test_an_on_lost_that_raises_stops_nobody(locks, caplog):
    def bad(_: Lease) -> None:
        raise RuntimeError("mine")

    good = threading.Event()
    with pytest.raises(LeaseLost), hold(locks, "x", ttl=0.3, on_lost=bad):  # noqa: PT012, SIM117
        with hold(locks, "x", on_lost=lambda _: good.set()):
            locks.release(locks.holder("x"))
            assert good.wait(30)
    assert "on_lost of lock x failed" in caplog.text


def test_a_process_that_stood_still_does_not_believe_in_its_lease(locks, monkeypatch):
    """The clock goes on while a machine sleeps."""
    begun = lease_module.clock()
    monkeypatch.setattr(lease_module, "clock", lambda: begun)
    lease = locks.acquire("x", "me", 30)
    monkeypatch.setattr(lease_module, "clock", lambda: begun + 26.9)
    assert lease.live()
    monkeypatch.setattr(lease_module, "clock", lambda: begun + 27.1)  # before the database's 30
    assert not lease.live()
    with pytest.raises(LeaseLost, match=r"no renewal has succeeded for 0.9 x 30 s"):
        lease.check()


def test_the_deadline_counts_from_before_the_question(locks, monkeypatch):
    asked = lease_module.clock()
    run = locks._run
    monkeypatch.setattr(locks, "_run", lambda *a, **k: time.sleep(0.05) or run(*a, **k))
    lease = locks.acquire("x", "me", 10)
    assert lease.deadline - asked <= 9.0 + 0.04


FORKED = """
import os, sys
from msgworker.coordination import *
locks = DatabaseLocks(sys.argv[1])
with hold(locks, "x") as lease:
    child = os.fork()
    if child == 0:
        said = [lease.live()]
        try:
            with hold(locks, "x"): said.append("held")
        except LeaseBusy: said.append("busy")
        with hold(locks, "y"): said.append("other")
    else:
        said = [os.waitpid(child, 0)[1], lease.live(), locks.holder("x").token == lease.token]
print(said)
"""


@pytest.mark.long
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_does_not_hold_the_lease(near):
    script = FORKED.replace("print(said)", "print(said, flush=True)")
    done = python("-W", "ignore", "-c", script, near.url)
    # The child says nothing: what it holds no more is LeaseLost at the end of its block.
    assert "LeaseLost" in done.stderr
    assert "forked" in done.stderr
    assert done.stdout == "[256, True, True]\n"


def test_the_end_of_the_block_in_a_forked_child_leaves_the_lock_to_its_parent(locks, monkeypatch):
    block, released = hold(locks, "x"), []
    lease = block.__enter__()
    with monkeypatch.context() as child:
        child.setattr(os, "getpid", lambda: -1)
        child.setattr(locks, "release", released.append)
        with pytest.raises(LeaseLost, match="forked"):
            block.__exit__(None, None, None)
    assert released == []
    assert locks.release(lease)


def test_outages_are_waited_out_only_where_one_waits(locks, monkeypatch):
    calls = []

    def away(*_: object) -> None:
        calls.append(1)
        raise LocksUnavailable("away")

    monkeypatch.setattr(locks, "_acquire", away)
    with pytest.raises(LocksUnavailable):
        hold(locks, "x").__enter__()
    assert len(calls) == 1
    with pytest.raises(LocksUnavailable):
        hold(locks, "x", wait=0.3).__enter__()
    assert len(calls) > 2


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"name": ""}, "not empty"),
        ({"name": "  "}, "not empty"),
        ({"name": None}, "not empty"),
        ({"name": "x" * 191}, "at most 190"),
        ({"name": "a\nb"}, "control characters"),
        ({"name": "a\x00"}, "control characters"),
        ({"name": "a\ud800"}, "control characters"),
        ({"ttl": 0}, "ttl must be"),
        ({"ttl": -1}, "ttl must be"),
        ({"ttl": math.nan}, "ttl must be"),
        ({"ttl": math.inf}, "ttl must be"),
        ({"ttl": 0.05}, "ttl must be"),
        ({"ttl": "30"}, "ttl must be"),
        ({"ttl": True}, "ttl must be"),
        ({"settle": -1}, "settle must be"),
        ({"settle": 1.5}, "settle must be"),
        ({"wait": -1}, "wait must be"),
        ({"wait": math.nan}, "wait must be"),
        ({"on_lost": 3}, "on_lost must be callable"),
    ],
)
def test_bad_arguments_are_refused_at_the_call(args, words):
    locks = DatabaseLocks("postgresql://nobody@127.0.0.1:1/none")  # nothing is connected
    with pytest.raises(ConfigError, match=words):
        hold(locks, **({"name": "x"} | args))
    if args.keys() & {"name", "ttl"}:
        with pytest.raises(ConfigError, match=words):
            locks.acquire(**({"name": "x", "owner": "me"} | args))


@pytest.mark.parametrize("owner", ["", "x" * 121, "a\tb", None, 7])
def test_bad_owners_are_refused(owner):
    with pytest.raises(ConfigError, match="the owner of a lock"):
        DatabaseLocks("sqlite:///x.db").acquire("x", owner)


def test_what_is_no_lock_centre_is_refused():
    for bad in (None, "database", object()):
        with pytest.raises(ConfigError, match="takes a lock centre first"):
            hold(bad, "x")
    with pytest.raises(ConfigError, match=r"takes a redis.Redis"):
        RedisLocks("redis://localhost")
    with pytest.raises(ConfigError, match="takes a kazoo"):
        ZooKeeperLocks("zookeeper://localhost")
    with pytest.raises(ConfigError, match=r"password is not escaped|cannot be read"):
        DatabaseLocks("postgresql://u:p@ss@host/db")


@pytest.mark.parametrize(("extra", "module"), [("redis", "redis"), ("zookeeper", "kazoo")])
def test_a_missing_extra_is_named(extra, module, monkeypatch, locks):
    for name in [one for one in sys.modules if one.split(".")[0] == module]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=rf'pip install "msgworker\[{extra}\]"'):
        open_centre(f"{extra}://127.0.0.1:1", locks.engine)


def test_extras_are_imported_by_their_centre_only():
    code = "import sys, msgworker.coordination; print({'redis', 'kazoo'} & set(sys.modules))"
    done = python("-c", code)
    assert done.stdout == "set()\n"


def test_urls_of_centres_are_masked():
    assert masked_centre("redis://u:secret@h:1/0?password=more") == "redis://***@h:1/0?password=***"
    assert masked_centre("zookeeper://h:2181,g/x") == "zookeeper://h:2181,g/x"
    for bad in ("mysql://x", "redis:/x", "", "Database"):
        with pytest.raises(ConfigError, match="locks must be one of"):
            open_centre(bad, None)


@pytest.mark.parametrize(
    "url",
    [
        "redis://u:secret@127.0.0.1:1/0?option=none",
        "redis://u:secret@127.0.0.1:1/0?protocol=9",
        "redis://u:secret@127.0.0.1:1/0?credential_provider=x",
        "rediss://u:secret@127.0.0.1:1/0?ssl_cert_reqs=bogus",
        "redis://u:secret@h:none",
        "zookeeper://h:none",
        "zookeeper://,",
        "zookeeper://h:1/../x",
    ],
)
def test_urls_of_centres_that_cannot_be_are_refused(url):
    with pytest.raises(ConfigError) as caught:
        open_centre(url, None)
    assert "secret" not in str(caught.value)


def test_a_centre_that_does_not_answer_keeps_one_thread_of_a_dashboard_waiting(locks, monkeypatch):
    asked, answers = threading.Event(), threading.Event()

    def opened(*_):
        asked.set()
        answers.wait(10)
        return locks

    monkeypatch.setattr("msgworker.coordination.centres.open_centre", opened)
    lazy = LazyCentre("redis://h")
    first = in_thread(lazy.centre)
    assert asked.wait(10)
    with pytest.raises(LocksUnavailable, match="has not answered yet"):
        lazy.centre()
    answers.set()
    assert first() is lazy.centre() is locks


def test_a_missing_table_is_told_before_the_block(sqlite):
    locks = DatabaseLocks(sqlite.url)
    with pytest.raises(SchemaError, match="msgworker_lock"):
        hold(locks, "x", wait=10).__enter__()
    locks.close()


def test_a_pool_that_is_used_up_keeps_nobody_from_renewing(near):
    engine = sa.create_engine(near.url, poolclass=sa.QueuePool, pool_size=1, max_overflow=0)
    locks = DatabaseLocks(engine)
    with engine.connect(), hold(locks, "x", ttl=3.0) as lease:
        first = lease.deadline
        until(lambda: lease.deadline > first, "it is renewed")
    locks.close()
