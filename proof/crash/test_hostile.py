"""Sessions that lock what we need, deadlocks, rights that go away, too few connections, a full
disk, a table that changes under us, a fork: F16, F21-F24, F30, F34, F36."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import make_url
from tenacity.wait import wait_none

from msgworker import App
from msgworker.db.database import Trouble
from msgworker.db.errors import trouble
from msgworker.errors import DatabaseUnavailable, MsgworkerError, SchemaError
from proof.crash.consumer import COUNTERS
from proof.crash.fleet import Trial, finish
from proof.crash.scenarios import mixed
from proof.history import Kind
from tests.engines import plain_engine
from tests.plugin import Database
from tests.support.cutting import ROLE, consumer_url
from tests.support.waiting import in_thread, until

ON_SERVERS = pytest.mark.parametrize("trial", ["postgresql", "mariadb"], indirect=True)
SHORT_WAITS = {
    "postgresql": {"options": "-c lock_timeout=300"},
    "mysql": {"init_command": "SET innodb_lock_wait_timeout=1"},
}


@contextmanager
def session(trial: Trial) -> Iterator[sa.Connection]:
    """A session of an administrator, each statement on its own."""
    engine = plain_engine(
        trial.sends_with or trial.url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool
    )
    with engine.connect() as conn:
        yield conn


# ---------------------------------------------------------------- locks


@pytest.mark.quick("sqlite")
@pytest.mark.ahead(lease=60.0)
def test_a_rival_that_locks_the_row_costs_time_and_no_try(trial: Trial) -> None:
    """F16 and F23, rules I3, I4: lock timeouts are waited out."""
    query = SHORT_WAITS.get(trial.backend, {})
    url = make_url(trial.url).update_query_dict(query).render_as_string(hide_password=False)
    held = trial.send("a", work=0.5)
    others = [trial.send("a"), trial.send("b"), trial.send("c", "exact")]
    consumer = trial.spawn(through=url).ready()
    until(lambda: trial.seen(held, Kind.STARTED), "it is in the handler")
    with trial.app.engine.connect() as rival, rival.begin():
        rival.execute(sa.text("UPDATE msgworker_message SET payload = payload"))
        trial.pauses(1.5)
    verdict = finish(trial)
    assert {(row.status, row.error_try_times) for row in verdict.rows.values()} == {(2, 0)}
    assert {verdict.count(n, Kind.STARTED) for n in (held, *others)} == {1}
    assert not consumer.complaints


@pytest.mark.long
@pytest.mark.ahead(lease=60.0)
def test_deadlocks_of_handlers_are_run_again_and_take_effect_once(trial: Trial) -> None:
    """F16, rule I6: two rows counted up in opposite orders, by many at once."""
    with trial.app.engine.begin() as conn:
        conn.execute(COUNTERS.insert(), [{"name": "x", "n": 0}, {"name": "y", "n": 0}])
    orders = (["x", "y"], ["y", "x"])
    loads: list[Any] = [(f"o{i}", "exact", {"counts": orders[i % 2]}) for i in range(16)]
    trial.send_many(loads)
    trial.spawn(threads=3)
    trial.spawn(threads=3)
    verdict = finish(trial)
    done = [n for n in trial.sent if verdict.row(n).status == 2]
    with trial.reader.connect() as conn:
        counted = set(conn.scalars(sa.select(COUNTERS.c.n)))
    assert counted == {len(done)}
    assert {verdict.count(n, Kind.EFFECT) for n in done} == {1}
    assert len(done) >= len(trial.sent) * 0.7  # run again a few times only, then a try is counted


def test_a_savepoint_that_went_with_its_transaction_means_again(mariadb: Database) -> None:
    """A deadlock takes the whole transaction there; who then rolls back to a savepoint is told of
    that only."""
    with mariadb.engine().connect() as conn:
        with pytest.raises(sa.exc.DBAPIError) as gone:
            conn.exec_driver_sql("ROLLBACK TO SAVEPOINT gone")
        assert trouble(gone.value) is Trouble.AGAIN
        with pytest.raises(sa.exc.DBAPIError) as unknown:
            conn.exec_driver_sql("SELECT no_such_function()")
        assert trouble(unknown.value) is Trouble.OTHER


def test_a_deadlock_that_a_handler_swallows_does_not_halve_its_writes(mariadb: Database) -> None:
    """Rule I6: the database has rolled back what the handler wrote before; were the rest committed,
    it would have taken effect by half."""
    app = App(mariadb.url, poll_seconds=0.05, backoff_seconds=1)
    app.create_schema()
    with app.engine.begin() as conn:
        for statement in (
            "CREATE TABLE wrote (i integer)",
            "CREATE TABLE own (i integer, k integer)",
        ):
            conn.exec_driver_sql(f"{statement} ENGINE=InnoDB")
        conn.exec_driver_sql("CREATE TABLE locks (k integer PRIMARY KEY, n integer) ENGINE=InnoDB")
        conn.exec_driver_sql("INSERT INTO locks VALUES (1, 0), (2, 0)")
        app.send(conn, "t", None, object_id="a")
    rival = mariadb.engine().connect()
    rival.exec_driver_sql("UPDATE locks SET n = 1 WHERE k = 2")
    for _ in range(3):  # the smaller transaction is the victim
        rival.exec_driver_sql(
            "INSERT INTO own WITH RECURSIVE some (i) AS "
            "(SELECT 1 UNION ALL SELECT i + 1 FROM some WHERE i < 500) SELECT 1, 1 FROM some"
        )
    swallowed: list[str] = []
    waits: list[Callable[[], Any]] = []

    @app.handler("t", transactional=True)
    def handler(msg: Any, ctx: Any) -> None:
        ctx.connection.exec_driver_sql("INSERT INTO wrote VALUES (1)")
        if not swallowed:
            ctx.connection.exec_driver_sql("UPDATE locks SET n = 2 WHERE k = 1")
            waits.append(
                in_thread(lambda: rival.exec_driver_sql("UPDATE locks SET n = 1 WHERE k = 1"))
            )
            try:
                ctx.connection.exec_driver_sql("UPDATE locks SET n = 2 WHERE k = 2")
            except sa.exc.OperationalError as error:
                swallowed.append(str(error.orig))
            waits[0]()
            rival.rollback()
        ctx.connection.exec_driver_sql("INSERT INTO wrote VALUES (2)")

    assert app.drain(linger=0).done == 1
    assert "1213" in swallowed[0]
    rival.close()
    with app.engine.connect() as conn:
        assert list(conn.scalars(sa.text("SELECT i FROM wrote ORDER BY i"))) == [1, 2]
        query = sa.text("SELECT status, error_try_times FROM msgworker_message")
        assert [tuple(row) for row in conn.execute(query)] == [(2, 0)]
    app.engine.dispose()


# ---------------------------------------------------------------- rights and connections


def take_rights(trial: Trial) -> Callable[[], None]:
    """Nothing can be written any more; returns how to give it back."""
    name = make_url(trial.url).database
    with session(trial) as conn:
        if trial.backend == "postgresql":
            conn.exec_driver_sql(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
            conn.exec_driver_sql(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = "
                f"current_database() AND application_name = '{ROLE}'"
            )
        else:
            for host in ("%%", "localhost"):
                conn.exec_driver_sql(f"REVOKE ALL ON `{name}`.* FROM '{ROLE}'@'{host}'")
            query = "SELECT id FROM information_schema.processlist WHERE db = %s AND user = %s"
            for number in conn.exec_driver_sql(query, (name, ROLE)).scalars().all():
                conn.exec_driver_sql(f"KILL {number}")

    def give_back() -> None:
        with session(trial) as conn:
            if trial.backend == "postgresql":
                conn.exec_driver_sql("SET default_transaction_read_only = off")
                conn.exec_driver_sql(f"ALTER DATABASE {name} RESET default_transaction_read_only")
        if trial.backend != "postgresql":
            consumer_url(trial.url)

    return give_back


@pytest.mark.long
@ON_SERVERS
@pytest.mark.ahead
def test_rights_that_go_away_end_the_run_with_a_clear_error(trial: Trial) -> None:
    """F22, rule I3: read-only, or revoked; nothing is marked failed for it."""
    url = consumer_url(trial.url)
    trial.send_many(mixed(90, 10, work=0.01))
    consumer = trial.spawn(through=url).ready()
    until(lambda: len(trial.events()) > 10, "work is under way")
    consumer.pause()  # so that it has its sessions until they are ended
    give_back = take_rights(trial)
    consumer.resume()
    assert consumer.wait() == 3
    assert "gave up: cannot use the database" in consumer.err.read_text()
    failed = trial.read("msg_id, last_error", "status = -1")
    assert not [row for row in failed if "died while" not in row[1]]
    give_back()
    trial.spawn(through=url)
    verdict = finish(trial)
    assert {row.status for row in verdict.rows.values()} == {2}


def few_connections(trial: Trial, most: int) -> str:
    """The URL of a user that may have only so many sessions."""
    url = make_url(trial.url)
    user = f"mw_few_{os.getpid()}"
    with session(trial) as conn:
        if trial.backend == "postgresql":
            conn.exec_driver_sql(f"CREATE ROLE {user} LOGIN CONNECTION LIMIT {most}")
            conn.exec_driver_sql(f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {user}")
            conn.exec_driver_sql(f"GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO {user}")
        else:
            conn.exec_driver_sql(f"CREATE USER '{user}'@'%%' WITH MAX_USER_CONNECTIONS {most}")
            conn.exec_driver_sql(
                f"CREATE USER '{user}'@'localhost' WITH MAX_USER_CONNECTIONS {most}"
            )
            for host in ("%%", "localhost"):
                conn.exec_driver_sql(f"GRANT ALL ON `{url.database}`.* TO '{user}'@'{host}'")
    return url.set(username=user).render_as_string(hide_password=False)


def forget_user(trial: Trial) -> None:
    user = f"mw_few_{os.getpid()}"
    with session(trial) as conn:
        if trial.backend == "postgresql":
            conn.exec_driver_sql(f"DROP OWNED BY {user}")
            conn.exec_driver_sql(f"DROP ROLE {user}")
        else:
            conn.exec_driver_sql(f"DROP USER '{user}'@'%%', '{user}'@'localhost'")


@pytest.mark.quick("postgresql")
@ON_SERVERS
@pytest.mark.ahead(lease=60.0)
def test_too_few_connections_are_waited_for(trial: Trial) -> None:
    """F24, rules I3, I6: handlers wait for a connection, the heartbeat has its own."""
    url = few_connections(trial, 6)
    trial.send_many(mixed(100, 20, work=0.005))
    trial.spawn(through=url, threads=8)
    try:
        verdict = finish(trial)
        failed = trial.read("last_error", "error_try_times > 0")
    finally:
        for consumer in trial.consumers:
            if consumer.running:
                consumer.kill()
        forget_user(trial)
    assert not failed, failed
    assert {row.status for row in verdict.rows.values()} == {2}


@pytest.mark.long
def test_a_pool_that_is_used_up_is_waited_for(database: Database) -> None:
    """F24: an Engine of the user's with few connections that other code holds for a while."""
    engine = sa.create_engine(
        database.url, pool_size=5, max_overflow=0, pool_timeout=0.3, **_threads(database)
    )
    app = App(engine, backoff_seconds=1)
    app.create_schema()
    done: list[int] = []
    app.add_handler("t", lambda msg: done.append(msg.msg_id))
    with engine.begin() as conn:
        for i in range(20):
            app.send(conn, "t", None, object_id=f"o{i % 5}")
    worker = app.worker(threads=2)
    worker.start()
    try:
        until(lambda: len(done) == 20, "all is done")
        others: list[sa.Connection] = []
        with suppress(sa.exc.TimeoutError):  # the instance has some, and it may be faster
            others += (engine.connect() for _ in range(5))
        with sa.create_engine(database.url).begin() as conn:
            for i in range(20):
                app.send(conn, "t", None, object_id=f"o{i % 5}")
        time.sleep(1.0)
        for other in others:
            other.close()
        until(lambda: len(done) == 40, "the rest is done too")
    finally:
        assert worker.stop()
    engine.dispose()


