"""Make what the tables lack: at once (`create`), or while instances work on them (`upgrade`); and
the script that makes all of them, for a DBA (`ddl`).

What is missing follows from the tables as they are, not from the recorded version. So it makes no
difference who has made a part of it, or where an upgrade ended before its time; and several
programs may do it at once.

One file, because `create`, `upgrade` and the script are of the same steps and statements.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from typing import Any

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection, Engine, Inspector
from sqlalchemy.exc import DBAPIError
from sqlalchemy.schema import CreateIndex

from msgworker.counted import plural
from msgworker.db.catalogue import (
    columns_of,
    columns_there,
    name_holder,
    names_there,
    refuses_all_writes,
)
from msgworker.db.connections import connecting, spoil, unavailable, writing
from msgworker.db.database import (
    AN_INSTANT,
    BUILDING,
    DATABASES,
    NOBODY,
    At,
    Database,
    Trouble,
    database_of,
    is_concurrent,
    of,
    of_dialect,
    printing,
)
from msgworker.db.errors import reason_of, trouble
from msgworker.db.types import CreateColumn, CreateTable
from msgworker.errors import SchemaError
from msgworker.logs import logger
from msgworker.message import Status
from msgworker.schema import describe, requirements
from msgworker.schema import rule as rules
from msgworker.schema.difference import INDEXES, difference, is_generated, ordered_indexes, suffix
from msgworker.table.build import LOCK, NEWEST, OWN, own_tables, reached, tables_for, version_of
from msgworker.table.columns import ADDED, SLICES, UNIQUE, Cols
from msgworker.table.spec import MessageTable
from msgworker.table.tables import Tables, lit

ATTEMPTS = 24
"""A table that is in use is tried for so often, with longer and longer pauses: some minutes."""
PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 10.0
WARNS_AT = 2
"""The attempt at which a warning is logged: other programs that make the same are soon done."""
PREFIX = "msgworker_"
log = logger("msgworker.app")


@dataclass(frozen=True, slots=True)
class Step:
    """A part of an upgrade. version: of the schema that it belongs to. makes: what, in words.
    statements: of one transaction: one, or that one behind a limit for its locks, and what sets the
    limit of the session back. waits: who waits meanwhile. table: on which it is.
    lacking: what is missing without it, as in Version.adds; () for what is only recorded. names: of
    what it creates."""

    version: int
    makes: str
    statements: tuple[str, ...]
    waits: str
    table: str
    lacking: tuple[str, ...] = ()
    names: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """The first word of what it makes."""
        return self.makes.partition(" ")[0]

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


# --- Make it.


def create(
    engine: Engine, spec: MessageTable, database: Database, warn: Callable[[str], object]
) -> tuple[list[str], rules.Rule]:
    """Create what is missing; return the names of what was created, [] if all was there, and the
    recorded rule. warn: gets what is odd about the rows of a table that had no index of ours until
    now, how many of them would be handled, and where a table of a new one's name is in another
    schema.

    Opens its own transactions. On a table that exists already only indexes are added (and, on
    MariaDB and MySQL, hidden generated columns; to our own table also columns of a later version);
    its columns are left alone. The rule of a table is recorded where none is; so is the version.
    Raises SchemaError if the guard index cannot be built because an object has two running rows.
    """
    describe.check_names(spec, database)
    _refuse_translation(engine, spec.schema)
    of(engine).set_up(engine)
    before: set[str] = set()
    as_is = None
    with connecting(engine) as conn:
        if why := refuses_all_writes(conn):
            raise SchemaError(f"nothing was created: {why}")
        inspector = sa.inspect(conn)
        if live := describe.find(inspector, spec):
            there = database.indexes_of(conn, describe.bare(live), inspector)
            if why := requirements.lacks_where(live, there):
                raise SchemaError(f"nothing was created in table {live.name}: {why}")
            before = set(there)
            fitting = describe.for_table(inspector, live, database)
            as_is = requirements.refuse_unfit(inspector, live, fitting)
        elif other := describe.elsewhere(conn, spec):
            warn(f"it is new here; {other}")
    if as_is is not None:
        requirements.refuse_at_trial(engine, as_is)

    def look() -> tuple[Tables, list[Step]]:
        with connecting(engine) as conn:
            inspector = sa.inspect(conn)
            now, _ = _wanted(inspector, spec, database)
            return now, _at_once(inspector, now, (now.message, *own_tables(now)))

    def missing(*, indexes: bool) -> list[Step]:
        return [step for step in look()[1] if (step.kind == "index") is indexes]

    t, steps = look()
    first = [step for step in steps if step.kind != "index"]
    new = {step.table for step in first if step.kind == "table"}
    made = _make(engine, t, first, partial(missing, indexes=False), new)
    # Before the indexes of ours are there: those of another rule show by which one it was used.
    kinds = {c.name: c.type for c in t.message.c}
    rule = rules.recorded_of(
        engine, tables_for(rules.assumed(t.spec, before).to(t.spec), t.database, kinds)
    )
    made += _make(engine, t, steps[len(first) :], partial(missing, indexes=True), new)
    rules.record_version(engine, t)
    if as_is is not None and not before & {str(i.name).lower() for i in t.message.indexes}:
        _warn_of_statuses(engine, t, warn)
        with connecting(engine) as conn:
            if said := rules.legacy(conn, t):
                warn(said)
    return made, rule


def create_locks(engine: Engine, t: Tables) -> list[str]:
    """Create the table of locks alone, where it is missing; the names of what was created."""
    _refuse_translation(engine, t.spec.schema)
    of(engine).set_up(engine)

    def missing() -> list[Step]:
        with connecting(engine) as conn:
            return _at_once(sa.inspect(conn), t, [LOCK.of(t)])

    return _make(engine, t, missing(), missing, {LOCK.of(t).name})


def _refuse_translation(target: Engine | Connection, schema: str | None) -> None:
    """Tables are made by texts, in which SQLAlchemy replaces no schema."""
    if schema in (target.get_execution_options().get("schema_translate_map") or ()):
        raise SchemaError(
            "nothing was made: the engine replaces schemas (schema_translate_map), and the tables "
            "would be made in another one than is used. Make them by an App on an engine without "
            'it, whose table names the schema: MessageTable("crm.msgworker_message")'
        )


def _at_once(inspector: Inspector, t: Tables, tables: Sequence[sa.Table]) -> list[Step]:
    """Tables first, indexes last. Of tables that are there with a limit for their locks: all other
    programs wait behind a statement that waits for one."""
    listed = names_there(inspector, t.spec.schema)
    names = [one.name for one in tables if one.name in listed]
    there = columns_there(inspector, names, t.spec.schema)
    limited = t.database.with_lock_limit
    steps = [
        replace(step, statements=limited(*step.statements)) if one.name in names else step
        for one in tables
        for step in _steps(inspector, t, one, online=False, described=there.get(one.name))
    ]
    return sorted(steps, key=lambda step: ("table", "column", "index").index(step.kind))


def _make(
    engine: Engine,
    t: Tables,
    steps: Sequence[Step],
    missing: Callable[[], list[Step]],
    new: Container[str],
) -> list[str]:
    """Make what is missing; return the names of what was created. What is of `new` tables, which no
    program uses yet, is made in one transaction, where the database rolls back DDL. A step also
    fails where another program was faster; then `missing` is asked again, and its steps are run one
    by one."""
    made: list[str] = []
    attempts = 0
    at_once = new if of(engine).rolls_back_ddl else ()
    while steps:
        part = _of(at_once, steps) or steps[:1]
        try:
            _run(engine, *part)
        except DBAPIError as error:
            steps = missing()
            if len(part) == 1 and part[0] in steps:
                attempts += 1
                if not _may_be_free(part[0], error, attempts):
                    raise _refused(engine, t, part[0], error, "create") from error
            at_once = ()
        else:
            made += [name for step in part for name in step.names]
            steps = steps[len(part) :]
    return made


def _of(tables: Container[str], steps: Sequence[Step]) -> list[Step]:
    """The first of the steps, as long as they are on these tables."""
    return list(takewhile(lambda step: step.table in tables, steps))


def _warn_of_statuses(engine: Engine, t: Tables, warn: Callable[[str], object]) -> None:
    """No index holds such rows, so this reads the table, as its first indexes have done."""
    c = t.cols()
    which = t.within(c, has_unknown_status(c))
    with connecting(engine) as conn:
        rows = sa.select(sa.func.count(), sa.func.min(c.msg_id)).where(which)
        count, example = conn.execute(rows).one()
    if count:
        shown = text_of(engine.dialect, sa.select(c.msg_id, c.status).where(which))
        text = plural(count, "row", "has", "have")
        warn(
            f"{text} an unknown status and will never be claimed (message {example}, "
            f"say). See them: {shown}; `msgworker doctor --sql` prints how to fix them"
        )


def has_unknown_status(c: Cols, *, known: Iterable[Status] = tuple(Status)) -> ColumnElement[bool]:
    """Rows whose status is none of those known."""
    return sa.or_(c.status.is_(None), c.status.not_in([lit(s) for s in known]))


# --- Make it while others work.


def plan(
    conn: Connection,
    spec: MessageTable,
    database: Database,
    *,
    message_table: bool = False,
    inspector: Inspector | None = None,
    new: Container[str] = (),
) -> Plan:
    """The steps from the tables as they are to those of this package. It changes nothing.

    message_table: also those on a message table that has not our name. inspector: of `conn`; what
    it has read already is not read again. new: names of tables that this upgrade has made; their
    indexes are made plainly. Raises SchemaError for a table that no instance may use, and for a
    schema on which code of this version may not work.
    """
    describe.check_names(spec, database)
    inspector = inspector or sa.inspect(conn)
    t, there = _wanted(inspector, spec, database, refuse=True)
    tables = (*own_tables(t), t.message)
    steps = [
        step for one in tables for step in _steps(inspector, t, one, online=one.name not in new)
    ]
    lacking = [name for one in steps for name in one.lacking]
    can_read = not {"lease", "lease.serves"} & set(lacking)
    if can_read:
        rules.check_version(conn, t)
    ours = message_table or t.spec.is_default or not there
    left = () if ours else tuple(one for one in steps if one.table == t.message.name)
    steps = [one for one in steps if one not in left]
    recorded = rules.read_version(conn, t) if can_read else None
    if not left:
        steps += _records(conn, t, can_read=can_read)
    version = None if recorded is None else recorded.version
    return Plan(t.spec.name, reached(lacking), version, tuple(steps), left)


def upgrade(
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
    of the engine. Several may run at once, also beside `create`. Raises SchemaError where a
    step fails: run it again, it continues from there.
    """

    def look() -> Plan:
        with _looking(engine, conn) as looking:
            return plan(looking, spec, database, message_table=message_table, new=new)

    new: set[str] = set()
    _refuse_translation(conn or engine, spec.schema)
    if conn is None:
        of(engine).set_up(engine)
    with of(engine).in_turn(engine, f"msgworker upgrade {spec.schema or ''}"):
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
                if not _may_be_free(step, error, attempts):
                    with _looking(engine, conn) as looking:
                        t, _ = _wanted(sa.inspect(looking), spec, database)
                    raise _refused(engine, t, step, error, "upgrade", conn) from error
                continue
            if step.kind == "table":
                new.add(step.table)
            if on_step is not None:
                on_step(step)
            last, now = step, look()
    return first


