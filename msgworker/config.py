"""Settings of an App: units in the names, validated once."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

from msgworker.errors import ConfigError

MAX_THREADS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How instances of an App behave.

    lease_seconds: how long an instance is believed to live without a heartbeat (sent every third).
    poll_seconds: the longest pause between two looks at an idle table; a busy one is looked at often.
    run_limit: how many messages of an object are read ahead behind its head.
    lanes_limit: how many objects an instance has in hand at most.
    notify: on PostgreSQL, wake up workers of other processes when a message is sent.
    """

    lease_seconds: float = 30.0
    poll_seconds: float = 1.0
    run_limit: int = 20
    lanes_limit: int = 1000
    notify: bool = False

    def __post_init__(self) -> None:
        number("lease_seconds", self.lease_seconds, 0.3, 86_400)
        number("poll_seconds", self.poll_seconds, 0.001, 3_600)
        whole("run_limit", self.run_limit, 0, 10_000)
        whole("lanes_limit", self.lanes_limit, 1, 100_000)
        if not isinstance(self.notify, bool):
            raise ConfigError(f"notify must be True or False, got {self.notify!r}")

    @property
    def heartbeat_seconds(self) -> float:
        return self.lease_seconds / 3

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return tuple(f.name for f in fields(cls))


def number(name: str, value: Any, least: float, most: float) -> float:
    """A finite number in a range, or ConfigError."""
    good = isinstance(value, int | float) and not isinstance(value, bool)
    if not good or not math.isfinite(value) or not least <= value <= most:
        raise ConfigError(f"{name} must be a number from {least:g} to {most:g}, got {value!r}")
    return float(value)


def whole(name: str, value: Any, least: int, most: int) -> int:
    """A whole number in a range, or ConfigError."""
    good = isinstance(value, int) and not isinstance(value, bool)
    if not good or not least <= value <= most:
        raise ConfigError(f"{name} must be a whole number from {least} to {most}, got {value!r}")
    return int(value)
