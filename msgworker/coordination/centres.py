"""A lock centre from a configuration, and the scopes that need no lock centre."""

from __future__ import annotations

import re
import threading
from collections.abc import Collection, Mapping
from typing import Any

import sqlalchemy as sa

from msgworker.config import whole
from msgworker.config.values import renamed
from msgworker.coordination.database import DatabaseLocks
from msgworker.coordination.lease import LockCentre
from msgworker.coordination.redis import RedisLocks
from msgworker.coordination.zookeeper import ZooKeeperLocks
from msgworker.db.errors import MASK, secrets_of
from msgworker.errors import ConfigError, LocksUnavailable
from msgworker.instance.state import InstanceView, Scope, ScopeMember
from msgworker.payload import is_text
from msgworker.producing import Job
from msgworker.table.columns import MAX_INSTANCE_TYPE, Slice

# --- The scopes.


class Everywhere(Scope):
    """The whole table; as without a scope."""

    def join(self, instance: InstanceView) -> None:
        """None: there is nothing to separate."""

    def __repr__(self) -> str:
        return "Everywhere()"


class Instance(Scope):
    """The messages whose column instance_type has this value; a `Dealer` writes it.

    Several processes may have the same instance type: they share its messages.
    Raises ConfigError for one that is empty or longer than 30 characters.
    """

    by = "instance_type"
    where: Slice

    @renamed(flag="instance_type")
    def __init__(self, instance_type: str) -> None:
        self.instance_type = check_instance_type(instance_type)
        self.where = Slice("instance_type", (self.instance_type,), exclusive=False)

    def join(self, instance: InstanceView) -> ScopeMember:
        """A member beside the others of this instance type."""
        return _Fixed(self.where, {"kind": "instance", "flag": self.instance_type})

    def __repr__(self) -> str:
        return f"Instance({self.instance_type!r})"


class OneJob(Scope):
    """The messages of one job. What stands before one of them in its object, and belongs to another
    job or to none, is left to others.

    job: the id of a job, or what `App.job` returned. Raises ConfigError.
    """

    by = "job_id"
    where: Slice

    def __init__(self, job: Job | int) -> None:
        job_id = job.job_id if isinstance(job, Job) else job
        self.job_id = int(whole("job", job_id, 1, 2**63 - 1))
        self.where = Slice("job_id", (self.job_id,), exclusive=False)

    def join(self, instance: InstanceView) -> ScopeMember:
        """A member beside all others."""
        return _Fixed(self.where, {"kind": "job", "job": self.job_id})

    def __repr__(self) -> str:
        return f"OneJob({self.job_id})"


def check_instance_type(value: Any) -> str:
    if not isinstance(value, str) or not value.strip() or not is_text(value) or "\x00" in value:
        raise ConfigError(f"an instance type must be a text, got {value!r:.80}")
    if len(value) > MAX_INSTANCE_TYPE:
        raise ConfigError(
            f"an instance type has at most {MAX_INSTANCE_TYPE} characters, got {len(value)}: "
            f"{value!r}"
        )
    return value


class _Fixed:
    """A member whose slice never changes: it has nothing to start, to renew or to release."""

    steady = True
    others: frozenset[int] = frozenset()

    def __init__(self, where: Slice, info: Mapping[str, Any]) -> None:
        self._where = where
        self._info = info

    def start(self) -> None: ...

    def leave(self) -> None: ...

    def stop(self, seconds: float) -> None: ...

    def go_round(self, values: Collection[Any] | None = None) -> None: ...

    def looked(self, *, complete: bool, rest: float | None = None, full: bool = False) -> None: ...

    def away(self) -> float:
        return 0.0

    def slice(self) -> Slice:
        return self._where

    def reach(self) -> Slice:
        return self._where

    def info(self) -> Mapping[str, Any]:
        return self._info


# --- A lock centre from a configuration: "database", redis://..., zookeeper://...

DATABASE = "database"
_BY_SCHEME: dict[str, type[RedisLocks | ZooKeeperLocks]]
_BY_SCHEME = {**dict.fromkeys(("redis", "rediss", "unix"), RedisLocks), "zookeeper": ZooKeeperLocks}
KINDS = '"database", redis://host:6379/0, rediss://..., unix://... or zookeeper://host:2181,host'


def check_centre(where: str) -> str:
    """The checked name of a lock centre; raises ConfigError, which shows no password."""
    kind = where.partition("://")[0]
    if where != DATABASE and kind not in _BY_SCHEME:
        raise ConfigError(f"locks must be one of {KINDS}")
    if MASK in where:
        raise ConfigError(
            f"locks has {MASK} where its password was masked: write that in its place, or leave "
            "locks out and set MSGWORKER_LOCKS"
        )
    return where


def open_centre(where: str, engine: sa.Engine | None, *, schema: str | None = None) -> LockCentre:
    """The lock centre of a configuration; the caller closes it.

    engine, schema: of the database with the messages, for "database". Raises ConfigError,
    LocksUnavailable.
    """
    kind = check_centre(where).partition("://")[0]
    if kind in _BY_SCHEME:
        return _BY_SCHEME[kind].from_url(where)
    if engine is None:
        raise ConfigError("locks that are kept in the database need one")
    return DatabaseLocks(engine, schema=schema)


def masked_centre(where: str) -> str:
    """The same without passwords."""
    return re.sub(
        r"//.*@", f"//{MASK}@", re.sub(r"([?&]\w*pass\w*=)[^&]*", rf"\1{MASK}", where, flags=re.I)
    )


class LazyCentre:
    """A lock centre, opened when it is first asked: a dashboard starts while it is away, too.

    where: the centre, or its URL.
    """

    def __init__(self, where: LockCentre | str) -> None:
        self._url = where if isinstance(where, str) else ""
        self._opened: LockCentre | None = None if isinstance(where, str) else where
        self._opening = threading.Lock()
        self.secrets = secrets_of(self._url)

    def centre(self) -> LockCentre:
        """The centre. Raises ConfigError, LocksUnavailable; the latter also at once while another
        thread waits for it."""
        if self._opened is not None:
            return self._opened
        if not self._opening.acquire(blocking=False):
            raise LocksUnavailable("the lock centre has not answered yet")
        try:
            if self._opened is None:
                self._opened = open_centre(self._url, None)
            return self._opened
        finally:
            self._opening.release()

    @property
    def place(self) -> str:
        """What and where it is, without passwords; "" before it has answered."""
        return "" if self._opened is None else repr(self._opened)

    def close(self) -> None:
        """Close what was opened here."""
        if self._url and self._opened is not None:
            self._opened.close()
