"""The calls of handlers with spans around them, in the place of the plain ones where tracing is on.

A span begins when the handler is called and ends when its outcome is known. A try whose handler
was not called, because its payload is none, has a span too; a message that is released unhandled
has none. A group has one for each of its calls.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from msgworker.instance.running.batchcall import BatchCaller
from msgworker.instance.running.calling import Caller
from msgworker.instance.running.gathering import Batch
from msgworker.instance.running.hand import Lane, Running
from msgworker.instance.running.handler import Handler
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


class _OfThread(threading.local):
    """What a handler thread is at. rows: those that are handled; span: of the try, once its handler
    is called; error: what that has raised."""

    rows: Sequence[Row] = ()
    span: Span | None = None
    error: BaseException | None = None


class TracedCaller(Caller):
    """A Caller with spans."""

    def __init__(self, tracer: Tracer, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.tracer = tracer
        self.now = _OfThread()

    def begin(self, rows: Sequence[Row]) -> None:
        """This thread handles these rows now."""
        self.now.rows, self.now.span, self.now.error = rows, None, None

    def handle(self, lane: Lane) -> None:
        self.begin([lane.row])
        began = time.time_ns()
        super().handle(lane)
        span, result, row = self.now.span, lane.result, lane.row
        if span is None:
            if result is None or result.outcome in NOT_HANDLED:
                return
            span = self._start(self.now.rows, row.tries + 1, lane.owner, began=began)
        self.end(span, result)

    def call(self, handler: Handler, running: Running, *arguments: Any) -> Any:
        now = self.now
        grouped = running.called is not None
        if grouped:
            rows = [row for row in now.rows if row.msg_id == running.called]
            span = self._start(rows, 1, running.owner)
        elif now.span is not None:  # called again, after a rollback
            span = now.span
        else:
            rows = now.rows
            batch = handler.batch is not None
            if batch:
                called = {message.msg_id for message in arguments[0]}
                rows = [row for row in rows if row.msg_id in called]
            attempt = running.row.tries + 1
            span = now.span = self._start(rows, attempt, running.owner, batch=batch)
        token = self.tracer.enter(span)
        now.error = None
        try:
            return super().call(handler, running, *arguments)
        except BaseException as error:
            now.error = error
            if grouped:
                self._fail(span, error)
            raise
        finally:
            self.tracer.leave(token)
            if grouped:
                span.end()

    def end(self, span: Span, result: Result | None) -> None:
        """End the span of a try. result: its outcome; None = it runs again, each message alone."""
        outcome = "again" if result is None else str(result.outcome)
        span.set_attribute("msgworker.outcome", outcome)
        if result is None or result.outcome not in GOOD:
            error = self.now.error
            kind = outcome if error is None else kind_of(error)
            text = "each message runs alone" if result is None else result.error
            self.tracer.failed(span, kind, text or outcome)
        span.end()
        self.begin(())

    def _fail(self, span: Span, error: BaseException) -> None:
        self.tracer.failed(span, kind_of(error), "rolled back, each message runs alone")

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

    def __init__(self, *arguments: Any, caller: TracedCaller, **options: Any) -> None:
        super().__init__(*arguments, caller=caller, **options)
        self._traced = caller

    def _together(self, batch: Batch) -> None:
        caller = self._traced
        caller.begin([row for lane in batch.lanes for row in lane.taken()])
        super()._together(batch)
        span = caller.now.span
        if span is not None:
            caller.end(span, _worst([lane.result for lane in batch.lanes]))


def _worst(results: Sequence[Result | None]) -> Result | None:
    """The result that tells of a whole batch: None if messages run again, else a failure."""
    bad = [result for result in results if result is None or result.outcome not in GOOD]
    return bad[0] if bad else results[0]
