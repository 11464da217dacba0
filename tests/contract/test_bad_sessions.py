"""Engines, sessions and servers that are set up otherwise than ours."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime

import pytest
import sqlalchemy as sa
from tenacity.wait import wait_fixed

from msgworker import App, Context, Message
from msgworker.app import setup_of
from msgworker.instance.state import Shared
from msgworker.message import State
from tests.engines import plain_engine
from tests.support.apps import created
from tests.support.rows import Table, send
from tests.support.waiting import launched, until


def _at(url: str, level: str, how: str) -> sa.Engine:
    """An Engine of a program's whose connections have a level of its own."""
    if how == "created":
        return plain_engine(url, isolation_level=level)
    if how == "created with options":
        return plain_engine(url, execution_options={"isolation_level": level})
    engine = plain_engine(url)
    if how == "options":
        return engine.execution_options(isolation_level=level).execution_options(own=1)

    @sa.event.listens_for(engine, "engine_connect")
    def listener(conn: sa.Connection) -> None:
        conn.execution_options(isolation_level=level)

    return engine


WAYS = ["created", "created with options", "options", "listener"]


@pytest.mark.quick("sqlite-options|mariadb-created with|postgresql-listener")
@pytest.mark.parametrize("how", WAYS)
def test_an_autocommit_engine_has_transactions_all_the_same(database, make_app, how):
    app = created(make_app(_at(database.url, "AUTOCOMMIT", how)))
    table = Table(app)

    @app.handler("t", transactional=True, wait=wait_fixed(3600))
    def handle(msg: Message, ctx: Context) -> None:
        app.send(ctx.connection, "made", object_id="x")
        raise ValueError

    send(app, "o")
    assert app.drain(linger=0, topics=["t"]).retried == 1
    assert table.rows("topic", "status") == [("t", -1)]


@pytest.mark.quick("postgresql-options")
@pytest.mark.requires("isolation_of_an_engine")
@pytest.mark.parametrize(
    ("how", "level"),
    [("created", "SERIALIZABLE"), ("options", "SERIALIZABLE"), ("options", "READ UNCOMMITTED")],
)
def test_the_engine_s_isolation_level_is_not_ours(database, make_app, how, level):
    app = created(make_app(_at(database.url, level, how)))
    app.add_handler("t", lambda msg: None)
    send(app, *[f"o{i % 5}" for i in range(50)])
    assert app.drain(threads=4, linger=0).done == 50
    with app.engine.connect() as conn:
        assert conn.get_isolation_level() == "READ COMMITTED"


def test_the_server_s_default_isolation_level_is_not_ours(postgresql):
    name = sa.make_url(postgresql.url).database
    with postgresql.engine().connect() as conn:
        conn.exec_driver_sql(
            f"ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'"
        )
        conn.commit()
    app = App(postgresql.url)
    with app.engine.connect() as conn:
        assert conn.scalar(sa.text("SHOW transaction_isolation")) == "read committed"


@pytest.mark.quick("German")
@pytest.mark.parametrize("style", ["SQL, DMY", "German", "Postgres, MDY"])
def test_any_style_of_dates_of_a_login_will_do(postgresql, style):
    label = sa.make_url(postgresql.url).database
    with postgresql.engine().connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
        conn.exec_driver_sql(f"ALTER DATABASE {label} SET datestyle TO '{style}'")
    app = App(postgresql.url)
    try:
        app.create_schema()
        app.add_handler("t", lambda msg: 1 / 0)
        send(app, "a", "b")
        app.drain(linger=0)
        assert Table(app).statuses == [-1, -1]
        (first,) = app.ops.find(limit=1)
        assert first.created_at is not None
        assert [one for one in app.ops.doctor() if one.severity == "needed"] == []
    finally:
        app.engine.dispose()


@pytest.mark.quick("New_York")
@pytest.mark.requires("startup_options")
@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Kathmandu"])
def test_instants_mean_the_same_in_any_time_zone_of_a_session(postgresql, mariadb, zone):
    """74: also in the hour that a clock shows twice, on 1 November 2026 in New York."""
    fold = [datetime(2026, 11, 1, hour, 30, tzinfo=UTC) for hour in (5, 6)]
    offset = {"America/New_York": "-05:00", "Asia/Kathmandu": "+05:45"}[zone]
    for url in (
        sa.make_url(postgresql.url).update_query_dict({"options": f"-ctimezone={zone}"}),
        sa.make_url(mariadb.url).update_query_dict({"init_command": f"SET time_zone = '{offset}'"}),
    ):
        app = created(App(url.render_as_string(hide_password=False), backoff_seconds=1))
        first, second = (send(app, "x", at=at)[0] for at in fold)
        (later,) = send(app, "y", delay=3600)
        assert [app.ops.show(one).available_at for one in (first, second)] == fold
        left = app.ops.show(later).available_at - datetime.now(UTC)
        assert 3500 < left.total_seconds() < 3700
        assert abs((app.ops.show(later).created_at - datetime.now(UTC)).total_seconds()) < 100
        app.handler("t")(lambda msg: None)
        app.drain(linger=0)
        for one, at in zip((first, second), fold, strict=True):
            assert (app.ops.show(one).status is State.DONE) == (at < datetime.now(UTC))
        assert app.ops.show(later).status is State.NEW
        app.engine.dispose()


