"""Rows that are no messages: the columns by which messages are told from them, and what every
statement and index asks of these.

Values are literals in the SQL text, because a partial index is used only if a query repeats its
predicate. So only such texts are taken as are the same in all databases.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import ColumnElement
from sqlalchemy.types import TypeEngine

from msgworker import db
from msgworker.config.values import MAX_WHERE_TEXT, WhereValue, as_where
from msgworker.db import Database
from msgworker.errors import ConfigError

Where = tuple[tuple[str, tuple[WhereValue, ...]], ...]
"""Columns, and the values of which each holds one in every message; the first is that of those that
are sent."""
MOST_LABEL = 128
"""How our own tables name the messages."""
MARK = "msgworker_where"
"""Marks a column of the message table as one of these, with its values."""


def checked(given: Any, check_name: Callable[[str, object], None]) -> Where:
    """What a MessageTable takes. Raises ConfigError."""
    found = as_where({} if given is None else given, "where")
    for column in found:
        check_name("where", column)
    return tuple(
        (column, tuple(values) if isinstance(values, list) else (values,))
        for column, values in found.items()
    )


def check_columns(
    where: Where, table: str, names: Mapping[str, str], required: Iterable[str]
) -> None:
    """Raise ConfigError for columns that msgworker uses itself. names: of these, by role."""
    if where and len(table + part(where)) > MOST_LABEL:
        raise ConfigError(f"where: the name of table {table!r:.140} is too long for one")
    roles = {name.lower(): role for role, name in names.items()}
    columns = [column.lower() for column, _ in where]
    for column in columns:
        if (role := roles.get(column)) is not None:
            hint = "" if role in required else f", or say MessageTable({role}=None)"
            raise ConfigError(
                f"where: column {column!r} is msgworker's {role} in this table; name a column of "
                f"yours{hint}"
            )
        if columns.count(column) > 1:
            raise ConfigError(f"where: column {column!r} is named twice")


def part(where: Where) -> str:
    """It as a part of names; empty without one. An index, or a generated column, of one must not be
    used for another."""
    if not where:
        return ""
    said = repr(sorted((column.lower(), values) for column, values in where))
    return f"_w{hashlib.sha256(said.encode()).hexdigest()[:6]}"


def named(where: Where, present: Iterable[str]) -> dict[str, str]:
    """The columns that are there -> their names in the database."""
    there = list(present)
    live = {name.lower(): name for name in sorted(there)} | {name: name for name in there}
    found = {column: live.get(column, live.get(column.lower())) for column, _ in where}
    return {column: name for column, name in found.items() if name is not None}


def columns(
    where: Where, database: Database, live: Mapping[str, TypeEngine[Any]]
) -> Iterator[sa.Column[Any]]:
    """Each as it is there; else, in a table that is new, as its values need it."""
    names = named(where, live)
    for column, values in where:
        some = next((value for value in values if value is not None), "")
        kinds: dict[type, TypeEngine[Any]] = {
            bool: sa.Boolean() if database.booleans else sa.SmallInteger(),
            int: sa.BigInteger(),
            str: db.plain_text(MAX_WHERE_TEXT),
        }
        name = names.get(column, column)
        kind = live.get(name, kinds[type(some)])
        yield sa.Column(name, kind, nullable=True, info={MARK: values})


def marked(table: sa.Table) -> Where:
    """The same by the names in the database."""
    return tuple((column.name, column.info[MARK]) for column in table.c if MARK in column.info)


def problem(where: Where, kinds: Mapping[str, TypeEngine[Any]]) -> str:
    """Why a table with these columns does not fit; "" if it does.

    Databases convert what has another type, or refuse each statement: to MySQL, a text is the
    number 0.
    """
    names = named(where, kinds)
    for column, values in where:
        if column not in names:
            return f"has no column {column}, which where= names; it has: {', '.join(kinds)}"
        if why := _no_value_of(kinds[names[column]], values):
            return f"has a column {column} {why}"
    return ""


def _no_value_of(kind: TypeEngine[Any], values: Iterable[WhereValue]) -> str:
    for value in values:
        if value is None:
            continue
        if isinstance(kind, sa.LargeBinary | sa.CLOB | sa.JSON | sa.Float | sa.ARRAY):
            return "of a type of which where= takes only None"
        if isinstance(kind, sa.Boolean) and not isinstance(value, bool):
            return f"which takes True or False in where=, not {value!r:.80}"
        if isinstance(kind, sa.Numeric | sa.Integer) and isinstance(value, str):
            return f"which takes whole numbers in where=, not {value!r:.80}"
        if isinstance(kind, sa.String) and not isinstance(value, str):
            return f"which takes texts in where=, not {value!r:.80}"
    return ""


def one_of(
    database: Database, column: ColumnElement[Any], values: Sequence[WhereValue]
) -> ColumnElement[bool]:
    """The column holds one of the values."""
    said = [literal(database, column, value) for value in values if value is not None]
    if not said:
        return column.is_(None)
    found: ColumnElement[bool]
    if _has_truth(database, column):
        found = sa.or_(*(column.is_(value) for value in said))
    else:
        found = column == said[0] if len(said) == 1 else column.in_(said)
    return found if len(said) == len(values) else sa.or_(column.is_(None), found)


def literal(
    database: Database, column: ColumnElement[Any], value: WhereValue
) -> ColumnElement[Any]:
    """A value of a column in the SQL text; `checked` has seen what is in it."""
    if value is None:
        return sa.null()
    if isinstance(value, bool):
        if _has_truth(database, column):
            return sa.true() if value else sa.false()
        return sa.literal_column(str(int(value)))
    if isinstance(value, int):
        return sa.literal_column(str(value), sa.BigInteger())
    quoted = value.replace("'", "''")
    return sa.literal_column(f"'{quoted}'", sa.String())


def _has_truth(database: Database, column: ColumnElement[Any]) -> bool:
    return database.booleans and isinstance(column.type, sa.Boolean)
