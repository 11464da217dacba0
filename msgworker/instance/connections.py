"""The connections of a role, and calls of user code, so that what it leaves behind does no harm."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import copy_context
from dataclasses import dataclass
from traceback import clear_frames
from types import FrameType
from typing import Any, Protocol, TypeVar

from sqlalchemy import Connection, Engine, RootTransaction
from sqlalchemy.exc import DBAPIError

from msgworker.db import connections, errors
from msgworker.db.database import Trouble, of
from msgworker.db.drivers import committing_each
from msgworker.db.engine import rolled_back
from msgworker.db.servers import refuse_standby, shares_sessions, succession_of
from msgworker.errors import DatabaseUnavailable, ExitCode, HandlerMisuse
from msgworker.processlock import Renewed

# --- Calls of user code.
#
# Context variables that it sets end with the call, and its errors come out as they were raised. A
# process that it forks is ended before it can act as the worker: the child of a bare `os.fork` has
# copies of our connections, whose sockets it shares with the parent, and of a message that the
# parent handles too. The child is ended when it returns from user code or requests a connection.
#
# `os.register_at_fork` notes a fork, so that a message costs no system call (`getpid`).

T = TypeVar("T")
MOST_CAUSES = 10

TEXT = (
    "msgworker: process {} was forked by a handler of process {} and came back from it; it ends "
    "here, process {} goes on. End such a child with os._exit(), or use subprocess or "
    "ProcessPoolExecutor.\n"
)


_here = os.getpid()


def _forked() -> None:
    global _here
    _here = os.getpid()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_forked)


def end_if_forked(pid: int) -> None:
    """End this process unless it is `pid`, with exit code 1 and a line on stderr.

    At once, without cleanup: that could wait for a lock that a thread of the parent held at the
    fork.
    """
    if _here == pid:
        return
    with suppress(OSError):
        os.write(2, TEXT.format(_here, pid, pid).encode())
    os._exit(ExitCode.REFUSED)


def free_memory(error: BaseException | None) -> None:
    """Clear the frames of an out-of-memory error and of its causes: their variables hold the memory
    that is needed to write down the error."""
    for _ in range(MOST_CAUSES):
        if error is None:
            return
        if issubclass(type(error), errors.NO_MEMORY):
            clear_frames(_its_own(error, "__traceback__"))
        error = _its_own(error, "__cause__") or _its_own(error, "__context__")


def _its_own(error: BaseException, name: str) -> Any:
    return BaseException.__getattribute__(error, name)  # that of its own class may raise


class Carried(Exception):
    """Carries an error that defines its own attribute access, such as a frozen dataclass, out of
    user code: `contextlib` sets attributes of errors that pass it, and if that raises, the new
    error would replace the user's."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error


def call_user(pid: int, fn: Callable[..., T], *arguments: Any) -> T:
    """Call user code in a copy of this thread's context, so that what it sets there ends with it.
    Raises its error, or Carried. pid: the worker's process; a forked child that returns is
    ended."""
    try:
        return copy_context().run(fn, *arguments)
    except BaseException as error:
        free_memory(error)
        kind = type(error)
        usual = kind.__setattr__ is BaseException.__setattr__
        if usual and kind.__getattribute__ is BaseException.__getattribute__:
            raise
        raise Carried(error) from None
    finally:
        if _here != pid:
            end_if_forked(pid)


def carried(error: BaseException) -> BaseException:
    """The error of user code, taken out of Carried, and of groups that hold nothing else, such as
    those of asyncio.TaskGroup."""
    found: Any = error.error if type(error) is Carried else error
    while type(found) in GROUPS and len(found.exceptions) == 1:
        found = found.exceptions[0]
    own: BaseException = found
    return own


GROUPS = (ExceptionGroup, BaseExceptionGroup)
"""Those of a class of the user's may mean more than their parts."""


# --- The connections of one role, and the checks after user code has used one.
#
# A role keeps its connections and lends none to user code: transactions that run user code take
# theirs from a pool of their own. After any error the connections are returned and new ones are
# taken at the next use, so that no broken one is used again; if their session may be the cause,
# they are closed for good.

SAME_CLAIM_RUNS = 8
"""The most runs of user code under one claim, if the database keeps rolling it back."""


TURN_SECONDS = 0.1
"""How often a thread that waits for its turn checks whether to keep waiting."""


