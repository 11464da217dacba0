"""The fingerprint of errors: type, place and words.

Ids, numbers and quoted values differ from message to message; they are masked. So is the line of
code, which moves with every release; its file and its function are kept.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable

from msgworker.message import SPENT
from msgworker.payload import BEGINNING, shown, told

MASKED_LENGTH = 300
DIGITS = 12
MASK = "#"

_PLACE = re.compile(r" \[([^\[\]\s]+):\d+((?: in [^\[\]\s]+)?)\]\s*$")
_SPENT = re.compile(re.escape(SPENT).replace(r"\{\}", r"\d+") + "$")
_TYPE = re.compile(r"[A-Za-z_][\w.]*(?=: |$)")
_NAME = re.compile(r"""(['"])(?:[^\W\d_]|[ _.-]){1,40}\1""")
_HELD = re.compile(r" \(\d+ held back behind them\)")


def _quoted(match: re.Match[str]) -> str:
    """A value in quotes, masked; one that does not end is left as it is.

    It is taken as a whole also then: a quote that is escaped in it would not end either, and to try
    each of them would make the time quadratic.
    """
    return f"{match[0][0]}{MASK}{match[1]}" if match[1] else match[0]


def _quoted_but_names(match: re.Match[str]) -> str:
    return match[0] if _NAME.fullmatch(match[0]) else _quoted(match)


_RULES: list[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]] = [
    (re.compile(r"(?<!\w)'(?:[^'\\]|\\.)*('(?!\w))?"), _quoted),
    (re.compile(r'"(?:[^"\\]|\\.)*(")?'), _quoted),
    (re.compile(r"`[^`]*`"), f"`{MASK}`"),
    (re.compile(r"=\([^()]*\)"), f"=({MASK})"),  # Key (id)=(17) already exists
    # The name in an address is bounded: it may begin at every dot.
    (re.compile(r"\b(?!(?:ORA|DPY|DPI|PLS)-\d)[\w.+-]{0,64}+@[\w.-]+"), MASK),
    # A word with a digit in it is an id; but Oracle's codes say what happened.
    (re.compile(r"(?<![\w-])(?!(?:ORA|DPY|DPI|PLS)-\d)[\w-]*\d[\w-]*(?:[.:,/]\w*\d[\w-]*)*"), MASK),
    (re.compile(r"\s+"), " "),
]


def masked(error_text: str, *, names: bool = False) -> str:
    """The text of an error as all errors of its kind have it: at most 300 characters of it, and its
    place. names: keep the quoted words of this one that are no ids, such as a key or a currency:
    for people, not for a fingerprint."""
    error_text = _SPENT.sub("", error_text)  # the same failure as that of the tries before it
    place = _PLACE.search(error_text)
    rest = error_text[: place.start()] if place else error_text
    kind = _TYPE.match(rest)
    head, rest = (kind[0], rest[kind.end() :]) if kind else ("", rest)
    if head == "ItemsFailed":  # how many failed behind the first one makes no difference
        rest = _HELD.sub("", rest.split("; ", 1)[0])
    for pattern, mask in _RULES:
        if names and mask is _quoted:
            mask = _quoted_but_names
        rest = pattern.sub(mask, rest)
    tail = f" [{place[1]}{place[2]}]" if place else ""
    return (head + rest).strip()[:MASKED_LENGTH] + tail


def fingerprint(error: str | bytes) -> str:
    """12 hexadecimal digits, the same for all errors that are alike but for ids and values; of a
    very long one, of the beginning that looks read."""
    text = error[:BEGINNING] if isinstance(error, str) else shown(told(error), BEGINNING)
    return hashlib.sha256(masked(text).encode("utf-8", "replace")).hexdigest()[:DIGITS]
