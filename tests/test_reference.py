"""The Python reference is made from the docstrings and in step with them."""

from __future__ import annotations

import itertools
from pathlib import Path

import msgworker
from tests.reference import page

REFERENCE = Path(__file__).parents[1] / "docs" / "reference.md"


def test_the_reference_is_in_step_with_the_docstrings() -> None:
    assert REFERENCE.read_text(encoding="utf-8") == page(), "run `make reference`"


def test_every_public_name_is_in_the_reference() -> None:
    text = page()
    names = set(msgworker.__all__) - {"__version__"}
    assert {name for name in names if f"### {name}\n" not in text} == set()


def test_nothing_in_the_reference_lacks_a_text() -> None:
    lines = [line for line in page().splitlines() if line]
    pairs = itertools.pairwise(lines)
    assert [a for a, b in pairs if a.startswith("###") and b.startswith("#")] == []
