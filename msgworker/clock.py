"""The local clock for leases: durations only, never an instant that others can see.

By it alone is judged until when a lease is trusted (`trusted_until`). All other durations in an
instance are by `time.monotonic`, in objects without a thread by `Setup.clock`, which is the same
and which tests replace. Instants are the database's.
"""

from __future__ import annotations

import time

_CLOCK = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))


def clock() -> float:
    """Seconds, to judge our own lease locally. They include the time in which the machine sleeps,
    which `time.monotonic` does not on every platform."""
    return time.monotonic() if _CLOCK is None else time.clock_gettime(_CLOCK)
