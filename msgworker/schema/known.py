"""The tables of one App as it last read them: their structure, triggers and policies, the rule that
is recorded; read again where they may have changed. A start refuses what it cannot work with."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Engine, Inspector
from sqlalchemy.exc import DBAPIError

from msgworker.db.catalogue import columns_there, id_source, is_there, names_there, policies_of
from msgworker.db.connections import connecting, deadline, reaching, reading
from msgworker.db.database import Database, database_of
from msgworker.db.errors import is_overtime
from msgworker.errors import DatabaseUnavailable, SchemaError
from msgworker.logs import logger
from msgworker.processlock import ProcessLock
from msgworker.schema import apply, describe, requirements
from msgworker.schema import rule as rules
from msgworker.schema.apply import Plan, Step
from msgworker.schema.describe import Live, LiveTable
from msgworker.schema.difference import difference, mistyped, of_guard, read
from msgworker.schema.repairs import faults_text
from msgworker.schema.rule import Rule
from msgworker.table.build import own_tables, tables_for
from msgworker.table.spec import MessageTable
from msgworker.table.tables import Need, Tables

RULE_SECONDS = 1.0
HOOKS_SECONDS = 30.0
"""Seconds after which ops calls read the rule, the triggers and the policies of the table again."""
log = logger("msgworker.app")


class KnownTables:
    """What an App knows of its tables. Methods raise DatabaseUnavailable and SchemaError.

    names_rule: the App has a rule of its own; without it the recorded one is in force.
    with_headers: warn where the table has no column for headers.
    """

    def __init__(
        self, engine: Engine, spec: MessageTable, *, names_rule: bool, with_headers: bool
    ) -> None:
        self._engine = engine
        self._spec = spec
        self._names_rule = names_rule
        self._with_headers = with_headers
        self._lock = ProcessLock()
        self._tables: Tables | None = None
        self._fit = False
        self._told_of_headers = False
        self._rule_read_at = 0.0  # on the monotonic clock
        self._hooks_read_at = -HOOKS_SECONDS

    def read(self, seconds: float | None = None) -> Tables:
        """The live tables; read once. seconds: the time that each statement of it has."""
        found = self._tables
        if found is not None:
            return found
        with self._lock:
            if self._tables is None:
                self._tables = self._resolved(seconds=seconds)
                self._rule_read_at = time.monotonic()
            return self._tables

    @property
    def is_read(self) -> bool:
        """Whether `read` returns what it has."""
        return self._tables is not None

    def forget(self) -> None:
        """Have them read again."""
        self._tables = None

    def now(self, seconds: float | None = None) -> Tables:
        """The tables with a freshly read rule, for long-lived callers. seconds: the time that each
        statement has; raises TookTooLong."""
        tables = self.read(seconds)
        if time.monotonic() - self._rule_read_at < RULE_SECONDS:
            return tables
        with reading(self._engine, seconds) as conn:
            found = rules.read(conn, tables)
        self._rule_read_at = time.monotonic()
        if found not in (None, Rule.of(tables.spec)):
            self.forget()
        return self.checked(HOOKS_SECONDS, seconds)

    def checked(self, age: float = 0.0, seconds: float | None = None) -> Tables:
        """The tables, read again where triggers or policies have changed since they were read. age:
        the seconds for which that is known. seconds: as of `now`."""
        tables = self.read(seconds)
        if time.monotonic() - self._hooks_read_at < age:
            return tables
        with reading(self._engine, seconds) as conn:
            now = describe.hooks_now(conn, tables)
            now["own_policies"] = policies_of(conn, own_tables(tables, Need.RUN))
        self._hooks_read_at = time.monotonic()
        if any(getattr(tables, name) != value for name, value in now.items()):
            self._tables, self._fit = None, False
        return self.read(seconds)

    def recorded_rule(self) -> Rule:
        """The rule in force, recorded where none was; `read` has the same."""
        with reaching(self._engine):
            while True:
                found = rules.recorded_of(self._engine, self.read())
                if found == Rule.of(self.read().spec):
                    return found
                self.forget()

    def check_missing(self) -> None:
        """Raise SchemaError if something is missing for the App's rule, and no instance lives."""
        with reaching(self._engine), connecting(self._engine) as conn:
            idle = not rules.living(conn, self.read())
        if idle:
            self._resolved(recorded=False)

    def check_fit(self) -> None:
        """Raise SchemaError if no instance can work with the tables; warn of what is odd."""
        if self._fit:
            return
        if self.read().unfit:  # perhaps fixed since it was read
            self.forget()
        for note in check_fit(self._engine, self.read()):
            log.warning("table %s: %s", self._spec.name, note)
        self._fit = True

    def check_slices(self, scope: str, role: str) -> None:
        """Raise SchemaError if the column of a scope's slices is missing; warn if its index is."""
        if not self.read().has(role):
            needs = apply.column_needed(self._engine, self.read().spec, role)
            raise SchemaError(f"{scope} needs {needs}")
        index = apply.slice_index(self._engine, self.read(), role)
        if index:
            text = "table %s: without an index %s also reads the messages of all others; run: %s"
            log.warning(text, self._spec.name, scope, index)

    def tell_of_indexes(self) -> None:
        """Warn if the index that the rule asks for is missing."""
        t = self.read()
        name = t.spec.index_name("object")
        if t.indexes is not None and name not in t.indexes:
            text = "index %s of table %s is missing: claims read finished messages; run %s"
            log.warning(text, name, t.spec.name, "`msgworker init-db`")

    def create(self) -> tuple[list[str], Rule | None]:
        """Create what is missing; its names, and the recorded rule if the App has another."""
        with reaching(self._engine):
            database = database_of(self._engine)
            spec = self._spec
            if not self._names_rule:
                spec = known_rule(self._engine, spec, database).to(spec)
            warn = partial(log.warning, "table %s: %s", spec.name)
            made, before = apply.create(self._engine, spec, database, warn)
            self.forget()
            if before == Rule.of(spec):
                return made, None
            again, _ = apply.create(self._engine, before.to(self._spec), database, lambda _: None)
            return made + again, before

    def upgrade(
        self, *, dry_run: bool, message_table: bool, on_step: Callable[[Step], object] | None
    ) -> Plan:
        """See `App.upgrade_schema`."""
        with reaching(self._engine):
            database = database_of(self._engine)
            spec = known_rule(self._engine, self._spec, database).to(self._spec)
            if dry_run:
                with connecting(self._engine) as conn:
                    return apply.plan(conn, spec, database, message_table=message_table)
            found = apply.upgrade(
                *(self._engine, spec, database), message_table=message_table, on_step=on_step
            )
        self.forget()
        return found

    def _resolved(self, *, recorded: bool = True, seconds: float | None = None) -> Tables:
        with reaching(self._engine):
            database = database_of(self._engine)
            found = resolve(
                *(self._engine, self._spec, database),
                recorded=recorded,
                with_headers=self._with_headers,
                seconds=seconds,
            )
        if self._with_headers and found.max_headers == 0 and not self._told_of_headers:
            self._told_of_headers = True
            text = "table %s has no column for headers: traces of producers end there; see %s"
            log.warning(text, found.spec.name, "`msgworker doctor`")
        return found


