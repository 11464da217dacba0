"""The transactions that run handlers and items: on a connection of their thread, or on one of the
program's AsyncEngine, with the contexts of async handlers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from msgworker.db.connections import is_spoilt, session_seconds, sever
from msgworker.db.database import Trouble
from msgworker.db.drivers import is_aborted
from msgworker.db.engine import awaited, beside_loop, rolled_back
from msgworker.db.errors import Failures, Fate, reason_of, trouble, until_known
from msgworker.db.servers import succession_of
from msgworker.errors import DatabaseUnavailable, HandlerTimeout, LostClaim
from msgworker.instance.connections import SAME_CLAIM_RUNS, Connections, TransactionProgress
from msgworker.instance.observers import facts, log_time_limit
from msgworker.instance.running.context import BatchContext, Cancellable, Context, Sends
from msgworker.instance.running.in_flight import Lane
from msgworker.instance.running.outcome import CANCELLED, LoopEnded
from msgworker.instance.state import Setup, Shared
from msgworker.store.rows import Row
from msgworker.store.settle import of_a_row

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession

    from msgworker.instance.running.on_loop import AsyncCalls

T = TypeVar("T")


# --- A transaction that runs user code and writes the outcome, until it is known what became of it.


def until_committed(
    setup: Setup,
    shared: Shared,
    row: Row,
    once: Callable[[TransactionProgress], None],
    was_committed: Callable[[], bool],
    *,
    gone: Callable[[], bool],
    over: Callable[[], bool],
) -> bool:
    """Whether the transaction was committed; False = it may not run again, and the result may be
    unknown. row: the message, the first one of several. once: runs the transaction once.
    was_committed: whether the rows show that it is committed. gone: another instance may have the
    message. over: it may not run again, as if gone.

    If the database rolled it back (deadlock, lost connection), it runs again under the same claim,
    without a try counted; SAME_CLAIM_RUNS times at most, because the code may be the cause. Not if
    a time limit of the server ended it, which would end it again. In an outage it waits until
    `gone`. After a lost COMMIT it calls `was_committed`. Raises HandlerTimeout if the server closed
    the session for its time.
    """
    stage = TransactionProgress()
    runs, took = 0, 0.0
    failed: BaseException | None = None

    # What `until_known` calls, in its order; it says what their results mean.
    def send() -> bool:
        nonlocal stage
        stage = TransactionProgress()
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
                log_time_limit(shared.log, row, reason_of(error))
            return Fate.RAISE
        text = "message %s: rolled back, run again"
        shared.log.info(text, row.msg_id, exc_info=error, extra=facts(row))
        error = stage.reason or error
        runs, failed, took = runs + stage.begun, error, stage.seconds()
        lost = stage.committing and trouble(error) is Trouble.LOST
        return Fate.UNKNOWN if lost else Fate.AGAIN

    def may_continue() -> bool:
        return not gone() and not shared.stop.gave_up()

    def before_again() -> bool | None:
        if runs == SAME_CLAIM_RUNS and failed is not None:
            raise failed
        if failed is not None and trouble(failed) is Trouble.LOST and stage.begun:
            _refuse_overtime(shared, row, took, failed)
        trusted = shared.identity.wait_for_trust(lambda: over() or shared.stop.gave_up())
        return None if trusted else False

    pauses = Failures(setup.urgent_pause)
    known = until_known(send, look, may_continue, pauses, judge=judge, before_again=before_again)
    return bool(known)


@contextmanager
def or_cut(stage: TransactionProgress, conn: Connection, lanes: Sequence[Lane]) -> Iterator[None]:
    """The block writes the outcome of lanes behind their handler. If an error has ended the whole
    transaction, the database may refuse to flag their next messages: the lanes end before them."""
    try:
        yield
    finally:
        if (error := rolled_back(conn)) is not None:
            for lane in lanes if of_a_row(error) else ():
                if lane.next_id is not None and lane.verdict is None:
                    lane.rows = lane.rows[: lane.place + lane.width]
                    stage.cut = True
            raise error


def _refuse_overtime(shared: Shared, row: Row, took: float, error: BaseException) -> None:
    """Raise HandlerTimeout if the session was lost after the server's time limit for sessions:
    the server closes it without an error, and would do so again."""
    try:
        with shared.connector.once() as link, link.transaction() as conn:
            limit = session_seconds(conn)
    except Exception:  # the server is away, so that is the cause
        return
    if limit is None or took < limit:
        return
    text = (
        f"the server ended the session after {took:.0f} s: it lets a session be idle, or a "
        f"transaction last, for {limit:g} s ({reason_of(error)})"
    )
    log_time_limit(shared.log, row, text)
    raise HandlerTimeout(text) from error


class Transacting:
    """Runs transactional handlers; called by handler threads, each on a connection of its own."""

    def __init__(self, setup: Setup, shared: Shared) -> None:
        self._setup = setup
        self._shared = shared
        self._local = threading.local()

    def link(self) -> Connections:
        """The connection of this thread that is lent to handlers."""
        link: Connections | None = getattr(self._local, "link", None)
        if link is None:
            link = self._local.link = self._shared.connector.new(lends=True, spare=True)
        return link

    @contextmanager
    def beside(self) -> Iterator[Connection]:
        """A transaction on a connection that no handler has had, to see what is committed."""
        with self._shared.connector.once() as link, link.transaction() as conn:
            yield conn

    def until_committed(
        self,
        row: Row,
        owner: str,
        once: Callable[[TransactionProgress], None],
        was_committed: Callable[[], bool],
    ) -> None:
        """As the function of that name, for handlers. owner: the id that claimed the message.
        Raises LostClaim, too."""
        setup, shared = self._setup, self._shared
        self.link().owner = owner

        def gone() -> bool:
            return not shared.identity.is_ours(owner)

        if not until_committed(setup, shared, row, once, was_committed, gone=gone, over=gone):
            raise LostClaim(row.msg_id, owner)


# --- The transactions of async handlers, and their contexts.
#
# The handler thread begins the transaction, has the handler called, writes the outcome and commits,
# as it does for other handlers. What uses the connection runs in the event loop, and the thread
# waits for it.


_OPENED_AT = "msgworker_opened_at"
"""In the `info` of a connection: when we first had it from its pool."""
COMMIT, RETURN = "commit", "return"


def behind(conn: AsyncConnection) -> Connection:
    """The Connection behind one of SQLAlchemy's asyncio that is open."""
    found = conn.sync_connection
    assert found is not None
    return found


