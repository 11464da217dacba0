"""What a run says of what it could not test, and what may not be missing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

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


def test_a_run_names_loudly_what_it_did_not_test(tmp_path: Path) -> None:
    code, out = run(tmp_path, "chromium", "-n", "1")
    assert code == 0, out
    assert re.search(r"1 passed, 3 skipped", out), out
    for name, why in WHY.items():
        assert re.search(rf"NOT TESTED: {name}: {why} \(set MSGWORKER_TEST_\w+ to use", out), out
    assert "Monday (set" not in out


@pytest.mark.parametrize(
    ("needs", "failed"),
    [
        ("chromium, mariadb", ["mariadb"]),
        ("all", ["prometheus", "mariadb"]),
    ],
)
def test_what_a_run_needs_may_not_be_missing(tmp_path: Path, needs: str, failed: list[str]) -> None:
    code, out = run(tmp_path, needs)
    assert code == 1, out
    for name, why in WHY.items():
        told = f"{name} is not there, but {NEEDS} asks for it: {why}" in out
        assert told == (name in failed), out
    skipped = 3 - len(failed)
    assert f"1 passed, {skipped} skipped" in out, out
