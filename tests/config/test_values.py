"""Texts that are durations, and texts that are none."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from msgworker.config import as_id, as_instant, number, seconds, whole
from msgworker.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (30, 30),
        ("30", 30),
        ("30s", 30),
        ("25m", 1500),
        ("2h", 7200),
        ("30d", 2592000),
        (0.5, 0.5),
        ("500ms", 0.5),
        ("1.5h", 5400),
        (" 2 w ", 1209600),
    ],
)
def test_durations(text: Any, value: float) -> None:
    assert seconds("x", text) == value


@pytest.mark.parametrize(
    "text",
    ["", "m", "-1", "1e9", "1y", "1h30m", "٣", "inf", "nan", -1, True, None, "9" * 30, 1e300],
)
def test_what_is_no_duration(text: Any) -> None:
    with pytest.raises(ConfigError):
        seconds("x", text)


@pytest.mark.parametrize("check", [number, whole, seconds])
@pytest.mark.parametrize("value", [10**400, 10**5000, float("nan"), float("inf")], ids=range(4))
def test_a_number_beyond_all_ranges_is_refused_as_any_other(check: Any, value: Any) -> None:
    with pytest.raises(ConfigError, match="delay must be a"):
        check("delay", value, 0, 5)


def test_the_largest_number_is_named_as_it_is() -> None:
    with pytest.raises(ConfigError, match="from 1 to 9223372036854775807, got 0"):
        whole("after", 0, 1, 2**63 - 1)


@given(st.text())
def test_no_text_breaks_the_reader_of_durations(text: str) -> None:
    with suppress(ConfigError):
        assert seconds("x", text) >= 0


@pytest.mark.parametrize(
    ("text", "hour"),
    [("2026-11-22T13:00Z", 13), ("2026-11-22 13:00:00+02:00", 11), ("20261122T13Z", 13)],
)
def test_an_instant_has_its_zone(text: str, hour: int) -> None:
    found = as_instant(text, "since")
    assert (found, found and found.tzinfo) == (datetime(2026, 11, 22, hour, tzinfo=UTC), UTC)


@pytest.mark.parametrize("text", ["", "2h", "yesterday", "30", "13:00"])
def test_what_is_no_instant_is_none(text: str) -> None:
    assert as_instant(text, "since") is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("2026-11-22T13:00", "since needs its time zone, such as 2026-11-22T13:00:00Z; got"),
        ("2026-11-22", "since needs its time zone, such as 2026-11-22T00:00:00Z; got"),
        ("0001-01-01T00:00+01:00", "within the years 1 to 9999"),
        ("9999-12-31T23:59-01:00", "within the years 1 to 9999"),
    ],
)
def test_an_instant_that_is_none_of_one_moment_is_refused(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        as_instant(text, "since")


@pytest.mark.parametrize("text", ["0", "-1", "17", str(2**63 - 1), str(-(2**63))])
def test_an_id_is_read_from_a_text(text: str) -> None:
    assert as_id(text) == int(text)


@pytest.mark.parametrize(
    "text",
    ["", " 1", "1 ", "1\n", "+1", "1.0", "1_0", "0x1", "--1", "-", "\u0661", str(2**63), "9" * 20],
)
def test_what_is_no_id_of_64_bits_is_none(text: str) -> None:
    assert as_id(text) is None
