"""A message for operators."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import ColumnElement

from msgworker.dialects import (
    beginning,
    instant_text,
    kind_of,
    read_instant,
    text_length,
    whole_number,
)
from msgworker.message import LATER, State, word_of
from msgworker.payload import is_text, quoted, shown, told
from msgworker.store.changing.cancelling import Request
from msgworker.store.items import Items
from msgworker.store.settling.tries import Try
from msgworker.table import MAX_HEADERS, Cols, Tables
from msgworker.tracing import trace_id_of


class How(enum.StrEnum):
    """How a dead message has ended."""

    FAILED = "failed"  # at each of its tries
    REJECTED = "rejected"
    DISCARDED = "discarded"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"  # nothing of it was kept


@dataclass(frozen=True, slots=True)
class Ending:
    """How a dead message has ended, as a word and as a text; `tries`: how many it has had since its
    last rerun, None if unknown."""

    how: How
    text: str
    tries: int | None = None


@dataclass(frozen=True, slots=True)
class MessageInfo:
    """A message as ops see it: `status` is a word, times are aware UTC, absent columns None.

    later_times, later_reason: how often it was postponed (RetryLater), and the last reason, the
    last time, if that was the last thing it said; `last_error` is None then. priority, unique_key:
    as they stand in the row. unique_kept: 1 if its key is kept after it has ended.
    scheduled_for: the tick of the schedule that sent it.
    tries: the failed ones, oldest first. items: those of its fan-outs, None if it has none. `show`
    reads both, lists do not. ending: of a dead one. cancel: a request to cancel it that is not
    settled; `show` reads it. trace_id: of the trace in which it was sent, 32 hexadecimal digits;
    None if its headers have none; `show` reads it.
    odd: by column (as in this class) what stands in the row and is no such value, as text; it
    reads as None, a counter as 0, and a text that is not UTF-8 with escapes. Names and errors of
    more than 2,000 characters are cut there, and end with "…".
    """

    msg_id: int
    object_id: str | None
    topic: str | None
    status: State
    error_try_times: int
    payload: str | None = None
    available_at: datetime | None = None
    claimed_by: str | None = None
    claimed_at: datetime | None = None
    crash_times: int | None = None
    last_error: str | None = None
    created_at: datetime | None = None
    finished_at: datetime | None = None
    later_times: int | None = None
    later_reason: str | None = None
    priority: int | None = None
    unique_key: str | None = None
    unique_kept: int | None = None
    scheduled_for: datetime | None = None
    tries: tuple[Try, ...] = ()
    items: Items | None = None
    odd: Mapping[str, str] = field(default_factory=dict)
    ending: Ending | None = None
    cancel: Request | None = None
    trace_id: str | None = None


_ROLES = (
    "msg_id",
    "object_id",
    "topic",
    "status",
    "error_try_times",
    "payload",
    "available_at",
    "claimed_by",
    "claimed_at",
    "crash_times",
    "last_error",
    "created_at",
    "finished_at",
    "later_times",
    "priority",
    "unique_key",
    "unique_kept",
    "scheduled_for",
    "headers",
)


_INSTANTS = ("available_at", "claimed_at", "created_at", "finished_at", "scheduled_for")
_NUMBERS = (
    "msg_id",
    "error_try_times",
    "crash_times",
    "later_times",
    "priority",
    "unique_kept",
)
_WHOLE_ONLY = ("payload", "headers")
"""What is read of one message, not of those of a list."""
_FOR_PEOPLE = ("topic", "claimed_by", "last_error", "unique_key")
_TEXTS = ("object_id", *_FOR_PEOPLE)


def columns_of(c: Cols, *, payload: bool) -> list[ColumnElement[Any]]:
    columns: list[ColumnElement[Any]] = []
    for role in _ROLES:
        column = getattr(c, role)
        if column is None or (role in _WHOLE_ONLY and not payload):
            column = sa.null()
        elif role in _INSTANTS:
            column = instant_text(column)
        elif role == "payload":
            column = sa.func.substr(sa.cast(column, sa.Text()), 1, 10_000)
        elif role == "headers":
            plain = isinstance(column.type, sa.String)
            text = column if plain else sa.cast(column, sa.Text())
            column = sa.case((text_length(text) <= sa.literal_column(str(MAX_HEADERS)), text))
        elif role in _TEXTS:
            column = beginning(column)
        columns.append(column.label(f"f{len(columns)}"))
    return columns


def info_of(t: Tables, row: Any) -> MessageInfo:
    values = dict(zip(_ROLES, row, strict=True))
    trace_id = trace_id_of(values.pop("headers"))
    odd: dict[str, str] = {}
    raw_status = values["status"]
    for role, value in values.items():
        if value is None or role == "status":
            continue
        if role in _TEXTS:
            value = values[role] = told(value)
        if role in _INSTANTS:
            values[role] = _instant(t, role, value)
        elif role in _NUMBERS:
            values[role] = whole_number(value)
        elif role in _FOR_PEOPLE and isinstance(value, bytes):  # a BLOB (SQLite)
            odd[role] = f"{quoted(value)}, which is not a text"
            values[role] = shown(value, len(value))
        elif isinstance(value, str) and not is_text(value):
            held = "a text" if role == "payload" else quoted(value)  # it is shown on request only
            odd[role] = f"{held}, which is not UTF-8"
            values[role] = shown(value, len(value))
        if values[role] is None:
            odd[role] = quoted(value)
    # In SQL their comparison finds no tries left, so the state must be dead here, too.
    tries = t.spec.max_tries if "error_try_times" in odd else values["error_try_times"]
    values["status"] = word_of(raw_status, tries, t.spec.max_tries)
    if values["status"] is State.UNKNOWN and raw_status is not None:
        odd["status"] = quoted(raw_status)
    values["error_try_times"] = values["error_try_times"] or 0
    if (values["last_error"] or "").startswith(LATER):
        values["later_reason"] = values["last_error"].removeprefix(LATER)
        values["last_error"] = None
    return MessageInfo(**values, odd=odd, trace_id=trace_id)


def _instant(t: Tables, role: str, value: Any) -> datetime | None:
    try:
        return read_instant(value, kind_of(getattr(t.cols(), role)).zone)
    except ValueError:
        return None
