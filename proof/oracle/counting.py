"""Statements, round trips and parses per message, as the driver of a session counts them; the
shapes of work are those of bench/counts.json.

    python -m proof.oracle.counting            the table of docs/project/oracle.md
    python -m proof.oracle.counting --record   write counts.json anew, the worst of three
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from bench.counts import SHAPES, Shape, recorded
from bench.seeding import TOPIC
from msgworker import App, Context, Message
from proof.oracle import driver, standins
from tests.servers import session

PATH = Path(__file__).parent / "counts.json"
TOLERANCE = 2.0
"""A busy machine makes smaller batches; what this guards against is a statement per message."""
PER_SECOND = 20.0
"""Statements that each second allows besides: on a slow machine batches are small."""
AIM = 2.0  # times the round trips of PostgreSQL
_SENT_AT_ONCE = 500

EFFECTS = sa.Table(
    "bench_effect",
    sa.MetaData(),
    sa.Column("msg_number", sa.Integer, primary_key=True),
    sa.Column("customer", sa.String(40)),
    sa.Column("cents", sa.Integer, nullable=False),
)


@dataclass(frozen=True, slots=True)
class Counted:
    """Per message; of all messages the seconds."""

    statements: float
    round_trips: float
    parses: float
    seconds: float = 0.0


def fill(app: App, shape: Shape) -> None:
    """The messages of a shape, as bench/seeding.py makes them on other databases."""
    rows = shape.rows
    priorities = bool(rows.values)
    for start in range(0, rows.count, _SENT_AT_ONCE):
        with app.engine.begin() as conn:
            for priority in range(8) if priorities else (None,):
                made = [
                    ({"i": i}, f"obj{i * 7919 % rows.objects:08d}" if rows.objects else None)
                    for i in range(start + 1, min(start + _SENT_AT_ONCE, rows.count) + 1)
                    if priority is None or i % 8 == priority
                ]
                options: dict[str, Any] = {} if priority is None else {"priority": priority}
                app.send_many(conn, TOPIC, made, **options)


def add_handler(app: App, shape: Shape) -> None:
    def effect(msg: Message[Any], ctx: Context) -> None:
        ctx.connection.execute(EFFECTS.insert(), row(msg))

    def effects(messages: list[Message[Any]], ctx: Any) -> None:
        ctx.connection.execute(EFFECTS.insert(), [row(msg) for msg in messages])

    def row(msg: Message[Any]) -> dict[str, Any]:
        return {"msg_number": msg.payload["i"], "customer": msg.object_id, "cents": 1}

    def nothing(msg: Message[Any]) -> None: ...

    handler: Any = {"nothing": nothing, "effect": effect, "effects": effects}[shape.handler]
    options: dict[str, Any] = {"transactional": shape.handler != "nothing"}
    options |= {"group": shape.group} if shape.group else {}
    options |= {"batch": shape.batch} if shape.batch else {}
    app.add_handler(TOPIC, handler, **options)


def count(url: str, name: str) -> Counted:
    """Drain the messages of a shape in an empty database; count what all sessions did from then."""
    shape = SHAPES[name]
    app = App(url)
    try:
        app.create_schema()
        EFFECTS.create(app.engine)
        fill(app, shape)
        add_handler(app, shape)
        app.engine.dispose()
        worker = app.worker(threads=shape.threads)
        assert app.tables is not None
        driver.sessions.clear()
        begin = time.perf_counter()
        report = worker.drain(linger=0)
        seconds = time.perf_counter() - begin
        assert (report.done, report.left) == (shape.rows.count, 0), report
        all_of_them = driver.Work()
        for work in driver.sessions:
            all_of_them += work
    finally:
        app.engine.dispose()
    number = shape.rows.count
    return Counted(
        all_of_them.statements / number,
        all_of_them.round_trips / number,
        all_of_them.parses / number,
        seconds,
    )


def kept() -> dict[str, dict[str, float]]:
    """What counts.json holds: shape -> statements, round_trips and parses per message."""
    found: dict[str, dict[str, float]] = json.loads(PATH.read_text(encoding="utf-8"))
    return found


def shown() -> str:
    """The table of docs/project/oracle.md."""
    lines = [
        "| | statements | round trips | parses | round trips on PostgreSQL | times |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    postgresql = recorded()["postgresql"]
    for name, one in kept().items():
        base = postgresql[name]["round_trips"]
        lines.append(
            f"| {name} | {one['statements']:.3f} | {one['round_trips']:.3f} "
            f"| {one['parses']:.3f} | {base:.3f} | {one['round_trips'] / base:.1f} |"
        )
    return "\n".join(lines) + "\n"


def record() -> None:
    """The worst of three, on a MariaDB of the tests."""
    from tests.plugin import make_database

    standins.install()
    found: dict[str, dict[str, float]] = {}
    with session(durable=False) as fleet:
        for name in SHAPES:
            runs = []
            for _ in range(3):
                made, _ = make_database("oracle-mariadb", fleet, Path())
                runs.append(asdict(count(made.url, name)))
            found[name] = {
                what: round(max(run[what] for run in runs), 4)
                for what in ("statements", "round_trips", "parses")
            }
            print(name, found[name], flush=True)
    PATH.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="counting", description=__doc__)
    parser.add_argument("--record", action="store_true")
    if parser.parse_args().record:
        record()
    print(shown(), end="")
