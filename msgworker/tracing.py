"""Traces: spans of OpenTelemetry for messages that are sent and handled; the extra `otel`.

The API of OpenTelemetry is imported by `tracer(True)`, and by nothing else; which SDK takes the
spans is up to the program. The context travels with the message in its column headers, as W3C trace
context in JSON, whatever the propagators of the program: baggage may hold secrets, and a database
keeps them. A consumer span is linked to the span of the producer: a message may wait for days, and
a batch has many producers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from msgworker.errors import ConfigError
from msgworker.logs import logger
from msgworker.payload import clean

if TYPE_CHECKING:
    from opentelemetry.trace import Link, Span

log = logger("msgworker.app")
MAX_NAME = 200
TRACEPARENT = re.compile(
    "(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?"
)


class Sending:
    """The sending of messages as a context manager, which without tracing does nothing."""

    def __enter__(self) -> Sending:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        pass

    def carry(self, rows: Sequence[dict[str, Any]], most: int) -> None:
        """Add headers of at most `most` characters to the values of new rows."""

    def sent(self, *, msg_id: Any = None, count: int | None = None) -> None:
        """This message was sent, or so many."""

    def drop(self) -> None:
        """Nothing was to be sent: there is no span."""


_NOTHING = Sending()


class NoTracer:
    """Makes no spans."""

    on = False

    def sending(self, topic: str) -> Sending:
        """The sending of one or more messages of a topic."""
        return _NOTHING

    def around_items(self, topic: str, fn: Callable[..., Any]) -> Callable[..., Any]:
        """The function of a fan-out, with a span for each call."""
        return fn


UNTRACED = NoTracer()


def tracer(on: bool, server: Callable[[], Mapping[str, Any]] = dict) -> NoTracer:
    """What makes spans, if tracing is on. server: attributes of all spans, which say where the
    messages are. Raises ConfigError if OpenTelemetry is missing."""
    if not on:
        return UNTRACED
    try:
        return Tracer(server())
    except ImportError:
        raise ConfigError(
            "tracing needs opentelemetry-api: pip install 'msgworker[otel]', or set tracing to "
            "false"
        ) from None


class Tracer(NoTracer):
    """Makes spans by the semantic conventions for messaging, with the tracer provider that the
    program has set."""

    on = True

    def __init__(self, server: Mapping[str, Any] | None = None) -> None:
        from opentelemetry import context, trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._trace = trace
        self._context = context
        self._w3c = TraceContextTextMapPropagator()
        self._tracer = trace.get_tracer("msgworker")
        self._server = dict(server or {})

    def sending(self, topic: str) -> Sending:
        topic = clean(str(topic), MAX_NAME)
        span = self._tracer.start_span(
            f"send {topic}",
            kind=self._trace.SpanKind.PRODUCER,
            attributes=self._attributes(topic, "send"),
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
        topic = clean(topic, MAX_NAME)
        attributes = self._attributes(topic, "process")
        attributes["messaging.client.id"] = instance_id
        attributes["messaging.msgworker.try"] = attempt
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

    def around_items(self, topic: str, fn: Callable[..., Any]) -> Callable[..., Any]:
        return _Items(self, clean(topic, MAX_NAME), fn)

    def item(self, topic: str, within: Any) -> Span:
        """Start the span of an item of a fan-out, in the context of its handler."""
        return self._tracer.start_span(
            f"item {topic}",
            context=within,
            attributes={"messaging.system": "msgworker", "messaging.destination.name": topic},
        )

    def _attributes(self, topic: str, operation: str) -> dict[str, Any]:
        return self._server | {
            "messaging.system": "msgworker",
            "messaging.destination.name": topic,
            "messaging.operation.name": operation,
            "messaging.operation.type": operation,
        }

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

    def headers(self, span: Span, most: int) -> str | None:
        """The context of a span as JSON text; None if there is none, because no SDK is set up, or
        if it is longer than `most` characters."""
        if most == 0:
            return None
        carrier: dict[str, str] = {}
        self._w3c.inject(carrier, context=self._trace.set_span_in_context(span))
        while carrier:
            text = json.dumps(carrier, separators=(",", ":"))
            if len(text) <= most:
                return text
            carrier.popitem()  # without the tracestate, which comes last
        return None

    def current(self) -> Any:
        """The context of this thread."""
        return self._context.get_current()

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
    def __init__(self, tracer: Tracer, span: Span) -> None:
        self._tracer = tracer
        self._span: Span | None = span

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if self._span is None:
            return
        if error is not None:
            # Without the text: that of a database may hold values of the row.
            self._tracer.failed(self._span, kind_of(error), "not sent")
        self._span.end()

    def carry(self, rows: Sequence[dict[str, Any]], most: int) -> None:
        headers = None if self._span is None else self._tracer.headers(self._span, most)
        if headers is not None:
            for row in rows:
                row["b_headers"] = headers

    def sent(self, *, msg_id: Any = None, count: int | None = None) -> None:
        if self._span is None:
            return
        if count is not None:
            self._span.set_attribute("messaging.batch.message_count", count)
        if msg_id is not None:
            self._span.set_attribute("messaging.message.id", str(msg_id))

    def drop(self) -> None:
        self._span = None  # a span that does not end is not exported


class _Items:
    """The function of a fan-out with a span for each call, on whatever thread.

    Pickled, it is the function alone: another process has its own tracer provider, or none.
    """

    def __init__(self, tracer: Tracer, topic: str, fn: Callable[..., Any]) -> None:
        self._tracer = tracer
        self._topic = topic
        self._fn = fn
        self._within = tracer.current()

    def __call__(self, *arguments: Any) -> Any:
        tracer = self._tracer
        span = tracer.item(self._topic, self._within)
        token = tracer.enter(span)
        try:
            return self._fn(*arguments)
        except BaseException as error:
            tracer.failed(span, kind_of(error), "the item has failed")
            raise
        finally:
            tracer.leave(token)
            span.end()

    def __reduce__(self) -> tuple[Any, ...]:
        return partial, (self._fn,)


def kind_of(error: BaseException) -> str:
    """The name of its class, with its module."""
    kind = type(error)
    place = kind.__module__
    return kind.__qualname__ if place == "builtins" else f"{place}.{kind.__qualname__}"


def trace_id_of(headers: str) -> str | None:
    """The trace that headers carry, 32 hexadecimal digits; None if they hold no traceparent."""
    found = TRACEPARENT.fullmatch(_carrier(headers).get("traceparent", ""))
    return None if found is None else found[1]


def _carrier(headers: Any) -> dict[str, str]:
    """The texts of a JSON object, with their keys in lower case; what is no such one is empty."""
    try:
        found = json.loads(headers)
    except (TypeError, ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {key.lower(): text for key, text in found.items() if isinstance(text, str)}