def _may_be_free(step: Step, error: DBAPIError, attempts: int) -> bool:
    """Whether a table that was in use may be tried again, behind a pause."""
    if trouble(error) is not Trouble.AGAIN or attempts > ATTEMPTS:
        return False
    if attempts == WARNS_AT:
        text = "table %s is in use, and so %s is tried again for some minutes: %s"
        log.warning(text, step.table, step.makes, reason_of(error))
    time.sleep(min(PAUSE_SECONDS * 1.5**attempts, LONGEST_PAUSE_SECONDS))
    return True


def _run(engine: Engine, *steps: Step) -> None:
    statements = [statement for step in steps for statement in step.statements]
    alone = any(map(is_concurrent, statements))
    with (connecting if alone else writing)(engine) as conn:
        try:
            for statement in statements:
                _run_as_written(conn, statement)
        except DBAPIError:
            spoil(conn)  # on MySQL its session still has the limit for locks
            raise


def _run_on(conn: Connection, step: Step) -> None:
    """Several statements are one transaction here, too: SET LOCAL is said for that."""
    if len(step.statements) == 1:
        _run_as_written(conn, step.statements[0])
        return
    try:
        for statement in ("BEGIN", *step.statements, "COMMIT"):
            _run_as_written(conn, statement)
    except BaseException:
        with suppress(sa.exc.SQLAlchemyError):  # the session is as it was, if it is there
            for statement in () if conn.invalidated else ("ROLLBACK", *step.statements[2:]):
                _run_as_written(conn, statement)
        raise


