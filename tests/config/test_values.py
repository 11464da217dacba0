"""Texts that are durations, and texts that are none."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from msgworker.config import seconds
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


@given(st.text())
def test_no_text_breaks_the_reader_of_durations(text: str) -> None:
    with suppress(ConfigError):
        assert seconds("x", text) >= 0
