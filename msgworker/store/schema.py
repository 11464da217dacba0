"""Create the tables and indexes, print them as a script, and compare them with the live database.

Creating is idempotent, also when several processes start at once: each object is looked for,
created, and if somebody else was faster, looked for again.
"""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection, Engine, Inspector
from sqlalchemy.exc import DBAPIError, NoSuchTableError
from sqlalchemy.schema import CreateColumn, CreateIndex, CreateTable

from msgworker import dialects
from msgworker.dialects import Dialect, Trouble, connecting, reason_of, trouble, writing
from msgworker.errors import SchemaError
from msgworker.message import Status
from msgworker.store import audit, locks, pause, requirements
from msgworker.store import rule as rules
from msgworker.store.rule import Rule
from msgworker.table import (
    ADDED,
    REQUIRED,
    SLICES,
    Cols,
    MessageTable,
    Tables,
    lit,
    tables_for,
)


def is_generated(column: sa.Column[Any]) -> bool:
    """Whether a column is a hidden, generated one of ours, there for an index only."""
    return bool(column.info.get(dialects.HIDDEN))


def create(
    engine: Engine,
    spec: MessageTable,
    dialect: Dialect,
    warn: Callable[[str], object] = lambda _: None,
) -> list[str]:
    """Create what is missing; return the names of what was created, [] if all was there.
    warn: gets what is odd about the rows of a table that had no index of ours until now, and where
    a table of a new one's name is in another schema.

    Opens its own transactions. On a table that exists already only indexes are added (and, on
    MariaDB and MySQL, hidden generated columns); its columns are left alone. The rule of a table
    of which none is recorded is recorded; another one is left as it is.
    Raises SchemaError if the guard index cannot be built because an object has two running rows.
    """
    _check_names(spec, dialect)
    dialects.set_up_database(engine)
    made: list[str] = []
    before: set[str] = set()
    with connecting(engine) as conn:
        inspector = sa.inspect(conn)
        live = live_name(inspector, spec)
        if live is not None:
            before = dialects.index_names(conn, sa.Table(live, sa.MetaData(), schema=spec.schema))
        problems = (
            [] if live is None else storage_problem(storage_of(inspector, live, spec.schema), live)
        )
        if problems:
            raise SchemaError(f"table {spec.name} cannot be used: {problems[0]}")
        if live is None and (other := elsewhere(conn, spec)):
            warn(f"it is new here; {other}")
        if live is not None:
            dialect = for_table(inspector, spec, live, dialect)
            _refuse_unfit(conn, inspector, named(spec, live), dialect)
    t = tables_for(
        spec if live is None else named(spec, live), dialect, _columns(engine, spec, live)
    )
    tables = (t.message, *own_tables(t))
    new = {table for table in tables if _ensure_table(engine, table)}
    made += (table.name for table in tables if table in new)
    for table in (*own_tables(t), t.message):
        if table not in new:
            columns = filter(is_generated, table.c) if table is t.message else table.c
            made += _ensure_columns(engine, table, columns)
    # Before the indexes of ours are there: those of another rule tell by which one it was used.
    recorded_rule(engine, rules.assumed(t.spec, before).to(t.spec), dialect)
    for table in tables:
        for index in ordered_indexes(table):
            made += _ensure_index(engine, t, index, look=table not in new)
    if live is not None and not before & {str(i.name).lower() for i in t.message.indexes}:
        _warn_of_statuses(engine, t, warn)
    return made


def create_locks(engine: Engine, t: Tables) -> list[str]:
    """Create the table of locks alone, where it is missing; the names of what was created."""
    dialects.set_up_database(engine)
    table = locks.table(t)
    new = _ensure_table(engine, table)
    made = [table.name] if new else _ensure_columns(engine, table, table.c)
    for index in ordered_indexes(table):
        made += _ensure_index(engine, t, index, look=not new)
    return made


