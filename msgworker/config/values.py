"""Checks of single values: numbers, durations, lists, time zones; keywords that have a new name."""

from __future__ import annotations

import functools
import json
import re
import warnings
import zoneinfo
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from msgworker.errors import ConfigError

YEAR_SECONDS = 366 * 86_400.0


def number(name: str, value: Any, least: float, most: float) -> float:
    """A finite number in a range, or ConfigError."""
    good = isinstance(value, int | float) and not isinstance(value, bool)
    if not good or not least <= value <= most:  # NaN is in no range
        raise ConfigError(f"{name} must be a number from {least:g} to {most:g}, got {_got(value)}")
    return float(value)


def whole(name: str, value: Any, least: float, most: float) -> int:
    """A whole number in a range, or ConfigError."""
    good = isinstance(value, int) and not isinstance(value, bool)
    if not good or not least <= value <= most:
        raise ConfigError(
            f"{name} must be a whole number from {int(least)} to {int(most)}, got {_got(value)}"
        )
    return int(value)


def _got(value: Any) -> str:
    try:
        return f"{value!r:.80}"
    except ValueError:  # Python writes out no number of thousands of digits
        return "a number of thousands of digits"


_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0, "w": 604_800.0}
_DURATION = re.compile(r"\s*(\d{1,12}(?:\.\d{1,9})?)\s*(ms|s|m|h|d|w)?\s*", re.ASCII)


def seconds(name: str, value: Any, least: float = 0.0, most: float = 100 * YEAR_SECONDS) -> float:
    """A duration in seconds: 30, "30", "30s", "25m", "2h", "30d", ms and w; or ConfigError."""
    if isinstance(value, str):
        match = _DURATION.fullmatch(value)
        if match is None:
            raise ConfigError(
                f"{name} must be a duration such as 30, 30s, 25m, 2h or 30d, got {value!r:.80}"
            )
        value = float(match[1]) * _UNITS[match[2] or "s"]
    return number(name, value, least, most)


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: the nearest one, or all of them."""
    import difflib  # only a mistake needs it

    names = {one.lower(): one for one in known}
    near = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.6)
    return f"did you mean {names[near[0]]}?" if near else f"known are: {', '.join(names.values())}"


def as_instant(text: str, place: str) -> datetime | None:
    """An instant of ISO 8601, which has its time zone, in UTC; None for what is no instant. The
    same everywhere: raises ConfigError for one without a zone, and outside of the years 1 to
    9999."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    if found.tzinfo is None:
        raise ConfigError(
            f"{place} needs its time zone, such as {found.isoformat()}Z; got {text!r:.60}"
        )
    try:
        return found.astimezone(UTC)
    except OverflowError:
        raise ConfigError(
            f"{place} must be within the years 1 to 9999 in UTC, got {text!r:.60}"
        ) from None


def duration_or_instant(
    name: str, text: str, most: float = 100 * YEAR_SECONDS, *, also: str = ""
) -> float | datetime:
    """Either, in seconds or in UTC, or ConfigError. also: what else is taken, "; or now"."""
    if (found := as_instant(text, name)) is not None:
        return found
    try:
        return seconds(name, text, 0, most)
    except ConfigError as error:
        raise ConfigError(f"{error}; or an instant such as 2026-11-21T08:00Z{also}") from None


