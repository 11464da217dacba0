"""The consumer program of the crash tests: one process, one or more instances, all recorded.

`python -m proof.crash.consumer URL --history FILE [--workers N ...]`. What a message does stands in
its payload:

    {"n": 17}                    its number; nothing else: it ends well
    "work": 0.01                 seconds that its handler takes
    "fails": 2                   its handler raises in two tries; "reject": true: at once dead
    "later": 1                   its handler asks to be called later, with this chance out of two
    "counts": ["x", "y"]         a transactional one counts these up, in this order
    "crash": "in-handler"        the process dies, see points.py; "crashes": N: in N tries
    "hogs": 3                    its handler takes all memory that there is, in so many tries
    "items": ["x", "hang"]       items of a fan-out, counted up; in "fails" tries: see `misbehave`

    "rows": 200                  items of `fan.rows`: each writes a row; "exact": with its record
    "sends": true                its handler sends a message of the topic SENT_BY
    "slow": 1.5                  seconds that it takes unless it is cancelled
    "raises": true               in a batch it raises for all, where it fails; else it is named

Topics: `plain`; `exact`, whose transactional handler writes a row into the effects table; `batch`
and `group`, which do so in batches; `fan` and `fan.rows`, whose handlers fan out; with --all-topics
those of chains, unique keys and limits, and the ticks of three schedules.
Prints "ready" when its instances run. Logs warnings to stderr. SIGTERM and SIGINT stop it in order;
SIGUSR1 writes to stderr what every thread is at.
"""

from __future__ import annotations

import argparse
import faulthandler
import logging
import random
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from tenacity.wait import wait_random

from msgworker import App, BatchContext, Context, Message, MessageTable, Reject, RetryLater, Worker
from msgworker.coordination import Partitions, Segments
from msgworker.coordination.centres import open_centre
from msgworker.errors import DatabaseUnavailable, SchemaError
from msgworker.instance.state import Scope
from proof.crash.witness import Witness
from proof.history import Recorder
from proof.judge import CHAIN, JOB_OVER, MADE, ON_DEAD, ON_DONE, SENT_BY

EFFECTS = sa.Table(
    "effect",
    sa.MetaData(),
    sa.Column(
        "id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), sa.Identity(), primary_key=True
    ),
    sa.Column("msg_id", sa.BigInteger(), nullable=False),
    sa.Column("object_id", sa.String(100)),
    sa.Column("claim", sa.String(100), nullable=False),
)
COUNTERS = sa.Table(
    "counter",
    EFFECTS.metadata,
    sa.Column("name", sa.String(20), primary_key=True),
    sa.Column("n", sa.Integer(), nullable=False),
)
SENT_BY_ITEM = "fan.sent"
FAN_EFFECTS = sa.Table(
    "fan_effect",
    EFFECTS.metadata,
    sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True),
    sa.Column("exact", sa.Boolean(), nullable=False),
    sa.Column("item", sa.Integer(), nullable=False),
)
KEYED, LIMITED, METERED, TICK = "keyed", "limited", "metered", "tick"
MAX_RUNNING = 2
PER_SECOND = 20
SCHEDULES = ("one", "two", "three")
BACKOFF = wait_random(0.02, 0.2)
LATER_SECONDS = 0.05
COUNTING_SECONDS = 0.01
FAN_SECONDS = 3.0
HANG_SECONDS = 4.0
LIFE_SECONDS = 3.0  # of one that comes and goes, at most
HOG_BYTES = 1 << 20


class Planned(RuntimeError):
    """The failure that a message asks for; the log has it in one line."""


def without_planned_traceback(record: logging.LogRecord) -> bool:
    """So that a traceback in the log of a consumer is one that no test planned."""
    if record.exc_info and isinstance(record.exc_info[1], Planned):
        record.exc_info = record.exc_text = None
    return True


def table_of(*, tries: int = 3, shared: bool = False) -> MessageTable:
    """shared: out, in shards."""
    table = MessageTable(max_tries=tries)
    return table.replace(shard="shard") if shared else table


