"""The outcome of a handler's return value or exception, and the back-off before the next try."""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import json
import random
import time
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from msgworker import errors
from msgworker.config import BACKOFF_SECONDS
from msgworker.db.errors import lacks_memory, without
from msgworker.instance.connections import GROUPS, carried, free_memory
from msgworker.instance.running.handler import Handler
from msgworker.instance.running.traceback import home_of, place_of, text_of, trace_of, trim, where
from msgworker.instance.stop import Stop
from msgworker.logs import logger
from msgworker.message import LATER, SPENT, Outcome, Outgoing, becomes
from msgworker.payload import clean, decode
from msgworker.store.controls import Request
from msgworker.store.rows import Row
from msgworker.table.columns import MAX_ERROR

if TYPE_CHECKING:
    from tenacity.wait import wait_base

# --- The back-off before the next try.

BACKOFF_FACTOR = 5
LONGEST_BACKOFF_SECONDS = 480.0
"""Before the jitter, which makes it 600 s at most."""
JITTER = 0.25
MAX_BACKOFF_SECONDS = 30 * 86_400.0
"""The longest back-off of a user's strategy."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """The default back-off: `first` seconds after the first failed try (0 = at once), five times as
    long after each further one, plus up to a quarter at random, 600 s at most."""

    first: float = BACKOFF_SECONDS

    def __call__(self, attempt: int) -> float:
        """The seconds after the attempt-th failed try (from 1 on)."""
        plain = self.first * float(BACKOFF_FACTOR) ** min(attempt - 1, 100)
        return min(plain, LONGEST_BACKOFF_SECONDS) * random.uniform(1, 1 + JITTER)


def pause_after(wait: wait_base, attempt: int, error: BaseException) -> float:
    """The seconds that a tenacity wait strategy gives after the attempt-th failure (from 1 on)."""
    from tenacity import RetryCallState

    state = RetryCallState(retry_object=None, fn=None, args=(), kwargs={})  # type: ignore[arg-type]
    state.attempt_number = attempt
    state.set_exception((type(error), error, error.__traceback__))
    return max(float(wait(state)), 0.0)  # NaN stays NaN in this order, and is refused


# --- The outcome of a handler's return value or exception.
#
# Whatever a handler does, the result is one of the outcomes of message.py, and the thread
# survives. A handler that returns is done; every exception, BaseException included, is a failed
# try.

log = logger("msgworker.handling")
FAULTS_SHOWN = 5
ODD_BACKOFF_SECONDS = 60.0
"""The back-off where the wait strategy, or the error itself, raises."""


@dataclass(slots=True)
class Result:
    """The result of one try. error: the text for operators. trace: the traceback as text. raised:
    the error itself, until it is logged. sends: what the handler has sent, if it is done.
    has_items: it has begun a fan-out, if it is done."""

    outcome: Outcome
    error: str | None = None
    delay_seconds: float = 0.0
    trace: str | None = None
    raised: BaseException | None = None
    sends: tuple[Outgoing, ...] = ()
    has_items: bool = False


DONE = Result(Outcome.DONE)


def cancelled(request: Request) -> Result:
    """The result of a message that an operator cancels."""
    return Result(Outcome.CANCELLED, clean(request.text, MAX_ERROR))


class Described(errors.MsgworkerError):
    """An error of another process that cannot be made anew here, by its text."""


def describe(error: BaseException, home: str | None = None) -> str:
    """An exception as text for `last_error`: type, message, place; truncated, without NUL. Never
    fails. home: see `traceback.place_of`."""
    if type(error) is Described:
        return text_of(error)
    name = type(error).__name__
    try:
        found = place_of(error, home)
    except BaseException as odd:
        found = f"its place cannot be read: {type(odd).__name__}"
    place = clean(f" [{found}]", 300) if found else ""
    said = [text_of(error)]
    if len(parts := parts_of(error)) > 1:
        said += [f"{type(one).__name__}: {text_of(one)}" for one in parts[:FAULTS_SHOWN]]
    return clean(f"{name}: {'; '.join(said)}", MAX_ERROR - len(place) - 10) + place


def parts_of(error: BaseException) -> list[BaseException]:
    """The errors in a group, and in groups in it; of another error itself."""
    found: list[BaseException] = []
    left: deque[Any] = deque([error])
    while left:
        one = left.popleft()
        if type(one) in GROUPS:
            left.extendleft(reversed(one.exceptions))
        else:
            found.append(one)
    return found


def fault(error: BaseException, where: str = "") -> Result:
    """A failed try, for an error of ours."""
    text = f"{where}{type(error).__name__}: {text_of(error)}"
    delay = Backoff()(1) if lacks_memory(error) else ODD_BACKOFF_SECONDS
    return Result(Outcome.FAILED, clean(text, MAX_ERROR), delay)


def decisive(error: BaseException) -> BaseException:
    """Of a group the error that decides: the first Reject or else RetryLater if it holds nothing
    else; else the group, as any other error."""
    parts = parts_of(error)
    if not all([issubclass(type(one), errors.Reject | errors.RetryLater) for one in parts]):
        return error
    return next((one for one in parts if issubclass(type(one), errors.Reject)), parts[0])


class LoopEnded(asyncio.CancelledError):
    """The loop of an async handler ends: the handler does not go on, and no try is counted."""


CANCELLED = (asyncio.CancelledError, concurrent.futures.CancelledError)


class OutcomePolicy:
    """Turns what a handler returned or raised into the Result that is written, by the options of
    the handler, the App and the table. later_limit: how often a message may be postponed; 0 if the
    table lacks the columns for it."""

    def __init__(
        self, backoff: Backoff, *, secrets: set[str], max_tries: int, later_limit: int, stop: Stop
    ) -> None:
        self._backoff = backoff
        self.secrets = secrets
        self._max_tries = max_tries
        self._later_limit = later_limit
        self._stop = stop

    def returned(self, value: Any, handler: Handler, attempt: int) -> Result:
        """The outcome of a handler's return value."""
        if value is None:
            return DONE
        if isinstance(value, type) and issubclass(value, errors.Reject | errors.RetryLater):
            try:  # as `raise` does with a class
                raise value
            except BaseException as error:
                return self._judged(error, handler, attempt)
        if isinstance(value, errors.Reject | errors.RetryLater):
            return self._judged(value, handler, attempt)
        if inspect.iscoroutine(value) or inspect.isgenerator(value) or inspect.isasyncgen(value):
            if inspect.iscoroutine(value):
                value.close()
            text = (
                f"the handler returned a {type(value).__name__} that was never awaited; "
                "declare it `async def` or run it"
            )
        elif isinstance(value, concurrent.futures.Future | asyncio.Future):
            text = "the handler returned a future; wait for it inside the handler"
        else:
            _warn_return(handler, value)
            return DONE
        return self._judged(errors.HandlerMisuse(text), handler, attempt)

    def raised(
        self, error: BaseException, handler: Handler, row: Row, *, stopped: bool = False
    ) -> Result:
        """The outcome of an exception. stopped: see `is_of_a_stop`."""
        error = decisive(carried(error))
        free_memory(error)
        if self.is_of_a_stop(error, stopped=stopped):
            return Result(Outcome.RELEASED)
        return self._judged(error, handler, row.tries + 1)

    def is_of_a_stop(self, error: BaseException, *, stopped: bool) -> bool:
        """Whether it counts as no try. stopped: the stop has cancelled the task of the handler, or
        its fan-out was ended early: whatever follows from that, unless it is a Reject.
        KeyboardInterrupt requests a stop."""
        kind = type(error)  # its own `__class__` may raise
        if issubclass(kind, KeyboardInterrupt):
            self._stop.requested.set()
        return (stopped and not issubclass(kind, errors.Reject)) or issubclass(kind, LoopEnded)

    def _judged(self, error: BaseException, handler: Handler, attempt: int) -> Result:
        """Never fails, even if every attribute of the error raises."""
        try:
            return self._by_kind(error, handler, attempt)
        except BaseException as odd:
            return fault(odd, f"a {type(error).__name__} that cannot be described, ")

    def _by_kind(self, error: BaseException, handler: Handler, attempt: int) -> Result:
        home = home_of(handler.fn)
        if isinstance(error, errors.Reject):  # a subclass may not have called `Reject.__init__`
            text = clean(f"rejected: {text_of(getattr(error, 'reason', error))}")
            return Result(Outcome.DEAD, text, trace=where(error, home))
        if isinstance(error, errors.RetryLater):
            after = getattr(error, "after_seconds", None)
            most = errors.RETRY_LATER_MAX_SECONDS
            if not isinstance(after, int | float) or not 0 <= after <= most:
                after = errors.RETRY_LATER_SECONDS
            return Result(Outcome.LATER, clean(f"{LATER}{text_of(error)}"), float(after))
        trim(error, home)
        text, trace = describe(error, home), trace_of(error, home)
        if isinstance(error, errors.PayloadError):
            raised = error if trace else None  # raised before the handler ran: the text is enough
            return Result(Outcome.DEAD, text, trace=trace, raised=raised)
        delay = self._delay_after(error, handler, attempt)
        return Result(Outcome.FAILED, text, delay, trace, error)

    def _delay_after(self, error: BaseException, handler: Handler | None, attempt: int) -> float:
        """The seconds from the attempt-th failure to the next try: as the handler says, else as the
        App does."""
        wait = None if handler is None else handler.wait
        try:
            delay = self._backoff(attempt) if wait is None else pause_after(wait, attempt, error)
            if not 0 <= delay <= MAX_BACKOFF_SECONDS:
                raise errors.ConfigError(f"back-off of {delay!r} s")
        except BaseException as odd:
            if lacks_memory(odd):
                raise
            topic = None if handler is None else handler.topic
            log.exception("the wait strategy of topic %s failed; 60 s instead", topic)
            delay = ODD_BACKOFF_SECONDS
        return delay

    def late(
        self, result: Result, handler: Handler, row: Row, *, since: float, until: float | None
    ) -> Result:
        """The result, or a failed try if it came after `until` (monotonic)."""
        if result.outcome in (Outcome.DONE, Outcome.FAILED) and until is not None:
            took, raised = time.monotonic() - since, result.raised
            reported = isinstance(raised, errors.HandlerTimeout) or (
                handler.is_async and raised is None
            )
            if time.monotonic() > until and not reported:
                text = f"timeout: the handler took {took:.1f} s, its limit is {handler.timeout:g} s"
                if raised is not None:
                    text += f"; then it raised {type(raised).__name__}: {text_of(raised)}"
                late = errors.HandlerTimeout(text)
                late.__cause__ = raised
                return self._judged(late, handler, row.tries + 1)
        return result

    def written(self, result: Result, handler: Handler | None, row: Row) -> Result:
        """The result as it is written, see `becomes`; without passwords in its texts."""
        if result is DONE:
            return result
        allowed = None if handler is None else handler.max_tries
        later = row.later_times < self._later_limit
        was, most = result.outcome, self._max_tries
        outcome, _ = becomes(was, row.tries, max_tries=most, allowed=allowed, later=later)
        error = result.error
        if was is Outcome.LATER and outcome is not was:
            error = clean(f"RetryLater beyond later_limit, or without its columns; {error}")
        if outcome is Outcome.SPENT:
            why = SPENT.format(row.tries + 1, allowed)
            error = clean(error or "", MAX_ERROR - len(why)) + why
        result = replace(result, outcome=outcome, error=error)
        if result.error is not None:
            result.error = without(result.error, self.secrets)
        if result.trace is not None:
            result.trace = without(result.trace, self.secrets)
        return result

    def of_error(self, error: BaseException, handler: Handler, row: Row) -> Result:
        """What is written for a message that failed with this error."""
        return self.written(self.raised(error, handler, row), handler, row)

    def unsent(self, why: str, error: BaseException, handler: Handler | None, row: Row) -> Result:
        """What is written for a message that the database refuses to write as done."""
        delay = self._delay_after(error, handler, row.tries + 1)
        return self.written(Result(Outcome.FAILED, clean(why), delay), handler, row)


