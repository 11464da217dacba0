"""Transactions that run handlers, each on a connection of its thread, until the result is known."""

from __future__ import annotations

import threading
from collections.abc import Callable

from msgworker.dialects import Trouble, trouble
from msgworker.errors import LostClaim
from msgworker.instance.links import SAME_CLAIM_RUNS, Link, Stage
from msgworker.instance.runtime import Runtime, facts
from msgworker.instance.settling.untilknown import Failures, Fate, until_known
from msgworker.store.rows import Row


class Transacting:
    """Used by the handler threads of one instance."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._local = threading.local()

    def link(self) -> Link:
        """The connection of this thread."""
        link: Link | None = getattr(self._local, "link", None)
        if link is None:
            link = self._local.link = self._runtime.link()
            self._runtime.spare_links.add(link)
        return link

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
        claim, without a try counted; a few times only, because a handler may be the cause. In an
        outage it waits as long as the claim is ours. After a lost COMMIT the rows show whether it
        was committed. Raises LostClaim.
        """
        stage = Stage()
        runs = 0
        failed: BaseException | None = None

        def send() -> bool:
            nonlocal stage
            stage = Stage()
            once(stage)
            return True

        def look() -> bool | None:
            return True if was_committed() else None

        def judge(error: BaseException, looking: bool) -> Fate:
            nonlocal runs, failed
            if looking:
                return Fate.RAISE if trouble(error) is Trouble.OTHER else Fate.UNKNOWN
            if not stage.again(error):
                return Fate.RAISE
            text = "message %s: rolled back, run again"
            self._runtime.log.info(text, row.msg_id, exc_info=error, extra=facts(row))
            runs, failed = runs + stage.begun, error
            lost = stage.committing and trouble(error) is Trouble.LOST
            return Fate.UNKNOWN if lost else Fate.AGAIN

        def may_go_on() -> bool:
            return self._runtime.identity.is_ours(owner) and not self._runtime.gave_up()

        def before_again() -> None:
            if runs == SAME_CLAIM_RUNS and failed is not None:
                raise failed
            self._wait_for_trust(row, owner)

        pauses = Failures(self._runtime.urgent_pause)
        known = until_known(send, look, may_go_on, pauses, judge=judge, before_again=before_again)
        if known is None:
            raise LostClaim(row.msg_id, owner)

    def _wait_for_trust(self, row: Row, owner: str) -> None:
        """Wait while our lease is in doubt; raises LostClaim when it is over."""
        runtime = self._runtime
        if not runtime.identity.wait_for_trust(
            lambda: not runtime.identity.is_ours(owner) or runtime.gave_up()
        ):
            raise LostClaim(row.msg_id, owner)
