"""Sum up a storm of equal log lines: the first few of a group in a minute, then their number.

A group is what is alike: the name of the event, the topic, and the fingerprint of the error. Pure:
who logs gives the time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

FIRST = 5
"""Lines of a group that are logged in a minute."""
SECONDS = 60.0
MOST_GROUPS = 200
"""Groups told apart; all others are one for each name."""

Group = tuple[str, str, str]
"""Name of the event, topic, fingerprint; the last two are empty for all groups beyond the most."""


@dataclass(slots=True)
class More:
    """What was not logged of a group. topic, error: of its latest line; level: of its lines."""

    name: str
    count: int = 0
    topic: str = ""
    error: str = ""
    level: int = 0


@dataclass(slots=True)
class _Seen:
    since: float
    lines: int = 0
    more: More | None = None


class Storms:
    """The groups of the last minute."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._groups: dict[Group, _Seen] = {}

    def logs(self, name: str, topic: Any, mark: str, *, level: int, error: str) -> bool:
        """Whether a line is logged; else it is counted. mark: the fingerprint of the error."""
        with self._lock:
            group = (name, str(topic), mark)
            if group not in self._groups and len(self._groups) >= MOST_GROUPS:
                group = (name, "", "")
            now = self._clock()
            seen = self._groups.setdefault(group, _Seen(now))
            if seen.more is None and now - seen.since >= SECONDS:  # a new minute of it
                seen.since, seen.lines = now, 0
            seen.lines += 1
            if seen.lines <= FIRST:
                return True
            if seen.more is None:
                seen.more = More(name)
            seen.more.count += 1
            seen.more.topic, seen.more.error, seen.more.level = str(topic), error, level
            return False

    def over(self, *, all_of_them: bool = False) -> list[More]:
        """What was not logged of the minutes that are over, once; then their groups are new."""
        with self._lock:
            now = self._clock()
            ended = [
                group
                for group, seen in self._groups.items()
                if all_of_them or now - seen.since >= SECONDS
            ]
            gone = [self._groups.pop(group) for group in ended]
        return [seen.more for seen in gone if seen.more is not None]
