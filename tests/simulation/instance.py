"""One instance as generators: claim loop, handler threads, settler, heartbeat, orderly stop.

Each generator yields wherever another thread or process may come in between: before every
statement, and between the commit of a statement and the moment its answer is acted upon. What it
yields is a condition that must hold before it goes on, None = at once. The store functions, `Lane`,
`Identity`, `Hand`, `Search` and `settlement` are the real ones; what stands here follows
instance/fetcher.py, claimer.py, lanes.py, settler.py, calling.py, heartbeat.py and worker.py. Where
it does better than they do, `Flaws` names it.
"""

from __future__ import annotations

import logging
import random
import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from msgworker.config import Settings
from msgworker.instance.hand import Lane, Running
from msgworker.instance.handler import Registry
from msgworker.instance.identity import Identity
from msgworker.instance.outcome import DONE, Result
from msgworker.instance.runtime import Runtime
from msgworker.instance.search import Look, Search
from msgworker.instance.settlements import settlement, what_became
from msgworker.message import Outcome, Settled, Settlement
from msgworker.store import claim, done, following, lease, recover
from msgworker.store import settle as settling
from msgworker.store.candidates import Candidate
from msgworker.store.done import FlagMissing
from msgworker.store.rows import Row
from tests.history import PROCESSING, Kind, Rule, Violation
from tests.simulation.world import Act, Seen, World

T = TypeVar("T")
Wait = Callable[[], bool] | None
Steps = Generator[Wait, None, T]
LOG = logging.LoggerAdapter(logging.getLogger("tests.simulation"), {})
TTL = 30.0
BEAT = TTL / 3
TRUST = TTL * 2 / 3
POLL = 6.0
RUN_LIMIT = 3
LANES = 3


class Lost(Exception):
    """The connection was lost: what was being committed is unknown."""


class Again(Exception):
    """The database rolled it back: deadlock victim, lock timeout."""


class NotOurs(Exception):
    """A transactional handler found that its message is not ours any more."""


@dataclass(frozen=True, slots=True)
class Flaws:
    """Ways to be wrong, each off; a schedule must find every one of them."""

    no_take_over: bool = False  # rows of an expired lease are given back without taking it over
    early_run: bool = False  # the run is read before the flag commits
    no_own_sweep: bool = False  # rows flagged by us that no lane knows stay
    no_orphan_sweep: bool = False  # rows of ids without a lease stay
    runs_ahead: bool = False  # the next handler starts before the settle that flags its message
    claim_unanswered: bool = False  # claims objects whose settle is not known to be over
    sending_only: bool = False  # leaves alone only the very messages whose settle is not answered
    beside_quarantine: bool = False  # claims others while a quarantined message is in hand
    stop_unswept: bool = False  # drops the lease without looking for rows that no lane knows
    ghosts_of_look: bool = False  # claims under a new id what was looked for under the old one
    claim_unlocked: bool = False  # the sweep of unknown rows does not wait for claims in flight
    forgets: bool = False  # without owners, too, a lost lease makes an instance forget all
    unasked: bool = False  # without owners: what is carried over starts without being asked for


@dataclass(slots=True)
class Habits:
    """How handlers of a schedule behave: chances of each outcome but done."""

    fail: float = 0.15
    reject: float = 0.04
    later: float = 0.05


@dataclass(slots=True)
class Faults:
    """Chances that a statement meets trouble; all 0 in liveness mode."""

    lost: float = 0.0
    again: float = 0.0
    delayed: float = 0.0
    in_flight: list[tuple[str, Callable[[Connection], object]]] = field(default_factory=list)


