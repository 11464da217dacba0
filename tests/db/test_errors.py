"""What is sent, looked for and waited for until it is known what became of a commit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from msgworker.db import errors
from msgworker.db.errors import Failures, Fate, nothing, repeatable, until_known


class Rolled(Exception):
    """Rolled back: a deadlock."""


class Lost(Exception):
    """The connection was lost."""


class Bad(Exception):
    """No use to go on."""


def judge(error: BaseException, looking: bool) -> Fate:
    fates = {Rolled: Fate.AGAIN, Lost: Fate.UNKNOWN, Bad: Fate.RAISE}
    return fates[type(error)]


class Script:
    """Answers of the database in order; `told` is what was asked of it."""

    def __init__(self, *answers: Any, patience: int = 99) -> None:
        self.answers = list(answers)
        self.patience = patience
        self.told: list[str] = []

    def _next(self, what: str) -> Any:
        self.told.append(what)
        answer = self.answers.pop(0)
        if isinstance(answer, type):
            raise answer
        return answer

    def may_continue(self) -> bool:
        self.patience -= 1
        return self.patience >= 0

    def failed(self, error: BaseException) -> float:
        self.told.append(type(error).__name__)
        return 1.5

    def over(self) -> None:
        self.told.append("over")

    def run(self, **how: Any) -> Any:
        return until_known(
            lambda: self._next("send"),
            lambda: self._next("look"),
            self.may_continue,
            self,
            **({"judge": judge} | how),
        )


@pytest.fixture(autouse=True)
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long it has waited."""
    times: list[float] = []
    monkeypatch.setattr(errors.time, "sleep", times.append)
    return times


@pytest.mark.parametrize(
    ("answers", "told"),
    [
        (["a"], "send over"),
        ([Rolled, "a"], "send Rolled send over"),
        ([Rolled, Rolled, "a"], "send Rolled send Rolled send over"),
        ([Lost, "a"], "send Lost look over"),
        ([Lost, None, "a"], "send Lost look send over"),
        ([Lost, Lost, "a"], "send Lost look Lost look over"),
        # A look that was rolled back ends no doubt.
        ([Lost, Rolled, "a"], "send Lost look Rolled look over"),
        ([Lost, None, Rolled, "a"], "send Lost look send Rolled send over"),
        ([Lost, None, Lost, None, "a"], "send Lost look send Lost look send over"),
    ],
)
def test_nothing_is_sent_again_before_it_is_known_that_it_was_not_committed(
    answers: list[Any], told: str, slept: list[float]
) -> None:
    script = Script(*answers)
    assert script.run() == "a"
    assert " ".join(script.told) == told
    assert slept == [1.5] * sum(isinstance(one, type) for one in answers)


@pytest.mark.parametrize("before", [[], [Rolled], [Lost], [Lost, None]])
def test_what_is_of_no_use_is_raised_at_once(before: list[Any], slept: list[float]) -> None:
    with pytest.raises(Bad):
        Script(*before, Bad).run()
    assert len(slept) == len([one for one in before if one is not None])


@pytest.mark.parametrize("error", [Rolled, Lost])
def test_who_may_not_go_on_does_not_wait(error: type[Exception], slept: list[float]) -> None:
    script = Script(error, patience=0)
    assert script.run() is None
    assert script.told == ["send", error.__name__]
    assert slept == []


def test_before_it_is_sent_again_the_caller_may_end_it() -> None:
    ends: list[str | None] = [None, "ended"]
    script = Script(Lost, None, Rolled)
    assert script.run(before_again=lambda: ends.pop(0)) == "ended"
    assert script.told == ["send", "Lost", "look", "send", "Rolled"]


def test_what_the_caller_raises_then_is_not_judged() -> None:
    def gone() -> None:
        raise Lost

    script = Script(Rolled)
    with pytest.raises(Lost):
        script.run(before_again=gone)
    assert script.told == ["send", "Rolled"]


def database_error(**how: Any) -> sa.exc.DBAPIError:
    return sa.exc.DBAPIError("", {}, Exception("x"), **how)


@pytest.mark.parametrize(
    ("error", "usual", "of_reads"),
    [
        (lambda: database_error(connection_invalidated=True), Fate.UNKNOWN, Fate.AGAIN),
        (lambda: ValueError("x"), Fate.RAISE, Fate.RAISE),
    ],
)
def test_a_lost_connection_leaves_a_doubt_but_not_of_a_read(
    error: Callable[[], Exception], usual: Fate, of_reads: Fate
) -> None:
    assert errors.by_trouble(error(), False) is usual
    assert repeatable(error(), False) is of_reads


def test_a_read_is_sent_again_without_a_look(slept: list[float]) -> None:
    answers: list[Any] = [database_error(connection_invalidated=True), 7]
    failures = Failures()

    def read() -> int:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        assert failures.count == 1
        return int(answer)

    assert until_known(read, nothing, lambda: True, failures, judge=repeatable) == 7
    assert failures.count == 0
    assert len(slept) == 1
    assert 0.05 <= slept[0] <= 0.55
