"""Enforces the deadlines of an instance, in a thread that uses no database and waits for no other.

* A handler that exceeds its `timeout` is logged once, and cancelled. At the end of the lease all
  handlers are cancelled.
* If a role, or a settle, makes no progress for longer than a lease, its connection may be half
  open, which the thread that waits on it cannot notice. That is logged once, with the place where
  the thread is, and the connection is cut. The role then opens a new one, and the database decides
  whether it continues or is fenced.
* When a stop no longer waits for the database (`Stop.give_up_at`), every connection of a role or a
  settle that is in use is cut.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import FrameType

from msgworker.clock import clock
from msgworker.errors import HandlerStuck
from msgworker.instance.connections import Connections, frames_now
from msgworker.instance.observers import facts
from msgworker.instance.role import Aside, Role
from msgworker.instance.running.in_flight import Execution
from msgworker.instance.state import Setup, Shared
from msgworker.logs import Said

LOOK_SECONDS = 5.0
LATE_SECONDS = 0.2
"""The most that a handler may run beyond its timeout before it is cancelled."""
CUT_AGAIN_SECONDS = 0.1
LEAST_SECONDS = 5.0  # a round may take this long on a busy machine
FRAMES = 6


class Watchdog(Role):
    """Checks the deadlines. Other threads call `wake` when a deadline may have become earlier."""

    def __init__(
        self,
        setup: Setup,
        shared: Shared,
        *,
        roles: Sequence[Role],
        settling: Sequence[Connections],
    ) -> None:
        """settling: the connections on which outcomes are written."""
        super().__init__("watchdog", shared.log, Aside(shared.away))
        self._setup = setup
        self._shared = shared
        self._roles = [(role, role.link) for role in roles if role.link is not None]
        self._settling = settling
        self._reported: dict[Connections, float] = {}
        self._dead_at = 0.0  # when a connection last gave no answer for too long

    def run_once(self) -> int:
        """Returns how many roles are stuck."""
        self.overtime()
        self.lease_over()
        self._end_of_stop()
        found = [self._look(r.name, r.busy_since, r.ident, link) for r, link in self._roles]
        for link in self._settling:
            found.append(self._look("settle", link.busy_since, link.ident, link))
        self._shared.connector.lent.look(
            self.log,
            is_ours=self._shared.identity.is_ours,
            limit=self._limit,
            dead_at=self._dead_at,
        )
        return sum(found)

    @property
    def _limit(self) -> float:
        return max(LEAST_SECONDS, self._setup.settings.lease_seconds)

    def pause_seconds(self, did: int) -> float:
        setup, shared, now = self._setup, self._shared, time.monotonic()
        pause = min(LOOK_SECONDS, setup.settings.heartbeat_seconds)
        if setup.registry.has_timeouts:  # a handler may start at any moment
            pause = min(pause, LATE_SECONDS)
        ends = [one.until for one in list(shared.in_flight.running.values()) if not one.reported]
        ends.append(shared.stop.give_up_at)
        for end in ends:
            if end is not None:
                pause = min(pause, max(CUT_AGAIN_SECONDS, end - now))
        return pause

    # ------------------------------------------------------------ handlers

    def overtime(self) -> None:
        """Log handlers that exceed their timeout, once each, and cancel them."""
        now = time.monotonic()
        for running in list(self._shared.in_flight.running.values()):
            if running.until is not None and now > running.until and not running.reported:
                running.reported = running.cancelled = True
                self._report(running, now - running.since)
                if running.fatal:
                    running.stuck = True
                    self._shared.stop.stop_for(_stuck(running))

    def lease_over(self) -> None:
        """Cancel all handlers after the end of our lease by our own clock."""
        setup, shared = self._setup, self._shared
        rest = setup.settings.heartbeat_seconds  # trust ends this long before the lease does
        if clock() > shared.identity.tenure.trusted_until + rest:
            shared.in_flight.cancel()

    def _report(self, running: Execution, seconds: float) -> None:
        self._shared.log.warning(
            "message %s: its handler has run for %.1f s, longer than its timeout; its flag "
            "stays until the handler returns",
            running.row.msg_id,
            seconds,
            extra=facts(running.row) | {"event": Said.HANDLER_LATE},
        )

    # ------------------------------------------------------------ connections

    def _end_of_stop(self) -> None:
        if self._shared.stop.gave_up():
            for link in (*(link for _, link in self._roles), *self._settling):
                if link.busy_since is not None:
                    link.cut()

    def _look(self, name: str, since: float | None, ident: int | None, link: Connections) -> bool:
        if since is not None and link.busy_since is not None:  # a round may use it several times
            since = max(since, link.busy_since)
        if since is None or link.waits or time.monotonic() - since < self._limit:
            self._reported.pop(link, None)
            return False
        if self._reported.get(link) != since:
            self._reported[link] = since
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
    frame: FrameType | None = frames_now().get(ident or 0)
    places: list[str] = []
    while frame is not None and len(places) < FRAMES:
        code = frame.f_code
        file = code.co_filename.replace("\\", "/").split("/")[-1]
        if "msgworker" in code.co_filename or not places:
            places.append(f"{file}:{frame.f_lineno} {code.co_name}")
        frame = frame.f_back
    return " < ".join(places) or "no place: its thread has ended"


def _stuck(running: Execution) -> HandlerStuck:
    """The error for a handler that only the end of the process can end."""
    return HandlerStuck(
        f"message {running.row.msg_id}: its handler exceeded its timeout and still runs; "
        "the instance has left: end this process, the message is recovered with a crash counted"
    )
