"""How values look, what is hidden of them, and the pictures."""

from __future__ import annotations

import itertools
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from msgworker.db.types import shortened
from msgworker.errors import ConfigError
from msgworker.web import charts, shown
from msgworker.web.shown import HIDDEN, Redaction
from tests.support.web import XSS, Page

NOON = [datetime(2026, 11, 25, hour, tzinfo=UTC) for hour in (12, 13)]
PAYLOAD = {
    "customer": {"name": "Ann", "card": "4111"},
    "items": [{"iban": "DE1", "n": 1}, {"iban": "DE2", "n": 2}],
    "deep": {"a": {"password": "x"}},
}


@pytest.mark.parametrize(
    ("path", "gone", "left"),
    [
        ("customer.card", ["4111"], ["Ann", "DE1"]),
        ("items.*.iban", ["DE1", "DE2"], ["4111"]),
        ("items.0.iban", ["DE1"], ["DE2"]),
        ("**.iban", ["DE1", "DE2"], ["Ann"]),
        ("**.password", ["x"], ["Ann"]),
        ("customer", ["Ann", "4111"], ["DE1"]),
        ("card", [], ["4111"]),
    ],
)
def test_a_payload_is_shown_without_what_redact_names(
    path: str, gone: list[str], left: list[str]
) -> None:
    text = shown.payload(PAYLOAD, Redaction.of([path]))
    assert [one for one in gone if f'"{one}"' in text] == []
    assert [one for one in left if f'"{one}"' not in text] == []
    assert PAYLOAD["customer"] == {"name": "Ann", "card": "4111"}


def test_what_a_callable_fails_on_is_hidden_whole() -> None:
    def broken(_: Any) -> Any:
        raise KeyError("customer")

    assert shown.payload(PAYLOAD, Redaction.of(broken)) == f'"{HIDDEN}"'


def test_a_payload_that_cannot_be_read_is_not_shown_where_something_is_hidden() -> None:
    text = '{"card": "4111"'
    assert "4111" in shown.payload(text, Redaction())
    assert "4111" not in shown.payload(text, Redaction.of(["card"]))


def test_a_name_that_no_path_can_have_is_no_link() -> None:
    href = shown.links(lambda page, query, **path: f"/topics/{path['name']}")["href"]
    assert href("topic", name="a/b.c") == ' href="/topics/a/b.c"'
    assert [href("topic", name=one) for one in ("", "..", "a/../b", "a\nb", "\udcff")] == [""] * 5


@pytest.mark.parametrize("path", ["", ".", "a..b", 3])
def test_a_path_of_redact_that_is_none_is_refused(path: Any) -> None:
    with pytest.raises(ConfigError, match="redact"):
        Redaction.of([path])


def test_a_text_is_cut_and_cannot_turn_the_line() -> None:
    assert shown.cut("x" * 300).startswith("x" * 200 + "…")
    assert shown.cut("x" * 201) == "x" * 200 + "… (201 characters)"
    assert shown.cut(shortened("x" * 3000)) == "x" * 200 + "…"  # not how many it has
    assert shown.cut("\u202eevil\x1b[31m") == "\\u202eevil\\x1b[31m"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "–"), (0.08, "80ms"), (1.94, "1.9s"), (372, "6m 12s"), (187_200, "2d 4h"), (-3, "0ms")],
)
def test_an_age_has_its_two_largest_units(seconds: float | None, text: str) -> None:
    assert shown.age(seconds) == text


@pytest.mark.parametrize(
    ("name", "seconds", "text"),
    [
        ("ran", None, "–"),
        ("ran", 0.3, "up to 300ms"),
        ("ran", 30.0, "up to 30s"),
        ("ran", 1000.0, "over 5m 0s"),
        ("waited", 3600.0, "up to 1h 0m"),
        ("waited", 10_800.0, "over 1h 0m"),
    ],
)
def test_a_percentile_is_told_as_the_bound_that_it_is(name: str, seconds: Any, text: str) -> None:
    assert shown.FILTERS[name](seconds) == text


@pytest.mark.parametrize("text", XSS)
def test_a_text_in_a_picture_stays_a_text(text: str) -> None:
    plain = Page(charts.states({"done": 3, "dead": 1}, title="a"))
    found = Page(charts.states({"done": 3, "dead": 1}, title=text))
    assert (found.shape, found.faults) == (plain.shape, [])


def test_a_picture_says_in_words_what_it_shows() -> None:
    text = charts.states({"done": 1_000_000, "dead": 1}, title="settle")
    assert "1,000,000 done, 1 dead" in Page(text).text
    assert 'class="dead"' in text
    assert "style=" not in text


def test_a_line_has_a_gap_where_nothing_is_known() -> None:
    text = charts.lines({"p50": [1, 2, None, 4, 5]}, title="t", about="a")
    assert str(text).count("<polyline") == 2


