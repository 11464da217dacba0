"""Texts and numbers for people: ages, instants, plurals, and text from outside."""

from __future__ import annotations

import re
import unicodedata
from datetime import UTC, datetime
from typing import Any

import click

UNSAFE = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def visible(text: str) -> str:
    r"""Text with all characters that control a terminal escaped: \x1b, \u202e, \n."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_visible(char) for char in text)


def _visible(char: str) -> str:
    if unicodedata.category(char) not in UNSAFE:
        return char
    code = ord(char)
    if char in _SHORT:
        return _SHORT[char]
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def safe(value: Any) -> str:
    """A value as a cell or a line: "-" for None, control characters escaped."""
    return "-" if value is None else visible(str(value))


_STEPS = ((86_400 * 7, "week"), (86_400, "day"), (3_600, "hour"), (60, "minute"), (1, "second"))


def age(seconds: float | None) -> str:
    """An age in one unit: "6 minutes"; "-" if it is unknown."""
    if seconds is None:
        return "-"
    for size, unit in _STEPS:
        if seconds >= (2 * size if unit == "week" else size):
            count = int(seconds // size)
            return f"{count:,} {unit}{'s' if count != 1 else ''}"
    return "just now"


def ago(instant: datetime) -> str:
    """ "6 minutes ago", "just now"."""
    told = age(since(instant))
    return told if told == "just now" else f"{told} ago"


def since(instant: datetime | None) -> float | None:
    """Seconds from an instant until now on this host's clock; negative in the future."""
    return None if instant is None else (datetime.now(UTC) - instant).total_seconds()


def when(instant: datetime) -> str:
    """An instant for people: UTC to the second, and its distance from now."""
    away = since(instant) or 0.0
    told = f"in {age(-away)}" if away <= -1 else f"{age(away)} ago" if away >= 1 else "just now"
    return f"{instant.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC ({told})"


_BLANKS = re.compile(r"( +)")


def wrapped(text: str, width: int | None, *, first: str = "", rest: str = "") -> list[str]:
    """A text in lines of at most `width` columns, broken at blanks; None = in one line.

    first, rest: the prefix of the first line, and of the others. The indent of the text itself is
    repeated. A word is broken only if it is longer than a line. Colours do not count as width.
    """
    from rich.cells import cell_len

    def size(part: str) -> int:
        return cell_len(click.unstyle(part))

    if width is None or size(first) + size(text) <= width:
        return [(first + text).rstrip()]
    body = text.lstrip(" ")
    margin = text[: len(text) - len(body)]
    if len(first + margin) > width // 2:
        margin, rest = "", rest[: width // 2]
    lines, line, blank = [], first + margin, ""
    started = False
    for part in _BLANKS.split(body):
        if not part or part.isspace():
            blank = part
            continue
        if started and size(line) + len(blank) + size(part) > width:
            lines.append(line)
            line, blank = rest + margin, ""
        line, blank = line + blank + part, ""
        started = True
        while size(line) > width:
            head = _head(line, width)
            lines.append(head)
            line = rest + margin + line[len(head) :]
    return [one.rstrip() for one in [*lines, line]]


def _head(line: str, width: int) -> str:
    """As much of a line as fits, at least one character of it beyond the margin."""
    from rich.cells import cell_len

    taken = 0
    for place, char in enumerate(line):
        taken += cell_len(char)
        if taken > width:
            return line[:place] or line[:1]
    return line
