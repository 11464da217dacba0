"""Findings, and what the checks look at; the version, tables, columns and indexes, against what is
needed."""

from __future__ import annotations

import enum
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Engine, Inspector
from sqlalchemy.exc import DBAPIError
from sqlalchemy.schema import CreateIndex

from msgworker.commands import proposed
from msgworker.counted import plural
from msgworker.db import catalogue
from msgworker.db.catalogue import name_holder, row_estimate
from msgworker.db.connections import connected, deadline, returned
from msgworker.db.database import At, Database, printing
from msgworker.db.errors import raise_lost, reason_of
from msgworker.db.types import CreateTable
from msgworker.errors import SchemaError
from msgworker.schedules import Schedule
from msgworker.schema import apply, describe, difference, known
from msgworker.schema import requirements as schema
from msgworker.schema.describe import Live
from msgworker.schema.repairs import Fault
from msgworker.schema.requirements import lacks_where, only_anew, other_guards
from msgworker.schema.rule import Rule
from msgworker.store.done import ids_given_again
from msgworker.table.build import NEWEST, OWN, own_tables, tables_for
from msgworker.table.columns import ADDED, JOB, OWN_PREFIX, REQUIRED, ROLES, SLICES, UNIQUE, URGENT
from msgworker.table.spec import MessageTable, where_problem
from msgworker.table.tables import Need, Tables

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
        text = "Finding.mend is now Finding.fix; mend goes in 1.0"
        warnings.warn(text, DeprecationWarning, stacklevel=2)
        return self.fix


def needed(check: str, text: str, *fix: str, detail: str | None = None) -> Finding:
    return Finding(check, Severity.NEEDED, proposed(text), fix, detail)


def advised(check: str, text: str, *fix: str, detail: str | None = None) -> Finding:
    return Finding(check, Severity.ADVISED, proposed(text), fix, detail)


def found_by(faults: Iterable[Fault]) -> list[Finding]:
    """Violated requirements as findings."""
    made = ((needed if fault.needed else advised, fault) for fault in faults)
    return [make(one.check, one.text, *one.fix, detail=one.detail) for make, one in made]


def fine(check: str, text: str, *, detail: str | None = None) -> Finding:
    return Finding(check, Severity.FINE, text, (), detail)


# --- The table as it is, beside the table as it should be.


