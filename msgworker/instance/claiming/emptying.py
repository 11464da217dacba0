"""Stop claiming until nothing is in flight, when a message must run alone, or the instance must
take a new id.

quiesce.py decides for how long; this module acts.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from msgworker.instance.claiming.quiesce import Phase, Reason
from msgworker.instance.running.lanes import Lanes
from msgworker.instance.runtime import Runtime
from msgworker.instance.settling.settler import Settler

NEW_ID_ASK_SECONDS = 0.5


class Emptying:
    """Used by the fetcher's thread only. housekeep_now: wakes the housekeeper."""

    def __init__(
        self,
        runtime: Runtime,
        *,
        lanes: Lanes,
        settler: Settler,
        housekeep_now: Callable[[], None],
    ) -> None:
        self._runtime = runtime
        self._lanes = lanes
        self._settler = settler
        self._housekeep_now = housekeep_now
        self._asked_at = -NEW_ID_ASK_SECONDS

    @property
    def active(self) -> bool:
        """Whether there is a reason to run empty."""
        return self._runtime.quiesce.reason is not None

    def for_new_id(self, held: int) -> bool:
        """Whether claiming stops because the instance takes a new id as soon as the `held` lanes
        are settled; then it requests that from the housekeeper."""
        if not self._runtime.identity.retires or not self._goes_on(held, Reason.NEW_ID):
            return False
        now = time.monotonic()
        if held == 0 and now > self._asked_at + NEW_ID_ASK_SECONDS:
            self._asked_at = now
            self._housekeep_now()
        return True

    def for_quarantine(self, held: int) -> bool:
        """Whether claiming stops for a message in quarantine, which is claimed as soon as the
        `held` lanes are settled."""
        return self._goes_on(held, Reason.QUARANTINE)

    def no_quarantine(self) -> None:
        """No message in quarantine waits."""
        if not self._runtime.identity.retires:
            self._runtime.quiesce.end()

    def _goes_on(self, held: int, reason: Reason) -> bool:
        """Stop claiming until in-flight messages are settled; True while that lasts, and after."""
        phase = self._runtime.quiesce.step(held, reason)
        if phase is Phase.BEGUN:
            self._runtime.log.debug("nothing new is started: %s", reason.value)
            self._settler.give_back(self._lanes.take_back())
        return phase in (Phase.BEGUN, Phase.QUIESCING, Phase.EMPTY)
