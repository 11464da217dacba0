"""The other servers that a URL names: connections to them, to be asked only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import sqlalchemy as sa

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
