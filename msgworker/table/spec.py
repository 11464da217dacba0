"""The columns of the message table by role: what each holds, its type, and what is lost without it;
and the user's description of a table: their names, limits and rules.

A new column is added to ROLES, and to the classes that editors and type checkers read (`Cols`,
`Columns`, `_Names`).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Literal, TypedDict, Unpack, cast

import sqlalchemy as sa
from sqlalchemy import ColumnElement
from sqlalchemy.types import TypeEngine

from msgworker import db
from msgworker.config import MAX_TRIES, nearest
from msgworker.config.values import WhereValue
from msgworker.errors import ConfigError
from msgworker.message import DEFAULT_TOPIC, Status
from msgworker.table import where as conditions
from msgworker.table.where import Where
from msgworker.ticks import checked_zone

MAX_INSTANCE_TYPE = 30
"""The most characters of an instance_type."""
MAX_TOPIC = 100
MAX_OBJECT_ID = 190
MAX_ERROR = 2000
MAX_HEADERS = 2000
"""The most characters of the headers of a message."""
MAX_KEY = 190
"""The most characters of a unique key."""
LONGEST_ID = 64
"""The most characters of an instance's id."""
URGENT = "urgent"
"""The suffix of the index of waiting rows with a priority."""
UNIQUE = "unique"
"""The suffix of the index of the unique keys that count."""
JOB = "job"
"""The suffix of the index of messages by their job."""
URGENT_RANK, HELD_KEY, JOB_STATUS = "mw_urgent", "mw_unique", "mw_job_status"
"""Generated columns of these three, on databases that need them for indexes."""
_NO_KEYS = "no message can be sent with a unique key"


@dataclass(frozen=True, slots=True)
class ColumnRole:
    """A column, by what it is for.

    holds: what the values are; a key is compared byte by byte, a slice is whatever a fleet is
    divided by. type: of a column that we create; None = that of instants, which the database and
    the zone of the table decide. default: without one it may be NULL; "now" = when the row was
    inserted. without: what is lost without it; "" = nothing but what it is for.
    since: the version of the schema that has added it. A default table of an earlier version works
    without it, and a table of another name has it only if it is named.
    own_type: the type that it has in a table of the user's decides how it is read and written.
    filled: each INSERT of ours gives it a value, or the database does so (msg_id), so that it needs
    no default. may_be_generated: only an INSERT writes it, so the database may do that instead.
    emptied: it is set to NULL. best_effort: messages are handled as well where it is not written.
    index, hidden: the suffix of an index and the name of a generated column that are made with it.
    """

    name: str
    holds: Literal["number", "instant", "text", "key", "json", "slice"]
    type: Callable[[], TypeEngine[Any]] | None
    default: str | None = None
    without: str = ""
    required: bool = False
    since: int = 1
    own_type: bool = False
    filled: bool = False
    may_be_generated: bool = False
    emptied: bool = False
    best_effort: bool = False
    index: str = ""
    hidden: str = ""


