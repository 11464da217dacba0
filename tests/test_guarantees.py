"""The guarantees page names tests, and they are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "guarantees.md").read_text()
NAMED = sorted(set(re.findall(r"`(test_\w+)`", PAGE)))
DEFINED = {
    name
    for path in (ROOT / "tests").rglob("test_*.py")
    for name in re.findall(r"^def (test_\w+)\(", path.read_text(), re.M)
}


@pytest.mark.parametrize("name", NAMED)
def test_named_test_exists(name: str) -> None:
    assert name in DEFINED


def test_every_promise_names_a_test() -> None:
    after = PAGE.partition("## Which test is for which promise")[2]
    rows = [line for line in after.splitlines() if line.startswith("| ") and "---" not in line]
    silent = [row for row in rows if "`test_" not in row and "tests |" not in row]
    assert len(rows) > 15
    assert silent == []
