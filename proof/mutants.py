"""Break the code on purpose, one place at a time: a named test must turn red.

mutants.txt has one or two for each promise and each rule of SECURITY.md, written by hand:

    # a promise
    = name | file, under msgworker/
    - what is there, as it stands in the file, exactly once
    + what comes into its place; nothing: it is taken out
    ! a test that must notice, with its parameters

Beside them cosmic-ray makes some of the modules that decide without a database or a thread, as
many as are asked for, drawn under a seed. proof/test_mutants.py runs both, each mutant in a copy of
the project; proof/simulation/plants.py does the same to the simulation, with bugs of several lines.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.names import ROOT, node_of

COPIED = ("msgworker", "tests", "proof", "samples", "ddl", "bench", "docs")
FILES = ("conftest.py", "pyproject.toml", "Makefile", "LICENSE")
SECONDS = 300
PASSED, FAILED = 0, 1
ON_SQLITE = ("-m", "not long", "-k", "not postgresql and not mariadb and not oracle")
DECIDING = {
    "message.py": """
        contract/test_quarantine.py contract/test_ops_looks.py contract/test_ops_rerun.py
        contract/test_unique.py instance store/test_settle.py test_testing.py""",
    "schedules.py": """
        cli/test_schedules.py config contract/test_scheduled_for.py contract/test_timers.py
        test_schedules.py""",
    "limit.py": "test_limit.py",
    "instance/claiming/capacity.py": "instance",
    "instance/claiming/loop.py:DrainEnd": "instance",
    "instance/claiming/heads.py": "instance",
    "instance/running/outcome.py": """
        contract/test_back_off.py contract/test_bad_errors.py contract/test_bad_handlers.py
        contract/test_bad_payloads.py contract/test_fan_out_stops.py contract/test_handlers.py
        contract/test_outcomes.py contract/test_payloads.py contract/test_timeouts.py
        contract/test_tracebacks.py instance""",
}
"""Modules, or a class of one, of which mutants are made, and the tests that judge them, under
tests/."""
KINDS = re.compile(
    r"core/(AddNot|ZeroIterationForLoop|Replace(AndWithOr|OrWithAnd|TrueWithFalse"
    r"|FalseWithTrue|BinaryOperator_(Add_Sub|Sub_Add|Mul_Div)"
    r"|ComparisonOperator_(Eq_NotEq|NotEq_Eq|Is_IsNot|IsNot_Is|Lt_LtE|LtE_Lt|Gt_GtE|GtE_Gt)))$"
)

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
    """The list, not the code or a test, is wrong."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One replacement in a file under msgworker/; `tests` as pytest takes them."""

    name: str
    part: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def text(self) -> str:
        """Of its file; raises Unsound unless it applies exactly once."""
        path = ROOT / "msgworker" / self.file
        text = path.read_text()
        times = text.count(self.old)
        if times != 1:
            raise Unsound(f"{self.name}: its text stands {times} times in {self.file}, not once")
        changed = text.replace(self.old, self.new)
        if path.suffix == ".py":
            compile(changed, str(path), "exec")
        return changed


def read(text: str) -> Iterator[Mutant]:
    """The mutants of a list."""
    part = ""
    for block in re.split(r"\n\n+", text.strip()):
        lines = block.splitlines()
        if lines[0].startswith("# "):
            part = lines[0][2:]
            continue
        name, _, file = lines[0].removeprefix("= ").partition(" | ")
        given = {mark: [line[2:] for line in lines if line[:1] == mark] for mark in "-+!"}
        old, new = "\n".join(given["-"]), "\n".join(given["+"])
        yield Mutant(name, part, file, old, new, tuple(given["!"]))


MUTANTS = tuple(read(Path(__file__).with_suffix(".txt").read_text(encoding="utf-8")))


def generated(what: str, count: int, seed: int) -> Iterator[Mutant]:
    """So many that cosmic-ray makes of a module, or of a class, of lines that may decide something.
    what: a key of DECIDING."""
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator, operator_names

    file, _, name = what.partition(":")
    text = (ROOT / "msgworker" / file).read_text()
    if name:
        found = re.search(rf"^class {name}\b.*?(?=\n\n\n)", text, re.MULTILINE | re.DOTALL)
        assert found is not None, what
        text = found[0]
    nodes = list(ast_nodes(get_ast(text)))
    places = [
        (name, place)
        for name in sorted(filter(KINDS.match, operator_names()))
        for place in range(sum(len([*get_operator(name)().mutation_positions(n)]) for n in nodes))
    ]
    made = 0
    for name, place in random.Random(f"{what}-{seed}").sample(places, len(places)):
        if made == count:
            return
        mutated = mutate_code(text, get_operator(name)(), place)
        old, new = text.splitlines(), mutated.splitlines()
        line = next(n for n, two in enumerate(zip(old, new, strict=False)) if two[0] != two[1])
        if re.match(r"\s*@dataclass|.*\bf[\"']", new[line]):
            continue
        made += 1
        told = f"{what}:{line + 1} {name.removeprefix('core/')}: {new[line].strip()}"
        yield Mutant(
            told,
            "generated",
            file,
            text,
            mutated,
            (*(f"tests/{one}" for one in DECIDING[what].split()), *ON_SQLITE),
        )


def copy_to(folder: Path) -> None:
    """Everything the tests need, and the witness."""
    ignored = shutil.ignore_patterns("__pycache__", "*.db")
    for name in COPIED:
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    for path in (*ROOT.glob("*.md"), *map(ROOT.joinpath, FILES)):
        shutil.copy(path, folder / path.name)
    (folder / "mutant_witness.py").write_text(WITNESS)


def run(
    tests: Sequence[str], changed: Mutant | None = None, *more: str, seconds: float = SECONDS
) -> tuple[int, str]:
    """pytest in a copy, with the mutant if there is one: its exit code and output."""
    with tempfile.TemporaryDirectory(prefix="msgworker-mutant-") as name:
        folder = Path(name).resolve()
        copy_to(folder)
        if changed is not None:
            (folder / "msgworker" / changed.file).write_text(changed.text())
        command = [sys.executable, "-m", "pytest", "-q", "-p", "mutant_witness", "--tb=line", *more]
        kept = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
        try:
            done = subprocess.run(
                [*command, "--timeout=120", *tests],
                cwd=folder,
                env={**kept, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"},
                capture_output=True,
                text=True,
                check=False,
                timeout=seconds,
            )
        except subprocess.TimeoutExpired:
            return FAILED, f"FAILED - not through within {seconds:g} s"
    return done.returncode, done.stdout + done.stderr


def caught(mutant: Mutant) -> bool:
    """Whether its tests turn red; raises Unsound where they do not run."""
    tests = mutant.tests if mutant.part == "generated" else [*map(node_of, mutant.tests)]
    code, output = run(tests, mutant, "-x")
    if code not in (PASSED, FAILED):
        raise Unsound(f"{mutant.name}: pytest ended with {code}: {output.strip()[-800:]}")
    if code == PASSED and " skipped" in output and " passed" not in output:
        raise Unsound(f"{mutant.name}: its tests were skipped: {output.strip()[-800:]}")
    return code == FAILED
