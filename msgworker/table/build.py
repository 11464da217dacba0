"""Build the tables of one database: the user's message table as it exists, and our own tables."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache, partial
from typing import Any

import sqlalchemy as sa
from sqlalchemy.types import TypeEngine

from msgworker import db
from msgworker.db import Database, KeyText
from msgworker.table.indexes import indexing
from msgworker.table.own import ITEM, LEASE, TRY
from msgworker.table.roles import (
    HELD_KEY,
    ROLES,
    UNIQUE,
    URGENT,
    URGENT_RANK,
    ColumnRole,
)
from msgworker.table.spec import ADDED, FAILED, FAILED_MARK, OPEN_OBJECT, MessageTable
from msgworker.table.tables import Tables, add_priority_index, add_unique_index

# --- The versions of the schema: what each has added to the one before it.


@dataclass(frozen=True, slots=True)
class Version:
    """One version. adds: tables of ours without `msgworker_`, columns as table.column (the message
    table is `message`), its indexes as message:suffix."""

    number: int
    about: str
    adds: tuple[str, ...] = ()


def _columns(number: int) -> tuple[str, ...]:
    return tuple(f"message.{role.name}" for role in ROLES.values() if role.since == number)


VERSIONS = (
    Version(1, "0.1.0"),
    Version(
        2,
        "failed tries, audit, pauses",
        (
            *("try", "operation", "audit", "pause", "lease.serves"),
            *(f"message:{FAILED}", f"message.{FAILED_MARK}"),
        ),
    ),
    Version(3, "tracebacks of tries, totals of items", ("try.traceback", "item.total")),
    Version(4, "locks", ("lock",)),
    Version(
        5,
        "priorities",
        (*_columns(5), f"message.{URGENT_RANK}", f"message:{URGENT}"),
    ),
    Version(
        6,
        "unique keys",
        (
            *_columns(6),
            *(f"message.{HELD_KEY}", f"message:{UNIQUE}"),
        ),
    ),
    Version(7, "limits of topics", ("limit",)),
    Version(8, "schedules", ("schedule", *_columns(8))),
    Version(9, "requests to cancel", ("cancel",)),
    Version(10, "history for charts", ("history",)),
    Version(11, "headers of traces", _columns(11)),
    Version(12, "keys of requests", ("operation.request_key", "operation:key")),
)
NEWEST = VERSIONS[-1].number
LEAST = 1
"""The oldest version whose code may work on the newest schema. All versions since have only added:
one that takes something away, or gives it another meaning, must raise it to its own number."""
_ADDED = {name: version.number for version in VERSIONS for name in version.adds}


def version_of(name: str) -> int:
    """The version that has added a table, column or index, named as in `Version.adds`."""
    plain = re.sub(r"_t\d+b?$", "", name)  # a generated column of another rule
    return _ADDED.get(plain, _ADDED.get(re.split("[.:]", plain)[0], 1))


def reached(lacking: Iterable[str]) -> int:
    """The version of a schema that lacks these, the newest that is complete; 0 = not even the
    first."""
    return min((version_of(name) for name in lacking), default=NEWEST + 1) - 1


# --- Build the tables of one database from the user's MessageTable and the existing columns.


def tables_for(
    spec: MessageTable,
    database: Database,
    present: Mapping[str, TypeEngine[Any]] | None = None,
    indexes: frozenset[str] | None = None,
    **facts: Any,
) -> Tables:
    """The tables of `spec` for one database.

    present: name and type of the existing columns (None = as in our DDL).
    Names are matched case-insensitively, since databases fold unquoted names differently.
    facts: further fields of Tables.

    Tables of the same shape are the same ones, whatever database they are in: their statements are
    built once for all Apps of a process.
    """
    shape = (
        *(getattr(spec, named.name) for named in fields(spec)),
        database,
        None if present is None else frozenset((n, type(k), repr(k)) for n, k in present.items()),
        indexes,
        frozenset(facts.items()),
    )
    return _shared(_Shape(shape, partial(build_tables, spec, database, present, indexes, **facts)))


@dataclass(frozen=True, slots=True)
class _Shape:
    """All that tables are made of."""

    shape: tuple[Any, ...]
    build: Callable[[], Tables] = field(compare=False)


@lru_cache(maxsize=64)  # a program has a few shapes, and some more while it changes a table
def _shared(shape: _Shape) -> Tables:
    return shape.build()


def build_tables(
    spec: MessageTable,
    database: Database,
    present: Mapping[str, TypeEngine[Any]] | None = None,
    indexes: frozenset[str] | None = None,
    **facts: Any,
) -> Tables:
    """The same, of one's own."""
    names = spec.names() if present is None else live_names(spec, present)
    metadata = sa.MetaData()
    message = _message_table(spec, database, names, metadata, present or {})
    generated = (present or {}).get(OPEN_OBJECT + spec.rule)
    made_as = getattr(generated, "collation", None)
    kind = (present or {}).get(names.get("object_id", ""))
    if made_as == database.key_collation and made_as != getattr(kind, "collation", None):
        facts |= {"key_collation": made_as, "fold": None}
    tables = indexing(database)(
        spec=spec,
        database=database,
        message=message,
        lease=LEASE.made(spec, database, metadata),
        item=ITEM.made(spec, database, metadata),
        failed_try=TRY.made(spec, database, metadata),
        names=names,
        indexes=indexes,
        **facts,
    )
    tables.add_indexes()
    add_priority_index(tables)
    add_unique_index(tables)
    return tables


