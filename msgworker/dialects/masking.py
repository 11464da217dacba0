"""URLs and texts without their secrets."""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import quote, quote_plus

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

_SECRET_KEY = re.compile(r"passw|secret|token|pwd|credential|sslkey", re.I)


def masked(url: URL) -> str:
    """The URL as text without its password and without secrets in its query."""
    query = {k: "***" if _SECRET_KEY.search(k) else v for k, v in url.query.items()}
    return url.set(query=query).render_as_string(hide_password=True)


def secrets_of(url: str | URL) -> set[str]:
    """The passwords that a URL holds, as they are and percent-encoded; for taking them out of
    texts."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        return set()
    values = [str(parsed.password)] if parsed.password else []
    for key, value in parsed.query.items():
        if _SECRET_KEY.search(key):
            values += [value] if isinstance(value, str) else list(value)
    texts = {text for value in values for text in (value, quote(value, safe=""), quote_plus(value))}
    return {text for text in texts if len(text) > 2 and text != "msgworker"}


def without(text: str, secrets: Iterable[str]) -> str:
    """The text with "***" for each secret; a short one only where it is a word of its own."""
    for secret in sorted(secrets, key=len, reverse=True):
        word = re.escape(secret) if len(secret) > 5 else rf"(?<!\w){re.escape(secret)}(?!\w)"
        text = re.sub(word, "***", text)
    return text