# --- Read them, and refuse what no instance can work with.


def missing_tables(engine: Engine, t: Tables) -> frozenset[str]:
    """Which of the tables of ops and of features are not in the database now."""
    with connecting(engine) as conn:
        return _missing(sa.inspect(conn), t, own_tables(t, Need.OPS, Need.FEATURE))


def _missing(inspector: Inspector, t: Tables, wanted: Iterable[sa.Table]) -> frozenset[str]:
    listed = names_there(inspector, t.spec.schema)
    tables = [x for x in wanted if x.name not in listed]
    return frozenset(x.name for x in tables if is_there(inspector, x) is False)


def _columns_there(inspector: Inspector, live: MessageTable, t: Tables) -> dict[str, list[Any]]:
    """The columns of the message table and of the tables that instances need beside it."""
    listed = names_there(inspector, live.schema)
    own = [table.name for table in own_tables(t, Need.RUN) if table.name in listed]
    return columns_there(inspector, [live.bare_name, *own], live.schema)


@contextmanager
def _within(conn: Connection, spec: MessageTable, seconds: float | None) -> Iterator[None]:
    try:
        with deadline(conn, seconds):
            yield
    except DBAPIError as error:
        if seconds is None or not is_overtime(error):
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
    describe.check_names(spec, database)
    with connecting(engine) as conn, _within(conn, spec, seconds):
        inspector = sa.inspect(conn)
        live = describe.find(inspector, spec)
        if live is None:
            raise SchemaError(describe.missing_table(conn, inspector, spec))
        spec, ideal = live, tables_for(live, database)
        there = _columns_there(inspector, live, ideal)
        columns = there[live.bare_name]
        indexes = database.indexes_of(conn, describe.bare(live), inspector)
        if why := requirements.lacks_where(live, indexes):
            raise SchemaError(f"table {live.name} cannot be used so: {why}")
        weak = describe.weak_storage(inspector, live)
        own, odd, without = _own_problems(inspector, ideal, there)
        missing = _missing(inspector, ideal, own_tables(ideal, Need.OPS, Need.FEATURE))
        as_is = read(conn, inspector, live, database, columns)
        ids = as_is.columns.get("msg_id")
        database = database.having(partitioned=as_is.partitions is not None)
        is_key = ids is not None and describe.is_primary(inspector, live, ids.name)
        twice = [] if is_key else requirements.of_ids(conn, inspector, as_is)
        if not own:
            rules.check_version(conn, ideal)
        own_policies = policies_of(conn, own_tables(ideal, Need.RUN))
        if recorded and not own:
            rule = rules.read(conn, tables_for(live, database)) or rules.assumed(live, indexes)
            spec = rule.to(live)
    kinds = describe.kinds_of(columns)
    describe.require_columns(spec, kinds)
    live_table = LiveTable(True, describe.by_name(columns), indexes)
    found = difference(tables_for(spec, database, kinds).message, live_table, database)
    t = tables_for(
        spec,
        database,
        kinds,
        found.sound(indexes),
        missing=missing,
        lacking=without,
        id_is_key=is_key,
        unfit=faults_text(requirements.needed(as_is)),
        own_policies=own_policies,
        no_null=no_null(as_is),
        **describe.facts(as_is, traced=with_headers),
    )
    asked_for = describe.asked_for(t.spec) - {*t.names, *as_is.columns}
    lacking = [name for role, name in t.spec.names().items() if role in asked_for]
    problems = [f"missing column {', '.join(lacking)}"] if lacking else []
    problems += [faults_text(wrong)] if (wrong := mistyped(as_is)) else []
    problems += weak
    if not problems and twice:
        problems.append(t.unfit or faults_text(twice))
    problems += [f"generated column {column.name} is missing" for column in found.hidden]
    problems += own + odd
    if problems:
        raise SchemaError(
            f"table {spec.name} cannot be used: {'; '.join(problems)}. "
            "Run App.create_schema(), `msgworker init-db` or `msgworker db upgrade`, or see "
            "`msgworker ddl --dialect NAME`"
        )
    return t


