"""B14: real purchases, an effect row for each, written with "done"; totals to the cent.

One message in a transaction, `group=50` messages in one, and a handler that takes `batch=500`. The
purchases are those of the sample, repeated with further customers; all of a customer are in order.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count, islice

import sqlalchemy as sa

from bench.checking import judge
from bench.handlers import EFFECTS, create_effects
from bench.process import Job, run_all
from bench.report import Line
from bench.scenarios import Drain, Place, note_round, yardsticks
from bench.seeding import TOPIC, fill, tidy
from msgworker import App
from msgworker.demo.purchases import Purchase, read

ONE, GROUP, BATCH = "one by one", "group=50", "batch=500"
WAYS = {
    ONE: Drain("B14", "", (), None, handler="effect", limit=None),
    GROUP: Drain("B14", "", (), None, handler="effect", group=50, limit=None),
    BATCH: Drain("B14", "", (), None, handler="effects", batch=500, threads=2),
}


@dataclass(frozen=True, slots=True)
class Bought:
    """What a customer's effects must come to."""

    purchases: int
    cents: int


def run_purchases(place: Place) -> Iterator[Line]:
    """A line for each way; those in batches say how many times they are faster than one by one."""
    alone: list[float] = []
    for way, drain in WAYS.items():
        messages = place.scale.messages // (10 if way == ONE else 1)
        drain = replace(drain, label=f"{messages:,} purchases, {way}", expected=messages)
        line = Line(place.kind, drain.scenario, drain.label)
        for _ in range(place.scale.rounds):
            yardsticks(place, drain, line)
            _round(place, drain, line)
        if way == ONE:
            alone = line.rates
        elif line.rate and alone:
            line.notes.insert(0, f"{line.rate / statistics.median(alone):.1f} x {ONE}")
        yield line


def _round(place: Place, drain: Drain, line: Line) -> None:
    app = App(place.text)
    fill(app, ())
    create_effects(app.engine)
    bought = list(repeated(drain.expected or 0))
    with app.engine.begin() as conn:
        app.send_many(conn, TOPIC, [(p.payload, p.customer) for p in bought])
    tidy(app.engine)
    app.engine.dispose()
    job = Job(
        place.text,
        threads=drain.threads,
        handler=drain.handler,
        group=drain.group,
        batch=drain.batch,
    )
    seen = run_all(job, drain.processes)
    verdict = judge(seen)
    # A batch that was rolled back has run again: that shows in the log, not in the effects.
    note_round(line, replace(drain, expected=None), replace(verdict, repeated=0), seen)
    line.missing += wrong(app.engine, bought)
    if verdict.repeated:
        line.notes.append(f"{verdict.repeated} started again")
    app.engine.dispose()


def repeated(number: int) -> Iterator[Purchase]:
    """So many purchases: the sample again and again, each time by other customers."""
    sample = read()
    copies = (
        replace(p, number=len(sample) * again + p.number, customer=f"{p.customer}-{again}")
        for again in count()
        for p in sample
    )
    return islice(copies, number)


def wrong(engine: sa.Engine, bought: list[Purchase]) -> int:
    """How many customers have effects that are not theirs to the cent, or none."""
    wanted: dict[str, Bought] = {}
    for p in bought:
        so_far = wanted.get(p.customer, Bought(0, 0))
        wanted[p.customer] = Bought(so_far.purchases + 1, so_far.cents + p.cents)
    query = f"SELECT customer, count(*), sum(cents) FROM {EFFECTS} GROUP BY customer"
    with engine.connect() as conn:
        found = {name: Bought(n, int(cents)) for name, n, cents in conn.exec_driver_sql(query)}
    return sum(found.get(name) != wanted.get(name) for name in wanted.keys() | found.keys())
