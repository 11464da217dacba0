"""A Galera cluster of three nodes, for the tests of this folder."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tests.servers import CannotHave, Galera

_number = itertools.count(1)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Galera]:
    made = Galera()
    try:
        made.start()
    except CannotHave as reason:
        pytest.skip(f"galera is not there: {reason}")
    yield made
    made.remove()


@pytest.fixture
def urls(cluster: Galera) -> list[str]:
    """A fresh database: the URL of each node alone."""
    return fresh(cluster)


def fresh(cluster: Galera) -> list[str]:
    label = f"mw_{next(_number)}"
    cluster.nodes[0].query(f"CREATE DATABASE {label}")
    return [f"{node.url}{label}" for node in cluster.nodes]
