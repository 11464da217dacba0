"""The id of an instance, and whether it may claim and start handlers under it.

              registered                doubt
     ┌─────┐ ────────────► ┌─────────┐ ────────► ┌─────────┐
     │ NEW │               │ TRUSTED │           │ DOUBTED │
     └─────┘               └─────────┘ ◄──────── └─────────┘
                            ▲   │       renewed    ▲     │
                      adopt │   │ retire     doubt │     │ renewed
                            │   ▼                  │     ▼
                           ┌──────────┐ ───────────┘     │
                           │ RETIRING │ ◄────────────────┘
                           └──────────┘
     ┌──────┐  adopt   ┌─────────┐
     │ LOST │ ───────► │ TRUSTED │
     └──────┘          └─────────┘
        ▲ lost, from every phase

NEW: the id has no lease yet. TRUSTED: it has one, and the last renewal is recent enough.
DOUBTED: a message was taken from us; only a renewal that began later can show whether our lease was
taken over. RETIRING: it works as before, and takes another id as soon as nothing is in flight: an
outcome could not be written, or a statement under this id may still arrive. LOST: the lease was
taken over. `adopt` names an id that has a lease already, so it leads to TRUSTED.

The heartbeat and the housekeeper take the steps, one at a time: each names the id that it is for,
and does nothing if the id has changed since. `doubt` and `retire` may be called by any thread. In
NEW and LOST `doubt` has no effect; after a `retire` in NEW or DOUBTED the step to TRUSTED leads to
RETIRING instead; and `adopt` is also allowed in DOUBTED after a `retire`.

An id is never reused: a statement sent under it cannot refer to its successor.
"""

from __future__ import annotations

import os
import re
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from enum import Enum, auto

from msgworker.clock import clock

TRUST_PAUSE_SECONDS = 0.05


def new_instance_id(label: str = "") -> str:
    """host-pid-random, at most 64 characters; always unique."""
    host = label or socket.gethostname() or "host"
    host = re.sub(r"[^A-Za-z0-9_.-]", "_", host)[:30]
    return f"{host}-{os.getpid()}-{uuid.uuid4().hex[:16]}"


class Phase(Enum):
    """See the top of this file."""

    NEW = auto()
    TRUSTED = auto()
    DOUBTED = auto()
    RETIRING = auto()
    LOST = auto()


class Misstep(AssertionError):
    """A step that the phase does not allow: a bug."""


@dataclass(frozen=True, slots=True)
class Tenure:
    """An id and what is known of its lease; only replaced as a whole.

    trusted_until: by `clock`. renewed_at: when its last renewal began (monotonic). late: that was
    after trust had ended: what delayed it may delay other instances, too. margin: for how many
    seconds it was still trusted then, None before the first renewal. carried: our lost ids
    under which in-flight messages were claimed, only on a table without `claimed_by`.
    stuck: messages whose outcome could not be written, which stay flagged by this id until its
    lease expires. doubtful: messages of an abandoned settle, which may still arrive at the
    database: they are not claimed under this id. Settling threads add to both. left: our former ids
    that have stuck messages.
    """

    id: str
    registered: bool = False
    lost: bool = False
    trusted_until: float = 0.0
    renewed_at: float = 0.0
    late: bool = False
    margin: float | None = None
    carried: frozenset[str] = frozenset()
    left: frozenset[str] = frozenset()
    stuck: set[int] = field(default_factory=set)
    doubtful: set[int] = field(default_factory=set)