def _warn_return(handler: Handler, value: Any) -> None:
    if "return" not in handler.warned:
        handler.warned.append("return")
        meaning = "only None, Reject and RetryLater have a meaning"
        if handler.batch is not None:
            meaning = "and every message counts as done. To fail some: ctx.fail(message, error)"
        log.warning(
            "the handler of topic %s returned a %s; return values are ignored, %s",
            *(handler.topic, type(value).__name__, meaning),
        )


def payload_of(raw: Any, oversize: int | None, handler: Handler) -> Any:
    """The payload of a row as the handler's annotated type, as decoded JSON if it has none. Raises
    PayloadError if it is not strict JSON or does not fit."""
    payload = decode(raw, oversize)
    if handler.payload_type is None:
        return payload
    from pydantic import ValidationError

    try:
        if payload is None:
            return handler.payload_type.validate_python(None)
        # Validated as JSON, so that a text may be a date or a Decimal and a list a set, also for a
        # strict type.
        text = raw if isinstance(raw, str) else json.dumps(payload)
        return handler.payload_type.validate_json(text)
    except ValidationError as error:
        faults = [
            f"{'.'.join(map(str, one['loc'])) or 'payload':.100}: {one['msg']:.200}"
            for one in error.errors(include_url=False, include_input=False)
        ]
        more = len(faults) - FAULTS_SHOWN
        faults[FAULTS_SHOWN:] = [f"and {more} more"] if more > 0 else []
        text = "; ".join(faults)
        raise errors.PayloadError(f"the payload does not fit the handler's type: {text}") from None
