"""Break the code on purpose, one place at a time: `python -m proof.mutants [--list] [NAME ...]`.

Each mutant is one exact replacement in a copy of the project; the few tests that must notice it run
there. A survivor is a missing test. NAME* is all whose name begins so: "S4 *" for a rule of
SECURITY.md. Ends with 1 if one survives, with 2 if the script itself fails: a text that is not
found exactly once, tests that fail without the mutant, a package that is not the copy.
proof/simulation/plants.py does the same to the simulation, with bugs of several lines.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from proof.mutations import MUTANTS, Mutant
from proof.protections import PROTECTIONS
from tests.names import node_of

ROOT = Path(__file__).parent.parent
COPIED = ("msgworker", "tests", "proof", "samples", "ddl", "bench", "docs")
FILES = ("conftest.py", "pyproject.toml", "Makefile", "LICENSE")
SECONDS = 300
ALL = (*MUTANTS, *PROTECTIONS)
PASSED, FAILED_TESTS = 0, 1

WITNESS = '''
"""Loaded by pytest: the package under test must be the copy beside this file."""
import pathlib
import msgworker
here = pathlib.Path(__file__).parent
found = pathlib.Path(msgworker.__file__).parent.parent
if found != here:
    raise SystemExit(f"the package under test is in {found}, not in {here}")
'''


class Unsound(Exception):
    """The script, not a mutant, is wrong."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one mutant."""

    mutant: Mutant
    caught: bool
    seconds: float
    by: str


def mutated(mutant: Mutant, root: Path = ROOT) -> str:
    """The text of the mutant's file; raises Unsound unless it applies exactly once."""
    path = root / "msgworker" / mutant.file
    text = path.read_text()
    times = text.count(mutant.old)
    if times != 1:
        raise Unsound(f"{mutant.name}: its text stands {times} times in {mutant.file}, not once")
    changed = text.replace(mutant.old, mutant.new)
    if path.suffix == ".py":
        compile(changed, str(path), "exec")
    return changed


def copy_to(folder: Path) -> None:
    """Everything the tests need, and the witness."""
    ignored = shutil.ignore_patterns("__pycache__", "*.db")
    for name in COPIED:
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    for path in (*ROOT.glob("*.md"), *map(ROOT.joinpath, FILES)):
        shutil.copy(path, folder / path.name)
    (folder / "mutant_witness.py").write_text(WITNESS)


def run_tests(folder: Path, tests: Iterable[str]) -> tuple[int, str]:
    """pytest in the copy, up to the first failure: exit code and output."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "mutant_witness", "--tb=line"]
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            [*command, "--timeout=120", *map(node_of, tests)],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS,
        )
    except subprocess.TimeoutExpired:
        return FAILED_TESTS, f"FAILED - not through within {SECONDS} s"
    return done.returncode, done.stdout + done.stderr


def judge(mutant: Mutant) -> Verdict:
    """Run one mutant in a copy of its own."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="msgworker-mutant-") as name:
        folder = Path(name).resolve()
        copy_to(folder)
        (folder / "msgworker" / mutant.file).write_text(mutated(mutant))
        code, output = run_tests(folder, mutant.tests)
    if code not in (PASSED, FAILED_TESTS):
        raise Unsound(f"{mutant.name}: pytest ended with {code}: {output.strip()[-800:]}")
    marks = ("FAILED ", "ERROR tests", "ERROR proof")
    failed = [line for line in output.splitlines() if line.startswith(marks)]
    by = failed[0].split(" ")[1] if failed else ""
    return Verdict(mutant, code == FAILED_TESTS, time.monotonic() - begun, by)


def baseline(mutants: Sequence[Mutant]) -> None:
    """Without a mutant all these tests pass, none is skipped; else raises Unsound."""
    with tempfile.TemporaryDirectory(prefix="msgworker-mutant-") as name:
        folder = Path(name).resolve()
        copy_to(folder)
        tests = dict.fromkeys(test for mutant in mutants for test in mutant.tests)
        code, output = run_tests(folder, tests)
    if code != PASSED:
        raise Unsound(f"without a mutant the tests fail: {output.strip()[-800:]}")
    if " skipped" in output:
        raise Unsound("tests were skipped; is a database server missing? python -m tests.servers")


def named(names: Sequence[str]) -> tuple[list[Mutant], set[str]]:
    """The mutants of these names, all without; and the names that are none."""
    chosen, unknown = set(), set()
    for name in names:
        most = name.removesuffix("*")
        found = [m for m in ALL if m.name == name or (most != name and m.name.startswith(most))]
        chosen |= {m.name for m in found}
        unknown |= set() if found else {name}
    return [m for m in ALL if not names or m.name in chosen], unknown


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m proof.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="of mutants, or NAME*; all without")
    parser.add_argument("--list", action="store_true", help="only name them")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--no-baseline", action="store_true", help="trust that the tests pass")
    chosen = parser.parse_args(arguments)
    mutants, unknown = named(chosen.names)
    if unknown:
        parser.error(f"no such mutant: {', '.join(sorted(unknown))}")
    if chosen.list:
        print("\n".join(f"{m.name:42} {m.file}" for m in mutants))
        return 0
    survivors = 0
    try:
        for mutant in mutants:
            mutated(mutant)
        if not chosen.no_baseline:
            baseline(mutants)
        with ThreadPoolExecutor(chosen.jobs) as pool:
            for verdict in pool.map(judge, mutants):
                survivors += not verdict.caught
                word = "caught  " if verdict.caught else "SURVIVED"
                name, seconds = verdict.mutant.name, verdict.seconds
                print(f"{word} {name:42} {seconds:5.1f} s  {verdict.by}", flush=True)
    except Unsound as problem:
        print(f"unsound: {problem}", file=sys.stderr)
        return 2
    print(f"{survivors} of {len(mutants)} survived" if survivors else f"{len(mutants)} caught")
    return int(survivors > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
