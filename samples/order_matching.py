"""Orders in 8 shards and 2 segments, Redis locks, machines that come, go and die.

Look for: `Segments` gives each machine one segment of the order table at a time, under a lock in
Redis. The locks are advice: while Redis is away the machines look everywhere
(`on_outage="unscoped"`), and the order of each book is kept all the same, by the message table. The
proof is read from the tables at the end.

`python samples/order_matching.py` starts a redis-server and the machines as processes of its own;
without redis-server the locks are in the database, and nothing of them is killed.
"""

import argparse
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import sqlalchemy as sa

from msgworker import App, Context, Message, MessageTable
from msgworker.coordination import DatabaseLocks, LockCentre, RedisLocks, Segments

SEGMENTS = {
    "rpmatch:cluster:order:segment:0": [0, 1, 2, 3],
    "rpmatch:cluster:order:segment:1": [4, 5, 6, 7],
}
BOOKS = 24
ORDERS = 480
PART = 120
TTL = 1.0
PATIENCE_SECONDS = 90.0

trade = sa.Table(  # what was matched, by whom: for the proof
    "trade",
    sa.MetaData(),
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("book", sa.String(20), nullable=False),
    sa.Column("msg_id", sa.Integer, nullable=False),
    sa.Column("machine", sa.String(20), nullable=False),
)


def make_app(url: str, machine: str = "") -> App:
    """shards=8: what `send` writes into the column, by the book of the order."""
    app = App(
        url,
        table=MessageTable(shard="shard", shards=8),
        label=machine,
        lease_seconds=3,
        poll_seconds=0.05,
    )

    @app.handler("order", transactional=True)
    def match(msg: Message, ctx: Context) -> None:
        time.sleep(0.005)
        row = {"book": msg.object_id, "msg_id": msg.msg_id, "machine": machine}
        ctx.connection.execute(trade.insert().values(row))

    return app


def be_machine(url: str, machine: str, redis_url: str) -> None:
    app = make_app(url, machine)
    locks: LockCentre = RedisLocks.from_url(redis_url) if redis_url else DatabaseLocks(app.engine)
    scope = Segments(locks, SEGMENTS, on_outage="unscoped", ttl=TTL, hold=0.3)
    app.worker(threads=2, scope=scope).run(signals=True)


class Redis:
    """A redis-server on a free port that keeps nothing."""

    def __init__(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.start()

    def start(self) -> None:
        command = ["redis-server", "--port", str(self.port), "--save", "", "--bind", "127.0.0.1"]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class Fleet:
    """The machines, and what the tables say about them."""

    def __init__(self, app: App, url: str, redis_url: str) -> None:
        self.app = app
        self._words = [sys.executable, __file__, "--url", url, "--redis", redis_url]
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def add(self, name: str) -> None:
        self.processes[name] = subprocess.Popen([*self._words, "--machine", name])
        print(f"        {name} is added")

    def end(self, name: str, number: signal.Signals) -> None:
        self.processes[name].send_signal(number)
        self.processes[name].wait()
        print(f"        {name} is gone ({number.name})")

    def send(self, first: int) -> None:
        with self.app.engine.begin() as conn:
            orders = [({"n": n}, f"book-{n % BOOKS}") for n in range(first, first + PART)]
            self.app.send_many(conn, "order", orders)

    def done(self) -> int:
        with self.app.engine.connect() as conn:
            return int(conn.scalar(sa.select(sa.func.count()).select_from(trade)) or 0)

    def by(self) -> set[str]:
        with self.app.engine.connect() as conn:
            return set(conn.scalars(sa.select(trade.c.machine).distinct()))


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"BROKEN  not within {PATIENCE_SECONDS:g} s: {what}")
        time.sleep(0.02)


def proved(what: str, holds: bool) -> None:
    print(f"{'proved ' if holds else 'BROKEN '} {what}")
    if not holds:
        raise SystemExit(1)


def prove(fleet: Fleet) -> None:
    with fleet.app.engine.connect() as conn:
        rows = conn.execute(sa.select(trade.c.book, trade.c.msg_id).order_by(trade.c.id)).all()
        t = fleet.app.tables.message
        shards = set(conn.scalars(sa.select(t.c.shard).distinct()))
        statuses = set(conn.scalars(sa.select(t.c.status).distinct()))
    proved(f"{ORDERS} orders, each matched once", len({i for _, i in rows}) == len(rows) == ORDERS)
    proved("every message is done", statuses == {2})
    proved("the orders lie in shards 0 to 7", shards <= set(range(8)) and len(shards) > 4)
    order: dict[str, list[int]] = {}
    for book, msg_id in rows:
        order.setdefault(book, []).append(msg_id)
    kept = all(ids == sorted(ids) for ids in order.values())
    proved(f"the orders of each of {len(order)} books were matched in their order", kept)
    proved(f"machines took part: {', '.join(sorted(fleet.by()))}", len(fleet.by()) >= 2)


def play(fleet: Fleet, redis: Redis | None) -> None:
    fleet.add("m1")
    fleet.add("m2")
    fleet.send(0)
    until(lambda: fleet.done() > PART // 2, "half of the first orders")
    fleet.add("m3")
    if redis is not None:
        redis.kill()
        print("        Redis is killed")
    fleet.send(PART)
    until(lambda: fleet.done() >= 2 * PART, "orders go on without Redis")
    if redis is not None:
        redis.start()
        print("        Redis is back, and knows of no lock")
    fleet.send(2 * PART)
    fleet.end("m1", signal.SIGTERM)
    until(lambda: "m3" in fleet.by() or fleet.done() >= 3 * PART, "m3 takes part")
    fleet.end("m2", signal.SIGKILL)
    fleet.send(3 * PART)
    until(lambda: fleet.done() >= ORDERS, "m3 does the rest")
    fleet.end("m3", signal.SIGTERM)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url")
    parser.add_argument("--redis", default="")
    parser.add_argument("--machine", default="")
    options = parser.parse_args()
    if options.machine:
        be_machine(options.url, options.machine, options.redis)
        return
    with tempfile.TemporaryDirectory() as folder:
        url = options.url or f"sqlite:///{Path(folder) / 'orders.db'}"
        app = make_app(url)
        app.create_schema()
        trade.metadata.create_all(app.engine)
        redis = Redis() if shutil.which("redis-server") else None
        if redis is None:
            print("        there is no redis-server: the locks are in the database")
        fleet = Fleet(app, url, redis.url if redis else "")
        try:
            play(fleet, redis)
            prove(fleet)
        finally:
            for process in fleet.processes.values():
                process.kill()
            if redis is not None:
                redis.kill()
            app.engine.dispose()


if __name__ == "__main__":
    main()
