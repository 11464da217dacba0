"""awa: its Rust core under async handlers; for order a PartitionedQueue, one worker a partition."""

from __future__ import annotations

import time
from dataclasses import dataclass

import awa
from common import JOB, at_pace, chunks, key, main, note, until_over

WORKERS = 256
PARTITIONS = 8


@dataclass
class Bench:
    i: int
    key: str


queue = awa.PartitionedQueue("bench", PARTITIONS) if JOB["objects"] else None
client = awa.AsyncClient(JOB["dsn"], max_connections=24)


async def setup() -> None:
    await client.migrate()
    await client.install_queue_storage()  # what a fresh database has once workers have run
    for numbers in chunks():
        jobs = [Bench(i, key(i)) for i in numbers]
        opts = [queue.route_by_key(job.key) for job in jobs] if queue else None
        await client.enqueue_many_copy(jobs, queue="bench", opts=opts)


async def work() -> None:
    queues = queue.physical_queues if queue else ["bench"]

    @client.task(Bench, queue=queues[0])
    async def handle(job) -> None:
        started = time.monotonic_ns()
        note(job.args.i, job.args.key, started)

    one = [{"name": "bench", "max_workers": WORKERS}]
    await client.start(queue.queue_configs(max_workers_per_partition=1) if queue else one)
    await until_over()


async def send() -> None:
    async def one(i: int) -> None:
        await client.insert(Bench(i, ""), queue="bench")

    await at_pace(one)


main(setup=setup, work=work, send=send)
