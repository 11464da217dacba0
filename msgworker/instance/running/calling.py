"""Run the handler of a lane's current message and return its outcome.

A plain handler runs with no transaction of ours open. A transactional one runs inside the
transaction that settles its message: its writes and the outcome commit together, or neither does.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any

from sqlalchemy import Connection

from msgworker.dialects import Trouble, read_instant, secrets_of, trouble, without
from msgworker.errors import HandlerTimeout, LostClaim
from msgworker.events import Started
from msgworker.instance.fan_out.fanout import Fans
from msgworker.instance.fan_out.fence import Stopped
from msgworker.instance.forks import end_if_forked
from msgworker.instance.links import SAME_CLAIM_RUNS, Link, Stage, lent
from msgworker.instance.running.asyncloop import LoopThread
from msgworker.instance.running.backoff import Backoff
from msgworker.instance.running.context import Context
from msgworker.instance.running.hand import Lane, Running
from msgworker.instance.running.handler import Handler
from msgworker.instance.running.outcome import (
    DONE,
    Result,
    limited,
    payload_of,
    result_of_error,
    result_of_return,
)
from msgworker.instance.running.traces import text_of
from msgworker.instance.runtime import Runtime, facts
from msgworker.instance.settling.settlements import settlement, what_became
from msgworker.instance.settling.untilknown import Failures, Fate, until_known
from msgworker.message import Message, Outcome, Settled, topic_of
from msgworker.payload import clean, quoted
from msgworker.store.recovering import recover
from msgworker.store.rows import Row
from msgworker.store.settling import done
from msgworker.store.settling import settle as store


class _Undo(Exception):
    """Roll the handler's transaction back and report this result."""

    def __init__(self, result: Result) -> None:
        super().__init__(result.error)
        self.result = result


