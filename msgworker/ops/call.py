"""The base of all calls of ops."""

from __future__ import annotations

from collections.abc import Callable

import sqlalchemy as sa

from msgworker.table import MessageTable, Tables


class Call:
    """The database and its tables, which are read when first needed.

    names_rule: whether max_tries and on_dead of `spec` were given explicitly.
    """

    def __init__(
        self,
        engine: sa.Engine,
        tables: Callable[[], Tables],
        spec: MessageTable,
        *,
        names_rule: bool = True,
    ) -> None:
        self._engine = engine
        self.read_tables = tables
        self._spec = spec
        self._names_rule = names_rule
        self._found: Tables | None = None  # newer than those of the App

    @property
    def _tables(self) -> Tables:
        return self._found or self.read_tables()
