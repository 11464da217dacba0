"""Numbers of things as words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def plural(count: int, thing: str, verb: str = "", verbs: str = "") -> str:
    """ "1 message", "2,000 messages"; with "was" and "were" also "1 message was"."""
    if count == 1:
        return f"1 {thing} {verb}".rstrip()
    return f"{count:,} {thing}s {verbs}".rstrip()


def many(count: object, thing: str) -> str:
    """ "1 dead message", "10,000+ dead messages"; count: also "10,000+"."""
    return f"1 {thing}" if str(count) == "1" else f"{count} {thing}s"


IDS_SHOWN = 5


def few(ids: Sequence[Any], most: int = IDS_SHOWN) -> str:
    """The first of these ids, as a log line names them."""
    return ", ".join(map(str, ids[:most])) + (", ..." if len(ids) > most else "")


def span(seconds: float | None) -> str:
    """How long, as a text: "12 s", "15 min", "3 h"."""
    if seconds is None:
        return "an unknown time"
    for size, unit in ((3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds // size:,.0f} {unit}"
    return f"{seconds:.0f} s"


def that_hold_up(count: object, what: str) -> str:
    """ "1 dead message holds up its job until it is rerun or discarded"; count: also "20+"."""
    if str(count) == "1":
        return f"1 dead message holds up its {what} until it is rerun or discarded"
    return f"{count} dead messages hold up their {what}s until they are rerun or discarded"
