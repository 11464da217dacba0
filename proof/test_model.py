"""The models say what the code does, and what they say holds."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from proof.model import FOLDER, VARIANTS, Variant, check, need_spin
from tests.servers import CannotHave

ROOT = Path(__file__).parent.parent
PAGE = (FOLDER / "README.md").read_text() + (FOLDER / "batches.md").read_text()
STEP = re.compile(r"`((?:msgworker|samples)/[a-z_/]+\.py)(?::([A-Za-z_.]+))?`")
STEPS = sorted(set(STEP.findall(PAGE)))
QUICK: tuple[str, ...] = (
    "failures",
    "short runs",
    "stop",
    "no fence",
    "no guard, rerun",
    "all end: poison",
)
QUICK += ("without owners, operators release", "what cannot be recovered is forgotten")
QUICK += ("the look does not wait", "batch: failures", "batch: followers without status = 0")
QUICK += ("permits: a kill", "permits counted before the lock")
QUICK += ("ticks: a kill", "ticks without the version")
QUICK += ("chain: a kill, a zombie, an answer lost", "chain: sent for a lost message")
QUICK += ("blame: a batch with max_tries 1", "locks: foreign, claim, ops")
with_spin = pytest.mark.usefixtures("spin")


@pytest.fixture
def spin() -> None:
    """Spin and a C compiler, installed as the database servers are."""
    try:
        need_spin()
    except CannotHave as reason:
        pytest.skip(str(reason))


def names_in(path: Path) -> set[str]:
    """The functions, classes and methods of a module; methods as Class.method."""
    names: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            inner = [one.name for one in node.body if isinstance(one, ast.FunctionDef)]
            names.update(f"{node.name}.{name}" for name in inner)
    return names


@pytest.mark.parametrize(("file", "name"), STEPS, ids=[f"{f}:{n}" for f, n in STEPS])
def test_steps_name_what_is_in_the_code(file: str, name: str) -> None:
    path = ROOT / file
    assert path.is_file()
    assert not name or name in names_in(path)


def test_table_has_the_steps_of_the_core() -> None:
    named = {file for file, _ in STEPS}
    core = (
        "store/claim",
        "store/settle",
        "store/done",
        "store/recover",
        "store/lease",
        "instance/claiming/claimer",
    )
    assert {f"msgworker/{one}.py" for one in core} <= named


def test_every_variant_of_the_pages_is_asked_and_every_switch_is_used() -> None:
    assert len(VARIANTS) == 360  # whoever removes one from a page changes this, too
    assert len(VARIANTS) == len(re.findall(r"\| (?:holds|counterexample) \|", PAGE))
    for path in FOLDER.glob("*.pml"):
        text = re.sub(r"/\*.*?\*/", "", path.read_text(), flags=re.S)
        asked = re.findall(r"^#(?:el)?if.*$", text, re.M)
        switches = set(re.findall(r"\b[A-Z][A-Z_]+[A-Z]\b", "\n".join(asked)))
        given = set(re.findall(r"^#define (\w+)", text, re.M))
        flags = [flag for v in VARIANTS if v.model == path.stem for flag in v.flags.split()]
        assert switches - given - {flag.split("=")[0] for flag in flags} == set(), path.name


def test_make_model_needs_nothing_but_python() -> None:
    """It runs without the virtual environment."""
    command = [sys.executable, "-S", "-c", "import proof.model"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.quick("no fence|locks:")
@with_spin
@pytest.mark.parametrize("name", QUICK)
def test_quick_searches_find_what_is_expected(name: str) -> None:
    variant = next(one for one in VARIANTS if one.name == name)
    verdict = check(variant)
    assert verdict.result == variant.expected, verdict.trace


@pytest.mark.long
@with_spin
@pytest.mark.parametrize("variant", VARIANTS, ids=[v.name for v in VARIANTS])
def test_searches_find_what_is_expected(variant: Variant) -> None:
    verdict = check(variant)
    assert verdict.result == variant.expected, verdict.trace
