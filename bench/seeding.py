"""Fill the message table by set-based SQL, and leave it analysed, vacuumed and checkpointed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from msgworker import App

TABLE = "msgworker_message"
TABLES = ("msgworker_item", "msgworker_lease", "msgworker_try", "msgworker_job", TABLE)
CHUNK = 1_000_000
TOPIC = "bench"
RANDOM, EIGHTH = "i & 7", "CASE WHEN (i & 7) = 0 THEN 5 ELSE 0 END"
"""Priorities: one of eight for each message; of one message in eight."""


@dataclass(frozen=True, slots=True)
class Rows:
    """So many rows of one kind.

    objects: 0 = without object, else spread over so many objects. prefix: the start of their names.
    topics: how many; more than one are "bench0", "bench1", ... values: further columns and their
    values, as SQL of the row's number i.
    """

    count: int
    objects: int = 0
    prefix: str = "obj"
    topics: int = 1
    values: tuple[tuple[str, str], ...] = ()


def finished(count: int, objects: int = 1000) -> Rows:
    """Rows that were done long ago."""
    return Rows(count, objects, values=(("status", "2"),))


def kind_of(dialect: sa.Dialect) -> str:
    """sqlite, postgresql, mysql or mariadb; a MariaDB behind a mysql URL shows once connected."""
    return "mariadb" if getattr(dialect, "is_mariadb", False) else dialect.name


def fill(app: App, kinds: Sequence[Rows], analyzed: int | None = None) -> None:
    """Drop our tables, create them again, insert the rows in the order given, and tidy up.
    analyzed: after so many kinds, None = at the end: statistics know nothing of what follows."""
    engine = app.engine
    with engine.begin() as conn:
        for name in TABLES:
            conn.exec_driver_sql(f"DROP TABLE IF EXISTS {name}")
    app.create_schema()
    for number, rows in enumerate(kinds):
        if number == analyzed:
            _keep_statistics(engine)
            tidy(engine)
        for start in range(0, rows.count, CHUNK):
            with engine.begin() as conn:
                insert(conn, rows, start, min(CHUNK, rows.count - start))
    if analyzed is None:
        tidy(engine)
    else:
        write_back(engine)


def _keep_statistics(engine: sa.Engine) -> None:
    """Let the server not analyze the table by itself."""
    option = {
        "postgresql": "SET (autovacuum_enabled = off)",
        "mariadb": "STATS_AUTO_RECALC = 0",
        "mysql": "STATS_AUTO_RECALC = 0",
    }.get(kind_of(engine.dialect))
    if option:
        _run(engine, f"ALTER TABLE {TABLE} {option}")


def insert(conn: sa.Connection, rows: Rows, start: int, count: int) -> None:
    """Insert rows number start+1 to start+count of a kind."""
    database = kind_of(conn.dialect)
    columns = ["topic", "object_id", "payload", *(name for name, _ in rows.values)]
    values = [_topic(database, rows), _object(database, rows), _payload(database)]
    values += [value for _, value in rows.values]
    if database == "mysql":
        conn.exec_driver_sql(f"SET SESSION cte_max_recursion_depth = {CHUNK + 1}")
    text = f"INSERT INTO {TABLE} ({', '.join(columns)}) SELECT {', '.join(values)}"
    conn.exec_driver_sql(f"{text} FROM ({_numbers(database, start, count)}) numbers")


def _topic(database: str, rows: Rows) -> str:
    if rows.topics == 1:
        return f"'{TOPIC}'"
    number = f"((i * 7919) % {rows.topics})"  # as the object, so that each object has one topic
    if database in ("mysql", "mariadb"):
        return f"CONCAT('{TOPIC}', MOD(i * 7919, {rows.topics}))"
    text = f"'{TOPIC}' || {number}"
    return text if database == "sqlite" else text.replace("%", "%%")


def _object(database: str, rows: Rows) -> str:
    if not rows.objects:
        return "NULL"
    number = f"(i * 7919) % {rows.objects}"  # neighbours in the table are of different objects
    if database == "sqlite":
        return f"printf('{rows.prefix}%08d', {number})"
    if database in ("mysql", "mariadb"):
        return f"CONCAT('{rows.prefix}', LPAD(MOD(i * 7919, {rows.objects}), 8, '0'))"
    return f"'{rows.prefix}' || lpad(({number})::text, 8, '0')".replace("%", "%%")


def _payload(database: str) -> str:
    if database in ("mysql", "mariadb"):
        return "CONCAT('{\"i\":', i, '}')"
    return "'{\"i\":' || i || '}'"


def _numbers(database: str, start: int, count: int) -> str:
    last = start + count
    if database == "postgresql":
        return f"SELECT i::bigint AS i FROM generate_series({start + 1}, {last}) i"
    if database == "mariadb":
        return f"SELECT seq AS i FROM seq_{start + 1}_to_{last}"
    steps = f"SELECT {start + 1} AS i UNION ALL SELECT i + 1 FROM n WHERE i < {last}"
    return f"WITH RECURSIVE n AS ({steps}) SELECT i FROM n"


def tidy(engine: sa.Engine) -> None:
    """Statistics fresh, nothing left to vacuum, nothing left to write back."""
    by_kind = {"postgresql": f"VACUUM ANALYZE {TABLE}", "sqlite": "ANALYZE"}
    _run(engine, by_kind.get(engine.dialect.name, f"ANALYZE TABLE {TABLE}"))
    write_back(engine)


def write_back(engine: sa.Engine) -> None:
    """Nothing left to write back, where that can be asked for."""
    command = {"postgresql": "CHECKPOINT", "sqlite": "PRAGMA wal_checkpoint(TRUNCATE)"}.get(
        engine.dialect.name
    )
    if command:
        _run(engine, command)


def _run(engine: sa.Engine, command: str) -> None:
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
        result = conn.exec_driver_sql(command)
        if result.returns_rows:
            result.all()
