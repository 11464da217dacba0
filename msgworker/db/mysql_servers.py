"""Several servers of MySQL or MariaDB: those that one URL names, and which is the primary.

`?host=a:3306&host=b:3306` is the form that SQLAlchemy has for PostgreSQL; the drivers here know one
host only.

All connections of an engine are to one of them, the first that takes writes, until it fails; then
all are to the next. So each read sees what was committed before it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import URL

from msgworker.db.errors import code_of
from msgworker.db.servers import PATIENCE_SECONDS, Past
from msgworker.errors import ConfigError
from msgworker.processlock import ProcessLock

_PLACE = "msgworker_host"
OTHERS = "msgworker_others"
"""In the `info` of a connection: calls that connect to each of the other servers."""
_NOT_READY = (1047, 1205, 1290)
"""Without its cluster; too far behind it (see `_catch_up`); read-only."""


def named_hosts(url: URL) -> list[dict[str, Any]]:
    """Host and port of each server that the query names. Raises ConfigError."""
    given = url.query.get("host", ())
    found = []
    for text in (given,) if isinstance(given, str) else given:
        host, colon, port = text.rpartition(":")
        if not colon or text.endswith("]"):
            host, port = text, str(url.port or 3306)
        if not port.isdecimal() or not 1 <= int(port) <= 65_535 or not host:
            raise ConfigError(f"host in the database url must be like name:3306, got {text!r:.80}")
        found.append({"host": host.strip("[]"), "port": int(port)})
    if found and url.host:
        raise ConfigError(
            "the database url names a host before the / and others behind it: name all behind it, "
            "?host=a:3306&host=b:3306"
        )
    if found and url.get_driver_name() != "pymysql":
        raise ConfigError(f"{url.drivername} takes no host behind the /: use mysql+pymysql")
    return found


class Hosts:
    """Which server is in use. connect: makes the connection of a driver, from its arguments."""

    def __init__(self, hosts: list[dict[str, Any]], connect: Callable[..., Any]) -> None:
        self._hosts = hosts
        self._connect_one = connect
        self._place = 0
        self._lock = ProcessLock()

    def connect(self, dialect: Any, record: Any, cargs: Any, cparams: Mapping[str, Any]) -> Any:
        """A connection to the first server, from the one in use on, that takes writes. Raises the
        driver's OperationalError if there is none."""
        begin, reasons = self._place, []
        for turn in range(len(self._hosts)):
            place = (begin + turn) % len(self._hosts)
            host = self._hosts[place]
            try:
                conn = self._connect_one(dialect, record, cargs, {**cparams, **host})
                _refuse_readers(dialect.dbapi, conn)
            except dialect.dbapi.Error as error:
                if not _is_away(error):
                    raise
                reasons.append(f"{host['host']}:{host['port']}: {error.args[-1]!s:.80}")
                continue
            with self._lock:
                if self._place == begin:  # else another thread has moved on by now
                    self._place = place
            record.info[_PLACE] = place
            record.info[OTHERS] = [
                partial(self._ask_only, dialect, record, cargs, {**cparams, **other})
                for other in self._hosts
                if other is not host
            ]
            return conn
        text = f"none of the hosts can be used: {'; '.join(reasons)}"
        raise dialect.dbapi.OperationalError(2003, text)

    def _ask_only(self, dialect: Any, record: Any, cargs: Any, cparams: dict[str, Any]) -> Any:
        seconds = ("connect_timeout", "read_timeout", "write_timeout")
        limits = dict.fromkeys(seconds, PATIENCE_SECONDS)
        return self._connect_one(dialect, record, cargs, cparams | limits)

    def checkout(self, conn: Any, record: Any, _: Any) -> None:
        """Drop connections to a server that is no longer in use, and to a node that was cut off
        from its cluster, which still answers, but with an error."""
        if record.info.get(_PLACE, self._place) != self._place:
            raise sa.exc.DisconnectionError("another host is in use now")
        try:
            conn.commit()
        except Exception as error:
            raise sa.exc.DisconnectionError(str(error)) from error


def _is_away(error: BaseException) -> bool:
    return code_of(error)[0] in (0, 1040, 1053, 1927, *range(2000, 2100), *_NOT_READY)


def _refuse_readers(dbapi: Any, conn: Any) -> None:
    """Raise OperationalError for a replica, and for a node of Galera without its cluster."""
    try:
        with conn.cursor() as cursor:
            if _read(cursor, "global.read_only") != "0":
                raise dbapi.OperationalError(1290, "it is read-only")
            cursor.execute("SHOW STATUS LIKE 'wsrep_ready'")
            row = cursor.fetchone()
            # A server with the provider that is no node says of itself that it is not ready.
            if row is not None and _read(cursor, "wsrep_on") == "1":
                if row[1] == "OFF":
                    raise dbapi.OperationalError(1047, "the node is not ready")
                _catch_up(cursor)
    except BaseException:
        conn.close()
        raise


def _catch_up(cursor: Any) -> None:
    """Wait until the node has all that was committed before: it may be a moment behind the one that
    was in use. It waits for 30 s at most (`repl.causal_read_timeout`), and then fails."""
    own = _read(cursor, "wsrep_sync_wait")
    cursor.execute("SET SESSION wsrep_sync_wait = 1")
    cursor.execute("SELECT count(*) FROM information_schema.engines")
    cursor.execute(f"SET SESSION wsrep_sync_wait = {own}")


def _read(cursor: Any, variable: str) -> str:
    cursor.execute(f"SELECT @@{variable}")
    return str(cursor.fetchone()[0])


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
        return self.last.get(reign.writer, 0) > reign.after


class Reigns(Past[Log]):
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
