"""Count what is done by minute and topic, and how long handlers ran and messages waited."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from itertools import repeat
from typing import Any

from msgworker import events
from msgworker.db import read_instant
from msgworker.events import Span
from msgworker.latency import RAN, WAITED, bucket
from msgworker.message import DEFAULT_TOPIC
from msgworker.payload import is_text
from msgworker.store.history import Counts, Minute
from msgworker.store.rows import Row
from msgworker.table import MAX_TOPIC

# --- How long the handler of a message has run, and how long the message waited before.
#
# A message is sent on the database's clock and starts on ours: `ahead` is how many seconds the
# database's clock is before ours, as the heartbeat last saw it; 0 where nobody asked.

Ran = tuple[float, float]
"""When a handler started, on the monotonic clock (0 = it did not), and for how many seconds it ran;
of a batch each message has its share."""


class Spans:
    """Makes the spans of events. ahead: written by the heartbeat."""

    def __init__(
        self,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        zone: str = "UTC",
    ) -> None:
        self._zone = zone
        self._wall = wall
        self._monotonic = monotonic
        self.ahead = 0.0

    def set_clock(self, database: float) -> float:
        """The database's clock has just been read, in seconds since 1970; returns `ahead`."""
        self.ahead = database - self._wall()
        return self.ahead

    def of(self, rows: Sequence[Row], ran: Iterable[Ran]) -> list[Span | None]:
        """The span of each message."""
        to_database = self._wall() - self._monotonic() + self.ahead
        return [
            (seconds, _waited(row, begin + to_database, self._zone)) if begin else None
            for row, (begin, seconds) in zip(rows, ran, strict=True)
        ]


def _waited(row: Row, started: float, zone: str) -> float | None:
    """Seconds from the sending to the first start; None for a later start, and where unknown."""
    if row.created_at is None or row.tries or row.later_times or row.crash_times:
        return None
    sent = _seconds(row.created_at, zone)
    return None if sent is None else max(0.0, started - sent)


@lru_cache(maxsize=256)  # messages that are sent together have the same one
def _seconds(instant: Any, zone: str) -> float | None:
    try:
        found = read_instant(instant, zone)
    except ValueError:
        return None
    return None if found is None else found.timestamp()


# --- Count what is done by minute and topic, from the events of an instance; for the history.
#
# Minutes are those of the database's clock, as far as it is known: `ahead`. Kept in memory until
# they are written (liveness/chronicle.py); the numbers of minutes and topics are bounded.

MOST_TOPICS = 100
"""Topics told apart in one minute."""
OTHERS = "(others)"
"""The name under which all others are counted."""
MOST_MINUTES = 60
"""Minutes that wait to be written, while the database is away; then the oldest are dropped."""


class MinuteStats:
    """Counts of an instance. clock: ours, seconds since 1970. ahead: how many seconds the
    database's clock is before it.

    Emitted events add to the counts, in any thread; the heartbeat takes what is over.
    """

    def __init__(self, stream: events.Events, clock: Callable[[], float] = time.time) -> None:
        self.clock = clock
        self._off = self._subscribe(stream)
        self._lock = threading.Lock()
        self._now: int | None = None  # the minute that is counted, in minutes since 1970
        self._instance = ""
        self._topics: dict[str, Counts] = {}
        self._over: deque[Minute] = deque(maxlen=MOST_MINUTES)
        self._ended: deque[int] = deque(maxlen=MOST_MINUTES)
        self.ahead = 0.0

    def _subscribe(self, stream: events.Events) -> list[Callable[[], None]]:
        return [
            stream.on(events.Settled, self._settled),
            stream.on(events.Retried, self._retried),
            stream.on(events.Dead, self._dead),
            stream.on(events.Cancelled, self._dead),
            stream.on(events.Later, self._later),
        ]

    def end(self) -> None:
        """Count no more."""
        for off in self._off:
            off()

    def over(self, *, last: bool = False) -> list[Minute]:
        """The minutes that are over, oldest first; they stay until `forget`. last: the present
        one too."""
        with self._lock:
            if last:
                self._end()
            else:
                self._turn()
            return list(self._over)

    def forget(self, minutes: list[Minute]) -> None:
        """These are written."""
        with self._lock:
            self._over = deque((m for m in self._over if m not in minutes), maxlen=MOST_MINUTES)

    # ------------------------------------------------------------ counting

    def _settled(self, event: events.Settled) -> None:
        if not event.done:
            return
        with self._lock:
            self._turn(event.instance)
            topic, counts = None, None
            for message, span in zip(event.done, event.spans or repeat(None), strict=False):
                if counts is None or message.topic != topic:  # nearly always the one before
                    topic = message.topic
                    counts = self._of(topic)
                counts.done += 1
                if span is not None:  # `_measure`, without a call for each message
                    seconds, waited = span
                    counts.ran_seconds += seconds
                    counts.ran[bisect_left(RAN, seconds)] += 1
                    if waited is not None:
                        counts.waited_seconds += waited
                        counts.waited[bisect_left(WAITED, waited)] += 1

    def _retried(self, event: events.Retried) -> None:
        with self._lock:
            self._one(event.instance, event).retried += 1

    def _dead(self, event: events.Dead | events.Cancelled) -> None:
        with self._lock:
            self._one(event.instance, event).dead += 1

    def _later(self, event: events.Later) -> None:
        with self._lock:
            self._one(event.instance, event).postponed += 1

    def _one(
        self,
        instance: str,
        event: events.Retried | events.Dead | events.Cancelled | events.Later,
    ) -> Counts:
        self._turn(instance)
        counts = self._of(event.message.topic)
        if event.span is not None:
            _measure(counts, event.span)
        return counts

    def _of(self, topic: object) -> Counts:
        name = countable(topic)
        found = self._topics.get(name)
        if found is None:
            name = OTHERS if len(self._topics) >= MOST_TOPICS else name
            found = self._topics.setdefault(name, Counts())
        return found

    def _turn(self, instance: str = "") -> None:
        """End the minute if another one has begun. After the clock was put back, a minute that has
        ended already does not begin again: it is written."""
        now = int((self.clock() + self.ahead) // 60)
        if now != self._now and now not in self._ended:
            self._end()
            self._now = now
        if not self._topics:
            self._instance = instance or self._instance

    def _end(self) -> None:
        if self._now is None:
            return
        if self._topics:
            at = datetime.fromtimestamp(self._now * 60, UTC)
            self._over.append(Minute(at, self._instance, self._topics))
            self._topics = {}
            self._ended.append(self._now)
        self._now = None


def countable(topic: object) -> str:
    """The name under which a topic is counted; `OTHERS` for what a column of texts cannot hold."""
    name = DEFAULT_TOPIC if topic is None else topic
    if not isinstance(name, str) or len(name) > MAX_TOPIC or "\0" in name or not is_text(name):
        return OTHERS
    return name


def _measure(counts: Counts, span: events.Span) -> None:
    seconds, waited = span
    counts.ran_seconds += seconds
    counts.ran[bucket(RAN, seconds)] += 1
    if waited is not None:
        counts.waited_seconds += waited
        counts.waited[bucket(WAITED, waited)] += 1
