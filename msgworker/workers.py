"""The workers of several databases in one process: they start together and stop together."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, fields, replace

from sqlalchemy.exc import SQLAlchemyError

from msgworker.db.errors import outage_pause
from msgworker.errors import DatabaseUnavailable, ExitCode, MsgworkerError
from msgworker.instance.observers import Tally
from msgworker.instance.stop import GRACE, Signals, StopRequest, Working, end_by
from msgworker.instance.worker import Report, Worker
from msgworker.logs import logger
from msgworker.processlock import ProcessLock

TICK_SECONDS = 0.05
BY_WEIGHT = (ExitCode.UNREACHABLE, ExitCode.REFUSED, ExitCode.RETRIES)
log = logger("msgworker.databases")
SUMMED = [one.name for one in fields(Report) if one.type == "int"]
"""The counts of a Report."""


@dataclass(frozen=True, slots=True)
class Reports:
    """What a drain of several databases did. by: the `Report` of each, by its name."""

    by: Mapping[str, Report] = field(hash=False)

    @property
    def total(self) -> Report:
        """The sums over all databases. seconds and lease_seconds are the longest, next_seconds is
        the shortest; stopped and database_lost are true if they are true for one."""
        reports = list(self.by.values())
        waits: Counter[str] = sum((Counter(one.left_by) for one in reports), Counter())
        nexts = [one.next_seconds for one in reports if one.next_seconds is not None]
        leases = [one.lease_seconds for one in reports if one.lease_seconds is not None]
        return Report(
            **{name: sum(getattr(one, name) for one in reports) for name in SUMMED},
            seconds=max((one.seconds for one in reports), default=0.0),
            database_lost=any(one.database_lost for one in reports),
            left_by=dict(waits),
            next_seconds=min(nexts, default=None),
            stopped=any(one.stopped for one in reports),
            lease_seconds=max(leases, default=None),
        )

    @property
    def exit_code(self) -> int:
        """The worst of them: 3, then 1, then 6, else 0; see `Report.exit_code`."""
        codes = {one.exit_code for one in self.by.values()}
        return next((code for code in BY_WEIGHT if code in codes), ExitCode.OK)

    def __str__(self) -> str:
        lines = [f"{name}: {one}" for name, one in self.by.items()]
        return "\n".join([*lines, f"together: {self.total}"])


class _Part:
    """The worker of one database, which runs in a thread of its own."""

    def __init__(self, name: str, worker: Worker, work: Callable[[_Part], Report | None]) -> None:
        self.name = name
        self.worker = worker
        self.asked = StopRequest(ends_process=False)
        self.error: BaseException | None = None
        self.report: Report | None = None
        self.away: DatabaseUnavailable | None = None
        self.was_up = False
        self._work = work
        self.thread = threading.Thread(
            target=self._run, name=f"msgworker-database-{name}", daemon=True
        )

    def _run(self) -> None:
        self.worker.stop_requests = self.asked
        try:
            self.report = self._work(self)
        except BaseException as error:
            self.error = error
        finally:
            self.worker.stop_requests = None

    @property
    def is_away(self) -> bool:
        """Whether its database could not be used when that was last tried."""
        return self.away is not None and self.worker.instance_id is None

    def look(self) -> None:
        """Note that its instance runs."""
        if self.was_up or self.worker.instance_id is None:
            return
        self.was_up = True
        if self.away is not None:
            log.warning("database %s: can be used now", self.name)
        self.away = None  # an outage that is over says nothing of the next stop


class Workers(Working):
    """The workers of several databases: one instance in each, all with the same handlers.

    `run` until stopped, `drain` until all are empty, or `start` and `stop`; as a context manager it
    stops at the end. An outage of one database does not stop the others: its own worker waits. A
    permanent error of one worker, such as a missing table, stops all of them in order.
    """

    def __init__(self, workers: Mapping[str, Worker]) -> None:
        self._workers = dict(workers)
        self._parts: list[_Part] = []
        self._pid = 0  # whose threads they are
        self._asked: StopRequest | None = None  # of the run or drain under way
        self._lock = ProcessLock()

    @property
    def tally(self) -> dict[str, Tally]:
        """What the instance of each database has done so far, by the name of the database."""
        return {name: worker.tally for name, worker in self._workers.items()}

    @property
    def instance_ids(self) -> dict[str, str | None]:
        """The id of the instance of each database; None where none runs now."""
        return {name: worker.instance_id for name, worker in self._workers.items()}

    @property
    def errors(self) -> dict[str, MsgworkerError | None]:
        """Why the instance of each database ended by itself, see `Worker.error`."""
        return {name: worker.error for name, worker in self._workers.items()}

    def wake(self) -> None:
        """Look for work now, in all databases."""
        for worker in self._workers.values():
            worker.wake()

    def start(self) -> None:
        """Start all and return at once; end with `stop`. If one cannot start, those that did
        are stopped and its error is raised."""
        with self._lock:
            self._refuse_twice()
            try:
                for worker in self._workers.values():
                    worker.start()
            except BaseException:
                self.stop()
                raise

    def stop(self, grace: float = GRACE) -> bool:
        """Stop all at the same time, in order; True if every handler ended within `grace` seconds.

        Like `Worker.stop`: from any thread, any number of times; inside a handler it requests the
        stop and returns False.
        """
        for one in (self._asked, *(part.asked for part in self._parts)):
            if one is not None:
                one.stop(grace)
        workers = list(self._workers.values())
        for worker in workers:
            worker.ask(grace)
        if any(worker.is_within for worker in workers):
            return False
        return all([worker.stop(grace) for worker in workers])

    def run(
        self, *, signals: bool = False, grace: float = GRACE, time_limit: float | None = None
    ) -> None:
        """Work until `stop` is called, or until a signal if `signals`; see `Worker.run`.

        A database that cannot be reached or denies access at the start is retried, with a warning,
        while the others work. Raises DatabaseUnavailable if none of them can be used. A permanent
        error of one worker is raised after the others have been stopped in order.
        """
        until = None if time_limit is None else time.monotonic() + time_limit

        def work(part: _Part) -> None:
            _run(part, grace, until)
            asked.stop()  # a handler may have ended it, by KeyboardInterrupt

        with self._working(signals) as asked:
            self._go(self._workers, work, asked)

    def drain(
        self,
        *,
        time_limit: float | None = None,
        linger: float = 5.0,
        retry_linger: float | None = None,
        grace: float = GRACE,
        signals: bool = False,
        outage_limit: float = 60.0,
    ) -> Reports:
        """Work in each database until nothing is due in any; arguments as in `Worker.drain`. What
        handlers send to another database meanwhile is handled, too.

        A database that cannot be used is reported as lost (exit code 3), and the others are still
        drained. Raises a permanent error of one worker, as `run` does.
        """
        until = None if time_limit is None else time.monotonic() + time_limit
        by: dict[str, Report] = {}

        def work(part: _Part) -> Report:
            begun, part.worker.ran = time.monotonic(), Tally()
            try:
                return part.worker.drain(
                    time_limit=None if until is None else max(0.0, until - begun),
                    linger=linger,
                    retry_linger=retry_linger,
                    grace=grace,
                    outage_limit=outage_limit,
                )
            except DatabaseUnavailable as error:
                log.warning("database %s: %s", part.name, error)
                seconds = time.monotonic() - begun
                return Report(**part.worker.ran.reported, seconds=seconds, database_lost=True)

        workers = self._workers
        with self._working(signals) as asked:
            while workers:
                parts = self._go(workers, work, asked)
                found = {part.name: part.report or Report() for part in parts}
                by |= {name: _with_before(one, by.get(name)) for name, one in found.items()}
                did = any(part.worker.ran.won for part in parts)  # whatever became of them
                workers = self._due_again(by, asked) if did and len(by) > 1 else {}
        return Reports(by)

    def _due_again(self, by: Mapping[str, Report], asked: StopRequest) -> dict[str, Worker]:
        """Those that have drained their database, and have something due in it since, or cannot be
        asked: another drain says why."""
        found: dict[str, Worker] = {}
        for name, one in by.items():
            if one.stopped or one.database_lost or one.undone or one.refused or asked.in_order:
                continue
            worker = self._workers[name]
            try:
                due = worker.left().due_heads
            except (MsgworkerError, SQLAlchemyError):
                due = 1
            found |= {name: worker} if due else {}
        return {} if asked.in_order else found

    # ------------------------------------------------------------ all at once

    @contextmanager
    def _working(self, signals: bool) -> Iterator[StopRequest]:
        """The requests to stop all while the block runs; nothing else starts them meanwhile."""
        asked = StopRequest()
        with self._lock:
            self._refuse_twice()
            self._pid, self._asked = os.getpid(), asked
        try:
            with Signals(asked) if signals else nullcontext():
                yield asked
        finally:
            self._asked, self._parts = None, []

    def _refuse_twice(self) -> None:
        here = self._asked is not None and self._pid == os.getpid()  # not of the parent of a fork
        if here or any(self.instance_ids.values()):
            raise MsgworkerError("these workers run already; create other ones")

    def _go(
        self,
        workers: Mapping[str, Worker],
        work: Callable[[_Part], Report | None],
        asked: StopRequest,
    ) -> list[_Part]:
        """Let all of these work until each has ended; raise the error that ended one of them."""
        self._parts = parts = [_Part(name, one, work) for name, one in workers.items()]
        try:
            for part in parts:
                part.thread.start()
            asked.begun = True
            while any(part.thread.is_alive() for part in parts):
                self._pass_on(asked, parts)
        finally:  # also where this thread is interrupted
            for part in parts:
                part.asked.stop()
            for part in parts:
                part.thread.join()
        asked.begun = False
        if asked.at_once is not None:
            end_by(asked.at_once)
        _raise_first(parts)
        return parts

    def _pass_on(self, asked: StopRequest, parts: list[_Part]) -> None:
        """Pass on to all a stop that was requested or that an error requires."""
        if not asked.in_order:
            asked.wait(TICK_SECONDS)
        for part in parts if asked.in_order else []:
            if part.thread.is_alive():
                part.thread.join(TICK_SECONDS)
                break
        if all(part.is_away for part in parts) or any(part.error for part in parts):
            asked.stop()
        for part in parts:
            part.look()
            if asked.at_once is not None and part.asked.at_once is None:
                part.asked.insist(asked.at_once)
            elif asked.in_order and not part.asked.in_order:
                part.asked.stop(asked.grace)


def _run(part: _Part, grace: float, until: float | None) -> None:
    """Run one worker until it is stopped; start it again while its database cannot be used."""
    failures = 0
    while not part.asked.in_order:
        rest = None if until is None else max(0.0, until - time.monotonic())
        try:
            return part.worker.run(grace=grace, time_limit=rest)
        except DatabaseUnavailable as error:
            part.away = error
        failures = 1 if part.was_up else failures + 1
        part.was_up = False
        if failures == 1:
            log.warning("database %s: %s; trying again", part.name, part.away)
        part.asked.wait(outage_pause(failures))
        if until is not None and time.monotonic() >= until:
            return None
    return None


def _with_before(report: Report, before: Report | None) -> Report:
    """The report of a drain, with the counts of an earlier one of the same database."""
    if before is None:
        return report
    summed = ("done", "failed", "retried", "released", "seconds")
    return replace(report, **{one: getattr(report, one) + getattr(before, one) for one in summed})


def _raise_first(parts: list[_Part]) -> None:
    """The error that ended one of them; or that none of the databases could be used."""
    for part in parts:
        if part.error is not None:
            with suppress(Exception):  # it may refuse it
                part.error.add_note(f"in database {part.name}; the workers of all were stopped")
            raise part.error
    away = [part.away for part in parts if part.is_away]
    if away and len(away) == len(parts) and away[0] is not None:
        raise away[0]