def _run_as_written(conn: Connection, statement: str) -> None:
    """Run one statement of a step; the driver takes nothing in it for a parameter."""
    conn.exec_driver_sql(statement, execution_options={"no_parameters": True})


def _looking(engine: Engine, conn: Connection | None) -> AbstractContextManager[Connection]:
    """The caller's connection, whose pool may have no other, or one of ours."""
    return connecting(engine) if conn is None else nullcontext(conn)


def _refused(
    engine: Engine,
    t: Tables,
    step: Step,
    error: DBAPIError,
    verb: str,
    conn: Connection | None = None,
) -> Exception:
    why = f"cannot {verb} the schema: {reason_of(error)}"
    kind = trouble(error)
    if kind is Trouble.LOST:
        return unavailable(engine, error)
    if kind is Trouble.RACE and step.lacking == ("message:guard",):
        why = _two_running(printing(engine.dialect), t, why)
    if kind is Trouble.RACE and step.lacking == (f"message:{UNIQUE}",):
        why += "; several messages hold one unique key: `msgworker doctor` names them"
    if kind is Trouble.OTHER and step.kind in ("table", "index"):
        table = next(one for one in (t.message, *own_tables(t)) if one.name == step.table)
        with _looking(engine, conn) as looking:
            holder = name_holder(looking, table, *step.names)
        why += f". It is the name of {holder}: rename that, then run this again" if holder else ""
    if kind is Trouble.AGAIN:
        why += f". Table {step.table} is in use by long transactions; run this again"
    if kind is Trouble.REFUSED:
        why += f". The login needs {of(engine).owner_rights}"
    return SchemaError(why)


