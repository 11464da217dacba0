"""Executors of the items of a fan-out, and whether items may still start."""

from __future__ import annotations

import inspect
import json
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future
from contextvars import copy_context
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from datetime import time as time_of_day
from decimal import Decimal
from enum import Enum
from functools import partial
from queue import SimpleQueue
from typing import Any
from uuid import UUID

from sqlalchemy import Connection

from msgworker import errors
from msgworker.db.connections import led_elsewhere
from msgworker.instance import connections
from msgworker.instance.running.context import RunningItem
from msgworker.instance.running.in_flight import Execution
from msgworker.instance.running.outcome import Described, describe
from msgworker.instance.running.transactions import until_committed
from msgworker.instance.state import Setup, Shared
from msgworker.message import Outgoing
from msgworker.payload import encode
from msgworker.store import items as store

# --- Whether the items of a fan-out may still start, and whether their records may be written.

LEFT_BEHIND = "the handler ended while its fan-out ran; wait for it"


class Fence:
    """Whether items may start under the claim of a fan-out, and if not, why. lost: a record was
    refused because the message is no longer ours. closing: the fan-out ends. total: how many items
    the message has up to this fan-out; None = not known."""

    def __init__(
        self, setup: Setup, shared: Shared, running: Execution, until: float | None
    ) -> None:
        self.setup = setup
        self.shared = shared
        self.row = running.row
        self.msg_id = running.row.msg_id
        self.owner = running.owner
        self.lost = False
        self.closing = False
        self.total: int | None = None
        self.running = running
        limits = [limit for limit in (until, running.until) if limit is not None]
        self._until = min(limits, default=None)

    @property
    def gone(self) -> bool:
        """Whether another instance may hold the message: then nothing may be written for it."""
        return self.lost or not self.shared.identity.is_ours(self.owner)

    @property
    def over(self) -> bool:
        """Whether no further item may start."""
        return self.closing or self.running.cancelled or self.gone or self._late

    @property
    def _late(self) -> bool:
        return self._until is not None and time.monotonic() > self._until

    def reason(self) -> Exception | None:
        """Why the fan-out must end early, as an exception; None if it need not."""
        if not self.over:
            return None
        if self.gone:
            return self.lost_claim()
        if self._late:
            return errors.HandlerTimeout(
                "timeout in the middle of a fan-out; its finished items are recorded, "
                "the next try runs the others"
            )
        if not self.running.cancelled:
            self.running.cut_short = errors.HandlerMisuse
            return errors.HandlerMisuse(LEFT_BEHIND)
        self.running.cut_short = errors.RetryLater
        if self.running.cancel_reason is not None:
            why = f"cancelled in the middle of a fan-out: {self.running.cancel_reason}"
            return errors.RetryLater(0, why)
        return errors.RetryLater(0, "stopped in the middle of a fan-out; the rest runs later")

    def lost_claim(self) -> errors.LostClaim:
        """The error where nothing more may be written for the message, or a stop does not wait
        until it is."""
        self.running.cut_short = errors.LostClaim
        return errors.LostClaim(self.msg_id, self.owner)

    def may_start(self) -> bool:
        """Whether another item may start; waits while our lease is in doubt."""
        return self.shared.identity.wait_for_trust(lambda: self.over)


# --- Executors of the items of a fan-out: our own threads, or an executor of the user.
#
# Both take tasks and put results into one queue. Our threads are daemons, so that a hung item
# cannot keep a process from ending, and they check before every item whether it may still start.

MAX_VALUE = 8_000
_WHOSE = "the item's function"


@dataclass(slots=True)
class Task:
    """One item to run. key: the user's; text: the key as recorded; tries: earlier ones;
    there: it has a record; group: the value of `serial_by`."""

    place: int
    item: Any
    key: Any
    text: str
    group: Any = None
    tries: int = 0
    there: bool = False


@dataclass(slots=True)
class ItemResult:
    """The result of a task. skipped: it was not run. recorded: its record is committed already.
    sent: what is to be sent with its record."""

    task: Task
    value: str | None = None
    error: BaseException | None = None
    skipped: bool = False
    recorded: bool = False
    sent: Sequence[Outgoing] = ()