@dataclass(frozen=True, slots=True)
class Subject:
    """What the checks look at.

    ideal: all columns that the spec names. least: those that are there, or must be. live: those
    that are there; None if one of the four that must be is not, or if no statement makes the table
    fit. columns: as the database describes them, by lower name; as_is: the same with CHECKs
    and triggers, None where the table is not. spec: with the rule that is in force; asked: the
    App's, None where it says none. no_rule: what is wrong with the recorded one.
    declared: the schedules of the App; None if it says nothing of that. wants: the rights on the
    messages that the App needs besides, and for what. traced: it writes headers. limit: the most
    seconds of a statement, None = as long as it takes. lacks_where: why it
    is not looked at without a `where`, see `requirements`; guards: those of another one.
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
    wants: Mapping[str, str] = field(default_factory=dict)
    traced: bool = False
    limit: float | None = None
    lacks_where: str = ""
    guards: Sequence[str] = ()
    looked_at: dict[sa.Table, difference.Difference] = field(default_factory=dict)

    @contextmanager
    def another(self) -> Iterator[Connection]:
        """A connection as handlers have it, beside `conn`."""
        conn = connected(self.engine)
        with returned(conn), deadline(conn, self.limit):
            try:
                yield conn
            finally:
                if self.limit is not None and not conn.invalidated:
                    conn.rollback()  # nothing can be set in a transaction that has failed

    @property
    def sql_dialect(self) -> sa.Dialect:
        """In which statements are printed."""
        return printing(self.conn.dialect)

    def is_there(self, table: sa.Table) -> bool:
        """Whether a table is there, as far as this login can see."""
        return bool(catalogue.is_there(self.inspector, table))

    def has(self, role: str) -> bool:
        return self.ideal.names.get(role, "").lower() in self.columns

    def column(self, role: str) -> Any:
        """The description of a role's column, None if it is not there."""
        return self.columns.get(self.ideal.names.get(role, "").lower())

    def lacking(self) -> list[str]:
        """The roles that have a name and no column."""
        return [role for role in self.ideal.names if not self.has(role)]

    def table_name(self, table: sa.Table) -> str:
        return self.sql_dialect.identifier_preparer.format_table(table)

    def at(self, table: sa.Table, name: str) -> At:
        """A column of it, in statements."""
        return At(self.sql_dialect, self.table_name(table), name)

    def sql(self, statement: Any) -> str:
        """DDL as text."""
        return apply.text_of(self.sql_dialect, statement)

    def written(self, change: Any) -> str:
        """An UPDATE as text, with its values."""
        text = change.compile(dialect=self.sql_dialect, compile_kwargs={"literal_binds": True})
        return str(text).replace("\n", " ").replace("%%", "%")

    def create(self, table: sa.Table) -> list[str]:
        """The statements that create one of our tables with its indexes."""
        made = [CreateIndex(index) for index in difference.ordered_indexes(table)]
        return [self.sql(statement) for statement in (CreateTable(table), *made)]

    def add(self, table: sa.Table, *columns: sa.Column[Any]) -> str:
        return apply.add_columns(self.sql_dialect, table, columns)

    def add_role(self, role: str) -> list[str]:
        """The statements that add the column of a role to the message table."""
        table = self.ideal.message
        column = table.c[self.ideal.names[role]]
        if role != "created_at":
            return [self.add(table, column)]
        # Rows that are there keep NULL: with the default they would all look as young as this.
        return apply.add_with_default_for_new(self.sql_dialect, table, column)

    def lacks(self, table: sa.Table) -> difference.Difference:
        """What one of our tables, or the message table, lacks; looked at once."""
        if table not in self.looked_at:
            there = describe.look(self.inspector, table)
            self.looked_at[table] = difference.difference(table, there, self.database)
        return self.looked_at[table]


def subject_of(
    engine: Engine, conn: Connection, spec: MessageTable, database: Database, asked: Rule | None
) -> Subject:
    """Look at the live table; raises SchemaError only if its schema cannot be looked at."""
    inspector = sa.inspect(conn)
    live = describe.find(inspector, spec)
    if live is None:
        ideal = tables_for(spec, database)
        return Subject(engine, conn, inspector, database, spec, False, {}, ideal, ideal, None)
    spec, database = live, describe.for_table(inspector, live, database)
    no_rule = None
    try:
        spec = known.known_rule(engine, spec, database).to(spec)
    except SchemaError as error:
        no_rule = str(error)
    except DBAPIError as error:
        raise_lost(error)
        no_rule = f"the rule of the table cannot be read: {reason_of(error)}"
    described = catalogue.columns_of(inspector, spec.bare_name, spec.schema)
    kinds, columns = describe.kinds_of(described), describe.by_name(described)
    lacking = [n for role, n in spec.names().items() if n.lower() not in columns]
    ideal = _with(spec, database, kinds, lacking)
    must = {spec.names()[role] for role in describe.asked_for(spec)}
    least = _with(spec, database, kinds, [n for n in lacking if n in must])
    usable = None
    as_is = difference.read(conn, inspector, spec, database, described)
    lacks = any(spec.names()[role] in lacking for role in REQUIRED)
    lacks = lacks or bool(where_problem(spec.where, kinds))
    if not lacks and not only_anew(as_is):
        there = describe.look(inspector, describe.bare(spec), described)
        sound = difference.difference(least.message, there, database).sound(there.indexes)
        usable = tables_for(spec, database, kinds, sound)
    shape = (columns, ideal, least, usable, as_is)
    indexes = database.indexes_of(conn, describe.bare(spec), inspector)
    return Subject(
        *(engine, conn, inspector, database, spec, True, *shape, asked, no_rule),
        lacks_where=lacks_where(spec, indexes),
        guards=other_guards(spec, indexes),
    )


