"""Statements and round trips per message, recorded: CI guards counts, since seconds are noisy.

`python -m bench --record` writes counts.json anew. Batches depend on timing, so a count may grow by
TOLERANCE before it counts as worse; what the guard is for, a statement per message, is far beyond.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from bench.checking import Verdict, judge
from bench.process import Job, run_all
from bench.seeding import Rows, fill
from msgworker import App

PATH = Path(__file__).parent / "counts.json"
MESSAGES = 5000
SHAPES = {"B1": Rows(MESSAGES), "B2": Rows(MESSAGES, 100)}
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
    """Drain MESSAGES messages of a shape in one process and count."""
    app = App(url)
    fill(app, [SHAPES[shape]])
    app.engine.dispose()
    seen = run_all(Job(url), 1)
    counts = seen[0].counts
    return Counted(counts.statements / MESSAGES, counts.round_trips / MESSAGES, judge(seen))


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
