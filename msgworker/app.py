"""App: the handlers, the engine and the table; the place that wires the parts.

One file, because it is the user's view: half of it is the documentation of its methods.
"""

from __future__ import annotations

import itertools
import os
import weakref
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack, overload

import sqlalchemy as sa
from sqlalchemy import Connection, event

from msgworker import config
from msgworker.config.values import as_where
from msgworker.db.connections import connecting, reaching, writing
from msgworker.db.engine import beside, lent_engine, open_engine, server_of
from msgworker.db.errors import masked
from msgworker.declaring import AnyHandler, Declaring
from msgworker.errors import ConfigError, HandlerError
from msgworker.instance.running.handler import Registry, check_tries, make_handler
from msgworker.logs import logger
from msgworker.message import JobPolicy, OnDuplicate, Outgoing, Uniqueness
from msgworker.payload import clean
from msgworker.processlock import ProcessLock
from msgworker.schedules import OWN, CatchUp, Overlap, Schedule, Schedules, configured, cron, every
from msgworker.store import send as store
from msgworker.table.columns import COLUMNS
from msgworker.table.spec import MessageTable
from msgworker.table.tables import Tables
from msgworker.tracing import tracer

if TYPE_CHECKING:  # a caller with a Session has imported the ORM
    from asyncio import AbstractEventLoop

    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession
    from sqlalchemy.orm import Session

    from msgworker.coordination.lease import LockCentre
    from msgworker.events import Event, EventName, Events
    from msgworker.instance.connections import FairLock
    from msgworker.instance.instance import Instance
    from msgworker.instance.state import Scope, Setup
    from msgworker.instance.worker import Report, Worker
    from msgworker.ops import Ops
    from msgworker.schema.apply import Plan, Step
    from msgworker.schema.known import KnownTables
    from msgworker.web.access import RoleName
    from msgworker.web.application import Dashboard
from msgworker import producing

E = TypeVar("E", bound="Event")
SEND_CHUNK = 5000
TABLES_SECONDS = 10.0
"""Seconds that the first send has for each statement by which it reads the tables, beside the
caller's transaction, which may have them locked."""
log = logger("msgworker.app")