def _with(
    spec: MessageTable, database: Database, kinds: dict[str, Any], lacking: list[str]
) -> Tables:
    """The tables with these columns added, as our own DDL would make them."""
    plain = tables_for(spec, database).message.c
    return tables_for(spec, database, kinds | {name: plain[name].type for name in lacking})


# --- The version of the schema, against the one of this package.

UPGRADE = "run `msgworker db upgrade`"


def version(p: Subject) -> list[Finding]:
    """Other checks have named what is missing; this one says how to get all of it."""
    if not p.exists or p.live is None:
        return []
    try:
        plan = apply.plan(p.conn, p.spec, p.database, inspector=p.inspector)
    except SchemaError as error:
        return [needed("version", str(error))] if "version" in str(error) else []
    if plan.found < NEWEST:
        text = f"the schema is version {plan.found}, this package wants {NEWEST}: {UPGRADE}"
        return [advised("version", text)]
    text = f"the schema is version {NEWEST}, as this package wants"
    if plan.recorded is not None and plan.recorded > NEWEST:
        text = (
            f"the schema is version {plan.recorded}, of a later package, on which this one "
            f"({NEWEST}) works"
        )
    return [fine("version", text)]


# --- Checks of tables and columns: which rows are messages is known; they exist, have suitable
# types, and are filled.


def tables(p: Subject) -> Iterator[Finding]:
    """The message table and those beside it."""
    if not p.exists:
        text = f"table {p.spec.name} does not exist"
        near = describe.near_names(p.inspector, p.spec)
        text += f"; near names: {', '.join(near)}" if near else ""
        other = describe.elsewhere(p.conn, p.spec)
        text += f"; {other}" if other else ""
        all_of_ours = (p.ideal.message, *own_tables(p.ideal))
        if held := "".join(_held(p, one) for one in all_of_ours):
            yield needed("tables", text + held)
            return
        theirs = other and not p.spec.is_default  # that one has the messages
        fix = [] if theirs else p.create(p.ideal.message)
        beside = own_tables(p.ideal)
        if not theirs and not any(map(p.is_there, beside)):
            fix += [statement for table in beside for statement in p.create(table)]
            text += f", nor do the {len(beside)} tables beside it: run `msgworker init-db`"
            yield needed("tables", text, *fix)
            return
        yield needed("tables", text, *fix)
    else:
        count = row_estimate(p.conn, p.ideal.message)
        size = "" if count is None else f", about {plural(count, 'row')}"
        yield fine("tables", f"table {p.spec.name} is there{size}")
    for own in OWN:
        table = own.of(p.ideal)
        make, cost = (advised, f": {own.without}") if own.without else (needed, "")
        lacks = p.lacks(table)
        if lacks.exists is False and own.need is not Need.OPTIONAL:
            held = _held(p, table)
            text = f"table {table.name} is missing{cost}{held}"
            yield make("tables", text, *([] if held else p.create(table)))
        if lacks.required:
            lacking = ", ".join(column.name for column in lacks.required)
            text = f"table {table.name} has no column {lacking}{cost}"
            yield make("tables", text, *(p.add(table, c) for c in lacks.required))
        for column in lacks.later:
            text = f"table {table.name} has no column {column.name}: {column.info[ADDED]}"
            yield advised("tables", text, p.add(table, column))
        for column, text in lacks.odd:
            change = p.database.alter_type(p.at(table, column.name), column)
            yield make("types", text, *change)


def _held(p: Subject, table: sa.Table) -> str:
    """What has the name of a missing table; "" if nothing."""
    holder = "" if p.is_there(table) else name_holder(p.conn, table, table.name)
    return f". {table.name} is the name of {holder}: rename that" if holder else ""


