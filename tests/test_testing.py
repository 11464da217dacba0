"""msgworker.testing, as users test their handlers with it."""

from __future__ import annotations

import sqlite3
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from tenacity.wait import wait_fixed

from msgworker import App, AsyncContext, ConfigError, Context, HandlerMisuse, Message, MessageTable
from msgworker.testing import Clock, Crashed, Database, drain, on_server
from tests.support.programs import python
from tests.support.rows import send
from tests.support.waiting import in_thread

MAX_TRIES = 3


@pytest.fixture
def app(msgworker_db: Database) -> App:
    return msgworker_db.app()


def states(app: App) -> list[tuple[str, int]]:
    return [(info.status.value, info.error_try_times) for info in app.ops.find()]


def test_drain_runs_on_this_thread_in_order(app: App) -> None:
    ran: list[tuple[Any, int]] = []
    app.add_handler("t", lambda msg: ran.append((msg.msg_id, threading.get_ident())))
    ids = send(app, *["a"] * 30, "b", "c")
    report = drain(app)
    assert (report.done, report.left) == (32, 0)
    assert [msg_id for msg_id, _ in ran if msg_id <= 30] == ids[:30]
    assert {thread for _, thread in ran} == {threading.get_ident()}


def test_handlers_of_another_app_on_a_fresh_database(msgworker_db: Database) -> None:
    theirs = App("postgresql+psycopg://nobody@localhost:1/none", lease_seconds=7)
    ours = msgworker_db.app(theirs)
    seen = []
    theirs.add_handler("t", lambda msg: seen.append(msg.object_id))  # registered later
    send(ours, "a")
    assert drain(ours).done == 1
    assert seen == ["a"]
    assert ours.settings.lease_seconds == 7
    other = msgworker_db.app(theirs, table=MessageTable("other"), lease_seconds=9)
    assert (other.table.name, other.settings.lease_seconds) == ("other", 9)


def test_a_lost_message_holds_up_nothing_behind_it(msgworker_db: Database) -> None:
    """Its loss makes the lease doubtful, and items start only with a lease that is not."""
    app = msgworker_db.app(lease_seconds=12)

    def handle(msg: Message, ctx: Context) -> None:
        if msg.object_id == "a":
            time.sleep(0.5)  # more than a tenth of a heartbeat
            c = app.tables.cols()
            with app.engine.begin() as conn:
                conn.execute(sa.delete(app.tables.message).where(c.msg_id == msg.msg_id))
        else:
            ctx.fan_out(lambda item: item, [1, 2], threads=2)

    app.add_handler("t", handle)
    send(app, "a", "b")
    assert drain(app).done == 1


@pytest.mark.long
def test_what_is_in_hand_is_done_though_the_lease_is_lost_where_nobody_could_recover_it(
    msgworker_db: Database,
) -> None:
    app = msgworker_db.app(table=MessageTable(claimed_by=None), lease_seconds=1)
    ran: list[int] = []

    @app.handler("t")
    def handle(msg: Message[Any]) -> None:
        ran.append(msg.msg_id)
        if len(ran) == 1:
            msgworker_db.clock.advance(10)
            time.sleep(0.4)  # until the next heartbeat is due

    ids = send(app, "a", "b", "c", "a")
    report = drain(app)
    assert (report.done, report.left) == (4, 0)
    assert sorted(ran) == ids


def test_back_off_goes_by_the_clock(app: App, msgworker_db: Database) -> None:
    def fail(msg: Message) -> None:
        raise ValueError("no")

    app.add_handler("t", fail, wait=wait_fixed(3600))
    send(app, "a")
    for tries in range(1, MAX_TRIES + 1):
        drain(app)
        drain(app)  # not due: nothing happens
        assert states(app)[0][1] == tries
        msgworker_db.clock.advance(timedelta(hours=1))
    assert states(app) == [("dead", MAX_TRIES)]


