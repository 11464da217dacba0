"""Where each test stands, and the source as Python reads it. No two tests share a name, so they
are named without their files: in proof/mutants.txt and docs/project/promises.md."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
TREES = ("tests", "proof")  # the two trees of tests


@cache
def homes() -> dict[str, tuple[str, ...]]:
    """Test -> the files that have one of that name, with their tree; more than one is a fault."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(path for tree in TREES for path in (ROOT / tree).rglob("test_*.py")):
        for name in re.findall(r"^ *(?:async )?def (test_\w+)\(", path.read_text(), re.M):
            found[name].append(path.relative_to(ROOT).as_posix())
    return {name: tuple(files) for name, files in found.items()}


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """All of a file, as `ast.walk` finds it; tests that ask share a process (group "sources")."""
    return tuple(ast.walk(tree_of(path)))


def marked(mark: str) -> set[str]:
    """The tests at which this mark of pytest stands."""
    found = set()
    for path in {ROOT / file for files in homes().values() for file in files}:
        for node in nodes_of(path) if f"mark.{mark}" in path.read_text() else ():
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and any(
                ast.unparse(one).partition("(")[0] == f"pytest.mark.{mark}"
                for one in node.decorator_list
            ):
                found.add(node.name)
    return found


def node_of(test: str) -> str:
    """A test with or without its parameters, as pytest takes it. Raises KeyError."""
    (file,) = homes()[test.partition("[")[0]]
    return f"{file}::{test}"
