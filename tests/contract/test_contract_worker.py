"""Workers: run, start, stop; order and exclusion over threads and workers; other tables."""

from __future__ import annotations

import gc
import itertools
import threading
import uuid
from typing import Any

import pytest
import sqlalchemy as sa
from tenacity.wait import wait_fixed, wait_none

from msgworker import App, Context, Message, MessageTable, MsgworkerError
from msgworker.errors import ConfigError, HandlerError, HandlerStuck
from tests.support.rows import Table, send
from tests.support.waiting import in_thread, until
from tests.support.watching import Watch


def _breathe() -> None:
    """Let other threads in, so that a missing exclusion shows."""
    threading.Event().wait(0.001)


# ---------------------------------------------------------------- life


def test_worker_as_context_manager_works_and_stops(app, table):
    app.add_handler("t", lambda msg: None)
    send(app, *range(20))
    with app.worker(threads=2) as worker:
        worker.start()
        assert worker.instance_id
        until(lambda: set(table.statuses) == {2}, "all done")
        send(app, *range(5))
        until(lambda: table.statuses == [2] * 25, "the later ones too")
    assert worker.instance_id is None
    assert _leases(app) == []


def test_worker_drains(app):
    app.add_handler("t", lambda msg: None)
    send(app, *range(7))
    with app.worker(threads=2) as worker:
        assert worker.drain(linger=0).done == 7
        send(app, 1)
        assert worker.drain(linger=0).done == 1


def test_worker_runs_until_stopped(app, table):
    app.add_handler("t", lambda msg: None)
    worker = app.worker(threads=2)
    join = in_thread(worker.run)
    send(app, *range(10))
    until(lambda: table.statuses == [2] * 10, "all done")
    assert worker.stop() is True
    join()
    assert worker.stop() is True  # twice does nothing


def test_worker_can_be_started_again_as_a_new_instance(app, table):
    app.add_handler("t", lambda msg: None)
    worker = app.worker(threads=1)
    worker.start()
    first = worker.instance_id
    with pytest.raises(MsgworkerError, match="runs already"):
        worker.start()
    worker.stop()
    send(app, 1)
    worker.start()
    assert worker.instance_id not in (None, first)
    until(lambda: table.statuses == [2], "done by the second")
    worker.stop()


def test_stop_right_after_start(app):
    app.add_handler("t", lambda msg: None)
    for _ in range(5):
        worker = app.worker(threads=4)
        worker.start()
        assert worker.stop() is True
    assert _leases(app) == []


def test_graceful_stop_releases_without_counting_a_try(app, table):
    started, go = threading.Event(), threading.Event()
    ran: list[int] = []

    @app.handler("t")
    def handle(msg: Message) -> None:
        ran.append(msg.msg_id)
        if len(ran) > 1:  # the first one is quick, so some are held beside the one that runs
            started.set()
            go.wait(60)

    send(app, *["o"] * 5, *["p"] * 5, *range(10))
    worker = app.worker(threads=1)
    worker.start()
    assert started.wait(60)
    until(lambda: table.statuses.count(1) > 1, "some in hand")
    join = in_thread(worker.stop)
    until(lambda: table.statuses.count(1) == 1, "all but the running one are given back")
    go.set()
    assert join() is True
    assert len(ran) == 2
    assert sorted(table.statuses) == [0] * 18 + [2] * 2
    assert set(table.column("error_try_times")) == {0}
    assert set(table.column("claimed_by")) == {None}
    assert _leases(app) == []


def test_a_release_of_a_message_that_has_failed_before_goes_back_to_failed(app, table):
    started, go = threading.Event(), threading.Event()

    @app.handler("t")
    def handle(msg: Message) -> None:
        if next(calls) > 0:
            started.set()
            go.wait(60)

    calls = itertools.count()
    send(app, *range(10))
    table.edit(status=-1, error_try_times=1)
    worker = app.worker(threads=1)
    worker.start()
    assert started.wait(60)
    until(lambda: table.statuses.count(1) > 1, "some in hand")
    join = in_thread(worker.stop)
    until(lambda: table.statuses.count(1) == 1, "given back")
    go.set()
    join()
    assert sorted(table.rows("status", "error_try_times")) == [(-1, 1)] * 8 + [(2, 1)] * 2


