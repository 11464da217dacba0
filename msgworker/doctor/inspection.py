"""What the checks share: the table as it is beside the table as it should be, and findings."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Engine, Inspector
from sqlalchemy.schema import CreateIndex

from msgworker import db
from msgworker.db import CreateTable, Database
from msgworker.errors import SchemaError
from msgworker.schedules import Schedule
from msgworker.schema import apply, describe, known, requirements
from msgworker.schema.describe import Live
from msgworker.schema.difference import Difference, Fault, difference, ordered_indexes, read
from msgworker.schema.rule import Rule
from msgworker.table import REQUIRED, MessageTable, Tables, tables_for

# --- What a check has found.


class Severity(enum.StrEnum):
    """needed: msgworker does not work, or breaks a promise. advised: it works, with less.
    fine: nothing to do."""

    NEEDED = "needed"
    ADVISED = "advised"
    FINE = "fine"


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding. check: what was looked at. fix: statements, in order; () = nothing to run."""

    check: str
    severity: Severity
    text: str
    fix: tuple[str, ...] = ()
    detail: str | None = None

    @property
    def mend(self) -> tuple[str, ...]:
        """The name of fix until 0.2; it goes in 1.0."""
        return self.fix


def needed(check: str, text: str, *fix: str, detail: str | None = None) -> Finding:
    return Finding(check, Severity.NEEDED, text, fix, detail)


def advised(check: str, text: str, *fix: str, detail: str | None = None) -> Finding:
    return Finding(check, Severity.ADVISED, text, fix, detail)


def found_by(fault: Fault) -> Finding:
    """A violated requirement as a finding."""
    made = needed if fault.needed else advised
    return made(fault.check, fault.text, *fault.fix, detail=fault.detail)


def fine(check: str, text: str, *, detail: str | None = None) -> Finding:
    return Finding(check, Severity.FINE, text, (), detail)


# --- The table as it is, beside the table as it should be.


@dataclass(frozen=True, slots=True)
class Patient:
    """What the checks look at.

    ideal: all columns that the spec names. least: those that are there, or must be. live: those
    that are there; None if one of the four that must be is not, or if no statement makes the table
    fit. columns: as the database describes them, by lower name; as_is: the same with CHECKs
    and triggers, None where the table is not. spec: with the rule that is in force; asked: the
    App's, None where it says none. no_rule: what is wrong with the recorded one.
    declared: the schedules of the App; None if it says nothing of that. traced: the App writes
    headers. limit: the most seconds of a statement, None = as long as it takes.
    """

    engine: Engine
    conn: Connection
    inspector: Inspector
    database: Database
    spec: MessageTable
    exists: bool
    columns: dict[str, Any]
    ideal: Tables
    least: Tables
    live: Tables | None
    as_is: Live | None = None
    asked: Rule | None = None
    no_rule: str | None = None
    declared: Sequence[Schedule] | None = None
    traced: bool = False
    limit: float | None = None

    @contextmanager
    def another(self) -> Iterator[Connection]:
        """A connection as handlers have it, beside `conn`."""
        conn = db.connected(self.engine)
        with db.returned(conn):
            if self.limit is None:
                yield conn
                return
            with db.deadline(conn, self.limit):
                try:
                    yield conn
                finally:
                    if not conn.invalidated:
                        conn.rollback()  # nothing can be set in a transaction that has failed

    def has(self, role: str) -> bool:
        return self.ideal.names.get(role, "").lower() in self.columns

    def column(self, role: str) -> Any:
        """The description of a role's column, None if it is not there."""
        return self.columns.get(self.ideal.names.get(role, "").lower())

    def lacking(self) -> list[str]:
        """The roles that have a name and no column."""
        return [role for role in self.ideal.names if not self.has(role)]

    def table_name(self, table: sa.Table) -> str:
        return self.conn.dialect.identifier_preparer.format_table(table)

    def at(self, table: sa.Table, name: str) -> db.At:
        """A column of it, in statements."""
        return db.At(self.conn.dialect, self.table_name(table), name)

    def sql(self, statement: Any) -> str:
        """DDL as text, in one line per statement."""
        return apply.one_line(self.conn.dialect, str(statement.compile(dialect=self.conn.dialect)))

    def written(self, change: Any) -> str:
        """An UPDATE as text, with its values."""
        text = change.compile(dialect=self.conn.dialect, compile_kwargs={"literal_binds": True})
        return str(text).replace("\n", " ").replace("%%", "%")

    def create(self, table: sa.Table) -> list[str]:
        """The statements that create one of our tables with its indexes."""
        made = [CreateIndex(index) for index in ordered_indexes(table)]
        return [self.sql(statement) for statement in (CreateTable(table), *made)]

    def add(self, table: sa.Table, *columns: sa.Column[Any]) -> str:
        return apply.one_line(
            self.conn.dialect, apply.add_columns(self.conn.dialect, table, columns)
        )

    def add_role(self, role: str) -> list[str]:
        """The statements that add the column of a role to the message table."""
        table = self.ideal.message
        column = table.c[self.ideal.names[role]]
        if role != "created_at":
            return [self.add(table, column)]
        # Rows that are there keep NULL: with the default they would all look as young as this.
        made = apply.add_with_default_for_new(self.conn.dialect, table, column)
        return [apply.one_line(self.conn.dialect, statement) for statement in made]

    def lacks(self, table: sa.Table) -> Difference:
        """What one of our tables, or the message table, lacks."""
        return difference(table, describe.look(self.inspector, table), self.database)


def meet(
    engine: Engine,
    conn: Connection,
    spec: MessageTable,
    database: Database,
    asked: Rule | None = None,
) -> Patient:
    """Look at the live table; raises SchemaError only if its schema cannot be looked at."""
    inspector = sa.inspect(conn)
    live = describe.find(inspector, spec)
    if live is None:
        ideal = tables_for(spec, database)
        return Patient(engine, conn, inspector, database, spec, False, {}, ideal, ideal, None)
    spec, database = live, describe.for_table(inspector, live, database)
    no_rule = None
    try:
        spec = known.known_rule(engine, spec, database).to(spec)
    except SchemaError as error:
        no_rule = str(error)
    described = inspector.get_columns(spec.bare_name, schema=spec.schema)
    kinds, columns = describe.kinds_of(described), describe.by_name(described)
    lacking = [n for role, n in spec.names().items() if n.lower() not in columns]
    ideal = _with(spec, database, kinds, lacking)
    must = {spec.names()[role] for role in describe.asked_for(spec)}
    least = _with(spec, database, kinds, [n for n in lacking if n in must])
    usable = None
    as_is = read(conn, inspector, spec, database, described)
    lacks = any(spec.names()[role] in lacking for role in REQUIRED)
    if not lacks and not requirements.only_anew(as_is):
        there = describe.look(inspector, describe.bare(spec), described)
        sound = difference(least.message, there, database).sound(there.indexes)
        usable = tables_for(spec, database, kinds, sound)
    shape = (columns, ideal, least, usable, as_is)
    return Patient(engine, conn, inspector, database, spec, True, *shape, asked, no_rule)


def _with(
    spec: MessageTable, database: Database, kinds: dict[str, Any], lacking: list[str]
) -> Tables:
    """The tables with these columns added, as our own DDL would make them."""
    plain = tables_for(spec, database).message.c
    return tables_for(spec, database, kinds | {name: plain[name].type for name in lacking})