def no_null(live: Live) -> tuple[str, ...]:
    """What a message must have, since its column takes no NULL; no trigger may fill it either."""
    if any("INSERT" in when.upper() for _, when in live.triggers):
        return ()
    roles = ((role, live.columns.get(role)) for role in ("object_id", "payload"))
    found = {role: c for role, c in roles if c is not None and not (c.nullable or c.generated)}
    filled = live.database.null_is_default
    return tuple(role for role, c in found.items() if not (filled and c.default is not None))


def known_rule(engine: Engine, spec: MessageTable, database: Database) -> Rule:
    """The rule in force of a table that may not be there yet; then that of `spec`."""
    with connecting(engine) as conn:
        return rule_there(conn, spec, database)


def rule_there(conn: Connection, spec: MessageTable, database: Database) -> Rule:
    """The same, as a connection sees it."""
    inspector = sa.inspect(conn)
    live = describe.find(inspector, spec)
    if live is None:
        return Rule.of(spec)
    t = tables_for(live, database)
    indexes = database.indexes_of(conn, t.message, inspector)
    if _own_problems(inspector, t, _columns_there(inspector, live, t))[0]:
        return rules.assumed(live, indexes)
    return rules.read(conn, t) or rules.assumed(live, indexes)


def _own_problems(
    inspector: Inspector, t: Tables, there_are: Mapping[str, list[Any]]
) -> tuple[list[str], list[str], frozenset[str]]:
    """What is missing of the tables that instances need beside the message table, what of them does
    not take what is written, and the columns that they can do without. there_are: columns of tables
    that are listed."""
    problems, odd, without = [], [], set()
    for table in own_tables(t, Need.RUN):
        known = there_are.get(table.name)
        live = LiveTable(True, describe.by_name(known or ()))
        if known is None:
            live = describe.look(inspector, table)
        found = difference(table, live, t.database)
        if not found.exists:
            why = "is missing" if found.exists is False else "may not be read by this login"
            problems.append(f"table {table.name} {why}")
        without |= {f"{table.name}.{column.name}" for column in found.later}
        odd += [why for _, why in found.odd]
        if found.required:
            lacking = ", ".join(column.name for column in found.required)
            problems.append(f"table {table.name} has no column {lacking}")
    return problems, odd, frozenset(without)


