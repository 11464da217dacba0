"""Locks that bear the name of one owner leave nothing behind; all others keep their tokens."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from msgworker.coordination import DatabaseLocks, Lease, LockCentre, new_owner
from msgworker.coordination import database as database_module
from msgworker.errors import ConfigError, LocksUnavailable
from msgworker.store import locks as store

PREFIX = "crm:member:"


def joined(locks: LockCentre, ttl: float = 30.0) -> Lease:
    owner = new_owner()
    lease = locks.acquire(PREFIX + owner, owner, ttl)
    assert lease is not None
    return lease


def rows(locks: DatabaseLocks) -> set[str]:
    with locks.engine.connect() as conn:
        return set(conn.scalars(sa.text("SELECT name FROM msgworker_lock")))


def expire(locks: DatabaseLocks, lease: Lease, seconds: float) -> None:
    """Let it have expired so long ago."""
    ago = sa.text("UPDATE msgworker_lock SET expires_ms = expires_ms - :ms WHERE name = :name")
    with locks.engine.begin() as conn:
        conn.execute(ago, {"ms": round(1000 * (lease.ttl + seconds)), "name": lease.name})


@pytest.fixture
def near_locks(near: Any) -> DatabaseLocks:
    made = near.locks()
    assert isinstance(made, DatabaseLocks)
    return made


def test_a_lock_that_is_forgotten_is_free_and_leaves_nothing(place):
    locks = place.locks()
    lease = joined(locks)
    assert locks.forget(lease)
    assert not lease.live()
    assert locks.held(PREFIX) == []
    assert not locks.forget(lease)
    assert not locks.renew(lease)
    assert not isinstance(locks, DatabaseLocks) or rows(locks) == set()


def test_only_a_lock_that_ends_in_its_owner_can_be_forgotten(near_locks):
    lease = near_locks.acquire("report", "me")
    assert lease is not None
    with pytest.raises(ConfigError, match="release this one"):
        near_locks.forget(lease)
    assert near_locks.renew(lease)


def test_what_ended_an_hour_ago_without_a_release_is_forgotten(place):
    locks = place.locks()
    if not isinstance(locks, DatabaseLocks):
        assert locks.forget_expired(PREFIX) == 0
        return
    dead, late, live = joined(locks), joined(locks), joined(locks)
    expire(locks, dead, 3601)
    expire(locks, late, 3000)
    assert locks.forget_expired(PREFIX) == 1
    assert rows(locks) == {late.name, live.name}
    assert not locks.renew(dead)


def test_a_lock_of_others_keeps_its_row_and_its_token_rises(near_locks):
    for name in (PREFIX + "report", "crm:report"):
        lease = near_locks.acquire(name, "me")
        assert lease is not None
        expire(near_locks, lease, 4000)
        assert near_locks.forget_expired(PREFIX) == near_locks.forget_expired("") == 0
        later = near_locks.acquire(name, "you")
        assert later is not None
        assert later.token > lease.token


@pytest.mark.parametrize("who", ["another", "itself"])
def test_who_acquires_or_renews_between_the_look_and_the_deletion_keeps_the_row(
    near_locks, monkeypatch, who
):
    """Itself: the clock of the database was an hour ahead, and has been put right."""
    dead = joined(near_locks)
    expire(near_locks, dead, 4000)
    found = store.long_expired
    taken = []

    def look(conn: Any, *args: Any, **options: Any) -> Any:
        seen = found(conn, *args, **options)
        if who == "another":
            options = {"owner": "other", "ttl_ms": 30_000, "claim_id": "c"}
            taken.append(store.acquire(conn, near_locks._tables, [dead.name], **options))
        else:
            taken.append(conn.execute(sa.text("UPDATE msgworker_lock SET expires_ms = 9e15")))
        return seen

    monkeypatch.setattr(store, "long_expired", look)
    assert near_locks.forget_expired(PREFIX) == 0
    assert rows(near_locks) == {dead.name}
    if who == "another":
        assert taken == [{dead.name: dead.token + 1}]


def test_a_login_that_may_not_delete_releases(near_locks, monkeypatch):
    def refused(*args: Any, **options: Any) -> bool:
        raise LocksUnavailable("permission denied")

    monkeypatch.setattr(store, "delete", refused)
    lease = joined(near_locks)
    assert near_locks.forget(lease)
    assert near_locks.held() == []
    assert rows(near_locks) == {lease.name}
    assert database_module.KEPT_SECONDS == 3600
