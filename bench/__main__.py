"""`python -m bench [SCENARIO ...] [--database KIND] [--messages N] [--rounds N] [--json FILE]`.

`--record` measures statements per message for the guard in CI instead.
Exit code 1 if a message was handled out of order, beside another of its object, twice or never.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

from bench import counts, databases, served
from bench.databases import KINDS, NotAvailable
from bench.fanout import run_fan_out
from bench.latency import run_latency
from bench.producer import run_producer
from bench.purchases import run_purchases
from bench.report import Line, table
from bench.scenarios import DRAINS, FULL_SCALE, QUICK_SCALE, Place, Scale, drains, run_drain
from msgworker import App

SCENARIOS = tuple(sorted({*DRAINS, "B7", "B10", "B12", "B14"}, key=lambda name: int(name[1:])))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what was asked for; return the exit code."""
    parser = _parser()
    asked = parser.parse_args(arguments)
    if unknown := sorted(set(asked.scenarios) - set(SCENARIOS)):
        parser.error(f"no scenario {', '.join(unknown)}; there are {', '.join(SCENARIOS)}")
    chosen = tuple(asked.scenarios) or SCENARIOS
    kinds = tuple(asked.database or KINDS)
    if served.wanted(kinds):
        return served.again(sys.argv[1:] if arguments is None else list(arguments))
    if asked.record:
        return record(kinds)
    scale = QUICK_SCALE if asked.quick else FULL_SCALE
    if asked.messages:
        scale = replace(scale, messages=asked.messages)
    if asked.rounds:
        scale = replace(scale, rounds=asked.rounds)
    facts = [databases.machine_line()]
    lines: list[Line] = []
    for kind in kinds:
        for line in measure(kind, chosen, scale, facts):
            lines.append(line)
            print(f"{kind} {line.scenario} {line.label}: {_progress(line)}", file=sys.stderr)
    print("\n".join(["", *facts, f"{scale.messages:,} messages, {scale.rounds} round(s)", ""]))
    print(table(lines))
    if asked.json:
        result = {"facts": facts, "lines": [asdict(line) for line in lines]}
        Path(asked.json).write_text(json.dumps(result, indent=1) + "\n")
    return 1 if any(line.faults for line in lines) else 0


def measure(kind: str, chosen: Sequence[str], scale: Scale, facts: list[str]) -> Iterator[Line]:
    """The lines of one database as they are measured; a reason instead where it cannot be had."""
    try:
        with databases.scratch(kind) as url:
            place = Place(kind, url, scale)
            App(place.text).create_schema()
            facts.append(f"{kind}: {databases.server_line(url, kind)}")
            for scenario in chosen:
                yield from run(place, scenario)
    except NotAvailable as error:
        facts.append(f"{kind}: NOT TESTED, {error}")
        for scenario in chosen:
            yield Line(kind, scenario, "", not_run=str(error))


def record(kinds: Sequence[str]) -> int:
    """Write counts.json anew for the databases that are there; 1 if one is not."""
    code = 0
    for kind in kinds:
        try:
            with databases.scratch(kind) as url:
                counts.record({kind: url.render_as_string(hide_password=False)})
        except NotAvailable as error:
            print(f"{kind}: NOT RECORDED, {error}", file=sys.stderr)
            code = 1
    return code


def run(place: Place, scenario: str) -> Iterator[Line]:
    """The lines of one scenario; one that fails is a line that says why, and counts as a fault."""
    if scenario == "B7":
        steps = run_latency(place)
    elif scenario == "B10":
        steps = run_fan_out(place)
    elif scenario == "B12":
        steps = run_producer(place)
    elif scenario == "B14":
        steps = run_purchases(place)
    else:
        steps = (run_drain(place, drain) for drain in drains(scenario, place.scale))
    with _reported(place, scenario) as failures:
        yield from steps
    yield from failures


@contextmanager
def _reported(place: Place, scenario: str) -> Iterator[list[Line]]:
    failures: list[Line] = []
    try:
        yield failures
    except (RuntimeError, OSError) as error:
        failures.append(Line(place.kind, scenario, "", missing=1, not_run=str(error)))


def _progress(line: Line) -> str:
    return line.not_run or f"{line.rate or 0:,.0f}/s, {line.faults} faults"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=", ".join(SCENARIOS))
    parser.add_argument("--database", action="append", choices=KINDS)
    parser.add_argument("--messages", type=int, help="messages of a drain (100,000)")
    parser.add_argument("--rounds", type=int, help="rounds of each drain (3)")
    parser.add_argument("--quick", action="store_true", help="20,000 messages, one round")
    parser.add_argument("--json", metavar="FILE", help="write everything measured as JSON too")
    parser.add_argument("--record", action="store_true", help="write bench/counts.json anew")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
