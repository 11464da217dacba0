"""The log lines of an instance, made from its events; a storm of equal ones is summed up."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from msgworker import events
from msgworker.counted import plural
from msgworker.instance.state import facts
from msgworker.logs import Said
from msgworker.message import LATER
from msgworker.payload import shown
from msgworker.store.rows import Row
from msgworker.store.tries import fingerprint
from msgworker.table import MAX_ERROR

# --- Sum up a storm of equal log lines: the first few of a group in a minute, then their number.
#
# A group is what is alike: the name of the event, the topic, and the fingerprint of the error.
# Pure: who logs gives the time.

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


class LogThrottle:
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


# --- The log lines of an instance, made from its events.
#
# A storm of equal lines is summed up (log.py): with the next heartbeat after its minute, and
# when the instance stops.


class EventLog:
    """Subscribes the log of an instance to its events."""

    def __init__(
        self,
        stream: events.Events,
        log: logging.LoggerAdapter[logging.Logger],
        *,
        retry_level: int = logging.INFO,
        storms: LogThrottle | None = None,
    ) -> None:
        """retry_level: of a failed try that is tried again. storms: None = every line is logged."""
        self._log = log
        self._storms = storms
        self._retry_level = retry_level
        tells: dict[type[events.Event], Callable[[Any], None]] = {
            events.InstanceStarted: self._started,
            events.Retried: self._retried,
            events.Dead: self._dead,
            events.Cancelled: self._cancelled,
            events.Later: self._later,
            events.Lost: self._lost,
            events.LeaseLost: self._lease_lost,
            events.Recovered: self._recovered,
            events.ScheduleFired: self._fired,
            events.ScheduleFailed: self._not_fired,
        }
        if storms is not None:
            tells[events.Renewed] = lambda _: self._sum_up(storms.over())
            tells[events.InstanceStopped] = lambda _: self._sum_up(storms.over(all_of_them=True))
        for kind, tell in tells.items():
            stream.on(kind, tell)

    def _started(self, event: events.InstanceStarted) -> None:
        text, extra = "started with %s", {"event": Said.INSTANCE_STARTED}
        self._log.info(text, plural(event.threads, "thread"), extra=extra)

    def _retried(self, event: events.Retried) -> None:
        self._outcome(self._retry_level, Said.MESSAGE_RETRIED, "failed", event)

    def _dead(self, event: events.Dead) -> None:
        self._outcome(logging.WARNING, Said.MESSAGE_DEAD, "is dead", event)

    def _cancelled(self, event: events.Cancelled) -> None:
        row, error = event.message, shown(event.error, MAX_ERROR)
        extra = _facts(Said.MESSAGE_CANCELLED, row)
        self._log.info("message %s is %s", row.msg_id, error, extra=extra)

    def _later(self, event: events.Later) -> None:
        asked = f"postponed {event.times} time{'s' * (event.times > 1)}"
        text = f"due again in {event.delay_seconds:g} s ({asked})"
        self._outcome(logging.INFO, Said.MESSAGE_POSTPONED, text, event)

    def _outcome(
        self,
        level: int,
        name: Said,
        what: str,
        event: events.Retried | events.Dead | events.Later,
    ) -> None:
        if not self._log.isEnabledFor(level):
            return
        raised, row = event.raised, event.message
        extra = _facts(name, row)
        told = None if raised is None else (type(raised), raised, raised.__traceback__)
        error = shown(event.error.removeprefix(LATER), MAX_ERROR)  # on one line
        if self._storms is not None:
            mark = fingerprint(event.error.removeprefix(LATER))
            if not self._storms.logs(name, extra["topic"], mark, level=level, error=error):
                return
        text = "message %s %s: %s"
        self._log.log(level, text, row.msg_id, what, error, exc_info=told, extra=extra)

    def _sum_up(self, storms: list[More]) -> None:
        for more in storms:
            text = "%s x %s more in the last minute: topic %s, %s"
            extra = {"event": more.name, "topic": more.topic, "more": more.count}
            told = (more.name, f"{more.count:,}", more.topic, more.error)
            self._log.log(more.level, text, *told, extra=extra)

    def _lost(self, event: events.Lost) -> None:
        text = "message %s is no longer claimed by us; its outcome was not written"
        row = event.message
        extra = _facts(Said.MESSAGE_LOST, row)
        if self._storms is not None and not self._storms.logs(
            *(Said.MESSAGE_LOST, extra["topic"], ""), level=logging.WARNING, error="lost claims"
        ):
            return
        self._log.warning(text, row.msg_id, extra=extra)

    def _lease_lost(self, event: events.LeaseLost) -> None:
        text = "instance %s lost its lease; continuing as %s"
        if event.kept:
            text += f" with its {plural(event.kept, 'message')} in flight"
        self._log.warning(text, event.instance, event.now, extra={"event": Said.LEASE_LOST})

    def _recovered(self, event: events.Recovered) -> None:
        text = "recovered %s of dead instance %s"
        extra = {"event": Said.INSTANCE_RECOVERED}
        self._log.warning(text, plural(event.messages, "message"), event.dead, extra=extra)

    def _fired(self, event: events.ScheduleFired) -> None:
        level = logging.DEBUG if len(event.ticks) == 1 else logging.INFO
        text = "schedule %s: sent %s, the last one for %s"
        told = (event.name, plural(len(event.ticks), "message"), event.ticks[-1].isoformat())
        self._log.log(level, text, *told, extra={"event": Said.SCHEDULE_FIRED})

    def _not_fired(self, event: events.ScheduleFailed) -> None:
        text = "schedule %s: its message cannot be sent: %s; trying again in %.0f s"
        told = (event.name, shown(event.error, MAX_ERROR), event.delay_seconds)
        self._log.warning(text, *told, extra={"event": Said.SCHEDULE_FAILED})


def _facts(name: Said, message: events.Facts) -> dict[str, Any]:
    return {"event": name, **facts(cast(Row, message))}  # the events carry rows