def _warn_of_statuses(engine: Engine, t: Tables, warn: Callable[[str], object]) -> None:
    """No index holds such rows, so this reads the table, as its first indexes have done."""
    c = t.cols()
    with connecting(engine) as conn:
        rows = sa.select(sa.func.count(), sa.func.min(c.msg_id)).where(has_unknown_status(c))
        count, example = conn.execute(rows).one()
    if count:
        quote = engine.dialect.identifier_preparer.quote
        status = quote(t.names["status"])
        text = "1 row has" if count == 1 else f"{count:,} rows have"
        warn(
            f"{text} a status that nobody knows and will never be claimed (message {example}, "
            f"say). See them: SELECT {quote(t.names['msg_id'])}, {status} FROM "
            f"{engine.dialect.identifier_preparer.format_table(t.message)} WHERE {status} NOT IN "
            f"(-1, 0, 1, 2) OR {status} IS NULL; `msgworker doctor` prints how to mend them"
        )


def has_unknown_status(c: Cols, *, known: Iterable[Status] = tuple(Status)) -> ColumnElement[bool]:
    """Rows whose status is none of those known."""
    return sa.or_(c.status.is_(None), c.status.not_in([lit(s) for s in known]))


def recorded_rule(engine: Engine, spec: MessageTable, dialect: Dialect) -> Rule:
    """The recorded rule of a table; where none is, that of `spec` is recorded."""
    with connecting(engine) as conn:
        live = live_name(sa.inspect(conn), spec)
    return record_rule(engine, tables_for(spec if live is None else named(spec, live), dialect))


def record_rule(engine: Engine, t: Tables) -> Rule:
    """The same, of tables as they are in the database."""
    while True:
        with connecting(engine) as conn:
            found = rules.read(conn, t)
        if found is not None:
            return found
        try:
            with writing(engine) as conn:
                rules.record(conn, t)
        except DBAPIError as error:
            if trouble(error) is not Trouble.RACE:
                raise


def _refuse_unfit(
    conn: Connection, inspector: Inspector, spec: MessageTable, dialect: Dialect
) -> None:
    found = requirements.needed(requirements.read(conn, inspector, spec, dialect))
    if found:
        raise SchemaError(f"table {spec.name} cannot be used: {requirements.told(found)}")


def own_tables(t: Tables) -> tuple[sa.Table, ...]:
    """The tables beside the message table; all of them ours."""
    return (*run_tables(t), *ops_tables(t), *optional_tables(t))


def run_tables(t: Tables) -> tuple[sa.Table, ...]:
    """The tables that instances need."""
    return t.lease, t.item, t.tried


def ops_tables(t: Tables) -> tuple[sa.Table, ...]:
    """The tables that only ops write to; instances run without them."""
    return audit.operations(t), audit.lines(t), pause.table(t)


def optional_tables(t: Tables) -> tuple[sa.Table, ...]:
    """The tables of what not everybody uses; nobody else misses them."""
    return (locks.table(t),)


def missing_ops_tables(engine: Engine, t: Tables) -> frozenset[str]:
    """Which of `ops_tables` are not in the database now."""
    with connecting(engine) as conn:
        return _missing_ops_tables(sa.inspect(conn), t)


def _missing_ops_tables(inspector: Inspector, t: Tables) -> frozenset[str]:
    tables = ops_tables(t)
    return frozenset(x.name for x in tables if dialects.is_there(inspector, x) is False)


