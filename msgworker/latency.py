"""How long handlers run and messages wait, as counts by fixed bounds.

The bounds are the same in the history table and in the metrics, and never change: counts of several
instances and minutes are added up, and percentiles are told from the sums: by the bound that
they do not exceed, as no more is known.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

RAN = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
"""Seconds of a handler: the upper bounds of the buckets; a last bucket has what is beyond."""
WAITED = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3600.0, 10_800.0)
"""Seconds between the sending of a message and its first start."""


def bucket(bounds: Sequence[float], seconds: float) -> int:
    """The place of the bucket; len(bounds) = beyond the last bound."""
    return bisect_left(bounds, seconds)


def percentile(bounds: Sequence[float], counts: Sequence[int], share: float) -> float | None:
    """The least of the bounds within which this share of the measurements lies, None if there are
    none. If it lies beyond the next-to-last bound, the last one is the answer, and it is none: all
    that is known is that it is more than the one before (`beyond`)."""
    rank = share * sum(counts)
    if rank <= 0:
        return None
    reached = (n for n, below in enumerate(accumulate(counts)) if below >= rank)
    return bounds[min(next(reached, len(bounds)), len(bounds) - 1)]


def beyond(bounds: Sequence[float], seconds: float) -> float | None:
    """What a percentile is more than, if it has no upper bound."""
    return bounds[-2] if seconds >= bounds[-1] else None
