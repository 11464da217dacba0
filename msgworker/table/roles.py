"""The columns of the message table by role: what each holds, its type, and what is lost without it.

A new column is added here, and to the classes in spec.py that editors and type checkers
read (`Cols`, `Columns`, the fields of MessageTable).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy.types import TypeEngine

from msgworker import db
from msgworker.message import DEFAULT_TOPIC

MAX_FLAG = 30
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
URGENT_RANK = "mw_urgent"
HELD_KEY = "mw_unique"
"""Generated columns of these, on databases that need them for indexes."""
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
        ColumnRole("instance_type", "slice", lambda: db.plain_text(MAX_FLAG)),
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
    )
}
"""In the order of the columns in our CREATE TABLE."""
REQUIRED = tuple(role.name for role in ROLES.values() if role.required)
OPTIONAL = tuple(role.name for role in ROLES.values() if not role.required)
COLUMNS = REQUIRED + OPTIONAL
NAMED_ONLY = tuple(role.name for role in ROLES.values() if role.since > 1)
NUMBERS = tuple(role.name for role in ROLES.values() if role.holds == "number")
INSTANTS = tuple(role.name for role in ROLES.values() if role.holds == "instant")
