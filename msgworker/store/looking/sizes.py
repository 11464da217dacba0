"""How many bytes the message table and the tables beside it take."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection

from msgworker import dialects
from msgworker.store.looking.counts import Exact
from msgworker.store.tables import ddl_script
from msgworker.table import Tables


@dataclass(frozen=True, slots=True)
class TableSize:
    """A table. table_bytes: of its rows; index_bytes: of its indexes; None = unknown, or the table
    is not there."""

    name: str
    table_bytes: int | None
    index_bytes: int | None


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes in bytes, the message table first.

    exact: "exact", or "about" where they are from statistics (MariaDB, MySQL). file_bytes: of the
    whole file on SQLite, with all its tables; None on a server.
    """

    tables: tuple[TableSize, ...]
    exact: Exact
    file_bytes: int | None

    @property
    def total_bytes(self) -> int | None:
        """Of the file, or of all tables whose size is known; None if none is."""
        known = [one.table_bytes for one in self.tables if one.table_bytes is not None]
        known += [one.index_bytes for one in self.tables if one.index_bytes is not None]
        return self.file_bytes if self.file_bytes is not None else sum(known) if known else None


def read(conn: Connection, t: Tables) -> Sizes:
    """A statement for each table on a server, none of which reads a table."""
    found = []
    for table in (t.message, *ddl_script.own_tables(t)):
        size = dialects.table_size(conn, table)
        found.append(TableSize(table.name, *(size or (None, None))))
    exact = Exact.EXACT if dialects.sizes_are_exact(conn) else Exact.ABOUT
    return Sizes(tuple(found), exact, dialects.file_size(conn))
