"""The spans of handlers, if tracing is on.

A span begins when the handler is called and ends when its outcome is known. A try that fails before
its handler is called, as for a bad payload, has a span too; a message that is released unhandled
has none. A group has a span for each of its calls; it ends with the call, and gets its outcome when
that of the group is known.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from msgworker.instance.connections import carried
from msgworker.instance.running.handler import Handler
from msgworker.instance.running.in_flight import Execution, Lane
from msgworker.instance.running.outcome import Result
from msgworker.message import Outcome, topic_of
from msgworker.store.rows import Row
from msgworker.tracing import Tracer, kind_of

if TYPE_CHECKING:
    from opentelemetry.trace import Span

NOT_HANDLED = (Outcome.RELEASED, Outcome.CANCELLED)
"""The outcomes of messages whose handler was perhaps not called."""
GOOD = (Outcome.DONE, Outcome.LATER, Outcome.RELEASED)
"""The outcomes that are no failures."""
AGAIN = "again"
"""Instead of an outcome: the call was rolled back or has none, and the message runs again."""


@dataclass(slots=True)
class _Call:
    """A call of a group. ended: in nanoseconds since 1970."""

    msg_id: Any
    span: Span
    ended: int
    error: BaseException | None


@dataclass(slots=True)
class Try:
    """The try of a running handler. rows: its messages; span: once its handler is called; error:
    what it has raised; called: the ids of messages that it was called for; calls: of a group."""

    rows: Sequence[Row]
    span: Span | None = None
    error: BaseException | None = None
    called: set[Any] = field(default_factory=set)
    calls: list[_Call] = field(default_factory=list)


class _Within(AbstractContextManager[None]):
    """A call of a handler within a span. msg_id: of a call of a group, None = of a try."""

    def __init__(self, tracer: Tracer, tried: Try, span: Span, msg_id: Any = None) -> None:
        self._tracer = tracer
        self._tried = tried
        self._span = span
        self._msg_id = msg_id

    def __enter__(self) -> None:
        self._token = self._tracer.enter(self._span)

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._tracer.leave(self._token)
        raised = None if error is None else carried(error)
        if self._msg_id is None:
            self._tried.error = raised
        else:
            call = _Call(self._msg_id, self._span, time.time_ns(), raised)
            self._tried.calls.append(call)


class HandlerSpans:
    """Makes the spans of handlers; `Execution.tried` keeps them while the handler runs."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def call(
        self, handler: Handler, running: Execution, arguments: tuple[Any, ...]
    ) -> AbstractContextManager[None]:
        """The block calls the handler: within the span of its try, or of this call of a group."""
        if running.tried is None:
            running.tried = Try([running.row])
        tried, rows, msg_id = running.tried, running.tried.rows, running.called
        if msg_id is not None:
            tried.called.add(msg_id)
            rows = [row for row in rows if row.msg_id == msg_id]
            return _Within(self._tracer, tried, self._start(rows, 1, running.owner), msg_id)
        if tried.span is None:  # else it is called again, after a rollback
            batch = handler.batch is not None
            if batch:
                tried.called = {message.msg_id for message in arguments[0]}
                rows = [row for row in rows if row.msg_id in tried.called]
            attempt = running.row.tries + 1
            tried.span = self._start(rows, attempt, running.owner, batch=batch)
        return _Within(self._tracer, tried, tried.span)

    def end(self, running: Execution, result: Result) -> None:
        """The outcome of one message is known."""
        tried = running.tried
        if tried is not None and tried.span is not None:
            self._end(tried.span, tried.error, result)
        else:
            began = time.time_ns() - int((time.monotonic() - running.since) * 1e9)
            self.uncalled(running.row, running.owner, result, began)

    def end_batch(self, running: Execution, rows: Mapping[Lane, Sequence[Row]]) -> None:
        """The outcomes of a batch are known. rows: what it was to take of each lane."""
        tried, lanes = running.tried, list(rows)
        left = [lane for lane in lanes if rows[lane][0].msg_id not in tried.called]
        if tried.span is not None:
            handled = [one for one in lanes if one not in left]
            verdicts = [one.verdict for one in handled if one.verdict is not None]
            worst = _worst([*(one.result for one in handled), *verdicts])
            self._end(tried.span, tried.error, worst)
        elif tried.calls:
            self._end_calls(tried, {row.msg_id: one.result for one in lanes for row in rows[one]})
        for lane in left:
            if lane.result is not None:
                self.uncalled(rows[lane][0], lane.owner, lane.result)

    def uncalled(self, row: Row, owner: str, result: Result, began: int | None = None) -> None:
        """A span for a message that has failed before its handler was called."""
        if result.outcome not in NOT_HANDLED:
            self._end(self._start([row], row.tries + 1, owner, began=began), None, result)

    def _end(self, span: Span, error: BaseException | None, result: Result | None) -> None:
        """End the span of a try. result: its outcome; None = it runs again, each message alone."""
        outcome = AGAIN if result is None else str(result.outcome)
        span.set_attribute("messaging.msgworker.outcome", outcome)
        if result is None or result.outcome not in GOOD:
            kind = outcome if error is None else kind_of(error)
            text = "each message runs alone" if result is None else result.error
            self._tracer.failed(span, kind, text or outcome)
        span.end()

    def _end_calls(self, tried: Try, results: Mapping[Any, Result | None]) -> None:
        """End the spans of a group. results: by msg_id, of the last call for it; None = it was
        rolled back and runs again."""
        last = {call.msg_id: call for call in tried.calls}
        for call in tried.calls:
            result = results.get(call.msg_id) if last[call.msg_id] is call else None
            outcome = AGAIN if result is None else str(result.outcome)
            call.span.set_attribute("messaging.msgworker.outcome", outcome)
            if call.error is not None:
                text = "rolled back, each message runs alone"
                self._tracer.failed(call.span, kind_of(call.error), text)
            call.span.end(call.ended)

    def _start(
        self,
        rows: Sequence[Row],
        attempt: int,
        owner: str,
        *,
        batch: bool = False,
        began: int | None = None,
    ) -> Span:
        return self._tracer.processing(
            topic_of(rows[0].topic if rows and rows[0].odd is None else None),
            [(row.msg_id, row.headers) for row in rows],
            attempt=attempt,
            instance_id=owner,
            batch=batch,
            began=began,
        )


def _worst(results: Sequence[Result | None]) -> Result | None:
    """The result of a whole batch: None if messages run again, else a failure."""
    bad = [result for result in results if result is None or result.outcome not in GOOD]
    return bad[0] if bad else results[0]
