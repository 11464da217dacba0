"""Upgrade the tables of an earlier version: the statements, and how they run beside instances.

What is missing follows from the tables as they are, not from the recorded version. So it makes no
difference who has made a part of it, or where an upgrade ended before its time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Engine, Inspector
from sqlalchemy.exc import DBAPIError
from sqlalchemy.schema import CreateIndex

from msgworker import db
from msgworker.db import (
    AN_INSTANT,
    NOBODY,
    CreateTable,
    Database,
    Trouble,
    connecting,
    reason_of,
    trouble,
    writing,
)
from msgworker.errors import SchemaError
from msgworker.schema import create, describe, versions
from msgworker.schema import rule as rules
from msgworker.schema.additions import (
    add_columns,
    two_running,
)
from msgworker.schema.difference import (
    difference,
    missing_indexes,
    ordered_indexes,
    suffix,
)
from msgworker.table import (
    ADDED,
    NEWEST,
    MessageTable,
    Tables,
    own_tables,
    reached,
    tables_for,
    version_of,
)

ATTEMPTS = 24
"""A table that is in use is tried for so often, with longer and longer pauses: some minutes."""
PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 10.0
PREFIX = "msgworker_"


@dataclass(frozen=True, slots=True)
class Step:
    """A part of an upgrade. version: of the schema that it belongs to. makes: what, in words.
    statements: of one transaction, in order. waits: who waits meanwhile. table: on which it is.
    lacking: what is missing without it, as in Version.adds; () for what is only recorded."""

    version: int
    makes: str
    statements: tuple[str, ...]
    waits: str
    table: str
    lacking: tuple[str, ...] = ()

    @property
    def script(self) -> str:
        """The statements as a script."""
        lines = [f"{one};" for one in self.statements]
        return "\n".join(lines if len(lines) == 1 else ["BEGIN;", *lines, "COMMIT;"])


@dataclass(frozen=True, slots=True)
class Plan:
    """What an upgrade runs. found: the version of the tables: the newest that is complete, 0 = not
    even the first. recorded: the version in the database, None where none is. steps: what it runs.
    left: what it leaves to the owner of the message table."""

    table: str
    found: int
    recorded: int | None
    steps: tuple[Step, ...]
    left: tuple[Step, ...]


def plan(
    conn: Connection,
    spec: MessageTable,
    database: Database,
    *,
    message_table: bool = False,
    inspector: Inspector | None = None,
) -> Plan:
    """The steps from the tables as they are to those of this package. It changes nothing.

    message_table: also those on a message table that has not our name. inspector: of `conn`; what
    it has read already is not read again. Raises SchemaError for a
    table that no instance may use, and for a schema on which code of this version may not work.
    """
    describe.check_names(spec, database)
    inspector = inspector or sa.inspect(conn)
    t, there = _tables(conn, inspector, spec, database)
    steps = list(_steps(conn, inspector, t, there))
    lacking = [name for one in steps for name in one.lacking]
    can_read = not {"lease", "lease.serves"} & set(lacking)
    if can_read:
        versions.check(conn, t)
    ours = message_table or t.spec.is_default or not there
    left = () if ours else tuple(one for one in steps if one.table == t.message.name)
    steps = [one for one in steps if one not in left]
    recorded = versions.read(conn, t) if can_read else None
    if not left:
        steps += _records(conn, t, can_read=can_read)
    version = None if recorded is None else recorded.version
    return Plan(t.spec.name, reached(lacking), version, tuple(steps), left)


def run(
    engine: Engine,
    spec: MessageTable,
    database: Database,
    *,
    message_table: bool = False,
    on_step: Callable[[Step], object] | None = None,
    conn: Connection | None = None,
) -> Plan:
    """Run the steps, in transactions of their own; return the plan of the beginning.

    on_step: is called after each. conn: the connection that runs them, in AUTOCOMMIT; else others
    of the engine. Several may run at once, also beside `schema.create`. Raises SchemaError where a
    step fails: run it again, it continues from there.
    """

    def look() -> Plan:
        with connecting(engine) if conn is None else nullcontext(conn) as looking:
            return plan(looking, spec, database, message_table=message_table)

    if conn is None:
        db.of(engine).set_up(engine)
    with db.of(engine).in_turn(engine, f"msgworker upgrade {spec.schema or ''}"):
        first = now = look()
        attempts = 0
        last: Step | None = None
        while now.steps:
            step = now.steps[0]
            if step == last:
                raise SchemaError(f"{step.makes} was made, and is not there: {step.script}")
            try:
                _run(engine, step) if conn is None else _run_on(conn, step)
            except DBAPIError as error:
                now = look()
                if step not in now.steps:  # another program has made it
                    continue
                attempts += 1
                if trouble(error) is not Trouble.AGAIN or attempts > ATTEMPTS:
                    raise _refused(engine, spec, database, step, error) from error
                time.sleep(min(PAUSE_SECONDS * 1.5**attempts, LONGEST_PAUSE_SECONDS))
                continue
            if on_step is not None:
                on_step(step)
            last, now = step, look()
    return first


def _run(engine: Engine, step: Step) -> None:
    alone = any(map(db.is_concurrent, step.statements))
    with (connecting if alone else writing)(engine) as conn:
        for statement in step.statements:
            _run_as_written(conn, statement)


def _run_on(conn: Connection, step: Step) -> None:
    """Several statements are one transaction here, too: SET LOCAL is said for that."""
    if len(step.statements) == 1:
        _run_as_written(conn, step.statements[0])
        return
    try:
        for statement in ("BEGIN", *step.statements, "COMMIT"):
            _run_as_written(conn, statement)
    except DBAPIError as error:
        if not error.connection_invalidated:
            _run_as_written(conn, "ROLLBACK")
        raise


def _run_as_written(conn: Connection, statement: str) -> None:
    """Run one statement of a step; the driver takes nothing in it for a parameter."""
    conn.exec_driver_sql(statement, execution_options={"no_parameters": True})


def _refused(
    engine: Engine, spec: MessageTable, database: Database, step: Step, error: DBAPIError
) -> Exception:
    why = f"cannot upgrade the schema: {reason_of(error)}"
    kind = trouble(error)
    if kind is Trouble.LOST:
        return db.unavailable(engine, error)
    if kind is Trouble.RACE and step.lacking == ("message:guard",):
        with connecting(engine) as conn:
            t, _ = _tables(conn, sa.inspect(conn), spec, database)
        why = two_running(engine.dialect, t, why)
    if kind is Trouble.AGAIN:
        why += f". Table {step.table} is in use by long transactions; run this again"
    if kind is Trouble.REFUSED:
        why += f". The login needs {db.of(engine).owner_rights}"
    return SchemaError(why)


# ---------------------------------------------------------------- the steps


def _tables(
    conn: Connection, inspector: Inspector, spec: MessageTable, database: Database
) -> tuple[Tables, bool]:
    """The tables as they are to be, and whether the message table is there."""
    live = describe.live_name(inspector, spec)
    if live is None:
        return tables_for(spec, database), False
    if problems := describe.storage_problem(conn, inspector, spec, live):
        raise SchemaError(f"table {spec.name} cannot be used: {problems[0]}")
    database = describe.for_table(inspector, spec, live, database)
    spec = describe.named(spec, live)
    create.refuse_unfit(conn, inspector, spec, database)
    kinds = {str(c["name"]): c["type"] for c in inspector.get_columns(live, schema=spec.schema)}
    describe.require_columns(spec, kinds)
    if spec.is_default:
        there = {name.lower() for name in kinds}
        later = (c for c in tables_for(spec, database).message.c if ADDED in c.info)
        kinds |= {c.name: c.type for c in later if c.name.lower() not in there}
    return tables_for(spec, database, kinds), True


def _steps(conn: Connection, inspector: Inspector, t: Tables, there: bool) -> Iterator[Step]:
    for table in own_tables(t):
        found = difference(inspector, table)
        if found.exists:
            yield from _adding(conn, table, _short(table), list(found.columns))
            yield from _indexing(conn, t, table, _short(table))
        else:
            yield from _creating(conn, table, _short(table))
    if not there:
        yield from _creating(conn, t.message, "message")
        return
    found = difference(inspector, t.message)
    roles = {name: role for role, name in t.names.items()}
    yield from _adding(conn, t.message, "message", found.plain, roles)
    yield from _adding(conn, t.message, "message", found.hidden)
    yield from _indexing(conn, t, t.message, "message")


def _short(table: sa.Table) -> str:
    return table.name.removeprefix(PREFIX)


def _creating(conn: Connection, table: sa.Table, short: str) -> Iterator[Step]:
    """A table that is missing, and its indexes: no program uses it yet."""
    made = [CreateTable(table), *(CreateIndex(i) for i in ordered_indexes(table))]
    texts = [_text(conn, statement) for statement in made]
    version = version_of(short)
    names = [f"table {table.name}", *(f"index {i.name}" for i in ordered_indexes(table))]
    for name, text in zip(names, texts, strict=True):
        lacking = (short,) if name == names[0] else ()
        yield Step(version, name, (text,), NOBODY, table.name, lacking)


def _adding(
    conn: Connection,
    table: sa.Table,
    short: str,
    columns: list[sa.Column[Any]],
    roles: dict[str, str] | None = None,
) -> Iterator[Step]:
    """Columns that are missing: in one statement where each may copy the table."""
    parts = [columns] if db.of(conn).multi_column_alter else [[c] for c in columns]
    for part in filter(None, parts):
        text = _one_line(add_columns(conn.dialect, table, part))
        lacking = tuple(f"{short}.{(roles or {}).get(c.name, c.name)}" for c in part)
        names = ", ".join(c.name for c in part)
        stored = any(c.computed is not None and c.computed.persisted for c in part)
        yield Step(
            max(map(version_of, lacking)),
            f"column {names} of {table.name}",
            db.of(conn).with_lock_limit(text),
            db.of(conn).wait_of_columns(stored=stored),
            table.name,
            lacking,
        )


def _indexing(conn: Connection, t: Tables, table: sa.Table, short: str) -> Iterator[Step]:
    """Indexes that are missing, or not finished, on a table that is in use."""
    for index, is_unfinished in missing_indexes(conn, table).items():
        name = str(index.name)
        lacking = (f"{short}:{suffix(index)}",)
        version = version_of(lacking[0])
        if is_unfinished:
            drop = db.of(conn).drop_unfinished(conn.dialect, table, name)
            what = f"no unfinished index {name}"
            yield Step(version, what, (drop,), AN_INSTANT, table.name, lacking)
        text, waits = _text(conn, CreateIndex(index)), db.BUILDING
        # PostgreSQL builds no index over partitions beside others.
        if not (t.database.partitioned and table is t.message):
            text, waits = db.of(conn).index_online(text)
        yield Step(version, f"index {name}", (text,), waits, table.name, lacking)


def _records(conn: Connection, t: Tables, *, can_read: bool) -> Iterator[Step]:
    """What is recorded beside the tables: the rule where none is, and the version."""
    if not can_read or not rules.has_row(conn, t):
        yield _record(conn, t, f"rule {rules.Rule.of(t.spec)}", rules.recording(t))
    statement = versions.recording(conn if can_read else None, t)
    if statement is not None:
        yield _record(conn, t, "recorded version", statement)


def _record(conn: Connection, t: Tables, makes: str, statement: Any) -> Step:
    text = statement.compile(dialect=conn.dialect, compile_kwargs={"literal_binds": True})
    return Step(NEWEST, makes, (_one_line(str(text)),), NOBODY, t.lease.name)


def _text(conn: Connection, statement: Any) -> str:
    return _one_line(str(statement.compile(dialect=conn.dialect)))


def _one_line(text: str) -> str:
    """SQLAlchemy writes a percent sign twice for drivers that format."""
    return " ".join(text.split()).replace("%%", "%")
