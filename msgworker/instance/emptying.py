"""Let our hands run empty where a message must run alone, or the instance go on under a new id.

quiesce.py decides how long that is tried; here it is done.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from msgworker.instance.lanes import Lanes
from msgworker.instance.quiesce import Phase, Reason
from msgworker.instance.runtime import Runtime
from msgworker.instance.settler import Settler

NEW_ID_ASK_SECONDS = 0.5


class Emptying:
    """Used by the fetcher's thread only. beat_now: has the heartbeat beat at once."""

    def __init__(
        self,
        runtime: Runtime,
        *,
        lanes: Lanes,
        settler: Settler,
        beat_now: Callable[[], None],
    ) -> None:
        self._runtime = runtime
        self._lanes = lanes
        self._settler = settler
        self._beat_now = beat_now
        self._asked_at = -NEW_ID_ASK_SECONDS

    def for_new_id(self, held: int) -> bool:
        """Whether nothing is claimed because the instance takes a new id as soon as none of the
        `held` lanes is in hand; then the heartbeat is asked for it."""
        if not self._runtime.identity.retires or not self._goes_on(held, Reason.NEW_ID):
            return False
        now = time.monotonic()
        if held == 0 and now > self._asked_at + NEW_ID_ASK_SECONDS:
            self._asked_at = now
            self._beat_now()
        return True

    def for_quarantine(self, held: int) -> bool:
        """Whether nothing is claimed but a message in quarantine, as soon as none of the `held`
        lanes is in hand."""
        return self._goes_on(held, Reason.QUARANTINE)

    def no_quarantine(self) -> None:
        """There is no message in quarantine to wait for."""
        if not self._runtime.identity.retires:
            self._runtime.quiesce.end()

    def _goes_on(self, held: int, reason: Reason) -> bool:
        """Start nothing new, so that our hands run empty; True while that goes on, or is so."""
        phase = self._runtime.quiesce.step(held, reason)
        if phase is Phase.BEGUN:
            self._runtime.log.debug("nothing new is started: %s", reason.value)
            self._settler.give_back(self._lanes.take_back())
        return phase in (Phase.BEGUN, Phase.QUIESCING, Phase.EMPTY)
