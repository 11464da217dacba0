"""A lease is a lock with an end: who holds it must renew it, and loses it by silence.

A lease is advice. Whoever is paused for longer than it lasts goes on believing in it; what stops
its writes is the token, a number that rises with every change of owner and that whoever is written
to compares. `Lease.live` is a courtesy check before a piece of work is begun.
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
from msgworker.store.locks import MAX_NAME, MAX_OWNER

TRUST = 0.9
"""The share of a lease's time for which its holder believes in it, counted from before it asked."""
LEAST_TTL = 0.1
MOST_TTL = 86_400.0


class Lease:
    """A lock as somebody holds it.

    name: the lock. owner: who holds it. token: a whole number that rises with every change of owner
    of this lock, survives releases and crashes, and is never used again. ttl: seconds that it
    lasts without a renewal; of one that was only read (`held`), those that are left. age: seconds
    for which it was held already when it was read; 0 of one that was just acquired.
    deadline: until when its holder may believe in it, on the local clock (`msgworker.clock`).
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
        """Whether it may still be believed in: a renewal has succeeded within 0.9 x ttl, nobody has
        taken it, and this is the process that got it."""
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
            return "the lock centre has not been heard of"
        return ""

    def renewed(self, asked_at: float) -> None:
        """For lock centres: a renewal has succeeded that was asked for then, on the local clock."""
        self.deadline = max(self.deadline, asked_at + TRUST * self.ttl)

    def end(self, why: str) -> None:
        """For lock centres: it is not held any more, for good."""
        self._over = self._over or why


class LockCentre(ABC):
    """Where locks are kept. One object serves all threads of a process.

    A name has 1 to 190 characters, an owner 1 to 120, none of them control characters. An owner is
    one holder and one only: give each its own (`new_owner`), and a new one after a lost lease.
    Every method raises LocksUnavailable where the centre cannot be reached, and ConfigError for
    arguments that are wrong, before anything is asked.
    """

    def __init__(self) -> None:
        self.of_thread = threading.local()  # what `hold` keeps here: who is reentrant

    def acquire(self, name: str, owner: str, ttl: float = 30.0) -> Lease | None:
        """Take a lock if it is free or its lease has expired; None if somebody holds it, `owner`
        itself included.

        ttl: seconds, 0.1 to 86,400, without a renewal. Never waits for the holder.
        """
        check_name(name)
        check_owner(owner)
        return self._acquire(name, owner, check_ttl(ttl))

    def acquire_all(self, names: Sequence[str], owner: str, ttl: float = 30.0) -> list[Lease]:
        """Take those of many locks that are free, at once; in the order of the names. As `acquire`
        of each."""
        for name in names:
            check_name(name)
        check_owner(owner)
        return self._acquire_all(names, owner, check_ttl(ttl))

    def renew(self, lease: Lease) -> bool:
        """Let a lease last for its ttl from now on. False: it is lost, for good, also where the
        lock is free again."""
        if not self._renew(lease):
            lease.end("it expired or was taken away")
            return False
        return True

    def renew_all(self, leases: Sequence[Lease]) -> list[Lease]:
        """Renew many leases of one owner at once; those that it still holds, in their order."""
        return [lease for lease in leases if self.renew(lease)]

    def release(self, lease: Lease) -> bool:
        """Free a lock at once. False: this lease did not hold it any more; nothing has changed."""
        return ended(lease, self._release(lease))

    def release_all(self, leases: Sequence[Lease]) -> list[Lease]:
        """Free many locks at once; those that these leases still held, in their order."""
        return [lease for lease in leases if self.release(lease)]

    def _acquire_all(self, names: Sequence[str], owner: str, ttl: float) -> list[Lease]:
        found = (self._acquire(name, owner, ttl) for name in names)
        return [lease for lease in found if lease is not None]

    @abstractmethod
    def held(self, prefix: str = "") -> list[Lease]:
        """The locks that are held now and whose names begin so, by name: one look, for people and
        for whoever shares out work."""

    @abstractmethod
    def holder(self, name: str) -> Lease | None:
        """Who holds a lock now; None if nobody does."""

    @abstractmethod
    def close(self) -> None:
        """Give back what this centre itself has opened. Leases are left as they are."""

    @abstractmethod
    def _acquire(self, name: str, owner: str, ttl: float) -> Lease | None: ...

    @abstractmethod
    def _renew(self, lease: Lease) -> bool: ...

    @abstractmethod
    def _release(self, lease: Lease) -> bool: ...


def ended(lease: Lease, released: bool) -> bool:
    """For lock centres: note that a lease is over, by its release or before."""
    lease.end("it was released" if released else "it expired or was taken away")
    return released


def new_owner(label: str = "") -> str:
    """host:pid:random, at most 120 characters; never the same twice. label: in place of the host,
    which people read in `msgworker locks`."""
    host = "".join(ch for ch in label or socket.gethostname() or "host" if ch.isprintable())[:80]
    return f"{host or 'host'}:{os.getpid()}:{uuid.uuid4().hex[:16]}"


def check_name(name: Any) -> str:
    """The name of a lock, or ConfigError."""
    return _text("the name of a lock", name, MAX_NAME)


def check_owner(owner: Any) -> str:
    """Who holds a lock, or ConfigError."""
    return _text("the owner of a lock", owner, MAX_OWNER)


def check_prefix(prefix: Any) -> str:
    """How names begin; empty for all of them."""
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
