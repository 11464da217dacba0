"""The live table: its name, columns and storage."""

from __future__ import annotations

import difflib
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Engine, Inspector
from sqlalchemy.exc import DBAPIError

from msgworker import db
from msgworker.db import (
    Database,
    connecting,
    reason_of,
)
from msgworker.errors import SchemaError
from msgworker.table import (
    DEFAULT_NAME,
    NAMED_ONLY,
    REQUIRED,
    ROLES,
    MessageTable,
)


def is_primary(inspector: Inspector, live: str, schema: str | None, column: str) -> bool:
    """Whether a column is the primary key."""
    key = inspector.get_pk_constraint(live, schema=schema).get("constrained_columns", [])
    return list(key) == [column]


def is_unique(inspector: Inspector, live: str, schema: str | None, column: str) -> bool:
    """Whether a column is the primary key, or has a unique constraint or index of its own."""
    if is_primary(inspector, live, schema, column):
        return True
    with _unwarned():
        found: list[Any] = [*inspector.get_unique_constraints(live, schema=schema)]
        found += [i for i in inspector.get_indexes(live, schema=schema) if i["unique"]]
    return any(list(one["column_names"]) == [column] for one in found)


@contextmanager
def _unwarned() -> Iterator[None]:
    """Without what SQLAlchemy says of indexes on expressions, which are left out, rightly, and of
    types it does not know, which `requirements` judges."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def storage_problem(
    conn: Connection, inspector: Inspector, spec: MessageTable, live: str
) -> list[str]:
    """What is wrong with the storage engine of the message table, and the statement that fixes it;
    [] = nothing."""
    storage = db.of(conn).weak_storage(inspector, live, spec.schema)
    if not storage:
        return []
    table = sa.Table(live, sa.MetaData(), schema=spec.schema)
    name = conn.dialect.identifier_preparer.format_table(table)
    mend = db.of(conn).strong_storage(name)
    return [f"its storage engine {storage} has no transactions. To fix it: {mend}"]


def check_names(spec: MessageTable, database: Database) -> None:
    for name in (spec.schema or "", spec.bare_name, *spec.names().values()):
        if len(name.encode()) > database.max_name:
            most = f"{database.max_name} bytes that {database.name} takes"
            raise SchemaError(f"the name {name} is longer than the {most}")


def live_name(inspector: Inspector, spec: MessageTable) -> str | None:
    """The live name of the table: exact, or the only one that differs by case."""
    try:
        names = db.names_there(inspector, spec.schema)
    except DBAPIError as error:
        if spec.schema is None or db.is_overtime(error):
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


def live_columns(engine: Engine, spec: MessageTable, live: str | None) -> dict[str, Any] | None:
    if live is None:
        return None
    with connecting(engine) as conn:
        inspector = sa.inspect(conn)
        kinds = {str(c["name"]): c["type"] for c in inspector.get_columns(live, schema=spec.schema)}
    require_columns(spec, kinds)
    return kinds


def require_columns(spec: MessageTable, kinds: dict[str, Any]) -> None:
    have = {name.lower() for name in kinds}
    lacking = [role for role in spec.names() if role in REQUIRED]
    lacking = [role for role in lacking if spec.names()[role].lower() not in have]
    if lacking:
        raise SchemaError(unnamed(spec, lacking, kinds))


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


def for_table(inspector: Inspector, spec: MessageTable, live: str, database: Database) -> Database:
    """What the database can do on this table: columns that are computed from one that a foreign key
    changes cannot be stored; indexes over partitions can be unique for objects only."""
    table = sa.Table(live, sa.MetaData(), schema=spec.schema)
    assert isinstance(inspector.bind, sa.Connection)
    database = database.having(partitioned=database.has_partitions(inspector.bind, table))
    if not database.stored_columns:
        return database
    names = spec.names()
    bases = {names[role].lower() for role in COMPUTED_FROM if role in names}
    with _unwarned():
        keys = inspector.get_foreign_keys(live, schema=spec.schema)
    for key in keys:
        options = {act: str(does).upper() for act, does in key.get("options", {}).items()}
        changes = options.get("onupdate") in CHANGING or options.get("ondelete") in CHANGING[1:]
        if changes and bases & {name.lower() for name in key["constrained_columns"]}:
            return database.having(stored_columns=False)
    return database


COMPUTED_FROM = ("object_id", "status", "error_try_times", "unique_key")
CHANGING = ("CASCADE", "SET NULL", "SET DEFAULT")


def unfilled(names: Mapping[str, str], columns: Sequence[Any]) -> tuple[str, ...]:
    """Columns without a default that our INSERT does not fill. names: role -> column name."""
    ours = {names[role] for role in FILLED if role in names}
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


FILLED = tuple(name for name, role in ROLES.items() if role.filled)


def says(names: Mapping[str, str], columns: Sequence[Any]) -> tuple[str, ...]:
    """Which of status and error_try_times an INSERT must name: those whose default is not 0."""
    default = {str(c["name"]): str(c.get("default")) for c in columns}
    roles = ("status", "error_try_times")
    return tuple(r for r in roles if not IS_ZERO.fullmatch(default.get(names.get(r, ""), "")))


IS_ZERO = re.compile(r"[\s('\"]*0[\s)'\"]*(::[\w\s]+)?\)?\s*")
"""A default as databases write it: 0, (0), '0'::smallint."""


def says_priority(names: Mapping[str, str], columns: Sequence[Any]) -> bool:
    """Whether an INSERT must name the priority: its column takes no NULL and has no default."""
    name = names.get("priority")
    return any(
        c["name"] == name and not c["nullable"] and c.get("default") is None for c in columns
    )


def near_names(inspector: Inspector, spec: MessageTable) -> list[str]:
    """Tables that the name may have meant."""
    names = inspector.get_table_names(schema=spec.schema)
    return difflib.get_close_matches(spec.bare_name, names, n=3, cutoff=0.5)


def elsewhere(conn: Connection, spec: MessageTable) -> str:
    """The hint for a missing table if another schema has one of its name; empty if none has."""
    found = db.schemas_with(conn, spec.bare_name, but=spec.schema)
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


def highest_id(conn: Connection, key: sa.Column[Any]) -> int | None:
    """The highest id of the rows of a table."""
    found = conn.scalar(sa.select(sa.func.max(key)))
    return found if isinstance(found, int) else None


def behind(source: db.IdSource, highest: int) -> str:
    """What is wrong where a sequence gives ids that rows have already, or lower ones; "" if
    nothing."""
    if source.next is None or source.next > highest:
        return ""
    stands = f"stands at {source.next - source.step}" if source.used else "has given no id yet"
    return (
        f"the sequence {source.name} {stands}, but there are ids up to {highest}: new messages "
        "run before those, or cannot be sent"
    )
