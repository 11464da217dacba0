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

from msgworker import App, Message, MessageTable
from msgworker.dialects import Trouble, no_connection_left, trouble
from msgworker.errors import DatabaseUnavailable
from msgworker.instance import heartbeat, pollpace, quiesce, recovery
from msgworker.instance import instance as instance_module
from msgworker.instance.links import Link
from msgworker.store import find, lease, recover
from tests.support.fan_out import EFFECT, Trying, effects, records, write_effect
from tests.support.logged import assert_facts
from tests.support.rounds import fetch, loses_its_lease
from tests.support.rows import Table, send
from tests.support.waiting import in_thread, until

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
    app = make_app(lease_seconds=6.0, poll_seconds=0.05)
    app.create_schema()
    only_servers(app)
    table, ran = Table(app), list[int]()
    app.add_handler("t", lambda msg: ran.append(msg.msg_id))
    first, second, third = send(app, "a", "b", "c")
    dead_holds(app, table)
    c = app.tables.message.c
    with app.worker(threads=1) as worker, app.engine.connect() as frozen:
        frozen.execute(sa.select(c.msg_id).where(c.msg_id == first).with_for_update()).all()
        worker.start()
        me = worker.instance_id
        until(lambda: sorted(ran) == [second, third], "the others are recovered")
        renewed(app, me)
        assert worker.instance_id == me
        assert table.statuses == [1, 2, 2]
        frozen.rollback()
        until(lambda: table.statuses == [2, 2, 2], "and the last one, when it is free")
    with app.engine.begin() as conn:
        assert lease.read_all(conn, app.tables) == []


def renewed(app: App, name: str) -> None:
    """Wait until a live instance has renewed its lease twice: without a beat for so long it would
    trust it no more."""

    def term() -> int:
        with app.engine.connect() as conn:
            return next(one.term for one in lease.read_all(conn, app.tables) if one.name == name)

    first = term()
    until(lambda: term() >= first + 2, "it is renewed")


def dead_holds(
    app: App, table: Table, name: str = "dead-1", *, where: Any = None, **equal: Any
) -> None:
    """Rows flagged by an instance whose lease has expired."""
    where = table.where(**equal) if equal else where
    table.edit(where, status=1, claimed_by=name)
    with app.engine.begin() as conn:
        lease.register(conn, app.tables, name, ttl=30.0)
        past = datetime.now(UTC) - timedelta(hours=1)
        theirs = app.tables.lease.c.name == name
        conn.execute(sa.update(app.tables.lease).where(theirs).values(expires_at=past))


def test_a_long_recovery_does_not_cost_us_our_own_lease(make_app, monkeypatch):
    monkeypatch.setattr(recovery, "REST_FACTOR", 1e9)
    monkeypatch.setattr(recovery, "REST_SHARE", 0.5)
    monkeypatch.setattr(recover, "BATCH", 5)
    app = make_app(lease_seconds=6.0, poll_seconds=0.05)
    app.create_schema()
    table, ran = Table(app), list[int]()
    app.add_handler("t", lambda msg: ran.append(msg.msg_id))
    ids = send(app, *(f"o{i}" for i in range(30)))
    for name, where in (("dead-1", "msg_id % 2 = 0"), ("dead-2", "msg_id % 2 = 1")):
        dead_holds(app, table, name, where=sa.text(where))
    with app.worker(threads=1) as worker:
        worker.start()
        me = worker.instance_id
        until(lambda: sorted(ran) == ids, "all are recovered and done")
        assert worker.instance_id == me


def test_a_drain_waits_for_what_it_recovers(make_app, monkeypatch):
    monkeypatch.setattr(recovery, "REST_FACTOR", 1e9)
    monkeypatch.setattr(recovery, "REST_SHARE", 0.2)
    monkeypatch.setattr(recover, "BATCH", 2)
    app = make_app(lease_seconds=6.0, poll_seconds=0.05)
    app.create_schema()
    table = Table(app)
    app.add_handler("t", lambda msg: None)
    begun = "the recovery has begun"
    app.add_handler("first", lambda msg: until(lambda: any(table.column("crash_times")), begun))
    send(app, *"abcdefgh")
    dead_holds(app, table)
    send(app, "first", topic="first")
    assert app.drain(linger=0).done == 9


