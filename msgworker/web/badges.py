"""The numbers beside the names of pages: what needs help, wherever the viewer is.

See badged.py for when they are read.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

from msgworker.message import State
from msgworker.store.looking.overview import Overview

OLD_SECONDS = 120.0
"""After so long without an answer nothing is shown rather than what was."""
PENDING: ContextVar[asyncio.Future[Any] | None] = ContextVar("msgworker_badges", default=None)
"""The read of them for this request: beside what its page reads, and awaited before it is shown."""
BADGED = ("failures", "instances")
"""The routes of pages with a number."""


class Badges:
    """What was read last. Used on the event loop, and by the poller's thread, which only
    replaces it."""

    def __init__(self) -> None:
        self._found: Mapping[str, tuple[str, str]] = {}
        self._read_at: float | None = None

    def note(self, found: Overview) -> None:
        """An overview was read."""
        dead = found.count(State.DEAD)
        self._found = {
            name: (text, word)
            for name, count, text, word in (
                ("failures", dead.count, str(dead), "dead messages"),
                ("instances", found.dead, str(found.dead), "dead instances"),
            )
            if count
        }
        self._read_at = time.monotonic()

    def forget(self) -> None:
        """Nothing was read."""
        self._found, self._read_at = {}, None

    @property
    def age(self) -> float:
        """Seconds since they were read; infinite if never."""
        return float("inf") if self._read_at is None else time.monotonic() - self._read_at

    def shown(self) -> Mapping[str, tuple[str, str]]:
        """By route: the number, and what it counts."""
        return self._found if self.age < OLD_SECONDS else {}