def storage(p: Subject) -> Iterator[Finding]:
    """A storage engine with transactions."""
    for table in (p.ideal.message, *own_tables(p.ideal)):
        if not p.is_there(table):
            continue
        kept = p.database.weak_storage(p.inspector, table.name, table.schema)
        if kept:
            text = f"table {table.name} is kept in {kept}, which has no transactions"
            yield needed("storage", text, p.database.strong_storage(p.table_name(table)))


def missing_columns(p: Subject) -> Iterator[Finding]:
    """Columns that have a name and are not there."""
    unnamed = [role for role in p.lacking() if role in REQUIRED]
    if unnamed:  # what else is missing can be found when these are known
        there = [str(one["name"]) for one in p.columns.values()]
        yield needed("columns", describe.unnamed(p.spec, unnamed, there))
        return
    kinds = {name: column["type"] for name, column in p.columns.items()}
    if p.exists and (why := where_problem(p.spec.where, kinds)):
        yield needed("columns", f"table {p.spec.name} {why}")
        return
    asked_for = describe.asked_for(p.spec)
    moves = p.as_is is not None and only_anew(p.as_is)  # nothing is to be added to this one
    for role in p.lacking():
        column = p.ideal.message.c[p.ideal.names[role]]
        if role in asked_for:
            text = f"column {column.name} ({role}) is missing"
            yield needed("columns", text, *([] if moves else p.add_role(role)))
        elif ROLES[role].without:
            text = f"column {column.name} is missing: {ROLES[role].without}"
            fix = p.add_role(role)
            if role in ("topic", "payload", "created_at"):  # a new one would be empty beside theirs
                used = {name.lower() for name in p.ideal.names.values()}
                there = [str(one["name"]) for one in p.columns.values()]
                free = [name for name in there if name.lower() not in used]
                text += (
                    f". If the table has it under another name, name that: MessageTable({role}=...)"
                    f"; columns without a name here: {', '.join(free) or 'none'}"
                )
            if ROLES[role].index:
                index = p.spec.index_name(ROLES[role].index)
                on = ROLES[role].hidden
                hidden = [c for c in p.ideal.message.c if on and c.name.startswith(on)]
                if hidden:
                    fix = [p.add(p.ideal.message, column, *hidden)]
                fix += [p.sql(CreateIndex(i)) for i in p.ideal.message.indexes if i.name == index]
            yield advised("columns", text, *([] if moves else fix))


def requirements(p: Subject) -> list[Finding]:
    """What messages need in order to be neither lost nor stranded; also asked at every start."""
    return [] if p.as_is is None else found_by(schema.faults(p.as_is))


def tried(p: Subject) -> list[Finding]:
    """A message is sent, claimed, settled and purged, and all of it is rolled back."""
    if p.live is None or p.as_is is None or schema.needed(p.as_is):
        return []  # what is reported already would come again, in words of the database
    with p.another() as conn:
        found = found_by(schema.trial(conn, p.live, p.as_is))
    return found or [fine("trial", "a message can be sent, claimed, settled and purged: tried")]


def key(p: Subject) -> list[Finding]:
    """msg_id is unique: rows are updated by it. And no id comes twice."""
    if p.as_is is None or p.live is None:
        return []
    found = found_by(schema.of_ids(p.conn, p.inspector, p.as_is))
    ids = p.as_is.columns.get("msg_id")
    if ids is not None and ids.counts and p.as_is.reuses_ids:
        deletes = "DELETE" in p.wants
        text = ids_given_again(p.spec.name, ids.name, deletes=deletes)
        found.append((needed if deletes else advised)("columns", text))
    return found


def unfilled(p: Subject) -> list[Finding]:
    """Columns that `send` leaves out although they need a value."""
    names = None if p.live is None or p.as_is is None else describe.unfilled(p.as_is)
    if not names:
        return []
    text = (
        f"App.send cannot insert: it does not fill {', '.join(names)}, NOT NULL without a default"
    )
    return [advised("columns", text)]


