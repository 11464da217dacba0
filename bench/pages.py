"""How long the lists of the API and the pages take on a large table.

`python -m bench.pages --database postgresql [--done 10000000] [--waiting 1000000] [--keep NAME]`

It fills a scratch database by set-based SQL: done messages, waiting ones of 100,000 objects and
200 topics, delayed ones, dead ones in twenty groups with their tries, and running ones. Then every
read is called a few times; the median and the longest are printed in milliseconds. --keep: the
database of this name, which is filled if it is empty, and is not dropped. Exit code 1 if a median
is over LIMIT_MS.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from urllib.parse import urlencode

import sqlalchemy as sa

from bench import databases
from bench.large import DEEP_OBJECT, RUNNING, fill
from bench.seeding import TABLE, TOPIC
from msgworker import App
from msgworker.store.looking.capped import cursor_place, cursor_text

LIMIT_MS = 300.0
ROUNDS = 10


def main(arguments: Sequence[str] | None = None) -> int:
    """Fill, measure, print; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.pages", description=__doc__)
    parser.add_argument("--database", choices=databases.KINDS, default="postgresql")
    parser.add_argument("--done", type=int, default=10_000_000)
    parser.add_argument("--waiting", type=int, default=1_000_000)
    parser.add_argument("--keep", metavar="NAME")
    parser.add_argument("--seed-only", action="store_true")
    parser.add_argument("--only", help="reads whose name contains this")
    asked = parser.parse_args(arguments)
    with _place(asked.database, asked.keep) as url:
        app = App(url)
        try:
            if not sa.inspect(app.engine).has_table(TABLE):
                fill(app, asked.done, asked.waiting)
            if asked.seed_only:
                return 0
            return measure(app, asked.only or "")
        finally:
            app.engine.dispose()


@contextmanager
def _place(kind: str, keep: str | None) -> Iterator[sa.URL]:
    if keep is None:
        with databases.scratch(kind) as url:
            yield url
    else:
        yield databases.kept(kind, keep)


def measure(app: App, only: str) -> int:
    """Time every read; the exit code."""
    slow = 0
    print(f"{'':50} {'cold':>9} {'median':>9} {'longest':>9}  ms")
    for name, read in [*reads(app), *requests(app)]:
        if only not in name:
            continue
        app.engine.dispose()
        cold, *times = [_milliseconds(read) for _ in range(ROUNDS + 1)]
        middle = statistics.median(times)
        slow += middle > LIMIT_MS
        mark = "  over the limit" if middle > LIMIT_MS else ""
        print(f"{name:50} {cold:9.1f} {middle:9.1f} {max(times):9.1f}{mark}", flush=True)
    return 1 if slow else 0


def _milliseconds(read: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    read()
    return (time.perf_counter() - begun) * 1000


def reads(app: App) -> Iterator[tuple[str, Callable[[], Any]]]:
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
    yield "instances", ops.instances
    yield "limits", ops.limits
    yield "schedules", ops.schedules
    yield "locks", ops.locks
    yield "audit", ops.audit
    yield "pauses", ops.pauses


def requests(app: App) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Path and request of each list of the API, and of each page. What viewers share for two
    seconds is read anew by each request."""
    from starlette.testclient import TestClient

    from msgworker.web.api import ENDPOINTS

    made = app.web()
    client = TestClient(made, "http://127.0.0.1:8080", client=("127.0.0.1", 50_000))

    def get(path: str) -> None:
        made.site.forget()
        client.get(path, headers={"accept": "text/html"}).raise_for_status()

    ops = app.ops
    last = ops.messages(limit=1)[0].msg_id
    api = [
        one.path.replace("{msg_id}", str(last))
        for one in ENDPOINTS
        if not one.write and "{op_id}" not in one.path
    ]
    api += ["/messages?status=done&limit=200", "/messages?topic=nothing", "/lanes?by=object"]
    for path in (*(f"/api/v1{path}" for path in api), *pages(app, last)):
        yield f"GET {path if len(path) <= 46 else path[:45] + '…'}", partial(get, path)


def pages(app: App, last: int) -> Iterator[str]:
    """The paths of all pages, with each of their filters. last: a message that runs."""
    ops = app.ops.within(10)
    group = ops.failures(limit=1)[0].fingerprint
    dead = ops.messages(status="dead", limit=1)[0].msg_id
    yield "/"
    yield "/?window=6h"
    yield "/?window=24h"
    states = ("new", "processing", "failed", "dead", "done")
    filters: list[dict[str, str]] = [{}, *({"status": state} for state in states)]
    filters += [{"topic": f"{TOPIC}3"}, {"topic": "nothing"}, {"object": "obj00000017"}]
    filters += [{"object": DEEP_OBJECT}, {"error": "list k"}, {"since": "15m"}, {"since": "30d"}]
    filters += [{"status": state, "topic": f"{TOPIC}3"} for state in states]
    filters += [{"status": "dead", "group": group}, {"group": group}]
    filters += [{"status": "dead", "error": "list k", "since": "24h"}]
    for one in filters:
        for order in ({}, {"order": "oldest"}):
            yield f"/messages?{urlencode(one | order)}"
    yield from _deep(app)
    yield f"/messages?find={last}"
    yield f"/messages?find={DEEP_OBJECT}"
    behind = ops.messages(object_id=DEEP_OBJECT, status="new", limit=1)[0].msg_id
    for msg_id in (1, dead, behind, last):
        yield f"/messages/{msg_id}?payload=1"
    yield f"/messages/{last}/items"
    yield f"/messages/{last}/items?state=failed"
    yield "/failures"
    yield f"/failures?topic={TOPIC}3&since=24h"
    yield "/failures.csv"
    yield "/lanes"
    yield "/lanes?by=object"
    yield f"/lanes?by=object&after={ops.lanes(by='object', limit=100).next_after}"
    yield from ("/instances", "/topics", "/schedules", "/locks", "/audit", "/audit?kind=rerun")
    yield "/audit?actor=ann-7"
    yield f"/audit?message={dead}"
    yield "/audit/17"
    yield "/system"


def _deep(app: App) -> Iterator[str]:
    """Places deep in the list: behind half of the messages, in both orders."""
    middle = app.ops.messages(limit=1)[0].msg_id // 2
    for status in (None, "done"):
        for newest in (True, False):
            found = app.ops.messages(status=status, limit=50, newest=newest)
            more = (object, object) if status and newest else ()
            number, _, *rest = cursor_place(str(found.next_after), int, int, *more)
            query = {"after": cursor_text([number, middle, *rest])}
            query |= {} if newest else {"order": "oldest"}
            yield f"/messages?{urlencode(query | ({} if status is None else {'status': status}))}"


if __name__ == "__main__":
    sys.exit(main())
