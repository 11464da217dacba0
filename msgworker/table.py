"""The message table: names to columns, the predicates of the protocol, the indexes and why each
exists.

`MessageTable` is what a user writes: names and rules. `Tables` is what the statements are built
from: the same for one database, with the columns that are really there.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy import ColumnElement, FromClause
from sqlalchemy.sql.elements import Grouping
from sqlalchemy.types import TypeEngine

from msgworker import dialects
from msgworker.config import MAX_TRIES as MOST_TRIES
from msgworker.config import nearest
from msgworker.dialects import Dialect, Instants, KeyText, UtcDateTime, now, now_plus
from msgworker.errors import ConfigError
from msgworker.message import DEFAULT_TOPIC, Status

DEFAULT_NAME = "msgworker_message"
REQUIRED = ("msg_id", "object_id", "status", "error_try_times")
OPTIONAL = (
    "topic",
    "payload",
    "available_at",
    "claimed_by",
    "claimed_at",
    "crash_times",
    "later_times",
    "last_error",
    "created_at",
    "finished_at",
    "shard",
    "instance_type",
)
COLUMNS = REQUIRED + OPTIONAL
SLICES = {"shard": "shard", "instance_type": "flag"}
"""The columns that slice a table among instances, and the suffixes of their indexes."""
SHARDS = 64
MAX_FLAG = 30
"""Characters of an instance_type."""
MOST_SHARDS = 32_767
"""What a SMALLINT takes."""
MAX_NAME = 30  # Oracle before 12.2
MAX_OBJECT_ID = 190
MAX_ERROR = 2000
LONGEST_ID = 64
"""Characters of an instance's id."""
MAX_TRIES = 3
ADDED = "msgworker_added"
"""Marks a column that a later version has added to a table of ours, and says what is not kept where
it is missing; instances do without it."""
FAILED = "failed"
"""The suffix of the index of failed and dead rows."""
BESIDE = ("lease", "item", "try", "operation", "audit", "pause", "lock")
"""Our own tables beside the message table, without `msgworker_`."""
OWN_PREFIX = "mw_"
"""How our generated columns and the parameters of our statements begin."""
NO_OBJECT = "~msgworker.none~"
"""What `open_object` holds for an open message without an object."""
NO_OBJECT_RUNNING = "~msgworker.running~"
"""The same for a running one, so that those are found without reading all the others."""

R = TypeVar("R")


@dataclass(frozen=True, kw_only=True, eq=False)
class _Names:
    msg_id: str = "msg_id"
    object_id: str = "object_id"
    status: str = "status"
    error_try_times: str = "error_try_times"
    topic: str | None = "topic"
    payload: str | None = "payload"
    available_at: str | None = "available_at"
    claimed_by: str | None = "claimed_by"
    claimed_at: str | None = "claimed_at"
    crash_times: str | None = "crash_times"
    later_times: str | None = "later_times"
    last_error: str | None = "last_error"
    created_at: str | None = "created_at"
    finished_at: str | None = "finished_at"
    shard: str | None = "shard"
    instance_type: str | None = "instance_type"


