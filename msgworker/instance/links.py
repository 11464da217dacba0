"""The connections of one role, and what a user's code may not do to one that it was lent.

A role keeps its connections; after any error they are given up and opened again at the next use, so
no broken one is used again.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from msgworker.dialects import (
    Trouble,
    committing_each,
    lending,
    no_connection_left,
    reason_of,
    rolled_back,
    sever,
    trouble,
)
from msgworker.errors import DatabaseUnavailable, HandlerMisuse
from msgworker.instance.forks import end_if_forked

SAME_CLAIM_RUNS = 8
"""How often a user's transaction is run again under one claim when the database rolled it back."""


@dataclass(slots=True)
class Stage:
    """How far a transaction that runs a user's code has come: begun = the database was there;
    lost = its connection was found dead; committing = the COMMIT was sent, maybe."""

    begun: bool = False
    lost: bool = False
    committing: bool = False

    def again(self, error: BaseException) -> bool:
        """Whether the database itself undid the transaction: it may be run again."""
        return self.lost or trouble(error) in (Trouble.AGAIN, Trouble.LOST)


@contextmanager
def lent(conn: Connection, stage: Stage, whose: str) -> Iterator[None]:
    """The block runs a user's code in our transaction; afterwards that must be as it was.

    What the database rolled back while the code went on is raised again here, or half of the code's
    writes would be committed. Raises HandlerMisuse if the code itself ended the transaction.
    """
    stage.begun = True
    begun = conn.get_transaction()
    rolled_back(conn)
    try:
        with lending(conn):
            yield
    except BaseException:
        # The code may have hidden why, or met what SQLAlchemy says after that.
        stage.lost = conn.invalidated
        raise
    swallowed = rolled_back(conn)
    if swallowed is not None:
        stage.lost = conn.invalidated
        raise swallowed
    if conn.closed or begun is None or not begun.is_active:
        raise HandlerMisuse(
            f"{whose} committed, rolled back or closed its connection; the transaction is the "
            "worker's: what was written may stand although this try counts as failed"
        )


class Turns:
    """A lock whose waiters get it in the order they came.

    Where a database has one writer at a time, our threads queue up here: its own waiting is
    polling, which is slow and unfair (a heartbeat could starve behind a busy settler).
    """

    def __init__(self) -> None:
        self._gate = threading.Lock()
        self._taken = False
        self._waiting: deque[threading.Lock] = deque()

    def __enter__(self) -> None:
        with self._gate:
            if not self._taken:
                self._taken = True
                return
            mine = threading.Lock()
            mine.acquire()
            self._waiting.append(mine)
        mine.acquire()  # released by whoever had the turn before us, which is handed over

    def __exit__(self, *exc: object) -> None:
        with self._gate:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._taken = False


class Link:
    """`statement()`: each statement stands alone. `transaction()`: commits at the end. Each has a
    connection of its own, so a role that needs no speed uses one of them only. `single()`: one
    statement that stands alone, on the connection of `transaction()`.

    turns: what to hold during a transaction, see Turns; None where writers do not get in their way.
    tuned: statements that set and reset something for the session of `statement()`.
    none_left: called when all connections are in use.
    lock: held by who uses it, where others may close it meanwhile.
    """

    def __init__(
        self,
        engine: Engine,
        turns: AbstractContextManager[None] | None = None,
        tuned: tuple[str, str] | None = None,
        none_left: Callable[[], None] = lambda: None,
    ) -> None:
        self._engine = engine
        self._none_left = none_left
        self._tuned = tuned
        self._turns = turns
        self._alone: Connection | None = None
        self.together: Connection | None = None
        self.busy_since: float | None = None  # when what runs on it now began
        self.ident: int | None = None  # the thread that used it last
        self.lock = threading.Lock()
        self._pid = os.getpid()

    def connect(self) -> Connection:
        try:
            return self._engine.connect()
        except Exception as error:
            if no_connection_left(error):
                self._none_left()
            if isinstance(error, DBAPIError) and trouble(error) is Trouble.OTHER:
                # Whatever it says: there is no connection, and nothing was sent.
                raise DatabaseUnavailable(f"no connection: {reason_of(error)}") from error
            raise

    def cut(self) -> None:
        """Break the connections, from another thread: who waits for an answer gets an error.

        For half-open connections, which nothing else tells from slow ones.
        """
        for conn in (self._alone, self.together):
            if conn is not None:
                with suppress(Exception):  # its own thread may be closing it
                    sever(conn)

    def _begin(self) -> None:
        end_if_forked(self._pid)
        self.ident = threading.get_ident()
        self.busy_since = time.monotonic()

    @contextmanager
    def statement(self) -> Iterator[Connection]:
        """A connection on which every statement commits by itself."""
        self._begin()
        try:
            if self._alone is None:
                conn = self.connect()
                self._alone = conn.execution_options(isolation_level="AUTOCOMMIT")
                if self._tuned:
                    self._alone.exec_driver_sql(self._tuned[0])
            yield self._alone
        except BaseException as error:
            self.close(lost=trouble(error) is Trouble.LOST)
            raise
        finally:
            self.busy_since = None

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """A connection in a transaction of its own."""
        with self._opened() as conn, self._turns or nullcontext(), conn.begin():
            yield conn

    @contextmanager
    def _opened(self) -> Iterator[Connection]:
        self._begin()
        try:
            if self.together is None:
                self.together = self.connect()
            yield self.together
        except BaseException as error:
            self.close(lost=trouble(error) is Trouble.LOST)
            raise
        finally:
            self.busy_since = None

    @contextmanager
    def single(self) -> Iterator[Connection]:
        """For one statement, which the database commits with it: a process that stands still before
        its next word holds no lock. Where writers take turns, a transaction."""
        if self._turns is not None:
            with self.transaction() as conn:
                yield conn
            return
        with self._opened() as conn, committing_each(conn), conn.begin():
            yield conn

    def close(self, *, lost: bool = False) -> None:
        """Give the connections back, as they were.

        lost: the server has gone, so both are dead; reset like living ones, the pool would log that
        as an error.
        """
        if self._alone is not None and self._tuned and not lost:
            with suppress(Exception):
                self._alone.exec_driver_sql(self._tuned[1])
        for conn in (self._alone, self.together):
            if conn is not None:
                with suppress(Exception):  # it may be broken: that is why we are here
                    if lost:
                        conn.invalidate()
                    conn.close()
        self._alone = self.together = None


class SpareLinks:
    """Links of threads that need them now and then only: where no connection is left, those that
    are idle are given back, or a settle that gets none would hold up all others.

    Added to by handler threads; `close_idle` may be called by any thread.
    """

    def __init__(self) -> None:
        self._links: list[Link] = []

    def add(self, link: Link) -> None:
        """Its user holds `link.lock` while it uses it."""
        self._links.append(link)

    def close_idle(self) -> None:
        """Give back the connections of those that are not in use."""
        for link in list(self._links):
            if link.lock.acquire(blocking=False):
                try:
                    link.close()
                finally:
                    link.lock.release()

    def close(self) -> None:
        """Give back all connections; the threads must have ended."""
        for link in self._links:
            link.close()
