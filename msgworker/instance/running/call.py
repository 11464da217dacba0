"""Call the handler of a lane's current message, in a transaction or not, and judge its outcome."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import datetime
from functools import partial
from typing import Any

from sqlalchemy import Connection

from msgworker.db.clock import kind_of, read_instant
from msgworker.db.connections import led_elsewhere, reaching
from msgworker.db.database import Trouble
from msgworker.db.errors import trouble
from msgworker.errors import HandlerMisuse, HandlerTimeout, LostClaim
from msgworker.events import Started
from msgworker.instance import connections
from msgworker.instance.fan_out.executors import LEFT_BEHIND
from msgworker.instance.fan_out.fan_out import FanOuts
from msgworker.instance.observers import facts
from msgworker.instance.running import on_loop, transactions
from msgworker.instance.running.context import Context
from msgworker.instance.running.handler import Handler
from msgworker.instance.running.in_flight import Execution, Lane
from msgworker.instance.running.outcome import DONE, Result, cancelled, payload_of
from msgworker.instance.running.spans import HandlerSpans
from msgworker.instance.settling.writer import settlement, what_became
from msgworker.instance.state import Setup, Shared
from msgworker.message import DEFAULT_TOPIC, Message, Outcome, Outgoing, Settled, filled, topic_of
from msgworker.payload import decode, quoted
from msgworker.store import done, recover, schedules
from msgworker.store import settle as store
from msgworker.store.rows import Row, with_payload
from msgworker.store.send import notify
from msgworker.tracing import Tracer

# --- Run the handler of a lane's current message and return its outcome.
#
# A plain handler runs with no transaction of ours open. A transactional one runs inside the
# transaction that settles its message: its writes and the outcome commit together or not at all.

BUDGET_PAUSE_SECONDS = 0.2


class NotDone(Exception):
    """Raised to roll back a handler that has another result than DONE."""

    def __init__(self, result: Result) -> None:
        super().__init__(result.error)
        self.result = result


class PayloadBudget:
    """Limits the bytes of long payloads that the handler threads of an instance hold. A thread that
    holds some takes more without waiting, so that threads cannot deadlock."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: dict[int, int] = {}
        self._freed = threading.Condition()

    def take(self, size: int, gives_up: Callable[[], bool]) -> bool:
        """Wait until `size` bytes are free, or no thread holds any; False once `gives_up()`."""
        me = threading.get_ident()
        with self._freed:
            while (
                self._held and me not in self._held and sum(self._held.values()) + size > self._most
            ):
                if gives_up():
                    return False
                self._freed.wait(BUDGET_PAUSE_SECONDS)
            self._held[me] = self._held.get(me, 0) + size
        return True

    def give_back(self) -> None:
        """Return all that this thread holds."""
        if self._held:
            with self._freed:
                if self._held.pop(threading.get_ident(), None) is not None:
                    self._freed.notify_all()


class NotRead(Exception):
    """The payload could not be read now: the message is released."""


class OnLoop:
    """An async handler that runs in its event loop. ident: of its handler thread, which does not
    wait for it alone. given: what the handler gets besides its message. call: the coroutine to
    await. found, error: what that has returned or raised."""

    __slots__ = ("call", "error", "found", "given", "handler", "ident", "lane", "running")

    def __init__(self, lane: Lane, handler: Handler, running: Execution, ident: int) -> None:
        self.lane = lane
        self.handler = handler
        self.running = running
        self.ident = ident
        self.given: tuple[Context, FanOuts] | None = None
        self.call: Any = None
        self.found: Any = on_loop.CANCELLED_BY_OTHERS
        self.error: BaseException | None = None

    @property
    def cancelled(self) -> bool:
        """Whether other code has cancelled it; also while it runs."""
        return self.error is None and self.found is on_loop.CANCELLED_BY_OTHERS

    def may_block(self) -> bool:
        """It has ended; whether to judge how may take long: other code has cancelled it, or it has
        left a fan-out in a thread."""
        return self.cancelled or (self.given is not None and self.given[1].end())


def _leave(given: tuple[Context, FanOuts] | None) -> None:
    """A plain handler has ended: from now on it sends nothing, and runs no items."""
    if given is not None:
        given[0]._sent()
        given[1].close()