ROLES = {
    role.name: role
    for role in (
        ColumnRole(
            "msg_id",
            *("number", db.big_id),
            required=True,
            own_type=True,
            filled=True,
            may_be_generated=True,
        ),
        ColumnRole(
            "topic",
            *("text", lambda: db.plain_text(MAX_TOPIC), DEFAULT_TOPIC),
            without="every message goes to the handler of topic default",
            filled=True,
            may_be_generated=True,
        ),
        ColumnRole(
            "object_id",
            *("key", lambda: db.key_text(MAX_OBJECT_ID)),
            required=True,
            own_type=True,
            filled=True,
            may_be_generated=True,
        ),
        ColumnRole("status", "number", sa.SmallInteger, "0", required=True, filled=True),
        ColumnRole("error_try_times", "number", sa.SmallInteger, "0", required=True, filled=True),
        ColumnRole(
            "payload",
            *("json", db.long_text),
            without="messages carry nothing but their object",
            own_type=True,
            filled=True,
            may_be_generated=True,
        ),
        ColumnRole(
            "available_at",
            *("instant", None),
            without="no back-off and no delayed messages: a failed message is tried at once",
            emptied=True,
            index="due",
        ),
        ColumnRole(
            "claimed_by",
            *("text", lambda: db.plain_text(LONGEST_ID)),
            without="no recovery: messages of an instance that died stay at 1 until ops reset them",
            emptied=True,
        ),
        ColumnRole(
            "claimed_at", "instant", None, without="it is not shown since when a message runs"
        ),
        ColumnRole(
            "crash_times",
            *("number", sa.SmallInteger, "0"),
            without="no quarantine: a message may die for the crashes of others",
        ),
        ColumnRole(
            "later_times",
            *("number", sa.SmallInteger, "0"),
            without="RetryLater counts as a failed try",
        ),
        ColumnRole(
            "last_error",
            *("text", lambda: db.plain_text(MAX_ERROR)),
            without="the error is kept in msgworker_try only",
            emptied=True,
        ),
        ColumnRole(
            "created_at",
            *("instant", None, "now"),
            without="the age of messages is not shown, and visibility_delay does nothing. If it is "
            "added, the age of the messages that are there stays unknown",
            best_effort=True,
        ),
        ColumnRole(
            "finished_at",
            *("instant", None),
            without="it is not shown when messages ended, and old ones cannot be purged by age",
            emptied=True,
        ),
        ColumnRole("shard", "slice", sa.SmallInteger, "0", filled=True),
        ColumnRole("instance_type", "slice", lambda: db.plain_text(MAX_INSTANCE_TYPE)),
        ColumnRole(
            "priority",
            *("number", sa.SmallInteger, "0"),
            without="all messages have the same priority",
            since=5,
            own_type=True,
            filled=True,
            index=URGENT,
            hidden=URGENT_RANK,
        ),
        ColumnRole(
            "unique_key",
            *("key", lambda: db.key_text(MAX_KEY)),
            without=_NO_KEYS,
            since=6,
            own_type=True,
        ),
        ColumnRole(
            "unique_kept",
            *("number", sa.SmallInteger),
            without=_NO_KEYS,
            since=6,
            index=UNIQUE,
            hidden=HELD_KEY,
        ),
        ColumnRole(
            "scheduled_for",
            *("instant", None),
            without="a message of a schedule does not say for which instant it is",
            since=8,
        ),
        ColumnRole(
            "headers",
            *("json", lambda: db.plain_text(MAX_HEADERS)),
            without="the traces of producers end at the table",
            since=11,
            own_type=True,
            best_effort=True,
        ),
        ColumnRole(
            "job_id",
            *("number", db.big_id),
            without="no message can belong to a job",
            since=13,
            index=JOB,
            hidden=JOB_STATUS,
        ),
    )
}
"""In the order of the columns in our CREATE TABLE."""
REQUIRED = tuple(role.name for role in ROLES.values() if role.required)
OPTIONAL = tuple(role.name for role in ROLES.values() if not role.required)
COLUMNS = REQUIRED + OPTIONAL
NAMED_ONLY = tuple(role.name for role in ROLES.values() if role.since > 1)
NUMBERS = tuple(role.name for role in ROLES.values() if role.holds == "number")
INSTANTS = tuple(role.name for role in ROLES.values() if role.holds == "instant")

# --- Names, roles and limits of the message table and of msgworker's own tables.

DEFAULT_NAME = "msgworker_message"
SLICES = {"shard": "shard", "instance_type": "flag"}
"""The columns that slice a table among instances, and the suffixes of their indexes."""
SHARDS = 64
MOST_SHARDS = 32_767
"""The largest value of a SMALLINT."""
MOST_PRIORITY = 2_147_483_647
"""The highest priority; what is higher, lower than 1 or no number counts as 0."""
MAX_NAME = 30  # Oracle before 12.2
LEAST_HEADERS = 73
"""Those of headers with a traceparent alone."""
MAX_SCHEDULE = 100
"""The most characters of a schedule's name."""
DEFAULT_TRIES = 3
ADDED = "msgworker_added"
"""Marks a column that a later version has added to one of our tables, with the effect of its
absence; instances work without it."""
FAILED = "failed"
"""The suffix of the index of failed and dead rows."""
BESIDE = (
    "lease",
    "item",
    "try",
    "operation",
    "audit",
    "pause",
    "limit",
    "cancel",
    "lock",
    "schedule",
    "history",
    "job",
)
"""msgworker's own tables, without `msgworker_`."""
OWN_PREFIX = "mw_"
"""Prefix of our generated columns and of the parameters of our statements."""
NO_OBJECT = "~msgworker.none~"
"""The value of `open_object` for an open message without an object."""
NO_OBJECT_RUNNING = "~msgworker.running~"
"""The same for a running message, so that these are found without reading the others."""

