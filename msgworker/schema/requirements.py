"""The requirements of a message table in which no message is lost or stranded: one list for
`doctor`, for the start of an instance and for `create`.

The judgements are pure: over the table as the catalogue describes it (`Live`), read by `read`.

One file, because it is one list: all requirements of a table are here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Inspector
from sqlalchemy.exc import DBAPIError
from sqlalchemy.types import NullType

from msgworker import db
from msgworker.db import Database, Instants, UtcDateTime
from msgworker.message import UNWRITABLE, ends_at
from msgworker.table import (
    INSTANTS,
    LEAST_HEADERS,
    LONGEST_ID,
    MAX_ERROR,
    MAX_HEADERS,
    MAX_OBJECT_ID,
    MAX_TOPIC,
    NUMBERS,
    OWN_PREFIX,
    REQUIRED,
    ROLES,
    MessageTable,
    Tables,
    tables_for,
)

WRITTEN_TEXTS = tuple(
    name for name, role in ROLES.items() if role.holds == "text" and not role.may_be_generated
)
"""Those that instances write."""
BINARIES = (sa.LargeBinary, sa.BINARY, sa.VARBINARY)
AN_ID = f"{'host':o<30}-4194304-0123456789abcdef"
"""The longest id of an instance."""
INSTANT_TEXT = 26
"""Characters of an instant as text."""
REMAKE = "a column cannot be changed there: create the table again"


@dataclass(frozen=True, slots=True)
class Column:
    """A column as the catalogue describes it. default: as the database writes it.
    counts: the database counts it up. cuts: texts that are too long are cut. changes: whenever its
    row is updated. always: the database refuses a value of it in an INSERT. domain: of which it is;
    `kind` is then the type under it. refuses: the names of `rows_written` that the domain does not
    take."""

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


@dataclass(frozen=True, slots=True)
class Check:
    """A CHECK that refuses some of the rows in `rows_written`, by their names."""

    name: str
    text: str
    refuses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Live:
    """The live message table. name: as SQL writes it. columns: by role; all: by name, as given.

    fold: how ids that differ may be one to the database, see `db.fold_of`. checks: those that
    refuse what we write; rules: name and text of all. triggers: name and when, of all, and of
    rules of PostgreSQL. layouts: those of the table that take no index of ours, by `LAYOUTS`.
    partitions: name -> modulus of the parts of a table that is partitioned by the hash of the
    object, which takes them; None = it is not. strict: its columns hold to their types, on a
    database where they need not. error_codec: see `db.codec_of`. policies: row-level security
    decides which rows this login sees and changes: the names of the policies, and what they let it
    do; None = it does not. tried: what a change of the type would do to the values of a role's
    column, see `DryRun`. charsets: of the columns that do not take all of Unicode.
    """

    spec: MessageTable
    database: Database
    sql: sa.Dialect
    name: str
    columns: dict[str, Column]
    all: dict[str, Column] = field(default_factory=dict)
    checks: tuple[Check, ...] = ()
    rules: tuple[tuple[str, str], ...] = ()
    triggers: tuple[tuple[str, str], ...] = ()
    fold: str | None = None
    layouts: tuple[str, ...] = ()
    partitions: dict[str, int] | None = None
    strict: bool = False
    error_codec: str = ""
    policies: tuple[str, str] | None = None
    tried: dict[str, DryRun] = field(default_factory=dict)
    charsets: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DryRun:
    """Of a change of a column's type, on the rows that are there. loses: why some values would not
    be what they were; "" if all stay. holds: what they are, with counts."""

    loses: str = ""
    holds: str = ""


@dataclass(frozen=True, slots=True)
class Fault:
    """A violated requirement (needed) or recommendation. mend: statements that fix it, in order;
    () = nothing to run. role: of the column whose type it is. detail: what the rows hold that the
    statements change."""

    check: str
    needed: bool
    text: str
    mend: tuple[str, ...] = ()
    role: str = ""
    detail: str | None = None


def faults(live: Live) -> list[Fault]:
    """Everything that is not as it must or should be. Where the rows have to move to another table
    no statement repairs this one: some databases refuse to change it as it is."""
    layouts = list(_layouts(live))
    found = [*layouts, *_partitions(live), *_generated(live)]
    kept = {role: c for role, c in live.columns.items() if not _stays_generated(live, role, c)}
    as_written = replace(live, columns=kept)  # nothing else of the others can be changed
    found += [fault for judge in JUDGES for fault in judge(as_written)]
    moves = any(not fault.mend for fault in layouts)
    return [replace(fault, mend=()) for fault in found] if moves else found


def _stays_generated(live: Live, role: str, column: Column) -> bool:
    written = column.generated and not ROLES[role].may_be_generated
    return written and not live.database.drop_generated(live.sql, live.name, column.name)


def needed(live: Live) -> list[Fault]:
    """The faults that would lose or strand a message."""
    return [fault for fault in faults(live) if fault.needed]


def error_room(live: Live) -> int:
    """How many characters of an error are kept."""
    return _error_room(live.database, live.columns)


def _error_room(database: Database, columns: dict[str, Column]) -> int:
    column = columns.get("last_error")
    room = None if column is None else db.text_room(column.kind)
    return MAX_ERROR if room is None or database.loose_types else min(MAX_ERROR, room)


def rooms(live: Live) -> tuple[db.Room, ...]:
    """Of what a producer sends, the columns that take less than that: some databases cut it off,
    without an error."""
    ours = {"topic": MAX_TOPIC, "object_id": MAX_OBJECT_ID, "payload": live.spec.max_payload}
    found = []
    for role, most in ours.items():
        column = live.columns.get(role)
        if column is None or column.generated:
            continue
        charset = live.charsets.get(column.name, "")
        room = db.room_of(live.database, role, column.kind, charset)
        whole = room is not None and not room.unit
        in_bytes = room is not None and room.unit == "bytes"
        if room is not None and (whole or room.most < (4 * most if in_bytes else most)):
            found.append(room)
    return tuple(found)


def header_room(live: Live) -> int:
    """How many characters of headers are kept; 0 = none, there is no column for them."""
    column = live.columns.get("headers")
    if column is None or column.generated or _header_problem(live, column):
        return 0
    room = db.text_room(column.kind)
    return MAX_HEADERS if room is None or live.database.loose_types else min(MAX_HEADERS, room)


def is_doubtful(live: Live) -> bool:
    """Whether only a trial shows if messages get ids, and are seen and changed by this login."""
    ids = live.columns.get("msg_id")
    unnumbered = ids is not None and ids.nullable and ids.default is None and not ids.counts
    return unnumbered or live.policies is not None


def hooks(live: Live) -> dict[str, Any]:
    """What the database does with rows by itself, as fields of Tables."""
    return _hooks(live.triggers, live.policies)


def hooks_now(conn: Connection, t: Tables) -> dict[str, Any]:
    """The same, as it is now."""
    rules = db.hooks_of(conn, t.message)
    return _hooks(_triggers_of(rules), _policies_of(rules))


def _hooks(triggers: Iterable[tuple[str, str]], policies: tuple[str, str] | None) -> dict[str, Any]:
    def on(event: str) -> str:
        return ", ".join(sorted({name for name, when in triggers if event in when.upper()}))

    return {"on_update": on("UPDATE"), "on_delete": on("DELETE"), "policies": policies}


def _triggers_of(rules: Iterable[db.Rule]) -> tuple[tuple[str, str], ...]:
    return tuple((r.name, " ".join(r.text.split())) for r in rules if r.kind == "trigger")


def _policies_of(rules: Iterable[db.Rule]) -> tuple[str, str] | None:
    return next(((r.name, r.text) for r in rules if r.kind == "policy"), None)


def instants(live: Live) -> Instants:
    """What `available_at` holds."""
    column = live.columns.get("available_at")
    if column is None or live.database.loose_types:
        return Instants()
    return db.instants_of(column.kind, live.sql)


def told(found: Sequence[Fault]) -> str:
    """Faults as the end of the text of a SchemaError, with the statements that fix them."""
    mends = list(dict.fromkeys(statement for fault in found for statement in fault.mend))
    text = "; ".join(fault.text for fault in found)
    return f"{text}. To fix it: {'; '.join(mends)}" if mends else text


# ---------------------------------------------------------------- judgements


LAYOUTS = {
    "versions": (
        "keeps the old versions of its rows, and so allows no index of ours: copy its rows into a "
        "table that `msgworker ddl` prints. Where the old versions are of no use, `ALTER TABLE ... "
        "DROP SYSTEM VERSIONING` deletes all of them, for good"
    ),
    "partitions": "has partitions, and no index over all of them that keeps its messages apart",
    "parent": (
        "has partitions, but not by HASH of its objects alone, so that no index over all of them "
        "keeps two messages of one object apart: copy its rows into a table that `msgworker ddl` "
        "prints; the archive of a purge may have partitions of any kind"
    ),
    "heirs": (
        "has tables that inherit from it, whose rows no index of its own keeps apart: two messages "
        "of one object could run at once, and two have one id. Copy the rows into a table that "
        "`msgworker ddl` prints"
    ),
    "heir": (
        "is a part of another table (it inherits from it, or is a partition of it), where messages "
        "of the same objects may stand, which no index of this one keeps apart: name the other "
        "table, or copy the rows into a table of their own"
    ),
    "view": "is a view, on which no index can be: name the table under it",
}


def not_unique(conn: Connection, live: Live) -> Fault:
    """What is wrong where no index keeps `msg_id` unique: a key of several columns does not."""
    name = live.columns["msg_id"].name
    text = f"column {name} is not unique: it must be the primary key, alone, or have a unique index"
    quote = live.sql.identifier_preparer.quote
    ids: sa.ColumnClause[Any] = sa.column(name)
    twice = sa.select(ids).select_from(sa.table(live.spec.bare_name, schema=live.spec.schema))
    found = conn.scalars(twice.group_by(ids).having(sa.func.count(ids) > 1).limit(3)).all()
    if found:
        shown = ", ".join(map(str, found))
        return Fault("columns", True, f"{text}; some ids are there more than once ({shown}, say)")
    index = quote(live.spec.index_name("guard").removesuffix("_guard") + "_id")
    mend = f"CREATE UNIQUE INDEX {index} ON {live.name} ({quote(name)})"
    return Fault("columns", True, text, (mend,))


def _layouts(live: Live) -> Iterator[Fault]:
    for layout in live.layouts:
        mend = live.database.drop_layout(live.name, layout)
        mends = (mend,) if mend else ()
        yield Fault("storage", True, f"table {live.name} {LAYOUTS[layout]}", mends)


def _partitions(live: Live) -> Iterator[Fault]:
    """No index can keep ids unique there: one sequence has to. And an object must have a home."""
    if live.partitions is None:
        return
    ids = live.columns.get("msg_id")
    if ids is not None and not ids.counts:
        text = (
            f"column {ids.name} has no identity, and no index over partitions can keep ids unique: "
            f"ALTER TABLE {live.name} ALTER COLUMN {live.sql.identifier_preparer.quote(ids.name)} "
            "ADD GENERATED ALWAYS AS IDENTITY (START WITH the highest id + 1)"
        )
        yield Fault("partitions", True, text)
    there = sum(Fraction(1, modulus) for modulus in live.partitions.values())
    if there != 1:
        text = (
            f"table {live.name} lacks partitions: {1 - there} of the objects can have no messages, "
            "and those that were there are not seen; attach, or create, what is missing"
        )
        yield Fault("partitions", True, text)


def _numbers(live: Live) -> Iterator[Fault]:
    for role in NUMBERS:
        column = live.columns.get(role)
        problem = "" if column is None else number_problem(live, role, column)
        if problem and column is not None:
            yield _typed(live, role, column, problem)


def mistyped(live: Live) -> list[Fault]:
    """Why the statements cannot even be run: the columns that must be there hold no numbers."""
    return [fault for fault in _numbers(live) if fault.role in REQUIRED]


def only_anew(live: Live) -> bool:
    """Whether no statement makes the table fit: it has partitions that are tables, or a column that
    must be there is of a type that no statement changes."""
    if {"parent", "heirs", "heir", "view"} & set(live.layouts):
        return True
    return not live.database.loose_types and any(
        fault.role in REQUIRED and not fault.mend for fault in needed(live)
    )


def number_problem(live: Live, role: str, column: Column) -> str:
    """Why a column cannot hold the numbers of its role; "" if it can."""
    name, kind = column.name, column.kind
    if _has_none(live, kind):
        return ""
    if not isinstance(kind, sa.Integer | sa.Numeric) or isinstance(kind, sa.Boolean | sa.Float):
        return f"column {name} ({role}) is {_said(kind)}, but must be a whole number"
    if role == "status" and getattr(kind, "unsigned", False):
        return f"column {name} (status) is {kind}, but must take -1 (failed)"
    if live.database.loose_types:
        return ""
    scale = getattr(kind, "scale", None) or 0
    if role == "msg_id" and scale > 0:
        return f"column {name} (msg_id) is {kind}: an id with a fraction is never run"
    if role == "priority" and scale > 0:
        return f"column {name} (priority) is {kind}, but must be a whole number"
    spec = live.spec
    tries = ends_at(spec.max_tries, "block")
    most = {"status": 2, "error_try_times": tries, "crash_times": tries}
    most["later_times"] = spec.later_limit
    precision = getattr(kind, "precision", None)
    room = db.number_room(kind)
    if precision is not None and not isinstance(kind, sa.Integer):
        room = 10 ** max(0, precision - scale) - 1
    if room is not None and most.get(role, 0) > room:
        return f"column {name} ({role}) is {kind}, but must hold {most[role]}"
    return ""


def _has_none(live: Live, kind: Any) -> bool:
    """Whether a column has no type, as only those may that take every value."""
    return live.database.loose_types and isinstance(kind, NullType)


def _said(kind: Any) -> str:
    return "of another type" if isinstance(kind, NullType) else str(kind)


def _topics(live: Live) -> Iterator[Fault]:
    column = live.columns.get("topic")
    if column is None or live.database.loose_types or isinstance(column.kind, sa.String):
        return
    text = f"column {column.name} (topic) is {_said(column.kind)}, but must be a text"
    yield _typed(live, "topic", column, text)


def _objects(live: Live) -> Iterator[Fault]:
    """The guard is an index on an expression of the object where no column is made for it."""
    column = live.columns.get("object_id")
    if column is None or live.database.guard_case != "function" or not db.is_lob(column.kind):
        return
    text = (
        f"column {column.name} (object_id) is {_said(column.kind)}, of which there is no index "
        "that keeps two messages of an object from running at once"
    )
    yield _typed(live, "object_id", column, text)


def _payloads(live: Live) -> Iterator[Fault]:
    column = live.columns.get("payload")
    if column is None or live.database.loose_types or db.holds_json(column.kind):
        return
    said = _said(column.kind) + (" ZEROFILL" if getattr(column.kind, "zerofill", False) else "")
    text = f"column {column.name} (payload) is {said}, but must hold JSON as a text"
    yield _typed(live, "payload", column, text)


def _headers(live: Live) -> Iterator[Fault]:
    """Messages are handled without them."""
    column = live.columns.get("headers")
    problem = "" if column is None else _header_problem(live, column)
    if problem and column is not None:
        text = f"column {column.name} (headers) {problem}: traces of producers are not kept"
        yield _typed(live, "headers", column, text, is_needed=False)


def _header_problem(live: Live, column: Column) -> str:
    kind = column.kind
    if _has_none(live, kind) or isinstance(kind, sa.JSON):
        return ""
    if not db.takes_any_text(kind):
        return f"is {_said(kind)}, but must be a text"
    room = db.text_room(kind)
    if live.database.loose_types or room is None or room >= LEAST_HEADERS:
        return ""
    return f"takes {room} characters, {LEAST_HEADERS} are needed"


def _cut(live: Live) -> Iterator[Fault]:
    """What is sent is not what is stored."""
    for role in ("object_id", "topic", "payload"):
        column = live.columns.get(role)
        if column is not None and column.cuts:
            text = f"column {column.name} ({role}) cuts long texts"
            yield _typed(live, role, column, text)


def _keys(live: Live) -> Iterator[Fault]:
    """Most messages have no unique key; others send theirs as a text."""
    column = live.columns.get("unique_key")
    if column is None or _has_none(live, column.kind):
        return
    name, padded = column.name, live.database.pads_chars and isinstance(column.kind, sa.CHAR)
    if not db.takes_any_text(column.kind) or padded:
        text = f"column {name} (unique_key) is {_said(column.kind)}, but must be a text"
        yield _typed(live, "unique_key", column, text, is_needed=not live.database.loose_types)
    elif not column.nullable or column.default not in (None, "NULL"):
        has = "takes no NULL" if not column.nullable else f"has the default {column.default}"
        text = f"column {name} (unique_key) {has}, but messages without a key need NULL"
        mend = live.database.drop_not_null(live.sql, live.name, name, column.kind)
        yield Fault("types", True, text, tuple(mend), "unique_key")


def _texts(live: Live) -> Iterator[Fault]:
    for role in WRITTEN_TEXTS:
        column = live.columns.get(role)
        if column is None or _has_none(live, column.kind):
            continue
        room, is_id = db.text_room(column.kind), role == "claimed_by"
        problem = ""
        if not db.takes_any_text(column.kind):
            problem, is_needed = (
                f"is {_said(column.kind)}, but must be a text",
                not live.database.loose_types or _takes_no_text(live, column.kind),
            )
        elif is_id and live.database.pads_chars and isinstance(column.kind, sa.CHAR):
            problem, is_needed = f"is {column.kind}: what is read is not what was written", True
        elif room is not None and room < (LONGEST_ID if is_id else MAX_ERROR):
            least = LONGEST_ID if is_id else MAX_ERROR
            problem = f"takes {room} characters, {least} are needed"
            problem += "" if is_id else " for whole texts: they are cut"
            is_needed = is_id and not live.database.loose_types
        if problem:
            text = f"column {column.name} {problem}"
            yield _typed(live, role, column, text, is_needed=is_needed)


def _instants(live: Live) -> Iterator[Fault]:
    for role in INSTANTS:
        column = live.columns.get(role)
        if column is None or _has_none(live, column.kind):
            continue
        name, kind = column.name, column.kind
        problem, is_needed = "", True
        if isinstance(kind, sa.DateTime | sa.TIMESTAMP | UtcDateTime):
            if live.database.zone_is_lost(kind):
                zone = live.spec.time_zone
                problem = f"column {name} has no time zone: it is read as the time of {zone}"
                is_needed = False
        elif live.database.loose_types:
            is_needed = not ROLES[role].best_effort and _takes_no_text(live, kind)
            if not isinstance(kind, sa.String):
                problem = f"column {name} is {kind}: instants are kept as texts here"
        elif not (live.database.texts_as_instants and _holds_an_instant(live, role, kind)):
            problem = f"column {name} is {_said(kind)}, but must be an instant"
        if problem:
            yield _typed(live, role, column, problem, is_needed=is_needed)


def _takes_no_text(live: Live, kind: Any) -> bool:
    return live.strict and isinstance(kind, sa.Integer | sa.Float | sa.LargeBinary)


def _holds_an_instant(live: Live, role: str, kind: Any) -> bool:
    room = db.text_room(kind)
    if role == "available_at":  # it is in an index
        most = live.database.key_room(kind)
        too_long = most is not None and (room is None or room > most)
        return (
            isinstance(kind, sa.VARCHAR | sa.CHAR) and not too_long and (room or 0) >= INSTANT_TEXT
        )
    return isinstance(kind, sa.String) and (room is None or room >= INSTANT_TEXT)


def _ids(live: Live) -> Iterator[Fault]:
    """Ids that the database compares as equal must be equal for us."""
    column = live.columns.get("object_id")
    if column is None:
        return
    if live.fold == "unknown":
        text = f"column {column.name} (object_id) has a collation by which msgworker cannot compare"
        yield _typed(live, "object_id", column, text)
    if live.database.case_index == "column" and isinstance(column.kind, BINARIES):
        text = f"column {column.name} (object_id) is {column.kind}, but must be a text or a number"
        yield Fault("types", True, text)
    if not live.database.loose_types and isinstance(column.kind, sa.JSON | sa.ARRAY | NullType):
        said = _said(column.kind)
        text = f"column {column.name} (object_id) is {said}, but must be a text or a number"
        yield _typed(live, "object_id", column, text)
    if column.changes:
        text = f"column {column.name} (object_id) changes whenever its row is updated"
        mend = live.database.drop_not_null(live.sql, live.name, column.name, column.kind)
        yield Fault("columns", True, text, tuple(mend))
    room = live.database.key_room(column.kind)
    length = getattr(column.kind, "length", None)
    if room is not None and isinstance(column.kind, sa.String) and (length or 0) > room:
        text = f"column {column.name} (object_id) takes {length} characters, an index {room}"
        yield _typed(live, "object_id", column, text)


def _nulls(live: Live) -> Iterator[Fault]:
    for role in (name for name, about in ROLES.items() if about.emptied):
        column = live.columns.get(role)
        if column is None or column.nullable:
            continue
        mend = live.database.drop_not_null(live.sql, live.name, column.name, column.kind)
        text = f"column {column.name} must take NULL"
        yield Fault("columns", True, *_with_way_out(live, role, text, mend))


def _generated(live: Live) -> Iterator[Fault]:
    """Columns that we write must be columns that can be written; ours must be ours."""
    for role, column in live.columns.items():
        if column.generated and not ROLES[role].may_be_generated:
            text = f"column {column.name} ({role}) is generated: it cannot be written"
            plain = live.database.drop_generated(live.sql, live.name, column.name)
            is_needed = not ROLES[role].best_effort
            yield Fault("columns", is_needed, *_with_way_out(live, role, text, plain))
    if live.database.case_index != "column":
        return
    for column in live.all.values():
        if column.name.lower().startswith(OWN_PREFIX) and not column.generated:
            text = (
                f"column {column.name} is not one of msgworker's generated columns, which begin so"
            )
            quote = live.sql.identifier_preparer.quote
            new = quote(f"x_{column.name}")
            mend = f"ALTER TABLE {live.name} RENAME COLUMN {quote(column.name)} TO {new}"
            yield Fault("columns", True, text, (mend,))


def _defaults(live: Live) -> Iterator[Fault]:
    column = live.columns.get("status")
    if column is None or column.generated:
        return
    plain = (column.default or "NULL").strip("'()\" ").upper().split("::")[0].strip("'()\" ")
    if plain in ("0", "+0", "0.0", "0.00"):
        return
    if plain == "NULL" and not column.nullable:  # who inserts must say it
        return
    text = (
        f"column {column.name} (status) has no default: a row that is inserted without it is never "
        "claimed"
    )
    if plain != "NULL":
        text = f"column {column.name} (status) has the default {plain}: such rows are not new"
    mend = live.database.set_default(live.sql, live.name, column.name, "0")
    yield Fault("columns", False, text, mend)


def _checks(live: Live) -> Iterator[Fault]:
    for check in live.checks:
        what = f"CHECK {check.name} ({check.text})".replace("CHECK  ", "CHECK ")
        text = f"{what} does not take {', '.join(ROWS[name] for name in check.refuses)}"
        column = live.all.get(check.name)
        mend = live.database.drop_check(live.sql, live.name, check.name, column)
        if not mend:
            text += f". {REMAKE}" if live.database.loose_types else ""
        yield Fault("checks", True, text, mend)


def _domains(live: Live) -> Iterator[Fault]:
    for role, column in live.columns.items():
        if column.refuses:
            text = f"column {column.name} ({role}) is of a domain ({column.domain.name}) that does "
            text += f"not take {', '.join(ROWS[name] for name in column.refuses)}"
            yield _typed(live, role, column, text)


def _policies(live: Live) -> Iterator[Fault]:
    """What a policy hides is never handled, without a word."""
    if live.policies is None:
        return
    names, may = live.policies
    text = f"row-level security of table {live.name} is on for this login: "
    for letter, what in (("r", "see"), ("w", "change")):
        if not {letter, "*"} & set(may):
            text += f"no policy lets it {what} a row"
            yield Fault("rights", True, f"{text}, so that no message is ever handled{_EXEMPT}")
            return
    text += f"messages that the policies ({names}) hide are never handled, and hold back their"
    yield Fault("rights", False, f"{text} object unseen{_EXEMPT}")


def of_own_policies(found: Iterable[db.Policies]) -> Iterator[Fault]:
    """The same of our own tables: who does not see the leases of others takes them for dead."""
    for table, names, may in found:
        lacking = [what for letter, what in _ACTS.items() if not {letter, "*"} & set(may)]
        text = f"row-level security of table {table} is on for this login: "
        if lacking:
            yield Fault("rights", True, f"{text}no policy lets it {', '.join(lacking)}{_EXEMPT}")
        else:
            text += f"what the policies ({names}) hide is not there for its instances"
            yield Fault("rights", False, f"{text}{_EXEMPT}")


_ACTS = {"r": "see a row", "a": "insert one", "w": "change one", "d": "delete one"}
_EXEMPT = "; give it all rows (a policy FOR ALL with USING (true)), or BYPASSRLS"


def _triggers(live: Live) -> Iterator[Fault]:
    for name, when in live.triggers:
        if "UPDATE" not in when.upper():
            continue
        text = (
            f"trigger {name} runs when rows are updated ({when[:100]}): what it refuses or changes "
            "may keep a message from running"
        )
        yield Fault("triggers", False, text)


JUDGES: tuple[Callable[[Live], Iterator[Fault]], ...] = (
    _numbers,
    _topics,
    _objects,
    _payloads,
    _headers,
    _cut,
    _keys,
    _texts,
    _instants,
    _ids,
    _nulls,
    _defaults,
    _checks,
    _domains,
    _policies,
    _triggers,
)


def _typed(live: Live, role: str, column: Column, text: str, *, is_needed: bool = True) -> Fault:
    """A column of another type: it is changed, or else another one is named."""
    mend = _retyped(live, role, column)
    tried = live.tried.get(role, DryRun())
    if tried.loses:
        text, mend = f"{text}; {tried.loses}", ()
    if not live.database.loose_types or live.strict:
        text, mend = _with_way_out(live, role, text, mend)
    return Fault("types", is_needed, text, mend, role, tried.holds or None)


def _dry_runs(conn: Connection, live: Live) -> dict[str, DryRun]:
    """What each change of a type would do; nothing of it is asked of a table that is in order."""
    roles = [f.role for f in faults(live) if f.check == "types" and f.mend and f.role]
    return {role: _dry_run(conn, live, role) for role in roles}


def _dry_run(conn: Connection, live: Live, role: str) -> DryRun:
    if not live.database.retypes_values:
        return DryRun()
    column = live.columns[role]
    at = (conn, live.name, column.name)
    ours = tables_for(live.spec, live.database).message.c[live.spec.names()[role]].type
    length = getattr(ours, "length", None) or getattr(getattr(ours, "impl", None), "length", None)
    try:
        spec = live.spec
        held = db.holders(conn, live.name, spec.schema, spec.bare_name, column.name)
        if held:
            return DryRun(
                f"its type cannot be changed while it is used by {', '.join(held)}: drop that first"
            )
        if role == "status":
            return _statuses(db.values_as_numbers(*at, limit=20))
        if role in NUMBERS:
            odd = db.not_whole(*at)
            return DryRun(f"it holds {', '.join(odd)}, which would be changed" if odd else "")
        if role in INSTANTS and not isinstance(column.kind, sa.DateTime):
            count = db.filled(*at)
            text = f"{count:,} of its values would have to be read as instants of some time zone"
            return DryRun(text if count else "")
        if length and (count := db.longer_than(*at, length)):
            return DryRun(f"{count:,} of its values are longer than {length} characters")
    except DBAPIError as error:
        if db.trouble(error) is db.Trouble.LOST or db.is_overtime(error):
            raise
        return DryRun("what it holds cannot be read as that type")
    return DryRun()


def _statuses(found: Sequence[tuple[str | None, str | None, int]]) -> DryRun:
    """Only rows that say one of the four numbers keep their meaning."""
    shown = ", ".join(f"{'NULL' if v is None else v} ({n:,})" for v, _, n in found)
    for text, number, _ in found:
        try:
            value = Decimal(text or "")
            same = number is None or Decimal(number) == value
        except InvalidOperation:
            same = False
        if not same or value not in (-1, 0, 1, 2):
            return DryRun(f"its rows hold {shown}, which a change of the type would not keep")
    return DryRun(holds=f"status of the rows, as before: {shown}" if found else "")


def _retyped(live: Live, role: str, column: Column) -> tuple[str, ...]:
    ours = tables_for(live.spec, live.database).message.c[live.spec.names()[role]]
    kind, counts = column.kind, column.counts
    instant = role in INSTANTS and isinstance(kind, sa.DateTime)
    number = role in INSTANTS and isinstance(kind, sa.Integer | sa.Numeric)
    generated = column.generated and ROLES[role].may_be_generated
    if not live.database.can_alter_type(kind, ours.type, generated=generated):
        return ()
    plain = (
        live.database.drop_generated(live.sql, live.name, column.name) if column.generated else ()
    )
    zone = live.spec.time_zone if instant else None
    options: dict[str, Any] = {"zone": zone, "number": number, "counts": counts}
    dropped = (
        statement
        for name, text in live.rules
        if live.database.check_calls(text, column.name)  # made for values of the old type
        for statement in live.database.drop_check(live.sql, live.name, name, None)
    )
    return (*plain, *dropped, *live.database.alter_type(live.sql, live.name, ours, **options))


def _with_way_out(
    live: Live, role: str, text: str, mend: Sequence[str]
) -> tuple[str, tuple[str, ...]]:
    """Where a column cannot be changed, another one can be added and named."""
    if mend:
        return text, tuple(mend)
    if role in REQUIRED:
        return f"{text}. {REMAKE}", ()
    new = f"{live.columns[role].name}_2"
    ours = tables_for(live.spec, live.database).message.c[live.spec.names()[role]]
    kind = ours.type.compile(dialect=live.sql)
    quoted = live.sql.identifier_preparer.quote(new)
    add = f"ALTER TABLE {live.name} {live.database.add_column(f'{quoted} {kind}')}"
    return (
        f'{text}. {REMAKE}, or add a column ({add}) and name it: MessageTable({role}="{new}")',
        (),
    )


# ---------------------------------------------------------------- the live table

ROWS = {
    "claimed": "a message that is claimed (status 1)",
    "done": "one that is done (2)",
    "failed": "one that has failed (-1)",
    "dead": "one that is dead (-1, with all tries)",
    "released": "one that is given back (0)",
}


def rows_written(spec: MessageTable, room: int = MAX_ERROR) -> dict[str, dict[str, Any]]:
    """What we write, by role: name of the row -> role -> number, text, None or SQL expression.

    room: how many characters of an error are kept. The error is the one that is written where
    another one is refused.
    """
    now: Any = db.now()  # as it is written: with fractions of a second
    flag = {"claimed_by": AN_ID, "claimed_at": now, "available_at": None}
    free = {"claimed_by": None, "claimed_at": now, "available_at": None}
    clean = {"error_try_times": 0, "crash_times": 0, "later_times": 0, "finished_at": None}
    clean |= {"last_error": None}
    bad = clean | {"last_error": UNWRITABLE[:room]}
    return {
        "claimed": clean | flag | {"status": 1},
        "done": clean | free | {"status": 2, "finished_at": now},
        "failed": bad | free | {"status": -1, "error_try_times": 1, "available_at": now},
        "dead": bad | free | {"status": -1, "error_try_times": spec.max_tries, "finished_at": now},
        "released": clean | free | {"status": 0},
    }


def read(
    conn: Connection,
    inspector: Inspector,
    spec: MessageTable,
    database: Database,
    described: Sequence[Any] | None = None,
) -> Live:
    """The live message table, which must be there under the name in `spec`. described: what
    `inspector.get_columns` gave."""
    if described is None:
        described = inspector.get_columns(spec.bare_name, schema=spec.schema)
    every = {str(c["name"]): _column(c) for c in described}
    by_lower = {name.lower(): column for name, column in every.items()} | every
    names = {
        role: (by_lower.get(name) or by_lower[name.lower()]).name
        for role, name in spec.names().items()
        if name in by_lower or name.lower() in by_lower
    }
    table = sa.Table(spec.bare_name, sa.MetaData(), schema=spec.schema)
    ids, guard = names.get("object_id", ""), spec.index_name("guard")
    rules = db.rules_of(conn, table, object_id=ids, guard=guard)
    for name, kind in db.cutting(database, rules).items():
        if name in every:
            every[name] = replace(every[name], kind=kind, cuts=True)
    for rule in rules:
        if rule.kind == "changes" and rule.name in every:
            every[rule.name] = replace(every[rule.name], changes=True)
    for rule in rules:
        if rule.kind == "rowid" and rule.name in every:
            every[rule.name] = replace(every[rule.name], counts=True)
    every |= dict(_of_domains(conn, spec, {role: every[name] for role, name in names.items()}))
    columns = {role: every[name] for role, name in names.items()}
    layouts = [rule.text for rule in rules if rule.kind == "layout"]
    if spec.bare_name in inspector.get_view_names(schema=spec.schema):
        layouts.append("view")
    parts = {rule.name: int(rule.text) for rule in rules if rule.kind == "part"}
    live = Live(
        spec=spec,
        database=database,
        sql=conn.dialect,
        name=conn.dialect.identifier_preparer.format_table(table),
        columns=columns,
        all=every,
        checks=tuple(_refusing(conn, spec, columns, rules, _error_room(database, columns))),
        rules=tuple((rule.name, rule.text) for rule in rules if rule.kind == "check"),
        triggers=_triggers_of(rules),
        fold=db.fold_of(database, rules),
        layouts=tuple(text for text in layouts if text in LAYOUTS),
        partitions=parts if "hash" in layouts else None,
        strict="strict" in layouts,
        error_codec=db.codec_of(database, rules, names.get("last_error", "")),
        policies=_policies_of(rules),
        charsets={rule.name: rule.text for rule in rules if rule.kind == "charset"},
    )
    return replace(live, tried=_dry_runs(conn, live))


def _column(described: Any) -> Column:
    default, kind = described.get("default"), described["type"]
    domain = kind if kind.__visit_name__ == "DOMAIN" else None
    return Column(
        name=str(described["name"]),
        kind=db.exact(kind) if domain is not None else kind,
        domain=domain,
        nullable=bool(described["nullable"]),
        default=None if default is None else str(default),
        generated=bool(
            described.get("computed") or (described.get("identity") or {}).get("always")
        ),
        counts=described.get("autoincrement") is True or bool(described.get("identity")),
        always=bool((described.get("identity") or {}).get("always")),
    )


def _of_domains(
    conn: Connection, spec: MessageTable, columns: dict[str, Column]
) -> Iterator[tuple[str, Column]]:
    """The columns of a domain, with what it refuses: tried, value by value."""
    written = rows_written(spec)
    for role, column in columns.items():
        if column.domain is not None:
            values = {row: roles[role] for row, roles in written.items() if role in roles}
            refuses = db.refused_by_domain(conn, column.domain, values)
            yield column.name, replace(column, refuses=tuple(refuses))


def _refusing(
    conn: Connection,
    spec: MessageTable,
    columns: dict[str, Column],
    rules: Sequence[db.Rule],
    room: int,
) -> Iterator[Check]:
    """The CHECKs that refuse what we write, as the database judges them."""
    written = {
        row: {columns[role].name: value for role, value in values.items() if role in columns}
        for row, values in rows_written(spec, room).items()
    }
    names = {name.lower() for name in written["done"]}
    for rule in rules:
        if rule.kind == "check" and any(name in rule.text.lower() for name in names):
            refuses = db.refused_by(conn, rule.text, written)
            if refuses:
                order = [row for row in written if row in refuses]
                yield Check(rule.name, " ".join(rule.text.split())[:200], tuple(order))