class App(Declaring):
    """Handlers, a database and a message table.

    url_or_engine: a SQLAlchemy URL or an Engine; of an AsyncEngine its URL, by a driver that is not
    async (asyncpg: psycopg, aiomysql: PyMySQL), see docs/guides/asyncio.md. table: a MessageTable,
    by default the table msgworker_message. label: the name of its instances in `msgworker
    instances` and in their ids, by default the host. Further keywords are those of
    `config.Settings` (lease_seconds, poll_seconds, ...). It connects when a connection is first
    needed. Raises ConfigError for wrong settings.
    """

    def __init__(
        self,
        url_or_engine: str | sa.URL | sa.Engine | AsyncEngine,
        *,
        table: MessageTable | None = None,
        label: str = "",
        **settings: Unpack[config.Keywords],
    ) -> None:
        self.settings = config.Settings.of(settings)
        self._origins = dict.fromkeys(settings, "")
        if table is not None and not isinstance(table, MessageTable):
            raise ConfigError(f"table must be a MessageTable, got {table!r}")
        self.table = table or MessageTable()
        if self.settings.foreign_stale_after is not None and self.table.claimed_by is None:
            raise ConfigError(
                "foreign_stale_after needs a column claimed_by: without it messages of msgworker "
                "look like those of a foreign consumer"
            )
        self.engine = open_engine(url_or_engine)
        self._async_engine = lent_engine(url_or_engine)
        self._beside: dict[bool, sa.Engine] = {}
        self.label = clean(str(label), 200)
        self._tracer = tracer(self.settings.tracing, lambda: server_of(self.engine))
        self._registry = Registry()
        self._subscribers: Events | None = None
        self._timers = Schedules()
        self._lock = ProcessLock()
        self._known_tables: KnownTables | None = None
        self._names_rule = True
        # Workers to wake. Weak: the threads of a running worker keep it alive.
        self._workers: weakref.WeakSet[Worker] = weakref.WeakSet()
        self._workers_lock = ProcessLock()
        self._producing: weakref.WeakSet[Any] = weakref.WeakSet()
        self._fair_lock: FairLock | None = None
        self._drains = Counter[int]()  # by process: a child runs none of its parent's

    @classmethod
    def from_config(cls, conf: config.Configuration | None = None, *, label: str = "") -> App:
        """An App with the database, table and settings of the configuration.

        conf: the result of `config.load`; by default it is read as the command line reads it:
        environment, ./msgworker.toml, ./pyproject.toml. An existing table keeps its max_tries
        and on_dead if the configuration sets neither. Raises ConfigError.
        """
        conf = config.load() if conf is None else conf
        made = cls(conf.url, table=table_from(conf), label=label, **conf.group("app"))
        made._origins = dict(conf.origins)
        made._names_rule = conf.given("max_tries") or conf.given("on_dead")
        made.add_configured(conf)
        return made

    def add_configured(self, conf: config.Configuration) -> None:
        """Declare the schedules of a configuration, `[schedule.NAME]`, besides those in code; the
        command line does so for every App. Raises ConfigError, also for a name that is there."""
        for one in configured(conf.schedules):
            self._timers.add(one)

    def __repr__(self) -> str:
        return f"App({masked(self.engine.url)!r}, table={self.table.name!r})"

    @property
    def _own(self) -> sa.Engine:
        # Connections that no user code has, for all statements of ours.
        return self._engine_beside(lends=False)

    def _engine_beside(self, *, lends: bool) -> sa.Engine:
        found = self._beside.get(lends)
        if found is not None:
            return found
        with self._lock:
            if lends not in self._beside:
                self._beside[lends] = beside(self.engine, lends=lends)
            return self._beside[lends]

    def create_schema(self) -> list[str]:
        """Create missing tables and indexes; return the names of what was created.

        Safe to call at every start and from several processes at once. An existing table only gets
        indexes (on MariaDB and MySQL also the hidden generated columns that they use). The first
        call on a table logs a warning if it has rows with an unknown status.

        If the table has another max_tries or on_dead, it takes those of this App if no instance is
        alive on it (the returned list says so); otherwise it keeps its own and logs a warning.
        Raises DatabaseUnavailable, SchemaError.
        """
        from msgworker.schema.rule import Rule

        made, before = self._known.create()
        if before is not None:
            after = Rule.of(self._by_rule(may_bury=True).spec)
            made += [f"rule {after}"] if after != before else []
        return made

    def upgrade_schema(
        self,
        *,
        dry_run: bool = False,
        message_table: bool = False,
        on_step: Callable[[Step], object] | None = None,
    ) -> Plan:
        """Bring the tables of an earlier version to the one of this package, while instances work;
        return what was found and run. Like `create_schema`, by statements that let others work.

        dry_run: change nothing. message_table: also create the indexes that are missing on a
        message table that is not named msgworker_message; else they are returned as `left`.
        on_step: is called with each step that has run. Safe to call again after a crash, and from
        several processes at once. Raises DatabaseUnavailable, SchemaError.
        """
        return self._known.upgrade(dry_run=dry_run, message_table=message_table, on_step=on_step)

    @property
    def tables(self) -> Tables:
        """The live tables; read once. Raises DatabaseUnavailable, SchemaError.

        Their `spec` has max_tries and on_dead as recorded in the database, which may differ from
        those of this App's `table`.
        """
        return self._known.read()

    @property
    def _known(self) -> KnownTables:
        found = self._known_tables
        if found is not None:
            return found
        with self._lock:
            if self._known_tables is None:
                from msgworker.schema.known import KnownTables

                self._known_tables = KnownTables(
                    self._own, self.table, names_rule=self._names_rule, with_headers=self._tracer.on
                )
            return self._known_tables

    def _by_rule(self, *, may_bury: bool = False) -> Tables:
        """The tables with the rule in force: this App's, if it is or can become the table's rule,
        else the table's. may_bury: change the rule even if failed messages become dead by that."""
        from msgworker.instance.liveness.recovery import IN_THE_WAY, change_rule
        from msgworker.schema.rule import Answer, Rule

        wanted, known = Rule.of(self.table), self._known
        while True:
            found = known.recorded_rule()
            if found == wanted or not self._names_rule:
                return known.read()
            with reaching(self._own):
                known.check_missing()
                setup = self._new_setup(known.read(), None)
                verdict = change_rule(setup, wanted, log, may_bury=may_bury)
            if verdict.state in IN_THE_WAY:
                return known.read()
            known.forget()
            if verdict.state is Answer.CHANGED:
                known.tell_of_indexes()

    def _declare(self, topic: str | None, fn: Callable[..., Any], options: dict[str, Any]) -> None:
        made = make_handler(topic, fn, **options)
        if made.is_async and made.transactional and self._async_engine is None:
            raise HandlerError(
                f"handler {getattr(fn, '__qualname__', fn)} is async, and with transactional=True "
                "it runs on a connection of an AsyncEngine, which the App does not have: make the "
                "App with it, App(create_async_engine(...)), or write a function that is not async"
            )
        check_tries(made, self.table)
        self._registry.add(made)

    def every(
        self,
        period: float | str | timedelta,
        *,
        topic: str | None = None,
        object_id: Any = OWN,
        payload: Any = None,
        name: str | None = None,
        catch_up: CatchUp = "last",
        overlap: Overlap = "allow",
    ) -> Callable[[AnyHandler], AnyHandler]:
        """Declare a schedule: a message of `topic` every `period`, "5m", seconds or a timedelta,
        from 1 s to 366 days in whole seconds, counted from 1970-01-01 00:00 UTC.

        Call it, or write it above a function. With `topic` the function below, if there is one,
        becomes its handler; without it the topic is that of the handler below
        (`@app.handler("t")`), or the name of the function, which then becomes its handler.
        name: default: the topic; one schedule has it. object_id: default: the name, so that its
        messages never overlap; None = no object. payload: as in `send`. catch_up: what is sent
        after an outage: "last" (one message for the last tick that was missed), "one" (the same,
        and none while one waits), "all", or "none" (no tick that is more than 60 s late). overlap:
        what becomes of a tick while the message before it has not ended: "allow" (it is sent too),
        "skip" (it is not) or "replace" (that message is the one of the new tick if it has not
        begun, else it is cancelled, and the new one is sent). `msg.scheduled_for` is the tick.

        The instances and drains of this App fire it, each tick once. See docs/guides/timers.md.
        Raises ConfigError or PayloadError at once.
        """
        return self._timers.declare(
            *(every(period), topic, object_id, payload, name, catch_up, overlap),
            *(self._registry.handlers, self._declare),
        )

    def cron(
        self,
        expression: str,
        *,
        tz: str = "UTC",
        topic: str | None = None,
        object_id: Any = OWN,
        payload: Any = None,
        name: str | None = None,
        catch_up: CatchUp = "last",
        overlap: Overlap = "allow",
    ) -> Callable[[AnyHandler], AnyHandler]:
        """Declare a schedule by a cron expression, "minute hour day-of-month month day-of-week", in
        a time zone such as "Asia/Shanghai".

        When the clocks are put forward, a time of day that is left out fires when they have been;
        when they are put back, one that comes twice fires the first time. The rest is as in
        `every`. Raises ConfigError, also for an expression that never fires and a time zone that
        this machine does not know.
        """
        return self._timers.declare(
            *(cron(expression, tz), topic, object_id, payload, name, catch_up, overlap),
            *(self._registry.handlers, self._declare),
        )

    @property
    def schedules(self) -> list[Schedule]:
        """The schedules that this App declares, in code and by its configuration. Raises
        ConfigError for one that has no topic."""
        return self._timers.all()

    @overload
    def on(self, event: type[E], fn: Callable[[E], object]) -> Callable[[], None]: ...
    @overload
    def on(self, event: EventName, fn: Callable[[Any], object]) -> Callable[[], None]: ...
    def on(self, event: type[Any] | str, fn: Callable[[Any], object]) -> Callable[[], None]:
        """Call `fn(event)` for every event of a type of `msgworker.events`, or of its name, in all
        instances of this App in this process, from now on; returns a function that ends it.

        It is called in the thread that emits the event and should return quickly. Its exceptions
        are logged, once for each type of error, and have no other effect. Raises ConfigError for an
        unknown event or something that is not a function.
        """
        return self._events.on(event, fn)

    @property
    def _events(self) -> Events:
        from msgworker.events import Events

        with self._lock:
            if self._subscribers is None:
                self._subscribers = Events()
            return self._subscribers

    @property
    def topics(self) -> frozenset[str] | None:
        """The topics that have a handler; None if a handler takes every topic."""
        return self._registry.topics()

    def send(
        self,
        conn: Connection | Session,
        topic: str,
        payload: Any = None,
        *,
        object_id: Any = None,
        delay: float | timedelta | None = None,
        at: datetime | None = None,
        priority: int | None = None,
        unique_key: str | None = None,
        unique: Uniqueness = "open",
        on_duplicate: OnDuplicate = "skip",
        job: producing.Job | int | None = None,
    ) -> Any:
        """Insert one message in the caller's transaction; return its msg_id.

        payload: JSON, a dataclass or a pydantic model, of texts, numbers, Decimal, date, time,
        datetime, timedelta, UUID, Enum, lists, tuples, sets and dicts with text keys; a handler of
        `Message[T]` gets it unchanged, see docs/guides/payloads.md. object_id: the object of the
        message; None = no order required. delay: seconds from now on the database's clock; at: an
        aware datetime. priority: a whole number from 0 on (to 32,767 in the default table);
        messages that are the next of their object are claimed by priority, the highest first, see
        docs/guides/priorities.md; None = the default of the column, 0.
        unique_key: a text of 1 to 190 characters that one message of the table holds at a time, see
        docs/guides/unique.md. unique: "open" frees the key when the message has ended (done or
        dead), "kept" when its row is purged. on_duplicate: what happens if another message holds
        the key: "skip" sends nothing and returns the msg_id of that one; "raise" raises
        DuplicateMessage; "replace" gives that one this payload, priority and delay if it was never
        claimed, and returns its msg_id; if it was, it continues without its key (a kept one with
        it), and this message is sent.
        job: the job that it belongs to, from `App.job`, or its id.
        Raises PayloadError, ConfigError, SchemaError or DatabaseUnavailable before anything is
        inserted; DuplicateMessage also where "replace" would change the topic or the object;
        JobSealed.
        """
        connection = producing.connection_of(conn, self.engine)
        tables = self._known.read(TABLES_SECONDS)
        self._refuse_topic(tables, topic)
        with self._tracer.sending(topic) as sending:
            message = producing.outgoing(
                tables,
                topic,
                payload,
                object_id=object_id,
                delay=delay,
                at=at,
                priority=priority,
                unique_key=unique_key,
                unique=unique,
                on_duplicate=on_duplicate,
                job_id=self._into(job, connection, tables),
            )
            sending.carry((message.row,), tables.max_headers)
            msg_id = store.send_one(connection, tables, message)
            sending.sent(msg_id=msg_id)
        self._sent(conn, connection)
        return msg_id

    def send_many(
        self,
        conn: Connection | Session,
        topic: str,
        messages: Iterable[tuple[Any, ...]],
        *,
        delay: float | timedelta | None = None,
        at: datetime | None = None,
        priority: int | None = None,
        unique: Uniqueness = "open",
        on_duplicate: OnDuplicate = "skip",
        job: producing.Job | int | None = None,
    ) -> int:
        """Insert (payload, object_id) pairs in the caller's transaction, in order; return how many.

        A message with a unique key is a triple: (payload, object_id, unique_key). delay, at,
        priority, unique, on_duplicate, job: as in `send`, the same for all; those with a key are
        sent one by one, and all that are given are counted, also those whose key was taken. All
        messages of a chunk of 5,000 are checked before any of it is inserted. After a
        DuplicateMessage those before it are in your transaction (`sent`), and none behind it.
        """
        connection = producing.connection_of(conn, self.engine)
        tables = self._known.read(TABLES_SECONDS)
        self._refuse_topic(tables, topic)
        seconds = producing.seconds_of(delay, at, tables)
        rank = producing.checked_priority(priority, tables)
        rule = producing.checked_unique(unique, on_duplicate)
        job_id = self._into(job, connection, tables)
        with self._tracer.sending(topic) as sending:
            count, chunks = 0, iter(messages)
            while chunk := list(itertools.islice(chunks, SEND_CHUNK)):
                rows, keyed = [], False
                for one in chunk:
                    if not isinstance(one, tuple | list) or len(one) not in (2, 3):
                        raise ConfigError(
                            "send_many takes (payload, object_id) pairs, and (payload, object_id, "
                            f"unique_key) triples; got {one!r:.80}"
                        )
                    key = one[2] if len(one) == 3 else None
                    by = producing.Unique() if key is None else rule
                    row = producing.row_of(
                        tables, topic, one[0], one[1], seconds, at, rank, key, by, job_id
                    )
                    rows.append(row)
                    keyed |= key is not None
                if rule != producing.Unique() and not (keyed or count):
                    raise ConfigError(
                        "unique and on_duplicate are about unique keys, and no message has one; "
                        "send (payload, object_id, unique_key) triples"
                    )
                sending.carry(rows, tables.max_headers)
                if keyed:
                    given = [Outgoing(row, rule.on_duplicate) for row in rows]
                    store.send_all(connection, tables, given, sent=count)
                else:
                    store.insert_many(connection, tables, rows)
                count += len(rows)
            sending.sent(count=count)
        if count:
            self._sent(conn, connection)
        return count

    async def asend(
        self,
        conn: AsyncConnection | AsyncSession,
        topic: str,
        payload: Any = None,
        **options: Unpack[producing.AllSendOptions],
    ) -> Any:
        """`send` with an AsyncConnection or AsyncSession, in its transaction. options, what it
        returns and raises: as in `send`. It does not block the loop."""
        await self._read_beside()
        return await producing.on_async(conn, self.send, topic, payload, **options)

    async def asend_many(
        self,
        conn: AsyncConnection | AsyncSession,
        topic: str,
        messages: Iterable[tuple[Any, ...]],
        **options: Unpack[producing.ManyOptions],
    ) -> int:
        """`send_many` with an AsyncConnection or AsyncSession, in its transaction. options, what it
        returns and raises: as in `send_many`. It does not block the loop."""
        await self._read_beside()
        return await producing.on_async(conn, self.send_many, topic, messages, **options)

    async def _read_beside(self) -> None:
        """Have the first send read the tables in a thread, by a connection of ours."""
        if not self._known.is_read:
            import asyncio

            await asyncio.to_thread(self._known.read, TABLES_SECONDS)

    def job(
        self,
        name: str | int,
        *,
        conn: Connection | Session | None = None,
        on_complete: producing.OnComplete | None = None,
        on_dead: JobPolicy = "complete",
        opened_by: str | None = None,
    ) -> producing.Job:
        """Open a job: messages that belong together, which are sent with `job=`, and a message that
        is sent once all of them have ended. See docs/guides/jobs.md.

        name: for people, 1 to 190 characters; several jobs may have it. A whole number is the id of
        a job that is open already, for another transaction or program. conn: opens it in your
        transaction, in which it is then also sealed; None = both commit at once.
        on_complete: the topic of the message that is sent, exactly once, when the job is sealed and
        nothing of it is unfinished; or (topic, payload), or (topic, payload, object_id). Without a
        payload it is {"job": its id, "name": ..., "done": how many, "dead": how many}.
        on_dead: "complete" = a dead message has ended, too; "wait" = the job waits until an
        operator reruns or discards it. opened_by: for people.

        With `with` it is sealed at the end of the block, unless that raises. Raises ConfigError,
        PayloadError, SchemaError or DatabaseUnavailable.
        """
        tables = self._known.read(TABLES_SECONDS)
        connection = None if conn is None else producing.connection_of(conn, self.engine)

        @contextmanager
        def transaction() -> Iterator[Connection]:
            if connection is not None:
                yield connection
                return
            with reaching(self._own), writing(self._own) as own:
                yield own

        if isinstance(name, int):
            if (on_complete, on_dead, opened_by) != (None, "complete", None):
                raise ConfigError(f"job {name} is open already: what it does is in its row")
            producing.refuse_jobs(tables)
            if isinstance(name, bool) or not 0 < name < 2**63:
                raise ConfigError(f"the id of a job is a whole number from 1 on, got {name!r}")
            named: tuple[int, str | None] = (name, None)
        else:
            with transaction() as own:
                job_id = producing.open_job(own, tables, name, on_complete, on_dead, opened_by)
            named = (job_id, name)
        return producing.Job(*named, tables, transaction, self._own, of_its_own=connection is None)

    def _into(
        self, job: producing.Job | int | None, connection: Connection, tables: Tables
    ) -> int | None:
        return None if job is None else producing.into_job(connection, tables, job, self._own)

    def _refuse_topic(self, tables: Tables, topic: object) -> None:
        """Raise ConfigError if a handler here would never get its messages of this topic."""
        if isinstance(topic, str) and topic in self._registry.handlers:
            producing.refuse_topic(tables, topic)

    def _sent(self, target: Connection | Session, connection: Connection) -> None:
        """Wake up the workers when the caller has committed."""
        if self.settings.notify and self.tables.database.notify:
            store.notify(connection, self._channel)
        if not self._workers:
            return
        if isinstance(target, producing.Borrowed):
            target.on_commit(self.wake)
            return
        self.wake()  # for a connection in autocommit mode
        own = producing.unscoped(target)
        if own not in self._producing:
            name = "after_commit" if producing.is_session(own) else "commit"
            event.listen(own, name, lambda _: self.wake())
            self._producing.add(own)

    @property
    def _channel(self) -> str:
        return store.channel(self.table)

    def wake(self) -> None:
        """Make the workers of this App in this process look for messages now."""
        with self._workers_lock:
            workers = list(self._workers)
        for worker in workers:
            worker.wake()

    def worker(
        self, *, threads: int = 4, topics: Iterable[str] | None = None, scope: Scope | None = None
    ) -> Worker:
        """A worker: `run`, `start`, `stop`, `drain`; as a context manager it stops at the end.

        threads: how many handlers run at once, async or not, 1 or more. topics: only these of the
        registered topics. scope: where it looks, see `msgworker.coordination`; None = everywhere.
        Raises ConfigError, also if there is no handler. It connects when it starts, and raises
        SchemaError then if the column of the scope is missing.
        """
        return self._worker(threads, topics, scope)

    @asynccontextmanager
    async def running(
        self,
        *,
        threads: int = 4,
        topics: Iterable[str] | None = None,
        scope: Scope | None = None,
        grace: float = 30.0,
    ) -> AsyncIterator[Worker]:
        """A worker that runs while the block does, and its async handlers in the event loop of the
        block: `async with app.running(threads=8) as worker:`, in the lifespan of FastAPI, say.

        threads, topics, scope: as in `worker`; so many handlers run at once, async or not. grace:
        seconds for running handlers at the end of the block, as in `Worker.stop`. Handlers that are
        not async run in threads. Start and stop do not block the loop, and signals stay with the
        program. A block that is cancelled stops in order, too; cancelled again meanwhile, it ends
        the grace time at once. See docs/guides/asyncio.md.

        Raises what `worker` and `Worker.start` raise, before the block begins.
        """
        import asyncio
        from functools import partial

        from msgworker.instance.stop import in_thread

        config.number("grace", grace, 0, config.YEAR_SECONDS)
        loop = asyncio.get_running_loop()
        worker = await in_thread(lambda: self._worker(threads, topics, scope, loop))
        try:
            await in_thread(worker.start, partial(worker.ask, 0.0))
            yield worker
        finally:
            try:
                await in_thread(partial(worker.stop, grace), partial(worker.ask, 0.0))
            finally:
                with self._workers_lock:
                    self._workers.discard(worker)

    def _worker(
        self,
        threads: int,
        topics: Iterable[str] | None,
        scope: Scope | None,
        loop: AbstractEventLoop | None = None,
    ) -> Worker:
        """loop: of async handlers; None = the instance has one of its own."""
        # All that an instance and the methods of its App need: a thread of it imports nothing. The
        # ORM, too: SQLAlchemy looks at it in each statement as soon as it is half imported, so a
        # handler that was the first to import it would fail the statements of other threads.
        import sqlalchemy.orm  # noqa: F401

        from msgworker import doctor, ops  # noqa: F401
        from msgworker.instance.worker import Worker
        from msgworker.queries import (  # noqa: F401
            counts,
            explain,
            failures,
            instances,
            jobs,
            lanes,
            pages,
        )

        config.whole("threads", threads, 1, config.MAX_THREADS)
        chosen = self._chosen(topics)
        self._timers.all()  # refuses one without a topic
        for text in self._registry.read_types():
            log.warning(text)
        some = topics is not None
        scope = self._scope(scope)

        def make_setup() -> Setup:
            with reaching(self._own):
                return self._setup(chosen, chosen=some, scope=scope, loop=loop, threads=threads)

        def look() -> Setup:
            return self._new_setup(self._known.now(), chosen, chosen=some, scope=scope)

        worker = Worker(make_setup, look=look)
        with self._workers_lock:
            self._workers.add(worker)
        return worker

    def drain(
        self,
        *,
        threads: int = 4,
        time_limit: float | None = None,
        linger: float = 5.0,
        retry_linger: float | None = None,
        overlap: Literal["skip", "allow"] = "skip",
        max_concurrent: int | None = None,
        topics: Iterable[str] | None = None,
        grace: float = 30.0,
        signals: bool = False,
        outage_limit: float = 60.0,
        scope: Scope | None = None,
        job: producing.Job | int | None = None,
    ) -> Report:
        """Handle messages until none is due now or soon, or until `time_limit`.

        For batch jobs and timers. All times are in seconds. threads, topics, scope: as in `worker`.
        job: only the messages of this job; it takes no scope beside it. Those behind a message that
        is not of it, in their object, are left.
        linger: wait for messages that become due within this time, and for leases of other
        instances with messages that end within it. retry_linger: the same for the next try of
        messages that have failed; None = 300, or 0 if linger is 0.
        time_limit: stop in order after this time; None = no limit. grace: how long running handlers
        may continue at a stop. overlap: "skip" returns at once (Report.skipped) while another drain
        of this App runs in this process; "allow" lets up to `max_concurrent` run. signals: as in
        `Worker.run`. outage_limit: give up (Report.database_lost) when the database has been
        unreachable for this long.

        Raises ConfigError before anything is done; DatabaseUnavailable if the database cannot be
        reached at the start or denies access; SchemaError if something is missing; HandlerStuck for
        a handler with timeout_action="restart" that did not end in time.
        """
        from msgworker.instance.worker import Report

        if overlap not in ("skip", "allow"):
            raise ConfigError(f'overlap must be "skip" or "allow", got {overlap!r}')
        optional = {"time_limit": time_limit, "retry_linger": retry_linger}
        times = {name: value for name, value in optional.items() if value is not None}
        times |= {"linger": linger, "grace": grace, "outage_limit": outage_limit}
        for name, value in times.items():
            config.number(name, value, 0, config.YEAR_SECONDS)
        if max_concurrent is not None:
            config.whole("max_concurrent", max_concurrent, 1, config.MAX_THREADS)
        if job is not None:
            from msgworker.coordination.centres import OneJob

            if scope is not None:
                raise ConfigError(
                    f"a drain of a job looks for its messages alone: leave out {scope!r}"
                )
            scope = OneJob(job)
        most = 1 if overlap == "skip" else (max_concurrent or config.MAX_THREADS)
        here = os.getpid()
        with self._lock:
            if self._drains[here] >= most:
                return Report(skipped=True)
            self._drains[here] += 1
        worker: Worker | None = None
        try:
            worker = self.worker(threads=threads, topics=topics, scope=scope)
            return worker.drain(
                time_limit=time_limit,
                linger=linger,
                retry_linger=retry_linger,
                grace=grace,
                signals=signals,
                outage_limit=outage_limit,
            )
        finally:
            if worker is not None:
                with self._workers_lock:
                    self._workers.discard(worker)
            with self._lock:
                self._drains[here] -= 1

    def _chosen(self, topics: Iterable[str] | None) -> frozenset[str] | None:
        registered = self._registry.topics()
        if not self._registry.handlers:
            raise ConfigError("there is no handler; register one with @app.handler(topic)")
        if topics is None:
            return registered
        wanted = frozenset([topics] if isinstance(topics, str) else topics)
        for topic in wanted:
            producing.check_topic(topic)
        lacking = sorted(wanted - registered) if registered is not None else []
        if lacking:
            raise ConfigError(f"no handler for topic {', '.join(lacking)}")
        return wanted

    def _scope(self, scope: Scope | None) -> Scope | None:
        """None for the whole table."""
        from msgworker.instance.state import Scope

        if scope is None:
            return None
        if not isinstance(scope, Scope):
            raise ConfigError(
                "scope must be one of msgworker.coordination: Everywhere, Instance, OneJob, "
                f"Partitions or Segments; got {scope!r:.80}"
            )
        scope.check(self.table)
        return None if scope.by is None else scope

    def _setup(self, topics: frozenset[str] | None, *, scope: Any = None, **how: Any) -> Setup:
        """how: as of `_new_setup`."""
        tables = self._known.checked()
        if scope is not None and scope.by == "job_id":
            from msgworker.queries import jobs

            producing.refuse_jobs(tables)
            with connecting(self._own) as conn:
                found = jobs.show(conn, tables, scope.job_id, most=1)
            if found is None:
                raise ConfigError(f"there is no job {scope.job_id} of table {self.table.name}")
        elif scope is not None:
            self._known.check_slices(repr(scope), str(scope.by))
        if self.settings.foreign_stale_after is not None and not tables.has("claimed_by"):
            raise ConfigError(
                f"foreign_stale_after needs a column {self.table.claimed_by} (claimed_by) in table "
                f"{self.table.name}: without it messages of msgworker look like foreign ones"
            )
        self._known.check_fit()
        return self._new_setup(self._by_rule(), topics, scope=scope, **how)

    def _new_setup(
        self,
        tables: Tables,
        topics: frozenset[str] | None,
        *,
        chosen: bool = False,
        scope: Scope | None = None,
        loop: AbstractEventLoop | None = None,
        threads: int = 1,
    ) -> Setup:
        from msgworker.events import Events
        from msgworker.instance.connections import FairLock
        from msgworker.instance.state import Setup

        with self._lock:  # one for all instances of this process
            self._fair_lock = turns = self._fair_lock or FairLock()
        return Setup(
            engine=self._own,
            lent=self._engine_beside(lends=True),
            tables=tables,
            registry=self._registry,
            settings=self.settings,
            threads=threads,
            label=self.label,
            topics=topics,
            chosen=chosen,
            channel=self._channel if self.settings.notify and tables.database.notify else None,
            turns=turns if tables.database.one_writer else None,
            scope=scope,
            loop=loop,
            async_engine=self._async_engine,
            schedules=tuple(self._timers.all()),
            events=Events(self._events),
            tracer=self._tracer,
        )

    @property
    def heartbeats(self) -> dict[str, bool]:
        """The instances of this App that run in this process, by their ids: whether each has
        renewed its lease in time."""
        identities = [one.shared.identity for one in self._running()]
        return {identity.id: identity.trusted() for identity in identities}

    @property
    def load(self) -> tuple[int, int]:
        """Of the instances of this App that run in this process: how many messages they have
        claimed, one for each object, and how many handlers run."""
        load = [one.shared.in_flight for one in self._running()]
        return sum(len(one.lanes) for one in load), sum(len(one.running) for one in load)

    def _running(self) -> list[Instance]:
        with self._workers_lock:
            found = [worker.instance for worker in self._workers]
        return [one for one in found if one is not None]

    def _gauges(self) -> dict[str, Any]:
        """Of the instances of this App in this process, what `Known` of metrics has of them."""
        mine = self._running()
        margins = [m for one in mine if (m := one.shared.identity.tenure.margin) is not None]
        return {
            "instances": len(mine),
            "threads": sum(one.setup.threads for one in mine),
            "away": sum(one.shared.away.seconds > 0 for one in mine),
            "locks_away": sum(one.member is not None and one.member.away() > 0 for one in mine),
            "margin": min(margins, default=None),
        }

    def web(
        self,
        *,
        auth: Callable[[Any], Any] | None = None,
        role: RoleName | None = None,
        root_path: str = "",
        actions: bool = False,
        allowed_hosts: Iterable[str] = (),
        trusted_proxies: Iterable[str] = (),
        redact: Iterable[str] | Callable[[Any], Any] = (),
        label: str = "",
        key: str | None = None,
        locks: LockCentre | None = None,
    ) -> Dashboard:
        """The dashboard and the JSON API as an ASGI application, to mount in Starlette, FastAPI or
        Django; needs the extra `web`. See docs/operate/web.md.

        auth: gets each request (a Starlette HTTPConnection) and returns the name of the viewer, a
        `msgworker.web.access.Viewer`, or None to refuse; it may be async. Without it only programs
        of this machine are admitted, and none behind a proxy. role: of viewers without one of their
        own: "viewer" (the default with auth), "operator" or "admin". actions: without it everyone
        is a viewer. root_path: where it is served, if the server does not say so. allowed_hosts:
        the names, with port where it is not the default one, that browsers know it by, beside those
        of this machine; a request to another name is refused (421). trusted_proxies: addresses
        whose X-Forwarded-Host, -Proto and -For are believed. redact: paths of payloads that are
        hidden, such as "customer.card" or "**.iban", or a callable that returns what may be shown.
        label: shown beside the name, such as "PROD". key: signs sessions, the same in all processes
        that serve it, 32 characters or more; None = a new one. locks: a lock centre whose locks are
        shown beside those of this database.
        Raises ConfigError.
        """
        from msgworker.web import make

        return make(
            self,
            auth=auth,
            role=role,
            root_path=root_path,
            actions=actions,
            allowed_hosts=allowed_hosts,
            trusted_proxies=trusted_proxies,
            redact=redact,
            label=label,
            key=key,
            locks=locks,
            values=shown_settings(self),
        )

    def _wants(self) -> dict[str, str]:
        """The rights on the messages that not every instance needs, and for what."""
        wants = dict[str, str]()
        if self._registry.deletes:
            wants["DELETE"] = 'when_done="delete"'
        if self.schedules or self._registry.has_follow_ups:
            wants["INSERT"] = "a schedule" if self.schedules else "on_done or on_dead"
        return wants

    @property
    def ops(self) -> Ops:
        """Reads and repairs for operators."""
        from msgworker.ops import Ops

        return Ops(
            self._own,
            self._known.now,
            self.table,
            names_rule=self._names_rule,
            declared=lambda: self.schedules if self._registry.handlers or self.schedules else None,
            wants=self._wants,
            history_seconds=self.settings.history_seconds,
            tracer=self._tracer,
            send=self.send,
            about_dead=self._send_about_dead,
        )

    def _send_about_dead(self, conn: Connection, tables: Tables, ids: list[int], text: str) -> None:
        """Send what `on_dead` says about messages that died as they were given back. Where that is
        refused, they are given back all the same."""
        if not self._registry.has_follow_ups:
            return
        from msgworker.db.errors import reason_of, trouble
        from msgworker.instance.settling.writer import send_about_dead
        from msgworker.store.claim import REFUSED_ROW
        from msgworker.store.recover import died

        for row in died(conn, tables, ids):
            try:
                with conn.begin_nested():
                    if send_about_dead(conn, self._registry, tables, [row], text):
                        self._sent(conn, conn)
            except Exception as error:
                if trouble(error) not in REFUSED_ROW:
                    raise
                lost = "message %s is dead, and its message of on_dead is refused: %s"
                log.error(lost, row.msg_id, reason_of(error))


