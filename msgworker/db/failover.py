"""Failovers: a standby takes no writes until it is promoted, and an old primary that comes back is
refused.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from typing import Any, Generic, Protocol, TypeVar

import sqlalchemy as sa
from sqlalchemy import event

from msgworker.db.database import of_dialect
from msgworker.db.errors import code_of, masked
from msgworker.db.hosts import others
from msgworker.db.poolers import shares_sessions
from msgworker.errors import DatabaseUnavailable
from msgworker.logs import Said, logger
from msgworker.processlock import ProcessLock

# --- A standby takes no writes until it is promoted: an outage, which passes, and not a refusal,
# which ends the run. On MariaDB and MySQL that is a server with `read_only`, as replicas have it:
# what it is besides, a login without further rights cannot ask.
#
# What a connection of PostgreSQL was told when it was opened (`in_hot_standby`, version 14 and
# later) is only a hint: a pooler repeats what it was told itself, perhaps before a promotion. The
# server is asked.

ROLLED_BACK = "msgworker_rolled_back"
"""Set in the attributes of a connection whose transaction is over though it does not show it."""


def notice_standby(engine: sa.Engine) -> None:
    """From now on what a standby refuses is a lost connection: the next one may lead to the
    primary. For PostgreSQL, MariaDB and MySQL."""
    event.listen(engine, "handle_error", _caught)


def refuse_standby(conn: sa.Connection) -> None:
    """Close `conn`, which is new, and raise DatabaseUnavailable if its server is a standby. One of
    PostgreSQL is asked if it has told so."""
    raw: Any = conn.connection.driver_connection
    if conn.dialect.name in _READ_ONLY:
        why = "read-only, as a standby is"
    elif conn.dialect.name == "postgresql" and _told(raw) == "on":
        why = "a standby"
    else:
        return
    if _is_standby(conn.dialect.name, raw):
        with suppress(Exception):
            conn.invalidate()
        conn.close()
        where = masked(conn.engine.url)
        raise DatabaseUnavailable(f"cannot use the database {where}: the server is {why}")


def _told(raw: Any) -> str | None:
    """What the server has told about being a standby: on, off, or None = nothing."""
    ask = getattr(getattr(raw, "info", None), "parameter_status", None)
    try:
        return None if ask is None else ask("in_hot_standby")
    except Exception:  # the connection is closed
        return None


def _caught(context: Any) -> None:
    conn, error = context.connection, context.original_exception
    if conn is None or conn.invalidated or not of_dialect(conn.dialect).refuses_writes(error):
        return
    if conn.in_nested_transaction():  # a rollback to a savepoint must remain possible
        return
    vars(conn)[ROLLED_BACK] = context.sqlalchemy_exception
    name, raw = conn.dialect.name, conn.connection.driver_connection
    if name in _READ_ONLY or _is_standby(name, raw):
        context.is_disconnect = True


_READ_ONLY = ("mysql", "mariadb")


def _is_standby(name: str, raw: Any) -> bool:
    """Ask the server. What the transaction did is rolled back: it is new, or an error has ended
    it."""
    query = "@@global.read_only" if name in _READ_ONLY else "pg_catalog.pg_is_in_recovery()"
    try:
        raw.rollback()
        with raw.cursor() as cursor:
            cursor.execute(f"SELECT {query}")
            found = cursor.fetchone()[0]
        raw.rollback()
    except Exception:  # it is broken, which the next statement shows
        return False
    return found not in (False, None) and str(found).upper() not in ("0", "OFF")


# --- The timelines of PostgreSQL: each promotion of a standby begins a new one, with a higher
# number; the old primary stays on the older one.

_ASK_TIMELINE = (
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
        cursor.execute(_ASK_TIMELINE)
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


# --- The primaries of MariaDB and MySQL by what they wrote: each transaction in the binary log has
# the id of the server that first committed it, and a number (GTID). On MariaDB the numbers ascend
# over all servers; on MySQL each server counts its own.
#
# What a server wrote since it became the primary is its reign. An old primary that comes back
# lacks the whole reign of the one that replaced it. Who has a part of it has followed that one,
# even if an asynchronous replica lacks the end of it.

_ASK = (
    "SHOW GLOBAL VARIABLES WHERE variable_name IN"
    " ('server_id', 'gtid_domain_id', 'gtid_binlog_state', 'gtid_slave_pos', 'wsrep_on',"
    " 'server_uuid', 'gtid_executed', 'group_replication_group_name')"
)
"""So that one without such a variable can be asked, too."""


@dataclass(frozen=True, slots=True)
class Reign:
    """What this server wrote after the number `after`."""

    writer: int | str
    after: int


@dataclass(frozen=True, slots=True)
class Log:
    """What a server has: the last number of each server that wrote in its own domain. apart: each
    of them counts its own."""

    server: int | str
    domain: int
    last: Mapping[int | str, int] = field(hash=False)
    apart: bool = False

    def latest(self) -> Reign:
        """The reign of the server that wrote last."""
        writer = max(self.last, key=lambda server: self.last[server])
        return Reign(writer, max((n for s, n in self.last.items() if s != writer), default=0))

    def has_of(self, reign: Reign) -> bool:
        """Whether it has any of it."""
        return self.last.get(reign.writer, 0) > reign.after


class Reigns:
    """The latest one that was seen, and who ever wrote."""

    def __init__(self) -> None:
        self.tells = True
        self._domain = 0
        self._latest: Reign | None = None
        self._writers: frozenset[int | str] = frozenset()
        self._primary: int | str | None = None
        self._server: int | str | None = None  # the one that was asked last
        # Where each counts its own: what the last one had, and its reign.
        self._had: Mapping[int | str, int] = {}
        self._began: Reign | None = None

    def ask(self, cursor: Any) -> Log | None:
        told = _variables(cursor)
        self.tells = _compares(told)
        return _log_of(told)

    def is_old(self, found: Log) -> bool:
        seen = self._latest
        if seen is None or found.domain != self._domain or found.server == seen.writer:
            return False
        # One that never wrote replaces the others, whatever it lacks.
        return found.server in self._writers and not found.has_of(seen)

    def sees(self, found: Log) -> bool:
        if found.domain != self._domain:
            self._latest, self._writers = None, frozenset()
        seen, latest, before = self._latest, self._latest_of(found), self._primary
        if seen is None or found.has_of(seen) or found.server in (seen.writer, latest.writer):
            self._latest = latest
        new = found.server not in self._writers or latest.writer == found.server
        if new or found.apart:
            self._primary = found.server
        self._writers |= {found.server, *found.last}
        self._had = found.last
        self._domain, self._server = found.domain, found.server
        return before not in (None, self._primary)

    def _latest_of(self, found: Log) -> Reign:
        if not found.apart:
            return found.latest()
        if self._began is None or found.server != self._primary:
            before = found.last if self._primary is None else self._had
            self._began = Reign(found.server, before.get(found.server, 0))
        # Until it has written it may yet be the one before that reigns.
        return self._began if found.has_of(self._began) else self._latest or self._began

    def ask_other(self, cursor: Any) -> Log | None:
        return _log_of(_variables(cursor))

    def hears(self, found: Log) -> None:
        if found.apart:  # replicas there often have transactions of their own, from their set-up
            return
        if self._latest is None:
            self._domain = found.domain
        elif found.domain != self._domain or not found.has_of(self._latest):
            return
        self._latest = found.latest()
        self._writers |= found.last.keys()

    def is_settled(self) -> bool:
        return self._latest is None or self._latest.writer == self._server

    def words(self, found: Log) -> str | None:
        if len(found.last) == 1:
            return None
        writer = found.latest().writer
        return f"server {writer} is the last that became the primary; older ones lack what it wrote"

    def words_of_old(self, found: Log) -> str:
        writer = None if self._latest is None else self._latest.writer
        return (
            f"server {found.server} lacks all that server {writer} wrote since that became the "
            "primary"
        )


def _variables(cursor: Any) -> dict[str, str]:
    cursor.execute(_ASK)
    return {str(name).lower(): str(value) for name, value in cursor.fetchall()}


def _compares(told: dict[str, str]) -> bool:
    """Not without a log, and in a cluster, whose nodes may all write: Galera, Group Replication."""
    if told.get("gtid_executed"):
        return not told.get("group_replication_group_name")
    return bool(told.get("gtid_binlog_state")) and told.get("wsrep_on") != "ON"


def _log_of(told: dict[str, str]) -> Log | None:
    if not _compares(told):
        return None
    last: dict[int | str, int] = {}
    if told.get("gtid_executed"):
        for text in told["gtid_executed"].split(","):
            server, *parts = text.strip().split(":")
            # A part with letters is a tag: what has one is counted apart by the server, too.
            numbers = [int(part.split("-")[-1]) for part in parts if part[:1].isdigit()]
            last[server] = max([*numbers[-1:], last.get(server, 0)])
        return Log(told["server_uuid"], 0, last, apart=True)
    domain = int(told["gtid_domain_id"])
    for text in f"{told['gtid_binlog_state']},{told['gtid_slave_pos']}".split(","):
        of, _, rest = text.partition("-")
        if rest and int(of) == domain:
            writer, number = (int(part) for part in rest.split("-"))
            last[writer] = max(number, last.get(writer, 0))
    return Log(int(told["server_id"]), domain, last) if last else None


# --- Which server was made the primary after which: an old one that comes back takes writes, which
# no other server will have.
#
# A server says something of its past by which it is known whether it lacks what another one, which
# replaced it, has: its timeline (failover.py), or who wrote its log (failover.py). So an engine
# whose connections have led to the newer primary does not work on the older one: that is an
# outage. This is known to the engine alone, as long as the process lives. One that is new has
# nothing to compare, unless its URL names other servers: they are asked.

_SEEN = "msgworker_turn"
"""In the `info` of a connection: the turn in which its server was asked."""
_UNTOLD = ("42501", "42883", "42P01", "0A000", "3F000")
"""A missing right, function, table or schema; not supported."""
ASKED_SECONDS = 10.0
"""New connections within so many seconds do not ask the other servers again."""
_log = logger("msgworker.dialects")
F = TypeVar("F")


class Past(Protocol[F]):
    """What was seen of the primaries of one database. F: what a server says of its past.

    tells: whether servers like these can tell; if not, they are not asked again.
    """

    tells: bool

    def ask(self, cursor: Any) -> F | None:
        """None = unknown."""

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
                "newer one again; to go on with the old one, restart with a url that names no "
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
            if not other and code_of(error)[1] in _UNTOLD:
                past.tells = False
            return None


class _Mute:
    """Of databases of whose servers nothing is known."""

    tells = False

    def ask(self, cursor: Any) -> None:
        return None

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


_PASTS: dict[str, type[Timelines | Reigns]] = {
    "postgresql": Timelines,
    "mysql": Reigns,
    "mariadb": Reigns,
}
_NONE: Succession[Any] = Succession(_Mute())
_known: weakref.WeakKeyDictionary[sa.Dialect, Succession[Any]] = weakref.WeakKeyDictionary()
_making = ProcessLock()


def succession_of(engine: sa.Engine) -> Succession[Any]:
    """The one of this engine, and of those that share its connections."""
    past = _PASTS.get(engine.dialect.name)
    if past is None:
        return _NONE
    with _making:
        return _known.setdefault(engine.dialect, Succession(past()))
