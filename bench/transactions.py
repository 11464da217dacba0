"""What a database allows where each message has its own transaction, by its driver alone.

For those that pgbench cannot measure. Each thread has a connection: begin, flag a message, write a
row or none, end the message, commit. The threads of one process, as those of an instance; on
SQLite, which has one writer, they take turns by a lock, because its own waiting is polling.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import sqlalchemy as sa

TABLE = "limit_message"
EFFECTS = "limit_effect"
KEYS = {"sqlite": "INTEGER PRIMARY KEY"}
BEGIN = {"sqlite": "BEGIN IMMEDIATE"}
FLAG = f"UPDATE {TABLE} SET status = 1, claimed_by = 'me' WHERE msg_id = {{}} AND status = 0"
END = f"UPDATE {TABLE} SET status = 2, claimed_by = NULL WHERE msg_id = {{}} AND status = 1"
EFFECT = f"INSERT INTO {EFFECTS} VALUES ({{}}, 'one', 1)"


def one_transaction(url: sa.URL, messages: int, clients: int, *, writes: bool = False) -> float:
    """Messages per second with so many threads. writes: a row for each."""
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    kind = engine.dialect.name
    _prepare(engine, messages)
    raw = [engine.raw_connection() for _ in range(clients)]
    for conn in raw:
        _set_up(conn.driver_connection, kind)
    turns: AbstractContextManager[Any] = threading.Lock() if kind == "sqlite" else nullcontext()
    barrier = threading.Barrier(clients + 1)
    counts = [0] * clients

    def work(place: int) -> None:
        cursor = raw[place].cursor()
        barrier.wait()
        for msg_id in range(place + 1, messages + 1, clients):
            with turns:
                cursor.execute(BEGIN.get(kind, "BEGIN"))
                cursor.execute(FLAG.format(msg_id))
                if writes:
                    cursor.execute(EFFECT.format(msg_id))
                cursor.execute(END.format(msg_id))
                counts[place] += cursor.rowcount
                cursor.execute("COMMIT")

    threads = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(clients)]
    for thread in threads:
        thread.start()
    barrier.wait()
    begin = time.perf_counter()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - begin
    _close(raw)
    assert sum(counts) == messages, f"{sum(counts)} of {messages} were handled"
    return messages / seconds


def _prepare(engine: sa.Engine, messages: int) -> None:
    key = KEYS.get(engine.dialect.name, "BIGINT PRIMARY KEY")
    columns = f"msg_id {key}, status SMALLINT NOT NULL, claimed_by VARCHAR(64), payload VARCHAR(40)"
    mark = "?" if engine.dialect.paramstyle == "qmark" else "%s"
    with engine.begin() as conn:
        conn.exec_driver_sql(f"DROP TABLE IF EXISTS {TABLE}")
        conn.exec_driver_sql(f"CREATE TABLE {TABLE} ({columns})")
        conn.exec_driver_sql(f"DROP TABLE IF EXISTS {EFFECTS}")
        effect = f"number {key}, customer VARCHAR(40), cents INTEGER NOT NULL"
        conn.exec_driver_sql(f"CREATE TABLE {EFFECTS} ({effect})")
        rows = [(i, 0, f'{{"i":{i}}}') for i in range(1, messages + 1)]
        text = f"INSERT INTO {TABLE} (msg_id, status, payload) VALUES ({mark}, {mark}, {mark})"
        conn.exec_driver_sql(text, rows)


def _set_up(driver: Any, kind: str) -> None:
    """As the connections of an App: durable commits, and transactions that begin when asked to."""
    if kind == "sqlite":
        driver.isolation_level = None
        for setting in ("journal_mode=WAL", "synchronous=FULL"):
            driver.execute(f"PRAGMA {setting}")
    else:
        cursor = driver.cursor()
        cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")


def _close(raw: Sequence[Any]) -> None:
    for conn in raw:
        conn.close()
