"""How long the lists of the API and the pages take on a large table.

`python -m bench.pages --database postgresql [--done 10000000] [--waiting 1000000] [--keep NAME]`

It fills a scratch database by set-based SQL: done messages, waiting ones of 100,000 objects and
five topics, delayed ones, dead ones in twenty groups with their tries, and running ones. Then every
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

import sqlalchemy as sa

from bench import databases
from bench.seeding import CHUNK, TABLE, TOPIC, Rows, insert, tidy
from msgworker import App
from msgworker.store.settling.fingerprint import fingerprint

LIMIT_MS = 300.0
ROUNDS = 5
OBJECTS = 100_000
TOPICS = 5
GROUPS = 20
DEAD = 10_000
DELAYED = 50_000
RUNNING = 32
ITEMS = 1_000
HOLDER = "pages-bench-0"


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


def fill(app: App, done: int, waiting: int) -> None:
    """The rows, oldest first: done, dead, delayed, waiting, running."""
    app.create_schema()
    mysql = app.engine.dialect.name in ("mysql", "mariadb")
    later = "UTC_TIMESTAMP(6) + INTERVAL 1 HOUR" if mysql else "now() + interval '1 hour'"
    now = "UTC_TIMESTAMP(6)" if mysql else "now()"
    if app.engine.dialect.name == "sqlite":
        now, later = (f"strftime('%Y-%m-%d %H:%M:%f000', 'now'{x})" for x in ("", ", '1 hour'"))
    running = (("status", "1"), ("claimed_by", f"'{HOLDER}'"), ("claimed_at", now))
    kinds = [
        Rows(done, OBJECTS, topics=TOPICS, values=(("status", "2"), ("finished_at", now))),
        Rows(DEAD, OBJECTS, topics=TOPICS, values=_dead(now)),
        Rows(DELAYED, OBJECTS, prefix="late", topics=TOPICS, values=(("available_at", later),)),
        Rows(waiting, OBJECTS, topics=TOPICS),
        Rows(RUNNING, RUNNING, prefix="run", topics=TOPICS, values=running),
    ]
    for rows in kinds:
        for start in range(0, rows.count, CHUNK):
            begun = time.monotonic()
            with app.engine.begin() as conn:
                insert(conn, rows, start, min(CHUNK, rows.count - start))
            print(
                f"{start:,} of {rows.count:,} in {time.monotonic() - begun:.0f} s", file=sys.stderr
            )
    with app.engine.begin() as conn:
        _tries(conn, now)
        _items(conn, now)
    tidy(app.engine)


def _error(group: int) -> str:
    return f"ValueError: no price list {chr(ord('a') + group)}"


def _dead(now: str) -> tuple[tuple[str, str], ...]:
    whens = " ".join(f"WHEN {n} THEN '{_error(n)}'" for n in range(GROUPS))
    error = f"CASE (i - 1 - {GROUPS} * FLOOR((i - 1) / {GROUPS})) {whens} END"
    return (
        ("status", "-1"),
        ("error_try_times", "3"),
        ("last_error", error),
        ("finished_at", now),
    )


def _tries(conn: sa.Connection, now: str) -> None:
    """Three tries of each dead message."""
    prints = " ".join(f"WHEN '{_error(n)}' THEN '{fingerprint(_error(n))}'" for n in range(GROUPS))
    for number in (1, 2, 3):
        conn.exec_driver_sql(
            "INSERT INTO msgworker_try (table_name, msg_id, try_no, kind, instance, started_at, "
            f"ended_at, error, fingerprint) SELECT '{TABLE}', msg_id, {number}, 'failed', "
            f"'{HOLDER}', {now}, {now}, last_error, CASE last_error {prints} END "
            f"FROM {TABLE} WHERE status = -1"
        )


def _items(conn: sa.Connection, now: str) -> None:
    """Items of one running message."""
    msg_id = conn.exec_driver_sql(f"SELECT MAX(msg_id) FROM {TABLE}").scalar()
    values = [
        {"m": msg_id, "k": f"{n:06d}", "s": 2 if n % 8 else -1, "t": ITEMS} for n in range(ITEMS)
    ]
    conn.execute(
        sa.text(
            "INSERT INTO msgworker_item (table_name, msg_id, item_key, status, tries, finished_at, "
            f"total) VALUES ('{TABLE}', :m, :k, :s, 1, {now}, :t)"
        ),
        values,
    )


def measure(app: App, only: str) -> int:
    """Time every read; the exit code."""
    slow = 0
    for name, read in reads(app):
        if only not in name:
            continue
        times = []
        for _ in range(ROUNDS):
            begun = time.perf_counter()
            read()
            times.append((time.perf_counter() - begun) * 1000)
        middle = statistics.median(times)
        slow += middle > LIMIT_MS
        mark = "  over the limit" if middle > LIMIT_MS else ""
        print(f"{name:40} {middle:8.1f} ms  longest {max(times):8.1f} ms{mark}", flush=True)
    return 1 if slow else 0


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
    yield from requests(app, last)


def requests(app: App, last: int) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Path and request of each list of the API; `last`: a message."""
    from starlette.testclient import TestClient

    from msgworker.web.api import ENDPOINTS

    place = "http://127.0.0.1:8080/api/v1"
    client = TestClient(app.web(), place, client=("127.0.0.1", 50_000))

    def get(path: str) -> None:
        client.get(path).raise_for_status()

    for one in ENDPOINTS:
        if not one.write and "{op_id}" not in one.path:
            path = one.path.replace("{msg_id}", str(last))
            yield f"GET {path}", partial(get, path)
    for path in ("/messages?status=done&limit=200", "/messages?topic=nothing", "/lanes?by=object"):
        yield f"GET {path}", partial(get, path)


if __name__ == "__main__":
    sys.exit(main())
