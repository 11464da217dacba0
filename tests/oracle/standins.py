"""Which URL means which stand-in. `install` takes the place of `oracledb.connect`; a URL that
names no stand-in goes to the driver, as ever.

    oracle+oracledb://user:password@127.0.0.1:3306/?service_name=mariadb.DATABASE
    oracle+oracledb://user:password@127.0.0.1:9092/?service_name=h2.DATABASE
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import oracledb
import sqlalchemy as sa

from tests.oracle.driver import Connection
from tests.oracle.engine import Session
from tests.oracle.h2 import H2Session
from tests.oracle.mariadb import MariaDBSession

NAMES = ("oracle-mariadb", "oracle-h2")
"""What the tests call them."""
SITE = str(Path(__file__).parent / "site")
"""For the PYTHONPATH of other processes."""
_driver_connect = oracledb.connect
_PLACE = re.compile(
    r"\(HOST=(?P<host>[^)]+)\)\(PORT=(?P<port>\d+)\).*"
    r"\(SERVICE_NAME=(?P<engine>mariadb|h2)\.(?P<database>\w+)\)"
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
    session: Session
    if place["engine"] == "h2":
        session = H2Session(host, port, password, database)
    else:
        session = MariaDBSession(host, port, options["user"], password, database)
    return Connection(
        session,
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
    """The URL of a database of a MariaDB or an H2 server, as that of an Oracle."""
    engine = "h2" if base.drivername == "h2" else "mariadb"
    return sa.URL.create(
        "oracle+oracledb",
        username=base.username or "public",
        password=base.password or NO_PASSWORD,
        host=base.host,
        port=base.port,
        query={"service_name": f"{engine}.{database}"},
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
