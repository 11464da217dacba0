"""procrastinate: async tasks, `lock` for the order of an object, LISTEN/NOTIFY (its default)."""

from __future__ import annotations

import asyncio
import time

from common import JOB, at_pace, chunks, key, main, note, until_over
from procrastinate import App, PsycopgConnector

CONCURRENCY = 20

app = App(connector=PsycopgConnector(conninfo=JOB["dsn"], max_size=CONCURRENCY + 4))


@app.task(name="bench")
async def task(i: int, key: str) -> None:
    note(i, key, time.monotonic_ns())


def made(i: int):
    lock = key(i)
    return task.configure(**({"lock": lock} if lock else {})).make_new_job(i=i, key=lock)


async def setup() -> None:
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        for numbers in chunks():
            await app.job_manager.batch_defer_jobs_async([made(i) for i in numbers])
            if numbers[0] <= 0:
                async with app.connector.pool.connection() as conn:
                    await conn.execute(
                        "UPDATE procrastinate_jobs SET status = 'succeeded' "
                        "WHERE status = 'todo' AND (args ->> 'i')::int <= 0"
                    )


async def work() -> None:
    async with app.open_async():
        worker = asyncio.create_task(
            app.run_worker_async(concurrency=CONCURRENCY, install_signal_handlers=False)
        )
        await until_over()
        if worker.done():
            worker.result()


async def send() -> None:
    async with app.open_async():

        async def one(i: int) -> None:
            await task.defer_async(i=i, key="")

        await at_pace(one)


main(setup=setup, work=work, send=send)