@dataclass(slots=True)
class TransactionProgress:
    """How far a transaction that runs user code has come.

    begun: the code was started. lost: the connection was found dead. ended: the code has ended the
    transaction. committing: the COMMIT may have been sent. within: the code has not returned.
    changed: it has set something in the session. led: its statement after which our table names may
    mean other tables. since: when the code began (monotonic). reason: the error with which the
    database has rolled it back, if the code raised another one. cut: it runs again without the next
    messages of its lanes, see `or_cut`.
    """

    begun: bool = False
    lost: bool = False
    ended: bool = False
    committing: bool = False
    within: bool = False
    changed: bool = False
    led: str | None = None
    since: float = 0.0
    reason: BaseException | None = None
    cut: bool = False

    def by_database(self, error: BaseException) -> bool:
        """Whether the database has rolled it back. Lack of memory while the code runs is the fault
        of the code, unless the connection is lost."""
        error = self.reason or error
        if self.within and errors.lacks_memory(error):
            return self.lost
        return self.lost or self.cut or errors.trouble(error) in (Trouble.AGAIN, Trouble.LOST)

    def again(self, error: BaseException) -> bool:
        """Whether it may run again: the database rolled it back, and not for taking too long."""
        return self.by_database(error) and not self.took_too_long(error)

    def took_too_long(self, error: BaseException) -> bool:
        """Whether a time limit of the server ended the code's statement or session, and would end
        it again. One that ended a statement of ours does not count: it may have waited for a lock
        that is free the next time."""
        return errors.is_time_limit(
            self.reason or error, of_session=not (self.within or self.changed)
        )

    def seconds(self) -> float:
        """How long ago the code began."""
        return time.monotonic() - self.since


@contextmanager
def lent(conn: Connection, stage: TransactionProgress, whose: str) -> Iterator[None]:
    """The block runs user code in our transaction, which must still be open afterwards.

    If the database rolled back and the code swallowed the error, it is raised again here; otherwise
    half of the code's writes would be committed. Raises HandlerMisuse if the code itself ended the
    transaction, also instead of the error that its next statement then raises.
    """
    stage.begun = stage.within = True
    stage.since = time.monotonic()
    begun = conn.get_transaction()

    rolled_back(conn)
    connections.led_elsewhere(conn)
    try:
        with of(conn).user_code(conn):
            yield
    except BaseException as error:
        # The code may have hidden the reason, or got a follow-up error of SQLAlchemy.
        stage.lost, reason = conn.invalidated, rolled_back(conn)
        if isinstance(error, Exception):
            stage.reason = reason
        by_database = stage.by_database(error) or reason is not None
        stage.ended = not by_database and _ended(conn, begun)
        if stage.ended and isinstance(error, Exception):
            raise _misuse(whose) from error
        raise
    swallowed = rolled_back(conn)
    if swallowed is not None:
        stage.lost = conn.invalidated
        raise swallowed
    if _ended(conn, begun):
        stage.ended = True
        raise _misuse(whose)
    stage.within, stage.changed = False, connections.is_spoilt(conn)


def missed(conn: Connection, whose: str) -> HandlerMisuse | None:
    """Called if our statement found no row in the transaction of `conn`, after user code ran there.
    The error to raise if that code made our table names mean other tables, else None. The session
    is not used again."""
    connections.spoil(conn)
    led = connections.led_elsewhere(conn)
    return None if led is None else misled(whose, led)


def misled(whose: str, led: str) -> HandlerMisuse:
    """led: the statement of user code after which our table names mean other tables."""
    return HandlerMisuse(
        f"{whose} changed its session ({led!r:.120}), so that its outcome was looked for in "
        "another table; it must put back what it sets, or use a connection of its own"
    )


def _ended(conn: Connection, begun: RootTransaction | None) -> bool:
    """Whether the code has ended the transaction."""
    return conn.closed or begun is None or not begun.is_active


def _misuse(whose: str) -> HandlerMisuse:
    return HandlerMisuse(
        f"{whose} committed, rolled back or closed its connection; the transaction is the "
        "worker's: writes may be committed although this try counts as failed"
    )


