"""Payloads between Python and the table, where they are strict JSON; and text that every database
can store."""

from __future__ import annotations

import codecs
import json
import math
import re
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import partial
from typing import Any
from uuid import UUID

from msgworker.errors import PayloadError

MAX_DIGITS = 4300
BEGINNING = 2000
"""The most characters of a name or an error that are read for operators."""
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
"""An escaped NUL, not the text of one: behind an even number of backslashes."""


# ---------------------------------------------------------------- from text to Python


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"the number {text[:20]} is out of range")
    return value


def _whole(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise ValueError(f"a number of {len(text)} digits; at most {MAX_DIGITS}")
    return int(text)


def _no_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"the key {key[:50]!r} appears twice")
            seen.add(key)
    return found


_strict: Any = partial(json.JSONDecoder, parse_constant=_no_constant, object_pairs_hook=_no_twins)
_decoder = _strict(parse_float=_finite, parse_int=_whole)
_scan: Callable[[str, int], tuple[Any, int]] = _strict(parse_float=_finite).scan_once
"""The value from a place on, and where it ends; for texts too short for a number that `_whole`
refuses."""


def decode(raw: Any, oversize: int | None = None) -> Any:
    """The payload of a row as Python values; None for NULL and for an empty text.

    Strict JSON: no NaN or Infinity, no key twice, no lone surrogate. Raises PayloadError.
    """
    if oversize is not None:
        raise PayloadError(f"the payload is too long to be read: {oversize} characters")
    if raw is None or raw == "":
        return None
    try:
        if type(raw) is str and len(raw) <= MAX_DIGITS and "\\u" not in raw:
            try:
                value, end = _scan(raw, 0)
                if end == len(raw):
                    return value
            except StopIteration:  # no value at the beginning, perhaps a space
                pass
        if isinstance(raw, bytes | bytearray | memoryview):
            raw = bytes(raw).decode("utf-8")
        elif not isinstance(raw, str):
            return raw  # a JSON column: the driver has decoded it
        if "\\ud" in raw or "\\uD" in raw:
            value = _decoder.decode(raw)
            json.dumps(value, ensure_ascii=False).encode("utf-8")
            return value
        return _decoder.decode(raw)
    except RecursionError:
        raise PayloadError("the payload is nested too deeply") from None
    except UnicodeDecodeError as error:
        raise PayloadError(f"the payload is not UTF-8: {error.reason}") from None
    except UnicodeEncodeError:
        raise PayloadError("the payload holds half of a surrogate pair") from None
    except ValueError as error:
        raise PayloadError(f"the payload is not JSON: {str(error)[:300]}") from None


# ---------------------------------------------------------------- for people: digit for digit


class Digits(float):
    """A number of a JSON text that keeps how it was written: a float may have fewer digits."""

    text: str

    def __new__(cls, text: str) -> Digits:
        found = super().__new__(cls, _finite(text))
        found.text = text
        return found


class KeepsDigits(Exception):
    """A value has such numbers: `written` writes it."""


def _exact_whole(text: str) -> int | Digits:
    return Digits(text) if text == "-0" else _whole(text)


_exact = _strict(parse_float=Digits, parse_int=_exact_whole)


def decode_exactly(raw: Any) -> Any:
    """As `decode`, with `Digits` in the place of floats: `encode` and `written` write them as they
    were."""
    value = decode(raw)
    if value is None or not isinstance(raw, str | bytes):
        return value
    return _exact.decode(raw if isinstance(raw, str) else raw.decode("utf-8"))


def as_json(value: Any, default: Callable[[Any], Any] = str, **form: Any) -> str:
    """A value of ours as strict JSON, whatever it holds: what JSON has not (a NaN, a key that is no
    text, a circle) as its text. form: of json.dumps."""
    try:
        return json.dumps(value, default=default, allow_nan=False, **form)
    except Exception:  # also of an object whose text cannot be made
        return json.dumps(_expressible(value, default), **form)


def _expressible(value: Any, default: Callable[[Any], Any], within: tuple[int, ...] = ()) -> Any:
    """within: the ids of what it is a part of."""
    if value is None or isinstance(value, bool | str):
        return value
    inner = (*within, id(value))
    try:
        if isinstance(value, int):
            int.__repr__(value)  # raises for too many digits
            return value
        if isinstance(value, float):
            return value if math.isfinite(value) else str(value)
        if id(value) in within:
            return "..."
        if isinstance(value, dict):
            return {str(key): _expressible(one, default, inner) for key, one in value.items()}
        if isinstance(value, list | tuple):
            return [_expressible(one, default, inner) for one in value]
        return str(default(value))
    except Exception as error:
        return f"<{type(value).__name__}: {type(error).__name__}>"


Default = Callable[[Any], Any] | None


def written(value: Any, *, indent: bool = False, default: Default = None) -> str:
    """A value as JSON, compact or in lines, its `Digits` as they were. default: of json.dumps."""
    return _written(value, "\n" if indent else None, default)


