"""A seat that moves: a separate thread talks to the lock centre.

The claim loop only reads its result, and never waits for it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterable

from msgworker.errors import LocksUnavailable
from msgworker.instance.claiming.seat import Standing

OUTAGE_SECONDS = 1.0


class Moving:
    """Start, stop and the loop; a subclass implements one step."""

    def __init__(self, standing: Standing, name: str) -> None:
        self.standing = standing
        self.log = standing.log
        self.lock = threading.Lock()
        self.leaving = False
        self._poked = threading.Event()
        self._stopping = threading.Event()
        self._away = False
        self._thread = threading.Thread(target=self._run, name=f"msgworker-{name}", daemon=True)

    def step(self) -> float | None:
        """One step; returns the pause in seconds, None = end."""
        raise NotImplementedError

    def outage(self, error: Exception | None) -> None:
        """Called at the first failure to reach the centre, and at its end (None)."""

    def start(self) -> None:
        self._thread.start()

    def leave(self) -> None:
        self.leaving = True
        self.poke()

    def stop(self, seconds: float) -> None:
        self.leave()
        if self._thread.ident is not None:
            self._thread.join(seconds)
        self._stopping.set()
        self.poke()

    def poke(self) -> None:
        """Cut the pause short."""
        self._poked.set()

    def _run(self) -> None:
        while not self._stopping.is_set():
            pause = self._guarded()
            if pause is None:
                return
            self._poked.wait(pause)
            self._poked.clear()

    def _guarded(self) -> float | None:
        try:
            pause = self.step()
        except LocksUnavailable as error:
            self._tell(error)
        except Exception as error:
            if not self._away:
                self.log.exception("scope: unexpected error; continuing")
            self._tell(error)
        else:
            self._tell(None)
            return pause
        return OUTAGE_SECONDS

    def _tell(self, error: Exception | None) -> None:
        if (error is not None) is self._away:
            return
        self._away = error is not None
        if error is None:
            self.log.warning("scope: the locks can be reached again")
        else:
            self.log.warning("scope: the locks cannot be reached: %s; trying again", error)
        self.outage(error)

    def in_hand(self, count: int) -> set[int]:
        """The shards, of `count`, with messages in flight."""
        return {part % count for part in self.standing.holding() if isinstance(part, int)}


def columns(shards: Iterable[int], count: int, kept: int) -> tuple[int, ...]:
    """The numbers in the column `shard` that belong to these shards of `count`.

    kept: how many numbers producers write. Each belongs to the shard of its remainder, so
    that a scope may have fewer shards than the table.
    """
    wanted = set(shards)
    return tuple(sorted({k for k in range(kept) if k % count in wanted} | wanted))


def spans(numbers: Collection[int]) -> str:
    """Numbers as a text: "0-3, 7"."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and parts[-1][-1] == number - 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return ", ".join("-".join(map(str, part)) for part in parts) or "none"


def monotonic() -> float:
    """For pauses only; `Lease.live` judges leases."""
    return time.monotonic()