class LentInLoop:
    """An AsyncConnection in a transaction that runs user code, as the watchdog knows it."""

    def __init__(self, conn: Connection, owner: str) -> None:
        """owner: the id that claimed the message."""
        self._conn = conn
        self.busy_since: float | None = time.monotonic()
        self.opened_at: float = conn.info.setdefault(_OPENED_AT, self.busy_since)
        self.owner: str | None = owner
        self.ending: str | None = None  # what of it is awaited that is no statement

    def asked(self, frames: Mapping[int, FrameType]) -> object | None:
        """See `Lendable`; no thread shows it."""
        return awaited(self._conn) or self.ending

    def cut(self) -> None:
        """Cut it; what the loop waits for gets an error. The task of the handler goes on."""
        with suppress(Exception):  # the loop may be closing it
            sever(self._conn)


class LoopTransactions:
    """The transactions of async handlers; used by handler threads. In the caller's loop they use
    the pool of the program's engine, in the instance's own one of their own."""

    def __init__(self, setup: Setup, shared: Shared, calls: AsyncCalls) -> None:
        engine = setup.async_engine
        self._own = engine is not None and setup.loop is None
        self._engine: AsyncEngine | None = beside_loop(engine) if self._own else engine
        self._used = False
        self._turns = setup.turns
        self._gave_up = shared.stop.gave_up
        self._lent = shared.connector.lent
        self._succession = succession_of(setup.engine)
        self._calls = calls

    @contextmanager
    def transaction(self, owner: str) -> Iterator[AsyncConnection]:
        """A connection in a transaction, which commits at the end. owner: the id that claimed the
        message."""
        with nullcontext() if self._turns is None else self._turns.until(self._gave_up):
            conn = self._wait_for(self._begun())
            link = LentInLoop(behind(conn), owner)
            self._lent[link] = False
            try:
                yield conn
                link.ending = COMMIT
                self._wait_for(conn.commit())
            finally:
                link.ending = RETURN
                with suppress(Exception, LoopEnded):  # whatever it is, the outcome is known
                    self._wait_for(self._returned(conn))
                del self._lent[link]

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
            if not self._succession.is_fit(behind(conn)):
                await conn.run_sync(self._succession.refuse_unfit)
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
