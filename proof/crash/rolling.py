"""A fleet that shares out shards is scaled under load: 3 members, 4, 2, one of these killed.

    python -m proof.crash.torture --scenario scale --database postgresql [--plot FILE.svg]
    python -m proof.crash.torture --scenario handover --database postgresql

Judged by the checker of the crash tests (order, nothing beside another, nothing lost), and by the
number of shards that changed hands, which must be the least that the change takes. `handover`
measures instead how long the shards of a member that died, or left in order, are not looked at.
"""

from __future__ import annotations

import itertools
import random
import signal
import statistics
import threading
import time
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgworker import MessageTable
from msgworker.coordination import DatabaseLocks, Partitions
from proof.crash import plot
from proof.crash.consumer import table_of
from proof.crash.fleet import Consumer, Trial, Verdict
from proof.crash.scenarios import load
from proof.history import Kind
from tests.support.waiting import until

SHARDS = 64
TTL = 6.0
STAGE_SECONDS = 12.0
OBJECTS = 400
WORK_SECONDS = 0.4  # at most: what bounds a member are its threads, not the machine
THREADS = 4
BACKLOG = 300
ROUNDS = 5
HANDOVER_TTL = 3.0
HANDOVER_SHARDS = 16
LEAVE_SECONDS = 1.0


def least_moves(owners: Mapping[int, str], members: Sequence[str], shards: int) -> int:
    """So many shards must change hands until these members own as many each, within one: those
    that no process may keep. The biggest keep one more where it does not come out even."""
    own = sorted((Counter(owners.values())[one] for one in members), reverse=True)
    each, more = divmod(shards, len(members))
    return shards - sum(min(n, each + (place < more)) for place, n in enumerate(own))


def pid_of(owner: str) -> int:
    """The process of a member."""
    return int(owner.split(":")[-2])


@dataclass
class Change:
    """What was done to the fleet, when, and what it cost. took: seconds until it was at rest."""

    what: str
    members: int
    at: float
    least: int = 0
    moves: int = 0
    took: float = 0.0

    def __str__(self) -> str:
        return (
            f"{self.what}: {self.members} members, {self.moves} shards moved, {self.least} is the "
            f"least, at rest after {self.took:.1f} s"
        )


