"""How values look on a page, and what is hidden of them. Pure; templates use these as filters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from http import HTTPStatus
from typing import Any

from markupsafe import Markup

from msgworker.config import setting_text
from msgworker.counted import plural
from msgworker.errors import ConfigError, PayloadError
from msgworker.latency import RAN, WAITED, beyond
from msgworker.ops.edits import diff
from msgworker.payload import decode_exactly, is_text, written
from msgworker.store.audit import Edited

HIDDEN = "***"
MOST_TEXT = 200
MOST_NAME = 500
"""The most characters of a name in a filter."""
MOST_WHOLE = 32
"""Names up to this long are not broken."""
MOST_PAYLOAD = 20_000
STATUS = {one.value: one.phrase for one in HTTPStatus}
Hiding = Iterable[str] | Callable[[Any], Any]


@dataclass(frozen=True)
class Redaction:
    """What is hidden of payloads. paths: of dots, with `*` for any one key or place and `**` for
    any depth: `customer.card`, `items.*.iban`, `**.password`. fn: gets the payload and returns what
    may be shown; an error in it hides everything."""

    paths: tuple[tuple[str, ...], ...] = ()
    fn: Callable[[Any], Any] | None = None

    def __bool__(self) -> bool:
        """Whether anything is hidden."""
        return bool(self.paths) or self.fn is not None

    @classmethod
    def of(cls, given: Hiding) -> Redaction:
        """From the setting; raises ConfigError."""
        if callable(given):
            return cls(fn=given)
        paths = []
        for text in [given] if isinstance(given, str) else given:
            parts = tuple(text.split(".")) if isinstance(text, str) else ()
            if not all(parts) or not parts:
                raise ConfigError(f"redact has paths such as customer.card, got {text!r:.80}")
            paths.append(parts)
        return cls(tuple(paths))

    def __call__(self, value: Any) -> Any:
        """The value without what is hidden; it is not changed itself."""
        if self.fn is not None:
            try:
                return self.fn(value)
            except Exception:  # better nothing than what should be hidden
                return HIDDEN
        return _hidden(value, self.paths) if self.paths else value


def _hidden(value: Any, paths: Iterable[tuple[str, ...]]) -> Any:
    """paths: of what is inside the value."""
    if isinstance(value, Mapping):
        return {key: _below(str(key), one, paths) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_below(str(place), one, paths) for place, one in enumerate(value)]
    if isinstance(value, str) and paths:
        return _hidden_in_text(value, paths)
    return value


def _hidden_in_text(text: str, paths: Iterable[tuple[str, ...]]) -> str:
    """A text that is JSON itself, or a text with it. One that begins as JSON and cannot be read, as
    several lines of it, is hidden whole."""
    bare = text.lstrip("\ufeff \t\r\n")
    if bare[:1] not in ("{", "[", '"'):
        return text
    try:
        value = decode_exactly(bare)
    except (PayloadError, RecursionError):
        return text if bare[:1] == '"' else HIDDEN
    found = _hidden(value, paths)
    return text if found == value else written(found)


def _below(key: str, value: Any, paths: Iterable[tuple[str, ...]]) -> Any:
    rest = []
    for path in paths:
        rest += _after(key, path)
    return HIDDEN if () in rest else _hidden(value, rest)


def _after(key: str, path: tuple[str, ...]) -> list[tuple[str, ...]]:
    """What is left of a path behind a key."""
    if path[0] == "**":
        return [path, *(_after(key, path[1:]) if len(path) > 1 else [()])]
    return [path[1:]] if path[0] in ("*", key) else []


def payload(value: Any, redaction: Redaction, *, is_part: bool = False) -> str:
    """A payload as text: redacted, indented and cut. What cannot be read as JSON is shown as the
    text that it is, or not at all if parts of payloads are to be hidden. is_part: it is only the
    beginning."""
    if value == "":
        return ""
    try:
        read = decode_exactly(value) if isinstance(value, str | bytes) else value
        text = written(redaction(read), indent=True, default=str)
    except (PayloadError, ValueError, RecursionError):  # no JSON, or nested too deeply
        if redaction:
            size = f"{len(value):,} characters" if isinstance(value, str | bytes) else ""
            why = f"it cannot be read as JSON{', ' if size else ''}{size}"
            why = f"it has more than {size}" if is_part else why
            return f"({why}; not shown, because of redact)"
        if not isinstance(value, str | bytes):
            return "(it is nested too deeply to be shown)"
        text = value if isinstance(value, str) else repr(value)
    return cut(text, MOST_PAYLOAD)


def changes(
    found: Iterable[Edited], redaction: Redaction, *, payloads: bool = True
) -> tuple[Edited, ...]:
    """What an edit changes, with what may be seen of payloads; payloads: False = nothing."""

    def seen(text: Any) -> str | None:
        return payload(text, redaction) if payloads and text is not None else None

    return tuple(
        replace(one, old=seen(one.old), new=seen(one.new)) if one.column == "payload" else one
        for one in found
    )


def lines(change: Edited) -> list[tuple[str, str]]:
    """The lines of a change as a page has them, each with its sign; of `changes`."""
    found = diff(change, as_seen=str)
    if change.column == "payload" and not found:
        return [(" ", "(a part that is not shown)")]
    return found


def cut(value: Any, most: int = MOST_TEXT) -> str:
    """A text of at most `most` characters and a sign that it was cut. Control characters and those
    that turn the direction of writing are escapes. Of one that was cut before, see
    `types.shortened`, it is not known how many there are."""
    text = "" if value is None else str(value)
    size = "" if text.endswith("…") else f" ({len(text):,} characters)"
    rest = f"…{size}" if len(text) > most else ""
    return "".join(map(_seen, text[:most])) + rest


def _seen(char: str) -> str:
    if char in "\n\t" or (char.isprintable() and char not in _TURNING):
        return char
    return repr(char)[1:-1] if not char.isprintable() else f"\\u{ord(char):04x}"


_TURNING = set("\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def named(name: Any) -> str:
    """The class of a cell with a name: a short one stays in one line."""
    return "whole" if len(cut(name, MOST_WHOLE + 1)) <= MOST_WHOLE else "text"


def number(value: int | float | None) -> str:
    """1,204; a dash for None."""
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


def age(seconds: float | None) -> str:
    """6m 12s, 2d 4h; a dash for None."""
    if seconds is None:
        return "–"
    if seconds < 1:
        return f"{max(0.0, seconds) * 1000:.0f}ms"
    if seconds < 10:
        return f"{seconds:.1f}s"
    left = int(seconds)
    parts: list[str] = []
    for name, size in (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)):
        count, left = divmod(left, size)
        if count or parts:
            parts.append(f"{count}{name}")
    return " ".join(parts[:2])


def most(bounds: Sequence[float], seconds: float | None) -> str:
    """A percentile of counts by these bounds: up to 30s, over 5m 0s; a dash for None."""
    if seconds is None:
        return "–"
    least = beyond(bounds, seconds)
    return f"up to {age(seconds)}" if least is None else f"over {age(least)}"


def size(value: int | None) -> str:
    """Bytes: 512 B, 8.0 KiB, 1.4 GiB; "unknown" for None."""
    if value is None:
        return "unknown"
    if value < 1024:
        return f"{value} B"
    amount, units = value / 1024, ["KiB", "MiB", "GiB", "TiB"]
    while amount >= 1023.95 and len(units) > 1:  # 1,024.0 would be shown
        amount /= 1024
        del units[0]
    return f"{amount:,.1f} {units[0]}"


def setting(value: Any, name: str) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float) and name.endswith("_seconds"):
        return f"{value:,g} s" if value < 120 else f"{value:,.0f} s ({age(value)})"
    return "" if value in ((), {}) else setting_text(value)


def instant(value: datetime | None) -> Markup:
    """An instant in UTC, which the script shows in the browser's time zone, with UTC in `title`."""
    if value is None:
        return Markup("–")
    text = value.astimezone(UTC).isoformat(" ", "seconds").removesuffix("+00:00")
    iso = text.replace(" ", "T")
    return Markup('<time datetime="{}Z" title="{} UTC">{} UTC</time>').format(iso, text, text)


