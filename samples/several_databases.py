"""One queue in three databases: payments live by customer, machines share out the shards of each.

Look for: `Databases` names an App for each database. A customer has one home, by the shard of its
number, so its payments keep their order; `databases.of(customer)` is where to begin the
transaction. Each machine is one process that works on all three, with `Partitions` in each. One of
two machines is killed in the middle and another one comes; one signal stops a machine in all three.
The proof is read from the tables at the end.

`python samples/several_databases.py` uses three SQLite files; with `--url postgresql://...` it uses
three schemas of that database, which it makes and drops.
"""

import argparse
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import sqlalchemy as sa

from msgworker import App, Context, Databases, Message, MessageTable
from msgworker.coordination import DatabaseLocks, Partitions

NAMES = ("north", "east", "south")
CUSTOMERS = 36
TTL = 3.0
PATIENCE_SECONDS = 90.0


def booking_of(schema: str | None) -> sa.Table:
    """What was booked, by which machine: for the proof."""
    return sa.Table(
        "booking",
        sa.MetaData(schema=schema),
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("customer", sa.String(20), nullable=False),
        sa.Column("msg_id", sa.BigInteger, nullable=False),
        sa.Column("machine", sa.String(20), nullable=False),
    )


def open_databases(place: str, machine: str = "") -> Databases:
    """place: a folder for three files, or the URL of a database with three schemas."""
    apps = {}
    for name in NAMES:
        schema = f"crm_{name}" if "://" in place else None
        url = place if schema else f"sqlite:///{Path(place) / name}.db"
        table = f"{schema}.msgworker_message" if schema else "msgworker_message"
        app = App(url, table=MessageTable(table, shard="shard"), lease_seconds=3, poll_seconds=0.2)
        booking = booking_of(schema)

        def book(msg: Message, ctx: Context, booking: sa.Table = booking) -> None:
            time.sleep(0.005)
            row = {"customer": msg.object_id, "msg_id": msg.msg_id, "machine": machine}
            ctx.connection.execute(booking.insert().values(row))

        app.add_handler("payment", book, transactional=True)
        apps[name] = app
    return Databases(apps)


def scopes_of(databases: Databases) -> dict[str, Partitions]:
    """The locks of each database are its own, so that one that is away stops no other."""
    locks = {n: DatabaseLocks(a.engine, schema=a.table.schema) for n, a in databases.apps.items()}
    return {name: Partitions(one, shards=8, ttl=TTL) for name, one in locks.items()}


def be_machine(place: str, machine: str) -> None:
    databases = open_databases(place, machine)
    databases.worker(threads=1, scope=scopes_of(databases)).run(signals=True)


class Fleet:
    """The machines."""

    def __init__(self, place: str) -> None:
        self._words = [sys.executable, __file__, "--url", place]
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def add(self, name: str) -> None:
        self.processes[name] = subprocess.Popen([*self._words, "--machine", name])
        print(f"        {name} is added")

    def end(self, name: str, number: signal.Signals) -> int:
        self.processes[name].send_signal(number)
        code = self.processes[name].wait()
        print(f"        {name} is gone ({number.name})")
        return code


def booked(databases: Databases) -> dict[str, list[sa.Row[tuple[str, int, str]]]]:
    """By database, in the order of booking: customer, msg_id, machine."""
    found = {}
    for name, app in databases.apps.items():
        b = booking_of(app.table.schema).c
        with app.engine.connect() as conn:
            query = sa.select(b.customer, b.msg_id, b.machine).order_by(b.id)
            found[name] = list(conn.execute(query))
    return found


def count(databases: Databases) -> int:
    return sum(map(len, booked(databases).values()))


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"BROKEN  not within {PATIENCE_SECONDS:g} s: {what}")
        time.sleep(0.1)


def proved(what: str, holds: bool) -> None:
    print(f"{'proved ' if holds else 'BROKEN '} {what}")
    if not holds:
        raise SystemExit(1)