def ddl(spec: MessageTable, dialect_name: str) -> str:
    """The whole script for a DBA, without connecting."""
    dialect = dialects.DIALECTS[dialect_name]
    compiler = dialects.compiler_for(dialect_name)
    t = tables_for(spec, dialect)
    parts = [
        f"-- msgworker: messages, leases, items, failed tries, audit, locks for {dialect_name}.\n"
        "-- Generated by `msgworker ddl`; do not edit. A producer needs only:\n"
        f"--   INSERT INTO {spec.name} ({', '.join(_producer_columns(t))}) VALUES (...)\n"
    ]
    if dialect_name in dialects.DATABASE_SET_UP:
        why = "readers and the one writer do not wait for each other"
        parts.append(f"-- {why}\n{dialects.DATABASE_SET_UP[dialect_name]};\n")
    for statement, why in _script(t):
        text = str(statement.compile(dialect=compiler)).strip()
        text = "\n".join(line.rstrip() for line in text.replace("\t", "  ").splitlines())
        parts.append(f"-- {why}\n{text};\n")
    return "\n".join(parts)


def _producer_columns(t: Tables) -> list[str]:
    return [t.names[role] for role in ("topic", "object_id", "payload") if role in t.names]


def _script(t: Tables) -> Iterator[tuple[Any, str]]:
    reasons = {
        "guard": "the guard: at most one running message per object, promised by the database",
        "object": "unfinished messages by object and age",
        "oldest": "unfinished messages by age",
        "due": "messages that wait for an instant: retries and delayed ones",
        "failed": "failed and dead messages, for people",
        "shard": "unfinished messages by shard, object and age",
        "flag": "unfinished messages by the flag of the instance, object and age",
        "group": "failed tries by what they have in common",
        "owner": "locks by who holds them",
    }
    about = {
        t.message: "status: 0 new, 1 processing, 2 done, -1 failed",
        t.lease: "who lives: an instance holds a lease on its own id",
        t.item: "fan-out inside a message: items that are done are not done again",
        t.tried: "failed tries: their errors and times",
        audit.operations(t): "what people did: reruns, discards, purges, ...",
        audit.lines(t): "what they did to which message, and what it was before",
        pause.table(t): "topics that nobody is to start",
        locks.table(t): "locks (msgworker.coordination); rows are never deleted: tokens only rise",
    }
    for table in (t.message, *own_tables(t)):
        yield CreateTable(table), about[table]
        for index in ordered_indexes(table):
            yield CreateIndex(index), reasons[_suffix(index)]


def ordered_indexes(table: sa.Table) -> list[sa.Index]:
    """The indexes of one of our tables, the guard first."""
    order = ("guard", "object", "oldest", "due", "failed", "shard", "flag", "group", "owner")
    return sorted(table.indexes, key=lambda index: order.index(_suffix(index)))


def _suffix(index: sa.Index) -> str:
    return str(index.name).rpartition("_")[2]


# ---------------------------------------------------------------- live tables


def resolve(
    engine: Engine, spec: MessageTable, dialect: Dialect, *, recorded: bool = True
) -> Tables:
    """The tables as they are in the database; raises SchemaError for what is missing, all at once.

    An optional column that a foreign table lacks is done without; our own table must be complete.
    recorded: by the rule that is recorded, not by that of `spec`.
    """
    _check_names(spec, dialect)
    with connecting(engine) as conn:
        inspector = sa.inspect(conn)
        live = live_name(inspector, spec)
        if live is None:
            raise SchemaError(_missing_table(conn, inspector, spec))
        columns = inspector.get_columns(live, schema=spec.schema)
        unique = unique_keys(inspector, live, spec.schema)
        indexes = dialects.index_names(conn, sa.Table(live, sa.MetaData(), schema=spec.schema))
        storage = storage_of(inspector, live, spec.schema)
        own, without = _own_problems(inspector, tables_for(spec, dialect))
        spec = named(spec, live)
        as_is = requirements.read(conn, inspector, spec, dialect, columns)
        if recorded and not own:
            spec = in_force(conn, tables_for(spec, dialect), indexes).to(spec)
    kinds = {str(c["name"]): c["type"] for c in columns}
    _require(spec, kinds)
    t = tables_for(spec, dialect, kinds, frozenset(indexes))
    t = replace(t, unfilled=unfilled(t, columns))
    t = replace(t, missing=missing_ops_tables(engine, t), lacking=without)
    problems = _column_problems(t, as_is)
    t = replace(
        t,
        unfit=requirements.told(requirements.needed(as_is)),
        error_room=requirements.error_room(as_is),
        instants=requirements.instants(as_is),
        fold=None if t.key_collation else as_is.fold,
    )
    problems += storage_problem(storage, live)
    if not problems and [t.names["msg_id"]] not in unique:
        problems.append(f"column {t.names['msg_id']} is not unique: it must be the primary key")
    if dialect.case_index == "column":
        there = {str(c["name"]) for c in columns}
        lacking = [c.name for c in t.message.c if is_generated(c) and c.name not in there]
        problems += [f"generated column {name} is missing" for name in lacking]
    problems += own
    if problems:
        raise SchemaError(
            f"table {spec.name} cannot be used: {'; '.join(problems)}. "
            "Run App.create_schema() or `msgworker init-db`, or see `msgworker ddl`"
        )
    return t


