"""Helpers to test code that uses msgworker: a fresh database, a clock, a drain on this thread.

    def test_settles(msgworker_db):
        app = msgworker_db.app(crm.app)              # its handlers, on a fresh database
        with app.engine.begin() as conn:
            app.send(conn, "customer.settle", {"month": "2026-10"}, object_id="C-1")
        assert drain(app).done == 1                  # on this thread: breakpoints, coverage, mocks

The fixture `msgworker_db` is available if pytest and msgworker are installed. It uses an SQLite
file, or the server of `pytest --msgworker-url`, where each test gets a schema of its own.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, Unpack, cast
from unittest import mock

import pytest
import sqlalchemy as sa
from sqlalchemy import event

from msgworker.app import App, setup_of
from msgworker.config import Keywords
from msgworker.db import clock
from msgworker.db.clock import UtcDateTime
from msgworker.db.connections import connecting
from msgworker.db.database import of
from msgworker.db.engine import lent_engine, parse_url, plain_url, same_database
from msgworker.errors import ConfigError, HandlerMisuse
from msgworker.events import FellBack
from msgworker.instance.claiming.loop import Drain
from msgworker.instance.instance import Instance
from msgworker.instance.running.in_flight import Lane
from msgworker.instance.running.pool import LaneQueue
from msgworker.instance.worker import Report, report_of
from msgworker.table.build import HISTORY, OWN
from msgworker.table.spec import MessageTable

TEXT = "%Y-%m-%d %H:%M:%S.%f"
DROP_SECONDS = 10
"""How long the end of a test waits for what another connection still locks."""


class Clock:
    """The clock of a test database. Its time changes only when you move it.

    Back-offs, delays, leases and all times that msgworker writes use it. Timeouts of handlers do
    not.
    """

    def __init__(self, now: datetime | None = None) -> None:
        self._now = now or datetime.now(UTC).replace(microsecond=0)

    @property
    def now(self) -> datetime:
        """The time of the database; UTC."""
        return self._now

    def set(self, now: datetime) -> None:
        """Move to an aware instant, forwards or back. Raises ConfigError for a naive one."""
        if now.tzinfo is None:
            raise ConfigError(f"the clock takes an aware datetime, got {now!r}")
        self._now = now.astimezone(UTC)

    def advance(self, by: float | timedelta) -> None:
        """Move forward by seconds or a timedelta."""
        self._now += by if isinstance(by, timedelta) else timedelta(seconds=by)

    def attach(self, engine: sa.Engine) -> None:
        """Make connections of an SQLite engine use this clock, those opened from now on."""
        if engine.dialect.name != "sqlite":
            raise ConfigError("the clock of a database server cannot be set; use SQLite")
        event.listen(engine, "connect", self._connected)

    def _connected(self, raw: Any, _record: Any) -> None:
        for name in ("strftime", "julianday"):
            raw.create_function(name, -1, self._function(name))

    def _function(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            text = self._now.strftime(TEXT)
            given = [text if a in ("now", "NOW") else a for a in arguments]
            marks = ", ".join("?" * len(given))
            with closing(sqlite3.connect(":memory:")) as real:  # SQLite's own function
                return real.execute(f"SELECT {name}({marks})", given).fetchone()[0]

        return call


class ServerClock(Clock):
    """The clock of a test database on a server, which cannot be moved: `advance` makes all that is
    recorded older instead, so back-offs and delays end, and leases expire.
    """

    def __init__(self, apps: list[App], engine: sa.Engine) -> None:
        self._apps = apps
        self._engine = engine

    @property
    def now(self) -> datetime:
        """The time of the database, which goes on by itself; UTC."""
        with connecting(self._engine) as conn:
            return cast(datetime, conn.scalar(sa.select(clock.now())))

    def set(self, now: datetime) -> None:
        """Not on a server: raises ConfigError."""
        raise ConfigError("the clock of a database server cannot be set; use advance(seconds)")

    def advance(self, by: float | timedelta) -> None:
        """Make all recorded times of the Apps of this database, except those of the history for
        charts, older by seconds or a timedelta."""
        seconds = by.total_seconds() if isinstance(by, timedelta) else float(by)
        tables: dict[str, sa.Table] = {}
        for app in self._apps:
            built = app.tables
            there = [one for one in OWN if one.is_there(built) and one is not HISTORY]
            ours = [one.of(built) for one in there]
            tables |= {table.fullname: table for table in (built.message, *ours)}
        with self._engine.begin() as conn:
            for table in tables.values():
                if older := _older(conn, table, seconds):
                    conn.execute(sa.update(table).values(older))

    def attach(self, engine: sa.Engine) -> None:
        """Not on a server: raises ConfigError."""
        super().attach(self._engine)


def _older(conn: sa.Connection, table: sa.Table, seconds: float) -> dict[str, Any]:
    """The columns of a table that hold a time, as they are if it was recorded earlier."""
    database, quote = of(conn), conn.dialect.identifier_preparer.quote
    found: dict[str, Any] = {}
    for column in table.c:
        for suffix, units in (("_ms", 1_000), ("_us", 1_000_000)):
            if column.name in _EPOCHS and column.name.endswith(suffix):
                found[column.name] = column - int(seconds * units)
        if isinstance(column.type, sa.DateTime | UtcDateTime):
            moved = database.moved.format(quote(column.name), repr(-seconds))
            found[column.name] = sa.literal_column(moved, column.type)
    return found


_ASYNC_DRIVERS = {"sqlite": "aiosqlite", "postgresql": "psycopg"} | dict.fromkeys(
    ("mysql", "mariadb"), "aiomysql"
)
_EPOCHS = ("since_ms", "expires_ms", "full_us")


@dataclass
class Database:
    """A fresh, empty database: an SQLite file with a clock of its own, or a schema on a server."""

    url: str
    engine: sa.Engine
    clock: Clock
    _made: list[App] = field(default_factory=list)

    def app(
        self,
        like: App | None = None,
        *,
        table: MessageTable | None = None,
        label: str = "",
        **settings: Unpack[Keywords],
    ) -> App:
        """An App on this database, its schema created.

        like: an App whose table, settings and handlers it shares, including handlers registered
        later. A schema of its table is left out: the fresh database is one. Where it has an
        AsyncEngine, transactional async handlers get one on this database, by aiosqlite, psycopg,
        aiomysql or its own driver. Raises ConfigError if that is not installed.
        """
        if table is None and like is not None:
            table = like.table
        if isinstance(table, MessageTable) and table.schema is not None:
            table = table.replace(name=table.bare_name)
        if like is not None:
            settings = cast(Keywords, asdict(like.settings) | settings)
        made = App(self.engine, table=table, label=label, **settings)
        if like is not None:
            if like._async_engine is not None:
                made._async_engine = self._async_engine(like)
            made._registry = like._registry
            made._subscribers = like._events
            made._timers = like._timers
        made.create_schema()
        self._made.append(made)
        return made

    def _async_engine(self, like: App) -> Any:
        """For transactional async handlers of an App that has such an engine, in any loop; None
        where its driver is not installed, and no handler needs it yet."""
        from sqlalchemy.ext.asyncio import create_async_engine

        url, theirs = sa.make_url(self.url), like._async_engine.url
        backend = url.get_backend_name()
        name = theirs.drivername
        if theirs.get_backend_name() != backend or backend == "postgresql":
            name = f"{backend}+{_ASYNC_DRIVERS[backend]}"
        options = {"connect_args": {"timeout": 60}} if backend == "sqlite" else {}
        try:
            made = create_async_engine(url.set(drivername=name), poolclass=sa.NullPool, **options)
        except ImportError as error:
            if any(one.is_async and one.transactional for one in like._registry.handlers.values()):
                text = f"transactional async handlers are tested by {name}, which needs a driver"
                raise ConfigError(f"{text}: {error}") from None
            return None
        if backend == "sqlite":
            self.clock.attach(made.sync_engine)
        return lent_engine(made)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Where `msgworker_db` makes its databases."""
    parser.addoption(
        "--msgworker-url",
        metavar="URL",
        help="PostgreSQL, MariaDB or MySQL for the fixture msgworker_db, which makes a schema "
        "there for each test and drops it; default: an SQLite file",
    )