def make_app(options: argparse.Namespace, number: int) -> App:
    """An App of its own, as one process would have it."""
    app = App(
        options.url,
        table=table_of(tries=options.tries, shared=bool(options.scope)),
        lease_seconds=options.lease,
        poll_seconds=0.2,
        label=options.label or f"w{number}",
    )
    chance = random.Random(f"{options.seed}-{number}")

    def act(msg: Message[Any], attempt: int) -> None:
        does = msg.payload
        if does.get("work"):
            time.sleep(does["work"])
        if attempt <= does.get("hogs", 0):
            hog()
        if does.get("later") and chance.random() < 0.5:
            raise RetryLater(LATER_SECONDS)
        if does.get("reject"):
            raise Reject("as the message says")
        if attempt <= does.get("fails", 0):
            raise Planned(f"try {attempt} fails, as the message says")

    @app.handler("plain", wait=BACKOFF)
    def plain(msg: Message[Any], ctx: Context) -> None:
        send_on(msg, ctx)
        act(msg, ctx.attempt)

    def effect(msg: Message[Any], ctx: Context | BatchContext) -> dict[str, Any]:
        claim = f"{ctx.instance_id}/{msg.error_try_times + 1}"
        return {"msg_id": msg.msg_id, "object_id": msg.object_id, "claim": claim}

    @app.handler("group", transactional=True, group=options.group, wait=BACKOFF)
    @app.handler("exact", transactional=True, wait=BACKOFF)
    def exact(msg: Message[Any], ctx: Context) -> None:
        ctx.connection.execute(EFFECTS.insert(), effect(msg, ctx))
        for name in msg.payload.get("counts", ()):
            row = COUNTERS.c.name == name
            ctx.connection.execute(COUNTERS.update().where(row).values(n=COUNTERS.c.n + 1))
            time.sleep(COUNTING_SECONDS)
        send_on(msg, ctx)
        act(msg, ctx.attempt)

    @app.handler("batch", transactional=True, batch=options.batch, wait=BACKOFF)
    def batch(messages: list[Message[Any]], ctx: BatchContext) -> None:
        ctx.connection.execute(EFFECTS.insert(), [effect(msg, ctx) for msg in messages])
        for msg in messages:
            try:
                act(msg, msg.error_try_times + 1)
            except Exception as error:
                if msg.payload.get("raises"):
                    raise
                ctx.fail(msg, error)

    @app.handler("fan", timeout=FAN_SECONDS, wait=BACKOFF)
    def fan(msg: Message[Any], ctx: Context) -> None:
        def run(item: str) -> None:
            with app.engine.begin() as conn:
                row = COUNTERS.c.name == item
                conn.execute(COUNTERS.update().where(row).values(n=COUNTERS.c.n + 1))
            if ctx.attempt <= msg.payload.get("fails", 0):
                misbehave(item)

        ctx.fan_out(run, msg.payload["items"], threads=2).raise_for_failed()

    @app.handler("fan.rows", wait=BACKOFF)
    def fan_rows(msg: Message[Any], ctx: Context) -> None:
        def work() -> None:
            time.sleep(chance.uniform(0.0, 0.012))

        def with_its_record(item: int, conn: sa.Connection) -> None:
            ctx.send(SENT_BY_ITEM, {"exact": True, "item": item})
            work()
            conn.execute(FAN_EFFECTS.insert().values(exact=True, item=item))
            work()

        def alone(item: int) -> None:
            ctx.send(SENT_BY_ITEM, {"exact": False, "item": item})
            work()
            with app.engine.begin() as conn:
                conn.execute(FAN_EFFECTS.insert().values(exact=False, item=item))

        items = range(msg.payload["rows"])
        if msg.payload.get("exact"):
            made = ctx.fan_out(with_its_record, items, threads=4, transactional_items=True)
        else:
            made = ctx.fan_out(alone, iter(items), threads=4)
        made.raise_for_failed()

    @app.handler(SENT_BY_ITEM)
    def sent_by_item(msg: Message[Any], ctx: Context) -> None:
        """It is there: that is all."""

    if options.all_topics:
        add_topics(app, act)
    return app


def add_topics(app: App, act: Callable[[Message[Any], int], None]) -> None:
    """The handlers of chains, unique keys and limits, and the schedules."""

    @app.handler(CHAIN, on_done=ON_DONE, on_dead=ON_DEAD, wait=BACKOFF)
    @app.handler(LIMITED, max_running=MAX_RUNNING, wait=BACKOFF)
    @app.handler(METERED, rate=f"{PER_SECOND}/s", wait=BACKOFF)
    @app.handler(KEYED, wait=BACKOFF)
    def as_it_says(msg: Message[Any], ctx: Context) -> None:
        act(msg, ctx.attempt)

    def nothing(msg: Message[Any], ctx: Context) -> None:
        """It is there: that is all."""

    for topic in (*MADE, TICK, JOB_OVER):
        app.add_handler(topic, nothing)
    for name in SCHEDULES:
        app.every("1s", topic=TICK, name=name, catch_up="all")


def send_on(msg: Message[Any], ctx: Context) -> None:
    """What a handler begins with: the message that it sends, if it does, and a long wait."""
    if msg.payload.get("sends"):
        ctx.send(SENT_BY, {"msg_id": msg.msg_id}, object_id=msg.object_id, job=True)
    until = time.monotonic() + msg.payload.get("slow", 0)
    while time.monotonic() < until and not ctx.cancelled:
        time.sleep(0.02)


def hog() -> None:
    """Take memory until there is none, for this and every other thread, for a moment."""
    taken = []
    try:
        while True:
            taken.append(bytearray(HOG_BYTES))
    except MemoryError:
        time.sleep(0.3)
        raise


def misbehave(item: str) -> None:
    """What an item does to its thread, by its name."""
    if "exit" in item:
        raise SystemExit(3)
    if "interrupt" in item:
        raise KeyboardInterrupt
    if "hang" in item:
        time.sleep(HANG_SECONDS)


