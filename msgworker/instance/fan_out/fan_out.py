"""Fan-out inside one message: check the arguments, run the items, return the result.

One fan-out of a message runs at a time, and none outlives the handler. Records belong to the
message: an item that an earlier try, another instance or an earlier run has done does not run
again.
"""

from __future__ import annotations

import asyncio
import inspect
import pickle
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass, fields
from functools import partial
from queue import SimpleQueue
from typing import Any

from msgworker.config import MAX_THREADS, number, whole
from msgworker.db.errors import without
from msgworker.errors import ConfigError, HandlerMisuse
from msgworker.instance.fan_out import executors
from msgworker.instance.fan_out.items import BATCH, FanOutRun, ItemCounts, check_name, key_of
from msgworker.instance.running.context import FanOut
from msgworker.instance.running.in_flight import Execution
from msgworker.instance.running.outcome import describe
from msgworker.instance.running.traceback import home_of
from msgworker.instance.state import Setup, Shared
from msgworker.message import topic_of
from msgworker.processlock import ProcessLock
from msgworker.store import bounded

DEFAULT_THREADS = 5
DEFAULT_IN_FLIGHT = 64
MONTH_SECONDS = 30 * 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class FanOutArgs:
    """The arguments of a fan-out, see Context.fan_out. Raises ConfigError."""

    fn: Callable[..., Any]
    items: Iterable[Any]
    key: Callable[[Any], Any] | None
    threads: int | None
    executor: Executor | None
    timeout: float | None
    serial_by: Callable[[Any], Any] | None
    transactional_items: bool
    name: str

    def __post_init__(self) -> None:
        _check_function(self.fn)
        for word, given in (("key", self.key), ("serial_by", self.serial_by)):
            if given is not None and not callable(given):
                raise ConfigError(f"{word} must be a function of an item, got {given!r:.80}")
        if isinstance(self.items, str | bytes) or not isinstance(self.items, Iterable):
            raise ConfigError(
                f"items must be a list or another iterable of items, got {self.items!r:.80}"
            )
        if self.executor is not None:
            _check_executor(self.executor, self.fn, self.transactional_items)
        if self.threads is not None:
            whole("threads", self.threads, 1, MAX_THREADS)
        if self.timeout is not None:
            number("timeout", self.timeout, 0.001, MONTH_SECONDS)
        check_name(self.name)

    @property
    def count(self) -> int:
        """How many items run at once, or are submitted at once."""
        default = DEFAULT_THREADS if self.executor is None else DEFAULT_IN_FLIGHT
        return default if self.threads is None else self.threads


def _check_function(fn: Any) -> None:
    if not callable(fn):
        raise ConfigError(f"fan_out takes a function first, then the items, got {fn!r:.80}")
    called = fn if inspect.isroutine(fn) else getattr(fn, "__call__", fn)  # noqa: B004
    waits = inspect.iscoroutinefunction(called) or inspect.isasyncgenfunction(called)
    if waits or inspect.isgeneratorfunction(called):
        raise ConfigError(
            "the function of a fan-out must be a plain one; for async work gather inside an async "
            "handler, or call asyncio.run in the function"
        )


def _check_executor(executor: Any, fn: Any, exact: bool) -> None:
    if not isinstance(executor, Executor):
        raise ConfigError(
            "executor must be a concurrent.futures.Executor, such as a ProcessPoolExecutor or "
            f"the get_executor() of a Dask client, got {executor!r:.80}"
        )
    if exact:
        raise ConfigError(
            "transactional_items=True runs on threads of this process, which hold the connections; "
            "leave out executor="
        )
    if executors.of_processes(executor):
        try:
            pickle.dumps(fn)
        except Exception as error:
            raise ConfigError(
                f"the function cannot be sent to another process ({error}); define it at the top "
                "level of a module"
            ) from error


_MAKING = ProcessLock()
"""Held for a moment, when the first fan-out of a handler begins; most handlers have none."""


