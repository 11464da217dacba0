"""The user's description of a message table: its names, limits and rules, and which of its rows are
messages (`where`)."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, Unpack

import sqlalchemy as sa
from sqlalchemy import ColumnElement
from sqlalchemy.types import TypeEngine

from msgworker.config import MAX_TRIES, nearest
from msgworker.config.values import MAX_WHERE_TEXT, WhereValue, as_where, checked_zone
from msgworker.db.database import Database
from msgworker.db.types import plain_text
from msgworker.errors import ConfigError
from msgworker.payload import is_text
from msgworker.table.columns import (
    BESIDE,
    COLUMNS,
    DEFAULT_NAME,
    DEFAULT_TRIES,
    FAILED,
    JOB,
    MAX_NAME,
    MOST_SHARDS,
    NAMED_ONLY,
    OWN_PREFIX,
    REQUIRED,
    SHARDS,
    SLICES,
    UNIQUE,
    ByRole,
    Columns,
)

# --- Rows that are no messages: the columns by which messages are told from them, and what every
# statement and index asks of these.
#
# Values are literals in the SQL text, because a partial index is used only if a query repeats its
# predicate. So only such texts are taken as are the same in all databases.

Where = tuple[tuple[str, tuple[WhereValue, ...]], ...]
"""Columns, and the values of which each holds one in every message; the first is that of those that
are sent."""
MOST_LABEL = 128
"""How our own tables name the messages."""
MARK = "msgworker_where"
"""Marks a column of the message table as one of these, with its values."""


def checked_where(given: Any) -> Where:
    """What a MessageTable takes. Raises ConfigError."""
    found = as_where({} if given is None else given, "where")
    for column in found:
        _check_name("where", column)
    return tuple(
        (column, tuple(values) if isinstance(values, list) else (values,))
        for column, values in found.items()
    )


def _check_where(
    where: Where, table: str, names: Mapping[str, str], required: Iterable[str]
) -> None:
    """Raise ConfigError for columns that msgworker uses itself. names: of these, by role."""
    if where and len(table + part_of(where)) > MOST_LABEL:
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


def part_of(where: Where) -> str:
    """It as a part of names; empty without one. An index, or a generated column, of one must not be
    used for another."""
    if not where:
        return ""
    said = repr(sorted((column.lower(), values) for column, values in where))
    return f"_w{hashlib.sha256(said.encode()).hexdigest()[:6]}"


def found_in(present: Iterable[str], wanted: Mapping[str, str]) -> dict[str, str]:
    """Those of the wanted columns that are there, by their names in the database. Matched without
    regard to case, since databases fold unquoted names differently."""
    there = list(present)
    live = {name.lower(): name for name in sorted(there)} | {name: name for name in there}
    found = {key: live.get(name, live.get(name.lower())) for key, name in wanted.items()}
    return {key: name for key, name in found.items() if name is not None}


def named_where(where: Where, present: Iterable[str]) -> dict[str, str]:
    """The columns that are there -> their names in the database."""
    return found_in(present, {column: column for column, _ in where})


def where_columns(
    where: Where, database: Database, live: Mapping[str, TypeEngine[Any]]
) -> Iterator[sa.Column[Any]]:
    """Each as it is there; else, in a table that is new, as its values need it."""
    names = named_where(where, live)
    kinds: dict[type, TypeEngine[Any]] = {
        bool: sa.Boolean() if database.booleans else sa.SmallInteger(),
        int: sa.BigInteger(),
        str: plain_text(MAX_WHERE_TEXT),
    }
    for column, values in where:
        some = next((value for value in values if value is not None), "")
        name = names.get(column, column)
        kind = live.get(name, kinds[type(some)])
        yield sa.Column(name, kind, nullable=True, info={MARK: values})


def marked_where(table: sa.Table) -> Where:
    """The same by the names in the database."""
    return tuple((column.name, column.info[MARK]) for column in table.c if MARK in column.info)


def where_problem(where: Where, kinds: Mapping[str, TypeEngine[Any]]) -> str:
    """Why a table with these columns does not fit; "" if it does. Databases convert what has
    another type, or refuse each statement: to MySQL, a text is the number 0."""
    names = named_where(where, kinds)
    for column, values in where:
        if column not in names:
            return f"has no column {column}, which where= names; it has: {', '.join(kinds)}"
        if why := _no_value_of(kinds[names[column]], values):
            return f"has a column {column} {why}"
    return ""


_TAKES: tuple[tuple[Any, type | tuple[type, ...], str], ...] = (
    (sa.Boolean, bool, "True or False"),
    (sa.Numeric | sa.Integer, (bool, int), "whole numbers"),
    (sa.String, str, "texts"),
)


def _no_value_of(kind: TypeEngine[Any], values: Iterable[WhereValue]) -> str:
    said = [value for value in values if value is not None]
    if said and isinstance(kind, sa.LargeBinary | sa.CLOB | sa.JSON | sa.Float | sa.ARRAY):
        return "of a type of which where= takes only None"
    for kinds, taken, what in _TAKES:
        other = [value for value in said if not isinstance(value, taken)]
        if other and isinstance(kind, kinds):
            return f"which takes {what} in where=, not {other[0]!r:.80}"
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
    """A value of a column in the SQL text; `checked_where` has seen what is in it."""
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


# --- The user's description of a message table: its names and its rules.

OnDead = Literal["continue", "block"]


@dataclass(frozen=True, eq=False, init=False)
class MessageTable(ByRole[str]):
    """Names and rules of a message table; the same for all instances that work on it.

    name: the table, `schema.table` allowed. Each column keyword takes the column's name in the
    table. The first four are required; the others may be None = no column. On a table of another
    name, optional columns that do not exist are ignored. shard and instance_type are
    for fleets that slice a table (`scope=` of a worker): `App.send` fills shard, a
    `Dealer` instance_type.

    priority, unique_key, unique_kept, scheduled_for, headers and job_id are columns of the
    default table; on a table of another name each is used only if it is named here, because a
    column of that name may mean something else there. Of priorities higher comes first, see
    docs/guides/priorities.md. unique_key and unique_kept go together and need finished_at, see
    docs/guides/unique.md. scheduled_for is the tick of a schedule, see docs/guides/timers.md.
    headers is JSON text with the trace of the producer, see docs/operate/tracing.md. job_id is
    the job that a message belongs to, see docs/guides/jobs.md.

    slices: which of shard and instance_type get an index of open messages, without which a scope
    also reads the messages of all others; default: those that are named here.
    shards: how many numbers `App.send` writes into shard, from 0 on; the same for all producers and
    for the life of the table.

    on_dead and max_tries are the rule of the table, recorded in the database. If the recorded rule
    differs, all programs use it; it becomes this one at a `create_schema` or a start while no
    instance is alive on the table. See docs/reference/configuration.md.

    on_dead: "continue" (the object of a dead message continues without it) or "block" (the object
    waits until an operator reruns or discards the dead message).
    max_tries: how often a message is tried between reruns, 1 or more.
    later_limit: how often a message may be postponed by RetryLater before that counts as a failure.
    visibility_delay_seconds: messages younger than this are not claimed, so that producers whose
    transactions overlap have time to commit in any order. Needs created_at; a message without
    a value there is claimed without a delay.
    max_payload: longest payload that is read, in characters (bytes on MariaDB and MySQL).
    time_zone: the zone of the local times in columns that keep none of their own, such as DATETIME
    and `timestamp`; the same for all programs. Rows of msgworker's own tables stay in UTC. See
    docs/reference/adopting.md.
    where: which rows are messages, as columns and the value of each or a list of values (texts,
    whole numbers, True, False, None): {"tenant": 7, "deleted_at": None}. All other rows are as if
    they were not there. What is sent gets the first values. See docs/reference/adopting.md.

    Raises ConfigError for invalid names and for values out of range.
    """

    name: str = DEFAULT_NAME
    on_dead: OnDead = "continue"
    max_tries: int = DEFAULT_TRIES
    later_limit: int = 100
    visibility_delay_seconds: float = 0.0
    max_payload: int = 16_000_000
    slices: tuple[str, ...] = ()
    shards: int = SHARDS
    time_zone: str = "UTC"
    where: Where = ()

    def __init__(
        self,
        name: str = DEFAULT_NAME,
        *,
        on_dead: OnDead = "continue",
        max_tries: int = DEFAULT_TRIES,
        later_limit: int = 100,
        visibility_delay_seconds: float = 0.0,
        max_payload: int = 16_000_000,
        slices: Iterable[str] | None = None,
        shards: int = SHARDS,
        time_zone: str = "UTC",
        where: Mapping[str, WhereValue | Sequence[WhereValue]] | Where | None = None,
        **columns: Unpack[Columns],
    ) -> None:
        unknown = sorted(set(columns) - set(COLUMNS))
        if unknown:
            known = (*COLUMNS, *(f.name for f in fields(MessageTable) if f.name not in COLUMNS))
            hint = nearest(unknown[0], known)
            raise ConfigError(f"MessageTable has no setting or column {unknown[0]!r}; {hint}")
        named: dict[str, Any] = {role: role for role in COLUMNS}
        if isinstance(name, str) and name.rpartition(".")[2] != DEFAULT_NAME:
            named |= dict.fromkeys(NAMED_ONLY)
        super().__init__(**{**named, **columns})
        values = {
            "name": name,
            "on_dead": on_dead,
            "max_tries": max_tries,
            "later_limit": later_limit,
            "visibility_delay_seconds": visibility_delay_seconds,
            "max_payload": max_payload,
            "slices": tuple(
                sorted(set(slices) if slices is not None else {r for r in SLICES if columns.get(r)})
            ),
            "shards": shards,
            "time_zone": checked_zone(time_zone, "time_zone"),
            "where": checked_where(where),
        }
        for key, value in values.items():
            object.__setattr__(self, key, value)
        self._check()

    def _check(self) -> None:
        parts = self.name.split(".") if isinstance(self.name, str) else []
        if len(parts) not in (1, 2):
            raise ConfigError(f"table must be 'name' or 'schema.name', got {self.name!r}")
        for part in parts:
            _check_name("table", part)
        for column in COLUMNS:
            given = getattr(self, column)
            if given is not None or column in REQUIRED:
                _check_name(column, given)
        named = [*self.names().values()]
        twice = sorted({n for n in named if named.count(n) > 1})
        if twice:
            raise ConfigError(f"column {twice[0]!r} is named twice in MessageTable")
        named += dict(self.where)
        ours = sorted(n for n in named if n.lower().startswith(OWN_PREFIX))
        if ours:
            raise ConfigError(
                f"column {ours[0]!r}: names that begin with {OWN_PREFIX} are msgworker's own; "
                "give the column another name"
            )
        if self.bare_name.lower() in {f"msgworker_{name}" for name in BESIDE}:
            raise ConfigError(
                f"table {self.name!r} is one of msgworker's own tables; name the message table"
            )
        _check_where(self.where, self.bare_name, self.names(), REQUIRED)
        if (self.unique_key is None) != (self.unique_kept is None):
            raise ConfigError(
                "unique_key and unique_kept go together: name both columns, a text and a SMALLINT"
            )
        if self.unique_key is not None and self.finished_at is None:
            raise ConfigError(
                "unique_key needs the column finished_at: a key counts until its message has ended"
            )
        if self.on_dead not in ("continue", "block"):
            raise ConfigError(f'on_dead must be "continue" or "block", got {self.on_dead!r}')
        for role in self.slices:
            if role not in SLICES or getattr(self, role) is None:
                raise ConfigError(
                    f"slices: {role!r:.60} is no column that slices this table; there are "
                    f"{', '.join(r for r in SLICES if getattr(self, r)) or 'none'}"
                )
        most = {"shards": MOST_SHARDS, "max_tries": MAX_TRIES}
        for key in ("max_tries", "later_limit", "max_payload", "shards"):
            value, least = getattr(self, key), 0 if key == "later_limit" else 1
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ConfigError(f"{key} must be a whole number from {least} on, got {value!r}")
            if key in most and value > most[key]:
                raise ConfigError(f"{key} must be at most {most[key]}, got {value}")
        delay = self.visibility_delay_seconds
        known = isinstance(delay, int | float) and not isinstance(delay, bool)
        if not (known and 0 <= delay <= 86_400):
            raise ConfigError(f"visibility_delay_seconds must be 0 to 86400, got {delay!r}")

    @property
    def schema(self) -> str | None:
        """The schema part of the name, None if there is none."""
        return self.name.split(".")[0] if "." in self.name else None

    @property
    def bare_name(self) -> str:
        """The name without its schema."""
        return self.name.rpartition(".")[2]

    @property
    def is_default(self) -> bool:
        """The default table: every column must exist."""
        return self.bare_name == DEFAULT_NAME

    def names(self) -> dict[str, str]:
        """Role -> column name, of the columns that are not None."""
        return {c: getattr(self, c) for c in COLUMNS if getattr(self, c) is not None}

    def replace(self, **changes: Any) -> MessageTable:
        """A copy with other names or rules."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return MessageTable(**(values | changes))

    def index_name(self, suffix: str, part: str | None = None) -> str:
        """A name of at most 30 characters for one of our indexes. part: that of another `where`."""
        # Index names appear unquoted in hints: letters, digits and _ only.
        plain = re.sub(r"[^a-z0-9_]", "_", self.bare_name.lower())
        plain = plain if plain[0].isalpha() else f"mw{plain}"
        part = "" if suffix == "id" else self.part if part is None else part
        rule = "" if suffix in ("guard", "id", FAILED, UNIQUE, JOB) else self.rule
        end = f"{part}{rule}_{suffix}"
        whole = plain + end
        if len(whole) <= MAX_NAME and plain == self.bare_name.lower():
            return whole
        digest = hashlib.sha256(self.bare_name.encode()).hexdigest()[:6]
        return f"{plain[: MAX_NAME - len(end) - 7]}_{digest}{end}"

    @property
    def part(self) -> str:
        """The `where` as a part of names; empty without one."""
        return part_of(self.where)

    @property
    def rule(self) -> str:
        """The rule of "unfinished" as a part of names; empty for the default rule. An index of one
        rule must not be used for another: messages that it leaves out would never be found."""
        if self.max_tries == DEFAULT_TRIES and self.on_dead == "continue":
            return ""
        return f"_t{self.max_tries}{'b' if self.on_dead == 'block' else ''}"


def _check_name(what: str, name: object) -> None:
    if not isinstance(name, str) or not name.strip():
        raise ConfigError(f"{what}: a name is needed, got {name!r}")
    if len(name) > 128:
        raise ConfigError(f"{what}: a name has at most 128 characters, got {len(name)}")
    if any(ord(ch) < 32 for ch in name):
        raise ConfigError(f"{what}: a name has no control characters, got {name!r}")
    if not is_text(name):
        raise ConfigError(f"{what}: a name is a text in UTF-8, got {name!r}")
