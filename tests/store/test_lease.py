"""Leases: registered, renewed, taken over, dropped."""

from __future__ import annotations

import sqlite3
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from msgworker import App
from msgworker.queries.instances import leases_ending
from msgworker.store import lease
from tests.support.apps import created
from tests.support.flags import ME
from tests.support.rows import send
from tests.support.store import OTHER, Store
from tests.support.waiting import in_thread


def _expire(store: Store, name: str) -> None:
    table = store.t.lease
    past = datetime.now(UTC) - timedelta(hours=1)
    with store.app.engine.begin() as conn:
        conn.execute(sa.update(table).where(table.c.name == name).values(expires_at=past))


def _lease(store: Store, name: str) -> lease.Lease:
    (one,) = [x for x in store(lease.read_all) if x.name == name]
    return one


def test_a_lease_is_registered_once(store):
    store(lease.register, ME, ttl=30.0, label="host")
    one = _lease(store, ME)
    assert (one.live, one.term, one.taken_by, one.label) == (True, 0, None, "host")
    assert timedelta(seconds=5) < one.expires_at - one.started_at < timedelta(seconds=60)
    with pytest.raises(sa.exc.IntegrityError):
        store(lease.register, ME, ttl=30.0)


def test_a_lease_is_renewed_while_it_is_ours(store):
    store(lease.register, ME, ttl=30.0)
    assert store(lease.renew, ME, ttl=30.0, in_hand=7) is True
    one = _lease(store, ME)
    assert (one.term, one.in_hand) == (1, 7)
    assert store(lease.renew, "unknown", ttl=30.0) is False


def test_an_expired_lease_is_never_renewed(store):
    store(lease.register, ME, ttl=30.0)
    _expire(store, ME)
    assert not _lease(store, ME).live
    assert store(lease.renew, ME, ttl=30.0) is False


def test_a_take_over_has_one_winner_and_is_for_ever(store):
    store(lease.register, ME, ttl=30.0)
    live = _lease(store, ME)
    assert store(lease.take_over, live, me=OTHER, ttl=30.0) is False  # it lives
    _expire(store, ME)
    seen = _lease(store, ME)
    assert store(lease.take_over, seen, me=OTHER, ttl=30.0) is True
    assert store(lease.take_over, seen, me="third-3", ttl=30.0) is False
    assert store(lease.renew, ME, ttl=30.0) is False
    taken = _lease(store, ME)
    assert (taken.taken_by, taken.live) == (OTHER, True)
    _expire(store, ME)  # the winner died too
    assert store(lease.take_over, _lease(store, ME), me="third-3", ttl=30.0) is True


def test_a_lease_that_ends_is_waited_for_unless_it_is_of_the_one_that_asks(store):
    def ending(within: float = 60.0, but: str = "asks-1") -> list[str]:
        return [one.name for one in store(leases_ending, within=within, but=but)]

    store(lease.register, ME, ttl=30.0)
    assert ending() == []  # it has nothing
    store.flagged(*send(store.app, "a"))
    assert (ending(), ending(within=5.0), ending(but=ME)) == ([ME], [], [])
    _expire(store, ME)
    assert ending(within=5.0) == [ME]
    assert store(lease.take_over, _lease(store, ME), me=OTHER, ttl=30.0)
    assert (ending(), ending(within=5.0), ending(but=OTHER)) == ([ME], [], [])


def _shift(store: Store, name: str, by: timedelta) -> None:
    """As if the database's clock had been put back by so much (ahead, if negative)."""
    table, one = store.t.lease, _lease(store, name)
    times = {"renewed_at": one.renewed_at + by, "expires_at": one.expires_at + by}
    with store.app.engine.begin() as conn:
        conn.execute(sa.update(table).where(table.c.name == name).values(**times))


def _lasts(one: lease.Lease) -> float:
    return (one.expires_at - one.renewed_at).total_seconds()