class FairLock(Renewed):
    """A lock granted in the order of requests, new in each process.

    The threads of a process queue here where the database has a single writer: such a database
    waits by polling, which is slow and unfair (a heartbeat could starve behind a busy settler). A
    thread that runs out of memory may fail to release the lock, so it is taken from a holder that
    has ended or that asks for it again.
    """

    def renew(self) -> None:
        self._gate = threading.Lock()
        self._taken = False
        self._holder: threading.Thread | None = None
        self._waiting: deque[tuple[threading.Lock, threading.Thread]] = deque()

    def __enter__(self) -> None:
        self.take(lambda: False)

    def take(self, over: Callable[[], bool], *, urgent: bool = False) -> None:
        """Acquire the lock. Raises DatabaseUnavailable once `over()` is true. urgent: ahead of all
        threads that wait."""
        mine, me = threading.Lock(), threading.current_thread()
        mine.acquire()
        place = mine, me
        with self._gate:
            if not self._taken or self._is_lost(me):
                self._taken, self._holder = True, me
                return
            if urgent:
                self._waiting.appendleft(place)
            else:
                self._waiting.append(place)
        try:  # the previous holder releases `mine` when it is our turn
            while not mine.acquire(timeout=TURN_SECONDS):
                if over():
                    raise DatabaseUnavailable("the stop no longer waits for its turn to write")
                with self._gate:
                    if self._is_lost():
                        self._hand_over()
        except BaseException:  # KeyboardInterrupt, too
            with self._gate:
                if place in self._waiting:
                    self._waiting.remove(place)
                else:
                    self._hand_over()
            raise

    def _is_lost(self, asking: threading.Thread | None = None) -> bool:
        holder = self._holder
        return holder is not None and (holder is asking or not holder.is_alive())

    def _hand_over(self) -> None:
        if self._waiting:
            lock, self._holder = self._waiting.popleft()
            lock.release()
        else:
            self._taken, self._holder = False, None

    def until(
        self, over: Callable[[], bool], *, urgent: bool = False
    ) -> AbstractContextManager[None]:
        """The same lock for a caller that stops waiting once `over()` is true. urgent: for the
        renewal of a lease, which could expire in the queue."""
        return _Until(self, over, urgent)

    def __exit__(self, *exc: object) -> None:
        with self._gate:
            self._hand_over()


class _Until(AbstractContextManager[None]):
    def __init__(self, turns: FairLock, over: Callable[[], bool], urgent: bool) -> None:
        self._turns = turns
        self._over = over
        self._urgent = urgent

    def __enter__(self) -> None:
        self._turns.take(self._over, urgent=self._urgent)

    def __exit__(self, *exc: object) -> None:
        self._turns.__exit__()


DRIVER_CALLS = "sqlalchemy/engine/default.py"


def call_of(frame: FrameType | None) -> FrameType | None:
    """The frame of the call to the driver that a thread is in; None = it is in none."""
    while frame is not None:
        code = frame.f_code
        place = code.co_filename.replace("\\", "/")
        if code.co_name.startswith("do_") and place.endswith(DRIVER_CALLS):
            return frame
        frame = frame.f_back
    return None


class Lendable(Protocol):
    """What the watchdog knows of a connection on which user code runs; see `Connections`."""

    busy_since: float | None
    opened_at: float
    owner: str | None

    def asked(self, frames: Mapping[int, FrameType]) -> object | None:
        """The same object while it waits for the same answer; None = for none. frames: those of all
        threads."""

    def cut(self) -> None:
        """Cut it, from any thread."""


