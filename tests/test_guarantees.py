"""The page of promises names tests, and they are there; pages for users name none."""

from __future__ import annotations

import re
from pathlib import Path

from tests.names import homes, marked

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGE = (DOCS / "project" / "promises.md").read_text()
NAMED = sorted(set(re.findall(r"`(test_\w+)`", PAGE)))


def test_named_tests_exist() -> None:
    assert set(NAMED) - set(homes()) == set()


def promises() -> list[str]:
    """The rows of the table of promises, and of that of failures."""
    after = PAGE.partition("## Which test is for which promise")[2]
    return [line for line in after.splitlines() if line.startswith("| ") and "---" not in line]


def test_each_promise_to_users_has_its_line_here_in_its_own_words() -> None:
    made = (DOCS / "reference" / "guarantees.md").read_text().partition("| promise |")[2]
    rows = made.partition("\n\n")[0].splitlines()[2:]
    words = [re.sub(r"\| (?:P\d )?\*\*(.+?)\*\*.*", r"\1", row) for row in rows]
    words = [re.sub(r"\[([^]]+)\]\([^)]*\)", r"\1", one) for one in words]
    held = [row.removeprefix("| ").partition(" | ")[0] for row in promises()]
    assert held[1 : len(words) + 1] == words


def test_the_first_test_of_each_promise_is_quick() -> None:
    long = marked("long")
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
        for name in re.findall(r"`(test_\w+|(?:tests|proof)/[\w/.]+)`", page.read_text())
    ]
    assert [line for line in found if "test_crm" not in line] == []
