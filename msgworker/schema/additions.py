"""What is added to a schema: one table, column or index, or all of them in a script."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.schema import CreateIndex

from msgworker import db
from msgworker.db import CreateColumn, CreateTable, Trouble, connecting, reason_of, trouble, writing
from msgworker.errors import SchemaError
from msgworker.schema.difference import difference, ordered_indexes, suffix
from msgworker.table import OWN, SLICES, MessageTable, Tables, tables_for

# --- Add one table, column or index, if it is missing; check again if another process was faster.


def _attempt(engine: Engine, statement: Any, there: Any) -> bool:
    """Run one DDL statement; False if another process created the object meanwhile."""
    try:
        with writing(engine) as conn:
            conn.execute(statement)
    except DBAPIError as error:
        with connecting(engine) as conn:
            if there(conn):
                return False
        raise SchemaError(f"cannot create the schema: {reason_of(error)}") from error
    return True


def ensure_table(engine: Engine, table: sa.Table) -> bool:
    """True if it was missing: then it now has all its columns, and nothing else."""

    def there(conn: Connection) -> bool:
        inspector = sa.inspect(conn)
        return inspector.has_table(table.name, schema=table.schema)

    with connecting(engine) as conn:
        if there(conn):
            return False
    return _attempt(engine, CreateTable(table), there)


def ensure_columns(engine: Engine, table: sa.Table, columns: Iterable[sa.Column[Any]]) -> list[str]:
    """Add missing columns: hidden ones, and those of a later version of our tables."""

    def lacking(conn: Connection) -> list[sa.Column[Any]]:
        missing = {column.name for column in difference(sa.inspect(conn), table).columns}
        return [column for column in wanted if column.name in missing]

    made: list[str] = []
    wanted = list(columns)
    while True:
        with connecting(engine) as conn:
            missing = lacking(conn)
            if not missing:
                return made
            part = missing if db.of(conn).multi_column_alter else missing[:1]
            alter = add_columns(conn.dialect, table, part)
        statement = sa.text(alter.replace(":", r"\:"))
        fewer = partial(_fewer, lacking, len(missing))  # another process has added one: check again
        if _attempt(engine, statement, fewer):
            made += [column.name for column in part]


def _fewer(lacking: Callable[[Connection], list[Any]], than: int, conn: Connection) -> bool:
    return len(lacking(conn)) < than


def add_columns(dialect: sa.Dialect, table: sa.Table, columns: Iterable[sa.Column[Any]]) -> str:
    """The statement that adds columns; more than one only where `Database.multi_column_alter`."""
    name = dialect.identifier_preparer.format_table(table)
    texts = []
    for column in columns:
        if not db.of_dialect(dialect).takes_default(column):
            column = sa.Column(column.name, column.type)
        text = str(CreateColumn(column).compile(dialect=dialect))
        texts.append(db.of_dialect(dialect).add_column(text))
    return f"ALTER TABLE {name} {', '.join(texts)}"


def add_with_default_for_new(
    dialect: sa.Dialect, table: sa.Table, column: sa.Column[Any]
) -> list[str]:
    """The statements that add a column with a default that existing rows do not get: they keep
    NULL."""
    made = [add_columns(dialect, table, [sa.Column(column.name, column.type)])]
    if db.of_dialect(dialect).takes_default(column):
        name = dialect.identifier_preparer.format_table(table)
        default = str(getattr(column.server_default, "arg", "NULL"))
        made += db.of_dialect(dialect).set_default(dialect, name, column.name, default)
    return made


def adding_column(engine: Engine, spec: MessageTable, role: str) -> str:
    """The statement that adds the column of a role to a live table."""
    table = tables_for(spec, db.database_of(engine)).message
    return " ".join(add_columns(engine.dialect, table, [table.c[spec.names()[role]]]).split())


def slice_index(engine: Engine, t: Tables, role: str) -> str:
    """The statement that creates the index of a slice; "" if it is there."""
    name = t.spec.index_name(SLICES[role])
    if t.indexes is None or name in t.indexes:
        return ""
    kinds = {c.name: c.type for c in t.message.c}
    ideal = tables_for(t.spec.replace(slices=(*t.spec.slices, role)), t.database, kinds)
    index = next(i for i in ideal.message.indexes if i.name == name)
    return " ".join(str(CreateIndex(index).compile(dialect=engine.dialect)).split())


def ensure_index(engine: Engine, t: Tables, index: sa.Index, *, look: bool) -> list[str]:
    """look: whether it may be there."""
    name = str(index.name)
    if look:
        with connecting(engine) as conn:
            if has_index(conn, index.table, name):
                return []
    try:
        made = _attempt(engine, CreateIndex(index), lambda conn: has_index(conn, index.table, name))
    except SchemaError as error:
        if name != t.guard_name or trouble(error.__cause__ or error) is not Trouble.RACE:
            raise
        raise SchemaError(two_running(engine.dialect, t, str(error))) from error
    return [name] if made else []


def two_running(dialect: sa.Dialect, t: Tables, why: str) -> str:
    """Why the guard cannot be built, and what to do. why: what the database says."""
    quote = dialect.identifier_preparer.quote
    name = quote(t.names["object_id"])
    table = dialect.identifier_preparer.format_table(t.message)
    return (
        f"{why.rstrip('.')}. An object has two rows at status 1; see them: SELECT "
        f"{name} FROM {table} WHERE {quote(t.names['status'])} = 1 AND {name} IS NOT NULL "
        f"GROUP BY {name} HAVING COUNT(*) > 1; `msgworker doctor` prints how to fix them; "
        "then run this again"
    )


def has_index(conn: Connection, table: sa.Table | None, name: str) -> bool:
    assert table is not None
    return name.lower() in db.of(conn).index_names(conn, table)


# --- The script that creates all tables.


def ddl(spec: MessageTable, name: str, partitions: int = 0) -> str:
    """The whole script for a DBA, without connecting. partitions: of the message table, by the hash
    of the object; only where `Database.unpartitioned` says nothing."""
    database = db.DATABASES[name].having(partitioned=partitions > 0)
    compiler = database.offline_dialect()
    t = tables_for(spec, database)
    parts = [
        "-- msgworker: messages, leases, items, failed tries, audit, locks, schedules, history for "
        f"{name}.\n"
        "-- Generated by `msgworker ddl`; do not edit. A producer needs only:\n"
        f"--   INSERT INTO {spec.name} ({', '.join(_producer_columns(t))}) VALUES (...)\n"
    ]
    if database.set_up_statement:
        why = "readers and the one writer do not wait for each other"
        parts.append(f"-- {why}\n{database.set_up_statement};\n")
    for statement, why in _script(t):
        text = str(statement.compile(dialect=compiler)).strip()
        text = "\n".join(line.rstrip() for line in text.replace("\t", "  ").splitlines())
        parts.append(f"-- {why}\n{text};\n")
        if partitions and isinstance(statement, CreateTable) and statement.element is t.message:
            made = database.partitions_of(compiler, t.message, partitions)
            parts.append("".join(f"{one};\n" for one in made))
    return "\n".join(parts)


def _producer_columns(t: Tables) -> list[str]:
    return [t.names[role] for role in ("topic", "object_id", "payload") if role in t.names]


def _script(t: Tables) -> Iterator[tuple[Any, str]]:
    reasons = {
        "guard": "the guard: at most one running message per object, enforced by the database",
        "id": "all messages by id: no index over partitions can keep ids unique, the identity does",
        "object": "unfinished messages by object and age",
        "oldest": "unfinished messages by age",
        "due": "messages that wait for an instant: retries and delayed ones",
        "failed": "failed and dead messages, for operators",
        "urgent": "messages with a priority that may be claimed, by priority and age",
        "unique": "unique keys: at most one message holds a key, enforced by the database",
        "shard": "unfinished messages by shard, object and age",
        "flag": "unfinished messages by instance type, object and age",
        "group": "failed tries by what they have in common",
        "owner": "locks by who holds them",
        "key": "keys of requests: a write that is asked for again is done once",
    }
    tables = [(t.message, "status: 0 new, 1 processing, 2 done, -1 failed")]
    for table, about in [*tables, *((own.of(t), own.about) for own in OWN)]:
        yield CreateTable(table), about
        for index in ordered_indexes(table):
            yield CreateIndex(index), reasons[suffix(index)]
