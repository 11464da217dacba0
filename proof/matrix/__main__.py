"""Run the contract suite in the cells of the matrix, one after the other, and say what came out.

Each cell has a virtual environment of its own in .matrix, which is kept. The exit code is 0 if all
tests passed in all cells that could be run; one that cannot be had is said, and is no failure.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from datetime import UTC, datetime

from proof.matrix import bounds, speed
from proof.matrix.cells import CELLS, Cell
from proof.matrix.interpreters import interpreter
from proof.matrix.running import Outcome, made, run
from tests.servers import CannotHave

HOME = bounds.ROOT / ".matrix"
PAGE = bounds.ROOT / "docs" / "project" / "versions.md"


def attempt(cell: Cell, workers: int, chosen: list[str]) -> Outcome:
    try:
        program = interpreter(cell.python, HOME)
        return run(cell, program, HOME / cell.name, workers, chosen)
    except CannotHave as reason:
        return Outcome(cell, missing=str(reason))


def recorded(outcomes: list[Outcome], page: str, day: str) -> str:
    """The page with the rows of these cells anew, each with its day."""
    for one in outcomes:
        row = f"{one.row()} {day} |"
        page = re.sub(rf"^\| {re.escape(one.cell.name)} \|.*$", lambda _: row, page, flags=re.M)  # noqa: B023
    return page


def main() -> int:
    parser = argparse.ArgumentParser(prog="matrix", description=__doc__)
    parser.add_argument("cells", nargs="*", help="names of cells; without one, all of them")
    parser.add_argument("--tests", nargs="+", default=[], help="tests in the place of the cells'")
    parser.add_argument("--workers", type=int, default=min((os.cpu_count() or 2) + 2, 6))
    parser.add_argument(
        "--record", action="store_true", help="write the rows of docs/project/versions.md"
    )
    parser.add_argument(
        "--list", action="store_true", help="name the cells, and where each Python is"
    )
    parser.add_argument("--speed", action="store_true", help="measure, in the place of the tests")
    asked = parser.parse_args()
    unknown = set(asked.cells) - {cell.name for cell in CELLS}
    if unknown:
        parser.error(f"no such cell: {', '.join(sorted(unknown))}")
    HOME.mkdir(exist_ok=True)
    chosen = [cell for cell in CELLS if not asked.cells or cell.name in asked.cells]
    if asked.list or asked.speed:
        return sum(_looked(cell, measured=asked.speed) for cell in chosen)
    outcomes = []
    for cell in chosen:
        outcomes.append(attempt(cell, asked.workers, asked.tests))
        print(outcomes[-1].line(), flush=True)
        for wrong in outcomes[-1].wrong:
            print(f"  {wrong}", flush=True)
    if asked.record and not asked.tests:
        page = PAGE.read_text(encoding="utf-8")
        day = f"{datetime.now(UTC):%Y-%m-%d}"
        PAGE.write_text(recorded(outcomes, page, day), encoding="utf-8")
    good, missing = sum(one.good for one in outcomes), sum(bool(one.missing) for one in outcomes)
    failed = len(outcomes) - good - missing
    print(f"{good} cells passed, {failed} failed, {missing} could not be run")
    return 1 if failed or not good else 0


def _looked(cell: Cell, *, measured: bool) -> int:
    try:
        program = interpreter(cell.python, HOME)
        print(f"{cell.name}: {program.resolve()}", flush=True)
        return speed.of(made(cell, program, HOME / cell.name)) if measured else 0
    except CannotHave as reason:
        print(f"{cell.name}: NOT RUN: {reason}", flush=True)
        return 0


if __name__ == "__main__":
    sys.exit(main())
