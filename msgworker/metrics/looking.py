"""What is asked of the database at a scrape: the oldest message, what waits, who lives.

One look serves all scrapes of a while, and has a deadline: monitoring must not burden what it
monitors. While the database does not answer, that is what is told.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from msgworker.dialects import reason_of
from msgworker.instance.minutes import MOST_TOPICS, OTHERS, countable
from msgworker.logs import logger
from msgworker.message import State
from msgworker.metrics import names
from msgworker.metrics.snapshot import Key, Snapshot
from msgworker.processlock import ProcessLock

if TYPE_CHECKING:
    from msgworker.ops import Ops
    from msgworker.store.looking.overview import Overview

KEEP_SECONDS = 10.0
DEADLINE_SECONDS = 2.0
STATUSES = (State.NEW, State.PROCESSING, State.FAILED, State.DEAD)
DOWN: Snapshot = {(names.UP.name, ()): 0.0}
"""What is told while the database does not answer."""
log = logger("msgworker.metrics")


class Looking:
    """The latest look; a new one at most every `KEEP_SECONDS`."""

    def __init__(self, ops: Ops, clock: Callable[[], float] = time.monotonic) -> None:
        self._ops = ops.within(DEADLINE_SECONDS)
        self._clock = clock
        self._lock = ProcessLock()
        self._told: Snapshot = {}
        self._until = float("-inf")
        self._failed = False

    def snapshot(self) -> Snapshot:
        """What was seen last. Never raises."""
        with self._lock:
            if self._clock() >= self._until:
                self._told = self._look()
                self._until = self._clock() + KEEP_SECONDS
            return self._told

    def _look(self) -> Snapshot:
        try:
            found = told(self._ops.overview())
        except Exception as error:
            if not self._failed:
                log.warning("the database cannot be asked for metrics: %s", reason_of(error))
            self._failed = True
            return DOWN
        self._failed = False
        return found


def told(seen: Overview) -> Snapshot:
    """An overview as metrics. Beyond so many topics the others are one: the age of their oldest,
    and the sum of their messages."""
    found: Snapshot = {(names.UP.name, ()): 1.0}
    for life in ("live", "silent", "dead"):
        found[names.LIVING.name, (life,)] = getattr(seen, life)
    for place, topic in enumerate(seen.topics):
        name = countable(topic.topic) if place < MOST_TOPICS else OTHERS
        key = (names.OLDEST.name, (name,))
        if topic.oldest_seconds is not None:
            found[key] = max(_number(found, key), topic.oldest_seconds)
        for status in STATUSES:
            counted = (names.TABLE.name, (name, str(status)))
            found[counted] = _number(found, counted) + topic.count(status).count
    return found


def _number(found: Snapshot, key: Key) -> float:
    value = found.get(key, 0.0)
    assert not isinstance(value, tuple)
    return value
