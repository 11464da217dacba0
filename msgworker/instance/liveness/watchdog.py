"""Detects that the claim loop, the heartbeat or a settle makes no progress, and ends its wait.

A connection may be half open: no side closes it, and no answer comes. The thread that waits on it
cannot notice; this one can, because it uses no database. If a round takes longer than a lease, it
logs that once, with the place where the thread is, and cuts the connection: the role then
opens a new one, and is fenced or continues, as the database decides.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from types import FrameType
from typing import Protocol

from msgworker.instance.links import Link
from msgworker.instance.role import Role
from msgworker.instance.running.handlerwatch import HandlerWatch
from msgworker.instance.runtime import Runtime
from msgworker.logs import Said

LOOK_SECONDS = 5.0
LEAST_SECONDS = 5.0  # a round may take this long on a busy machine
FRAMES = 6


class Watched(Protocol):
    """A role with a thread and a link."""

    name: str
    link: Link
    busy_since: float | None

    @property
    def ident(self) -> int | None: ...


class Watchdog(Role):
    """Checks the other roles periodically."""

    def __init__(
        self,
        runtime: Runtime,
        *,
        roles: Sequence[Watched],
        settling: Sequence[Link],
        handlers: HandlerWatch,
    ) -> None:
        """settling: on which outcomes are written."""
        super().__init__("watchdog", runtime.log, runtime.away)
        self._runtime = runtime
        self._roles = roles
        self._settling = settling
        self._handlers = handlers
        self._told: dict[Link, float] = {}
        self._dead_at = 0.0  # when a connection was found without an answer

    def run_once(self) -> int:
        """Returns how many roles are stuck."""
        found = [self._look(r.name, r.busy_since, r.ident, r.link) for r in self._roles]
        for link in self._settling:
            found.append(self._look("settle", link.busy_since, link.ident, link))
        self._handlers.lease_over()
        self._runtime.lent_links.look(
            self.log,
            is_ours=self._runtime.identity.is_ours,
            limit=self._limit,
            dead_at=self._dead_at,
        )
        return sum(found)

    @property
    def _limit(self) -> float:
        return max(LEAST_SECONDS, self._runtime.settings.lease_seconds)

    def pause_seconds(self, did: int) -> float:
        return min(LOOK_SECONDS, self._runtime.settings.heartbeat_seconds)

    def _look(self, name: str, since: float | None, ident: int | None, link: Link) -> bool:
        if since is not None and link.busy_since is not None:  # a round may use it again and again
            since = max(since, link.busy_since)
        if since is None or link.waits or time.monotonic() - since < self._limit:
            self._told.pop(link, None)
            return False
        if self._told.get(link) != since:
            self._told[link] = since
            self._dead_at = time.monotonic()
            self.log.warning(
                "%s: no progress for %.0f s, its connection is cut; it is at %s",
                name,
                time.monotonic() - since,
                place_of(ident),
                extra={"event": Said.INSTANCE_STUCK},
            )
            link.cut()
        return True


def place_of(ident: int | None) -> str:
    """Where a thread is now, the innermost place first, in one line."""
    frame: FrameType | None = sys._current_frames().get(ident or 0)
    places: list[str] = []
    while frame is not None and len(places) < FRAMES:
        code = frame.f_code
        file = code.co_filename.replace("\\", "/").split("/")[-1]
        if "msgworker" in code.co_filename or not places:
            places.append(f"{file}:{frame.f_lineno} {code.co_name}")
        frame = frame.f_back
    return " < ".join(places) or "no place: its thread has ended"