def limit_memory(more: int) -> None:
    """So many bytes more than we have now, and no more."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + more
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


@contextmanager
def scope_of(app: App, options: argparse.Namespace) -> Iterator[Scope | None]:
    """The scope that the options name, with its locks in the database, or where they say."""
    if not options.scope:
        yield None
        return
    locks = open_centre(options.locks, app.engine)
    if options.scope == "partitions":
        ttl = options.lease
        yield Partitions(locks, shards=options.shards, ttl=ttl, drain_timeout=ttl)
    else:
        layout = {f"torture:segment:{i}": [2 * i, 2 * i + 1] for i in range(8)}
        yield Segments(locks, layout, on_outage="unscoped", ttl=options.lease, hold=0.5)
    locks.close()


def come_and_go(app: App, options: argparse.Namespace, number: int, stop: threading.Event) -> None:
    """One instance after the other, each for a random time, until told to stop."""
    chance = random.Random(f"{options.seed}-{number}-lives")
    worker = app.worker(threads=options.threads)
    while not stop.is_set():
        worker.start()
        stop.wait(chance.uniform(0.3, 1.0) * LIFE_SECONDS)
        if not worker.stop(grace=60):
            logging.getLogger("consumer").error("a stop took longer than its grace time")
        stop.wait(chance.uniform(0.0, 0.3) * LIFE_SECONDS)


def several(options: argparse.Namespace) -> None:
    """Instances that come and go in threads of this process."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    apps = [make_app(options, i) for i in range(options.workers)]
    threads = [
        threading.Thread(target=come_and_go, args=(app, options, i, stop))
        for i, app in enumerate(apps)
    ]
    for thread in threads:
        thread.start()
    print("ready", flush=True)
    for thread in threads:
        while thread.is_alive():
            thread.join(0.2)  # without a time a signal that comes just before the wait is not seen


def single(options: argparse.Namespace) -> int:
    """One instance for as long as the process lives, or until nothing is left."""
    app = make_app(options, 0)
    with scope_of(app, options) as scope:
        return serve(app, app.worker(threads=options.threads, scope=scope), options)


def serve(app: App, worker: Worker, options: argparse.Namespace) -> int:
    """Run or drain until the end."""
    app.tables  # noqa: B018 - so that "ready" means that it really is
    make = worker.make_setup

    def ready() -> Any:
        print("ready", flush=True)  # a signal is heard of from now on
        return make()

    worker.make_setup = ready  # type: ignore[method-assign]
    if options.drain:
        report = worker.drain(
            signals=True, linger=options.linger, outage_limit=options.outage_limit
        )
        print(report, flush=True)
        return report.exit_code
    try:
        worker.run(signals=True, grace=options.grace)
    except (DatabaseUnavailable, SchemaError) as error:
        print(f"gave up: {error}", file=sys.stderr)
        return 3 if isinstance(error, DatabaseUnavailable) else 4
    return 0


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="consumer", description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--history", required=True)
    parser.add_argument("--lease", type=float, default=30.0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--grace", type=float, default=30.0)
    parser.add_argument("--seed", default="0")
    parser.add_argument("--label", default="")
    parser.add_argument("--drain", action="store_true")
    parser.add_argument("--linger", type=float, default=2.0)
    parser.add_argument("--outage-limit", type=float, default=60.0)
    parser.add_argument("--all-topics", action="store_true", help="of chains, keys, limits too")
    parser.add_argument("--batch", type=int, default=20, help="messages of a batch, at most")
    parser.add_argument("--group", type=int, default=10, help="messages of a group, at most")
    parser.add_argument("--tries", type=int, default=3, help="max_tries of the table")
    parser.add_argument("--immune", action="store_true", help="die at no point")
    parser.add_argument("--memory", type=int, default=0, help="MiB that it may take besides")
    parser.add_argument("--wall", type=float, default=0.0, help="shift time.time by seconds")
    parser.add_argument("--scope", choices=["partitions", "segments"], default="")
    parser.add_argument("--shards", type=int, default=16, help="of the scope partitions")
    parser.add_argument("--locks", default="database", help="where the scope's locks are")
    parser.add_argument("--workers", type=int, default=0, help="instances that come and go")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    options = parse(arguments)
    if options.memory:
        limit_memory(options.memory << 20)
    if options.wall:
        true_time = time.time
        time.time = lambda: true_time() + options.wall
    logging.basicConfig(
        level=logging.WARNING, format="%(levelname)s %(name)s %(message)s", stream=sys.stderr
    )
    logging.getLogger().handlers[0].addFilter(without_planned_traceback)
    # A session that was ended while it was idle is found dead when it is given back; the pool
    # reports that as an error, with a traceback.
    logging.getLogger("sqlalchemy.pool").setLevel(logging.CRITICAL)
    with closing(Recorder(options.history, "-")) as recorder:
        Witness(recorder, immune=options.immune).install()
        if options.workers:
            several(options)
            return 0
        return single(options)


if __name__ == "__main__":
    sys.exit(main())