def _threads(database: Database) -> dict[str, Any]:
    if database.name != "sqlite":
        return {}
    return {"poolclass": sa.QueuePool, "connect_args": {"check_same_thread": False, "timeout": 60}}


# ---------------------------------------------------------------- the disk


def test_a_full_disk_pauses_the_work_and_counts_no_try_for_it(
    sqlite: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """F21: SQLite can add no page; one line about it, and one when there is room again."""
    most = [1 << 30]
    engine = sa.create_engine(sqlite.url, **_threads(sqlite))

    @sa.event.listens_for(engine, "connect")
    def limit(raw: Any, record: Any) -> None:
        raw.execute(f"PRAGMA max_page_count={most[0]}")

    app = App(engine, poll_seconds=0.05, backoff_seconds=1)
    app.create_schema()

    @app.handler("t", wait=wait_none())
    def handler(msg: Any, ctx: Any) -> None:
        if ctx.attempt == 1:
            raise RuntimeError("x" * 4000)  # a text for which there is no room

    with engine.begin() as conn:
        for i in range(40):
            app.send(conn, "t", None, object_id=f"o{i % 5}")
    with engine.connect() as conn:
        most[0] = int(conn.exec_driver_sql("PRAGMA page_count").scalar_one())
    engine.dispose()

    def open_ones() -> list[Any]:
        query = sa.text("SELECT status, error_try_times FROM msgworker_message WHERE status <> 2")
        with engine.connect() as conn:
            return list(conn.execute(query))

    with app.worker(threads=2) as worker:
        worker.start()
        until(lambda: "full" in caplog.text, "the full disk is noticed")
        assert open_ones()
        most[0] = 1 << 30
        until(lambda: not open_ones(), "work goes on")
    with engine.connect() as conn:
        query = sa.text("SELECT DISTINCT status, error_try_times FROM msgworker_message")
        assert [tuple(row) for row in conn.execute(query)] == [(2, 1)]
    lines = [r.message for r in caplog.records if "full" in r.message or "works again" in r.message]
    assert len(lines) == 2, lines
    engine.dispose()


# ---------------------------------------------------------------- the table


@pytest.mark.long
@pytest.mark.parametrize("served", ["postgresql", "mariadb"])
def test_a_column_that_is_dropped_under_us_ends_the_run_and_is_named(
    served: str, request: pytest.FixtureRequest
) -> None:
    """F30."""
    database: Database = request.getfixturevalue(served)
    app = App(database.url, poll_seconds=0.05, backoff_seconds=1)
    app.create_schema()
    app.add_handler("t", lambda msg: None)
    worker = app.worker()
    ran = in_thread(worker.run)
    until(lambda: worker.instance_id, "it runs")
    with app.engine.begin() as conn:
        conn.exec_driver_sql("ALTER TABLE msgworker_message DROP COLUMN last_error")
        conn.exec_driver_sql("ALTER TABLE msgworker_message DROP COLUMN payload")
    with app.engine.begin() as conn:
        conn.exec_driver_sql("INSERT INTO msgworker_message (topic, object_id) VALUES ('t', 'a')")
    with pytest.raises(SchemaError, match=r"schema has changed.*payload"):
        ran()
    app.engine.dispose()


@pytest.mark.long
def test_a_lease_table_that_is_gone_ends_the_run(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a lease an instance claims nothing: its fetcher never meets the error itself."""
    app = App(database.url, poll_seconds=0.05, lease_seconds=0.9, backoff_seconds=1)
    app.create_schema()
    app.add_handler("t", lambda msg: None)
    worker = app.worker()
    ran = in_thread(worker.run)
    until(lambda: worker.instance_id, "it runs")
    with app.engine.begin() as conn:
        conn.exec_driver_sql("DROP TABLE msgworker_lease")
    with pytest.raises(MsgworkerError, match="msgworker_lease"):
        ran()
    assert caplog.text.count("lost its lease") <= 1
    app.engine.dispose()


@pytest.mark.long
def test_leases_that_are_gone_make_new_instances(database: Database) -> None:
    """F34: a backup is restored, and the lease of who is alive is not in it: it takes a new id
    instance, and what it held is recovered."""
    app = App(database.url, poll_seconds=0.05, lease_seconds=9, backoff_seconds=1)
    app.create_schema()
    seen: list[tuple[str, Any]] = []
    gone = []

    @app.handler("t", timeout=60)
    def handler(msg: Any, ctx: Any) -> None:
        seen.append((ctx.instance_id, msg.object_id))
        if not gone:
            until(lambda: ctx.cancelled, "it is told")

    with app.engine.begin() as conn:
        app.send(conn, "t", None, object_id="a")
    with app.worker(threads=2) as worker:
        worker.start()
        first = until(lambda: worker.instance_id, "it runs")
        until(lambda: seen, "it works")
        with app.engine.begin() as conn:
            conn.exec_driver_sql("DELETE FROM msgworker_lease")
        gone.append(True)
        until(lambda: worker.instance_id != first, "it is another")
        with app.engine.begin() as conn:
            app.send(conn, "t", None, object_id="b")
        until(lambda: {o for i, o in seen if i != first} == {"a", "b"}, "it goes on")
    app.engine.dispose()


# ---------------------------------------------------------------- forks


@pytest.mark.quick("postgresql")
def test_a_forked_child_has_connections_of_its_own(database: Database) -> None:
    """F36: an App that has been used, then a fork: both go on with it."""
    app = App(database.url, backoff_seconds=1)
    app.create_schema()
    app.tables  # noqa: B018 - a connection is in the pool now
    app.add_handler("t", lambda msg: None)

    def use() -> int:
        for i in range(20):
            with app.engine.begin() as conn:
                app.send(conn, "t", None, object_id=f"o{i}")
        return app.drain(linger=0).exit_code

    child = os.fork()
    if child == 0:
        code = 70
        try:
            code = use()
        finally:
            os._exit(code)
    assert use() == 0
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with app.engine.connect() as conn:
        rows = conn.execute(
            sa.text("SELECT status, count(*) FROM msgworker_message GROUP BY status")
        )
        assert [tuple(row) for row in rows] == [(2, 40)]
    app.engine.dispose()


def test_a_database_that_is_read_only_at_the_start_is_refused(sqlite: Database) -> None:
    """F22."""
    App(sqlite.url).create_schema()
    path = sqlite.url.removeprefix("sqlite:///")
    app = App(f"sqlite:///file:{path}?mode=ro&uri=true")
    app.add_handler("t", lambda msg: None)
    with pytest.raises(DatabaseUnavailable, match="readonly"):
        app.drain(linger=0)
