"""Build the tables of one database: our own, each with what it is for and who needs it, and the
user's message table as it exists; and the versions of the schema.

Our own serve all message tables of a schema: `table_name` says whose a row is.

One file, because a table of ours, who needs it and the version that has added it change together.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache, partial
from typing import Any

import sqlalchemy as sa
from sqlalchemy.types import TypeEngine

from msgworker.db import types
from msgworker.db.clock import UtcDateTime, created_default, kept_as
from msgworker.db.database import Database
from msgworker.latency import RAN, WAITED
from msgworker.table import columns
from msgworker.table.indexes import add_job_index, add_priority_index, add_unique_index, indexing
from msgworker.table.spec import MessageTable, found_in, marked_where, where_columns
from msgworker.table.tables import Need, OwnTable, Tables

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
MAX_JOB = 190


def _id(name: str) -> sa.Column[Any]:
    return sa.Column(name, sa.BigInteger(), primary_key=True, autoincrement=False)


def _table_name(length: int = MAX_TABLE, *, key: bool = True) -> sa.Column[Any]:
    return sa.Column("table_name", types.KeyText(length), primary_key=key, nullable=False)


def _texts(**lengths: int) -> Iterable[sa.Column[Any]]:
    return (sa.Column(name, types.plain_text(most)) for name, most in lengths.items())


def _instants(*names: str, nullable: bool = False) -> Iterable[sa.Column[Any]]:
    return (sa.Column(name, UtcDateTime(), nullable=nullable) for name in names)


def _number(
    name: str, *, default: str = "0", big: bool = True, about: str | None = None
) -> sa.Column[Any]:
    """about: what is so without the column, which a later version has added."""
    kind = sa.BigInteger() if big else sa.Integer()
    info = None if about is None else {columns.ADDED: about}
    return sa.Column(name, kind, nullable=False, server_default=sa.text(default), info=info)


# --- What every instance needs: leases, items, failed tries.


@OwnTable("msgworker_lease", "who lives: an instance holds a lease on its own id", Need.RUN)
def LEASE(_: Database) -> Iterable[sa.Column[Any]]:
    # term grows with every renewal and take-over, so that a take-over names exactly what it saw.
    # serves: the message table and the topics of an instance, as JSON, for operators.
    yield sa.Column("name", types.KeyText(64), primary_key=True)
    yield sa.Column("kind", types.plain_text(20), nullable=False, server_default="instance")
    yield _number("term")
    yield sa.Column("taken_by", types.plain_text(64))
    yield from _instants("expires_at", "started_at", "renewed_at")
    yield sa.Column("label", types.plain_text(200))
    yield _number("in_hand", big=False)
    yield sa.Column("serves", types.LongText())


@OwnTable(
    "msgworker_item", "fan-out inside a message: items that are done are not done again", Need.RUN
)
def ITEM(_: Database) -> Iterable[sa.Column[Any]]:
    zero = sa.text("0")
    yield _table_name(60)
    yield _id("msg_id")
    yield sa.Column("item_key", types.KeyText(columns.MAX_OBJECT_ID), primary_key=True)
    yield sa.Column("status", sa.SmallInteger(), nullable=False)
    yield sa.Column("tries", sa.SmallInteger(), nullable=False, server_default=zero)
    yield sa.Column("item_value", types.LongText())
    yield sa.Column("last_error", types.plain_text(columns.MAX_ERROR))
    yield sa.Column("finished_at", UtcDateTime())
    yield sa.Column(
        "total", sa.Integer(), info={columns.ADDED: "the number of items left is unknown"}
    )


@OwnTable(
    "msgworker_try",
    "failed tries: their errors and times",
    Need.RUN,
    index=("group", ("table_name", "fingerprint", "msg_id"), False),
)
def TRY(_: Database) -> Iterable[sa.Column[Any]]:
    yield _table_name()
    yield _id("msg_id")
    yield sa.Column("try_no", sa.Integer(), primary_key=True, autoincrement=False)
    yield sa.Column("kind", types.plain_text(20), nullable=False)
    yield sa.Column("instance", types.plain_text(64))
    yield sa.Column("started_at", UtcDateTime())
    yield sa.Column("ended_at", UtcDateTime(), nullable=False)
    yield sa.Column("error", types.plain_text(columns.MAX_ERROR))
    yield sa.Column("fingerprint", types.KeyText(16))
    about = "tries are stored without their tracebacks"
    yield sa.Column("traceback", types.LongText(), info={columns.ADDED: about})


# --- What only operations write.

WITHOUT_OPS = "ops cannot write or pause without it"


@OwnTable(
    "msgworker_operation",
    "what operators did: reruns, discards, purges, ...",
    Need.OPS,
    index=("key", ("request_key",), True),
    without=WITHOUT_OPS,
)
def OPERATION(database: Database) -> Iterable[sa.Column[Any]]:
    yield sa.Column(
        "op_id", types.big_id(), *database.identity(), primary_key=True, autoincrement=True
    )
    yield _table_name(key=False)
    yield sa.Column("kind", types.plain_text(20), nullable=False)
    yield sa.Column("actor", types.plain_text(MAX_ACTOR), nullable=False)
    yield sa.Column("reason", types.plain_text(MAX_REASON))
    yield sa.Column("op_filter", types.LongText())
    yield sa.Column("started_at", UtcDateTime(), nullable=False)
    yield sa.Column("finished_at", UtcDateTime())
    yield sa.Column("last_id", sa.BigInteger())
    yield from map(_number, ("steps", "matched", "changed", "skipped"))
    yield sa.Column("request_key", types.KeyText(MAX_REQUEST_KEY))


@OwnTable(
    "msgworker_audit",
    "what they did to which message, and what it was before",
    Need.OPS,
    without=WITHOUT_OPS,
)
def AUDIT(_: Database) -> Iterable[sa.Column[Any]]:
    yield _id("msg_id")
    yield _id("op_id")
    yield sa.Column("changed_at", UtcDateTime(), nullable=False)
    yield sa.Column("was_status", sa.SmallInteger(), nullable=False)
    yield sa.Column("was_tries", sa.SmallInteger(), nullable=False)
    yield from _texts(was_claimed_by=MAX_WAS_OWNER, was_error=MAX_WAS_ERROR)


@OwnTable(
    "msgworker_pause", "topics whose handlers are not to start", Need.OPS, without=WITHOUT_OPS
)
def PAUSE(_: Database) -> Iterable[sa.Column[Any]]:
    yield _table_name()
    yield sa.Column("topic", types.KeyText(columns.MAX_TOPIC), primary_key=True)
    yield sa.Column("actor", types.plain_text(MAX_ACTOR), nullable=False)
    yield sa.Column("reason", types.plain_text(MAX_REASON))
    yield sa.Column("paused_at", UtcDateTime(), nullable=False)


@OwnTable(
    "msgworker_cancel",
    "running messages that operators want to end",
    Need.OPS,
    without="running messages cannot be cancelled without it",
)
def CANCEL(_: Database) -> Iterable[sa.Column[Any]]:
    yield _table_name()
    yield _id("msg_id")
    yield sa.Column("actor", types.plain_text(MAX_ACTOR), nullable=False)
    yield sa.Column("reason", types.plain_text(MAX_REASON), nullable=False)
    yield sa.Column("requested_at", UtcDateTime(), nullable=False)
    yield sa.Column("seen_owner", types.plain_text(columns.LONGEST_ID), nullable=False)
    yield sa.Column("seen_tries", sa.SmallInteger(), nullable=False)


# --- What a feature needs.


@OwnTable(
    "msgworker_limit",
    "how many messages of a topic may run, or start, over all instances",
    Need.FEATURE,
    without="no handler can have max_running or rate without it",
)
def LIMIT(_: Database) -> Iterable[sa.Column[Any]]:
    # full_us: when the bucket of the rate is full, in microseconds since 1970. version: grows with
    # every declaration.
    yield _table_name()
    yield sa.Column("topic", types.KeyText(columns.MAX_TOPIC), primary_key=True)
    yield sa.Column("max_running", sa.Integer())
    yield _number("rate_starts", big=False)
    yield _number("rate_seconds", default="1", big=False)
    yield _number("burst", default="1", big=False)
    yield _number("full_us")
    yield _number("version")
    yield sa.Column("declared_by", types.plain_text(64), nullable=False)
    yield sa.Column("declared_at", UtcDateTime(), nullable=False)


COUNTED = ("done", "retried", "dead", "postponed")
SUMS = ("ran_ms", "waited_ms")
RAN_COUNTS = tuple(f"ran_{i}" for i in range(len(RAN) + 1))
WAITED_COUNTS = tuple(f"waited_{i}" for i in range(len(WAITED) + 1))
"""How many took so long, by the bounds of latency.py."""
NUMBERS_OF_HISTORY = (*COUNTED, *SUMS, *RAN_COUNTS, *WAITED_COUNTS)
"""The columns of the history that are added up."""


@OwnTable(
    "msgworker_history",
    "what instances did in each minute, for charts",
    Need.FEATURE,
    without="no history for charts is written without it",
)
def HISTORY(_: Database) -> Iterable[sa.Column[Any]]:
    yield _table_name()
    yield sa.Column("minute_at", UtcDateTime(), primary_key=True)
    yield sa.Column("instance", types.KeyText(columns.LONGEST_ID), primary_key=True)
    yield sa.Column("topic", types.KeyText(columns.MAX_TOPIC), primary_key=True)
    yield from (_number(name, big=name in SUMS) for name in NUMBERS_OF_HISTORY)


@OwnTable(
    "msgworker_lock",
    "locks (msgworker.coordination); rows are never deleted: tokens only rise",
    Need.OPTIONAL,
    index=("owner", ("owner",), False),
)
def LOCK(_: Database) -> Iterable[sa.Column[Any]]:
    yield sa.Column("name", types.KeyText(MAX_LOCK), primary_key=True)
    yield sa.Column("owner", types.KeyText(MAX_LOCK_OWNER))
    yield _number("token")
    yield sa.Column("claim_id", types.KeyText(32))
    yield _number("since_ms")
    yield _number("expires_ms")


@OwnTable(
    "msgworker_schedule", "schedules: what is sent when; any instance may fire them", Need.OPTIONAL
)
def SCHEDULE(_: Database) -> Iterable[sa.Column[Any]]:
    yield _table_name()
    yield sa.Column("name", types.KeyText(columns.MAX_SCHEDULE), primary_key=True)
    yield sa.Column("spec", types.plain_text(MAX_SPEC), nullable=False)
    yield sa.Column("time_zone", types.plain_text(MAX_ZONE), nullable=False)
    yield sa.Column("topic", types.plain_text(columns.MAX_TOPIC), nullable=False)
    yield sa.Column("object_id", types.plain_text(columns.MAX_OBJECT_ID))
    yield sa.Column("payload", types.LongText())
    yield sa.Column("catch_up", types.plain_text(10), nullable=False)
    yield from _instants("next_at")
    yield from _instants("last_at", "paused_at", nullable=True)
    yield sa.Column("paused_by", types.plain_text(200))
    yield _number("version")
    yield sa.Column("declared_by", types.plain_text(64))
    yield sa.Column("declared_at", UtcDateTime())
    about = "every tick is sent, also where its schedule says overlap"
    allow: Any = {"nullable": False, "server_default": "allow"}
    yield sa.Column("overlap", types.plain_text(10), info={columns.ADDED: about}, **allow)
    for name in ("skipped", "replaced"):
        yield _number(name, about=f"ticks that were {name} are not counted")
    about = "why a schedule is paused stands in the audit only"
    yield sa.Column("paused_reason", types.plain_text(MAX_REASON), info={columns.ADDED: about})


@OwnTable(
    "msgworker_job",
    "jobs: messages that belong together, and what is sent when all have ended",
    Need.FEATURE,
    index=("open", ("table_name", "completed_at"), False),
    without="no job can be opened without it",
)
def JOB_TABLE(database: Database) -> Iterable[sa.Column[Any]]:
    # on_complete: the topic of the message that is sent when it has completed, with this object and
    # payload; report_id: that message. done, dead: how its messages had ended then.
    counted: Any = {"primary_key": True, "autoincrement": True}
    yield sa.Column("job_id", types.big_id(), *database.identity(), **counted)
    yield _table_name(key=False)
    yield sa.Column("name", types.plain_text(MAX_JOB), nullable=False)
    yield from _texts(
        on_complete=columns.MAX_TOPIC, object_id=columns.MAX_OBJECT_ID, opened_by=MAX_ACTOR
    )
    yield sa.Column("payload", types.LongText())
    yield sa.Column("on_dead", types.plain_text(10), nullable=False, server_default="complete")
    now = created_default(database, "UTC")
    yield sa.Column("opened_at", UtcDateTime(), nullable=False, server_default=now)
    yield from _instants("sealed_at", "cancelled_at", "completed_at", "paused_at", nullable=True)
    yield from _texts(paused_by=MAX_ACTOR, paused_reason=MAX_REASON)
    yield from (sa.Column(name, sa.BigInteger()) for name in ("report_id", "done", "dead"))


OWN = (
    *(LEASE, ITEM, TRY, OPERATION, AUDIT, PAUSE, CANCEL, LIMIT, HISTORY, LOCK, SCHEDULE),
    JOB_TABLE,
)
"""Our tables, in the order in which they are made."""


def own_tables(t: Tables, *needs: Need) -> tuple[sa.Table, ...]:
    """Those that are needed so; without a need, all."""
    return tuple(one.of(t) for one in OWN if not needs or one.need in needs)


# --- The versions of the schema: what each has added to the one before it.


@dataclass(frozen=True, slots=True)
class Version:
    """One version. adds: tables of ours without `msgworker_`, columns as table.column (the message
    table is `message`), its indexes as message:suffix. What it adds by ROLES is not named."""

    number: int
    about: str
    adds: tuple[str, ...] = ()


VERSIONS = (
    Version(1, "0.1.0"),
    Version(
        2,
        "failed tries, audit, pauses",
        (
            *("try", "operation", "audit", "pause", "lease.serves"),
            *(f"message:{columns.FAILED}", f"message.{columns.FAILED_MARK}"),
        ),
    ),
    Version(3, "tracebacks of tries, totals of items", ("try.traceback", "item.total")),
    Version(4, "locks", ("lock",)),
    Version(5, "priorities"),
    Version(6, "unique keys"),
    Version(7, "limits of topics", ("limit",)),
    Version(8, "schedules", ("schedule",)),
    Version(9, "requests to cancel", ("cancel",)),
    Version(10, "history for charts", ("history",)),
    Version(11, "headers of traces"),
    Version(12, "keys of requests", ("operation.request_key", "operation:key")),
    Version(
        13,
        "jobs, overlap of schedules and why they are paused",
        (
            "job",
            *(f"schedule.{name}" for name in ("overlap", "skipped", "replaced", "paused_reason")),
        ),
    ),
)
NEWEST = VERSIONS[-1].number
LEAST = 1
"""The oldest version whose code may work on the newest schema. All versions since have only added:
one that takes something away, or gives it another meaning, must raise it to its own number."""
_ADDED = {name: version.number for version in VERSIONS for name in version.adds} | {
    name: role.since
    for role in columns.ROLES.values()
    if role.since > 1
    for name in (f"message.{role.name}", f"message.{role.hidden}", f"message:{role.index}")
}


def version_of(name: str) -> int:
    """The version that has added a table, column or index, named as in `Version.adds`."""
    plain = re.sub(r"(_w[0-9a-f]{6})?(_t\d+b?)?$", "", name)  # a generated column of another rule
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
    """The tables of `spec` for one database. present: name and type of the existing columns (None =
    as in our DDL). facts: further fields of Tables.

    Tables of the same shape are the same ones, whatever database they are in: their statements are
    built once for all Apps of a process.
    """
    shape = (
        *(getattr(spec, named.name) for named in fields(spec)),
        spec.part,  # True equals 1
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


@lru_cache(maxsize=16)
def _own(schema: str | None, database: Database) -> dict[str, sa.Table]:
    """Our tables of one schema. All shapes of the message table have the same ones beside them."""
    metadata = sa.MetaData()
    return {one.name: one.made(schema, database, metadata) for one in OWN}


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
    generated = (present or {}).get(columns.OPEN_OBJECT + spec.part + spec.rule)
    made_as = getattr(generated, "collation", None)
    kind = (present or {}).get(names.get("object_id", ""))
    is_text = isinstance(kind, sa.String)  # else its values have no collation that could differ
    if (
        is_text
        and made_as == database.key_collation
        and made_as != getattr(kind, "collation", None)
    ):
        facts |= {"key_collation": made_as, "fold": None}
    own = _own(spec.schema, database)
    tables = indexing(database)(
        spec=spec,
        database=database,
        message=message,
        lease=own[LEASE.name],
        item=own[ITEM.name],
        failed_try=own[TRY.name],
        own=own,
        names=names,
        indexes=indexes,
        where=marked_where(message),
        **facts,
    )
    tables.add_indexes()
    add_priority_index(tables)
    add_unique_index(tables)
    add_job_index(tables)
    return tables


def live_names(spec: MessageTable, present: Mapping[str, TypeEngine[Any]]) -> dict[str, str]:
    """Role -> name of the column as it is in the database. present: the type of each. A column
    `shard` that holds no numbers is another's, which `App.send` must not write."""
    found = found_in(present, spec.names())
    kind = present.get(found.get("shard", ""))
    if kind is not None and not types.takes_numbers(kind):
        del found["shard"]
    return found


