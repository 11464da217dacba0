"""What a thread does in the database for a caller that waits for it, and may give it up.

Who gives an attempt up has to know what that means. So a transaction of its thread asks before its
COMMIT whether it is still wanted, and says so: of an attempt that was given up before that,
nothing is committed any more, whatever it still waits for. What is left in doubt is one whose
COMMIT was sent and not answered.

A connection whose server does not answer is cut (`Attempt.cut`), from another thread: no timeout
of a server or of TCP ends such a wait.
"""

from __future__ import annotations

import enum
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event

from msgworker.db.database import Trouble
from msgworker.db.drivers import file_number, sever_raw
from msgworker.db.errors import trouble
from msgworker.errors import TookTooLong

_here = threading.local()


class GivenUp(Exception):
    """This attempt was given up: it commits nothing any more."""


class Left(enum.Enum):
    """What is in the database of an attempt that has failed or was given up, and stays so.

    PART: at least one of its transactions is committed. UNKNOWN: one may be.
    """

    NOTHING = enum.auto()
    PART = enum.auto()
    UNKNOWN = enum.auto()


class Attempt:
    """What one thread does from now on. seconds: its statements, and its waiting for locks, end
    after so many; None = they do not."""

    def __init__(self, seconds: float | None = None) -> None:
        self.seconds = seconds
        self._until = None if seconds is None else time.monotonic() + seconds
        self._lock = threading.Lock()
        self._given_up = False
        self._committing = False
        self._committed = 0
        self._held: dict[Any, tuple[Any, int | None]] = {}
        self._since: float | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """The block, on this thread, is the attempt."""
        _here.attempt = self
        try:
            yield
        finally:
            _here.attempt = None

    # ------------------------------------------------------------ those who wait for it

    def give_up(self) -> Left:
        """It commits nothing from now on; what is left of it. From any thread."""
        with self._lock:
            self._given_up = True
            return self._left()

    @property
    def left(self) -> Left:
        """What is left of it, if it has failed."""
        with self._lock:
            return self._left()

    def _left(self) -> Left:
        if self._committing:
            return Left.UNKNOWN
        return Left.PART if self._committed else Left.NOTHING

    @property
    def held_seconds(self) -> float:
        """For how long it has held a connection; 0 = it has none."""
        since = self._since
        return 0.0 if since is None else time.monotonic() - since

    def cut(self) -> None:
        """Cut its connections: its thread gets an error. From any thread."""
        with self._lock:
            held = list(self._held.values())
        for raw, number in held:
            with suppress(Exception):  # its own thread may be closing it
                sever_raw(raw, number)

    # ------------------------------------------------------------ its own thread

    def check(self) -> float | None:
        """The seconds that are left, None = without end. Raises TookTooLong, GivenUp."""
        if self._given_up:
            raise GivenUp
        if self._until is None or self.seconds is None:
            return None
        rest = self._until - time.monotonic()
        if rest <= 0:
            raise TookTooLong(self.seconds)
        return rest

    @contextmanager
    def committing(self) -> Iterator[None]:
        """The block sends a COMMIT. Raises GivenUp."""
        with self._lock:
            if self._given_up:
                raise GivenUp
            self._committing = True
        try:
            yield
        except Exception as error:
            # Whatever the server has answered was rolled back.
            self._committing = trouble(error) in (Trouble.LOST, Trouble.OTHER)
            raise
        with self._lock:
            self._committing = False
            self._committed += 1

    def take(self, key: Any, raw: Any) -> None:
        """It has got a connection of the driver."""
        number = None
        with suppress(Exception):
            number = file_number(raw)
        with self._lock:
            self._held[key] = raw, number
            self._since = self._since or time.monotonic()

    def let_go(self, key: Any) -> None:
        """It has returned it."""
        with self._lock:
            self._held.pop(key, None)
            if not self._held:
                self._since = None


def attempt() -> Attempt | None:
    """That of this thread."""
    return getattr(_here, "attempt", None)


_watched: weakref.WeakSet[sa.Pool] = weakref.WeakSet()


def watch(engine: sa.Engine) -> None:
    """Attempts know of the connections that they get from this engine, from the moment that these
    are made, or tested before they are used again."""
    if engine.pool in _watched:
        return
    _watched.add(engine.pool)

    def taken(raw: Any, record: Any, *_: Any) -> None:
        if (mine := attempt()) is not None:
            mine.take(record, raw)

    def returned(_: Any, record: Any) -> None:
        if (mine := attempt()) is not None:
            mine.let_go(record)

    event.listen(engine.pool, "first_connect", taken, insert=True)
    event.listen(engine.pool, "connect", taken, insert=True)
    event.listen(engine.pool, "checkout", taken)
    event.listen(engine.pool, "checkin", returned)
    ping = engine.dialect.do_ping

    def watched_ping(dbapi_connection: Any) -> bool:
        mine = attempt()
        if mine is None:
            return ping(dbapi_connection)
        mine.take("ping", dbapi_connection)
        try:
            return ping(dbapi_connection)
        finally:
            mine.let_go("ping")

    engine.dialect.do_ping = watched_ping  # type: ignore[method-assign]
