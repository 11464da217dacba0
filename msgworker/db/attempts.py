"""What a thread does in the database until its result is known, or its caller cancels it.

A caller that cancels an attempt has to know what is done. So a transaction checks before its COMMIT
whether its attempt is still wanted: of one that was cancelled before that nothing is committed
any more, whatever it still waits for. In doubt is only a transaction whose COMMIT was sent and not
answered.

A connection whose server does not answer is cut (`Attempt.cut`), from another thread: no timeout
of a server or of TCP ends such a wait.
"""

from __future__ import annotations

import enum
import random
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import Enum, auto
from typing import Any, Protocol, TypeVar

import sqlalchemy as sa
from sqlalchemy import event

from msgworker.db.database import Trouble
from msgworker.db.drivers import file_number, sever_raw
from msgworker.db.errors import trouble
from msgworker.errors import TookTooLong

_here = threading.local()


class AttemptCancelled(Exception):
    """This attempt was cancelled: it commits nothing any more."""


class Left(enum.Enum):
    """What is in the database, for good, of an attempt that has failed or was cancelled.

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
        """The seconds that are left, None = without end. Raises TookTooLong, AttemptCancelled."""
        if self._given_up:
            raise AttemptCancelled
        if self._until is None or self.seconds is None:
            return None
        rest = self._until - time.monotonic()
        if rest <= 0:
            raise TookTooLong(self.seconds)
        return rest

    @contextmanager
    def committing(self) -> Iterator[None]:
        """The block sends a COMMIT. Raises AttemptCancelled."""
        with self._lock:
            if self._given_up:
                raise AttemptCancelled
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


FIRST_PAUSE_SECONDS = 0.05


LONGEST_PAUSE_SECONDS = 5.0


def outage_pause(attempt: int, longest: float = LONGEST_PAUSE_SECONDS + 0.5) -> float:
    """The seconds to wait after the attempt-th failure in a row (from 1 on): twice as long each
    time, 5 s at most, and up to half a second more; never more than `longest`."""
    doubled = FIRST_PAUSE_SECONDS * 2.0 ** min(attempt - 1, 20)
    return min(longest, min(doubled, LONGEST_PAUSE_SECONDS) + random.uniform(0, 0.5))


# --- Send a transaction until its result is known.
#
# A connection that is lost at COMMIT leaves the result unknown: the transaction may be committed.
# Sending it again could do it twice, and continuing could lose it; so the database is read first.
#
#     send ──answered──► known                     look ──found──► known
#       │ rolled back: pause, send                   │ not committed: send
#       │ unknown: pause, look                       │ no answer: pause, look

T = TypeVar("T")


class Fate(Enum):
    """What an error means for the transaction. RAISE: retrying is useless. AGAIN: the database
    rolled it back. UNKNOWN: it may be committed."""

    RAISE = auto()
    AGAIN = auto()
    UNKNOWN = auto()


class Pauses(Protocol):
    """The pauses after failures; for example an `Outage`."""

    def failed(self, error: BaseException) -> float:
        """Record a failure; the seconds to wait."""

    def over(self) -> None:
        """Record a success."""


class Failures:
    """The pauses of an outage that is not logged, each of `longest` seconds at most; how many there
    were, and the last one."""

    def __init__(self, longest: float = LONGEST_PAUSE_SECONDS) -> None:
        self._longest = longest
        self.count = 0
        self.last: BaseException | None = None

    def failed(self, error: BaseException) -> float:
        self.count += 1
        self.last = error
        return outage_pause(self.count, self._longest)

    def over(self) -> None:
        self.count = 0


def by_trouble(error: BaseException, looking: bool) -> Fate:
    """The default judgement: a deadlock was rolled back, after a lost connection it is unknown."""
    kind = trouble(error)
    if kind is Trouble.LOST:
        return Fate.UNKNOWN
    return Fate.AGAIN if kind is Trouble.AGAIN else Fate.RAISE


def repeatable(error: BaseException, looking: bool) -> Fate:
    """The judgement for repeatable work, such as a read: no failure leaves a doubt."""
    fate = by_trouble(error, looking)
    return Fate.AGAIN if fate is Fate.UNKNOWN else fate


def nothing() -> None:
    """The `look` of repeatable work."""


def until_known(
    send: Callable[[], T],
    look: Callable[[], T | None],
    may_go_on: Callable[[], bool],
    outage: Pauses,
    *,
    judge: Callable[[BaseException, bool], Fate] = by_trouble,
    before_again: Callable[[], T | None] = lambda: None,
) -> T | None:
    """Returns the result of `send` or `look`, or None if it may not continue: then it is unknown.

    look: reads the result of the transaction; None = it was not committed. may_go_on: called after
    every failure, before the pause. judge: gets an error, and whether `look` raised it; once in
    doubt, only a result of `look` ends the doubt. before_again: called before it is sent again; its
    result, if not None, ends the loop.

    Raises errors that `judge` maps to RAISE.
    """
    in_doubt = False
    while True:
        try:
            known = look() if in_doubt else send()
        except Exception as error:
            fate = judge(error, in_doubt)
            if fate is Fate.RAISE:
                raise
            pause = outage.failed(error)
            in_doubt = in_doubt or fate is Fate.UNKNOWN
            if not may_go_on():
                return None
            time.sleep(pause)
            if in_doubt:
                continue
        else:
            if known is not None:
                outage.over()
                return known
            in_doubt = False
        end = before_again()
        if end is not None:
            return end
