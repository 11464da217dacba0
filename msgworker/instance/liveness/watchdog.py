"""Enforces the deadlines of an instance, in a thread that uses no database and waits for no other.

* A handler that exceeds its `timeout` is logged once, and cancelled. At the end of the lease all
  handlers are cancelled.
* If a role, or a settle, makes no progress for longer than a lease, its connection may be half
  open, which the thread that waits on it cannot notice. That is logged once, with the place where
  the thread is, and the connection is cut. The role then opens a new one, and the database decides
  whether it continues or is fenced.
* When a stop no longer waits for the database (`Stop.give_up_at`), every connection of a role or a
  settle that is in use is cut.
* A handler may run for any time, so long use of its connection is no sign of a fault. It is cut if
  its message was claimed under an id that has lost its lease: nothing that the handler writes can
  be committed. And if it has waited for one answer for longer than a lease, and was opened before
  connections of other roles were found to hang: a network fault leaves all connections of its time
  half open. If the statement was only slow, the handler runs again under the same claim, on a new
  connection, and may then take its time.

A thread that waits for an answer is inside one call from SQLAlchemy to the driver. That is seen,
and for how long, in the thread's frames, so it costs a statement nothing. An async handler waits in
its loop, where each statement is noted.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Sequence
from types import FrameType

from msgworker.clock import clock
from msgworker.errors import HandlerStuck
from msgworker.instance.connections import Connections, Lendable
from msgworker.instance.observers import facts
from msgworker.instance.role import Aside, Role
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
        self._asked: dict[Lendable, tuple[object, float]] = {}  # of handlers, and since when
        self._cut: dict[Lendable, float] = {}  # the use in which one of a handler was cut

    def run_once(self) -> int:
        """Returns how many roles are stuck."""
        self.overtime()
        self.lease_over()
        self._end_of_stop()
        found = [self._look(r.name, r.busy_since, r.ident, link) for r, link in self._roles]
        for link in self._settling:
            found.append(self._look("settle", link.busy_since, link.ident, link))
        self._look_at_lent()
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
        now, shared = time.monotonic(), self._shared
        for running in list(shared.in_flight.running.values()):
            if running.until is None or now <= running.until or running.reported:
                continue
            running.reported = running.cancelled = True
            msg_id = running.row.msg_id if running.called is None else running.called
            row = next((one for one in running.rows() if one.msg_id == msg_id), running.row)
            extra = facts(row) | {"msg_id": msg_id, "event": Said.HANDLER_LATE}
            text = (
                "message %s: its handler has run for %.1f s, longer than its timeout; its flag "
                "stays until the handler returns"
            )
            shared.log.warning(text, msg_id, now - running.since, extra=extra)
            if running.fatal:
                running.stuck = True
                text = (
                    f"message {msg_id}: its handler exceeded its timeout and still runs; the "
                    "instance has left: end this process, the message is recovered with a crash "
                    "counted"
                )
                shared.stop.stop_for(HandlerStuck(text))

    def lease_over(self) -> None:
        """Cancel all handlers after the end of our lease by our own clock."""
        setup, shared = self._setup, self._shared
        rest = setup.settings.heartbeat_seconds  # trust ends this long before the lease does
        if clock() > shared.identity.tenure.trusted_until + rest:
            shared.in_flight.cancel_all()

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
            text = "%s: no progress for %.0f s, its connection is cut; it is at %s"
            what = (name, time.monotonic() - since, place_of(ident))
            self.log.warning(text, *what, extra={"event": Said.INSTANCE_STUCK})
            link.cut()
        return True

    def _look_at_lent(self) -> None:
        """Cut dead connections of handlers, once for each use."""
        links, is_ours = dict(self._shared.connector.lent), self._shared.identity.is_ours
        used = any(link.busy_since is not None for link in links)
        frames = frames_now() if used else {}
        for link, ours in links.items():
            since, owner = link.busy_since, link.owner
            waited = self._waited(link, None if since is None else link.asked(frames))
            if since is None or self._cut.get(link) == since:
                continue
            if owner is not None and not is_ours(owner):
                self._cut_lent(link, since, f"{owner} has lost its lease")
            elif waited > self._limit and (ours or link.opened_at <= self._dead_at):
                self._cut_lent(link, since, f"no answer for {waited:.0f} s")
        for gone in (set(self._asked) | set(self._cut)) - set(links):
            self._asked.pop(gone, None)
            self._cut.pop(gone, None)

    def _waited(self, link: Lendable, asked: object | None) -> float:
        """The seconds since it was first seen to wait for this answer."""
        now = time.monotonic()
        if asked is None:
            self._asked.pop(link, None)
            return 0.0
        before = self._asked.get(link)
        if before is None or before[0] is not asked:  # kept, so that no new one is the same object
            self._asked[link] = before = (asked, now)
        return now - before[1]

    def _cut_lent(self, link: Lendable, since: float, why: str) -> None:
        self._cut[link] = since
        text = "the connection of a handler is cut: %s"
        self.log.warning(text, why, extra={"event": Said.INSTANCE_STUCK})
        link.cut()


def frames_now() -> dict[int, FrameType]:
    """The innermost frame of each thread, by its ident. Garbage collection is off: before Python
    3.11.9 it could deadlock here."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        return sys._current_frames()
    finally:
        if was_on:
            gc.enable()


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