def refuse(app: App, check: str) -> None:
    """Forbid what does not fulfil `check`, as a constraint or trigger of the user's would."""
    if app.engine.dialect.name == "sqlite":
        new = check.replace("status", "NEW.status").replace("object_id", "NEW.object_id")
        statement = (
            f"CREATE TRIGGER theirs BEFORE UPDATE ON msgworker_message WHEN NOT ({new}) "
            "BEGIN SELECT RAISE(ABORT, 'theirs'); END"
        )
    else:
        statement = f"ALTER TABLE msgworker_message ADD CONSTRAINT theirs CHECK ({check})"
    with app.engine.begin() as conn:
        conn.exec_driver_sql(statement)


def test_a_row_that_cannot_be_recovered_does_not_hold_up_the_others(make_app, caplog):
    app = make_app(lease_seconds=15.0, poll_seconds=0.05)
    app.create_schema()
    table = Table(app)
    app.add_handler("t", lambda msg: None)
    send(app, "refused", "a", "b")
    for name, object_id in (("dead-1", "refused"), ("dead-2", "b")):
        dead_holds(app, table, name, object_id=object_id)
    table.edit(table.where(object_id="a"), status=1, claimed_by="dead-1")
    refuse(app, "status <> -1 OR object_id <> 'refused'")
    with app.worker(threads=1) as worker:
        worker.start()
        me = worker.instance_id
        until(lambda: table.statuses == [1, 2, 2], "the others are recovered and done")
        assert worker.instance_id == me
    told = [r for r in caplog.records if "cannot be recovered" in r.getMessage()]
    assert len(told) == 1


def test_rows_that_cannot_be_recovered_do_not_use_up_the_time_of_others(make_app, monkeypatch):
    """Time runs out after each batch here: the next round goes on where the last one ended."""
    monkeypatch.setattr(recovery, "REST_FACTOR", 1e9)
    monkeypatch.setattr(recovery, "REST_SHARE", 0.5)
    monkeypatch.setattr(recover, "BATCH", 2)
    app = make_app(lease_seconds=9.0, poll_seconds=0.05)
    app.create_schema()
    table = Table(app)
    app.add_handler("t", lambda msg: None)
    send(app, "refused", "refused2", "refused3", "refused4", "a", "b", "c")
    dead_holds(app, table)
    refuse(app, "status <> -1 OR substr(object_id, 1, 7) <> 'refused'")
    with app.worker(threads=1) as worker:
        worker.start()
        me = worker.instance_id
        until(lambda: table.statuses == [1, 1, 1, 1, 2, 2, 2], "the others are recovered and done")
        assert worker.instance_id == me


def test_recovery_into_a_column_that_is_too_short_for_its_words(make_app):
    app = make_app(poll_seconds=0.05)
    app.create_schema()
    only_servers(app)
    with app.engine.begin() as conn:
        kind = "MODIFY last_error varchar(35)"
        if app.engine.dialect.name == "postgresql":
            kind = "ALTER last_error TYPE varchar(35)"
        conn.exec_driver_sql(f"ALTER TABLE msgworker_message {kind}")
    table = Table(app)
    app.add_handler("t", lambda msg: None)
    ids = send(app, *(f"o{i}" for i in range(240)))
    dead_holds(app, table)
    with app.worker(threads=1) as worker:
        worker.start()
        until(lambda: table.statuses == [2] * len(ids), "recovered and done")
    cut = "instance dead-1 died while it had this message"[:35]
    assert set(table.rows("error_try_times", "last_error")) == {(1, cut)}


