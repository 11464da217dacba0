"""Metrics for Prometheus, made from the events of instances; the extra `metrics`.

In the order of a number's life:

counting    all metrics; counts events of this process, as values that can be added up
exposition  what a scrape reads from the database, its text, and its HTTP server

Nothing of this is imported by `import msgworker`, and nothing is subscribed before it is asked for.
"""

from __future__ import annotations

from msgworker.errors import ConfigError


def need() -> None:
    """Raise ConfigError that names the extra, if prometheus_client cannot be imported."""
    from importlib.util import find_spec

    if find_spec("prometheus_client") is None:
        raise ConfigError("metrics need prometheus-client: pip install 'msgworker[metrics]'")