@pytest.mark.parametrize(
    ("seconds", "powers"),
    [
        ([], (-2, -1)),
        ([0.0], (-3, -2)),
        ([0.02, 20.0], (-2, 2)),
        ([1.0], (0, 1)),
        ([10.0], (1, 2)),
        ([1e-9, 1e6], (0, 6)),
    ],
)
def test_the_grid_of_a_latency_is_of_the_powers_of_ten_around_it(
    seconds: list[float], powers: tuple[int, int]
) -> None:
    assert charts.decades(seconds) == powers


def test_milliseconds_are_seen_beside_minutes() -> None:
    """Each is a step of a grid above what is ten times less."""
    found = Page(charts.lines({"p50": [0.01, 0.1], "p95": [1.0, 10.0]}, title="t", about="a"))
    points = [a["points"].split() for tag, a in found.elements if tag == "polyline"]
    heights = [float(one.split(",")[1]) for line in points for one in line]
    steps = [below - above for below, above in itertools.pairwise(heights)]
    assert steps == pytest.approx([(charts.TALL - charts.HEAD) / 3] * 3, abs=0.2)


def test_times_below_a_chart_are_in_utc_and_say_so() -> None:
    text = str(charts.bars({"done": [1, 2]}, title="t", about="a", ticks=NOON))
    assert 'data-at="2026-11-25T12:00:00Z">12:00 UTC<' in text


@pytest.mark.parametrize(
    ("value", "name", "text"),
    [
        (604800.0, "keep_done_seconds", "604,800 s (7d 0h)"),
        (20.0, "lease_seconds", "20 s"),
        (True, "web", "yes"),
        (None, "label", ""),
        (["a", "b"], "topics", "a, b"),
        (604800, "rows", "604800"),
    ],
)
def test_a_long_time_of_a_setting_is_told_in_days_too(value: Any, name: str, text: str) -> None:
    assert shown.setting(value, name) == text


def test_columns_are_stacked_up_to_the_top() -> None:
    found = Page(charts.bars({"done": [5, 0], "dead": [5, 0]}, title="t", about="a"))
    heights = [float(a["height"] or 0) for tag, a in found.elements if tag == "rect"]
    assert heights == [(charts.TALL - charts.HEAD) / 2] * 2
    assert Page(charts.bars({"done": []}, title="t", about="a")).faults == []


def test_a_chart_without_values_has_a_grid_of_numbers() -> None:
    found = Page(charts.bars({"done": [None, 0]}, title="t", about="a"))
    assert found.text.split() == ["0.5", "1"]


def test_an_instant_before_the_year_1000_has_four_digits() -> None:
    text = str(shown.instant(datetime(1, 2, 3, 4, 5, 6, 700, UTC)))
    assert text == (
        '<time datetime="0001-02-03T04:05:06Z" title="0001-02-03 04:05:06 UTC">'
        "0001-02-03 04:05:06 UTC</time>"
    )


def test_texts_and_dots_of_a_chart_are_not_stretched() -> None:
    """Only what is inside the inner picture is: at 390 px letters would be squeezed."""
    text = str(charts.lines({"p50": [1, None, 2, 3]}, title="t", about="a", ticks=NOON))
    begin = text.index('<svg width="100%"')
    inner = text[begin : text.index("</svg>", begin)]
    assert (
        text.count('preserveAspectRatio="none"') == inner.count('preserveAspectRatio="none"') == 1
    )
    assert "<polyline" in inner
    assert "<text" not in inner
    assert "<circle" not in inner
    assert text.count("<text") == 4  # of the grid two: 1 s and 10 s
    assert text.count("<circle") == 1


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "unknown"),
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1024**2 - 1, "1.0 MiB"),
        (1536 * 1024, "1.5 MiB"),
        (3 * 1024**3, "3.0 GiB"),
        (5000 * 1024**4, "5,000.0 TiB"),
    ],
)
def test_bytes_are_shown_with_binary_units(value: int | None, text: str) -> None:
    assert shown.size(value) == text


def test_a_count_of_one_is_told_in_the_singular() -> None:
    assert shown.FILTERS["plural"](1, "message") == "1 message"
    assert shown.FILTERS["plural"](0, "further lock", "is", "are") == "0 further locks are"
    assert shown.FILTERS["plural"](1, "further lock", "is", "are") == "1 further lock is"
    assert shown.FILTERS["plural"](2000, "message") == "2,000 messages"
    counted = re.compile(r"(?:number|length|left|count|changed|times) \}\} (?:further )?\w+s\b")
    for template in sorted((Path(shown.__file__).parent / "templates").iterdir()):
        assert counted.findall(template.read_text()) == [], template.name