def _written(value: Any, line: str | None, default: Default) -> str:
    if isinstance(value, Digits):
        return value.text
    inner = None if line is None else f"{line}  "
    colon = ":" if line is None else ": "
    if isinstance(value, dict):
        keys = (json.dumps(str(key), ensure_ascii=False) for key in value)
        values = (_written(one, inner, default) for one in value.values())
        parts, ends = [f"{k}{colon}{v}" for k, v in zip(keys, values, strict=True)], "{}"
    elif isinstance(value, list | tuple):
        parts, ends = [_written(one, inner, default) for one in value], "[]"
    else:
        return json.dumps(value, ensure_ascii=False, default=default)
    if not parts:
        return ends
    begin, end = (inner or "", line or "")
    return f"{ends[0]}{begin}{f',{begin}'.join(parts)}{end}{ends[1]}"


def pretty(payload: str) -> str:
    """A payload in lines, its numbers digit for digit; what is no JSON stays as it is."""
    try:
        return written(decode_exactly(payload), indent=True) if payload else payload
    except (PayloadError, RecursionError):
        return payload


# ---------------------------------------------------------------- from Python to text

# `_is_json` and `_jsonable` detect circular references before.
_encoder = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, separators=(",", ":"), check_circular=False
)
_SCALARS = frozenset((str, int, float, bool, type(None)))


def encode(payload: Any) -> str | None:
    """A payload as JSON text, None for None.

    Takes JSON values, and values that pydantic writes as JSON: see `_jsonable`. Raises PayloadError
    with the place for other values.
    """
    if payload is None:
        return None
    try:
        try:
            value = payload if _is_json(payload) else _jsonable(payload, "payload")
            text = _text(value)
        except KeepsDigits:
            text = written(payload)
            _text(text)
    except RecursionError:
        raise PayloadError("the payload is nested too deeply, or holds itself") from None
    if "\\u0000" in text and _NUL.search(text):
        raise PayloadError("the payload holds a NUL character, which databases cannot keep")
    return text


def _text(value: Any) -> str:
    try:
        text = _encoder.encode(value)
        if not text.isascii():
            text.encode("utf-8")
    except UnicodeEncodeError:
        raise PayloadError("the payload holds half of a surrogate pair") from None
    except ValueError as error:
        _jsonable(value, "payload")  # it names the place of a number that JSON does not have
        raise PayloadError(f"the payload cannot be written as JSON: {error}") from None
    return text


def _is_json(value: Any) -> bool:
    """Whether a value consists only of JSON's own types. Fast, because this is the usual case."""
    kind = type(value)
    if kind is dict:
        for key, item in value.items():
            if type(key) is not str:
                return False
            if type(item) not in _SCALARS and not _is_json(item):
                return False
        return True
    if kind is not list:
        return kind in _SCALARS
    if _SCALARS.issuperset(map(type, value)):
        return True
    return all(type(item) in _SCALARS or _is_json(item) for item in value)


