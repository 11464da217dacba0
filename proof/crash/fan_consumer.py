"""The consumer program of the fan-out crash tests: `python -m proof.crash.fan_consumer URL ...`.

Topic `exact`: each item writes a row of effects in its own transaction, with its record. Topic
`plain`: each item commits such a row by itself. Prints "ready" when its instance runs.
"""

from __future__ import annotations

import argparse
import random
import time
from typing import Any

import sqlalchemy as sa

from msgworker import App, Context, Message, MessageTable

EFFECT = sa.Table(
    "fan_effect",
    sa.MetaData(),
    sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True),
    sa.Column("topic", sa.String(10), nullable=False),
    sa.Column("item", sa.Integer(), nullable=False),
)
TRIES = 100


def make_app(url: str, *, lease: float) -> App:
    table = MessageTable(max_tries=TRIES)
    return App(url, table=table, lease_seconds=lease, poll_seconds=0.05, backoff_seconds=1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--lease", type=float, required=True)
    parser.add_argument("--threads", type=int, default=4)
    options = parser.parse_args()
    app = make_app(options.url, lease=options.lease)
    chance = random.Random()

    def work() -> None:
        time.sleep(chance.uniform(0.0, 0.012))

    def exact(item: int, conn: sa.Connection) -> None:
        work()
        conn.execute(EFFECT.insert().values(topic="exact", item=item))
        work()

    def plain(item: int) -> None:
        work()
        with app.engine.begin() as conn:
            conn.execute(EFFECT.insert().values(topic="plain", item=item))

    @app.handler("exact")
    def run_exact(msg: Message[Any], ctx: Context) -> None:
        items = range(msg.payload)
        ctx.fan_out(
            exact, items, threads=options.threads, transactional_items=True
        ).raise_for_failed()

    @app.handler("plain")
    def run_plain(msg: Message[Any], ctx: Context) -> None:
        ctx.fan_out(plain, iter(range(msg.payload)), threads=options.threads).raise_for_failed()

    with app.worker(threads=2) as worker:
        worker.start()
        print("ready", flush=True)
        worker_ends = input()  # the test closes our stdin, or kills us
        assert not worker_ends


if __name__ == "__main__":
    main()