def test_recovery_on_a_table_with_a_small_key(make_app):
    app = make_app(table=MessageTable("small", payload=None), poll_seconds=0.05)
    name = app.engine.dialect.name
    key = {"postgresql": "SERIAL", "mysql": "INT AUTO_INCREMENT", "sqlite": "INTEGER"}[name]
    with app.engine.begin() as conn:
        conn.exec_driver_sql(
            f"CREATE TABLE small (msg_id {key} PRIMARY KEY, object_id VARCHAR(20), status INT "
            "NOT NULL DEFAULT 0, error_try_times INT NOT NULL DEFAULT 0, claimed_by VARCHAR(64), "
            "topic VARCHAR(100))"
        )
    app.create_schema()
    table = Table(app)
    app.add_handler("t", lambda msg: None)
    with app.engine.begin() as conn:
        conn.exec_driver_sql("INSERT INTO small (object_id, topic) VALUES ('a', 't'), ('b', 't')")
    dead_holds(app, table)
    with app.worker(threads=1) as worker:
        worker.start()
        until(lambda: table.statuses == [2, 2], "recovered and done")
    with app.engine.begin() as conn:
        assert lease.read_all(conn, app.tables) == []


# ---------------------------------------------------------------- claims


def test_a_locked_message_in_quarantine_does_not_stop_the_others(app, table):
    only_servers(app)
    app.add_handler("t", lambda msg: None)
    (poison,) = send(app, None)
    table.edit(status=-1, error_try_times=2, crash_times=1)
    c = app.tables.message.c
    with app.worker(threads=1) as worker, app.engine.connect() as somebody:
        somebody.execute(sa.select(c.msg_id).where(c.msg_id == poison).with_for_update()).all()
        send(app, *["a"] * 5, *range(15))
        worker.start()
        until(lambda: table.statuses == [-1] + [2] * 20, "the others are done")
        somebody.rollback()
        until(lambda: table.statuses == [2] * 21, "and that one")


def test_a_message_in_quarantine_gets_its_turn_among_slow_handlers(app, table, monkeypatch):
    """Runs behind the heads would keep the hands full for ever."""
    monkeypatch.setattr(quiesce, "FIRST_SECONDS", 0.2)
    monkeypatch.setattr(quiesce, "PAUSE_SECONDS", 0.2)
    ran: list[str] = []

    def slow(msg: Any) -> None:
        ran.append(msg.object_id)
        time.sleep(0.1)

    app.add_handler("t", slow)
    send(app, *["a", "b", "c", "d", "e", "f"] * 100)
    send(app, "q")
    table.edit(table.where(object_id="q"), status=-1, error_try_times=2, crash_times=1)
    with app.worker(threads=2) as worker:
        worker.start()
        until(lambda: "q" in ran, "it had its turn")
        until(lambda: len(ran) > ran.index("q") + 4, "the others go on")
        worker.stop(grace=30)
    assert len(ran) < 601  # long before all the others
    table_of = dict(table.rows("object_id", "status"))
    assert table_of["q"] == 2


def test_what_waits_behind_a_paused_topic_is_found_soon(make_app, monkeypatch):
    """Many looks, and no idle pause between them: a single one would take longer than we wait."""
    monkeypatch.setattr(pollpace, "FIRST_PAUSE_SECONDS", 600.0)
    app = make_app(poll_seconds=600.0)
    app.create_schema()
    app.add_handler("t", lambda msg: None)
    ran: list[int] = []
    app.add_handler("b", lambda msg: ran.append(msg.msg_id))
    with app.engine.begin() as conn:
        app.send_many(conn, "t", [(None, f"a{i:05}") for i in range(6000)])
    send(app, "z", topic="b")
    app.ops.pause("t")
    with app.worker(threads=1) as worker:
        worker.start()
        until(lambda: ran, "found")


