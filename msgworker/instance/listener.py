"""Wakes up the fetcher when another process has sent a message: a hint, not needed for
correctness."""

from __future__ import annotations

from collections.abc import Callable

from msgworker.dialects import listen, wait_for_notice
from msgworker.instance.role import Role
from msgworker.instance.runtime import Runtime

LISTEN_SECONDS = 1.0


class Listener(Role):
    """Listens on the channel of the message table, on a connection of its own."""

    def __init__(self, runtime: Runtime, *, heard: Callable[[], None]) -> None:
        super().__init__("listener", runtime.log, runtime.away)
        self._link = runtime.link()
        self._channel = runtime.channel
        self._heard = heard
        self._listening = False

    def run_once(self) -> int:
        """Listen for a second; returns 1 if a notification arrived."""
        assert self._channel is not None
        with self._link.statement() as conn:
            if not self._listening:
                listen(conn, self._channel)
                self._listening = True
                self._heard()  # for messages sent before we listened
            heard = wait_for_notice(conn, LISTEN_SECONDS)
        if heard:
            self._heard()
        return int(heard)

    def pause_seconds(self, did: int) -> float:
        return 0.0

    def failed(self, error: BaseException) -> None:
        self._listening = False

    def ended(self) -> None:
        self._link.close()
