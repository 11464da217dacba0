"""What a handler may use besides its message, or its messages, and the result of its fan-outs."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, Unpack

from sqlalchemy import Connection, Engine

from msgworker.db.connections import connecting
from msgworker.db.drivers import is_aborted
from msgworker.db.errors import follows
from msgworker.errors import ConfigError, HandlerMisuse, ItemsFailed
from msgworker.instance.running.traceback import came_from
from msgworker.logs import logger
from msgworker.message import Message, OnDuplicate, Outgoing, Uniqueness
from msgworker.payload import quoted
from msgworker.processlock import ProcessLock
from msgworker.producing import FromHandler, outgoing, refuse_topic
from msgworker.store import send as store
from msgworker.table.tables import Tables
from msgworker.tracing import NoTracer

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

# --- What an item of a fan-out sends: with its record.
#
# An item that is done does not run again when its message is tried again. So what it sends is
# committed with its record, or not at all: with the outcome of the message it would be lost in a
# failed try.

SENDING = ProcessLock()
"""Held for a moment by each call of ctx.send, and when its handler, or item, has returned. Those
that are transactional have a lock of their own, held while a call uses the connection."""
LATE = "ctx.send after %s has returned; call it before that, or use App.send"


class RunningItem:
    """The function of a fan-out, as it runs for one item. Pickled, it is the function alone:
    another process has no context to send with. running: the handler whose item it is. connection:
    of a transactional item. sent: what a plain one has sent in its last run."""

    def __init__(
        self, fn: Callable[..., Any], running: object, connection: Connection | None = None
    ) -> None:
        self._fn = fn
        self.running = running
        self.connection = connection
        self.sent: list[Outgoing] = []
        self.sending = SENDING if connection is None else threading.RLock()
        self._ended = False

    def __call__(self, *arguments: Any) -> Any:
        self.sent, self._ended = [], False
        before = ITEM.set(self)
        try:
            return self._fn(*arguments)
        finally:
            ITEM.reset(before)
            with self.sending:
                self._ended = True

    def __reduce__(self) -> tuple[Any, ...]:
        return partial, (self._fn,)

    def refuse_late(self) -> None:
        if self._ended:
            raise HandlerMisuse(LATE % "its item")


ITEM: ContextVar[RunningItem | None] = ContextVar("msgworker_item", default=None)
"""The item that this thread or task runs; None outside of items."""


# --- The result of a fan-out.


@dataclass(frozen=True, slots=True)
class FanOut:
    """The result of a fan-out.

    values: one per item, in the order of the items: the value of the item's function, decoded from
    JSON; None for an item that failed. failed: key -> error text of the first 10,000
    failed items; failed_count: all of them. total: items in all. done: items done, now or in
    earlier tries. ran: items run now. held_back: items not run because an earlier one in their
    `serial_by` order failed.
    """

    values: list[Any] = field(repr=False)
    failed: dict[Any, str]
    failed_count: int
    total: int
    done: int
    ran: int
    held_back: int = 0
    first_error: BaseException | None = field(default=None, repr=False, compare=False)

    def raise_for_failed(self) -> FanOut:
        """Return this result if every item is done, else raise ItemsFailed."""
        if self.failed_count:
            raise ItemsFailed(
                self.failed, count=self.failed_count, total=self.total, held_back=self.held_back
            ) from self.first_error
        return self


# --- What a handler may use besides its message.


class Cancellable(Protocol):
    """Where a context reads whether its handler should end."""

    cancelled: bool
    cancel_reason: str | None


class FansOut(Protocol):
    """Runs the items of a handler's message; see Context.fan_out."""

    @property
    def fan_out(self) -> Callable[..., FanOut]: ...
    @property
    def may_own_thread(self) -> bool: ...


class Sends(Protocol):
    """What Context.send needs of the instance: its tables, the channel to notify, its tracer."""

    @property
    def tables(self) -> Tables: ...
    @property
    def engine(self) -> Engine: ...
    @property
    def channel(self) -> str | None: ...
    @property
    def tracer(self) -> NoTracer: ...