class FanOuts:
    """The fan-outs of one handler while it runs. The handler calls `fan_out` from any thread; its
    handler thread calls `close`."""

    __slots__ = (
        *("_closed", "_fence", "_left_out", "_lock", "_running", "_secrets", "_setup", "_shared"),
        "_used",
    )

    def __init__(self, setup: Setup, shared: Shared, running: Execution, secrets: set[str]) -> None:
        self._setup = setup
        self._shared = shared
        self._running = running
        self._secrets = secrets
        self._lock: threading.Lock | None = None
        self._closed = False
        self._fence: executors.Fence | None = None
        self._used: dict[str, list[tuple[Any, set[int]]]] = {}
        self._left_out = 0

    def fan_out(self, **arguments: Any) -> FanOut:
        """Run a fan-out to its end; see Context.fan_out."""
        args = FanOutArgs(**arguments)
        _refuse_on_a_loop()
        with _MAKING:
            if self._lock is None:
                self._lock = threading.Lock()
        if not self._lock.acquire(blocking=False):
            raise HandlerMisuse(
                "a fan-out of this message runs already; one inside another, or beside it, is not "
                "possible: give all items to one fan_out"
            )
        try:
            until = None if args.timeout is None else time.monotonic() + args.timeout
            self._fence = fence = executors.Fence(self._setup, self._shared, self._running, until)
            # The handler's thread, in `close`, sets `_closed` and then reads `_fence`; this one
            # sets `_fence` and then reads `_closed`: so one of the two sees the other.
            if self._closed:
                fence.closing = True
            tally = self._run(args, fence)
        finally:
            self._lock.release()
        counts = {one.name: getattr(tally, one.name) for one in fields(tally)}
        return FanOut(total=len(tally.values), **counts)

    @property
    def begun(self) -> bool:
        """Whether the handler has begun a fan-out."""
        return self._lock is not None

    @property
    def may_own_thread(self) -> bool:
        """Whether this thread, which is no item's, may have been started by one: once a fan-out has
        begun, all but those of the instance, and in copies of the handler's context."""
        return self._lock is not None and not self._shared.stop.within

    def end(self) -> bool:
        """The handler has ended; False = it has begun no fan-out, and `close` will not wait."""
        self._closed = True
        return self._lock is not None  # a fan-out that begins now sees `_closed`

    def close(self) -> None:
        """The handler has ended: end a fan-out that it left in another thread."""
        if not self.end():
            return
        assert self._lock is not None
        if self._fence is not None:
            self._fence.closing = True
        with self._lock:  # wait until it has ended
            pass

    def _run(self, args: FanOutArgs, fence: executors.Fence) -> ItemCounts:
        seen = set[int]()
        others = [other for fn, other in self._used.get(args.name, ()) if fn is not args.fn]
        tasks = self._tasks(args, seen, others, fence.setup.tables.own_codec)
        whole = isinstance(args.items, Collection)
        first = not self._used
        used = self._used.get(args.name, ())
        before = [mark for fn, marks in used if fn is args.fn for mark in marks]

        def left_out(recorded: int, of_ours: int) -> None:
            """A retry may have other items: also count those of earlier tries that this has not."""
            if first and recorded < bounded.SCAN:
                self._left_out = recorded
            self._left_out = max(0, self._left_out - of_ours)
            fence.total = (fence.total or 0) + self._left_out

        if whole:  # all its keys are known
            self._remember(args, seen)
            fence.total = sum(len(one) for used in self._used.values() for _, one in used)
        ended: SimpleQueue[executors.ItemResult] = SimpleQueue()
        run = FanOutRun(
            fence,
            _executor_of(args, fence, ended),
            ended,
            in_flight=args.count if args.executor is not None else max(BATCH, args.count),
            listed=len(seen) if whole else None,
            before=frozenset(before),
            on_read=left_out,
            text_of=lambda error: without(describe(error, home_of(args.fn)), self._secrets),
        )
        try:
            return run.run(tasks)
        finally:
            if not whole:
                self._remember(args, seen)

    def _remember(self, args: FanOutArgs, seen: set[int]) -> None:
        """Another fan-out may use the same keys only with the same function."""
        used = self._used.setdefault(args.name, [])
        for fn, before in used:
            if fn is args.fn:
                before |= seen
                return
        used.append((args.fn, seen))

    @staticmethod
    def _tasks(
        args: FanOutArgs, seen: set[int], others: list[set[int]], codec: str
    ) -> Iterator[executors.Task]:
        """The items as tasks, with unique keys. A collection is checked as a whole before anything
        runs; of a generator, a duplicate key is refused when it is read."""
        stream = not isinstance(args.items, Collection)
        key_of_it = partial(key_of, by=args.key, name=args.name, codec=codec)

        def check(item: Any, place: int) -> tuple[Any, str]:
            key, text = key_of_it(item, place)
            # 64 bits: two of a million texts have the same one in 30 million runs
            mark = hash(text)
            if mark in seen:
                raise ConfigError(
                    f"the key {key!r:.80} of item {place} appears twice; keys must be unique"
                    + ("; the items before it have run" if stream else "")
                )
            if any(mark in other for other in others):
                raise ConfigError(
                    f"the key {key!r:.80} of item {place} was used by another fan-out of this "
                    "message; give each fan-out a name="
                )
            seen.add(mark)
            return key, text

        if not stream:
            for place, item in enumerate(args.items):
                check(item, place)
        serial_by = args.serial_by

        def tasks() -> Iterator[executors.Task]:
            for place, item in enumerate(args.items):
                key, text = (check if stream else key_of_it)(item, place)
                yield executors.Task(
                    place, item, key, text, None if serial_by is None else serial_by(item)
                )

        return tasks()


def _executor_of(
    args: FanOutArgs, fence: executors.Fence, ended: SimpleQueue[executors.ItemResult]
) -> executors.Threads | executors.Remote:
    fn = fence.setup.tracer.around_items(topic_of(fence.row.topic), args.fn)
    if args.executor is not None:
        return executors.Remote(args.executor, fn, ended, fence)
    kind = executors.Transactional if args.transactional_items else executors.Plain
    return executors.Threads(args.count, partial(kind, fn, fence), fence, ended)


def _refuse_on_a_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise HandlerMisuse(
        "fan_out waits for its items and would stop the event loop of all async handlers; "
        "call it as: await asyncio.to_thread(ctx.fan_out, ...)"
    )