def test_a_heartbeat_does_not_wait_for_a_claim_to_take_a_new_id(app):
    app.add_handler("t", lambda msg: None)
    with app.worker(threads=1) as worker:
        worker.start()
        assert worker._instance is not None
        identity, beat = worker._instance.runtime.identity, worker._instance.heartbeat
        beat.stop()
        beat.join(60)
        with worker._instance.claimer.no_claim_in_flight():
            identity.retire()
            begun = time.monotonic()
            in_thread(beat.run_once)()
            assert time.monotonic() - begun < 20
            assert identity.trusted()


# ---------------------------------------------------------------- outcomes


def test_an_outcome_that_a_unique_index_of_the_user_refuses_ends_its_lane(make_app, caplog):
    app = make_app(lease_seconds=30.0, poll_seconds=0.02)
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
    send(app, "a")
    refuse(app, "status <> 2 OR object_id <> 'a'")
    with app.worker(threads=1) as worker:
        worker.start()
        before = worker.instance_id
        until(lambda: table.rows("status", "error_try_times") == [(-1, 3)], "dead of crashes")
        send(app, "b", "c")
        until(lambda: table.statuses[1:] == [2, 2], "work goes on")
        assert worker.instance_id != before
    assert table.rows("crash_times")[0] == (3,)
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
    monkeypatch.setattr(instance_module, "ROLE_SECONDS", 2.0)
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
        (psycopg.errors.TooManyConnections("Too many clients"), Trouble.LOST),
        (psycopg.OperationalError("connection failed: FATAL:  Too many clients"), Trouble.LOST),
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
    assert no_connection_left(error) is ("Too many" in str(error))


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


def test_who_was_declared_dead_learns_it_from_the_first_message_it_lost(make_app):
    """Not from its next beat, minutes later: until then it would claim what others recover."""
    app = make_app(lease_seconds=900)
    app.create_schema()
    started, go = threading.Event(), threading.Event()

    @app.handler("t")
    def handle(msg: Message) -> None:
        started.set()
        go.wait(60)

    (msg_id,) = send(app, "a")
    with app.worker(threads=1) as worker:
        worker.start()
        assert started.wait(60)
        name = worker.instance_id
        instance = worker._instance
        assert instance is not None
        identity = instance.runtime.identity
        until(lambda: identity.renewed_at, "the first beat")
        identity.renewed_at -= 100.0  # long ago: it may be doubted
        with app.engine.begin() as conn:
            assert lease.take_over_live(conn, app.tables, name, me="ops", ttl=900)
            text = "taken away"
            assert recover.recover(conn, app.tables, [msg_id], dead_id=name, text=text) == 1
        go.set()
        until(lambda: worker.instance_id != name, "it is another")
        until(lambda: Table(app).statuses == [2], "the message is done")


def test_a_renewal_is_not_doubted_again_and_again(make_app):
    """A handler that changes its own rows loses each of them: that costs no beats."""
    app = make_app(lease_seconds=3600)
    app.create_schema()
    c = app.tables.cols()

    @app.handler("t")
    def handle(msg: Message) -> None:
        with app.engine.begin() as conn:
            conn.execute(sa.delete(app.tables.message).where(c.msg_id == msg.msg_id))

    send(app, *(f"o{i}" for i in range(30)))
    with app.worker(threads=2) as worker:
        worker.start()
        until(lambda: Table(app).statuses == [], "all are gone")
        with app.engine.begin() as conn:
            ((term,),) = conn.execute(
                sa.select(app.tables.lease.c.term).where(
                    app.tables.lease.c.name == worker.instance_id
                )
            )
    assert term <= 2


