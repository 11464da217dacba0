"""A large table that operators look at: millions of finished messages, and an incident.

Messages go in by set-based SQL, see seeding.py; what stands in the tables beside them row by row.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

import sqlalchemy as sa

from bench.seeding import CHUNK, TABLE, TOPIC, Rows, insert, kind_of, tidy
from msgworker import App
from msgworker.store import lease
from msgworker.store.tries import fingerprint
from msgworker.table.build import AUDIT, HISTORY, JOB_TABLE, LIMIT, LOCK, OPERATION, PAUSE, SCHEDULE

OBJECTS = 100_000
TOPICS = 200
GROUPS = 20
DEAD = 10_000
FAILED = 2_000
DELAYED = 50_000
DEEP = 2_000
RUNNING = 32
ITEMS = 1_000
INSTANCES = 8
OPERATIONS = 20_000
LOCKS = 500
SCHEDULES = 100
LIMITED = 20
PAUSED = 5
HISTORY_MINUTES = 1_500
BUSY = (4, 10)
"""Instances, and topics of each, with work in every minute of the history."""
KEPT_DAYS = 30
HOLDER = "large-0"
DEEP_OBJECT = "deep00000000"
JOB = 1_000
"""The messages of its one job, the oldest; of `fill_jobs`, of each."""
WAITING = 10_000
RATE = 5_000
"""Rows of a statement."""


def fill(app: App, done: int, waiting: int) -> None:
    """The rows, oldest first: done, dead, failed, delayed, waiting, running; and those beside."""
    app.create_schema()
    now, later = _clock(app), _clock(app, hours=1)
    running = (("status", "1"), ("claimed_by", f"'{HOLDER}'"), ("claimed_at", now))
    old = (("status", "2"), ("finished_at", now), ("created_at", _spread(app, done)))
    kinds = [
        Rows(done, OBJECTS, topics=TOPICS, values=old),
        Rows(DEAD, OBJECTS, topics=TOPICS, values=_failed(now, tries=3)),
        Rows(FAILED, OBJECTS, "try", TOPICS, (*_failed(now, tries=1), ("available_at", later))),
        Rows(1, 1, "deep", TOPICS, (*_failed(now, tries=1), ("available_at", later))),
        Rows(DELAYED, OBJECTS, prefix="late", topics=TOPICS, values=(("available_at", later),)),
        Rows(waiting // 2, OBJECTS, topics=TOPICS),
        Rows(DEEP, 1, "deep", TOPICS),
        Rows(waiting - waiting // 2, OBJECTS, topics=TOPICS),
        Rows(RUNNING, RUNNING, prefix="run", topics=TOPICS, values=running),
    ]
    _insert_all(app, kinds)
    with app.engine.begin() as conn:
        _tries(conn, now)
        _beside(app, conn)
    tidy(app.engine)
    _analyse(app)


def _insert_all(app: App, kinds: Iterable[Rows]) -> None:
    for rows in kinds:
        for start in range(0, rows.count, CHUNK):
            begun = time.monotonic()
            with app.engine.begin() as conn:
                insert(conn, rows, start, min(CHUNK, rows.count - start))
            seconds = time.monotonic() - begun
            print(f"{start:,} of {rows.count:,} in {seconds:.0f} s", file=sys.stderr)


def fill_jobs(app: App, messages: int) -> None:
    """So many messages in jobs of JOB each, half of which have completed, the others at every
    state; one job of as many messages; one of which WAITING wait; and an instance that lives."""
    app.create_schema()
    t, now = app.tables, datetime.now(UTC)
    count = max(2, messages // JOB)
    of = f"1 + FLOOR((i - 1) / {JOB})"
    mixed = "CASE WHEN (i & 7) < 3 THEN 0 WHEN (i & 7) = 7 THEN -1 ELSE 2 END"
    tries = "CASE WHEN (i & 7) = 7 THEN 3 ELSE 0 END"
    half = count // 2
    states = (("status", mixed), ("error_try_times", tries), ("last_error", f"'{_error(0)}'"))
    kinds = [
        Rows(half * JOB, OBJECTS, values=(("status", "2"), ("job_id", of))),
        Rows((count - half) * JOB, OBJECTS, values=(*states, ("job_id", f"{half} + {of}"))),
        Rows(messages, OBJECTS, values=(*states, ("job_id", str(count + 1)))),
        Rows(WAITING, JOB, values=(("job_id", str(count + 2)),)),
    ]
    with app.engine.begin() as conn:
        lease.register(conn, t, HOLDER, ttl=86_400.0)
        over = {"completed_at": now, "done": JOB, "dead": 0}
        row = {"table_name": t.spec.bare_name, "opened_at": now - timedelta(minutes=5)}
        rows = (
            row
            | {"job_id": n, "name": f"month end {n}", "sealed_at": now}
            | (over if n <= half else dict.fromkeys(over))
            for n in range(1, count + 3)
        )
        _insert(conn, JOB_TABLE.of(t), rows)
    _insert_all(app, kinds)
    tidy(app.engine)
    _analyse(app)


def _clock(app: App, *, hours: int = 0) -> str:
    kind = kind_of(app.engine.dialect)
    if kind == "sqlite":
        return f"strftime('%Y-%m-%d %H:%M:%f000', 'now', '{hours} hours')"
    if kind == "postgresql":
        return f"now() + interval '{hours} hours'"
    return f"UTC_TIMESTAMP(6) + INTERVAL {hours} HOUR"


def _spread(app: App, count: int) -> str:
    """Instants of the last KEPT_DAYS days, in the order of i."""
    kind, step = kind_of(app.engine.dialect), KEPT_DAYS * 86_400 / max(1, count)
    ago = f"({count} - i) * {step:.9f}"
    if kind == "sqlite":
        return f"strftime('%Y-%m-%d %H:%M:%f000', 'now', '-' || ({ago}) || ' seconds')"
    if kind == "postgresql":
        return f"now() - {ago} * interval '1 second'"
    return f"UTC_TIMESTAMP(6) - INTERVAL ({ago}) SECOND"


def _error(group: int) -> str:
    return f"ValueError: no price list {chr(ord('a') + group)}"


def _failed(now: str, *, tries: int) -> tuple[tuple[str, str], ...]:
    whens = " ".join(f"WHEN {n} THEN '{_error(n)}'" for n in range(GROUPS))
    error = f"CASE (i - 1 - {GROUPS} * FLOOR((i - 1) / {GROUPS})) {whens} END"
    return (
        ("status", "-1"),
        ("error_try_times", str(tries)),
        ("last_error", error),
        ("finished_at", now if tries == 3 else "NULL"),
    )


def _tries(conn: sa.Connection, now: str) -> None:
    """The tries of each failed message."""
    prints = " ".join(f"WHEN '{_error(n)}' THEN '{fingerprint(_error(n))}'" for n in range(GROUPS))
    for number in (1, 2, 3):
        conn.exec_driver_sql(
            "INSERT INTO msgworker_try (table_name, msg_id, try_no, kind, instance, started_at, "
            f"ended_at, error, fingerprint) SELECT '{TABLE}', msg_id, {number}, 'failed', "
            f"'{HOLDER}', {now}, {now}, last_error, CASE last_error {prints} END "
            f"FROM {TABLE} WHERE status = -1 AND error_try_times >= {number}"
        )


def _beside(app: App, conn: sa.Connection) -> None:
    t = app.tables
    job = app.job("month end", conn=conn)
    conn.execute(
        sa.text(f"UPDATE {TABLE} SET job_id = :job WHERE msg_id <= :most"),
        {"job": job.job_id, "most": JOB},
    )
    dead: Sequence[int] = (
        conn.execute(sa.text(f"SELECT msg_id FROM {TABLE} WHERE status = -1 ORDER BY msg_id"))
        .scalars()
        .all()
    )
    last = int(conn.execute(sa.text(f"SELECT MAX(msg_id) FROM {TABLE}")).scalar_one())
    now = datetime.now(UTC)
    named = {"table_name": t.spec.bare_name}
    topics = [f"{TOPIC}{n}" for n in range(TOPICS)]
    for n in range(INSTANCES):
        life = -60.0 if n == INSTANCES - 1 else 86_400.0
        name = f"large-{n}"
        lease.register(conn, t, name, ttl=life, label=f"crm on host {n}", topics=topics)
    _insert(conn, t.item, _items(last, now))
    _insert(conn, HISTORY.of(t), (named | row for row in _minutes(now)))
    operations = (named | {"op_id": n} | _operation(n, now) for n in range(1, OPERATIONS + 1))
    _insert(conn, OPERATION.of(t), operations)
    _insert(conn, AUDIT.of(t), _changes(dead, now))
    _insert(conn, PAUSE.of(t), (named | _pause(topic, now) for topic in topics[:PAUSED]))
    limited = topics[-LIMITED:]
    _insert(conn, LIMIT.of(t), (named | _limit(topic, now) for topic in limited))
    _insert(conn, SCHEDULE.of(t), (named | _schedule(n, now) for n in range(SCHEDULES)))
    _insert(conn, LOCK.of(t), (_lock(n, now) for n in range(LOCKS)))


def _insert(conn: sa.Connection, table: sa.Table, rows: Iterable[dict[str, Any]]) -> None:
    rows = iter(rows)
    while some := list(islice(rows, RATE)):
        conn.execute(sa.insert(table), some)


def _items(msg_id: int, now: datetime) -> Iterator[dict[str, Any]]:
    """Of one running message."""
    for n in range(ITEMS):
        error = None if n % 8 else _error(n % GROUPS)
        yield {
            "table_name": TABLE,
            "msg_id": msg_id,
            "item_key": f"{n:06d}",
            "status": 2 if n % 8 else -1,
            "tries": 1,
            "last_error": error,
            "finished_at": now,
            "total": ITEMS,
        }


def _minutes(now: datetime) -> Iterator[dict[str, Any]]:
    first = now.replace(second=0, microsecond=0)
    instances, topics = BUSY
    for minute in range(1, HISTORY_MINUTES + 1):
        for place in range(instances * topics):
            done = 1 + (minute * 7 + place * 3) % 40
            yield {
                "minute_at": first - timedelta(minutes=minute),
                "instance": f"large-{place % instances}",
                "topic": f"{TOPIC}{place // instances}",
                "done": done,
                "retried": place % 3,
                "dead": place % 50 == 0,
                "ran_ms": done * 35,
                "ran_4": done // 2,
                "ran_6": done - done // 2,
                "waited_5": done,
            }


def _operation(number: int, now: datetime) -> dict[str, Any]:
    at = now - timedelta(minutes=2 * (OPERATIONS - number))
    return {
        "kind": ("rerun", "discard", "pause", "release")[number % 4],
        "actor": f"ann-{number % 30} (web, token, 10.0.0.7)",
        "reason": f"INC-{number}",
        "op_filter": '{"status": "dead"}',
        "started_at": at,
        "finished_at": at + timedelta(seconds=3),
        "steps": 1,
        "matched": 10,
        "changed": 10,
    }


def _changes(dead: Sequence[int], now: datetime) -> Iterator[dict[str, Any]]:
    """Ten messages of each operation."""
    for number in range(OPERATIONS):
        for place in range(10):
            yield {
                "op_id": number + 1,
                "msg_id": dead[(number * 10 + place) % len(dead)],
                "changed_at": now - timedelta(minutes=2 * (OPERATIONS - number)),
                "was_status": -1,
                "was_tries": 3,
                "was_error": _error(place),
            }


def _pause(topic: str, now: datetime) -> dict[str, Any]:
    return {"topic": topic, "actor": "ann", "reason": "INC-4711", "paused_at": now}


def _limit(topic: str, now: datetime) -> dict[str, Any]:
    return {
        "topic": topic,
        "max_running": 4,
        "rate_starts": 20,
        "burst": 20,
        "declared_by": HOLDER,
        "declared_at": now,
    }


def _schedule(number: int, now: datetime) -> dict[str, Any]:
    return {
        "name": f"nightly-{number}",
        "spec": "0 2 * * *",
        "time_zone": "Europe/Berlin",
        "topic": f"{TOPIC}{number}",
        "catch_up": "last",
        "next_at": now + timedelta(hours=number % 24),
        "declared_by": HOLDER,
        "declared_at": now,
    }


def _lock(number: int, now: datetime) -> dict[str, Any]:
    ms = int(now.timestamp() * 1000)
    return {
        "name": f"inbox:shard:{number}",
        "owner": f"large-{number % INSTANCES}",
        "token": number,
        "since_ms": ms,
        "expires_ms": ms + 86_400_000,
    }


def _analyse(app: App) -> None:
    """Statistics of the tables beside, as autovacuum makes them."""
    command = "ANALYZE TABLE" if app.engine.dialect.name in ("mysql", "mariadb") else "ANALYZE"
    with app.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
        for name in sa.inspect(app.engine).get_table_names():
            if name.startswith("msgworker_") and name != TABLE:
                conn.exec_driver_sql(f"{command} {name}")
