"""Warns of topics with waiting messages for which no live instance has a handler."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence
from math import inf
from typing import Any

from msgworker.instance.links import Link
from msgworker.logs import Said
from msgworker.store.looking.instances import leased
from msgworker.table import Tables

REPORT_SECONDS = 3600.0
ASK_SECONDS = 60.0
"""Seconds after which the check of a topic that another instance handles is repeated."""
SHOWN = 10


class UnhandledTopics:
    """Logs each topic once an hour, a new one at once. Used by the fetcher's thread only.

    handled: the topics that have a handler here, chosen or not; None = all.
    """

    def __init__(
        self,
        tables: Tables,
        handled: Callable[[], Collection[str] | None],
        link: Link,
        log: logging.LoggerAdapter[logging.Logger],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tables = tables
        self._handled = handled
        self._link = link
        self._log = log
        self._clock = clock
        self.told: dict[Any, float] = {}
        """When, on the clock; a topic need not be a text (SQLite)."""

    def report(self, unknown: Collection[Any]) -> None:
        """Log the topics that are due for a warning. unknown: waiting topics without a handler
        here."""
        now = self._clock()
        late = (t for t in unknown if now - self.told.get(t, -inf) > REPORT_SECONDS)
        handled = self._handled()
        asked = [t for t in late if handled is not None and t not in handled]
        new = self._handled_nowhere(asked, now) if asked else []
        if not new:
            return
        self.told = {t: at for t, at in self.told.items() if now - at <= REPORT_SECONDS}
        self.told |= dict.fromkeys(new, now)
        names = ", ".join(repr(name) for name in new[:SHOWN])
        more = f" and {len(new) - SHOWN:,} more" if len(new) > SHOWN else ""
        text = "messages wait whose topic has no handler here: %s%s"
        self._log.warning(text, names, more, extra={"event": Said.TOPICS_UNHANDLED})

    def _handled_nowhere(self, topics: Sequence[Any], now: float) -> list[Any]:
        """Those that no other live instance handles; the others are checked again later."""
        with self._link.statement() as conn:
            others = leased(conn, self._tables)
        theirs = [t for t in topics if any(one.handles(t) for one in others)]
        self.told |= dict.fromkeys(theirs, now - REPORT_SECONDS + ASK_SECONDS)
        return sorted((t for t in topics if t not in theirs), key=str)