@dataclass
class Rolling:
    """One fleet on its way."""

    trial: Trial
    shards: int = SHARDS
    stage: float = STAGE_SECONDS
    work: float = WORK_SECONDS
    backlog: int = BACKLOG
    lives: list[Consumer] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.over = threading.Event()
        self.locks = DatabaseLocks(self.trial.app.engine)
        self.scope = Partitions(self.locks, self.shards)
        self.begun = self.ended = 0.0

    def run(self) -> Verdict:
        """All stages, then peace, then the verdict."""
        producer = threading.Thread(target=self._produce)
        producer.start()
        try:
            self.lives = [self.spawn() for _ in range(3)]
            self.rest()
            self.begun = time.monotonic()
            self.trial.pauses(self.stage)
            with self._change("one joins", 4):
                self.lives.append(self.spawn().ready())
            for members, what in ((3, "one leaves"), (2, "another leaves")):
                with self._change(what, members):
                    assert self.lives.pop(0).stop() == 0
            with self._change("one is killed", 1):
                self.lives.pop(0).kill()
            self.ended = time.monotonic()
        finally:
            self.over.set()
            producer.join()
        self.lives += [self.spawn().ready() for _ in range(2)]  # for what is left
        self.trial.finish(120)
        self.trial.stop_all()
        self.locks.close()
        return self.trial.judge()

    def spawn(self) -> Consumer:
        number = len(self.trial.consumers)
        facts = {"threads": THREADS, "seed": number, "label": f"w{number}"}
        return self.trial.spawn(scope="partitions", shards=self.shards, **facts)

    @contextmanager
    def _change(self, what: str, members: int) -> Iterator[None]:
        _, owners = self.view()
        before = self._tokens()
        change = Change(what, members, time.monotonic())
        self.changes.append(change)
        yield
        self.rest()
        change.took = time.monotonic() - change.at
        change.moves = sum(token - before[n] for n, token in self._tokens().items())
        change.least = least_moves(owners, self.view()[0], self.shards)
        self.trial.pauses(self.stage)

    def view(self) -> tuple[list[str], dict[int, str]]:
        return self.scope.view(self.trial.app.table)

    def rest(self) -> None:
        """Wait until those who live own all shards as they are meant to."""
        pids = {life.pid for life in self.lives}

        def at_rest() -> bool:
            members, owners = self.view()
            if {pid_of(one) for one in members} != pids or len(members) != len(pids):
                return False
            return len(owners) == self.shards and self.scope.target(members, owners) == owners

        until(at_rest, f"the {len(pids)} members own all shards", every=0.1)

    def _tokens(self) -> dict[int, int]:
        """The token of each shard rises whenever it changes hands."""
        held = self.locks.held(f"{self.scope.prefix(self.trial.app.table)}shard:")
        return {int(lease.name.rpartition(":")[2]): lease.token for lease in held}

    def _produce(self) -> None:
        """As many messages as are done, about."""
        chance = random.Random(1)
        while not self.over.wait(0.05):
            if self.trial.unfinished() < self.backlog:
                self.trial.send_many(load(self.backlog // 5, OBJECTS, chance, work=self.work))

    @property
    def lost(self) -> list[str]:
        """Shards that a member lost though it lives: the machine gave it no time."""
        texts = (one.err.read_text(errors="replace") for one in self.trial.consumers)
        return [line for text in texts for line in text.splitlines() if " lost: the" in line]

    def per_second(self, verdict: Verdict, every: float = 1.0) -> list[float]:
        """Handlers that ended well, per second, in each span of so many seconds."""
        ends = [e.at for e in verdict.events if e.kind == Kind.ENDED and e.detail == "returned"]
        spans = Counter(int((at - self.begun) // every) for at in ends if at >= self.begun)
        return [spans[i] / every for i in range(int((self.ended - self.begun) / every))]


@contextmanager
def rolling(url: str, folder: Path, *, ttl: float = TTL, **options: Any) -> Iterator[Rolling]:
    """A fleet on an empty database that can be run; options: fields of Rolling."""
    trial = Trial(url, folder, lease=ttl, table=table_of(shared=True))
    try:
        yield Rolling(trial, **options)
    finally:
        trial.close()


# ---------------------------------------------------------------- hand-overs


def handover(url: str, folder: Path, how: str, rounds: int = ROUNDS) -> list[float]:
    """Seconds from the death of a member, or from its SIGTERM, until a message of each of its
    shards, sent then, is handled; the longest of its shards, each time."""
    found = []
    with rolling(url, folder, shards=HANDOVER_SHARDS, ttl=HANDOVER_TTL) as fleet:
        trial = fleet.trial
        fleet.lives = [fleet.spawn().ready() for _ in range(2)]
        for _ in range(rounds):
            fleet.rest()
            every = [_object_of(n, fleet.shards) for n in range(fleet.shards)]
            for _ in range(2):  # whoever stays has worked before
                trial.send_many([(one, "plain", {}) for one in every * 2])
                trial.finish()
            trial.pauses(random.uniform(0, HANDOVER_TTL / 3))
            victim, *fleet.lives = fleet.lives
            orphans = [n for n, owner in fleet.view()[1].items() if pid_of(owner) == victim.pid]
            if how == "kill":
                victim.kill()
                gone_at = time.monotonic()
            else:
                gone_at = time.monotonic()
                victim.send(signal.SIGTERM)
            sent = trial.send_many([(_object_of(n, fleet.shards), "plain", {}) for n in orphans])
            until(
                lambda s=sent: all(trial.seen(n, Kind.STARTED) for n in s),
                "all its shards work again",
            )
            starts = [trial.seen(n, Kind.STARTED)[0].at for n in sent]
            found.append(max(starts) - gone_at)
            victim.wait()
            fleet.lives.append(fleet.spawn().ready())
        trial.stop_all()
        fleet.locks.close()
        with trial.reader.connect() as conn:  # the next one begins with an empty table
            conn.exec_driver_sql("DELETE FROM msgworker_message")
    return found


def _object_of(shard: int, shards: int) -> str:
    kept = MessageTable().shards
    names = (f"s{shard}-{i}" for i in itertools.count())
    return next(one for one in names if zlib.crc32(one.encode()) % kept % shards == shard)


def hand_over(name: str, url: str, folder: Path) -> int:
    """1 if one took longer than it may."""
    code = 0
    for how, limit in (("kill", HANDOVER_TTL * 4 / 3), ("leave", LEAVE_SECONDS)):
        took = handover(url, folder, how)
        print(
            f"{name} {how}: {statistics.median(took):.2f} s, at most {max(took):.2f} s; "
            f"allowed {limit:.2f} s (ttl {HANDOVER_TTL:g} s)",
            flush=True,
        )
        code |= max(took) > limit
    return code


def scale(name: str, url: str, folder: Path, picture: Path | None = None) -> int:
    """1 if a rule is broken, or a change took more moves than it must. picture: an SVG to write."""
    with rolling(url, folder) as fleet:
        verdict = fleet.run()
        speed = fleet.per_second(verdict)
        lost = fleet.lost
    print(f"{name}: {len(verdict.rows)} messages, {len(verdict.violations)} violations")
    print(*map(str, verdict.violations[:10]), *fleet.changes, sep="\n")
    for line in lost:
        print(f"a member that lives lost its lease: {line}")
    if picture is not None:
        marks = [(c.at - fleet.begun, f"{c.what}: {c.moves} moves") for c in fleet.changes]
        title = f"Messages per second, {fleet.shards} shards, {THREADS} threads each, {name}"
        picture.write_text(plot.svg(speed, [(0.0, "3 members"), *marks], title))
        print(f"written: {picture}")
    too_many = [one for one in fleet.changes if one.moves > one.least]
    return 1 if verdict.violations or (too_many and not lost) else 0
