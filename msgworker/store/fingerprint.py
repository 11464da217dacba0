"""Which errors are the same: type and place count, numbers and names in the text do not."""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache

_PLACE = re.compile(r"\[([^\[\]]+:\d+)\]\s*$")
_VARIES = re.compile(r"'[^']*'|\"[^\"]*\"|0x[0-9a-fA-F]+|\b[0-9a-fA-F]{8,}\b|\d+")


@lru_cache(maxsize=4096)
def fingerprint(error_text: str) -> str:
    """A short, stable hex name of the group that an error belongs to."""
    place = _PLACE.search(error_text)
    text = _VARIES.sub("#", error_text[: place.start()] if place else error_text)
    key = f"{text.strip()[:300]}\n{place[1] if place else ''}"
    return hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()[:8]
