"""pgqueuer over a pool of asyncpg; an entrypoint with concurrency_limit=1 for each object."""

from __future__ import annotations

import asyncio
import time

import asyncpg
from common import JOB, at_pace, chunks, key, main, note, until_over
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgPoolDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries

BATCH = 100


def entrypoint(i: int) -> str:
    return key(i) or "bench"


async def setup() -> None:
    async with asyncpg.create_pool(JOB["dsn"], min_size=1, max_size=4) as pool:
        queries = Queries(AsyncpgPoolDriver(pool))
        await queries.install()
        for numbers in chunks():
            await queries.enqueue(
                [entrypoint(i) for i in numbers],
                [str(i).encode() for i in numbers],
                [0 for _ in numbers],
            )


async def work() -> None:
    async with asyncpg.create_pool(JOB["dsn"], min_size=2, max_size=10) as pool:
        queue = PgQueuer(AsyncpgPoolDriver(pool))

        async def handle(job: Job) -> None:
            started = time.monotonic_ns()
            note(int(job.payload), job.entrypoint if JOB["objects"] else "", started)

        for i in range(max(1, JOB["objects"])):
            limit = 1 if JOB["objects"] else 0
            queue.entrypoint(entrypoint(i), concurrency_limit=limit)(handle)
        running = asyncio.create_task(queue.run(batch_size=BATCH))
        await until_over()
        if running.done():
            running.result()


async def send() -> None:
    async with asyncpg.create_pool(JOB["dsn"], min_size=1, max_size=2) as pool:
        queries = Queries(AsyncpgPoolDriver(pool))

        async def one(i: int) -> None:
            await queries.enqueue("bench", str(i).encode())

        await at_pace(one)


main(setup=setup, work=work, send=send)
