"""Subscribers of an instance's events: counts, minutes for the history, and log lines."""

from __future__ import annotations

import logging
import math
import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache, partial
from itertools import repeat
from typing import Any, cast

from msgworker import events
from msgworker.counted import plural
from msgworker.db.clock import read_instant
from msgworker.events import Events, Span
from msgworker.instance.liveness.identity import Identity
from msgworker.latency import RAN, WAITED, bucket
from msgworker.logs import Said, logger
from msgworker.message import LATER
from msgworker.payload import shown
from msgworker.store.history import MOST_TOPICS, OTHERS, Counts, Minute, countable
from msgworker.store.rows import Row
from msgworker.store.tries import fingerprint
from msgworker.table.build import MAX_JOB
from msgworker.table.columns import MAX_ERROR

# --- How long the handler of a message has run, and how long the message waited before.
#
# A message is sent on the database's clock and starts on ours: `ahead` is how many seconds the
# database's clock is ahead of ours, as the housekeeper last measured it; 0 before that.

Ran = tuple[float, float]
"""When a handler started, on the monotonic clock (0 = it did not), and for how many seconds it ran;
of a batch each message has its share."""


@dataclass(eq=False)
class Spans:
    """Makes the spans of events, for settling threads. ahead: see above."""

    wall: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic
    zone: str = "UTC"

    def __post_init__(self) -> None:
        self.ahead = 0.0

    def set_clock(self, database: float) -> None:
        """Set `ahead` by the database's clock, just read, in seconds since 1970."""
        self.ahead = database - self.wall()

    def database_now(self) -> float:
        """The database's clock, as far as it is known, in seconds since 1970."""
        return self.wall() + self.ahead

    def of(self, rows: Sequence[Row], ran: Iterable[Ran]) -> list[Span | None]:
        to_database = self.wall() - self.monotonic() + self.ahead
        return [
            (seconds, _waited(row, begin + to_database, self.zone)) if begin else None
            for row, (begin, seconds) in zip(rows, ran, strict=True)
        ]


def _waited(row: Row, started: float, zone: str) -> float | None:
    """Seconds from the sending to the first start, or the first after a rerun; None for a later
    start, and where unknown."""
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
# Kept in memory until they are written (liveness/housekeeper.py); the numbers of minutes and topics
# are bounded.

MOST_MINUTES = 60
"""Minutes kept while the database is away; beyond that the oldest are dropped."""