def test_a_lease_from_before_the_clock_was_put_back_counts_anew(store):
    store(lease.register, ME, ttl=60.0)
    before = _lease(store, ME)
    assert not before.ahead
    _shift(store, ME, timedelta(days=1))
    seen = _lease(store, ME)
    assert (seen.ahead, seen.live) == (True, True)
    assert store(lease.restart_ttl, seen) is True
    anew = _lease(store, ME)
    assert (anew.ahead, anew.live, anew.term) == (False, True, seen.term)
    assert _lasts(anew) == pytest.approx(60.0, abs=1.0)
    assert anew.expires_at - before.expires_at < timedelta(minutes=1)
    assert store(lease.renew, ME, ttl=60.0) is True  # it lives
    assert store(lease.restart_ttl, anew) is False  # and has been renewed since


def test_a_take_over_from_before_the_clock_was_put_back_counts_anew(store):
    store(lease.register, ME, ttl=60.0)
    _expire(store, ME)
    _shift(store, ME, timedelta(days=-3))  # long ago
    assert store(lease.take_over, _lease(store, ME), me=OTHER, ttl=300.0) is True
    _shift(store, ME, timedelta(days=1))
    seen = _lease(store, ME)
    assert seen.ahead
    assert store(lease.restart_ttl, seen) is True
    assert store(lease.restart_ttl, seen) is False  # once is enough
    taken = _lease(store, ME)
    assert (taken.taken_by, taken.live, taken.ahead) == (OTHER, True, False)
    assert _lasts(taken) == pytest.approx(300.0, abs=1.0)


def test_a_forced_take_over_from_before_the_clock_was_put_back_counts_anew(store):
    store(lease.register, ME, ttl=60.0)
    assert store(lease.take_over_live, ME, me=OTHER, ttl=300.0) is True
    _shift(store, ME, timedelta(days=1))
    assert store(lease.restart_ttl, _lease(store, ME)) is True
    assert _lasts(_lease(store, ME)) == pytest.approx(300.0, abs=1.0)


def test_a_renewal_between_look_and_take_over_wins(store):
    store(lease.register, ME, ttl=30.0)
    _expire(store, ME)
    seen = _lease(store, ME)
    table = store.t.lease
    soon = datetime.now(UTC) + timedelta(hours=1)
    with store.app.engine.begin() as conn:
        conn.execute(sa.update(table).values(expires_at=soon, term=table.c.term + 1))
    assert store(lease.take_over, seen, me=OTHER, ttl=30.0) is False


def test_eight_take_overs_at_once_have_one_winner(store):
    store(lease.register, ME, ttl=30.0)
    _expire(store, ME)
    seen = _lease(store, ME)
    gate = threading.Barrier(8)

    def take(n: int) -> bool:
        gate.wait(30)
        return bool(store(lease.take_over, seen, me=f"w{n}", ttl=30.0))

    joins = [in_thread(lambda n=n: take(n)) for n in range(8)]
    assert sorted(join() for join in joins) == [False] * 7 + [True]


def test_a_lease_is_dropped_by_its_holder_only(store):
    store(lease.register, ME, ttl=30.0)
    assert store(lease.drop, ME, taken_by=OTHER) is False
    _expire(store, ME)
    store(lease.take_over, _lease(store, ME), me=OTHER, ttl=30.0)
    assert store(lease.drop, ME) is False
    assert store(lease.drop, ME, taken_by=OTHER) is True
    assert store(lease.read_all) == []


def test_leases_are_judged_by_the_database_s_clock(sqlite):
    """Its clock is two days behind ours."""

    def strftime(_format: str, _now: str, modifier: str = "0 seconds") -> str:
        seconds = float(modifier.removesuffix(" seconds"))
        moment = datetime.now(UTC) - timedelta(days=2) + timedelta(seconds=seconds)
        return moment.replace(tzinfo=None).isoformat(" ", "milliseconds")

    engine = sa.create_engine(sqlite.url)

    @sa.event.listens_for(engine, "connect")
    def shift(raw: sqlite3.Connection, _record: Any) -> None:
        raw.create_function("strftime", -1, strftime)

    app = created(App(engine))
    try:
        with app.engine.begin() as conn:
            lease.register(conn, app.tables, ME, ttl=3600.0)
            assert lease.renew(conn, app.tables, ME, ttl=3600.0)
            (seen,) = lease.read_all(conn, app.tables)
            assert seen.live
            assert not lease.take_over(conn, app.tables, seen, me="other", ttl=3600.0)
    finally:
        app.engine.dispose()
        engine.dispose()
