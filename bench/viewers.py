"""What those who look at the dashboard cost the database, and a drain beside it.

`python -m bench.viewers [--database postgresql] [--viewers 50] [--seconds 300]` counts the
statements that a dashboard sends while one viewer has the Overview open, which loads what changes
every POLL_SECONDS, and while so many have, as messages are sent all the time. Exit code 1 if they
cost more than MOST_RATIO times as much as one. With `--drain PAIRS` it times a drain instead, with
and without them in turn; exit code 1 if the median drain beside them has less than LEAST_SPEED of
the speed.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing as mp
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import sqlalchemy as sa

from bench import databases
from bench.process import Job, run_all
from bench.seeding import TABLE, TOPIC, Rows, fill
from msgworker import App
from msgworker.web.site import POLL_SECONDS

MOST_RATIO = 1.1
LEAST_SPEED = 0.97
PER_SECOND = 10
WAITING = 2_000
DRAINED = 100_000
"""For many seconds, during which the dashboard looks often."""
START_SECONDS = 30.0
NICE = 19
"""The browsers are elsewhere: here they leave the processor to what is measured."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.viewers", description=__doc__)
    parser.add_argument("--database", choices=databases.KINDS, default="postgresql")
    parser.add_argument("--viewers", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--drain", type=int, default=0, metavar="PAIRS")
    asked = parser.parse_args(arguments)
    with databases.scratch(asked.database) as url:
        text = url.render_as_string(hide_password=False)
        if asked.drain:
            return drains(text, asked.viewers, asked.drain)
        return counted(text, asked.viewers, asked.seconds)


def counted(url: str, viewers: int, seconds: float) -> int:
    """Statements with one viewer and with many; the exit code."""
    app = App(url)
    fill(app, [Rows(WAITING, 100)])
    found = []
    with sending(app), dashboard(url) as board:
        for count in (1, viewers):
            before = board.statements()
            seen = look(board.url, count, seconds)
            sent = board.statements() - before
            found.append(sent)
            rate, p95 = sent / seconds, seen.p95 * 1000
            print(
                f"{count:4} viewers, {seconds:.0f} s: {sent:7,} statements, {rate:6.1f}/s; "
                f"{seen.pages:,} pages, p95 {p95:.0f} ms",
                flush=True,
            )
    app.engine.dispose()
    ratio = found[1] / max(1, found[0])
    print(f"{viewers} viewers cost {ratio:.2f} of what one does")
    return 1 if ratio > MOST_RATIO else 0


def drains(url: str, viewers: int, pairs: int) -> int:
    """Drains alone and beside the viewers of a dashboard, in turn; the exit code."""
    app = App(url)
    ratios = []
    with dashboard(url) as board:
        for number in range(pairs):
            speeds = {}
            for count in (0, viewers) if number % 2 == 0 else (viewers, 0):
                fill(app, [Rows(DRAINED, 1_000)])
                with looking(board.url, count) as pages:
                    begun, used, before = time.monotonic(), board.cpu(), pages.value
                    speeds[count] = drain(url)
                    if count:
                        seconds, loaded = time.monotonic() - begun, pages.value - before
                        share = (board.cpu() - used) / seconds
            ratios.append(speeds[viewers] / speeds[0])
            print(
                f"alone {speeds[0]:,.0f}/s, beside {viewers} viewers {speeds[viewers]:,.0f}/s: "
                f"{ratios[-1]:.3f}; they loaded {loaded / seconds:.1f} pages/s, and the dashboard "
                f"took {100 * share:.1f}% of a processor",
                flush=True,
            )
    app.engine.dispose()
    print(f"median {statistics.median(ratios):.3f}")
    return 1 if statistics.median(ratios) < LEAST_SPEED else 0


def drain(url: str) -> float:
    """Messages a second of one process, from the first start to the last end."""
    log = run_all(Job(url), 1)[0].log
    assert len(log) == DRAINED, f"{len(log)} of {DRAINED} messages were done"
    return len(log) / (max(entry[3] for entry in log) - min(entry[2] for entry in log)) * 1e9


@contextmanager
def sending(app: App) -> Iterator[None]:
    """Messages are sent all the time: each look of the dashboard finds a change."""
    over = threading.Event()

    def send() -> None:
        while not over.wait(1 / PER_SECOND):
            with app.engine.begin() as conn:
                conn.execute(sa.text(f"INSERT INTO {TABLE} (topic) VALUES ('{TOPIC}')"))

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


# ---------------------------------------------------------------- the dashboard


@dataclass
class Board:
    """A dashboard in a process of its own."""

    url: str
    pipe: Any

    def statements(self) -> int:
        """How many it has sent."""
        self.pipe.send("statements")
        return int(self.pipe.recv())

    def cpu(self) -> float:
        """Seconds of a processor that it has used."""
        self.pipe.send("cpu")
        return float(self.pipe.recv())


@contextmanager
def dashboard(url: str) -> Iterator[Board]:
    """Start it, and end it."""
    context = mp.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=_serve, args=(url, theirs), daemon=True)
    child.start()
    try:
        if not ours.poll(START_SECONDS):
            raise RuntimeError("the dashboard did not start")
        yield Board(f"http://127.0.0.1:{ours.recv()}", ours)
    finally:
        ours.send("end")
        child.join(START_SECONDS)
        if child.is_alive():
            child.terminate()


