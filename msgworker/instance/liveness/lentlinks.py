"""The connections that handlers, their items and their records use: cut where they lead nowhere.

A handler has no limit of time, so a long use of its connection says nothing. Two things do:

* Its message was claimed under an id that we have lost. Nothing that it writes can be committed.
* It waits for one answer for longer than a lease, on a connection that was opened before those of
  other roles were found without an answer: a fault of the network that leaves connections half open
  leaves all of its time so. A long statement of a handler that meets that is run again once, on
  another connection, under the same claim; on that it may take its time.

A thread that waits for an answer stands in one call of SQLAlchemy to the driver. Its frame tells
that, and for how long; no statement costs anything for it.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from types import FrameType

from msgworker.instance.links import Link
from msgworker.logs import Said

DRIVER_CALLS = "sqlalchemy/engine/default.py"


class LentLinks:
    """Added to and taken from by handler threads and threads of items; looked at by the
    watchdog."""

    def __init__(self) -> None:
        self._links: dict[Link, bool] = {}
        self._calls: dict[Link, tuple[FrameType, float]] = {}
        self._cut: dict[Link, float] = {}

    def add(self, link: Link, *, ours: bool = False) -> None:
        """ours: it sends statements of our own only, none of which takes as long as a lease."""
        self._links[link] = ours

    def discard(self, link: Link) -> None:
        """It is closed."""
        self._links.pop(link, None)

    def look(
        self,
        log: logging.LoggerAdapter[logging.Logger],
        *,
        is_ours: Callable[[str], bool],
        limit: float,
        dead_at: float,
    ) -> None:
        """Cut what leads nowhere, once for each use. limit: seconds. dead_at: when connections of
        roles were found without an answer (monotonic)."""
        links = dict(self._links)
        frames = sys._current_frames()
        for link, ours in links.items():
            since, owner = link.busy_since, link.owner
            call = None if since is None else call_of(frames.get(link.ident or 0))
            waited = self._waited(link, call)
            if since is None or self._cut.get(link) == since:
                continue
            if owner is not None and not is_ours(owner):
                self._end(log, link, since, f"{owner} has lost its lease")
            elif waited > limit and (ours or link.opened_at <= dead_at):
                self._end(log, link, since, f"no answer for {waited:.0f} s")
        for gone in set(self._calls) | set(self._cut):
            if gone not in links:
                self._calls.pop(gone, None)
                self._cut.pop(gone, None)

    def _waited(self, link: Link, call: FrameType | None) -> float:
        """For how long its thread has been in this call, as far as was seen."""
        now = time.monotonic()
        if call is None:
            self._calls.pop(link, None)
            return 0.0
        before = self._calls.get(link)
        if before is None or before[0] is not call:  # kept here, so that no other one is the same
            self._calls[link] = before = (call, now)
        return now - before[1]

    def _end(
        self, log: logging.LoggerAdapter[logging.Logger], link: Link, since: float, why: str
    ) -> None:
        self._cut[link] = since
        text = "the connection of a handler is cut: %s"
        log.warning(text, why, extra={"event": Said.INSTANCE_STUCK})
        link.cut()


def call_of(frame: FrameType | None) -> FrameType | None:
    """The call to the driver in which a thread is; None = it is in none."""
    while frame is not None:
        code = frame.f_code
        place = code.co_filename.replace("\\", "/")
        if code.co_name.startswith("do_") and place.endswith(DRIVER_CALLS):
            return frame
        frame = frame.f_back
    return None
