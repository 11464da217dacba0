"""Wakes up the fetcher when another process has sent a message: a hint, not needed for
correctness."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import Connection

from msgworker.dialects import listen, shares_sessions, wait_for_notice
from msgworker.instance.role import Aside, Role
from msgworker.instance.runtime import Runtime

LISTEN_SECONDS = 1.0
DEAF_SECONDS = 3_600.0


class Listener(Role):
    """Listens on the channel of the message table, on a connection of its own."""

    def __init__(self, runtime: Runtime, *, heard: Callable[[], None]) -> None:
        super().__init__("listener", runtime.log, Aside(runtime.away))
        self._link = runtime.link()
        self._channel = runtime.channel
        self._heard = heard
        self._listening = False
        self._is_deaf = False

    def run_once(self) -> int:
        """Listen for a second; returns 1 if a notification arrived. Through a pooler that keeps no
        session for us none would: the looks at the table go on as without notifications."""
        assert self._channel is not None
        with self._link.statement() as conn:
            self._is_deaf = shares_sessions(conn)
            heard = not self._is_deaf and self._wait(conn, self._channel)
        if self._is_deaf:
            self._link.close()
        if heard:
            self._heard()
        return int(heard)

    def _wait(self, conn: Connection, channel: str) -> bool:
        if not self._listening:
            listen(conn, channel)
            self._listening = True
            self._heard()  # for messages sent before we listened
        return wait_for_notice(conn, LISTEN_SECONDS)

    def pause_seconds(self, did: int) -> float:
        return DEAF_SECONDS if self._is_deaf else 0.0

    def failed(self, error: BaseException) -> None:
        self._listening = False

    def ended(self) -> None:
        self._link.close()
