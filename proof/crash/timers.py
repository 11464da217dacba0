"""Schedules of a second while processes are killed: every tick is exactly one message.

    python -m proof.crash.timers --seconds 60 --database postgresql

Without --database: SQLite, PostgreSQL and MariaDB, one after the other. Four processes fire three
schedules with catch_up="all" and handle their messages; every three seconds one is killed and
started again. In the end: no tick is missing, none is there twice, all are done. It also prints how
late ticks were sent. With `--fire` it is one of the processes.

Exit code 0: no rule broken.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

import sqlalchemy as sa

from msgworker import App, Message
from tests.support.waiting import until

NAMES = ("one", "two", "three")
LEASE_SECONDS = 2.0
SECOND = timedelta(seconds=1)


def make_app(url: str, names: Sequence[str] = NAMES) -> App:
    """The App of a process. names: of the schedules it fires."""
    app = App(url, lease_seconds=LEASE_SECONDS, poll_seconds=0.1, backoff_seconds=0)

    @app.handler("tick")
    def tick(msg: Message[None]) -> None:
        assert msg.scheduled_for is not None

    for name in names:
        app.every("1s", topic="tick", name=name, catch_up="all")
    return app


class Torture:
    """The processes, and the verdict. deaths: of kills."""

    def __init__(self, url: str, processes: int, seed: int) -> None:
        self.url = url
        self.chance = random.Random(seed)
        self.app = make_app(url)
        self.app.create_schema()
        self.deaths = 0
        self.lives = [self._spawn() for _ in range(processes)]
        self.ticks: dict[str, list[datetime]] = {}
        self.late: list[float] = []

    def run(self, seconds: float, kill_every: float = 3.0) -> list[str]:
        """Kill for so long, then stop in order; returns what is wrong."""
        try:
            until(self._read, "a tick is sent")
            begun = time.monotonic()
            kill_at = begun + kill_every
            while time.monotonic() < begun + seconds:
                time.sleep(min(0.2, kill_every / 4))
                if time.monotonic() >= kill_at:
                    kill_at += kill_every
                    self._kill(self.chance.randrange(len(self.lives)))
        finally:
            for life in self.lives:
                life.terminate()
            for life in self.lives:
                life.wait(60)
        rest = make_app(self.url, names=())  # one that fires would leave what it sent as it ended
        rest.drain(linger=2 * LEASE_SECONDS)  # what the last kill has left
        rest.engine.dispose()
        found = self.wrong()
        self.app.engine.dispose()
        return found

    def wrong(self) -> list[str]:
        """Everything that breaks a rule."""
        statuses = self._read()
        found = [
            f"{n} messages are left at {status}" for status, n in statuses.items() if status != 2
        ]
        for name in NAMES:
            found += verdict(name, self.ticks[name])
        return found

    def _kill(self, number: int) -> None:
        self.lives[number].kill()
        self.lives[number].wait()
        self.deaths += 1
        self.lives[number] = self._spawn()

    def _spawn(self) -> subprocess.Popen[bytes]:
        words = [sys.executable, "-m", "proof.crash.timers", "--fire", self.url]
        return subprocess.Popen(words, stderr=subprocess.DEVNULL)

    def _read(self) -> Counter[int]:
        c = self.app.tables.cols()
        columns = (c.object_id, c.scheduled_for, c.created_at, c.status)
        query = sa.select(*columns).order_by(c.msg_id)
        ticks: defaultdict[str, list[datetime]] = defaultdict(list)
        self.late, statuses = [], Counter[int]()
        with self.app.engine.connect() as conn:
            for name, tick, sent, status in conn.execute(query):
                ticks[name].append(tick)
                self.late.append((sent - tick).total_seconds())
                statuses[status] += 1
        self.ticks = ticks
        return statuses


def verdict(name: str, ticks: Sequence[datetime]) -> list[str]:
    """What is wrong with the ticks of a schedule of a second, in the order of their messages."""
    found = [f"{name}: {tick} was sent {n} times" for tick, n in Counter(ticks).items() if n > 1]
    if not ticks:
        return [f"{name}: no tick"]
    if list(ticks) != sorted(ticks):
        found.append(f"{name}: ticks are out of order")
    there, tick = set(ticks), min(ticks)
    while tick < max(ticks):
        if tick not in there:
            found.append(f"{name}: {tick} is missing")
        tick += SECOND
    return found


def main() -> int:
    from tests.plugin import NAMES as DATABASES
    from tests.plugin import _fresh
    from tests.servers import session

    parser = argparse.ArgumentParser(prog="timers", description=__doc__)
    parser.add_argument("--database", choices=DATABASES, action="append")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--fire", metavar="URL", help="be one of the processes")
    options = parser.parse_args()
    if options.fire:
        make_app(options.fire).worker(threads=1).run(signals=True)
        return 0
    failed = 0
    with session() as servers, tempfile.TemporaryDirectory() as folder:
        for name in options.database or DATABASES:
            for database in _fresh(name, servers, Path(folder)):
                run = Torture(database.url, options.processes, options.seed)
                wrong = run.run(options.seconds)
                count = sum(map(len, run.ticks.values()))
                late = sorted(run.late)
                text = f"{name}: seed {options.seed}, {run.deaths} kills, {count} ticks, "
                text += f"late by {late[len(late) // 2]:.3f} s (median), {late[-1]:.3f} s (most), "
                print(f"{text}{len(wrong)} violations", flush=True)
                print("\n".join(wrong[:10]))
                failed += bool(wrong)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