def _two_running(dialect: sa.Dialect, t: Tables, why: str) -> str:
    """Why the guard cannot be built, and what to do. why: what the database says."""
    c = t.cols()
    running = sa.select(c.object_id).where(t.running(c), c.object_id.is_not(None))
    shown = text_of(dialect, running.group_by(c.object_id).having(sa.func.count() > lit(1)))
    return (
        f"{why.rstrip('.')}. An object has two rows at status 1; see them: {shown}; "
        "`msgworker doctor --sql` prints how to fix them; then run this again"
    )


# --- The steps.


def _wanted(
    inspector: Inspector, spec: MessageTable, database: Database, *, refuse: bool = False
) -> tuple[Tables, bool]:
    """The tables as they are to be, and whether the message table is there. refuse: raise
    SchemaError for one that no instance may use."""
    live = describe.find(inspector, spec)
    if live is None:
        return tables_for(spec, database), False
    database = describe.for_table(inspector, live, database)
    if refuse:
        indexes = database.indexes_of(describe.on(inspector), describe.bare(live), inspector)
        if why := requirements.lacks_where(live, indexes):
            raise SchemaError(f"nothing is changed in table {live.name}: {why}")
        requirements.refuse_unfit(inspector, live, database)
    kinds = describe.kinds_of(columns_of(inspector, live.bare_name, live.schema))
    describe.require_columns(live, kinds)
    if live.is_default:
        there = {name.lower() for name in kinds}
        later = (c for c in tables_for(live, database).message.c if ADDED in c.info)
        kinds |= {c.name: c.type for c in later if c.name.lower() not in there}
    return tables_for(live, database, kinds), True


