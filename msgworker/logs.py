"""msgworker's loggers. They escape text from outside, so that a record is always one line, and hide
what looks like a password or key in a URL.

Topics, object ids, errors and URLs may contain line ends and terminal escapes, with which a message
could fake a log line or control a terminal. They are escaped here, in the record itself, before a
handler or formatter of the user sees it, so that callers need not do it.
"""

from __future__ import annotations

import logging
import traceback
from enum import StrEnum
from typing import Any

from msgworker.commands import proposed
from msgworker.payload import shown, without_url_secrets

FACTS = ("object_id", "topic")
"""Attributes of records about a message with text from outside."""


class Said(StrEnum):
    """The stable names of log records: the attribute `event`; see docs/operate/logs.md."""

    INSTANCE_STARTED = "instance.started"
    INSTANCE_STOPPED = "instance.stopped"
    INSTANCE_RECOVERED = "instance.recovered"
    LEASE_LOST = "lease.lost"
    MESSAGE_RETRIED = "message.retried"
    MESSAGE_DEAD = "message.dead"
    MESSAGE_CANCELLED = "message.cancelled"
    MESSAGE_POSTPONED = "message.postponed"
    MESSAGE_LOST = "message.lost"
    BATCH_ALONE = "batch.alone"
    TOPICS_PAUSED = "topics.paused"
    JOBS_PAUSED = "jobs.paused"
    DATABASE_AWAY = "database.away"
    DATABASE_BACK = "database.back"
    POOLER_FOUND = "pooler.found"
    PRIMARY_OLD = "primary.old"
    SCHEDULE_FIRED = "schedule.fired"
    SCHEDULE_SKIPPED = "schedule.skipped"
    SCHEDULE_REPLACED = "schedule.replaced"
    SCHEDULE_FAILED = "schedule.failed"
    JOB_COMPLETED = "job.completed"
    HANDLER_LATE = "handler.late"
    INSTANCE_STUCK = "instance.stuck"
    TOPICS_UNHANDLED = "topics.unhandled"
    DRAIN_LEFT = "drain.left"
    PROCESS_ENDED = "process.ended"
    METRICS_STARTED = "metrics.started"
    WEB_STARTED = "web.started"
    WEB_REFUSED = "web.refused"
    WEB_FAILED = "web.failed"


MOST = 100_000
"""The most characters of a line."""


def logger(name: str, *, of_user: bool = False) -> logging.Logger:
    """The logger of this name. of_user: the user's handlers log with it, so only FACTS are
    escaped."""
    found = logging.getLogger(name)
    wanted = _FACTS_ONLY if of_user else _ALL
    if wanted not in found.filters:
        found.addFilter(wanted)
    return found


class _OneLine(logging.Filter):
    """Lets every record pass, escaped."""

    def __init__(self, *, facts_only: bool) -> None:
        super().__init__()
        self._facts_only = facts_only

    def filter(self, record: logging.LogRecord) -> bool:
        for name in FACTS:
            value = getattr(record, name, None)
            if isinstance(value, str) and not value.isprintable():
                setattr(record, name, shown(value, MOST))
        if not self._facts_only:
            text = record.getMessage()
            safe = proposed(without_url_secrets(text))
            if safe != text or not text.isprintable():
                record.msg, record.args = shown(safe, MOST), None
            if isinstance(record.exc_info, tuple) and record.exc_info[1] is not None:
                record.exc_text = traceback_text(record.exc_info[1])
        return True


_ALL, _FACTS_ONLY = _OneLine(facts_only=False), _OneLine(facts_only=True)


def traceback_text(error: BaseException) -> str:
    """A traceback as Python prints it, with the text of each exception on one line."""
    found = traceback.TracebackException.from_exception(error)
    _on_one_line(found)
    lines = "".join(found.format()).rstrip("\n").split("\n")
    return "\n".join(shown(without_url_secrets(line), MOST) for line in lines)


def _on_one_line(found: Any) -> None:
    """Escape the texts of an exception and of its causes."""
    for name in ("_str", "msg"):
        text = getattr(found, name, None)
        if isinstance(text, str):
            setattr(found, name, shown(text, MOST))
    if isinstance(found.__notes__, list):
        found.__notes__ = [shown(note, MOST) for note in found.__notes__ if isinstance(note, str)]
    for other in (found.__cause__, found.__context__, *(found.exceptions or ())):
        if other is not None:
            _on_one_line(other)