@dataclass(frozen=True, eq=False, init=False)
class MessageTable(_Names):
    """Names and rules of a message table; the same for all instances that work on it.

    name: the table, `schema.table` allowed. Each column keyword takes the column's name in the
    table. The first four are needed; the others may be None = not there. On a table of another
    name, an optional column that is not in the table is done without. shard and instance_type are
    for fleets that slice a table among them (`scope=` of a worker): `App.send` fills shard, a
    `Dealer` instance_type.

    slices: which of shard and instance_type get an index of open messages, without which a scope
    reads those of all others, too; left out: those that are named here.
    shards: how many numbers `App.send` writes into shard, from 0 on; the same for all producers and
    for the life of the table.

    on_dead and max_tries are the rule of the table, recorded in the database: where it has another
    one, all work and look by that, and it becomes this one at a `create_schema` or a start while no
    instance works on the table. See docs/configuration.md.

    on_dead: "continue" (a dead message is dropped and its object goes on) or "block" (the object
    waits until somebody reruns or discards the dead message).
    max_tries: how often a message is tried between reruns, 1 or more.
    later_limit: how often a message may ask for RetryLater before that counts as a failure.
    visibility_delay_seconds: messages younger than this are not claimed, so that producers whose
    transactions overlap have time to commit in any order. Needs created_at; where that is NULL a
    message is not waited for.
    max_payload: longest payload that is read, in characters (bytes on MariaDB and MySQL).

    Raises ConfigError for names that cannot be names and for values out of range.
    """

    name: str = DEFAULT_NAME
    on_dead: str = "continue"
    max_tries: int = MAX_TRIES
    later_limit: int = 100
    visibility_delay_seconds: float = 0.0
    max_payload: int = 16_000_000
    slices: tuple[str, ...] = ()
    shards: int = SHARDS

    def __init__(
        self,
        name: str = DEFAULT_NAME,
        *,
        on_dead: str = "continue",
        max_tries: int = MAX_TRIES,
        later_limit: int = 100,
        visibility_delay_seconds: float = 0.0,
        max_payload: int = 16_000_000,
        slices: Iterable[str] | None = None,
        shards: int = SHARDS,
        **columns: str | None,
    ) -> None:
        unknown = sorted(set(columns) - set(COLUMNS))
        if unknown:
            known = (*COLUMNS, *(f.name for f in fields(MessageTable) if f.name not in COLUMNS))
            hint = nearest(unknown[0], known)
            raise ConfigError(f"MessageTable has no setting or column {unknown[0]!r}; {hint}")
        super().__init__(**columns)  # type: ignore[arg-type]
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
        named = [n for n in self.names().values()]
        twice = sorted({n for n in named if named.count(n) > 1})
        if twice:
            raise ConfigError(f"column {twice[0]!r} is named twice in MessageTable")
        ours = sorted(n for n in named if n.lower().startswith(OWN_PREFIX))
        if ours:
            raise ConfigError(
                f"column {ours[0]!r}: names that begin with {OWN_PREFIX} are msgworker's own; "
                "give the column another name"
            )
        if self.bare_name.lower() in {f"msgworker_{name}" for name in BESIDE}:
            raise ConfigError(
                f"table {self.name!r} is one of msgworker's own tables beside the message table; "
                "name the message table"
            )
        if self.on_dead not in ("continue", "block"):
            raise ConfigError(f'on_dead must be "continue" or "block", got {self.on_dead!r}')
        for role in self.slices:
            if role not in SLICES or getattr(self, role) is None:
                raise ConfigError(
                    f"slices: {role!r:.60} is no column that slices this table; there are "
                    f"{', '.join(r for r in SLICES if getattr(self, r)) or 'none'}"
                )
        whole = {"max_tries": 1, "later_limit": 0, "max_payload": 1, "shards": 1}
        for key, least in whole.items():
            value = getattr(self, key)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ConfigError(f"{key} must be a whole number from {least} on, got {value!r}")
        if self.shards > MOST_SHARDS:
            raise ConfigError(f"shards must be at most {MOST_SHARDS}, got {self.shards}")
        if self.max_tries > MOST_TRIES:
            raise ConfigError(f"max_tries must be at most {MOST_TRIES}, got {self.max_tries}")
        delay = self.visibility_delay_seconds
        if (
            isinstance(delay, bool)
            or not isinstance(delay, int | float)
            or not 0 <= delay <= 86_400
        ):
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
        """Our own table: every column must be there."""
        return self.bare_name == DEFAULT_NAME

    def names(self) -> dict[str, str]:
        """Role -> column name, of the columns that are not None."""
        return {c: getattr(self, c) for c in COLUMNS if getattr(self, c) is not None}

    def replace(self, **changes: Any) -> MessageTable:
        """A copy with other names or rules."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return MessageTable(**(values | changes))

    def index_name(self, suffix: str) -> str:
        """A name of at most 30 characters for one of our indexes."""
        # Index names stand in hints, which nobody quotes: letters, digits and _ only.
        plain = re.sub(r"[^a-z0-9_]", "_", self.bare_name.lower())
        plain = plain if plain[0].isalpha() else f"mw{plain}"
        end = f"_{suffix}" if suffix in ("guard", FAILED) else f"{self.rule}_{suffix}"
        whole = plain + end
        if len(whole) <= MAX_NAME and plain == self.bare_name.lower():
            return whole
        digest = hashlib.sha256(self.bare_name.encode()).hexdigest()[:6]
        return f"{plain[: MAX_NAME - len(end) - 7]}_{digest}{end}"

    @property
    def rule(self) -> str:
        """What "unfinished" means here, as a part of names; empty for the usual rule.

        An index, or a generated column, made for one rule must not be taken for that of another:
        what it leaves out would never be found.
        """
        if self.max_tries == MAX_TRIES and self.on_dead == "continue":
            return ""
        return f"_t{self.max_tries}{'b' if self.on_dead == 'block' else ''}"


def _check_name(what: str, name: object) -> None:
    if not isinstance(name, str) or not name.strip():
        raise ConfigError(f"{what}: a name is needed, got {name!r}")
    if len(name) > 128:
        raise ConfigError(f"{what}: a name has at most 128 characters, got {len(name)}")
    if any(ord(ch) < 32 for ch in name):
        raise ConfigError(f"{what}: a name has no control characters, got {name!r}")


@dataclass(frozen=True, slots=True)
class Slice:
    """The messages whose column `role` (shard or instance_type) holds one of `values`.

    exclusive: nobody else is meant to look there now.
    """

    role: str
    values: tuple[Any, ...]
    exclusive: bool = True


@dataclass(frozen=True, slots=True)
class Cols:
    """The columns of the message table, or of an alias of it, by role; None = not there."""

    msg_id: ColumnElement[int]
    object_id: ColumnElement[str | None]
    status: ColumnElement[int]
    error_try_times: ColumnElement[int]
    topic: ColumnElement[Any] | None = None
    payload: ColumnElement[Any] | None = None
    available_at: ColumnElement[Any] | None = None
    claimed_by: ColumnElement[Any] | None = None
    claimed_at: ColumnElement[Any] | None = None
    crash_times: ColumnElement[Any] | None = None
    later_times: ColumnElement[Any] | None = None
    last_error: ColumnElement[Any] | None = None
    created_at: ColumnElement[Any] | None = None
    finished_at: ColumnElement[Any] | None = None
    shard: ColumnElement[Any] | None = None
    instance_type: ColumnElement[Any] | None = None
    open_object_column: ColumnElement[Any] | None = None
    running_object_column: ColumnElement[Any] | None = None
    failed_column: ColumnElement[Any] | None = None


@dataclass(frozen=True, eq=False)
class Tables:
    """The tables for one database, the predicates of the protocol, and a cache of built statements.

    names: role -> column name, of the columns that are there. indexes: the names of the indexes
    that are there, lower case; None = all of ours. missing: those of the tables for ops that are
    not there; instances do without them. lacking: columns of our own tables, as table.column, that
    a later version has added and that are not there; what they are for is left out. unfit: why no
    instance starts on this table, with the statements that mend it. error_room: how many characters
    of an error are kept. instants: what `available_at` holds. key_collation: by which objects are
    told apart where the generated columns were made with another one than the column of the ids
    has; None = by that of the column. fold: how ids that differ may then be one, see
    `dialects.folded`.
    """

    spec: MessageTable
    dialect: Dialect
    message: sa.Table
    lease: sa.Table
    item: sa.Table
    tried: sa.Table
    names: dict[str, str]
    indexes: frozenset[str] | None = None
    unfilled: tuple[str, ...] = ()
    missing: frozenset[str] = frozenset()
    lacking: frozenset[str] = frozenset()
    key_collation: str | None = None
    fold: str | None = None
    unfit: str = ""
    error_room: int = MAX_ERROR
    instants: Instants = field(default_factory=Instants)
    _built: dict[Any, Any] = field(default_factory=dict)

    def built(self, key: Any, build: Callable[[], R]) -> R:
        """The statement under `key`, built at the first call: once per table and database."""
        if key not in self._built:
            self._built[key] = build()
        found: R = self._built[key]
        return found

    def keeps(self, column: sa.Column[Any]) -> bool:
        """Whether a column of one of our own tables is there; see `lacking`."""
        return not self.lacking or f"{column.table.name}.{column.name}" not in self.lacking

    def cols(self, source: FromClause | None = None) -> Cols:
        """The columns by role, of the table or of an alias of it."""
        source = self.message if source is None else source
        found = {role: source.c[name] for role, name in self.names.items()}
        if self.dialect.case_index == "column":
            found["open_object_column"] = source.c[OPEN_OBJECT + self.spec.rule]
            found["failed_column"] = source.c[FAILED_MARK]
        if self.dialect.guard_case == "column":
            found["running_object_column"] = source.c[RUNNING_OBJECT]
        return Cols(**found)

    def hinted(self, query: sa.Select[Any], source: FromClause, suffix: str) -> sa.Select[Any]:
        """The query with the advice to read `source` by one of our indexes, if it is there."""
        index = self.spec.index_name(suffix)
        if self.dialect.index_hint is None:
            return query
        if self.indexes is not None and index not in self.indexes:
            return query
        return query.with_hint(source, self.dialect.index_hint.format(index))

    def among(self, column: ColumnElement[Any]) -> ColumnElement[bool]:
        """`column` is one of the ids given as the parameter `mw_ids`, a list."""
        if not self.dialect.json_lists:
            return column.in_(sa.bindparam("mw_ids", expanding=True))
        ids = sa.func.json_each(sa.bindparam("mw_ids", type_=dialects.JsonList()))
        return column.in_(sa.select(sa.literal_column("value")).select_from(ids))

    def has(self, role: str) -> bool:
        """Whether the table has the column of this role."""
        return role in self.names

    # -- predicates; statuses are literals: an index with a predicate is used only if it is repeated

    def tries(self, c: Cols) -> ColumnElement[int]:
        """Failed tries; a NULL that a foreign producer left counts as 0."""
        return sa.func.coalesce(c.error_try_times, sa.literal_column("0"))

    def tries_left(self, c: Cols) -> ColumnElement[bool]:
        return self.tries(c) < sa.literal_column(str(self.spec.max_tries))

    def unfinished(self, c: Cols) -> ColumnElement[bool]:
        """Holds back its successors: new, running, failed with tries left (block: dead too).

        A discarded message has max_tries + 1 tries under on_dead="block", so it blocks no more.
        """
        last = self.spec.max_tries + (self.spec.on_dead == "block")
        return sa.or_(
            c.status.in_([sa.literal_column("0"), sa.literal_column("1")]),
            sa.and_(c.status == lit(Status.FAILED), self.tries(c) < sa.literal_column(str(last))),
        )

    def claimable(self, c: Cols) -> ColumnElement[bool]:
        """May be claimed as far as its own status goes."""
        return sa.or_(
            c.status == lit(Status.NEW),
            sa.and_(c.status == lit(Status.FAILED), self.tries_left(c)),
        )

    def due(self, c: Cols) -> ColumnElement[bool]:
        """Not before `available_at`, and old enough to be seen."""
        parts: list[ColumnElement[bool]] = []
        if c.available_at is not None:
            parts.append(sa.or_(c.available_at.is_(None), c.available_at <= now()))
        if self.spec.visibility_delay_seconds and c.created_at is not None:
            delay = -float(self.spec.visibility_delay_seconds)
            old = c.created_at <= now_plus(sa.literal(delay, sa.Float()))
            parts.append(sa.or_(c.created_at.is_(None), old))  # made before the column was added
        return sa.and_(*parts) if parts else sa.true()

    def running(self, c: Cols) -> ColumnElement[bool]:
        return c.status == lit(Status.PROCESSING)

    def failed(self, c: Cols) -> ColumnElement[bool]:
        """Failed or dead; the predicate of their index."""
        return c.status == lit(Status.FAILED)

    def failed_key(self, c: Cols) -> ColumnElement[Any]:
        """What the index of failed rows is ordered by: `msg_id`, or NULL for every other row."""
        if self.dialect.case_index == "function":
            return sa.case((self.failed(c), c.msg_id))
        return c.msg_id

    def failed_rows(self, c: Cols) -> ColumnElement[bool]:
        """Failed and dead rows, as a query by their index asks for them."""
        if c.failed_column is not None:
            return c.failed_column == sa.literal_column("1")
        return self.failed(c) if self.dialect.partial_indexes else self.failed_key(c).is_not(None)

    def mine(self, c: Cols, me: ColumnElement[Any]) -> ColumnElement[bool]:
        """The fence: flagged, and by us. Without `claimed_by` only the status can be asked, and
        `same_tries`, since whoever takes a flag away counts a try.

        For statements that name rows by primary key. Where planners take no hints, `status = 1`
        would lead them to the guard index, which is full of entries of rows that have moved on.
        """
        running = self.running(c)
        if self.dialect.index_hint is None:
            running = sa.and_(c.status > lit(Status.NEW), c.status < lit(Status.DONE))
        return running if c.claimed_by is None else sa.and_(running, c.claimed_by == me)

    def same_tries(self, c: Cols, counted: bool) -> list[ColumnElement[bool]]:
        """As many failed tries as `mw_tries` says; counted: False asks nothing."""
        if not counted:
            return []
        return [self.tries(c) == sa.bindparam("mw_tries", type_=sa.Integer())]

    def open_object(self, c: Cols) -> ColumnElement[Any]:
        """`object_id` of unfinished rows as the object index holds it."""
        if self.dialect.case_index == "column":
            assert c.open_object_column is not None
            return c.open_object_column
        if self.dialect.case_index == "function":
            return self._open_case(c)
        return c.object_id

    def object_key(self, c: Cols) -> ColumnElement[Any]:
        """`object_id` as `open_object` and the guard write it: text, where they are a CASE."""
        if self.dialect.case_index is None:
            return c.object_id
        kind = c.object_id.type
        if isinstance(kind, sa.String | KeyText):
            key: Any = c.object_id
            if self.dialect.case_index == "column" and isinstance(kind, sa.CHAR):
                key = sa.func.rtrim(key)  # which does not depend on a setting of the session
            return dialects.recollated(key, self.key_collation) if self.key_collation else key
        return sa.cast(c.object_id, sa.String(MAX_OBJECT_ID))

    def _open_case(self, c: Cols) -> ColumnElement[Any]:
        loose = sa.case((self.running(c), text_lit(NO_OBJECT_RUNNING)), else_=text_lit(NO_OBJECT))
        return sa.case((self.unfinished(c), sa.func.coalesce(self.object_key(c), loose)))

    def open_msg_id(self, c: Cols) -> ColumnElement[int]:
        """`msg_id` as the object index holds it."""
        if self.dialect.case_index == "function":  # an entry of NULLs only is not in the index
            return sa.case((self.unfinished(c), c.msg_id))
        return c.msg_id

    def open_rows(self, c: Cols) -> ColumnElement[bool]:
        """The predicate that lets a query use the object index."""
        return self.unfinished(c) if self.dialect.partial_indexes else sa.true()

    def oldest_key(self, c: Cols) -> ColumnElement[Any]:
        """What the index of open rows by age is ordered by."""
        return self._oldest_case(c) if self.dialect.case_index == "function" else c.msg_id

    def _oldest_case(self, c: Cols) -> ColumnElement[Any]:
        return sa.case((self._oldest_rows(c), c.msg_id))

    def _oldest_rows(self, c: Cols) -> ColumnElement[bool]:
        if c.available_at is None:
            return self.unfinished(c)
        return sa.and_(self.unfinished(c), c.available_at.is_(None))

    def oldest_rows(self, c: Cols) -> ColumnElement[bool]:
        """Open rows that wait for no instant; the predicate of the index by age."""
        return self._oldest_rows(c) if self.dialect.partial_indexes else sa.true()

    def slice_key(self, c: Cols, role: str) -> ColumnElement[Any]:
        """The column of a slice as its index holds it."""
        column = getattr(c, role)
        if self.dialect.case_index == "function":  # an entry of NULLs only is not in the index
            return sa.case((self.unfinished(c), self.slice_value(c, role)))
        assert column is not None
        found: ColumnElement[Any] = column
        return found

    def in_slices(self, c: Cols) -> ColumnElement[bool]:
        """Unfinished, as the partial index of slices says it: so that no planner takes another
        index of open rows for it, in which those of all slices stand."""
        one: ColumnElement[int] = sa.literal_column("1")
        return sa.case((self.unfinished(c), one), else_=sa.literal_column("0")) == one

    def slice_rows(self, c: Cols, role: str) -> ColumnElement[bool]:
        """The predicate that lets a query use the index of a slice."""
        if not self.dialect.partial_indexes:
            return self.open_object(c).is_not(None)
        there = self.indexes is None or self.spec.index_name(SLICES[role]) in self.indexes
        return self.in_slices(c) if there else self.unfinished(c)

    def slice_value(self, c: Cols, role: str) -> ColumnElement[Any]:
        """In which slice a row is; a NULL that a foreign producer left counts as shard 0."""
        column = getattr(c, role)
        assert column is not None
        none: ColumnElement[int] = sa.literal_column("0")
        return sa.func.coalesce(column, none) if role == "shard" else column

    def running_object(self, c: Cols) -> ColumnElement[Any]:
        """`object_id` of the running row, NULL for every other: the guard's key."""
        if c.running_object_column is not None:
            return c.running_object_column
        return sa.case((self.running(c), self.object_key(c)))

    def object_is_running(self, of: Cols) -> ColumnElement[bool]:
        """Another row of the object is flagged."""
        source = self.message.alias("r")
        other = self.cols(source)
        if self.dialect.partial_indexes:
            match = sa.and_(other.object_id == of.object_id, self.running(other))
        else:
            match = self.running_object(other) == self.object_key(of)
        found = self.hinted(sa.select(sa.literal_column("1")), source, "guard").where(match)
        return sa.and_(of.object_id.is_not(None), sa.exists(found))

    def earlier_unfinished(self, of: Cols) -> ColumnElement[bool]:
        """A lower message of the object is unfinished: the row is not the head."""
        source = self.message.alias("e")
        other = self.cols(source)
        found = self.hinted(sa.select(sa.literal_column("1")), source, "object").where(
            self.open_object(other) == self.object_key(of),
            other.msg_id < of.msg_id,
            self.open_rows(other),
        )
        return sa.and_(of.object_id.is_not(None), sa.exists(found))

    @property
    def object_type(self) -> TypeEngine[Any]:
        """The type of `object_id`, for parameters that are compared with it."""
        return self.cols().object_id.type

    @property
    def key_type(self) -> TypeEngine[Any]:
        """The type of `open_object`, for cursors."""
        if self.dialect.case_index:
            return sa.String()
        kind = self.object_type
        return dialects.AnyText() if isinstance(kind, sa.String | KeyText) else kind

    def values(self, **roles: Any) -> dict[str, Any]:
        """Values for an UPDATE or INSERT by role; columns that are not there are left out."""
        return {self.names[role]: value for role, value in roles.items() if role in self.names}

    def tries_last(self, values: dict[str, Any]) -> list[tuple[str, Any]]:
        """`values` of an UPDATE in which other columns depend on the tries, for `ordered_values`.

        MariaDB and MySQL assign from left to right: behind it they would see the new number.
        """
        last = self.names["error_try_times"]
        return sorted(values.items(), key=lambda item: item[0] == last)

    # -- the guard

    @property
    def guard_name(self) -> str:
        return self.spec.index_name("guard")


