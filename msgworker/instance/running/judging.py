"""What a handler's return or exception becomes, by the options of the handler and of the App."""

from __future__ import annotations

import asyncio
import concurrent.futures
import time
from typing import Any

from msgworker.dialects import secrets_of, without
from msgworker.errors import HandlerTimeout
from msgworker.instance.fan_out.fence import Stopped
from msgworker.instance.running.backoff import Backoff
from msgworker.instance.running.hand import Running
from msgworker.instance.running.handler import Handler
from msgworker.instance.running.outcome import (
    DONE,
    Result,
    limited,
    result_of_error,
    result_of_return,
)
from msgworker.instance.running.traces import text_of
from msgworker.instance.runtime import Runtime
from msgworker.instance.usercode import carried, free_memory
from msgworker.message import Outcome
from msgworker.payload import clean
from msgworker.store.rows import Row

CANCELLED = (asyncio.CancelledError, concurrent.futures.CancelledError)


class Judge:
    """Used by the handler threads."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._backoff = Backoff(runtime.settings.backoff_seconds)
        self.secrets = secrets_of(runtime.engine.url)

    def returned(self, value: Any, handler: Handler, attempt: int) -> Result:
        return DONE if value is None else result_of_return(value, handler, attempt, self._backoff)

    def raised(
        self, error: BaseException, handler: Handler, row: Row, running: Running | None = None
    ) -> Result:
        error = carried(error)
        free_memory(error)
        kind = type(error)  # its own `__class__` may raise
        if issubclass(kind, KeyboardInterrupt):
            self.interrupted()
        if running is not None and running.stopped and issubclass(kind, CANCELLED):
            return Result(Outcome.RELEASED)
        if issubclass(kind, Stopped):
            return Result(Outcome.RELEASED)
        return result_of_error(error, handler, row.tries + 1, self._backoff)

    def of_error(self, error: BaseException, handler: Handler, row: Row) -> Result:
        """What is written for a message that failed with this error."""
        return self.written(self.raised(error, handler, row), handler, row)

    def interrupted(self) -> None:
        """A handler got KeyboardInterrupt: the instance stops."""
        self._runtime.stopping.set()

    def late(self, result: Result, handler: Handler, running: Running, row: Row) -> Result:
        """The result, or a failed try if it came after the timeout."""
        if result.outcome in (Outcome.DONE, Outcome.FAILED) and running.until is not None:
            took, raised = time.monotonic() - running.since, result.raised
            told = isinstance(raised, HandlerTimeout) or (handler.is_async and raised is None)
            if time.monotonic() > running.until and not told:
                text = f"timeout: the handler took {took:.1f} s, its limit is {handler.timeout:g} s"
                if raised is not None:
                    text += f"; then it raised {type(raised).__name__}: {text_of(raised)}"
                late = HandlerTimeout(text)
                late.__cause__ = raised
                return result_of_error(late, handler, row.tries + 1, self._backoff)
        return result

    def written(self, result: Result, handler: Handler, row: Row) -> Result:
        """What is written of it: RetryLater beyond its limit is a failed try, the handler may allow
        fewer tries than the table, and no text shows a password."""
        if result is DONE:
            return result
        if result.outcome is Outcome.LATER and self._worn_out(row):
            text = clean(f"RetryLater beyond later_limit, or without its columns; {result.error}")
            result = Result(Outcome.FAILED, text, result.delay_seconds)
        result = limited(result, handler, row.tries + 1, self._runtime.tables.spec.max_tries)
        if result.error is not None:
            result.error = without(result.error, self.secrets)
        if result.trace is not None:
            result.trace = without(result.trace, self.secrets)
        return result

    def _worn_out(self, row: Row) -> bool:
        """Whether RetryLater counts as a failure: beyond `later_limit`, or the table lacks
        the columns for it."""
        return not self._keeps_later() or row.later_times >= self._runtime.tables.spec.later_limit

    def _keeps_later(self) -> bool:
        tables = self._runtime.tables
        return tables.has("later_times") and tables.has("available_at")
