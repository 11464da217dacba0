"""Which URL means which stand-in. `install` takes the place of `oracledb.connect`; a URL that
names no stand-in goes to the driver, as ever.

    oracle+oracledb://user:password@127.0.0.1:3306/?service_name=mariadb.DATABASE
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import oracledb
import sqlalchemy as sa

from proof.oracle.driver import Connection
from proof.oracle.mariadb import MariaDBSession

NAMES = ("oracle-mariadb",)  # what the tests call them
SITE = str(Path(__file__).parent / "site")  # for the PYTHONPATH of other processes
_driver_connect = oracledb.connect
_PLACE = re.compile(
    r"\(HOST=(?P<host>[^)]+)\)\(PORT=(?P<port>\d+)\).*"
    r"\(SERVICE_NAME=mariadb\.(?P<database>\w+)\)"
)


def install() -> None:
    oracledb.connect = _connect


def _connect(dsn: str | None = None, **options: Any) -> Any:
    place = _PLACE.search(dsn or "")
    if place is None:
        return _driver_connect(dsn, **options)
    password = options.get("password") or ""
    if password == NO_PASSWORD:
        password = ""
    host, port, database = place["host"], int(place["port"]), place["database"]
    return Connection(
        MariaDBSession(host, port, options["user"], password, database),
        stmtcachesize=options.get("stmtcachesize", 20),
        strict=options.get("program") != TESTS,
    )


NO_PASSWORD = "none"
TESTS = "tests"
"""As the name of a program: a session of a test's own, which may use the engine's words."""


def server_of(name: str) -> str:
    """Which server of the tests a database of this name is on."""
    return name.removeprefix("oracle-")


def text(url: sa.URL) -> str:
    return url.render_as_string(hide_password=False)


def over(base: sa.URL, database: str) -> sa.URL:
    """The URL of a database of a MariaDB server, as that of an Oracle."""
    return sa.URL.create(
        "oracle+oracledb",
        username=base.username or "public",
        password=base.password or NO_PASSWORD,
        host=base.host,
        port=base.port,
        query={"service_name": f"mariadb.{database}"},
    )


def engine_of(url: str) -> str:
    """Of a stand-in's URL the engine's own, by which its server is administered; else the same."""
    parsed = sa.make_url(url)
    if parsed.get_backend_name() != "oracle":
        return url
    engine = sa.URL.create(
        "mysql+pymysql",
        username=parsed.username,
        password=None if parsed.password == NO_PASSWORD else parsed.password,
        host=parsed.host,
        port=parsed.port,
        database=str(parsed.query["service_name"]).removeprefix("mariadb."),
    )
    return text(engine)
