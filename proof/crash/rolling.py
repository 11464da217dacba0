"""A fleet that shares out shards is scaled under load: 3 members, 4, 2, one of these killed.

Judged by the checker of the crash tests (order, nothing beside another, nothing lost), and by the
number of shards that changed hands, which must be the least that the change takes.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgworker.coordination import DatabaseLocks, Partitions
from proof.crash.consumer import table_of
from proof.crash.fleet import Consumer, Trial, Verdict
from proof.crash.scenarios import load
from tests.support.waiting import until

SHARDS = 64
TTL = 6.0
STAGE_SECONDS = 12.0
OBJECTS = 400
WORK_SECONDS = 0.4  # at most: what bounds a member are its threads, not the machine
THREADS = 4
BACKLOG = 300


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

    def run(self) -> Verdict:
        """All stages, then peace, then the verdict."""
        producer = threading.Thread(target=self._produce)
        producer.start()
        try:
            self.lives = [self.spawn() for _ in range(3)]
            self.rest()
            self.trial.pauses(self.stage)
            with self._change("one joins", 4):
                self.lives.append(self.spawn().ready())
            for members, what in ((3, "one leaves"), (2, "another leaves")):
                with self._change(what, members):
                    assert self.lives.pop(0).stop() == 0
            with self._change("one is killed", 1):
                self.lives.pop(0).kill()
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


@contextmanager
def rolling(url: str, folder: Path, *, ttl: float = TTL, **options: Any) -> Iterator[Rolling]:
    """A fleet on an empty database that can be run; options: fields of Rolling."""
    trial = Trial(url, folder, lease=ttl, table=table_of(shared=True))
    try:
        yield Rolling(trial, **options)
    finally:
        trial.close()
