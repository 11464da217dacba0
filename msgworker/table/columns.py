"""The columns of the message table by role: what each holds, its type, and what is lost without it;
and the names of msgworker's own tables, columns and indexes.

A new column is added to ROLES, and to the classes that editors and type checkers read (`ByRole`,
`Columns`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypedDict, TypeVar

import sqlalchemy as sa
from sqlalchemy import ColumnElement
from sqlalchemy.types import TypeEngine

from msgworker.db.types import KeyText, LongText, big_id, plain_text
from msgworker.message import DEFAULT_TOPIC

T = TypeVar("T")
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
HIDDEN = {URGENT: URGENT_RANK, UNIQUE: HELD_KEY, JOB: JOB_STATUS}
"""Generated columns of these three, on databases that need them for indexes."""
_NO_KEYS = "no message can be sent with a unique key"


@dataclass(frozen=True, slots=True)
class ColumnRole:
    """A column, by what it is for."""

    name: str
    # What the values are: a key is compared byte by byte, a slice is what a fleet is divided by.
    holds: Literal["number", "instant", "text", "key", "json", "slice"]
    # Of a column that we create; None = that of instants, which the database and the zone of the
    # table decide.
    type: Callable[[], TypeEngine[Any]] | None
    default: str | None = None  # None = it may be NULL; "now" = when the row was inserted
    without: str = ""  # what is lost without it; "" = nothing but what it is for
    required: bool = False
    # The version of the schema that has added it. A default table of an earlier version works
    # without it, and a table of another name has it only if it is named.
    since: int = 1
    own_type: bool = False  # its type in a table of the user's decides how it is read and written
    filled: bool = False  # each INSERT of ours, or the database, gives it a value
    may_be_generated: bool = False  # only an INSERT writes it, so the database may do that instead
    emptied: bool = False  # it is set to NULL
    best_effort: bool = False  # messages are handled as well where it is not written
    index: str = ""  # the suffix of an index that is made with it

    @property
    def hidden(self) -> str:
        """The generated column that is made with its index."""
        return HIDDEN.get(self.index, "")


_SENT: Any = {"filled": True, "may_be_generated": True}  # what a producer says
ROLES = {
    role.name: role
    for role in (
        ColumnRole("msg_id", "number", big_id, required=True, own_type=True, **_SENT),
        ColumnRole(
            *("topic", "text", lambda: plain_text(MAX_TOPIC), DEFAULT_TOPIC),
            without="every message goes to the handler of topic default",
            **_SENT,
        ),
        ColumnRole(
            *("object_id", "key", lambda: KeyText(MAX_OBJECT_ID)),
            required=True,
            own_type=True,
            **_SENT,
        ),
        ColumnRole("status", "number", sa.SmallInteger, "0", required=True, filled=True),
        ColumnRole("error_try_times", "number", sa.SmallInteger, "0", required=True, filled=True),
        ColumnRole(
            *("payload", "json", LongText),
            without="messages carry nothing but their object",
            own_type=True,
            **_SENT,
        ),
        ColumnRole(
            *("available_at", "instant", None),
            without="no back-off and no delayed messages: a failed message is tried at once",
            emptied=True,
            index="due",
        ),
        ColumnRole(
            *("claimed_by", "text", lambda: plain_text(LONGEST_ID)),
            without="no recovery: messages of an instance that died stay at 1 until ops reset them",
            emptied=True,
        ),
        ColumnRole(
            "claimed_at", "instant", None, without="it is not shown since when a message runs"
        ),
        ColumnRole(
            *("crash_times", "number", sa.SmallInteger, "0"),
            without="no quarantine: a message may die for the crashes of others",
        ),
        ColumnRole(
            *("later_times", "number", sa.SmallInteger, "0"),
            without="RetryLater counts as a failed try",
        ),
        ColumnRole(
            *("last_error", "text", lambda: plain_text(MAX_ERROR)),
            without="the error is kept in msgworker_try only",
            emptied=True,
        ),
        ColumnRole(
            *("created_at", "instant", None, "now"),
            without="the age of messages is not shown, and visibility_delay does nothing. If it is "
            "added, the age of the messages that are there stays unknown",
            best_effort=True,
        ),
        ColumnRole(
            *("finished_at", "instant", None),
            without="it is not shown when messages ended, and old ones cannot be purged by age",
            emptied=True,
        ),
        ColumnRole("shard", "slice", sa.SmallInteger, "0", filled=True),
        ColumnRole("instance_type", "slice", lambda: plain_text(MAX_INSTANCE_TYPE)),
        ColumnRole(
            *("priority", "number", sa.SmallInteger, "0"),
            without="all messages have the same priority",
            since=5,
            own_type=True,
            filled=True,
            index=URGENT,
        ),
        ColumnRole(
            *("unique_key", "key", lambda: KeyText(MAX_KEY)),
            without=_NO_KEYS,
            since=6,
            own_type=True,
        ),
        ColumnRole(
            "unique_kept", "number", sa.SmallInteger, without=_NO_KEYS, since=6, index=UNIQUE
        ),
        ColumnRole(
            *("scheduled_for", "instant", None),
            without="a message of a schedule does not say for which instant it is",
            since=8,
        ),
        ColumnRole(
            *("headers", "json", lambda: plain_text(MAX_HEADERS)),
            without="the traces of producers end at the table",
            since=11,
            own_type=True,
            best_effort=True,
        ),
        ColumnRole(
            *("job_id", "number", big_id),
            without="no message can belong to a job",
            since=13,
            index=JOB,
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
"""The columns that slice a table among instances, and the suffixes of their indexes. (`flag` is
here, and in leases, another word for instance_type, and not the flag of a message.)"""
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
WIDE = "msgworker_wide"
"""Key in `info` of an index that has fewer rows since a later version: the predicate from before.
An index that has this one serves too, and costs more."""
ADDED = "msgworker_added"
"""Marks a column that a later version has added to one of our tables, with the effect of its
absence; instances work without it."""
FAILED = "failed"
"""The suffix of the index of failed and dead rows."""
BESIDE = (
    *("lease", "item", "try", "operation", "audit", "pause"),
    *("limit", "cancel", "lock", "schedule", "history", "job"),
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


# --- The columns by role: in statements, and as a MessageTable names them.


@dataclass(frozen=True, slots=True)
class Slice:
    """The messages whose column `by` (shard, instance_type or job_id) holds one of `values`."""

    by: str
    values: tuple[Any, ...]
    exclusive: bool = True  # no other instance is meant to look there now


@dataclass(frozen=True, kw_only=True, eq=False)
class ByRole(Generic[T]):
    """Something of each column, by role; None = no column."""

    msg_id: T
    object_id: T
    status: T
    error_try_times: T
    topic: T | None = None
    payload: T | None = None
    available_at: T | None = None
    claimed_by: T | None = None
    claimed_at: T | None = None
    crash_times: T | None = None
    later_times: T | None = None
    last_error: T | None = None
    created_at: T | None = None
    finished_at: T | None = None
    shard: T | None = None
    instance_type: T | None = None
    priority: T | None = None
    unique_key: T | None = None
    unique_kept: T | None = None
    scheduled_for: T | None = None
    headers: T | None = None
    job_id: T | None = None

    def __getitem__(self, role: str) -> T:
        """That of a column which is there."""
        found: T | None = getattr(self, role)
        assert found is not None
        return found


class Cols(ByRole[ColumnElement[Any]]):
    """The columns of the message table, or of an alias of it."""


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
