"""The base of all calls of ops."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import sqlalchemy as sa
from sqlalchemy import Connection

from msgworker.config import HISTORY_SECONDS, number
from msgworker.dialects import connecting
from msgworker.ops.timing import Clock, timed
from msgworker.schedules import Schedule
from msgworker.table import MessageTable, Tables
from msgworker.tracing import UNTRACED, NoTracer

MOST_SECONDS = 3600.0
C = TypeVar("C", bound="Call")


class Call:
    """The database and its tables, which are read when first needed.

    names_rule: whether max_tries and on_dead of `spec` were given explicitly. declared: the
    schedules of the App; None if it says nothing of that. history_seconds: how long the history for
    charts is kept. tracer: makes spans for what is sent, or not.
    """

    def __init__(
        self,
        engine: sa.Engine,
        tables: Callable[[], Tables],
        spec: MessageTable,
        *,
        names_rule: bool = True,
        declared: Callable[[], Sequence[Schedule] | None] | None = None,
        history_seconds: float = HISTORY_SECONDS,
        tracer: NoTracer | None = None,
    ) -> None:
        self._engine = engine
        self.read_tables = tables
        self._spec = spec
        self._names_rule = names_rule
        self._schedules = declared
        self._history_seconds = history_seconds
        self._tracer = tracer or UNTRACED
        self._found: Tables | None = None  # newer than those of the App
        self._seconds: float | None = None
        self._counting: float | None = None

    def within(self: C, seconds: float, *, counting: float | None = None) -> C:
        """The same calls, whose reads the database ends after so many seconds (0.001 to 3,600).

        Such a read raises TookTooLong. Each statement has this time; on SQLite the whole read has.
        A dry run has it in all, and tells what it has counted by then (`Repaired.complete`). So has
        what a write counts for `expected_count`; the write itself has no deadline. counting: a dry
        run by a filter stops after the part in which so many seconds have passed: parts are small
        at first, so that a page can show it at once. Raises ConfigError.
        """
        other = copy.copy(self)
        other._seconds = number("seconds", seconds, 0.001, MOST_SECONDS)
        if counting is not None:
            other._counting = number("counting", counting, 0.001, MOST_SECONDS)
        return other

    def _declared(self) -> Sequence[Schedule] | None:
        return None if self._schedules is None else self._schedules()

    @property
    def _tables(self) -> Tables:
        return self._found or self.read_tables()

    @contextmanager
    def _reading(self) -> Iterator[tuple[Connection, Tables]]:
        """A connection to read with, and the tables. Those come first: their rule may be read again
        on a connection of its own, and a pool may have only one."""
        tables = self._tables
        with connecting(self._engine) as conn:
            if self._seconds is None:
                yield conn, tables
                return
            with timed(conn, self._seconds, self._seconds):
                yield conn, tables

    @property
    def _clock(self) -> Clock:
        """The time that a dry run has from now on."""
        return Clock(self._seconds, self._counting)
