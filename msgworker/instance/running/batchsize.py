"""How many messages a batch takes, by how long the last ones took.

Nothing here reads a clock or a table.
"""

from __future__ import annotations

FIRST = 16
"""Messages of the first batch."""
BYTES = 8_000_000
"""Characters of payload in a batch, at most; one message may have more."""
LEASE_SHARE = 1 / 3
"""The share of a lease that a batch may take: others wait behind its locks."""


class BatchSize:
    """The size of the batches of one handler. It starts small, is doubled while batches take less
    than half of the aim, and cut to what the aim allows; halved when a batch was rolled back, so
    that rare failures leave many batches whole.

    now: how many messages the next one takes. Written by handler threads without a lock: one of two
    answers at the same time may be lost.
    """

    def __init__(self, most: int, aim_seconds: float, lease_seconds: float) -> None:
        self._most = most
        self._aim = min(aim_seconds, lease_seconds * LEASE_SHARE)
        self.now = min(FIRST, most)

    def took(self, messages: int, seconds: float) -> None:
        """A batch of so many messages took so many seconds."""
        if seconds > self._aim:
            self.now = max(1, min(self.now, int(messages * self._aim / seconds)))
        elif messages >= self.now and seconds * 2 <= self._aim:
            self.now = min(self._most, self.now * 2)

    def failed(self) -> None:
        """A batch was rolled back."""
        self.now = max(1, self.now // 2)