def known_rule(engine: Engine, spec: MessageTable, dialect: Dialect) -> Rule:
    """The rule in force of a table that may not be there yet; then that of `spec`."""
    with connecting(engine) as conn:
        inspector = sa.inspect(conn)
        live = live_name(inspector, spec)
        if live is None:
            return Rule.of(spec)
        t = tables_for(named(spec, live), dialect)
        indexes = dialects.index_names(conn, t.message)
        if _own_problems(inspector, t)[0]:
            return rules.assumed(t.spec, indexes)
        return in_force(conn, t, indexes)


def in_force(conn: Connection, t: Tables, indexes: Iterable[str]) -> Rule:
    """The rule that the table is worked on by: the recorded one, else what its indexes tell."""
    return rules.read(conn, t) or rules.assumed(t.spec, indexes)


def _own_problems(inspector: Inspector, t: Tables) -> tuple[list[str], frozenset[str]]:
    """What is missing of the tables that instances need beside the message table, and the columns
    among it that they can do without."""
    problems, without = [], set()
    for table in run_tables(t):
        there_is = dialects.is_there(inspector, table)
        if not there_is:
            why = "is missing" if there_is is False else "may not be read by this login"
            problems.append(f"table {table.name} {why}")
            continue
        found = inspector.get_columns(table.name, schema=table.schema)
        there = {str(c["name"]).lower() for c in found}
        lacking = [c.name for c in table.c if c.name not in there and ADDED not in c.info]
        added = [c.name for c in table.c if c.name not in there and ADDED in c.info]
        without |= {f"{table.name}.{name}" for name in added}
        if lacking:
            problems.append(f"table {table.name} has no column {', '.join(lacking)}")
    return problems, frozenset(without)


def unique_keys(inspector: Inspector, live: str, schema: str | None) -> list[list[str]]:
    """The columns of the primary key and of every unique constraint and index."""
    key = inspector.get_pk_constraint(live, schema=schema).get("constrained_columns", [])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # indexes on expressions are left out, rightly
        found: list[Any] = [*inspector.get_unique_constraints(live, schema=schema)]
        found += [i for i in inspector.get_indexes(live, schema=schema) if i["unique"]]
    return [list(key), *(list(u["column_names"]) for u in found)]


def storage_of(inspector: Inspector, live: str, schema: str | None) -> str:
    """The storage engine of a table, where there is a choice."""
    try:
        options = inspector.get_table_options(live, schema=schema)
    except (NotImplementedError, NoSuchTableError):  # not known there; a view
        return ""
    return next((str(v) for k, v in options.items() if k.endswith("_engine")), "")


def storage_problem(storage: str, name: str) -> list[str]:
    if storage.lower() not in ("myisam", "memory", "aria", "csv", "archive"):
        return []
    mend = f"ALTER TABLE {name} ENGINE=InnoDB"
    return [f"its storage engine {storage} has no transactions. To mend it: {mend}"]


