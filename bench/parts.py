"""What runs of the bench measured, kept in a JSON file: each run with its own facts.

A run that measures something anew takes it from the runs before it: a scenario on a database, a
kind of work of another queue, a point of a curve. A ratio is always of one run.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.plot import Point
from bench.report import Line

Series = dict[str, list[Point]]


class NotKept(Exception):
    """A file that does not hold runs; the text says what to do."""


@dataclass(slots=True)
class Run:
    """What one run measured, and when, of which commit, how much, and how busy the machine was.

    load: the load averages before and after it. facts: machine, servers, setups of other queues.
    """

    began: str = ""
    commit: str = ""
    size: str = ""
    load: list[str] = field(default_factory=list)
    facts: list[str] = field(default_factory=list)
    scenarios: list[Line] = field(default_factory=list)
    peers: list[Line] = field(default_factory=list)
    backlog: Series = field(default_factory=dict)
    processes: Series = field(default_factory=dict)

    @property
    def faults(self) -> int:
        """Ours; what a peer does wrong stands in its line."""
        ours = [line for line in self.peers if line.is_ours]
        return sum(line.faults for line in [*self.scenarios, *ours])

    @property
    def holds(self) -> bool:
        return bool(self.scenarios or self.peers or self.backlog or self.processes)


def load(path: Path) -> list[Run]:
    """The runs of a file, none if there is no file; raises NotKept."""
    if not path.exists():
        return []
    try:
        return [_run(found) for found in json.loads(path.read_text(encoding="utf-8"))]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise NotKept(f"{path} holds no runs ({error}); move it away, or name another") from error


def save(path: Path, runs: Sequence[Run]) -> None:
    """Write the runs; the file is whole at any time."""
    beside = path.with_name(path.name + ".new")
    beside.write_text(json.dumps([asdict(run) for run in runs], indent=1) + "\n", encoding="utf-8")
    beside.replace(path)


def add(runs: Sequence[Run], newest: Run) -> list[Run]:
    """The runs with the newest at the end; what it measured anew is gone from the others.

    A database or queue that could not be had measures nothing: the figures kept of it stay.
    """
    known = {_scenario(line) for run in runs for line in run.scenarios if not line.not_run}
    known |= {key for run in runs for key in _peers(run, measured=True)}
    newest.scenarios = [
        line for line in newest.scenarios if _measured(line, _scenario(line), known)
    ]
    newest.peers = [line for line in newest.peers if _measured(line, _peer(line), known)]
    anew = {*map(_scenario, newest.scenarios), *_peers(newest)}
    for run in runs:
        run.scenarios = [line for line in run.scenarios if _scenario(line) not in anew]
        run.peers = [line for line in run.peers if line.is_ours or _peer(line) not in anew]
        compared = {_work(line) for line in run.peers if not line.is_ours}
        run.peers = [line for line in run.peers if _work(line) in compared]
        run.backlog = _without(run.backlog, newest.backlog)
        run.processes = _without(run.processes, newest.processes)
    return [run for run in (*runs, newest) if run.holds]


def joined(every: Iterable[Series]) -> Series:
    """One curve for each database, of the points of all runs."""
    found: Series = {}
    for series in every:
        for kind, points in series.items():
            found[kind] = sorted([*found.get(kind, []), *points], key=lambda point: point.x)
    return found


def _measured(line: Line, key: tuple[str, ...], known: set[tuple[str, ...]]) -> bool:
    return not line.not_run or bool(line.missing) or key not in known


def _scenario(line: Line) -> tuple[str, ...]:
    return line.database, line.scenario


def _peers(run: Run, *, measured: bool = False) -> set[tuple[str, ...]]:
    lines = [line for line in run.peers if not line.is_ours]
    return {_peer(line) for line in lines if not (measured and line.not_run)}


def _peer(line: Line) -> tuple[str, ...]:
    """A queue of any version, and its work."""
    return line.label.split()[0], *_work(line)


def _work(line: Line) -> tuple[str, ...]:
    return line.scenario, line.label.partition(": ")[2]


def _without(series: Series, newer: Series) -> Series:
    left = {
        kind: [p for p in points if p.x not in {new.x for new in newer.get(kind, [])}]
        for kind, points in series.items()
    }
    return {kind: points for kind, points in left.items() if points}


def _run(found: dict[str, Any]) -> Run:
    run = Run(**found)
    run.scenarios = [Line(**line) for line in found["scenarios"]]
    run.peers = [Line(**line) for line in found["peers"]]
    run.backlog, run.processes = _series(found["backlog"]), _series(found["processes"])
    return run


def _series(found: dict[str, list[dict[str, Any]]]) -> Series:
    return {kind: [Point(**point) for point in points] for kind, points in found.items()}