def test_a_handler_that_outlives_the_grace_time_keeps_its_flag(app, table):
    started, go = threading.Event(), threading.Event()

    @app.handler("t")
    def handle(msg: Message, ctx: Context) -> None:
        started.set()
        go.wait(60)

    send(app, "o", "o")
    worker = app.worker(threads=1)
    worker.start()
    assert started.wait(60)
    assert worker.stop(grace=0.1) is False
    assert table.statuses == [1, 0]
    assert len(_leases(app)) == 1  # left for recovery
    go.set()


def test_what_a_dead_instance_held_is_recovered_with_a_try_counted(make_app):
    app = make_app()
    app.create_schema()
    table = Table(app)
    send(app, "o", "o", "p")
    t = app.tables
    first = t.message.c.msg_id == table.column("msg_id")[0]
    table.edit(first, status=1, claimed_by="host-1-gone")
    app.add_handler("t", lambda msg: None)
    with app.worker(threads=1) as worker:
        worker.start()
        until(lambda: table.statuses == [2, 2, 2], "recovered and done")
    rows = table.rows("error_try_times", "crash_times", "claimed_by")
    assert rows == [(1, 1, None), (0, 0, None), (0, 0, None)]


def _leases(app: App) -> list[str]:
    with app.engine.connect() as conn:
        c = app.tables.lease.c
        return list(conn.scalars(sa.select(c.name).where(c.kind == "instance")))


def _beats(app: App) -> int:
    """How often the only lease was renewed."""
    with app.engine.connect() as conn:
        c = app.tables.lease.c
        return int(conn.scalar(sa.select(c.term).where(c.kind == "instance")) or 0)


# ---------------------------------------------------------------- order and exclusion


def test_order_and_exclusion_over_threads(app, table):
    watch = Watch()
    app.add_handler("t", lambda msg: watch.saw(msg.object_id, msg.msg_id, _breathe))
    ids = send(app, *[f"o{i % 9}" for i in range(180)])
    assert app.drain(threads=8, linger=0).done == 180
    watch.assert_exclusive()
    watch.assert_in_order(ids)


def test_order_and_exclusion_over_two_workers_and_apps(app, make_app, table):
    watch = Watch()
    other = make_app()
    for one in (app, other):
        one.add_handler("t", lambda msg: watch.saw(msg.object_id, msg.msg_id, _breathe))
    with app.worker(threads=3) as a, app.worker(threads=3) as b, other.worker(threads=3) as c:
        for worker in (a, b, c):
            worker.start()
        ids: list[int] = []
        for _ in range(10):
            ids += send(app, *[f"o{i % 9}" for i in range(30)])
        until(lambda: set(table.statuses) == {2}, "all done")
    watch.assert_exclusive()
    watch.assert_in_order(ids)


def test_objects_run_beside_each_other(app):
    both = threading.Barrier(2)
    app.add_handler("t", lambda msg: both.wait(60))
    send(app, "o", "p")
    assert app.drain(threads=2, linger=0).done == 2


def test_messages_without_an_object_have_no_order(app):
    both = threading.Barrier(3)
    app.add_handler("t", lambda msg: both.wait(60))
    send(app, None, None, None)
    assert app.drain(threads=3, linger=0).done == 3


def test_failed_head_holds_back_its_successors(app, table):
    @app.handler("t", wait=wait_fixed(3600))
    def handle(msg: Message) -> None:
        if msg.payload == "bad":
            raise ValueError("bad")

    send(app, "o", "o", payload="good")
    send(app, "o", payload="bad")
    send(app, "o", "o", "p", payload="good")
    report = app.drain(linger=0)
    assert (report.done, report.retried, report.left) == (3, 1, 3)
    assert table.statuses == [2, 2, -1, 0, 0, 2]


