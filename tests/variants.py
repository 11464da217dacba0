"""Another way to a server of the tests: another version of it, another driver, a pooler between, a
cluster in its place; or a table with partitions. The variable MSGWORKER_TEST_VARIANT names one; the
contract suite is then all that runs, and on that alone. Of a version of a server more runs: see
`files`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
from sqlalchemy import Engine, NullPool, create_engine, inspect
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import DBAPIError

from msgworker import MessageTable
from msgworker.db.database import Database
from msgworker.schema import apply as schema
from proof.oracle import standins
from tests.debian import SERVERS
from tests.servers import CHOSEN, VARIABLES, Fleet, PgBouncer, Server

VARIABLE = "MSGWORKER_TEST_VARIANT"
NODES = "MSGWORKER_TEST_NODES"  # the URLs of a cluster's nodes, for processes that we start


@dataclass(frozen=True)
class Variant:
    """server: which one it leads to. driver: in the place of ours. package: which has it.
    mode: of the pooler between. partitions: of the default message table."""

    server: str
    driver: str = ""
    package: str = ""
    mode: str = ""
    partitions: int = 0


VARIANTS = {
    "psycopg2": Variant("postgresql", "postgresql+psycopg2", "psycopg2-binary"),
    "mysqldb": Variant("mariadb", "mysql+mysqldb", "mysqlclient"),
    "mariadbconnector": Variant("mariadb", "mariadb+mariadbconnector", "mariadb"),
    "pgbouncer-transaction": Variant("postgresql", mode="transaction"),
    "pgbouncer-session": Variant("postgresql", mode="session"),
    "galera": Variant("mariadb"),
    "partitions": Variant("postgresql", partitions=4),
    "postgresql": Variant("postgresql"),
    "mariadb": Variant("mariadb"),
    **{name: Variant("postgresql" if "postgresql" in name else "mariadb") for name in SERVERS},
}
VERSIONS = ("postgresql", "mariadb", *SERVERS)
"""Those that are a server and nothing else: first those of this machine's system."""
CONTRACT = ("tests/contract/",)
OF_A_VERSION = (
    *CONTRACT,
    "tests/store/",
    "tests/upgrade/",
    "tests/coordination/",
    "proof/crash/",
    "tests/cli/test_doctor",
    "tests/test_alembic.py",
    "tests/test_ddl.py",
)
OF_A_STAND_IN = (*CONTRACT, "tests/store/test_settle.py")


def name() -> str:
    """The one that was asked for; "" = none."""
    return os.environ.get(VARIABLE, "")


def files() -> tuple[str, ...]:
    """How the paths of the tests begin that run on the one that was asked for."""
    return OF_A_VERSION if name() in VERSIONS else CONTRACT


def only(items: list[pytest.Item]) -> None:
    """Leave what runs on the variant that was asked for, on its server; and of the tests on a
    stand-in those of the contract suite."""
    left = []
    for item in items:
        given = getattr(item, "callspec", None)
        on = given.params if given else {}
        if on.get("database") in standins.NAMES and not item.nodeid.startswith(OF_A_STAND_IN):
            continue
        if name():
            server = VARIANTS[name()].server
            fixtures = getattr(item, "fixturenames", ())
            if not item.nodeid.startswith(files()) or not (
                server in on.values() or server in fixtures
            ):
                continue
        left.append(item)
    items[:] = left


def is_mysql() -> bool:
    """Whether what is called mariadb in the tests is a MySQL: the server that was asked for, or the
    one that its variable points at."""
    if name() in VERSIONS:
        return name().startswith("mysql")
    url = os.environ.get(VARIABLES["mariadb"])
    return url is not None and _is_mysql(url)


def database_name(name: str) -> str:
    """The product's name of a database that the tests have under this one."""
    return "mysql" if name == "mariadb" and is_mysql() else name


@cache
def _is_mysql(url: str) -> bool:
    engine = create_engine(url, poolclass=NullPool)
    with engine.connect() as conn:
        return "MariaDB" not in str(conn.exec_driver_sql("SELECT VERSION()").scalar())


def offer(fleet: Fleet) -> None:
    """Where a cluster is asked for, its nodes are the servers of the tests: each process has one.
    Raises CannotHave."""
    if name() != "galera":
        return
    if NODES not in os.environ:
        nodes = fleet.cluster().nodes
        for node in nodes:  # many tests count ids; a table is written to by one process alone
            node.query("SET GLOBAL wsrep_auto_increment_control = OFF")
            node.query("SET GLOBAL auto_increment_increment = 1, auto_increment_offset = 1")
        os.environ[NODES] = " ".join(node.url for node in nodes)
    urls = os.environ[NODES].split()
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
    os.environ[VARIABLES["mariadb"]] = urls[int(worker) % len(urls)]


def way_to(url: URL, fleet: Fleet) -> URL:
    """How an App and a test reach a database that its server has at this URL."""
    variant = VARIANTS.get(name())
    if (
        variant is None
        or not (variant.driver or variant.mode)
        or url.get_backend_name() != make_url(fleet.url(variant.server)).get_backend_name()
    ):
        return url
    if variant.mode:
        between = _pooler(fleet, variant.mode)
        url = url.set(host="127.0.0.1", port=between.port)
        return url.update_query_dict({"pooler": "session"}) if variant.mode == "session" else url
    url = url.set(drivername=variant.driver)
    return url.difference_update_query(["charset"]) if name() == "mariadbconnector" else url


def install() -> None:
    """Where a version of a server is asked for, it is what is started; where partitions are,
    `create_schema` makes the default message table with them."""
    if name() in SERVERS:
        os.environ[CHOSEN] = name()
    variant = VARIANTS.get(name())
    if variant is None or not variant.partitions:
        return
    create = schema.create

    def divided(engine: Engine, spec: MessageTable, dialect: Database, *rest: Any) -> Any:
        made: list[str] = []
        if spec.is_default and engine.dialect.name == variant.server:
            # No database: `create` says so. Another process was faster: it finds the table.
            with suppress(DBAPIError), engine.begin() as conn:
                if not inspect(conn).has_table(spec.bare_name, schema=spec.schema):
                    for text in _message_table(spec, variant.partitions):
                        conn.exec_driver_sql(text)
                    made = [spec.bare_name]
        names, rule = create(engine, spec, dialect, *rest)
        return made + names, rule

    schema.create = divided


def _message_table(spec: MessageTable, partitions: int) -> Iterator[str]:
    """The statements that make it, without indexes. Many tests give ids of their own."""
    for text in schema.ddl(spec, "postgresql", partitions).split(";\n"):
        if "INDEX" in text:
            return
        yield text.replace("GENERATED ALWAYS", "GENERATED BY DEFAULT")


@cache
def _pooler(fleet: Fleet, mode: str) -> Server:
    """One for this process, with sessions for all that a test may open."""
    return fleet.keep(PgBouncer(fleet.url("postgresql"), mode, size=90))
