"""Numbers that were counted only so far, and cursors of lists."""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass
from typing import Any

from msgworker.errors import ConfigError
from msgworker.payload import is_text

MOST_CURSOR = 2_000
NO_CURSOR = "after is no cursor of this list; leave it out to begin anew"


@dataclass(frozen=True, slots=True)
class Capped:
    """A number. more: it is at least that, because counting stopped there; about: it is an estimate
    from the database's statistics. As a text: "1,204", "10,000+", "about 9,990,000"."""

    count: int
    more: bool = False
    about: bool = False

    def __str__(self) -> str:
        return f"{'about ' if self.about else ''}{self.count:,}{'+' if self.more else ''}"

    def __add__(self, other: Capped) -> Capped:
        total = self.count + other.count
        return Capped(total, self.more or other.more, self.about or other.about)


def cursor_text(place: list[Any]) -> str:
    """A place in a list as an opaque text, safe in a URL."""
    raw = json.dumps(place, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def cursor_place(text: str, *kinds: type | tuple[type, ...]) -> list[Any]:
    """The place that `cursor_text` was given. Raises ConfigError for any other text, or if its
    parts are not of these types."""
    wrong = ConfigError(NO_CURSOR)
    if not isinstance(text, str) or not text.isascii() or len(text) > MOST_CURSOR:
        raise wrong
    try:
        raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        place = json.loads(raw)
    except (ValueError, binascii.Error, RecursionError):
        raise wrong from None
    if not isinstance(place, list) or len(place) != len(kinds):
        raise wrong
    for part, kind in zip(place, kinds, strict=True):
        if not isinstance(part, kind) or isinstance(part, bool) or _not_stored(part):
            raise wrong
    return place


def _not_stored(part: Any) -> bool:
    """Whether no database has such a value: it was not we who wrote it."""
    if isinstance(part, str):
        return "\x00" in part or not is_text(part)
    return isinstance(part, int) and not -(2**63) <= part < 2**63
