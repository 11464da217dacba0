"""Limits over several processes that are killed: how many ran at once, how many started in 10 s.

    python -m proof.crash.limits --database postgresql --seconds 20

Without --database: PostgreSQL, MariaDB and SQLite, one after the other, each server our own. Exit
code 1: more than MAX_RUNNING at once, as handlers or as rows at 1; or a window of 10 s (the first
ones aside, which begin with a full bucket) with more or less than 5 % beside the rate.
With `--consume FILE` it is one of the processes.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from bisect import bisect_left
from dataclasses import dataclass, field
from pathlib import Path

import sqlalchemy as sa

from msgworker import App, Message
from proof.crash.torture import DEFAULT, database
from tests.engines import plain_engine
from tests.support.waiting import until as wait_until

MAX_RUNNING = 4
PER_SECOND = 20
TOLERANCE = 0.05
LEASE_SECONDS = 5.0
WORK_SECONDS = 0.03
KILL_SECONDS = 4.0
WINDOW_SECONDS = 10.0


def make_app(url: str, file: Path | None = None) -> App:
    """An App of a consumer; each start and end is a line in the file, in one write."""
    app = App(url, lease_seconds=LEASE_SECONDS, poll_seconds=0.2)
    where = None if file is None else os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(what: str, msg: Message) -> None:
        if where is not None:
            line = f"{msg.topic} {what} {time.monotonic():.6f} {os.getpid()} {msg.msg_id}\n"
            os.write(where, line.encode())

    def handle(msg: Message) -> None:
        note("start", msg)
        time.sleep(WORK_SECONDS)
        note("end", msg)

    app.add_handler("capped", handle, max_running=MAX_RUNNING)
    app.add_handler("paced", handle, rate=f"{PER_SECOND}/s")
    return app


@dataclass
class Verdict:
    """at_once: handlers of the capped topic. at_1: rows, as an observer saw them. windows: starts
    of the paced topic in each 10 s. capped: how many of the other have started."""

    at_once: int = 0
    at_1: int = 0
    windows: list[int] = field(default_factory=list)
    capped: int = 0
    kills: int = 0

    def wrong(self) -> list[str]:
        """What breaks the limits."""
        found = []
        if max(self.at_once, self.at_1) > MAX_RUNNING:
            found.append(f"{self.at_once} handlers, {self.at_1} rows at once")
        even = PER_SECOND * WINDOW_SECONDS
        odd = [n for n in self.windows if abs(n - even) > TOLERANCE * even]
        return found + ([f"{odd} of {len(self.windows)} windows are odd"] if odd else [])

    def __str__(self) -> str:
        windows = self.windows or [0]
        return (
            f"at once: {self.at_once} handlers, {self.at_1} rows at 1, of {MAX_RUNNING}; "
            f"{self.capped} started; in 10 s: {min(windows)} to {max(windows)} of "
            f"{PER_SECOND * WINDOW_SECONDS:.0f}; {self.kills} kills"
        )


def most_at_once(lines: list[list[str]], killed: dict[str, float]) -> int:
    """Of handlers of the capped topic; those of a killed process end with it."""
    steps: list[tuple[float, int]] = []
    open_: dict[tuple[str, str], float] = {}
    for topic, what, at, pid, msg_id in lines:
        if topic != "capped":
            continue
        if what == "start":
            steps.append((float(at), 1))
            open_[pid, msg_id] = float(at)
        else:
            steps.append((float(at), -1))
            open_.pop((pid, msg_id), None)
    steps += [(max(at, killed[pid]), -1) for (pid, _), at in open_.items() if pid in killed]
    now = most = 0
    for _, step in sorted(steps):
        now += step
        most = max(most, now)
    return most


def windows(starts: list[float]) -> list[int]:
    """Starts in each 10 s that begin with a second, once the bucket has run empty."""
    if not starts:
        return []
    starts = sorted(starts)
    at, found = starts[0] + 2.0, []
    while at + WINDOW_SECONDS <= starts[-1]:
        found.append(bisect_left(starts, at + WINDOW_SECONDS) - bisect_left(starts, at))
        at += 1.0
    return found


def measure(
    url: str,
    folder: Path,
    *,
    seconds: float,
    processes: int,
    seed: int,
    kill_seconds: float = KILL_SECONDS,
) -> Verdict:
    """Run so many processes for so long, and kill one now and then. There is always work."""
    app, file, chance = make_app(url), folder / "starts", random.Random(seed)
    app.create_schema()
    file.touch()
    with app.engine.begin() as conn:
        app.send_many(conn, "paced", [(None, i) for i in range(int(seconds * PER_SECOND * 1.5))])
        most = int(seconds * MAX_RUNNING / WORK_SECONDS)
        app.send_many(conn, "capped", [(None, i) for i in range(min(most, 5000))])

    def spawn() -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "proof.crash.limits", "--consume", str(file), url]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL)

    verdict, killed, over = Verdict(), dict[str, float](), threading.Event()

    def observe() -> None:
        reader = plain_engine(url, isolation_level="AUTOCOMMIT")
        count = sa.text(
            "SELECT count(*) FROM msgworker_message WHERE status = 1 AND topic = 'capped'"
        )
        with reader.connect() as conn:
            while not over.wait(0.02):
                verdict.at_1 = max(verdict.at_1, conn.scalar(count) or 0)
        reader.dispose()

    observer = threading.Thread(target=observe)
    lives = [spawn() for _ in range(processes)]
    observer.start()

    def working() -> list[int]:
        pids = {line.split()[3] for line in file.read_text().splitlines()}
        return [i for i, life in enumerate(lives) if str(life.pid) in pids]

    try:
        wait_until(lambda: len(working()) == processes, "all of them work")
        until, next_kill = time.monotonic() + seconds, time.monotonic() + kill_seconds
        while time.monotonic() < until:
            time.sleep(0.05)
            if time.monotonic() >= next_kill:
                if not (some := working()):
                    continue
                i = chance.choice(some)
                lives[i].kill()
                lives[i].wait()
                killed[str(lives[i].pid)] = time.monotonic()
                verdict.kills += 1
                lives[i] = spawn()
                next_kill = time.monotonic() + kill_seconds * chance.uniform(0.5, 1.5)
    finally:
        over.set()
        observer.join()
        for life in lives:
            life.terminate()
        for life in lives:
            life.wait(60)
        app.engine.dispose()
    lines = [line.split() for line in file.read_text().splitlines()]
    verdict.at_once = most_at_once(lines, killed)
    verdict.windows = windows([float(n[2]) for n in lines if n[:2] == ["paced", "start"]])
    verdict.capped = sum(n[:2] == ["capped", "start"] for n in lines)
    return verdict


def main() -> int:
    parser = argparse.ArgumentParser(prog="limits", description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--database", choices=list(DEFAULT), action="append", help="default: all")
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--consume", type=Path, help="be one of the processes")
    parser.add_argument("url", nargs="?")
    options = parser.parse_args()
    if options.consume is not None:
        make_app(options.url, options.consume).worker(threads=4).run()
        return 0
    code = 0
    for name in options.database or DEFAULT:
        seed = random.randrange(1 << 32) if options.seed is None else options.seed
        with (
            tempfile.TemporaryDirectory(prefix="msgworker-limits-") as folder,
            database(name, Path(folder)) as (url, _, _),
        ):
            found = measure(
                url,
                Path(folder),
                seconds=options.seconds,
                processes=options.processes,
                seed=seed,
            )
        print(f"{name}: {found}", flush=True)
        for wrong in found.wrong():
            print(f"  {wrong}", flush=True)
            code = 1
    return code


if __name__ == "__main__":
    sys.exit(main())
