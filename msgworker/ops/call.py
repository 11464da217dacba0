"""What every call of ops needs."""

from __future__ import annotations

from collections.abc import Callable

import sqlalchemy as sa

from msgworker.table import MessageTable, Tables


class Call:
    """The database and the tables it works on; they are read when they are needed first.

    names_rule: whether max_tries and on_dead of `spec` were given by somebody.
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
        self._read_tables = tables
        self._spec = spec
        self._names_rule = names_rule
        self._found: Tables | None = None  # newer than what the App has read

    @property
    def _tables(self) -> Tables:
        return self._found or self._read_tables()
