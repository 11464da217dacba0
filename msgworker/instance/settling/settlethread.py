"""Settles for handler threads whose handlers are long: their lanes wait, and they go on with them.

A thread that settles runs no handler meanwhile. Where handlers are short that costs less than
waking another thread up; where they are long it would be a thread less for the time of a settle.
"""

from __future__ import annotations

from collections.abc import Callable

from msgworker.instance.role import Role
from msgworker.instance.runtime import Runtime

LONG_HANDLER_SECONDS = 0.001
IDLE_SECONDS = 10.0


class SettleThread(Role):
    """settle: settles all finished lanes, unless another thread does; does not raise."""

    def __init__(self, runtime: Runtime, settle: Callable[[], None]) -> None:
        super().__init__("settler", runtime.log, runtime.away, leave_for=runtime.leave_for)
        self._settle = settle

    def asked(self, handler_seconds: float) -> bool:
        """Have it settle, if handlers take so long that it pays; whether it will. Called by handler
        threads, whose finished lanes are queued."""
        if handler_seconds < LONG_HANDLER_SECONDS or not self.alive:
            return False
        self.wake()
        return True

    def run_once(self) -> int:
        self._settle()
        return 0

    def pause_seconds(self, did: int) -> float:
        return IDLE_SECONDS

    def answered(self) -> bool:
        """The writers tell their outages themselves."""
        return False
