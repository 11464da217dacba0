"""The rules of segments, over all orders of what may happen; the clock is the test's.

D1  a segment that was found empty is left alone for 2 s, or until a message that ran here is
    settled, and not for longer; one that is free and not known to be empty is taken
D2  no segment is kept for longer than its bound, and each is looked at while all have work
D3  without the locks a member looks where it holds a lease ("stop"), or everywhere ("unscoped")
D4  where layouts overlap, no two messages of an object run at once, and each is the oldest
D5  what is looked at under a lock is claimed before the lock is given up
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import Phase
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from msgworker import App, MessageTable
from msgworker.coordination import DatabaseLocks, Lease, Segments
from msgworker.coordination.segments import EMPTY_SECONDS, Walker
from msgworker.errors import LocksUnavailable
from msgworker.store import claim, slices
from msgworker.store.slices import Place
from msgworker.table.columns import Slice
from proof.machines.machines import LONG_RUNS, Fleet, forget_locks, numbers, on_a_clock, run
from tests.support.rounds import standing

RUNS = 40
STEPS = 20
SHARDS = 4
TTL = 1.5
HOLD = 2.0
MOST_LIVES = 2
ROUND_SECONDS = TTL + EMPTY_SECONDS + 3 * HOLD + 0.5
LAYOUTS = (
    {"a": [0, 1], "b": [2, 3]},
    {"a": [0, 1], "b": [1, 2], "c": [2, 3]},
    {"whole": [0, 1, 2, 3]},
)
WHO = st.integers(0, MOST_LIVES - 1)
LAYOUT = st.integers(0, len(LAYOUTS) - 1)
ON_OUTAGE = st.sampled_from(["stop", "unscoped"])


class Watched(DatabaseLocks):
    """Tells of every lock that is given or given up, and can be away."""

    away = False
    told: Any = staticmethod(lambda what, lease: None)

    def _run(self, *args: Any, **kw: Any) -> Any:
        if self.away:
            raise LocksUnavailable("away")
        return super()._run(*args, **kw)

    def _acquire(self, name: str, owner: str, ttl: float) -> Lease | None:
        lease = super()._acquire(name, owner, ttl)
        if lease is not None:
            self.told("acquired", lease)
        return lease

    def _release(self, lease: Lease) -> bool:
        self.told("released", lease)
        return super()._release(lease)


@dataclass(eq=False)
class Life:
    """A worker on its way round."""

    walker: Walker
    scope: Segments
    name: str
    looking: Slice | None = None
    since: float = 0.0
    empty: dict[int, float] = field(default_factory=dict)  # until when

    def knows_empty(self, shards: Any, now: float) -> bool:
        return all(self.empty.get(shard, 0.0) > now for shard in shards)


class Machine(Fleet):
    """Up to two workers that walk round, are stopped, die, lose the locks, get other layouts."""

    locks: Watched
    app: App
    kind: type[Walker] = Walker

    @initialize(layout=LAYOUT, on_outage=ON_OUTAGE, full=st.booleans())
    def begin(self, layout: int, on_outage: Any, full: bool) -> None:
        self.local[0] = 1000.0
        self.clock.set(datetime(2026, 1, 1, tzinfo=UTC))
        forget_locks(self.locks)
        with self.app.engine.begin() as conn:
            conn.execute(sa.delete(self.app.tables.message))
        self.mark = f"m{next(numbers)}:"
        self.layouts = [{self.mark + name: part for name, part in one.items()} for one in LAYOUTS]
        self.lives: list[Life] = []
        self.early = ""
        self.waiting: dict[int, str] = {}  # what is unfinished: msg_id -> object
        self.running: dict[int, Life] = {}
        self.shard_of: dict[int, int] = {}
        self.locks.away = False
        self.locks.told = self.told
        self.join(layout, on_outage)
        for shard in range(SHARDS if full else 0):
            self.sent("xyz"[shard % 3], shard)

    def told(self, what: str, lease: Lease) -> None:
        """D5."""
        life = next((one for one in self.lives if one.walker.owner == lease.owner), None)
        if life is None:
            return
        if what == "acquired":
            life.since = self.local[0]
        elif lease.live() and life.looking is not None and life.looking.exclusive:
            self.early = lease.name

    # ------------------------------------------------------------ who is there

    @precondition(lambda self: len(self.lives) < MOST_LIVES)
    @rule(layout=LAYOUT, on_outage=ON_OUTAGE)
    def join(self, layout: int, on_outage: Any) -> None:
        layout_of = self.layouts[layout]
        scope = Segments(self.locks, layout_of, on_outage=on_outage, ttl=TTL, hold=HOLD)
        walker = self.kind(scope, standing(self.app.tables, tuple), lambda: self.local[0])
        walker._offset = len(self.lives)  # a run must come out the same when it is tried again
        self.lives.append(Life(walker, scope, f"w{next(numbers)}"))

    @rule(number=WHO, dies=st.booleans())
    def go(self, number: int, dies: bool) -> None:
        life = self.one(number)
        if life is not None and dies:
            self.lives.remove(life)
            self.finished(life)  # as recovery would: what it had runs again elsewhere
        elif life is not None:
            life.walker.leave()

    @rule(number=WHO, layout=LAYOUT)
    def change(self, number: int, layout: int) -> None:
        if life := self.one(number):
            life.scope.change(self.layouts[layout])

    @rule()
    def locks_go_or_come(self) -> None:
        self.locks.away = not self.locks.away

    # ------------------------------------------------------------ steps

    @rule(number=WHO)
    def step(self, number: int) -> None:
        life = self.one(number)
        while life in self.lives and self.stepped(life) == 0.0:
            pass

    def stepped(self, life: Life) -> float:
        walker, now = life.walker, self.local[0]
        before = walker._lease
        pause = walker._guarded()  # which lets no error out
        assert not self.early, f"{self.early} is given up before what was found is claimed"
        after = walker._lease
        if pause is None:
            assert after is None
            assert walker.leaving
            self.lives.remove(life)
            self.finished(life)
            return 0.0
        if walker._away_since is not None:
            self.without_locks(life)
            return pause
        if after is not None and after is before and life.looking is None:
            assert now - life.since < HOLD, f"{after.name} is kept for {now - life.since} s"  # D2
        if after is None and before is None:
            self.found_none(life, pause)
        return pause

    def without_locks(self, life: Life) -> None:
        """D3."""
        lease = life.walker._lease
        if life.looking is not None or life.walker.leaving or (lease and lease.live()):
            return
        where = life.walker.slice()
        life.walker.looked(complete=False)
        if life.scope.on_outage == "stop":
            assert where is None
        else:
            assert where == Slice("shard", tuple(range(SHARDS)), exclusive=False)

    def found_none(self, life: Life, pause: float) -> None:
        """D1: it holds nothing, for each segment is empty or held; if one is held it asks soon."""
        now = self.local[0]
        open_ = {
            name
            for name, shards in life.scope.segments.items()
            if not life.knows_empty(shards, now)
        }
        free = open_ - set(self.holders())
        assert not free, f"{free} is free, and not known to be empty"
        if open_:
            assert 0.05 <= pause <= 0.15
        else:
            assert 0.05 <= pause <= EMPTY_SECONDS
            first = min(life.empty[n] for part in life.scope.segments.values() for n in part)
            assert pause <= max(0.05, first - now) + 1e-6

    def holders(self) -> dict[str, str]:
        """Who holds which lock, as the table says."""
        now = int(self.clock.now.timestamp() * 1000)
        query = "SELECT name, owner FROM msgworker_lock WHERE owner IS NOT NULL AND expires_ms > ?"
        with self.app.engine.connect() as conn:
            return dict(conn.exec_driver_sql(query, (now,)).fetchall())

    @rule(number=WHO, takes=st.sampled_from([(), (), (0.5,), (0.5,) * 5, (4.0,)]))
    def work(self, number: int, takes: tuple[float, ...]) -> None:
        """A look: at once, slow, or of a process that stands still; its steps go on beside it."""
        self.step(number)
        self.look(number)
        for seconds in takes:
            self.pass_time(seconds)
            self.step(number)
        self.claim(number)

    # ------------------------------------------------------------ looks

    @rule(number=WHO)
    def look(self, number: int) -> None:
        life = self.one(number)
        if life is None or life.looking is not None:
            return
        where = life.walker.slice()
        if where is None:
            return
        life.looking = where
        if not where.exclusive:
            assert life.scope.on_outage == "unscoped"
            assert life.walker._away_since is not None
            return
        lease, now = life.walker._lease, self.local[0]
        assert lease is not None
        assert self.holders().get(lease.name) == life.walker.owner
        assert not life.knows_empty(where.values, now), f"{where} was empty a moment ago"

    @rule(number=WHO)
    def claim(self, number: int) -> None:
        """D4: what the look finds is flagged, by the law of the table."""
        life = self.one(number)
        if life is None or life.looking is None:
            return
        where, life.looking = life.looking, None
        won, found = self.flagged(life, where)
        for msg_id in won:
            same = [n for n, whose in self.waiting.items() if whose == self.waiting[msg_id]]
            assert msg_id == min(same), "an older message of its object waits"
            assert not [n for n in same if n in self.running], "one of its object runs"
            self.running[msg_id] = life
        if not found:
            until = self.local[0] + EMPTY_SECONDS
            if where.exclusive:
                life.empty |= dict.fromkeys(where.values, until)
        life.walker.looked(complete=not found)

    def flagged(self, life: Life, where: Slice) -> tuple[list[int], int]:
        t = self.app.tables
        with self.app.engine.begin() as conn:
            places = [Place(value) for value in where.values]
            pages = slices.heads_by_age(conn, t, "shard", places, 8)
            heads = [row for page in pages for row in page.found]
            rows, _ = claim.flag_apart(conn, t, heads, me=life.name)
        return [row.msg_id for row in rows], len(heads)

    @rule(number=WHO)
    def finish(self, number: int) -> None:
        if life := self.one(number):
            self.finished(life)

    def finished(self, life: Life) -> None:
        ids = [msg_id for msg_id, whose in self.running.items() if whose is life]
        message = self.app.tables.message
        with self.app.engine.begin() as conn:
            done = sa.update(message).where(message.c.msg_id.in_(ids)).values(status=2)
            conn.execute(done)
        for msg_id in ids:
            del self.running[msg_id], self.waiting[msg_id]
        freed = {self.shard_of.pop(msg_id) for msg_id in ids}
        life.walker.go_round(freed)
        life.empty = {shard: at for shard, at in life.empty.items() if shard not in freed}
        for shard in freed:
            assert not life.walker._is_empty([shard], self.local[0]), f"{shard} is taken for empty"

    @rule(object_id=st.sampled_from("xyz"), shard=st.integers(0, SHARDS - 1))
    def send(self, object_id: str, shard: int) -> None:
        """A producer of its own, that has its own idea of shards."""
        self.sent(object_id, shard)

    def sent(self, object_id: str, shard: int) -> None:
        message = self.app.tables.message
        values = {"object_id": object_id, "shard": shard, "payload": "{}"}
        with self.app.engine.begin() as conn:
            made = conn.execute(sa.insert(message).values(values))
        (msg_id,) = made.inserted_primary_key
        self.waiting[msg_id], self.shard_of[msg_id] = object_id, shard

    # ------------------------------------------------------------ the end

    def teardown(self) -> None:
        """D1, D2: in peace, each shard of which there is always work is looked at."""
        if not hasattr(self, "lives"):
            return
        self.locks.away = False
        left = [life for life in self.lives if not life.walker.leaving]
        if not left:
            return
        for life in self.lives:
            if life.looking is not None:
                life.looking = None
                life.walker.looked(complete=False)
        looked: set[int] = set()
        due = dict.fromkeys(left, 0.0)
        end = self.local[0] + ROUND_SECONDS
        while self.local[0] < end and len(looked) < SHARDS:
            for life in left:
                while due[life] <= self.local[0]:
                    due[life] = self.local[0] + self.stepped(life)
                where = life.walker.slice()
                life.walker.looked(complete=False)
                looked |= set(where.values if where else ())
            self.pass_time(max(0.05, min(due.values()) - self.local[0]))
        assert looked == set(range(SHARDS)), f"only {looked} were looked at"


class ForgetsWhatIsEmpty(Walker):
    """Looks at empty shards again at once."""

    def _is_empty(self, shards: Any, now: float) -> bool:
        return False


class KeepsWhatHasWork(Walker):
    """Goes on as long as there is something: others starve."""

    def _is_over(self, now: float) -> bool:
        return self.leaving or self._is_empty(self._shards, now)


class TakesWhatItHoldsForWhatItLookedAt(Walker):
    """Its lock was lost and another taken while it looked."""

    def looked(self, *, complete: bool) -> None:
        if self._looking:
            self._looking = self._shards
        super().looked(complete=complete)


class GivesUpWhileLooking(Walker):
    """Does not wait for the claim."""

    def _is_over(self, now: float) -> bool:
        over = super()._is_over(now)
        if over:
            self._looking = ()
        return over


class LooksWithoutItsLock(Walker):
    """Believes in its lock without a renewal."""

    def _stay(self, now: float) -> float:
        assert self._lease is not None
        self._lease.deadline, self._renewed_at = now + TTL, now
        return super()._stay(now)


class LeavesWhatEnds(Walker):
    """Takes what runs here for empty."""

    def go_round(self, values: Any = None) -> None:
        pass


class StaysEmptyForEver(Walker):
    """Never looks again at what was empty once."""

    def _is_empty(self, shards: Any, now: float) -> bool:
        return all(shard in self._empty_until for shard in shards)


class StopsForGood(Walker):
    """Does not fall back to all shards."""

    def outage(self, error: Exception | None) -> None:
        self._unscoped = False


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes the class of machines over a kind of worker; on the clock of the test."""
    engine, time = on_a_clock(tmp_path, monkeypatch)
    app = App(engine, table=MessageTable(shard="shard", shards=SHARDS))
    app.create_schema()
    centre = Watched(engine)

    def made(kind: type[Walker]) -> type[Machine]:
        return type("Made", (Machine,), time | {"locks": centre, "app": app, "kind": kind})

    yield made
    centre.close()
    engine.dispose()


def test_segments_keep_their_rules_in_any_order_of_events(machine):
    run(machine(Walker), RUNS, steps=STEPS)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_segments_keep_their_rules_in_very_many_orders(machine):
    run(machine(Walker), LONG_RUNS, steps=STEPS)


@pytest.mark.quick("Keeps")
@pytest.mark.parametrize(
    "kind",
    [
        ForgetsWhatIsEmpty,
        KeepsWhatHasWork,
        TakesWhatItHoldsForWhatItLookedAt,
        GivesUpWhileLooking,
        LooksWithoutItsLock,
        LeavesWhatEnds,
        StaysEmptyForEver,
        StopsForGood,
    ],
)
def test_a_worker_that_breaks_a_rule_is_noticed(machine, kind):
    with pytest.raises(AssertionError):
        run(machine(kind), 400, Phase.generate, steps=STEPS)