def test_the_default_back_off_goes_by_the_clock_too(app: App, msgworker_db: Database) -> None:
    def fail(msg: Message) -> None:
        raise ValueError("no")

    app.add_handler("t", fail)
    send(app, "a")
    for least in (20, 100):  # and up to a quarter more, by chance
        drain(app)
        (info,) = app.ops.find()
        wait = info.available_at - msgworker_db.clock.now
        assert timedelta(seconds=least) <= wait <= timedelta(seconds=1.25 * least + 0.01)
        msgworker_db.clock.advance(wait)


def test_a_clock_leaves_no_connection_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From Python 3.13 on, one that is left to the garbage collector is a ResourceWarning."""
    opened: list[sqlite3.Connection] = []
    connect = sqlite3.connect

    def noted(*given: Any, **options: Any) -> sqlite3.Connection:
        opened.append(connect(*given, **options))
        return opened[-1]

    monkeypatch.setattr(sqlite3, "connect", noted)
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'a.db'}")
    clock = Clock(datetime(2030, 1, 1, tzinfo=UTC))
    clock.attach(engine)
    with engine.connect() as conn:
        assert conn.exec_driver_sql("SELECT strftime('%Y', 'now')").scalar() == "2030"
    engine.dispose()
    assert opened
    for one in opened:
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            one.execute("SELECT 1")


def test_delayed_message_waits_for_the_clock(app: App, msgworker_db: Database) -> None:
    app.add_handler("t", lambda msg: None)
    msgworker_db.clock.set(datetime(2030, 1, 1, tzinfo=UTC))
    send(app, "a", delay=60)
    assert drain(app).done == 0
    msgworker_db.clock.set(datetime(2030, 1, 1, 0, 1, tzinfo=UTC))
    assert drain(app).done == 1
    (info,) = app.ops.find()
    assert info.finished_at == msgworker_db.clock.now
    assert app.ops.counts()[0].oldest_seconds == pytest.approx(60, abs=0.1)


@pytest.mark.quick("handled|claimed.*True")
@pytest.mark.parametrize("transactional", [False, True])
@pytest.mark.parametrize(
    ("crash", "effects"),
    [("claimed", (1, 1)), ("handled", (2, 1)), ("settled", (1, 1))],  # plain, transactional
)
def test_crash_and_recovery(
    app: App, msgworker_db: Database, crash: str, effects: tuple[int, int], transactional: bool
) -> None:
    with app.engine.begin() as conn:
        conn.exec_driver_sql("CREATE TABLE effect (msg_id INTEGER)")

    def act(msg: Message, ctx: Context) -> None:
        insert = sa.text("INSERT INTO effect VALUES (:m)")
        if transactional:
            ctx.connection.execute(insert, {"m": msg.msg_id})
        else:
            with app.engine.begin() as conn:
                conn.execute(insert, {"m": msg.msg_id})

    app.add_handler("t", act, transactional=transactional)
    first, second = send(app, "a", "a")
    with pytest.raises(Crashed, match=f"{crash} message {first}"):
        drain(app, crash=crash, crash_on=first)
    assert drain(app).done == 0  # its lease lives
    msgworker_db.clock.advance(app.settings.lease_seconds)
    drain(app)
    tries = 0 if crash == "settled" else 1
    # What was flagged when it died has a crash counted: the second, where the first was settled.
    assert states(app) == [("done", tries), ("done", 1 - tries)]
    with app.engine.connect() as conn:
        counted = dict(
            conn.execute(sa.text("SELECT msg_id, count(*) FROM effect GROUP BY 1")).all()
        )
    assert counted == {first: effects[transactional], second: 1}


def test_a_drain_of_a_test_refuses_bad_arguments(app: App) -> None:
    app.add_handler("t", lambda msg: None)
    with pytest.raises(ConfigError, match="crash must be one of claimed, handled, settled"):
        drain(app, crash="later")
    with pytest.raises(ConfigError, match="aware"):
        Clock().set(datetime(2030, 1, 1))  # noqa: DTZ001
    with pytest.raises(ConfigError, match="SQLite"):
        Clock().attach(sa.create_engine("postgresql+psycopg://nobody@localhost:1/none"))


@pytest.mark.long
def test_fixture_is_there_without_any_import(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "def test_it(msgworker_db):\n    assert msgworker_db.app().ops.counts() == []\n"
    )
    done = python("-m", "pytest", "-q", "-p", "no:cacheprovider", tmp_path, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
def test_a_test_that_fails_shows_why_the_handler_failed(tmp_path: Path) -> None:
    (tmp_path / "test_theirs.py").write_text(
        """\
