"""A lease is a lock that expires unless its holder renews it.

A lease is advice. A holder that is paused for longer than the lease does not notice its end; only
the token stops its writes: a number that rises with every change of owner and that the receiver of
a write compares. `Lease.live` is an extra check before a piece of work.
"""

from __future__ import annotations

import os
import socket
import threading
import unicodedata
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from msgworker.clock import clock
from msgworker.config import number
from msgworker.errors import ConfigError, LeaseLost
from msgworker.store.sharing.locks import MAX_NAME, MAX_OWNER

TRUST = 0.9
"""The share of a lease's time for which it counts as live, from before the request was sent."""
LEAST_TTL = 0.1
MOST_TTL = 86_400.0


class Lease:
    """A held lock.

    name: the lock. owner: its holder. token: a whole number that rises with every change of owner
    of this lock, survives releases and crashes, and is never used again. ttl: seconds that it
    lasts without a renewal; for one that was only read (`held`), the seconds left. age: seconds
    since it was acquired, when it was read; 0 for one that was just acquired.
    deadline: until when it counts as live, on the local clock (`msgworker.clock`).
    """

    __slots__ = ("_over", "_pid", "_says", "age", "deadline", "name", "owner", "token", "ttl")

    def __init__(
        self,
        name: str,
        owner: str,
        token: int,
        ttl: float,
        *,
        asked_at: float,
        age: float = 0.0,
        says: Callable[[], bool] | None = None,
    ) -> None:
        self.name = name
        self.owner = owner
        self.token = token
        self.ttl = ttl
        self.age = age
        self.deadline = asked_at + TRUST * ttl
        self._says = says
        self._over = ""
        self._pid = os.getpid()

    def __repr__(self) -> str:
        return f"Lease({self.name!r}, owner={self.owner!r}, token={self.token})"

    def live(self) -> bool:
        """Whether it still counts as held: a renewal has succeeded within 0.9 x ttl, it was not
        taken away, and this is the process that acquired it."""
        return not self._why_not()

    def check(self) -> None:
        """Raise LeaseLost unless it is live."""
        why = self._why_not()
        if why:
            raise LeaseLost(self.name, self.owner, self.token, why)

    def _why_not(self) -> str:
        if self._over:
            return self._over
        if os.getpid() != self._pid:
            return "it belongs to the process that this one was forked from"
        if clock() >= self.deadline:
            return f"no renewal has succeeded for {TRUST:g} x {self.ttl:g} s"
        if self._says is not None and not self._says():
            return "the lock centre has not answered"
        return ""

    def renewed(self, asked_at: float) -> None:
        """For lock centres: a renewal that was sent at this local time has succeeded."""
        self.deadline = max(self.deadline, asked_at + TRUST * self.ttl)

    def end(self, why: str) -> None:
        """For lock centres: it is permanently lost."""
        self._over = self._over or why


