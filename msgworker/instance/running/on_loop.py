"""Transactional async handlers: their transaction, on a connection of the program's AsyncEngine,
and their contexts.

The handler thread begins the transaction, has the handler called, writes the outcome and commits,
as it does for other handlers. What uses the connection runs in the event loop, and the thread waits
for it.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy.exc import DBAPIError

from msgworker.db import Trouble, beside_loop, is_aborted, is_spoilt, reason_of, trouble
from msgworker.errors import DatabaseUnavailable
from msgworker.instance.running.context import BatchContext, Cancellable, Context, Sends
from msgworker.instance.running.outcome import CANCELLED, LoopEnded

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession

    from msgworker.instance.running.pool import AsyncCalls
    from msgworker.instance.state import Setup

T = TypeVar("T")


class LoopTransactions:
    """The transactions of async handlers; used by handler threads. In the caller's loop they use
    the pool of the program's engine, in the instance's own one of their own."""

    def __init__(self, setup: Setup, gave_up: Callable[[], bool], calls: AsyncCalls) -> None:
        engine = setup.async_engine
        self._own = engine is not None and setup.loop is None
        self._engine: AsyncEngine | None = beside_loop(engine) if self._own else engine
        self._used = False
        self._turns = setup.turns
        self._gave_up = gave_up
        self._calls = calls

    @contextmanager
    def transaction(self) -> Iterator[AsyncConnection]:
        """A connection in a transaction, which commits at the end."""
        with nullcontext() if self._turns is None else self._turns.until(self._gave_up):
            conn = self._wait_for(self._begun())
            try:
                yield conn
                self._wait_for(conn.commit())
            finally:
                with suppress(Exception, LoopEnded):  # whatever it is, the outcome is known
                    self._wait_for(self._returned(conn))

    def run(self, conn: AsyncConnection, fn: Callable[..., T], *arguments: Any) -> T:
        """Call `fn(connection, *arguments)`, with the Connection behind `conn`, in the loop."""
        found: T = self._wait_for(conn.run_sync(fn, *arguments))
        return found

    @property
    def close(self) -> Callable[[], Coroutine[Any, Any, None]] | None:
        """Closes the connections of a pool of our own, if it has any."""
        return self._engine.dispose if self._used and self._own and self._engine else None

    def _wait_for(self, coroutine: Any) -> Any:
        """Run a coroutine of ours, which only the end of its loop cancels."""
        try:
            return self._calls.wait_for(coroutine)
        except CANCELLED as error:
            raise LoopEnded("the loop of an async handler ends") from error

    async def _begun(self) -> AsyncConnection:
        assert self._engine is not None  # `App` refuses such a handler without one
        self._used = True
        try:
            conn = await self._engine.connect()
        except (DBAPIError, OSError) as error:  # of some drivers it is that of the socket
            if trouble(error) is not Trouble.OTHER:
                raise
            raise DatabaseUnavailable(f"no connection: {reason_of(error)}") from error
        try:
            await conn.begin()
        except BaseException:
            await self._returned(conn)
            raise
        return conn

    @staticmethod
    async def _returned(conn: AsyncConnection) -> None:
        if conn.sync_connection is not None and is_spoilt(conn.sync_connection):
            await conn.invalidate()
        await conn.close()


class _Lent:
    """What differs where the connection is one of SQLAlchemy's asyncio."""

    __slots__ = ()
    _lent: AsyncConnection
    _session: Any

    def __init__(
        self,
        of: Any,
        instance_id: str,
        attempt: int,
        running: Cancellable,
        connection: AsyncConnection,
        setup: Sends,
    ) -> None:
        super().__init__(of, instance_id, attempt, running, setup=setup)  # type: ignore[call-arg]
        self._lent = connection  # type: ignore[misc]  # a slot of each subclass

    @property
    def connection(self) -> AsyncConnection:
        """The AsyncConnection in whose transaction the message is settled; in a batch or a group,
        all of them."""
        return self._lent

    @property
    def session(self) -> AsyncSession:
        """An AsyncSession on `connection`; flushed, not committed, when the handler returns."""
        if self._session is None:
            from sqlalchemy.ext.asyncio import AsyncSession

            self._session = AsyncSession(bind=self._lent, join_transaction_mode="create_savepoint")
        found: AsyncSession = self._session
        return found


class AsyncContext(_Lent, Context):  # type: ignore[misc]
    """The Context of an async handler with transactional=True: `connection` is an AsyncConnection
    and `session` an AsyncSession, of the App's AsyncEngine. Writes there commit together with the
    outcome, or not at all. `send`, without await, inserts when the handler has returned, in the
    same transaction, and returns None. All else is as in Context."""

    __slots__ = ("_lent",)


class AsyncBatchContext(_Lent, BatchContext):  # type: ignore[misc]
    """The BatchContext of an async handler with transactional=True and batch=...; `connection`,
    `session` and `send` are as in AsyncContext."""

    __slots__ = ("_lent",)

    def send(self, topic: str, payload: Any = None, **options: Any) -> Any:
        if options.get("of") is None:
            options["of"] = self._messages[0]
        return super().send(topic, payload, **options)

    def _is_broken(self) -> bool:
        conn = self._lent.sync_connection
        if self._session is not None and not self._session.is_active:
            return True
        return conn is not None and is_aborted(conn)
