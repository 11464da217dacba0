"""B12: `send_many` beside the driver's own bulk insert of the same rows, one transaction each."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import sqlalchemy as sa

from bench.report import Line
from bench.scenarios import Place
from bench.seeding import TABLE, TOPIC, fill
from msgworker import App


def run_producer(place: Place) -> Iterator[Line]:
    """One line; its limit is the driver's executemany."""
    count = place.scale.messages
    line = Line(place.kind, "B12", f"send_many of {count:,} (limit: executemany)")
    app = App(place.text)
    for _ in range(place.scale.rounds):
        fill(app, ())
        line.limit.append(count / _by_driver(app.engine, count))
        fill(app, ())
        line.rates.append(count / _by_send_many(app, count))
        line.missing += count - _count(app.engine)
    app.engine.dispose()
    yield line


def _by_send_many(app: App, count: int) -> float:
    pairs = [({"i": i}, f"obj{i % 1000:08d}") for i in range(count)]
    begun = time.monotonic()
    with app.engine.begin() as conn:
        app.send_many(conn, TOPIC, pairs)
    return time.monotonic() - begun


def _by_driver(engine: sa.Engine, count: int) -> float:
    rows = [(TOPIC, f"obj{i % 1000:08d}", json.dumps({"i": i})) for i in range(count)]
    mark = "?" if engine.dialect.paramstyle == "qmark" else "%s"
    text = f"INSERT INTO {TABLE} (topic, object_id, payload) VALUES ({mark}, {mark}, {mark})"
    connection = engine.raw_connection()
    try:
        begun = time.monotonic()
        connection.cursor().executemany(text, rows)
        connection.commit()
        return time.monotonic() - begun
    finally:
        connection.close()


def _count(engine: sa.Engine) -> int:
    with engine.connect() as conn:
        return int(conn.exec_driver_sql(f"SELECT count(*) FROM {TABLE}").scalar() or 0)