def test_who_stands_still_after_its_renewal_holds_no_lock(make_app):
    """Frozen there, it would keep what it holds from whoever takes over its lease."""
    app = make_app(lease_seconds=6.0)
    app.create_schema()
    only_servers(app)
    app.add_handler("t", lambda msg: None)
    other, seen = app.engine.connect(), list[list[Any]]()
    free = sa.select(app.tables.lease.c.name).with_for_update(skip_locked=True)

    def look(conn: Any, cursor: Any, statement: str, *rest: Any) -> None:
        if statement.startswith("UPDATE msgworker_lease SET term"):
            seen.append(list(other.execute(free).scalars()))
            other.rollback()

    sa.event.listen(app.engine, "after_cursor_execute", look)
    with other, app.worker(threads=1) as worker:
        worker.start()
        until(lambda: len(seen) > 2, "it renews")
        assert worker.instance_id in seen[-1]
        raw = worker._instance.heartbeat.link._together.connection.dbapi_connection
        until(
            lambda: not app.engine.dialect.detect_autocommit_setting(raw),
            "its other transactions are as before",
        )


def test_listeners_of_the_user_s_engine_do_not_end_the_renewals(make_app):
    """What a listener says at the beginning of a transaction, for row level security, say."""
    app = make_app(lease_seconds=3.0)
    app.create_schema()
    only_servers(app)
    app.add_handler("t", lambda msg: None)
    sa.event.listen(app.engine, "begin", lambda conn: conn.exec_driver_sql("SELECT 1"))
    with app.worker(threads=1) as worker:
        worker.start()

        def term() -> int:
            with app.engine.begin() as conn:
                mine = (x for x in lease.read_all(conn, app.tables) if x.name == worker.instance_id)
                return max((x.term for x in mine), default=0)

        until(lambda: term() > 3, "it renews")


def test_who_wakes_after_its_lease_is_over_does_not_ask_for_it(one, app, table):
    """Whoever recovers it may have the lease locked and stand still, too."""
    only_servers(app)
    send(app, "a")
    assert fetch(one) == 1
    old = one.runtime.identity.id
    one.runtime.identity.trusted_until = 0.0
    with app.engine.begin() as conn:
        mine = app.tables.lease.c.name == old
        conn.execute(sa.update(app.tables.lease).where(mine).values(in_hand=1))
        beat = in_thread(one.heartbeat.run_once)
        until(one.runtime.identity.trusted, "it goes on as another")
        assert one.runtime.identity.id != old
        assert one.runtime.hand.lanes == set()
        conn.rollback()
    beat()
    with app.engine.begin() as conn:
        assert {x.name: x.term for x in lease.read_all(conn, app.tables)}[old] == 0
    assert table.statuses == [1]


def test_nothing_is_forgotten_while_the_database_is_away(one, app, monkeypatch, caplog):
    """Neither told in every beat: what was handled may still be settled."""
    send(app, "a")
    assert fetch(one) == 1
    old, held = one.runtime.identity.id, set(one.runtime.hand.lanes)
    one.runtime.identity.trusted_until = 0.0

    def away(*_: Any) -> None:
        raise DatabaseUnavailable("gone")

    with monkeypatch.context() as patch:
        patch.setattr(one.heartbeat.link, "_connect", away)
        one.heartbeat.close()
        for _ in range(3):
            with pytest.raises(DatabaseUnavailable):
                one.heartbeat.run_once()
    assert (one.runtime.identity.id, one.runtime.hand.lanes) == (old, held)
    assert not one.runtime.identity.trusted()
    one.heartbeat.run_once()
    assert one.runtime.identity.id != old
    assert one.runtime.identity.trusted()
    assert [r.getMessage() for r in caplog.records if "lost its lease" in r.getMessage()] == [
        f"instance {old} lost its lease; going on as {one.runtime.identity.id}"
    ]


def test_trust_goes_on_to_end_while_the_machine_sleeps(one, monkeypatch):
    real = time.clock_gettime
    assert one.runtime.identity.trusted()
    monkeypatch.setattr(time, "clock_gettime", lambda which: real(which) + 60)
    assert not one.runtime.identity.trusted()
    old = one.runtime.identity.id
    one.heartbeat.run_once()
    assert one.runtime.identity.trusted()
    assert one.runtime.identity.id != old


