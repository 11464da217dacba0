"""One cell: its virtual environment, its run of the contract suite, and what came out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from dataclasses import dataclass, field
from pathlib import Path

from proof.matrix import bounds
from proof.matrix.cells import CORE, Cell
from tests.servers import CannotHave

ABSENT = Path(__file__).parent / "absent"
_PIP = ("install", "--quiet", "--disable-pip-version-check", "--only-binary", ":all:")
_TELL = """
import importlib.metadata as m, json, platform, sys
have = {n: m.version(n) for n in ("SQLAlchemy", "psycopg", "PyMySQL", "pydantic")}
import psycopg
have["psycopg"] += " " + psycopg.pq.__impl__
have["Python"] = platform.python_version() + ("" if getattr(sys, "_is_gil_enabled", bool)() or
    sys.version_info < (3, 13) else " without the GIL")
print(json.dumps(have))
"""


@dataclass
class Outcome:
    """of a cell. wrong: tests that failed and need not have, or that passed and are listed.
    missing: why the cell was not run, "" = it was."""

    cell: Cell
    missing: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    passed: int = 0
    skipped: int = 0
    excused: int = 0
    wrong: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def good(self) -> bool:
        return not self.missing and not self.wrong and self.passed > 0

    def line(self) -> str:
        if self.missing:
            return f"{self.cell.name}: NOT RUN: {self.missing}"
        have = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        others = f"{self.excused} fail as listed, {self.skipped} skipped"
        count = f"{self.passed:,} passed, {len(self.wrong)} wrong, {others}"
        return f"{self.cell.name}: {count} in {self.seconds:.0f} s ({have})"

    def row(self) -> str:
        """In docs/project/versions.md."""
        if self.missing:
            return f"| {self.cell.name} | {self.cell.python} | | | | not run: {self.missing} |"
        have, count = self.versions, f"{self.passed:,} passed"
        for number, what in (
            (len(self.wrong), "**failed**"),
            (self.excused, "fail, listed below"),
            (self.skipped, "skipped"),
        ):
            count += f", {number} {what}" if number else ""
        return (
            f"| {self.cell.name} | {have['Python']} | {have['SQLAlchemy']} "
            f"| {have['psycopg'].replace(' ', ', ')} | {have['PyMySQL']} | {count} |"
        )


def made(cell: Cell, program: Path, folder: Path) -> Path:
    """The cell's own Python, with the package and what it asks for; CannotHave with pip's words."""
    python = folder / "bin" / "python"
    if not python.exists():
        run_or_miss([program, "-m", "venv", "--without-pip", folder])
        # A pip that knows this Python; that of an older one takes wheels that do not fit.
        run_or_miss([sys.executable, "-m", "pip", "--python", python, *_PIP, "pip"])
    wanted = [*bounds.tools(), *(bounds.oldest() if cell.oldest else cell.packages)]
    run_or_miss([python, "-m", "pip", *_PIP, "--editable", bounds.ROOT, *wanted])
    return python


def run_or_miss(command: list[str | Path]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        wrong = [line for line in done.stderr.splitlines() if line.startswith(("ERROR", "Error"))]
        last = done.stderr.strip().splitlines()[-1:]
        raise CannotHave(" / ".join(wrong[:1] or last or ["it failed"]))


def run(cell: Cell, program: Path, folder: Path, workers: int, chosen: list[str]) -> Outcome:
    """chosen: files of tests, in the place of the cell's own; [] = those."""
    python, report = made(cell, program, folder), folder / "report.xml"
    report.unlink(missing_ok=True)
    command = [python, "-m", "pytest", "-q", "-n", str(workers), "--dist", "loadgroup"]
    command += ["--max-worker-restart", "0", "-m", "not long", f"--junitxml={report}"]
    if cell.absent:
        command += ["-k", "not oracle-mariadb"]
    environment = {**os.environ, "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"}
    if cell.absent:
        environment["PYTHONPATH"] = str(ABSENT)
    if cell.python.endswith("t"):
        environment["PYTHON_GIL"] = "0"
    told = subprocess.run(
        [python, "-c", _TELL], capture_output=True, text=True, check=True, env=environment
    )
    began = time.monotonic()
    with (folder / "log").open("w") as log:
        subprocess.run(
            [*command, *(chosen or files_of(cell))],
            cwd=bounds.ROOT,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if not report.exists():
        tail = (folder / "log").read_text(errors="replace").splitlines()[-15:]
        print("\n".join(tail), file=sys.stderr)
        return Outcome(cell, versions=json.loads(told.stdout), wrong=["the run has not ended"])
    found = judged(cell, report.read_text(), everything=not chosen)
    found.versions, found.seconds = json.loads(told.stdout), time.monotonic() - began
    return found


def files_of(cell: Cell) -> list[str]:
    return [*(f"tests/contract/{name}.py" for name in CORE), *cell.more]


def judged(cell: Cell, report: str, *, everything: bool = True) -> Outcome:
    """What pytest has written (JUnit's XML) beside what the cell's list says. everything: a listed
    test that was not run is wrong, too."""
    found, failed = Outcome(cell), set()
    for case in ET.fromstring(report).iter("testcase"):
        name = f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}"
        if case.find("failure") is not None or case.find("error") is not None:
            failed.add(name)
        elif case.find("skipped") is not None:
            found.skipped += 1
        else:
            found.passed += 1
            if name in cell.cannot:
                found.wrong.append(f"{name} passes: take it out of the list")
    found.excused = len(failed & cell.cannot.keys())
    found.wrong += sorted(failed - cell.cannot.keys())
    if everything:
        seen = failed | {one.partition(" ")[0] for one in found.wrong}
        found.wrong += [f"{name} was not run" for name in sorted(cell.cannot.keys() - seen)]
    return found
