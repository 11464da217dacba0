"""Whatever stands in a row harms that row only; a table works, or is refused with its mend.

A failure names its rows, or its table; `python -m proof.fuzz --seed N` writes them again.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

from proof.fuzz.__main__ import main
from proof.fuzz.hunt import hunt_rows, hunt_tables

SEED = 1
LONG_SEED = int(os.environ.get("MSGWORKER_TEST_SEED", "2"))


@pytest.mark.quick("postgresql")
def test_odd_rows_among_good_ones_harm_themselves_only(database: Any) -> None:
    found = hunt_rows(database.url, database.name, rows=12, at_once=30, start=SEED)
    assert not found.faults, str(found)
    assert found.figures["rows"] >= 12
    assert min(found.figures["done"], found.figures["dead"]) > 0


@pytest.mark.quick("mariadb")
def test_a_table_of_any_types_works_or_is_refused_with_its_mend(database: Any) -> None:
    found = hunt_tables(database.url, database.name, tables=3, start=SEED)
    assert not found.faults, str(found)
    assert found.figures["tables"] == 3
    assert found.figures["works"] + found.figures["works, mended"] > 0


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_thousands_of_odd_rows_harm_themselves_only(database: Any) -> None:
    found = hunt_rows(database.url, database.name, rows=4_000, at_once=250, start=LONG_SEED)
    assert not found.faults, str(found)


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_hundreds_of_tables_work_or_are_refused_with_their_mend(database: Any) -> None:
    found = hunt_tables(database.url, database.name, tables=250, start=LONG_SEED)
    assert not found.faults, str(found)


def test_the_command_says_what_became_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--tables", "1", "--database", "sqlite"]) == 0
    told = capsys.readouterr().out
    assert "sqlite, seed 1, tables:" in told
    assert "      1 tables" in told
