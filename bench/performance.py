"""`python -m bench.performance [--quick] [--top 7]`: measure all, write performance.md anew.

The scenarios on each database, other queues beside msgworker, and two curves as SVG: speed over the
backlog and over the number of processes. Only what stands between the marks of the page is
replaced. Exit code 1 if a message was handled out of order, beside another of its object, twice or
never.

All of it takes hours. In parts, each with its own facts, kept in a file from which the page is
written (docs/project/performance.json):

    python -m bench.performance --keep performance.json --scenarios B1 B2 --database sqlite
    python -m bench.performance --keep performance.json --peers pgqueuer --kind ordered
    python -m bench.performance --keep performance.json --curves backlog --top 7
"""

from __future__ import annotations

import argparse
import datetime
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bench import aims, databases, parts, served
from bench.__main__ import SCENARIOS, measure
from bench.databases import KINDS, NotAvailable
from bench.parts import NotKept, Run
from bench.peers import turns
from bench.peers.peer import PEERS
from bench.plot import Point, svg
from bench.report import Line, cells
from bench.scenarios import Drain, Place, Scale, run_drain
from bench.seeding import Rows
from msgworker import App

DOCS = Path(__file__).parents[1] / "docs" / "project"
PAGE = "performance.md"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
CURVES = ("backlog", "processes")
PROCESSES = (1, 2, 4, 8)
OBJECTS = 1_000


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is measured. bottom, top: the backlog grows from 10^bottom to 10^top."""

    name: str
    scale: Scale
    peers: turns.Size
    bottom: int
    top: int


FULL = Extent("full", Scale(100_000, 3, 4.0), turns.FULL, 3, 6)
QUICK = Extent("quick", Scale(2_000, 1, 1.0), turns.QUICK, 3, 5)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and write the page; return the exit code."""
    parser = _parser()
    asked = parser.parse_args(arguments)
    kinds = tuple(asked.database or KINDS)
    part = [name for name in ("scenarios", "curves", "peers", "page") if getattr(asked, name)]
    if part and not asked.keep:
        parser.error(f"--{part[0]} is a part of the page: give --keep FILE, where the rest is kept")
    try:
        before = parts.load(asked.keep) if asked.keep else []
    except NotKept as error:
        parser.error(str(error))
    if not asked.page and served.wanted(kinds):
        given = sys.argv[1:] if arguments is None else list(arguments)
        return served.again(given, module="bench.performance")
    run = Run()
    if not asked.page:
        run = measured(asked, kinds, _extent(asked), everything=not part)
    runs = parts.add(before, run)
    if asked.keep:
        parts.save(asked.keep, runs)
    write(asked.docs, runs)
    return 1 if run.faults else 0


def measured(
    asked: argparse.Namespace, kinds: Sequence[str], extent: Extent, *, everything: bool
) -> Run:
    """What was asked for, with its facts."""
    scale, peers = extent.scale, extent.peers
    run = Run(_now(), _commit(), load=[_load()], facts=[databases.machine_line()])
    scenarios = SCENARIOS if everything else asked.scenarios or ()
    curves = CURVES if everything else asked.curves or ()
    for kind in kinds:
        if scenarios:
            run.scenarios += _told(measure(kind, scenarios, scale, run.facts))
        draw(kind, curves, extent, run)
    with_peers = everything and "postgresql" in kinds and not asked.no_peers
    if asked.peers or with_peers:
        names = asked.peers or [peer.name for peer in PEERS]
        chosen = [peer for peer in PEERS if peer.name in names]
        works = turns.works(peers, backlog=not (asked.quick or asked.no_deep))
        wanted = [work for work in works if not asked.kind or work.kind in asked.kind]
        run.peers = turns.run(chosen, wanted, peers)
        run.facts += [f"{peer.shown}: {peer.setup}" for peer in chosen]
    run.size = f"{scale.messages:,} messages, {scale.rounds} round(s)"
    if run.peers and not run.scenarios:
        run.size = f"{peers.messages:,} jobs or {peers.seconds:.0f} s, {peers.rounds} round(s)"
    run.load.append(_load())
    run.facts = [_shown(fact) for fact in run.facts]
    for line in (*run.scenarios, *run.peers):
        line.not_run = line.not_run and _shown(line.not_run)
    return run


def draw(kind: str, curves: Sequence[str], extent: Extent, run: Run) -> None:
    """The curves of one database; nothing where it cannot be had."""
    if not curves:
        return
    scale = extent.scale
    try:
        with databases.scratch(kind) as url:
            place = Place(kind, url, scale)
            App(place.text).create_schema()
            if "backlog" in curves:
                powers = range(extent.bottom, extent.top + 1)
                backlog = [_backlog(10**power, scale) for power in powers]
                run.backlog[kind] = _points(place, backlog, "rows")
            if "processes" in curves:
                several = [_processes(number, scale) for number in PROCESSES]
                run.processes[kind] = _points(place, several, "processes")
    except (NotAvailable, RuntimeError) as error:
        run.facts.append(f"{kind}: curves not measured, {error}")


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


