"""How many more lanes to claim now, and which to release because another instance may be faster.

appetite.py decides; this module collects its input.
"""

from __future__ import annotations

import time

from msgworker.counted import plural
from msgworker.instance.claiming.appetite import Appetite
from msgworker.instance.running.lanes import Lanes
from msgworker.instance.runtime import Runtime
from msgworker.instance.settling.settler import Settler
from msgworker.table import Slice


class Room:
    """Used by the fetcher's thread only."""

    def __init__(
        self, runtime: Runtime, *, appetite: Appetite, lanes: Lanes, settler: Settler
    ) -> None:
        self._runtime = runtime
        self._appetite = appetite
        self._lanes = lanes
        self._settler = settler

    def left(self, held: int, where: Slice | None) -> int:
        """How many lanes to claim beside the `held` ones, 0 = none. If there are too many, some are
        released, unless no other instance looks at `where`."""
        runtime = self._runtime
        staying = max(0, held - self._settler.leaving)
        busy = staying + self._look_at_handlers()
        if self._lanes.ran_dry and not self._appetite.has_room(busy):
            self._appetite.ran_dry()
            busy = staying + self._look_at_handlers()
        alone = held == 1 and runtime.hand.quarantined(runtime.tables.spec.max_tries)
        if alone or not runtime.identity.trusted():
            return 0
        if self._appetite.has_room(busy):
            return self._appetite.room(busy)
        self.share(staying, where)
        return 0

    def _look_at_handlers(self) -> int:
        """Compute again how much to hold; returns how many handlers of lost ids still occupy
        threads."""
        now = time.monotonic()
        running = list(self._runtime.hand.running.values())
        # A batch has many lanes: its thread is as far as one that has each of them in turn.
        ages = [(now - r.since) / (1 + len(r.beside)) for r in running]
        self._appetite.sees(self._lanes.mean_seconds, ages)
        return sum(not self._runtime.identity.is_ours(r.owner) for r in running)

    def share(self, held: int, where: Slice | None) -> None:
        """Release lanes that would wait long here while another instance may have free threads.
        They are not claimed again at once, because there is no room for them."""
        excess = held - self._appetite.kept
        if excess <= 0 or self._runtime.slots < 2 or self._runtime.quiesce.active:
            return
        if where is not None and where.exclusive:  # no other instance would claim them
            return
        lanes = self._lanes.take_back(excess)
        if lanes:
            text = "gave back what waited for a thread: %s"
            self._runtime.log.debug(text, plural(len(lanes), "lane"))
            self._settler.give_back(lanes)
