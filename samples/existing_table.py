"""A table that exists already: four columns, other names, and another consumer on it.

`tb_cus_msg` has msgID, objectID, status, errorTryTimes and nothing else. `create_schema` adds the
guard and the claim indexes; the plain SQL consumer of plain_sql_consumer.py works on the same rows
meanwhile.

    python samples/existing_table.py [--url URL]

Look for: both consumers get some, each message is handled once, no object twice at a time.
"""

import argparse
import tempfile
import threading
import time
from pathlib import Path

import sqlalchemy as sa
from plain_sql_consumer import consume

from msgworker import App, MessageTable

MESSAGES, OBJECTS = 600, 40
table = MessageTable(
    "tb_cus_msg",
    msg_id="msgID",
    object_id="objectID",
    status="status",
    error_try_times="errorTryTimes",
    payload=None,
)


class Watch:
    """Sees who handles what, and whether an object is ever handled twice at a time."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.running: set[str] = set()
        self.handled: list[int] = []
        self.by: dict[str, int] = {"msgworker": 0, "plain SQL": 0}
        self.overlaps = 0

    def handle(self, who: str, msg_id: int, object_id: str) -> None:
        with self.lock:
            self.overlaps += object_id in self.running
            self.running.add(object_id)
        time.sleep(0.002)
        with self.lock:
            self.running.discard(object_id)
            self.handled.append(msg_id)
            self.by[who] += 1


def make_table(engine: sa.Engine) -> None:
    """The table as it was before msgworker came, full of work."""
    key = "integer primary key" if engine.dialect.name == "sqlite" else "bigint primary key"
    with engine.begin() as conn:
        conn.execute(sa.text("drop table if exists tb_cus_msg"))
        conn.execute(
            sa.text(
                f"create table tb_cus_msg (msgID {key}, objectID varchar(64), "
                "status smallint default 0 not null, errorTryTimes smallint default 0 not null)"
            )
        )
        rows = [{"i": i, "o": f"customer-{i % OBJECTS}"} for i in range(1, MESSAGES + 1)]
        conn.execute(sa.text("insert into tb_cus_msg (msgID, objectID) values (:i, :o)"), rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        app = App(options.url or f"sqlite:///{Path(folder) / 'crm.db'}", table=table, lanes_limit=8)
        make_table(app.engine)
        print("created:", ", ".join(app.create_schema()))
        watch = Watch()
        app.add_handler(None, lambda msg: watch.handle("msgworker", msg.msg_id, str(msg.object_id)))
        over = threading.Event()
        plain = threading.Thread(
            target=consume,
            args=(app.engine, lambda i, o: watch.handle("plain SQL", i, o)),
            kwargs={"until": over.is_set},
        )
        plain.start()
        with app.worker(threads=2) as worker:
            worker.start()
            deadline = time.monotonic() + 60
            while len(watch.handled) < MESSAGES and time.monotonic() < deadline:
                time.sleep(0.05)
        over.set()
        plain.join()
        done = sum(c.count for c in app.ops.counts() if c.status == "done")
        app.engine.dispose()
    once = sorted(watch.handled) == list(range(1, MESSAGES + 1))
    print(f"{watch.by}; done {done}; each once: {once}; objects twice at a time: {watch.overlaps}")
    return 0 if once and done == MESSAGES and not watch.overlaps else 1


if __name__ == "__main__":
    raise SystemExit(main())