def setup_of(app: App, topics: Iterable[str] | None = None) -> Setup:
    """What one instance of an App works on; for `msgworker.testing` and the tests."""
    return app._setup(app._chosen(topics), chosen=topics is not None)


def settings_of(app: App) -> dict[str, Any]:
    """The settings that an App was built with, by the names of the configuration; the url with its
    password."""
    table = app.table
    own = {
        name: getattr(app.settings, name) for name, s in config.SETTINGS.items() if s.group == "app"
    }
    rules = {
        name: getattr(table, name)
        for name, s in config.SETTINGS.items()
        if s.group == "table" and name not in ("table", "columns")
    }
    rules["where"] = as_where(table.where, "where")
    url = app.engine.url.render_as_string(hide_password=False)
    return {"url": url, "table": table.name, "columns": columns_of(table), **rules, **own}


def origins_of(app: App, ref: str = "App") -> dict[str, str]:
    """Where each of `settings_of` comes from, as `Configuration.origins` says it; ref: what its
    code is called."""
    known = app._origins
    values, plain = settings_of(app), {name: s.default for name, s in config.SETTINGS.items()}
    plain["columns"] = {}

    def origin(name: str) -> str:
        if name in known:
            return known[name] or ref
        return "default" if values[name] == plain[name] else ref

    return {name: origin(name) for name in values}


def shown_settings(app: App) -> Iterator[tuple[str, Any, str]]:
    """Name, value and origin of each of `settings_of`, without secrets."""
    origins = origins_of(app)
    for name, value in settings_of(app).items():
        yield name, masked(app.engine.url) if name == "url" else value, origins[name]


def columns_of(table: MessageTable) -> dict[str, str | None]:
    """The columns whose names differ from the defaults of a table of this name."""
    names, plain = table.names(), MessageTable(table.name).names()
    return {role: names.get(role) for role in COLUMNS if names.get(role) != plain.get(role)}


def registry_of(app: App) -> Registry:
    """The handlers of an App, for the tests."""
    return app._registry


def events_of(app: App) -> Events:
    """The subscribers of an App, for the tests."""
    return app._events


def table_from(conf: config.Configuration) -> MessageTable:
    """The message table that the configuration describes; raises ConfigError."""
    rules = conf.group("table")
    name, columns = rules.pop("table"), rules.pop("columns")
    for role in columns:
        if role not in COLUMNS:
            raise ConfigError(
                f"unknown column {role!r:.60} in columns ({conf.origins['columns']}); "
                f"{config.nearest(role, COLUMNS)}"
            )
    return MessageTable(name, **rules, **columns)