class LockCentre(ABC):
    """Where locks are kept. One object serves all threads of a process.

    A name has 1 to 190 characters, an owner 1 to 120, none of them control characters. An owner
    stands for exactly one holder: give each its own (`new_owner`), and a new one after a lost
    lease.

    Every method raises LocksUnavailable if the centre cannot be reached, and ConfigError for
    wrong arguments, before anything is sent.
    """

    def __init__(self) -> None:
        self.of_thread = threading.local()  # used by `hold` for reentrance

    def acquire(self, name: str, owner: str, ttl: float = 30.0) -> Lease | None:
        """Take a lock if it is free or its lease has expired; None if it is held, also by `owner`
        itself.

        ttl: seconds, 0.1 to 86,400, without a renewal. Never waits for the holder.
        """
        check_name(name)
        check_owner(owner)
        return self._acquire(name, owner, check_ttl(ttl))

    def acquire_all(self, names: Sequence[str], owner: str, ttl: float = 30.0) -> list[Lease]:
        """Take the free ones of many locks at once; leases in the order of the names. Like
        `acquire` of each."""
        for name in names:
            check_name(name)
        check_owner(owner)
        return self._acquire_all(names, owner, check_ttl(ttl))

    def renew(self, lease: Lease) -> bool:
        """Extend a lease to its full ttl. False: it is permanently lost, even if the lock is free
        again."""
        if not self._renew(lease):
            lease.end("it expired or was taken away")
            return False
        return True

    def renew_all(self, leases: Sequence[Lease]) -> list[Lease]:
        """Renew many leases of one owner at once; returns those still held, in order."""
        return [lease for lease in leases if self.renew(lease)]

    def release(self, lease: Lease) -> bool:
        """Free a lock at once. False: this lease no longer held it; nothing has changed."""
        return ended(lease, self._release(lease))

    def release_all(self, leases: Sequence[Lease]) -> list[Lease]:
        """Free many locks at once; returns those that were still held, in order."""
        return [lease for lease in leases if self.release(lease)]

    def forget(self, lease: Lease) -> bool:
        """Release a lock whose name is not used again, because the name ends in its owner; what
        is kept of it may be deleted with it. As `release`. Of other names, whose tokens must go on
        rising, ConfigError."""
        if not lease.name.endswith(lease.owner):
            raise ConfigError(
                "only a lock whose name ends in its owner can be forgotten; release this one: "
                f"{lease.name!r:.80}"
            )
        return ended(lease, self._forget(lease))

    def forget_expired(self, prefix: str) -> int:
        """Delete what is kept of locks named `prefix` + owner whose leases ended an hour ago or
        longer without a release; how many they were. 0 where a centre keeps nothing of them."""
        check_prefix(prefix)
        return 0

    def _forget(self, lease: Lease) -> bool:
        return self._release(lease)

    def _acquire_all(self, names: Sequence[str], owner: str, ttl: float) -> list[Lease]:
        found = (self._acquire(name, owner, ttl) for name in names)
        return [lease for lease in found if lease is not None]

    @abstractmethod
    def held(self, prefix: str = "") -> list[Lease]:
        """The locks with this prefix that are held now, by name, in one read."""

    @abstractmethod
    def holder(self, name: str) -> Lease | None:
        """The present holder of a lock; None if it is free."""

    @abstractmethod
    def close(self) -> None:
        """Close the connections that this centre has opened. Leases are not released."""

    @abstractmethod
    def _acquire(self, name: str, owner: str, ttl: float) -> Lease | None: ...

    @abstractmethod
    def _renew(self, lease: Lease) -> bool: ...

    @abstractmethod
    def _release(self, lease: Lease) -> bool: ...


def ended(lease: Lease, released: bool) -> bool:
    """For lock centres: mark a lease as ended, by its release or before."""
    lease.end("it was released" if released else "it expired or was taken away")
    return released


def new_owner(label: str = "") -> str:
    """host:pid:random, at most 120 characters; always unique. label: replaces the host, for
    `msgworker locks`."""
    host = "".join(ch for ch in label or socket.gethostname() or "host" if ch.isprintable())[:80]
    return f"{host or 'host'}:{os.getpid()}:{uuid.uuid4().hex[:16]}"


def check_name(name: Any) -> str:
    """The name of a lock, or ConfigError."""
    return _text("the name of a lock", name, MAX_NAME)


def check_owner(owner: Any) -> str:
    """The owner of a lock, or ConfigError."""
    return _text("the owner of a lock", owner, MAX_OWNER)


def check_prefix(prefix: Any) -> str:
    """A prefix of names; empty for all names."""
    return "" if prefix == "" else _text("prefix", prefix, MAX_NAME)


def check_ttl(ttl: Any) -> float:
    """Seconds that a lease lasts, or ConfigError."""
    return number("ttl", ttl, LEAST_TTL, MOST_TTL)


def _text(what: str, text: Any, most: int) -> str:
    if not isinstance(text, str) or not text.strip():
        raise ConfigError(f"{what} must be a text that is not empty, got {text!r:.80}")
    if len(text) > most:
        raise ConfigError(f"{what} has at most {most} characters, got {len(text)}: {text!r:.80}")
    if any(unicodedata.category(ch) in ("Cc", "Cs") for ch in text):
        raise ConfigError(f"{what} has no control characters, got {text!r:.80}")
    return text