def policies_changed(conn: Connection, t: Tables) -> bool:
    """Whether row-level security decides otherwise than when the tables were read."""
    found = policies_of(conn, [t.message])
    now = [(one.names, one.may) for one in found]
    return now != ([] if t.policies is None else [t.policies])


def check_fit(engine: Engine, t: Tables) -> list[str]:
    """Raise SchemaError if no instance may use the table: a message would be lost or stranded, or
    the guard index is missing, which enforces exclusion. Returns what is wrong besides."""
    if t.unfit:
        raise SchemaError(f"table {t.spec.name} cannot be used: {t.unfit}")
    hidden = list(requirements.of_own_policies(t.own_policies))
    if stop := [fault for fault in hidden if fault.needed]:
        raise SchemaError(f"table {t.spec.name} cannot be used: {faults_text(stop)}")
    with connecting(engine) as conn:
        there = t.database.indexes_of(conn, t.message)
        if why := of_guard(t, there):
            run = "Run `msgworker init-db`, or see `msgworker doctor`"
            if t.guard_name.lower() in there:  # which no creation changes
                run = "`msgworker doctor --sql` prints how to fix it"
            raise SchemaError(
                f"table {t.spec.name}: the guard index {t.guard_name} {why}: two messages of one "
                f"object could run at once. {run}"
            )
        notes = [fault.text for fault in hidden] + _odd_ids(conn, t)
        notes += [said] if (said := rules.legacy(conn, t)) else []
        if t.doubtful:  # else nothing is written at a start
            as_is = read(conn, sa.inspect(conn), t.spec, t.database)
            notes += [f.text for f in requirements.faults(as_is) if f.check == "rights"]
    if t.doubtful:
        requirements.refuse_at_trial(engine, as_is)
    return notes


def _odd_ids(conn: Connection, t: Tables) -> list[str]:
    """Why new messages would run before those that wait: their sequence was left behind, as where
    rows are copied with their ids."""
    ids = t.message.c[t.names["msg_id"]]
    source = id_source(conn, t.message, ids.name)
    highest = None if source is None else requirements.highest_id(conn, ids)
    found = "" if source is None or highest is None else requirements.behind(source, highest)
    return [f"{found}; `msgworker doctor --sql` prints how to fix it"] if found else []
