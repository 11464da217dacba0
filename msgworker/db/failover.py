"""Failovers: a standby takes no writes until it is promoted, and an old primary that comes back is
refused.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterator
from contextlib import closing, suppress
from math import inf
from typing import Any, Generic, Protocol, TypeVar

import sqlalchemy as sa
from sqlalchemy import event

from msgworker.db.database import Database, of
from msgworker.db.errors import masked
from msgworker.db.poolers import shares_sessions
from msgworker.errors import DatabaseUnavailable
from msgworker.logs import Said, logger
from msgworker.processlock import ProcessLock

# --- A standby takes no writes until it is promoted: an outage, which passes, and not a refusal,
# which ends the run. What a standby is, and whether the server must be asked, says the Database.

ROLLED_BACK = "msgworker_rolled_back"
"""Set in the attributes of a connection whose transaction is over though it does not show it."""


def notice_standby(engine: sa.Engine) -> None:
    """From now on what a standby refuses is a lost connection: the next one may lead to the
    primary. For PostgreSQL, MariaDB and MySQL."""
    event.listen(engine, "handle_error", _caught)


def refuse_standby(conn: sa.Connection) -> None:
    """Close `conn`, which is new, and raise DatabaseUnavailable if its server is a standby. One of
    PostgreSQL that has reported so is asked itself."""
    raw: Any = conn.connection.driver_connection
    database = of(conn)
    if database.may_be_standby(raw) and _is_standby(database, raw):
        with suppress(Exception):
            conn.invalidate()
        conn.close()
        where = masked(conn.engine.url)
        raise DatabaseUnavailable(
            f"cannot use the database {where}: the server is {database.standby}"
        )


def _caught(context: Any) -> None:
    conn, error = context.connection, context.original_exception
    if conn is None or conn.invalidated or not of(conn).refuses_writes(error):
        return
    if conn.in_nested_transaction():  # a rollback to a savepoint must remain possible
        return
    vars(conn)[ROLLED_BACK] = context.sqlalchemy_exception
    database, raw = of(conn), conn.connection.driver_connection
    if conn.dialect.is_async:  # SQLAlchemy's, whose calls wait in the loop
        raw = conn.connection.dbapi_connection
    if database.refusal_is_of_standby or _is_standby(database, raw):
        context.is_disconnect = True


def _is_standby(database: Database, raw: Any) -> bool:
    """Ask the server. What the transaction did is rolled back: it is new, or an error has ended
    it."""
    try:
        raw.rollback()
        with closing(raw.cursor()) as cursor:
            cursor.execute(database.standby_query)
            found = cursor.fetchone()[0]
        raw.rollback()
    except Exception:  # it is broken, which the next statement shows
        return False
    return found not in (False, None) and str(found).upper() not in ("0", "OFF")


# --- Which server was made the primary after which: an old one that comes back takes writes, which
# no other server will have.
#
# A server says something of its past by which it is known whether it lacks what another one, which
# replaced it, has: its timeline (postgresql.py), or who wrote its log (mysql_servers.py). So an
# engine whose connections have led to the newer primary does not work on the older one: that is an
# outage. This is known to the engine alone, as long as the process lives. One that is new has
# nothing to compare, unless its URL names other servers: they are asked.

_SEEN = "msgworker_turn"
"""In the `info` of a connection: the turn in which its server was asked."""
ASKED_SECONDS = 10.0
"""New connections within so many seconds do not ask the other servers again."""
_log = logger("msgworker.dialects")
PATIENCE_SECONDS = 2
"""For the other servers."""
F = TypeVar("F")


class Past(Protocol[F]):
    """What was seen of the primaries of one database. F: what a server says of its past.

    tells: whether servers like these can say it; if not, they are not asked again.
    """

    tells: bool

    def ask(self, cursor: Any) -> F | None:
        """None = unknown."""

    def is_untold(self, error: Exception) -> bool:
        """Whether an error of `ask` means that such servers cannot say it."""

    def is_old(self, found: F) -> bool:
        """Whether a server that takes writes was replaced by another one, which was seen."""

    def sees(self, found: F) -> bool:
        """Remember one that is not old. Whether it has replaced the one that was seen before: then
        connections that are open may lead to that."""

    def ask_other(self, cursor: Any) -> F | None:
        """Like `ask`, of a server that may be a standby."""

    def hears(self, found: F) -> None:
        """Remember what another server says, which is not in use."""

    def is_settled(self) -> bool:
        """Whether the one that was seen last can be known from older ones; else it is asked
        again."""

    def words(self, found: F) -> str | None:
        """For people, of one that is not old; None = there is nothing to say."""

    def words_of_old(self, found: F) -> str:
        """Why it is."""


class Succession(Generic[F]):
    """Of one engine; read by all threads that use it.

    turn: changes when connections that are open may lead to another server than new ones do: who
    holds one closes it.
    """

    def __init__(self, past: Past[F]) -> None:
        self.turn = 0
        self._past = past
        self._refuses = False
        self._lock = ProcessLock()
        self._asking = ProcessLock()
        self._asked_at = -inf  # the other servers

    def check(self, conn: sa.Connection) -> int:
        """Of `conn`, which was just taken from its pool and has no transaction. If its server is an
        old primary, close it and raise DatabaseUnavailable. Returns the turn for which it is good,
        which may be over by now."""
        turn = self.turn
        if not self._past.tells or conn.info.get(_SEEN) == turn:
            return turn
        turn = self._compare(conn, new=True)
        if not shares_sessions(conn):
            conn.info[_SEEN] = turn
        return turn

    def check_again(self, conn: sa.Connection) -> None:
        """The same of a connection in use, without a transaction, where that may say more than it
        did: behind a pooler, where the server may be another than before, and nothing shows it; and
        while a new primary has written nothing. Elsewhere nothing is asked."""
        if self._past.tells and (shares_sessions(conn) or not self._past.is_settled()):
            self._compare(conn)

    def words(self, conn: sa.Connection) -> tuple[bool, str] | None:
        """For people: whether the server of `conn`, which has no transaction, is an old primary,
        and why; None = nothing is known of it."""
        past, found = self._past, self._ask(conn.connection.driver_connection)
        if found is None:
            return None
        self._ask_others(conn)
        with self._lock:
            if past.is_old(found):
                return True, past.words_of_old(found)
            text = past.words(found)
            return None if text is None else (False, text)

    def _ask_others(self, conn: sa.Connection) -> None:
        """A thread that comes meanwhile waits for what they say."""
        with self._asking:
            if time.monotonic() - self._asked_at < ASKED_SECONDS:
                return
            for raw in others(conn):
                found = self._ask(raw, other=True)
                if found is not None:
                    with self._lock:
                        self._past.hears(found)
            self._asked_at = time.monotonic()

    def _compare(self, conn: sa.Connection, *, new: bool = False) -> int:
        turn, past = self.turn, self._past
        found = self._ask(conn.connection.driver_connection)
        if found is None:
            return turn
        if new:
            self._ask_others(conn)
        with self._lock:
            if not past.is_old(found):
                self.turn += past.sees(found)
                self._refuses = False
                return self.turn
            text = past.words_of_old(found)
            told, self._refuses = self._refuses, True
            # Behind a pooler all others may lead there, too.
            self.turn += not told and shares_sessions(conn)
        raise self._refused(conn, text, told)

    @staticmethod
    def _refused(conn: sa.Connection, text: str, told: bool) -> DatabaseUnavailable:
        where = masked(conn.engine.url)
        with suppress(Exception):
            conn.invalidate()
        conn.close()
        text = f"{text}: it is an old primary, which was replaced"
        if not told:
            _log.error(
                "cannot use the database %s: %s. Nothing is handled until connections lead to the "
                "newer one again; to continue with the old one, restart with a url that names no "
                "other host, see docs/operate/failover.md",
                where,
                text,
                extra={"event": Said.PRIMARY_OLD},
            )
        return DatabaseUnavailable(f"cannot use the database {where}: {text}")

    def _ask(self, raw: Any, *, other: bool = False) -> F | None:
        """None = unknown."""
        past = self._past
        if not past.tells:
            return None
        try:
            try:
                with raw.cursor() as cursor:
                    return past.ask_other(cursor) if other else past.ask(cursor)
            finally:
                raw.rollback()  # fails where the connection is broken: the next statement shows it
        except Exception as error:
            if not other and past.is_untold(error):
                past.tells = False
            return None


def others(conn: sa.Connection) -> Iterator[Any]:
    """The driver's connections to those that can be reached, one after the other; each is closed
    when the next one is asked for."""
    for connect in of(conn).other_servers(conn):
        try:
            raw = connect()
        except Exception:  # it is away: nothing is known of it
            continue
        try:
            yield raw
        finally:
            with suppress(Exception):
                raw.close()


class _Mute:
    """Of databases of whose servers nothing is known."""

    tells = False

    def ask(self, cursor: Any) -> None:
        return None

    def is_untold(self, error: Exception) -> bool:
        return False

    def is_old(self, found: None) -> bool:
        return False

    def sees(self, found: None) -> bool:
        return False

    def ask_other(self, cursor: Any) -> None:
        return None

    def hears(self, found: None) -> None:
        pass

    def is_settled(self) -> bool:
        return True

    def words(self, found: None) -> None:
        return None

    def words_of_old(self, found: None) -> str:
        return ""


_NONE: Succession[Any] = Succession(_Mute())
_known: weakref.WeakKeyDictionary[sa.Dialect, Succession[Any]] = weakref.WeakKeyDictionary()
_making = ProcessLock()


def succession_of(engine: sa.Engine) -> Succession[Any]:
    """The one of this engine, and of those that share its connections."""
    past = of(engine).new_past()
    if past is None:
        return _NONE
    with _making:
        return _known.setdefault(engine.dialect, Succession(past))
