"""What is asked of an instance: paused topics, running messages that are to be cancelled, and
limits of topics (regulations.py).

A part of the housekeeping, on its connection: one statement sees all, and only where there are
requests to cancel, or limits, further ones read them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sqlalchemy import Connection

from msgworker.dialects import Trouble, reason_of, trouble
from msgworker.instance.links import Link
from msgworker.instance.liveness.regulations import Regulations
from msgworker.instance.running.hand import Cancel
from msgworker.instance.runtime import Runtime
from msgworker.logs import Said
from msgworker.store.changing import cancelling, change, pause
from msgworker.store.changing.cancelling import Asked
from msgworker.store.claiming import limits
from msgworker.store.claiming.claim import OF_A_ROW

CANNOT_END = "cannot end a request to cancel a message: %s"
CANNOT_END_OF = "message {} cannot be cancelled: %s"


class Requests:
    """Used by the housekeeper. look_now: makes the fetcher look at once.

    open: whether the last look has found requests to cancel.
    """

    def __init__(
        self,
        runtime: Runtime,
        link: Link,
        *,
        log: logging.LoggerAdapter[logging.Logger],
        look_now: Callable[[], None],
    ) -> None:
        self._runtime = runtime
        self._link = link
        self._log = log
        self._look_now = look_now
        self._regulations = Regulations(runtime, link, log)
        self._refused: set[str] = set()  # what the database does not let us do, logged once
        self._limited = False
        self.open = False

    def read(self) -> None:
        """Read all; then cancel. Raises SchemaError where limits cannot be recorded."""
        self._regulations.check()
        if {pause.NAME, cancelling.NAME, limits.NAME} <= self._runtime.tables.missing:
            return
        paused = self._look()
        if paused is None:  # work continues, as if the tables did not exist
            return
        self._pause(paused)
        self._regulations.read(there=self._limited)
        if self.open or self._runtime.hand.cancels:
            self.cancel()

    def _look(self) -> frozenset[str] | None:
        """The paused topics; None if they cannot be read. Sets `open`, and whether there are
        limits."""
        tables = self._runtime.tables
        if "limits" not in self._refused:
            try:
                return self._seen(limited=True)
            except Exception as error:
                if trouble(error) is not Trouble.REFUSED or self._regulations.wanted:
                    raise
                refused = error
        if "cancels" not in self._refused:
            try:
                paused = self._seen(limited=False)
                if "limits" not in self._refused:
                    text = "cannot see which topics are limited: %s"
                    self._tell_refused("limits", text, refused)
                return paused
            except Exception as error:
                if trouble(error) is not Trouble.REFUSED:
                    raise
                self.open = False
                text = "cannot see which messages are to be cancelled: %s"
                if cancelling.is_there(tables):
                    self._tell_refused("cancels", text, error)
        try:
            with self._link.transaction() as conn:
                return pause.topics(conn, tables)
        except Exception as error:
            if trouble(error) is not Trouble.REFUSED:
                raise
            self._tell_refused("pauses", "cannot see which topics are paused: %s", error)
            return None

    def _seen(self, *, limited: bool) -> frozenset[str]:
        with self._link.transaction() as conn:
            seen = cancelling.look(conn, self._runtime.tables, limited=limited)
        self.open, self._limited = seen.requests, seen.limits
        return seen.paused

    def _tell_refused(self, what: str, text: str, error: Exception) -> None:
        if what not in self._refused:
            self._log.warning(text, reason_of(error))
        self._refused.add(what)

    def _pause(self, paused: frozenset[str]) -> None:
        runtime = self._runtime
        if paused != runtime.paused:
            names = ", ".join(repr(topic) for topic in sorted(paused)) or "none"
            self._log.info("paused topics: %s", names, extra={"event": Said.TOPICS_PAUSED})
            runtime.hold(paused, runtime.limits)
            self._look_now()

    # ------------------------------------------------------------ cancels

    def cancel(self) -> None:
        """Cancel our own messages of which that is requested; end requests for messages that wait
        or have ended.

        The lanes are read before the requests: a request that is there later, for a message that
        is flagged by us, is one for that claim, or its lane has ended and nothing of it is written.
        """
        runtime = self._runtime
        hand, me = runtime.hand, runtime.identity.id
        rows = {row.msg_id: row for lane in list(hand.lanes) for row in (lane.row,)}
        with self._link.transaction() as conn:
            asked = cancelling.read(conn, runtime.tables, me=me)
        kept = {i: one for i, one in hand.cancels.items() if rows.get(i) is one.row}
        for one in asked:
            row = rows.get(one.request.msg_id)
            if one.over or one.waits:
                self._end(one)
            elif one.owner == me and row is not None:
                kept.setdefault(row.msg_id, Cancel(row, one.request))
        hand.cancels = kept  # before the handlers are told, see `Caller.handle`
        if kept:
            hand.tell_cancelled()

    def given_back(self, conn: Connection, ids: list[int]) -> None:
        """End the requests for messages of a dead instance, in the transaction that recovers them:
        they are not tried again."""
        if not self.open or "ends" in self._refused:
            return
        tables, asked = self._runtime.tables, list[Asked]()
        with self._refusals(), conn.begin_nested():
            asked = cancelling.read(conn, tables, ids)
        for one in asked:
            with self._refusals(one), conn.begin_nested():
                change.end_request(conn, tables, one)

    def _end(self, one: Asked) -> None:
        with self._refusals(one):
            try:
                with self._link.transaction() as conn:
                    cancelled = change.end_request(conn, self._runtime.tables, one)
            except Exception as error:
                if trouble(error) is not Trouble.AGAIN:
                    raise
                return  # another instance ends it; if not, the next round does
            if cancelled:
                self._log.info("message %s is %s", one.request.msg_id, one.request.text)
                self._look_now()

    @contextmanager
    def _refusals(self, one: Asked | None = None) -> Iterator[None]:
        """Tell once what the database refuses, and go on: recovery comes after this, and with
        it."""
        try:
            yield
        except Exception as error:
            kind = trouble(error)
            if kind is Trouble.REFUSED:
                self._tell_refused("ends", CANNOT_END, error)
            elif one is not None and kind in OF_A_ROW:
                msg_id = one.request.msg_id
                self._tell_refused(f"end {msg_id}", CANNOT_END_OF.format(msg_id), error)
            else:
                raise