def test_a_failing_object_does_not_hold_up_others(app, table):
    @app.handler("t", wait=wait_fixed(3600))
    def handle(msg: Message) -> None:
        if str(msg.object_id).startswith("bad"):
            raise ValueError("bad")

    send(app, *[f"bad{i % 50}" for i in range(500)])
    ids = send(app, *range(50))
    report = app.drain(threads=4, linger=0)
    assert (report.done, report.retried) == (50, 50)
    t = app.tables
    with app.engine.connect() as conn:
        done = conn.scalars(sa.select(t.message.c.msg_id).where(t.message.c.status == 2))
        assert sorted(done) == ids


def test_order_holds_over_failures_and_workers(app, make_app, table):
    watch = Watch()
    other = make_app()

    def handle(msg: Message, ctx: Context) -> None:
        watch.saw(msg.object_id, msg.msg_id, _breathe)
        if msg.msg_id % 5 == 0 and ctx.attempt < 3:
            raise ValueError("again")

    for one in (app, other):
        one.add_handler("t", handle, wait=wait_none())
    send(app, *[f"o{i % 6}" for i in range(120)])
    with app.worker(threads=3) as a, other.worker(threads=3) as b:
        a.start()
        b.start()
        until(lambda: set(table.statuses) == {2}, "all done")
    watch.assert_exclusive()
    for object_id in {span[0] for span in watch.spans}:
        assert watch.of(object_id) == sorted(watch.of(object_id))


def test_an_app_keeps_the_workers_that_run_and_no_others(app):
    """One that nobody refers to any more but that was started is woken all the same."""
    seen = threading.Event()
    app.add_handler("t", lambda msg: seen.set())
    for _ in range(3):
        app.worker()
    app.worker(threads=1).start()
    gc.collect()
    (left,) = app._workers
    try:
        send(app, "a")
        assert seen.wait(60)
    finally:
        left.stop()
    del left
    gc.collect()
    assert not app._workers


def test_two_apps_with_different_topics_share_a_table(app, make_app, table):
    other = make_app()
    got: dict[str, list[str]] = {"a": [], "b": []}
    app.add_handler("a", lambda msg: got["a"].append(msg.topic))
    other.add_handler("b", lambda msg: got["b"].append(msg.topic))
    for i in range(20):
        send(app, f"x{i}", topic="a")
        send(app, f"y{i}", topic="b")
    joins = [in_thread(lambda one=one: one.drain(linger=0, threads=2)) for one in (app, other)]
    assert [join().done for join in joins] == [20, 20]
    assert (set(got["a"]), set(got["b"])) == ({"a"}, {"b"})


# ---------------------------------------------------------------- other tables

OTHER_NAMES = {
    "msg_id": "nr",
    "object_id": "customer",
    "status": "state",
    "error_try_times": "tries",
    "topic": "kind",
    "payload": "body",
    "available_at": "not_before",
    "claimed_by": "owner",
    "last_error": "why",
}


def test_a_table_with_other_names(make_app):
    app = make_app(table=MessageTable("work_item", **OTHER_NAMES))
    made = app.create_schema()
    assert "work_item" in made
    watch = Watch()

    @app.handler("t", wait=wait_none())
    def handle(msg: Message, ctx: Context) -> None:
        assert msg.payload == {"a": 1}
        watch(msg)
        if msg.object_id == "o1" and ctx.attempt == 1:
            raise ValueError("once")

    ids = send(app, *[f"o{i % 3}" for i in range(9)], payload={"a": 1})
    report = app.drain(linger=1)
    assert (report.done, report.retried) == (9, 3)
    assert set(watch.ids) == set(ids)
    with app.engine.connect() as conn:
        rows = conn.exec_driver_sql("SELECT state, owner, why FROM work_item ORDER BY nr").all()
    assert {row[0] for row in rows} == {2}
    assert {row[1] for row in rows} == {None}


