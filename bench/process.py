"""One process of a scenario: an App with one handler, drained; what it saw goes back to the parent.

Public interface only, but for what is counted. Each process keeps its own log of (object, message,
start, end) in nanoseconds of CLOCK_MONOTONIC, which is the same clock for all processes of a
machine.
"""

from __future__ import annotations

import gc
import multiprocessing as mp
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event

from bench.handlers import TRANSACTIONAL, Entry, make_handler
from bench.seeding import TOPIC
from msgworker import App, Worker

START_SECONDS = 60
END_SECONDS = 600


@dataclass(frozen=True, slots=True)
class Job:
    """What each process does.

    handler: a name of bench/handlers.py. group, batch: as of `@app.handler`. deletes: what is done
    is deleted. time_limit: seconds; None = until nothing is left.
    """

    url: str
    threads: int = 4
    handler: str = "nothing"
    sleep_seconds: float = 0.0
    group: int | None = None
    batch: int | None = None
    deletes: bool = False
    time_limit: float | None = None
    settings: tuple[tuple[str, Any], ...] = ()

    @property
    def options(self) -> dict[str, Any]:
        """What is said of the handler; only what is asked for."""
        options: dict[str, Any] = {"transactional": self.handler in TRANSACTIONAL}
        options |= {"group": self.group} if self.group else {}
        options |= {"batch": self.batch} if self.batch else {}
        options |= {"when_done": "delete"} if self.deletes else {}
        return options


@dataclass(slots=True)
class Counts:
    """Statements and round trips of one process, counted at SQLAlchemy's events, or by the driver's
    cursor."""

    statements: int = 0
    round_trips: int = 0
    by_text: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Seen:
    """What one process saw and did."""

    log: list[Entry]
    counts: Counts
    claims: int = 0
    offered: int = 0
    won: int = 0
    settles: int = 0
    retried: int = 0
    lost: int = 0
    cpu_seconds: float = 0.0
    max_rss_mib: float = 0.0
    error: str | None = None


def run_all(job: Job, processes: int) -> list[Seen]:
    """Run the job in so many new processes, started together; raises RuntimeError if one fails."""
    context = mp.get_context("spawn")
    barrier = context.Barrier(processes)
    results: Any = context.Queue()
    children = [
        context.Process(target=_child, args=(job, barrier, results), daemon=True)
        for _ in range(processes)
    ]
    for child in children:
        child.start()
    try:
        limit = START_SECONDS + END_SECONDS + (job.time_limit or 0)
        seen: list[Seen] = [results.get(timeout=limit) for _ in children]
    finally:
        for child in children:
            child.join(5)
            if child.is_alive():
                child.terminate()
    failed = [one.error for one in seen if one.error]
    if failed:
        raise RuntimeError(failed[0])
    return seen


def _child(job: Job, barrier: Any, results: Any) -> None:
    seen = Seen([], Counts())
    try:
        work(job, barrier, seen)
    except Exception as error:
        barrier.abort()
        seen.error = f"{type(error).__name__}: {error}"
    results.put(seen)


def work(job: Job, barrier: Any, seen: Seen) -> None:
    """Do the job in this process, as soon as all are at the barrier; `seen` gets what is seen."""
    app = App(job.url, **dict(job.settings))
    app.add_handler(TOPIC, make_handler(job.handler, seen.log, job.sleep_seconds), **job.options)
    worker = app.worker(threads=job.threads)
    assert app.topics is not None
    assert app.tables is not None  # connects and reads the schema before the clock starts
    tallies = watch(app, seen.counts, worker)
    gc.freeze()  # as `msgworker run` does
    barrier.wait(START_SECONDS)
    cpu = time.process_time()
    worker.drain(linger=0, time_limit=job.time_limit)
    seen.cpu_seconds = time.process_time() - cpu
    seen.max_rss_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    if seen.log and not seen.counts.statements:
        raise RuntimeError("messages were handled, but no statement was counted")
    for tally in tallies[-1:]:
        for name in ("claims", "offered", "won", "settles", "retried", "lost"):
            setattr(seen, name, getattr(tally, name))


def watch(app: App, counts: Counts, worker: Worker) -> list[Any]:
    """Count statements and round trips, on all connections of the App; the list returned gets the
    worker's tally.

    A round trip: each statement, and BEGIN and COMMIT where they go over the wire by themselves.
    """
    tallies: list[Any] = []
    engine = app.engine  # what is sent by the engines beside it is told to its listeners, too
    psycopg = engine.dialect.driver == "psycopg"  # sends BEGIN itself, before a first statement
    wire = engine.dialect.name != "sqlite"

    def note(text: str) -> None:
        counts.statements += 1
        counts.round_trips += 1
        counts.by_text[text] = counts.by_text.get(text, 0) + 1
        if worker.instance_id and not tallies:
            tallies.append(worker.tally)

    def statement(conn: Any, cursor: Any, text: str, *_: Any) -> None:
        note(text)

    def alone(conn: sa.Connection) -> bool:
        return conn.get_execution_options().get("isolation_level") == "AUTOCOMMIT"

    def end(conn: sa.Connection) -> None:
        if psycopg:  # its BEGIN and its end, unless nothing was sent between them
            driver: Any = conn.connection.driver_connection
            counts.round_trips += 0 if alone(conn) or not driver.info.transaction_status else 2
        else:
            counts.round_trips += wire and not alone(conn)

    if psycopg:
        for one in (
            app.engine,
            app._own,
            app._engine_beside(lends=True),
        ):  # each has a pool of its own
            _note_at_the_driver(one, note)
    else:
        event.listen(engine, "before_cursor_execute", statement)
    event.listen(engine, "commit", end)
    event.listen(engine, "rollback", end)
    return tallies


def _note_at_the_driver(engine: sa.Engine, note: Callable[[str], None]) -> None:
    """Count in psycopg's cursor: who listens to SQLAlchemy's makes statements slower."""
    from psycopg import Cursor

    class Counting(Cursor[Any]):
        def execute(self, query: Any, *args: Any, **kwargs: Any) -> Any:
            note(query)
            return super().execute(query, *args, **kwargs)

    def checkout(connection: Any, *_: Any) -> None:
        connection.cursor_factory = Counting

    event.listen(engine, "checkout", checkout)
