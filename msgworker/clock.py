"""The local clock for leases: durations only, never an instant that others can see."""

from __future__ import annotations

import time

_CLOCK = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))


def clock() -> float:
    """Seconds, to judge our own lease locally. They include the time in which the machine sleeps,
    which `time.monotonic` does not on every platform."""
    return time.monotonic() if _CLOCK is None else time.clock_gettime(_CLOCK)
