"""Each mutant still applies, and names tests that exist."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants import ROOT, Unsound, main, mutated
from tests.mutations import MUTANTS, Mutant
from tests.names import homes


@pytest.mark.parametrize("mutant", MUTANTS, ids=[m.name for m in MUTANTS])
def test_mutant_applies_exactly_once(mutant: Mutant) -> None:
    assert mutated(mutant) != (ROOT / "msgworker" / mutant.file).read_text()
    assert mutant.tests


@pytest.mark.parametrize("test", sorted({t for m in MUTANTS for t in m.tests}))
def test_tests_of_the_mutants_exist(test: str) -> None:
    assert len(homes().get(test.partition("[")[0], ())) == 1


def test_a_text_that_is_gone_is_told() -> None:
    gone = Mutant("gone", "table/spec.py", "this stands nowhere", "", ())
    with pytest.raises(Unsound, match=r"0 times in table/spec\.py"):
        mutated(gone)


def test_names_are_listed_and_unknown_ones_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list", "no fence"]) == 0
    assert capsys.readouterr().out.split()[:2] == ["no", "fence"]
    with pytest.raises(SystemExit):
        main(["no such mutant"])
    assert "no such mutant" in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_every_mutant_is_caught() -> None:
    assert main([]) == 0


def test_the_page_names_what_is_run() -> None:
    assert Path(ROOT / "Makefile").read_text().count("tests.mutants") == 1