class Producer:
    """Sends a payment of every customer, again and again."""

    def __init__(self, databases: Databases) -> None:
        self.databases = databases
        self.sent = 0

    def send(self) -> None:
        payments = [({"n": self.sent + n}, f"C-{n}") for n in range(CUSTOMERS)]
        self.sent += CUSTOMERS
        for app, part in self.databases.split(payments):
            with app.engine.begin() as conn:
                app.send_many(conn, "payment", part)

    def send_until_worked(self, *machines: str) -> None:
        """Until each of these machines has booked something in each database."""

        def worked() -> bool:
            if count(self.databases) == self.sent:
                self.send()
            by = [{row.machine for row in rows} for rows in booked(self.databases).values()]
            return all(who >= set(machines) for who in by)

        until(worked, f"{' and '.join(machines)} work on all three databases")


def play(producer: Producer, fleet: Fleet) -> int:
    fleet.add("m1")
    fleet.add("m2")
    producer.send_until_worked("m1", "m2")
    producer.send()
    fleet.end("m2", signal.SIGKILL)
    fleet.add("m3")
    producer.send_until_worked("m3")
    until(lambda: count(producer.databases) >= producer.sent, "m1 and m3 do the rest")
    return max(fleet.end(name, signal.SIGTERM) for name in ("m1", "m3"))


def prove(databases: Databases, sent: int, code: int) -> None:
    found = booked(databases)
    statuses = set()
    for app in databases.apps.values():
        with app.engine.connect() as conn:
            statuses |= set(conn.scalars(sa.select(app.tables.message.c.status)))
    numbers = {(name, row.msg_id) for name, rows in found.items() for row in rows}
    proved(f"{sent} payments, each booked once", len(numbers) == sent == count(databases))
    proved("every message is done", statuses == {2})
    at_home = all(
        databases.name_of(row.customer) == name for name, rows in found.items() for row in rows
    )
    spread = ", ".join(f"{name} {len(rows)}" for name, rows in found.items())
    proved(f"each in the database of its customer ({spread})", at_home and all(found.values()))
    order: dict[str, list[int]] = {}
    for rows in found.values():
        for row in rows:
            order.setdefault(row.customer, []).append(row.msg_id)
    kept = all(ids == sorted(ids) for ids in order.values())
    proved(f"the payments of each of {len(order)} customers were booked in their order", kept)
    machines = [{row.machine for row in rows} for rows in found.values()]
    proved("m1, m2 and m3 have worked on each", machines == [{"m1", "m2", "m3"}] * len(NAMES))
    living = [one for app in databases.apps.values() for one in app.ops.instances() if one.works]
    proved("one signal has stopped a machine in all three databases", code == 0 and not living)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="a database with schemas (PostgreSQL)")
    parser.add_argument("--machine", default="")
    options = parser.parse_args()
    if options.machine:
        be_machine(options.url, options.machine)
        return
    with tempfile.TemporaryDirectory() as folder:
        place = options.url or folder
        databases = open_databases(place)
        schemas = [app.table.schema for app in databases.apps.values() if app.table.schema]
        fleet = Fleet(place)
        first = next(iter(databases.apps.values())).engine
        with first.begin() as conn:
            for schema in schemas:
                conn.execute(sa.schema.CreateSchema(schema))
        try:
            databases.create_schema()
            for app in databases.apps.values():
                booking_of(app.table.schema).create(app.engine)
            producer = Producer(databases)
            code = play(producer, fleet)
            prove(databases, producer.sent, code)
        finally:
            for process in fleet.processes.values():
                process.kill()
                process.wait()
            with first.begin() as conn:
                for schema in schemas:
                    conn.execute(sa.schema.DropSchema(schema, cascade=True))
            for app in databases.apps.values():
                app.engine.dispose()


if __name__ == "__main__":
    main()
