"""cx_Oracle, the driver before oracledb: built here, its dialect compiles every statement, and its
own errors are understood. It needs Oracle's client libraries to connect, which are not here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUILD_SECONDS = 240
LEAST_STATEMENTS = 30


def built(folder: Path) -> None:
    """Build the driver into a folder; skip where there is no compiler or no way to its source. Its
    set-up imports pkg_resources, which setuptools has had up to version 80."""
    constraint = folder / "constraint.txt"
    constraint.write_text("setuptools<81\n")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
            *("--no-deps", "--target", str(folder / "built"), "cx_Oracle==8.3.0"),
        ],
        env={**os.environ, "PIP_CONSTRAINT": str(constraint)},
        capture_output=True,
        text=True,
        timeout=BUILD_SECONDS,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"cx_Oracle cannot be built here: {done.stderr.strip().splitlines()[-1:]}")


@pytest.mark.long
@pytest.mark.timeout(BUILD_SECONDS + 60)
def test_cx_oracle_is_given_the_same_statements_and_its_errors_are_understood(
    tmp_path: Path,
) -> None:
    built(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "tests.oracle.with_cx_oracle"],
        env={**os.environ, "PYTHONPATH": str(tmp_path / "built")},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["version"] == "8.3.0"
    assert told["statements"] > LEAST_STATEMENTS
    assert told["other statements"] == []
    assert told["refused by Oracle"] == []
    assert told["misunderstood"] == []
    assert told["at a start without client libraries"].startswith("refused: DPI-1047")