# --- The guard, the indexes of unfinished and failed rows, and what they are built from.

KEY = "key"
OPEN = "open"
WHY = {
    "guard": "two messages of one object could run at once",
    "id": "a message is looked for by its id among all",
    "object": "claims read finished messages",
    "oldest": "claims read finished messages",
    "due": "retries and delayed messages are looked for among all",
    "failed": "failed messages are looked for among all",
    "urgent": "priorities do nothing: messages are claimed by age",
    "unique": "unique keys do nothing: App.send refuses them",
    KEY: "two writes of the API with one Idempotency-Key could both be done",
    JOB: "no job can be opened, and the messages of one are looked for among all",
    OPEN: "open jobs are looked for among all",
    "group": "tries of a kind are looked for among all",
    "owner": "an owner's locks are looked for among all",
    "shard": "a scope over shards reads the messages of all others, too",
    "flag": "a scope of one instance reads the messages of all others, too",
}


def partitions(p: Subject) -> Iterator[Finding]:
    """What a table with partitions costs, and what no index there enforces."""
    parts = None if p.as_is is None else p.as_is.partitions
    ids = p.column("msg_id")
    if not parts or ids is None:
        return
    shown = ", ".join(sorted(parts)[:3]) + (", ..." if len(parts) > 3 else "")
    text = (
        f"{plural(len(parts), 'partition')} by the hash of objects ({shown}): messages are handled "
        "at 0.6 to 0.9 of the speed of one table; no index keeps ids unique, which the identity "
        "does, and none can keep unique keys: App.send refuses them "
        "(docs/project/decisions/013-partitions.md)"
    )
    yield fine("partitions", text)
    if not (ids.get("identity") or {}).get("always"):
        quoted = p.sql_dialect.identifier_preparer.quote(ids["name"])
        fix = f"ALTER TABLE {p.table_name(p.ideal.message)} ALTER COLUMN {quoted} SET GENERATED "
        text = (
            f"an INSERT may bring an id of its own for {ids['name']}, and nothing keeps it unique"
        )
        known = ids.get("identity") is not None  # a serial is made anew
        yield advised("partitions", text, *([f"{fix}ALWAYS"] if known else []))


def _takes_none(p: Subject) -> bool:
    """Whether no index of ours can be on the table as it is, which another check says."""
    return p.as_is is not None and not {*p.as_is.layouts} <= {"shared"}


def columns(p: Subject) -> list[Finding]:
    """Hidden columns that the indexes are on."""
    if p.live is None or _takes_none(p):  # they are on columns that are not there, or cannot be
        return []
    lacking = p.lacks(p.least.message).hidden
    if not lacking:
        return []
    names = ", ".join(column.name for column in lacking)
    text = f"generated columns that indexes are on are missing: {names}"
    return [needed("columns", text, p.add(p.least.message, *lacking), detail=_copies(p))]


def not_stored(p: Subject) -> list[Finding]:
    """Hidden columns that are VIRTUAL but should be stored."""
    if not p.database.stored_columns:
        return []
    found = []
    for column in p.least.message.c:
        computed = (p.columns.get(column.name) or {}).get("computed") or {"persisted": True}
        if difference.is_generated(column) and not computed.get("persisted"):
            found.append(column)
    if not found:
        return []
    names = ", ".join(column.name for column in found)
    text = f"columns {names} are VIRTUAL: a crash of the server may leave their indexes corrupted"
    return [advised("columns", text, _make_stored(p, found), detail=_copies(p))]


def _copies(p: Subject) -> str | None:
    return "the table is copied; writers wait meanwhile" if p.database.stored_columns else None


