"""How handlers are declared: `handler` and `add_handler` of an App, and of several Apps as one.

The overloads are for type checkers: which functions a handler may be depends on its options.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection
from typing import TYPE_CHECKING, Any, Literal, Required, TypedDict, TypeVar, Unpack, overload

from sqlalchemy import Result

from msgworker.instance.running.context import BatchContext, Context
from msgworker.instance.running.handler import DEFAULT_BATCH_SECONDS, TimeoutAction, WhenDone
from msgworker.message import Message

if TYPE_CHECKING:
    from tenacity.wait import wait_base

    from msgworker.instance.running.transactions import AsyncBatchContext, AsyncContext

One = Message[Any]
Many = list[Message[Any]]
Value = int | float | str | bytes | Collection[Any] | Result[Any] | None
"""What a function returns that is not async."""
Plain = Callable[[One], object] | Callable[[One, Context], object]
Sync = Callable[[One], Value] | Callable[[One, Context], Value]
InTransaction = Sync | (
    Callable[[One], Awaitable[object]] | Callable[[One, "AsyncContext"], Awaitable[object]]
)
Batch = Callable[[Many], object] | Callable[[Many, BatchContext], object]
SyncBatch = Callable[[Many], Value] | Callable[[Many, BatchContext], Value]
BatchInTransaction = SyncBatch | (
    Callable[[Many], Awaitable[object]] | Callable[[Many, "AsyncBatchContext"], Awaitable[object]]
)

F = TypeVar("F", bound=Callable[..., Any])
PlainHandler = TypeVar("PlainHandler", bound=Plain)
TransactionalHandler = TypeVar("TransactionalHandler", bound=InTransaction)
SyncHandler = TypeVar("SyncHandler", bound=Sync)
BatchHandler = TypeVar("BatchHandler", bound=Batch)
TransactionalBatch = TypeVar("TransactionalBatch", bound=BatchInTransaction)
SyncBatchHandler = TypeVar("SyncBatchHandler", bound=SyncBatch)
AnyHandler = TypeVar("AnyHandler", bound=Plain | Batch)


class HandlerOptions(TypedDict, total=False):
    """The options of `App.handler` that do not say which function it takes."""

    timeout: float | None
    timeout_action: TimeoutAction
    wait: wait_base | None
    max_tries: int | None
    batch_seconds: float
    max_running: int | None
    rate: str | None
    burst: int | None
    on_done: str | None
    on_dead: str | None
    when_done: WhenDone


# The options that say which function it takes. Either: a type checker knows no more than bool.


class Alone(HandlerOptions, total=False):
    transactional: Literal[False]
    batch: None
    group: None


class AloneInTransaction(HandlerOptions, total=False):
    transactional: Required[Literal[True]]
    batch: None
    group: int | None


class AloneEither(HandlerOptions, total=False):
    transactional: Required[bool]
    batch: None
    group: None


class Batched(HandlerOptions, total=False):
    transactional: Literal[False]
    batch: Required[int]
    group: None


class BatchedInTransaction(HandlerOptions, total=False):
    transactional: Required[Literal[True]]
    batch: Required[int]
    group: None


class BatchedEither(HandlerOptions, total=False):
    transactional: Required[bool]
    batch: Required[int]
    group: None


class Declaring(ABC):
    """What handlers are declared with."""

    @abstractmethod
    def _declare(self, topic: str | None, fn: Callable[..., Any], options: dict[str, Any]) -> None:
        """Register a handler; raises HandlerError."""

    @overload
    def handler(self, topic: PlainHandler) -> PlainHandler: ...
    @overload
    def handler(
        self, topic: str | None = None, **options: Unpack[Alone]
    ) -> Callable[[PlainHandler], PlainHandler]: ...
    @overload
    def handler(
        self, topic: str | None = None, **options: Unpack[AloneInTransaction]
    ) -> Callable[[TransactionalHandler], TransactionalHandler]: ...
    @overload
    def handler(
        self, topic: str | None = None, **options: Unpack[AloneEither]
    ) -> Callable[[SyncHandler], SyncHandler]: ...
    @overload
    def handler(
        self, topic: str | None = None, **options: Unpack[Batched]
    ) -> Callable[[BatchHandler], BatchHandler]: ...
    @overload
    def handler(
        self, topic: str | None = None, **options: Unpack[BatchedInTransaction]
    ) -> Callable[[TransactionalBatch], TransactionalBatch]: ...
    @overload
    def handler(
        self, topic: str | None = None, **options: Unpack[BatchedEither]
    ) -> Callable[[SyncBatchHandler], SyncBatchHandler]: ...
    def handler(
        self,
        topic: str | Callable[..., Any] | None = None,
        *,
        transactional: bool = False,
        timeout: float | None = None,
        timeout_action: TimeoutAction = "report",
        wait: wait_base | None = None,
        max_tries: int | None = None,
        batch: int | None = None,
        group: int | None = None,
        batch_seconds: float = DEFAULT_BATCH_SECONDS,
        max_running: int | None = None,
        rate: str | None = None,
        burst: int | None = None,
        on_done: str | None = None,
        on_dead: str | None = None,
        when_done: WhenDone = "keep",
    ) -> Callable[..., Any]:
        """Register a function as the handler of a topic (no topic: of every other topic).

        The function takes (msg) or (msg, ctx), plain or async. Returning means done; an exception
        means failed, tried again after a back-off; see Reject and RetryLater for other outcomes.
        transactional: `ctx.connection` belongs to the transaction that settles the message; an
        async one needs App(AsyncEngine) and gets an AsyncContext, see docs/guides/asyncio.md.
        timeout: seconds; a handler that runs longer is reported and its try fails when it returns.
        timeout_action: "restart" = the instance also finishes the rest and leaves, and `run` or
        `drain` raises HandlerStuck: end the process, the message is then recovered.
        wait: a tenacity wait strategy for the back-off, by default `backoff_seconds` of the App:
        about 20 s, then about 100 s. max_tries: dead after so many failed tries, at most
        the table's `max_tries`; for tries that ended in a crash only the table's counts.
        batch: the function takes (messages) or (messages, ctx), a list of up to so many (2 to
        10,000) and a BatchContext. Returning means that all are done. An exception counts no try,
        and each message runs alone. With transactional=True the list holds runs of one object, in
        order, and all of it commits or nothing; else each message is of another object.
        group: (needs transactional=True) up to so many calls, one message each, share a transaction
        and its commit; if one raises, all are rolled back and each runs alone.
        batch_seconds: what a batch or a group may take, at most a third of the lease; its size
        adapts. See docs/guides/batches.md.
        max_running: at most so many messages of the topic run at once, over all instances (1 to
        10,000). rate: at most so many start in a time, over all instances: "20/s", "100/m",
        "5000/h"; burst: so many may start at once after a pause, by default the number in the rate.
        What waits for these holds no thread and no try. Both need a topic, and exclude batch and
        group. See docs/guides/limits.md.
        on_done, on_dead: topics; when a message is done, or becomes dead, a message about it is
        sent there in the same transaction, see docs/guides/chains.md.
        when_done: "delete" = a message that is done is deleted instead of getting status 2; not one
        that has failed or was put off before, that has items, a job, or a key that is kept. See
        docs/operate/operations.md.
        Raises HandlerError at once for bad functions and options.
        """
        options = {name: value for name, value in locals().items() if name not in ("self", "topic")}
        if callable(topic):  # @app.handler without parentheses
            self._declare(None, topic, {})
            return topic

        def register(fn: F) -> F:
            self._declare(topic, fn, options)
            return fn

        return register

    @overload
    def add_handler(self, topic: str | None, fn: Plain, **options: Unpack[Alone]) -> None: ...
    @overload
    def add_handler(
        self, topic: str | None, fn: InTransaction, **options: Unpack[AloneInTransaction]
    ) -> None: ...
    @overload
    def add_handler(self, topic: str | None, fn: Sync, **options: Unpack[AloneEither]) -> None: ...
    @overload
    def add_handler(self, topic: str | None, fn: Batch, **options: Unpack[Batched]) -> None: ...
    @overload
    def add_handler(
        self, topic: str | None, fn: BatchInTransaction, **options: Unpack[BatchedInTransaction]
    ) -> None: ...
    @overload
    def add_handler(
        self, topic: str | None, fn: SyncBatch, **options: Unpack[BatchedEither]
    ) -> None: ...
    def add_handler(self, topic: str | None, fn: Callable[..., Any], **options: Any) -> None:
        """`handler` as a plain function call."""
        self._declare(topic, fn, options)
