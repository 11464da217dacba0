"""The aims of the scenarios, and what a run reached of them: rows of a table.

A figure comes from one run: of a line and its yardsticks, or of two lines of the same run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from bench.report import Line

Figure = Callable[[Line, Sequence[Line]], float | None]
"""Of a line and all lines of its run."""

HEADINGS = ("database", "scenario", "aim", "measured", "met")


@dataclass(frozen=True, slots=True)
class Aim:
    """For the lines whose label this pattern finds. at_least or at_most: one of them."""

    database: str
    scenario: str
    label: str
    what: str
    figure: Figure
    at_least: float | None = None
    at_most: float | None = None
    processes: int | None = None

    def fits(self, line: Line) -> bool:
        return (
            (line.database, line.scenario) == (self.database, self.scenario)
            and bool(re.search(self.label, line.label))
            and self.processes in (None, line.processes)
        )

    def met(self, figure: float) -> bool:
        """As it is shown, so that a table never contradicts itself."""
        shown = float(f"{figure:.2f}")
        return shown >= (self.at_least or 0.0) and shown <= (self.at_most or float("inf"))


def of_limit(line: Line, _: Sequence[Line]) -> float | None:
    return line.of(line.limit)


def of_prototype(line: Line, _: Sequence[Line]) -> float | None:
    return line.of(line.prototype)


def of_plain(line: Line, _: Sequence[Line]) -> float | None:
    return line.of(line.ours)


def rate(line: Line, _: Sequence[Line]) -> float | None:
    return line.rate


def seconds_of_items(line: Line, _: Sequence[Line]) -> float | None:
    return 1_000 / line.rate if line.rate else None


def wasted(line: Line, _: Sequence[Line]) -> float | None:
    return None if line.wasted is None else 100 * line.wasted


def noted(pattern: str) -> Figure:
    """A number of the notes."""

    def figure(line: Line, _: Sequence[Line]) -> float | None:
        found = re.search(pattern, "; ".join(line.notes))
        return float(found[1]) if found else None

    return figure


def beside(label: str | None = None, *, processes: int | None = None, database: str = "") -> Figure:
    """Of the rate of another line of this scenario in this run."""

    def figure(line: Line, run: Sequence[Line]) -> float | None:
        for other in run:
            if (
                (other.database, other.scenario) == (database or line.database, line.scenario)
                and (re.search(label, other.label) if label else other.label == line.label)
                and other.processes == (processes or line.processes)
            ):
                return line.of(other.rates)
        return None

    return figure


OF_PROTOTYPE, OF_LIMIT = "of the prototype", "of the limit"
MIB, MS = "MiB", "ms"


def _aims() -> Iterator[Aim]:
    pg = "postgresql"
    for processes in (1, 2):
        for scenario in ("B1", "B2"):
            what = f"{OF_PROTOTYPE}, {processes} process{'es' if processes > 1 else ''}"
            yield Aim(pg, scenario, "", what, of_prototype, 0.85, processes=processes)
    yield Aim(pg, "B3", "object$", OF_PROTOTYPE, of_prototype, 1.7)
    yield Aim(pg, "B3", "object$", "messages/s", rate, 2_000)
    yield Aim(pg, "B3", "batch=500$", OF_PROTOTYPE, of_prototype, 8.5)
    for scenario in ("B4", "B16"):
        for label, of in (("unordered", "B1"), ("1000 objects", "B2")):
            yield Aim(pg, scenario, label, f"of {of} on a small table, {label}", of_plain, 0.9)
    yield Aim(pg, "B17", "", "of B2 on a small table, statistics of a quiet hour", of_plain, 0.83)
    for head in ("running", "delayed"):
        label = f"behind a {head} head"
        yield Aim(pg, "B5", label, f"of B2, {label}", of_plain, 0.9)
    yield Aim(pg, "B6", "objects x 1$", "of B2, one message each", of_plain, 0.8)
    yield Aim(pg, "B6", "200 objects", "of B2, 200 objects", of_plain, 0.8)
    median = noted(r"p50 ([\d.]+) ms")
    yield Aim(pg, "B7", "notify$", f"p50 in {MS}, notify", median, at_most=2.0)
    yield Aim(pg, "B7", "polling$", f"p50 in {MS}, polling", median, at_most=20.0)
    idle = "idle instance, "
    for name, pattern, most in (
        ("% CPU", r"idle: ([\d.]+)% CPU", 1.0),
        ("statements/s", r"CPU, ([\d.]+) statements/s", 5.0),
    ):
        yield Aim(pg, "B7", "notify$", idle + name, noted(pattern), at_most=most)
    for threads in (1, 4, 8):
        label = f"{threads} threads$"
        yield Aim(pg, "B8", label, f"{OF_LIMIT}, {threads} threads", of_limit, 0.8)
    ungrouped = beside("4 threads$")
    yield Aim(pg, "B8", "group=50$", "of ungrouped, group=50", ungrouped, 8.0)
    for label in ("unordered", "1000 objects"):
        two = beside(processes=2)
        yield Aim(pg, "B9", label, f"of two instances, 8, {label}", two, 0.8, processes=8)
        name = f"% of candidates wasted, 8, {label}"
        yield Aim(pg, "B9", label, name, wasted, at_most=10.0, processes=8)
    yield Aim(pg, "B10", "10 ms", "of ideal, 10 ms each", of_limit, 0.9)
    yield Aim(pg, "B10", "no-op items$", "seconds, no-op items", seconds_of_items, at_most=0.5)
    memory = noted(r"([\d.]+) MiB")
    yield Aim(pg, "B11", "memory$", MIB, memory, at_most=150)
    yield Aim(pg, "B11", "memory, batch=500$", f"{MIB}, batches", memory, at_most=150)
    yield Aim(pg, "B12", "", "of executemany", of_limit, 0.8)
    yield Aim(pg, "B13", "", "of ideal", of_limit, 0.9)
    alone = noted(r"([\d.]+) x one by one")
    yield Aim(pg, "B14", "batch=500", "x one by one, batch=500", alone, 20.0)
    yield Aim(pg, "B14", "batch=500", f"{OF_LIMIT}, batch=500", of_limit, 1.2)
    for label in ("one in eight", "0 to 7"):
        none = beside("priorities: none")
        yield Aim(pg, "B15", f"{label}$", f"of none, {label}", none, 0.9)
    for kind in ("sqlite", "mariadb"):
        for processes in (1, 2) if kind == "mariadb" else (1,):
            what = f"{OF_PROTOTYPE}, {processes} process{'es' if processes > 1 else ''}"
            yield Aim(kind, "B2", "", what, of_prototype, 0.8, processes=processes)
        yield Aim(kind, "B14", "batch=500", "x one by one, batch=500", alone, 15.0)
    for label in ("unordered", "1000 objects"):
        two = beside(processes=2)
        yield Aim("mariadb", "B9", label, f"of two instances, 8, {label}", two, 0.8, processes=8)


AIMS = tuple(_aims())


def rows(runs: Sequence[Sequence[Line]]) -> Iterator[tuple[str, ...]]:
    """A row for each aim, headings first; runs: the lines of each."""
    yield HEADINGS
    for aim in AIMS:
        bound = f"at least {aim.at_least:,g}" if aim.at_least else f"at most {aim.at_most:,g}"
        found = [
            figure
            for lines in runs
            for line in lines
            if aim.fits(line) and (figure := aim.figure(line, lines)) is not None
        ]
        last = found[-1] if found else None
        yield (
            aim.database,
            aim.scenario,
            f"{aim.what}: {bound}",
            "not measured" if last is None else f"{last:,.0f}" if last >= 100 else f"{last:.2f}",
            "-" if last is None else "yes" if aim.met(last) else "no",
        )