@pytest.fixture(scope="session")
def msgworker_url(request: pytest.FixtureRequest) -> str | None:
    """Where `msgworker_db` makes its databases: that of `--msgworker-url`; None = an SQLite file.
    Define a fixture of this name in conftest.py to choose otherwise."""
    found: str | None = request.config.getoption("--msgworker-url")
    return found


@pytest.fixture
def msgworker_db(tmp_path: Path, msgworker_url: str | None) -> Iterator[Database]:
    """A fresh database: `.app()`, `.engine`, `.url`, `.clock`."""
    if msgworker_url is None:
        url, clock = f"sqlite:///{tmp_path / 'msgworker.db'}", Clock()
        engine = sa.create_engine(url, poolclass=sa.QueuePool, connect_args={"timeout": 60})
        clock.attach(engine)
        with _disposed(Database(url, engine, clock)) as made:
            yield made
    else:
        with on_server(msgworker_url) as made:
            yield made


@contextmanager
def _disposed(made: Database) -> Iterator[Database]:
    try:
        yield made
    finally:
        for app in made._made:
            app.engine.dispose()
        made.engine.dispose()


@contextmanager
def on_server(url: str | sa.URL) -> Iterator[Database]:
    """A fresh database on a server of PostgreSQL, MariaDB or MySQL: a schema of its own, which is
    dropped at the end. Nothing else of the server is touched. The login needs the right to create
    schemas.

    url: with a database that is made for tests. Raises ConfigError, DatabaseUnavailable.
    """
    given = parse_url(url)
    name = f"msgworker_test_{uuid.uuid4().hex[:12]}"
    make, drop, limit, own_url = _schema(given, name)
    server = sa.create_engine(given, poolclass=sa.NullPool, isolation_level="AUTOCOMMIT")
    with connecting(server) as conn:
        conn.exec_driver_sql(make)
    try:
        engine = sa.create_engine(own_url)
        apps: list[App] = []
        shown = own_url.render_as_string(hide_password=False)
        with _disposed(Database(shown, engine, ServerClock(apps, engine), apps)) as made:
            yield made
    finally:
        with connecting(server) as conn:
            conn.exec_driver_sql(limit)
            conn.exec_driver_sql(drop)


