"""The rules of leases, B1 to B5, over all orders of what may happen; the clock is set by the test.

B1  at most one holder of a name by the database's clock; tokens only rise
B2  a renewal after the loss never succeeds, also where the lock is free again
B3  a release by one who is no holder changes nothing
B4  whoever believes in its lease by its own clock holds it by the database's
B5  what is written to checks the token: a write is never behind one of a later holder
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import Phase
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, rule

from msgworker.coordination import DatabaseLocks, Lease
from msgworker.coordination import database as database_module
from msgworker.testing import Clock
from proof.machines.machines import LONG_RUNS, forget_locks, numbers, on_a_clock, run

RUNS = 40
TTLS = (1.0, 3.0)
KEPT = 1.0


@dataclass
class Row:
    """A lock as it must be."""

    owner: str | None = None
    token: int = 0
    expires: int = 0  # ms


class Machine(RuleBasedStateMachine):
    """Two locks, three owners, and every lease that any of them ever had."""

    leases = Bundle("leases")
    locks: DatabaseLocks
    clock: Clock
    local: list[float]

    @initialize()
    def begin(self) -> None:
        self.mark = str(next(numbers))
        self.clock.set(datetime(2026, 1, 1, tzinfo=UTC))
        forget_locks(self.locks)
        self.rows = {f"{self.mark}:{name}": Row() for name in "ab"}
        self.written = dict.fromkeys(self.rows, 0)
        self.now = 0  # ms: whole numbers add up
        self.stepped: set[int] = set()
        self.granted: list[Lease] = []

    def holds(self, lease: Lease) -> bool:
        row = self.rows[lease.name]
        return (row.owner, row.token) == (lease.owner, lease.token)

    @rule(
        target=leases,
        name=st.sampled_from("ab"),
        owner=st.sampled_from("xyz"),
        ttl=st.sampled_from(TTLS),
    )
    def acquire(self, name: str, owner: str, ttl: float) -> Any:
        name = f"{self.mark}:{name}"
        row = self.rows[name]
        free = row.owner is None or row.expires <= self.now
        lease = self.locks.acquire(name, owner, ttl)
        assert (lease is not None) == free
        if lease is None:
            return multiple()
        assert lease.token > row.token
        self.rows[name] = Row(owner, lease.token, self.now + round(1000 * ttl))
        self.granted.append(lease)
        return lease

    @rule(lease=leases)
    def renew(self, lease: Lease) -> None:
        row = self.rows[lease.name]
        mine = self.holds(lease) and row.expires > self.now
        assert self.locks.renew(lease) == mine
        if mine:
            row.expires = self.now + round(1000 * lease.ttl)
            self.stepped.discard(id(lease))

    @rule(lease=leases)
    def release(self, lease: Lease) -> None:
        mine = self.holds(lease)
        assert self.locks.release(lease) == mine
        if mine:
            self.rows[lease.name].owner = None

    @rule(target=leases, ttl=st.sampled_from(TTLS))
    def join(self, ttl: float) -> Any:
        """One incarnation of a member: its lock is named after it."""
        owner = f"m{next(numbers)}"
        lease = self.locks.acquire(f"{self.mark}:{owner}", owner, ttl)
        assert lease is not None
        self.rows[lease.name] = Row(owner, lease.token, self.now + round(1000 * ttl))
        self.written[lease.name] = 0
        self.granted.append(lease)
        return lease

    @rule(lease=leases)
    def forget(self, lease: Lease) -> None:
        if not lease.name.endswith(lease.owner):
            return
        mine = self.holds(lease)
        assert self.locks.forget(lease) == mine
        if mine:
            self.rows[lease.name].owner = None

    @rule()
    def forget_expired(self) -> None:
        prefix, kept = f"{self.mark}:", round(1000 * KEPT)
        over = [
            row
            for name, row in self.rows.items()
            if row.owner and name == prefix + row.owner and row.expires <= self.now - kept
        ]
        assert self.locks.forget_expired(prefix) == len(over)
        for row in over:
            row.owner = None

    @rule(lease=leases)
    def write(self, lease: Lease) -> None:
        """One who was paused, maybe for long; what it writes to has the last word."""
        if lease.token >= self.written[lease.name]:
            self.written[lease.name] = lease.token
            later = self.rows[lease.name].token
            assert lease.token <= later
            others = [
                one for one in self.granted if one.name == lease.name and one.token == lease.token
            ]
            assert others == [lease]  # no two holders have one token

    @rule(seconds=st.sampled_from([0.1, 0.5, 1.0, 3.5]))
    def pass_time(self, seconds: float) -> None:
        self.now += round(1000 * seconds)
        self.clock.advance(timedelta(milliseconds=round(1000 * seconds)))
        self.local[0] += seconds

    @rule(seconds=st.sampled_from([-2.0, 2.0]))
    def step_the_databases_clock(self, seconds: float) -> None:
        self.now += round(1000 * seconds)
        self.clock.advance(timedelta(milliseconds=round(1000 * seconds)))
        if seconds > 0:  # it ends leases early: their holders cannot know
            self.stepped |= {id(lease) for lease in self.granted}

    @invariant()
    def what_is_held_is_what_must_be(self) -> None:
        if not hasattr(self, "rows"):
            return
        held = {
            lease.name: (lease.owner, lease.token) for lease in self.locks.held(f"{self.mark}:")
        }
        live = {
            n: (r.owner, r.token) for n, r in self.rows.items() if r.owner and r.expires > self.now
        }
        assert held == live

    @invariant()
    def who_believes_in_its_lease_holds_it(self) -> None:
        for lease in getattr(self, "granted", []):
            if lease.live() and id(lease) not in self.stepped:
                assert self.holds(lease)
                assert self.rows[lease.name].expires > self.now


class TokenNotFenced(DatabaseLocks):
    """As where the row is deleted at a release: numbers begin anew."""

    def _acquire(self, name: str, owner: str, ttl: float) -> Lease | None:
        lease = super()._acquire(name, owner, ttl)
        if lease is not None:
            with self.engine.begin() as conn:
                conn.execute(
                    sa.text("UPDATE msgworker_lock SET token = 1 WHERE name = :n"), {"n": name}
                )
            lease.token = 1
        return lease


class ReleasedByAnybody(DatabaseLocks):
    """As `DEL key` would."""

    def _release(self, lease: Lease) -> bool:
        found = self.holder(lease.name)
        return found is not None and super()._release(found)


class RenewedAfterLoss(DatabaseLocks):
    """An upsert: what is free or expired is simply taken again."""

    def _renew(self, lease: Lease) -> bool:
        if super()._renew(lease):
            return True
        return (
            self.holder(lease.name) is None
            and self._acquire(lease.name, lease.owner, lease.ttl) is not None
        )


class ForgetsAnyLock(DatabaseLocks):
    """Deletes what has no owner, whether or not another may take it again."""

    def forget_expired(self, prefix: str) -> int:
        count = super().forget_expired(prefix)
        held = sa.bindparam("held", [one.name for one in self.held()], expanding=True)
        delete = sa.text("DELETE FROM msgworker_lock WHERE name NOT IN :held").bindparams(held)
        with self.engine.begin() as conn:
            conn.execute(delete)
        return count


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes the class of machines over a kind of centre; on the clock of the test."""
    engines = []

    def made(kind: type[DatabaseLocks]) -> type[Machine]:
        engine, time = on_a_clock(tmp_path, monkeypatch)
        monkeypatch.setattr(database_module, "KEPT_SECONDS", KEPT)
        centre = kind(engine)
        centre.create_schema()
        engines.append((centre, engine))
        return type("Made", (Machine,), time | {"locks": centre})

    yield made
    for centre, engine in engines:
        centre.close()
        engine.dispose()


def test_leases_keep_their_rules_in_any_order_of_events(machine):
    run(machine(DatabaseLocks), RUNS)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_leases_keep_their_rules_in_any_order_of_events_for_long(machine):
    run(machine(DatabaseLocks), LONG_RUNS)


@pytest.mark.quick("NotFenced")
@pytest.mark.parametrize(
    "broken", [TokenNotFenced, ReleasedByAnybody, RenewedAfterLoss, ForgetsAnyLock]
)
def test_a_broken_centre_is_noticed(machine, broken):
    with pytest.raises(AssertionError):
        run(machine(broken), 10 * RUNS, Phase.generate)
