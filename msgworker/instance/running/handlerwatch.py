"""Watch running handlers: cancel those that exceed their timeout, or outlive the lease."""

from __future__ import annotations

import time

from msgworker.clock import clock
from msgworker.errors import HandlerStuck
from msgworker.instance.running.hand import Running
from msgworker.instance.runtime import Runtime, facts
from msgworker.logs import Said


class HandlerWatch:
    """The housekeeper calls `overtime`. The watchdog calls `lease_over`, so that handlers are
    cancelled even if other threads are stuck.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def overtime(self) -> None:
        """Report handlers that exceed their timeout, once each, and cancel them."""
        now = time.monotonic()
        for running in list(self._runtime.hand.running.values()):
            if running.until is not None and now > running.until and not running.reported:
                running.reported = running.cancelled = True
                self._report(running, now - running.since)
                if running.fatal:
                    running.stuck = True
                    self._runtime.leave_for(_stuck(running))

    def lease_over(self) -> None:
        """Cancel all handlers after the end of our lease by our own clock."""
        runtime = self._runtime
        rest = runtime.settings.heartbeat_seconds  # trust ends this long before the lease does
        if clock() > runtime.identity.trusted_until + rest:
            runtime.hand.cancel()

    def _report(self, running: Running, seconds: float) -> None:
        self._runtime.log.warning(
            "message %s: its handler has run for %.1f s, longer than its timeout; its flag "
            "stays until the handler returns",
            running.row.msg_id,
            seconds,
            extra=facts(running.row) | {"event": Said.HANDLER_LATE},
        )


def _stuck(running: Running) -> HandlerStuck:
    """The error for a handler that only the end of the process can end."""
    return HandlerStuck(
        f"message {running.row.msg_id}: its handler exceeded its timeout and still runs; "
        "the instance has left: end this process, the message is recovered with a crash counted"
    )