def test_a_table_in_a_schema(database, make_app):
    if database.name == "sqlite":
        pytest.skip("SQLite has no schemas")
    schema = f"crm_{uuid.uuid4().hex[:8]}"
    with database.engine().begin() as conn:
        conn.exec_driver_sql(f"CREATE SCHEMA {schema}")
    try:
        app = make_app(table=MessageTable(f"{schema}.tb_cus_msg"))
        assert "tb_cus_msg" in app.create_schema()
        assert app.create_schema() == []
        watch = Watch()
        app.add_handler("t", watch)
        ids = send(app, "a", "a", "b")
        assert app.drain(linger=0).done == 3
        watch.assert_in_order(ids)
        with app.engine.connect() as conn:
            found = conn.exec_driver_sql(f"SELECT status FROM {schema}.tb_cus_msg")
            assert [row[0] for row in found] == [2, 2, 2]
    finally:
        cascade = " CASCADE" if database.name == "postgresql" else ""
        with database.engine().begin() as conn:
            conn.exec_driver_sql(f"DROP SCHEMA {schema}{cascade}")


IDENTITY = {
    "sqlite": "INTEGER PRIMARY KEY AUTOINCREMENT",
    "postgresql": "BIGSERIAL PRIMARY KEY",
    "mariadb": "BIGINT AUTO_INCREMENT PRIMARY KEY",
}
SEED = MessageTable(
    "tb_cus_msg",
    msg_id="msgID",
    object_id="objectID",
    status="status",
    error_try_times="errorTryTimes",
    payload=None,
)


def seed_table(database: Any, objects: str = "VARCHAR(50)", quote: str = "") -> None:
    """The seed's own table: four columns and nothing else."""
    q = quote.join
    columns = ", ".join(
        [
            f"{q(['', 'msgID', ''])} {IDENTITY[database.name]}",
            f"{q(['', 'objectID', ''])} {objects}",
            "status INTEGER DEFAULT 0 NOT NULL",
            f"{q(['', 'errorTryTimes', ''])} INTEGER DEFAULT 0 NOT NULL",
        ]
    )
    with database.engine().begin() as conn:
        conn.exec_driver_sql(f"CREATE TABLE tb_cus_msg ({columns})")


@pytest.mark.parametrize("quoted", [False, True], ids=["folded", "quoted"])
@pytest.mark.parametrize("objects", ["VARCHAR(50)", "INTEGER", "BIGINT"])
def test_the_seed_s_four_columns_only(database, make_app, objects, quoted):
    quote = {"mariadb": "`"}.get(database.name, '"') if quoted else ""
    seed_table(database, objects, quote)
    app = make_app(table=SEED)
    app.create_schema()
    assert app.create_schema() == []
    watch = Watch()

    @app.handler()
    def handle(msg: Message, ctx: Context) -> None:
        assert (msg.topic, msg.payload, msg.created_at) == ("default", None, None)
        watch.saw(msg.object_id, msg.msg_id, _breathe)
        if msg.msg_id == 2 and ctx.attempt < 3:
            raise ValueError("again")
        if msg.msg_id == 5:
            raise ValueError("never")

    object_id = quote + "objectID" + quote
    values = ["'1'", "'1'", "'2'", "'2'", "'3'", "'3'", "NULL", "NULL"]
    if objects != "VARCHAR(50)":
        values = [v.strip("'") for v in values]
    with database.engine().begin() as conn:
        for value in values:
            conn.exec_driver_sql(f"INSERT INTO tb_cus_msg ({object_id}) VALUES ({value})")
    report = app.drain(threads=4, linger=1)
    assert (report.done, report.failed) == (7, 1)
    rows = Table(app).rows("status", "error_try_times")
    assert rows == [(2, 0), (2, 2), (2, 0), (2, 0), (-1, 3), (2, 0), (2, 0), (2, 0)]
    watch.assert_exclusive()
    kind = str if objects == "VARCHAR(50)" else int
    assert watch.of(kind("1")) == [1, 2, 2, 2]


def test_send_into_the_seed_s_table(database, make_app):
    seed_table(database)
    app = make_app(table=SEED)
    app.create_schema()
    app.add_handler(None, lambda msg: None)
    assert send(app, "a", "a", None) == [1, 2, 3]
    with app.engine.begin() as conn:
        assert app.send_many(conn, "t", [(None, "b"), (None, "a")]) == 2
    assert app.drain(linger=0).done == 5


