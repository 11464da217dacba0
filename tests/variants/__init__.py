"""Another way to a server of the tests: another driver, a pooler between, a cluster in its place,
or a stand-in of Oracle of which few tests run otherwise. The variable MSGWORKER_TEST_VARIANT names
one; the contract suite is then all that runs, and on that alone."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache

from sqlalchemy.engine import URL, make_url

from tests.servers import VARIABLES, Fleet, PgBouncer, Server

VARIABLE = "MSGWORKER_TEST_VARIANT"
NODES = "MSGWORKER_TEST_NODES"
"""The URLs of a cluster's nodes, for processes that we start."""


@dataclass(frozen=True)
class Variant:
    """server: which one it leads to. driver: in the place of ours. package: which has it.
    mode: of the pooler between."""

    server: str
    driver: str = ""
    package: str = ""
    mode: str = ""


VARIANTS = {
    "psycopg2": Variant("postgresql", "postgresql+psycopg2", "psycopg2-binary"),
    "mysqldb": Variant("mariadb", "mysql+mysqldb", "mysqlclient"),
    "mariadbconnector": Variant("mariadb", "mariadb+mariadbconnector", "mariadb"),
    "pgbouncer-transaction": Variant("postgresql", mode="transaction"),
    "pgbouncer-session": Variant("postgresql", mode="session"),
    "galera": Variant("mariadb"),
    "oracle-h2": Variant("oracle-h2"),
}


def name() -> str:
    """The one that was asked for; "" = none."""
    return os.environ.get(VARIABLE, "")


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


def more() -> tuple[str, ...]:
    """What it needs beside the servers that most tests need."""
    return ("h2",) if name() == "oracle-h2" else ()


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
    if not variant.driver:
        return url
    url = url.set(drivername=variant.driver)
    return url.difference_update_query(["charset"]) if name() == "mariadbconnector" else url


@cache
def _pooler(fleet: Fleet, mode: str) -> Server:
    """One for this process, with sessions for all that a test may open."""
    return fleet.keep(PgBouncer(fleet.url("postgresql"), mode, size=90))