def _schema(url: sa.URL, name: str) -> tuple[str, str, str, sa.URL]:
    """How a schema is made and dropped, how long that waits, and its own URL."""
    backend = url.get_backend_name()
    if backend in ("mysql", "mariadb"):
        own_url = url.set(database=name)
        limit = f"SET lock_wait_timeout = {DROP_SECONDS}"
        return f"CREATE DATABASE {name}", f"DROP DATABASE {name}", limit, own_url
    if backend == "postgresql" and url.get_driver_name() in ("psycopg", "psycopg2"):
        before = url.query.get("options", "")
        options = f"{before if isinstance(before, str) else before[-1]} -csearch_path={name}"
        own_url = url.update_query_dict({"options": options.strip()})
        limit = f"SET lock_timeout = '{DROP_SECONDS}s'"
        return f"CREATE SCHEMA {name}", f"DROP SCHEMA {name} CASCADE", limit, own_url
    raise ConfigError(
        "a fresh database on a server is made on PostgreSQL (psycopg or psycopg2), MariaDB and "
        f"MySQL; got {url.render_as_string()}: give drain() an App on a database made for tests"
    )


# ---------------------------------------------------------------- drain, crash


class At(StrEnum):
    """Points at which a process may die: after a claim, before and after the outcome is written."""

    CLAIMED = "claimed"
    HANDLED = "handled"
    SETTLED = "settled"


