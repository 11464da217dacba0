"""The rules of shared-out shards, over all orders of what may happen; the clock is the test's.

C1  two members never look at one shard at once
C3  when nothing changes any more, each shard belongs to whom it is meant for, and all have as many
C4  a shard of which a message is in flight is not given up before the drain timeout
C5  the shards of a dead member belong to others within ttl and a heartbeat
C6  no name of a member is used twice
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from msgworker import MessageTable
from msgworker.coordination import DatabaseLocks, Lease, Partitions
from msgworker.coordination import partitions as partitions_module
from msgworker.coordination.partitions import Member
from msgworker.table.build import tables_for
from proof.machines.machines import LONG_RUNS, Fleet, forget_locks, numbers, on_a_clock, run
from tests.support.rounds import standing

RUNS = 40
STEPS = 20
SHARDS = 4
TTL = 3.0
DRAIN = 2.0
MOST_MEMBERS = 3


@dataclass(eq=False)
class Life:
    """A member, and what it has in flight."""

    member: Member
    holding: set[int] = field(default_factory=set)


class Watched(DatabaseLocks):
    """Tells of every release."""

    told: Any = staticmethod(lambda lease: None)

    def release_all(self, leases: Sequence[Lease]) -> list[Lease]:
        for lease in leases:
            self.told(lease)
        return super().release_all(leases)


class Machine(Fleet):
    """Up to three members that join, work, leave, die and are paused."""

    locks: Watched
    tables: Any
    kind: type[Member] = Member

    @initialize()
    def begin(self) -> None:
        self.clock.set(datetime(2026, 1, 1, tzinfo=UTC))
        forget_locks(self.locks)
        self.scope = Partitions(
            self.locks, SHARDS, ttl=TTL, drain_timeout=DRAIN, group=f"g{next(numbers)}"
        )
        self.lives: list[Life] = []
        self.names: set[str] = set()
        self.locks.told = self.released

    def released(self, lease: Lease) -> None:
        """C4."""
        _, kind, shard = lease.name.rsplit(":", 2)
        if kind != "shard":
            return
        life = next((one for one in self.lives if one.member.owner == lease.owner), None)
        if life is None or not lease.live() or int(shard) not in life.holding:
            return
        since = life.member._draining[int(shard)]
        assert self.local[0] - since >= DRAIN, f"shard {shard} is given up while in flight"

    @precondition(lambda self: len(self.lives) < MOST_MEMBERS)
    @rule()
    def join(self) -> None:
        holding: set[int] = set()
        member = self.kind(self.scope, standing(self.tables, lambda: set(holding)))
        self.lives.append(Life(member, holding))
        self.step(len(self.lives) - 1)  # it is a member now, and has nothing yet

    @rule(number=st.integers(0, 5))
    def step(self, number: int) -> None:
        life = self.one(number)
        if life is None:
            return
        before = life.member.owner
        over = life.member.step() is None
        after = life.member.owner
        if after != before:
            assert after not in self.names
            self.names.add(after)
        if over:
            self.lives.remove(life)

    @rule()
    def all_step(self) -> None:
        for number in reversed(range(len(self.lives))):
            self.step(number)

    @rule(number=st.integers(0, 5))
    def claim(self, number: int) -> None:
        life = self.one(number)
        if life is None:
            return
        where = life.member.slice()
        if where is not None:
            life.holding |= {value for value in where.values if value < SHARDS}
        life.member.looked(complete=False)

    @rule(number=st.integers(0, 5))
    def finish(self, number: int) -> None:
        if life := self.one(number):
            life.holding.clear()

    @rule(number=st.integers(0, 5), dies=st.booleans())
    def go(self, number: int, dies: bool) -> None:
        life = self.one(number)
        if life is not None and dies:
            self.lives.remove(life)
        elif life is not None:
            life.member.leave()

    @rule(number=st.integers(0, 5))
    def stand_still(self, number: int) -> None:
        """One is paused for longer than its lease; the others go on."""
        still = self.one(number)
        for _ in range(2):
            self.pass_time(0.6 * TTL)
            for life in [one for one in self.lives if one is not still]:
                self.step(self.lives.index(life))

    @invariant()
    def nobody_looks_where_another_looks(self) -> None:
        looked: Counter[int] = Counter()
        for life in getattr(self, "lives", []):
            where = life.member.slice()
            life.member.looked(complete=False)
            looked.update(n for n in (where.values if where else ()) if n < SHARDS)
        assert all(count == 1 for count in looked.values())

    def teardown(self) -> None:
        """C3, C5: the dead and the leaving are gone within ttl and a heartbeat, and it rests."""
        if not hasattr(self, "lives"):
            return
        for life in self.lives:
            life.holding.clear()
        for _ in range(int((TTL + TTL / 3) / 0.5) + 3):
            self.pass_time(0.5)
            self.all_step()
        if not self.lives:
            return
        members, owners = self.scope.view(MessageTable())
        assert sorted(members) == sorted(life.member.owner for life in self.lives)
        assert sorted(owners) == list(range(SHARDS))
        assert owners == self.scope.target(members, owners)
        counts = [Counter(owners.values())[member] for member in members]
        assert max(counts) - min(counts) <= 1


class Pair:
    """Two members at rest: the first goes, the second lives on, with the longest pauses."""

    def __init__(self, machine: type[Machine], ttl: float) -> None:
        self.machine = machine()
        self.machine.begin()
        scope = Partitions(self.machine.locks, SHARDS, ttl=ttl, group=self.machine.scope.group)
        self.machine.scope = scope
        for _ in range(2):
            self.machine.join()
        for _ in range(4):
            self.machine.all_step()
        self.first, self.second = (life.member for life in self.machine.lives)
        assert len(self.first._held) == len(self.second._held) == SHARDS // 2

    def seconds(self, pause: float) -> float:
        """Until the second owns all. pause: until its next look."""
        begun = self.machine.local[0]
        while len(self.second._held) < SHARDS:
            assert self.machine.local[0] - begun < 100
            self.machine.pass_time(pause)
            pause = self.second.step()
        return self.machine.local[0] - begun


@pytest.fixture
def longest_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions_module.random, "uniform", lambda _, most: most)


@pytest.mark.parametrize("ttl", [0.6, 3.0])
@pytest.mark.usefixtures("longest_pauses")
def test_the_shards_of_the_dead_are_owned_again_within_ttl_and_a_heartbeat(machine, ttl):
    for part in range(1, 21):
        two = Pair(machine(Member), ttl)
        pause = two.second.step()
        two.first._renew(two.machine.local[0])  # and dies
        assert two.seconds(pause * part / 20) <= ttl + ttl / 3 + 1e-6


@pytest.mark.parametrize("ttl", [3.0, 30.0])
@pytest.mark.usefixtures("longest_pauses")
def test_the_shards_of_who_leaves_in_order_are_owned_again_within_a_second(machine, ttl):
    two = Pair(machine(Member), ttl)
    pause = two.second.step()  # it has just looked
    two.first.leave()
    assert two.first.step() is None
    assert two.seconds(pause) <= 1.0


class GivesUpWhatIsInHand(Member):
    """As where what is in flight is not asked for."""

    def in_hand(self, count: int) -> set[int]:
        return set()


class KeepsWhatIsLost(Member):
    """As where the lease of a shard is not asked for."""

    def _mine(self) -> list[int]:
        return [n for n in self._held if n not in self._draining]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes the class of machines over a kind of member; on the clock of the test."""
    engine, time = on_a_clock(tmp_path, monkeypatch)
    monkeypatch.setattr(partitions_module, "monotonic", lambda: time["local"][0])
    # Who is to have what depends on the order of names: a replay must find the same.
    monkeypatch.setattr(partitions_module, "new_owner", lambda label: f"m{next(numbers):09d}")
    centre = Watched(engine)
    centre.create_schema()
    tables = tables_for(MessageTable(), centre._tables.database)

    def made(kind: type[Member]) -> type[Machine]:
        return type("Made", (Machine,), time | {"locks": centre, "tables": tables, "kind": kind})

    yield made
    centre.close()
    engine.dispose()


def test_shards_keep_their_rules_in_any_order_of_events(machine):
    run(machine(Member), RUNS, steps=STEPS)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_shards_keep_their_rules_in_very_many_orders(machine):
    run(machine(Member), LONG_RUNS, steps=STEPS)


@pytest.mark.parametrize("kind", [GivesUpWhatIsInHand, KeepsWhatIsLost])
def test_a_member_that_breaks_a_rule_is_noticed(machine, kind):
    with pytest.raises(AssertionError):
        run(machine(kind), 300, Phase.generate, steps=STEPS)