@pytest.mark.quick("postgresql-2106")
@pytest.mark.requires("own_clock")
@pytest.mark.parametrize("year", [1970, 2106])
def test_the_clock_of_the_host_may_be_wrong_by_decades(database, app_with, monkeypatch, year):
    """84: instants are the database's; doctor says how far the clocks are apart."""
    wrong = datetime(year, 1, 2, tzinfo=UTC)

    class Clock(datetime):
        @classmethod
        def now(cls, tz=None):
            return wrong.astimezone(tz)

    monkeypatch.setattr("time.time", wrong.timestamp)
    monkeypatch.setattr("msgworker.doctor.server.datetime", Clock)
    app = app_with(backoff_seconds=0)
    tried = []

    @app.handler("t")
    def handle(msg):
        tried.append(msg.msg_id)
        if len(tried) == 1:
            raise ValueError("again")

    (one,) = send(app, "a")
    (waits,) = send(app, "b", delay=3600)
    assert app.drain(linger=2).done == 1
    assert tried == [one, one]
    assert app.ops.show(waits).status is State.NEW
    (clock,) = [finding for finding in app.ops.doctor() if finding.check == "clock"]
    way = "ahead of" if year > 2100 else "behind"
    assert (clock.severity, way in clock.text) == ("advised", True)


def test_settings_of_a_server_that_cut_sessions_or_answers_do_no_harm(mariadb):
    settings = "SET completion_type='RELEASE', sql_select_limit=1"
    url = sa.make_url(mariadb.url).update_query_dict({"init_command": settings})
    app = created(App(url.render_as_string(hide_password=False)))
    app.handler("t")(lambda msg: None)
    send(app, *(f"o{i}" for i in range(5)))
    assert app.drain(linger=0).done == 5
    assert len(app.ops.find()) == 5


def test_a_worker_and_looks_go_on_when_the_type_of_a_column_has_changed(postgresql):
    """What the driver has prepared fails in each session that has it, as often as it is tried."""
    app = created(App(postgresql.url, poll_seconds=0.05))
    app.add_handler("t", lambda msg: None)
    table = Table(app)
    with launched(app.worker(threads=2)):
        for round_ in range(10):  # psycopg prepares a statement that it is sent for the sixth time
            send(app, *(f"o{n}" for n in range(4)))
            until(lambda most=4 * (round_ + 1): table.statuses == [2] * most, "all is done")
            app.ops.find(limit=1)
        for kind in ("varchar(300)", "varchar(310)"):
            with app.engine.begin() as conn:
                change = f"ALTER TABLE msgworker_message ALTER COLUMN topic TYPE {kind}"
                conn.exec_driver_sql(change)
            before = len(table.statuses)
            send(app, *(f"p{n}" for n in range(3)))
            until(lambda most=before + 3: table.statuses == [2] * most, "the new ones are done")
        failed = 0
        for _ in range(5):
            try:
                assert app.ops.find(limit=1)
            except sa.exc.DBAPIError:
                failed += 1
    assert failed <= 1  # one for each session at most


@pytest.mark.requires("own_sessions")
def test_an_error_that_is_caught_at_its_statement_ends_its_session_too(postgresql):
    app = created(App(postgresql.url))
    app.add_handler("t", lambda msg: None)
    link = Shared(setup_of(app)).connector.new()
    ask = sa.text("SELECT pg_backend_pid()")
    for opened in (link.statement, link.transaction):
        pids = []
        for statement in ("SELECT 1", "DISCARD ALL WRONGLY", "SELECT 1"):
            with opened() as conn:
                pids.append(conn.scalar(ask))
                if opened == link.statement:
                    with suppress(sa.exc.DBAPIError):
                        conn.exec_driver_sql(statement)
                else:
                    with suppress(sa.exc.DBAPIError), conn.begin_nested():
                        conn.exec_driver_sql(statement)
        assert pids[0] == pids[1] != pids[2]
    link.close()