class Crashed(BaseException):
    """Raised by `drain(crash=...)` instead of a crash of the instance.

    Its messages stay flagged until its lease expires: `clock.advance(app.settings.lease_seconds)`.
    Then another drain recovers them, with a try counted for each.
    """


def drain(
    app: App,
    *,
    topics: Iterable[str] | None = None,
    schedules: bool = False,
    engines: Iterable[sa.Engine] = (),
    crash: str | None = None,
    crash_on: Any = None,
) -> Report:
    """Handle messages on this thread until none is due now.

    Each failed try is logged as a warning with its traceback: pytest shows it when a test fails.
    A handler that connects to another database than the App's, perhaps the one of production,
    gets HandlerMisuse instead of the connection, and so does the caller, once the try is recorded.
    It can only be seen of an Engine of SQLAlchemy, not of a driver's own connection. Ctrl-C and
    pytest's own outcomes (`pytest.fail`, `skip`, `exit`) in a handler end the test, once the try is
    recorded. Any other exception is a failed try, SystemExit too, as in a worker.

    topics: only these of the registered topics. schedules: first send what the schedules of the App
    have due, by the clock of the database. engines: of other databases that handlers may use.

    crash: "claimed", "handled" or "settled": raise Crashed there, as if the process had died: after
    a claim was committed, after a handler has returned (a transactional one is rolled back), after
    its outcome was committed. crash_on: only at this msg_id; default: at the first message.

    Raises ConfigError, HandlerMisuse, KeyboardInterrupt.
    """
    dies = _Dies(None if crash is None else _place(crash), crash_on)
    setup = setup_of(app, topics)
    # No other instance could unblock a message: due messages that cannot be claimed are left at
    # once.
    instance = Instance(
        setup if schedules else replace(setup, schedules=()),
        drain=Drain(linger=0.0, retry_linger=0.0, overdue=0.0),
        retry_level=logging.WARNING,  # so that a test that fails shows it
    )
    # The outcome of a transactional handler is written inside the handler.
    instance.caller.before_settle = partial(dies.at, At.HANDLED)
    elsewhere = _Elsewhere([app.engine, *engines])
    with elsewhere.refused():
        return _Drain(instance, dies, elsewhere).run()


class _Elsewhere:
    """Refuses connections to databases other than those of these engines, on this thread and those
    that are started meanwhile."""

    def __init__(self, engines: Iterable[sa.Engine]) -> None:
        self._engines = list(engines)
        self._others = set(threading.enumerate()) - {threading.current_thread()}
        self._error: HandlerMisuse | None = None

    @contextmanager
    def refused(self) -> Iterator[None]:
        connect = sa.Engine.raw_connection

        def checked(engine: sa.Engine) -> Any:
            if threading.current_thread() not in self._others:
                self._check(engine)
            return connect(engine)

        with mock.patch.object(sa.Engine, "raw_connection", checked):
            yield

    def _check(self, engine: sa.Engine) -> None:
        if not any(_same(one, engine) for one in self._engines):
            self._error = HandlerMisuse(
                "in a test a handler connects to another database, "
                f"{engine.url.render_as_string()}, than the one under test: let it use "
                "ctx.connection, or give it the engine of the test; an engine that it may use "
                "belongs into drain(app, engines=[...])"
            )
            raise self._error

    def tell(self) -> None:
        """Raise what a handler has got, if any."""
        if self._error is not None:
            raise self._error


def _same(one: sa.Engine, other: sa.Engine) -> bool:
    with suppress(ConfigError):  # of a database that msgworker does not know
        return one.url == other.url or same_database(one.url, plain_url(other.url))
    return False


def _place(name: str) -> At:
    try:
        return At(name)
    except ValueError:
        raise ConfigError(f"crash must be one of {', '.join(At)}; got {name!r:.80}") from None


