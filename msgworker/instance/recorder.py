"""Write the records of a fan-out's items in batches, only while the message is ours.

A crash forgets what has ended and is not yet written: those items run again. How many that can be
is bounded by whoever starts items, see itemrun.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import Connection

from msgworker.dialects import Trouble, trouble
from msgworker.errors import LostClaim
from msgworker.instance.hands import Claim, Task
from msgworker.instance.links import Link
from msgworker.instance.role import Outage
from msgworker.store import items as store
from msgworker.store.items import Record

T = TypeVar("T")
LINGER_SECONDS = 0.1
RACES = 3


class Recorder:
    """The records of one fan-out, on one connection; used by one thread.

    at_most: how many may wait before they are written.
    """

    def __init__(self, claim: Claim, *, at_most: int) -> None:
        self._claim = claim
        self._at_most = at_most
        self._link: Link = claim.runtime.link()
        self._outage = Outage(claim.runtime.log, f"items of message {claim.msg_id}")
        self._waiting: list[Record] = []
        self._there: set[str] = set()
        self._since = 0.0

    def __len__(self) -> int:
        return len(self._waiting)

    def any_recorded(self) -> bool:
        """Whether the message has records of an earlier try, or of another fan-out."""
        claim = self._claim
        return self._reading(lambda c: store.any_recorded(c, claim.runtime.tables, claim.msg_id))

    def known(self, keys: list[str]) -> dict[str, Record]:
        """The records of these keys."""
        claim = self._claim
        return self._reading(lambda c: store.known(c, claim.runtime.tables, claim.msg_id, keys))

    def add(self, task: Task, value: str | None, error: str | None) -> None:
        """Take one outcome."""
        if not self._waiting:
            self._since = time.monotonic()
        self._waiting.append(Record(task.text, error is None, task.tries + 1, value, error))
        if task.there:
            self._there.add(task.text)

    def due_in(self) -> float:
        """Seconds until the waiting records should be written; 0 or less: now."""
        if not self._waiting:
            return LINGER_SECONDS
        if len(self._waiting) >= self._at_most:
            return 0.0
        return self._since + LINGER_SECONDS - time.monotonic()

    def write(self) -> None:
        """Write what waits. Raises LostClaim if the message is no longer ours: nothing is written.

        A database that is away is waited for, as long as the claim is ours. Whether a lost COMMIT
        arrived does not matter: what is there is looked up, and the same is written again.
        """
        if not self._waiting:
            return
        there, races = self._there, 0
        while True:
            try:
                wrote = self._write(there)
                break
            except Exception as error:
                kind = trouble(error)
                races += kind is Trouble.RACE
                if kind in (Trouble.OTHER, Trouble.REFUSED) or races > RACES:
                    raise
                self._wait(error)
                there = set(self.known([one.key for one in self._waiting]))
        self._outage.over()
        if not wrote:
            self._claim.lost = True
            raise LostClaim(self._claim.msg_id, self._claim.owner)
        self._waiting.clear()
        self._there.clear()

    def close(self) -> None:
        """Give the connection back."""
        self._link.close()

    def _write(self, there: set[str]) -> bool:
        claim = self._claim
        tables, msg_id, batch = claim.runtime.tables, claim.msg_id, self._waiting
        with self._link.transaction() as conn:
            return store.record(
                conn,
                tables,
                msg_id,
                batch,
                me=claim.owner,
                tries=claim.row.tries,
                there=there,
                total=claim.total,
            )

    def _reading(self, read: Callable[[Connection], T]) -> T:
        while True:
            try:
                with self._link.statement() as conn:
                    found = read(conn)
            except Exception as error:
                if trouble(error) not in (Trouble.AGAIN, Trouble.LOST):
                    raise
                self._wait(error)
            else:
                self._outage.over()
                return found

    def _wait(self, error: Exception) -> None:
        """Wait before the next attempt; LostClaim when there is none to be made."""
        pause = self._outage.failed(error)
        if self._claim.gone or self._claim.runtime.gave_up():
            raise LostClaim(self._claim.msg_id, self._claim.owner) from error
        time.sleep(pause)
