"""An Engine of the user's, whatever pool it has."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.engine import make_url

from msgworker import App, Context, Message
from tests.engines import plain_engine
from tests.plugin import Database
from tests.support.apps import created
from tests.support.leases import renewed
from tests.support.rows import Table, send
from tests.support.waiting import launched, until


class Counted:
    """How many connections an engine has opened and closed, how many at a time at most, and how
    often it has asked whether one lives."""

    def __init__(self, engine: sa.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened = self.closed = self.most = self.pings = 0
        sa.event.listen(engine, "connect", self._one_more)
        for way in ("close", "close_detached"):
            sa.event.listen(engine, way, self._one_less)
        ping = engine.dialect.do_ping

        def counting(raw: Any) -> bool:
            self.pings += 1
            return ping(raw)

        monkeypatch.setattr(engine.dialect, "do_ping", counting)

    def _one_more(self, *_: object) -> None:
        self.opened += 1
        self.most = max(self.most, self.opened - self.closed)

    def _one_less(self, *_: object) -> None:
        self.closed += 1


MakeApp = Callable[..., tuple[App, Counted]]


@pytest.fixture
def on_engine(ready: None, database: Database, make_app: Any, monkeypatch: Any) -> MakeApp:
    """An App on an Engine of the user's, and what becomes of its connections."""

    def make(**options: Any) -> tuple[App, Counted]:
        if database.stand_in:
            pytest.skip("its engine is the driver's business")
        if database.name == "sqlite":
            options["connect_args"] = {"check_same_thread": False, "timeout": 60}
        engine = plain_engine(database.url, **options)
        counted = Counted(engine, monkeypatch)
        app = make_app(engine, notify=True, poll_seconds=0.2, lease_seconds=3.0)
        if not database.ready:
            app.create_schema()
        return app, counted

    return make


def works(app: App, other: App) -> None:
    """Handlers of both kinds, the renewal of the lease, messages of another process, the loss of
    every connection of ours."""

    @app.handler("in", transactional=True)
    def inside(msg: Message, ctx: Context) -> None:
        ctx.connection.execute(sa.select(1))

    app.add_handler("t", lambda msg: None)
    table = Table(app)
    worker = launched(app.worker(threads=2))
    try:
        for round_ in range(3):
            with other.engine.begin() as conn:
                for n in range(20):
                    other.send(conn, "t" if n % 2 else "in", object_id=f"o{n % 5}")
            until(lambda most=20 * (round_ + 1): table.statuses == [2] * most, "all is done")
            for role in (
                worker.instance.fetcher,
                worker.instance.heartbeat,
                worker.instance.housekeeper,
            ):
                role.link.cut()
        assert worker.instance_id is not None
        renewed(app, worker.instance_id)
    finally:
        assert worker.stop() is True
    assert set(table.column("error_try_times")) == {0}


@pytest.mark.long
def test_an_engine_without_a_pool_works(on_engine: MakeApp, make_app: Any) -> None:
    app, counted = on_engine(poolclass=sa.NullPool)
    works(app, make_app())
    assert counted.opened > 5
    assert counted.opened == counted.closed


@pytest.mark.long
def test_an_engine_that_pings_works(on_engine: MakeApp, make_app: Any) -> None:
    app, counted = on_engine(pool_pre_ping=True, poolclass=sa.QueuePool)
    works(app, make_app())
    assert counted.pings > 0
    app.engine.dispose()
    assert counted.opened == counted.closed


@pytest.mark.long
def test_transactional_handlers_wait_for_a_connection_of_a_small_pool(
    on_engine: MakeApp, make_app: Any
) -> None:
    """Four threads and two connections for their handlers, besides those that the instance itself
    keeps: no try is counted."""
    small = {"pool_size": 2, "max_overflow": 0, "pool_timeout": 1.0, "poolclass": sa.QueuePool}
    app, counted = on_engine(**small)

    @app.handler("in", transactional=True)
    def inside(msg: Message, ctx: Context) -> None:
        ctx.connection.execute(sa.select(1))
        time.sleep(0.02)

    other = make_app()
    with other.engine.begin() as conn:
        for n in range(40):
            other.send(conn, "in", object_id=f"o{n}")
    table = Table(other)
    worker = launched(app.worker(threads=4))
    try:
        until(lambda: table.statuses == [2] * 40, "all is done")
    finally:
        assert worker.stop() is True
    assert set(table.column("error_try_times")) == {0}
    app.engine.dispose()
    assert counted.opened == counted.closed
    assert counted.most <= 2 + 7


class Asking(psycopg.Cursor[Any]):
    """A cursor that notes who asks for the number of the server's process."""

    asked = 0

    def execute(self, query: Any, *args: Any, **options: Any) -> Any:
        Asking.asked += "pg_backend_pid" in str(query)
        return super().execute(query, *args, **options)


@pytest.mark.long
def test_a_pooler_is_looked_for_once_where_nothing_is_pooled(
    postgresql: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was found is known of the pool, not of a connection: none is kept."""
    if make_url(postgresql.url).get_driver_name() != "psycopg":
        pytest.skip("the cursor that notes it is psycopg's")
    monkeypatch.setattr(Asking, "asked", 0)
    args = {"cursor_factory": Asking}
    app = created(App(plain_engine(postgresql.url, poolclass=sa.NullPool, connect_args=args)))
    app.add_handler("t", lambda msg: None)
    app.drain(linger=0)
    assert Asking.asked == 1


def refuse_listen(engine: sa.Engine) -> list[str]:
    """What a proxy in front of the server does with a LISTEN: an error of the driver. Returns the
    statements that it has refused."""
    refused: list[str] = []

    def refuse(conn: Any, cursor: Any, statement: str, *_: object) -> None:
        if statement.startswith("LISTEN"):
            refused.append(statement)
            cursor.execute("DO $$ BEGIN RAISE EXCEPTION 'no LISTEN through this proxy'; END $$")

    sa.event.listen(engine, "before_cursor_execute", refuse)
    return refused


@pytest.mark.long
@pytest.mark.parametrize("refused", [False, True], ids=["listens", "LISTEN is refused"])
def test_notifications_end_no_drain_on_a_small_pool(
    postgresql: Database, make_app: Any, refused: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """They are hints: neither does the listener take the connection that a settle needs, nor is a
    server that refuses LISTEN one that is away."""
    small = {"pool_size": 3, "max_overflow": 0, "pool_timeout": 1.0, "poolclass": sa.QueuePool}
    app = created(make_app(plain_engine(postgresql.url, **small), notify=True))
    told = refuse_listen(app.engine) if refused else []
    app.add_handler("t", lambda msg: time.sleep(0.02))
    send(app, *(f"o{n % 20}" for n in range(200)))
    report = app.drain(linger=1.0, threads=2, outage_limit=0.5, time_limit=60)
    assert (report.done, report.left, report.exit_code) == (200, 0, 0), report
    assert "database lost" not in str(report)
    assert not [r for r in caplog.records if r.exc_info]
    assert bool(told) is refused
