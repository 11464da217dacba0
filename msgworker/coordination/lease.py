"""Leases: locks that expire unless their holder renews them; hold one while a block runs."""

from __future__ import annotations

import hashlib
import os
import random
import socket
import threading
import time
import unicodedata
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from msgworker.clock import clock
from msgworker.config import YEAR_SECONDS, number, whole
from msgworker.errors import ConfigError, LeaseBusy, LeaseLost, LocksUnavailable
from msgworker.logs import logger
from msgworker.table.build import MAX_LOCK, MAX_LOCK_OWNER
from msgworker.table.spec import MessageTable

# --- A lease is a lock that expires unless its holder renews it. It is advice.
#
# A holder that is paused for longer than the lease does not notice its end;
# only the token stops its writes: a number that rises with every change of owner and that the
# receiver of a write compares. `Lease.live` is an extra check before a piece of work.

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

    listed = "`msgworker locks --locks URL`"
    """The command that lists its locks."""

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
        `acquire` of each; if the centre is lost in between, those that were taken by then."""
        for name in names:
            check_name(name)
        check_owner(owner)
        ttl = check_ttl(ttl)
        taken: list[Lease] = []
        most = self._most_at_once()
        for start in range(0, len(names), most):
            try:
                taken += self._acquire_some(names[start : start + most], owner, ttl)
            except LocksUnavailable:
                if not taken:
                    raise
                break  # what was taken would be lost
        return taken

    def renew(self, lease: Lease) -> bool:
        """Extend a lease to its full ttl. False: it is permanently lost, even if the lock is free
        again."""
        begun = clock()
        return extended(lease, self._renew(lease), begun)

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

    def _most_at_once(self) -> int:
        """How many locks `_acquire_some` takes: all that it has asked for, or none."""
        return 1

    def _acquire_some(self, names: Sequence[str], owner: str, ttl: float) -> list[Lease]:
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


def need_centre(taker: str, centre: Any) -> None:
    """Raise ConfigError if it is no lock centre."""
    if not isinstance(centre, LockCentre):
        raise ConfigError(
            f"{taker} takes a lock centre first: DatabaseLocks(engine), RedisLocks(client) or "
            f"ZooKeeperLocks(client); got {centre!r:.80}"
        )


def extended(lease: Lease, renewed: bool, asked_at: float) -> bool:
    """For lock centres: note the answer to a renewal that was sent at this local time."""
    if renewed:
        lease.renewed(asked_at)
    else:
        lease.end("it expired or was taken away")
    return renewed


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
    return _text("the name of a lock", name, MAX_LOCK)


def group_of(spec: MessageTable, most: int) -> str:
    """The name of a table, with its `where`, as a part of names of locks: in `most` characters."""
    whole = f"{spec.name}{spec.part}"
    if len(whole) <= most:
        return whole
    return f"{whole[: most - 7]}_{hashlib.sha256(whole.encode()).hexdigest()[:6]}"


def check_owner(owner: Any) -> str:
    """The owner of a lock, or ConfigError."""
    return _text("the owner of a lock", owner, MAX_LOCK_OWNER)


def check_prefix(prefix: Any) -> str:
    """A prefix of names; empty for all names."""
    return "" if prefix == "" else _text("prefix", prefix, MAX_LOCK)


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


# --- Hold a lock while a block of code runs, and keep its lease in the background.
#
# The lock centre decides, at each renewal, whether the lease is still ours. The local clock may
# only end it earlier: a lease counts as held for 0.9 of its time, from before the renewal was
# requested; then it is lost, whatever the centre says later.

log = logger("msgworker.coordination")
OnLost = Callable[[Lease], object]
MOST_SETTLE = 1000
FIRST_POLL_SECONDS = 0.1
LONGEST_POLL_SECONDS = 0.5
JOIN_SECONDS = 1.0


def hold(
    centre: LockCentre,
    name: str,
    ttl: float = 30.0,
    settle: int = 0,
    wait: float | None = None,
    *,
    on_lost: OnLost | None = None,
    label: str = "",
) -> AbstractContextManager[Lease]:
    """Hold a lock for the length of a `with` block; gives its Lease.

        with hold(locks, "contract:42", wait=10) as lease:
            ...                             # write lease.token with what you write, and compare it
            lease.check()                   # before each next piece of work

    A separate thread renews the lease every ttl/3. The end of the block releases it at once; if
    the holder dies, the lock is free after ttl seconds.

    ttl: seconds, 0.1 to 86,400; ZooKeeperLocks use the session timeout instead.
    settle: give the lease only after so many renewals, 0 to 1000, for effects that cannot be
    fenced by the token: a former holder has had that long to notice.
    wait: seconds to retry while the lock is held or the centre is unreachable; None = try once.
    on_lost: called with the lease, from another thread, as soon as it is lost.
    label: the name of the holder in `msgworker locks`; default: the host.

    Reentrant: a block inside of a block, of the same centre, name and thread, gets the same lease,
    and the outermost one releases it. Other threads of the process are excluded like any other
    holder; tasks of one event loop are not. In a child that is forked inside the block the lease is
    not held.

    Raises LeaseBusy, LocksUnavailable, ConfigError; and LeaseLost at the end of the block if the
    lease was lost meanwhile, or while it settled, unless the block itself has raised.
    """
    need_centre("hold", centre)
    if on_lost is not None and not callable(on_lost):
        raise ConfigError(f"on_lost must be callable, got {on_lost!r:.80}")
    return _Hold(
        centre,
        check_name(name),
        check_ttl(ttl),
        whole("settle", settle, 0, MOST_SETTLE),
        None if wait is None else number("wait", wait, 0, YEAR_SECONDS),
        on_lost,
        label,
    )


@dataclass(frozen=True, slots=True)
class _Hold(AbstractContextManager[Lease]):
    centre: LockCentre
    name: str
    ttl: float
    settle: int
    wait: float | None
    on_lost: OnLost | None
    label: str

    def _kept_here(self) -> dict[str, _Kept]:
        """The locks of this centre that this thread holds, by name."""
        found: dict[str, _Kept] | None = getattr(self.centre.of_thread, "kept", None)
        if found is None:
            found = self.centre.of_thread.kept = {}
        return found

    def __enter__(self) -> Lease:
        mine = self._kept_here()
        kept = mine.get(self.name)
        if kept is None or kept.pid != os.getpid():
            kept = self._begin()
            mine[self.name] = kept
        else:
            kept.lease.check()
            if self.on_lost is not None:
                kept.call_when_lost(self.on_lost)
        kept.count += 1
        return kept.lease

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        mine = self._kept_here()
        kept = mine[self.name]
        kept.count -= 1
        if kept.count:
            return
        del mine[self.name]
        lost = kept.end()
        if lost is not None and error is None:
            raise lost

    def _begin(self) -> _Kept:
        """The lease, kept and settled."""
        begun = time.monotonic()
        while True:
            lease = self._acquire(begun)
            kept = _Kept(self.centre, lease)
            if self.on_lost is not None:
                kept.call_when_lost(self.on_lost)
            kept.start()
            try:
                if kept.settled(self.settle):
                    return kept
            except BaseException:
                kept.end()
                raise
            lost = kept.end()
            if self.wait is None or time.monotonic() - begun >= self.wait:
                raise lost or LeaseBusy(
                    self.name, None, time.monotonic() - begun, see=self.centre.listed
                )

    def _acquire(self, begun: float) -> Lease:
        owner = new_owner(self.label)
        waited, outage = 0.0, None
        while True:
            lease = None
            try:
                lease, outage = self.centre.acquire(self.name, owner, self.ttl), None
            except LocksUnavailable as error:
                outage = error
            if lease is not None:
                return lease
            waited = time.monotonic() - begun
            if self.wait is None or waited >= self.wait:
                break
            most = min(LONGEST_POLL_SECONDS, FIRST_POLL_SECONDS + waited / 20)
            # With random pauses, and once more at the end of the time.
            time.sleep(min(random.uniform(0.5, 1.0) * most, self.wait - waited))
        if outage is not None:
            raise outage
        found = None
        with suppress(LocksUnavailable):
            found = self.centre.holder(self.name)
        whose = found.owner if found else None
        raise LeaseBusy(self.name, whose, waited, see=self.centre.listed)


class _Kept:
    """A lease with its threads: one renews it; with `on_lost`, another one watches the clock,
    because a renewal may hang."""

    def __init__(self, centre: LockCentre, lease: Lease) -> None:
        self.lease = lease
        self.count = 0
        self.pid = os.getpid()
        self._centre = centre
        self._stopping = threading.Event()
        self._changed = threading.Condition()
        self._renewals = 0
        self._lost = False
        self._away = False
        self._on_lost: list[OnLost] = []
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        self._run(self._renew_on, "renew")

    def _run(self, what: Callable[[], None], name: str) -> None:
        thread = threading.Thread(target=what, name=f"msgworker-lease-{name}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def call_when_lost(self, on_lost: OnLost) -> None:
        """Call `fn` when the lease is lost; at once if it is already."""
        with self._changed:
            self._on_lost.append(on_lost)
            first, lost = len(self._on_lost) == 1, self._lost
        if lost:
            self._call(on_lost)
        elif first:
            self._run(self._watch, "watch")

    def settled(self, renewals: int) -> bool:
        """Wait for so many renewals; False if the lease was lost before."""
        with self._changed:
            while self._renewals < renewals:
                left = self.lease.deadline - clock()  # a renewal that hangs reports nothing
                if self._lost or left <= 0:
                    return False
                self._changed.wait(left)
        return self.lease.live()

    def end(self) -> LeaseLost | None:
        """Stop renewing and release; returns the error to raise if the lease was lost."""
        self._stopping.set()
        lease = self.lease
        try:
            lease.check()
        except LeaseLost as lost:
            if self.pid == os.getpid():  # it is the parent's
                self._release()
            return lost
        released = self._release()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(JOIN_SECONDS)
        if released:
            return None
        return LeaseLost(lease.name, lease.owner, lease.token, "it was taken away")

    def _release(self) -> bool:
        try:
            return self._centre.release(self.lease)
        except LocksUnavailable as error:
            text = "lock %s is not released, it lasts for %g s: %s"
            log.warning(text, self.lease.name, self.lease.ttl, error)
            return True

    # ------------------------------------------------------------ in the background

    def _renew_on(self) -> None:
        pause = self.lease.ttl / 3
        while not self._stopping.wait(pause):
            begun = clock()
            if begun >= self.lease.deadline:
                self._lose(f"no renewal has succeeded for 0.9 x {self.lease.ttl:g} s")
                return
            renewed = self._renewed()
            if renewed is False:
                self._lose("it expired or was taken away")
                return
            if renewed:
                with self._changed:
                    self._renewals += 1
                    self._changed.notify_all()
            rest = self.lease.ttl / (3 if renewed else 10)
            pause = max(0.01, begun + rest * random.uniform(0.9, 1.0) - clock())

    def _renewed(self) -> bool | None:
        """None: unknown, try again."""
        lease = self.lease
        try:
            renewed = self._centre.renew(lease)
        except Exception as error:  # a lease that cannot be renewed expires
            if not self._away:
                expected = isinstance(error, LocksUnavailable)
                text = "the lease of lock %s cannot be renewed now: %s"
                log.warning(text, lease.name, error, exc_info=not expected)
            self._away = True
            return None
        if self._away and renewed:
            log.info("the lease of lock %s is renewed again", lease.name)
        self._away = False
        return renewed

    def _watch(self) -> None:
        while not self._stopping.wait(max(0.01, self.lease.deadline - clock())):
            if self._lost:
                return
            if clock() >= self.lease.deadline:
                self._lose(f"no renewal has succeeded for 0.9 x {self.lease.ttl:g} s")
                return

    def _lose(self, why: str) -> None:
        with self._changed:
            if self._lost or self._stopping.is_set():
                return
            self._lost = True
            self.lease.end(why)
            listeners = list(self._on_lost)
            self._changed.notify_all()
        lease = self.lease
        log.warning(
            "lock %s is lost to %s (token %d): %s", lease.name, lease.owner, lease.token, why
        )
        for on_lost in listeners:
            self._call(on_lost)

    def _call(self, on_lost: OnLost) -> None:
        try:
            on_lost(self.lease)
        except Exception:
            log.exception("on_lost of lock %s failed", self.lease.name)