def _steps(
    inspector: Inspector,
    t: Tables,
    table: sa.Table,
    *,
    online: bool,
    described: Sequence[Any] | None = None,
) -> Iterator[Step]:
    """What one table lacks. online: by statements that let others work on it meanwhile, as far as
    the database can; else an index that was not finished is left, since it may be being built.
    described: its columns, if they are known."""
    conn = describe.on(inspector)
    short = "message" if table is t.message else table.name.removeprefix(PREFIX)
    found = difference(table, describe.look(inspector, table, described), t.database)
    if not found.exists:
        yield from _creating(conn, table, short)
        return
    roles = {name: role for role, name in t.names.items()} if table is t.message else {}
    plain = [column for column in found.columns if not is_generated(column)]
    for columns in (plain, found.hidden):
        yield from _adding(conn, table, short, columns, roles, online=online)
    for index in ordered_indexes(table):
        if index in found.indexes or (online and index in found.unfinished):
            yield from _indexing(conn, t, short, index, index in found.unfinished, online=online)


def _creating(conn: Connection, table: sa.Table, short: str) -> Iterator[Step]:
    """A table that is missing, and its indexes: no program uses it yet."""
    made = [CreateTable(table), *(CreateIndex(i) for i in ordered_indexes(table))]
    texts = [text_of(conn.dialect, statement) for statement in made]
    version = version_of(short)
    names = [f"table {table.name}", *(f"index {i.name}" for i in ordered_indexes(table))]
    for name, text in zip(names, texts, strict=True):
        lacking = (short,) if name == names[0] else ()
        yield Step(version, name, (text,), NOBODY, table.name, lacking, (name.split(" ", 1)[1],))


def _adding(
    conn: Connection,
    table: sa.Table,
    short: str,
    columns: list[sa.Column[Any]],
    roles: dict[str, str],
    *,
    online: bool,
) -> Iterator[Step]:
    """Columns that are missing: in one statement where each may copy the table."""
    parts = [columns] if of(conn).multi_column_alter else [[c] for c in columns]
    for part in filter(None, parts):
        text = add_columns(conn.dialect, table, part)
        lacking = tuple(f"{short}.{roles.get(c.name, c.name)}" for c in part)
        names = tuple(c.name for c in part)
        stored = any(c.computed is not None and c.computed.persisted for c in part)
        yield Step(
            max(map(version_of, lacking)),
            f"column {', '.join(names)} of {table.name}",
            of(conn).with_lock_limit(text) if online else (text,),
            of(conn).wait_of_columns(stored=stored),
            table.name,
            lacking,
            names,
        )


def _indexing(
    conn: Connection, t: Tables, short: str, index: sa.Index, unfinished: bool, *, online: bool
) -> Iterator[Step]:
    """An index that is missing, or not finished. online: on a table that is in use."""
    table, name = index.table, str(index.name)
    assert table is not None
    lacking = (f"{short}:{suffix(index)}",)
    version = version_of(lacking[0])
    if unfinished:
        drop = of(conn).drop_unfinished(printing(conn.dialect), table, name)
        what = f"no unfinished index {name}"
        yield Step(version, what, (drop,), AN_INSTANT, table.name, lacking)
    text, waits = text_of(conn.dialect, CreateIndex(index)), BUILDING if online else NOBODY
    # PostgreSQL builds no index over partitions beside others.
    if online and not (t.database.partitioned and table is t.message):
        text, waits = of(conn).index_online(text)
    limited = online and not is_concurrent(text)
    statements = of(conn).with_lock_limit(text) if limited else (text,)
    yield Step(version, f"index {name}", statements, waits, table.name, lacking, (name,))


def _records(conn: Connection, t: Tables, *, can_read: bool) -> Iterator[Step]:
    """What is recorded beside the tables: the rule where none is, and the version."""
    if not can_read or not rules.has_row(conn, t):
        yield _record(conn, t, f"rule {rules.Rule.of(t.spec)}", rules.recording(t))
    statement = rules.recording_version(conn if can_read else None, t)
    if statement is not None:
        yield _record(conn, t, "recorded version", statement)


def _record(conn: Connection, t: Tables, makes: str, statement: Any) -> Step:
    text = text_of(conn.dialect, statement, compile_kwargs={"literal_binds": True})
    return Step(NEWEST, makes, (text,), NOBODY, t.lease.name)