def value_text(value: Any) -> str | None:
    """An item's value as stored; raises PayloadError if it is not small JSON."""
    if value is None:
        return None
    if inspect.iscoroutine(value):
        value.close()
        raise errors.HandlerMisuse(
            "the item's function returned a coroutine that was never awaited"
        )
    try:
        text = encode(value)
    except errors.PayloadError as error:
        raise errors.PayloadError(
            f"an item's value is stored as JSON, got a {type(value).__name__} ({error}); "
            "return JSON or None"
        ) from None
    if text is not None and len(text) > MAX_VALUE:
        raise errors.PayloadError(
            f"an item's value has {len(text)} characters as JSON, at most {MAX_VALUE} are kept; "
            "store it elsewhere and return its id"
        )
    return text


def value_of(text: str | None) -> Any:
    """The stored value; the same in the try that ran the item and in later ones."""
    return None if text is None else json.loads(text)


Run = Callable[[Task], ItemResult]


class Plain:
    """Runs items with no transaction of ours; their records are written later, in batches."""

    def __init__(self, fn: Callable[[Any], Any], fence: Fence) -> None:
        self._fn = fn
        self._pid = fence.setup.pid
        self._running = fence.running

    def __call__(self, task: Task) -> ItemResult:
        item = RunningItem(self._fn, self._running)
        try:
            value = connections.call_user(self._pid, item, task.item)
            return ItemResult(task, value_text(value), sent=item.sent)
        except BaseException as error:  # the thread survives any exception
            return ItemResult(task, error=connections.carried(error))

    def close(self) -> None:
        """Nothing to close."""


class _Done(Exception):
    """The item was recorded as done by a COMMIT whose answer was lost."""


class _Refused(Exception):
    """The record was refused: the message is no longer ours. An item may raise a LostClaim."""


class Transactional:
    """Runs each item in a transaction of its own that also records it; one per thread. If the
    database rolled it back, the item runs again, a few times. After a lost COMMIT the record shows
    whether it was committed; its primary key refuses a second one."""

    def __init__(self, fn: Callable[[Any, Connection], Any], fence: Fence) -> None:
        self._fn = fn
        self._fence = fence
        self._link: connections.Connections = fence.shared.connector.new(lends=True)
        self._beside: connections.Connections = fence.shared.connector.new(beside=True)
        self._link.owner = self._beside.owner = fence.owner

    def __call__(self, task: Task) -> ItemResult:
        fence = self._fence
        ended = ItemResult(task, skipped=True)

        def once(stage: connections.TransactionProgress) -> None:
            nonlocal ended
            try:
                ended = ItemResult(task, self._in_one_transaction(task, stage), recorded=True)
            except _Done:
                stage.committing = True  # it was, in an earlier run
                text = f"the record of item {task.key!r:.80} was refused by the item table"
                ended = self._read(task) or ItemResult(task, error=errors.MsgworkerError(text))

        def was_committed() -> bool:
            nonlocal ended
            if (found := self._read(task)) is not None:
                ended = found
            return found is not None

        try:
            committed = until_committed(
                *(fence.setup, fence.shared, fence.row, once, was_committed),
                gone=lambda: fence.gone,
                over=lambda: fence.over,
            )
        except _Refused:
            fence.lost, committed = True, False
        except BaseException as error:
            return ItemResult(task, error=connections.carried(error))
        return ended if committed else ItemResult(task, skipped=True)

    def close(self) -> None:
        for link in (self._link, self._beside):
            self._fence.shared.connector.close(link)

    def _in_one_transaction(self, task: Task, stage: connections.TransactionProgress) -> str | None:
        fence, tables = self._fence, self._fence.setup.tables
        with self._link.transaction() as conn:
            with connections.lent(conn, stage, _WHOSE):
                item = RunningItem(self._fn, fence.running, conn)
                text = value_text(connections.call_user(fence.setup.pid, item, task.item, conn))
            record = store.Record(task.text, True, task.tries + 1, text)
            wrote = store.record_one(
                *(conn, tables, fence.msg_id, record),
                me=fence.owner,
                tries=fence.row.tries,
                there=task.there,
                total=fence.total,
            )
            if wrote is None:
                raise connections.missed(conn, _WHOSE) or _Refused
            if not wrote:
                raise _Done
            stage.led = led_elsewhere(conn)
            stage.committing = True
        if stage.led is not None and self._read(task) is None:
            raise connections.misled(_WHOSE, stage.led)
        return text

    def _read(self, task: Task) -> ItemResult | None:
        """The value in the item's record; None if it is not done."""
        fence = self._fence
        with self._beside.transaction() as conn:
            found = store.known(conn, fence.setup.tables, fence.msg_id, [task.text])
        record = found.get(task.text)
        if record is None or not record.done:
            return None
        return ItemResult(task, record.value, recorded=True)


