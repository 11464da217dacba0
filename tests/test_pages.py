"""What the pages of Start, Guides and Operate show is run, and is what comes out."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import pages
from tests.plugin import Database

PAGES = sorted(page for name in pages.FOLDERS for page in (pages.DOCS / name).glob("*.md"))
WITH_TABS = [page for page in PAGES if pages.tabs(page.read_text(encoding="utf-8"))]


def name(page: Path) -> str:
    return page.relative_to(pages.DOCS).as_posix()


@pytest.mark.long
@pytest.mark.parametrize("page", PAGES, ids=name)
def test_a_page_shows_what_its_commands_print(page: Path) -> None:
    assert pages.check(page, "SQLite" if page in WITH_TABS else None) == []


@pytest.mark.long
@pytest.mark.parametrize("page", WITH_TABS, ids=name)
@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_a_page_with_tabs_is_run_on_servers(
    page: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    database: Database = request.getfixturevalue(kind)
    tab = {"postgresql": "PostgreSQL", "mariadb": "MariaDB, MySQL"}[kind]
    assert pages.check(page, tab, database.url) == []


def test_a_page_has_all_tabs_or_none() -> None:
    for page in WITH_TABS:
        assert pages.tabs(page.read_text(encoding="utf-8")) == list(pages.URLS), page


def test_a_page_that_says_something_else_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```console\n$ echo one; (exit 3)\ntwo\n$ echo $?\n3\n```\n")
    (wrong,) = pages.check(page)
    assert "the page says\ntwo" in wrong


def test_times_and_ids_may_differ_and_numbers_may_not() -> None:
    assert pages.same("took 0.4s, by vm-1-0123456789abcdef", "took 2s, by h-22-fedcba9876543210")
    assert pages.same("done just now (in 3 seconds)", "done 1 second ago (just now)")
    assert pages.same("created a\n...", "created a\ncreated b\n")
    assert not pages.same("done=3", "done=4")


def test_a_command_that_is_not_there_is_found() -> None:
    assert "--thread" in pages.refused("msgworker run jobs:app --thread 8")[0]
    assert "missing" in pages.refused("cd x && venv/bin/msgworker show jobs:app")[0].lower()
    assert pages.refused("venv/bin/python x && msgworker drain jobs:app --threads 8 || a b") == []
    assert pages.refused('CMD ["msgworker", "run", "jobs:app", "--grac", "x"]') != []
    assert pages.refused("msgworker show", whole=False) == []


TEXTS = sorted([*pages.DOCS.rglob("*.md"), pages.ROOT / "README.md"])


@pytest.mark.long
def test_every_command_of_ours_on_a_page_exists() -> None:
    """Also in blocks that are not run, and in the text."""
    found = {page.stem: pages.unknown(page.read_text(encoding="utf-8")) for page in TEXTS}
    assert {stem: wrong for stem, wrong in found.items() if wrong} == {}


def test_what_is_not_run_is_listed_with_the_reason() -> None:
    found = {(name(p), kind) for p in PAGES for kind in pages.only_shown(p.read_text("utf-8"))}
    assert found == set(pages.SHOWN)
