"""The base of all calls of ops."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import sqlalchemy as sa
from sqlalchemy import Connection

from msgworker.dialects import connecting
from msgworker.schedules import Schedule
from msgworker.table import MessageTable, Tables


class Call:
    """The database and its tables, which are read when first needed.

    names_rule: whether max_tries and on_dead of `spec` were given explicitly. declared: the
    schedules of the App; None if it says nothing of that.
    """

    def __init__(
        self,
        engine: sa.Engine,
        tables: Callable[[], Tables],
        spec: MessageTable,
        *,
        names_rule: bool = True,
        declared: Callable[[], Sequence[Schedule] | None] | None = None,
    ) -> None:
        self._engine = engine
        self.read_tables = tables
        self._spec = spec
        self._names_rule = names_rule
        self._schedules = declared
        self._found: Tables | None = None  # newer than those of the App

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
            yield conn, tables