@dataclass(eq=False)
class Threads:
    """Daemon threads, started as they are needed, at most `count`."""

    _count: int
    _make_run: Callable[[], Plain | Transactional]
    _fence: Fence
    _ended: SimpleQueue[ItemResult]

    def __post_init__(self) -> None:
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []

    def start(self, task: Task) -> None:
        """Run a task as soon as a thread is free. Raises RuntimeError if there is none at all."""
        number = len(self._threads)
        if number < self._count:
            name = f"msgworker-item-{number}"
            within = copy_context()  # the handler's, so that it counts as one of the instance
            thread = threading.Thread(target=within.run, args=(self._work,), name=name, daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the system allows no more threads
                if not self._threads:
                    raise
                self._count = number
            else:
                self._threads.append(thread)
        self._tasks.put(task)

    def cancel(self) -> None:
        """Nothing to do: the threads check before each item."""

    def close(self) -> None:
        for _ in self._threads:
            self._tasks.put(None)
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        run: Plain | Transactional | None = None
        try:
            while (task := self._tasks.get()) is not None:
                try:
                    run = run or self._make_run()
                    ended = run(task) if self._fence.may_start() else ItemResult(task, skipped=True)
                except BaseException as error:  # else the fan-out would wait for it forever
                    ended = ItemResult(task, error=connections.carried(error))
                self._ended.put(ended)
                del task, ended  # do not keep them alive while waiting
        finally:
            if run is not None:
                run.close()


def of_processes(executor: Executor) -> bool:
    """Whether it is a ProcessPoolExecutor."""
    processes = sys.modules.get("concurrent.futures.process")  # imported, if `executor` is of it
    return processes is not None and isinstance(executor, processes.ProcessPoolExecutor)


def in_process(fn: Callable[[Any], Any], item: Any) -> str | None:
    """Run an item in a process of a pool; returns its value as stored. What the pool cannot
    unpickle would break it, and end all other items: an error of this kind is raised as text."""
    try:
        return value_text(fn(item))
    except BaseException as error:
        if _travels(error):
            raise
        raise Described(describe(error)) from error


def _travels(error: BaseException) -> bool:
    """Whether the error can be made anew from what it is pickled as."""
    try:
        reduced: Any = error.__reduce_ex__(4)
        make, given, *state = reduced
        make(*given)
        return _is_plain([given, *state])
    except BaseException:
        return False


def _is_plain(value: Any) -> bool:
    if type(value) in (list, tuple, set, frozenset):
        return all([_is_plain(one) for one in value])
    if type(value) is dict:
        return _is_plain([*value, *value.values()])
    return type(value) in _PLAIN or isinstance(value, Enum)


_PLAIN = (
    *(str, bytes, int, float, bool, type(None), date, datetime, time_of_day, timedelta),
    *(Decimal, UUID),
)


class Remote:
    """An executor of the user: processes, a cluster. It is neither started nor shut down here."""

    def __init__(
        self,
        executor: Executor,
        fn: Callable[[Any], Any],
        ended: SimpleQueue[ItemResult],
        fence: Fence,
    ) -> None:
        self._pid = fence.setup.pid
        self._executor = executor
        self._processes = of_processes(executor)
        self._fn = fn
        self._running = fence.running
        self._ended = ended
        self._open: set[Future[Any]] = set()

    def start(self, task: Task) -> None:
        """Submit a task; raises the executor's error if it accepts none."""
        item = RunningItem(self._fn, self._running)
        call = partial(in_process, item) if self._processes else item
        future = self._executor.submit(call, task.item)
        self._open.add(future)
        future.add_done_callback(lambda done: self._returned(task, item, done))

    def cancel(self) -> None:
        """Cancel tasks that have not started."""
        for future in list(self._open):
            future.cancel()

    def close(self) -> None:
        """Nothing to end: the executor belongs to the user."""

    def _returned(self, task: Task, item: RunningItem, future: Future[Any]) -> None:
        connections.end_if_forked(self._pid)
        self._open.discard(future)
        try:
            value = future.result()
            text = value if self._processes else value_text(value)
            ended = ItemResult(task, text, sent=item.sent)
        except CancelledError:
            ended = ItemResult(task, skipped=True)
        except BaseException as error:
            broken = isinstance(error, BrokenExecutor)
            ended = ItemResult(task, error=error, skipped=broken)
        self._ended.put(ended)