def write(docs: Path, runs: Sequence[Run]) -> None:
    """Replace what stands between the marks of the page, and both plots."""
    page = docs / PAGE
    head, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, mark, tail = rest.partition(END)
    if not mark:
        raise ValueError(f"{page.name} lacks the marks {BEGIN} and {END}")
    body = "\n".join(_body(runs))
    page.write_text(f"{head}{BEGIN}\n{body}\n{END}{tail}", encoding="utf-8")
    backlog = parts.joined(run.backlog for run in runs)
    title = "1,000 objects, no-op handlers, "
    (docs / "speed-backlog.svg").write_text(svg(backlog, f"{title}one process", "messages waiting"))
    several = parts.joined(run.processes for run in runs)
    (docs / "speed-processes.svg").write_text(svg(several, f"{title}4 threads each", "processes"))


def _body(runs: Sequence[Run]) -> Iterator[str]:
    yield from (f"* {fact}" for fact in dict.fromkeys(fact for run in runs for fact in run.facts))
    yield ""
    yield from _table(_runs(runs))
    yield from _headed("Aims", aims.rows([run.scenarios for run in runs]))
    yield from _headed("The scenarios", numbered([run.scenarios for run in runs]))
    if any(run.peers for run in runs):
        yield from _headed("Beside other queues", numbered([run.peers for run in runs]))


def _runs(runs: Sequence[Run]) -> Iterator[Sequence[str]]:
    yield "run", "began (UTC)", "commit", "size", "load before", "load after"
    for number, run in enumerate(runs, 1):
        yield str(number), run.began, run.commit, run.size, *(run.load or ("", ""))


def numbered(runs: Sequence[Sequence[Line]]) -> Iterator[Sequence[str]]:
    """The lines of all runs by database and scenario, headings first, each with its run."""
    every = [(line, number) for number, lines in enumerate(runs, 1) for line in lines]
    every.sort(key=lambda pair: (KINDS.index(pair[0].database), int(pair[0].scenario[1:])))
    headings, *rows = cells(line for line, _ in every)
    yield "run", *headings
    yield from ((str(number), *row) for (_, number), row in zip(every, rows, strict=True))


def _headed(title: str, rows: Iterator[Sequence[str]]) -> Iterator[str]:
    yield from ("", f"### {title}", "")
    yield from _table(rows)


def _table(rows: Iterator[Sequence[str]]) -> Iterator[str]:
    headings = next(rows)
    yield f"| {' | '.join(headings)} |"
    yield "|---" * len(headings) + "|"
    for row in rows:
        yield f"| {' | '.join(_shown(cell) for cell in row)} |"


def _shown(text: str) -> str:
    """Without what belongs to this machine alone or would end a cell."""
    return re.sub(r"(?:/[\w.+-]+){2,}/", "", text).replace("|", "/")


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M")


def _commit() -> str:
    """Of the code that runs, with a + if the files of the library differ from it."""

    def git(*command: str) -> str:
        return subprocess.run(
            ["git", *command], cwd=DOCS.parent, capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--", "msgworker")
        return git("rev-parse", "--short", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _load() -> str:
    return " ".join(f"{value:.1f}" for value in os.getloadavg())


def _extent(asked: argparse.Namespace) -> Extent:
    extent = QUICK if asked.quick else FULL
    scale, peers = extent.scale, extent.peers
    given = {name: getattr(asked, name) for name in ("messages", "rounds", "seconds")}
    given = {name: value for name, value in given.items() if value}
    scale, peers = replace(scale, **given), replace(peers, **given)
    bottom, top = asked.bottom or extent.bottom, asked.top or extent.top
    return Extent(extent.name, scale, peers, min(bottom, top), top)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.performance",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="small, in about ten minutes")
    add("--database", nargs="+", choices=KINDS)
    add("--messages", type=_number, help="messages of a drain (100,000)")
    add("--rounds", type=_number, help="of which the median is taken (3)")
    add("--seconds", type=float, help="of a drain that ends by time (4), of another queue's (20)")
    add("--bottom", type=int, choices=range(3, 8), help="backlog from 10^BOTTOM (3)")
    add("--top", type=int, choices=range(3, 8), help="backlog up to 10^TOP (6)")
    add("--no-peers", action="store_true", help="msgworker alone")
    add("--docs", type=Path, default=DOCS, help="the folder of the page (docs/project)")
    add("--keep", type=Path, metavar="FILE", help="keep there what is measured, beside the rest")
    add("--scenarios", nargs="+", choices=SCENARIOS, help="these alone; needs --keep")
    add("--curves", nargs="+", choices=CURVES, help="these alone; needs --keep")
    add("--peers", nargs="+", choices=[peer.name for peer in PEERS], help="as --scenarios")
    add("--kind", nargs="+", choices=turns.KINDS, help="the work that --peers are asked for")
    add("--no-deep", action="store_true", help="--peers without the tables of 1,000,000 messages")
    add("--page", action="store_true", help="measure nothing: write the page from --keep")
    return parser


def _number(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not 1 or more")
    return value


if __name__ == "__main__":
    raise SystemExit(main())
