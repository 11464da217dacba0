"""B10: fan-out inside one message: 1,000 items of 10 ms, and of no time at all."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from bench.report import Line
from bench.scenarios import Place
from bench.seeding import fill
from msgworker import App, Context, Message

ITEMS = 1_000
THREADS = 5
ITEM_SECONDS = 0.01


def run_fan_out(place: Place) -> Iterator[Line]:
    """Items per second, from the first to the return of fan_out: records included."""
    slow = Line(place.kind, "B10", f"{ITEMS:,} items x 10 ms, {THREADS} threads (limit: ideal)")
    slow.limit = [THREADS / ITEM_SECONDS]
    yield _measure(place, slow, seconds=ITEM_SECONDS)
    yield _measure(place, Line(place.kind, "B10", f"{ITEMS:,} no-op items"))
    exact = Line(place.kind, "B10", f"{ITEMS:,} no-op items, each in its transaction")
    yield _measure(place, exact, transactional_items=True)


def _measure(place: Place, line: Line, *, seconds: float = 0.0, **options: Any) -> Line:
    app = App(place.text)
    took: list[float] = []

    def item(*_: Any) -> None:
        if seconds:
            time.sleep(seconds)

    @app.handler
    def handle(msg: Message[Any], ctx: Context) -> None:
        begun = time.perf_counter()
        result = ctx.fan_out(item, range(ITEMS), threads=THREADS, **options)
        took.append(time.perf_counter() - begun)
        line.missing += ITEMS - result.done

    for _ in range(place.scale.rounds):
        fill(app, ())
        with app.engine.begin() as conn:
            app.send(conn, "fan")
        app.drain(threads=1, linger=0)
        line.rates.append(ITEMS / took[-1])
    app.engine.dispose()
    return line