def _check_names(spec: MessageTable, dialect: Dialect) -> None:
    for name in (spec.schema or "", spec.bare_name, *spec.names().values()):
        if len(name.encode()) > dialect.max_name:
            most = f"{dialect.max_name} bytes that {dialect.name} takes"
            raise SchemaError(f"the name {name} is longer than the {most}")


def check_fit(engine: Engine, t: Tables) -> None:
    """Raise SchemaError if no instance may work on the table: a message would be lost or strand
    there, or the guard index is not there, on which exclusion rests."""
    if t.unfit:
        raise SchemaError(f"table {t.spec.name} cannot be used: {t.unfit}")
    with connecting(engine) as conn:
        if _has_index(conn, t.message, t.guard_name):
            return
    raise SchemaError(
        f"the guard index {t.guard_name} is missing on {t.spec.name}: without it two messages "
        "of one object could run at once. Run App.create_schema() or `msgworker init-db`"
    )


def live_name(inspector: Inspector, spec: MessageTable) -> str | None:
    """The live name of the table: exact, or the only one that differs by case."""
    try:
        names = [
            *inspector.get_table_names(schema=spec.schema),
            *inspector.get_view_names(schema=spec.schema),
        ]
    except DBAPIError as error:
        if spec.schema is None:
            raise
        text = f"schema {spec.schema} cannot be looked at: {reason_of(error)}"
        raise SchemaError(text) from error
    if spec.bare_name in names:
        return spec.bare_name
    same = [name for name in names if name.lower() == spec.bare_name.lower()]
    return same[0] if len(same) == 1 else None


def named(spec: MessageTable, live: str) -> MessageTable:
    if live == spec.bare_name:
        return spec
    return spec.replace(name=f"{spec.schema}.{live}" if spec.schema else live)


def _columns(engine: Engine, spec: MessageTable, live: str | None) -> dict[str, Any] | None:
    if live is None:
        return None
    with connecting(engine) as conn:
        inspector = sa.inspect(conn)
        kinds = {str(c["name"]): c["type"] for c in inspector.get_columns(live, schema=spec.schema)}
    _require(spec, kinds)
    return kinds


def _require(spec: MessageTable, kinds: dict[str, Any]) -> None:
    have = {name.lower() for name in kinds}
    lacking = [role for role in spec.names() if role in REQUIRED]
    lacking = [role for role in lacking if spec.names()[role].lower() not in have]
    if lacking:
        raise SchemaError(unnamed(spec, lacking, kinds))


def unnamed(spec: MessageTable, lacking: Sequence[str], there: Iterable[str]) -> str:
    """What to do where columns of these roles are not there under the names they were given. They
    are never added: the values of the rows that are there stand in other columns."""
    names = ", ".join(spec.names()[role] for role in lacking)
    say = "name the column" if len(lacking) == 1 else "name the columns"
    return (
        f"table {spec.name} has no column {names}; {say}: "
        f"MessageTable({', '.join(f'{role}=...' for role in lacking)}); "
        f"the table has: {', '.join(there)}"
    )


def for_table(inspector: Inspector, spec: MessageTable, live: str, dialect: Dialect) -> Dialect:
    """What the database can do on this table: columns that are computed from one that a foreign key
    changes cannot be stored."""
    if not dialect.stored_columns:
        return dialect
    bases = {spec.names()[role].lower() for role in ("object_id", "status", "error_try_times")}
    for key in inspector.get_foreign_keys(live, schema=spec.schema):
        options = {act: str(does).upper() for act, does in key.get("options", {}).items()}
        changes = options.get("onupdate") in CHANGING or options.get("ondelete") in CHANGING[1:]
        if changes and bases & {name.lower() for name in key["constrained_columns"]}:
            return replace(dialect, stored_columns=False)
    return dialect


CHANGING = ("CASCADE", "SET NULL", "SET DEFAULT")


