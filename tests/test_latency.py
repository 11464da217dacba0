"""Buckets of durations and the percentiles told from them."""

from __future__ import annotations

import pytest

from msgworker.latency import RAN, WAITED, beyond, bucket, percentile


@pytest.mark.parametrize(
    ("seconds", "place"), [(0.0, 0), (0.001, 0), (0.0011, 1), (1.0, 6), (1000.0, 12), (1000.1, 13)]
)
def test_a_bucket_holds_what_is_up_to_its_bound(seconds, place):
    assert bucket(RAN, seconds) == place


@pytest.mark.parametrize("bounds", [RAN, WAITED])
def test_percentiles_are_the_bound_that_what_was_measured_does_not_exceed(bounds):
    for place, high in enumerate(bounds):
        counts = [0] * (len(bounds) + 1)
        counts[place] = 100
        for share in (0.01, 0.5, 0.95, 1.0):
            assert percentile(bounds, counts, share) == high


@pytest.mark.parametrize("seconds", [0.0004, 0.2, 0.25, 12.0, 299.0])
def test_no_percentile_is_less_than_what_every_handler_took(seconds):
    counts = [0] * (len(RAN) + 1)
    counts[bucket(RAN, seconds)] = 40
    for share in (0.5, 0.95):
        found = percentile(RAN, counts, share)
        assert seconds <= found < 10 * seconds or found == RAN[0]
        assert beyond(RAN, found) is None


@pytest.mark.parametrize(
    ("counts", "share", "bound"),
    [
        ({2: 50, 5: 50}, 0.5, 0.01),
        ({2: 50, 5: 50}, 0.51, 0.3),
        ({2: 95, 5: 5}, 0.95, 0.01),
        ({2: 94, 5: 6}, 0.95, 0.3),
        ({12: 1}, 0.5, 1000.0),
        ({13: 1}, 0.5, 1000.0),
    ],
)
def test_a_percentile_is_where_its_share_ends(counts, share, bound):
    assert percentile(RAN, [counts.get(i, 0) for i in range(len(RAN) + 1)], share) == bound
    assert beyond(RAN, bound) == (300.0 if bound == 1000.0 else None)


def test_nothing_measured_has_no_percentile():
    assert percentile(RAN, [0] * (len(RAN) + 1), 0.95) is None
