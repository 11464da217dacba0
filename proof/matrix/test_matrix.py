"""The matrix has a cell for all that pyproject.toml allows, and says what came out."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from proof.matrix import bounds, record
from proof.matrix.__main__ import PAGE, recorded
from proof.matrix.cells import CELLS, CORE, Cell
from proof.matrix.running import Outcome, files_of, judged

OLDEST = next(cell for cell in CELLS if cell.oldest)
REPORT = """<testsuites><testsuite>
<testcase classname="tests.contract.test_a" name="test_good[sqlite]" />
<testcase classname="tests.contract.test_a" name="test_bad[sqlite]"><failure/></testcase>
<testcase classname="tests.contract.test_a" name="test_not"><skipped/></testcase>
</testsuite></testsuites>"""
GOOD, BAD = (
    "tests/contract/test_a.py::test_good[sqlite]",
    "tests/contract/test_a.py::test_bad[sqlite]",
)


def test_each_python_of_the_classifiers_has_a_cell_and_no_other_has() -> None:
    had = {cell.python.removesuffix("t") for cell in CELLS}
    assert had == set(bounds.pythons())


def test_the_oldest_cell_has_the_oldest_python_and_every_lower_bound() -> None:
    told = bounds.project()
    assert told["requires-python"] == f">={OLDEST.python}"
    assert bounds.pythons()[0] == OLDEST.python
    pinned = {one.partition("==")[0]: one.partition("==")[2] for one in bounds.oldest()}
    for requirement in told["dependencies"]:
        name = re.split(r"[<>=\[]", requirement)[0]
        assert f"{name}>={pinned[name]}" in requirement
    assert {"psycopg[binary]", "PyMySQL", "redis", "Django", "starlette"} <= pinned.keys()


def test_a_requirement_without_a_lower_bound_is_refused() -> None:
    with pytest.raises(ValueError, match="no lower bound"):
        bounds.lowest("anything<2")


def test_both_sqlalchemy_are_had_and_the_next_one_is_excluded() -> None:
    (told,) = [one for one in bounds.project()["dependencies"] if one.startswith("SQLAlchemy")]
    assert told.endswith(",<2.2")
    old = {cell.python for cell in CELLS if "SQLAlchemy<2.1" in cell.packages}
    assert old
    assert {cell.python for cell in CELLS if not cell.oldest} - old


def test_the_cells_bounds_of_drivers_are_those_of_the_extras() -> None:
    extras = bounds.project()["optional-dependencies"]
    known = {one.replace("[binary]", "") for some in extras.values() for one in some}
    for cell in CELLS:
        for package in cell.packages:
            plain = package.replace("[binary]", "")
            assert package == "SQLAlchemy<2.1" or plain in known, (cell.name, package)


def test_the_files_of_every_cell_are_there() -> None:
    assert len({cell.name for cell in CELLS}) == len(CELLS)
    assert len(set(CORE)) == len(CORE)
    for cell in CELLS:
        for path in [*files_of(cell), *(name.partition("::")[0] for name in cell.cannot)]:
            assert (bounds.ROOT / path).exists(), path


@pytest.mark.parametrize(
    ("cannot", "wrong"),
    [
        ({}, [BAD]),
        ({BAD: "why"}, []),
        ({BAD: "why", GOOD: "why"}, [f"{GOOD} passes: take it out of the list"]),
        ({BAD: "why", "x.py::test_away": "why"}, ["x.py::test_away was not run"]),
    ],
)
def test_what_fails_is_wrong_unless_it_is_listed_and_what_is_listed_must_fail(
    cannot: dict[str, str], wrong: list[str]
) -> None:
    found = judged(Cell("one", "3.11", cannot=cannot), REPORT)
    assert found.wrong == wrong
    assert (found.passed, found.skipped, found.excused) == (1, 1, int(BAD in cannot))
    assert found.good == (not wrong)


def test_a_cell_in_which_nothing_ran_is_not_good() -> None:
    assert not judged(Cell("one", "3.11"), "<testsuites></testsuites>").good
    assert not Outcome(Cell("one", "3.11"), missing="no such Python").good


def test_the_page_has_a_row_for_each_cell_and_names_what_fails() -> None:
    page = PAGE.read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([\w.-]+) \| \S", page, re.M)
    assert [name for name in rows if name in {cell.name for cell in CELLS}] == [
        cell.name for cell in CELLS
    ]
    for cell in CELLS:
        for name in cell.cannot:
            assert name.partition("::")[2].partition("[")[0] in page, name


def test_a_record_replaces_the_row_of_its_cell_alone() -> None:
    page = "| one | a |\n| two | b |\n"
    outcome = Outcome(Cell("two", "3.99"), missing="no such Python")
    assert recorded([outcome], page, "2020-01-02") == (
        "| one | a |\n| two | 3.99 | | | | not run: no such Python | 2020-01-02 |\n"
    )


def test_the_pages_say_of_each_server_what_was_recorded() -> None:
    told = json.loads(record.RECORD.read_text(encoding="utf-8"))
    versions = record.VERSIONS.read_text(encoding="utf-8")
    readme = record.README.read_text(encoding="utf-8")
    assert record.made(told, versions, readme) == (versions, readme)
    assert [name for name, one in told.items() if one["failed"]] == []


def test_a_test_that_failed_counts_as_passed_once_it_has_passed_alone() -> None:
    alone = REPORT.replace("<failure/>", "")
    skips = {"listed": 0, "skipped": 1, "seconds": 0}
    failed = {"passed": 1, "again": 0, "failed": ["tests.contract.test_a::test_bad[sqlite]"]}
    assert record.counted([REPORT]) == skips | failed
    assert record.counted([REPORT, alone]) == skips | {"passed": 2, "again": 1, "failed": []}


def test_what_is_absent_is_a_module_of_its_own() -> None:
    folder = Path(__file__).parent / "absent"
    for cell in CELLS:
        assert all((folder / f"{name}.py").exists() for name in cell.absent)