def unfilled(t: Tables, columns: Sequence[Any]) -> tuple[str, ...]:
    """Columns that an INSERT of ours leaves out although they need a value."""
    ours = {t.names[role] for role in SENT if role in t.names}
    return tuple(
        str(c["name"])
        for c in columns
        if c["name"] not in ours
        and not c["nullable"]
        and c.get("default") is None
        and not c.get("computed")
        and not c.get("identity")
        and c.get("autoincrement") is not True
    )


SENT = ("msg_id", "topic", "object_id", "payload", "status", "error_try_times", "shard")


def near_names(inspector: Inspector, spec: MessageTable) -> list[str]:
    """Tables that the name may have meant."""
    names = inspector.get_table_names(schema=spec.schema)
    return difflib.get_close_matches(spec.bare_name, names, n=3, cutoff=0.5)


def elsewhere(conn: Connection, spec: MessageTable) -> str:
    """What to say of a table that is not there, where another schema has one of its name; empty if
    none has."""
    found = dialects.schemas_with(conn, spec.bare_name, but=spec.schema)
    if not found:
        return ""
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    name = f"{found[0]}.{spec.bare_name}"
    return (
        f"a table of that name is in schema {', '.join(found[:3])}{more}: if that is meant, name "
        f'it, --table {name} or MessageTable("{name}")'
    )


def _missing_table(conn: Connection, inspector: Inspector, spec: MessageTable) -> str:
    if other := elsewhere(conn, spec):
        return f"table {spec.name} does not exist; {other}; else run `msgworker init-db`"
    near = near_names(inspector, spec)
    hint = f" Near names: {', '.join(near)}." if near else ""
    return (
        f"table {spec.name} does not exist.{hint} "
        "Run App.create_schema() or `msgworker init-db`, or give the right MessageTable(name)"
    )


def _column_problems(t: Tables, live: requirements.Live) -> list[str]:
    wanted = asked_for(t.spec)
    lacking = [name for role, name in t.spec.names().items() if role in wanted - set(t.names)]
    problems = [f"missing column {', '.join(lacking)}"] if lacking else []
    mistyped = requirements.mistyped(live)
    return problems + ([requirements.told(mistyped)] if mistyped else [])


def asked_for(spec: MessageTable) -> set[str]:
    """The roles whose columns must be there: all in our own table, else those that were named."""
    plain = MessageTable().names()
    return {
        role
        for role, name in spec.names().items()
        if role in REQUIRED or spec.is_default or name != plain[role]
    }


# ---------------------------------------------------------------- creating


def _attempt(engine: Engine, statement: Any, there: Any) -> bool:
    """Run one DDL statement; False if somebody else created the object meanwhile."""
    try:
        with writing(engine) as conn:
            conn.execute(statement)
    except DBAPIError as error:
        with connecting(engine) as conn:
            if there(conn):
                return False
        raise SchemaError(f"cannot create the schema: {reason_of(error)}") from error
    return True


def _ensure_table(engine: Engine, table: sa.Table) -> bool:
    """True if it was not there: then it has all its columns now, and nothing else."""

    def there(conn: Connection) -> bool:
        inspector = sa.inspect(conn)
        return inspector.has_table(table.name, schema=table.schema)

    with connecting(engine) as conn:
        if there(conn):
            return False
    return _attempt(engine, CreateTable(table), there)


def _ensure_columns(
    engine: Engine, table: sa.Table, columns: Iterable[sa.Column[Any]]
) -> list[str]:
    """Add columns that are not there: hidden ones, and those of a later version of our tables."""

    def lacking(conn: Connection) -> list[sa.Column[Any]]:
        found = sa.inspect(conn).get_columns(table.name, schema=table.schema)
        there = {str(c["name"]).lower() for c in found}
        return [column for column in wanted if column.name.lower() not in there]

    made: list[str] = []
    wanted = list(columns)
    while True:
        with connecting(engine) as conn:
            missing = lacking(conn)
            if not missing:
                return made
            part = missing if dialects.adds_many(conn.dialect.name) else missing[:1]
            alter = add_columns(conn.dialect, table, part)
        statement = sa.text(alter.replace(":", r"\:"))
        fewer = partial(_fewer, lacking, len(missing))  # somebody else has added one: look again
        if _attempt(engine, statement, fewer):
            made += [column.name for column in part]


