"""Each mutant still applies, and names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from proof.mutants import ALL, ROOT, Unsound, main, mutated, named
from proof.mutations import Mutant
from proof.protections import RULES
from tests.names import homes


@pytest.mark.parametrize("mutant", ALL, ids=[m.name for m in ALL])
def test_mutant_applies_exactly_once(mutant: Mutant) -> None:
    assert mutated(mutant) != (ROOT / "msgworker" / mutant.file).read_text()
    assert mutant.tests


@pytest.mark.parametrize("test", sorted({t for m in ALL for t in m.tests}))
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


def test_a_name_that_begins_so_is_all_of_them() -> None:
    found, unknown = named(["S1 *", "no fence", "S20 *"])
    assert [one.name for one in found] == ["no fence", *(one.name for one in RULES["S1"])]
    assert unknown == {"S20 *"}


def test_each_test_of_a_rule_of_security_is_red_without_a_protection() -> None:
    """The tests that SECURITY.md names for a rule are those of its mutants."""
    text = (ROOT / "SECURITY.md").read_text()
    for rule, told in re.findall(r"^\| (S\d+) \|.*\|(.*)\|$", text, re.M):
        mutants = RULES[rule]
        assert {len(one.tests) for one in mutants} == {1}, rule
        killers = {one.tests[0].partition("[")[0] for one in mutants}
        assert killers == set(re.findall(r"`(test_\w+)`", told)), rule
    assert set(RULES) == {f"S{number}" for number in range(1, 20)}


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_every_mutant_is_caught() -> None:
    assert main([]) == 0


def test_the_page_names_what_is_run() -> None:
    assert Path(ROOT / "Makefile").read_text().count("proof.mutants") == 1
