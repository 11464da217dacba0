"""An old primary of PostgreSQL that comes back: it takes writes, which no other server will have.

Each promotion of a standby begins a new timeline, with a higher number; the old primary stays on
the older one. So an engine whose connections have led to the newer timeline of a database cluster
does not work on an older one: that is an outage. This is known to the engine alone, as long as the
process lives: one that is new has nothing to compare.
"""

from __future__ import annotations

import threading
import weakref
from contextlib import suppress
from typing import Any

import sqlalchemy as sa

from msgworker.dialects.codes import code_of
from msgworker.dialects.masking import masked
from msgworker.dialects.poolers import shares_sessions
from msgworker.errors import DatabaseUnavailable
from msgworker.logs import Said, logger

_ASK = (
    "SELECT s.system_identifier, CASE WHEN pg_catalog.pg_is_in_recovery() THEN NULL"
    " ELSE pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()) END"
    " FROM pg_catalog.pg_control_system() s"
)
"""A name of a WAL file begins with the timeline that is written to, in eight hexadecimal digits."""
_SEEN = "msgworker_turn"
"""In the `info` of a connection: the turn in which its server was asked."""
_log = logger("msgworker.dialects")


class Timeline:
    """The newest timeline that connections of one engine have led to.

    turn: changes when connections that are open may lead to another server than new ones do: who
    holds one closes it. Read by all threads that use the engine.
    """

    def __init__(self, *, asks: bool) -> None:
        """asks: False = there are no timelines."""
        self.turn = 0
        self._asks = asks
        self._server: int | None = None
        self._newest = 0
        self._refuses = False
        self._lock = threading.Lock()

    def check(self, conn: sa.Connection) -> int:
        """Of `conn`, which was just taken from its pool and has no transaction. If its server is on
        an older timeline, close it and raise DatabaseUnavailable. Returns the turn for which it is
        good, which may be over by now."""
        turn = self.turn
        if not self._asks or conn.info.get(_SEEN) == turn:
            return turn
        turn = self._compare(conn)
        if not shares_sessions(conn):
            conn.info[_SEEN] = turn
        return turn

    def check_behind_pooler(self, conn: sa.Connection) -> None:
        """The same of a connection in use, without a transaction, where the server behind it may be
        another than before, and nothing shows it; elsewhere nothing is asked."""
        if self._asks and shares_sessions(conn):
            self._compare(conn)

    def place(self, conn: sa.Connection) -> tuple[int, int] | None:
        """For people: the timeline of the server of `conn`, which has no transaction, and the
        newest one of it that was seen; None = unknown."""
        found = self._ask(conn.connection.driver_connection) if self._asks else None
        if found is None:
            return None
        server, timeline = found
        return timeline, max(timeline, self._newest if server == self._server else 0)

    def _compare(self, conn: sa.Connection) -> int:
        turn = self.turn
        found = self._ask(conn.connection.driver_connection)
        if found is None:
            return turn
        server, timeline = found
        with self._lock:
            if server != self._server:  # a standby of it would have the same number
                self.turn += self._server is not None
                self._server, self._newest, self._refuses = server, timeline, False
                return self.turn
            if timeline >= self._newest:
                self.turn += timeline > self._newest
                self._newest, self._refuses = timeline, False
                return self.turn
            newest, told, self._refuses = self._newest, self._refuses, True
            # Behind a pooler all others may lead there, too.
            self.turn += not told and shares_sessions(conn)
        raise self._refused(conn, timeline, newest, told)

    @staticmethod
    def _refused(
        conn: sa.Connection, timeline: int, newest: int, told: bool
    ) -> DatabaseUnavailable:
        where = masked(conn.engine.url)
        with suppress(Exception):
            conn.invalidate()
        conn.close()
        text = (
            f"the server is on timeline {timeline}, but this process has worked on timeline "
            f"{newest} of the same database: it is an old primary, which was replaced"
        )
        if not told:
            _log.error(
                "cannot use the database %s: %s. Nothing is handled until connections lead to the "
                "newer one again; to go on with the old one, restart, see docs/failover.md",
                where,
                text,
                extra={"event": Said.PRIMARY_OLD},
            )
        return DatabaseUnavailable(f"cannot use the database {where}: {text}")

    def _ask(self, raw: Any) -> tuple[int, int] | None:
        """The server's identifier, which its standbys share, and its timeline; None = unknown. What
        a server cannot tell, or may not, is not asked again."""
        try:
            try:
                with raw.cursor() as cursor:
                    cursor.execute(_ASK)
                    server, file = cursor.fetchone()
            finally:
                raw.rollback()  # fails where the connection is broken: the next statement shows it
        except Exception as error:
            if code_of(error)[1] in _UNTOLD:
                self._asks = False
            return None
        return None if file is None else (int(server), int(file[:8], 16))


_UNTOLD = ("42501", "42883", "42P01", "0A000", "3F000")
"""A missing right, function, table or schema; not supported."""
_NONE = Timeline(asks=False)
_known: weakref.WeakKeyDictionary[sa.Dialect, Timeline] = weakref.WeakKeyDictionary()
_making = threading.Lock()


def timeline_of(engine: sa.Engine) -> Timeline:
    """The one of this engine, and of those that share its connections."""
    if engine.dialect.name != "postgresql":
        return _NONE
    with _making:
        return _known.setdefault(engine.dialect, Timeline(asks=True))
