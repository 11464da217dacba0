"""The samples run as their readers run them; the main ones on every database."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.plugin import Database

ROOT = Path(__file__).parent.parent
SAMPLES = sorted(p for p in (ROOT / "samples").glob("*.py") if p.name != "plain_sql_consumer.py")
MAIN = ["contract_discount.py", "existing_table.py"]
PROVED = "contract_lease.py"


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )


@pytest.mark.quick("^01")
@pytest.mark.parametrize(
    "sample", [s for s in SAMPLES if s.name not in [*MAIN, PROVED]], ids=lambda p: p.name
)
def test_sample_runs(sample: Path) -> None:
    done = run(str(sample))

    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.long
def test_the_contracts_of_the_sample_are_proved() -> None:
    done = run(f"samples/{PROVED}")

    assert done.returncode == 0, done.stdout + done.stderr
    assert len([line for line in done.stdout.splitlines() if line.startswith("proved  ")]) == 6
    assert "BROKEN" not in done.stdout


@pytest.mark.long
def test_the_databases_of_the_sample_are_proved_as_three_schemas(postgresql: Database) -> None:
    done = run("samples/several_databases.py", "--url", postgresql.url)

    assert done.returncode == 0, done.stdout + done.stderr
    assert len([line for line in done.stdout.splitlines() if line.startswith("proved  ")]) == 6


def test_every_sample_is_described() -> None:
    described = (ROOT / "samples" / "README.md").read_text()
    assert [p.name for p in (ROOT / "samples").glob("*.py") if f"`{p.name}`" not in described] == []


@pytest.mark.long
@pytest.mark.parametrize("name", MAIN)
def test_main_samples_run_on_every_database(database: Database, name: str) -> None:
    if database.name == "oracle":
        pytest.skip("the samples make their own tables with plain SQL that Oracle does not take")
    done = run(f"samples/{name}", "--url", database.url)

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
def test_demo_proves_what_it_says() -> None:
    done = run("-m", "msgworker", "demo")

    assert done.returncode == 0, done.stdout + done.stderr
    proofs = [line for line in done.stdout.splitlines() if line.startswith("proved  ")]
    assert len(proofs) == 9
    assert done.stdout.splitlines()[-1].endswith("msgworker demo --web")
    assert "BROKEN" not in done.stdout
    assert "Traceback" not in done.stderr
