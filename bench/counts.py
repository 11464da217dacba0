"""Statements and round trips per message, recorded: CI guards counts, since seconds are noisy.

`python -m bench --record` writes counts.json anew. Batches depend on timing, so a count may grow by
TOLERANCE before it counts as worse; what the guard is for, a statement per message, is far beyond.
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from pathlib import Path

from bench.checking import Verdict, judge
from bench.handlers import create_effects
from bench.process import Counts, Job, Seen, work
from bench.seeding import RANDOM, Rows, fill
from msgworker import App

PATH = Path(__file__).parent / "counts.json"
MESSAGES = 5000


@dataclass(frozen=True, slots=True)
class Shape:
    """What is drained, and by what; see `Job`."""

    rows: Rows
    handler: str = "nothing"
    group: int | None = None
    batch: int | None = None
    threads: int = 4


SHAPES = {
    "B1": Shape(Rows(MESSAGES)),
    "B2": Shape(Rows(MESSAGES, 100)),
    "B14": Shape(Rows(MESSAGES, 100), handler="effects", batch=500, threads=2),
    "B14 group": Shape(Rows(MESSAGES // 5, 100), handler="effect", group=50),
    "B15": Shape(Rows(MESSAGES, 100, values=(("priority", RANDOM),))),
}
"""One statement for each effect is the handler's own in B14 group."""
TOLERANCE = 1.5

Recorded = dict[str, dict[str, dict[str, float]]]
"""database -> scenario -> statements and round_trips per message."""


@dataclass(frozen=True, slots=True)
class Counted:
    """Per message."""

    statements: float
    round_trips: float
    verdict: Verdict


def count(url: str, shape: str) -> Counted:
    """Drain the messages of a shape in this process and count."""
    app, asked = App(url), SHAPES[shape]
    fill(app, [asked.rows])
    create_effects(app.engine)
    app.engine.dispose()
    job = Job(
        url,
        threads=asked.threads,
        handler=asked.handler,
        group=asked.group,
        batch=asked.batch,
    )
    seen, number = Seen([], Counts()), asked.rows.count
    work(job, threading.Barrier(1), seen)
    counts = seen.counts
    return Counted(counts.statements / number, counts.round_trips / number, judge([seen]))


def recorded() -> Recorded:
    """What counts.json holds."""
    found: Recorded = json.loads(PATH.read_text())
    return found


def record(urls: dict[str, str]) -> None:
    """Measure, the worst of three, and keep it; databases that are not given keep what they had."""
    known = recorded() if PATH.exists() else {}
    for kind, url in urls.items():
        known[kind] = {shape: _worst(url, shape) for shape in SHAPES}
    PATH.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")


def _worst(url: str, shape: str) -> dict[str, float]:
    runs = [count(url, shape) for _ in range(3)]
    return {
        "statements": round(max(run.statements for run in runs), 4),
        "round_trips": round(max(run.round_trips for run in runs), 4),
    }
