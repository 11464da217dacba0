"""A lock centre from a configuration: "database", redis://..., zookeeper://..."""

from __future__ import annotations

import re

import sqlalchemy as sa

from msgworker.coordination.database import DatabaseLocks
from msgworker.coordination.lease import LockCentre
from msgworker.coordination.redis import RedisLocks
from msgworker.coordination.zookeeper import ZooKeeperLocks
from msgworker.dialects import secrets_of
from msgworker.errors import ConfigError

DATABASE = "database"
REDIS = ("redis", "rediss", "unix")
KINDS = '"database", redis://host:6379/0, rediss://..., unix://... or zookeeper://host:2181,host'


def check_centre(where: str) -> str:
    """The checked name of a lock centre; raises ConfigError, which shows no password."""
    kind = where.partition("://")[0]
    if where != DATABASE and kind not in (*REDIS, "zookeeper"):
        raise ConfigError(f"locks must be one of {KINDS}")
    return where


def open_centre(where: str, engine: sa.Engine | None, *, schema: str | None = None) -> LockCentre:
    """The lock centre of a configuration; the caller closes it.

    engine, schema: of the database with the messages, for "database". Raises ConfigError,
    LocksUnavailable.
    """
    kind = check_centre(where).partition("://")[0]
    if kind in REDIS:
        return RedisLocks.from_url(where)
    if kind == "zookeeper":
        return ZooKeeperLocks.from_url(where)
    if engine is None:
        raise ConfigError("locks that are kept in the database need one")
    return DatabaseLocks(engine, schema=schema)


def place_of(centre: LockCentre) -> str:
    """What kind of centre it is, and where, without passwords."""
    return repr(centre)


def masked_centre(where: str) -> str:
    """The same without passwords."""
    return re.sub(
        r"//[^/@]*@", "//***@", re.sub(r"([?&]\w*pass\w*=)[^&]*", r"\1***", where, flags=re.I)
    )


def secrets_of_centre(where: str) -> set[str]:
    """The passwords in it, to remove them from texts."""
    return secrets_of(where)
