"""Traces: spans of OpenTelemetry for messages that are sent and handled; the extra `otel`.

The API of OpenTelemetry is imported by `tracer(True)`, and by nothing else; which SDK takes the
spans is up to the program. The context travels with the message in its column headers, as W3C trace
context in JSON. A consumer span is linked to the span of the producer: a message may wait for
days, and a batch has many producers.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from msgworker.errors import ConfigError
from msgworker.logs import logger

if TYPE_CHECKING:
    from opentelemetry.trace import Link, Span

log = logger("msgworker.app")


class Headed(Protocol):
    """A message table. header_room: how many characters of headers it takes."""

    @property
    def header_room(self) -> int: ...


class Sending:
    """The sending of messages as a context manager, which without tracing does nothing."""

    def __enter__(self) -> Sending:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        pass

    def carry(self, row: dict[str, Any], into: Headed) -> None:
        """Add the headers to the values of a new row."""

    def carry_all(self, rows: Sequence[dict[str, Any]], into: Headed) -> None:
        """The same for several."""

    def sent(self, *, msg_id: Any = None, count: int | None = None) -> None:
        """This message was sent, or so many."""


_NOTHING = Sending()


class NoTracer:
    """Makes no spans."""

    on = False

    def sending(self, topic: str) -> Sending:
        """The sending of one or more messages of a topic."""
        return _NOTHING


UNTRACED = NoTracer()


def tracer(on: bool) -> NoTracer:
    """What makes spans, if tracing is on. Raises ConfigError if OpenTelemetry is missing."""
    if not on:
        return UNTRACED
    try:
        return Tracer()
    except ImportError:
        raise ConfigError(
            "tracing needs opentelemetry-api: pip install 'msgworker[otel]', or set tracing to "
            "false"
        ) from None


class Tracer(NoTracer):
    """Makes spans by the semantic conventions for messaging, with the tracer provider that the
    program has set."""

    on = True

    def __init__(self) -> None:
        from opentelemetry import context, trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._trace = trace
        self._context = context
        self._w3c = TraceContextTextMapPropagator()
        self._tracer = trace.get_tracer("msgworker")

    def sending(self, topic: str) -> Sending:
        span = self._tracer.start_span(
            f"send {topic}",
            kind=self._trace.SpanKind.PRODUCER,
            attributes=_attributes(topic, "send"),
        )
        return _Sending(self, span)

    def processing(
        self,
        topic: str,
        messages: Sequence[tuple[Any, Any]],
        *,
        attempt: int,
        instance_id: str,
        batch: bool,
        began: int | None = None,
    ) -> Span:
        """Start the span of a try, in a trace of its own. messages: (msg_id, headers) of each.
        began: when, in nanoseconds since 1970; None = now."""
        attributes = _attributes(topic, "process")
        attributes["messaging.client.id"] = instance_id
        attributes["msgworker.try"] = attempt
        if batch:
            attributes["messaging.batch.message_count"] = len(messages)
        elif messages:
            attributes["messaging.message.id"] = str(messages[0][0])
        return self._tracer.start_span(
            f"process {topic}",
            context=self._context.Context(),
            kind=self._trace.SpanKind.CONSUMER,
            attributes=attributes,
            links=self._links(messages),
            start_time=began,
        )

    def _links(self, messages: Sequence[tuple[Any, Any]]) -> list[Link]:
        """Links to the spans of producers; those of one `send_many` have one."""
        links: dict[Any, Link] = {}
        for msg_id, headers in messages:
            if headers is None:
                continue
            empty = self._context.Context()
            found = self._w3c.extract(_carrier(headers), context=empty)
            of = self._trace.get_current_span(found).get_span_context()
            if not of.is_valid:
                log.debug("message %s: its headers hold no trace context", msg_id)
            elif (of.trace_id, of.span_id) not in links:
                links[of.trace_id, of.span_id] = self._trace.Link(of)
        return list(links.values())

    def headers(self, span: Span, room: int) -> str | None:
        """The context of a span as JSON text of at most `room` characters; None if there is none,
        because no SDK is set up, or no room."""
        carrier: dict[str, str] = {}
        self._w3c.inject(carrier, context=self._trace.set_span_in_context(span))
        while carrier:
            text = json.dumps(carrier, separators=(",", ":"))
            if len(text) <= room:
                return text
            carrier.popitem()  # without the tracestate, which comes last
        return None

    def enter(self, span: Span) -> Any:
        """Make it the current span of this thread; returns what `leave` takes."""
        return self._context.attach(self._trace.set_span_in_context(span))

    def leave(self, token: Any) -> None:
        self._context.detach(token)

    def failed(self, span: Span, kind: str, text: str) -> None:
        """The span has failed. kind: of the error, a class or an outcome."""
        span.set_attribute("error.type", kind)
        span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, text))


class _Sending(Sending):
    """With a span."""

    def __init__(self, tracer: Tracer, span: Span) -> None:
        self._tracer = tracer
        self._span = span

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is not None:
            # Without the text: that of a database may hold values of the row.
            self._tracer.failed(self._span, kind_of(error), "not sent")
        self._span.end()

    def carry(self, row: dict[str, Any], into: Headed) -> None:
        self.carry_all((row,), into)

    def carry_all(self, rows: Sequence[dict[str, Any]], into: Headed) -> None:
        headers = self._tracer.headers(self._span, into.header_room)
        if headers is not None:
            for row in rows:
                row["b_headers"] = headers

    def sent(self, *, msg_id: Any = None, count: int | None = None) -> None:
        if count is not None:
            self._span.set_attribute("messaging.batch.message_count", count)
        if msg_id is not None:
            self._span.set_attribute("messaging.message.id", str(msg_id))


def kind_of(error: BaseException) -> str:
    """The name of its class, with its module."""
    kind = type(error)
    place = kind.__module__
    return kind.__qualname__ if place == "builtins" else f"{place}.{kind.__qualname__}"


def _attributes(topic: str, operation: str) -> dict[str, Any]:
    return {
        "messaging.system": "msgworker",
        "messaging.destination.name": topic,
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
    }


def _carrier(headers: Any) -> dict[str, str]:
    """The texts of a JSON object, with their keys in lower case; what is no such one is empty."""
    try:
        found = json.loads(headers)
    except (TypeError, ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {key.lower(): text for key, text in found.items() if isinstance(text, str)}