@dataclass(frozen=True)
class _Dies:
    """Where, and at which message (None = the first), the process dies."""

    place: At | None
    on: Any

    def at(self, place: At, lane: Lane) -> None:
        """Raise Crashed if it is here, at any message of the lane's present try."""
        if place is self.place:
            ids = [row.msg_id for row in lane.taken()]
            if self.on is None or self.on in ids:
                raise Crashed(f"{place} message {ids[0] if self.on is None else self.on}")


class _Drain:
    """One instance whose roles take turns on one thread."""

    def __init__(self, instance: Instance, dies: _Dies, elsewhere: _Elsewhere) -> None:
        self._instance = instance
        self._dies = dies
        self._elsewhere = elsewhere
        self._beat_at = 0.0
        self._raised: list[BaseException | None] = []  # by handlers, of this turn
        instance.setup.events.on(FellBack, lambda batch: self._raised.append(batch.raised))
        instance.lanes.took(0.0)  # how much is claimed at once is the same however long tests take

    def run(self) -> Report:
        begun = time.monotonic()
        parts = self._instance
        try:
            if parts.timer is not None:
                parts.timer.register()
            parts.housekeeper.prepare()
            parts.heartbeat.register()
            while not parts.fetcher.exhausted:
                self._beat()
                parts.fetcher.run_once()
                self._handle_all(parts.lanes)
            parts.settler.flush_waiting()
            parts.housekeeper.leave()
            return report_of(parts, begun)
        finally:
            parts.fetcher.ended()
            parts.settler.close()
            parts.caller.close()
            parts.housekeeper.close()
            if parts.timer is not None:
                parts.timer.ended()

    def _beat(self) -> None:
        if time.monotonic() >= self._beat_at or self._instance.shared.identity.in_doubt:
            if self._instance.timer is not None:
                self._instance.timer.run_once()
            self._instance.heartbeat.run_once()
            house = self._instance.housekeeper
            self._beat_at = time.monotonic() + house.pause_seconds(house.run_once())

    def _handle_all(self, lanes: LaneQueue) -> None:
        while lanes.ready:
            self._beat()
            lane = lanes.next()
            if lane is None:
                return
            if lanes.may_start(lane):
                self._handle(lane)
            elif self._instance.shared.in_flight.unsure:  # the housekeeper reads them
                self._instance.housekeeper.run_once()

    def _handle(self, lane: Lane) -> None:
        parts = self._instance
        batch = None if lane.result is not None else parts.batches.gathering.gather(lane)
        lanes = [lane] if batch is None else batch.lanes
        as_taken = [_copy(one) for one in lanes]  # the lanes move to their next messages
        for one in as_taken:
            self._dies.at(At.CLAIMED, one)
        if batch is not None:
            lanes = parts.batches.handle(batch)
        elif lane.result is None:
            parts.caller.handle(lane)
        self._raised += [one.result.raised for one in lanes if one.result is not None]
        for one in as_taken:
            self._dies.at(At.HANDLED, one)
        as_taken = [_copy(one) for one in lanes]
        for one in lanes:
            one.finished_at = time.monotonic()
            parts.settler.add(one, one is lanes[-1])
        for one in as_taken:
            self._dies.at(At.SETTLED, one)
        self._elsewhere.tell()
        while self._raised:
            _end_the_test(self._raised.pop())


_OF_A_TEST = (
    KeyboardInterrupt,
    pytest.fail.Exception,
    pytest.skip.Exception,
    pytest.exit.Exception,
)


def _end_the_test(error: BaseException | None) -> None:
    """Raise what a handler, or an item of it, has raised, if it is meant for the test."""
    while error is not None:
        if isinstance(error, _OF_A_TEST):
            raise error
        error = getattr(error, "first_error", None) or error.__cause__


def _copy(lane: Lane) -> Lane:
    """A lane of the messages of the present try alone."""
    copy = Lane(lane.owner, lane.taken())
    copy.width = lane.width
    return copy