def lit(status: Status) -> ColumnElement[int]:
    """A status as a literal in the SQL text."""
    return sa.literal_column(str(int(status)), sa.Integer())


def text_lit(text: str) -> ColumnElement[str]:
    """One of our own constants as a literal in the SQL text."""
    return sa.literal(text, sa.String(), literal_execute=True)


OPEN_OBJECT = "mw_open_object"
FAILED_MARK = "mw_failed"
RUNNING_OBJECT = "mw_running_object"


def tables_for(
    spec: MessageTable,
    dialect: Dialect,
    present: Mapping[str, TypeEngine[Any]] | None = None,
    indexes: frozenset[str] | None = None,
) -> Tables:
    """The tables of `spec` for one database.

    present: name and type of the columns that are really there (None = as our DDL makes them).
    Names are matched without regard to case, since databases fold unquoted names differently.
    """
    names = spec.names()
    if present is not None:
        live = {name.lower(): name for name in sorted(present)} | {n: n for n in present}
        names = {
            role: live.get(name, live.get(name.lower(), ""))
            for role, name in names.items()
            if name in live or name.lower() in live
        }
    metadata = sa.MetaData()
    message = _message_table(spec, dialect, names, metadata, present or {})
    generated = (present or {}).get(OPEN_OBJECT + spec.rule)
    made_as = getattr(generated, "collation", None)
    kind = (present or {}).get(names.get("object_id", ""))
    other = made_as == dialect.key_collation and made_as != getattr(kind, "collation", None)
    tables = Tables(
        spec=spec,
        dialect=dialect,
        message=message,
        lease=_lease_table(spec, dialect, metadata),
        item=_item_table(spec, dialect, metadata),
        tried=_try_table(spec, dialect, metadata),
        names=names,
        indexes=indexes,
        key_collation=made_as if other else None,
    )
    _add_indexes(tables)
    return tables


