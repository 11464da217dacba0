"""Numbers of things as words."""

from __future__ import annotations


def plural(count: int, thing: str, verb: str = "", verbs: str = "") -> str:
    """ "1 message", "2,000 messages"; with "was" and "were" also "1 message was"."""
    if count == 1:
        return f"1 {thing} {verb}".rstrip()
    return f"{count:,} {thing}s {verbs}".rstrip()
