"""Whether the items of a fan-out may still start, and whether their records may be written."""

from __future__ import annotations

import time

from msgworker.errors import HandlerMisuse, HandlerTimeout, LostClaim, RetryLater
from msgworker.instance.running.hand import Running
from msgworker.instance.runtime import Runtime


class Stopped(RetryLater):
    """The worker stops in the middle of a fan-out, or its lease may be over; no try is counted."""


class Fence:
    """Whether items may start under the claim of a fan-out, and if not, why.

    lost: a record was refused because the message is no longer ours. closing: the fan-out ends.
    total: how many items the message has up to this fan-out; None = not known.
    """

    def __init__(self, runtime: Runtime, running: Running, until: float | None) -> None:
        self.runtime = runtime
        self.row = running.row
        self.msg_id = running.row.msg_id
        self.owner = running.owner
        self.lost = False
        self.closing = False
        self.total: int | None = None
        self.running = running
        limits = [limit for limit in (until, running.until) if limit is not None]
        self._until = min(limits, default=None)

    @property
    def gone(self) -> bool:
        """Another instance may hold the message: nothing may be written for it."""
        return self.lost or not self.runtime.identity.is_ours(self.owner)

    @property
    def over(self) -> bool:
        """Items may no longer start."""
        if self.closing or self.running.cancelled or self.gone:
            return True
        return self._until is not None and time.monotonic() > self._until

    def reason(self) -> Exception | None:
        """The exception of a fan-out that ended early: an orderly stop is no failed try; None if it
        did not."""
        if not self.over:
            return None
        if self.gone:
            return LostClaim(self.msg_id, self.owner)
        if self._until is not None and time.monotonic() > self._until:
            return HandlerTimeout(
                "timeout in the middle of a fan-out; its finished items are recorded, "
                "the next try runs the others"
            )
        if self.running.cancel_reason is not None:
            return Stopped(0, f"cancelled in the middle of a fan-out: {self.running.cancel_reason}")
        if self.running.cancelled:
            return Stopped(0, "stopped in the middle of a fan-out; the rest runs later")
        return HandlerMisuse("the handler ended while its fan-out ran; wait for it")

    def may_start(self) -> bool:
        """Whether another item may start; waits while our lease is in doubt."""
        return self.runtime.identity.wait_for_trust(lambda: self.over)
