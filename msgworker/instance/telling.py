"""The log lines of an instance, made from its events."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, cast

from msgworker import events
from msgworker.instance.runtime import facts
from msgworker.message import LATER
from msgworker.payload import shown
from msgworker.store.rows import Row
from msgworker.table import MAX_ERROR


class Telling:
    """Subscribes the log of an instance to its events."""

    def __init__(
        self,
        stream: events.Events,
        log: logging.LoggerAdapter[logging.Logger],
        *,
        retry_level: int = logging.INFO,
    ) -> None:
        """retry_level: of a failed try that is tried again."""
        self._log = log
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
        for kind, tell in tells.items():
            stream.on(kind, tell)

    def _started(self, event: events.InstanceStarted) -> None:
        self._log.info("started with %d threads", event.threads)

    def _retried(self, event: events.Retried) -> None:
        self._outcome(self._retry_level, "failed", event)

    def _dead(self, event: events.Dead) -> None:
        self._outcome(logging.WARNING, "is dead", event)

    def _cancelled(self, event: events.Cancelled) -> None:
        row, error = event.message, shown(event.error, MAX_ERROR)
        self._log.info("message %s is %s", row.msg_id, error, extra=_facts(row))

    def _later(self, event: events.Later) -> None:
        asked = f"postponed {event.times} time{'s' * (event.times > 1)}"
        self._outcome(logging.INFO, f"due again in {event.delay_seconds:g} s ({asked})", event)

    def _outcome(
        self, level: int, what: str, event: events.Retried | events.Dead | events.Later
    ) -> None:
        raised, row = event.raised, event.message
        told = None if raised is None else (type(raised), raised, raised.__traceback__)
        error = shown(event.error.removeprefix(LATER), MAX_ERROR)  # on one line
        text = "message %s %s: %s"
        self._log.log(level, text, row.msg_id, what, error, exc_info=told, extra=_facts(row))

    def _lost(self, event: events.Lost) -> None:
        text = "message %s is no longer claimed by us; its outcome was not written"
        self._log.warning(text, event.message.msg_id, extra=_facts(event.message))

    def _lease_lost(self, event: events.LeaseLost) -> None:
        text = "instance %s lost its lease; continuing as %s"
        if event.kept:
            text += f" with its {event.kept} messages in flight"
        self._log.warning(text, event.instance, event.now)

    def _recovered(self, event: events.Recovered) -> None:
        text = "recovered %d messages of dead instance %s"
        self._log.warning(text, event.messages, event.dead)

    def _fired(self, event: events.ScheduleFired) -> None:
        level = logging.DEBUG if len(event.ticks) == 1 else logging.INFO
        text = "schedule %s: sent %d messages, the last one for %s"
        self._log.log(level, text, event.name, len(event.ticks), event.ticks[-1].isoformat())

    def _not_fired(self, event: events.ScheduleFailed) -> None:
        text = "schedule %s: its message cannot be sent: %s; trying again in %.0f s"
        self._log.warning(text, event.name, shown(event.error, MAX_ERROR), event.delay_seconds)


def _facts(message: events.Facts) -> dict[str, Any]:
    return facts(cast(Row, message))  # the events of an instance carry its rows
