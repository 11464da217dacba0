"""One process with one instance of the product, all its roles as they are.

Here is only what a program adds to it: handlers that take their time and end in some way, its
death, its stop, the end of a drain; and what can be seen from inside a process alone.
"""

from __future__ import annotations

import logging
import random
from collections.abc import MutableMapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import sqlalchemy as sa

from msgworker.config import Settings
from msgworker.errors import DatabaseUnavailable, Reject, RetryLater
from msgworker.events import InstanceStopped, LeaseLost, Started
from msgworker.instance.claiming.loop import Drain
from msgworker.instance.instance import Instance
from msgworker.instance.liveness.identity import Identity
from msgworker.instance.running.context import BatchContext, Context
from msgworker.instance.running.handler import Handler, Registry
from msgworker.instance.running.in_flight import Execution
from msgworker.instance.state import Setup, Shared
from msgworker.instance.stop import Stop
from msgworker.message import Message, Outcome
from msgworker.schedules import Schedule
from msgworker.store import lease
from msgworker.store.rows import Bare, Row
from proof.history import PROCESSING, Kind
from proof.judge import Rule, Violation
from proof.simulation.connections import Engine, Faults, Site
from proof.simulation.strands import Gone, Stage, Strand
from proof.simulation.world import LIMITS, Seen, World

TTL = 30.0
BEAT = TTL / 3
POLL = 6.0
RUN_LIMIT = 3
LANES = 3
THREADS = 2
TRANSACTIONAL = "tx"  # the topic of messages whose effect commits with their outcome
BATCH, GROUP = "batch", "group"
"""Topics whose messages share a call or a transaction."""
SENDING = "sending"
"""The topic of messages whose effect is what a plain handler sends with their outcome."""
EFFECT = sa.insert(sa.table("effects", sa.column("msg_id"))).values(msg_id=sa.bindparam("id"))


class Log(logging.LoggerAdapter[logging.Logger]):
    """Keeps errors, which no fault of a schedule may bring about; drops all else, and that a thread
    of a process that is no more was ended where the product survives any error."""

    def __init__(self) -> None:
        super().__init__(logging.getLogger("proof.simulation"), {})
        self.errors: list[str] = []

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> Any:
        return msg, kwargs

    def log(self, level: int, msg: object, *args: Any, **how: Any) -> None:
        error = how.get("exc_info")
        if level >= logging.ERROR and not isinstance(error, Gone):
            self.errors.append(f"{str(msg) % args} {error!r}" if error else str(msg) % args)


@dataclass(slots=True)
class Try:
    """One call of a handler, or several where its transaction was rolled back. follows: it stands
    behind the flagged message of its lane, in a batch."""

    row: Row
    owner: str
    outcome: Outcome
    follows: bool
    begun: bool = False
    ended: bool = False
    claim: int = 0

    @property
    def error(self) -> Exception:
        """What its handler raises."""
        kinds = {Outcome.DEAD: Reject("rejected"), Outcome.LATER: RetryLater(1.0)}
        return kinds.get(self.outcome, ValueError("failed"))


