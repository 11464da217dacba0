"""On which of the databases a test runs."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

SQLITE = pytest.mark.parametrize("database", ["sqlite"], indirect=True)
"""Where the database makes no difference."""
SERVERS = pytest.mark.parametrize("database", ["postgresql", "mariadb"], indirect=True)


DRIVERS = {"sqlite": "aiosqlite", "postgresql": "psycopg", "mysql": "aiomysql"}


def async_url(url: sa.URL) -> sa.URL:
    """The same database by the async driver of the tests."""
    backend = url.get_backend_name()
    driver = DRIVERS[backend]
    if driver == "aiomysql":
        pytest.importorskip(driver)
    return url.set(drivername=f"{backend}+{driver}", query={})
