"""Two servers, one of which copies the other: killed, promoted, replaced; and the way to the one
that is in use."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, TypeVar

from proof.pairs.mariadb import MariaDBPair, MySQLPair
from proof.pairs.pair import Pair
from proof.pairs.postgresql import PostgreSQLPair

AnyPair = Pair[Any]
P = TypeVar("P", bound=AnyPair)
LOSSLESS = ("postgresql-sync", "mariadb-semisync", "mysql-semisync")
"""A COMMIT is answered when both servers have it."""
LOSSY = "postgresql-async"  # it is not: the standby may lack the last ones


def named(name: str) -> AnyPair:
    """One of LOSSLESS, or LOSSY; not started."""
    if name == "mariadb-semisync":
        return MariaDBPair()
    if name == "mysql-semisync":
        return MySQLPair()
    return PostgreSQLPair(synchronous=name != LOSSY)


@contextlib.contextmanager
def running(pair: P) -> Iterator[P]:
    """It runs meanwhile; raises CannotHave."""
    pair.start()
    try:
        yield pair
    finally:
        pair.remove()
