"""The n-th statement or COMMIT of a run fails, for every n: with errors of Oracle's the outcome is
that of a run without an error, as on PostgreSQL when its server ends the session, and on MariaDB
and SQLite when the whole transaction is ended, with its savepoints."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any

import pytest

from msgworker import App
from msgworker.db import errors
from proof.oracle.ended import Ended
from proof.oracle.faults import Faults, Place, faults
from proof.oracle.trial import ACTS, KINDS, Kind, act, attempt
from tests.plugin import Database, _ready

LOST = ("ORA-03113", "ORA-12541", "ORA-01034", "ORA-25408", "DPY-4011")
AGAIN = ("ORA-00060", "ORA-01013", "ORA-08177")
CODES: dict[Place, tuple[str, ...]] = {
    "statement": LOST + AGAIN,
    "after statement": LOST,
    "before commit": (*LOST, "ORA-08177"),
    "after commit": LOST,
}
"""An answer is lost with its session only; a statement that fails by itself has no effect. Not
DPY-4024: an item of a fan-out that meets a time limit fails, by design; test_faults.py has it."""
PLACES: dict[str, tuple[Place, ...]] = {
    "oracle-mariadb": tuple(CODES),
    # Only a proxy can lose the answer to a COMMIT there: proof/crash does.
    "postgresql": ("statement", "after statement", "before commit"),
    "mariadb": ("statement",),
    "sqlite": ("statement",),
}
OPERATED = ("sqlite", "mariadb", "postgresql")
MOST = 200


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """An outage of one statement is over at once: to wait half a second for it proves no more."""
    monkeypatch.setattr(errors, "random", SimpleNamespace(uniform=lambda *_: 0.0))


@pytest.fixture
def on(request: Any, servers: Any, tmp_path: Any, scratch: Any) -> Iterator[Database]:
    yield from _ready(request.param, servers, tmp_path, scratch, effects=True)


def plan_of(database: Database, place: Place, nth: int, shift: int = 0) -> Any:
    """The codes take turns, so that over the kinds of handlers each meets many statements."""

    def plan(app: App) -> AbstractContextManager[Faults | Ended]:
        if database.name != "oracle":
            return Ended(app, place, nth).planned()
        codes = CODES[place]
        return faults.planned(codes[(nth + shift) % len(codes)], place, nth)

    return plan


@pytest.mark.long
@pytest.mark.parametrize(
    ("on", "place"),
    [(name, place) for name, places in PLACES.items() for place in places],
    indirect=["on"],
)
@pytest.mark.parametrize("kind", KINDS)
def test_whichever_statement_of_a_run_fails_its_outcome_is_the_same(
    on: Database, kind: Kind, place: Place
) -> None:
    found: dict[int, list[str]] = {}
    for nth in range(1, MOST):
        reached, wrong = attempt(on.url, kind, plan_of(on, place, nth, KINDS.index(kind)))
        if wrong:
            found[nth] = wrong
        if not reached:
            break
    assert not reached
    assert nth > (8 if "commit" not in place else 3), "the run has hardly a statement"
    assert found == {}, "\n".join(f"{n}: {wrong}" for n, wrong in found.items())


@pytest.mark.long
@pytest.mark.parametrize(
    ("on", "place"),
    [(name, place) for name, places in PLACES.items() for place in places[-2:] if name in OPERATED],
    indirect=["on"],
)
@pytest.mark.parametrize("name", ACTS)
def test_whichever_statement_of_an_act_fails_it_is_done_once_and_told(
    on: Database, name: str, place: Place
) -> None:
    app, found = App(on.url), dict[int, list[str]]()
    expected = act(app, name, None)[2]
    for nth in range(1, MOST):
        reached, wrong, (said, at_the_end) = act(app, name, plan_of(on, place, nth))
        if at_the_end != expected[1]:
            wrong.append(f"at the end: {at_the_end}, not {expected[1]}")
        if said is not None and said != expected[0]:
            wrong.append(f"it has returned {said}, not {expected[0]}")
        if wrong:
            found[nth] = wrong
        if not reached:
            break
    assert not reached
    assert nth > 1
    assert found == {}, "\n".join(f"{n}: {wrong}" for n, wrong in found.items())


SOME: tuple[tuple[Kind, Place, int], ...] = (
    ("plain", "statement", 47),
    ("plain", "after commit", 8),
    ("transactional", "after statement", 44),
    ("transactional", "before commit", 10),
    ("transactional", "after commit", 10),
)


@pytest.mark.parametrize(("kind", "place", "nth"), SOME)
def test_one_failing_statement_changes_no_outcome(
    over_mariadb: Database, kind: Kind, place: Place, nth: int
) -> None:
    plan = plan_of(over_mariadb, place, nth, KINDS.index(kind))
    assert attempt(over_mariadb.url, kind, plan) == (True, [])


@pytest.mark.parametrize("code", ["ORA-00060", "ORA-03113"])
def test_what_a_drain_has_left_is_counted_again(over_mariadb: Database, code: str) -> None:
    def plan(app: App) -> AbstractContextManager[Faults]:
        return faults.planned(code, "statement", only=r"count\(\*\).*status IN \(0, 1\)")

    assert attempt(over_mariadb.url, "plain", plan) == (True, [])
