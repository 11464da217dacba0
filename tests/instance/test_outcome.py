"""What becomes of a message after a try."""

from __future__ import annotations

import logging
import time
from typing import Any

import pytest

from msgworker import HandlerTimeout, Reject, RetryLater
from msgworker.instance.running.handler import Handler, make_handler
from msgworker.instance.running.outcome import Backoff, LoopEnded, OutcomePolicy, Result
from msgworker.instance.stop import Stop
from msgworker.message import Outcome, State, becomes
from msgworker.store.rows import Row

DONE, FAILED, DEAD, SPENT, LATER, RELEASED, CANCELLED = Outcome


@pytest.mark.parametrize(
    ("outcome", "tries", "allowed", "later", "written", "state"),
    [
        (DONE, 0, None, True, DONE, State.DONE),
        (DONE, 2, 1, False, DONE, State.DONE),
        (FAILED, 0, None, True, FAILED, State.FAILED),
        (FAILED, 1, None, True, FAILED, State.FAILED),
        (FAILED, 2, None, True, FAILED, State.DEAD),  # the last try of the table
        (FAILED, 7, None, True, FAILED, State.DEAD),  # the table allows fewer by now
        (FAILED, 0, 2, True, FAILED, State.FAILED),
        (FAILED, 1, 2, True, SPENT, State.DEAD),  # the last one of its handler
        (FAILED, 0, 1, True, SPENT, State.DEAD),
        (FAILED, 1, 1, True, SPENT, State.DEAD),  # a crash has counted one, or the code has changed
        (FAILED, 2, 3, True, FAILED, State.DEAD),
        (LATER, 0, None, True, LATER, State.NEW),
        (LATER, 1, None, True, LATER, State.FAILED),
        (LATER, 2, 1, True, LATER, State.FAILED),  # it counts no try
        (LATER, 0, None, False, FAILED, State.FAILED),  # too often: a failed try
        (LATER, 2, None, False, FAILED, State.DEAD),
        (LATER, 0, 1, False, SPENT, State.DEAD),
        (RELEASED, 0, 1, True, RELEASED, State.NEW),
        (RELEASED, 2, 1, False, RELEASED, State.FAILED),
        (DEAD, 0, None, True, DEAD, State.DEAD),
        (SPENT, 0, None, True, SPENT, State.DEAD),
        (CANCELLED, 0, None, True, CANCELLED, State.DEAD),
    ],
)
def test_what_is_written_for_a_try_and_what_its_message_is_then(
    outcome: Outcome, tries: int, allowed: int | None, later: bool, written: Outcome, state: State
) -> None:
    found = becomes(outcome, tries, max_tries=3, allowed=allowed, later=later)
    assert found == (written, state)


def row(*, tries: int = 0, later_times: int = 0) -> Row:
    return Row(1, "a", "t", None, tries, 0, later_times, None, None)


def handler(**options: Any) -> Handler:
    return make_handler("t", lambda msg, ctx: None, **options)


@pytest.fixture
def policy() -> OutcomePolicy:
    return OutcomePolicy(Backoff(20.0), secrets=set(), max_tries=3, later_limit=2, stop=Stop())


@pytest.mark.parametrize(
    ("error", "stopped", "outcome"),
    [
        (ValueError("x"), False, FAILED),
        (ValueError("x"), True, RELEASED),  # whatever follows from the stop
        (Reject("x"), True, DEAD),
        (RetryLater(5), True, RELEASED),
        (LoopEnded(), False, RELEASED),
        (KeyboardInterrupt(), False, FAILED),
    ],
)
def test_what_a_stop_has_caused_counts_as_no_try(policy, error, stopped, outcome):
    assert policy.raised(error, handler(), row(), stopped=stopped).outcome is outcome


@pytest.mark.parametrize(
    "wait", [lambda _: 1 / 0, lambda _: "soon", lambda _: 31 * 86_400.0, lambda _: float("nan")]
)
def test_a_wait_strategy_that_fails_is_named_and_costs_a_minute(policy, caplog, wait):
    with caplog.at_level(logging.ERROR, "msgworker.handling"):
        result = policy.raised(ValueError("x"), handler(wait=wait), row())
    assert (result.outcome, result.delay_seconds) == (FAILED, 60.0)
    assert result.error.startswith("ValueError: x")
    assert "the wait strategy of topic t failed; 60 s instead" in caplog.text


def test_the_wait_of_what_no_handler_can_say_is_that_of_the_app(policy):
    result = policy.unsent("refused", ValueError("x"), None, row(tries=1))
    assert 100 <= result.delay_seconds <= 125


@pytest.mark.parametrize(("times", "written"), [(0, LATER), (1, LATER), (2, FAILED), (3, FAILED)])
def test_a_message_is_postponed_as_often_as_the_limit_says(policy, times, written):
    asked = policy.raised(RetryLater(5), handler(), row())
    assert policy.written(asked, handler(), row(later_times=times)).outcome is written


async def a_coroutine(msg: object, ctx: object) -> None: ...


@pytest.mark.parametrize(
    ("result", "function", "text"),
    [
        (Result(DONE), None, "timeout: the handler took 9.0 s, its limit is 5 s"),
        (
            Result(FAILED, "x", raised=ValueError("no IBAN")),
            None,
            "its limit is 5 s; then it raised ValueError: no IBAN",
        ),
        # Reported by then: a handler that its own deadline has ended, and an async one.
        (Result(FAILED, "x", raised=HandlerTimeout("x")), None, None),
        (Result(DONE), a_coroutine, None),
        (Result(FAILED, "x", raised=ValueError("x")), a_coroutine, "then it raised ValueError: x"),
        (Result(DEAD, "rejected: x"), None, None),
        (Result(LATER, "x"), None, None),
    ],
)
def test_what_ends_after_its_timeout_is_a_failed_try_which_says_so(policy, result, function, text):
    of = handler(timeout=5) if function is None else make_handler("t", function, timeout=5)
    now = time.monotonic()
    assert policy.late(result, of, row(), since=now - 9, until=now + 60) is result
    assert policy.late(result, of, row(), since=now - 9, until=None) is result
    found = policy.late(result, of, row(), since=now - 9, until=now - 4)
    if text is None:
        assert found is result
    else:
        assert found.outcome is FAILED
        assert found.error.startswith("HandlerTimeout: ")
        assert text in found.error
        assert found.delay_seconds >= 20
