"""What makes two errors one failure."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from msgworker.store.tries import fingerprint, in_common, masked, unplaced

SAME = [
    ("ValueError: no account 17 [crm.py:9]", "ValueError: no account 4711 [crm.py:9]"),
    ("ValueError: no account 17 [crm.py:9]", "ValueError: no account 17 [crm.py:10]"),
    ("ValueError: x [crm.py:9 in post]", "ValueError: x [crm.py:117 in post]"),
    (
        "ItemsFailed: 1 of 9 items failed: 'a': ValueError: no [x.py:1 in f] [crm.py:9 in g]",
        "ItemsFailed: 7 of 8 items failed (2 held back behind them): 'b': ValueError: no "
        "[x.py:2 in f]; 'c': KeyError: 1; and 2 more [crm.py:9 in g]",
    ),
    ("KeyError: 'x' [a.py:1]", "KeyError: 'another one' [a.py:1]"),
    ("E: order C-1001 of bob@example.com", "E: order C-77 of eve@example.org"),
    ("E: at 0x7f00aa", "E: at 0x7fffbb"),
    ("E: 3f2b8a10-1111-4222-8333-444455556666", "E: 00000000-1111-4222-8333-444455556666"),
    ("E: 12.50 of 1,000", "E: 3.75 of 22,000"),
    ("E: Key (id)=(bob) exists", "E: Key (id)=(eve) exists"),
    ("instance a-1-ab3 died while", "instance b-22-cd4 died while"),
    ("E:  two\n lines 1", "E: two lines 2"),
]
OTHER = [
    ("ValueError: no account 17 [crm.py:9]", "ValueError: no account 17 [bill.py:9]"),
    ("ValueError: x [crm.py:9 in post]", "ValueError: x [crm.py:9 in settle]"),
    ("ValueError: x [crm.py:9]", "KeyError: x [crm.py:9]"),
    ("Http404Error: gone", "Http500Error: gone"),
    ("E: ORA-00001 broken", "E: ORA-00942 broken"),
    ("E: don't read it", "E: don't write it"),
    ("E: no account", "E: no contract"),
]


@pytest.mark.parametrize(("one", "two"), SAME)
def test_ids_numbers_and_quoted_values_make_no_difference(one: str, two: str) -> None:
    assert masked(one) == masked(two)
    assert fingerprint(one) == fingerprint(two)


@pytest.mark.parametrize(("one", "two"), OTHER)
def test_type_place_and_words_do(one: str, two: str) -> None:
    assert fingerprint(one) != fingerprint(two)


def test_the_masked_text_is_for_people() -> None:
    text = "ValueError: no account 4711 of 'B 12' at don't [crm.py:9 in post]"
    assert masked(text) == "ValueError: no account # of '#' at don't [crm.py in post]"


@given(st.text(max_size=3000), st.sampled_from(["", " [crm.py:9]", " [crm.py:9 in <lambda>]"]))
def test_any_text_has_a_short_stable_fingerprint(text: str, place: str) -> None:
    text = text.replace("]", "") + place
    assert fingerprint(text) == fingerprint(text)
    assert len(fingerprint(text)) == 12
    assert len(masked(text)) <= 300 + len(place)
    assert masked(text).endswith(place.replace(":9", ""))


def test_of_a_long_text_the_beginning_and_the_place_are_kept() -> None:
    assert masked("x " * 500 + "[crm.py:9]") == "x " * 150 + " [crm.py]"


@pytest.mark.parametrize("text", ["'" * 2000, "a1-" * 700, "=(" * 1000, "@" * 2000, "x'" * 1000])
def test_no_text_takes_long(text: str) -> None:
    assert fingerprint(text)


@pytest.mark.parametrize(
    "text", ["1." * 1000, "\\'" * 1000, '\\"' * 1000, "\\'" * 999 + "'x", "a+" * 1000]
)
def test_the_time_of_a_text_grows_with_its_length_only(text: str) -> None:
    def took(text: str) -> float:
        began = time.perf_counter()
        masked(text)
        return time.perf_counter() - began

    masked(text)
    assert min(took(text * 20) for _ in range(3)) < 0.4  # a hundred times as long before


def test_an_escaped_quote_ends_no_value() -> None:
    assert masked(r"E: it's 'a\'b' and 'open\' x") == r"E: it's '#' and 'open\' x"
    assert masked("E: 'a'b 'c' d") == masked("E: 'a'b 'e' d")


PLACED = "KeyError: 'USD' [crm.py:{} in post]"


@pytest.mark.parametrize(
    ("first", "last", "found"),
    [
        (PLACED.format(9), PLACED.format(9), "KeyError: 'USD' [crm.py in post]"),
        (PLACED.format(10), PLACED.format(9), "KeyError: 'USD' [crm.py in post]"),
        ("E: no 17", "E: no 17 (dead after 2 of 2 tries that its handler allows)", "E: no 17"),
        ("two\n lines", "two\n lines", "two lines"),
        ("x " * 500, "x " * 500, "x " * 150),
        (PLACED.format(9), PLACED.format(9).replace("USD", "XXX"), None),
        ("E: no 17", "E: no 18", None),
        ("x " * 500 + "1", "x " * 500 + "2", None),
    ],
)
def test_what_errors_have_in_common_is_their_text_or_nothing(
    first: str, last: str, found: str | None
) -> None:
    assert in_common(first, last) == found


def test_a_text_is_given_without_its_place() -> None:
    assert unplaced(PLACED.format(9)) == "KeyError: 'USD'"
    assert unplaced("E: no 17 (dead after 2 of 2 tries that its handler allows)") == "E: no 17"
    assert unplaced("") == ""
