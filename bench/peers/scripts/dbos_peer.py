"""DBOS: a workflow for each message, in a queue that is polled every 10 ms; for order a partition
for each object, for effects a transaction of its datasource in each workflow."""

from __future__ import annotations

import asyncio
import time

import sqlalchemy as sa
from common import JOB, at_pace, chunks, key, main, note, until_over
from dbos import DBOS, DBOSClient, SQLAlchemyDatasource

QUEUE = "bench"
RUNNING = 1_000
THREADS = 16
POLLING_SECONDS = 0.01
IN_TRANSACTION = 1_000
"""Of one transaction all have the same time, which the order goes by: each of another object."""
ENQUEUE = sa.text(
    "SELECT count(dbos.enqueue_workflow(workflow_name => 'handle', queue_name => 'bench', "
    "positional_args => ARRAY[to_json(i), to_json(key)], queue_partition_key => nullif(key, ''), "
    "application_name => 'bench')) "
    "FROM unnest(cast(:i AS bigint[]), cast(:key AS text[])) j(i, key)"
)
DONE = "UPDATE dbos.workflow_status SET status = 'SUCCESS' WHERE status = 'ENQUEUED'"
EFFECT = sa.text("INSERT INTO effect VALUES (:i, :key, 1)")

url = JOB["dsn"].replace("postgresql://", "postgresql+psycopg://")


def opened() -> DBOSClient:
    return DBOSClient(system_database_url=url, application_name=QUEUE)


async def setup() -> None:
    DBOS.migrate(url)
    SQLAlchemyDatasource.migrate(url)
    engine = sa.create_engine(url)
    opened().register_queue(
        QUEUE,
        worker_concurrency=RUNNING,
        polling_interval_sec=POLLING_SECONDS,
        partition_concurrency=1 if JOB["objects"] else None,
    )
    for numbers in chunks(IN_TRANSACTION):
        with engine.begin() as conn:
            conn.execute(ENQUEUE, {"i": list(numbers), "key": [key(i) for i in numbers]})
            if numbers[-1] <= 0:
                conn.exec_driver_sql(DONE)
    with engine.begin() as conn:
        conn.exec_driver_sql(
            "CREATE TABLE effect (i bigint PRIMARY KEY, object_id text, cents bigint)"
        )


async def work() -> None:
    DBOS(
        config={
            "name": QUEUE,
            "application_version": "1",
            "system_database_url": url,
            "max_executor_threads": THREADS,
            "log_level": "WARNING",
        }
    )
    source = SQLAlchemyDatasource.create(url)

    @source.transaction(isolation_level="READ COMMITTED")
    def write(i: int, key: str) -> None:
        source.sql_session().execute(EFFECT, {"i": i, "key": key})

    @DBOS.workflow(name="handle")
    def handle(i: int, key: str) -> None:
        started = time.monotonic_ns()
        if JOB["kind"].startswith("effects"):
            write(i, key)
        note(i, key, started)

    DBOS.launch()
    await until_over()


async def send() -> None:
    client = opened()

    async def one(i: int) -> None:
        options = {"queue_name": QUEUE, "workflow_name": "handle"}
        await asyncio.to_thread(client.enqueue, options, i, "")

    await at_pace(one)


main(setup=setup, work=work, send=send)
