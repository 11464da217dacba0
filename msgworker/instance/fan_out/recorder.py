"""Write the records of a fan-out's items in batches, only while the message is ours.

After a crash, items that have ended without a record run again. itemrun.py bounds their number.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import Connection

from msgworker.dialects import Trouble, trouble
from msgworker.errors import LostClaim
from msgworker.instance.fan_out.fence import Fence
from msgworker.instance.fan_out.hands import Task
from msgworker.instance.links import Link
from msgworker.instance.role import Outage
from msgworker.instance.settling.untilknown import Fate, nothing, repeatable, until_known
from msgworker.store import items as store
from msgworker.store.items import Record

T = TypeVar("T")
LINGER_SECONDS = 0.1
RACES = 3


class Recorder:
    """The records of one fan-out, on one connection; used by one thread.

    at_most: how many may wait before they are written.
    """

    def __init__(self, fence: Fence, *, at_most: int) -> None:
        self._fence = fence
        self._at_most = at_most
        self._link: Link = fence.runtime.link()
        self._link.owner = fence.owner
        fence.runtime.lent_links.add(self._link, ours=True)
        self._outage = Outage(
            fence.runtime.log,
            f"items of message {fence.msg_id}",
            longest_pause=fence.runtime.urgent_pause,
        )
        self._waiting: list[Record] = []
        self._there: set[str] = set()
        self._since = 0.0

    def __len__(self) -> int:
        return len(self._waiting)

    def any_recorded(self) -> bool:
        """Whether the message has records of an earlier try, or of another fan-out."""
        fence = self._fence
        return self._reading(lambda c: store.any_recorded(c, fence.runtime.tables, fence.msg_id))

    def known(self, keys: list[str]) -> dict[str, Record]:
        """The records of these keys."""
        fence = self._fence
        return self._reading(lambda c: store.known(c, fence.runtime.tables, fence.msg_id, keys))

    def add(self, task: Task, value: str | None, error: str | None) -> None:
        """Add a result."""
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
        """Write the waiting records. Raises LostClaim, and writes nothing, if the claim is lost.

        In an outage it waits as long as the claim is ours. Whether a lost COMMIT arrived does not
        matter: existing records are read, and the same is written again.
        """
        if not self._waiting:
            return
        races = 0

        def look() -> None:
            self._there = set(self.known([one.key for one in self._waiting]))

        def judge(error: BaseException, looking: bool) -> Fate:
            nonlocal races
            kind = trouble(error)
            races += kind is Trouble.RACE
            hopeless = kind in (Trouble.OTHER, Trouble.REFUSED) or races > RACES
            return Fate.RAISE if hopeless else Fate.UNKNOWN

        wrote = until_known(self._write, look, self._may_go_on, self._outage, judge=judge)
        if wrote is False:
            self._fence.lost = True
        if not wrote:
            raise LostClaim(self._fence.msg_id, self._fence.owner)
        self._waiting.clear()
        self._there.clear()

    def close(self) -> None:
        """Give the connection back."""
        self._fence.runtime.lent_links.discard(self._link)
        self._link.close()

    def _write(self) -> bool:
        fence = self._fence
        tables, msg_id, batch = fence.runtime.tables, fence.msg_id, self._waiting
        with self._link.transaction() as conn:
            return store.record(
                conn,
                tables,
                msg_id,
                batch,
                me=fence.owner,
                tries=fence.row.tries,
                there=self._there,
                total=fence.total,
            )

    def _reading(self, read: Callable[[Connection], T]) -> T:
        def send() -> tuple[T]:
            with self._link.statement() as conn:
                return (read(conn),)

        found = until_known(send, nothing, self._may_go_on, self._outage, judge=repeatable)
        if found is None:
            raise LostClaim(self._fence.msg_id, self._fence.owner)
        return found[0]

    def _may_go_on(self) -> bool:
        return not self._fence.gone and not self._fence.runtime.gave_up()
