"""The local clock of leases: durations only, never an instant that others are told."""

from __future__ import annotations

import time

_CLOCK = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))


def clock() -> float:
    """Seconds, for what we believe of our lease: they go on while the machine sleeps, which those
    of `time.monotonic` do not everywhere."""
    return time.monotonic() if _CLOCK is None else time.clock_gettime(_CLOCK)