def _make_stored(p: Subject, columns: list[sa.Column[Any]]) -> str:
    """One statement, so that the guard is never away."""
    table = p.least.message
    there = p.database.indexes_of(p.conn, table, p.inspector)
    on_them = [
        index
        for index in difference.ordered_indexes(table)
        if str(index.name).lower() in there and any(c.name in index.columns for c in columns)
    ]
    quote = p.sql_dialect.identifier_preparer.quote
    parts = [f"DROP INDEX {quote(str(index.name))}" for index in on_them]
    parts += [f"DROP COLUMN {quote(column.name)}" for column in columns]
    for index in on_them:
        made = p.sql(CreateIndex(index)).removeprefix("CREATE ")
        parts.append("ADD " + made.replace(f" ON {p.table_name(table)}", "", 1))
    adding = p.add(table, *columns)
    return ", ".join([adding, *parts])


def other_collation(p: Subject) -> list[Finding]:
    """Hidden columns that compare ids in another way than the column of the ids."""
    if p.live is None or p.live.key_collation is None:
        return []
    kinds = {
        c["name"]: c["type"] for name, c in p.columns.items() if not name.startswith(OWN_PREFIX)
    }
    least = replace(p, least=tables_for(p.spec, p.database, kinds))
    ours = [c for c in least.least.message.c if difference.is_generated(c) and c.name in p.columns]
    text = (
        f"ids are told apart by {p.live.key_collation} here, while the database takes more of them "
        "for one: such objects (upper and lower case, say) run side by side"
    )
    return [advised("columns", text, _make_stored(least, ours), detail=_copies(p))]


def indexes(p: Subject) -> list[Finding]:
    """Every index of ours, on every table of ours that is there; the guard must guard."""
    if p.live is None:  # what they are on is not there
        return []
    found: list[Finding] = []
    for table in (p.least.message, *own_tables(p.least)):
        if table is p.least.message and _takes_none(p):
            continue
        lacks = p.lacks(table)
        for index in lacks.indexes:
            of = difference.suffix(index)
            text = f"index {index.name} is missing: {WHY[of]}"
            if of == "guard" and p.guards:
                text += f" (that of another where= is there: {', '.join(p.guards)})"
            make = advised if of in (*SLICES.values(), URGENT, UNIQUE, KEY, JOB, OPEN) else needed
            if holder := name_holder(p.conn, table, str(index.name)):
                text += f". Its name is that of {holder}: rename that, then make the index"
                found.append(make("indexes", text))
                continue
            found.append(make("indexes", text, p.sql(CreateIndex(index))))
        for index in lacks.unfinished:
            text = f"index {index.name} was not finished: it promises nothing"
            drop = p.database.drop_unfinished(p.sql_dialect, table, str(index.name))
            found.append(needed("indexes", text, drop, p.sql(CreateIndex(index))))
        for index, why in lacks.other:
            text = f"index {index.name} {why}: {WHY[difference.suffix(index)]}"
            name = str(index.name)
            away = p.database.drop_index(p.sql_dialect, name, table)
            if index in lacks.theirs:
                text += ". It is not made for msgworker"
                away = p.database.rename_index(p.sql_dialect, name, f"x_{name}", table)
            fix = [away, p.sql(CreateIndex(index))] if away else []
            text += "" if away else ": make it under another name, then drop this one"
            make = needed if difference.suffix(index) == "guard" else advised
            found.append(make("indexes", text, *fix))
        anew = dict.fromkeys(
            lacks.unsorted,
            "is in another order than it was made in, as Alembic's batch mode leaves it: what "
            "looks by that order sorts all of its messages each time",
        ) | dict.fromkeys(
            lacks.wide,
            "is that of 0.2.0: each claim of a message without an object writes an entry that this "
            "version does without; build it anew when no instance of 0.2.0 is left",
        )
        for index, why in anew.items():
            made = p.database.index_anew(p.sql_dialect, p.sql(CreateIndex(index)), index)
            found.append(advised("indexes", f"index {index.name} {why}", *made))
    return found or [fine("indexes", "all indexes are there")]
