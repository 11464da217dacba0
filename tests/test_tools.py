"""What a run says of what it could not test, what may not be missing, and what the CI adds."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests import quick
from tests.quick import SLICE, SLICE_TEST_SECONDS, SLICES, seconds_in, spread, todays
from tests.tools import NEEDS

ROOT = Path(__file__).parent.parent
LACKING = """
import pytest
from tests.servers import CannotHave
from tests.tools import or_skip

def missing():
    raise CannotHave("it cannot be installed here")

def test_with_a_program():
    or_skip("prometheus", missing)

def test_with_a_database(mariadb):
    raise AssertionError("there is none")

def test_with_neither():
    pass

def test_that_is_skipped_for_another_reason():
    pytest.skip("not on a Monday")
"""
WHY = {"prometheus": "it cannot be installed here", "mariadb": "no server for it"}


def run(folder: Path, needs: str, *options: str) -> tuple[int, str]:
    """The exit code and the output of a run that has neither Prometheus nor MariaDB."""
    (folder / "test_lacking.py").write_text(LACKING)
    kept = {name: v for name, v in os.environ.items() if not name.startswith("MSGWORKER_TEST_")}
    kept |= {NEEDS: needs, "MSGWORKER_TEST_MISSING": f'{{"mariadb": "{WHY["mariadb"]}"}}'}
    kept.pop("PYTEST_XDIST_WORKER", None)
    plain = ["-q", "-p", "tests.plugin", "-p", "no:cacheprovider", "--rootdir", str(folder)]
    command = [sys.executable, "-m", "pytest", *plain, *options, str(folder)]
    done = subprocess.run(command, cwd=ROOT, env=kept, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.long
def test_a_run_names_loudly_what_it_did_not_test(tmp_path: Path) -> None:
    code, out = run(tmp_path, "chromium", "-n", "1")
    assert code == 0, out
    assert re.search(r"1 passed, 3 skipped", out), out
    for name, why in WHY.items():
        assert re.search(rf"NOT TESTED: {name}: {why} \(set MSGWORKER_TEST_\w+ to use", out), out
    assert "Monday (set" not in out


@pytest.mark.long
@pytest.mark.parametrize(
    ("needs", "failed"), [("chromium, mariadb", ["mariadb"]), ("all", ["prometheus", "mariadb"])]
)
def test_what_a_run_needs_may_not_be_missing(tmp_path: Path, needs: str, failed: list[str]) -> None:
    code, out = run(tmp_path, needs)
    assert code == 1, out
    for name, why in WHY.items():
        told = f"{name} is not there, but {NEEDS} asks for it: {why}" in out
        assert told == (name in failed), out
    skipped = 3 - len(failed)
    assert f"1 passed, {skipped} skipped" in out, out


class Item:
    """A collected test, as far as a slice looks at it."""

    def __init__(self, nodeid: str, *marks: pytest.Mark) -> None:
        self.nodeid = nodeid
        self.marks = {mark.name: mark for mark in marks}

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return self.marks.get(name)

    def add_marker(self, mark: pytest.MarkDecorator) -> None:
        self.marks[mark.name] = mark.mark


def test_where_processes_share_the_tests_quick_files_come_first_and_very_slow_ones_not_last(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    report = tmp_path / "report.xml"
    cases = {"new": [], "a": [0.012], "b": [0.01, 0.01], "long": [20, 40], "slow": [1], "late": [4]}
    report.write_text(
        "<testsuites><testsuite>"
        + "".join(
            f'<testcase classname="tests.{name}" time="{one}"/>'
            for name, taken in cases.items()
            for one in taken
        )
        + '<testcase classname="tests.new" time="9"><skipped/></testcase></testsuite></testsuites>'
    )
    lines = [*seconds_in(report)]
    assert lines == [
        f"{one}.py"
        for one in ("0.01 tests/a", "0.01 tests/b", "4 tests/late", "30 tests/long", "1 tests/slow")
    ]
    monkeypatch.setattr(quick, "SECONDS", tmp_path / "seconds.txt")
    quick.SECONDS.write_text("\n".join(lines))
    made = [f"tests/{name}.py::t{n}" for name in cases for n in range(20)]
    for worker in (None, "gw0"):
        items: Any = [Item(one) for one in made]
        monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
        if worker:
            monkeypatch.setenv("PYTEST_XDIST_WORKER", worker)
        spread(items)
        order = [one.nodeid for one in items]
        assert sorted(order) == sorted(made)
        files = [one[6 : one.index(".")] for one in order]
        assert ({*files[20:40]} == {"a", "b"}) == bool(worker)  # each beside one of the other
        assert [*dict.fromkeys(files[60:])] == (
            ["slow", "long", "late"] if worker else ["long", "slow", "late"]
        )


def test_each_long_test_is_in_the_slice_of_one_day_and_behind_all_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    long, slow = pytest.mark.long.mark, pytest.mark.timeout(SLICE_TEST_SECONDS).mark
    taken = Counter[str]()
    for day in range(1000, 1000 + SLICES):
        items: Any = [Item(f"l{n}", long) for n in range(200)]
        items += [Item("quick"), Item("slow", long, slow)]
        monkeypatch.setenv(SLICE, str(day))
        todays(items)
        mine = [one.nodeid for one in items if one.get_closest_marker("today")]
        assert [one.nodeid for one in items][len(items) - len(mine) :] == mine
        taken.update(mine)
    assert taken == Counter(f"l{n}" for n in range(200))
