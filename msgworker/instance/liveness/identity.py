"""The id of an instance, and whether it may claim and start handlers under it.

              registered                doubt
     ┌─────┐ ────────────► ┌─────────┐ ────────► ┌─────────┐
     │ NEW │               │ TRUSTED │           │ DOUBTED │
     └─────┘ ◄──┐          └─────────┘ ◄──────── └─────────┘
        ▲       │               │       renewed    ▲     │
        │     become            │ retire     doubt │     │ renewed
        │       │               ▼                  │     ▼
        │       │          ┌──────────┐ ───────────┘     │
        │       └───────── │ RETIRING │ ◄────────────────┘
     become                └──────────┘
        │     lost, from every phase
     ┌──────┐ ◄────────
     │ LOST │
     └──────┘

NEW: the id has no lease yet. TRUSTED: it has one, and the last renewal is recent enough.
DOUBTED: a message was taken from us; only a renewal that began later can show whether our lease was
taken over. RETIRING: it works as before, and takes another id as soon as nothing is in flight: an
outcome could not be written, or a statement under this id may still arrive. LOST: the lease was
taken over, has expired, or was not renewed in time.

Only the heartbeat takes a step, except for `doubt` and `retire`, which any thread may call. In NEW
and LOST `doubt` has no effect; a `retire` in NEW or DOUBTED takes effect at the step
to TRUSTED, which then leads to RETIRING; and `become` is allowed if DOUBTED and to retire.

An id is never reused: a statement sent under it cannot refer to its successor.
"""

from __future__ import annotations

import os
import re
import socket
import time
import uuid
from collections.abc import Callable, Iterable
from enum import Enum, auto

from msgworker.clock import clock

TRUST_PAUSE_SECONDS = 0.05


def new_instance_id(label: str = "") -> str:
    """host-pid-random, at most 64 characters; always unique."""
    host = label or socket.gethostname() or "host"
    host = re.sub(r"[^A-Za-z0-9_.-]", "_", host)[:30]
    return f"{host}-{os.getpid()}-{uuid.uuid4().hex[:16]}"


class Phase(Enum):
    """See above."""

    NEW = auto()
    TRUSTED = auto()
    DOUBTED = auto()
    RETIRING = auto()
    LOST = auto()


class Misstep(AssertionError):
    """A step that the phase does not allow: a bug."""


class Identity:
    """Every field is read by all threads. Without a lock: each is written with one assignment.

    id: written by the heartbeat. Read it once if two reads must agree.
    trusted_until: by `clock`, until when our lease is trusted; written by the heartbeat.
    doubted_at: since when, on the monotonic clock, we are in doubt, 0 for not; written by
    settling threads, cleared by the heartbeat.
    renewed_at: when, on the monotonic clock, the last renewal began; written by the heartbeat.
    carried: our lost ids under which in-flight messages were claimed, only on a table without
    `claimed_by`; written by the heartbeat.
    stuck: messages whose outcome could not be written, which stay flagged by this id until its
    lease expires; written by settling threads, cleared by the heartbeat.
    doubtful: messages of an abandoned settle that may still arrive, so that they are not
    claimed under this id; written by settling threads, cleared by the heartbeat.
    """

    __slots__ = (
        "_lost",
        "_registered",
        "_retires",
        "carried",
        "doubted_at",
        "doubtful",
        "id",
        "renewed_at",
        "stuck",
        "trusted_until",
    )

    def __init__(self, first_id: str) -> None:
        self.id = first_id
        self.trusted_until = 0.0
        self.doubted_at = 0.0
        self.renewed_at = 0.0
        self.carried: frozenset[str] = frozenset()
        self.stuck: set[int] = set()
        self.doubtful: set[int] = set()
        self._registered = False  # both are written by the heartbeat only
        self._lost = False
        self._retires = False  # set by any thread, cleared by the heartbeat

    @property
    def phase(self) -> Phase:
        """The phase of its life."""
        if self._lost:
            return Phase.LOST
        if not self._registered:
            return Phase.NEW
        if self.doubted_at:
            return Phase.DOUBTED
        return Phase.RETIRING if self._retires else Phase.TRUSTED

    @property
    def retires(self) -> bool:
        """Whether it should take another id."""
        return self._retires

    def trusted(self) -> bool:
        """Whether we may claim and start handlers: TRUSTED or RETIRING, and renewed recently."""
        return not self.doubted_at and clock() < self.trusted_until

    def is_ours(self, owner: str) -> bool:
        """Whether this id is or was ours, and its in-flight messages are kept."""
        return owner == self.id or owner in self.carried

    def wait_for_trust(self, over: Callable[[], bool]) -> bool:
        """Wait while we are in doubt; False as soon as `over` says that waiting is useless."""
        while True:
            trusted = self.trusted()  # read before `over()`, which may see a new id
            if over():
                return False
            if trusted:
                return True
            time.sleep(TRUST_PAUSE_SECONDS)

    # ------------------------------------------------------------ asked for by any thread

    def doubt(self, *, least_age: float) -> bool:
        """A message was taken from us; True if that causes doubt. Not if the last renewal is
        younger than `least_age` seconds, so that renewals are not repeated all the time."""
        now = time.monotonic()
        if self._lost or not self._registered or now - self.renewed_at <= least_age:
            return False
        self.doubted_at = now
        return True

    def retire(self) -> None:
        """Take another id as soon as nothing is in flight."""
        self._retires = True

    def cannot_write(self, ids: Iterable[int]) -> None:
        """The outcome of these messages cannot be written."""
        self.stuck.update(ids)
        self.retire()

    # ------------------------------------------------------------ by the heartbeat

    def registered(self, trusted_until: float) -> None:
        """NEW: it has a lease."""
        if self.phase is not Phase.NEW:
            self._refuse()
        self._registered = True
        self.trusted_until = trusted_until

    def renewed(self, trusted_until: float) -> None:
        """TRUSTED, DOUBTED or RETIRING: its lease was renewed, at `renewed_at`."""
        if self._lost or not self._registered:
            self._refuse()
        self.trusted_until = trusted_until
        if self.doubted_at <= self.renewed_at:
            self.doubted_at = 0.0

    def lost(self) -> None:
        """Any phase: the lease has ended, or may have."""
        self.trusted_until = 0.0
        self._lost = True

    def become(self, new_id: str, *, carried: frozenset[str] = frozenset()) -> None:
        """LOST or RETIRING: take another id, which has no lease yet.

        carried: ids under which in-flight messages were claimed that we keep.
        """
        if not (self._lost or self._retires):
            self._refuse()
        self.trusted_until = 0.0
        self.carried = carried  # before the id, so that in-flight messages are ours at any moment
        self.id = new_id
        self.doubted_at = 0.0
        self.doubtful.clear()
        self.stuck = set()
        self._retires = self._registered = self._lost = False

    def _refuse(self) -> None:
        raise Misstep(f"{self.id} is {self.phase.name}")
