"""The columns of the message table by role, and constants in expressions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy import ColumnElement

from msgworker.message import Status


@dataclass(frozen=True, slots=True)
class Slice:
    """The messages whose column `role` (shard or instance_type) holds one of `values`.

    exclusive: no other instance is meant to look there now.
    """

    role: str
    values: tuple[Any, ...]
    exclusive: bool = True


@dataclass(frozen=True, slots=True)
class Cols:
    """The columns of the message table, or of an alias of it, by role; None = no column."""

    msg_id: ColumnElement[int]
    object_id: ColumnElement[str | None]
    status: ColumnElement[int]
    error_try_times: ColumnElement[int]
    topic: ColumnElement[Any] | None = None
    payload: ColumnElement[Any] | None = None
    available_at: ColumnElement[Any] | None = None
    claimed_by: ColumnElement[Any] | None = None
    claimed_at: ColumnElement[Any] | None = None
    crash_times: ColumnElement[Any] | None = None
    later_times: ColumnElement[Any] | None = None
    last_error: ColumnElement[Any] | None = None
    created_at: ColumnElement[Any] | None = None
    finished_at: ColumnElement[Any] | None = None
    shard: ColumnElement[Any] | None = None
    instance_type: ColumnElement[Any] | None = None
    priority: ColumnElement[Any] | None = None
    unique_key: ColumnElement[Any] | None = None
    unique_kept: ColumnElement[Any] | None = None
    scheduled_for: ColumnElement[Any] | None = None
    headers: ColumnElement[Any] | None = None


def lit(status: Status) -> ColumnElement[int]:
    """A status as a literal in the SQL text."""
    return sa.literal_column(str(int(status)), sa.Integer())


def text_lit(text: str) -> ColumnElement[str]:
    """One of our own constants as a literal in the SQL text."""
    return sa.literal(text, sa.String(), literal_execute=True)
