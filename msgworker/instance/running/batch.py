"""Call a handler for a batch, in the transaction of its outcome if it is transactional."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import Connection

from msgworker.counted import few, plural
from msgworker.db.connections import led_elsewhere
from msgworker.db.errors import reason_of, without
from msgworker.errors import HandlerMisuse, HandlerTimeout, LostClaim, PayloadError
from msgworker.events import FellBack, Started
from msgworker.instance.connections import TransactionProgress, carried, lent, misled, missed
from msgworker.instance.running.call import Caller, NotDone, NotRead
from msgworker.instance.running.context import BatchContext, Context
from msgworker.instance.running.handler import Handler
from msgworker.instance.running.in_flight import Execution, Lane
from msgworker.instance.running.outcome import DONE, Result, cancelled, describe, fault
from msgworker.instance.running.pool import Batch, Gathering, LaneQueue
from msgworker.instance.running.spans import Try
from msgworker.instance.running.traceback import home_of, trim
from msgworker.instance.running.transactions import AsyncBatchContext, AsyncContext, or_cut
from msgworker.instance.settling.writer import follow_ups, settlement, what_became
from msgworker.instance.state import Setup, Shared
from msgworker.logs import Said
from msgworker.message import Message, Outcome, Outgoing, Settled, topic_of
from msgworker.store import done, recover
from msgworker.store import settle as store
from msgworker.store.rows import Row
from msgworker.store.send import notify, send_all
from msgworker.store.settle import OutOfDate

# --- What a batch is made of, and how it may end.


@dataclass(slots=True)
class Taken:
    """What a batch takes of a lane: its messages. sends: what a plain handler has sent with the
    outcome of its message, or an async one in its transaction."""

    lane: Lane
    messages: list[Message[Any]]
    sends: list[Outgoing] = field(default_factory=list)

    @staticmethod
    def share_out(sent: dict[Any, list[Outgoing]], taken: list[Taken]) -> None:
        """Give each lane what its handler has sent. sent: by the msg_id of the message with whose
        outcome it is sent."""
        for one in taken if sent else ():
            one.sends = sent.get(one.messages[0].msg_id, [])

    def done(self) -> Result:
        """The result of a plain handler that has returned."""
        return Result(Outcome.DONE, sends=tuple(self.sends)) if self.sends else DONE


class Failed(Exception):
    """Raised to roll back because messages failed. by_id: their errors. The handler has named them;
    or it has ended the transaction itself, so that it must not be called again for any."""

    def __init__(self, by_id: dict[Any, BaseException]) -> None:
        super().__init__(f"{plural(len(by_id), 'message')} failed")
        self.by_id = by_id


def _all_failed(taken: list[Taken], error: HandlerMisuse) -> Failed:
    return Failed({one.lane.row.msg_id: error for one in taken})


class Cancelled(Exception):
    """Raised to roll back because an operator has cancelled a message of the batch."""


Failures = dict[Any, BaseException]


# --- Call a handler for a batch, in the transaction of its outcome if it is transactional.
#
# All messages of a batch are done, or none. After an exception no try is counted, and each message
# runs alone, to the end of its lane, so that the one at fault raises for itself. A batch is never
# called again as a whole after an exception: that might never end.

FAIL_ROUNDS = 4
"""How often a transactional handler is called for a batch while it names messages that fail."""
RELEASED = Result(Outcome.RELEASED)
"""The result if our lease is lost, and the lanes with it; or if the stop cancelled the handler."""


class _OfHandler(Exception):
    """Wraps a LostClaim that the handler itself raised: an error like any other."""

    def __init__(self, error: LostClaim) -> None:
        super().__init__(str(error))
        self.error = error


class BatchCaller:
    """Calls handlers for batches, for the threads of one instance."""

    def __init__(self, setup: Setup, shared: Shared, caller: Caller, lanes: LaneQueue) -> None:
        self._setup = setup
        self._shared = shared
        self._caller = caller
        self._lanes = lanes
        self.gathering = Gathering(setup, shared, lanes)

    def handle_beside(self, lane: Lane) -> list[Lane] | None:
        """Run a lane with those that wait beside it; returns those that have a result. None if its
        handler takes no batches."""
        if lane.result is not None:  # known before it was flagged, see `Lane.verdict`
            lane.finished_at = time.monotonic()
            return [lane]
        batch = self.gathering.gather(lane)
        return None if batch is None else self.handle(batch)

    def handle(self, batch: Batch) -> list[Lane]:
        """Run the handler; returns the lanes that have a result. The others are queued again, to
        run alone."""
        begin = time.monotonic()
        first, messages = batch.lanes[0], len(batch)
        ends = {lane: lane.place + lane.width for lane in batch.lanes}
        try:
            if batch.is_single and (batch.handler.batch is None or first.row.odd is not None):
                self._caller.handle(first)
            else:
                self._together(batch)
        except BaseException as error:  # a bug of ours, outside the handler
            self._shared.log.error("a batch ended by an error round its handler", exc_info=error)
            self._end(batch.lanes, fault(error))
        ended = [lane for lane in batch.lanes if lane.result is not None]
        again = [lane for lane in batch.lanes if lane.result is None]
        seconds = (now := time.monotonic()) - begin
        if seconds > self._setup.settings.heartbeat_seconds:
            self._shared.in_flight.ran_long.extend((lane.row, begin, now) for lane in batch.lanes)
        self._lanes.took(seconds / len(batch.lanes), len(batch.lanes))
        size = self.gathering.size(batch.handler)
        if again:
            size.failed()
        else:
            size.took(messages, seconds)
        for lane in ended:
            lane.finished_at, lane.started_at, lane.ran_seconds = now, begin, seconds / messages
        for lane in again:  # without its messages behind the batch, which are claimed again later
            lane.rows = lane.rows[: ends[lane]]
            lane.alone, lane.width, lane.verdict = True, 1, None
        if again:
            self._lanes.put(again, takes_one=True)
        return ended

    def _together(self, batch: Batch) -> None:
        shared, lanes, handler = self._shared, batch.lanes, batch.handler
        first, now = lanes[0], time.monotonic()
        until = None if handler.timeout is None else now + handler.timeout
        fatal = handler.timeout_action == "restart"
        running = Execution(first.row, first.owner, now, until, fatal, first.slice_value)
        running.beside = [(lane.row, lane.slice_value) for lane in lanes[1:]]
        running.several = not batch.is_single
        rows, spans = dict[Lane, list[Row]](), self._caller.spans
        if spans is not None:
            rows = {lane: lane.taken() for lane in lanes}
            running.tried = Try([row for some in rows.values() for row in some])
        ident = threading.get_ident()
        shared.in_flight.running[ident] = running
        try:
            # Checked after it is in `running`, see `Caller.handle`.
            if not shared.identity.is_ours(first.owner):
                raise LostClaim(first.row.msg_id, first.owner)
            taken = [one for lane in lanes if (one := self._take(lane, handler))]
            if until is not None:  # reading the payloads may have taken long
                running.until = time.monotonic() + (until - now)
            if taken:
                self._started(taken)
                self._run(taken, handler, running)
        except (LostClaim, NotRead):
            self._end(lanes, RELEASED)
        except OutOfDate:
            self._drop_lost(lanes, handler)
        except _OfHandler as raised:
            self._raised(raised.error, batch, running)
        except BaseException as error:  # the thread survives any exception
            self._raised(error, batch, running)
        finally:
            shared.in_flight.running.pop(ident, None)
            self._caller.budget.give_back()
        if spans is not None:
            spans.end_batch(running, rows)

    def _take(self, lane: Lane, handler: Handler) -> Taken | None:
        """The messages of a lane, up to the first that cannot be read. None if that is the flagged
        one, or if that is cancelled; then the lane has its result."""
        messages: list[Message[Any]] = []
        if self._is_cancelled(lane):
            return None
        for number, row in enumerate(lane.taken()):
            try:
                if row.flaw is not None:
                    row = self._caller.loaded(row, lane.owner)
                    if self._setup.registry.has_follow_ups:
                        lane.keep(row, number)
                messages.append(self._caller.message_of(row, topic_of(row.topic), handler))
            except PayloadError as error:
                if not messages:
                    lane.width = 1
                    lane.result = self._caller.outcomes.of_error(error, handler, row)
                    return None
                break
        lane.width = len(messages)
        return Taken(lane, messages)

    def _is_cancelled(self, lane: Lane) -> bool:
        """Whether an operator has cancelled its flagged message; if so, sets its result."""
        in_flight = self._shared.in_flight
        if not in_flight.cancels or (request := in_flight.request_for(lane.row)) is None:
            return False
        lane.width, lane.verdict, lane.result = 1, None, cancelled(request)
        return True

    def _started(self, taken: list[Taken]) -> None:
        if self._setup.events.wants(Started):
            for one in taken:
                for row in one.lane.taken():
                    self._setup.events.emit(Started(one.lane.owner, row))

    def _run(self, taken: list[Taken], handler: Handler, running: Execution) -> None:
        if handler.transactional:
            for _ in range(FAIL_ROUNDS):
                try:
                    self._in_transaction(taken, handler, running)
                    return
                except Failed as failed:
                    before = sum(len(one.messages) for one in taken)
                    taken = self._without(taken, failed.by_id, handler)
                    self._log_failed(failed, before, taken)
                if not taken:
                    return
            why = f"the handler named further ones in each of {FAIL_ROUNDS} calls"
            self._log_fall_back([one.lane for one in taken], handler, why)
            return
        failures = self._call(taken, handler, running, None)
        self._check_time(handler, running)
        for one in self._without(taken, failures, handler):
            one.lane.result = one.done()

    def _log_failed(self, failed: Failed, before: int, taken: list[Taken]) -> None:
        """Log that the others are called again."""
        again = sum(len(one.messages) for one in taken)
        if again:
            ids = list(failed.by_id)
            which = f"message {ids[0]}" if len(ids) == 1 else f"messages {few(ids)}"
            text = "%s failed; rolled back, %d of %d messages are called again (%d wait behind)"
            what = (which, again, before, before - again - len(ids))
            self._shared.log.info(text, *what)

    def _raised(self, error: BaseException, batch: Batch, running: Execution) -> None:
        """After an exception: a single message gets its result; otherwise all lanes without a
        result run alone."""
        outcomes, handler, error = self._caller.outcomes, batch.handler, carried(error)
        returned = error.result if type(error) is NotDone else None
        if returned is None and outcomes.is_of_a_stop(error, stopped=running.stopped):
            self._end(batch.lanes, RELEASED)
            return
        open_lanes = [lane for lane in batch.lanes if lane.result is None]
        left = [lane for lane in open_lanes if not self._is_cancelled(lane)]
        if batch.is_single and not left:
            return
        if len(left) == 1 and batch.is_single:
            row = left[0].row
            result = returned or outcomes.raised(error, handler, row)
            since, until = running.since, running.until
            result = outcomes.late(result, handler, row, since=since, until=until)
            left[0].result = outcomes.written(result, handler, row)
            return
        if returned is not None:
            why, raised = returned.error or "", returned.raised
        else:
            home, raised = home_of(handler.fn), error
            trim(error, home)
            why = describe(error, home)
        which = "" if running.called is None else f"message {running.called}: "
        self._log_fall_back(
            left or batch.lanes, handler, which + without(why, outcomes.secrets), raised
        )

    def _log_fall_back(
        self, lanes: list[Lane], handler: Handler, why: str, raised: BaseException | None = None
    ) -> None:
        """Emit an event and log that these lanes run alone. The first line of each handler is a
        warning: if every batch falls back, nothing else shows it."""
        known, level = "alone" in handler.warned, logging.INFO
        if not known:
            handler.warned.append("alone")
            level = logging.WARNING
        done = "were rolled back" if handler.transactional else "have no outcome"
        rows = [row for lane in lanes for row in lane.taken()]
        text = "%d messages of topic %s %s (%s); each runs alone: %s"
        if not known:
            text += " (further ones of this handler are logged as INFO)"
        what = (len(rows), handler.topic, done, why, few([row.msg_id for row in rows]))
        extra = {"topic": handler.topic, "event": Said.BATCH_ALONE}
        self._shared.log.log(level, text, *what, exc_info=raised, extra=extra)
        self._setup.events.emit(FellBack(lanes[0].owner, rows, why, raised))

    @staticmethod
    def _end(lanes: list[Lane], result: Result) -> None:
        """Give each lane without a result this one, for its flagged message."""
        for lane in lanes:
            if lane.result is None:
                lane.width, lane.verdict, lane.result = 1, None, replace(result)

    def _drop_lost(self, lanes: list[Lane], handler: Handler) -> None:
        """After a rollback because flagged rows were not found: release the lanes whose flag is
        gone; the others run alone. A single message that still has its flag was only invisible to
        the session of its handler: its try fails."""
        heads = [lane.row.msg_id for lane in lanes]
        try:
            with self._caller.transacting.beside() as conn:
                mine = done.look(conn, self._setup.tables, heads, me=lanes[0].owner)
        except Exception as error:  # each lane finds out when it runs alone
            self._shared.log.info("a batch was rolled back: %s", reason_of(error))
            return
        self._end([lane for lane in lanes if lane.row.msg_id not in mine], RELEASED)
        first = lanes[0]
        if len(lanes) == 1 and first.width == 1 and first.result is None:
            lost = LostClaim(first.row.msg_id, first.owner)
            first.result = self._caller.outcomes.of_error(lost, handler, first.row)

    # ------------------------------------------------------------ transactional

    def _in_transaction(self, taken: list[Taken], handler: Handler, running: Execution) -> None:
        """Call the handler and settle the lanes in one transaction.

        Raises what the handler raises; Failed, OutOfDate or LostClaim: then nothing is committed,
        except that with LostClaim this may be unknown. If an operator has cancelled a message of
        the batch, nothing is committed, and only that message has a result.
        """
        first = taken[0].lane
        in_doubt = False

        def once(stage: TransactionProgress) -> None:
            self._once(taken, handler, running, stage)

        def was_committed() -> bool:
            nonlocal in_doubt
            in_doubt = True
            found = self._was_committed(taken)
            in_doubt = False
            return found

        try:
            self._caller.transacting.until_committed(first.row, first.owner, once, was_committed)
        except Cancelled:
            return
        except Exception as error:
            if in_doubt:  # it may be committed: nothing of it may start again
                raise LostClaim(first.row.msg_id, first.owner) from error
            raise
        for one in taken:
            one.lane.result = DONE

    def _once(
        self, taken: list[Taken], handler: Handler, running: Execution, stage: TransactionProgress
    ) -> None:
        for one in taken:  # what it has sent in a call that was rolled back
            one.sends = []
        with self._caller.opened(handler, taken[0].lane.owner) as (given, conn, run):
            run(self._refuse_lost, taken)
            try:
                with lent(conn, stage, "the handler"):
                    failures = self._call(taken, handler, running, given)
            except HandlerMisuse as error:
                if not stage.ended:
                    raise
                # The handler may have committed: a call for each message would write that again.
                raise _all_failed(taken, error) from error
            if failures:
                raise Failed(failures)
            self._check_time(handler, running)
            if any([self._is_cancelled(one.lane) for one in taken]):
                raise Cancelled
            with or_cut(stage, conn, [one.lane for one in taken]):
                flagged = run(self._settle, taken)
            stage.led = led_elsewhere(conn)
            stage.committing = True
        for one in taken:
            went_on = one.lane.next_id in flagged
            one.lane.settled = Settled.ADVANCED if went_on else Settled.ENDED
        if stage.led is not None and not self._was_committed(taken):
            # What the handler wrote is committed, the outcome is not.
            for one in taken:
                one.lane.settled = None
            why = misled("the handler", stage.led)
            raise _all_failed(taken, why) from why

    def _refuse_lost(self, conn: Connection, taken: list[Taken]) -> None:
        """Raise OutOfDate if our lease was lost since the claim and others may have taken some of
        the messages."""
        if taken[0].lane.owner == self._shared.identity.id:
            return
        tries = {one.lane.row.msg_id: one.lane.row.tries for one in taken}
        found = recover.still_flagged(conn, self._setup.tables, tries)
        if not set(tries) <= set(found.free):
            raise OutOfDate

    def _settle(self, conn: Connection, taken: list[Taken]) -> set[int]:
        """Write the outcome; returns the next messages that are flagged now."""
        shares = list[store.Share]()
        for one in taken:
            lane = one.lane
            self._caller.before_settle(lane)
            ahead = settlement(lane, self._setup, self._shared).next_id
            failed = lane.next_row if lane.verdict is not None else None
            # Even if its topic is paused, or at a stop: its handler has run, and only the failure
            # is to be written.
            if failed is not None and not self._shared.controls.needs_permit(failed):
                ahead = failed.msg_id
            followers = [message.msg_id for message in one.messages[1:]]
            shares.append(store.Share(lane.row.msg_id, followers, ahead))
        first = taken[0].lane
        tables, tries = self._setup.tables, first.row.tries
        try:
            flagged = store.settle_batch(
                conn,
                tables,
                shares,
                me=first.owner,
                tries=tries,
                deletes=self._setup.registry.deletes_done(first.row),
            )
        except OutOfDate:
            misuse = missed(conn, "the handler")
            if misuse is None:
                raise
            raise misuse from None
        sends = list[Outgoing]()
        if self._setup.registry.has_follow_ups:
            registry = self._setup.registry
            for row in [row for one in taken for row in one.lane.taken()]:
                sends += follow_ups(registry, tables, row, Outcome.DONE, None)
        sends += [sent for one in taken for sent in one.sends]
        if sends:
            send_all(conn, tables, sends)
            notify(conn, self._setup.channel)
        return flagged

    def _was_committed(self, taken: list[Taken]) -> bool:
        """Whether the rows show that the COMMIT arrived; if so, sets `lane.settled`. A batch is
        committed as a whole or not at all."""
        lanes = {one.lane.row.msg_id: one.lane for one in taken}
        with self._caller.transacting.beside() as conn:
            became = what_became(conn, self._setup.tables, lanes, taken[0].lane.owner)
        if len(became) < len(lanes):
            return False
        for msg_id, lane in lanes.items():
            lane.settled = became[msg_id]
        return True

    # ------------------------------------------------------------ the handler

    def _call(
        self, taken: list[Taken], handler: Handler, running: Execution, conn: Any
    ) -> Failures:
        """Call the handler; returns the failures that it has named. Raises whatever it raises.
        conn: a Connection, of an async handler an AsyncConnection; None without a transaction."""
        owner, attempt = taken[0].lane.owner, taken[0].lane.row.tries + 1
        messages = [message for one in taken for message in one.messages]
        if handler.batch is None:
            self._call_each(taken, messages, owner, handler, running, conn)
            return {}
        on_loop = handler.is_async and conn is not None
        kind = AsyncBatchContext if on_loop else BatchContext
        context = kind(messages, owner, attempt, running, conn, self._setup)
        try:
            try:
                arguments = (messages, context) if handler.takes_context else (messages,)
                value = self._of_handler(handler, running, *arguments)
            finally:
                sent = context._ended_with()
                if on_loop:  # all of it, with the one outcome of all
                    taken[0].sends = [one for of_one in sent.values() for one in of_one]
                else:
                    Taken.share_out(sent, taken)
            result = self._caller.outcomes.returned(value, handler, attempt)
            if result is not DONE:
                raise NotDone(result)
            failures = context._counted()
            if not failures:
                self._caller.flush(context, conn)
            return failures
        finally:
            context._sent()  # the next batch has this connection

    def _of_handler(self, handler: Handler, running: Execution, *arguments: Any) -> Any:
        try:
            return self._caller.call(handler, running, *arguments)
        except LostClaim as error:
            raise _OfHandler(error) from error

    def _call_each(
        self,
        taken: list[Taken],
        messages: list[Message[Any]],
        owner: str,
        handler: Handler,
        running: Execution,
        conn: Any,
    ) -> None:
        """Call the handler of a group once for each message; its timeout is for one call."""
        for message in messages:
            running.called, running.since = message.msg_id, time.monotonic()
            if handler.timeout is not None:
                running.until = running.since + handler.timeout
            context = (
                AsyncContext(message, owner, 1, running, conn, self._setup)
                if handler.is_async
                else Context(message, owner, 1, running, conn, setup=self._setup)
            )
            arguments = (message, context) if handler.takes_context else (message,)
            try:
                value = self._of_handler(handler, running, *arguments)
                result = self._caller.outcomes.returned(value, handler, 1)
                if result is not DONE:
                    raise NotDone(result)
                self._caller.flush(context, conn)
            finally:
                sent = context._sent()
            if handler.is_async:
                taken[0].sends += [one for _, one in sent or ()]
            self._check_time(handler, running)
        running.called = None

    def _check_time(self, handler: Handler, running: Execution) -> None:
        if running.until is not None and time.monotonic() > running.until:
            took = time.monotonic() - running.since
            text = f"timeout: the handler took {took:.1f} s, its limit is {handler.timeout:g} s"
            raise HandlerTimeout(text)

    def _without(self, taken: list[Taken], failures: Failures, handler: Handler) -> list[Taken]:
        """What was taken, of each lane up to its first message that failed. If that is the flagged
        one, or an operator cancels that, the lane gets its result; if it is one behind, it gets the
        flag next, and its result is kept in `Lane.verdict`."""
        kept: list[Taken] = []
        for one in taken:
            if self._is_cancelled(one.lane):
                continue
            lane, ids = one.lane, [message.msg_id for message in one.messages]
            place = next((i for i, msg_id in enumerate(ids) if msg_id in failures), None)
            if place is None:
                kept.append(one)
                continue
            row = Row(*lane.rows[lane.place + place])
            result = self._caller.outcomes.of_error(failures[ids[place]], handler, row)
            if place == 0:
                lane.result, lane.width, lane.verdict = result, 1, None
            else:
                lane.width, lane.verdict = place, result
                kept.append(Taken(lane, one.messages[:place]))
        return kept
