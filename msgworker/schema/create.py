"""Create the tables and indexes, and compare them with the live database.

Creating is idempotent, also for several processes: see `additions`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection, Engine, Inspector
from sqlalchemy.exc import DBAPIError

from msgworker import db
from msgworker.counted import plural
from msgworker.db import Database, connecting, writing
from msgworker.errors import DatabaseUnavailable, SchemaError
from msgworker.message import Status
from msgworker.schema import requirements, versions
from msgworker.schema import rule as rules
from msgworker.schema.additions import (
    ensure_columns,
    ensure_index,
    ensure_table,
)
from msgworker.schema.describe import (
    asked_for,
    behind,
    check_names,
    elsewhere,
    for_table,
    highest_id,
    is_primary,
    is_unique,
    live_columns,
    live_name,
    missing_table,
    named,
    require_columns,
    says,
    says_priority,
    storage_problem,
    unfilled,
)
from msgworker.schema.difference import difference, is_generated, ordered_indexes
from msgworker.schema.rule import Rule
from msgworker.schema.trial import trial
from msgworker.table import (
    ADDED,
    LOCK,
    REQUIRED,
    Cols,
    MessageTable,
    Need,
    Tables,
    lit,
    live_names,
    own_tables,
    tables_for,
)


def create(
    engine: Engine,
    spec: MessageTable,
    database: Database,
    warn: Callable[[str], object] = lambda _: None,
) -> list[str]:
    """Create what is missing; return the names of what was created, [] if all was there.
    warn: gets what is odd about the rows of a table that had no index of ours until now, and where
    a table of a new one's name is in another schema.

    Opens its own transactions. On a table that exists already only indexes are added (and, on
    MariaDB and MySQL, hidden generated columns; to our own table also columns of a later version);
    its columns are left alone. The rule of a table is recorded where none is; so is the version.
    Raises SchemaError if the guard index cannot be built because an object has two running rows.
    """
    check_names(spec, database)
    db.of(engine).set_up(engine)
    made: list[str] = []
    before: set[str] = set()
    with connecting(engine) as conn:
        if why := db.refuses_all_writes(conn):
            raise SchemaError(f"nothing was created: {why}")
        inspector = sa.inspect(conn)
        live = live_name(inspector, spec)
        if live is not None:
            before = database.index_names(conn, sa.Table(live, sa.MetaData(), schema=spec.schema))
        problems = [] if live is None else storage_problem(conn, inspector, spec, live)
        if problems:
            raise SchemaError(f"table {spec.name} cannot be used: {problems[0]}")
        if live is None and (other := elsewhere(conn, spec)):
            warn(f"it is new here; {other}")
        if live is not None:
            database = for_table(inspector, spec, live, database)
            as_is = refuse_unfit(conn, inspector, named(spec, live), database)
    if live is not None:
        refuse_at_trial(engine, as_is)
    if live is not None and spec.is_default:
        made += _add_later_columns(engine, named(spec, live), database)
    t = tables_for(
        spec if live is None else named(spec, live), database, live_columns(engine, spec, live)
    )
    tables = (t.message, *own_tables(t))
    new = {table for table in tables if ensure_table(engine, table)}
    made += (table.name for table in tables if table in new)
    for table in (*own_tables(t), t.message):
        if table not in new:
            columns = filter(is_generated, table.c) if table is t.message else table.c
            made += ensure_columns(engine, table, columns)
    # Before the indexes of ours are there: those of another rule show by which one it was used.
    recorded_rule(engine, rules.assumed(t.spec, before).to(t.spec), database)
    for table in tables:
        for index in ordered_indexes(table):
            made += ensure_index(engine, t, index, look=table not in new)
    versions.record(engine, t)
    if live is not None and not before & {str(i.name).lower() for i in t.message.indexes}:
        _warn_of_statuses(engine, t, warn)
    return made


def _add_later_columns(engine: Engine, spec: MessageTable, database: Database) -> list[str]:
    """Add the columns that a later version has added to our own message table."""
    ideal = tables_for(spec, database).message
    return ensure_columns(engine, ideal, [c for c in ideal.c if ADDED in c.info])


def create_locks(engine: Engine, t: Tables) -> list[str]:
    """Create the table of locks alone, where it is missing; the names of what was created."""
    db.of(engine).set_up(engine)
    table = LOCK.of(t)
    new = ensure_table(engine, table)
    made = [table.name] if new else ensure_columns(engine, table, table.c)
    for index in ordered_indexes(table):
        made += ensure_index(engine, t, index, look=not new)
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
        text = plural(count, "row", "has", "have")
        warn(
            f"{text} an unknown status and will never be claimed (message {example}, "
            f"say). See them: SELECT {quote(t.names['msg_id'])}, {status} FROM "
            f"{engine.dialect.identifier_preparer.format_table(t.message)} WHERE {status} NOT IN "
            f"(-1, 0, 1, 2) OR {status} IS NULL; `msgworker doctor` prints how to fix them"
        )


def has_unknown_status(c: Cols, *, known: Iterable[Status] = tuple(Status)) -> ColumnElement[bool]:
    """Rows whose status is none of those known."""
    return sa.or_(c.status.is_(None), c.status.not_in([lit(s) for s in known]))


def recorded_rule(engine: Engine, spec: MessageTable, database: Database) -> Rule:
    """The recorded rule of a table; where none is, that of `spec` is recorded."""
    with connecting(engine) as conn:
        live = live_name(sa.inspect(conn), spec)
    return record_rule(engine, tables_for(spec if live is None else named(spec, live), database))


def record_rule(engine: Engine, t: Tables) -> Rule:
    """The same, of tables as they are in the database."""
    until = time.monotonic() + versions.AGAIN_SECONDS
    while True:
        with connecting(engine) as conn:
            found = rules.read(conn, t)
        if found is not None:
            return found
        try:
            with writing(engine) as conn:
                rules.record(conn, t)
        except DBAPIError as error:
            if not versions.may_be_recorded(error, until):
                raise


def refuse_unfit(
    conn: Connection, inspector: Inspector, spec: MessageTable, database: Database
) -> requirements.Live:
    as_is = requirements.read(conn, inspector, spec, database)
    found = requirements.needed(as_is)
    ids = as_is.columns.get("msg_id")
    shared = not found and ids is not None and not database.partitioned
    if shared and ids and not is_unique(inspector, spec.bare_name, spec.schema, ids.name):
        found = [requirements.not_unique(conn, as_is)]
    if found:
        raise SchemaError(f"table {spec.name} cannot be used: {requirements.told(found)}")
    return as_is


def refuse_at_trial(engine: Engine, as_is: requirements.Live) -> None:
    """Raise SchemaError for a table on which a message that is sent is not handled, as `trial`
    finds out."""
    spec, kinds = as_is.spec, {column.name: column.kind for column in as_is.all.values()}
    if set(REQUIRED) - set(live_names(spec, kinds)):
        return  # they are asked for
    conn = db.connected(engine)
    with db.returned(conn):
        found = [f for f in trial(conn, tables_for(spec, as_is.database, kinds), as_is) if f.needed]
    if found:
        raise SchemaError(f"table {spec.name} cannot be used: {requirements.told(found)}")


def missing_tables(engine: Engine, t: Tables) -> frozenset[str]:
    """Which of the tables of ops and of features are not in the database now."""
    with connecting(engine) as conn:
        return _missing(sa.inspect(conn), t, own_tables(t, Need.OPS, Need.FEATURE))


def _missing(inspector: Inspector, t: Tables, wanted: Iterable[sa.Table]) -> frozenset[str]:
    listed = db.names_there(inspector, t.spec.schema)
    tables = [x for x in wanted if x.name not in listed]
    return frozenset(x.name for x in tables if db.is_there(inspector, x) is False)


def _columns_there(inspector: Inspector, live: str, t: Tables) -> dict[str, list[Any]]:
    """The columns of the message table and of the tables that instances need beside it."""
    listed = db.names_there(inspector, t.spec.schema)
    own = [table.name for table in own_tables(t, Need.RUN) if table.name in listed]
    return db.columns_there(inspector, [live, *own], t.spec.schema)


@contextmanager
def _within(conn: Connection, spec: MessageTable, seconds: float | None) -> Iterator[None]:
    if seconds is None:
        yield
        return
    try:
        with db.deadline(conn, seconds):
            yield
    except DBAPIError as error:
        if not db.is_overtime(error):
            raise
        raise DatabaseUnavailable(
            f"table {spec.name} could not be read within {seconds:g} s: a session has it locked, "
            "perhaps that of this transaction. Read app.tables before it begins"
        ) from error


def resolve(
    engine: Engine,
    spec: MessageTable,
    database: Database,
    *,
    recorded: bool = True,
    with_headers: bool = False,
    seconds: float | None = None,
) -> Tables:
    """The tables as they are in the database; raises SchemaError for what is missing, all at once.

    Optional columns of a foreign table may be missing; our own table must be complete.
    recorded: by the rule that is recorded, not by that of `spec`. with_headers: headers are read
    and written, for traces. seconds: for each statement; raises DatabaseUnavailable where another
    session, perhaps one of the caller's, has the table locked for longer; None = it waits.
    """
    check_names(spec, database)
    with connecting(engine) as conn, _within(conn, spec, seconds):
        inspector = sa.inspect(conn)
        live = live_name(inspector, spec)
        if live is None:
            raise SchemaError(missing_table(conn, inspector, spec))
        table = sa.Table(live, sa.MetaData(), schema=spec.schema)
        ideal = tables_for(spec, database)
        there = _columns_there(inspector, live, ideal)
        columns = there[live]
        indexes = database.index_names(conn, table, inspector)
        storage = storage_problem(conn, inspector, spec, live)
        own, without = _own_problems(inspector, ideal, there)
        missing = _missing(inspector, ideal, own_tables(ideal, Need.OPS, Need.FEATURE))
        spec = named(spec, live)
        as_is = requirements.read(conn, inspector, spec, database, columns)
        ids = as_is.columns.get("msg_id")
        database = database.having(partitioned=as_is.partitions is not None)
        unique = database.partitioned or (
            ids is not None and is_unique(inspector, live, spec.schema, ids.name)
        )
        shared = [] if unique or ids is None else [requirements.not_unique(conn, as_is)]
        is_key = ids is not None and is_primary(inspector, live, spec.schema, ids.name)
        if not own:
            versions.check(conn, ideal)
        own_policies = db.policies_of(conn, own_tables(ideal, Need.RUN))
        if recorded and not own:
            spec = in_force(conn, tables_for(spec, database), indexes).to(spec)
    kinds = {str(c["name"]): c["type"] for c in columns}
    require_columns(spec, kinds)
    names = live_names(spec, kinds)
    t = tables_for(
        spec,
        database,
        kinds,
        frozenset(indexes),
        unfilled=unfilled(names, columns),
        missing=missing,
        lacking=without,
        says_priority=says_priority(names, columns),
        says=says(names, columns),
        id_is_key=is_key,
        unfit=requirements.told(requirements.needed(as_is)),
        error_room=requirements.error_room(as_is),
        error_codec=as_is.error_codec,
        header_room=requirements.header_room(as_is) if with_headers else 0,
        instants=requirements.instants(as_is),
        fold=as_is.fold,
        doubtful=requirements.is_doubtful(as_is),
        counts_ids=ids is not None and ids.counts,
        **requirements.hooks(as_is),
        own_policies=own_policies,
        rooms=requirements.rooms(as_is),
    )
    problems = _column_problems(t, as_is) + storage
    if not problems and not unique:
        problems.append(t.unfit or requirements.told(shared))
    hidden = difference(inspector, t.message, columns).hidden
    problems += [f"generated column {column.name} is missing" for column in hidden]
    problems += own
    if problems:
        raise SchemaError(
            f"table {spec.name} cannot be used: {'; '.join(problems)}. "
            "Run App.create_schema(), `msgworker init-db` or `db upgrade`, or see `msgworker ddl`"
        )
    return t


def known_rule(engine: Engine, spec: MessageTable, database: Database) -> Rule:
    """The rule in force of a table that may not be there yet; then that of `spec`."""
    with connecting(engine) as conn:
        return rule_there(conn, spec, database)


def rule_there(conn: Connection, spec: MessageTable, database: Database) -> Rule:
    """The same, as a connection sees it."""
    inspector = sa.inspect(conn)
    live = live_name(inspector, spec)
    if live is None:
        return Rule.of(spec)
    t = tables_for(named(spec, live), database)
    indexes = t.database.index_names(conn, t.message)
    if _own_problems(inspector, t, _columns_there(inspector, live, t))[0]:
        return rules.assumed(t.spec, indexes)
    return in_force(conn, t, indexes)


def in_force(conn: Connection, t: Tables, indexes: Iterable[str]) -> Rule:
    """The rule that the table is worked on by: the recorded one, else the one of its indexes."""
    return rules.read(conn, t) or rules.assumed(t.spec, indexes)


def _own_problems(
    inspector: Inspector, t: Tables, there_are: Mapping[str, list[Any]]
) -> tuple[list[str], frozenset[str]]:
    """What is missing of the tables that instances need beside the message table, and the columns
    among it that they can do without. there_are: columns of tables that are listed."""
    problems, without = [], set()
    for table in own_tables(t, Need.RUN):
        found = difference(inspector, table, there_are.get(table.name))
        if not found.exists:
            why = "is missing" if found.exists is False else "may not be read by this login"
            problems.append(f"table {table.name} {why}")
        without |= {f"{table.name}.{column.name}" for column in found.later}
        if found.required:
            lacking = ", ".join(column.name for column in found.required)
            problems.append(f"table {table.name} has no column {lacking}")
    return problems, frozenset(without)


def hooks_changed(engine: Engine, t: Tables) -> bool:
    """Whether triggers, rules or policies have been added or dropped since the tables were read."""
    with connecting(engine) as conn:
        now = requirements.hooks_now(conn, t)
        now["own_policies"] = db.policies_of(conn, own_tables(t, Need.RUN))
    return any(getattr(t, name) != value for name, value in now.items())


def policies_changed(conn: Connection, t: Tables) -> bool:
    """Whether row-level security decides otherwise than when the tables were read."""
    found = db.policies_of(conn, [t.message])
    now = [(one.names, one.may) for one in found]
    return now != ([] if t.policies is None else [t.policies])


def check_fit(engine: Engine, t: Tables) -> list[str]:
    """Raise SchemaError if no instance may use the table: a message would be lost or stranded, or
    the guard index is missing, which enforces exclusion. Returns what is wrong besides."""
    if t.unfit:
        raise SchemaError(f"table {t.spec.name} cannot be used: {t.unfit}")
    hidden = list(requirements.of_own_policies(t.own_policies))
    if stop := [fault for fault in hidden if fault.needed]:
        raise SchemaError(f"table {t.spec.name} cannot be used: {requirements.told(stop)}")
    with connecting(engine) as conn:
        enforced = t.database.is_enforced(conn, t.message, t.guard_name)
        if enforced:
            notes = [fault.text for fault in hidden] + _odd_ids(conn, t)
        if enforced and t.doubtful:  # else nothing is written at a start
            as_is = requirements.read(conn, sa.inspect(conn), t.spec, t.database)
            notes += [f.text for f in requirements.faults(as_is) if f.check == "rights"]
    if enforced and t.doubtful:
        refuse_at_trial(engine, as_is)
    if enforced:
        return notes
    raise SchemaError(
        f"the guard index {t.guard_name} is missing on {t.spec.name}, unfinished or not unique: "
        "two messages of one object could run at once. Run `msgworker init-db`, or see `doctor`"
    )


def _odd_ids(conn: Connection, t: Tables) -> list[str]:
    """Why new messages would run before those that wait: their sequence was left behind, as where
    rows are copied with their ids."""
    ids = t.message.c[t.names["msg_id"]]
    source = db.id_source(conn, t.message, ids.name)
    highest = None if source is None else highest_id(conn, ids)
    found = "" if source is None or highest is None else behind(source, highest)
    return [f"{found}; `msgworker doctor` prints how to fix it"] if found else []


def _column_problems(t: Tables, live: requirements.Live) -> list[str]:
    wanted = asked_for(t.spec)
    lacking = [name for role, name in t.spec.names().items() if role in wanted - set(t.names)]
    problems = [f"missing column {', '.join(lacking)}"] if lacking else []
    mistyped = requirements.mistyped(live)
    return problems + ([requirements.told(mistyped)] if mistyped else [])