def _serve(url: str, pipe: Any) -> None:
    import uvicorn

    app = App(url)
    sent = [0]

    def note(*_: Any) -> None:
        sent[0] += 1

    sa.event.listen(app.engine, "before_cursor_execute", note)
    made = app.web()
    server = uvicorn.Server(uvicorn.Config(made, "127.0.0.1", 0, log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    port = server.servers[0].sockets[0].getsockname()[1]
    pipe.send(port)
    while (asked := pipe.recv()) != "end":
        pipe.send(sent[0] if asked == "statements" else time.process_time())
    server.should_exit = True
    thread.join(START_SECONDS)
    made.site.close()


# ---------------------------------------------------------------- those who look


@dataclass
class Seen:
    """What viewers have loaded."""

    times: list[float] = field(default_factory=list)

    @property
    def pages(self) -> int:
        return len(self.times)

    @property
    def p95(self) -> float:
        return sorted(self.times)[int(0.95 * (len(self.times) - 1))] if self.times else 0.0


def look(
    url: str,
    viewers: int,
    seconds: float,
    settled: Callable[[], Any] = int,
    loaded: Callable[[], Any] = int,
) -> Seen:
    """Load the Overview again and again, as a browser does. settled: is called when all have loaded
    it twice; loaded: after each page."""
    seen = Seen()
    followed = [0]

    async def one(client: httpx.AsyncClient, number: int) -> None:
        await asyncio.sleep(POLL_SECONDS * number / viewers)
        await _load(client, seen)
        first = True
        while True:
            await asyncio.sleep(POLL_SECONDS)
            await _load(client, seen)
            loaded()
            if first:
                first = False
                followed[0] += 1
                if followed[0] == viewers:
                    settled()

    async def all_of_them() -> None:
        limits = httpx.Limits(max_connections=None, keepalive_expiry=1.0)
        async with httpx.AsyncClient(base_url=url, limits=limits, timeout=30) as client:
            tasks = [asyncio.create_task(one(client, number)) for number in range(viewers)]
            done, _ = await asyncio.wait(
                tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION
            )
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for task in done:
                task.result()

    asyncio.run(all_of_them())
    return seen


async def _load(client: httpx.AsyncClient, seen: Seen) -> None:
    begun = time.perf_counter()
    found = await client.get("/", headers={"accept": "text/html", "hx-request": "true"})
    found.raise_for_status()
    seen.times.append(time.perf_counter() - begun)


@contextmanager
def looking(url: str, viewers: int) -> Iterator[Any]:
    """So many viewers in a process of their own, who have loaded the page and follow it; yields
    the number of pages that they have loaded, as a `value`."""
    context = mp.get_context("spawn")
    pages, settled = context.Value("i", 0), context.Event()
    if not viewers:
        yield pages
        return
    child = context.Process(target=_look, args=(url, viewers, settled, pages), daemon=True)
    child.start()
    try:
        if not settled.wait(START_SECONDS):
            raise RuntimeError("the viewers did not get to follow the page")
        yield pages
        if not child.is_alive():
            raise RuntimeError("the viewers have ended early")
    finally:
        child.terminate()
        child.join()


def _look(url: str, viewers: int, settled: Any, pages: Any) -> None:
    def loaded() -> None:
        pages.value += 1

    os.nice(NICE)
    look(url, viewers, 1e6, settled.set, loaded)


if __name__ == "__main__":
    sys.exit(main())
