"""Threads that wait for the database instead of the event loop, what goes wrong there, and reads
that several viewers share."""

from __future__ import annotations

import asyncio
import functools
import queue
import secrets
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Hashable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeVar

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from starlette.exceptions import HTTPException

from msgworker import errors
from msgworker.counted import plural
from msgworker.db.connections import Attempt, AttemptCancelled, Left, refusal
from msgworker.db.database import Trouble
from msgworker.db.errors import is_overtime, trouble
from msgworker.logs import Said, logger
from msgworker.ops.results import OnProgress, Progress, Repaired
from msgworker.web import shown

# --- What goes wrong with reads of the database: the answer, and a line on the Overview.

AFTER = {
    Left.PART: (
        "what was asked for had begun and was ended on its way: the audit says how much is done"
    ),
    Left.UNKNOWN: (
        "the COMMIT of a write had been sent, and whether that is done is not known: look before "
        "you ask again, unless that is with the same Idempotency-Key, with which it is done once"
    ),
}
"""What an answer says of a write that may have been done, in part or wholly: then the client must
not simply repeat it."""
KEPT_SECONDS = 600.0
MOST = 1000


class Busy(HTTPException):
    """More is asked for than can be done now, or it took too long: 503."""

    def __init__(self, text: str) -> None:
        super().__init__(503, text, {"Retry-After": "5"})


class ReadErrors:
    """The last failures of reads. without: a text without secrets. seconds: of a read."""

    def __init__(self, engine: Engine, without: Callable[[str], str], seconds: float) -> None:
        self._engine = engine
        self._without = without
        self._seconds = seconds
        self._seen: deque[tuple[float, str]] = deque(maxlen=MOST)

    def answer(self, error: Exception, left: Left = Left.NOTHING) -> HTTPException | None:
        """What a request gets: 503 if the database cannot be used or is too slow, 400 for a
        ConfigError, which is about a value that was given; None = it is a fault of ours. left: of
        the attempt that has failed."""
        if isinstance(error, errors.ConfigError):
            return HTTPException(400, self._without(str(error)))
        found = self._trouble(error)
        if found is not None:
            self._seen.append((time.monotonic(), found.detail))
        if found is not None and left in AFTER:
            return HTTPException(503, f"{found.detail}; {AFTER[left]}")
        return found

    def _trouble(self, error: Exception) -> HTTPException | None:
        of_database = isinstance(error, DBAPIError | PoolTimeout)
        if isinstance(error, TimeoutError | errors.TookTooLong) or (
            of_database and is_overtime(error)
        ):
            return Busy(f"the database did not answer within {self._seconds:g} s")
        if isinstance(error, errors.DatabaseUnavailable | errors.SchemaError):
            return HTTPException(503, self._without(str(error)))
        if not of_database:
            return None
        if trouble(error) is Trouble.AGAIN:
            return Busy("the database is busy; try again")
        return HTTPException(503, self._without(str(refusal(self._engine, error))))

    @property
    def summary(self) -> str:
        """As a line of text; "" = there were none."""
        now = time.monotonic()
        recent = [one for one in self._seen if now - one[0] < KEPT_SECONDS]
        if not recent:
            return ""
        at, text = recent[-1]
        reads, age = plural(len(recent), "read"), now - at
        ago = "just now" if age < 15 else f"{shown.age(age)} ago"
        return f"{reads} of this dashboard failed in 10 minutes, the last {ago}: {text}"


# --- Threads that wait for the database, so that the event loop need not: each call is an
# `Attempt`.
#
# A server may stop answering while its kernel, a pooler or a proxy still acknowledges what is
# sent: then no timeout of its own or of TCP ends a wait. So what holds a connection for longer
# than it may is cut off from it, by a thread that uses no database, as the watchdog of an instance
# does. All of these threads are daemons: one that waits nevertheless does not keep the process
# from ending.

R = TypeVar("R")
LOOK_SECONDS = 1.0
STUCK_SECONDS = 60.0
"""If all threads are busy for so long with one call each, the process does not work any more."""
log = logger("msgworker.web")