_RETURNED: list[tuple[Any, Outgoing]] = []
"""Replaces `Context._sends` once the handler has returned."""


class Context:
    """The second argument of a handler, after its message.

    instance_id: the id of the instance that runs the handler. attempt: the number of this try,
    from 1. log: a logger whose records carry the message. cancelled: True once the worker stops,
    the lease is lost, the timeout is over or an operator cancels the message: a long handler checks
    it and ends. cancel_reason: the reason that the operator gave, else None.
    connection, session: only with transactional=True. Writes there commit together with the
    outcome, or not at all. A handler that commits, rolls back or closes them fails its try with
    HandlerMisuse; a COMMIT that it sends as SQL is not detected.
    """

    __slots__ = (
        *("_connection", "_fans", "_known_jobs", "_log", "_msg", "_running", "_sending", "_sends"),
        *("_session", "_setup", "attempt", "instance_id"),
    )

    def __init__(
        self,
        msg: Message[Any],
        instance_id: str,
        attempt: int,
        running: Cancellable,
        connection: Connection | None = None,
        fans: FansOut | None = None,
        setup: Sends | None = None,
    ) -> None:
        self.instance_id = instance_id
        self.attempt = attempt
        self._msg = msg
        self._running = running
        self._connection = connection
        self._fans = fans
        self._setup = setup
        self._sending = SENDING if connection is None else threading.RLock()
        self._sends: list[tuple[Any, Outgoing]] | None = None
        self._session: Session | None = None
        self._log: logging.LoggerAdapter[logging.Logger] | None = None

    @property
    def cancelled(self) -> bool:
        """Whether the handler should end."""
        return self._running.cancelled

    @property
    def cancel_reason(self) -> str | None:
        """The reason given by the operator who cancelled the message, else None. Whether the
        handler then returns or raises, the message is dead with this reason."""
        return self._running.cancel_reason

    @property
    def connection(self) -> Connection:
        """The SQLAlchemy connection in whose transaction the message is settled; in a batch or a
        group, all of them. Raises HandlerMisuse without transactional=True."""
        if self._connection is None:
            raise HandlerMisuse("ctx.connection is for handlers with transactional=True")
        return self._connection

    @property
    def session(self) -> Session:
        """An ORM session on `connection`; flushed, not committed, when the handler returns. Raises
        HandlerMisuse without transactional=True."""
        if self._session is None:
            from sqlalchemy.orm import Session

            self._session = Session(bind=self.connection, join_transaction_mode="create_savepoint")
        return self._session

    def send(
        self,
        topic: str,
        payload: Any = None,
        *,
        object_id: Any = None,
        delay: float | timedelta | None = None,
        at: datetime | None = None,
        priority: int | None = None,
        unique_key: str | None = None,
        unique: Uniqueness = "open",
        on_duplicate: OnDuplicate = "skip",
        job: bool = False,
    ) -> Any:
        """Send a message as a part of this message's outcome. The arguments are those of App.send;
        job=True sends it into the job of this message, if it belongs to one, sealed or not.

        In a transactional handler it is inserted at once, in the transaction of the outcome, and
        its msg_id is returned. In a plain handler it is inserted after the handler has returned, in
        the transaction that writes the message as done; None is returned. If the try fails, is
        postponed or loses its claim, nothing is sent, so that a retry sends nothing twice. Any
        thread of the handler may call it until the handler returns. See docs/guides/chains.md.

        In an item of a fan-out it is sent with the item's record, also if the message fails
        afterwards: at once with transactional_items=True, else when the record is written. An item
        that fails sends nothing, and one that is done does not run again. Threads that it starts,
        or the handler once a fan-out has begun, need a copy of its context.

        Raises what App.send raises for bad arguments; HandlerMisuse after the handler, or the item,
        has returned, in a thread without such a copy, and for on_duplicate="raise" in a plain one.
        """
        message = self._outgoing(
            topic,
            payload,
            object_id=object_id,
            delay=delay,
            at=at,
            priority=priority,
            unique_key=unique_key,
            unique=unique,
            on_duplicate=on_duplicate,
            job_id=self._job_of(self._msg.msg_id, job),
        )
        return self._send(message, self._msg.msg_id)

    def _outgoing(self, topic: str, *what: Any, **options: Any) -> Outgoing:
        """The message to send, checked."""
        assert self._setup is not None
        tables = self._setup.tables
        refuse_topic(tables, topic)
        with self._setup.tracer.sending(topic) as sending:
            message = outgoing(tables, topic, *what, **options)
            sending.carry((message.row,), tables.max_headers)
        return message

    def _job_of(self, msg_id: Any, job: Any) -> int | None:
        """The job of a message, if what is sent belongs to it, too."""
        if not isinstance(job, bool):
            raise ConfigError(
                f"ctx.send takes job=True, for the job of its message; got {job!r:.80}. What goes "
                "into another job is sent by App.send, in a transaction of yours"
            )
        if not job:
            return None
        assert self._setup is not None
        from msgworker.store import jobs  # each instance has it

        if not hasattr(self, "_known_jobs"):  # most handlers never ask for one
            self._known_jobs: dict[Any, int | None] = {}
        if msg_id not in (known := self._known_jobs):
            with self._in_time() as given:
                asked = connecting(self._setup.engine) if given is None else nullcontext(given)
                with asked as conn:
                    known[msg_id] = jobs.job_of(conn, self._setup.tables, msg_id)
        return known[msg_id]

    @property
    def _item(self) -> RunningItem | None:
        """The item of this handler that this thread or task runs."""
        item = ITEM.get()
        return item if item is not None and item.running is self._running else None

    @contextmanager
    def _in_time(self) -> Iterator[Connection | None]:
        """Of a transactional handler, or item, its connection, for this thread alone; else None.
        Raises HandlerMisuse once it has returned."""
        item = self._item
        conn = self._connection if item is None else item.connection
        lock = self._sending if item is None else item.sending
        with nullcontext() if conn is None else lock:
            (self._refuse_late if item is None else item.refuse_late)()
            yield conn

    def _send(self, message: Outgoing, of: Any) -> Any:
        """Send with the outcome of the message with the msg_id `of`, or with the item's record."""
        assert self._setup is not None
        item = self._item
        with self._in_time() as conn:
            if conn is not None:
                own = of if item is None else None
                msg_id = store.send_one(conn, self._setup.tables, message, own=own)
                store.notify(conn, self._setup.channel)
                return msg_id
        if message.on_duplicate == "raise":
            raise HandlerMisuse(
                'on_duplicate="raise" cannot raise in a plain handler, whose messages are sent '
                'when it has returned; use "skip" or "replace", or transactional=True, not async '
                "(transactional_items=True in an item of a fan-out)"
            )
        if item is not None:
            with item.sending:
                item.refuse_late()
                item.sent.append(message)  # for its record
            return None
        if self._fans is not None and self._fans.may_own_thread:
            raise HandlerMisuse(
                "ctx.send in a thread that an item of a fan-out may have started: start it in a "
                "copy of the context of that item, or of the handler, "
                "Thread(target=contextvars.copy_context().run, args=(fn,))"
            )
        with self._sending:
            self._refuse_late()
            if self._sends is None:
                self._sends = []
            self._sends.append((of, message))
        return None

    def _refuse_late(self) -> None:
        if self._sends is _RETURNED:
            raise HandlerMisuse(LATE % "the handler")

    def _sent(self) -> list[tuple[Any, Outgoing]] | None:
        """For the package, once the handler has returned: what it has sent, by `of` of `_send`."""
        with self._sending:
            sent, self._sends = self._sends, _RETURNED
        return sent

    def fail(self, message: Message[Any], error: Exception) -> None:
        """For handlers with batch=..., see BatchContext; raises HandlerMisuse."""
        raise HandlerMisuse(
            "ctx.fail is for handlers with batch=...; this one gets one message: raise the error"
        )

    def fan_out(
        self,
        fn: Callable[..., Any],
        items: Iterable[Any],
        *,
        key: Callable[[Any], Any] | None = None,
        threads: int | None = None,
        executor: Executor | None = None,
        timeout: float | None = None,
        serial_by: Callable[[Any], Any] | None = None,
        transactional_items: bool = False,
        name: str = "",
    ) -> FanOut:
        """Run `fn(item)` for every item in threads, and record each item that is done.

        Each item is recorded under its message and its key, so that a retry, another instance or a
        rerun runs only items that are not done. An item that fails does not stop the others; the
        message fails if you call `raise_for_failed()` on the result. The value of `fn` is stored:
        JSON of at most 8,000 characters, or None.

        key: from an item to a text (1 to 190 characters) or a whole number, unique; default: the
        item itself. threads: how many items run at once (5); with an executor, how many
        are submitted at once (64). executor: any concurrent.futures.Executor. timeout: seconds;
        after that no item starts, and HandlerTimeout is raised when the running ones have ended.
        serial_by: items with the same value run one at a time, in order; None = no
        order. transactional_items: `fn(item, connection)`; writes through the connection
        commit together with the item's record, or not at all. name: distinguishes several fan-outs
        of one message.

        Items run again after a crash: without transactional_items at most the last 200 (or as many
        as run at once, if that is more). Raises ConfigError for bad arguments, before anything
        runs; HandlerMisuse in a transactional handler; LostClaim, HandlerTimeout or RetryLater when
        no further item may start: the claim is lost, the time is over, or the worker stops or is
        not sure that it still holds its lease.
        """
        if self._fans is None:
            raise HandlerMisuse(
                "ctx.fan_out is for plain handlers: items are recorded while the handler runs, and "
                "a transactional one holds its transaction open meanwhile. Leave out "
                "transactional=True (and group=...) and use transactional_items=True if items write"
            )
        return self._fans.fan_out(
            fn=fn,
            items=items,
            key=key,
            threads=threads,
            executor=executor,
            timeout=timeout,
            serial_by=serial_by,
            transactional_items=transactional_items,
            name=name,
        )

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger under `msgworker.handler` whose records carry the message."""
        if self._log is None:
            handlers = logger("msgworker.handler", of_user=True)
            self._log = logging.LoggerAdapter(handlers, self._facts())
        return self._log

    def _facts(self) -> dict[str, Any]:
        return {
            "instance": self.instance_id,
            "msg_id": self._msg.msg_id,
            "object_id": self._msg.object_id,
            "topic": self._msg.topic,
            "try": self.attempt,
        }


# --- What a handler of a batch may use besides its messages.


class BatchContext(Context):
    """The second argument of a handler with batch=..., after its messages.

    instance_id, cancelled: as in Context. connection, session: as in Context; their transaction
    settles all messages of the batch. attempt: 1, except for a message that has failed before,
    which runs alone. log: its records carry the topic, the try and the number of messages
    (`messages`), and the message if there is only one. A handler with group=... gets a Context.
    """

    __slots__ = ("_ended", "_failures", "_ids", "_messages")

    def __init__(
        self,
        messages: Sequence[Message[Any]],
        instance_id: str,
        attempt: int,
        running: Cancellable,
        connection: Connection | None = None,
        setup: Sends | None = None,
    ) -> None:
        super().__init__(messages[0], instance_id, attempt, running, connection, setup=setup)
        self._messages = messages
        self._ended = False
        self._ids: set[Any] | None = None
        self._failures: dict[Any, BaseException] = {}

    def fail(self, message: Message[Any], error: Exception) -> None:
        """Fail one message of the batch, as if its handler had raised `error`; the others continue.

        A try of the message is counted, and it waits for its back-off; Reject and RetryLater mean
        what they mean when raised. Later messages of its object wait for it. Call it for each
        message that fails, and return from the handler as usual. With transactional=True the
        transaction is then rolled back and the handler called again without these messages, so that
        nothing is committed for them; if it names further ones in each of four calls, each message
        runs alone. If an error has ended the transaction, as any does on PostgreSQL outside of a
        savepoint, or the session, only the first failure that was named counts. An error that was
        not raised gets the traceback of this call.

        Raises HandlerMisuse if it is no message of this batch, was failed already, or `error` is
        not an exception.
        """
        if self._ended:
            raise HandlerMisuse("ctx.fail after the handler has returned; call it before that")
        if not self._is_ours(message):
            raise HandlerMisuse(
                f"ctx.fail takes a message of this batch, got {_named(message)}; pass one of the "
                "messages that the handler was called with"
            )
        if not isinstance(error, Exception):
            raise HandlerMisuse(
                f"ctx.fail takes an exception, got {quoted(error)}; for example "
                'ctx.fail(message, ValueError("no address"))'
            )
        if message.msg_id in self._failures:
            raise HandlerMisuse(
                f"message {message.msg_id} was failed already in this batch; fail each once"
            )
        came_from(error, sys._getframe(1))
        self._failures[message.msg_id] = error

    def send(
        self,
        topic: str,
        payload: Any = None,
        *,
        of: Message[Any] | None = None,
        job: bool = False,
        **options: Unpack[FromHandler],
    ) -> Any:
        """As Context.send. of: the message of this batch with whose outcome it is sent.

        With transactional=True all outcomes are one transaction, and `of` only says whose unique
        key the new message may have (default: that of the first message). Without it the outcomes
        of a batch are written separately, so `of` is required: what is sent for a message that
        fails, or whose claim is lost, is not sent; the others send theirs.

        Raises what Context.send raises; HandlerMisuse without `of`, where it is needed, and if it
        is no message of this batch.
        """
        if of is None and self._connection is None:
            raise HandlerMisuse(
                "ctx.send sends with the outcome of one message, and those of a batch are written "
                "apart: say of which, ctx.send(..., of=message), or add transactional=True"
            )
        if of is not None and not self._is_ours(of):
            raise HandlerMisuse(
                f"ctx.send takes of=..., a message of this batch, got {_named(of)}; pass one of "
                "the messages that the handler was called with"
            )
        whose = self._msg.msg_id if of is None else of.msg_id
        message = self._outgoing(topic, payload, **options, job_id=self._job_of(whose, job))
        return self._send(message, whose)

    def _is_ours(self, message: Any) -> bool:
        if self._ids is None:
            self._ids = {one.msg_id for one in self._messages}
        return isinstance(message, Message) and message.msg_id in self._ids

    def fan_out(self, *_: Any, **__: Any) -> NoReturn:
        """Raises HandlerMisuse: items are recorded under one message."""
        options = "batch=..." if self._connection is None else "batch=... and transactional=True"
        raise HandlerMisuse(
            "ctx.fan_out records items under one message, and this handler gets a list; leave out "
            f"{options} to fan out over the items of each message"
        )

    def _facts(self) -> dict[str, Any]:
        facts = super()._facts() | {"messages": len(self._messages)}
        return facts if len(self._messages) == 1 else facts | {"msg_id": None, "object_id": None}

    def _ended_with(self) -> dict[Any, list[Outgoing]]:
        """For the package, once the handler has returned: what a plain one has sent, by `of`."""
        self._ended = True
        sent: dict[Any, list[Outgoing]] = {}
        if self._connection is not None:  # what its session writes may send yet
            return sent
        for msg_id, message in self._sent() or ():
            sent.setdefault(msg_id, []).append(message)
        return sent

    def _counted(self) -> dict[Any, BaseException]:
        """For the package: the failures that the handler has named, by msg_id. Only the first one
        if an error has ended the transaction or the session, which those named later may follow
        from. Raises the first one if it follows from another itself: each message runs alone."""
        if not self._failures or not self._is_broken():
            return self._failures
        msg_id, error = next(iter(self._failures.items()))
        if follows(error):
            raise error
        return {msg_id: error}

    def _is_broken(self) -> bool:
        if self._session is not None and not self._session.is_active:
            return True
        return self._connection is not None and is_aborted(self._connection)


def _named(message: Any) -> str:
    return f"message {message.msg_id}" if isinstance(message, Message) else quoted(message)
