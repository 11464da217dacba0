"""Payloads between Python and the table: strict JSON, nothing else; and text that every database
keeps."""

from __future__ import annotations

import json
import re
from typing import Any

from msgworker.errors import PayloadError

MAX_DIGITS = 4300
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
"""An escaped NUL, not the text of one: behind an even number of backslashes."""


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
                raise ValueError(f"the key {key[:50]!r} stands twice")
            seen.add(key)
    return found


_decoder = json.JSONDecoder(
    parse_constant=_no_constant,
    parse_float=_finite,
    parse_int=_whole,
    object_pairs_hook=_no_twins,
)


def decode(raw: Any, oversize: int | None = None) -> Any:
    """The payload of a row as Python values; None for NULL and for an empty text.

    Strict JSON: no NaN or Infinity, no key twice, no lone surrogate. Raises PayloadError.
    """
    if oversize is not None:
        raise PayloadError(f"the payload is too long to be read: {oversize} characters")
    if raw is None or raw == "":
        return None
    try:
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


def encode(payload: Any) -> str | None:
    """A payload as JSON text, None for None; raises PayloadError for what is not JSON."""
    if payload is None:
        return None
    try:
        text = json.dumps(payload, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        text.encode("utf-8")
    except (TypeError, ValueError, RecursionError) as error:
        raise PayloadError(f"the payload cannot be written as JSON: {error}") from None
    if _NUL.search(text):
        raise PayloadError("the payload holds a NUL character, which databases cannot keep")
    return text


def clean(text: str, most: int = 2000) -> str:
    """Text that every database keeps: no NUL or half surrogate, at most `most` bytes in UTF-8."""
    raw = text[: most + 1].replace("\x00", "\\0").encode("utf-8", "replace")
    return _cut(raw, most)


def _cut(raw: bytes, most: int) -> str:
    if len(raw) <= most:
        return raw.decode("utf-8", "ignore")
    return raw[: most - 3].decode("utf-8", "ignore") + "..."
