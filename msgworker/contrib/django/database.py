"""The URL of a database of the setting DATABASES."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import sqlalchemy as sa
from django.db import connections

from msgworker.errors import ConfigError
from msgworker.logs import logger

log = logger("msgworker.django")
_LIBPQ = (
    *("sslmode", "sslcert", "sslkey", "sslrootcert", "sslcrl", "sslpassword", "service"),
    *("passfile", "connect_timeout", "options", "application_name", "target_session_attrs"),
    *("keepalives", "keepalives_idle", "keepalives_interval", "keepalives_count"),
    *("tcp_user_timeout", "gssencmode", "channel_binding"),
)
_MYSQL = ("charset", "unix_socket", "read_default_file", "connect_timeout", "init_command")
_OF_DJANGO = {
    *("isolation_level", "server_side_binding", "assume_role", "pool", "cursor_factory"),
    *("transaction_mode", "timeout", "use_returning_into", "threaded", "sql_mode"),
}
"""Options that have a meaning for Django's connections only."""


def url_of(alias: str) -> sa.URL:
    """Of the database as Django uses it now: during tests it is the test database.

    Raises ConfigError for an alias that is not there, and for a database that only Django's own
    connection can see.
    """
    try:
        there: Any = connections[alias]
    except Exception as error:
        raise ConfigError(f"DATABASES has no {alias!r}: {error}") from None
    of = _BY_VENDOR.get(there.vendor)
    if of is None:
        raise ConfigError(f"database {alias!r} is {there.vendor}, which msgworker does not know")
    return of(alias, there.settings_dict)


def _postgresql(alias: str, given: Mapping[str, Any]) -> sa.URL:
    query = _query(alias, given, _LIBPQ)
    return _url("postgresql+psycopg", given, query)


def _mysql(alias: str, given: Mapping[str, Any]) -> sa.URL:
    query = _query(alias, given, (*_MYSQL, "ssl"))
    ssl = query.pop("ssl", None)
    if isinstance(ssl, Mapping):
        query |= {f"ssl_{name}": value for name, value in ssl.items()}
    query.setdefault("charset", "utf8mb4")
    if str(given.get("HOST") or "").startswith("/"):
        query["unix_socket"] = given["HOST"]
        given = {**given, "HOST": ""}
    return _url("mysql+pymysql", given, query)


def _sqlite(alias: str, given: Mapping[str, Any]) -> sa.URL:
    name = os.fspath(given["NAME"])
    if name == ":memory:" or name.startswith("file:"):
        raise ConfigError(
            f"database {alias!r} is in the memory of Django's connection ({name}), which "
            "msgworker cannot see. Give it a file; for tests "
            "DATABASES[...]['TEST'] = {'NAME': 'test.sqlite3'}"
        )
    return sa.URL.create("sqlite", database=os.path.abspath(name))


def _oracle(alias: str, given: Mapping[str, Any]) -> sa.URL:
    if given.get("HOST"):
        named = {**given, "NAME": ""}
        return _url("oracle+oracledb", named, {"service_name": given["NAME"]})
    return _url("oracle+oracledb", {**given, "HOST": given["NAME"], "NAME": ""}, {})


_BY_VENDOR: dict[str, Callable[[str, Mapping[str, Any]], sa.URL]] = {
    "postgresql": _postgresql,
    "mysql": _mysql,
    "sqlite": _sqlite,
    "oracle": _oracle,
}


def _query(alias: str, given: Mapping[str, Any], known: tuple[str, ...]) -> dict[str, Any]:
    options = dict(given.get("OPTIONS") or {})
    left = sorted(set(options) - set(known) - _OF_DJANGO)
    if left:
        text = "database %r: its OPTIONS %s are not taken over for the connections of msgworker"
        log.warning(text, alias, ", ".join(left))
    return {name: options[name] for name in known if name in options}


def _url(driver: str, given: Mapping[str, Any], query: Mapping[str, Any]) -> sa.URL:
    port = given.get("PORT")
    return sa.URL.create(
        driver,
        username=given.get("USER") or None,
        password=given.get("PASSWORD") or None,
        host=given.get("HOST") or None,
        port=int(port) if port else None,
        database=given.get("NAME") or None,
        query={name: str(value) for name, value in query.items()},
    )
