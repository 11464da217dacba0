"""Where the scenarios run: a scratch database per kind, dropped at the end."""

from __future__ import annotations

import os
import platform
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import make_url

KINDS = ("sqlite", "postgresql", "mariadb")
VARIABLES = {
    "postgresql": "MSGWORKER_TEST_POSTGRESQL_URL",
    "mariadb": "MSGWORKER_TEST_MYSQL_URL",
}
DRIVERS = {"postgresql": "postgresql+psycopg", "mariadb": "mysql+pymysql"}
SETTINGS = {
    "postgresql": ("fsync", "synchronous_commit", "full_page_writes", "shared_buffers"),
    "mariadb": (
        "innodb_flush_log_at_trx_commit",
        "sync_binlog",
        "log_bin",
        "innodb_doublewrite",
        "innodb_buffer_pool_size",
    ),
    "sqlite": ("journal_mode", "synchronous"),
}


class NotAvailable(Exception):
    """A database that cannot be measured here; the text is the reason."""


@contextmanager
def scratch(kind: str, suffix: str = "") -> Iterator[sa.URL]:
    """The URL of an empty database of this kind, dropped afterwards; raises NotAvailable."""
    if kind == "sqlite":
        with tempfile.TemporaryDirectory(prefix="msgworker-bench-") as folder:
            yield make_url(f"sqlite:///{Path(folder) / 'bench.db'}")
        return
    server = _server(kind)
    name = f"msgworker_bench_{os.getpid()}{suffix}"
    _admin(server, kind, f"DROP DATABASE IF EXISTS {name}", f"CREATE DATABASE {name}")
    try:
        yield server.set(database=name)
    finally:
        force = " WITH (FORCE)" if kind == "postgresql" else ""
        _admin(server, kind, f"DROP DATABASE IF EXISTS {name}{force}")


def kept(kind: str, name: str) -> sa.URL:
    """The URL of the database of this name, created if it does not exist; raises NotAvailable."""
    if kind == "sqlite":
        return make_url(f"sqlite:///{name}")
    server = _server(kind)
    with suppress(NotAvailable):
        _admin(server, kind, f"CREATE DATABASE {name}")
    return server.set(database=name)


def _server(kind: str) -> sa.URL:
    text = os.environ.get(VARIABLES[kind])
    if not text:
        raise NotAvailable(f"no server: {VARIABLES[kind]} is not set")
    return make_url(text).set(drivername=DRIVERS[kind])


def _admin(server: sa.URL, kind: str, *statements: str) -> None:
    if kind == "postgresql":
        server = server.set(database=server.database or "postgres")
    engine = sa.create_engine(server, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    try:
        with engine.connect() as conn:
            for statement in statements:
                conn.exec_driver_sql(statement)
    except (sa.exc.DBAPIError, ImportError) as error:
        raise NotAvailable(f"{type(error).__name__}: {str(error).splitlines()[0]}") from error


def server_line(url: sa.URL, kind: str) -> str:
    """The server's version, and what decides whether a commit is durable."""
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.connect() as conn:
        settings = [f"{name}={_setting(conn, kind, name)}" for name in SETTINGS[kind]]
        query = "SELECT sqlite_version()" if kind == "sqlite" else "SELECT version()"
        number = str(conn.exec_driver_sql(query).scalar())
    if kind == "sqlite":
        number = f"SQLite {number}"
    return f"{number.split(' (')[0]}; {', '.join(settings)}"


def _setting(conn: sa.Connection, kind: str, name: str) -> str:
    if kind == "postgresql":
        return str(conn.exec_driver_sql(f"SHOW {name}").scalar())
    if kind == "sqlite":
        return str(conn.exec_driver_sql(f"PRAGMA {name}").scalar())
    return str(conn.exec_driver_sql(f"SELECT @@{name}").scalar())


def machine_line() -> str:
    """The machine and the software on the client's side."""
    parts = [
        f"{name} {version(name)}" for name in ("SQLAlchemy", "psycopg", "PyMySQL") if _has(name)
    ]
    gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    return (
        f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()} {platform.release()}, "
        f"Python {platform.python_version()}{'' if gil else ' without the GIL'}, {', '.join(parts)}"
    )


def _has(name: str) -> bool:
    try:
        version(name)
    except ModuleNotFoundError:
        return False
    return True