class MinuteStats:
    """Counts of an instance. The thread that emits an event adds to them, the housekeeper takes
    minutes that are over. clock: the database's, in seconds since 1970."""

    def __init__(self, stream: events.Events, clock: Callable[[], float]) -> None:
        self.clock = clock
        self._off = [stream.on(events.Settled, self._settled)]
        for kind, name in (
            (events.Retried, "retried"),
            (events.Dead, "dead"),
            (events.Cancelled, "dead"),
            (events.Later, "postponed"),
        ):
            self._off.append(stream.on(kind, partial(self._one, name)))
        self._lock = threading.Lock()
        self._now: int | None = None  # the minute that is counted, in minutes since 1970
        self._instance = ""
        self._topics: dict[str, Counts] = {}
        self._over: deque[Minute] = deque(maxlen=MOST_MINUTES)
        self._ended: deque[int] = deque(maxlen=MOST_MINUTES)

    def end(self) -> None:
        """Count no more."""
        for off in self._off:
            off()

    def over(self, *, last: bool = False) -> list[Minute]:
        """The minutes that are over, oldest first, until `forget`. last: the present one too."""
        with self._lock:
            if last:
                self._end()
            else:
                self._turn()
            return list(self._over)

    def forget(self, minutes: list[Minute]) -> None:
        """Drop these minutes: they are written."""
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
                if counts is None or message.topic != topic:  # seldom
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

    def _one(self, name: str, event: Any) -> None:
        """Count one more of this name: an event of one message."""
        with self._lock:
            self._turn(event.instance)
            counts = self._of(event.message.topic)
            setattr(counts, name, getattr(counts, name) + 1)
            if event.span is not None:
                _measure(counts, event.span)

    def _of(self, topic: object) -> Counts:
        name = countable(topic)
        found = self._topics.get(name)
        if found is None:
            name = OTHERS if len(self._topics) >= MOST_TOPICS else name
            found = self._topics.setdefault(name, Counts())
        return found

    def _turn(self, instance: str = "") -> None:
        """End the minute if another one has begun. One that has ended, and may be written, does
        not begin again if the clock is set back."""
        now = int(self.clock() // 60)
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


def _measure(counts: Counts, span: events.Span) -> None:
    seconds, waited = span
    counts.ran_seconds += seconds
    counts.ran[bucket(RAN, seconds)] += 1
    if waited is not None:
        counts.waited_seconds += waited
        counts.waited[bucket(WAITED, waited)] += 1


@dataclass(slots=True)
class Tally:
    """Counts of an instance, from its events: `claims`, `offered` and `won` are written in the
    fetcher's thread, the others under the lock. released: at a stop. given_back: released while
    running, for other instances."""

    done: int = 0
    dead: int = 0
    retried: int = 0
    released: int = 0
    given_back: int = 0
    lost: int = 0
    claims: int = 0
    offered: int = 0
    won: int = 0
    settles: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    @property
    def reported(self) -> dict[str, Any]:
        """Those that a Report has."""
        failed = {"done": self.done, "failed": self.dead}
        return failed | {"retried": self.retried, "released": self.released}

    def count(self, stream: Events) -> None:
        add = self._add
        stream.on(events.Claimed, self._claimed)
        stream.on(events.Settled, lambda event: add(settles=1, done=len(event.done)))
        stream.on(events.Retried, lambda _: add(retried=1))
        stream.on(events.Dead, lambda _: add(dead=1))
        stream.on(events.Cancelled, lambda _: add(dead=1))
        stream.on(events.Released, lambda e: add(released=e.stopping, given_back=not e.stopping))
        stream.on(events.Lost, lambda _: add(lost=1))

    def _claimed(self, event: events.Claimed) -> None:
        self.claims += 1
        self.offered += event.offered
        self.won += len(event.messages)

    def _add(self, **counts: int) -> None:
        with self._lock:
            for name, count in counts.items():
                setattr(self, name, getattr(self, name) + count)


# --- Of equal log lines, log the first few in a minute, then only how many more there were.
#
# Lines are equal if they have the same event name, topic and fingerprint of the error.

FIRST = 5
"""Lines of a group that are logged in a minute."""
SECONDS = 60.0
MOST_GROUPS = 200
"""Groups that are kept apart; all others form one group for each event name."""

Group = tuple[str, str, str]
"""Name of the event, topic, fingerprint; the last two are empty beyond MOST_GROUPS."""


@dataclass(slots=True)
class Suppressed:
    """The lines of a group in a minute, from `since` on: `lines` in all, `count` that were not
    logged. topic, error, level: of the latest one of those."""

    name: str
    since: float
    lines: int = 0
    count: int = 0
    topic: str = ""
    error: str = ""
    level: int = 0


class LogThrottle:
    """The groups of the last minute; used by all threads that log."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._groups: dict[Group, Suppressed] = {}

    def logs(self, name: str, topic: Any, mark: str, *, level: int, error: str) -> bool:
        """Whether to log a line; if not, it is counted. mark: the fingerprint of the error."""
        with self._lock:
            group = (name, str(topic), mark)
            if group not in self._groups and len(self._groups) >= MOST_GROUPS:
                group = (name, "", "")
            now = self._clock()
            seen = self._groups.setdefault(group, Suppressed(name, now))
            if not seen.count and now - seen.since >= SECONDS:  # a new minute of this group
                seen.since, seen.lines = now, 0
            seen.lines += 1
            if seen.lines <= FIRST:
                return True
            seen.count += 1
            seen.topic, seen.error, seen.level = str(topic), error, level
            return False

    def over(self, *, all_of_them: bool = False) -> list[Suppressed]:
        """What was not logged in minutes that are over, whose groups start anew. all_of_them: the
        present minute too."""
        with self._lock:
            since = math.inf if all_of_them else self._clock() - SECONDS
            ended = [group for group, seen in self._groups.items() if seen.since <= since]
            gone = [self._groups.pop(group) for group in ended]
        return [seen for seen in gone if seen.count]


# --- The log lines of an instance, made from its events.
#
# Lines that LogThrottle holds back are summed up at the next heartbeat after their minute, and when
# the instance stops.


class EventLog:
    """Logs the events of an instance, in the thread that emits them."""

    def __init__(
        self,
        stream: events.Events,
        log: logging.LoggerAdapter[logging.Logger],
        *,
        retry_level: int = logging.INFO,
        throttle: LogThrottle | None = None,
    ) -> None:
        """retry_level: for a failed try that is tried again. throttle: None = log every line."""
        self._log = log
        self._throttle = throttle
        self._overlapped: dict[str, Any] = {}  # the message for which a schedule has skipped ticks
        loggers: dict[type[events.Event], Callable[[Any], None]] = {
            events.InstanceStarted: self._started,
            events.Retried: partial(self._outcome, retry_level, Said.MESSAGE_RETRIED, "failed"),
            events.Dead: partial(self._outcome, logging.WARNING, Said.MESSAGE_DEAD, "is dead"),
            events.Cancelled: self._cancelled,
            events.Later: self._later,
            events.Lost: self._lost,
            events.LeaseLost: self._lease_lost,
            events.Recovered: self._recovered,
            events.ScheduleFired: self._fired,
            events.ScheduleSkipped: self._skipped,
            events.ScheduleReplaced: self._replaced,
            events.ScheduleFailed: self._not_fired,
            events.JobCompleted: self._job_completed,
        }
        if throttle is not None:
            loggers[events.Renewed] = lambda _: self._sum_up(throttle.over())
            loggers[events.InstanceStopped] = lambda _: self._sum_up(
                throttle.over(all_of_them=True)
            )
        for kind, log_event in loggers.items():
            stream.on(kind, log_event)

    def _say(self, level: int, name: Said, text: str, *values: object) -> None:
        self._log.log(level, text, *values, extra={"event": name})

    def _started(self, event: events.InstanceStarted) -> None:
        threads = plural(event.threads, "thread")
        self._say(logging.INFO, Said.INSTANCE_STARTED, "started with %s", threads)

    def _cancelled(self, event: events.Cancelled) -> None:
        row, error = event.message, shown(event.error, MAX_ERROR)
        extra = _facts(Said.MESSAGE_CANCELLED, row)
        self._log.info("message %s is %s", row.msg_id, error, extra=extra)

    def _later(self, event: events.Later) -> None:
        asked = f"postponed {event.times} time{'s' * (event.times > 1)}"
        text = f"due again in {event.delay_seconds:g} s ({asked})"
        self._outcome(logging.INFO, Said.MESSAGE_POSTPONED, text, event)

    def _outcome(
        self, level: int, name: Said, what: str, event: events.Retried | events.Dead | events.Later
    ) -> None:
        if not self._log.isEnabledFor(level):
            return
        raised, row = event.raised, event.message
        extra = _facts(name, row)
        values = None if raised is None else (type(raised), raised, raised.__traceback__)
        error = shown(event.error.removeprefix(LATER), MAX_ERROR)  # on one line
        if self._throttle is not None:
            mark = fingerprint(event.error.removeprefix(LATER))
            if not self._throttle.logs(name, extra["topic"], mark, level=level, error=error):
                return
        text = "message %s %s: %s"
        self._log.log(level, text, row.msg_id, what, error, exc_info=values, extra=extra)

    def _sum_up(self, some: list[Suppressed]) -> None:
        for more in some:
            text = "%s x %s more in the last minute: topic %s, %s"
            extra = {"event": more.name, "topic": more.topic, "more": more.count}
            values = (more.name, f"{more.count:,}", more.topic, more.error)
            self._log.log(more.level, text, *values, extra=extra)

    def _lost(self, event: events.Lost) -> None:
        text = "message %s is no longer claimed by us; its outcome was not written"
        name, level, row = Said.MESSAGE_LOST, logging.WARNING, event.message
        extra, throttle = _facts(name, row), self._throttle
        if throttle and not throttle.logs(
            name, extra["topic"], "", level=level, error="lost claims"
        ):
            return
        self._log.log(level, text, row.msg_id, extra=extra)

    def _lease_lost(self, event: events.LeaseLost) -> None:
        text = "instance %s lost its lease; continuing as %s"
        if event.kept:
            text += f" with its {plural(event.kept, 'message')} in flight"
        self._say(logging.WARNING, Said.LEASE_LOST, text, event.instance, event.now)

    def _recovered(self, event: events.Recovered) -> None:
        text, many = "recovered %s of dead instance %s", plural(event.messages, "message")
        self._say(logging.WARNING, Said.INSTANCE_RECOVERED, text, many, event.dead)

    def _fired(self, event: events.ScheduleFired) -> None:
        level = logging.DEBUG if len(event.ticks) == 1 else logging.INFO
        many, last = plural(len(event.ticks), "message"), event.ticks[-1].isoformat()
        text = "schedule %s: sent %s, the last one for %s"
        self._say(level, Said.SCHEDULE_FIRED, text, event.name, many, last)

    def _skipped(self, event: events.ScheduleSkipped) -> None:
        behind = "one waits" if event.msg_id is None else f"message {event.msg_id} has not ended"
        first = self._overlapped.get(event.name) != event.msg_id or event.msg_id is None
        self._overlapped[event.name] = event.msg_id
        level, tick = logging.INFO if first else logging.DEBUG, event.ticks[-1].isoformat()
        text = "schedule %s: skipped the tick of %s: %s"
        self._say(level, Said.SCHEDULE_SKIPPED, text, event.name, tick, behind)

    def _replaced(self, event: events.ScheduleReplaced) -> None:
        text = "schedule %s: the tick of %s takes the place of message %s, which has not ended"
        told = (event.name, event.tick.isoformat(), event.msg_id)
        self._say(logging.INFO, Said.SCHEDULE_REPLACED, text, *told)

    def _not_fired(self, event: events.ScheduleFailed) -> None:
        text = "schedule %s: its message cannot be sent: %s; trying again in %.0f s"
        told = (event.name, shown(event.error, MAX_ERROR), event.delay_seconds)
        self._say(logging.WARNING, Said.SCHEDULE_FAILED, text, *told)

    def _job_completed(self, event: events.JobCompleted) -> None:
        text = "job %s (%s) has completed: %s done, %s dead%s"
        sent = "" if event.topic is None else f"; sent message {event.report_id}"
        told = (event.job, shown(event.name, MAX_JOB), event.done, event.dead, sent)
        self._say(logging.INFO, Said.JOB_COMPLETED, text, *told)


def _facts(name: Said, message: events.Facts) -> dict[str, Any]:
    return {"event": name, **facts(cast(Row, message))}  # the events carry rows


class InstanceLog(logging.LoggerAdapter[logging.Logger]):
    """The log of an instance; every record carries its current id."""

    def __init__(self, identity: Identity) -> None:
        super().__init__(logger("msgworker.instance"), {})
        self._identity = identity

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> Any:
        kwargs["extra"] = {"instance": self._identity.id, **kwargs.get("extra", {})}
        return msg, kwargs

    def log(self, level: int, msg: object, *args: Any, **kwargs: Any) -> None:
        """Errors of the user's logging, such as a closed stream, must not stop the work."""
        with suppress(BaseException):
            stacklevel = kwargs.pop("stacklevel", 1) + 1
            super().log(level, msg, *args, stacklevel=stacklevel, **kwargs)


def facts(row: Row) -> dict[str, Any]:
    """The attributes of a log record about a message, besides the instance's id."""
    return {
        "msg_id": row.msg_id,
        "object_id": row.object_id if row.odd is None else shown(row.object_id),
        "topic": row.topic if row.odd is None else shown(row.topic),
        "try": row.tries + 1,
    }


def log_time_limit(log: logging.LoggerAdapter[logging.Logger], row: Row, reason: str) -> None:
    """Log for operators that a time limit of the server ended the message's handler."""
    text = (
        "message %s: a time limit of the server ended its handler, and would again, so that its "
        "try has failed: %s; raise the limit for this login, or make the handler's transaction "
        "shorter, see docs/guides/retries.md"
    )
    log.warning(text, row.msg_id, reason, extra=facts(row))
