"""A program of instances and one of a producer that code of every version understands.

    python program.py URL LABEL RECORDS [work|send]

work: handle messages until SIGTERM, and add a line per call to the file RECORDS. send: send some
every 40 ms until SIGTERM, and print how many. It is run with the folder of the code under test
first in PYTHONPATH, so it imports nothing else of the tests.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import sqlalchemy as sa

import msgworker
from msgworker import App, Context, Message

OBJECTS = 4  # of each producer: where two send to one object, a lower id may be committed later
EFFECTS = sa.Table(
    "effect",
    sa.MetaData(),
    sa.Column(
        "id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), sa.Identity(), primary_key=True
    ),
    sa.Column("msg_id", sa.BigInteger(), nullable=False),
    sa.Column("object_id", sa.String(40)),
    sa.Column("who", sa.String(40), nullable=False),
)
"""One row for each handler that has ended, in its own transaction."""


def work(app: App, label: str, records: Path) -> None:
    """Handle messages until a signal comes."""
    lock = threading.Lock()

    @app.handler("exact", transactional=True)
    def exact(msg: Message[Any], ctx: Context) -> None:
        since = time.monotonic()
        row = {"msg_id": msg.msg_id, "object_id": msg.object_id, "who": label}
        ctx.connection.execute(EFFECTS.insert(), row)
        time.sleep(0.004)
        call = {**row, "since": since, "until": time.monotonic()}
        with lock, records.open("a") as file:
            file.write(json.dumps(call) + "\n")

    print("ready", Path(msgworker.__file__).parents[1], flush=True)
    app.worker(threads=3).run(signals=True)


def send(app: App, label: str) -> None:
    """Send messages until a signal comes, sometimes several in a transaction."""
    told = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: told.set())
    print("ready", Path(msgworker.__file__).parents[1], flush=True)
    sent = 0
    while not told.wait(0.04):
        with app.engine.begin() as conn:
            for _ in range(1 + sent % 3):
                app.send(conn, "exact", {"n": sent}, object_id=f"{label}-{sent * 3 % OBJECTS}")
                sent += 1
    print("sent", sent, flush=True)


if __name__ == "__main__":
    url, label, records, what = sys.argv[1:]
    app = App(url, lease_seconds=30, poll_seconds=0.1)
    if what == "send":
        send(app, label)
    else:
        work(app, label, Path(records))
    app.engine.dispose()
