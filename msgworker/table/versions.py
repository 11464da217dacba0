"""The versions of the schema: what each has added to the one before it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from msgworker.table.names import FAILED, FAILED_MARK, HELD_KEY, UNIQUE, URGENT, URGENT_RANK


@dataclass(frozen=True, slots=True)
class Version:
    """One version. adds: tables of ours without `msgworker_`, columns as table.column (the message
    table is `message`), its indexes as message:suffix."""

    number: int
    about: str
    adds: tuple[str, ...] = ()


VERSIONS = (
    Version(1, "0.1.0"),
    Version(
        2,
        "failed tries, audit, pauses",
        (
            *("try", "operation", "audit", "pause", "lease.serves"),
            *(f"message:{FAILED}", f"message.{FAILED_MARK}"),
        ),
    ),
    Version(3, "tracebacks of tries, totals of items", ("try.traceback", "item.total")),
    Version(4, "locks", ("lock",)),
    Version(
        5,
        "priorities",
        ("message.priority", f"message.{URGENT_RANK}", f"message:{URGENT}"),
    ),
    Version(
        6,
        "unique keys",
        (
            *("message.unique_key", "message.unique_kept"),
            *(f"message.{HELD_KEY}", f"message:{UNIQUE}"),
        ),
    ),
    Version(7, "limits of topics", ("limit",)),
    Version(8, "schedules", ("schedule", "message.scheduled_for")),
    Version(9, "requests to cancel", ("cancel",)),
    Version(10, "history for charts", ("history",)),
    Version(11, "headers of traces", ("message.headers",)),
    Version(12, "keys of requests", ("operation.request_key", "operation:key")),
)
NEWEST = VERSIONS[-1].number
LEAST = 1
"""The oldest version whose code may work on the newest schema. All versions since have only added:
one that takes something away, or gives it another meaning, must raise it to its own number."""
_ADDED = {name: version.number for version in VERSIONS for name in version.adds}


def version_of(name: str) -> int:
    """The version that has added a table, column or index, named as in `Version.adds`."""
    plain = re.sub(r"_t\d+b?$", "", name)  # a generated column of another rule
    return _ADDED.get(plain, _ADDED.get(re.split("[.:]", plain)[0], 1))


def reached(lacking: Iterable[str]) -> int:
    """The version of a schema that lacks these, the newest that is complete; 0 = not even the
    first."""
    return min((version_of(name) for name in lacking), default=NEWEST + 1) - 1
