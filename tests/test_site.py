"""The site: every public name is on a page, every page is in the order of reading."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import msgworker
from msgworker import coordination, errors, events, ops
from tests.names import nodes_of

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
API = {path.stem: path.read_text() for path in (DOCS / "reference" / "python").glob("*.md")}
DOCUMENTED = sorted(re.findall(r"^\.\. auto\w+:: ([\w.]+)$", "\n".join(API.values()), re.M))


def found(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def test_every_public_name_has_a_place_in_the_reference() -> None:
    wanted = {f"msgworker.{name}" for name in msgworker.__all__} - {"msgworker.__version__"}
    wanted |= {f"msgworker.events.{name}" for name in events.EVENTS}
    wanted |= {f"msgworker.coordination.{name}" for name in coordination.__all__}
    assert wanted - set(DOCUMENTED) == set()
    raised = {name for name, one in vars(errors).items() if isinstance(one, type)}
    raised = {name for name in raised if issubclass(getattr(errors, name), errors.MsgworkerError)}
    assert raised - {path.rpartition(".")[2] for path in DOCUMENTED} == set()


def test_what_ops_return_can_be_imported_and_has_a_place_in_the_reference() -> None:
    calls = [fn for name, fn in inspect.getmembers(ops.Ops, inspect.isfunction) if name[0] != "_"]
    returned = {w for fn in calls for w in re.findall(r"\b[A-Z]\w+", fn.__annotations__["return"])}
    others = {"Any", "None", "Self", *coordination.__all__}
    given = set(" ".join(ops._HOMES.values()).split())
    assert returned - others - given == set()
    assert {f"msgworker.ops.{name}" for name in given} - set(DOCUMENTED) == set()


def test_nothing_in_the_reference_lacks_a_text() -> None:
    assert [path for path in DOCUMENTED if not inspect.getdoc(found(path))] == []


def test_every_page_is_in_a_table_of_contents() -> None:
    listed = set()
    for page in DOCS.rglob("*.md"):
        for block in re.findall(r"^```\{toctree\}\n(.*?)^```", page.read_text(), re.M | re.S):
            names = [line for line in block.splitlines() if line and not line.startswith(":")]
            listed |= {(page.parent / f"{name}.md").resolve() for name in names}
    pages = {page.resolve() for page in DOCS.rglob("*.md")} - {(DOCS / "index.md").resolve()}
    assert [str(p.relative_to(DOCS)) for p in sorted(pages ^ listed)] == []


IDIOMS = re.compile(
    r"\b(in place of|as ever(?= [,.;:]|[,.;:])|machine alone|mended|mends|tells? of|"
    r"is told that|in like manner|whilst|shall)\b"
)
"""Words that must not come back into what users read; short, because reviews do the rest."""


def texts() -> Iterator[tuple[str, str]]:
    """Pages, docstrings and texts of the program, each with its place."""
    pages = [*DOCS.rglob("*.md"), *(ROOT / f"{name}.md" for name in ("README", "SECURITY"))]
    for page in pages:
        yield str(page.relative_to(ROOT)), page.read_text(encoding="utf-8")
    for path in (ROOT / "msgworker").rglob("*.py"):
        for node in nodes_of(path):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield f"{path.relative_to(ROOT)}:{node.lineno}", node.value


@pytest.mark.xdist_group("sources")
def test_idioms_of_our_own_do_not_come_back() -> None:
    found = [
        f"{place}: {match[0]}"
        for place, text in texts()
        for match in IDIOMS.finditer(" ".join(text.split()))
    ]
    assert found == [], "say it in plain English"