class Watch:
    """Cuts the connections of attempts that wait for too long."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._followed: dict[Attempt, tuple[float, str]] = {}
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    @contextmanager
    def following(self, attempt: Attempt, seconds: float, what: str) -> Iterator[None]:
        """The block, on this thread, is the attempt; no use of a connection takes longer."""
        with self._lock:
            self._followed[attempt] = seconds, what
            if self._thread is None:
                self._thread = _daemon(self._run, "msgworker-web-watch")
        try:
            with attempt.running():
                yield
        finally:
            with self._lock:
                del self._followed[attempt]

    def close(self) -> None:
        self._ended.set()

    def _run(self) -> None:
        cut: set[Attempt] = set()
        while not self._ended.wait(LOOK_SECONDS):
            with self._lock:
                followed = list(self._followed.items())
            late = {one: of for one, of in followed if one.held_seconds > of[0]}
            for attempt, (seconds, what) in late.items():
                if attempt not in cut:
                    text = "%s: no answer of the database for %.0f s, its connection is cut"
                    log.warning(text, what, seconds)
                attempt.cut()
            cut = set(late)


class ReadThreads:
    """So many threads; `seconds`: how long a call may hold a connection."""

    def __init__(self, count: int, watch: Watch, seconds: float) -> None:
        self._count = count
        self._watch = watch
        self._seconds = seconds
        self._lock = threading.Lock()
        self._calls: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._busy: dict[int, float] = {}

    def submit(self, attempt: Attempt, call: Callable[[], R]) -> Future[R]:
        """Run it in the next thread that is free."""
        with self._lock:
            if len(self._threads) < self._count:
                number = len(self._threads)
                run = functools.partial(self._run, number)
                self._threads.append(_daemon(run, f"msgworker-web-{number}"))
        made: Future[R] = Future()
        self._calls.put((made, attempt, call))
        return made

    @property
    def busy(self) -> int:
        return len(self._busy)

    @property
    def stuck(self) -> bool:
        """Whether none has been free for a minute."""
        now, since = time.monotonic(), list(self._busy.values())
        late = sum(now - one > STUCK_SECONDS for one in since)
        return late >= self._count

    def close(self) -> None:
        """End them, each after its call."""
        for _ in range(self._count):
            self._calls.put(None)

    def _run(self, number: int) -> None:
        while (given := self._calls.get()) is not None:
            made, attempt, call = given
            if not made.set_running_or_notify_cancel():
                continue
            self._busy[number] = time.monotonic()
            try:
                with self._watch.following(attempt, self._seconds, "a read of the dashboard"):
                    found = call()
            except BaseException as error:  # for the one who waits
                made.set_exception(error)
            else:
                made.set_result(found)
            del self._busy[number], given, made, attempt, call


def _daemon(run: Callable[[], None], name: str) -> threading.Thread:
    made = threading.Thread(target=run, name=name, daemon=True)
    made.start()
    return made


# --- Reads shared by requests that ask for the same at the same time.

FAILED_SECONDS = 2.0
"""How long a failure is shared at most."""


class Sharing:
    """Values by key, each made once for all who ask for it within some seconds. Used on an event
    loop. most: how many are kept."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._made: dict[Hashable, tuple[float, asyncio.Future[Any]]] = {}

    async def get(self, key: Hashable, seconds: float, make: Callable[[], Awaitable[R]]) -> R:
        """The value of this key, if it was begun to be made within these seconds, else a new one.

        A caller that goes away does not end the making. Raises what `make` raises.
        """
        now = time.monotonic()
        begun, found = self._made.get(key, (0.0, None))
        most = seconds if found is None or not _failed(found) else min(seconds, FAILED_SECONDS)
        loop = asyncio.get_running_loop()
        if found is None or now - begun > most or found.get_loop() is not loop:
            found = asyncio.ensure_future(make())
            found.add_done_callback(seen)
            if len(self._made) >= self._most:
                self._made.clear()
            self._made[key] = (now, found)
        result: R = await asyncio.shield(found)
        return result

    def forget(self) -> None:
        self._made.clear()


def key_of(call: functools.partial[Any]) -> Hashable:
    """Of equal calls; of a method, which is bound anew each time, by its name."""
    name = getattr(call.func, "__qualname__", call.func)
    return name, call.args, tuple(sorted(call.keywords.items()))


def _failed(future: asyncio.Future[Any]) -> bool:
    return future.done() and (future.cancelled() or future.exception() is not None)


def seen(future: asyncio.Future[Any]) -> None:
    """Retrieve an error for which no caller waits any more, so that asyncio does not log it."""
    if not future.cancelled():
        future.exception()


# --- Writes that pages have asked for, each in a thread of its own, so that no request waits for
# them.
#
# A write of many messages at a rate may take hours: its page shows how far it is, and ends it.
# What was done by then is in the audit, also if this process ends before the write does.

MOST_RUNNING = 4
MOST_KEPT = 200
"""Writes that have ended, whose results can still be looked at."""
ANSWER_SECONDS = 120.0
"""How long one of them may hold a connection: its transactions are short, so after this the
database does not answer."""
STOP_SECONDS = 2.0
"""How long a stop waits for steps in progress."""
Work = Callable[[OnProgress], Repaired]
Words = Callable[[BaseException], str]