class Caller:
    """Calls handlers for the threads of one instance."""

    def __init__(
        self,
        runtime: Runtime,
        *,
        leave: Callable[[], None],
        before_settle: Callable[[Lane], None] | None = None,
    ) -> None:
        """leave: requests a stop of the instance. before_settle: called in the
        transaction of a transactional handler, after the handler."""
        self._runtime = runtime
        self._leave = leave
        self._before_settle = before_settle
        self._loop = LoopThread(runtime.pid)
        self._backoff = Backoff(runtime.settings.backoff_seconds)
        self._local = threading.local()
        self._secrets = secrets_of(runtime.engine.url)
        self._told_of_odd_instants = False

    def handle(self, lane: Lane) -> None:
        """Run the current message of a lane; leaves the outcome in `lane.result`."""
        runtime, row = self._runtime, lane.row
        if row.flaw is not None and row.odd is not None:
            lane.result = Result(Outcome.DEAD, f"the row cannot be read: {row.odd}")
            return
        topic = topic_of(row.topic)
        handler = runtime.registry.get(topic)
        if handler is None:  # unregistered meanwhile: release it
            lane.result = Result(Outcome.RELEASED)
            return
        now = time.monotonic()
        until = None if handler.timeout is None else now + handler.timeout
        fatal = handler.timeout_action == "restart"
        running = Running(row, lane.owner, now, until, fatal, part=lane.part)
        ident = threading.get_ident()
        runtime.hand.running[ident] = running
        # Checked after the handler is noted in `running`, which the fetcher reads: if our id was
        # lost since this thread took the lane, the message may have been claimed again, even by us.
        if not runtime.identity.is_ours(lane.owner):
            runtime.hand.running.pop(ident, None)
            lane.result = Result(Outcome.RELEASED)
            return
        if runtime.events.wants(Started):
            runtime.events.emit(Started(lane.owner, row))
        try:
            msg: Message[Any] = Message(
                row.msg_id,
                row.object_id,
                topic,
                payload_of(row.payload, None if row.flaw is None else row.oversize, handler),
                row.tries,
                partial(self._created_at, row),  # type: ignore[arg-type]
                runtime.tables.spec.name,
            )
            if handler.transactional:
                result = self._transactional(lane, msg, handler, running)
            else:
                result = self._plain(lane, msg, handler, running)
        except BaseException as error:  # the thread survives any exception
            result = self._raised(error, handler, row)
        finally:
            runtime.hand.running.pop(ident, None)
        result = self._checked(result, handler, running, lane)
        if result is not DONE:
            result = limited(result, handler, row.tries + 1, runtime.tables.spec.max_tries)
        if result.error is not None:
            result.error = without(result.error, self._secrets)
        if result.trace is not None:
            result.trace = without(result.trace, self._secrets)
        lane.result = result

    def _created_at(self, row: Row) -> datetime | None:
        try:
            return read_instant(row.created_at)
        except ValueError:
            if not self._told_of_odd_instants:
                self._told_of_odd_instants = True
                column = self._runtime.tables.names["created_at"]
                text = (
                    "message %s: %s holds %s, not an instant; its handler gets None (logged once)"
                )
                held = quoted(row.created_at)
                self._runtime.log.warning(text, row.msg_id, column, held, extra=facts(row))
            return None

    def close(self) -> None:
        """Return the threads' connections; the threads must have ended."""
        self._runtime.spare_links.close()
        self._loop.close()

    def _call(self, handler: Handler, msg: Message[Any], context: Context) -> Any:
        arguments = (msg, context) if handler.takes_context else (msg,)
        try:
            if handler.is_async:
                return self._loop.run(handler.fn(*arguments), handler.timeout)
            return handler.fn(*arguments)
        finally:
            if os.getpid() != self._runtime.pid:
                end_if_forked(self._runtime.pid)

    def _plain(self, lane: Lane, msg: Message[Any], handler: Handler, running: Running) -> Result:
        attempt = lane.row.tries + 1
        fans = Fans(self._runtime, running, self._secrets)
        try:
            context = Context(msg, lane.owner, attempt, running, fans=fans)
            return self._returned(self._call(handler, msg, context), handler, attempt)
        finally:
            fans.close()

    def _returned(self, value: Any, handler: Handler, attempt: int) -> Result:
        return DONE if value is None else result_of_return(value, handler, attempt, self._backoff)

    def _raised(self, error: BaseException, handler: Handler, row: Row) -> Result:
        if isinstance(error, _Undo):
            return error.result
        if isinstance(error, KeyboardInterrupt):
            self._runtime.stopping.set()
            self._leave()
        if isinstance(error, Stopped):
            return Result(Outcome.RELEASED)
        return result_of_error(error, handler, row.tries + 1, self._backoff)

    def _checked(self, result: Result, handler: Handler, running: Running, lane: Lane) -> Result:
        """Results after the timeout, and RetryLater beyond its limit, become failed tries."""
        if lane.settled is not None:
            return DONE
        if result.outcome in (Outcome.DONE, Outcome.FAILED) and running.until is not None:
            took, raised = time.monotonic() - running.since, result.raised
            told = isinstance(raised, HandlerTimeout) or (handler.is_async and raised is None)
            if time.monotonic() > running.until and not told:
                text = f"timeout: the handler took {took:.1f} s, its limit is {handler.timeout:g} s"
                if raised is not None:
                    text += f"; then it raised {type(raised).__name__}: {text_of(raised)}"
                late = HandlerTimeout(text)
                late.__cause__ = raised
                return result_of_error(late, handler, lane.row.tries + 1, self._backoff)
        if result.outcome is Outcome.LATER and self._worn_out(lane):
            text = clean(f"RetryLater beyond later_limit, or without its columns; {result.error}")
            return Result(Outcome.FAILED, text, result.delay_seconds)
        return result

    def _worn_out(self, lane: Lane) -> bool:
        """Whether RetryLater counts as a failure: beyond `later_limit`, or the table lacks
        the columns for it."""
        return (
            not self._keeps_later() or lane.row.later_times >= self._runtime.tables.spec.later_limit
        )

    def _keeps_later(self) -> bool:
        tables = self._runtime.tables
        return tables.has("later_times") and tables.has("available_at")

    # ------------------------------------------------------------ transactional

    def _transactional(
        self, lane: Lane, msg: Message[Any], handler: Handler, running: Running
    ) -> Result:
        """Handler and outcome in one transaction.

        If the database rolled it back (deadlock, lost connection), the handler runs again under the
        same claim, without a try counted; a few times only, because the handler may be the cause.
        In an outage it waits as long as the claim is ours. After a lost COMMIT the
        row shows whether it was committed.
        """
        stage = Stage()
        runs = 0
        failed: BaseException | None = None

        def send() -> Result:
            nonlocal stage
            stage = Stage()
            self._in_one_transaction(lane, msg, handler, running, stage)
            return DONE

        def look() -> Result | None:
            return DONE if self._was_committed(lane) else None

        def judge(error: BaseException, looking: bool) -> Fate:
            nonlocal runs, failed
            if looking:
                return Fate.RAISE if trouble(error) is Trouble.OTHER else Fate.UNKNOWN
            if not stage.again(error):
                return Fate.RAISE
            text = "message %s: rolled back, run again"
            self._runtime.log.info(text, msg.msg_id, exc_info=error, extra=facts(lane.row))
            runs, failed = runs + stage.begun, error
            lost = stage.committing and trouble(error) is Trouble.LOST
            return Fate.UNKNOWN if lost else Fate.AGAIN

        def may_go_on() -> bool:
            return self._runtime.identity.is_ours(lane.owner) and not self._runtime.gave_up()

        def before_again() -> None:
            if runs == SAME_CLAIM_RUNS and failed is not None:
                raise failed
            self._wait_for_trust(lane)

        known = until_known(
            send, look, may_go_on, Failures(), judge=judge, before_again=before_again
        )
        if known is None:
            raise LostClaim(lane.row.msg_id, lane.owner)
        return known

    def _wait_for_trust(self, lane: Lane) -> None:
        """Wait while our lease is in doubt; raises LostClaim when it is over."""
        runtime = self._runtime
        if not runtime.identity.wait_for_trust(
            lambda: not runtime.identity.is_ours(lane.owner) or runtime.gave_up()
        ):
            raise LostClaim(lane.row.msg_id, lane.owner)

    def _in_one_transaction(
        self, lane: Lane, msg: Message[Any], handler: Handler, running: Running, stage: Stage
    ) -> None:
        attempt = lane.row.tries + 1
        link = self._link()
        with link.lock, link.transaction() as conn:
            self._refuse_lost(conn, lane)
            context = Context(msg, lane.owner, attempt, running, conn)
            with lent(conn, stage, "the handler"):
                result = self._returned(self._call(handler, msg, context), handler, attempt)
                self._flush(context)
            if result is not DONE:
                raise _Undo(result)
            if running.until is not None and time.monotonic() > running.until:
                raise HandlerTimeout(f"timeout: its limit is {handler.timeout:g} s; rolled back")
            fate = self._settle(conn, lane)
            stage.committing = True
        lane.settled = fate is Settled.WENT_ON

    def _refuse_lost(self, conn: Connection, lane: Lane) -> None:
        """Raise if our lease was lost since the claim: another instance may have the message."""
        if lane.owner == self._runtime.identity.id:
            return
        found = recover.still_flagged(conn, self._runtime.tables, {lane.row.msg_id: lane.row.tries})
        if lane.row.msg_id not in found.free:
            raise LostClaim(lane.row.msg_id, lane.owner)

    @staticmethod
    def _flush(context: Context) -> None:
        session = context._session
        if session is not None:
            session.commit()  # its savepoint only
            session.close()

    def _settle(self, conn: Connection, lane: Lane) -> Settled:
        if self._before_settle is not None:
            self._before_settle(lane)
        lane.result = DONE
        fate = store.settle_one(
            conn, self._runtime.tables, settlement(lane, self._runtime), me=lane.owner
        )
        if fate is Settled.LOST:
            raise LostClaim(lane.row.msg_id, lane.owner)
        return fate

    def _was_committed(self, lane: Lane) -> bool:
        """Read the rows; sets `lane.settled` if the COMMIT had arrived."""
        lanes = {lane.row.msg_id: lane}
        ids = set(lanes) | ({lane.next_row.msg_id} if lane.next_row else set())
        link = self._link()
        with link.lock, link.transaction() as conn:
            flagged = done.look(conn, self._runtime.tables, ids, me=lane.owner)
        became = what_became(lanes, flagged)
        if not became:
            return False
        lane.settled = became[lane.row.msg_id] is Settled.WENT_ON
        return True

    def _link(self) -> Link:
        link: Link | None = getattr(self._local, "link", None)
        if link is None:
            link = self._local.link = self._runtime.link()
            self._runtime.spare_links.add(link)
        return link