class Instance:
    """The parts of one process; a lost lease gives it a new id."""

    def __init__(
        self,
        world: World,
        rng: random.Random,
        label: str,
        *,
        flaws: Flaws,
        habits: Habits,
        faults: Faults,
        poison: frozenset[int],
        transactional: frozenset[int],
    ) -> None:
        self.world = world
        self.rng = rng
        self.label = label
        self.flaws = flaws
        self.habits = habits
        self.faults = faults
        self.poison = poison
        self.transactional = transactional
        self.generation = 0
        self.sending: frozenset[int] = frozenset()
        self.runtime = Runtime(
            engine=world.engine,
            tables=world.t,
            registry=Registry(),
            settings=Settings(lease_seconds=TTL),
            identity=Identity(self._new_id()),
            log=LOG,
        )
        self.search = Search(world.t, None, self.runtime.hand.blocked)
        self.ready: deque[Lane] = deque()
        self.finished: deque[Lane] = deque()
        self.read_at: dict[int, float] = {}
        self.violations: list[Violation] = []
        self.alive = True
        self.stopped = False
        self.fetcher_over = False
        self.beat_over = False
        self.beating = True
        self.closed = False
        self.settling = False
        self.claiming = threading.Lock()
        self.unsure = False  # a claim's answer was lost and the rows were not looked for yet
        self.next_beat = BEAT
        self.next_look = 0.0
        self.seen_version = -1
        self._register()

    def _new_id(self) -> str:
        self.generation += 1
        return f"{self.label}{self.generation}"

    @property
    def id(self) -> str:
        return self.runtime.identity.id

    @property
    def stopping(self) -> bool:
        return self.runtime.stopping.is_set()

    def name(self, owner: str) -> str:
        """Who it is in the history: without owners one, whatever its id is now."""
        return owner if self.world.owners else self.label

    def actors(self) -> list[tuple[str, Steps[None]]]:
        threads = [(f"{self.label}.handler{i}", self.handler(i)) for i in range(2)]
        return [
            (f"{self.label}.fetcher", self.fetcher()),
            *threads,
            (f"{self.label}.settler", self.settler()),
            (f"{self.label}.heartbeat", self.heartbeat()),
        ]

    def crash(self) -> None:
        """The process is gone, with everything that was not committed."""
        self.alive = False
        self.world.record(Kind.KILLED, self.name(self.id))

    # ------------------------------------------------------------ statements

    def _trouble(self) -> Exception | None:
        if self.faults.again and self.rng.random() < self.faults.again:
            return Again()
        if self.faults.lost and self.rng.random() < self.faults.lost:
            return Lost()
        return None

    def _read(self, fn: Callable[[Connection], T]) -> T:
        error = self._trouble()
        if isinstance(error, Lost):
            raise error
        return self.world.read(fn)

    def _send(self, act: Act, fn: Callable[[Connection], T], me: str | None = None) -> T:
        """Commit, or fail; a lost reply may mean either."""
        error = self._trouble()
        if error is not None and (isinstance(error, Again) or self.rng.random() < 0.4):
            if (
                isinstance(error, Lost)
                and act is Act.SETTLE
                and self.rng.random() < self.faults.delayed
            ):
                self.faults.in_flight.append((me or self.id, fn))
            raise error
        value = self.world.commit(act, self.name(me or self.id), fn, self.read_at)
        if error is not None:
            raise error
        return value

    # ------------------------------------------------------------ claim loop

    def fetcher(self) -> Steps[None]:
        while not self.stopping:
            yield self._may_fetch
            if self.stopping:
                break
            try:
                yield from self._round()
            except (Lost, Again):
                self.search.forget()
                self.seen_version = -1
        self.fetcher_over = True

    def _may_fetch(self) -> bool:
        if self.stopping:
            return True
        if not self.runtime.identity.trusted() or len(self.runtime.hand.lanes) >= LANES:
            return False
        clock = self.world.clock.seconds
        return self.seen_version != self.world.version or clock >= self.next_look

    def _quarantined_in_hand(self) -> bool:
        last = self.world.spec.max_tries - 1
        return any(
            lane.row.crash_times > 0 and lane.row.tries >= last
            for lane in list(self.runtime.hand.lanes)
        )

    def _round(self) -> Steps[None]:
        if self.unsure and not (self.flaws.beside_quarantine or self.flaws.no_own_sweep):
            yield from self._sweep()
            self.unsure = False
        runtime, me = self.runtime, self.id
        self.seen_version = self.world.version
        self.next_look = self.world.clock.seconds + POLL
        if not self.flaws.beside_quarantine and self._quarantined_in_hand():
            return
        yield None
        held = len(runtime.hand.lanes)
        objects, ids = runtime.hand.running_under_lost_ids(runtime.identity.is_ours)
        room = LANES - held
        look: Look = self._read(
            lambda conn: self.search.look(
                conn, want=room, in_hand=held, skip_objects=objects, skip_ids=ids
            )
        )
        chosen = self._answered(look.candidates)
        alone = look.quarantined is not None and held == 0
        if alone and look.quarantined is not None:
            chosen = [look.quarantined]
        elif look.quarantined is not None and self.rng.random() < 0.5:
            chosen = []  # let the hands run empty
        if chosen:
            self.seen_version = -1
            yield None
            yield from self._claim(chosen, me, alone)

    def _answered(self, candidates: list[Candidate]) -> list[Candidate]:
        """Without what we have in hand: its settle may be written, and the answer be under way."""
        if self.flaws.claim_unanswered:
            return candidates
        if self.flaws.sending_only:
            return [c for c in candidates if c.msg_id not in self.sending]
        rows = [lane.row for lane in list(self.runtime.hand.lanes)]
        objects = {row.object_id for row in rows if row.object_id is not None}
        ids = {row.msg_id for row in rows}
        return [c for c in candidates if c.object_id not in objects and c.msg_id not in ids]

    def _free(self) -> bool:
        return not self.claiming.locked()

    def _claim(self, candidates: list[Candidate], me: str, alone: bool) -> Steps[None]:
        runtime = self.runtime
        early = self._early_runs(candidates) if self.flaws.early_run else None
        if early is not None:
            yield None
        if not self.flaws.claim_unlocked:
            yield self._free
            self.claiming.acquire(blocking=False)
        try:
            if me != self.id and not self.flaws.ghosts_of_look:
                return
            me = self.id
            if alone and not self.flaws.beside_quarantine and self._holds_any(me):
                self.unsure = True
                return
            self.unsure = True
            rows = self._flag(candidates, me)
            self.unsure = False
            yield None  # committed; the answer is on its way
            won = {row.msg_id for row in rows}
            self.search.refused([c for c in candidates if c.msg_id not in won])
            lanes = [Lane(me, [row]) for row in rows]
            runtime.hand.lanes.update(lanes)
        finally:
            if not self.flaws.claim_unlocked:
                self.claiming.release()
        if not lanes:
            return
        yield None
        if not (len(rows) == 1 and rows[0].crash_times > 0):
            self._read_runs(lanes, early)
        yield None
        self.ready.extend(lanes)

    def _holds_any(self, me: str) -> bool:
        return bool(self._read(lambda conn: recover.flagged_by(conn, self.world.t, me, limit=1)))

    def _flag(self, candidates: list[Candidate], me: str) -> list[Row]:
        t = self.world.t
        try:
            return self._send(Act.CLAIM, lambda conn: claim.flag(conn, t, candidates, me=me), me)
        except (IntegrityError, claim.LeftAlone):
            return self._send(
                Act.CLAIM, lambda conn: claim.flag_apart(conn, t, candidates, me=me)[0], me
            )

    def _early_runs(self, candidates: Sequence[Candidate]) -> dict[int, list[Row]]:
        heads: list[Row] = [
            Row(c.msg_id, c.object_id, None, None, 0, 0, 0, None, None) for c in candidates
        ]
        found: dict[int, list[Row]] = following.read_runs(
            self.world.conn, self.world.t, heads, limit=RUN_LIMIT
        )
        return found

    def _read_runs(self, lanes: list[Lane], early: dict[int, list[Row]] | None) -> None:
        heads = [lane.row for lane in lanes]
        try:
            runs = self._read(
                lambda conn: following.read_runs(conn, self.world.t, heads, limit=RUN_LIMIT)
            )
        except Lost:
            return  # the heads are flagged: they run, if without followers
        mark = self.world.mark()
        for lane in lanes:
            followers = (early or runs).get(lane.row.msg_id, [])
            lane.rows.extend(followers)
            self.read_at.update((row.msg_id, mark) for row in followers)

    # ------------------------------------------------------------ handler threads

    def handler(self, ident: int) -> Steps[None]:
        while True:
            yield lambda: bool(self.ready) or self.closed
            if self.closed:
                return
            if not self.ready:
                continue
            lane = self.ready.popleft()
            if not self._may_start(lane):
                continue
            if not self.runtime.identity.trusted():
                self.ready.append(lane)
                yield (
                    lambda: (
                        self.runtime.identity.trusted() or not self._ready_for_us() or self.closed
                    )
                )
                continue
            yield from self._handle(ident, lane)
            self.finished.append(lane)

    def _may_start(self, lane: Lane) -> bool:
        if lane.owner == self.id or (
            self.flaws.unasked and self.runtime.identity.is_ours(lane.owner)
        ):
            return True
        if self.runtime.identity.is_ours(lane.owner):
            self.runtime.hand.unsure.append(lane)
            self.next_beat = self.world.clock.seconds
        return False

    def _ready_for_us(self) -> bool:
        return bool(self.ready) and all(lane.owner == self.id for lane in self.ready)

    def _handle(self, ident: int, lane: Lane) -> Steps[None]:
        row, clock = lane.row, self.world.clock
        running = Running(row, lane.owner, clock.seconds, None)
        if lane.rows[0] is row or not self.flaws.runs_ahead:
            self._start(row, lane.owner)
        self.runtime.hand.running[ident] = running
        if row.msg_id in self.poison:
            yield None
            self.crash()
            yield lambda: False
        for _ in range(self.rng.choice((1, 1, 2, 4, 12))):
            yield None
        result = self._outcome(row)
        who, how = self.name(lane.owner), _word(result)
        self.world.record(Kind.ENDED, who, msg_id=row.msg_id, detail=how)
        try:
            if row.msg_id in self.transactional and result is DONE:
                yield from self._transactional(lane)
        except NotOurs:
            result = Result(Outcome.FAILED, "lost", 0.0)
        lane.result = result
        self.runtime.hand.running.pop(ident, None)
        if self.flaws.runs_ahead and result is DONE and lane.next_row is not None:
            self._start(lane.next_row, lane.owner)

    def _start(self, row: Row, owner: str) -> None:
        for other in list(self.runtime.hand.running.values()):
            if self.runtime.identity.is_ours(other.owner) and self.runtime.identity.is_ours(owner):
                continue  # the history tells of that
            same = other.row.object_id is not None and other.row.object_id == row.object_id
            if other.owner != owner and (same or other.row.msg_id == row.msg_id):
                text = (
                    f"{owner} started message {row.msg_id} while message {other.row.msg_id} of the "
                )
                text += f"same object still ran in its process, under the lost id {other.owner}"
                self.violations.append(Violation(Rule.I1, text))
        ours = self.world.owners or self._is_mine(self.world.rows[row.msg_id])
        if not ours and self._lives():
            text = f"{owner} started message {row.msg_id}, which it had not flagged any more"
            self.violations.append(Violation(Rule.I1, text))
        self.world.record(Kind.STARTED, self.name(owner), msg_id=row.msg_id)

    def _lives(self) -> bool:
        leases = self.world.read(lambda conn: lease.read_all(conn, self.world.t))
        return any(one.name == self.id and one.live and one.taken_by is None for one in leases)

    def _outcome(self, row: Row) -> Result:
        chance, habits = self.rng.random(), self.habits
        if chance < habits.fail:
            return Result(Outcome.FAILED, "failed", self.rng.choice((0.0, 0.5, 3.0)))
        chance -= habits.fail
        if chance < habits.reject:
            return Result(Outcome.DEAD, "rejected")
        chance -= habits.reject
        if chance < habits.later:
            return Result(Outcome.LATER, "later", self.rng.choice((0.0, 2.0)))
        return DONE

    def _transactional(self, lane: Lane) -> Steps[None]:
        """Effect and settle in one transaction; after a lost COMMIT the row tells."""

        def work(conn: Connection) -> Settled:
            self.world.raw.execute("INSERT INTO effects VALUES (?)", (lane.row.msg_id,))
            one = settlement(lane, self.runtime)
            fate = settling.settle_one(conn, self.world.t, one, me=lane.owner)
            if fate is Settled.LOST:
                raise NotOurs
            return fate

        lane.result = DONE
        while True:
            yield None
            try:
                fate = self._send(Act.SETTLE, work, lane.owner)
            except Again:
                continue
            except Lost:
                fate_or_none = yield from self._was_committed(lane)
                if fate_or_none is None:
                    continue
                fate = fate_or_none
            yield None
            lane.settled = fate is Settled.WENT_ON
            return

    def _was_committed(self, lane: Lane) -> Steps[Settled | None]:
        while self.runtime.identity.is_ours(lane.owner):
            yield from self._outage()
            try:
                flagged = self._still_mine({lane.row.msg_id: lane}, lane.owner)
            except Lost:
                continue
            return what_became({lane.row.msg_id: lane}, flagged).get(lane.row.msg_id)
        raise NotOurs

    # ------------------------------------------------------------ settler

    def settler(self) -> Steps[None]:
        while True:
            yield lambda: bool(self.finished)
            batch: list[Lane] = []
            for _ in range(self.rng.choice((1, 2, 9))):
                if self.finished:
                    batch.append(self.finished.popleft())
            self.settling = True
            going_on = yield from self._settle(batch)
            self.ready.extend(going_on)
            self.settling = False

    def _settle(self, batch: list[Lane]) -> Steps[list[Lane]]:
        runtime, me = self.runtime, self.id
        mine = [lane for lane in batch if runtime.identity.is_ours(lane.owner)]
        for lane in batch:
            if lane not in mine:
                runtime.hand.lanes.discard(lane)
        open_lanes = {lane.row.msg_id: lane for lane in mine if lane.settled is None}
        became: dict[int, Settled] = {}
        if open_lanes:
            self.sending = frozenset(open_lanes)
            yield from self._write(open_lanes, me, became)
            yield None  # the answer is on its way
            self.sending = frozenset()
        return [lane for lane in mine if self._after(lane, became)]

    def _after(self, lane: Lane, became: dict[int, Settled]) -> bool:
        if lane.settled is not None:
            fate = Settled.WENT_ON if lane.settled else Settled.ENDED
        else:
            fate = became.get(lane.row.msg_id, Settled.LOST)
        if fate is not Settled.WENT_ON:
            self.runtime.hand.lanes.discard(lane)
            if fate is Settled.ENDED:
                self.runtime.hand.blocked.discard(lane.row.object_id)
            return False
        lane.go_on()
        return True

    def _write(self, lanes: dict[int, Lane], me: str, became: dict[int, Settled]) -> Steps[None]:
        while left := {i: lane for i, lane in lanes.items() if i not in became}:
            yield None
            try:
                yield from self._write_once(list(left.values()), me, became)
            except Again:
                continue
            except Lost:
                yield from self._look(left, me, became)
                if not self.runtime.identity.is_ours(me):
                    return

    def _write_once(self, lanes: list[Lane], me: str, became: dict[int, Settled]) -> Steps[None]:
        t, batch = self.world.t, [settlement(lane, self.runtime) for lane in lanes]
        try:
            became |= self._send(
                Act.SETTLE, lambda conn: settling.settle(conn, t, batch, me=me), me
            )
            return
        except (FlagMissing, IntegrityError):
            pass
        for one in batch:  # what is known of one stays known when a later one fails
            yield None
            became[one.msg_id] = self._settle_one(one, me)

    def _settle_one(self, one: Settlement, me: str) -> Settled:
        t = self.world.t
        return self._send(Act.SETTLE, lambda conn: settling.settle_one(conn, t, one, me=me), me)

    def _look(self, lanes: dict[int, Lane], me: str, became: dict[int, Settled]) -> Steps[None]:
        left = {i: lane for i, lane in lanes.items() if i not in became}
        while self.runtime.identity.is_ours(me):
            yield from self._outage()
            try:
                flagged = self._still_mine(left, me)
            except Lost:
                continue
            became |= what_became(left, flagged)
            return
        became |= dict.fromkeys(left, Settled.LOST)

    def _outage(self) -> Steps[None]:
        """The pause before the database is asked again."""
        for _ in range(self.rng.choice((1, 1, 5, 20))):
            yield None

    def _still_mine(self, lanes: dict[int, Lane], me: str) -> set[int]:
        ids = set(lanes) | {r.msg_id for ln in lanes.values() if (r := ln.next_row)}
        return self._read(lambda conn: done.still_mine(conn, self.world.t, sorted(ids), me=me))

    # ------------------------------------------------------------ heartbeat

    def _register(self) -> None:
        """Before anything else; at the start of a process it is waited for."""
        begun, me = self.world.clock.seconds, self.id
        self.world.commit(
            Act.LEASE, me, lambda conn: lease.register(conn, self.world.t, me, ttl=TTL)
        )
        self.runtime.identity.registered(begun + TRUST)

    def heartbeat(self) -> Steps[None]:
        while self.beating:
            yield lambda: self.world.clock.seconds >= self.next_beat or not self.beating
            if not self.beating:
                break
            try:
                yield from self._beat()
                self.next_beat = self.world.clock.seconds + BEAT
            except (Lost, Again):
                self.next_beat = self.world.clock.seconds + 0.2
        self.beat_over = True

    def _beat(self) -> Steps[None]:
        yield from self._renew()
        yield from self._make_sure()
        if not self.flaws.no_own_sweep:
            yield from self._sweep()
        yield from self._recover()

    def _renew(self) -> Steps[None]:
        runtime, me, t = self.runtime, self.id, self.world.t
        begun = self.world.clock.seconds
        if begun < runtime.identity.trusted_until:
            yield None
            alive = self._send(Act.LEASE, lambda conn: lease.renew(conn, t, me, ttl=TTL))
            yield None
            if alive:
                runtime.identity.renewed(begun + TRUST)
                return
        runtime.identity.lost()
        yield None
        if not self.world.owners and not self.flaws.forgets:
            yield from self._go_on_with_all()
            return
        self._read(lambda conn: recover.flagged_by(conn, t, me, limit=1))  # the database is there
        yield self._free
        runtime.forget_all(self._new_id())
        yield None
        new, begun = self.id, self.world.clock.seconds
        self._send(Act.LEASE, lambda conn: lease.register(conn, t, new, ttl=TTL))
        runtime.identity.registered(begun + TRUST)

    def _go_on_with_all(self) -> Steps[None]:
        runtime, t = self.runtime, self.world.t
        new, begun = self._new_id(), self.world.clock.seconds
        self._send(Act.LEASE, lambda conn: lease.register(conn, t, new, ttl=TTL))
        yield None
        yield self._free
        runtime.carry_all(new)
        yield None
        runtime.identity.registered(begun + TRUST)

    def _make_sure(self) -> Steps[None]:
        runtime, t = self.runtime, self.world.t
        lanes = [runtime.hand.unsure.popleft() for _ in range(len(runtime.hand.unsure))]
        if not lanes:
            return
        yield None
        try:
            seen = {lane.row.msg_id: lane.row.tries for lane in lanes}
            found = self._read(lambda conn: recover.still_flagged(conn, t, seen))
        except (Lost, Again):
            runtime.hand.unsure.extend(lanes)
            raise
        yield None
        for lane in lanes:
            if lane.row.msg_id in found.free:
                lane.owner = self.id
                self.ready.append(lane)
            else:
                runtime.hand.lanes.discard(lane)

    def _sweep(self) -> Steps[None]:
        """Give back rows flagged by us that no lane knows."""
        runtime, t = self.runtime, self.world.t
        yield self._free
        self.claiming.acquire(blocking=False)
        try:
            me = self.id
            rows = self._read(lambda conn: recover.flagged_by(conn, t, me))
            if rows:
                yield None
                known = runtime.known()
                unknown = [i for i in rows if i not in known]
                self._send(Act.RELEASE, lambda conn: recover.release(conn, t, unknown, me=me))
        finally:
            self.claiming.release()

    def _recover(self) -> Steps[None]:
        t = self.world.t
        yield None
        leases = self._read(lambda conn: lease.read_all(conn, t))
        yield None
        holders = self._read(lambda conn: recover.owners(conn, t))
        for one in leases:
            if one.ahead and one.name != self.id:
                yield None
                self._send(Act.LEASE, partial(lease.restart_ttl, t=t, seen=one))
        for seen in leases:
            if not seen.live and seen.name != self.id:
                yield from self._take_over(seen)
        known = {one.name for one in leases}
        for orphan in sorted(holders):
            if orphan not in known and orphan != self.id and not self.flaws.no_orphan_sweep:
                yield None
                again = self._read(lambda conn: lease.read_all(conn, t))
                if orphan not in {one.name for one in again}:
                    yield from self._give_back(orphan)

    def _take_over(self, seen: lease.Lease) -> Steps[None]:
        me, t = self.id, self.world.t

        def take(conn: Connection) -> bool:
            won = lease.take_over(conn, t, seen, me=me, ttl=TTL)
            if won and self.world.owners:  # else its holder keeps what it has
                self.world.record(Kind.LEASE_LOST, seen.name)
            return won

        yield None
        if not self.flaws.no_take_over and not self._send(Act.LEASE, take, me):
            return
        yield from self._give_back(seen.name)
        if self.flaws.no_take_over:
            return
        yield None
        self._send(Act.LEASE, lambda conn: lease.drop(conn, t, seen.name, taken_by=me), me)

    def _give_back(self, dead_id: str) -> Steps[None]:
        t, me = self.world.t, self.id
        while True:
            yield None
            ids = self._read(lambda conn: recover.flagged_by(conn, t, dead_id, limit=2))
            if not ids:
                return
            yield None
            back = partial(recover.recover, t=t, ids=ids, dead_id=dead_id, text="died")
            self._send(Act.RECOVER, back, me)
            if len(ids) < 2:
                return

    # ------------------------------------------------------------ orderly stop

    def stopper(self) -> Steps[None]:
        """No new claims, unstarted lanes released, everything settled, the lease last.

        `runtime.stopping` is set already."""
        yield lambda: self.fetcher_over
        self.closed = True
        while True:
            self._take_back()
            if self._empty_handed():
                break
            yield lambda: bool(self.ready or self.runtime.hand.unsure) or self._empty_handed()
        if not self.flaws.stop_unswept:
            yield from self._swept()
        self.beating = False
        yield lambda: self.beat_over
        me, t = self.id, self.world.t
        yield None
        try:
            dropped = self._send(Act.LEASE, lambda conn: lease.drop(conn, t, me), me)
        except (Lost, Again):
            dropped = False
        left = [row.msg_id for row in self.world.rows.values() if self._is_mine(row)]
        if dropped and left:
            text = f"{me} stopped in order and left messages {left} at 1"
            self.violations.append(Violation(Rule.I8, text))
        self.stopped, self.alive = True, False

    def _is_mine(self, row: Seen) -> bool:
        if self.world.owners:
            return row.claimed_by == self.id
        return row.status == PROCESSING and self.world.holders[row.msg_id] == self.label

    def _take_back(self) -> None:
        while self.ready or self.runtime.hand.unsure:
            lane = (self.ready or self.runtime.hand.unsure).popleft()
            if self.runtime.identity.is_ours(lane.owner):
                lane.result = Result(Outcome.RELEASED)
                self.finished.append(lane)

    def _empty_handed(self) -> bool:
        waiting = self.ready or self.runtime.hand.unsure or self.finished
        busy = waiting or self.settling or self.runtime.hand.running
        return not busy and not self.runtime.hand.lanes

    def _swept(self) -> Steps[None]:
        while True:
            try:
                yield from self._sweep()
                return
            except (Lost, Again):
                yield None


def _word(result: Result) -> str:
    words = {Outcome.DONE: "returned", Outcome.DEAD: "rejected"}
    return words.get(result.outcome, "raised")