def _column(
    role: columns.ColumnRole, spec: MessageTable, database: Database, there: TypeEngine[Any] | None
) -> tuple[Any, dict[str, Any]]:
    """Type and options of a column; there: the type that it has in the database."""
    kind = kept_as(there, database, spec.time_zone) if role.type is None else role.type()
    options: dict[str, Any] = {}
    if role.name == "msg_id":
        options = {"primary_key": True, "autoincrement": True}
        if isinstance(there, sa.types.NullType):  # of SQLite, for which SQLAlchemy counts no ids
            options |= {"autoincrement": False, "nullable": True}
    elif role.default is not None:
        defaults = {"now": created_default(database, spec.time_zone), "0": sa.text("0")}
        default = defaults.get(role.default, role.default)
        options = {"nullable": False, "server_default": default}
    if role.since > 1:
        options["info"] = {columns.ADDED: role.without}
    return kind, options


def _message_table(
    spec: MessageTable,
    database: Database,
    names: dict[str, str],
    metadata: sa.MetaData,
    live: Mapping[str, TypeEngine[Any]],
) -> sa.Table:
    parts: list[sa.Column[Any]] = []
    for role, about in columns.ROLES.items():
        if role not in names:
            continue
        kind, options = _column(about, spec, database, live.get(names[role]))
        if about.own_type or types.is_own_enum(live.get(names[role])):
            own = live.get(names[role], kind)
            unknown = isinstance(own, sa.types.NullType) and not database.loose_types
            kind = kind if role == "msg_id" and unknown else types.exact(own)
        exact = sa.Integer | sa.String | types.KeyText
        if role == "object_id" and database.loose_types and not isinstance(kind, exact):
            kind = types.AnyId()
        known = (sa.String, sa.JSON, sa.types.TypeDecorator)
        if role == "payload" and database.loose_types and not isinstance(kind, known):
            kind = sa.types.NullType()  # values are read unchanged, whatever the type
        if role == "msg_id" and not isinstance(kind, sa.Integer | sa.types.NullType):
            kind = types.WholeId()
        counted = database.identity(always=database.partitioned) if role == "msg_id" else ()
        parts.append(sa.Column(names[role], kind, *counted, **options))
    parts += where_columns(spec.where, database, live)
    options = database.table_options(names.get("object_id") if database.partitioned else None)
    table = sa.Table(spec.bare_name, metadata, *parts, schema=spec.schema, **options)
    if database.partitioned:  # the ids are unique, but no constraint can say so
        table.primary_key.ddl_if(callable_=lambda *_, **__: False)
    return table
