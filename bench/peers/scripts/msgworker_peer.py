"""msgworker's last release, set up as the one of this tree is: 4 threads, 2 for batches of 500."""

from __future__ import annotations

import gc
import time

from common import JOB, at_pace, chunks, key, main, note, until_over

from msgworker import App

TOPIC = "bench"
DONE = "UPDATE msgworker_message SET status = 2 WHERE status = 0"
EFFECTS = "INSERT INTO effect SELECT * FROM unnest(%s::bigint[], %s::text[], %s::bigint[])"
effects = JOB["kind"].startswith("effects")

app = App(JOB["dsn"].replace("postgresql://", "postgresql+psycopg://"), notify=not JOB["messages"])


async def setup() -> None:
    app.create_schema()
    with app.engine.begin() as conn:
        conn.exec_driver_sql(
            "CREATE TABLE effect (i bigint PRIMARY KEY, object_id text, cents bigint)"
        )
    for numbers in chunks():
        with app.engine.begin() as conn:
            app.send_many(conn, TOPIC, [({"i": i}, key(i) or None) for i in numbers])
            if numbers[-1] <= 0:
                conn.exec_driver_sql(DONE)


def handle(msg) -> None:
    started = time.monotonic_ns()
    note(msg.msg_id, msg.object_id or "", started)


def handle_batch(batch, ctx) -> None:
    rows = [(msg.payload["i"], msg.object_id, 1) for msg in batch]
    ctx.connection.exec_driver_sql(EFFECTS, tuple(map(list, zip(*rows, strict=True))))
    for msg in batch:
        note(msg.msg_id, msg.object_id or "", time.monotonic_ns())


async def work() -> None:
    if effects:
        app.add_handler(TOPIC, handle_batch, transactional=True, batch=500)
    else:
        app.add_handler(TOPIC, handle)
    worker = app.worker(threads=2 if effects else 4)
    if JOB["messages"]:
        gc.freeze()  # as `msgworker run` does
        worker.drain(linger=0, time_limit=JOB["seconds"])
    else:
        worker.start()
    await until_over()


async def send() -> None:
    async def one(i: int) -> None:
        with app.engine.begin() as conn:
            app.send(conn, TOPIC, {"i": i}, object_id=f"obj{i % 10}")

    await at_pace(one)


main(setup=setup, work=work, send=send)