def test_a_stop_does_not_wait_for_a_row_that_somebody_has_locked(one, app, table):
    """Flagged by us and in no hand: it is left for recovery."""
    only_servers(app)
    ids = send(app, "a", "b")
    table.edit(status=1, claimed_by=one.runtime.identity.id)
    with app.engine.begin() as conn:
        c = app.tables.cols()
        conn.execute(sa.select(c.msg_id).where(c.msg_id == ids[0]).with_for_update())
        assert in_thread(one.heartbeat.leave)() is False
        conn.rollback()
    assert table.statuses == [1, 0]


def test_a_stop_does_not_wait_for_ever_for_an_answer(one, app, monkeypatch):
    only_servers(app)
    monkeypatch.setattr(heartbeat, "LEAVE_SECONDS", 2.0)
    hangs = iter([True])

    def holds_nothing(link: Link) -> bool:
        with link.transaction() as conn:
            if next(hangs, False):
                conn.exec_driver_sql(SLEEP[app.engine.dialect.name])
        return True

    monkeypatch.setattr(one.claimer, "holds_nothing", holds_nothing)
    begun = time.monotonic()
    assert in_thread(one.heartbeat.leave)() is True
    assert time.monotonic() - begun < 20
    with app.engine.begin() as conn:
        assert lease.read_all(conn, app.tables) == []


def test_a_settle_of_an_id_that_was_lost_is_not_sent_again(one, app, table, monkeypatch):
    """Whoever recovers it may have the rows locked and stand still: the new self has to settle."""
    send(app, "a")
    assert fetch(one) == 1
    (lane,) = one.lanes.take_back()
    sent = []

    def refused(*args: Any) -> None:
        sent.append(args)
        assert len(sent) == 1
        loses_its_lease(one)
        raise DBAPIError("", {}, psycopg.errors.LockNotAvailable())

    monkeypatch.setattr(one.settler, "_write_once", refused)
    one.settler.add(lane, True)
    assert len(sent) == 1
    assert one.runtime.tally.lost == 1


def test_a_session_that_ends_at_the_last_count_does_not_fail_a_drain(app, monkeypatch):
    app.add_handler("t", lambda msg: None)
    real, asked = find.unfinished, []

    def unfinished(conn: Any, t: Any) -> int:
        asked.append(conn)
        if len(asked) < 3:
            raise DatabaseUnavailable("gone")
        return real(conn, t)

    monkeypatch.setattr(find, "unfinished", unfinished)
    send(app, "a")
    assert outcome_of(app.drain(linger=0)) == (1, 0, False)
    asked.clear()
    assert outcome_of(app.drain(linger=0, outage_limit=0.0)) == (0, 0, True)


def outcome_of(report: Any) -> tuple[int, int, bool]:
    return report.done, report.left, report.database_lost


def test_a_lease_that_somebody_has_locked_is_not_waited_for(make_app):
    """A session of its frozen holder, say: the others are recovered all the same."""
    app = make_app(lease_seconds=6.0, poll_seconds=0.05)
    app.create_schema()
    only_servers(app)
    table, ran = Table(app), list[int]()
    app.add_handler("t", lambda msg: ran.append(msg.msg_id))
    frozen, other = send(app, "a", "b")
    dead_holds(app, table, "dead-1", where=sa.text(f"msg_id = {frozen}"))
    dead_holds(app, table, "dead-2", where=sa.text(f"msg_id = {other}"))
    with app.engine.begin() as conn:
        own = app.tables.lease.c.name == "dead-1"  # the first to be looked at
        conn.execute(sa.update(app.tables.lease).where(own).values(in_hand=1))
        with app.worker(threads=1) as worker:
            worker.start()
            me = worker.instance_id
            until(lambda: ran == [other], "the other is recovered")
            renewed(app, me)
            (later,) = send(app, "c")
            until(lambda: ran == [other, later], "we are trusted")
            assert worker.instance_id == me
            conn.rollback()
            until(lambda: ran == [other, later, frozen], "then this one, too")