@dataclass(eq=False)
class Connections:
    """The connections of a role or of a handler's thread. Only that one uses them; the watchdog and
    the stop may `cut` them.

    `statement()`: autocommit. `transaction()`: commits at the end. Each has a connection of its
    own, so a role that needs no speed uses only one of the two. `single()`: one statement in
    autocommit, on the connection of `transaction()`.

    turns: a lock to hold during a transaction, see FairLock; None if writers run concurrently.
    tuned: statements that set and reset options for the session of `statement()`.
    none_left: called when all connections are in use.
    lock: held during use, if others may close it meanwhile.
    """

    _engine: Engine
    _turns: AbstractContextManager[None] | None = None
    _tuned: tuple[str, str] | None = None
    none_left: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        self._alone: Connection | None = None
        self.together: Connection | None = None
        self.busy_since: float | None = None  # when its present use began
        self.waits = False  # for `turns`: there is nothing to cut
        self.opened_at = 0.0  # when its last connection was opened
        self.owner: str | None = None  # the id that claimed the message it is used for
        self.ident: int | None = None  # the thread that used it last
        self.lock = threading.Lock()
        self._succession = succession_of(self._engine)
        self._succession_turn = self._succession.turn
        self._pid = os.getpid()

    def connect(self, *, autocommit: bool = False) -> Connection:
        """A new connection, to a server that may take writes."""
        try:
            conn = connections.connected(self._engine, autocommit=autocommit)
            with connections.closed_after_failure(conn):
                refuse_standby(conn)
                turn = self._succession.check(conn)
            self.opened_at = time.monotonic()
            if not self.is_open:
                self._succession_turn = turn
            return conn
        except Exception as error:
            if errors.no_connection_left(error):
                self.none_left()
            if isinstance(error, DBAPIError) and errors.trouble(error) is Trouble.OTHER:
                # Whatever the error is, there is no connection, and nothing was sent.
                raise DatabaseUnavailable(f"no connection: {errors.reason_of(error)}") from error
            raise

    def open(self) -> None:
        """Open the connection of `transaction()` and `single()`, if it is not open."""
        with _InUse(self):
            pass

    @property
    def is_open(self) -> bool:
        """Whether it has a connection; one that fails is closed."""
        return self._alone is not None or self.together is not None

    def asked(self, frames: Mapping[int, FrameType]) -> object | None:
        """See `Lendable`."""
        return call_of(frames.get(self.ident or 0))

    def cut(self) -> None:
        """Cut the connections, from another thread: a thread that waits for an answer gets an
        error.

        For half-open connections, which cannot be distinguished from slow ones.
        """
        for conn in (self._alone, self.together):
            if conn is not None:
                with suppress(Exception):  # its own thread may be closing it
                    connections.sever(conn)

    @contextmanager
    def cut_after(self, seconds: float) -> Iterator[None]:
        """Cut them if the block takes longer."""
        late = threading.Timer(seconds, self.cut)
        late.daemon = True
        with suppress(RuntimeError):  # no thread starts while the interpreter ends
            late.start()
        try:
            yield
        finally:
            late.cancel()
            if late.ident is not None:  # else a late cut would hit the next use
                late.join()

    def check_server(self) -> None:
        """Raise DatabaseUnavailable if the server is an old primary. The server is asked only where
        the answer can have changed since the connection was opened."""
        with _InUse(self) as conn:
            self._succession.check_again(conn)

    def _begin(self) -> None:
        end_if_forked(self._pid)
        if self._succession_turn != self._succession.turn and self.busy_since is None:
            self._succession_turn = self._succession.turn
            if self.is_open:
                self.close(lost=True)
                raise DatabaseUnavailable("the connection may lead to a server that was replaced")
        self.ident = threading.get_ident()
        self.busy_since = time.monotonic()

    @contextmanager
    def statement(self) -> Iterator[Connection]:
        """A connection in autocommit mode."""
        self._begin()
        try:
            if self._alone is None:
                self._alone = self.connect(autocommit=True)
                if self._tuned and not shares_sessions(self._alone):
                    self._alone.exec_driver_sql(self._tuned[0])
            yield self._alone
            if connections.is_spoilt(self._alone):
                self.close(lost=True)
        except BaseException as error:
            self.close(lost=errors.is_of_the_session(error))
            raise
        finally:
            self.busy_since = None

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """A connection in a transaction of its own."""
        turn = self._turn_of_ours() if self._turns is not None else nullcontext()
        with _InUse(self) as conn, turn, conn.begin():
            yield conn

    @contextmanager
    def _turn_of_ours(self) -> Iterator[None]:
        assert self._turns is not None
        self.waits = True
        try:
            self._turns.__enter__()
        finally:
            self.waits = False
        try:
            self.busy_since = time.monotonic()
            yield
        finally:
            while True:  # else all others wait until this thread asks for a turn again
                try:
                    self._turns.__exit__(None, None, None)
                    break
                except errors.NO_MEMORY:
                    time.sleep(TURN_SECONDS)

    @contextmanager
    def single(self) -> Iterator[Connection]:
        """One statement in autocommit mode, so that a suspended process holds no lock; a
        transaction if there are `turns`."""
        if self._turns is not None:
            with self.transaction() as conn:
                yield conn
            return
        with _InUse(self) as conn, committing_each(conn), conn.begin():
            yield conn

    def close(self, *, lost: bool = False) -> None:
        """Return the connections in their original state.

        lost: close them for good, because their server is gone (the pool would log an error when it
        resets them), or because what is set in their sessions is unknown.
        """
        if self._alone is not None and self._tuned and not lost:
            with suppress(Exception):
                if not shares_sessions(self._alone):  # nothing was set
                    self._alone.exec_driver_sql(self._tuned[1])
        for conn in (self._alone, self.together):
            if conn is not None:
                with suppress(Exception):  # it may be broken
                    if lost:
                        conn.invalidate()
                    conn.close()
        self._alone = self.together = None


class _InUse:
    """The connection of `transaction()` and `single()`, while it is used. No generator, which would
    cost each message more."""

    __slots__ = ("_link",)

    def __init__(self, link: Connections) -> None:
        self._link = link

    def __enter__(self) -> Connection:
        link = self._link
        link._begin()
        try:
            if link.together is None:
                link.together = link.connect()
        except BaseException as error:
            self.__exit__(None, error)
            raise
        return link.together

    def __exit__(self, kind: object, error: BaseException | None, *_: object) -> None:
        link = self._link
        try:
            spoilt = link.together is not None and connections.is_spoilt(link.together)
            if error is not None:
                link.close(lost=spoilt or errors.is_of_the_session(error))
            elif spoilt:
                link.close(lost=True)
        finally:
            link.busy_since = None