def test_two_workers_on_the_seed_s_table(database, make_app):
    seed_table(database, "INTEGER")
    watch = Watch()
    apps = [make_app(table=SEED), make_app(table=SEED)]
    apps[0].create_schema()
    for one in apps:
        one.add_handler(None, lambda msg: watch.saw(msg.object_id, msg.msg_id, _breathe))
    ids = send(apps[0], *[i % 7 for i in range(140)])
    with apps[0].worker(threads=3) as a, apps[1].worker(threads=3) as b:
        a.start()
        b.start()
        table = Table(apps[0])
        until(lambda: set(table.statuses) == {2}, "all done")
    watch.assert_exclusive()
    watch.assert_in_order(ids)


def test_a_mixed_case_table(database, make_app):
    spec = MessageTable("TbCusMsg", **{k: v.title() for k, v in OTHER_NAMES.items()})
    app = make_app(table=spec)
    app.create_schema()
    assert app.create_schema() == []
    app.add_handler("t", lambda msg: None)
    send(app, "a", "a", "b")
    assert app.drain(linger=0).done == 3


# ---------------------------------------------------------------- foreign consumers


class Foreign:
    """A consumer of the seed's plain protocol: candidate, conditional UPDATE, row count."""

    def __init__(self, database: Any, names: tuple[str, str, str], watch: Watch) -> None:
        self.engine = database.engine()
        self.table, self.id, self.object = names
        self.watch = watch
        self.done: list[int] = []
        self.stop = threading.Event()

    def __call__(self) -> None:
        while not self.stop.is_set():
            if not self.once():
                self.stop.wait(0.005)

    def once(self) -> bool:
        find = sa.text(
            f"SELECT {self.id}, {self.object} FROM {self.table} re WHERE status = 0 AND NOT EXISTS "
            f"(SELECT 1 FROM {self.table} t WHERE t.{self.object} = re.{self.object} "
            f"AND t.status = 1 AND t.{self.id} < re.{self.id}) ORDER BY {self.id} LIMIT 1"
        )
        with self.engine.connect() as conn:
            row = conn.execute(find).first()
        if row is None or not self._to(row[0], 1, 0):
            return False
        self.watch.saw(row[1], row[0], _breathe)
        assert self._to(row[0], 2, 1)
        self.done.append(row[0])
        return True

    def _to(self, msg_id: int, status: int, seen: int) -> bool:
        change = sa.text(
            f"UPDATE {self.table} SET status = :s WHERE status = :seen AND {self.id} = :i"
        )
        try:
            with self.engine.begin() as conn:
                return bool(conn.execute(change, {"s": status, "seen": seen, "i": msg_id}).rowcount)
        except sa.exc.IntegrityError:  # the guard
            return False
        except sa.exc.OperationalError as error:  # deadlock victim, lock timeout
            if status == 2:
                return self._to(msg_id, status, seen)
            if not any(word in str(error).lower() for word in ("lock", "busy")):
                raise
            return False


def _both(app: App, foreign: Foreign, table: Table) -> None:
    join = in_thread(foreign)
    try:
        with app.worker(threads=3) as worker:
            worker.start()
            until(lambda: set(table.statuses) == {2}, "all done")
    finally:
        foreign.stop.set()
    join()


def test_a_foreign_consumer_beside_ours(database, app, table):
    watch = Watch()
    app.add_handler("t", lambda msg: watch.saw(msg.object_id, msg.msg_id, _breathe))
    ids = send(app, *[f"o{i % 8}" for i in range(160)])
    _both(app, Foreign(database, ("msgworker_message", "msg_id", "object_id"), watch), table)
    watch.assert_exclusive()
    assert sorted(watch.ids) == ids


def test_a_foreign_consumer_on_the_seed_s_table(database, make_app):
    seed_table(database, "INTEGER")
    app = make_app(table=SEED)
    app.create_schema()
    watch = Watch()
    app.add_handler(None, lambda msg: watch.saw(msg.object_id, msg.msg_id, _breathe))
    ids = send(app, *[i % 8 for i in range(160)])
    _both(app, Foreign(database, ("tb_cus_msg", "msgID", "objectID"), watch), Table(app))
    watch.assert_exclusive()
    assert sorted(watch.ids) == ids


