"""Spans of OpenTelemetry, kept for the tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Spans:
    """The spans that have ended."""

    def __init__(self, exporter: InMemorySpanExporter) -> None:
        self._exporter = exporter

    def all(self) -> list[ReadableSpan]:
        return list(self._exporter.get_finished_spans())

    def of(self, kind: SpanKind) -> list[ReadableSpan]:
        return [span for span in self.all() if span.kind is kind]

    @property
    def sent(self) -> list[ReadableSpan]:
        return self.of(SpanKind.PRODUCER)

    @property
    def handled(self) -> list[ReadableSpan]:
        return self.of(SpanKind.CONSUMER)


@contextmanager
def recorded(patch: pytest.MonkeyPatch) -> Iterator[Spans]:
    """An SDK for the Apps that are made inside."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    patch.setattr(trace, "get_tracer", provider.get_tracer)
    yield Spans(exporter)
    provider.shutdown()


def linked(span: ReadableSpan) -> list[int]:
    """The spans that it is linked to."""
    return [link.context.span_id for link in span.links]


def ids(spans: list[ReadableSpan]) -> list[int]:
    return [span.context.span_id for span in spans]
