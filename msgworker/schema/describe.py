"""What the catalogue says of the live tables, which `difference` and `requirements` judge."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Inspector
from sqlalchemy.exc import DBAPIError
from sqlalchemy.types import NullType

from msgworker.db import catalogue
from msgworker.db.clock import Instants, instants_of, now
from msgworker.db.database import At, Database, LiveIndex, of, of_any_type, printing
from msgworker.db.errors import is_overtime, reason_of
from msgworker.db.types import ColumnLimit, exact
from msgworker.errors import SchemaError
from msgworker.message import UNWRITABLE
from msgworker.table.build import live_names
from msgworker.table.columns import (
    DEFAULT_NAME,
    LEAST_HEADERS,
    MAX_ERROR,
    MAX_HEADERS,
    MAX_KEY,
    MAX_OBJECT_ID,
    MAX_TOPIC,
    NAMED_ONLY,
    REQUIRED,
    ROLES,
)
from msgworker.table.spec import MessageTable, found_in, named_where, where_problem
from msgworker.table.tables import Tables

# --- Any table.


@dataclass(frozen=True, slots=True)
class LiveTable:
    """A table in the catalogue. exists: None = this login may not see it. columns: as SQLAlchemy
    describes them, and indexes; both by lower-case name."""

    exists: bool | None
    columns: Mapping[str, Any] = field(default_factory=dict)
    indexes: Mapping[str, LiveIndex] = field(default_factory=dict)


def look(
    inspector: Inspector, table: sa.Table, described: Iterable[Any] | None = None
) -> LiveTable:
    """A table of this name as it is. described: its columns, if they are known."""
    exists = True if described is not None else catalogue.is_there(inspector, table)
    if not exists:
        return LiveTable(exists)
    if described is None:
        described = catalogue.columns_of(inspector, table.name, table.schema)
    conn = on(inspector)
    return LiveTable(True, by_name(described), of(conn).indexes_of(conn, table, inspector))


def on(inspector: Inspector) -> Connection:
    """The connection that it reads on."""
    assert isinstance(inspector.bind, Connection)
    return inspector.bind


def by_name(described: Iterable[Any]) -> dict[str, Any]:
    """What SQLAlchemy describes, by its lower-case name."""
    return {str(one["name"]).lower(): one for one in described}


def kinds_of(described: Iterable[Any]) -> dict[str, Any]:
    """The types of columns, by name."""
    return {str(one["name"]): one["type"] for one in described}


def bare(spec: MessageTable) -> sa.Table:
    """The message table without its columns."""
    return sa.Table(spec.bare_name, sa.MetaData(), schema=spec.schema)


def is_primary(inspector: Inspector, spec: MessageTable, column: str) -> bool:
    """Whether a column is the primary key of the message table."""
    key = inspector.get_pk_constraint(spec.bare_name, schema=spec.schema)
    return list(key.get("constrained_columns", [])) == [column]


def is_unique(inspector: Inspector, spec: MessageTable, column: str) -> bool:
    """Whether it is that, or has a unique constraint or index of its own, which has all rows."""
    if is_primary(inspector, spec, column):
        return True
    conn = on(inspector)
    found = of(conn).indexes_of(conn, bare(spec), inspector).values()
    whole = [one for one in found if one.unique and one.finished and one.where is None]
    return any(one.columns == (column,) for one in whole)


# --- The message table: which one it is, and what it lacks of what its MessageTable names.


def check_names(spec: MessageTable, database: Database) -> None:
    for name in (spec.schema or "", spec.bare_name, *spec.names().values(), *dict(spec.where)):
        if len(name.encode()) > database.max_name:
            most = f"{database.max_name} bytes that {database.name} takes"
            raise SchemaError(f"the name {name} is longer than the {most}")


def find(inspector: Inspector, spec: MessageTable) -> MessageTable | None:
    """The same under its live name: exact, or the only one that differs by case; None if none is"""
    try:
        names = catalogue.names_there(inspector, spec.schema)
    except DBAPIError as error:
        if spec.schema is None or is_overtime(error):
            raise
        text = f"schema {spec.schema} cannot be looked at: {reason_of(error)}"
        raise SchemaError(text) from error
    of(on(inspector)).check_schema(spec.schema)
    if spec.bare_name in names:
        return spec
    same = [name for name in names if name.lower() == spec.bare_name.lower()]
    if len(same) != 1:  # what is neither table nor view, as a foreign table, is refused later
        others = of(on(inspector)).refuses_others and catalogue.is_there(inspector, bare(spec))
        return spec if others else None
    return spec.replace(name=f"{spec.schema}.{same[0]}" if spec.schema else same[0])


def weak_storage(inspector: Inspector, spec: MessageTable) -> list[str]:
    """What is wrong with the storage engine, and the statement that fixes it; [] = nothing."""
    database, sql = of(on(inspector)), printing(on(inspector).dialect)
    storage = database.weak_storage(inspector, spec.bare_name, spec.schema)
    if not storage:
        return []
    fix = database.strong_storage(sql.identifier_preparer.format_table(bare(spec)))
    return [f"its storage engine {storage} has no transactions. To fix it: {fix}"]


def require_columns(spec: MessageTable, kinds: dict[str, Any]) -> None:
    have = {name.lower() for name in kinds}
    lacking = [role for role in spec.names() if role in REQUIRED]
    lacking = [role for role in lacking if spec.names()[role].lower() not in have]
    if lacking:
        raise SchemaError(unnamed(spec, lacking, kinds))
    if why := where_problem(spec.where, kinds):
        raise SchemaError(f"table {spec.name} {why}")


def unnamed(spec: MessageTable, lacking: Sequence[str], there: Iterable[str]) -> str:
    """The advice if columns of these roles are missing under their names. They are never added,
    because existing rows have these values in other columns."""
    names = ", ".join(spec.names()[role] for role in lacking)
    say = "name the column" if len(lacking) == 1 else "name the columns"
    return (
        f"table {spec.name} has no column {names}; {say}: "
        f"MessageTable({', '.join(f'{role}=...' for role in lacking)}); "
        f"the table has: {', '.join(there)}"
    )


def for_table(inspector: Inspector, spec: MessageTable, database: Database) -> Database:
    """What the database can do on this table: columns that are computed from one that a foreign key
    changes cannot be stored; indexes over partitions can be unique for objects only."""
    database = database.having(partitioned=database.has_partitions(on(inspector), bare(spec)))
    if not database.stored_columns:
        return database
    names = spec.names()
    bases = {names[role].lower() for role in COMPUTED_FROM if role in names}
    with of_any_type():
        keys = inspector.get_foreign_keys(spec.bare_name, schema=spec.schema)
    for key in keys:
        options = {act: str(does).upper() for act, does in key.get("options", {}).items()}
        changes = options.get("onupdate") in CHANGING or options.get("ondelete") in CHANGING[1:]
        if changes and bases & {name.lower() for name in key["constrained_columns"]}:
            return database.having(stored_columns=False)
    return database


COMPUTED_FROM = {"object_id", "status", "error_try_times", "unique_key", "unique_kept", "job_id"}
COMPUTED_FROM |= {"finished_at", "available_at", "priority"}  # what generated columns read
CHANGING = ("CASCADE", "SET NULL", "SET DEFAULT")


def near_names(inspector: Inspector, spec: MessageTable) -> list[str]:
    """Tables that the name may have meant."""
    names = inspector.get_table_names(schema=spec.schema)
    return difflib.get_close_matches(spec.bare_name, names, n=3, cutoff=0.5)


def elsewhere(conn: Connection, spec: MessageTable) -> str:
    """The hint for a missing table if another schema has one of its name; empty if none has."""
    found = catalogue.schemas_with(conn, spec.bare_name, but=spec.schema)
    if not found:
        return ""
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    name = f"{found[0]}.{spec.bare_name}"
    return (
        f"a table of that name is in schema {', '.join(found[:3])}{more}: if that is meant, name "
        f'it, --table {name} or MessageTable("{name}")'
    )


def missing_table(conn: Connection, inspector: Inspector, spec: MessageTable) -> str:
    if other := elsewhere(conn, spec):
        return f"table {spec.name} does not exist; {other}; else run `msgworker init-db`"
    near = near_names(inspector, spec)
    hint = f" Near names: {', '.join(near)}." if near else ""
    return (
        f"table {spec.name} does not exist.{hint} "
        "Run App.create_schema() or `msgworker init-db`, or give the right MessageTable(name)"
    )


def asked_for(spec: MessageTable) -> set[str]:
    """The roles whose columns must be there: all in our own table but `NAMED_ONLY`, which earlier
    versions made without; else those that were named."""
    plain = MessageTable().names()
    ours = spec.bare_name.lower() == DEFAULT_NAME
    return {
        role
        for role, name in spec.names().items()
        if role in REQUIRED
        or (role in NAMED_ONLY and not ours)
        or name != plain[role]
        or (spec.is_default and role not in NAMED_ONLY)
    }


# --- The message table: its columns, CHECKs, triggers and policies.


@dataclass(frozen=True, slots=True)
class Column:
    """A column as the catalogue describes it. default: as the database writes it.
    counts: the database counts it up. cuts: texts that are too long are cut. changes: whenever its
    row is updated. always: the database refuses a value of it in an INSERT. domain: of which it is;
    `kind` is then the type under it. refuses: the names of `rows_written` that the domain does not
    take. rest: what else a change of it has to say, see `Database.whole_columns`."""

    name: str
    kind: Any
    nullable: bool = True
    default: str | None = None
    generated: bool = False
    counts: bool = False
    cuts: bool = False
    changes: bool = False
    always: bool = False
    domain: Any = None
    refuses: tuple[str, ...] = ()
    rest: str = ""

    @property
    def must_be_given(self) -> bool:
        """Whether an INSERT must name it: it needs a value, and the database has none for it."""
        has_one = self.default is not None or self.generated or self.counts
        return not (self.nullable or has_one)


@dataclass(frozen=True, slots=True)
class Check:
    """A CHECK that refuses some of the rows in `rows_written`, by their names. of_column: it is a
    part of the column of its name."""

    name: str
    text: str
    refuses: tuple[str, ...]
    of_column: bool = False


@dataclass(frozen=True, slots=True)
class Live:
    """The live message table. name: as SQL writes it. columns: by role; all: by name, as given.

    fold: how ids that differ may be one to the database, see `db.fold_of`. checks: those that
    refuse what we write. triggers: name and when, of all, and of rules of PostgreSQL. layouts:
    those of the table that take no index of ours, by `LAYOUTS`. partitions: name -> modulus of the
    parts of a table that is partitioned by the hash of the object, which takes them; None = it is
    not. strict: its columns hold to their types, on a database where they need not. unlogged: a
    crash of the server empties it. error_codec, own_codec: see `db.codec_of`. policies: row-level
    security decides which rows this login sees and changes: the names of the policies, and what
    they let it do; None = it does not. tried: what a change of the type would do to the values of a
    role's column, see `Retyping`. charsets: of the columns that do not take all of Unicode; "": of
    all. reuses_ids: that of a deleted last row is given to the next one. replaces: the columns of
    each UNIQUE by which a row deletes its equal.
    """

    spec: MessageTable
    database: Database
    sql: sa.Dialect
    name: str
    columns: dict[str, Column]
    all: dict[str, Column] = field(default_factory=dict)
    checks: tuple[Check, ...] = ()
    triggers: tuple[tuple[str, str], ...] = ()
    fold: str | None = None
    layouts: tuple[str, ...] = ()
    partitions: dict[str, int] | None = None
    strict: bool = False
    unlogged: bool = False
    error_codec: str = ""
    own_codec: str = ""
    policies: tuple[str, str] | None = None
    tried: dict[str, Retyping] = field(default_factory=dict)
    charsets: dict[str, str] = field(default_factory=dict)
    reuses_ids: bool = False
    replaces: tuple[str, ...] = ()

    def at(self, name: str) -> At:
        """A column, or a CHECK, of this name, in statements."""
        return At(self.sql, self.name, name)

    def pads(self, kind: Any) -> bool:
        """Whether blanks are added to a text: what is read is not what was written."""
        return self.database.pads_chars and isinstance(kind, sa.CHAR)


@dataclass(frozen=True, slots=True)
class Retyping:
    """Of a change of a column's type, on the rows that are there. loses: why some values would not
    be what they were; "" if all stay. holds: what they are, with counts. drops: CHECKs that are of
    no use with the new type, by name and text. held: what has to be dropped first, in words."""

    loses: str = ""
    held: str = ""
    holds: str = ""
    drops: tuple[tuple[str, str], ...] = ()


def read(
    conn: Connection,
    inspector: Inspector,
    spec: MessageTable,
    database: Database,
    described: Sequence[Any] | None = None,
) -> Live:
    """The live table of the name in `spec`. described: what `columns_of` gave."""
    if described is None:
        described = catalogue.columns_of(inspector, spec.bare_name, spec.schema)
    every = {str(c["name"]): _column(c) for c in described}
    names, table = live_names(spec, kinds_of(described)), bare(spec)
    named = {*asked_for(spec), *spec.slices}  # not another's, whatever it holds
    names |= {role: n for role, n in found_in(every, spec.names()).items() if role in named}
    ids, guard = names.get("object_id", ""), spec.index_name("guard")
    traits = catalogue.traits_of(conn, table, object_id=ids, guard=guard)
    changed: dict[str, dict[str, Any]] = {
        name: {"kind": kind, "cuts": True}
        for name, kind in catalogue.cutting(database, traits).items()
    }
    changed |= {trait.name: {"default": trait.text} for trait in traits if trait.kind == "default"}
    for kind, known in (("changes", "changes"), ("rowid", "counts")):
        changed |= {trait.name: {known: True} for trait in traits if trait.kind == kind}
    every |= {n: replace(every[n], **facts) for n, facts in changed.items() if n in every}
    for role, name in names.items():
        if (domain := every[name].domain) is not None:  # what it refuses: tried, value by value
            rows = rows_written(spec).items()
            values = {row: written[role] for row, written in rows if role in written}
            refuses = tuple(catalogue.refused_by_domain(conn, domain, values))
            every[name] = replace(every[name], refuses=refuses)
    columns = {role: every[name] for role, name in names.items()}
    length = max_error(database, columns)
    checks = tuple(_refusing(conn, spec, columns, traits, length))
    every |= {name: replace(every[name], rest=r) for name, r in _rests(traits, checks).items()}
    columns = {role: every[name] for role, name in names.items()}
    layouts = [trait.text for trait in traits if trait.kind == "layout"]
    if spec.bare_name in inspector.get_view_names(schema=spec.schema):
        layouts.append("view")
    parts = [trait for trait in traits if trait.kind == "part"]
    by_hash = {part.name: int(part.text) for part in parts} if "hash" in layouts else None
    sql = printing(conn.dialect)
    return Live(
        spec=spec,
        database=database,
        sql=sql,
        name=sql.identifier_preparer.format_table(table),
        columns=columns,
        all=every,
        checks=checks,
        triggers=_triggers_of(traits),
        fold=catalogue.fold_of(database, traits),
        layouts=tuple(text for text in layouts if text not in ("hash", "strict", "unlogged")),
        partitions=by_hash,
        strict="strict" in layouts,
        unlogged="unlogged" in layouts,
        error_codec=catalogue.codec_of(database, traits, names.get("last_error", "")),
        own_codec=catalogue.codec_of(database, traits, ""),
        policies=_policies_of(traits),
        charsets={trait.name: trait.text for trait in traits if trait.kind == "charset"},
        reuses_ids=any(trait.kind == "reused" for trait in traits),
        replaces=tuple(trait.text for trait in traits if trait.kind == "replaces"),
    )


def _column(described: Any) -> Column:
    default, kind = described.get("default"), described["type"]
    domain = kind if kind.__visit_name__ == "DOMAIN" else None
    return Column(
        name=str(described["name"]),
        kind=exact(kind) if domain is not None else kind,
        domain=domain,
        nullable=bool(described["nullable"]),
        default=None if default is None else str(default),
        generated=bool(
            described.get("computed") or (described.get("identity") or {}).get("always")
        ),
        counts=described.get("autoincrement") is True or bool(described.get("identity")),
        always=bool((described.get("identity") or {}).get("always")),
    )


def _refusing(
    conn: Connection,
    spec: MessageTable,
    columns: dict[str, Column],
    traits: Sequence[catalogue.Trait],
    length: int,
) -> Iterator[Check]:
    """The CHECKs that refuse what we write, as the database judges them."""
    written = {
        row: {columns[role].name: value for role, value in values.items() if role in columns}
        for row, values in rows_written(spec, length).items()
    }
    names = {name.lower() for name in written["done"]}
    for trait in traits:
        if "check" in trait.kind and any(name in trait.text.lower() for name in names):
            refuses = catalogue.refused_by(conn, trait.text, written)
            if refuses:
                order = [row for row in written if row in refuses]
                text, of_column = " ".join(trait.text.split())[:200], trait.kind == "column check"
                yield Check(trait.name, text, tuple(order), of_column)


def _rests(traits: Sequence[catalogue.Trait], refusing: Sequence[Check]) -> dict[str, str]:
    """What a change of a column says again, by its name: all that is there of it but a CHECK that
    refuses what we write."""
    found = {trait.name: trait.text for trait in traits if trait.kind == "rest"}
    gone = {check.name for check in refusing if check.of_column}
    for trait in traits:
        if trait.kind == "column check" and trait.name not in gone:
            found[trait.name] = f"{found.get(trait.name, '')} CHECK ({trait.text})"
    return found


AN_ID = f"{'host':o<30}-4194304-0123456789abcdef"
"""The longest id of an instance."""
ROWS = {
    "claimed": "a message that is claimed (status 1)",
    "done": "one that is done (2)",
    "failed": "one that has failed (-1)",
    "dead": "one that is dead (-1, with all tries)",
    "released": "one that is given back (0)",
}


def rows_written(spec: MessageTable, length: int = MAX_ERROR) -> dict[str, dict[str, Any]]:
    """What we write, by role: name of the row -> role -> number, text, None or SQL expression.

    length: how many characters of an error are kept. The error is the one that is written where
    another one is refused.
    """
    at: Any = now()  # as it is written: with fractions of a second
    flag = {"claimed_by": AN_ID, "claimed_at": at, "available_at": None}
    free = {"claimed_by": None, "claimed_at": at, "available_at": None}
    clean = {"error_try_times": 0, "crash_times": 0, "later_times": 0, "finished_at": None}
    clean |= {"last_error": None}
    bad = clean | {"last_error": UNWRITABLE[:length]}
    return {
        "claimed": clean | flag | {"status": 1},
        "done": clean | free | {"status": 2, "finished_at": at},
        "failed": bad | free | {"status": -1, "error_try_times": 1, "available_at": at},
        "dead": bad | free | {"status": -1, "error_try_times": spec.max_tries, "finished_at": at},
        "released": clean | free | {"status": 0},
    }


# --- What of that statements have to know.


def facts(live: Live, *, traced: bool) -> dict[str, Any]:
    """The fields of Tables that say it. traced: headers are read and written."""
    ids, priority, at = (live.columns.get(n) for n in ("msg_id", "priority", "available_at"))
    unnumbered = ids is not None and ids.nullable and ids.default is None and not ids.counts
    loose, lane = live.database.loose_types, live.columns.get("object_id")
    defaults = {role: live.columns.get(role) for role in ("status", "error_try_times")}
    return {
        "unfilled": unfilled(live),
        "says_priority": priority is not None and priority.must_be_given,
        # An INSERT must name those whose default is not 0.
        "says": tuple(
            r for r, c in defaults.items() if c is None or not IS_ZERO.fullmatch(str(c.default))
        ),
        "max_error": max_error(live.database, live.columns),
        "error_codec": live.error_codec,
        "own_codec": live.own_codec,
        "max_headers": max_headers(live) if traced else 0,
        "instants": Instants() if at is None or loose else instants_of(at.kind, live.sql),
        "fold": live.fold,
        # Only a trial shows if messages get ids, and are seen and changed by this login.
        "doubtful": unnumbered or live.policies is not None,
        "counts_ids": ids is not None and ids.counts,
        "reuses_ids": ids is not None and ids.counts and live.reuses_ids,
        "column_limits": column_limits(live),
        "id_types": catalogue.id_types(live.database, exact(lane.kind)) if lane else (object,),
        **_hooks(live.triggers, live.policies),
    }


def max_error(database: Database, columns: dict[str, Column]) -> int:
    """How many characters of an error are kept."""
    column = columns.get("last_error")
    length = None if column is None else catalogue.max_text(column.kind)
    return MAX_ERROR if length is None or database.loose_types else min(MAX_ERROR, length)


def column_limits(live: Live) -> tuple[ColumnLimit, ...]:
    """The columns that take less than a producer may send: some databases cut it off, or replace
    it, silently."""
    ours = {"topic": MAX_TOPIC, "object_id": MAX_OBJECT_ID, "unique_key": MAX_KEY}
    ours |= {"payload": live.spec.max_payload}
    found = []
    for role, most in ours.items():
        column = live.columns.get(role)
        if column is None or column.generated:
            continue
        charset = live.charsets.get(column.name) or live.charsets.get("", "")
        limit = catalogue.column_limit(live.database, role, exact(column.kind), charset)
        if limit is None:
            continue
        most *= 4 if limit.unit == "bytes" else 1
        if not limit.unit or limit.most < most or limit.codec:
            found.append(limit)
    return tuple(found)


def max_headers(live: Live) -> int:
    """How many characters of headers are kept; 0 = none, there is no column for them."""
    column = live.columns.get("headers")
    if column is None or column.generated or header_problem(live, column):
        return 0
    length = catalogue.max_text(column.kind)
    return MAX_HEADERS if length is None or live.database.loose_types else min(MAX_HEADERS, length)


def header_problem(live: Live, column: Column) -> str:
    kind = column.kind
    if has_none(live, kind) or isinstance(kind, sa.JSON):
        return ""
    if not catalogue.takes_any_text(kind):
        return f"is {said(kind)}, but must be a text"
    length = catalogue.max_text(kind)
    if live.database.loose_types or length is None or length >= LEAST_HEADERS:
        return ""
    return f"takes {length} characters, {LEAST_HEADERS} are needed"


def has_none(live: Live, kind: Any) -> bool:
    """Whether a column has no type, as only those may that take every value."""
    return live.database.loose_types and isinstance(kind, NullType)


def said(kind: Any) -> str:
    return "of another type" if isinstance(kind, NullType) else str(kind)


def hooks_now(conn: Connection, t: Tables) -> dict[str, Any]:
    traits = catalogue.hooks_of(conn, t.message)
    return _hooks(_triggers_of(traits), _policies_of(traits))


def _hooks(triggers: Iterable[tuple[str, str]], policies: tuple[str, str] | None) -> dict[str, Any]:
    """What the database does with rows by itself, as fields of Tables."""

    def on(event: str) -> str:
        return ", ".join(sorted({name for name, when in triggers if event in when.upper()}))

    return {"on_update": on("UPDATE"), "on_delete": on("DELETE"), "policies": policies}


def _triggers_of(traits: Iterable[catalogue.Trait]) -> tuple[tuple[str, str], ...]:
    return tuple((r.name, " ".join(r.text.split())) for r in traits if r.kind == "trigger")


def _policies_of(traits: Iterable[catalogue.Trait]) -> tuple[str, str] | None:
    return next(((r.name, r.text) for r in traits if r.kind == "policy"), None)


def unfilled(live: Live) -> tuple[str, ...]:
    """Columns that need a value and get one neither by our INSERT nor by the database."""
    ours = {live.columns[role].name for role in FILLED if role in live.columns}
    ours |= set(named_where(live.spec.where, live.all).values())
    return tuple(c.name for n, c in live.all.items() if n not in ours and c.must_be_given)


FILLED = tuple(name for name, role in ROLES.items() if role.filled)


IS_ZERO = re.compile(r"[\s('\"]*0[\s)'\"]*(::[\w\s]+)?\)?\s*")
"""A default as databases write it: 0, (0), '0'::smallint."""
