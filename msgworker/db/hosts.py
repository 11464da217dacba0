"""Several servers in one URL: `?host=a:3306&host=b:3306`, the form that SQLAlchemy has for
PostgreSQL. For MySQL and MariaDB, whose drivers know one host only.

All connections of an engine are to one of them, the first that takes writes, until it fails; then
all are to the next. What was committed is then seen by whoever reads after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import URL

from msgworker.db.errors import code_of
from msgworker.errors import ConfigError
from msgworker.processlock import ProcessLock

_PLACE = "msgworker_host"
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
        """Connections to a server that is no longer in use are given up, and to a node that was cut
        off from its cluster, which goes on answering: with an error."""
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
            cursor.execute("SELECT @@global.read_only")
            if str(cursor.fetchone()[0]) != "0":
                raise dbapi.OperationalError(1290, "it is read-only")
            cursor.execute("SHOW STATUS LIKE 'wsrep_ready'")
            row = cursor.fetchone()
            if row is not None and _in_cluster(cursor):
                if row[1] == "OFF":
                    raise dbapi.OperationalError(1047, "the node is not ready")
                _catch_up(cursor)
    except BaseException:
        conn.close()
        raise


def _catch_up(cursor: Any) -> None:
    """Wait until the node has all that was committed before: it may be a moment behind the one that
    was in use. It waits for 30 s at most (`repl.causal_read_timeout`), and then fails."""
    cursor.execute("SELECT @@wsrep_sync_wait")
    own = int(cursor.fetchone()[0])
    cursor.execute("SET SESSION wsrep_sync_wait = 1")
    cursor.execute("SELECT count(*) FROM information_schema.engines")
    cursor.execute(f"SET SESSION wsrep_sync_wait = {own}")


def _in_cluster(cursor: Any) -> bool:
    """A server with the provider that is no node says of itself that it is not ready."""
    cursor.execute("SELECT @@wsrep_on")
    return str(cursor.fetchone()[0]) == "1"


# --- The other servers that a URL names: connections to them, to be asked only.

OTHERS = "msgworker_others"
"""In the `info` of a connection of MySQL or MariaDB: calls that connect to each of them."""
PATIENCE_SECONDS = 2


def others(conn: sa.Connection) -> Iterator[Any]:
    """The driver's connections to those that can be reached, one after the other; each is closed
    when the next one is asked for."""
    for connect in _ways(conn):
        try:
            raw = connect()
        except Exception:  # it is away: nothing is known of it
            continue
        try:
            yield raw
        finally:
            with suppress(Exception):
                raw.close()


def _ways(conn: sa.Connection) -> list[Callable[[], Any]]:
    if conn.dialect.name != "postgresql":
        return list(conn.info.get(OTHERS, ()))
    named = conn.dialect.create_connect_args(conn.engine.url)[1]
    hosts = str(named.get("host", "")).split(",")
    if len(hosts) == 1:
        return []
    ports = str(named.get("port", "")).split(",")
    ports = ports if len(ports) == len(hosts) else ports * len(hosts)
    info: Any = getattr(conn.connection.driver_connection, "info", None)
    given = _parameters(info)
    if not given:
        return []
    given |= {"target_session_attrs": "any", "connect_timeout": PATIENCE_SECONDS}
    given.pop("hostaddr", None)
    connect = conn.dialect.loaded_dbapi.connect

    def way(host: str, port: str) -> Callable[[], Any]:
        return lambda: connect(**{**given, "host": host, "port": port})

    used = info.host, str(info.port)
    named_servers = [(host, port or "5432") for host, port in zip(hosts, ports, strict=True)]
    return [way(host, port) for host, port in named_servers if (host, port) != used]


def _parameters(info: Any) -> dict[str, Any]:
    """What libpq was given for the connection in use: by psycopg 3, or psycopg2; of another driver
    nothing."""
    try:
        ask = getattr(info, "get_parameters", None)
        given = dict(info.dsn_parameters if ask is None else ask())
        return given | ({"password": info.password} if info.password else {})
    except Exception:  # the connection is closed, or there is no such thing
        return {}
