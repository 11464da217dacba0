"""The page of promises names tests, and they are there; pages for users name none."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.names import homes
from tests.quick import NONE, QUICK

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGE = (DOCS / "project" / "promises.md").read_text()
NAMED = sorted(set(re.findall(r"`(test_\w+)`", PAGE)))


@pytest.mark.parametrize("name", NAMED)
def test_named_test_exists(name: str) -> None:
    assert name in homes()


def promises() -> list[str]:
    """The rows of the table of promises."""
    after = PAGE.partition("## Which test is for which promise")[2]
    return [line for line in after.splitlines() if line.startswith("| ") and "---" not in line]


def test_the_first_test_of_each_promise_is_quick() -> None:
    long = {name for name, quick in QUICK.items() if quick == NONE}
    first = [re.findall(r"`(test_\w+)`", row)[:1] for row in promises()]
    assert [names for names in first if long.intersection(names)] == []


def test_every_promise_names_a_test() -> None:
    rows = promises()
    silent = [row for row in rows if "`test_" not in row and "tests |" not in row]
    assert len(rows) > 15
    assert silent == []


def test_pages_for_users_name_no_test() -> None:
    found = [
        f"{page.relative_to(DOCS)}: {name}"
        for folder in ("start", "guides", "operate", "reference")
        for page in (DOCS / folder).rglob("*.md")
        for name in re.findall(r"`(test_\w+|tests/[\w/.]+)`", page.read_text())
    ]
    assert [line for line in found if "test_crm" not in line] == []