from msgworker.testing import drain


def dial(msg):
    raise ConnectionError("the ledger does not answer")


def test_settles(msgworker_db):
    app = msgworker_db.app()
    app.add_handler("t", dial)
    with app.engine.begin() as conn:
        app.send(conn, "t", None)
    assert drain(app).done == 1
"""
    )
    done = python("-m", "pytest", "-q", "-p", "no:cacheprovider", "test_theirs.py", cwd=tmp_path)
    assert "1 failed" in done.stdout
    logged = done.stdout.partition("Captured log call")[2]
    assert "WARNING" in logged
    assert 'raise ConnectionError("the ledger does not answer")' in logged
    assert "Traceback (most recent call last)" in logged


def test_only_drain_of_testing_tells_a_failed_try_at_warning(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(msg: Message[None]) -> None:
        raise ConnectionError("away")

    app.add_handler("t", fails)
    (one,) = send(app, "a")
    drain(app)
    told = [(r.levelname, r.getMessage()) for r in caplog.records if r.exc_info]
    assert [level for level, _ in told] == ["WARNING"]
    assert told[0][1].startswith(f"message {one} failed: ConnectionError: away")
    caplog.clear()
    send(app, "b")
    assert app.drain(linger=0.0).retried == 1
    assert [r for r in caplog.records if r.exc_info] == []


def test_an_app_whose_table_has_a_schema_can_be_tested(msgworker_db):
    crm = App("sqlite:///crm.db", table=MessageTable("crm.tb_cus_msg", msg_id="msgID"))
    done: list[int] = []
    crm.add_handler("t", lambda msg: done.append(msg.msg_id))
    app = msgworker_db.app(crm)
    with app.engine.begin() as conn:
        sent = app.send(conn, "t", object_id="C-1")
    assert drain(app).done == 1
    assert done == [sent]
    assert app.table.names()["msg_id"] == "msgID"


def test_schedules_are_sent_only_where_a_test_asks_for_it(app: App, msgworker_db: Database) -> None:
    app.add_handler("t", lambda msg: None)
    app.every("1h", topic="t")
    drain(app, schedules=True)  # registers it
    msgworker_db.clock.advance(3700)
    assert drain(app).done == 0
    assert drain(app, schedules=True).done == 1


def test_a_drain_of_some_topics_leaves_the_others(app: App) -> None:
    app.add_handler("t", lambda msg: None)
    app.add_handler("u", lambda msg: None)
    send(app, "a", topic="t")
    send(app, "b", topic="u")
    assert drain(app, topics="u").done == 1
    assert [info.topic for info in app.ops.find(status="new")] == ["t"]
    with pytest.raises(ConfigError, match="no handler for topic v"):
        drain(app, topics=["v"])


def other_engine(tmp_path: Path) -> sa.Engine:
    """That of a module of the user, in life."""
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'production.db'}")
    with engine.begin() as conn:
        conn.exec_driver_sql("CREATE TABLE account (id INTEGER)")
    return engine


def read(engine: sa.Engine) -> None:
    with engine.connect() as conn:
        conn.exec_driver_sql("SELECT * FROM account")


@pytest.mark.parametrize("way", ["handler", "item", "async"])
def test_a_handler_that_reaches_another_database_is_refused(
    app: App, tmp_path: Path, way: str
) -> None:
    engine = other_engine(tmp_path)
    connected: list[object] = []
    sa.event.listen(engine, "checkout", lambda *_: connected.append(1))

    async def reads(msg: Message) -> None:
        read(engine)

    def hands_out(msg: Message, ctx: Context) -> None:
        ctx.fan_out(lambda _: read(engine), [1], threads=2).raise_for_failed()

    handlers = {"handler": lambda msg: read(engine), "item": hands_out, "async": reads}
    app.add_handler("t", handlers[way])
    send(app, "a")
    with pytest.raises(HandlerMisuse, match=r"production\.db, than the one"):
        drain(app)
    assert (states(app), connected) == ([("failed", 1)], [])
    read(engine)  # after the drain it works


def test_a_handler_may_reach_what_the_test_allows(app: App, tmp_path: Path) -> None:
    engine = other_engine(tmp_path)
    again = sa.create_engine(app.engine.url)
    app.add_handler("t", lambda msg: (read(engine), again.connect().close()))
    send(app, "a")
    assert drain(app, engines=[engine]).done == 1
    again.dispose()


def test_what_another_thread_does_beside_a_drain_is_its_own(app: App, tmp_path: Path) -> None:
    engine = other_engine(tmp_path)
    go, over = threading.Event(), threading.Event()

    def beside() -> None:
        go.wait(20)
        read(engine)
        over.set()

    join = in_thread(beside)
    app.add_handler("t", lambda msg: (go.set(), over.wait(20)))
    send(app, "a")
    assert drain(app).done == 1
    join()


@pytest.fixture(params=["postgresql", "mariadb"])
def server_db(request: pytest.FixtureRequest) -> Iterator[Database]:
    """What msgworker_db gives with --msgworker-url."""
    url = request.getfixturevalue(request.param).url
    with on_server(url) as made:
        yield made
    engine = sa.create_engine(url)
    assert not [name for name in sa.inspect(engine).get_schema_names() if "msgworker_test" in name]
    engine.dispose()


def test_a_schema_on_a_server_is_a_fresh_database(server_db: Database) -> None:
    theirs = App("sqlite:///none.db", table=MessageTable("crm.message"))
    app = server_db.app(theirs)
    with app.engine.begin() as conn:
        conn.exec_driver_sql("CREATE TABLE effect (msg_id INTEGER)")

    @theirs.handler("t", transactional=True)
    def handle(msg: Message, ctx: Context) -> None:
        ctx.connection.execute(sa.text("INSERT INTO effect VALUES (:m)"), {"m": msg.msg_id})

    ids = send(app, "a", "b")
    assert drain(app).done == 2
    with app.engine.connect() as conn:
        assert sorted(conn.scalars(sa.text("SELECT msg_id FROM effect"))) == ids


@pytest.mark.long
def test_time_passes_on_a_server_where_a_test_says_so(server_db: Database) -> None:
    app, clock = server_db.app(), server_db.clock
    app.add_handler("t", lambda msg: 1 / 0, wait=wait_fixed(3600))
    send(app, "a")
    send(app, "b", delay=10_000)
    for _ in range(2):
        assert [drain(app).retried for _ in range(2)] == [1, 0]
        clock.advance(timedelta(hours=1))
    assert states(app) == [("failed", 2), ("new", 0)]
    with pytest.raises(Crashed):
        drain(app, crash="claimed")
    drain(app)  # its lease has not ended
    assert states(app)[0] == ("processing", 2)
    clock.advance(app.settings.lease_seconds)
    drain(app)
    assert states(app) == [("dead", 3), ("new", 0)]
    assert abs(clock.now - datetime.now(UTC)) < timedelta(minutes=1)
    with pytest.raises(ConfigError, match="cannot be set"):
        clock.set(datetime(2030, 1, 1, tzinfo=UTC))


@pytest.mark.long
def test_the_fixture_uses_the_server_that_pytest_is_given(postgresql: Any, tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "def test_it(msgworker_db):\n"
        "    assert msgworker_db.app().engine.dialect.name == 'postgresql'\n"
    )
    command = ["-m", "pytest", "-q", "-p", "no:cacheprovider", tmp_path]
    ran = python(*command, f"--msgworker-url={postgresql.url}", cwd=tmp_path)
    assert "1 passed" in ran.stdout, ran.stdout


def test_a_fresh_database_on_a_server_is_refused_where_none_can_be_made() -> None:
    for url in ("oracle+oracledb://me:secret@localhost/?service_name=x", "sqlite:///m.db"):
        with pytest.raises(ConfigError, match="is made on PostgreSQL") as refused, on_server(url):
            pass
        assert "secret" not in str(refused.value)


LEDGER = sa.Table("ledger", sa.MetaData(), sa.Column("n", sa.Integer))


async def book(msg: Message, ctx: AsyncContext) -> None:
    await ctx.connection.execute(LEDGER.insert().values(n=1))


def assert_books(app: App, database: Database) -> None:
    """Its transactional async handler is called when its message is due, and commits."""
    LEDGER.create(app.engine)
    with app.engine.begin() as conn:
        app.send(conn, "t", delay=60)
    assert drain(app).done == 0
    database.clock.advance(100)
    assert drain(app).done == 1
    with app.engine.begin() as conn:
        assert conn.scalars(sa.select(LEDGER.c.n)).all() == [1]


def test_a_transactional_async_handler_runs_by_an_async_engine_on_the_test_s_database(
    msgworker_db: Database,
) -> None:
    from sqlalchemy.ext.asyncio import create_async_engine

    url = sa.make_url(msgworker_db.url).set(drivername="sqlite+aiosqlite")
    own = App(create_async_engine(url))
    msgworker_db.clock.attach(own.engine)
    own.create_schema()
    own.add_handler("t", book, transactional=True)
    assert_books(own, msgworker_db)


@pytest.mark.quick("Failed|Key.*-plain|Skipped-tr")
@pytest.mark.parametrize("where", ["plain", "batch", "item", "transactional"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, pytest.fail.Exception, pytest.skip.Exception])
def test_what_is_meant_for_the_test_ends_it_once_the_try_is_recorded(
    app: App, where: str, error: type[BaseException]
) -> None:
    def handle(msg: Any, ctx: Any) -> None:
        if where == "item":
            ctx.fan_out(lambda one: fail(), [1])
        fail()

    def fail() -> None:
        raise error("over")

    options: dict[str, Any] = {"plain": {}, "item": {}}.get(where, {"transactional": True})
    if where == "batch":
        options["batch"] = 5
    app.add_handler("t", handle, **options)
    send(app, "a")
    with pytest.raises(error, match="over"):
        drain(app)
    assert states(app) == [("failed", 1)]


def test_what_ends_the_test_is_not_lost_where_a_batch_falls_back(app: App) -> None:
    """Its messages would run alone."""
    errors = [KeyboardInterrupt()]

    def handle(messages: Any) -> None:
        if errors:
            raise errors.pop()

    app.add_handler("t", handle, batch=5)
    send(app, "a", "b")
    with pytest.raises(KeyboardInterrupt):
        drain(app)


def test_an_exit_in_a_handler_is_a_failed_try_as_in_a_worker(app: App) -> None:
    app.add_handler("t", lambda msg: sys.exit(3))
    send(app, "a")
    assert drain(app).retried == 1


def test_async_handlers_of_another_app_have_transactions_on_the_test_s_database(
    msgworker_db: Database,
) -> None:
    from sqlalchemy.ext.asyncio import create_async_engine

    theirs = App(create_async_engine("postgresql+psycopg://nobody@localhost:1/none"))
    theirs.add_handler("t", book, transactional=True)
    assert_books(msgworker_db.app(theirs), msgworker_db)
