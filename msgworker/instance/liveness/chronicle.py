"""Write the history: what this instance did in each minute (store/history.py).

A part of the housekeeping, on its connection. It is for charts only: nothing that goes wrong with
it may cost more than the history itself.
"""

from __future__ import annotations

import logging

from msgworker.dialects import Trouble, reason_of, trouble
from msgworker.instance.links import Link
from msgworker.instance.minutes import Minutes
from msgworker.instance.runtime import Runtime
from msgworker.store import history

FORGET_EVERY = 10
"""After so many writes old rows are deleted; one hour of them at a time."""


class Chronicle:
    """Used by the housekeeper. Nothing is counted without the table, or with history_seconds=0.

    minutes: None if nothing is counted.
    """

    def __init__(
        self, runtime: Runtime, link: Link, *, log: logging.LoggerAdapter[logging.Logger]
    ) -> None:
        self._runtime = runtime
        self._link = link
        self._log = log
        self._keep = runtime.settings.history_seconds
        self.minutes: Minutes | None = None
        self._in_doubt = False  # a write got no answer
        self._writes = hash(runtime.identity.id) % FORGET_EVERY  # instances take turns
        if self._keep and history.is_there(runtime.tables):
            self.minutes = Minutes(runtime.events)

    def look_at_clock(self) -> None:
        """Read the database's clock, before the first message."""
        if self.minutes is None:
            return
        try:
            with self._link.transaction() as conn:
                self._set_clock(history.database_seconds(conn, self._runtime.tables))
        except Exception as error:
            if trouble(error) is Trouble.LOST:
                raise
            self._log.debug("the clock of the database is unknown: %s", reason_of(error))

    def write(self, *, last: bool = False) -> None:
        """Write the minutes that are over. last: the present one too, at the end of the
        instance. Raises only if the database is lost."""
        if self.minutes is None or not (minutes := self.minutes.over(last=last)):
            return
        try:
            self._write(self.minutes, minutes)
        except Exception as error:
            self._in_doubt = True
            if trouble(error) is Trouble.LOST:
                raise
            self._cannot(error)

    def _write(self, counted: Minutes, minutes: list[history.Minute]) -> None:
        tables = self._runtime.tables
        forgets = self._writes % FORGET_EVERY == FORGET_EVERY - 1
        with self._link.transaction() as conn:
            new = minutes
            if self._in_doubt:
                there = history.written(conn, tables, minutes)
                new = [one for one in minutes if (one.instance, one.at) not in there]
            history.write(conn, tables, new)
            seconds = history.database_seconds(conn, tables)
        self._in_doubt = False
        self._writes += 1
        counted.forget(minutes)
        self._set_clock(seconds)
        if forgets:
            with self._link.transaction() as conn:
                history.forget(conn, tables, self._keep)

    def _set_clock(self, seconds: float) -> None:
        assert self.minutes is not None
        self.minutes.ahead = self._runtime.spans.set_clock(seconds)

    def _cannot(self, error: Exception) -> None:
        """Without the rights nothing is counted any more; otherwise it is tried again."""
        if trouble(error) is not Trouble.REFUSED:
            self._log.debug("the history is not written now: %s", reason_of(error))
            return
        self._log.warning("the history is not written: %s", reason_of(error))
        assert self.minutes is not None
        self.minutes.end()
        self.minutes = None
