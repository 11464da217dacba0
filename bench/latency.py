"""B7: how soon a message is picked up at 50 messages a second, and what an idle instance costs.

The first second of messages is left out of the percentiles: it meets an instance that was idle.
"""

from __future__ import annotations

import multiprocessing as mp
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from bench.checking import judge
from bench.handlers import Entry, make_handler
from bench.process import Counts, Job, Seen, watch
from bench.report import Line
from bench.scenarios import Place
from bench.seeding import TOPIC, fill
from msgworker import App

PER_SECOND = 50
IDLE_SECONDS = 5.0
WAIT_SECONDS = 60.0


@dataclass(slots=True)
class Idle:
    """What the instance did while nothing was to be done, per second."""

    cpu: float
    statements: float


def run_latency(place: Place) -> Iterator[Line]:
    """By polling, and where the database can, with notifications."""
    yield _measure(place, notify=False)
    if place.kind == "postgresql":
        yield _measure(place, notify=True)


def _measure(place: Place, *, notify: bool) -> Line:
    line = Line(place.kind, "B7", f"pickup at {PER_SECOND}/s, {'notify' if notify else 'polling'}")
    app = App(place.text, notify=notify)
    fill(app, ())
    context = mp.get_context("spawn")
    ready, stop, results = context.Event(), context.Event(), context.Queue()
    job = Job(place.text, settings=(("notify", notify),))
    child = context.Process(target=_child, args=(job, ready, stop, results), daemon=True)
    child.start()
    try:
        if not ready.wait(WAIT_SECONDS):
            raise RuntimeError("the instance did not start")
        committed = _send(app, int(PER_SECOND * 2.5 * place.scale.seconds))
        time.sleep(0.5)
        stop.set()
        seen, idle = results.get(timeout=WAIT_SECONDS)
    finally:
        stop.set()
        child.join(WAIT_SECONDS)
        app.engine.dispose()
    return _filled(line, committed, seen, idle)


def _filled(line: Line, committed: dict[int, int], seen: Seen, idle: Idle) -> Line:
    verdict = judge([seen])
    line.rates = [verdict.rate]
    line.missing = len(committed) - verdict.handled + 2 * verdict.repeated
    line.notes = [
        waits_of(committed, seen.log),
        f"idle: {idle.cpu:.1%} CPU, {idle.statements:.1f} statements/s",
    ]
    return line


def waits_of(committed: dict[int, int], log: Sequence[Entry]) -> str:
    """How long after its commit each message was started, as text; the first one sent is first."""
    started = {msg_id: start for _, msg_id, start, _ in log}
    in_order = [
        max(0, started[msg_id] - at) / 1e6 for msg_id, at in committed.items() if msg_id in started
    ]
    waits = sorted(in_order[PER_SECOND:])
    shown = [f"p{p} {percentile(waits, p):.1f} ms" for p in (50, 95, 99)]
    first = f"first one after a pause {max(in_order[:1], default=0.0):.0f} ms"
    return "; ".join([", ".join(shown), first])


def percentile(values: Sequence[float], percent: int) -> float:
    """Of sorted values; 0 if there are none."""
    if not values:
        return 0.0
    return values[min(len(values) - 1, len(values) * percent // 100)]


def _send(app: App, count: int) -> dict[int, int]:
    """Send at a steady pace; the instant after each commit, by msg_id, the first one first."""
    committed: dict[int, int] = {}
    begun = time.monotonic()
    for i in range(count):
        time.sleep(max(0.0, begun + i / PER_SECOND - time.monotonic()))
        with app.engine.begin() as conn:
            msg_id = app.send(conn, TOPIC, {"i": i}, object_id=f"obj{i % 10}")
        committed[msg_id] = time.monotonic_ns()
    return committed


def _child(job: Job, ready: Any, stop: Any, results: Any) -> None:
    seen = Seen([], Counts())
    app = App(job.url, **dict(job.settings))
    app.add_handler(TOPIC, make_handler(job.handler, seen.log))
    with app.worker(threads=job.threads) as worker:
        watch(app, seen.counts, worker)
        worker.start()
        stop.wait(2.0)  # the first beat, and pauses grown to their full length
        cpu, statements = time.process_time(), seen.counts.statements
        stop.wait(IDLE_SECONDS)
        idle = Idle(
            (time.process_time() - cpu) / IDLE_SECONDS,
            (seen.counts.statements - statements) / IDLE_SECONDS,
        )
        ready.set()
        stop.wait(10 * WAIT_SECONDS)
    results.put((seen, idle))