_NAMES = ("topic", "object", "name")
"""What a link names; another value of a query may be left out."""


def links(url: Callable[..., str]) -> dict[str, Callable[..., Any]]:
    """`url`, and `href`: the attribute of a link, or nothing where a filter would not take a name:
    it is empty, longer than MOST_NAME, or not UTF-8; or no path can have it: a part of it is "..",
    say. Such an element is no link, and its text is cut."""

    def href(name: str, /, query: Mapping[str, Any] | None = None, **path: Any) -> Markup:
        placed = [one for one in path.values() if isinstance(one, str)]
        texts = [(key, one) for key, one in (query or {}).items() if isinstance(one, str)]
        named = [*placed, *(one for key, one in texts if one or key in _NAMES)]
        if any(not 0 < len(one) <= MOST_NAME or not is_text(one) for one in named):
            return Markup("")
        if any(
            part in ("", ".", "..") or "\n" in part for one in placed for part in one.split("/")
        ):
            return Markup("")
        return Markup(' href="{}"').format(url(name, query, **path))

    return {"url": url, "href": href}


FILTERS: dict[str, Callable[..., Any]] = {
    "cut": cut,
    "named": named,
    "number": number,
    "plural": plural,
    "age": age,
    "ran": partial(most, RAN),
    "waited": partial(most, WAITED),
    "size": size,
    "instant": instant,
    "setting": setting,
    "lines": lines,
}
