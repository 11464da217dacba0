"""What goes wrong at a bad moment: locked rows, outcomes that cannot be written, errors that user
code hides, answers that do not come."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pymysql
import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from tenacity import wait_none

from msgworker import App
from msgworker.dialects import Trouble, no_connection_left, trouble
from msgworker.errors import DatabaseUnavailable
from msgworker.instance import worker as worker_module
from msgworker.instance.links import Link
from msgworker.store import lease
from tests.contract.fanning import EFFECT, Trying, effects, records, write_effect
from tests.contract.seeing import Table, assert_facts, send, until

SLEEP = {"postgresql": "SELECT pg_sleep(60)", "mysql": "SELECT sleep(60)"}


def only_servers(app: App) -> None:
    if app.engine.dialect.name == "sqlite":
        pytest.skip("one writer, no sessions")


def cut(app: App, conn: sa.Connection) -> None:
    """End the session of `conn`, from another one."""
    mysql = app.engine.dialect.name == "mysql"
    number = conn.scalar(sa.text("SELECT connection_id()" if mysql else "SELECT pg_backend_pid()"))
    end = f"KILL {number}" if mysql else f"SELECT pg_terminate_backend({number})"
    with app.engine.connect() as other:
        other.execute(sa.text(end))


# ---------------------------------------------------------------- locked rows


def test_recovery_does_not_wait_for_a_row_that_somebody_has_locked(make_app):
    """A frozen instance may hold the lock: whoever waited for it would lose its own lease."""
    app = make_app(lease_seconds=3.0, poll_seconds=0.05)
    app.create_schema()
    only_servers(app)
    table, ran = Table(app), list[int]()
    app.add_handler("t", lambda msg: ran.append(msg.msg_id))
    first, second, third = send(app, "a", "b", "c")
    table.edit(status=1, claimed_by="dead-1")
    with app.engine.begin() as conn:
        lease.register(conn, app.tables, "dead-1", ttl=30.0)
        past = datetime.now(UTC) - timedelta(hours=1)
        conn.execute(sa.update(app.tables.lease).values(expires_at=past))
    c = app.tables.message.c
    with app.worker(threads=1) as worker, app.engine.connect() as frozen:
        frozen.execute(sa.select(c.msg_id).where(c.msg_id == first).with_for_update()).all()
        worker.start()
        me = worker.instance_id
        until(lambda: sorted(ran) == [second, third], "the others are recovered")
        begun = time.monotonic()
        until(lambda: time.monotonic() > begun + 4.0, "a lease later")
        assert worker.instance_id == me
        assert table.statuses == [1, 2, 2]
        frozen.rollback()
        until(lambda: table.statuses == [2, 2, 2], "and the last one, when it is free")
    with app.engine.begin() as conn:
        assert lease.read_all(conn, app.tables) == []


# ---------------------------------------------------------------- outcomes


def test_an_outcome_that_a_unique_index_of_the_user_refuses_ends_its_lane(make_app, caplog):
    app = make_app(lease_seconds=1.0, poll_seconds=0.02)
    app.create_schema()
    table = Table(app)
    error = app.tables.message.c.last_error
    length = {"mysql_length": 200}
    index = sa.Index("theirs", error, unique=True, **length)
    index.create(app.engine)

    @app.handler("t", wait=wait_none())
    def fail(msg: Any) -> None:
        raise ValueError("the same text")

    send(app, "a")
    app.drain(linger=0)
    assert table.statuses == [-1]
    app.add_handler("u", lambda msg: None)
    send(app, "b")
    send(app, "c", topic="u")
    with app.worker(threads=1) as worker:
        worker.start()
        until(lambda: table.statuses[1:] == [-1, 2], "the other goes on")
    assert_facts(caplog, "message 2:")


def test_messages_whose_outcome_cannot_be_written_are_recovered_while_we_go_on(make_app, caplog):
    """They stay flagged by our id: so we go on under another one, and its lease expires."""
    app = make_app(lease_seconds=1.0, poll_seconds=0.02)
    app.create_schema()
    table = Table(app)
    app.add_handler("t", lambda msg: None)
    (stuck,) = send(app, "a")
    check = "status <> 2 OR object_id <> 'a'"
    if app.engine.dialect.name == "sqlite":
        statement = (
            f"CREATE TRIGGER theirs BEFORE UPDATE ON msgworker_message WHEN NOT "
            f"({check.replace('status', 'NEW.status').replace('object_id', 'NEW.object_id')}) "
            "BEGIN SELECT RAISE(ABORT, 'theirs'); END"
        )
    else:
        statement = f"ALTER TABLE msgworker_message ADD CONSTRAINT theirs CHECK ({check})"
    with app.engine.begin() as conn:
        conn.exec_driver_sql(statement)
    with app.worker(threads=1) as worker:
        worker.start()
        before = worker.instance_id
        until(lambda: table.rows("status", "error_try_times") == [(-1, 3)], "dead of crashes")
        send(app, "b", "c")
        until(lambda: table.statuses[1:] == [2, 2], "work goes on")
        assert worker.instance_id != before
    assert table.one("crash_times") == 3 if len(table.rows("status")) == 1 else True
    assert stuck in table.column("msg_id")
    assert_facts(caplog, "its outcome is not written")


# ---------------------------------------------------------------- user code


def lose(app: App, conn: sa.Connection) -> None:
    """Lose the connection and hide it, as an `except Exception` would."""
    cut(app, conn)
    with pytest.raises(DBAPIError):
        conn.execute(sa.text("SELECT 1"))


def test_a_handler_that_swallows_a_lost_connection_is_run_again(app, table):
    only_servers(app)
    EFFECT.create(app.engine)
    runs: list[int] = []

    @app.handler("t", transactional=True)
    def handle(msg: Any, ctx: Any) -> None:
        runs.append(msg.msg_id)
        write_effect(1, ctx.connection)
        if len(runs) == 1:
            lose(app, ctx.connection)

    send(app, "a")
    assert app.drain(linger=0).done == 1
    assert effects(app) == {"1": 1}
    assert len(runs) == 2
    assert table.one("error_try_times") == 0


def test_an_item_that_swallows_a_lost_connection_is_run_again(app):
    only_servers(app)
    EFFECT.create(app.engine)
    runs: list[int] = []

    def act(n: int, conn: sa.Connection) -> None:
        runs.append(n)
        write_effect(n, conn)
        if len(runs) == 1:
            lose(app, conn)

    trying = Trying(app, lambda ctx: ctx.fan_out(act, [1], threads=1, transactional_items=True))
    assert trying.drain().done == 1
    assert runs == [1, 1]
    assert effects(app) == {"1": 1}
    assert set(records(app)) == {"1"}


def test_a_keyboard_interrupt_in_a_handler_stops_a_worker_in_the_background(app, table):
    def interrupted(msg: Any) -> None:
        raise KeyboardInterrupt

    app.add_handler("t", interrupted)
    worker = app.worker(threads=1)
    worker.start()
    send(app, "a")
    until(lambda: worker.instance_id is None, "stopped")

    def leases() -> list[Any]:
        with app.engine.begin() as conn:  # no longer: SQLite has one writer
            return lease.read_all(conn, app.tables)

    until(lambda: leases() == [], "in order")
    assert table.one("status", "error_try_times") == (-1, 1)


# ---------------------------------------------------------------- no answer


def test_a_stop_does_not_wait_for_a_heartbeat_without_an_answer(app, monkeypatch):
    only_servers(app)
    monkeypatch.setattr(worker_module, "ROLE_SECONDS", 0.2)
    app.add_handler("t", lambda msg: None)
    worker = app.worker(threads=1)
    worker.start()
    assert worker._instance is not None
    beat, hangs = worker._instance.heartbeat, threading.Event()

    def hang() -> int:
        with beat.link.statement() as conn:
            hangs.set()
            conn.exec_driver_sql(SLEEP[app.engine.dialect.name])
        return 0

    beat.run_once = hang  # type: ignore[method-assign]
    beat.wake()
    assert hangs.wait(60)
    time.sleep(0.1)
    begun = time.monotonic()
    assert worker.stop() is True
    assert time.monotonic() - begun < 30
    with app.engine.begin() as conn:
        assert lease.read_all(conn, app.tables) == []


# ---------------------------------------------------------------- words of drivers


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (psycopg.errors.ConnectionTimeout("connection timeout expired"), Trouble.LOST),
        (psycopg.OperationalError("connection failed: timeout expired"), Trouble.LOST),
        (psycopg.OperationalError("consuming input failed: SSL SYSCALL error"), Trouble.LOST),
        (psycopg.errors.DiskFull("could not extend file"), Trouble.LOST),
        (psycopg.errors.OutOfMemory("out of memory"), Trouble.LOST),
        (psycopg.errors.TooManyConnections("sorry"), Trouble.LOST),
        (psycopg.errors.DivisionByZero("division by zero"), Trouble.OTHER),
        (pymysql.err.OperationalError(1021, "Disk full"), Trouble.LOST),
        (pymysql.err.OperationalError(1114, "The table is full"), Trouble.LOST),
        (pymysql.err.OperationalError(1040, "Too many connections"), Trouble.LOST),
        (pymysql.err.DataError(1406, "Data too long"), Trouble.OTHER),
    ],
    ids=str,
)
def test_what_drivers_say(error: Exception, kind: Trouble) -> None:
    assert trouble(error) is kind
    full = "Too many" in str(error) or "sorry" in str(error)
    assert no_connection_left(error) is full


def test_no_connection_at_all_is_an_outage_whatever_the_driver_says(app) -> None:
    told: list[int] = []

    def connect(*args: Any, **options: Any) -> Any:
        raise psycopg.OperationalError("something that nobody has met before")

    engine = sa.create_engine("postgresql+psycopg://", creator=connect)
    link = Link(engine, none_left=lambda: told.append(1))
    with pytest.raises(DatabaseUnavailable) as error, link.transaction():
        pytest.fail("there is no connection")
    assert trouble(error.value) is Trouble.LOST
    assert told == []  # nobody else need give back theirs
