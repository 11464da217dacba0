"""The handlers of the scenarios, by name; each writes the log of its process."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import sqlalchemy as sa

from msgworker import Context, Message

Entry = tuple[str | None, int, int, int]
"""object_id, msg_id, start and end of the handler."""

EFFECTS = "bench_effect"
COLUMNS = ("number", "customer", "cents")
STEPS = 5_000
"""Of a handler that computes: some 200 us."""
TRANSACTIONAL = ("transactional", "effect", "effects")
"""Those that take part in a transaction; `effects` takes a batch."""


def create_effects(engine: sa.Engine) -> None:
    """The table of effects, empty: a row for each message, whose number is the key."""
    kinds = ("integer NOT NULL PRIMARY KEY", "varchar(40)", "integer NOT NULL")
    columns = ", ".join(f"{name} {kind}" for name, kind in zip(COLUMNS, kinds, strict=True))
    with engine.begin() as conn:
        conn.exec_driver_sql(f"DROP TABLE IF EXISTS {EFFECTS}")
        conn.exec_driver_sql(f"CREATE TABLE {EFFECTS} ({columns})")


def make_handler(kind: str, log: list[Entry], sleep_seconds: float = 0.0) -> Callable[..., None]:
    """The handler of this name, writing into this log.

    nothing; compute (in Python); sleep (`sleep_seconds` long); transactional (an empty one); effect
    (one row for the message, in its transaction); effects (a batch: one row for each message, in
    one statement).
    """
    note, clock = log.append, time.monotonic_ns

    def nothing(msg: Message[Any]) -> None:
        started = clock()
        note((msg.object_id, msg.msg_id, started, clock()))

    def compute(msg: Message[Any]) -> None:
        started = clock()
        total = 0
        for i in range(STEPS):
            total += i
        note((msg.object_id, msg.msg_id, started, clock()))

    def sleep(msg: Message[Any]) -> None:
        started = clock()
        time.sleep(sleep_seconds)
        note((msg.object_id, msg.msg_id, started, clock()))

    def transactional(msg: Message[Any], ctx: Context) -> None:
        started = clock()
        note((msg.object_id, msg.msg_id, started, clock()))

    def effect(msg: Message[Any], ctx: Context) -> None:
        started = clock()
        write(ctx.connection, [row(msg)])
        note((msg.object_id, msg.msg_id, started, clock()))

    def effects(messages: list[Message[Any]], ctx: Any) -> None:
        write(ctx.connection, [row(msg) for msg in messages])
        for msg in messages:
            now = clock()
            note((msg.object_id, msg.msg_id, now, now))

    handlers: dict[str, Callable[..., None]] = {
        "nothing": nothing,
        "compute": compute,
        "sleep": sleep,
        "transactional": transactional,
        "effect": effect,
        "effects": effects,
    }
    return handlers[kind]


def row(msg: Message[Any]) -> tuple[int, str | None, int]:
    """The effect of a message: of a purchase, or of a row that seeding.py made."""
    payload = msg.payload
    return payload.get("number") or payload["i"], msg.object_id, payload.get("cents", 1)


def write(conn: sa.Connection, rows: Sequence[tuple[int, str | None, int]]) -> None:
    """Insert effects, as many as there are in one statement or by the driver's executemany."""
    names = ", ".join(COLUMNS)
    if conn.dialect.name == "postgresql":
        arrays = "unnest(%s::integer[], %s::text[], %s::integer[])"
        lists = tuple(list(column) for column in zip(*rows, strict=True))
        conn.exec_driver_sql(f"INSERT INTO {EFFECTS} ({names}) SELECT * FROM {arrays}", lists)
    else:
        mark = "?" if conn.dialect.paramstyle == "qmark" else "%s"
        marks = ", ".join([mark] * len(COLUMNS))
        conn.exec_driver_sql(f"INSERT INTO {EFFECTS} ({names}) VALUES ({marks})", list(rows))
