"""The tables of one App as it last read them: their structure, triggers and policies, the rule that
is recorded; read again where they may have changed."""

from __future__ import annotations

import time
from collections.abc import Callable

from sqlalchemy import Engine

from msgworker import db
from msgworker.errors import SchemaError
from msgworker.logs import logger
from msgworker.processlock import ProcessLock
from msgworker.schema import additions, create, upgrade
from msgworker.schema import rule as rules
from msgworker.schema.rule import Rule
from msgworker.schema.upgrade import Plan, Step
from msgworker.table import MessageTable, Tables

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
        with self._lock:
            if self._tables is None:
                self._tables = self._resolved(seconds=seconds)
                self._rule_read_at = time.monotonic()
            return self._tables

    def forget(self) -> None:
        """Have them read again."""
        self._tables = None

    def now(self) -> Tables:
        """The tables with a freshly read rule, for long-lived callers."""
        tables = self.read()
        if time.monotonic() - self._rule_read_at < RULE_SECONDS:
            return tables
        with db.reaching(self._engine), db.connecting(self._engine) as conn:
            found = rules.read(conn, tables)
        self._rule_read_at = time.monotonic()
        if found not in (None, Rule.of(tables.spec)):
            self.forget()
        return self.checked(HOOKS_SECONDS)

    def checked(self, age: float = 0.0) -> Tables:
        """The tables, read again where triggers or policies have changed since they were read. age:
        the seconds for which that is known."""
        tables = self.read()
        if time.monotonic() - self._hooks_read_at < age:
            return tables
        self._hooks_read_at = time.monotonic()
        with db.reaching(self._engine):
            changed = create.hooks_changed(self._engine, tables)
        if changed:
            self._tables, self._fit = None, False
        return self.read()

    def recorded_rule(self) -> Rule:
        """The rule in force, recorded where none was; `read` has the same."""
        with db.reaching(self._engine):
            while True:
                found = create.record_rule(self._engine, self.read())
                if found == Rule.of(self.read().spec):
                    return found
                self.forget()

    def check_missing(self) -> None:
        """Raise SchemaError if something is missing for the rule of the App, unless an instance
        lives, beside which the rule stays."""
        with db.connecting(self._engine) as conn:
            idle = not rules.living(conn, self.read())
        if idle:
            self._resolved(recorded=False)

    def check_fit(self) -> None:
        """Raise SchemaError if no instance can work with the tables; warn of what is odd."""
        if self._fit:
            return
        if self.read().unfit:  # perhaps fixed since it was read
            self.forget()
        for note in create.check_fit(self._engine, self.read()):
            log.warning("table %s: %s", self._spec.name, note)
        self._fit = True

    def check_slices(self, scope: str, role: str) -> None:
        """Raise SchemaError if the column by which a scope slices the table is missing; warn if its
        index is."""
        if not self.read().has(role):
            add = additions.adding_column(self._engine, self._spec, role)
            raise SchemaError(f"{scope} needs a column in table {self._spec.name}. Add it: {add}")
        index = additions.slice_index(self._engine, self.read(), role)
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
        """Create what is missing; the names of it, and the recorded rule if the App has another;
        see `App.create_schema`."""
        database = db.database_of(self._engine)
        spec = self._spec
        if not self._names_rule:
            spec = create.known_rule(self._engine, spec, database).to(spec)
        made = create.create(
            self._engine,
            spec,
            database,
            lambda text: log.warning("table %s: %s", spec.name, text),
        )
        self.forget()
        before = create.recorded_rule(self._engine, spec, database)
        if before == Rule.of(spec):
            return made, None
        return made + create.create(self._engine, before.to(self._spec), database), before

    def upgrade(
        self,
        *,
        dry_run: bool,
        message_table: bool,
        on_step: Callable[[Step], object] | None,
    ) -> Plan:
        """See `App.upgrade_schema`."""
        with db.reaching(self._engine):
            database = db.database_of(self._engine)
            spec = create.known_rule(self._engine, self._spec, database).to(self._spec)
            if dry_run:
                with db.connecting(self._engine) as conn:
                    return upgrade.plan(conn, spec, database, message_table=message_table)
            found = upgrade.run(
                *(self._engine, spec, database), message_table=message_table, on_step=on_step
            )
        self.forget()
        return found

    def _resolved(self, *, recorded: bool = True, seconds: float | None = None) -> Tables:
        with db.reaching(self._engine):
            database = db.database_of(self._engine)
            found = create.resolve(
                *(self._engine, self._spec, database),
                recorded=recorded,
                with_headers=self._with_headers,
                seconds=seconds,
            )
        if self._with_headers and found.header_room == 0 and not self._told_of_headers:
            self._told_of_headers = True
            text = "table %s has no column for headers: traces of producers end there; see %s"
            log.warning(text, found.spec.name, "`msgworker doctor`")
        return found
