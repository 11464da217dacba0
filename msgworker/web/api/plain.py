"""Values of ops as JSON. What they hold came from anyone: texts are passed on, escaped by JSON."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

from msgworker.payload import shown

MOST_TEXT = 20_000


def plain(value: Any, without: Callable[[str], str] = str) -> Any:
    """What `json.dumps` takes. without: removes secrets from a text."""
    if isinstance(value, enum.Enum):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {one.name: plain(getattr(value, one.name), without) for one in fields}
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return without(str(value)[:MOST_TEXT])
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Mapping):
        return {str(plain(key)): plain(one, without) for key, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(one, without) for one in value]
    return without(shown(value, MOST_TEXT))


def dumped(value: Any) -> bytes:
    """JSON in ASCII: halves of surrogate pairs, from rows that are not UTF-8, are escapes."""
    return json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode()
