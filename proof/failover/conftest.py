"""Pairs of servers, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from proof import pairs
from proof.pairs.mariadb import MariaDBPair, MySQLPair
from proof.pairs.postgresql import PostgreSQLPair
from tests.servers import CannotHave


@contextmanager
def running(pair: pairs.P) -> Iterator[pairs.P]:
    try:
        with pairs.running(pair) as made:
            yield made
    except CannotHave as reason:
        pytest.skip(f"not there: {reason}")


@pytest.fixture
def postgresql() -> Iterator[PostgreSQLPair]:
    """An asynchronous pair: no COMMIT waits."""
    with running(PostgreSQLPair(synchronous=False)) as made:
        yield made


@pytest.fixture
def mariadb() -> Iterator[MariaDBPair]:
    with running(MariaDBPair()) as made:
        yield made


@pytest.fixture
def mysql() -> Iterator[MySQLPair]:
    with running(MySQLPair()) as made:
        yield made


@pytest.fixture(params=["postgresql", "mariadb"])
def pair(request: pytest.FixtureRequest) -> pairs.AnyPair:
    """Each of the two above."""
    found: pairs.AnyPair = request.getfixturevalue(request.param)
    return found
