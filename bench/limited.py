"""An unlimited topic (B2: 100 messages in each object) beside a limited one of which many wait.

    python -m bench.limited URL --pairs 3

Per pair the same messages once behind 100,000 that are done, and once behind 100,000 of a topic
that may start one a second: rate, CPU of this process, and statements. The rate needs a quiet
machine.
"""

from __future__ import annotations

import argparse
import resource
import time
from dataclasses import dataclass
from statistics import median

import sqlalchemy as sa

from msgworker import App, MessageTable

OBJECTS = 200
WITHIN_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Run:
    """Of one run, per second and per message: `cpu` in microseconds."""

    rate: float
    cpu: float
    statements: float


def run(url: str, *, messages: int, others: int, limited: bool) -> Run:
    """Send them behind so many others, which are limited or done; start one worker, and wait until
    they are done."""
    app = App(url, table=MessageTable("bench_limited"))
    done = 0

    def handle(_: object) -> None:
        nonlocal done
        done += 1

    app.add_handler("free", handle)
    if limited:
        app.add_handler("limited", lambda _: None, max_running=1, rate="1/s")
    app.create_schema()
    with app.engine.begin() as conn:
        conn.execute(sa.delete(app.tables.message))
    with app.engine.begin() as conn:
        app.send_many(conn, "limited", [(None, f"l{i}") for i in range(others)])
        if not limited:
            conn.execute(sa.update(app.tables.message).values(status=2))
        pairs = [(None, f"f{i % OBJECTS}") for i in range(messages)]
        app.send_many(conn, "free", pairs)
    sent = 0

    def count(*_: object) -> None:
        nonlocal sent
        sent += 1

    sa.event.listen(app.engine, "before_cursor_execute", count)
    with app.worker(threads=4) as worker:
        cpu, begun = resource.getrusage(resource.RUSAGE_SELF), time.monotonic()
        worker.start()
        while done < messages and time.monotonic() - begun < WITHIN_SECONDS:
            time.sleep(0.01)
        took, used = time.monotonic() - begun, resource.getrusage(resource.RUSAGE_SELF)
    with app.engine.begin() as conn:
        conn.execute(sa.text("DROP TABLE bench_limited"))
    app.engine.dispose()
    spent = used.ru_utime + used.ru_stime - cpu.ru_utime - cpu.ru_stime
    return Run(done / took, 1e6 * spent / max(1, done), sent / max(1, done))


def main() -> None:
    parser = argparse.ArgumentParser(prog="limited", description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--others", type=int, default=100_000)
    parser.add_argument("--pairs", type=int, default=3)
    options = parser.parse_args()
    ratios = []
    for _ in range(options.pairs):
        alone = run(options.url, messages=options.messages, others=options.others, limited=False)
        beside = run(options.url, messages=options.messages, others=options.others, limited=True)
        ratios.append(beside.rate / alone.rate)
        for name, one in (("alone", alone), ("beside", beside)):
            per = f"{one.cpu:7.1f} us CPU {one.statements:.4f} statements"
            print(f"{name:7} {one.rate:8,.0f}/s {per}", flush=True)
    print(f"ratio of rates: {median(ratios):.2f} (median of {len(ratios)})")


if __name__ == "__main__":
    main()
