"""The scenarios, as data where they are drains, as functions where they are not."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

import sqlalchemy as sa

from bench import databases, limits, prototypes, transactions
from bench.checking import Verdict, judge
from bench.databases import NotAvailable
from bench.handlers import create_effects
from bench.process import Job, Seen, run_all
from bench.report import Line
from bench.seeding import EIGHTH, RANDOM, Rows, fill, finished, write_back
from msgworker import App

FAR = "'2999-01-01 00:00:00'"


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is done: messages of a drain, rounds, seconds where the time is what is given."""

    messages: int
    rounds: int
    seconds: float


FULL_SCALE = Scale(messages=100_000, rounds=3, seconds=4.0)
QUICK_SCALE = Scale(messages=20_000, rounds=1, seconds=1.0)


@dataclass(frozen=True, slots=True)
class Drain:
    """A table of rows, drained by processes; one line of the report.

    expected: how many messages must be handled; None if the drain ends by time.
    limit: what it is compared with: "batched" (by pgbench), "transaction" (by pgbench, elsewhere by
    the driver), or a number.
    prototype: the number of objects the prototype is run with, None = not compared. plain: the
    number of objects of a small table that is drained for comparison. job: all are of one job, and
    each round is one without it besides, before or after it in turn. handler, group, batch,
    deletes: see `Job`. analyzed: how many of `rows` were there when statistics were taken, None =
    all.
    """

    scenario: str
    label: str
    rows: tuple[Rows, ...]
    expected: int | None
    processes: int = 1
    threads: int = 4
    handler: str = "nothing"
    sleep_seconds: float = 0.0
    group: int | None = None
    batch: int | None = None
    deletes: bool = False
    time_limit: float | None = None
    limit: Literal["batched", "transaction"] | float | None = "batched"
    prototype: int | None = None
    plain: int | None = None
    analyzed: int | None = None
    job: bool = False


@dataclass(slots=True)
class Place:
    """A scratch database and how much is done on it."""

    kind: str
    url: sa.URL
    scale: Scale

    @property
    def text(self) -> str:
        return self.url.render_as_string(hide_password=False)


