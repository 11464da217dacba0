"""The difference between the tables as they should be and as they are: which tables, columns and
indexes are missing, and which are of another kind. `create` and `upgrade` make what is missing,
`doctor` prints all of it with the statements that fix it, and a start refuses what it cannot work
with."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Inspector
from sqlalchemy.sql import visitors
from sqlalchemy.sql.operators import desc_op
from sqlalchemy.types import NullType

from msgworker.db.catalogue import holds_json, is_lob, max_number, max_text, takes_any_text
from msgworker.db.clock import UtcDateTime
from msgworker.db.database import HIDDEN, Database, LiveIndex
from msgworker.db.types import exact, takes_numbers
from msgworker.message import ends_at
from msgworker.schema import describe, repairs
from msgworker.schema.describe import Column, Live, LiveTable, has_none, said
from msgworker.table import columns
from msgworker.table.build import OWN
from msgworker.table.spec import MessageTable
from msgworker.table.tables import Tables

# --- Tables, their columns and their indexes.


@dataclass(frozen=True, slots=True)
class Difference:
    """exists: None = this login may not see the table; what it lacks is unknown where it is not
    seen. columns: those that are missing, in the order of the table. odd: those that do not take
    what we write, and why; only of our own tables: see `of_columns` for the message table. indexes:
    those that are missing, the guard first. unfinished: those whose creation was interrupted.
    other: those that are no such index, and why; theirs: of which these are not made for us.
    wide: those of 0.2.0, with more rows. unsorted: those in another order, which serve slowly."""

    exists: bool | None
    columns: tuple[sa.Column[Any], ...] = ()
    odd: tuple[tuple[sa.Column[Any], str], ...] = ()
    indexes: tuple[sa.Index, ...] = ()
    unfinished: tuple[sa.Index, ...] = ()
    other: tuple[tuple[sa.Index, str], ...] = ()
    theirs: tuple[sa.Index, ...] = ()
    wide: tuple[sa.Index, ...] = ()
    unsorted: tuple[sa.Index, ...] = ()

    @property
    def hidden(self) -> list[sa.Column[Any]]:
        """Missing columns that are generated, which indexes are on."""
        return [column for column in self.columns if is_generated(column)]

    def sound(self, indexes: Iterable[str]) -> frozenset[str]:
        """Those of the indexes that are what they should be; a query names no others."""
        return frozenset(indexes) - {str(index.name).lower() for index, _ in self.other}

    @property
    def required(self) -> list[sa.Column[Any]]:
        """Missing columns without which no instance works."""
        return [column for column in self.columns if columns.ADDED not in column.info]

    @property
    def later(self) -> list[sa.Column[Any]]:
        """Missing columns that a later version has added: instances work without them."""
        return [column for column in self.columns if columns.ADDED in column.info]


def difference(wanted: sa.Table, live: LiveTable, database: Database) -> Difference:
    """What a table lacks, and what of it is otherwise than it should be."""
    if not live.exists:
        return Difference(live.exists)
    there = [(c, live.columns.get(c.name.lower())) for c in wanted.c]
    ours = [pair for pair in there if wanted.name in OWN_NAMES]
    odd = ((c, _odd(database, c, found)) for c, found in ours if found is not None)
    indexes = [(i, live.indexes.get(str(i.name).lower())) for i in ordered_indexes(wanted)]
    found = [(i, one) for i, one in indexes if one is not None]
    return Difference(
        True,
        columns=tuple(c for c, found in there if found is None),
        odd=tuple((c, why) for c, why in odd if why),
        indexes=tuple(i for i, one in indexes if one is None),
        unfinished=tuple(i for i, one in found if not one.finished),
        other=tuple(
            (i, why) for i, one in found if one.finished and (why := _other(database, i, one))
        ),
        theirs=tuple(i for i, one in found if _is_theirs(i, one)),
        wide=tuple(i for i, one in found if _is_wide(database, i, one)),
        unsorted=tuple(i for i, one in found if not _other(database, i, one) and _turned(i, one)),
    )


def of_guard(t: Tables, indexes: Mapping[str, LiveIndex]) -> str:
    """Why no index keeps two messages of an object from running at once; "" if the guard does."""
    live = indexes.get(t.guard_name.lower())
    if live is None or not live.finished:
        return "is missing" if live is None else "was not finished"
    return _other(t.database, next(i for i in t.message.indexes if i.name == t.guard_name), live)


def _odd(database: Database, column: sa.Column[Any], live: Mapping[str, Any]) -> str:
    """Why a column of one of our tables does not take what we write; "" if it does."""
    kind, ours = exact(live["type"]), column.type
    name = f"column {column.name} of table {column.table.name}"
    if column.nullable and not live["nullable"]:
        return f"{name} must take NULL"
    if database.loose_types or isinstance(kind, NullType):
        return ""
    length = repairs.length_of(ours)
    if isinstance(ours, UtcDateTime):
        fits, what = isinstance(kind, sa.DateTime | sa.TIMESTAMP), "an instant"
    elif isinstance(ours, sa.Integer):
        fits, what = _counts(kind), "a whole number"
    else:
        longest = max_text(kind)
        fits = takes_any_text(kind) and (longest is None or longest >= (length or 0))
        what = "a text" if length is None else f"a text of {length} characters"
    return "" if fits else f"{name} is {said(kind)}, but must be {what}"


def _counts(kind: Any) -> bool:
    return isinstance(kind, sa.Integer | sa.Numeric) and not isinstance(kind, sa.Boolean | sa.Float)


def _other(database: Database, index: sa.Index, live: LiveIndex) -> str:
    """Why an index of this name is not this one; "" if it is, as far as can be said: each database
    writes expressions in its own way."""
    if index.unique and not live.unique:
        return "is not unique"
    keys = [getattr(key, "name", None) for key in index.expressions]
    same = len(keys) == len(live.columns)
    pairs = list(zip(keys, live.columns, strict=True)) if same else []
    if (not same and None not in (*keys, *live.columns)) or any(
        a and b and a.lower() != b.lower() for a, b in pairs
    ):
        return f"is on {', '.join(name or 'an expression' for name in live.columns)}"
    where = database.predicate_of(index)
    if where is None:
        return "" if live.where is None else f"has only rows where {live.where.strip()}"
    if live.where is None:
        return "has all rows"
    if _says(live.where, where) or _is_wide(database, index, live):
        return ""
    return f"has only rows where {live.where.strip()}"


def _is_theirs(index: sa.Index, live: LiveIndex) -> bool:
    """It is on columns that are none of ours, or keeps unique what we do not."""
    assert index.table is not None
    ours = {column.name.lower() for column in index.table.c}
    others = any(name is not None and name.lower() not in ours for name in live.columns)
    return others or (live.unique and not index.unique)


def _turned(index: sa.Index, live: LiveIndex) -> bool:
    """One of its keys is in the other direction."""
    ours = tuple(getattr(key, "modifier", None) is desc_op for key in index.expressions)
    return live.descending not in ((), ours)


def _is_wide(database: Database, index: sa.Index, live: LiveIndex) -> bool:
    """It has the predicate of before: that and no more."""
    if columns.WIDE not in index.info or live.where is None:
        return False
    has = [
        _says(live.where, one) for one in (database.predicate_of(index), index.info[columns.WIDE])
    ]
    return has == [False, True]


def _says(text: str, where: Any) -> bool:
    """The text has the columns and numbers of a predicate; a quote in a name is written twice."""
    words = [one.name for one in visitors.iterate(where) if isinstance(one, sa.ColumnClause)]
    numbers = re.findall(r"(?<![\w.])-?\d+", text)
    there, *words = (name.lower().replace('"', "") for name in (text, *words))
    return all(w in numbers if w.lstrip("-").isdigit() else w in there for w in words)


OWN_NAMES = frozenset(own.name for own in OWN)
INDEXES = {
    "guard": "the guard: at most one running message per object, enforced by the database",
    "id": "all messages by id: no index over partitions can keep ids unique, the identity does",
    "object": "unfinished messages by object and age",
    "oldest": "unfinished messages by age",
    "due": "messages that wait for an instant: retries and delayed ones",
    "failed": "failed and dead messages, for operators",
    "urgent": "messages with a priority that may be claimed, by priority and age",
    "unique": "unique keys: at most one message holds a key, enforced by the database",
    "job": "the messages of each job, by status",
    "shard": "unfinished messages by shard, object and age",
    "flag": "unfinished messages by instance type, object and age",
    "group": "failed tries by what they have in common",
    "owner": "locks by who holds them",
    "key": "keys of requests: a write that is asked for again is done once",
    "open": "jobs that have not completed",
}
"""What each index is for, by the suffix of its name, in the order in which they are made."""


def ordered_indexes(table: sa.Table) -> list[sa.Index]:
    """The indexes of one of our tables, the guard first."""
    return sorted(table.indexes, key=lambda index: list(INDEXES).index(suffix(index)))


def suffix(index: sa.Index) -> str:
    """What distinguishes it from the others of its table."""
    return str(index.name).rpartition("_")[2]


def is_generated(column: sa.Column[Any]) -> bool:
    """Whether a column is one of our hidden, generated ones, which exist only for indexes."""
    return bool(column.info.get(HIDDEN))


# --- The columns of the message table: each must take what is written, and give it back.


WRITTEN_TEXTS = tuple(
    name
    for name, role in columns.ROLES.items()
    if role.holds == "text" and not role.may_be_generated
)
"""Those that instances write."""
BINARIES = (sa.LargeBinary, sa.BINARY, sa.VARBINARY)
INSTANT_TEXT = 26
"""Characters of an instant as text."""
PADDED = "is {}: what is read is not what was written"


def of_columns(live: Live) -> list[repairs.Fault]:
    """What is otherwise than it must or should be."""
    written = dict(live.columns)
    for role, c in live.columns.items():
        plain = columns.ROLES[role].may_be_generated or live.database.drop_generated(
            live.at(c.name)
        )
        if c.generated and not plain:
            del written[role]  # nothing else of it can be changed
    as_written = replace(live, columns=written)
    return [*_generated(live), *(fault for judge in JUDGES for fault in judge(as_written))]


def _there(live: Live, roles: Iterable[str]) -> Iterator[tuple[str, Column]]:
    return ((role, live.columns[role]) for role in roles if role in live.columns)


def read(
    conn: Connection,
    inspector: Inspector,
    spec: MessageTable,
    database: Database,
    described: Sequence[Any] | None = None,
) -> Live:
    """`describe.read`, and what changes of types would do to a table that is not in order."""
    live = describe.read(conn, inspector, spec, database, described)
    roles = [f.role for f in of_columns(live) if f.check == "types" and f.fix and f.role]
    return replace(live, tried={role: repairs.retyping(conn, live, role) for role in roles})


def _numbers(live: Live) -> Iterator[repairs.Fault]:
    for role, column in _there(live, columns.NUMBERS):
        if not has_none(live, column.kind) and (why := _number_problem(live, role, column.kind)):
            yield repairs.typed(live, role, column, f"column {column.name} ({role}) {why}")


def _slices(live: Live) -> Iterator[repairs.Fault]:
    """Columns that were named, or are in an index of slices, and can hold none; of the others of
    these names nothing is known."""
    asked = describe.asked_for(live.spec)
    for role, column in _there(live, {*columns.SLICES} & {*asked, *live.spec.slices}):
        text = f"column {column.name} ({role}) is {said(column.kind)}, but must be "
        if role == "shard" and not takes_numbers(column.kind):
            text += "a whole number: App.send does not fill it, and no scope can be over it"
            yield repairs.typed(live, role, column, text, is_needed=role in asked)
        elif role != "shard" and not (live.database.loose_types or takes_any_text(column.kind)):
            text += "a text: no Dealer can write it"
            yield repairs.typed(live, role, column, text, is_needed=False)


def mistyped(live: Live) -> list[repairs.Fault]:
    """Why the statements cannot even be run: the columns that must be there hold no numbers."""
    found = [fault for fault in _numbers(live) if fault.role in columns.REQUIRED]
    return found + [fault for fault in _slices(live) if fault.needed]


def _number_problem(live: Live, role: str, kind: Any) -> str:
    """Why a column of this type cannot hold the numbers of its role; "" if it can."""
    if not _counts(kind):
        return f"is {said(kind)}, but must be a whole number"
    if role == "status" and getattr(kind, "unsigned", False):
        return f"is {kind}, but must take -1 (failed)"
    if live.database.loose_types:
        return ""
    scale = getattr(kind, "scale", None) or 0
    if role == "msg_id" and scale > 0:
        return f"is {kind}: an id with a fraction is never run"
    if role == "priority" and scale > 0:
        return f"is {kind}, but must be a whole number"
    tries = ends_at(live.spec.max_tries, "block")
    most = {"status": 2, "error_try_times": tries, "crash_times": tries}
    most["later_times"] = live.spec.later_limit
    precision = getattr(kind, "precision", None)
    largest = max_number(kind)
    if precision is not None and not isinstance(kind, sa.Integer):
        largest = 10 ** max(0, precision - scale) - 1
    if largest is not None and most.get(role, 0) > largest:
        return f"is {kind}, but must hold {most[role]}"
    return ""


def _sent(live: Live) -> Iterator[repairs.Fault]:
    """What producers send."""
    loose = live.database.loose_types
    for role, column in _there(live, ("topic", "object_id", "payload", "headers")):
        kind, why = column.kind, ""
        if role == "topic" and not (loose or isinstance(kind, sa.String)):
            why = f"is {said(kind)}, but must be a text"
        elif role == "topic" and live.pads(kind):
            why = PADDED.format(kind)
        elif role == "object_id" and live.database.guard_case == "function" and is_lob(kind):
            # The guard is an index on an expression of the object: no column is made for it.
            why = (
                f"is {said(kind)}, of which there is no index that keeps two messages of an object "
                "from running at once"
            )
        elif role == "payload" and not (loose or holds_json(kind)):
            zeros = " ZEROFILL" if getattr(kind, "zerofill", False) else ""
            why = f"is {said(kind)}{zeros}, but must hold JSON as a text"
        elif role == "headers" and (problem := describe.header_problem(live, column)):
            why = f"{problem}: traces of producers are not kept"
        elif role != "headers" and column.cuts:  # what is sent is not what is stored
            why = "cuts long texts"
        if why:
            text = f"column {column.name} ({role}) {why}"
            yield repairs.typed(live, role, column, text, is_needed=role != "headers")


def _keys(live: Live) -> Iterator[repairs.Fault]:
    """Most messages have no unique key; others send theirs as a text."""
    column = live.columns.get("unique_key")
    if column is None or has_none(live, column.kind):
        return
    name = column.name
    if not takes_any_text(column.kind) or live.pads(column.kind):
        text = f"column {name} (unique_key) is {said(column.kind)}, but must be a text"
        yield repairs.typed(
            live, "unique_key", column, text, is_needed=not live.database.loose_types
        )
    elif not column.nullable or column.default not in (None, "NULL"):
        has = "takes no NULL" if not column.nullable else f"has the default {column.default}"
        text = f"column {name} (unique_key) {has}, but messages without a key need NULL"
        yield repairs.Fault("types", True, text, repairs.emptied(live, "unique_key"))


def _texts(live: Live) -> Iterator[repairs.Fault]:
    for role, column in _there(live, WRITTEN_TEXTS):
        if has_none(live, column.kind):
            continue
        longest, is_id = max_text(column.kind), role == "claimed_by"
        made = columns.ROLES[role].type
        least = max_text(made()) if made else None
        problem = ""
        if not takes_any_text(column.kind):
            problem = f"is {said(column.kind)}, but must be a text"
            is_needed = not live.database.loose_types or _takes_no_text(live, column.kind)
        elif is_id and live.pads(column.kind):
            problem, is_needed = PADDED.format(column.kind), True
        elif longest is not None and least is not None and longest < least:
            problem = f"takes {longest} characters, {least} are needed"
            problem += "" if is_id else " for whole texts: they are cut"
            is_needed = is_id and not live.database.loose_types
        if problem:
            text = f"column {column.name} {problem}"
            yield repairs.typed(live, role, column, text, is_needed=is_needed)


def _instants(live: Live) -> Iterator[repairs.Fault]:
    for role, column in _there(live, columns.INSTANTS):
        if has_none(live, column.kind):
            continue
        name, kind = column.name, column.kind
        problem, is_needed = "", True
        if isinstance(kind, sa.DateTime | sa.TIMESTAMP | UtcDateTime):
            if live.database.zone_is_lost(kind):
                zone = live.spec.time_zone
                problem = f"column {name} has no time zone: it is read as the time of {zone}"
                is_needed = False
        elif live.database.loose_types:
            is_needed = not columns.ROLES[role].best_effort and _takes_no_text(live, kind)
            if not isinstance(kind, sa.String):
                problem = f"column {name} is {kind}: instants are kept as texts here"
        elif not (live.database.texts_as_instants and _holds_an_instant(live, role, kind)):
            problem = f"column {name} is {said(kind)}, but must be an instant"
        if problem:
            yield repairs.typed(live, role, column, problem, is_needed=is_needed)


def _takes_no_text(live: Live, kind: Any) -> bool:
    return live.strict and isinstance(kind, sa.Integer | sa.Float | sa.LargeBinary)


def _holds_an_instant(live: Live, role: str, kind: Any) -> bool:
    longest = max_text(kind)
    if role == "available_at":  # it is in an index
        most = live.database.max_key(kind)
        too_long = most is not None and (longest is None or longest > most)
        return (
            isinstance(kind, sa.VARCHAR | sa.CHAR)
            and not too_long
            and (longest or 0) >= INSTANT_TEXT
        )
    return isinstance(kind, sa.String) and (longest is None or longest >= INSTANT_TEXT)


def _ids(live: Live) -> Iterator[repairs.Fault]:
    """Ids that the database compares as equal must be equal for us."""
    column = live.columns.get("object_id")
    if column is None:
        return
    if live.fold == "unknown":
        text = f"column {column.name} (object_id) has a collation by which msgworker cannot compare"
        yield repairs.typed(live, "object_id", column, text)
    if live.database.case_index == "column" and isinstance(column.kind, BINARIES):
        text = f"column {column.name} (object_id) is {column.kind}, but must be a text or a number"
        yield repairs.Fault("types", True, text)
    if not live.database.loose_types and isinstance(column.kind, sa.JSON | sa.ARRAY | NullType):
        kind = said(column.kind)
        text = f"column {column.name} (object_id) is {kind}, but must be a text or a number"
        yield repairs.typed(live, "object_id", column, text)
    if column.changes:
        text = f"column {column.name} (object_id) changes whenever its row is updated"
        default = (column.default or "").partition(" ON UPDATE ")[0] or None
        fix = live.database.say_again(live.at(column.name), replace(column, default=default))
        yield repairs.Fault("columns", True, text, fix)
    longest = live.database.max_key(column.kind)
    length = getattr(column.kind, "length", None)
    if longest is not None and isinstance(column.kind, sa.String) and (length or 0) > longest:
        text = f"column {column.name} (object_id) takes {length} characters, an index {longest}"
        yield repairs.typed(live, "object_id", column, text)


def _nulls(live: Live) -> Iterator[repairs.Fault]:
    for role, column in _there(live, repairs.EMPTIED):
        default = (column.default or "NULL").upper()
        if role == "claimed_by" and column.nullable and not default.startswith("NULL"):
            text = f"column {column.name} has the default {column.default}: a message that another "
            text += "consumer runs looks like one of a dead instance, and is run beside it"
            yield repairs.Fault("columns", False, text, repairs.emptied(live, role))
        if column.nullable:
            continue
        text = f"column {column.name} must take NULL"
        yield repairs.Fault(
            "columns", True, *repairs.with_way_out(live, role, text, repairs.emptied(live, role))
        )


def _generated(live: Live) -> Iterator[repairs.Fault]:
    """Columns that we write must be columns that can be written; ours must be ours."""
    for role, column in live.columns.items():
        if column.generated and not columns.ROLES[role].may_be_generated:
            text = f"column {column.name} ({role}) is generated: it cannot be written"
            plain = live.database.drop_generated(live.at(column.name))
            is_needed = not columns.ROLES[role].best_effort
            yield repairs.Fault(
                "columns", is_needed, *repairs.with_way_out(live, role, text, plain)
            )
    if live.database.case_index != "column":
        return
    for column in live.all.values():
        if column.name.lower().startswith(columns.OWN_PREFIX) and not column.generated:
            text = (
                f"column {column.name} is not one of msgworker's generated columns, which begin so"
            )
            quote = live.sql.identifier_preparer.quote
            new = quote(f"x_{column.name}")
            fix = f"ALTER TABLE {live.name} RENAME COLUMN {quote(column.name)} TO {new}"
            yield repairs.Fault("columns", True, text, (fix,))


def _defaults(live: Live) -> Iterator[repairs.Fault]:
    column = live.columns.get("status")
    if column is None or column.generated:
        return
    if problem := repairs.default_problem(column):
        fix = live.database.set_default(live.at(column.name), "0")
        yield repairs.Fault("columns", False, f"column {column.name} (status) {problem}", fix)


def _domains(live: Live) -> Iterator[repairs.Fault]:
    for role, column in live.columns.items():
        if column.refuses:
            text = f"column {column.name} ({role}) is of a domain ({column.domain.name}) that does "
            text += f"not take {', '.join(describe.ROWS[name] for name in column.refuses)}"
            yield repairs.typed(live, role, column, text)


# A column that producers fill is judged by its name, all others by what they hold.
JUDGES: tuple[Callable[[Live], Iterator[repairs.Fault]], ...] = (
    # Types first: a domain may refuse the NULL that takes the place of what is empty.
    *(_numbers, _slices, _sent, _keys, _texts, _instants, _ids, _domains, _nulls, _defaults),
)
