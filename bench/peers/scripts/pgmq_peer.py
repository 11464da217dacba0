"""pgmq: readers take a batch, handle it and delete it; for order by groups, in turns (the other way
to read groups is far slower, and so are two readers), for effects all in one transaction."""

from __future__ import annotations

import asyncio
import logging
import time

from common import JOB, at_pace, chunks, key, main, note, until_over
from pgmq import AsyncPGMQueue, install_pgmq_from_sql
from pgmq.notify_listener import AsyncNotificationListener

QUEUE = "bench"
BATCH = 500 if JOB["kind"].startswith("effects") else 2_000
READERS = 1 if JOB["objects"] else 2
VISIBLE_AGAIN = 60
POLLING_SECONDS = 0.5
EFFECTS = "INSERT INTO effect SELECT i, key, 1 FROM unnest($1::bigint[], $2::text[]) j(i, key)"

logging.disable(logging.WARNING)  # its listener warns of each notification


async def opened() -> AsyncPGMQueue:
    queue = AsyncPGMQueue(conn_string=JOB["dsn"], init_extension=False, vt=VISIBLE_AGAIN)
    await queue.init()
    return queue


async def setup() -> None:
    install_pgmq_from_sql(dsn=JOB["dsn"])
    queue = await opened()
    await queue.create_queue(QUEUE)
    if JOB["objects"]:
        await queue.create_fifo_index(QUEUE)
    if JOB["kind"] == "pickup":
        await queue.enable_notify(QUEUE, throttle_interval_ms=0)
    for numbers in chunks():
        headers = [{"x-pgmq-group": key(i)} for i in numbers] if JOB["objects"] else None
        await queue.send_batch(QUEUE, [{"i": i, "key": key(i)} for i in numbers], headers)
    await queue.pool.execute(
        "CREATE TABLE effect (i bigint PRIMARY KEY, object_id text, cents bigint)"
    )


async def take(queue: AsyncPGMQueue, conn=None) -> int:
    """Read a batch, handle it, delete it; on a connection of a transaction, its effects too."""
    read = queue.read_grouped_rr if JOB["objects"] else queue.read
    batch = await read(QUEUE, qty=BATCH, conn=conn)
    if conn and batch:
        rows = [[msg.message[name] for msg in batch] for name in ("i", "key")]
        await conn.execute(EFFECTS, *rows)
    for msg in batch:
        note(msg.message["i"], msg.message["key"], time.monotonic_ns())
    ids = [msg.msg_id for msg in batch]
    if len(await queue.delete_batch(QUEUE, ids, conn=conn)) < len(ids):
        raise RuntimeError("messages were visible again before they were deleted")
    return len(batch)


async def work() -> None:
    queue, sent = await opened(), asyncio.Event()

    async def hear(_) -> None:
        sent.set()

    async def reader() -> None:
        while True:
            sent.clear()
            if JOB["kind"].startswith("effects"):
                async with queue.pool.acquire() as conn, conn.transaction():
                    taken = await take(queue, conn)
            else:
                taken = await take(queue)
            if not taken:
                await asyncio.wait([asyncio.create_task(sent.wait())], timeout=POLLING_SECONDS)

    running = [asyncio.create_task(reader()) for _ in range(READERS)]
    if JOB["kind"] == "pickup":
        listener = AsyncNotificationListener(queue)
        running.append(asyncio.create_task(listener.listen(QUEUE, hear)))
    await until_over()
    for task in running:
        if task.done():
            task.result()


async def send() -> None:
    queue = await opened()

    async def one(i: int) -> None:
        await queue.send(QUEUE, {"i": i, "key": ""})

    await at_pace(one)


main(setup=setup, work=work, send=send)
