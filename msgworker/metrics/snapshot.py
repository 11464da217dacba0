"""Counts as plain values, which go through a pipe as JSON and can be added up.

A process that was killed leaves its last snapshot: its counters count on (`past`), so that no sum
ever falls; its gauges are gone with it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgworker.metrics.names import METRICS

Key = tuple[str, tuple[str, ...]]
"""A name and the values of its labels."""
Histogram = tuple[float, list[int]]
"""The sum, and a count for each bucket, the last one beyond all bounds."""
Snapshot = dict[Key, float | Histogram]


def packed(snapshot: Snapshot) -> list[Any]:
    """As JSON takes it."""
    return [[name, list(labels), value] for (name, labels), value in snapshot.items()]


def unpacked(packed: Iterable[Any]) -> Snapshot:
    """The reverse; metrics that are not known here are left out."""
    found: Snapshot = {}
    for name, labels, value in packed:
        if name in METRICS:
            many = isinstance(value, list)
            found[name, tuple(labels)] = (value[0], value[1]) if many else value
    return found


def summed(snapshots: Iterable[Snapshot]) -> Snapshot:
    """Several processes as one."""
    total: Snapshot = {}
    for snapshot in snapshots:
        for key, value in snapshot.items():
            before = total.get(key)
            if before is None:
                total[key] = value
            elif isinstance(value, tuple) and isinstance(before, tuple):
                both = [a + b for a, b in zip(before[1], value[1], strict=True)]
                total[key] = (before[0] + value[0], both)
            elif not isinstance(value, tuple) and not isinstance(before, tuple):
                least = METRICS[key[0]].joined == "min"
                total[key] = min(before, value) if least else before + value
    return total


def past(snapshot: Snapshot) -> Snapshot:
    """What stays of a process that has ended."""
    return {key: value for key, value in snapshot.items() if METRICS[key[0]].kind != "gauge"}