def _message_table(
    spec: MessageTable,
    dialect: Dialect,
    names: dict[str, str],
    metadata: sa.MetaData,
    live: Mapping[str, TypeEngine[Any]],
) -> sa.Table:
    kinds: dict[str, tuple[Any, dict[str, Any]]] = {
        "msg_id": (dialects.big_id(), {"primary_key": True, "autoincrement": True}),
        "topic": (dialects.plain_text(100), {"nullable": False, "server_default": DEFAULT_TOPIC}),
        "object_id": (dialects.key_text(MAX_OBJECT_ID), {}),
        "status": (sa.SmallInteger(), {"nullable": False, "server_default": sa.text("0")}),
        "error_try_times": (sa.SmallInteger(), {"nullable": False, "server_default": sa.text("0")}),
        "payload": (dialects.long_text(), {}),
        "available_at": (UtcDateTime(), {}),
        "claimed_by": (dialects.plain_text(64), {}),
        "claimed_at": (UtcDateTime(), {}),
        "crash_times": (sa.SmallInteger(), {"nullable": False, "server_default": sa.text("0")}),
        "later_times": (sa.SmallInteger(), {"nullable": False, "server_default": sa.text("0")}),
        "last_error": (dialects.plain_text(MAX_ERROR), {}),
        "created_at": (
            UtcDateTime(),
            {"nullable": False, "server_default": dialects.created_default(dialect.name)},
        ),
        "finished_at": (UtcDateTime(), {}),
        "shard": (sa.SmallInteger(), {"nullable": False, "server_default": sa.text("0")}),
        "instance_type": (dialects.plain_text(MAX_FLAG), {}),
    }
    columns: list[sa.Column[Any]] = []
    for role, (kind, options) in kinds.items():
        if role not in names:
            continue
        if role in ("msg_id", "object_id", "payload"):  # a foreign table's own type decides
            kind = live.get(names[role], kind)
        exact = sa.Integer | sa.String | KeyText
        if role == "object_id" and dialect.loose_types and not isinstance(kind, exact):
            kind = dialects.AnyId()
        if role == "msg_id" and not isinstance(kind, sa.Integer | sa.types.NullType):
            kind = dialects.WholeId()
        if role == "msg_id":
            columns.append(
                sa.Column(names[role], kind, *dialects.identity(dialect.name), **options)
            )
        else:
            columns.append(sa.Column(names[role], kind, **options))
    options = dialects.table_options(dialect.name)
    return sa.Table(spec.bare_name, metadata, *columns, schema=spec.schema, **options)