def setting_text(value: Any) -> str:
    """A value of a setting in a line."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        words = (_word(one) for one in value.values())
        return ", ".join(map("=".join, zip(value, words, strict=True))) or "-"
    if isinstance(value, tuple | list):
        return ", ".join(map(str, value)) or "-"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _word(value: Any) -> str:
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)


_ID = re.compile(r"-?[0-9]{1,19}")


def as_id(text: str) -> int | None:
    """A whole number of 64 bits; None for what is none, such as "1.0", "+1" or "1_000"."""
    found = int(text) if _ID.fullmatch(text) else None
    return found if found is not None and -(2**63) <= found < 2**63 else None


def id_of(text: str) -> int:
    """An id, as of a message or a job; raises ConfigError."""
    if (found := as_id(text.strip())) is None:
        raise ConfigError(f"an id is a whole number of at most 64 bits, got {text!r:.60}")
    return found


_TRUE = ("true", "yes", "on", "1")
_FALSE = ("false", "no", "off", "0")


def as_whole(value: Any) -> Any:
    if isinstance(value, str) and re.fullmatch(r"\s*[+-]?\d{1,18}\s*", value, re.ASCII):
        return int(value)
    return value


def as_flag(value: Any, place: str) -> bool:
    word = value.strip().lower() if isinstance(value, str) else value
    if isinstance(word, bool):
        return word
    if word in _TRUE or word in _FALSE:
        return word in _TRUE
    raise ConfigError(f"{place} must be true or false, got {value!r:.80}")


def as_texts(value: Any, place: str) -> tuple[str, ...]:
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    if not isinstance(value, list | tuple) or not all(isinstance(v, str) and v for v in value):
        raise ConfigError(f'{place} must be a list of texts such as ["a", "b"], got {value!r:.80}')
    return tuple(value)


def as_names(value: Any, place: str) -> dict[str, str | None]:
    if isinstance(value, str) and value.lstrip().startswith("{"):  # with any name, as one with ","
        try:
            value = json.loads(value, object_pairs_hook=_each_once)
        except (ValueError, RecursionError):
            raise ConfigError(f"{place} must be JSON behind its {{, got {value!r:.80}") from None
    if isinstance(value, str):
        pairs = [part.partition("=") for part in value.split(",") if part.strip()]
        if not all(sign for _, sign, _ in pairs):
            raise ConfigError(f"{place} must look like msg_id=ID,payload= ; got {value!r:.80}")
        value = {role.strip(): name.strip() or False for role, _, name in pairs}
    if not isinstance(value, Mapping):
        raise ConfigError(f"{place} must be a table of column names, got {value!r:.80}")
    for role, name in value.items():
        if not (name is None or name is False or (isinstance(name, str) and name)):
            raise ConfigError(f"{place}.{role} must be a column's name or false, got {name!r:.80}")
    return {role: name or None for role, name in value.items()}


def as_layout(value: Any, place: str) -> dict[str, list[int]]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise ConfigError(f'{place} must look like {{"segment:0": [0, 1]}} as JSON') from None
    good = isinstance(value, Mapping) and all(
        isinstance(part, list) and all(type(n) is int for n in part) for part in value.values()
    )
    if not good:
        raise ConfigError(f"{place} must be a table of lists of shards, got {value!r:.80}")
    return {str(name): list(part) for name, part in value.items()}


WhereValue = str | int | bool | None
MAX_WHERE = 8
MAX_WHERE_VALUES = 100
MAX_WHERE_TEXT = 190


def as_where(value: Any, place: str) -> dict[str, WhereValue | list[WhereValue]]:
    """Columns, and the value of each or a list of values: what `MessageTable.where` takes, as it
    has it, or as JSON. Names are not checked. Raises ConfigError."""
    if isinstance(value, str):
        try:
            value = json.loads(value, object_pairs_hook=_each_once)
        except (ValueError, RecursionError):
            like = '{"tenant": 7, "deleted_at": null}'
            raise ConfigError(f"{place} must look like {like} as JSON, got {value!r:.80}") from None
    if isinstance(value, tuple):  # as `MessageTable.where` has it
        value = dict(value)
    if not isinstance(value, Mapping) or len(value) > MAX_WHERE:
        raise ConfigError(
            f"{place} is a mapping of at most {MAX_WHERE} columns to values, "
            f'{{"tenant": 7, "deleted_at": None}}; got {value!r:.80}'
        )
    found = {}
    for column, values in value.items():
        many = list(values) if isinstance(values, list | tuple) else [values]
        if not 0 < len(many) <= MAX_WHERE_VALUES:
            raise ConfigError(
                f"{place}: column {column!r} needs 1 to {MAX_WHERE_VALUES} values, got {len(many)}"
            )
        for one in many:
            _check_where(place, column, one)
        kinds = {type(one) for one in many if one is not None}
        if len(kinds) > 1 or len(set(many)) < len(many):
            raise ConfigError(
                f"{place}: the values of column {column!r} must be different ones of one type, "
                f"got {many!r:.80}"
            )
        found[column] = many if len(many) > 1 else many[0]
    return found


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a name comes twice")
    return dict(pairs)


def _check_where(place: str, column: Any, value: Any) -> None:
    if value is None or type(value) is bool:
        return
    if type(value) is int and -(2**63) <= value < 2**63:
        return
    if type(value) is not str:
        raise ConfigError(
            f"{place}: column {column!r} takes texts, whole numbers of 64 bits, True, False, None, "
            f"or a list of them; got {value!r:.80}"
        )
    if not 0 < len(value) <= MAX_WHERE_TEXT or not value.isprintable() or set(value) & set("\\%"):
        raise ConfigError(
            f"{place}: a text has 1 to {MAX_WHERE_TEXT} printable characters without backslash "
            f"and percent sign, because it is a part of indexes; column {column!r} has "
            f"{value!r:.80}"
        )


# --- Time zones.


def checked_zone(name: Any, what: str = "tz") -> str:
    """The name of a time zone that this machine knows; raises ConfigError."""
    if not isinstance(name, str) or not name:
        raise ConfigError(
            f'{what} is the name of a time zone, such as "Asia/Shanghai"; got {name!r}'
        )
    try:
        zone_of(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        known = zoneinfo.available_timezones()
        if not known:
            raise ConfigError(
                f"time zone {name!r:.60}: this machine has no time zones; install them with "
                "`pip install tzdata`"
            ) from None
        hint = nearest(name, known)
        hint = hint if hint.startswith("did") else 'names look like "Asia/Shanghai" or "UTC"'
        lacks = "if this machine lacks it, `pip install tzdata`"
        raise ConfigError(f"unknown time zone {name!r:.60} ({lacks}); {hint}") from None
    return name


@functools.lru_cache(64)
def zone_of(name: str) -> Any:
    """The time zone; UTC is the one of the standard library, which is computed with quickly."""
    return UTC if name == "UTC" else zoneinfo.ZoneInfo(name)


def offset_of(zone: Any, at: datetime) -> int:
    """The offset of a zone at an aware instant, in seconds."""
    offset = at.astimezone(zone).utcoffset()
    return 0 if offset is None else int(offset.total_seconds())


def changes_of_zone(
    zone: Any, begin: datetime, end: datetime
) -> Iterator[tuple[datetime, int, int]]:
    """When the offset of a zone changes between two aware instants, to the second, and the offsets
    before and after. Of two changes on one day that cancel each other nothing is seen."""
    at = begin.replace(microsecond=0)
    while at < end:
        low, high = at, min(at + timedelta(days=1), end)
        at, before, after = high, offset_of(zone, low), offset_of(zone, high)
        if before != after:
            while high - low > timedelta(seconds=1):
                middle = (low + (high - low) // 2).replace(microsecond=0)
                low, high = (middle, high) if offset_of(zone, middle) == before else (low, middle)
            yield high, before, after


# --- Keywords that have a new name: the old one works until 1.0.

F = TypeVar("F", bound=Callable[..., Any])


def renamed(**names: str) -> Callable[[F], F]:
    """The function takes these keywords under their old names too, with a DeprecationWarning.

    names: old = "new". Raises TypeError where both are given.
    """

    def decorate(fn: F) -> F:
        named = fn.__qualname__.removesuffix(".__init__").rpartition(".")[2]

        @functools.wraps(fn)
        def call(*args: Any, **given: Any) -> Any:
            for old in names.keys() & given.keys():
                new = names[old]
                if new in given:
                    raise TypeError(f"{named}() got both {new} and {old}; give {new}")
                text = f"{named}({old}=...) is now {new}=...; {old} goes in 1.0"
                warnings.warn(text, DeprecationWarning, stacklevel=2)
                given[new] = given.pop(old)
            return fn(*args, **given)

        return call  # type: ignore[return-value]

    return decorate
