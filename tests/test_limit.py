"""The arithmetic of limits: what is given, and the bucket of a rate."""

from __future__ import annotations

import random

import pytest

from msgworker.errors import ConfigError
from msgworker.limit import Limit, limit_of

S = 1_000_000  # microseconds


@pytest.mark.parametrize(
    ("rate", "burst", "expected"),
    [
        ("20/s", None, Limit(None, 20, 1, 20)),
        ("100/m", None, Limit(None, 100, 60, 100)),
        ("5000/h", 1, Limit(None, 5000, 3600, 1)),
        (" 1 / h ", None, Limit(None, 1, 3600, 1)),
    ],
)
def test_a_rate_is_read_with_its_bucket(rate, burst, expected):
    limit = limit_of("t", rate=rate, burst=burst)
    assert limit == expected
    assert limit.rate == rate.replace(" ", "")


def test_no_limit_is_none():
    assert limit_of("t") is None
    assert str(limit_of("t", 4, "20/s")) == "max_running=4 rate=20/s burst=20"


@pytest.mark.parametrize(
    "given",
    [
        {"max_running": 0},
        {"max_running": 4.0},
        {"max_running": True},
        {"max_running": 10_001},
        {"rate": "0/s"},
        {"rate": "20"},
        {"rate": 20},
        {"rate": "20/d"},
        {"rate": "-1/s"},
        {"rate": "1.5/s"},
        {"rate": "20/s", "burst": 0},
        {"rate": "100001/s"},
        {"burst": 5},
        {"max_running": 4, "burst": 5},
    ],
    ids=str,
)
def test_what_is_no_limit_is_refused(given):
    with pytest.raises(ConfigError, match=r"(of|starts .*) t |t: burst"):
        limit_of("t", **given)


def test_a_rate_of_thousands_of_digits_is_refused_as_any_other():
    with pytest.raises(ConfigError, match="rate of topic t"):
        limit_of("topic t", rate="9" * 5000 + "/s")


@pytest.mark.parametrize("rate", ["20/s", "3/s", "7/m", "1/h", "100000/s"])
@pytest.mark.parametrize("burst", [1, 5, None])
def test_no_more_start_than_the_bucket_holds_and_the_rate_fills(rate, burst):
    """However the tries come, and in what portions."""
    limit, rng = limit_of("t", rate=rate, burst=burst), random.Random(f"{rate} {burst}")
    now = begin = 1_790_000_000 * S
    full_us, count = 0, 0
    for _ in range(2000):
        took = min(limit.tokens(full_us, now), rng.randint(1, 30))
        if took:
            full_us, count = limit.taken(full_us, now, took), count + took
        most = limit.burst + (now - begin) * limit.starts / (limit.seconds * S)
        assert count <= most + 1e-6
        now += rng.randint(0, 2 * limit.seconds * S // limit.starts)
    assert count >= 0.4 * (now - begin) * limit.starts / (limit.seconds * S)


def test_who_tries_in_time_gets_the_whole_rate():
    limit = limit_of("t", rate="20/s")
    now, full_us, count = 1000 * S, 0, 0
    for _ in range(1000):  # for 100 s
        took = limit.tokens(full_us, now)
        full_us, count, now = limit.taken(full_us, now, took), count + took, now + S // 10
    assert count == 20 + 2000 - 2  # the bucket that was full, and 99.9 s of the rate


@pytest.mark.parametrize("rate", ["20/s", "7/m", "1/h"])
def test_the_next_token_comes_when_it_was_said(rate):
    limit = limit_of("t", rate=rate)
    now = 5000 * S
    full_us = limit.taken(0, now, limit.burst)
    seconds = limit.next_in(full_us, now)
    assert seconds == pytest.approx(limit.seconds / limit.starts, rel=0.01)
    assert limit.tokens(full_us, now + int(seconds * S) - 2) == 0
    assert limit.tokens(full_us, now + int(seconds * S) + 2) == 1


def test_a_clock_that_was_set_back_does_not_stop_a_topic():
    limit = limit_of("t", rate="20/s")
    full_us = limit.taken(0, 90_000 * S, 20)
    now = 5000 * S
    assert limit.tokens(full_us, now) == 1
    full_us = limit.taken(full_us, now, 1)
    assert limit.tokens(full_us, now) == 0
    assert limit.next_in(full_us, now) <= 0.06


def test_without_a_rate_any_number_may_start():
    limit = limit_of("t", max_running=1)
    assert limit.tokens(0, 5) > 1000
    assert limit.taken(7, 5, 3) == 7
    assert limit.rate is None
