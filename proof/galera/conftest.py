"""A Galera cluster of three nodes, for the tests of this folder."""

from __future__ import annotations

import itertools

import pytest

from tests.servers import CannotHave, Fleet, Galera

_number = itertools.count(1)


@pytest.fixture(scope="session")
def cluster(servers: Fleet) -> Galera:
    try:
        return servers.cluster()
    except CannotHave as reason:
        pytest.skip(f"galera is not there: {reason}")


@pytest.fixture
def urls(cluster: Galera) -> list[str]:
    """A fresh database: the URL of each node alone."""
    return fresh(cluster)


def fresh(cluster: Galera) -> list[str]:
    label = f"mw_{next(_number)}"
    cluster.nodes[0].query(f"CREATE DATABASE {label}")
    return [f"{node.url}{label}" for node in cluster.nodes]