def live_names(spec: MessageTable, present: Iterable[str]) -> dict[str, str]:
    """Role -> name of the column as it is in the database."""
    live = {name.lower(): name for name in sorted(present)} | {n: n for n in present}
    return {
        role: live.get(name, live.get(name.lower(), ""))
        for role, name in spec.names().items()
        if name in live or name.lower() in live
    }


def _column(
    role: ColumnRole, spec: MessageTable, database: Database, there: TypeEngine[Any] | None
) -> tuple[Any, dict[str, Any]]:
    """Type and options of a column; there: the type that it has in the database."""
    kind = db.kept_as(there, database, spec.time_zone) if role.type is None else role.type()
    options: dict[str, Any] = {}
    if role.name == "msg_id":
        options = {"primary_key": True, "autoincrement": True}
    elif role.default is not None:
        defaults = {"now": db.created_default(database, spec.time_zone), "0": sa.text("0")}
        default = defaults.get(role.default, role.default)
        options = {"nullable": False, "server_default": default}
    if role.since > 1:
        options["info"] = {ADDED: role.without}
    return kind, options


def _message_table(
    spec: MessageTable,
    database: Database,
    names: dict[str, str],
    metadata: sa.MetaData,
    live: Mapping[str, TypeEngine[Any]],
) -> sa.Table:
    columns: list[sa.Column[Any]] = []
    for role, about in ROLES.items():
        if role not in names:
            continue
        kind, options = _column(about, spec, database, live.get(names[role]))
        if about.own_type:
            own = live.get(names[role], kind)
            unknown = isinstance(own, sa.types.NullType) and not database.loose_types
            kind = kind if role == "msg_id" and unknown else db.exact(own)
        exact = sa.Integer | sa.String | KeyText
        if role == "object_id" and database.loose_types and not isinstance(kind, exact):
            kind = db.AnyId()
        known = (sa.String, sa.JSON, sa.types.TypeDecorator)
        if role == "payload" and database.loose_types and not isinstance(kind, known):
            kind = sa.types.NullType()  # values are read unchanged, whatever the type
        if role == "msg_id" and not isinstance(kind, sa.Integer | sa.types.NullType):
            kind = db.WholeId()
        if role == "msg_id":
            columns.append(
                sa.Column(
                    names[role],
                    kind,
                    *database.identity(always=database.partitioned),
                    **options,
                )
            )
        else:
            columns.append(sa.Column(names[role], kind, **options))
    options = database.table_options(names.get("object_id") if database.partitioned else None)
    table = sa.Table(spec.bare_name, metadata, *columns, schema=spec.schema, **options)
    if database.partitioned:  # the ids are unique, but no constraint can say so
        table.primary_key.ddl_if(callable_=lambda *_, **__: False)
    return table