# ---------------------------------------------------------------- when a drain is over


def test_drain_finds_what_stands_behind_many_blocked_objects(app, table):
    app.add_handler("t", lambda msg: None)
    with app.engine.begin() as conn:
        app.send_many(conn, "t", [(None, f"blocked{i}") for i in range(1000)], delay=3600)
        app.send_many(conn, "t", [(None, f"blocked{i % 1000}") for i in range(3000)])
        app.send_many(conn, "t", [(None, f"free{i}") for i in range(100)])
    report = app.drain(linger=0)
    assert (report.done, report.left) == (100, 4000)


def test_drain_finds_what_stands_behind_messages_of_unknown_topics(app):
    app.add_handler("t", lambda msg: None)
    with app.engine.begin() as conn:
        app.send_many(conn, "nobody's", [(None, None) for i in range(2000)])
        app.send_many(conn, "nobody's", [(None, f"x{i}") for i in range(1000)])
        app.send_many(conn, "t", [(None, f"o{i}") for i in range(50)])
        app.send_many(conn, "t", [(None, None) for i in range(50)])
    report = app.drain(linger=0)
    assert (report.done, report.left) == (100, 3000)


# ---------------------------------------------------------------- other rules on the same table


@pytest.mark.parametrize("rules", [{"max_tries": 5}, {"on_dead": "block"}, {"max_tries": 2}])
def test_rules_changed_on_a_table_that_exists(make_app, app, rules):
    """The claim indexes were made for other rules: create_schema adds the right ones."""
    changed = make_app(table=MessageTable(**rules))
    changed.create_schema()
    assert changed.create_schema() == []
    changed.add_handler("t", lambda msg: None)
    first, second = send(changed, "o", "o")
    table = Table(changed)
    tries = rules.get("max_tries", 3) - 1
    table.edit(table.where(msg_id=first), status=-1, error_try_times=tries)
    assert changed.drain(linger=0).done == 2
    table.edit(table.where(msg_id=first), status=-1, error_try_times=tries + 1)
    table.edit(table.where(msg_id=second), status=0)
    report = changed.drain(linger=0)
    assert (report.done, report.left) == ((0, 2) if "on_dead" in rules else (1, 0))


# ---------------------------------------------------------------- handlers that hang


@pytest.fixture
def hangs(make_app):
    """An App whose handler "hangs" runs, longer than it may, until the event that comes with it."""
    app = make_app(lease_seconds=6.0)
    app.create_schema()
    end = threading.Event()
    app.add_handler(
        "hangs", lambda msg: end.wait(60), timeout=0.05, timeout_action="restart", wait=wait_none()
    )
    app.add_handler("t", lambda msg: _breathe())
    yield app, end
    end.set()


@pytest.mark.parametrize("way", ["run", "drain"])
def test_instance_leaves_for_a_handler_that_hangs_and_others_recover(hangs, make_app, way):
    app, end = hangs
    table = Table(app)
    (stuck,) = send(app, "o", topic="hangs")
    with pytest.raises(HandlerStuck, match=f"message {stuck}"):
        getattr(app.worker(threads=2), way)()
    assert table.one("claimed_by") in _leases(app)  # left to expire: then the crash is counted
    assert table.one("status", "error_try_times") == (1, 0)
    other = make_app(lease_seconds=6.0)
    other.add_handler("hangs", lambda msg: None)
    with other.worker(threads=1) as heir:
        heir.start()
        until(lambda: table.statuses == [2], "the heir has done it")
    assert table.one("error_try_times", "crash_times") == (1, 1)
    end.set()


def test_worker_in_the_background_leaves_too_and_gives_back_the_rest(hangs):
    app, _end = hangs
    table = Table(app)
    send(app, "o", topic="hangs")
    worker = app.worker(threads=1)
    worker.start()
    until(lambda: table.statuses == [1], "it hangs")
    behind = send(app, "o", "p", "q")
    until(lambda: worker.instance_id is None, "it has left")
    until(lambda: table.rows("status")[1:] == [(0,)] * len(behind), "the rest is given back")


