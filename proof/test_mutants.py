"""Each mutant still applies and names tests that exist; each is caught."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from typing import Any

import pytest

from proof.mutants import DECIDING, MUTANTS, ROOT, Mutant, Unsound, caught, generated, run
from tests.names import homes, node_of
from tests.plugin import COLLECTED
from tests.servers import VARIABLES, CannotHave

GENERATED, SEED = 12, int(os.environ.get("MSGWORKER_TEST_SEED", "1"))
MOST_SURVIVE = 0.34
"""Some change nothing that can be seen: a test that counts each of these as a fault is no use."""
IDS = [mutant.name.replace(" ", "-") for mutant in MUTANTS]


@pytest.mark.parametrize("mutant", MUTANTS, ids=IDS)
def test_mutant_applies_exactly_once(mutant: Mutant) -> None:
    assert mutant.text() != (ROOT / "msgworker" / mutant.file).read_text()
    assert mutant.tests
    for test in mutant.tests:
        assert len(homes().get(test.partition("[")[0], ())) == 1, test


def test_each_test_that_a_mutant_names_is_there(request: pytest.FixtureRequest) -> None:
    """With its parameters, where their module is among those that were collected."""
    there = request.config.stash[COLLECTED]
    homes_of = {name.partition("[")[0] for name in there}
    named = {test for mutant in MUTANTS for test in mutant.tests}
    asked = {test for test in named if "[" in test and test.partition("[")[0] in homes_of}
    assert asked <= there


def test_a_text_that_is_gone_is_told() -> None:
    gone = Mutant("gone", "", "table/spec.py", "this stands nowhere", "", ())
    with pytest.raises(Unsound, match=r"0 times in table/spec\.py"):
        gone.text()


def test_each_promise_and_each_rule_has_mutants_and_no_name_comes_twice() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    by_part = defaultdict[str, set[str]](set)
    for mutant in MUTANTS:
        by_part[mutant.part.partition(" ")[0]] |= {test.partition("[")[0] for test in mutant.tests}
    assert by_part.keys() >= {f"P{number}" for number in range(1, 9)}
    told = dict(re.findall(r"^\| (S\d+) \|.*\|(.*)\|$", (ROOT / "SECURITY.md").read_text(), re.M))
    for rule, tests in told.items():
        assert by_part[rule], rule
        assert by_part[rule] <= set(re.findall(r"`(test_\w+)`", tests)), rule


@pytest.fixture
def known(servers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The servers of this run are those of the tests in a copy."""
    for name in ("postgresql", "mariadb"):
        try:
            monkeypatch.setenv(VARIABLES[name], servers.url(name))
        except CannotHave as reason:
            pytest.skip(f"{name} is not there: {reason}")


@pytest.mark.long
@pytest.mark.usefixtures("known")
@pytest.mark.parametrize("mutant", MUTANTS, ids=IDS)
def test_mutant_is_caught(mutant: Mutant) -> None:
    assert caught(mutant), f"{mutant.name} survived {', '.join(mutant.tests)}"


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("known")
@pytest.mark.parametrize("part", sorted({mutant.part for mutant in MUTANTS}))
def test_without_a_mutant_its_tests_pass_and_none_is_skipped(part: str) -> None:
    tests = {node_of(test) for mutant in MUTANTS if mutant.part == part for test in mutant.tests}
    code, output = run(sorted(tests), seconds=1500)
    assert code == 0, output[-3000:]
    assert " skipped" not in output, output[-3000:]


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("file", DECIDING)
def test_most_of_the_generated_mutants_are_caught(file: str) -> None:
    pytest.importorskip("cosmic_ray", reason="in the dependency group `proof`")
    made = list(generated(file, GENERATED, SEED))
    survivors = [mutant.name for mutant in made if not caught(mutant)]
    print(f"{len(made) - len(survivors)} of {len(made)} caught; survivors:", *survivors, sep="\n  ")
    assert len(survivors) <= MOST_SURVIVE * len(made), survivors
