"""Everything at once, for as long as asked: kill -9, pauses beyond the lease, lost sessions, server
crashes, late commits, cancels; then peace, and the verdict. Of a Galera cluster the nodes: killed,
cut off from the others, paused, one at a time; so of a group of MySQL, but its primary where it has
one alone. Of a pair the primary: killed, its standby promoted; what that of `postgresql-async`
lacks is named, and each time between two failovers judged (proof/failover/epochs.py).
A PgBouncer in front of a server: killed, restarted, its sessions ended.

    python -m proof.crash.torture --seconds 60 --database postgresql --processes 8

Without --database: PostgreSQL, MariaDB and SQLite, one after the other, each server our own.
`--database oracle-mariadb`: the stand-in of Oracle (docs/project/oracle.md).
`--database partitions`: PostgreSQL with eight partitions of the message table.

`--scenario NAME`: another one of scenarios.py, which has less in it, and more of that.

Exit code 0: no rule broken, every message done or dead. The seed is printed first; faults come at
moments that the machine decides, so a seed repeats the plan, not the run.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from msgworker import MessageTable
from msgworker.schema import apply
from msgworker.table.tables import takes_keys
from proof import pairs, pooled
from proof.crash import points
from proof.crash.batch_witness import BEHIND
from proof.crash.consumer import (
    LIMITED,
    MAX_RUNNING,
    METERED,
    PER_SECOND,
    SCHEDULES,
    TICK,
    table_of,
)
from proof.crash.features import Features
from proof.crash.fleet import EXACT, Consumer, Trial, Verdict
from proof.crash.probe import SILENCE_SECONDS, Probe
from proof.crash.scenarios import OBJECTS, SCENARIOS, Scenario, load
from proof.failover.epochs import Epochs
from proof.galera.group import Group
from proof.history import Kind, Outage, Row
from proof.judge import CHAIN, JOB_OVER, starts_in_windows
from proof.oracle import standins
from proof.oracle.ready import collated
from proof.pairs.postgresql import PostgreSQLPair
from tests import servers
from tests.engines import plain_engine
from tests.support.cutting import Cutter, consumer_url

PROCESSES = {
    "postgresql": 8,
    "mariadb": 8,
    "sqlite": 4,
    "partitions": 8,
    "oracle-mariadb": 4,
    "galera": 6,
    "mysql-group": 6,
    "mysql-group-single": 6,
    "postgresql-sync": 6,
    pairs.LOSSY: 4,
    "mariadb-semisync": 6,
    "mysql-semisync": 6,
    "pgbouncer-transaction": 6,
    "pgbouncer-session": 6,
}
CLUSTERS = ("galera", "mysql-group", "mysql-group-single")
DEFAULT = ("postgresql", "mariadb", "sqlite")
FAULTS_AFTER_SECONDS = 3.0
PEACE_SECONDS = 180.0


AnyCluster = servers.Cluster[Any]
Behind = servers.Server | AnyCluster | pairs.AnyPair | pooled.Pooled


@dataclass
class Score:
    """What was done to the fleet."""

    kills: int = 0
    pauses: int = 0
    restarts: int = 0
    cuts: int = 0
    crashes: int = 0
    nodes: Counter[str] = field(default_factory=Counter)  # of a cluster: what was done to them
    pooled: Counter[str] = field(default_factory=Counter)  # a server and its pooler: the same
    rejoined: int = 0
    redis: int = 0
    late: int = 0
    unsure: int = 0
    orderly: int = 0


@dataclass
class Torture:
    """One run. `server`: ours alone, to be crashed too. `ways`: URLs of its database, if recovery
    gets as much more time as it was away."""

    trial: Trial
    processes: int
    chance: random.Random
    cutter: Cutter
    scenario: Scenario = SCENARIOS["everything"]
    server: Behind | None = None
    scope: str = ""
    redis: servers.Server | None = None
    ways: tuple[str, ...] = ()
    score: Score = field(default_factory=Score)

    def __post_init__(self) -> None:
        self.over = threading.Event()
        self.faults_after = FAULTS_AFTER_SECONDS
        # Until these are done, or were sent, or it is enough, it goes on, however slow the machine.
        self.least_faults, self.least_topics = 0, set[str]()
        self.enough: Callable[[Torture], object] = lambda run: True
        self.sent: set[str] = set()  # topics
        self.features = Features(self.trial, self.chance)
        self.can_commit_late = self.trial.app.engine.dialect.name != "sqlite"
        self.lives: list[Consumer] = []
        self.mending: threading.Thread | None = None
        self.outages: list[Outage] = []
        self.idle: list[Outage] = []  # when no process worked
        self.epochs: Epochs | None = None
        if isinstance(self.server, PostgreSQLPair) and not self.server.synchronous:
            self.epochs = Epochs(self.trial, self.server)
        self.cutter.when = self._most_work

    def run(self, seconds: float) -> Verdict:
        """Faults for so long, then peace until nothing is left, then the verdict."""
        if not self.ways:
            return self._run(seconds)
        with Probe(*self.ways) as probe:
            self.probe = probe
            return self._run(seconds)

    def _run(self, seconds: float) -> Verdict:
        self.lives = [self._spawn() for _ in range(self.processes)]
        if self.scenario.chained:  # its on_dead is left to who recovers it
            self.trial.send(None, CHAIN, crash=points.IN_HANDLER, crashes=99)
        producers = [
            threading.Thread(target=self._produce, args=(i,))
            for i in range(self.scenario.producers)
        ]
        for producer in producers:
            producer.start()
        self.features.start(cancels=self.scenario.cancels)
        cut = self.server and self.scenario.cut
        with self.cutter.cutting() if cut else contextlib.nullcontext():
            self._faults(time.monotonic() + seconds)
        self.score.cuts = self.cutter.count
        self.over.set()
        self.features.peace()
        for producer in producers:
            producer.join()
        return self._peace()

    def _faults(self, deadline: float) -> None:
        plan, idle_since = self._plan(), inf
        while (now := time.monotonic()) < deadline or (
            (self._lacks_faults() or not self.sent >= self.least_topics)
            and now < deadline + PEACE_SECONDS
        ):
            self.trial.pauses(0.05)
            if not self._ready():
                idle_since = min(idle_since, now)
            elif idle_since < inf:
                # Who comes then has a heartbeat or two until it recovers, as after the last crash.
                self.idle.append((idle_since, now + self.trial.lease))
                idle_since = inf
            for i, (act, every, at) in enumerate(plan):
                if now >= at and (now < deadline or self._lacks_faults()) and act():
                    plan[i] = act, every, now + every * self.chance.uniform(0.5, 1.5)
            self._replace_dead()
        if idle_since < inf:
            self.idle.append((idle_since, time.monotonic() + self.trial.lease))

    def _lacks_faults(self) -> bool:
        done = self.score.kills + self.score.orderly
        return done < self.least_faults or not self.enough(self)

    def _plan(self) -> list[tuple[Callable[[], bool], float, float]]:
        scenario = self.scenario
        acts: list[tuple[Callable[[], bool], float]] = [
            (partial(self._to_one, self._kill), scenario.kill),
            (partial(self._to_one, self._pause), scenario.pause),
            (partial(self._to_one, self._stop_in_order), scenario.stop),
        ]
        if self.server is not None:
            acts.append((self._crash, scenario.crash))
        if self.redis is not None:
            acts.append((self._crash_redis, scenario.crash / 2))
        begin = time.monotonic() + self.faults_after
        return [(act, every, begin + self.chance.uniform(0, every)) for act, every in acts if every]

    def _spawn(self) -> Consumer:
        number = len(self.trial.consumers)
        options: dict[str, object] = {"all_topics": True, "threads": 2, "seed": number}
        options |= self.scenario.consumer
        if self.scope:
            options["scope"] = self.scope
        if self.redis is not None:
            options["locks"] = self.redis.url
        through = None
        if isinstance(self.server, servers.Cluster):
            through = self.server.first(self.trial.url, number)
        return self.trial.spawn(through=through, **options)

    def _replace_dead(self) -> None:
        for i, life in enumerate(self.lives):
            if not life.running:
                self.score.restarts += 1
                self.lives[i] = self._spawn()

    # ------------------------------------------------------------ faults

    def _ready(self) -> list[Consumer]:
        return [c for c in self.lives if c.running and c.is_ready and not c.told_to_stop]

    def _most_work(self) -> bool:
        return 2 * len(self._ready()) > self.processes

    # Each tells whether it was done; what finds no process is tried again. One is left alone:
    # what the dead held must be recovered in time, by a living one. And most must work: where a
    # start takes long, there would be nothing but starts.

    def _to_one(self, act: Callable[[Consumer], None]) -> bool:
        found = self._ready()
        if len(found) < 2 or not self._most_work():
            return False
        act(self.chance.choice(found))
        return True

    def _kill(self, victim: Consumer) -> None:
        victim.kill()
        self.score.kills += 1

    def _stop_in_order(self, victim: Consumer) -> None:
        victim.send(signal.SIGTERM)
        self.score.orderly += 1

    def _pause(self, victim: Consumer) -> None:
        victim.pause()
        self.score.pauses += 1
        seconds = self.trial.lease * self.chance.uniform(1.0, 2.0)
        timer = threading.Timer(seconds, self._resume, [victim])
        timer.daemon = True
        timer.start()

    @staticmethod
    def _resume(victim: Consumer) -> None:
        if victim.running:
            victim.resume()

    def _crash(self) -> bool:
        """Only where a process works: on a busy machine one crash would follow the other."""
        assert self.server is not None
        if not self._ready():
            return False
        if isinstance(self.server, servers.Cluster):
            return self._harm_node(self.server)
        if isinstance(self.server, pairs.Pair):
            return self._fail_over(self.server)
        if isinstance(self.server, pooled.Pooled):
            return self._most_work() and self._harm_pooled(self.server)
        if self.server.name == "mariadb":
            self.server.kill()
        elif self.chance.random() < 0.5:
            self.server.stop(signal.SIGQUIT)
        else:
            self.server.stop(signal.SIGINT)  # in order, as at an upgrade
        self.trial.pauses(self.chance.uniform(0, 2))
        self.server.start()
        self.score.crashes += 1
        return True

    def _harm_node(self, cluster: AnyCluster) -> bool:
        """One node is away for some seconds, while the faults of the others go on."""
        if self.mending is not None and self.mending.is_alive():
            return False
        node = cluster.victim(self.chance)
        kind = cluster.harms[self.score.crashes % len(cluster.harms)]
        seconds = self.chance.uniform(2, 10)
        self.score.crashes += 1
        self.score.nodes[kind] += 1

        def harm() -> None:
            cluster.harm(node, kind, seconds)
            self.score.rejoined += 1

        self.mending = threading.Thread(target=harm)
        self.mending.start()
        return True

    def _fail_over(self, pair: pairs.AnyPair) -> bool:
        """The primary is killed while the faults of the others go on; half of the times connections
        lead to the standby before it is promoted."""
        if self.mending is not None and self.mending.is_alive():
            return False
        if self.epochs is not None:
            self.epochs.fail_over()
            self.score.crashes += 1
            return True
        seconds, shown = self.chance.uniform(0, 2), self.chance.random() < 0.5
        self.score.crashes += 1
        self.mending = threading.Thread(target=pair.fail_over, args=(seconds, shown))
        self.mending.start()
        return True

    def _harm_pooled(self, both: pooled.Pooled) -> bool:
        kind = pooled.HARMS[self.score.crashes % len(pooled.HARMS)]
        both.harm(kind, self.chance.uniform(0, 2))
        self.score.crashes += 1
        self.score.pooled[kind] += 1
        return True

    def _crash_redis(self) -> bool:
        """All locks and their tokens are forgotten."""
        assert self.redis is not None
        self.redis.kill()
        self.trial.pauses(self.chance.uniform(0, 2))
        self.redis.start()
        self.score.redis += 1
        return True

    # ------------------------------------------------------------ work

    def _produce(self, number: int) -> None:
        """Messages as fast as they are done, about; some commit late, some kill their process."""
        chance = random.Random(f"{self.chance.random()}-{number}")
        scenario = self.scenario
        while not self.over.wait(0.1):
            try:
                if self.trial.unfinished() > scenario.most:
                    continue
                if self.can_commit_late and chance.random() < scenario.late:
                    object_id = f"o{chance.randrange(OBJECTS)}"
                    self.trial.send_late(object_id, chance.choice(("plain", *EXACT)), 0.2)
                    self.score.late += 1
                messages = scenario.sends(chance)
                self.trial.send_many(messages)
                self.sent.update(message[1] for message in messages)
                if chance.random() < scenario.jobs:
                    self.features.send_job(chance, lambda: load(10, OBJECTS, chance))
                    self.sent.add(JOB_OVER)
                for _ in range(scenario.keyed if takes_keys(self.trial.app.tables) else 0):
                    self.features.send_keyed(chance)
            except Exception:  # the server is away: what was sent is not certain, which is noted
                self.score.unsure += 1
                self.over.wait(0.5)

    # ------------------------------------------------------------ the end

    def _has_ticked(self) -> bool:
        """Whether each schedule has ticked more than once."""
        message = self.trial.app.tables.message
        with self.trial.reader.connect() as conn:
            query = sa.select(message.c.object_id).where(message.c.topic == TICK)
            query = query.group_by(message.c.object_id).having(sa.func.count() > 1)
            return set(conn.scalars(query)) == set(SCHEDULES)

    def _waits(self) -> int:
        """How many messages are to be waited for."""
        if self.scenario.finishes:
            return self.features.seal_jobs() + self.trial.unfinished()
        open_ticks = f"topic = '{TICK}' AND status IN (0, 1)"
        return int(self.trial.read("count(*)", open_ticks)[0][0])

    def _print_standstill(self) -> None:
        """What waits and for what, and where the threads of the consumers are."""
        grouped = "topic, status, claimed_by, count(*), min(msg_id), min(available_at)"
        again = f"status = -1 AND error_try_times < {self.trial.table.max_tries}"
        where = f"status IN (0, 1) OR ({again}) GROUP BY topic, status, claimed_by"
        for row in self.trial.read(grouped, where):
            print("waits:", *row)
        for found in self.trial.app.ops.instances():
            print("instance:", found)
        lanes = self.trial.app.ops.lanes(by="object", limit=20)
        print(*(f"lane: {one}" for one in lanes), sep="\n")
        sessions = {
            "postgresql": "SELECT pid, state, wait_event, pg_blocking_pids(pid), xact_start, query "
            "FROM pg_stat_activity WHERE datname = current_database()",
            "mysql": "SHOW FULL PROCESSLIST",
        }
        if query := sessions.get(self.trial.reader.dialect.name):
            with self.trial.reader.connect() as conn:
                for row in conn.exec_driver_sql(query):
                    print("session:", *row)
        for life in self.lives:
            if life.running:
                life.send(signal.SIGUSR1)
        self.trial.pauses(1.0)
        for life in self.lives:
            print(f"consumer {life.pid}:", life.err.read_text()[-20_000:])

    def _peace(self) -> Verdict:
        if self.mending is not None:
            self.mending.join()
        for life in self.lives:
            if life.running:
                life.resume()
        deadline = time.monotonic() + PEACE_SECONDS
        ticks = self.scenario.consumer.get("all_topics", True)
        while (
            ticks and not self._has_ticked() and time.monotonic() < deadline
        ):  # kills may have left no time
            self.trial.pauses(0.2)
            self._replace_dead()
        # Otherwise one that stops last may send a tick that no instance handles any more.
        for name in SCHEDULES if ticks else ():
            self.trial.app.ops.pause_schedule(name, reason="peace")
        while self._waits() and time.monotonic() < deadline:
            self.trial.pauses(0.2)
            self._replace_dead()  # the last deadly messages
        if self._waits():
            self._print_standstill()
        for life in self.lives:
            if life.running and not life.told_to_stop:
                life.ready()
        self.trial.stop_all()
        self.features.read()
        if self.ways:
            self.outages = self.probe.past_outages()
        if self.epochs is not None:
            return self.epochs.judge(self.outages)
        terms: dict[str, Any] = {
            "finished": self.scenario.finishes,
            "limited": set(self.features.of(LIMITED)),
            "max_running": MAX_RUNNING,
            "metered": set(self.features.of(METERED))
            if "per_second" in self.scenario.terms
            else (),
            "outages": [*self.outages, *self.idle],
        }
        return self.trial.judge(also=self.features.events(), **{**terms, **self.scenario.terms})


def left(verdict: Verdict) -> list[Row]:
    """What is neither done nor dead."""
    return [row for row in verdict.rows.values() if row.status in (0, 1)]


def behind(torture: Torture) -> int:
    """How many messages went from 0 to done in a batch, or would have."""
    return sum((e.detail or "").startswith(BEHIND) for e in torture.trial.events())


def by_rule(verdict: Verdict) -> str:
    """How many of each rule, such as ": 3 of I9"; nothing where none is broken."""
    count = Counter(str(violation).partition(":")[0] for violation in verdict.violations)
    return ": " * bool(count) + ", ".join(f"{n} of {rule}" for rule, n in sorted(count.items()))


def of_nodes(torture: Torture) -> list[str]:
    """What was done to the nodes of a cluster, and how long it committed nothing; or to a server
    and its pooler."""
    score, away = torture.score, [back - away for away, back in torture.outages]
    if score.pooled:
        done = ", ".join(f"{kind} {count} times" for kind, count in score.pooled.items())
        return [f"of these    {done}"]
    if torture.epochs:
        return [f"lost        {loss}" for loss in torture.epochs.losses]
    if not score.nodes:
        return []
    done = ", ".join(f"{count} {kind}" for kind, count in score.nodes.items())
    return [
        f"nodes       {done}; {score.rejoined} came back",
        f"outages     {len(away)} times no node committed for {SILENCE_SECONDS:g} s or more: "
        f"{sum(away):.1f} s in all, {max(away, default=0.0):.1f} s at most",
    ]


def report(torture: Torture, verdict: Verdict) -> str:
    """What was done, what came of it."""
    score, rows, events = torture.score, verdict.rows, verdict.events
    count = {kind: sum(e.kind == kind for e in events) for kind in Kind}
    well = Counter(e.msg_id for e in events if e.kind == Kind.ENDED and e.detail == "returned")
    sent, numbers = torture.trial.sent, verdict.numbers
    plain = {numbers[n] for n in numbers if sent[n].topic == "plain"}
    again = sum(times - 1 for msg_id, times in well.items() if msg_id in plain)
    dead = sum(row.status == -1 for row in rows.values())
    lines = [
        f"messages    {len(rows)} ({sum(r.status == 2 for r in rows.values())} done, {dead} dead), "
        f"{score.late} late commits, {score.unsure} uncertain commits",
        f"faults      {score.kills} kills, {score.pauses} pauses, {score.cuts} sessions ended, "
        f"{score.crashes} server crashes, {score.redis} of Redis, {score.orderly} orderly stops, "
        f"{score.restarts} restarts",
        *of_nodes(torture),
        f"recovered   {count[Kind.RECOVERED]} messages of {count[Kind.LEASE_LOST]} dead instances",
        f"duplicates  {again} plain handlers ended well more than once (at least once is promised)",
        f"effects     {count[Kind.EFFECT]} of transactional handlers",
        f"batches     {behind(torture)} times a message was handled behind the head of its object",
        str(torture.features),
        *of_rates(torture, verdict),
        f"violations  {len(verdict.violations)}{by_rule(verdict)}",
    ]
    return "\n".join([*lines, *map(str, verdict.violations[:20])])


def of_rates(torture: Torture, verdict: Verdict) -> list[str]:
    """How many metered ones started, where that is judged."""
    if "per_second" not in torture.scenario.terms:
        return []
    metered = set(torture.features.of(METERED))
    starts = [e.at for e in verdict.events if e.kind == Kind.STARTED and e.msg_id in metered]
    counts = [count for _, count in starts_in_windows(sorted(starts))] or [0]
    return [f"rate        {min(counts)} to {max(counts)} starts in each 10 s, of {10 * PER_SECOND}"]


@contextlib.contextmanager
def cluster(name: str) -> Iterator[tuple[str, str, AnyCluster]]:
    """The same on three nodes; the URLs name all of them."""
    made: AnyCluster = servers.Galera()
    if name != "galera":
        made = Group(single=name.endswith("single"))
    try:
        made.start()
        made.nodes[0].query("CREATE DATABASE torture")
        url = made.url().replace("/?", "/torture?") + "&connect_timeout=2"
        yield consumer_url(url), url, made
    finally:
        made.remove()


@contextlib.contextmanager
def pair(name: str) -> Iterator[tuple[str, str, pairs.AnyPair]]:
    """The same on a primary with a standby; all go through a proxy, which leads to the primary."""
    with pairs.running(pairs.named(name)) as made:
        ours = made.make("torture")
        yield consumer_url(f"{made.url}torture"), ours, made


@contextlib.contextmanager
def pooler(name: str) -> Iterator[tuple[str, str, pooled.Pooled]]:
    """The same behind a PgBouncer, through which the consumers go; we do not."""
    with pooled.running(name) as made:
        admin = plain_engine(made.server.url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
        with admin.connect() as conn:
            conn.exec_driver_sql("CREATE DATABASE torture")
        yield consumer_url(made.url("torture")), f"{made.server.url}torture", made


@contextlib.contextmanager
def database(name: str, folder: Path) -> Iterator[tuple[str, str, Behind | None]]:
    """A new database on a server of our own: for consumers, for ourselves, and the server."""
    if name == "sqlite":
        url = f"sqlite:///{folder / 'torture.db'}"
        yield url, url, None
        return
    for names, made in (
        (CLUSTERS, cluster),
        ((*pairs.LOSSLESS, pairs.LOSSY), pair),
        (pooled.NAMES, pooler),
    ):
        if name in names:
            with made(name) as found:
                yield found
            return
    server = servers.start("postgresql" if name == "partitions" else standins.server_of(name))
    try:
        admin = plain_engine(server.url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
        options = collated if name in standins.NAMES else ""
        with admin.connect() as conn:
            conn.exec_driver_sql(f"CREATE DATABASE torture {options}")
        url = f"{server.url}torture"
        if name in standins.NAMES:
            url = standins.text(standins.over(sa.make_url(url), "torture"))
        if name == "partitions":
            divide(url)
        yield consumer_url(url), url, server
    finally:
        server.remove()


def divide(url: str) -> None:
    """Make the message table with partitions."""
    engine = plain_engine(url)
    with engine.begin() as conn:
        conn.exec_driver_sql(apply.ddl(MessageTable(), "postgresql", 8))
    engine.dispose()


@contextlib.contextmanager
def running(
    name: str,
    folder: Path,
    processes: int,
    seed: int,
    scope: str = "",
    scenario: Scenario = SCENARIOS["everything"],
    url: str | None = None,
) -> Iterator[Torture]:
    """A torture that can be run; raises CannotHave. scope: partitions with their locks in the
    database, or segments with theirs in Redis, which is killed, too. url: of a database whose
    server is not ours, and is left alone."""
    with contextlib.ExitStack() as stack:
        there: tuple[str, str, Behind | None] | None = url and (url, url, None)
        theirs, ours, server = there or stack.enter_context(database(name, folder))
        trial = Trial(
            theirs,
            folder,
            lease=scenario.lease,
            sends_with=ours,
            table=table_of(shared=bool(scope)),
            look_seconds=scenario.look_seconds,
        )
        stack.callback(trial.close)
        cutter = Cutter(ours, scenario.cut, random.Random(seed))
        torture = Torture(
            trial, processes, random.Random(seed), cutter, scenario, server, scope=scope
        )
        if isinstance(server, pairs.Pair):
            torture.ways = (ours,)
        if isinstance(server, servers.Cluster):
            torture.ways = tuple(f"{node.url}torture" for node in server.nodes)
        if isinstance(server, pooled.Pooled):
            torture.scenario = replace(scenario, crash=scenario.crash / 2)
        if scope == "segments":
            torture.redis = servers.start("redis", durable=False)
            stack.callback(torture.redis.remove)
        yield torture


def main() -> int:
    parser = argparse.ArgumentParser(prog="torture", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument(
        "--database", choices=list(PROCESSES), action="append", help="default: all but Oracle's"
    )
    parser.add_argument("--processes", type=int, help="default: 8, and 4 on SQLite")
    parser.add_argument("--scenario", choices=list(SCENARIOS), help="default: everything")
    parser.add_argument("--scope", choices=["partitions", "segments"], default="")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--keep", type=Path, help="leave the history and the logs in this folder")
    options = parser.parse_args()
    standins.install()
    codes = [torture(name, options) for name in options.database or DEFAULT]
    return max(codes)


def torture(name: str, options: argparse.Namespace) -> int:
    """One database; 0 if no rule was broken, 1 if one was, 3 if there is no such server."""
    seed = random.randrange(1 << 32) if options.seed is None else options.seed
    processes = options.processes or PROCESSES[name]
    scenario = options.scenario or ("losses" if name == pairs.LOSSY else "everything")
    print(
        f"torture of {name}, {scenario}: {options.seconds:g} s, {processes} processes, seed {seed}",
        flush=True,
    )
    with contextlib.ExitStack() as stack:
        folder = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder = folder / f"{name}-{seed}"
        folder.mkdir(parents=True, exist_ok=True)
        try:
            made = running(name, folder, processes, seed, options.scope, SCENARIOS[scenario])
            run = stack.enter_context(made)
        except servers.CannotHave as reason:
            print(f"{name} is not there: {reason}", file=sys.stderr)
            return 3
        verdict = run.run(options.seconds)
        print(report(run, verdict), flush=True)
        return 1 if verdict.violations or (run.scenario.finishes and left(verdict)) else 0


if __name__ == "__main__":
    sys.exit(main())
