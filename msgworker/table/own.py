"""msgworker's own tables beside the message table: what each is for, who needs it, its columns.

They serve all message tables of a schema: `table_name` says whose a row is.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from msgworker import db
from msgworker.db import Database, UtcDateTime, key_text, long_text, plain_text
from msgworker.latency import RAN, WAITED
from msgworker.table.roles import LONGEST_ID, MAX_ERROR, MAX_OBJECT_ID, MAX_TOPIC
from msgworker.table.spec import ADDED, MAX_SCHEDULE, MessageTable
from msgworker.table.tables import Tables

MAX_TABLE = 128
MAX_ACTOR = 200
MAX_REASON = 1000
MAX_REQUEST_KEY = 64
MAX_WAS_ERROR = 500
MAX_WAS_OWNER = 64
MAX_LOCK = 190
MAX_LOCK_OWNER = 120
MAX_SPEC = 200
MAX_ZONE = 64


class Need(enum.Enum):
    """Who needs a table."""

    RUN = enum.auto()  # every instance
    OPS = enum.auto()  # only operations write to it; instances run without it
    FEATURE = enum.auto()  # a feature that an instance may use; `doctor` says where it is missing
    OPTIONAL = enum.auto()  # an optional feature; without that it is not needed


@dataclass(frozen=True, slots=True)
class OwnTable:
    """One of our tables. about: for who reads the DDL. columns: made anew for each database.
    index: its suffix and columns, and whether it is unique. without: what it costs to lack it."""

    name: str
    about: str
    need: Need
    columns: Callable[[Database], Iterable[sa.Column[Any]]]
    index: tuple[str, tuple[str, ...], bool] | None = None
    without: str = ""

    def of(self, t: Tables) -> sa.Table:
        """The table beside this message table."""
        make = self.made
        return t.built(self.name, lambda: make(t.spec, t.database, t.message.metadata))

    def made(self, spec: MessageTable, database: Database, metadata: sa.MetaData) -> sa.Table:
        """The table as our DDL makes it; one for each metadata."""
        there = metadata.tables.get(f"{spec.schema}.{self.name}" if spec.schema else self.name)
        if there is not None:
            return there
        options = database.own_table_options()
        columns = self.columns(database)
        table = sa.Table(self.name, metadata, *columns, schema=spec.schema, **options)
        if self.index is not None:
            suffix, on, unique = self.index
            sa.Index(f"{self.name}_{suffix}", *(table.c[name] for name in on), unique=unique)
        return table

    def is_there(self, t: Tables) -> bool:
        """Whether the database has it; always of those that instances need."""
        return self.name not in t.missing


def _id(name: str) -> sa.Column[Any]:
    return sa.Column(name, sa.BigInteger(), primary_key=True, autoincrement=False)


def _table_name(length: int = MAX_TABLE, *, key: bool = True) -> sa.Column[Any]:
    return sa.Column("table_name", key_text(length), primary_key=key, nullable=False)


def _number(name: str, *, least: str = "0", big: bool = True) -> sa.Column[Any]:
    kind = sa.BigInteger() if big else sa.Integer()
    return sa.Column(name, kind, nullable=False, server_default=sa.text(least))


# --- What every instance needs: leases, items, failed tries.


def _lease(_: Database) -> Iterable[sa.Column[Any]]:
    # term grows with every renewal and take-over, so that a take-over names exactly what it saw.
    # serves: the message table and the topics of an instance, as JSON, for operators.
    yield sa.Column("name", key_text(64), primary_key=True)
    yield sa.Column("kind", plain_text(20), nullable=False, server_default="instance")
    yield _number("term")
    yield sa.Column("taken_by", plain_text(64))
    yield sa.Column("expires_at", UtcDateTime(), nullable=False)
    yield sa.Column("started_at", UtcDateTime(), nullable=False)
    yield sa.Column("renewed_at", UtcDateTime(), nullable=False)
    yield sa.Column("label", plain_text(200))
    yield _number("in_hand", big=False)
    yield sa.Column("serves", long_text())


LEASE = OwnTable(
    "msgworker_lease", "who lives: an instance holds a lease on its own id", Need.RUN, _lease
)


def _item(_: Database) -> Iterable[sa.Column[Any]]:
    zero = sa.text("0")
    yield _table_name(60)
    yield _id("msg_id")
    yield sa.Column("item_key", key_text(MAX_OBJECT_ID), primary_key=True)
    yield sa.Column("status", sa.SmallInteger(), nullable=False)
    yield sa.Column("tries", sa.SmallInteger(), nullable=False, server_default=zero)
    yield sa.Column("item_value", long_text())
    yield sa.Column("last_error", plain_text(MAX_ERROR))
    yield sa.Column("finished_at", UtcDateTime())
    yield sa.Column("total", sa.Integer(), info={ADDED: "the number of items left is unknown"})


ITEM = OwnTable(
    "msgworker_item",
    "fan-out inside a message: items that are done are not done again",
    Need.RUN,
    _item,
)


def _try(_: Database) -> Iterable[sa.Column[Any]]:
    yield _table_name()
    yield _id("msg_id")
    yield sa.Column("try_no", sa.Integer(), primary_key=True, autoincrement=False)
    yield sa.Column("kind", plain_text(20), nullable=False)
    yield sa.Column("instance", plain_text(64))
    yield sa.Column("started_at", UtcDateTime())
    yield sa.Column("ended_at", UtcDateTime(), nullable=False)
    yield sa.Column("error", plain_text(MAX_ERROR))
    yield sa.Column("fingerprint", key_text(16))
    about = "tries are stored without their tracebacks"
    yield sa.Column("traceback", long_text(), info={ADDED: about})


TRY = OwnTable(
    "msgworker_try",
    "failed tries: their errors and times",
    Need.RUN,
    _try,
    ("group", ("table_name", "fingerprint", "msg_id"), False),
)

# --- What only operations write.


def _operation(database: Database) -> Iterable[sa.Column[Any]]:
    yield sa.Column(
        "op_id", db.big_id(), *database.identity(), primary_key=True, autoincrement=True
    )
    yield _table_name(key=False)
    yield sa.Column("kind", plain_text(20), nullable=False)
    yield sa.Column("actor", plain_text(MAX_ACTOR), nullable=False)
    yield sa.Column("reason", plain_text(MAX_REASON))
    yield sa.Column("op_filter", long_text())
    yield sa.Column("started_at", UtcDateTime(), nullable=False)
    yield sa.Column("finished_at", UtcDateTime())
    yield sa.Column("last_id", sa.BigInteger())
    yield from map(_number, ("steps", "matched", "changed", "skipped"))
    yield sa.Column("request_key", key_text(MAX_REQUEST_KEY))


WITHOUT_OPS = "ops cannot write or pause without it"
OPERATION = OwnTable(
    "msgworker_operation",
    "what operators did: reruns, discards, purges, ...",
    Need.OPS,
    _operation,
    ("key", ("request_key",), True),
    WITHOUT_OPS,
)


def _audit(_: Database) -> Iterable[sa.Column[Any]]:
    yield _id("msg_id")
    yield _id("op_id")
    yield sa.Column("changed_at", UtcDateTime(), nullable=False)
    yield sa.Column("was_status", sa.SmallInteger(), nullable=False)
    yield sa.Column("was_tries", sa.SmallInteger(), nullable=False)
    yield sa.Column("was_claimed_by", plain_text(MAX_WAS_OWNER))
    yield sa.Column("was_error", plain_text(MAX_WAS_ERROR))


AUDIT = OwnTable(
    "msgworker_audit",
    "what they did to which message, and what it was before",
    Need.OPS,
    _audit,
    without=WITHOUT_OPS,
)


def _pause(_: Database) -> Iterable[sa.Column[Any]]:
    yield _table_name()
    yield sa.Column("topic", key_text(MAX_TOPIC), primary_key=True)
    yield sa.Column("actor", plain_text(MAX_ACTOR), nullable=False)
    yield sa.Column("reason", plain_text(MAX_REASON))
    yield sa.Column("paused_at", UtcDateTime(), nullable=False)


PAUSE = OwnTable(
    "msgworker_pause",
    "topics whose handlers are not to start",
    Need.OPS,
    _pause,
    without=WITHOUT_OPS,
)


def _cancel(_: Database) -> Iterable[sa.Column[Any]]:
    yield _table_name()
    yield _id("msg_id")
    yield sa.Column("actor", plain_text(MAX_ACTOR), nullable=False)
    yield sa.Column("reason", plain_text(MAX_REASON), nullable=False)
    yield sa.Column("requested_at", UtcDateTime(), nullable=False)
    yield sa.Column("seen_owner", plain_text(LONGEST_ID), nullable=False)
    yield sa.Column("seen_tries", sa.SmallInteger(), nullable=False)


CANCEL = OwnTable(
    "msgworker_cancel",
    "running messages that operators want to end",
    Need.OPS,
    _cancel,
    without="running messages cannot be cancelled without it",
)

# --- What a feature needs.


def _limit(_: Database) -> Iterable[sa.Column[Any]]:
    # full_us: when the bucket of the rate is full, in microseconds since 1970. version: grows with
    # every declaration.
    yield _table_name()
    yield sa.Column("topic", key_text(MAX_TOPIC), primary_key=True)
    yield sa.Column("max_running", sa.Integer())
    yield _number("rate_starts", big=False)
    yield _number("rate_seconds", least="1", big=False)
    yield _number("burst", least="1", big=False)
    yield _number("full_us")
    yield _number("version")
    yield sa.Column("declared_by", plain_text(64), nullable=False)
    yield sa.Column("declared_at", UtcDateTime(), nullable=False)


LIMIT = OwnTable(
    "msgworker_limit",
    "how many messages of a topic may run, or start, over all instances",
    Need.FEATURE,
    _limit,
    without="no handler can have max_running or rate without it",
)
COUNTED = ("done", "retried", "dead", "postponed")
SUMS = ("ran_ms", "waited_ms")
RAN_COUNTS = tuple(f"ran_{i}" for i in range(len(RAN) + 1))
WAITED_COUNTS = tuple(f"waited_{i}" for i in range(len(WAITED) + 1))
"""How many took so long, by the bounds of latency.py."""
NUMBERS_OF_HISTORY = (*COUNTED, *SUMS, *RAN_COUNTS, *WAITED_COUNTS)
"""The columns of the history that are added up."""


def _history(_: Database) -> Iterable[sa.Column[Any]]:
    yield _table_name()
    yield sa.Column("minute_at", UtcDateTime(), primary_key=True)
    yield sa.Column("instance", key_text(LONGEST_ID), primary_key=True)
    yield sa.Column("topic", key_text(MAX_TOPIC), primary_key=True)
    yield from (_number(name, big=name in SUMS) for name in NUMBERS_OF_HISTORY)


HISTORY = OwnTable(
    "msgworker_history",
    "what instances did in each minute, for charts",
    Need.FEATURE,
    _history,
    without="no history for charts is written without it",
)


def _lock(_: Database) -> Iterable[sa.Column[Any]]:
    yield sa.Column("name", key_text(MAX_LOCK), primary_key=True)
    yield sa.Column("owner", key_text(MAX_LOCK_OWNER))
    yield _number("token")
    yield sa.Column("claim_id", key_text(32))
    yield _number("since_ms")
    yield _number("expires_ms")


LOCK = OwnTable(
    "msgworker_lock",
    "locks (msgworker.coordination); rows are never deleted: tokens only rise",
    Need.OPTIONAL,
    _lock,
    ("owner", ("owner",), False),
)


def _schedule(_: Database) -> Iterable[sa.Column[Any]]:
    yield _table_name()
    yield sa.Column("name", key_text(MAX_SCHEDULE), primary_key=True)
    yield sa.Column("spec", plain_text(MAX_SPEC), nullable=False)
    yield sa.Column("time_zone", plain_text(MAX_ZONE), nullable=False)
    yield sa.Column("topic", plain_text(MAX_TOPIC), nullable=False)
    yield sa.Column("object_id", plain_text(MAX_OBJECT_ID))
    yield sa.Column("payload", long_text())
    yield sa.Column("catch_up", plain_text(10), nullable=False)
    yield sa.Column("next_at", UtcDateTime(), nullable=False)
    yield sa.Column("last_at", UtcDateTime())
    yield sa.Column("paused_at", UtcDateTime())
    yield sa.Column("paused_by", plain_text(200))
    yield _number("version")
    yield sa.Column("declared_by", plain_text(64))
    yield sa.Column("declared_at", UtcDateTime())


SCHEDULE = OwnTable(
    "msgworker_schedule",
    "schedules: what is sent when; any instance may fire them",
    Need.OPTIONAL,
    _schedule,
)
OWN = (LEASE, ITEM, TRY, OPERATION, AUDIT, PAUSE, CANCEL, LIMIT, HISTORY, LOCK, SCHEDULE)
"""Our tables, in the order in which they are made."""


def own_tables(t: Tables, *needs: Need) -> tuple[sa.Table, ...]:
    """Those that are needed so; without a need, all."""
    return tuple(one.of(t) for one in OWN if not needs or one.need in needs)
