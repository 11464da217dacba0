"""Callers that put spans around handlers; they replace the plain ones if tracing is on.

A span begins when the handler is called and ends when its outcome is known. A try that fails before
its handler is called, as for a bad payload, has a span too; a message that is released unhandled
has none. A group has a span for each of its calls; it ends with the call, and gets its outcome when
that of the group is known.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from msgworker.instance.connections import carried
from msgworker.instance.running.batch import BatchCaller
from msgworker.instance.running.call import Caller
from msgworker.instance.running.gather import Batch
from msgworker.instance.running.handler import Handler
from msgworker.instance.running.in_flight import Execution, Lane
from msgworker.instance.running.outcome import Result
from msgworker.instance.state import Setup, Shared
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
class _Try:
    """The try that a thread runs. rows: its messages; span: of the try, once its handler is called;
    error: what the handler has raised; called: the ids of messages that it was called for; calls:
    of a group."""

    rows: Sequence[Row] = ()
    span: Span | None = None
    error: BaseException | None = None
    called: set[Any] = field(default_factory=set)
    calls: list[_Call] = field(default_factory=list)


class _OfThread(threading.local):
    """The try of each handler thread."""

    now = _Try()


class TracedCaller(Caller):
    """A Caller with spans."""

    def __init__(self, tracer: Tracer, setup: Setup, shared: Shared) -> None:
        super().__init__(setup, shared)
        self.tracer = tracer
        self._of_thread = _OfThread()

    def suits_loop(self, lane: Lane) -> bool:
        return False  # a span is that of a thread

    def begin(self, rows: Sequence[Row]) -> _Try:
        """Begin a try of these rows in this thread."""
        self._of_thread.now = begun = _Try(rows)
        return begun

    def handle(self, lane: Lane, loaded: Row | None = None) -> None:
        now, began = self.begin([lane.row]), time.time_ns()
        super().handle(lane, loaded)
        if now.span is not None:
            self.end(now, now.span, lane.result)
        elif lane.result is not None:
            self.uncalled(lane.row, lane.owner, lane.result, began)

    def call(self, handler: Handler, running: Execution, *arguments: Any) -> Any:
        now = self._of_thread.now
        if running.called is not None:
            return self._call_of_group(now, handler, running, arguments)
        if now.span is None:  # else it is called again, after a rollback
            rows, batch = now.rows, handler.batch is not None
            if batch:
                now.called = {message.msg_id for message in arguments[0]}
                rows = [row for row in rows if row.msg_id in now.called]
            attempt = running.row.tries + 1
            now.span = self._start(rows, attempt, running.owner, batch=batch)
        token = self.tracer.enter(now.span)
        now.error = None
        try:
            return super().call(handler, running, *arguments)
        except BaseException as error:
            now.error = carried(error)
            raise
        finally:
            self.tracer.leave(token)

    def _call_of_group(
        self, now: _Try, handler: Handler, running: Execution, arguments: tuple[Any, ...]
    ) -> Any:
        msg_id = running.called
        now.called.add(msg_id)
        span = self._start([row for row in now.rows if row.msg_id == msg_id], 1, running.owner)
        token, raised = self.tracer.enter(span), None
        try:
            return super().call(handler, running, *arguments)
        except BaseException as error:
            raised = carried(error)
            raise
        finally:
            self.tracer.leave(token)
            now.calls.append(_Call(msg_id, span, time.time_ns(), raised))

    def end(self, now: _Try, span: Span, result: Result | None) -> None:
        """End the span of a try. result: its outcome; None = it runs again, each message alone."""
        outcome = AGAIN if result is None else str(result.outcome)
        span.set_attribute("messaging.msgworker.outcome", outcome)
        if result is None or result.outcome not in GOOD:
            kind = outcome if now.error is None else kind_of(now.error)
            text = "each message runs alone" if result is None else result.error
            self.tracer.failed(span, kind, text or outcome)
        span.end()
        self.begin(())

    def end_calls(self, now: _Try, results: dict[Any, Result | None]) -> None:
        """End the spans of a group. results: by msg_id; None = it was rolled back and runs again.
        Of several calls for a message only the last one counts."""
        last = {call.msg_id: call for call in now.calls}
        for call in now.calls:
            result = results.get(call.msg_id) if last[call.msg_id] is call else None
            outcome = AGAIN if result is None else str(result.outcome)
            call.span.set_attribute("messaging.msgworker.outcome", outcome)
            if call.error is not None:
                text = "rolled back, each message runs alone"
                self.tracer.failed(call.span, kind_of(call.error), text)
            call.span.end(call.ended)
        self.begin(())

    def uncalled(self, row: Row, owner: str, result: Result, began: int | None = None) -> None:
        """A span for a message that has failed before its handler was called."""
        if result.outcome not in NOT_HANDLED:
            span = self._start([row], row.tries + 1, owner, began=began)
            self.end(_Try(), span, result)

    def _start(
        self,
        rows: Sequence[Row],
        attempt: int,
        owner: str,
        *,
        batch: bool = False,
        began: int | None = None,
    ) -> Span:
        return self.tracer.processing(
            topic_of(rows[0].topic if rows and rows[0].odd is None else None),
            [(row.msg_id, row.headers) for row in rows],
            attempt=attempt,
            instance_id=owner,
            batch=batch,
            began=began,
        )


class TracedBatchCaller(BatchCaller):
    """A BatchCaller with spans."""

    _caller: TracedCaller

    def _together(self, batch: Batch) -> None:
        caller, lanes = self._caller, batch.lanes
        rows = {lane: lane.taken() for lane in lanes}
        now = caller.begin([row for lane in lanes for row in rows[lane]])
        super()._together(batch)
        left = [lane for lane in lanes if rows[lane][0].msg_id not in now.called]
        if now.span is not None:
            caller.end(now, now.span, _worst([one.result for one in lanes if one not in left]))
        elif now.calls:
            caller.end_calls(now, {row.msg_id: one.result for one in lanes for row in rows[one]})
        for lane in left:
            if lane.result is not None:
                caller.uncalled(rows[lane][0], lane.owner, lane.result)


def _worst(results: Sequence[Result | None]) -> Result | None:
    """The result of a whole batch: None if messages run again, else a failure."""
    bad = [result for result in results if result is None or result.outcome not in GOOD]
    return bad[0] if bad else results[0]