def drains(scenario: str, scale: Scale) -> Iterator[Drain]:
    """The drains of a scenario."""
    n, s = scale.messages, scale.seconds
    rows: tuple[Rows, ...]
    if scenario == "B1":
        for processes in (1, 2):
            rows = (Rows(n),)
            yield Drain("B1", "unordered", rows, n, processes, prototype=0)
    elif scenario == "B2":
        for processes in (1, 2):
            rows = (Rows(n, 1000),)
            yield Drain("B2", "1000 objects", rows, n, processes, prototype=1000)
    elif scenario == "B3":
        hot = n // 10
        yield Drain("B3", "one hot object", (Rows(hot, 1),), hot, limit=None, prototype=1)
        yield Drain(
            "B3",
            "one hot object, batch=500",
            (Rows(n, 1),),
            n,
            handler="effects",
            batch=500,
            limit=None,
            prototype=1,
        )
    elif scenario in ("B4", "B16"):
        done = finished((10 if scenario == "B4" else 100) * n)
        full = f"over {10 * n:,} waiting + {done.count:,} finished"
        for name, objects in (("unordered", 0), ("1000 objects", 1000)):
            rows = (done, Rows(10 * n, objects))
            yield Drain(scenario, f"{name} {full}", rows, None, time_limit=s, plain=objects)
    elif scenario == "B17":
        done = finished(3 * n)
        label = f"1000 objects, analyzed before they came, over {done.count:,} finished"
        rows = (done, Rows(n, 1000))
        yield Drain("B17", label, rows, n, plain=1000, analyzed=1)
    elif scenario == "B5":
        free = Rows(n, 1000, "free")
        running = Rows(1, 1, "blocked", values=(("status", "1"),))
        later = Rows(1, 1, "blocked", values=(("available_at", FAR),))
        for name, head in (("running", running), ("delayed", later)):
            rows = (head, Rows(n, 1, "blocked"), free)
            label = f"{n:,} behind a {name} head, 1000 free objects"
            yield Drain("B5", label, rows, n, plain=1000)
    elif scenario == "B6":
        each, deep = f"{10 * n:,} objects x 1", f"200 objects x {n // 20:,}"
        for objects, label in ((10 * n, each), (200, deep)):
            rows = (Rows(10 * n, objects),)
            yield Drain("B6", label, rows, None, time_limit=s, plain=1000)
    elif scenario == "B8":
        few = n // 10
        for threads in (1, 4, 8):
            yield Drain(
                "B8",
                f"transactional, {threads} threads",
                (Rows(few),),
                few,
                threads=threads,
                handler="transactional",
                limit="transaction",
            )
        yield Drain(
            "B8",
            "transactional, 4 threads, one row each",
            (Rows(few),),
            few,
            handler="effect",
            limit="transaction",
        )
        yield Drain(
            "B8",
            "transactional, 4 threads, group=50",
            (Rows(n),),
            n,
            handler="transactional",
            group=50,
            limit="transaction",
        )
    elif scenario == "B9":
        for processes in (2, 8):
            yield Drain("B9", "unordered", (Rows(n),), n, processes)
            yield Drain("B9", "1000 objects", (Rows(n, 1000),), n, processes)
    elif scenario == "B11":
        rows = (Rows(10 * n, n),)
        waiting = f"{10 * n:,} waiting of {n:,} objects"
        yield Drain("B11", f"{waiting}, memory", rows, None, time_limit=2 * s, limit=None)
        yield Drain(
            "B11",
            f"{waiting}, memory, batch=500",
            rows,
            None,
            handler="effects",
            batch=500,
            time_limit=2 * s,
            limit=None,
        )
    elif scenario == "B13":
        some = n // 4
        yield Drain(
            "B13",
            "2 ms handlers, 100 objects, 16 threads (limit: ideal)",
            (Rows(some, 100),),
            some,
            2,
            threads=16,
            handler="sleep",
            sleep_seconds=0.002,
            limit=2 * 16 / 0.002,
        )
    elif scenario == "B15":
        for name, priority in (("none", "0"), ("one in eight", EIGHTH), ("0 to 7", RANDOM)):
            rows = (Rows(n, 1000, values=(("priority", priority),)),)
            yield Drain("B15", f"1000 objects, priorities: {name}", rows, n)
    elif scenario == "B18":
        label = "1000 objects, each message of a job"
        yield Drain("B18", label, (Rows(n, 1000),), n, limit=None, job=True)
    elif scenario == "B19":
        for handler, count, many in (("nothing", n, (1, 2, 4, 8)), ("compute", n // 10, (1, 2))):
            for threads in many:
                rows, label = (Rows(count, 1000),), f"1000 objects, {handler}, threads={threads}"
                yield Drain("B19", label, rows, count, 1, threads, handler, limit=None)


DRAINS = tuple(f"B{i}" for i in (1, 2, 3, 4, 5, 6, 8, 9, 11, 13, 15, 16, 17, 18, 19))


def run_drain(place: Place, drain: Drain) -> Line:
    """Run the rounds of a drain and put what came of them on a line."""
    line = Line(place.kind, drain.scenario, drain.label, drain.processes)
    app = App(place.text)
    deadlocks = _deadlocks(app.engine, place.kind)
    for _ in range(place.scale.rounds):
        run_round(app, place, drain, line)
    more = _deadlocks(app.engine, place.kind) - deadlocks
    app.engine.dispose()
    if more:
        line.notes.append(f"{more} deadlocks")
    return line


def run_round(app: App, place: Place, drain: Drain, line: Line) -> None:
    """Fill the table, measure the yardsticks, drain it, and add what was seen to the line.

    The table is filled first: what is compared is measured with nothing in between.
    """
    if drain.job:
        run_pair(app, place, drain, line)
        return
    fill(app, drain.rows, drain.analyzed)
    if drain.handler.startswith("effect"):
        create_effects(app.engine)
    yardsticks(place, drain, line)
    write_back(app.engine)
    app.engine.dispose()
    verdict, seen = drained(place, drain)
    note_round(line, drain, verdict, seen)


def run_pair(app: App, place: Place, drain: Drain, line: Line) -> None:
    """The same drain with every message in a job and without, in turns: the first one is another in
    each round."""
    for with_job in (True, False) if len(line.rates) % 2 == 0 else (False, True):
        of_it = tuple(replace(one, values=(*one.values, ("job_id", "1"))) for one in drain.rows)
        fill(app, of_it if with_job else drain.rows)
        if with_job:
            job = app.job("month end")
            assert job.job_id == 1
            job.seal()
        write_back(app.engine)
        app.engine.dispose()
        verdict, seen = drained(place, drain)
        if with_job:
            note_round(line, drain, verdict, seen)
            line.cpus.append(line.cpu_us or 0.0)
            continue
        line.ours.append(verdict.rate)
        handled = max(1, verdict.handled)
        line.cpus_beside.append(sum(one.cpu_seconds for one in seen) / handled * 1e6)
    rate, cpu = (
        statistics.median(one / other for one, other in zip(here, beside, strict=True))
        for here, beside in ((line.rates, line.ours), (line.cpus, line.cpus_beside))
    )
    line.notes.append(
        f"of one without a job, median of {len(line.rates)} pairs: rate {rate:.3f}, CPU {cpu:.3f}"
    )


def drained(place: Place, drain: Drain) -> tuple[Verdict, list[Seen]]:
    """Drain the table as it is."""
    job = Job(
        place.text,
        threads=drain.threads,
        handler=drain.handler,
        sleep_seconds=drain.sleep_seconds,
        group=drain.group,
        batch=drain.batch,
        deletes=drain.deletes,
        time_limit=drain.time_limit,
    )
    seen = run_all(job, drain.processes)
    return judge(seen), seen


def note_round(line: Line, drain: Drain, verdict: Verdict, seen: list[Seen]) -> None:
    """Add a round to its line; the counts are those of the last one, the faults of all."""
    line.rates.append(verdict.rate)
    line.order_faults += verdict.order_faults
    line.overlaps += verdict.overlaps
    line.missing += verdict.repeated
    left = 0
    if drain.expected is not None:
        left = drain.expected - (verdict.handled - verdict.repeated)
    in_time = drain.time_limit is None or verdict.seconds < 0.9 * drain.time_limit
    line.missing += abs(left) if in_time else max(0, -left)
    handled = max(1, verdict.handled)
    offered = sum(one.offered for one in seen)
    line.statements = sum(one.counts.statements for one in seen) / handled
    line.round_trips = sum(one.counts.round_trips for one in seen) / handled
    line.cpu_us = sum(one.cpu_seconds for one in seen) / handled * 1e6
    line.wasted = 1 - sum(one.won for one in seen) / offered if offered else None
    claims, settles = sum(one.claims for one in seen), sum(one.settles for one in seen)
    lost = sum(one.lost for one in seen)
    memory = max(one.max_rss_mib for one in seen)
    line.notes[:] = [f"{claims} claims, {settles} settles, {memory:.0f} MiB"]
    line.notes += [f"{lost} lost"] if lost else []
    if left > 0 and not in_time:
        line.notes.append(f"{verdict.handled:,} handled when {drain.time_limit:.0f} s were over")


def yardsticks(place: Place, drain: Drain, line: Line) -> None:
    """Measure, right before a round, what it is compared with: the machine is noisy."""
    n = place.scale.messages
    if isinstance(drain.limit, float):
        line.limit = [drain.limit]
    elif drain.limit == "batched" and place.kind == "postgresql":
        line.limit += _one(lambda: limits.batched(place.url, n))
    elif drain.limit == "transaction":
        allows = limits if place.kind == "postgresql" else transactions
        writes = drain.handler.startswith("effect")
        few, threads = n // 10, drain.threads
        line.limit += _one(lambda: allows.one_transaction(place.url, few, threads, writes=writes))
    objects = drain.prototype
    if objects is not None:
        messages = n if objects != 1 else n // 10
        line.prototype += _one(
            lambda: prototypes.rate(
                place.url,
                place.kind,
                messages=messages,
                objects=objects,
                processes=drain.processes,
            ),
        )
    if drain.plain is not None:
        line.ours.append(_plain(place, drain.plain))


def _plain(place: Place, objects: int) -> float:
    """The rate of B1 or B2, in a database beside."""
    n = place.scale.messages
    with databases.scratch(place.kind, "_plain") as url:
        beside = Place(place.kind, url, place.scale)
        app = App(beside.text)
        fill(app, (Rows(n, objects),))
        app.engine.dispose()
        verdict, _ = drained(beside, Drain("plain", "", (), n))
        return verdict.rate


def _one(measure: Callable[[], float]) -> list[float]:
    """One figure, or none if it cannot be had here."""
    try:
        return [measure()]
    except NotAvailable:
        return []


def _deadlocks(engine: sa.Engine, kind: str) -> int:
    if kind != "postgresql":
        return 0
    query = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    with engine.connect() as conn:
        return int(conn.exec_driver_sql(query).scalar() or 0)