class Caller:
    """Calls handlers for the threads of one instance.

    before_settle: called in the transaction of a transactional handler, after the handler; for
    tests.
    """

    def __init__(self, setup: Setup, shared: Shared) -> None:
        self._setup = setup
        self._shared = shared
        self._identity, self._in_flight = shared.identity, shared.in_flight
        self.before_settle: Callable[[Lane], None] = lambda lane: None
        self._pid = setup.pid
        self._loop = on_loop.AsyncCalls(self._pid, setup.loop, shared.stop)
        self.while_there = self._loop.while_there
        self._loop_transactions = transactions.LoopTransactions(setup, shared, self._loop)
        self.budget = PayloadBudget(setup.settings.payload_budget)
        self.outcomes = shared.outcomes
        self.spans = HandlerSpans(setup.tracer) if isinstance(setup.tracer, Tracer) else None
        self.transacting = transactions.Transacting(setup, shared)
        self._logged_odd_instant = False
        has_ticks = setup.tables.has("scheduled_for")
        self._tick_of = self._read_tick if has_ticks else None

    def handle(self, lane: Lane, loaded: Row | None = None) -> None:
        """Run the current message of a lane; leaves the outcome in `lane.result`. loaded: its row
        with the payload, where that was not read ahead."""
        row = lane.row if loaded is None else loaded
        if row.flaw is not None and loaded is None:
            self._handle_flawed(lane)
            return
        ident = threading.get_ident()
        if (begun := self._begun(lane, row, ident)) is None:
            return
        topic, handler, running = begun
        try:
            msg = self.message_of(row, topic, handler)
            if handler.transactional:
                result = self._transactional(lane, msg, handler, running)
            else:
                result = self._plain(lane, msg, handler, running)
        except NotDone as undone:
            result = undone.result
        except BaseException as error:  # the thread survives any exception
            result = self.outcomes.raised(error, handler, row, stopped=running.interrupted)
        finally:
            self._in_flight.running.pop(ident, None)
        self._ended(lane, row, handler, running, result)
        del result  # the frames of its error hold this one

    def _begun(self, lane: Lane, row: Row, ident: int) -> tuple[str, Handler, Execution] | None:
        """The handler of a message, which runs from now on; None = it may not, the lane has its
        result. ident: of the handler thread."""
        setup = self._setup
        topic = DEFAULT_TOPIC if row.topic is None else row.topic
        handler = setup.registry.get(topic)
        if handler is None:  # unregistered meanwhile: release it
            lane.result = Result(Outcome.RELEASED)
            return None
        now = time.monotonic()
        until = None if handler.timeout is None else now + handler.timeout
        fatal = handler.timeout_action == "restart"
        claimed = lane.row  # requests to cancel name this very object
        running = Execution(claimed, lane.owner, now, until, fatal, lane.slice_value)
        in_flight = self._in_flight
        in_flight.running[ident] = running
        # Checked after the handler is in `running`: the fetcher's thread claims no object that is
        # in it. If our id was lost before that, the message may be claimed again, even by us.
        if not self._identity.is_ours(lane.owner):
            in_flight.running.pop(ident, None)
            lane.result = Result(Outcome.RELEASED)
            return None
        # Also after it is in `running`: the housekeeper's thread writes `cancels` first and then
        # cancels what is in `running`, so that one of the two threads sees the other.
        if in_flight.cancels and (request := in_flight.request_for(claimed)) is not None:
            in_flight.running.pop(ident, None)
            lane.result = cancelled(request)
            return None
        if setup.events.wants(Started):
            setup.events.emit(Started(lane.owner, row))
        return topic, handler, running

    def _ended(
        self, lane: Lane, row: Row, handler: Handler, running: Execution, result: Result
    ) -> None:
        """The handler has ended: leave the outcome in the lane."""
        in_flight = self._in_flight
        if lane.settled is not None:
            result = DONE
        elif in_flight.cancels and (request := in_flight.request_for(lane.row)) is not None:
            result = cancelled(request)
        elif running.until is not None or result is not DONE or running.cut_short is not None:
            if running.cut_short is not None:
                result = self._cut_short(result, handler, row, running.cut_short)
            since, until = running.since, running.until
            result = self.outcomes.late(result, handler, row, since=since, until=until)
            result = self.outcomes.written(result, handler, row)
        lane.result = result
        if self.spans is not None:
            self.spans.end(running, result)

    def _cut_short(
        self, result: Result, handler: Handler, row: Row, kind: type[Exception]
    ) -> Result:
        """The result of a handler of which we have ended a fan-out early: not done, whatever it
        has made of the error. kind: of that error."""
        is_done = result.outcome is Outcome.DONE
        if issubclass(kind, HandlerMisuse):
            left = HandlerMisuse(LEFT_BEHIND)
            return self.outcomes.raised(left, handler, row) if is_done else result
        if result.outcome is Outcome.DEAD:
            return result
        if is_done:
            text = "message %s: its fan-out was ended early, and its handler returned; released"
            self._shared.log.warning(text, row.msg_id, extra=facts(row))
        return Result(Outcome.RELEASED)

    # ------------------------------------------------------------ in the event loop

    def suits_loop(self, lane: Lane) -> bool:
        """Whether its handler can be begun and judged in the event loop, where nothing may block:
        an async one with no transaction or batch, of a message that is read. Listeners may
        block."""
        row = lane.row
        if row.flaw is not None or lane.result is not None or self._setup.events.wants(Started):
            return False
        if self.spans is not None:  # a span is that of a thread
            return False
        handler = self._setup.registry.get(DEFAULT_TOPIC if row.topic is None else row.topic)
        return handler is not None and handler.suits_loop

    def begin_on_loop(self, lane: Lane, ident: int) -> OnLoop | None:
        """Begin the handler of a lane in its event loop; None = the lane has its result. ident: of
        the handler thread."""
        if (begun := self._begun(lane, lane.row, ident)) is None:
            return None
        topic, handler, running = begun
        one = OnLoop(lane, handler, running, ident)
        try:
            msg = self.message_of(lane.row, topic, handler)
            arguments: tuple[Any, ...] = (msg,)
            if handler.takes_context:
                one.given = self._given(lane, msg, running)
                arguments = (msg, one.given[0])
            one.call = self._loop.limited(handler.fn(*arguments), handler.timeout, running)
        except BaseException as error:
            one.error = error
            self.end_on_loop(one)
            return None
        return one

    def end_on_loop(self, one: OnLoop) -> None:
        """Leave the outcome of a handler in its lane."""
        lane, handler, running, error = one.lane, one.handler, one.running, one.error
        try:
            if error is None:
                found = self._loop.value_of(one.found, running)
                result = self._returned(found, handler, lane, one.given)
        except BaseException as raised:
            error = raised
        finally:
            _leave(one.given)
            self._in_flight.running.pop(one.ident, None)
        if error is not None:
            if issubclass(type(error), RuntimeError):
                on_loop.say_which_loop(error)
            result = self.outcomes.raised(error, handler, lane.row, stopped=running.interrupted)
        one.error = None  # whose frames hold `one`
        self._ended(lane, lane.row, handler, running, result)

    # ------------------------------------------------------------ messages

    def _handle_flawed(self, lane: Lane) -> None:
        """A row that cannot be handled, or whose payload is still to be read."""
        setup, row = self._setup, lane.row
        if row.odd is not None:
            lane.result = Result(Outcome.DEAD, f"the row cannot be read: {row.odd}")
            if self.spans is not None:
                self.spans.uncalled(row, lane.owner, lane.result)
            return
        if setup.registry.get(topic_of(row.topic)) is None:
            lane.result = Result(Outcome.RELEASED)
            return
        try:  # it may wait, so it comes before `running` and before the check of our lease
            row = self.loaded(row, lane.owner)
            if setup.registry.has_follow_ups:  # its payload is sent with its outcome
                lane.keep(row)
            self.handle(lane, row)
        except NotRead:
            lane.result = Result(Outcome.RELEASED)
        finally:
            self.budget.give_back()

    def loaded(self, row: Row, owner: str) -> Row:
        """The row with its payload, if that was not read ahead; it counts for the budget until the
        handler ends. owner: the id that claimed it. Raises NotRead."""
        setup, shared, length = self._setup, self._shared, row.oversize
        if length is None or length > setup.tables.spec.max_payload:
            return row
        if not self.budget.take(length, shared.stop.requested.is_set):
            raise NotRead
        try:
            with self._reading() as conn:
                found = with_payload(conn, setup.tables, row)
        except Exception as error:
            if trouble(error) in (Trouble.AGAIN, Trouble.LOST):
                raise NotRead from error
            raise
        # By now the message may be recovered by another instance, or deleted.
        if found is None or not (self._identity.trusted() and self._identity.is_ours(owner)):
            raise NotRead
        return found

    def message_of(self, row: Row, topic: str, handler: Handler) -> Message[Any]:
        """The row as its handler sees it. Raises PayloadError."""
        return filled(
            row.msg_id,
            row.object_id,
            topic,
            payload_of(row.payload, None if row.flaw is None else row.oversize, handler)
            if handler.payload_type is not None or row.flaw is not None
            else decode(row.payload),
            row.tries,
            None if row.created_at is None else partial(self._created_at, row),
            self._setup.tables.spec.name,
            self._tick_of,
        )

    def _read_tick(self, msg_id: int) -> datetime | None:
        with self._reading() as conn:
            return schedules.tick_of(conn, self._setup.tables, msg_id)

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        connector = self._shared.connector
        with reaching(self._setup.engine), connector.once() as link, link.statement() as conn:
            yield conn

    def _created_at(self, row: Row) -> datetime | None:
        try:
            return read_instant(row.created_at, kind_of(self._setup.tables.cols().created_at).zone)
        except ValueError:
            if not self._logged_odd_instant:
                self._logged_odd_instant = True
                column = self._setup.tables.names["created_at"]
                text = (
                    "message %s: %s holds %s, not an instant; its handler gets None (logged once)"
                )
                value = quoted(row.created_at)
                self._shared.log.warning(text, row.msg_id, column, value, extra=facts(row))
            return None

    def close(self) -> None:
        """Return the threads' connections; the threads must have ended."""
        self._shared.connector.close_spare()
        self._loop.close(self._loop_transactions.close)

    def call(self, handler: Handler, running: Execution, *arguments: Any) -> Any:
        """Call the function of a handler."""
        if self.spans is None and not handler.is_async:
            return connections.call_user(self._pid, handler.fn, *arguments)
        with nullcontext() if self.spans is None else self.spans.call(handler, running, arguments):
            if not handler.is_async:
                return connections.call_user(self._pid, handler.fn, *arguments)
            try:
                return self._loop.run(handler.fn(*arguments), handler.timeout, running)
            finally:
                connections.end_if_forked(self._pid)

    def _plain(self, lane: Lane, msg: Message[Any], handler: Handler, running: Execution) -> Result:
        if not handler.takes_context:
            return self._returned(self.call(handler, running, msg), handler, lane, None)
        given = self._given(lane, msg, running)
        try:
            value = self.call(handler, running, msg, given[0])
            return self._returned(value, handler, lane, given)
        finally:
            _leave(given)

    def _given(self, lane: Lane, msg: Message[Any], running: Execution) -> tuple[Context, FanOuts]:
        """What a plain handler gets besides its message."""
        fans = FanOuts(self._setup, self._shared, running, self.outcomes.secrets)
        attempt = lane.row.tries + 1
        return Context(msg, lane.owner, attempt, running, fans=fans, setup=self._setup), fans

    def _returned(
        self, value: Any, handler: Handler, lane: Lane, given: tuple[Context, FanOuts] | None
    ) -> Result:
        """The outcome of a plain handler that has returned, with what it has sent."""
        sent = None if given is None else given[0]._sent()
        has_items = given is not None and handler.when_done == "delete" and given[1].begun
        if value is not None:
            result = self.outcomes.returned(value, handler, lane.row.tries + 1)
            if result is not DONE:
                return result
        if sent or has_items:
            sends = tuple(each for _, each in sent or ())
            return Result(Outcome.DONE, sends=sends, has_items=has_items)
        return DONE

    # ------------------------------------------------------------ transactional

    def _transactional(
        self, lane: Lane, msg: Message[Any], handler: Handler, running: Execution
    ) -> Result:
        """Handler and outcome in one transaction."""
        once = partial(self._in_one_transaction, lane, msg, handler, running)
        self.transacting.until_committed(
            lane.row, lane.owner, once, partial(self._was_committed, lane)
        )
        return DONE

    def _in_one_transaction(
        self,
        lane: Lane,
        msg: Message[Any],
        handler: Handler,
        running: Execution,
        stage: connections.TransactionProgress,
    ) -> None:
        with self.opened(handler, lane.owner) as (given, conn, run):
            run(self._refuse_lost, lane)
            self._refuse_cancelled(lane)  # it may run again, after a rollback by the database
            kind = transactions.AsyncContext if handler.is_async else Context
            context = kind(msg, lane.owner, lane.row.tries + 1, running, given, setup=self._setup)
            with connections.lent(conn, stage, "the handler"):
                arguments = (msg, context) if handler.takes_context else (msg,)
                try:
                    value = self.call(handler, running, *arguments)
                    result = self.outcomes.returned(value, handler, lane.row.tries + 1)
                    self.flush(context, given)
                finally:
                    sent = context._sent()  # the next message has this connection
            self._refuse_undone(result, lane, handler, running)
            with transactions.or_cut(stage, conn, [lane]):
                became = run(self._settle, lane, stage, sent)
            stage.led = led_elsewhere(conn)
            stage.committing = True
        self._committed(lane, became, stage)

    def _refuse_undone(
        self, result: Result, lane: Lane, handler: Handler, running: Execution
    ) -> None:
        """Roll back unless the handler has returned in time, with nothing but "done"."""
        if result is not DONE:
            raise NotDone(result)
        if running.until is not None and time.monotonic() > running.until:
            raise HandlerTimeout(f"timeout: its limit is {handler.timeout:g} s; rolled back")
        self._refuse_cancelled(lane)

    def _committed(
        self, lane: Lane, became: Settled, stage: connections.TransactionProgress
    ) -> None:
        lane.settled = became
        if stage.led is not None and not self._was_committed(lane):
            lane.settled = None
            raise connections.misled("the handler", stage.led)

    @contextmanager
    def opened(
        self, handler: Handler, owner: str
    ) -> Iterator[tuple[Any, Connection, Callable[..., Any]]]:
        """A transaction that runs a handler: the connection that the handler gets, the Connection
        that this is or has behind it, and how to call a function with that, which may send
        statements. owner: the id that claimed the message."""
        if handler.is_async:
            with self._loop_transactions.transaction(owner) as given:
                yield given, transactions.behind(given), partial(self._loop_transactions.run, given)
            return
        link = self.transacting.link()
        with link.lock, link.transaction() as conn:
            yield conn, conn, lambda fn, *arguments: fn(conn, *arguments)

    def _refuse_lost(self, conn: Connection, lane: Lane) -> None:
        """Raise LostClaim if our lease was lost since the claim and others may have the message."""
        if lane.owner == self._shared.identity.id:
            return
        found = recover.still_flagged(conn, self._setup.tables, {lane.row.msg_id: lane.row.tries})
        if lane.row.msg_id not in found.free:
            raise LostClaim(lane.row.msg_id, lane.owner)

    def _refuse_cancelled(self, lane: Lane) -> None:
        """Roll back if an operator cancels the message."""
        in_flight = self._in_flight
        if in_flight.cancels and (request := in_flight.request_for(lane.row)) is not None:
            raise NotDone(cancelled(request))

    def flush(self, context: Context, given: Any) -> None:
        """Write what the session of a transactional handler holds. given: its connection."""
        session: Any = context._session
        if session is None:
            return
        if (inner := getattr(session, "sync_session", None)) is not None:
            self._loop_transactions.run(given, lambda _: (inner.commit(), inner.close()))
            return
        with context._sending:  # a thread may send meanwhile, by the same connection
            session.commit()  # its savepoint only
            session.close()

    def _settle(
        self,
        conn: Connection,
        lane: Lane,
        stage: connections.TransactionProgress,
        sent: Sequence[tuple[Any, Outgoing]] | None,
    ) -> Settled:
        """sent: by an async handler, whose messages are inserted with the outcome."""
        self.before_settle(lane)
        tables, me = self._setup.tables, lane.owner
        one = settlement(lane, self._setup, self._shared)
        if sent:
            one = one._replace(sends=(*[each for _, each in sent], *one.sends))
        stage.committing = True  # for those that settle and commit at once
        became = store.settle_at_once(conn, tables, one, me=me)
        if became is None:
            stage.committing = False
            became = store.settle_one(conn, tables, one, me=me)
        if became is Settled.LOST:
            why = connections.missed(conn, "the handler")
            if why is None:
                done.check_not_kept(conn, tables, lane.row.msg_id, me=me)
            raise why or LostClaim(lane.row.msg_id, lane.owner)
        if one.sends:
            notify(conn, self._setup.channel)
        return became

    def _was_committed(self, lane: Lane) -> bool:
        """Whether the rows show that the COMMIT arrived; if so, sets `lane.settled`."""
        with self.transacting.beside() as conn:
            became = what_became(conn, self._setup.tables, {lane.row.msg_id: lane}, lane.owner)
        if not became:
            return False
        lane.settled = became[lane.row.msg_id]
        return True