def _lease_table(spec: MessageTable, dialect: Dialect, metadata: sa.MetaData) -> sa.Table:
    """Expiring rights to a name; an instance holds one on its own id.

    term grows with every renewal and take-over, so that a take-over can name exactly what it saw.
    serves: the message table and the topics that an instance handles, as JSON, for people.
    """
    return sa.Table(
        "msgworker_lease",
        metadata,
        sa.Column("name", dialects.key_text(64), primary_key=True),
        sa.Column("kind", dialects.plain_text(20), nullable=False, server_default="instance"),
        sa.Column("term", sa.BigInteger(), nullable=False, server_default=sa.text("0")),
        sa.Column("taken_by", dialects.plain_text(64)),
        sa.Column("expires_at", UtcDateTime(), nullable=False),
        sa.Column("started_at", UtcDateTime(), nullable=False),
        sa.Column("renewed_at", UtcDateTime(), nullable=False),
        sa.Column("label", dialects.plain_text(200)),
        sa.Column("in_hand", sa.Integer(), nullable=False, server_default=sa.text("0")),
        sa.Column("serves", dialects.long_text()),
        schema=spec.schema,
        **dialects.engine_options(dialect.name),
    )


def _item_table(spec: MessageTable, dialect: Dialect, metadata: sa.MetaData) -> sa.Table:
    """Units of fan-out inside a message: what is done is not done again."""
    return sa.Table(
        "msgworker_item",
        metadata,
        sa.Column("table_name", dialects.key_text(60), primary_key=True),
        sa.Column("msg_id", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("item_key", dialects.key_text(MAX_OBJECT_ID), primary_key=True),
        sa.Column("status", sa.SmallInteger(), nullable=False),
        sa.Column("tries", sa.SmallInteger(), nullable=False, server_default=sa.text("0")),
        sa.Column("item_value", dialects.long_text()),
        sa.Column("last_error", dialects.plain_text(MAX_ERROR)),
        sa.Column("finished_at", UtcDateTime()),
        sa.Column("total", sa.Integer(), info={ADDED: "nobody sees how many items are left"}),
        schema=spec.schema,
        **dialects.engine_options(dialect.name),
    )


def _try_table(spec: MessageTable, dialect: Dialect, metadata: sa.MetaData) -> sa.Table:
    """Failed tries: their errors and times; written beside the message, never by a success."""
    table = sa.Table(
        "msgworker_try",
        metadata,
        sa.Column("table_name", dialects.key_text(128), primary_key=True),
        sa.Column("msg_id", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("try_no", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("kind", dialects.plain_text(20), nullable=False),
        sa.Column("instance", dialects.plain_text(64)),
        sa.Column("started_at", UtcDateTime()),
        sa.Column("ended_at", UtcDateTime(), nullable=False),
        sa.Column("error", dialects.plain_text(MAX_ERROR)),
        sa.Column("fingerprint", dialects.key_text(16)),
        sa.Column(
            "traceback",
            dialects.long_text(),
            info={ADDED: "tries are kept without their tracebacks"},
        ),
        schema=spec.schema,
        **dialects.engine_options(dialect.name),
    )
    sa.Index("msgworker_try_group", table.c.table_name, table.c.fingerprint, table.c.msg_id)
    return table


def _add_indexes(t: Tables) -> None:
    """The guard and the claim indexes, attached to `t.message` with the reason for each.

    guard   at most one PROCESSING row per object: the database's own promise (P1)
    object  unfinished rows by object and age: heads, runs, "is an earlier one unfinished"
    oldest  unfinished rows by age: old before new
    due     rows that wait for an instant, by that instant: retries and delayed messages
    failed  failed and dead rows by age: what people look for among millions that are done
    shard, flag  unfinished rows by slice, object and age, where scopes are used (`spec.slices`);
            the object stands before the age, so that a deep one is passed in one step
    Finished rows stay out of all of them, so they cost nothing (P7; see docs/guarantees.md).
    """
    if t.dialect.case_index == "column":
        _add_generated_columns(t)
    c = t.cols()
    spec, kind = t.spec, t.dialect.name
    if t.dialect.partial_indexes:

        def partial(name: str, *keys: ColumnElement[Any], where: Any, unique: bool = False) -> None:
            option = {f"{kind}_where": where}
            sa.Index(spec.index_name(name), *keys, unique=unique, **option)

        partial("guard", c.object_id, where=t.running(c), unique=True)
        partial("object", c.object_id, c.msg_id, where=t.unfinished(c))
        partial("oldest", c.msg_id, where=t._oldest_rows(c))
        if c.available_at is not None:
            waits = sa.and_(t.unfinished(c), c.available_at.is_not(None))
            partial("due", c.available_at, c.msg_id, where=waits)
        partial(FAILED, c.msg_id, where=t.failed(c))
        for role in (role for role in spec.slices if role in t.names):
            keys = (t.slice_key(c, role), c.object_id, c.msg_id)
            partial(SLICES[role], *keys, where=t.in_slices(c))
        return
    key = t.running_object(c)
    if t.dialect.case_index == "column" and t.dialect.guard_case == "function":
        key = Grouping(key)  # there, a key part that is an expression stands in parentheses
    sa.Index(spec.index_name("guard"), key, unique=True)
    sa.Index(spec.index_name("object"), t.open_object(c), t.open_msg_id(c))
    if t.dialect.oldest_index:
        sa.Index(spec.index_name("oldest"), t._oldest_case(c))
    if c.available_at is not None:
        # Flagging and finishing set available_at to NULL, so finished rows are not met here.
        sa.Index(spec.index_name("due"), c.available_at, c.msg_id)
    mark = [] if c.failed_column is None else [c.failed_column]
    sa.Index(spec.index_name(FAILED), *mark, t.failed_key(c))
    for role in (role for role in spec.slices if role in t.names):
        name = spec.index_name(SLICES[role])
        sa.Index(name, t.slice_key(c, role), t.open_object(c), t.open_msg_id(c))


def _add_generated_columns(t: Tables) -> None:
    c = t.message.c
    plain = Cols(**{role: c[name] for role, name in t.names.items()})
    kind = plain.object_id.type
    length = max(MAX_OBJECT_ID, getattr(kind, "length", 0) or 0)
    own = isinstance(kind, sa.String | KeyText) and t.key_collation is None
    room = dialects.key_room(t.dialect, kind if own else KeyText())
    length = length if room is None else min(length, room)
    key = dialects.key_like(kind, length) if own else dialects.key_text(length)
    wanted: dict[str, tuple[Any, TypeEngine[Any]]] = {
        OPEN_OBJECT + t.spec.rule: (t._open_case(plain), key)
    }
    if t.dialect.guard_case == "column":
        running = sa.case((t.running(plain), t.object_key(plain)))
        wanted[RUNNING_OBJECT] = (running, key)
    # Not the id itself: MySQL computes nothing from a column that counts itself up.
    wanted[FAILED_MARK] = (sa.case((t.failed(plain), sa.literal_column("1"))), sa.SmallInteger())
    for name, (expression, kind) in wanted.items():
        t.message.append_column(
            sa.Column(
                name,
                kind,
                sa.Computed(expression, persisted=t.dialect.stored_columns),
                nullable=True,
                info={dialects.HIDDEN: True},
            )
        )
