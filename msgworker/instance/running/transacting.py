"""Transactions that run handlers, each on a connection of its thread, until the result is known."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sqlalchemy import Connection

from msgworker.dialects import Trouble, reason_of, session_seconds, trouble
from msgworker.errors import HandlerTimeout, LostClaim
from msgworker.instance.links import SAME_CLAIM_RUNS, Link, Stage
from msgworker.instance.runtime import Runtime, facts, tell_of_limit
from msgworker.instance.settling.untilknown import Failures, Fate, until_known
from msgworker.store.rows import Row


class Transacting:
    """Used by the handler threads of one instance."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._local = threading.local()

    def link(self) -> Link:
        """The connection of this thread that is lent to handlers."""
        link: Link | None = getattr(self._local, "link", None)
        if link is None:
            link = self._local.link = self._runtime.link(lends=True)
            self._runtime.spare_links.add(link)
            self._runtime.lent_links.add(link)
        return link

    @contextmanager
    def beside(self) -> Iterator[Connection]:
        """A transaction on a connection that no handler has had, to see what is committed."""
        link = self._runtime.link()
        try:
            with link.transaction() as conn:
                yield conn
        finally:
            link.close()

    def until_committed(
        self,
        row: Row,
        owner: str,
        once: Callable[[Stage], None],
        was_committed: Callable[[], bool],
    ) -> None:
        """Run handlers and write their outcome in one transaction. row: the message, the first one
        of several. owner: the id under which it was claimed. once: does it one time.

        If the database rolled it back (deadlock, lost connection), it runs again under the same
        claim, without a try counted; a few times only, because a handler may be the cause. Not if
        a time limit of the server has ended it, which would end it again. In an outage it waits as
        long as the claim is ours. After a lost COMMIT the rows show whether it was committed.
        Raises LostClaim, and HandlerTimeout for a session that was ended without a word.
        """
        self.link().owner = owner
        stage = Stage()
        runs, took = 0, 0.0
        failed: BaseException | None = None

        def send() -> bool:
            nonlocal stage
            stage = Stage()
            once(stage)
            return True

        def look() -> bool | None:
            return True if was_committed() else None

        def judge(error: BaseException, looking: bool) -> Fate:
            nonlocal runs, failed, took
            if looking:
                return Fate.RAISE if trouble(error) is Trouble.OTHER else Fate.UNKNOWN
            if not stage.again(error):
                if stage.took_too_long(error):
                    tell_of_limit(self._runtime.log, row, reason_of(error))
                return Fate.RAISE
            text = "message %s: rolled back, run again"
            self._runtime.log.info(text, row.msg_id, exc_info=error, extra=facts(row))
            runs, failed, took = runs + stage.begun, error, stage.seconds()
            lost = stage.committing and trouble(error) is Trouble.LOST
            return Fate.UNKNOWN if lost else Fate.AGAIN

        def may_go_on() -> bool:
            return self._runtime.identity.is_ours(owner) and not self._runtime.gave_up()

        def before_again() -> None:
            if runs == SAME_CLAIM_RUNS and failed is not None:
                raise failed
            if failed is not None and trouble(failed) is Trouble.LOST and stage.begun:
                self._refuse_overtime(row, took, failed)
            self._wait_for_trust(row, owner)

        pauses = Failures(self._runtime.urgent_pause)
        known = until_known(send, look, may_go_on, pauses, judge=judge, before_again=before_again)
        if known is None:
            raise LostClaim(row.msg_id, owner)

    def _refuse_overtime(self, row: Row, took: float, error: BaseException) -> None:
        """Raise HandlerTimeout if the session was lost after the time for which the server lets one
        be idle: it ends it without a word, and would again."""
        try:
            with self.beside() as conn:
                limit = session_seconds(conn)
        except Exception:  # the server is away: that is why
            return
        if limit is None or took < limit:
            return
        text = (
            f"the server ended the session after {took:.0f} s: it lets a session be idle, or a "
            f"transaction last, for {limit:g} s ({reason_of(error)})"
        )
        tell_of_limit(self._runtime.log, row, text)
        raise HandlerTimeout(text) from error

    def _wait_for_trust(self, row: Row, owner: str) -> None:
        """Wait while our lease is in doubt; raises LostClaim when it is over."""
        runtime = self._runtime
        if not runtime.identity.wait_for_trust(
            lambda: not runtime.identity.is_ours(owner) or runtime.gave_up()
        ):
            raise LostClaim(row.msg_id, owner)
