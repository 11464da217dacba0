"""Checks of a message before it is sent, and the row made from it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from threading import get_ident
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, TypeGuard, TypeVar, cast
from uuid import UUID
from weakref import WeakSet

import sqlalchemy as sa
from sqlalchemy import Connection, RootTransaction

from msgworker import message
from msgworker.config import number
from msgworker.db import drivers
from msgworker.db.catalogue import max_whole
from msgworker.db.connections import connecting, is_a
from msgworker.db.engine import ASYNC, other_than, place_of
from msgworker.db.types import AnyId
from msgworker.errors import ConfigError, JobSealed, SchemaError
from msgworker.payload import clean, encode, fitting, is_text
from msgworker.store import send as store
from msgworker.table.build import MAX_ACTOR, MAX_JOB
from msgworker.table.columns import JOB, MAX_KEY, MAX_OBJECT_ID, MAX_TOPIC, MOST_PRIORITY
from msgworker.table.tables import (
    KEY_COLUMNS,
    Tables,
    enforces_keys,
    takes_keys,
    unique_index_name,
)

if TYPE_CHECKING:  # a caller with a Session has imported the ORM
    from sqlalchemy.orm import Session, scoped_session


T = TypeVar("T")
FAR_SECONDS = 100 * 366 * 86_400.0


class Unique(NamedTuple):
    """How unique a key is, and what becomes of a message whose key is taken; see App.send."""

    unique: message.Uniqueness = "open"
    on_duplicate: message.OnDuplicate = "skip"


class FromHandler(TypedDict, total=False):
    """The options of `send` in a handler of batches."""

    object_id: Any
    delay: float | timedelta | None
    at: datetime | None
    priority: int | None
    unique_key: str | None
    unique: message.Uniqueness
    on_duplicate: message.OnDuplicate


class ManyOptions(TypedDict, total=False):
    """The options of `App.send_many`, for what passes them on to it."""

    delay: float | timedelta | None
    at: datetime | None
    priority: int | None
    unique: message.Uniqueness
    on_duplicate: message.OnDuplicate
    job: Job | int | None


class SendOptions(ManyOptions, total=False):
    """Those of `App.send`."""

    unique_key: str | None


class AllSendOptions(SendOptions, total=False):
    """The same, with the object."""

    object_id: Any


def outgoing(
    tables: Tables,
    topic: str,
    payload: Any,
    *,
    object_id: Any = None,
    delay: float | timedelta | None = None,
    at: datetime | None = None,
    priority: int | None = None,
    unique_key: str | None = None,
    unique: message.Uniqueness = "open",
    on_duplicate: message.OnDuplicate = "skip",
    job_id: int | None = None,
) -> message.Outgoing:
    """Check what `App.send` takes; raises ConfigError, PayloadError or SchemaError."""
    seconds, rank = seconds_of(delay, at, tables), checked_priority(priority, tables)
    rule = checked_unique(unique, on_duplicate)
    row = row_of(tables, topic, payload, object_id, seconds, at, rank, unique_key, rule, job_id)
    return message.Outgoing(row, None if unique_key is None else on_duplicate)


def row_of(
    tables: Tables,
    topic: str,
    payload: Any,
    object_id: Any,
    delay: float | None,
    at: datetime | None,
    priority: int | None = None,
    unique_key: str | None = None,
    rule: Unique = Unique(),  # noqa: B008 - a constant
    job_id: int | None = None,
) -> dict[str, Any]:
    """The values of a new row by column; raises ConfigError, PayloadError or SchemaError."""
    check_topic(topic)
    if tables.unfilled:
        store.refuse_unfilled(tables)
    if not tables.has("payload") and payload is not None:
        raise ConfigError(f"table {tables.spec.name} has no payload column; send None")
    row = store.row_values(
        tables,
        topic=topic,
        object_id=checked_object_id(object_id, tables),
        payload=encode(payload),
        delay=delay,
        at=at,
        priority=priority,
        unique_key=checked_key(unique_key, rule, tables),
        kept=rule.unique == "kept",
        job_id=job_id,
    )
    store.check_limits(tables, row)
    return row


def check_topic(topic: Any) -> None:
    """Raise ConfigError if it is no topic."""
    if not isinstance(topic, str) or not 0 < len(topic) <= MAX_TOPIC:
        raise ConfigError(f"a topic is a text of 1 to {MAX_TOPIC} characters, got {topic!r:.80}")
    if "\x00" in topic or not is_text(topic):
        raise ConfigError(f"the topic {topic!r:.120} holds a NUL or half of a surrogate pair")


def refuse_topic(tables: Tables, topic: object) -> None:
    """Raise ConfigError if a message of this topic would come to the handler of another one."""
    if not tables.has("topic") and topic != message.DEFAULT_TOPIC:
        raise ConfigError(
            f"table {tables.spec.name} has no topic column: each of its messages is of the topic "
            f'"{message.DEFAULT_TOPIC}", and {topic!r:.80} would be lost. Send it as '
            f'"{message.DEFAULT_TOPIC}", or name a column, MessageTable(topic=...)'
        )


# --- Jobs: messages that belong together. What they need of the store is imported with the first.

OnComplete = str | tuple[str, Any] | tuple[str, Any, Any]
"""A topic; a topic and a payload; a topic, a payload and an object."""


class Job:
    """A job; see `App.job`, which makes it. As a context manager it is sealed at the end of the
    block, unless that raises.

    job_id: its id. name: as it was opened; None where only the id is known.
    """

    def __init__(
        self,
        job_id: int,
        name: str | None,
        tables: Tables,
        transaction: Callable[[], AbstractContextManager[Connection]],
        engine: sa.Engine,
        *,
        of_its_own: bool,
    ) -> None:
        """transaction: the one in which it is sealed, where `seal` is given none; of_its_own: it is
        a new one. engine: of the App that has made it."""
        self.job_id = job_id
        self.name = name
        self._tables = tables
        self._transaction = transaction
        self._engine, self._alike = engine, WeakSet([engine])
        self._of_its_own = of_its_own
        # The transactions that have sent into it, by thread; of borrowed connections the last.
        self._senders: dict[int, WeakSet[RootTransaction]] = {}
        self._borrowed: dict[int, Borrowed] = {}

    def __repr__(self) -> str:
        return f"<Job {self.job_id}{'' if self.name is None else f' {self.name!r}'}>"

    def seal(self, conn: Connection | Session | None = None) -> bool:
        """Say that all has been sent: from now on only handlers of its own messages send into it.
        It completes when all its messages have ended. Returns False if it was sealed before.

        conn: of your transaction; None = that in which the job was opened, or one of its own.
        Waits for other transactions that have sent into it. Raises DatabaseUnavailable, and
        ConfigError if it would wait for one of this thread, or there is no such job.
        """
        if conn is not None:
            return self._seal(connection_of(conn))
        me = get_ident()
        lent, ours = self._borrowed.get(me), self._senders.get(me, ())
        waits = lent is not None and not lent.commits_each
        if self._of_its_own and (waits or any(sender.is_active for sender in ours)):
            raise ConfigError(
                f"job {self.job_id} was sent into by a transaction that is still open: this seal "
                "would wait for it. Seal it after the COMMIT, or in it: job.seal(conn)"
            )
        with self._transaction() as own:
            return self._seal(own)

    def _seal(self, conn: Connection) -> bool:
        from msgworker.store import jobs

        if jobs.seal(conn, self._tables, self.job_id):
            return True
        if jobs.lock_open(conn, self._tables, self.job_id) is None:
            raise ConfigError(f"there is no job {self.job_id} of table {self._tables.spec.name}")
        return False

    def is_of(self, conn: Connection, tables: Tables, engine: sa.Engine) -> bool:
        """Whether it may be one of these tables, to which a connection of this App's engine leads:
        another database has a job of the same id."""
        mine, theirs = self._tables.spec, tables.spec
        if engine in self._alike or (mine.schema is None) != (theirs.schema is None):
            return True
        if engine.url == self._engine.url:
            return mine.schema == theirs.schema
        with connecting(self._engine) as own:
            here = place_of(own, mine.name, mine.schema)
        there = place_of(conn, theirs.name, theirs.schema)
        if found := here is None or there is None or here == there:
            self._alike.add(engine)
        return found

    def sent(self, conn: Connection) -> None:
        """Something is sent into it in the transaction of this connection."""
        if isinstance(conn, Borrowed):
            me = get_ident()
            if conn.on_commit(lambda: self._borrowed.pop(me, None)):
                self._borrowed[me] = conn
        elif (sender := conn.get_transaction()) is not None:
            self._senders.setdefault(get_ident(), WeakSet()).add(sender)

    def __enter__(self) -> Job:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.seal()


def refuse_jobs(tables: Tables) -> None:
    """Raise SchemaError if the database has not what jobs need."""
    from msgworker.store import jobs

    if jobs.is_there(tables):
        return
    hint = (
        "Run App.create_schema() or `msgworker init-db`, which add it"
        if tables.spec.is_default
        else 'Add a BIGINT column, name it, MessageTable(job_id="job_id"), and run '
        "create_schema(); `msgworker doctor --sql --advised` prints the statement"
    )
    raise SchemaError(
        f"jobs need the table msgworker_job and the column job_id of {tables.spec.name} with its "
        f"index {tables.spec.index_name(JOB)}; one is missing. {hint}"
    )


def open_job(
    conn: Connection,
    tables: Tables,
    name: str,
    on_complete: OnComplete | None,
    on_dead: message.JobPolicy,
    opened_by: str | None,
) -> int:
    """Check what `App.job` takes and insert the job; return its id. Raises ConfigError,
    PayloadError or SchemaError before anything is inserted."""
    from msgworker.store import jobs

    refuse_jobs(tables)
    if not isinstance(name, str) or not 0 < len(name.strip()) <= len(name) <= MAX_JOB:
        text = f"the name of a job is a text of 1 to {MAX_JOB} characters, not of spaces alone"
        raise ConfigError(f"{text}; got {name!r:.120}")
    if "\x00" in name or not is_text(name):
        raise ConfigError(f"the name {name!r:.120} holds a NUL or half of a surrogate pair")
    if fitting(name, tables.own_codec) != name:
        raise ConfigError(
            f"the name {name!r:.120} holds characters that the database does not keep"
        )
    if on_dead == "wait" and tables.spec.on_dead != "block" and not tables.has("last_error"):
        raise ConfigError(
            'on_dead="wait" needs the column last_error: without it no message counts as discarded'
            ", and the job would not end"
        )
    if on_dead not in message.JOB_POLICIES:
        raise ConfigError(f'on_dead of a job is "complete" or "wait"; got {on_dead!r:.60}')
    if opened_by is not None and not isinstance(opened_by, str):
        raise ConfigError(f"opened_by is a text, got {opened_by!r:.80}")
    topic = payload = object_id = None
    if on_complete is not None:
        parts = (on_complete,) if isinstance(on_complete, str) else on_complete
        if not isinstance(parts, tuple | list) or not 1 <= len(parts) <= 3:
            raise ConfigError(
                "on_complete is a topic, (topic, payload) or (topic, payload, object_id); "
                f"got {on_complete!r:.80}"
            )
        topic, sent, of = (*parts, None, None)[:3]
        refuse_topic(tables, topic)
        says = sent
        if sent is None and tables.has("payload"):  # what it will say is as long at least
            says = {"job": 1, "name": name, "done": 0, "dead": 0}
        row = row_of(tables, topic, says, of, None, None)
        payload = None if sent is None else row.get("b_payload")
        object_id = None if of is None else str(of)
    return jobs.open_job(
        conn,
        tables,
        name=name,
        on_complete=topic,
        object_id=object_id,
        payload=payload,
        on_dead=on_dead,
        opened_by=tables.own_text(
            None if opened_by is None else clean(opened_by, MAX_ACTOR), MAX_ACTOR
        ),
    )


def into_job(conn: Connection, tables: Tables, job: Job | int, engine: sa.Engine) -> int:
    """The id of the job that a message is sent into, which stays open until the transaction ends.
    engine: of the App that sends. Raises ConfigError, SchemaError or JobSealed."""
    from msgworker.store import jobs

    job_id = job.job_id if isinstance(job, Job) else job
    if isinstance(job_id, bool) or not isinstance(job_id, int):
        raise ConfigError(f"job is what App.job returned, or the id of a job; got {job!r:.80}")
    refuse_jobs(tables)
    if isinstance(job, Job) and not job.is_of(conn, tables, engine):
        raise ConfigError(
            f"{job!r} is of another database than this message; open a job in each: "
            "databases.of(object_id).job(...)"
        )
    found = jobs.lock_open(conn, tables, job_id) if 0 < job_id < 2**63 else None
    if found is None:
        raise ConfigError(
            f"there is no job {job_id} of table {tables.spec.name}: it was not opened, its "
            "transaction was rolled back, or it was purged; nothing was sent"
        )
    if conn.commits_each if isinstance(conn, Borrowed) else drivers.commits_each(conn):
        raise ConfigError(
            "a message of a job is sent in a transaction, for which the seal waits, and this "
            "connection is in autocommit mode; nothing was sent"
        )
    if found.sealed:
        raise JobSealed(job_id, found.name)
    if isinstance(job, Job):
        job.sent(conn)
    return job_id


class Borrowed:
    """A connection that is not SQLAlchemy's, on which `send` runs its statements; the subclass has
    the methods of a Connection that these use. See contrib/django.

    commits_each: it is in autocommit mode.
    """

    @property
    def commits_each(self) -> bool:
        raise NotImplementedError

    def on_commit(self, fn: Callable[[], object]) -> bool:
        """Call `fn` when the caller has committed; False if nothing will call it."""
        raise NotImplementedError


def is_session(target: object) -> TypeGuard[Session]:
    """Whether it is a Session of the ORM, checked without importing the ORM."""
    return is_a(target, "sqlalchemy.orm", "Session")


def _is_async(target: object) -> bool:
    return any(is_a(target, ASYNC, name) for name in ("AsyncSession", "AsyncConnection"))


async def on_async(target: Any, fn: Callable[..., T], topic: str, *what: Any, **options: Any) -> T:
    """Call a method that sends with the Connection or Session behind an AsyncConnection or
    AsyncSession. Raises ConfigError for anything else."""
    if is_a(target, ASYNC, "async_scoped_session"):
        target = target()
    if not _is_async(target):
        name = fn.__name__
        raise ConfigError(
            f"a{name} takes your AsyncConnection or AsyncSession, so that it is part of your "
            f"transaction; got {target!r:.80}. With a Connection or Session: {name}, without await"
        )
    sent: T = await target.run_sync(fn, topic, *what, **options)
    return sent


def unscoped(target: object) -> object:
    """The Session of this thread, of a scoped_session; anything else as it is."""
    if is_a(target, "sqlalchemy.orm", "scoped_session"):
        return cast("scoped_session[Session]", target)()
    return target


def connection_of(target: object, engine: sa.Engine | None = None) -> Connection:
    """The caller's connection; raises ConfigError if it is not a connection, or certainly one to
    another database than that of `engine`."""
    if isinstance(target, Borrowed):
        return cast(Connection, target)
    target = unscoped(target)
    found = target.connection() if is_session(target) else target
    if not isinstance(found, Connection):
        if _is_async(found) or is_a(found, ASYNC, "async_scoped_session"):
            kind = type(found).__name__
            raise ConfigError(
                f"send takes a Connection or Session, and this is an {kind}: "
                "await app.asend(...) or app.asend_many(...) instead; what has no such twin takes "
                "the connection of `await conn.run_sync(lambda sync: ...)`"
            )
        raise ConfigError(
            "send takes your Connection or Session, so that it is part of your transaction; "
            f"got {target!r:.80}"
        )
    if engine is None or found.engine is engine:
        return found
    if why := other_than(engine, found.engine):
        raise ConfigError(f"the connection that send was given {why}; nothing was sent")
    return found


def checked_object_id(object_id: Any, tables: Tables) -> Any:
    if isinstance(object_id, str):
        if len(object_id) > MAX_OBJECT_ID:
            raise ConfigError(
                f"object_id has {len(object_id)} characters, at most {MAX_OBJECT_ID} are kept"
            )
        if not object_id and tables.database.empty_is_null:
            raise ConfigError(
                'object_id is "", which this database keeps as NULL, the value of no object; give '
                "another text, or None for a message without order"
            )
        if "\x00" in object_id:
            raise ConfigError("object_id holds a NUL character")
        try:
            object_id.encode("utf-8")
        except UnicodeEncodeError:
            raise ConfigError("object_id holds half of a surrogate pair") from None
    elif isinstance(object_id, bool) or not isinstance(object_id, int | Decimal | UUID | None):
        raise ConfigError(f"object_id must be a text or a whole number, got {object_id!r:.80}")
    elif tables.database.loose_types:
        fixed = not isinstance(tables.object_type, AnyId)
        if fixed and isinstance(object_id, Decimal | UUID):
            kind = type(object_id).__name__
            raise ConfigError(
                f"object_id is a {kind}, which {tables.database.name} does not keep; send its text"
            )
        whole_part = object_id if isinstance(object_id, int) else 0
        if isinstance(object_id, Decimal) and object_id.is_finite():
            whole_part = int(object_id)
        if not -(2**63) <= whole_part < 2**63:
            raise ConfigError(f"object_id has more than 64 bits, got {object_id!r:.60}")
    elif tables.database.arrays and isinstance(tables.object_type, sa.String):
        known = isinstance(object_id, int) and -(2**63) <= object_id < 2**63
        if known or isinstance(object_id, UUID):
            return str(object_id)  # as psycopg does; asyncpg takes no other value for a text
    elif isinstance(object_id, Decimal) and not object_id.is_finite():
        object_id = str(object_id)  # PyMySQL would write it as a name
    if not isinstance(object_id, tables.id_types):
        return store.as_object(tables, object_id)
    return object_id


def checked_priority(priority: Any, tables: Tables) -> int | None:
    """The priority as sent; None = that of the column. Raises ConfigError."""
    if priority is None:
        return None
    if not tables.has("priority"):
        hint = (
            "run App.create_schema() or `msgworker init-db`, which add it"
            if tables.spec.is_default
            else 'add a SMALLINT column and name it, MessageTable(priority="priority")'
        )
        raise ConfigError(
            f"table {tables.spec.name} has no priority column: all messages have the same; {hint}"
        )
    largest = max_whole(tables.message.c[tables.names["priority"]].type)
    most = MOST_PRIORITY if largest is None else min(largest, MOST_PRIORITY)
    if isinstance(priority, bool) or not isinstance(priority, int) or not 0 <= priority <= most:
        raise ConfigError(
            f"priority must be a whole number from 0, the lowest, to {most}; got {priority!r:.60}. "
            "To let some messages give way to all others, send the others with a priority"
        )
    return priority


def checked_unique(kind: Any, on_duplicate: Any) -> Unique:
    """Raises ConfigError for words that are none of those known."""
    for name, value, known in (
        ("unique", kind, message.UNIQUE),
        ("on_duplicate", on_duplicate, message.ON_DUPLICATE),
    ):
        if value not in known:
            words = ", ".join(f'"{word}"' for word in known)
            raise ConfigError(f"{name} must be one of {words}; got {value!r:.60}")
    return Unique(kind, on_duplicate)


def checked_key(key: Any, rule: Unique, tables: Tables) -> str | None:
    """The unique key as sent; None = the message has none. Raises ConfigError or SchemaError."""
    if key is None:
        if rule != Unique():
            raise ConfigError("unique and on_duplicate are about a unique_key; give one too")
        return None
    if not isinstance(key, str) or not 0 < len(key) <= MAX_KEY:
        raise ConfigError(f"a unique_key is a text of 1 to {MAX_KEY} characters, got {key!r:.80}")
    if "\x00" in key or not is_text(key):
        raise ConfigError(f"the unique_key {key!r:.120} holds a NUL or half of a surrogate pair")
    _check_keys(tables)
    return key


def _check_keys(tables: Tables) -> None:
    if tables.database.partitioned:
        raise ConfigError(
            f"table {tables.spec.name} has partitions, and no index over all of them can keep keys "
            "unique; send the message without one (docs/project/decisions/013-partitions.md)"
        )
    if not takes_keys(tables):
        hint = (
            "run App.create_schema() or `msgworker init-db`, which add them"
            if tables.spec.is_default
            else f"add a VARCHAR({MAX_KEY}), a SMALLINT and an instant, name them, MessageTable("
            'unique_key="unique_key", unique_kept="unique_kept", finished_at="finished_at"), and '
            "run create_schema(); `msgworker doctor --sql --advised` prints them"
        )
        lacks = ", ".join(name for name in KEY_COLUMNS if not tables.has(name))
        raise ConfigError(
            f"table {tables.spec.name} has no columns for unique keys: {lacks}; {hint}"
        )
    if not enforces_keys(tables):
        raise SchemaError(
            f"the unique index {unique_index_name(tables)} is missing on {tables.spec.name}: "
            "without it keys are not unique. Run App.create_schema() or `msgworker init-db`"
        )


def seconds_of(
    delay: float | timedelta | None, at: datetime | None, tables: Tables
) -> float | None:
    if delay is not None and at is not None:
        raise ConfigError("give delay or at, not both")
    if (delay is not None or at is not None) and not tables.has("available_at"):
        raise ConfigError(f"table {tables.spec.name} has no available_at column: nothing can wait")
    if at is not None:
        check_at("at", at, tables)
    if delay is None:
        return None
    seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
    checked = number("delay", seconds, 0, FAR_SECONDS)
    _check_instant("delay", datetime.now(UTC) + timedelta(seconds=checked), tables)
    return checked


def check_at(name: str, at: Any, tables: Tables) -> None:
    """Raise ConfigError if it is no instant that a message can wait for."""
    if not isinstance(at, datetime) or at.tzinfo is None:
        like = datetime.now(UTC)
        raise ConfigError(f"{name} must be an aware datetime, e.g. {like!r}; got {at!r:.80}")
    try:
        at.astimezone(UTC)
    except OverflowError:
        raise ConfigError(
            f"{name} must be within the years 1 to 9999 in UTC, got {at.isoformat()}"
        ) from None
    _check_instant(name, at, tables)


def _check_instant(name: str, instant: datetime, tables: Tables) -> None:
    """Raise ConfigError if `available_at` cannot hold an instant: databases refuse or change it."""
    held, column = tables.instants, tables.names["available_at"]
    if held.last < held.first:
        raise ConfigError(f"column {column} is {held.kind} and holds no instants: nothing can wait")
    if not held.first <= instant <= held.last:
        raise ConfigError(
            f"{name} must end in {held.first:%Y-%m-%d} to {held.last:%Y-%m-%d}, which is what "
            f"column {column} ({held.kind}) holds; got {instant.isoformat()}"
        )