class Identity:
    """The id of an instance; the heartbeat and the housekeeper change it. `tenure` is replaced in
    one assignment: read it once if two values must agree. A doubt and a `retire` are of one id."""

    __slots__ = ("_doubt", "_retiring", "_step", "tenure")

    def __init__(self, first_id: str) -> None:
        self.tenure = Tenure(first_id)
        self._doubt = ("", 0.0)  # an id, and since when, on the monotonic clock
        self._retiring = ""  # an id
        self._step = threading.Lock()  # for a few assignments at most

    @property
    def id(self) -> str:
        return self.tenure.id

    @property
    def ids(self) -> tuple[str, ...]:
        """The present id, and former ones that have messages whose outcome could not be written."""
        tenure = self.tenure
        return (tenure.id, *tenure.left)

    @property
    def phase(self) -> Phase:
        tenure = self.tenure
        if tenure.lost:
            return Phase.LOST
        if not tenure.registered:
            return Phase.NEW
        if self._doubts(tenure):
            return Phase.DOUBTED
        return Phase.RETIRING if self._retiring == tenure.id else Phase.TRUSTED

    @property
    def in_doubt(self) -> bool:
        """Whether only another renewal can show that our lease is live."""
        return self._doubts(self.tenure)

    @property
    def retires(self) -> bool:
        """Whether it should take another id."""
        return self._retiring == self.tenure.id

    def _doubts(self, tenure: Tenure) -> bool:
        whose, since = self._doubt
        return whose == tenure.id and since > tenure.renewed_at

    def trusted(self) -> bool:
        """Whether we may claim and start handlers: TRUSTED or RETIRING, and renewed recently."""
        tenure = self.tenure
        whose, since = self._doubt  # as in `_doubts`: asked for each message
        doubts = since > tenure.renewed_at and whose == tenure.id
        return not doubts and clock() < tenure.trusted_until

    def is_ours(self, owner: str) -> bool:
        """Whether this id is or was ours, and its in-flight messages are kept."""
        tenure = self.tenure
        return owner == tenure.id or owner in tenure.carried

    def wait_for_trust(self, over: Callable[[], bool]) -> bool:
        """Wait until we are trusted; False as soon as `over` returns true."""
        while True:
            trusted = self.trusted()  # read before `over()`, which may see a new id
            if over():
                return False
            if trusted:
                return True
            time.sleep(TRUST_PAUSE_SECONDS)

    # ------------------------------------------------------------ asked for by any thread

    def doubt(self, *, least_age: float) -> bool:
        """A message was taken from us; True if that causes doubt: not if the last renewal is
        younger than `least_age` seconds."""
        now, tenure = time.monotonic(), self.tenure
        if tenure.lost or not tenure.registered or now - tenure.renewed_at <= least_age:
            return False
        self._doubt = (tenure.id, now)
        return True

    def retire(self) -> None:
        """Take another id as soon as nothing is in flight."""
        self._retiring = self.tenure.id

    def cannot_write(self, whose: str, ids: Iterable[int]) -> None:
        """The outcome of these messages of this id cannot be written. Nothing if the id is not ours
        any more: another instance recovers them."""
        tenure = self.tenure
        if whose == tenure.id or whose in tenure.carried:
            tenure.stuck.update(ids)
            self._retiring = tenure.id

    def abandoned(self, whose: str, ids: Iterable[int]) -> None:
        """A settle of these messages under this id had no answer: it may still arrive."""
        tenure = self.tenure
        if whose == tenure.id or whose in tenure.carried:
            tenure.doubtful.update(ids)

    # ------------------------------------------------------------ by heartbeat and housekeeper

    def registered(self, trusted_until: float, begun: float) -> None:
        """NEW: the id has a lease now. begun: when its registration began (monotonic)."""
        with self._step:
            if self.phase is not Phase.NEW:
                self._refuse()
            self.tenure = replace(
                self.tenure, registered=True, trusted_until=trusted_until, renewed_at=begun
            )

    def renewed(
        self,
        whose: str,
        trusted_until: float,
        begun: float,
        *,
        late: bool = False,
        margin: float | None = None,
    ) -> None:
        """TRUSTED, DOUBTED or RETIRING: the lease of this id was renewed; see `Tenure`."""
        with self._step:
            tenure = self.tenure
            if whose != tenure.id:
                return
            if tenure.lost or not tenure.registered:
                self._refuse()
            self.tenure = replace(
                tenure, trusted_until=trusted_until, renewed_at=begun, late=late, margin=margin
            )

    def expired(self, whose: str) -> None:
        """Any phase: the lease of this id has expired: nothing starts until a renewal."""
        with self._step:
            if whose == self.tenure.id:
                self.tenure = replace(self.tenure, trusted_until=0.0)

    def lost(self, whose: str) -> bool:
        """Any phase: the lease of this id was, or may be, taken over; False if we have another."""
        with self._step:
            if whose != self.tenure.id:
                return False
            self.tenure = replace(self.tenure, lost=True, trusted_until=0.0)
            return True

    def adopt(
        self,
        old: str,
        new: str,
        trusted_until: float,
        begun: float,
        *,
        carried: frozenset[str] = frozenset(),
        has_stuck: bool = False,
    ) -> bool:
        """LOST or RETIRING: take another id, whose registration began at `begun` (monotonic). False
        if the id is not `old` any more. carried: see `Tenure`. has_stuck: the old one has such."""
        with self._step:
            if old != self.tenure.id:
                return False
            if not (self.tenure.lost or self.retires):
                self._refuse()
            self.tenure = Tenure(
                new,
                registered=True,
                trusted_until=trusted_until,
                renewed_at=begun,
                carried=carried,
                left=self.tenure.left | ({old} if has_stuck else frozenset()),
            )
            return True

    def _refuse(self) -> None:
        raise Misstep(f"{self.id} is {self.phase.name}")