class _Ended(BaseException):
    """Ends an operation between two of its transactions."""


@dataclass(slots=True)
class RunningWrite:
    """A write. title: in words. by: the actor. back, back_text: the page that it concerns.

    resumes: whether the command line can continue it. error: why it has failed, as text. left:
    whether it was ended before it was finished. attempt: in the database, to cancel it.
    """

    write_id: str
    title: str
    by: str
    back: str
    back_text: str
    expected: int | None = None
    resumes: bool = False
    begun_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    ended_at: datetime | None = None
    progress: Progress | None = None
    result: Repaired | None = None
    error: str | None = None
    left: bool = False
    attempt: Attempt = field(default_factory=Attempt)
    ending: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)

    @property
    def op_id(self) -> int | None:
        """Its number in the audit."""
        ids = (one.op_id for one in (self.result, self.progress) if one is not None)
        return next((op_id for op_id in ids if op_id is not None), None)

    @property
    def seconds(self) -> float:
        """How long it has run, or took."""
        return ((self.ended_at or datetime.now(UTC)) - self.begun_at).total_seconds()

    def end(self) -> None:
        """End it after its present transaction."""
        self.ending.set()


class RunningWrites:
    """Runs writes and keeps their results. words: the text of an error, without secrets."""

    def __init__(self, words: Words, watch: Watch) -> None:
        self._words = words
        self._watch = watch
        self._lock = threading.Lock()
        self._writes: OrderedDict[str, RunningWrite] = OrderedDict()
        self._closed = False

    def start(self, work: Work, **about: Any) -> RunningWrite:
        """Begin a write; `about`: fields of it. Raises Busy."""
        write = RunningWrite(secrets.token_hex(8), **about)
        with self._lock:
            if self._closed:
                raise Busy("the dashboard is stopping; nothing was done")
            running = sum(not one.over.is_set() for one in self._writes.values())
            if running >= MOST_RUNNING:
                raise Busy(
                    f"{running} writes of this dashboard run already; wait for one to end, or end "
                    "one. Nothing was done"
                )
            self._writes[write.write_id] = write
            ended = [name for name, one in self._writes.items() if one.over.is_set()]
            for name in ended[: max(0, len(ended) - MOST_KEPT)]:
                del self._writes[name]
        name = f"msgworker-web-write-{write.write_id}"
        thread = threading.Thread(target=self._run, args=(write, work), name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            write.over.set()  # or it would count as running
            raise Busy(f"no thread for it: {error}; nothing was done") from error
        return write

    def get(self, write_id: str) -> RunningWrite | None:
        """A write that runs or has ended; None if this process does not know it."""
        with self._lock:
            return self._writes.get(write_id)

    def running(self) -> list[RunningWrite]:
        with self._lock:
            return [one for one in self._writes.values() if not one.over.is_set()]

    def stop(self, seconds: float = STOP_SECONDS) -> None:
        """Begin no more, end those that run, and log what each has not done."""
        with self._lock:
            self._closed = True
        running = self.running()
        for write in running:
            write.end()
        until = time.monotonic() + seconds
        for write in running:
            write.over.wait(max(0.0, until - time.monotonic()))
            if not write.over.is_set():
                log.warning("%s: still running as the dashboard stops%s", write.title, _rest(write))

    def _run(self, write: RunningWrite, work: Work) -> None:
        def on_progress(progress: Progress) -> None:
            write.progress = progress
            if write.ending.is_set():
                raise _Ended

        try:
            with self._watch.following(write.attempt, ANSWER_SECONDS, write.title):
                write.result = work(on_progress)
        except (_Ended, AttemptCancelled):
            write.left = True
            by = "its viewer" if write.ending.is_set() else "its deadline"
            by = "the stop of the dashboard" if self._closed else by
            log.warning("%s was ended by %s%s", write.title, by, _rest(write))
        except (errors.MsgworkerError, SQLAlchemyError) as error:
            write.error = self._words(error)
            extra = {"event": Said.WEB_FAILED}
            log.warning("%s failed: %s", write.title, write.error, extra=extra)
        except Exception as error:
            write.error = (
                f"an unexpected {type(error).__name__}; the log of the dashboard says more"
            )
            log.exception("%s failed", write.title, extra={"event": Said.WEB_FAILED})
        finally:
            write.ended_at = datetime.now(UTC)
            write.over.set()


def _rest(write: RunningWrite) -> str:
    if write.progress is None or write.op_id is None:
        return ": nothing was changed by then"
    again = f"; `--operation {write.progress.op_id}` continues it" if write.resumes else ""
    return f": {plural(write.progress.changed, 'message')} changed by then{again}"
