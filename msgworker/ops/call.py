"""What every call of ops needs."""

from __future__ import annotations

import sqlalchemy as sa

from msgworker.table import Tables


class Call:
    """The database and the tables it works on."""

    def __init__(self, engine: sa.Engine, tables: Tables) -> None:
        self._engine = engine
        self._tables = tables