def _fewer(lacking: Callable[[Connection], list[Any]], than: int, conn: Connection) -> bool:
    return len(lacking(conn)) < than


def add_columns(dialect: sa.Dialect, table: sa.Table, columns: Iterable[sa.Column[Any]]) -> str:
    """The statement that adds columns; more than one only where `dialects.adds_many`."""
    name = dialect.identifier_preparer.format_table(table)
    texts = []
    for column in columns:
        if not dialects.takes_default(dialect.name, column):
            column = sa.Column(column.name, column.type)
        text = str(CreateColumn(column).compile(dialect=dialect))
        texts.append(dialects.adding(dialect.name, text))
    return f"ALTER TABLE {name} {', '.join(texts)}"


def add_with_default_for_new(
    dialect: sa.Dialect, table: sa.Table, column: sa.Column[Any]
) -> list[str]:
    """The statements that add a column whose default rows that are there do not get: they keep
    NULL."""
    made = [add_columns(dialect, table, [sa.Column(column.name, column.type)])]
    if dialects.takes_default(dialect.name, column):
        name = dialect.identifier_preparer.format_table(table)
        default = str(getattr(column.server_default, "arg", "NULL"))
        made += dialects.setting_default(dialect, name, column.name, default)
    return made


def adding_column(engine: Engine, spec: MessageTable, role: str) -> str:
    """The statement that adds the column of a role to a live table."""
    table = tables_for(spec, dialects.dialect_of(engine)).message
    return " ".join(add_columns(engine.dialect, table, [table.c[spec.names()[role]]]).split())


def slice_index(engine: Engine, t: Tables, role: str) -> str:
    """The statement that creates the index of a slice; "" if it is there."""
    name = t.spec.index_name(SLICES[role])
    if t.indexes is None or name in t.indexes:
        return ""
    kinds = {c.name: c.type for c in t.message.c}
    ideal = tables_for(t.spec.replace(slices=(*t.spec.slices, role)), t.dialect, kinds)
    index = next(i for i in ideal.message.indexes if i.name == name)
    return " ".join(str(CreateIndex(index).compile(dialect=engine.dialect)).split())


def _ensure_index(engine: Engine, t: Tables, index: sa.Index, *, look: bool) -> list[str]:
    """look: whether it may be there."""
    name = str(index.name)
    if look:
        with connecting(engine) as conn:
            if _has_index(conn, index.table, name):
                return []
    try:
        made = _attempt(
            engine, CreateIndex(index), lambda conn: _has_index(conn, index.table, name)
        )
    except SchemaError as error:
        if name != t.guard_name or trouble(error.__cause__ or error) is not Trouble.RACE:
            raise
        quote = engine.dialect.identifier_preparer.quote
        name = quote(t.names["object_id"])
        table = engine.dialect.identifier_preparer.format_table(t.message)
        raise SchemaError(
            f"{str(error).rstrip('.')}. An object has two rows at status 1; see them: SELECT "
            f"{name} FROM {table} WHERE {quote(t.names['status'])} = 1 AND {name} IS NOT NULL "
            f"GROUP BY {name} HAVING COUNT(*) > 1; `msgworker doctor` prints how to mend them; "
            "then run this again"
        ) from error
    return [name] if made else []


def _has_index(conn: Connection, table: sa.Table | None, name: str) -> bool:
    assert table is not None
    return name.lower() in dialects.index_names(conn, table)
