"""How long handlers run and messages wait, as counts by fixed bounds.

The bounds are the same in the history table and in the metrics, and never change: counts of several
instances and minutes are added up, and percentiles are computed from the sums.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence

RAN = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
"""Seconds of a handler: the upper bounds of the buckets; a last bucket has what is beyond."""
WAITED = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3600.0, 10_800.0)
"""Seconds between the sending of a message and its first start."""


def bucket(bounds: Sequence[float], seconds: float) -> int:
    """The place of the bucket; len(bounds) = beyond the last bound."""
    return bisect_left(bounds, seconds)


def percentile(bounds: Sequence[float], counts: Sequence[int], share: float) -> float | None:
    """The seconds within which this share of the measurements lies, None if there are none.

    Between two bounds it is interpolated, by their ratio; beyond the last bound, that bound is the
    answer: "at least".
    """
    rank = share * sum(counts)
    if rank <= 0:
        return None
    below = 0
    for place, count in enumerate(counts):
        if below + count >= rank and count:
            if place == len(bounds):
                return bounds[-1]
            part = (rank - below) / count
            if place == 0:
                return bounds[0] * part
            low, high = bounds[place - 1], bounds[place]
            return math.exp(math.log(low) + part * (math.log(high) - math.log(low)))
        below += count
    return bounds[-1]