@pytest.mark.parametrize(
    "options", [{"timeout_action": "restart"}, {"timeout": 1, "timeout_action": "kill"}]
)
def test_bad_timeout_actions_are_refused(app, options):
    with pytest.raises(HandlerError, match="timeout"):
        app.add_handler("t", lambda msg: None, **options)


# ---------------------------------------------------------------- foreign consumers that die


def test_message_of_a_foreign_consumer_is_left_alone_unless_asked(make_app):
    app = make_app(lease_seconds=3.0)
    app.create_schema()
    table = Table(app)
    app.add_handler("t", lambda msg: None)
    flagged, _ = send(app, "o", None)
    table.edit(table.where(msg_id=flagged), status=1)
    behind = send(app, "o")
    with app.worker(threads=1) as worker:
        worker.start()
        until(lambda: _beats(app) > 2 and table.statuses == [1, 2, 0], "several heartbeats later")
    patient = make_app(lease_seconds=6.0, foreign_stale_after=1.0)
    patient.add_handler("t", lambda msg: None)
    with patient.worker(threads=1) as worker:
        worker.start()
        until(lambda: table.statuses == [2, 2, 2], "taken from the foreign consumer")
    assert table.rows("msg_id", "error_try_times", "crash_times")[0] == (flagged, 1, 1)
    assert table.rows("msg_id", "error_try_times")[2] == (behind[0], 0)


def test_foreign_consumer_that_goes_on_to_the_next_try_is_not_stale(make_app):
    app = make_app(lease_seconds=3.0, foreign_stale_after=86_400)
    app.create_schema()
    table = Table(app)
    app.add_handler("t", lambda msg: None)
    (flagged,) = send(app, "o")
    table.edit(table.where(msg_id=flagged), status=1)
    with app.worker(threads=1) as worker:
        worker.start()
        until(lambda: _beats(app) > 2, "several heartbeats have passed")
    assert table.statuses == [1]


def test_foreign_stale_after_needs_claimed_by(make_app):
    with pytest.raises(ConfigError, match="claimed_by"):
        make_app(table=MessageTable(claimed_by=None), foreign_stale_after=60)


# ---------------------------------------------------------------- settles that may arrive late


def test_message_whose_settle_may_be_under_way_is_claimed_under_a_new_id_only(app, table):
    ran: list[str] = []
    app.add_handler("t", lambda msg, ctx: ran.append(ctx.instance_id))
    (first,) = send(app, "o")
    with app.worker(threads=2) as worker:
        worker.start()
        until(lambda: table.statuses == [2], "done")
        assert worker._instance is not None
        worker._instance.runtime.identity.doubtful.add(first)
        send(app, *range(5))
        until(lambda: table.statuses == [2] * 6, "others are not in doubt")
        assert {*ran} == {worker.instance_id}
        app.ops.rerun([first], force=True)
        until(lambda: table.statuses == [2] * 6 and len(ran) == 7, "done again")
        assert ran[6] == worker.instance_id != ran[0]
        until(lambda: _leases(app) == [ran[6]], "the old lease is gone")
    assert _leases(app) == []


def test_settle_whose_connection_is_lost_is_in_doubt(database, app):
    if database.name != "postgresql":
        pytest.skip("elsewhere a settle is a transaction: none arrives after its sender gave up")
    cut: list[int] = []

    @sa.event.listens_for(app.engine, "before_cursor_execute")
    def cut_once(conn, cursor, statement, *rest):
        if "finished_at" in statement and statement.lstrip().startswith("UPDATE") and not cut:
            cut.append(1)
            with app.engine.connect() as other:
                pid = cursor.connection.info.backend_pid
                other.execute(sa.text("SELECT pg_terminate_backend(:p)"), {"p": pid})

    app.add_handler("t", lambda msg: None)
    (first,) = send(app, "o")
    with app.worker(threads=1) as worker:
        worker.start()
        until(lambda: Table(app).statuses == [2], "sent again")
        assert cut == [1]
        assert worker._instance is not None
        assert worker._instance.runtime.identity.doubtful == {first}
