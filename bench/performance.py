"""`python -m bench.performance [--quick] [--top 7]`: measure all, write docs/performance.md anew.

The scenarios on each database, other queues beside msgworker, and two curves as SVG: speed over the
backlog and over the number of processes. Only what stands between the marks of the page is
replaced. Exit code 1 if a message was handled out of order, beside another of its object, twice or
never.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bench import databases, served
from bench.__main__ import SCENARIOS, measure
from bench.databases import KINDS, NotAvailable
from bench.peers import turns
from bench.peers.peer import PEERS
from bench.plot import Point, svg
from bench.report import Line, cells
from bench.scenarios import Drain, Place, Scale, run_drain
from bench.seeding import Rows
from msgworker import App

DOCS = Path(__file__).parents[1] / "docs"
PAGE = "performance.md"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
PROCESSES = (1, 2, 4, 8)
OBJECTS = 1_000


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is measured. top: the backlog grows from 10^3 to 10^top."""

    name: str
    scale: Scale
    peers: turns.Size
    top: int


FULL = Extent("full", Scale(100_000, 3, 4.0), turns.FULL, 6)
QUICK = Extent("quick", Scale(2_000, 1, 1.0), turns.QUICK, 5)


@dataclass(slots=True)
class Measured:
    """Everything that the page shows."""

    facts: list[str] = field(default_factory=list)
    scenarios: list[Line] = field(default_factory=list)
    peers: list[Line] = field(default_factory=list)
    backlog: dict[str, list[Point]] = field(default_factory=dict)
    processes: dict[str, list[Point]] = field(default_factory=dict)

    @property
    def faults(self) -> int:
        """Ours; what a peer does wrong stands in its line."""
        ours = [line for line in self.peers if line.label.startswith("msgworker")]
        return sum(line.faults for line in [*self.scenarios, *ours])


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and write the page; return the exit code."""
    asked = _parser().parse_args(arguments)
    kinds = tuple(asked.database or KINDS)
    if served.wanted(kinds):
        given = sys.argv[1:] if arguments is None else list(arguments)
        return served.again(given, module="bench.performance")
    extent = QUICK if asked.quick else FULL
    measured = Measured([machine()])
    for kind in kinds:
        measured.scenarios += _told(measure(kind, SCENARIOS, extent.scale, measured.facts))
        curves(kind, asked.top or extent.top, extent.scale, measured)
    if "postgresql" in kinds and not asked.no_peers:
        works = list(turns.works(extent.peers, backlog=not asked.quick))
        measured.peers = turns.run(PEERS, works, extent.peers)
        measured.facts += [f"{peer.shown}: {peer.setup}" for peer in PEERS]
    measured.facts.append(f"load average when it ended: {_load()}")
    write(asked.docs, measured, extent)
    if asked.json:
        Path(asked.json).write_text(json.dumps(asdict(measured), indent=1) + "\n")
    return 1 if measured.faults else 0


def machine() -> str:
    """When and where, and how busy it was before."""
    day = datetime.datetime.now(datetime.UTC).date().isoformat()
    return f"{day}; {databases.machine_line()}; load average when it began: {_load()}"


def curves(kind: str, top: int, scale: Scale, measured: Measured) -> None:
    """Both curves of one database; nothing where it cannot be had."""
    try:
        with databases.scratch(kind) as url:
            place = Place(kind, url, scale)
            App(place.text).create_schema()
            backlog = [_backlog(10**power, scale) for power in range(3, top + 1)]
            measured.backlog[kind] = _points(place, backlog, "rows")
            several = [_processes(number, scale) for number in PROCESSES]
            measured.processes[kind] = _points(place, several, "processes")
    except (NotAvailable, RuntimeError) as error:
        measured.facts.append(f"{kind}: curves not measured, {error}")


def _backlog(rows: int, scale: Scale) -> Drain:
    spread = (Rows(rows, OBJECTS),)
    return Drain("backlog", f"{rows:,}", spread, None, time_limit=2 * scale.seconds, limit=None)


def _processes(number: int, scale: Scale) -> Drain:
    n = scale.messages
    return Drain("processes", f"{number}", (Rows(n, OBJECTS),), n, number, limit=None)


def _points(place: Place, drains: Sequence[Drain], by: str) -> list[Point]:
    points = []
    for drain in drains:
        x = drain.rows[0].count if by == "rows" else drain.processes
        line = next(_told([run_drain(place, drain)]))
        points.append(Point(x, line.rates))
    return points


def _told(lines: Iterator[Line] | list[Line]) -> Iterator[Line]:
    for line in lines:
        said = line.not_run or f"{line.rate or 0:,.0f}/s, {line.faults} faults"
        print(f"{line.database} {line.scenario} {line.label}: {said}", file=sys.stderr, flush=True)
        yield line


def write(docs: Path, measured: Measured, extent: Extent) -> None:
    """Replace what stands between the marks of the page, and both plots."""
    page = docs / PAGE
    head, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, mark, tail = rest.partition(END)
    if not mark:
        raise ValueError(f"{page.name} lacks the marks {BEGIN} and {END}")
    body = "\n".join(_body(measured, extent))
    page.write_text(f"{head}{BEGIN}\n{body}\n{END}{tail}", encoding="utf-8")
    backlog = svg(
        measured.backlog, "1,000 objects, no-op handlers, one process", "messages waiting"
    )
    (docs / "speed-backlog.svg").write_text(backlog)
    several = svg(measured.processes, "1,000 objects, no-op handlers, 4 threads each", "processes")
    (docs / "speed-processes.svg").write_text(several)


def _body(measured: Measured, extent: Extent) -> Iterator[str]:
    scale, peers = extent.scale, extent.peers
    yield f"Size of this run: {extent.name}; {scale.messages:,} messages, {scale.rounds} round(s)."
    yield ""
    yield from (f"* {_shown(fact)}" for fact in measured.facts)
    yield ""
    yield from markdown(measured.scenarios)
    if measured.peers:
        yield ""
        yield "### Beside other queues"
        yield ""
        yield (
            f"{peers.messages:,} jobs or {peers.seconds:.0f} s, {peers.rounds} round(s), in turns "
            "on the PostgreSQL above."
        )
        yield ""
        yield from markdown(measured.peers)


def markdown(lines: Sequence[Line]) -> Iterator[str]:
    """The lines as a table of a page."""
    headings, *rows = cells(lines)
    yield f"| {' | '.join(headings)} |"
    yield "|---" * len(headings) + "|"
    for row in rows:
        yield f"| {' | '.join(_shown(cell) for cell in row)} |"


def _shown(text: str) -> str:
    """Without what belongs to this machine alone or would end a cell."""
    return re.sub(r"(?:/[\w.+-]+){2,}/", "", text).replace("|", "/")


def _load() -> str:
    return " ".join(f"{value:.1f}" for value in os.getloadavg())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.performance", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small, in about ten minutes")
    parser.add_argument("--top", type=int, choices=range(3, 8), help="backlog up to 10^TOP (6)")
    parser.add_argument("--database", action="append", choices=KINDS)
    parser.add_argument("--no-peers", action="store_true", help="msgworker alone")
    parser.add_argument("--docs", type=Path, default=DOCS, help="the folder of the page (docs)")
    parser.add_argument("--json", metavar="FILE", help="write everything measured as JSON too")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
