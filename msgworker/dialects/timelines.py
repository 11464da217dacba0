"""The timelines of PostgreSQL: each promotion of a standby begins a new one, with a higher number;
the old primary stays on the older one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_ASK = (
    "SELECT s.system_identifier, CASE WHEN pg_catalog.pg_is_in_recovery() THEN NULL"
    " ELSE pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()) END"
    " FROM pg_catalog.pg_control_system() s"
)
"""A name of a WAL file begins with the timeline that is written to, in eight hexadecimal digits."""
_ASK_OTHER = (
    "SELECT s.system_identifier, c.timeline_id"
    " FROM pg_catalog.pg_control_system() s, pg_catalog.pg_control_checkpoint() c"
)
"""That of its last checkpoint, also of a standby; it may be on a newer one by now."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """cluster: the identifier that a primary and its standbys share."""

    cluster: int
    number: int


class Timelines:
    """The newest one that was seen."""

    def __init__(self) -> None:
        self.tells = True
        self._newest: Timeline | None = None

    def ask(self, cursor: Any) -> Timeline | None:
        cursor.execute(_ASK)
        cluster, file = cursor.fetchone()
        return None if file is None else Timeline(int(cluster), int(file[:8], 16))

    def is_old(self, found: Timeline) -> bool:
        seen = self._newest
        # A database with another identifier, as after a restore, is another database.
        return seen is not None and seen.cluster == found.cluster and found.number < seen.number

    def sees(self, found: Timeline) -> bool:
        newer = self._newest is not None and self._newest != found
        self._newest = found
        return newer

    def ask_other(self, cursor: Any) -> Timeline | None:
        found = self.ask(cursor)
        if found is None:
            cursor.execute(_ASK_OTHER)
            found = Timeline(*(int(one) for one in cursor.fetchone()))
        return found

    def hears(self, found: Timeline) -> None:
        seen = self._newest
        if seen is None or (seen.cluster == found.cluster and seen.number < found.number):
            self._newest = found

    def is_settled(self) -> bool:
        return True

    def words(self, found: Timeline) -> str | None:
        if found.number == 1:
            return None
        return f"on timeline {found.number}; a primary that it replaced has a lower one"

    def words_of_old(self, found: Timeline) -> str:
        newest = found.number if self._newest is None else self._newest.number
        return (
            f"the server is on timeline {found.number}, but there is timeline {newest} of the same "
            "database"
        )
