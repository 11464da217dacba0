"""The text of a scrape, and the HTTP server that answers it. Only this file needs
prometheus_client."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import accumulate
from typing import Any

from msgworker.errors import ConfigError
from msgworker.metrics import need
from msgworker.metrics.names import METRICS, Metric
from msgworker.metrics.snapshot import Histogram, Snapshot, summed

Source = Callable[[], Iterable[Snapshot]]
"""The snapshots of all processes at this moment."""


class Collector:
    """What prometheus_client asks for all metrics."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def collect(self) -> Iterator[Any]:
        """The families of all metrics, in the order of the documentation."""
        by_name: dict[str, list[tuple[tuple[str, ...], Any]]] = {name: [] for name in METRICS}
        for (name, labels), value in sorted(summed(self._source()).items(), key=lambda one: one[0]):
            by_name[name].append((labels, value))
        for name, metric in METRICS.items():
            yield _family(metric, by_name[name])

    def describe(self) -> Iterable[Any]:
        """Nothing: then it is not asked at its registration."""
        return ()


def _family(metric: Metric, samples: Iterable[tuple[tuple[str, ...], Any]]) -> Any:
    from prometheus_client import core

    made: Any
    if metric.kind == "histogram":
        made = core.HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
        for labels, value in samples:
            made.add_metric(labels, _buckets(metric, value), value[0])
        return made
    kind: Any = core.CounterMetricFamily if metric.kind == "counter" else core.GaugeMetricFamily
    made = kind(metric.name, metric.help, labels=metric.labels)
    for labels, value in samples:
        made.add_metric(labels, value)
    return made


def _buckets(metric: Metric, value: Histogram) -> list[tuple[str, int]]:
    bounds = [*(f"{bound:g}" for bound in metric.bounds), "+Inf"]
    return list(zip(bounds, accumulate(value[1]), strict=True))


def registry_of(source: Source) -> Any:
    """A registry of prometheus_client with all metrics of `source`. Raises ConfigError if the extra
    is not installed."""
    need()
    from prometheus_client import CollectorRegistry

    registry = CollectorRegistry()
    made: Any = Collector(source)
    registry.register(made)
    return registry


def text(source: Source, accept: str = "") -> tuple[bytes, str]:
    """The text of a scrape and its content type, as the client accepts it."""
    registry = registry_of(source)
    from prometheus_client.exposition import choose_encoder

    encode, kind = choose_encoder(accept)
    return encode(registry), kind


@contextmanager
def serving(source: Source, host: str, port: int) -> Iterator[int]:
    """Answer scrapes in a thread while the block runs; gives the port. Raises ConfigError if the
    address is taken or not ours."""
    registry = registry_of(source)
    from prometheus_client import start_http_server

    try:
        server, thread = start_http_server(port, addr=host, registry=registry)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"metrics cannot be served at {host}:{port}: {error}") from error
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5.0)