OPEN_OBJECT = "mw_open_object"
FAILED_MARK = "mw_failed"
RUNNING_OBJECT = "mw_running_object"
"""Our generated columns, on databases that need them for indexes."""


# --- The columns of the message table by role, and constants in expressions.


@dataclass(frozen=True, slots=True)
class Slice:
    """The messages whose column `role` (shard or instance_type) holds one of `values`.

    exclusive: no other instance is meant to look there now.
    """

    role: str
    values: tuple[Any, ...]
    exclusive: bool = True


@dataclass(frozen=True, slots=True)
class Cols:
    """The columns of the message table, or of an alias of it, by role; None = no column."""

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
    priority: ColumnElement[Any] | None = None
    unique_key: ColumnElement[Any] | None = None
    unique_kept: ColumnElement[Any] | None = None
    scheduled_for: ColumnElement[Any] | None = None
    headers: ColumnElement[Any] | None = None
    job_id: ColumnElement[Any] | None = None


def lit(status: Status) -> ColumnElement[int]:
    """A status as a literal in the SQL text."""
    return sa.literal_column(str(int(status)), sa.Integer())


def text_lit(text: str) -> ColumnElement[str]:
    """One of our own constants as a literal in the SQL text."""
    return sa.literal(text, sa.String(), literal_execute=True)


# --- The user's description of a message table: its names and its rules.

OnDead = Literal["continue", "block"]


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
    priority: str | None = "priority"
    unique_key: str | None = "unique_key"
    unique_kept: str | None = "unique_kept"
    scheduled_for: str | None = "scheduled_for"
    headers: str | None = "headers"
    job_id: str | None = "job_id"


class Columns(TypedDict, total=False):
    """The keywords of a MessageTable that name columns, for type checkers."""

    msg_id: str
    object_id: str
    status: str
    error_try_times: str
    topic: str | None
    payload: str | None
    available_at: str | None
    claimed_by: str | None
    claimed_at: str | None
    crash_times: str | None
    later_times: str | None
    last_error: str | None
    created_at: str | None
    finished_at: str | None
    shard: str | None
    instance_type: str | None
    priority: str | None
    unique_key: str | None
    unique_kept: str | None
    scheduled_for: str | None
    headers: str | None
    job_id: str | None


@dataclass(frozen=True, eq=False, init=False)
class MessageTable(_Names):
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
        if isinstance(name, str) and name.rpartition(".")[2] != DEFAULT_NAME:
            columns = cast(Columns, dict.fromkeys(NAMED_ONLY) | columns)
        super().__init__(**columns)
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
            "where": conditions.checked(where, _check_name),
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
        conditions.check_columns(self.where, self.bare_name, self.names(), REQUIRED)
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
        whole = {"max_tries": 1, "later_limit": 0, "max_payload": 1, "shards": 1}
        for key, least in whole.items():
            value = getattr(self, key)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ConfigError(f"{key} must be a whole number from {least} on, got {value!r}")
        if self.shards > MOST_SHARDS:
            raise ConfigError(f"shards must be at most {MOST_SHARDS}, got {self.shards}")
        if self.max_tries > MAX_TRIES:
            raise ConfigError(f"max_tries must be at most {MAX_TRIES}, got {self.max_tries}")
        delay = self.visibility_delay_seconds
        known = isinstance(delay, int | float) and not isinstance(delay, bool)
        if not (known and 0 <= delay <= 86_400):
            raise ConfigError(f"visibility_delay_seconds must be 0 to 86400, got {delay!r}")

    @cached_property
    def schema(self) -> str | None:
        """The schema part of the name, None if there is none."""
        return self.name.split(".")[0] if "." in self.name else None

    @cached_property
    def bare_name(self) -> str:
        """The name without its schema."""
        return self.name.rpartition(".")[2]

    @cached_property
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

    @cached_property
    def part(self) -> str:
        """The `where` as a part of names; empty without one."""
        return conditions.part(self.where)

    @cached_property
    def rule(self) -> str:
        """The rule of "unfinished" as a part of names; empty for the default rule.

        An index, or a generated column, of one rule must not be used for another: messages that
        it leaves out would never be found.
        """
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
