"""A table in the middle of an incident: what the pictures show, and browsers are tried on.

The listener of a database is down, so statements fail, lanes wait behind them and an operator is at
work; one instance is dead, a topic is paused and another one limited.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa

from msgworker import App
from msgworker.coordination import DatabaseLocks
from msgworker.store import history, lease
from msgworker.store.history import Counts, Minute
from msgworker.store.items import label
from msgworker.store.tries import fingerprint
from msgworker.table.build import AUDIT, OPERATION, RAN_COUNTS
from tests.support.leases import dead_holds, registered
from tests.support.ops import DONE, FAILED, NEW, RUNNING, put
from tests.support.rows import Table, edit

DOWN = "DatabaseError: ORA-12541: Cannot connect. No listener at billing-db port 1521"
TRACE = f"""Traceback (most recent call last):
  File "crm/statements.py", line 81, in send
    connection = pool.acquire()
{DOWN}"""
ONE, TWO = "app1-4411-5f0c2a91d3b84e67", "app2-982-b771e04d2c5f4a10"
GONE = "app3-3307-09ac5d3e77f14b2c"  # two live instances and a dead one
STATEMENT = '{"customer_id": "C-1003", "month": "2026-10", "card": "4111 1111 1111 1111"}'
FIRST, SECOND = (23, 19, 15), (12, 11, 9)
"""Minutes since the first three tries, and since those after the rerun."""
ITEMS = 12  # accounts of the message with a fan-out: all but four of them are done, one has failed


def sample(app: App) -> dict[str, str]:
    """Fill the table; the pages to see of it, name -> path."""
    now = datetime.now(UTC)
    table = Table(app)
    _settings(app)
    _done(app, now)
    dead = _statements(app, now)
    _waiting(app, now)
    _instances(app, table, now)
    _history(app, now)
    job = _job(app)
    rerun = _operations(app, dead, now)
    _again(app, dead[3], now)
    return {
        "overview": "/",
        "messages": "/messages",
        "messages-filtered": "/messages?status=dead&topic=statement.send",
        "message": f"/messages/{dead[3]}?payload=1",
        "items": f"/messages/{dead[3]}/items",
        "failures": "/failures",
        "rerun": "/change/rerun?topic=statement.send",
        "lanes": "/lanes",
        "jobs": "/jobs",
        "job": f"/jobs/{job}",
        "instances": "/instances",
        "release": f"/act/release?name={GONE}",
        "topics": "/topics",
        "topic": "/topics/statement.send",
        "topic-limited": "/topics/bank.post",
        "pause": "/act/pause-topic?name=statement.send",
        "schedules": "/schedules",
        "locks": "/locks",
        "audit": "/audit",
        "operation": f"/audit/{rerun}",
        "system": "/system",
        "error": "/messages/4711000",
    }


def _job(app: App) -> int:
    """A month-end run at two thirds; its id."""
    table = Table(app)
    how = {"on_complete": "settlement.report", "opened_by": "anna"}
    sent = [({"month": "2026-10"}, f"S-{n}") for n in range(60)]
    with app.job("settlement 2026-10", **how) as job, app.engine.begin() as conn:
        app.send_many(conn, "contract.settle", sent, job=job)
    ids = [row[0] for row in table.rows("msg_id", "job_id") if row[1] == job.job_id]
    for msg_id in ids[:41]:
        edit(app, msg_id, status=DONE)
    edit(app, ids[41], status=FAILED, error_try_times=3, last_error="ValueError: no tariff")
    return job.job_id


def _done(app: App, now: datetime) -> None:
    for n in range(90):
        at = now - timedelta(seconds=40 * n + 5)
        values: dict[str, Any] = {"created_at": at - timedelta(seconds=2), "finished_at": at}
        put(app, (f"C-{2000 + n % 30}", DONE), topic="customer.merge", **values)


def _statements(app: App, now: datetime) -> list[int]:
    """Nine dead messages, of which two have one behind them that is done and four more that wait;
    ids of the dead."""
    dead = []
    for n in range(9):
        at = now - timedelta(minutes=25, seconds=-9 * n)
        values: dict[str, Any] = {"topic": "statement.send", "created_at": at, "payload": STATEMENT}
        ended = {"finished_at": now - timedelta(minutes=15, seconds=9 * n), "last_error": DOWN}
        dead += put(app, (f"C-{1000 + n}", FAILED), **values | ended)
        _tries(app, dead[-1], now - timedelta(seconds=9 * n))
        if n < 2:
            later = {"topic": "statement.correct", "finished_at": now - timedelta(minutes=3)}
            put(app, (f"C-{1000 + n}", DONE), created_at=at + timedelta(minutes=1), **later)
    _items(app, dead[3], now)
    return dead


def _tries(app: App, msg_id: int, now: datetime, first: int = 1, minutes: Any = FIRST) -> None:
    """Tries that have failed, numbered from `first`, so many minutes ago."""
    tried, rows = app.tables.failed_try, []
    for number, minute in enumerate(minutes, first):
        at = now - timedelta(minutes=minute)
        values = {
            "table_name": app.tables.message.name,
            "msg_id": msg_id,
            "try_no": number,
            "kind": "failed",
            "instance": (ONE, TWO)[number % 2],
            "started_at": at - timedelta(seconds=7),
            "ended_at": at,
            "error": DOWN,
            "fingerprint": fingerprint(DOWN),
            "traceback": TRACE,
        }
        rows.append({name: value for name, value in values.items() if name in tried.c})
    with app.engine.begin() as conn:
        conn.execute(sa.insert(tried), rows)


def _items(app: App, msg_id: int, now: datetime) -> None:
    about = {"table_name": label(app.table), "msg_id": msg_id, "total": ITEMS, "tries": 1}
    rows = [
        about
        | {
            "item_key": f"DE-{40 + n:04}",
            "status": FAILED if n == 7 else DONE,
            "tries": 3 if n == 7 else 1,
            "last_error": DOWN if n == 7 else None,
            "finished_at": now - timedelta(minutes=9 if n == 7 else 23, seconds=n % 7),
        }
        for n in range(ITEMS - 3)
    ]
    with app.engine.begin() as conn:
        conn.execute(sa.insert(app.tables.item), rows)


def _waiting(app: App, now: datetime) -> None:
    """A lane behind a head that will be tried again, and messages that nothing holds back."""
    retried: dict[str, Any] = {"topic": "customer.merge", "created_at": now - timedelta(minutes=6)}
    retried |= {"last_error": "KeyError: 'into'", "available_at": now + timedelta(seconds=40)}
    put(app, ("C-1044", FAILED), tries=2, **retried)
    for n in range(12):
        put(
            app,
            ("C-1044", NEW),
            topic="customer.merge",
            created_at=now - timedelta(seconds=300 - n),
        )
    for n in range(36):
        at = now - timedelta(minutes=6, seconds=-8 * n)
        put(app, (f"C-{1000 + n % 24}", NEW), topic="statement.send", created_at=at)
    put(app, *[(None, NEW)] * 12, topic="report.print", created_at=now - timedelta(minutes=2))
    put(app, *[(f"B-{n}", NEW) for n in range(5)], topic="bank.post", created_at=now)
    at = now - timedelta(minutes=17)
    put(app, ("C-2031", NEW), ("C-2032", NEW), ("C-2032", NEW), topic="letter.send", created_at=at)


def _instances(app: App, table: Table, now: datetime) -> None:
    topics = ["bank.post", "contract.settle", "customer.merge", "report.print", "statement.send"]
    for number, name in enumerate((ONE, TWO), 1):
        process = {"host": f"app{number}", "pid": 4410 + number, "threads": 8, "version": "0.1.0"}
        registered(app, name, topics=topics, process=process)
        held = [(f"D-{number}{n}", RUNNING) for n in range(2)]
        about: dict[str, Any] = {"claimed_by": name, "claimed_at": now - timedelta(seconds=3)}
        about |= {"topic": "customer.merge", "created_at": now - timedelta(seconds=9)}
        running = [(msg_id, 2.6) for msg_id in put(app, *held, **about)]
        serves = lease.serves_text(app.tables, topics, running, process=process)
        with app.engine.begin() as conn:
            lease.renew(conn, app.tables, name, ttl=600, in_hand=3, serves=serves)
    put(app, ("B-9", RUNNING), topic="bank.post", claimed_by=ONE, claimed_at=now, created_at=now)
    (lost,) = put(app, ("D-30", RUNNING), topic="customer.merge", claimed_at=now, created_at=now)
    dead_holds(app, table, GONE, msg_id=lost)


def _history(app: App, now: datetime) -> None:
    """What two instances did in the last day, with the outage in the last half hour."""
    minutes = []
    for ago in range(1, 1440):
        at = now.replace(second=0, microsecond=0) - timedelta(minutes=ago)
        wave = 30 + int(20 * math.sin(ago / 90)) + ago * 7 % 11
        failing = ago <= 23
        for instance in (ONE, TWO):
            merged = Counts(done=wave, ran=_spread(3, wave), waited=_spread(2, wave))
            sent = Counts(done=0 if failing else wave // 2, retried=8 if failing else 0)
            sent.dead = 2 if ago in (8, 9) else 0
            sent.ran = _spread(9 if failing else 5, 8 if failing else wave // 2)
            posted = Counts(done=20, ran=_spread(6, 20), waited=_spread(6, 20))
            topics = {"customer.merge": merged, "statement.send": sent, "bank.post": posted}
            minutes.append(Minute(at, instance, topics))
    with app.engine.begin() as conn:
        history.write(conn, app.tables, minutes)


def _spread(bound: int, count: int) -> list[int]:
    """Most as long as the bound of this number, one in ten a bound more."""
    found = [0] * len(RAN_COUNTS)
    found[bound], found[bound + 1] = count - count // 10, count // 10
    return found


def _settings(app: App) -> None:
    """A limit, two schedules, locks and partitions."""
    app.add_handler("report.print", lambda msg: None)
    app.add_handler("bank.post", lambda msg: None, max_running=4, rate="20/s")
    app.cron("0 2 * * *", topic="report.print", name="nightly", tz="Europe/Berlin")
    app.every("5m", topic="bank.post", name="bank.collect", payload={"all": True})
    app.drain(linger=0)  # of an empty table: declares them
    locks = DatabaseLocks(app.engine)
    for name, owner in (("month-end", ONE), ("contract:42", TWO), *_partitions((ONE, TWO), 8)):
        locks.acquire(name, owner, ttl=600)


def _partitions(names: Iterable[str], shards: int) -> list[tuple[str, str]]:
    """The locks of two instances that share the table."""
    names = list(names)
    members = [(f"crm:member:{name}", name) for name in names]
    return members + [(f"crm:shard:{n}", names[n % len(names)]) for n in range(shards)]


def _operations(app: App, dead: list[int], now: datetime) -> int:
    """What operators have done, some minutes ago; the number of the rerun."""
    alice = app.ops.acting(actor="alice", source="web, token, 10.0.0.7")
    bob = app.ops.acting(actor="bob", source="command line, crm-host1")
    done = alice.rerun([dead[3]], reason="INC-4711: the listener is back")
    bob.discard([dead[8]], reason="INC-4711: sent by hand")
    alice.pause("report.print", reason="INC-4713: the printer is out of order")
    operations, lines = OPERATION.of(app.tables), AUDIT.of(app.tables)
    with app.engine.begin() as conn:
        for op_id, minutes in zip(
            conn.scalars(sa.select(operations.c.op_id)).all(), (13, 7, 4), strict=False
        ):
            at = now - timedelta(minutes=minutes)
            ours = operations.c.op_id == op_id
            conn.execute(sa.update(operations).where(ours).values(started_at=at, finished_at=at))
            conn.execute(sa.update(lines).where(lines.c.op_id == op_id).values(changed_at=at))
    assert done.op_id is not None
    return done.op_id


def _again(app: App, msg_id: int, now: datetime) -> None:
    """The message was rerun too early: it is dead again."""
    _tries(app, msg_id, now, len(FIRST) + 1, SECOND)
    at = now - timedelta(minutes=SECOND[-1])
    edit(app, msg_id, status=FAILED, error_try_times=3, last_error=DOWN, finished_at=at)
