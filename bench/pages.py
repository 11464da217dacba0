"""How long the lists of the API, the pages and the dry runs take on a large table.

`python -m bench.pages --database postgresql [--done 10000000] [--waiting 1000000] [--keep NAME]`
`python -m bench.pages --database postgresql --jobs 1000000`

It fills a scratch database by set-based SQL: done messages, waiting ones of 100,000 objects and
200 topics, delayed ones, dead ones in twenty groups with their tries, and running ones. Then every
read is called a few times, each time as the first one after a start of the dashboard: nothing is
answered from its memory. The first call, on a new connection, the median of the others and the
longest of them are printed in milliseconds. --keep: the database of this name, which is filled if
it is empty, and is not dropped. --jobs: only the reads of jobs, with so many messages in jobs of
1,000, and one job of as many. Exit code 1 if a median is over LIMIT_MS, of one job over
LIMIT_OF_A_JOB_MS.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import sqlalchemy as sa

from bench import databases
from bench.large import RUNNING, fill, fill_jobs
from bench.requests import requests
from bench.seeding import TABLE, TOPIC
from msgworker import App

LIMIT_MS = 300.0
LIMIT_OF_A_JOB_MS = 50.0
ROUNDS = 10
Read = tuple[str, Callable[[], Any]]
"""Its name and its call."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Fill, measure, print; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.pages", description=__doc__)
    parser.add_argument("--database", choices=databases.KINDS, default="postgresql")
    parser.add_argument("--done", type=int, default=10_000_000)
    parser.add_argument("--waiting", type=int, default=1_000_000)
    parser.add_argument("--jobs", type=int, metavar="MESSAGES")
    parser.add_argument("--keep", metavar="NAME")
    parser.add_argument("--seed-only", action="store_true")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--only", help="reads whose name contains this")
    asked = parser.parse_args(arguments)
    with _place(asked.database, asked.keep) as url:
        app = App(url)
        try:
            if not sa.inspect(app.engine).has_table(TABLE):
                fill_jobs(app, asked.jobs) if asked.jobs else fill(app, asked.done, asked.waiting)
            if asked.seed_only:
                return 0
            found = of_jobs(app) if asked.jobs else [*reads(app), *requests(app)]
            return measure(app, found, asked.only or "", asked.rounds)
        finally:
            app.engine.dispose()


@contextmanager
def _place(kind: str, keep: str | None) -> Iterator[sa.URL]:
    if keep is None:
        with databases.scratch(kind) as url:
            yield url
    else:
        yield databases.kept(kind, keep)


def measure(app: App, found: Iterable[Read], only: str, rounds: int = ROUNDS) -> int:
    """Time every read so often; the exit code."""
    slow = 0
    print(f"{'':50} {'first':>9} {'median':>9} {'longest':>9}  ms")
    for name, read in found:
        if only not in name:
            continue
        app.engine.dispose()
        first, *times = [_milliseconds(read) for _ in range(rounds + 1)]
        middle = statistics.median(times)
        most = LIMIT_OF_A_JOB_MS if name.startswith("job") and name != "jobs" else LIMIT_MS
        slow += middle > most
        mark = "  over the limit" if middle > most else ""
        print(f"{name:50} {first:9.1f} {middle:9.1f} {max(times):9.1f}{mark}", flush=True)
    return 1 if slow else 0


def _milliseconds(read: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    read()
    return (time.perf_counter() - begun) * 1000


def of_jobs(app: App) -> Iterator[Read]:
    """Of what `fill_jobs` has made."""
    ops = app.ops.within(10)
    newest = ops.jobs(limit=1)[0].job_id
    yield "list of jobs", ops.jobs
    yield "list of jobs, 200", partial(ops.jobs, limit=200)
    yield "list of jobs, not completed", partial(ops.jobs, is_open=True, limit=200)
    yield "list of jobs, completed", partial(ops.jobs, is_open=False, limit=200)
    yield "job of 1,000", partial(ops.job, newest - 2)
    yield "job of 1,000, completed", partial(ops.job, 1)
    yield "job, 10,000 waiting", partial(ops.job, newest)
    yield "job of all", partial(ops.job, newest - 1)


def reads(app: App) -> Iterator[Read]:
    """Name and call of each read."""
    ops = app.ops.within(10)
    yield "overview", ops.overview
    yield "counts", ops.counts
    last = ops.messages(limit=1)[0].msg_id
    group = ops.failures(limit=1)[0].fingerprint
    hour = datetime.now(UTC) - timedelta(hours=1)
    filters: dict[str, dict[str, Any]] = {
        "all": {},
        "done": {"status": "done"},
        "new": {"status": "new"},
        "failed": {"status": "failed"},
        "dead": {"status": "dead"},
        "processing": {"status": "processing"},
        "unknown": {"status": "unknown"},
        "of a topic": {"topic": f"{TOPIC}3"},
        "of no topic": {"topic": "nothing"},
        "new of a topic": {"status": "new", "topic": f"{TOPIC}3"},
        "dead of a topic": {"status": "dead", "topic": f"{TOPIC}3"},
        "of an object": {"object_id": "obj00000017"},
        "done of an object": {"object_id": "obj00000017", "status": "done"},
        "of a group": {"fingerprint": group},
        "with an error": {"error": "list k"},
        "dead with an error": {"error": "list k", "status": "dead"},
        "since": {"since": hour},
        "dead since": {"since": hour, "status": "dead"},
    }
    for name, chosen in filters.items():
        for newest in (True, False):
            order = "newest" if newest else "oldest"
            first = partial(ops.messages, limit=200, newest=newest, **chosen)
            yield f"messages {name}, {order}", first
            after = first().next_after
            if after is not None:
                yield f"messages {name}, {order}, page 2", partial(first, after=after)
    yield "message", lambda: ops.show(last)
    yield "message: place", lambda: ops.place(last - RUNNING - 5)
    yield "message: explain", lambda: ops.explain(last - RUNNING - 5)
    yield "message: items", lambda: ops.items(last, limit=200)
    yield "message: audit", lambda: ops.audit(last)
    yield "failures", ops.failures
    yield "failures of a topic, since", lambda: ops.failures(topic=f"{TOPIC}3", since=hour)
    yield "lanes", lambda: ops.lanes(limit=200)
    by_object = partial(ops.lanes, by="object", limit=200)
    yield "lanes by object", by_object
    yield "lanes by object, page 2", partial(by_object, after=by_object().next_after)
    yield "jobs", ops.jobs
    yield "job", lambda: ops.job(ops.jobs(limit=1)[0].job_id)
    yield "instances", ops.instances
    yield "limits", ops.limits
    yield "schedules", ops.schedules
    yield "locks", ops.locks
    yield "audit", ops.audit
    yield "pauses", ops.pauses


if __name__ == "__main__":
    sys.exit(main())
