"""One schedule: instances, a producer, ops, a foreign consumer and faults, drawn from one seed.

Safety mode first: any runnable actor may be next, each with a weight that changes now and then, so
that one stands still for long while others run; instances are killed, paused, stopped. Then
liveness mode: no faults, every message must end DONE or dead within a bound of steps.
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, TypeVar

from sqlalchemy import Connection

from msgworker import events
from msgworker import schedules as ticks
from msgworker.instance import instance
from msgworker.instance.claiming import capacity
from msgworker.instance.claiming.loop import Drain
from msgworker.instance.liveness import lease as ownlease
from msgworker.instance.settling import settler
from msgworker.message import Outgoing
from msgworker.schedules import Schedule as Declared
from msgworker.store import (
    bounded,
    change,
    claim,
    controls,
    lease,
    recover,
    schedules,
    send,
    settle,
)
from msgworker.table.tables import Tables
from proof.history import DONE, FAILED, NEW, PROCESSING, Kind
from proof.judge import JOB_OVER, Rule, Terms, Violation, check
from proof.simulation.connections import Faults, deliver
from proof.simulation.process import BEAT, EFFECT, TRANSACTIONAL, Log, Process
from proof.simulation.strands import STEP_SECONDS, Condition, Stage, Strand, replaced_in
from proof.simulation.world import KEYS, LIMITED, LIMITS, METERED, Act, World

T = TypeVar("T")
Steps = Generator[Condition, None, T]
LIVENESS_STEPS = 6000
TOPICS = (LIMITED, LIMITED, METERED, "plain")
PATIENCE = 600.0  # how long the drains of the end wait for what is to come


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """What may happen in the schedules of one kind. Chances are per schedule or per step."""

    name: str = ""
    instances: int = 2
    objects: int = 2
    messages: tuple[int, int] = (2, 4)  # of each object
    loose: int = 0  # messages without an object
    steps: int = 140
    on_dead: str = "continue"
    late: float = 0.0  # a message is committed after higher ones
    ops: int = 0  # reruns and discards
    cancels: float = 0.0  # an act of ops is a cancel, also of what runs
    foreign: bool = False
    kills: int = 0
    pauses: int = 0
    stops: int = 0
    stalls: int = 0  # one thread stands still
    jumps: int = 0  # the database's clock is put forward or back
    poison: float = 0.0  # a message kills its process
    transactional: float = 0.0
    batch: str = ""  # the topic of transactional messages, if it is one of batches
    fail: float = 0.15  # a handler does, and so on
    reject: float = 0.04
    later: float = 0.05
    lost: float = 0.0  # the reply of a statement is lost
    delayed: float = 0.0  # a settle given up as lost is executed later
    again: float = 0.0  # the database rolls a transaction back
    owners: bool = True  # False: a table without claimed_by
    frees: int = 0  # without owners: operators release what is at 1, if no lease lives
    ignores: bool = True  # False: a guard violation raises
    drains: bool = False  # the instances end when nothing is left to do
    priorities: bool = False  # messages have one of several
    limits: bool = False  # topics have limits, see world.py
    jobs: bool = False  # all messages are of one job, which is sealed with the last
    keys: int = 0  # two producers send so many messages each with unique keys; there are no others
    ticks: int = 0  # a schedule sends messages, every so many seconds; there are no others
    deletes: bool = False  # the row of a message that is done is deleted
    blind: bool = False  # the claim does not see a running message: only the guard excludes


@dataclass(slots=True)
class Report:
    """What came of a schedule. errors: that roles have met, although no fault brings one about."""

    seed: int
    config: str
    violations: list[Violation]
    errors: list[str]
    steps: int
    trace: list[str]
    plant: str = ""

    @property
    def wrong(self) -> bool:
        """Whether anything is."""
        return bool(self.violations or self.errors)

    def __str__(self) -> str:
        lines = [f"seed {self.seed} of {self.config!r}: {len(self.violations)} violations"]
        lines += [str(violation) for violation in self.violations]
        lines += [f"error of {error}" for error in self.errors]
        lines += ["schedule:", *(f"  {line}" for line in self.trace)]
        how = f'--plant "{self.plant}"' if self.plant else f"--config {self.config}"
        again = f"python -m proof.simulation {self.seed} {how}"
        return "\n".join([*lines, f"replay: {again}"])


class Generated:
    """Somebody beside the instances: a generator of what it waits for."""

    def __init__(self, name: str, steps: Steps[None]) -> None:
        self.name = name
        self.process: Process | None = None
        self.ready: Condition = None
        self.until: float | None = None
        self.over = False
        self.started = True
        self.weight = 1.0
        self._steps = steps

    def step(self) -> None:
        """On to its next pause."""
        try:
            self.ready = next(self._steps)
        except StopIteration:
            self.over = True


Actor = Generated | Strand


class Schedule:
    """The actors of one seed and what happens to them."""

    def __init__(self, world: World, config: Config, seed: int, plant: str = "") -> None:
        world.reset()
        self.world = world
        self.config = config
        self.seed = seed
        self.plant = plant
        self.rng = random.Random(f"{config.name}:{seed}")
        chances = (config.lost, config.again, config.delayed)
        self.faults = Faults(*chances, config.fail, config.reject, config.later)
        self.plan = self._messages()
        rng = self.rng
        self.poison = frozenset(i for i, _ in self.plan if rng.random() < config.poison)
        some = (i for i, _ in self.plan if rng.random() < config.transactional)
        self.transactional = frozenset(some)
        self.labels = count()
        self.processes: list[Process] = []
        self.subscribers = Log()
        self.actors: list[Actor] = []
        self.paused: dict[Process, int] = {}
        self.stalled: dict[Actor, int] = {}
        self.left = {
            "kill": config.kills,
            "pause": config.pauses,
            "stop": config.stops,
            "stall": config.stalls,
            "jump": config.jumps,
        }
        self.trace: list[tuple[float, int, str]] = []
        self.taken = 0
        self.quiet = False
        self.ended = True
        self._last: Process | None = None
        self.stage = Stage(world.clock, rng, self._spawn, f"{config.name}:{seed}")
        self._open_at = -1  # the version of the table in which a message was still to be done

    def _messages(self) -> list[tuple[int, str | None]]:
        rng, config = self.rng, self.config
        if config.ticks or config.keys:
            return []
        names: list[str | None] = [None] * config.loose
        for i in range(config.objects):
            names += ["XYZVW"[i]] * rng.randint(*config.messages)
        rng.shuffle(names)
        return list(enumerate(names, 1))

    # ------------------------------------------------------------ the run

    def run(self, *, tell: bool = False) -> Report:
        """Both modes; the schedule is told if a rule is broken, or in any case."""
        with replaced_in(self.stage, self._others()):
            try:
                self.stage.play(self._play())
            finally:
                for process in self.processes:
                    process.alive = False
                    self._bury(process)
        self.world.judge(self.config.ticks)
        violations = [v for one in self.processes for v in one.violations]
        errors = [f"{one.label}: {text}" for one in self.processes for text in one.log.errors]
        errors += self.subscribers.errors
        violations += self.world.violations
        violations += self._judge(finished=self.ended)
        if not self.ended:
            text = f"not finished within {LIVENESS_STEPS} steps without faults: {self._rows()}"
            violations.append(Violation(Rule.I3, text))
        lines = self._story() if violations or errors or tell else []
        which = self.seed, self.config.name
        return Report(*which, violations, errors, self.taken, lines, self.plant)

    def _play(self) -> Iterator[Strand]:
        """Everything that happens; yields who is to run next."""
        if self.plan:
            self._add("producer", self._producer())
        if self.config.keys:
            self._add("sender-1", self._sender("sender-1"))
            self._add("sender-2", self._sender("sender-2"))
        if self.config.delayed:
            self._add("network", self._network())
        for _ in range(self.config.instances):
            self._start_process()
        if self.config.ops:
            self._add("ops", self._ops())
        if self.config.foreign:
            self._add("foreign", self._foreign())
        if self.config.frees:
            self._add("frees", self._frees())
        for _ in range(self.config.steps):
            if not self._chaos():
                yield from self._step()
        yield from self._live()

    def _others(self) -> list[tuple[Any, str, Any]]:
        """Ids that are the same in every run, and short waits and statements where little is in
        flight. A stop does not give up on the database, or it would give back what has run."""
        read = claim.read_runs

        def read_runs(*args: Any, **how: Any) -> Any:
            runs = read(*args, **how)
            self._current().read_runs(runs)
            return runs

        def send_all(conn: Connection, _: Tables, messages: Iterable[Outgoing]) -> None:
            for one in messages:
                conn.execute(EFFECT, {"id": int(one.row["b_payload"])})

        return [
            (events, "log", self.subscribers),
            (settle, "send_all", send_all),
            (ownlease, "new_instance_id", lambda _: self._current().new_id()),
            (claim, "read_runs", read_runs),
            (claim, "RUNS_PER_STATEMENT", 4),
            (claim, "at_once", lambda _: 2),  # as where one statement reads few
            (capacity, "FIRST_IDLE_SECONDS", 0.5),
            (capacity, "TICK_SECONDS", self.rng.choice((0.05, 0.3))),
            (capacity, "IDLE_GROWTH", 4.0),
            (capacity, "GROWTH", 4.0),
            (capacity, "LONGEST_PAUSE_SECONDS", 5.0),
            (capacity, "LONGEST_BUSY_SECONDS", self.rng.choice((0.1, 5.0))),
            (instance, "GIVE_UP_SECONDS", 1e6),
            (settler, "LEAST_BESIDE", 1),
            (schedules, "is_there", lambda conn, t: True),
            (schedules, "is_whole", lambda conn, t: True),
            (ticks, "MOST_TICKS", 3),
        ]

    def _current(self) -> Process:
        strand = self.stage.current
        assert strand is not None
        assert isinstance(strand.process, Process)
        return strand.process

    def _judge(self, *, finished: bool) -> list[Violation]:
        final = self.world.final()
        terms = Terms(
            max_tries=self.world.spec.max_tries,
            on_dead="block" if self.config.on_dead == "block" else "continue",
            transactional=self.transactional,
            finished=finished,
            limited=self.world.limited_ids(),
            max_running=LIMITS[LIMITED].max_running or 1,
        )
        return check(self.world.events, final, terms)

    def _add(self, name: str, steps: Steps[None]) -> None:
        self._spawn(Generated(name, steps))

    def _spawn(self, actor: Actor) -> None:
        actor.weight = self.rng.choice((0.2, 1.0, 1.0, 4.0))
        self.actors.append(actor)

    def _start_process(self) -> None:
        rng, drain = self.rng, None
        if self.config.drains:
            linger = PATIENCE if self.quiet else rng.choice((0.0, 1.0, 2 * BEAT))
            drain = Drain(linger=linger, retry_linger=linger, overdue=linger)
        process = Process(
            self.world,
            self.stage,
            rng,
            "abcdefghijklmnopqrstuvwxyz"[next(self.labels) % 26],
            faults=self.faults,
            poison=self.poison,
            drain=drain,
            schedules=self._schedules(),
        )
        self.processes.append(process)

    def _schedules(self) -> tuple[Declared, ...]:
        if not self.config.ticks:
            return ()
        spec = ticks.every(self.config.ticks).text
        held = "tick" if self.seed % 2 else None
        return (Declared("tick", spec, "plain", held, catch_up="all"),)

    def _runnable(self) -> list[Actor]:
        found: list[Actor] = []
        paused, stalled, now = self.paused, self.stalled, self.world.clock.seconds
        for a in self.actors:  # most of the time of a schedule is spent here
            if a.ready is not None and not a.ready() and (a.until is None or now < a.until):
                continue
            if (paused and a.process in paused) or (stalled and a in stalled):
                continue
            found.append(a)
        return found

    def _step(self) -> Iterator[Strand]:
        if self.paused or self.stalled:
            self._resume()
        self.taken += 1
        runnable = self._runnable()
        if not runnable:
            self._wait()
            return
        if self.taken % 16 == 0:
            for a in self.actors:
                a.weight = self.rng.choice((0.2, 1.0, 1.0, 4.0))
        if len(runnable) == 1:
            actor = runnable[0]
        else:
            actor = self.rng.choices(runnable, [a.weight for a in runnable])[0]
        self.trace.append((self.world.clock.seconds, self.world.place, actor.name))
        if isinstance(actor, Strand):
            yield actor
        else:
            actor.step()
        if actor.over:
            self.actors.remove(actor)
        self.world.clock.seconds += STEP_SECONDS
        process = actor.process
        if isinstance(process, Process) and not process.alive:
            self._bury(process)

    def _resume(self) -> None:
        for process in [i for i, until in self.paused.items() if until <= self.taken]:
            del self.paused[process]
        for actor in [a for a, until in self.stalled.items() if until <= self.taken]:
            del self.stalled[actor]

    def _bury(self, process: Process) -> None:
        for actor in [a for a in self.actors if a.process is process]:
            assert isinstance(actor, Strand)
            self.actors.remove(actor)
            actor.end()
        self.paused.pop(process, None)

    def _wait(self) -> None:
        """No strand can run: on to the next instant at which one can."""
        clock = self.world.clock
        moments = [a.until for a in self.actors if a.until and a.process not in self.paused]
        clock.seconds = min((m for m in moments if m > clock.seconds), default=clock.seconds + 1.0)

    def _living(self) -> list[Process]:
        return [i for i in self.processes if i.alive]

    # ------------------------------------------------------------ faults

    def _chaos(self) -> bool:
        """Now and then something happens to an instance, or time passes."""
        chance = self.rng.random()
        if chance > 0.07:
            return False
        if chance < (0.035 if self.stalled or self.paused else 0.02):
            self._pass_time()
            return True
        kinds = [kind for kind, left in self.left.items() if left]
        kind = self.rng.choice(kinds) if kinds else None
        targets = [i for i in self._living() if not i.stopping]
        if kind is None or not targets:
            return False
        self.left[kind] -= 1
        if kind == "jump":
            by = self.rng.choice((-40.0, -12.0, -0.5, 0.5, 12.0, 40.0, 100.0))
            self._note(f"the database's clock jumps by {by:g} seconds")
            self.world.clock.ahead += by
            return True
        victim = self.rng.choice(targets)
        if kind == "stall":
            threads = [a for a in self.actors if a.process is victim and a.started]
            threads = [
                a for a in threads if a.ready is None
            ] or threads  # in the middle of something
            if threads:
                actor = self.rng.choice(threads)
                self.stalled[actor] = self.taken + self.rng.randint(20, 120)
                self._note(f"stall {actor.name}")
            return True
        self._note(f"{kind} {victim.id}")
        if kind == "kill":
            victim.crash()
            self._bury(victim)
            self._start_process()
        elif kind == "pause":
            self.paused[victim] = self.taken + self.rng.randint(20, 120)
            self._pass_time(BEAT)
        else:
            victim.stop()
            self._start_process()
        return True

    def _pass_time(self, seconds: float | None = None) -> None:
        away = self.paused or self.stalled
        far = (0.6, 2.0, BEAT, BEAT, BEAT, 1.1 * BEAT) if away else (0.6, 2.0, BEAT)
        seconds = seconds or self.rng.choice(far)
        if not away and self.left["pause"] and self.rng.random() < 0.1:
            seconds = 3.2 * BEAT  # all processes were suspended
        self._note(f"{seconds:g} seconds pass")
        self.world.clock.seconds += seconds

    def _note(self, text: str) -> None:
        self.trace.append((self.world.clock.seconds, self.world.place, text))

    # ------------------------------------------------------------ others

    def _producer(self) -> Steps[None]:
        rng, at_once = self.rng, self.rng.randint(1, len(self.plan))
        if self.config.jobs:
            columns = "(job_id, table_name, name, on_complete) VALUES (1, ?, 'job', ?)"
            text = f"INSERT INTO {self.world.jobs.name} {columns}"
            self._commit(Act.PRODUCE, "producer", text, self.world.spec.bare_name, JOB_OVER)
        late = [m for m in self.plan if rng.random() < self.config.late]
        rest = [m for m in self.plan if m not in late]
        for number, message in enumerate(rest):
            if number >= at_once:
                yield None
            self._insert(*message)
        rng.shuffle(late)
        for message in late:
            for _ in range(rng.randint(1, 4)):
                yield None
            self._insert(*message)
        if self.config.jobs:
            text = f"UPDATE {self.world.jobs.name} SET sealed_at = opened_at"
            self._commit(Act.PRODUCE, "producer", text)

    def _insert(self, msg_id: int, object_id: str | None) -> None:
        table = self.world.t.message.name
        columns = "(msg_id, object_id, topic, priority, job_id)"
        text = f"INSERT INTO {table} {columns} VALUES (?, ?, ?, ?, ?)"
        topic = "plain"
        if msg_id in self.transactional:
            topic = self.config.batch or TRANSACTIONAL
        elif self.world.limited:
            topic = TOPICS[(msg_id * 7919 + self.seed) % len(TOPICS)]  # not drawn, see below
            self.world.topics[msg_id] = topic
        # Not drawn: the other schedules of a seed stay as they are.
        priority = (msg_id * 7919 + self.seed) % 4 if self.config.priorities else 0
        job = 1 if self.config.jobs else None
        self._commit(Act.PRODUCE, "producer", text, msg_id, object_id, topic, priority, job)

    def _sender(self, name: str) -> Steps[None]:
        """Sends messages with the same keys as the other one."""
        world, t, rng = self.world, self.world.t, self.rng
        for _ in range(self.config.keys):
            for _ in range(rng.choice((1, 5, 30))):
                yield None
            key = rng.choice(list(KEYS))
            how = rng.choice(("skip", "skip", "replace"))
            row = send.row_values(
                t,
                topic="plain",
                object_id=KEYS[key],
                payload=None,
                delay=None,
                at=None,
                unique_key=key,
            )
            work = partial(send.send, t=t, row=row, on_duplicate=how)
            msg_id = world.commit(Act.PRODUCE, name, work)
            world.sent(key, msg_id)

    def _commit(self, act: Act, who: str, text: str, *values: object) -> int:
        def work(_: Connection) -> int:
            return self.world.raw.execute(text, values).rowcount

        return self.world.commit(act, who, work)

    def _network(self) -> Steps[None]:
        """Executes what was sent on connections that its sender has given up."""
        flying = self.faults.in_flight
        while True:
            yield lambda: bool(flying)
            for _ in range(self.rng.choice((2, 20, 60))):
                yield None
            who, sent = flying.pop(0)
            deliver(self.world, who, sent)

    def _ops(self) -> Steps[None]:
        for _ in range(self.config.ops):
            for _ in range(self.rng.randint(1, 12)):
                yield None
            rows = list(self.world.rows.values())
            if self.config.cancels and self.rng.random() < self.config.cancels:
                running = [row for row in rows if row.status == PROCESSING]
                chosen = self.rng.choice(running or rows).msg_id if rows else 0
                self._cancel(chosen)
                for _ in range(self.rng.choice((0, 3, 30))):
                    yield None
                if self.rng.random() < 0.5:
                    self._rerun(chosen)
                continue
            ended = [r for r in rows if r.status in (DONE, FAILED)]
            open_rows = [r for r in rows if r.status in (NEW, FAILED)]
            if ended and self.rng.random() < 0.6:
                self._rerun(self.rng.choice(ended).msg_id)
            elif open_rows:
                row = self.rng.choice(open_rows)
                if row.status == NEW or row.tries < self.world.spec.max_tries:
                    self._discard(row.msg_id)
                    if self.rng.random() < 0.4:
                        yield None
                        self._rerun(row.msg_id)

    def _rerun(self, msg_id: int) -> None:
        def work(conn: Connection) -> int:
            return change.rerun(conn, self.world.t, [msg_id], done_too=True)

        self.world.commit(Act.RERUN, "ops", work)

    def _cancel(self, msg_id: int) -> None:
        world, t = self.world, self.world.t

        def work(conn: Connection) -> None:
            running = controls.running(conn, t, [msg_id])
            if running or change.lock(conn, t, [msg_id], words=bounded.WAITING):
                world.asked[msg_id] = world.reruns[msg_id]
                change.cancel_or_request(conn, t, [msg_id], actor="ops", reason="cancel")

        world.commit(Act.CANCEL, "ops", work)

    def _discard(self, msg_id: int) -> None:
        spec = self.world.spec
        tries = spec.max_tries + (spec.on_dead == "block")
        text = f"UPDATE {spec.name} SET status = -1, error_try_times = ?, available_at = NULL, "
        text += "claimed_by = NULL WHERE msg_id = ? AND (status = 0 OR status = -1 AND "
        text += f"error_try_times < {spec.max_tries})"
        self._commit(Act.DISCARD, "ops", text, tries, msg_id)

    def _frees(self) -> Steps[None]:
        """`release --nobody --any-age`, on a table without owners."""
        world, t = self.world, self.world.t

        def living() -> bool:
            found = world.read(lambda conn: lease.read_all(conn, t))
            return any(one.live and one.taken_by is None for one in found)

        def work(conn: Connection) -> int:
            if living():  # asked again, now that it has the lock
                return 0
            for label in sorted({world.holders[i] for i in seen}):
                world.record(Kind.LEASE_LOST, label)
            return sum(
                recover.recover_foreign(conn, t, [i], seen_tries=n, text="released")
                for i, n in seen.items()
            )

        for _ in range(self.config.frees):
            yield lambda: self.quiet or (self.world.running() and not living())
            if self.quiet:
                return
            seen = dict(world.read(lambda conn: recover.foreign(conn, t)))
            yield None
            world.commit(Act.RECOVER, "ops", work)

    def _foreign(self) -> Steps[None]:
        """The seed's own loop: no lease, no fence, no back-off; it never dies."""
        table = self.world.spec.name
        find = (
            f"SELECT msg_id FROM {table} re"
            " WHERE (status = 0 OR status = -1 AND error_try_times < 3)"
            f" AND NOT EXISTS (SELECT 1 FROM {table} t WHERE t.object_id = re.object_id"
            " AND t.status = 1 AND t.msg_id < re.msg_id) ORDER BY msg_id LIMIT 1"
        )
        flag = f"UPDATE {table} SET status = 1 WHERE status = 0 AND msg_id = ?"
        done = f"UPDATE {table} SET status = 2 WHERE msg_id = ?"
        fail = f"UPDATE {table} SET status = -1, error_try_times = error_try_times + 1 "
        fail += "WHERE msg_id = ?"
        seen = -1

        def may_look() -> bool:
            return self.world.version != seen or self.quiet

        while not self.quiet:
            seen = self.world.version
            yield may_look
            found = self.world.raw.execute(find).fetchone()
            if found is None:
                continue
            yield None
            try:
                won = self._commit(Act.FOREIGN, "foreign", flag, found[0])
            except sqlite3.IntegrityError:
                continue
            if won:
                for _ in range(self.rng.randint(1, 6)):
                    yield None
                end = fail if self.rng.random() < 0.2 else done
                self._commit(Act.FOREIGN, "foreign", end, found[0])

    # ------------------------------------------------------------ liveness

    def _live(self) -> Iterator[Strand]:
        """No more faults: everything ends."""
        self.quiet = True
        self.faults.lost = self.faults.again = 0.0
        self.faults.fail = self.faults.reject = self.faults.later = 0.0
        self.paused.clear()
        self.stalled.clear()
        self._note("no more faults")
        self.world.end_of_ticks()
        for _ in range(LIVENESS_STEPS):
            if not any(i.alive and not i.stopping for i in self.processes):
                self._start_process()
            for a in self.actors:
                a.weight = 1.0
            yield from self._step()
            if self._over():
                break
            if self._last is not None and self._last.drained:
                text = f"the last drain was over before its work was: {self._rows()}"
                self.world.violations.append(Violation(Rule.I3, text))
                break
            if self.config.drains and self._last is None and not self._busy("producer"):
                self._last = self._drain_alone()
        else:
            self.ended = False

    def _drain_alone(self) -> Process:
        """One drain has to finish what all others leave to it when they die."""
        for process in self._living():
            process.crash()
            self._bury(process)
        self._start_process()
        return self.processes[-1]

    def _busy(self, name: str) -> bool:
        return any(a.name == name for a in self.actors)

    def _over(self) -> bool:
        if self._open_at == self.world.version:
            return False
        if len(self.world.rows) < len(self.plan) + self.config.jobs or self._busy("ops"):
            return False
        if self._busy("sender-1") or self._busy("sender-2"):
            return False
        if any(i.alive and i.stopping for i in self.processes):
            return False
        most = self.world.spec.max_tries
        blocked: set[str | None] = set()
        self._open_at = self.world.version
        for row in self.world.rows.values():
            if row.status == PROCESSING:
                return False
            if row.status == DONE or row.object_id in blocked:
                continue
            if row.status == NEW or row.tries < most:
                return False
            if self.config.on_dead == "block" and row.tries == most and row.object_id:
                blocked.add(row.object_id)
        return True

    def _rows(self) -> str:
        return ", ".join(
            f"{r.msg_id} of {r.object_id} {r.status}/{r.tries}/{r.claimed_by}"
            for r in self.world.rows.values()
        )

    def _story(self) -> list[str]:
        """The steps, and after each what it brought into the history."""
        events = self.world.events
        ends = [place for _, place, _ in self.trace[1:]] + [len(events)]
        lines: list[str] = []
        for (at, place, what), end in zip(self.trace, ends, strict=True):
            lines.append(f"{at:8.2f}s {what}")
            lines += [f"              {event}" for event in events[place:end]]
        return lines


def search_seeds(
    config: Config,
    seeds: range,
    *,
    guard: bool = True,
    plant: str = "",
    found: Callable[[Report], bool] = lambda report: report.wrong,
) -> Report | None:
    """The first schedule with a violation (or that `found` accepts), None if there is none."""
    with closing(World(config, guard=guard)) as world:
        reports = (Schedule(world, config, seed, plant).run() for seed in seeds)
        return next(filter(found, reports), None)
