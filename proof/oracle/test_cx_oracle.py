"""cx_Oracle, the driver before oracledb: built here, its dialect compiles every statement, and its
own errors are understood. It needs Oracle's client libraries to connect, which are not here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.oracle_driver import DRIVER

ROOT = Path(__file__).parents[2]
BUILD_SECONDS = 240


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


def with_it(folder: Path, *arguments: str, **environment: str) -> str:
    """What Python says, run where the driver is."""
    paths = {"PYTHONPATH": str(folder / "built")}
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        env={**os.environ, **paths, **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, (done.stdout[-3000:], done.stderr)
    return done.stdout


@pytest.mark.long
@pytest.mark.timeout(BUILD_SECONDS + 210)
def test_cx_oracle_is_given_good_statements_and_its_errors_are_understood(tmp_path: Path) -> None:
    built(tmp_path)
    told = json.loads(with_it(tmp_path, "proof.oracle.with_cx_oracle"))
    assert told["version"] == "8.3.0"
    assert told["misunderstood"] == []
    assert told["at a start without client libraries"].startswith("refused: DPI-1047")
    every = ("-k", "every_statement_is_one_that_oracle_takes")
    said = with_it(tmp_path, "pytest", "-q", "tests/test_ddl.py", *every, **{DRIVER: "cx_oracle"})
    assert "6 passed" in said