def text_of(dialect: sa.Dialect, statement: Any, **how: Any) -> str:
    """A statement in one line, for `exec_driver_sql` and to be printed. how: as of `compile`.
    SQLAlchemy writes a percent sign twice for drivers that format."""
    if not isinstance(statement, str):
        statement = str(statement.compile(dialect=dialect, **how))
    text = re.sub(r"\s*\n\s*", " ", statement.strip())
    return text.replace("%%", "%") if dialect.paramstyle in ("format", "pyformat") else text


# --- Statements that are printed: of one column or index, or of all in a script.


def add_columns(dialect: sa.Dialect, table: sa.Table, columns: Iterable[sa.Column[Any]]) -> str:
    """The statement that adds columns; more than one only where `Database.multi_column_alter`."""
    name = dialect.identifier_preparer.format_table(table)
    texts = []
    for column in columns:
        if not of_dialect(dialect).takes_default(column):
            column = sa.Column(column.name, column.type)
        text = str(CreateColumn(column).compile(dialect=dialect))
        texts.append(of_dialect(dialect).add_column(text))
    return text_of(dialect, f"ALTER TABLE {name} {', '.join(texts)}")


def add_with_default_for_new(
    dialect: sa.Dialect, table: sa.Table, column: sa.Column[Any]
) -> list[str]:
    """Add a column with a default that rows which are there do not get: they keep NULL."""
    made = [add_columns(dialect, table, [sa.Column(column.name, column.type)])]
    if of_dialect(dialect).takes_default(column):
        name = dialect.identifier_preparer.format_table(table)
        default = str(getattr(column.server_default, "arg", "NULL"))
        setting = of_dialect(dialect).set_default(At(dialect, name, column.name), default)
        made += [text_of(dialect, statement) for statement in setting]
    return made


def column_needed(engine: Engine, spec: MessageTable, role: str) -> str:
    """What a live table has to have that is without the column of a slice."""
    table, name = tables_for(spec, database_of(engine)).message, spec.names()[role]
    with connecting(engine) as conn:
        there = describe.by_name(columns_of(sa.inspect(conn), table.name, table.schema))
    if (one := there.get(name.lower())) is not None:
        return (
            f"whole numbers in column {name} of table {spec.name}, but it is "
            f"{describe.said(one['type'])}: name another column, MessageTable({role}=...)"
        )
    add = add_columns(engine.dialect, table, [table.c[name]])
    return f"a column in table {spec.name}. Add it: {add}"


def slice_index(engine: Engine, t: Tables, role: str) -> str:
    """The statement that creates the index of a slice; "" if it is there."""
    name = t.spec.index_name(SLICES[role])
    if t.indexes is None or name in t.indexes:
        return ""
    kinds = {c.name: c.type for c in t.message.c}
    ideal = tables_for(t.spec.replace(slices=(*t.spec.slices, role)), t.database, kinds)
    index = next(i for i in ideal.message.indexes if i.name == name)
    return text_of(engine.dialect, CreateIndex(index))


def ddl(spec: MessageTable, name: str, partitions: int = 0) -> str:
    """The whole script for a DBA, without connecting. partitions: of the message table, by the hash
    of the object; only where `Database.unpartitioned` says nothing."""
    database = DATABASES[name].having(partitioned=partitions > 0)
    compiler = printing(database.offline_dialect())
    t = tables_for(spec, database)
    produced = [t.names[role] for role in ("topic", "object_id", "payload") if role in t.names]
    produced += [name for name, _ in t.where]
    parts = [
        "-- msgworker: messages, leases, items, failed tries, audit, locks, schedules, history, "
        f"jobs for {name}.\n"
        "-- Generated by `msgworker ddl`; do not edit. A producer needs only:\n"
        f"--   INSERT INTO {spec.name} ({', '.join(produced)}) VALUES (...)\n"
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


def _script(t: Tables) -> Iterator[tuple[Any, str]]:
    tables = [(t.message, "status: 0 new, 1 processing, 2 done, -1 failed")]
    for table, about in [*tables, *((own.of(t), own.about) for own in OWN)]:
        yield CreateTable(table), about
        for index in ordered_indexes(table):
            yield CreateIndex(index), INDEXES[suffix(index)]
