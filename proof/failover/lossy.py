"""Torture of an asynchronous pair: the standby is always some tenths of a second behind when its
primary is killed. Nothing that it lost is a fault: it is named; all else must hold.

    python -m proof.failover.lossy --seconds 60
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from proof import pairs
from proof.crash.fleet import Consumer, Trial, pid_of
from proof.crash.probe import Probe
from proof.crash.scenarios import load
from proof.failover.epochs import Epoch, Loss, Snapshot, Told, judge, lost, snapshot
from proof.history import Event, Kind
from proof.pairs.postgresql import PostgreSQLPair, Primary
from tests.support.cutting import consumer_url

LEASE_SECONDS = 2.0
BEHIND_SECONDS = 0.5
SETTLED_SECONDS = 1.0  # after the death of a primary; what was answered before is written down then
OBJECTS = 100


@dataclass
class Lossy:
    """One run."""

    trial: Trial
    pair: PostgreSQLPair
    chance: random.Random
    processes: int
    losses: list[Loss] = field(default_factory=list)
    epochs: list[Epoch] = field(default_factory=list)
    lives: list[Consumer] = field(default_factory=list)
    kills: int = 0
    first: Snapshot | None = None
    begun: float = 0.0

    def run(self, seconds: float, every: float) -> list[str]:
        """Failovers for so long, then peace; what is wrong."""
        self.lives = [self._spawn() for _ in range(self.processes)]
        over = threading.Event()
        producer = threading.Thread(target=self._produce, args=(over,))
        producer.start()
        with Probe(self.trial.sends_with or self.trial.url) as probe:
            deadline, next_one = time.monotonic() + seconds, time.monotonic() + every
            while time.monotonic() < deadline:
                self.trial.pauses(0.1)
                if time.monotonic() > next_one:
                    self._fail_over()
                    next_one = time.monotonic() + every * self.chance.uniform(0.7, 1.3)
                elif self.chance.random() < 0.05:
                    self._kill()
                self._replace_dead()
            over.set()
            producer.join()
            self._peace()
            outages = probe.past_outages()
        last = snapshot(self._url(self.pair.primary))
        self.epochs.append(Epoch(self.begun, time.monotonic(), self.first, last))
        told = self._told()
        return [
            f"epoch {number}: {fault}"
            for number, epoch in enumerate(self.epochs, 1)
            for fault in judge(
                told,
                epoch,
                ttl=LEASE_SECONDS,
                finished=epoch is self.epochs[-1],
                outages=outages,
            )
        ]

    def _fail_over(self) -> None:
        self.pair.wait_for_standby()
        self.pair.hold_back()
        time.sleep(BEHIND_SECONDS)
        self.pair.primary.crash()
        time.sleep(SETTLED_SECONDS)
        old = self.pair.promote()
        new = snapshot(self._url(self.pair.primary))
        ended = time.monotonic()
        self.pair.turn()
        old.start()
        had = snapshot(self._url(old))
        old.remove()
        self.epochs.append(Epoch(self.begun, ended, self.first, had))
        self.losses.append(lost(had, new))
        self.first, self.begun = new, ended
        self.pair.mend()

    @staticmethod
    def _url(server: Primary) -> str:
        return f"{server.url}torture"

    def _spawn(self) -> Consumer:
        return self.trial.spawn(threads=2, seed=len(self.trial.consumers))

    def _kill(self) -> None:
        ready = [c for c in self.lives if c.running and c.is_ready]
        if len(ready) > 1:
            self.chance.choice(ready).kill()
            self.kills += 1

    def _replace_dead(self) -> None:
        self.lives = [life if life.running else self._spawn() for life in self.lives]

    def _produce(self, over: threading.Event) -> None:
        while not over.wait(0.05):
            try:
                if self.trial.unfinished() < 500:
                    self.trial.send_many(load(20, OBJECTS, self.chance))
            except Exception:  # the server is away
                over.wait(0.3)

    def _peace(self) -> None:
        deadline = time.monotonic() + 120
        while self.trial.unfinished() and time.monotonic() < deadline:
            self.trial.pauses(0.2)
            self._replace_dead()
        self.trial.stop_all()

    def _told(self) -> Told:
        self.trial.note_lives()
        events = self.trial.events()
        ids = {e.instance for e in events} | {e.detail for e in events if e.kind == Kind.RECOVERED}
        snapshots = [e.last for e in self.epochs] + [e.first for e in self.epochs if e.first]
        ids |= {line.claimed_by for one in snapshots for line in one.lines.values()}
        killed = [
            Event(Kind.KILLED, life.ended_at, i, since=life.alive_at)
            for life in self.trial.consumers
            if life.was_killed and life.ended_at is not None
            for i in ids
            if i is not None and pid_of(i) == life.pid
        ]
        ahead = time.time() - time.monotonic()
        return Told(events, self.trial.sent, killed, self.trial.observed, ahead)


def report(run: Lossy, wrong: list[str]) -> str:
    """What was done, what was lost, what is wrong."""
    last = run.epochs[-1].last.lines
    lines = [
        f"messages    {len(run.trial.sent)} sent, {len(last)} there at the end",
        f"faults      {len(run.losses)} failovers, {run.kills} kills",
        *(f"lost        {loss}" for loss in run.losses),
        f"violations  {len(wrong)}",
    ]
    return "\n".join([*lines, *wrong[:10]])


def main() -> int:
    parser = argparse.ArgumentParser(prog="lossy", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--every", type=float, default=8.0)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    options = parser.parse_args()
    print(
        f"torture of an asynchronous pair: {options.seconds:g} s, seed {options.seed}", flush=True
    )
    with tempfile.TemporaryDirectory() as folder:
        run, wrong = run_for(
            Path(folder),
            options.seconds,
            every=options.every,
            processes=options.processes,
            seed=options.seed,
        )
    print(report(run, wrong))
    return 1 if wrong else 0


def run_for(
    folder: Path, seconds: float, *, every: float, processes: int, seed: int
) -> tuple[Lossy, list[str]]:
    """A run, and what is wrong; raises CannotHave."""
    with pairs.running(PostgreSQLPair(synchronous=False)) as pair:
        url = pair.make("torture")
        trial = Trial(consumer_url(url), folder, lease=LEASE_SECONDS, sends_with=url)
        try:
            run = Lossy(trial, pair, random.Random(seed), processes)
            return run, run.run(seconds, every)
        finally:
            trial.close()


if __name__ == "__main__":
    sys.exit(main())
