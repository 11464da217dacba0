"""Buckets of durations and the percentiles told from them."""

from __future__ import annotations

import pytest

from msgworker.latency import RAN, WAITED, bucket, percentile


@pytest.mark.parametrize(
    ("seconds", "place"), [(0.0, 0), (0.001, 0), (0.0011, 1), (1.0, 6), (1000.0, 12), (1000.1, 13)]
)
def test_a_bucket_holds_what_is_up_to_its_bound(seconds, place):
    assert bucket(RAN, seconds) == place


@pytest.mark.parametrize("bounds", [RAN, WAITED])
def test_percentiles_lie_in_the_bucket_of_what_was_measured(bounds):
    for place, high in enumerate(bounds):
        counts = [0] * (len(bounds) + 1)
        counts[place] = 100
        low = bounds[place - 1] if place else 0.0
        for share in (0.01, 0.5, 0.95, 1.0):
            found = percentile(bounds, counts, share)
            assert found is not None
            assert low <= found <= high * 1.000001


@pytest.mark.parametrize(
    ("counts", "share", "least", "most"),
    [
        ({2: 50, 5: 50}, 0.5, 0.003, 0.01),
        ({2: 50, 5: 50}, 0.51, 0.1, 0.3),
        ({2: 95, 5: 5}, 0.95, 0.003, 0.01),
        ({2: 94, 5: 6}, 0.95, 0.1, 0.3),
        ({13: 1}, 0.5, 1000.0, 1000.0),
    ],
)
def test_a_percentile_is_where_its_share_ends(counts, share, least, most):
    found = percentile(RAN, [counts.get(i, 0) for i in range(len(RAN) + 1)], share)
    assert found is not None
    assert least <= found <= most * 1.000001


def test_nothing_measured_has_no_percentile():
    assert percentile(RAN, [0] * (len(RAN) + 1), 0.95) is None