class Process:
    """alive: it has not died or ended. drained: its drain was over."""

    def __init__(
        self,
        world: World,
        stage: Stage,
        rng: random.Random,
        label: str,
        *,
        faults: Faults,
        poison: frozenset[int],
        drain: Drain | None = None,
        schedules: tuple[Schedule, ...] = (),
    ) -> None:
        self.world = world
        self.label = label
        self.alive = True
        self.stopping = False
        self.drained = False
        self.drain = drain
        self.violations: list[Violation] = []
        self.log = Log()
        self._stage = stage
        self._rng = rng
        self._poison = poison
        self._tries: dict[tuple[Strand | None, int], Try] = {}
        self._last: dict[tuple[int, str], Try] = {}
        self._lost: dict[str, float] = {}  # when an id of ours was lost
        self._generation = 0
        self._site = Site(world, stage, rng, faults, label)
        registry = Registry()
        handler = partial(Handler, when_done="delete" if world.deletes else "keep")
        registry.add(handler(None, self._handle))
        registry.add(handler(TRANSACTIONAL, self._handle, transactional=True))
        registry.add(handler(SENDING, self._handle))
        registry.add(handler(BATCH, self._handle_many, transactional=True, batch=4))
        registry.add(handler(GROUP, self._handle, transactional=True, group=4))
        if world.limited:
            for topic, limit in LIMITS.items():
                registry.add(handler(topic, self._handle, limit=limit))
        self.setup = Setup(
            engine=Engine(self._site),  # type: ignore[arg-type]
            tables=world.t,
            registry=registry,
            settings=Settings(
                lease_seconds=TTL,
                poll_seconds=POLL,
                run_limit=RUN_LIMIT,
                lanes_limit=LANES,
                backoff_seconds=rng.choice((0.0, 0.5, 3.0)),
            ),
            threads=THREADS,
            label=label,
            clock=stage.monotonic,
            schedules=schedules,
        )
        stop = Stop(stage.threading.Event())  # type: ignore[arg-type]
        self.shared = Shared(self.setup, Identity(self.new_id()), log=self.log, stop=stop)
        self.setup.events.on(Started, self._started)
        self.setup.events.on(LeaseLost, self._lease_lost)
        self.setup.events.on(InstanceStopped, self._stopped)
        self.instance = Instance(self.setup, shared=self.shared, drain=drain)
        stage.begin(f"{label}.main", self, self._main)

    def new_id(self) -> str:
        """The next id of its instance."""
        self._generation += 1
        return f"{self.label}{self._generation}"

    @property
    def id(self) -> str:
        return self.shared.identity.id

    def read_runs(self, runs: dict[int, list[Bare]]) -> None:
        """These were read just now."""
        mark = self.world.mark()
        for rows in runs.values():
            self._site.read_at.update((row[0], mark) for row in rows)

    # ------------------------------------------------------------ its life

    def _main(self) -> None:
        while True:
            try:
                self.instance.start()
                break
            except DatabaseUnavailable:
                self._stage.time.sleep(0.5)
        self._site.faulty = True
        if self.drain is not None:
            self._stage.wait(lambda: self.instance.fetcher.exhausted)
            self.drained = True
            self.stop()

    def crash(self) -> None:
        """The process is gone, with everything that was not committed."""
        if self.alive:
            self.alive = False
            self.world.record(Kind.KILLED, self._site.name(self.id))

    def stop(self) -> None:
        """Have it stopped in order, as a signal would; with some patience for its handlers."""
        if not self.stopping:
            self.stopping = True
            grace = self._rng.choice((0.0, 5.0, 600.0, 600.0))
            if not self.world.owners:  # what its handlers leave cannot be recovered
                grace = 600.0
            self._stage.begin(f"{self.label}.stopper", self, lambda: self._end(grace))

    def _end(self, grace: float) -> None:
        if not self.instance.stop(grace):
            self.crash()  # with the handlers that still run
        self.alive = False

    def _stopped(self, event: InstanceStopped) -> None:
        left = [row.msg_id for row in self.world.rows.values() if self._is_mine(row)]
        if event.clean and left:
            text = f"{self.id} stopped in order and left messages {left} at 1"
            self.violations.append(Violation(Rule.I8, text))

    def _lease_lost(self, event: LeaseLost) -> None:
        self._lost[event.instance] = self._stage.monotonic()

    def _is_mine(self, row: Seen) -> bool:
        if self.world.owners:
            return row.claimed_by == self.id
        return row.status == PROCESSING and self.world.holders[row.msg_id] == self.label

    # ------------------------------------------------------------ handlers

    def _started(self, event: Started) -> None:
        row: Any = event.message
        strand = self._stage.current
        trusted_until = self.shared.identity.tenure.trusted_until
        # Over for longer than since it looked; 0: it was declared dead, at whatever moment.
        if strand is not None and 0 < trusted_until < strand.ran_at[0]:
            text = (
                f"{event.instance} started message {row.msg_id} at {strand.ran_at[-1]:.2f} s, but "
            )
            text += f"trusted its lease until {trusted_until:.2f} s only"
            self.violations.append(Violation(Rule.I1, text))
        owners = {self.id, *self.shared.identity.tenure.carried}
        lost_at = self._lost.get(event.instance, strand.ran_at[0] if strand else 0.0)
        if strand is not None and event.instance not in owners and lost_at < strand.ran_at[0]:
            text = f"{self.id} started message {row.msg_id} under {event.instance}, which it had "
            text += f"lost at {lost_at:.2f} s"
            self.violations.append(Violation(Rule.I1, text))
        claim = self.world.claims[row.msg_id]
        running = self.shared.in_flight.running[self._stage.threading.get_ident()]
        follows = row.msg_id not in {flagged.msg_id for flagged in running.rows()}
        one = Try(row, event.instance, self._outcome(), follows, claim=claim)
        before = self._last.get((row.msg_id, event.instance))
        flagged = row.topic in (BATCH, GROUP) and not follows
        if flagged and before is not None and before.claim == claim:
            one.begun, one.ended = before.begun, before.ended  # it ran in a batch, now alone
            one.outcome = before.outcome if before.ended else one.outcome
        self._last[row.msg_id, event.instance] = one
        self._tries[strand, row.msg_id] = one

    def _outcome(self) -> Outcome:
        chance, faults = self._rng.random(), self._site.faults
        for outcome, share in (
            (Outcome.FAILED, faults.fail),
            (Outcome.DEAD, faults.reject),
            (Outcome.LATER, faults.later),
        ):
            if chance < share:
                return outcome
            chance -= share
        return Outcome.DONE

    def _begins(self, one: Try) -> None:
        """Its handler begins; of a follower in a batch the table tells when it is done."""
        if not one.begun and not one.follows:
            one.begun = True
            self.world.named.discard(one.row.msg_id)
            self._look_around(one)
            who = self._site.name(one.owner)
            self.world.record(Kind.STARTED, who, msg_id=one.row.msg_id)

    def _ends(self, one: Try) -> None:
        if one.begun and not one.ended:
            one.ended = True
            word = {Outcome.DONE: "returned", Outcome.DEAD: "rejected"}.get(one.outcome, "raised")
            who = self._site.name(one.owner)
            self.world.record(Kind.ENDED, who, msg_id=one.row.msg_id, detail=word)

    def _dies_of(self, *ids: int) -> None:
        if self._poison.intersection(ids):
            self._stage.pause()
            self.crash()
            raise Gone

    def _handle_many(self, messages: list[Message[Any]], ctx: BatchContext) -> None:
        self.world.batched.update(msg.msg_id for msg in messages)
        try:
            self._try_many(messages, ctx)
        finally:
            self.world.batched.subtract(msg.msg_id for msg in messages)

    def _try_many(self, messages: list[Message[Any]], ctx: BatchContext) -> None:
        strand, rng = self._stage.current, self._rng
        tries = [self._tries[strand, msg.msg_id] for msg in messages]
        for one in tries:
            self._begins(one)
        self._dies_of(*(msg.msg_id for msg in messages))
        self._stage.linger(rng.choice((0, 0, 10, 30, 100)))
        bad = [one for one in tries if one.outcome is not Outcome.DONE]
        if bad and len(messages) == 1:
            self._ends(bad[0])
            raise bad[0].error
        if bad and rng.random() < 0.5:
            raise ValueError("one of them is bad")
        for msg, one in zip(messages, tries, strict=True):
            if one in bad:
                ctx.fail(msg, one.error)
                if not one.begun:
                    self.world.named.add(msg.msg_id)
            self._ends(one)
        for msg, one in zip(messages, tries, strict=True):
            if one not in bad:
                ctx.connection.execute(EFFECT, {"id": msg.msg_id})

    def _handle(self, msg: Message[Any], ctx: Context) -> None:
        if msg.topic == GROUP:
            self.world.batched[msg.msg_id] += 1
        try:
            self._try_one(msg, ctx)
        finally:
            if msg.topic == GROUP:
                self.world.batched[msg.msg_id] -= 1

    def _try_one(self, msg: Message[Any], ctx: Context) -> None:
        one = self._tries[self._stage.current, msg.msg_id]
        self._begins(one)
        self._dies_of(msg.msg_id)
        self._stage.linger(self._rng.choice((0, 0, 10, 30, 100)))
        if msg.topic == GROUP and one.outcome is not Outcome.DONE and self._shares(one):
            raise ValueError("one of them is bad")
        self._ends(one)
        if one.outcome is Outcome.FAILED:
            raise ValueError("failed")
        if one.outcome is Outcome.DEAD:
            raise Reject("rejected")
        if one.outcome is Outcome.LATER:
            raise RetryLater(self._rng.choice((0.0, 2.0)))
        if msg.topic in (TRANSACTIONAL, GROUP):
            ctx.connection.execute(EFFECT, {"id": msg.msg_id})
        if msg.topic == SENDING:
            ctx.send("effect", msg.msg_id)

    def _shares(self, one: Try) -> bool:
        """Whether the call shares its transaction with others."""
        running = self.shared.in_flight.running
        beside = any(r.beside and one.row in r.rows() for r in list(running.values()))
        return beside or one.follows

    def _look_around(self, one: Try) -> None:
        """What else runs in this process, and whether the message is ours."""
        row, owner, identity = one.row, one.owner, self.shared.identity
        ids = {identity.id, *identity.tenure.carried}
        for other in list(self.shared.in_flight.running.values()):
            if not {other.owner, owner} <= ids:
                self._compare(one, other)  # else the history tells
        ours = self.world.owners or self._is_mine(self.world.rows[row.msg_id])
        strand = self._stage.current
        if ours or strand is None or self.world.moved_at[row.msg_id] >= strand.ran_at[0]:
            return  # or it was, when its thread looked
        if self._lives():
            text = f"{owner} started message {row.msg_id}, which it had not flagged any more"
            self.violations.append(Violation(Rule.I1, text))

    def _compare(self, one: Try, other: Execution) -> None:
        row = one.row
        same = other.row.object_id is not None and other.row.object_id == row.object_id
        if other.owner != one.owner and (same or other.row.msg_id == row.msg_id):
            text = f"{one.owner} started message {row.msg_id} while message {other.row.msg_id} of "
            text += f"the same object still ran in its process, under the lost id {other.owner}"
            self.violations.append(Violation(Rule.I1, text))

    def _lives(self) -> bool:
        leases = self.world.read(lambda conn: lease.read_all(conn, self.world.t))
        return any(one.name == self.id and one.live and one.taken_by is None for one in leases)