def _jsonable(value: Any, place: str) -> Any:
    """A value in JSON's own types, from which `Message[T]` restores the original value.

    A Decimal is a text, exact to its last zero; dates, times and durations are ISO 8601, a UUID is
    its text, an Enum its value; lists, tuples and sets are arrays; dataclasses are objects by the
    names of their fields, pydantic's models what they serialize to.
    """
    if isinstance(value, Enum):
        return _jsonable(value.value, place)
    if value is None or isinstance(value, str | int):
        return _plain(value)
    if isinstance(value, float | Decimal):
        if isinstance(value, Digits):
            raise KeepsDigits
        if not (value.is_finite() if isinstance(value, Decimal) else math.isfinite(value)):
            raise PayloadError(f"{_cut_place(place)} is {value}, which JSON does not have")
        return str(value) if isinstance(value, Decimal) else float(value)
    offset = value.utcoffset() if isinstance(value, datetime | time) else None
    if offset is not None and offset.total_seconds() % 60 != 0:
        raise PayloadError(
            f"{_cut_place(place)} has a UTC offset with seconds, {value.isoformat()}, which ISO "
            "8601 does not have; convert it to UTC"
        )
    if isinstance(value, date | time | timedelta | UUID):  # a datetime is a date
        from pydantic_core import to_jsonable_python

        return to_jsonable_python(value)
    if isinstance(value, dict):
        return _object(value, place)
    if isinstance(value, list | tuple):
        return [_jsonable(item, f"{place}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, set | frozenset):
        return _in_order([_jsonable(item, f"{place}[...]") for item in value])
    if hasattr(type(value), "__pydantic_serializer__"):
        return _of_pydantic(value, place)
    if is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in fields(value)]
        return {name: _jsonable(getattr(value, name), f"{place}.{name}") for name in names}
    kind = "a class" if isinstance(value, type) else f"of type {type(value).__name__}"
    hint = "; decode it, or write it as base64" if isinstance(value, bytes | bytearray) else ""
    raise PayloadError(
        f"{_cut_place(place)} is {kind}, which is not written as JSON{hint}. A payload is JSON, a "
        "dataclass, a pydantic model, Decimal, date, time, datetime, timedelta, UUID, Enum, tuple "
        "or set"
    )


def _cut_place(place: str) -> str:
    return place if len(place) <= 200 else f"payload...{place[-180:]}"


def _plain(value: Any) -> Any:
    """The value as a plain str or int: JSON would write the text of a subclass."""
    if value is None or type(value) in _SCALARS:
        return value
    return str.__str__(value) if isinstance(value, str) else int(value)


def _object(value: dict[Any, Any], place: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, item in value.items():
        text = key.value if isinstance(key, Enum) else key
        if not isinstance(text, str):
            raise PayloadError(
                f"{_cut_place(place)} has the key {key!r:.80} of type {type(key).__name__}; the "
                "keys of JSON are texts, so its type would be lost. Use a text, or a list of pairs"
            )
        text = str.__str__(text)
        if text in found:  # a member of an Enum, and its value
            raise PayloadError(f"{_cut_place(place)} has the key {text!r:.80} twice")
        found[text] = _jsonable(item, f"{place}.{text:.50}")
    return found


def _in_order(items: list[Any]) -> list[Any]:
    """The items of a set in an order that is the same in every process, if they can be sorted."""
    try:
        return sorted(items)
    except TypeError:
        return items


def _of_pydantic(value: Any, place: str) -> Any:
    try:
        return type(value).__pydantic_serializer__.to_python(value, mode="json", by_alias=True)
    except RecursionError:
        raise
    except Exception as error:  # of a serializer of the user's, too
        said = f"{type(error).__name__}: {error}"
        raise PayloadError(f"{_cut_place(place)} cannot be written as JSON: {said:.300}") from error


# ---------------------------------------------------------------- text


def clean(text: str, most: int = 2000) -> str:
    """Text that every database can store: no NUL or half surrogate, at most `most` UTF-8 bytes."""
    raw = text[: most + 1].replace("\x00", "\\0").encode("utf-8", "replace")
    if len(raw) <= most:
        return raw.decode("utf-8", "ignore")
    return raw[: most - 3].decode("utf-8", "ignore") + "..."


def fitting(text: str, codec: str) -> str:
    r"""A text for a column that takes what `codec` encodes: other characters become escapes, as
    \u20ac. "" = it takes all; "utf8mb3" = the first 65,536 characters."""
    if not codec or text.isascii():
        return text
    if codec == "utf8mb3":
        return "".join(c if c <= "\uffff" else f"\\U{ord(c):08x}" for c in text)
    return text.encode(codec, "backslashreplace").decode(codec)


def fitting_json(text: str, codec: str) -> str:
    """JSON text of the same value, in characters that `codec` encodes."""
    if not codec or text.isascii():
        return text
    return text.encode(codec, "msgworker.json").decode(codec)


def _escaped(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


codecs.register_error("msgworker.json", _escaped)


def shown(value: Any, most: int = 64) -> str:
    r"""Text from outside, for one line of output: at most `most` characters; characters that cannot
    be printed, or are not UTF-8, become escapes (\n, \xff)."""
    text = value if isinstance(value, str) else str(value)
    line = text[:most]
    if not line.isprintable():
        line = "".join(map(_printable, line))
    return line if len(text) <= most else f"{line}..."


_USER_PASSWORD = re.compile(
    r"""(?<=://)([^\s:/?#@\[\]'"<>]{0,128}):(?!\d{1,5}(?:[/?#]|$))[^\s'"<>]{1,256}@"""
)
"""`user:password@` of a URL; an unescaped password may have signs that end a host, unless what
stands before them is a port."""
_LONE_KEY = re.compile(r"""(?<=://)[^\s:/?#@\[\]'"<>]{16,256}@""")
"""A key that stands there alone; shorter texts are names of users."""
_QUERY = re.compile(
    r"([?&;][\w.-]{0,64}?(?:passw|secret|token|pwd|credential|api_?key|access_?key|signature)"
    r"[\w.-]{0,64}=)[^&;#\s'\"<>]+",
    re.I,
)


def without_url_secrets(text: str) -> str:
    """The text with "***" for what looks like a password or key in a URL, of whatever service."""
    if "://" in text:
        text = _LONE_KEY.sub("***@", _USER_PASSWORD.sub(r"\1:***@", text))
    return _QUERY.sub(r"\1***", text) if "=" in text else text


def quoted(value: Any) -> str:
    """`shown`, a text in quotes."""
    return f'"{shown(value)}"' if isinstance(value, str) else shown(value)


def _printable(char: str) -> str:
    if (
        "\udc80" <= char <= "\udcff"
    ):  # a byte that is not UTF-8, as Python's surrogateescape keeps it
        return f"\\x{ord(char) - 0xDC00:02x}"
    return char if char.isprintable() else char.encode("unicode_escape").decode()


def is_text(value: str) -> bool:
    """Whether a text was valid UTF-8 at its source."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
