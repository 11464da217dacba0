"""One queue in several databases: homes of objects, and workers that start and stop together."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from dataclasses import replace
from decimal import Decimal
from types import SimpleNamespace
from uuid import UUID

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import TimeoutError as SATimeoutError

from msgworker import (
    App,
    ConfigError,
    Databases,
    DatabaseUnavailable,
    DuplicateMessage,
    MessageTable,
    MsgworkerError,
    Report,
    Reports,
    RetryLater,
    SchemaError,
    workers,
)
from msgworker.coordination import DatabaseLocks, Partitions, Segments
from msgworker.events import InstanceStarted
from msgworker.instance import stop
from tests.engines import plain_engine
from tests.support.apps import created
from tests.support.rows import Table
from tests.support.waiting import in_thread, launched, until

NAMES = ("a", "b", "c")
OBJECTS = [f"C-{n}" for n in range(30)]


def test_the_total_has_the_sum_of_every_count():
    one = Report(done=1, undone=1, stopped=True, seconds=2.0, next_seconds=7.0, lease_seconds=9.0)
    total = Reports({"a": one, "b": Report(undone=2, dead_awaited=3, seconds=1.0)}).total
    assert (total.done, total.undone, total.dead_awaited, total.exit_code) == (1, 3, 3, 1)
    assert (total.stopped, total.database_lost) == (True, False)
    assert (total.seconds, total.next_seconds, total.lease_seconds) == (2.0, 7.0, 9.0)


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """A file with an empty schema."""
    path = tmp_path_factory.mktemp("template") / "crm.db"
    app = created(App(f"sqlite:///{path}", table=MessageTable(shard="shard")))
    app.engine.dispose()
    return path


@pytest.fixture
def make(tmp_path, template):
    """Databases of SQLite files, each in a folder of its own."""
    made = []

    def make_them(*names, create=True, homes=None, **table):
        apps = {}
        for name in names or NAMES:
            path = tmp_path / name / "crm.db"
            path.parent.mkdir(exist_ok=True)
            if create:
                shutil.copy(template, path)
            spec = MessageTable(shard="shard", **table)
            apps[name] = App(f"sqlite:///{path}", table=spec, poll_seconds=0.02)
            made.append(apps[name])
        return Databases(apps, homes=homes)

    return make_them


def send_all(databases, objects=OBJECTS):
    for app, part in databases.split([(None, object_id) for object_id in objects]):
        with app.engine.begin() as conn:
            app.send_many(conn, "t", part)


def at_work(together):
    return all(together.instance_ids.values())


# ---------------------------------------------------------------- homes


def test_the_home_of_an_object_is_the_same_in_every_process_and_for_ever(make):
    found = [make(create=False).name_of(one) for one in ("C-1001", "C-1002", "C-1003", 7, "ü")]
    assert found == ["a", "c", "b", "a", "b"]


@pytest.mark.parametrize(
    "spellings",
    [
        ("5", 5, Decimal("5.0"), Decimal("5E0")),
        ("1" * 8 + "-" + "-".join(["1" * 4] * 3) + "-" + "1" * 12,),
    ],
)
def test_an_object_has_one_home_however_its_id_is_written(make, spellings):
    databases = make(create=False)
    ids = [*spellings, *(UUID(one) for one in spellings if len(str(one)) == 36)]
    assert len({databases.name_of(one) for one in ids}) == 1


def test_the_schema_is_made_in_all_of_them(make):
    made = make("a", "b", create=False).create_schema()
    assert {name: "msgworker_message" in names for name, names in made.items()} == {
        "a": True,
        "b": True,
    }


def test_homes_are_equal_parts_in_one_piece(make):
    homes = make(create=False).homes
    assert [len(homes[name]) for name in NAMES] == [21, 21, 22]
    assert [n for name in NAMES for n in homes[name]] == list(range(64))


def test_a_database_that_is_added_moves_only_the_shards_that_are_named(make):
    before = make("a", "b", create=False, homes={"a": range(32), "b": range(32, 64)})
    homes = {"a": range(32), "b": range(32, 60), "c": range(60, 64)}
    after = make(create=False, homes=homes)
    moved = {one for one in OBJECTS if before.name_of(one) != after.name_of(one)}
    assert {after.name_of(one) for one in moved} <= {"c"}


@pytest.mark.parametrize(
    ("homes", "text"),
    [
        ({"a": range(64)}, "must name the shards of a, b, c"),
        ({"a": 5, "b": [], "c": []}, "must be lists of shards"),
        ({"a": range(64), "b": [], "c": [0]}, "each shard from 0 to 63 once"),
        ({"a": range(32), "b": range(32, 63), "c": []}, "each shard from 0 to 63 once"),
        ({"a": range(32), "b": range(32, 65), "c": []}, "each shard from 0 to 63 once"),
    ],
)
def test_homes_name_each_shard_in_one_database(make, homes, text):
    with pytest.raises(ConfigError, match=text):
        make(create=False, homes=homes)


def test_databases_that_do_not_fit_together_are_refused(make):
    one, other = App("sqlite:///x.db"), App("sqlite:///y.db", table=MessageTable(shards=8))
    with pytest.raises(ConfigError, match="same number of shards"):
        Databases({"a": one, "b": other})
    with pytest.raises(ConfigError, match="an App by each name"):
        Databases([one])
    with pytest.raises(ConfigError, match="need as many shards"):
        make(create=False, shards=2)


def test_a_message_is_sent_to_the_home_of_its_object_and_nowhere_else(make):
    databases = make()
    right = databases.name_of("C-1")
    wrong = next(name for name in NAMES if name != right)
    with databases.of("C-1").engine.begin() as conn:
        databases.send(conn, "t", {"n": 1}, object_id="C-1")
    with databases.apps[wrong].engine.begin() as conn:
        with pytest.raises(ConfigError, match=f"belongs to database {right}"):
            databases.send(conn, "t", object_id="C-1")
        databases.send(conn, "t")  # no object, no home
    counts = {name: len(Table(app).statuses) for name, app in databases.apps.items()}
    assert counts == dict.fromkeys(NAMES, 0) | {right: 1, wrong: 1}


def other_way(url):
    """Another URL of the same database."""
    parsed = sa.make_url(url)
    if parsed.get_backend_name() == "sqlite":
        return parsed.set(database=os.path.relpath(parsed.database))
    return parsed.set(host="localhost" if parsed.host == "127.0.0.1" else "127.0.0.1")


def test_where_a_connection_leads_is_asked_of_the_server(database, make_app):
    """Not of the URL, in which a host or a file has several names."""
    if database.stand_in:
        pytest.skip("a stand-in has one schema")
    parsed = sa.make_url(database.url)
    second = f"{parsed.database}_2"
    if database.name != "sqlite":
        admin = database.engine().execution_options(isolation_level="AUTOCOMMIT")
        with admin.connect() as conn:
            conn.exec_driver_sql(f"CREATE DATABASE {second}")
    apps = {"a": make_app(), "b": make_app(parsed.set(database=second))}
    ways = {name: plain_engine(other_way(app.engine.url)) for name, app in apps.items()}
    try:
        for app in apps.values():
            app.create_schema()
        databases = Databases(apps)
        home = databases.name_of("C-1")
        other = next(name for name in apps if name != home)
        with ways[home].begin() as conn:
            databases.send(conn, "t", object_id="C-1")
            databases.send(conn, "t", object_id="C-1")
        with (
            ways[other].begin() as conn,
            pytest.raises(ConfigError, match=f"{home}, but the connection is of {other}"),
        ):
            databases.send(conn, "t", object_id="C-1")
        counts = {name: len(Table(app).statuses) for name, app in apps.items()}
        assert counts == {home: 2, other: 0}
    finally:
        for engine in (*ways.values(), *(app.engine for app in apps.values())):
            engine.dispose()
        if database.name != "sqlite":
            with admin.connect() as conn:
                conn.exec_driver_sql(f"DROP DATABASE {second}")


@pytest.mark.parametrize("other", [False, True], ids=["its engine", "another engine"])
def test_a_message_without_an_object_is_sent_where_its_connection_leads_while_others_are_away(
    make, tmp_path, other
):
    databases = make("a", "b")
    (tmp_path / "a").rename(tmp_path / "away")
    app = databases.apps["b"]
    engine = plain_engine(other_way(app.engine.url)) if other else app.engine
    with engine.begin() as conn:
        databases.send(conn, "t")
        databases.send(conn, "t")
    assert Table(app).statuses == [0, 0]


def test_many_messages_are_split_by_home_in_their_order(make):
    databases = make(create=False)
    pairs = [(n, f"C-{n % 7}") for n in range(50)]
    parts = databases.split(pairs)
    assert sorted(pair for _, part in parts for pair in part) == sorted(pairs)
    for app, part in parts:
        assert part == [pair for pair in pairs if databases.of(pair[1]) is app]


def test_keys_and_priorities_go_to_the_home_of_the_object(make):
    databases = make()
    app = databases.of("C-1")
    with app.engine.begin() as conn:
        first = databases.send(conn, "t", 1, object_id="C-1", priority=7, unique_key="k")
        assert databases.send(conn, "t", 2, object_id="C-1", unique_key="k") == first
        with pytest.raises(DuplicateMessage):
            databases.send(conn, "t", 2, object_id="C-1", unique_key="k", on_duplicate="raise")
        kept = {"unique_key": "l", "unique": "kept"}
        databases.send(conn, "t", 3, object_id="C-1", **kept)
    table = Table(app)
    assert table.rows("priority", "unique_key", "unique_kept") == [(7, "k", None), (0, "l", 1)]
    rows = [(n, f"C-{n}", f"k{n}") for n in range(20)]
    parts = databases.split(rows)
    assert sorted(row for _, part in parts for row in part) == rows
    for one, part in parts:
        with one.engine.begin() as conn:
            assert one.send_many(conn, "t", part) == len(part)


def test_a_job_of_another_database_is_refused(make):
    databases, again = make("a", "b"), make("a", "b")
    own = databases.of("C-1")
    (other,) = [one for one in databases.apps.values() if one is not own]
    jobs = [app.job("run") for app in (other, own)]
    assert [job.job_id for job in jobs] == [1, 1]
    with own.engine.begin() as conn:
        with pytest.raises(ConfigError, match="is of another database"):
            databases.send(conn, "t", object_id="C-1", job=jobs[0])
        with pytest.raises(ConfigError, match="is of another database"):
            own.send_many(conn, "t", [(None, "C-1")], job=jobs[0])
        databases.send(conn, "t", object_id="C-1", job=jobs[1])
        again.of("C-1").send(conn, "t", object_id="C-1", job=jobs[1])  # another App there
        if own.engine.dialect.name == "sqlite":  # which writes the same table in another way
            named = App(own.engine.url, table=replace(own.table, name=f"main.{own.table.name}"))
            named.send(conn, "t", object_id="C-1", job=jobs[1])
            named.engine.dispose()
        with pytest.raises(ConfigError, match="job 1 is an id, which each database"):
            databases.send(conn, "t", object_id="C-1", job=1)
        make("a").send(conn, "t", job=1)  # there is no other one
    assert len(other.ops.find(job=1)) == 0
    assert len(own.ops.find(job=1)) >= 2


def test_a_key_without_an_object_is_refused_as_it_would_be_unique_in_one_of_them(make):
    databases = make()
    one = pytest.raises(ConfigError, match="unique in one database")
    with databases.apps["a"].engine.begin() as conn, one:
        databases.send(conn, "t", unique_key="k")
    with pytest.raises(ConfigError, match="unique in one database"):
        databases.split([(1, None, "k")])
    with pytest.raises(ConfigError, match="triples"):
        databases.split([(1,)])
    assert [Table(app).statuses for app in databases.apps.values()] == [[], [], []]


@pytest.mark.long
def test_shards_with_unfinished_messages_away_from_home_are_told(make):
    databases = make("a", "b")
    send_all(databases)
    assert databases.misplaced() == {}
    moved = make(
        "a", "b", create=False, homes={"a": databases.homes["b"], "b": databases.homes["a"]}
    )
    lacking = moved.misplaced()
    assert set(lacking) == {"a", "b"}
    assert set(lacking["a"]) <= set(databases.homes["a"])
    for app in databases.apps.values():
        Table(app).edit(status=1)  # as while its handlers run
    assert moved.misplaced() == lacking
    for app in databases.apps.values():
        Table(app).edit(status=0)
    databases.handler()(lambda msg: None)
    databases.worker().drain(linger=0)
    assert moved.misplaced() == {}


def test_a_shard_of_which_one_runs_is_told_to_be_away_from_home(make):
    databases = make("a", "b")
    home = databases.name_of("C-1")
    with databases.apps[home].engine.begin() as conn:
        databases.send(conn, "t", object_id="C-1")
    Table(databases.apps[home]).edit(status=1)
    swapped = {"a": databases.homes["b"], "b": databases.homes["a"]}
    assert list(make("a", "b", create=False, homes=swapped).misplaced()) == [home]


# ---------------------------------------------------------------- workers


def test_one_process_drains_all_databases_and_reports_each(make):
    databases, seen = make(), []
    databases.handler("t")(lambda msg: seen.append(msg.object_id))
    send_all(databases)
    reports = databases.worker(threads=2).drain(linger=0)
    assert sorted(seen) == sorted(OBJECTS)
    sent = {name: sum(databases.name_of(one) == name for one in OBJECTS) for name in NAMES}
    assert {name: report.done for name, report in reports.by.items()} == sent
    assert (reports.total.done, reports.exit_code) == (30, 0)
    assert str(reports).splitlines()[-1].startswith("together: done=30 failed=0")


def test_the_gravest_report_is_the_exit_code_of_all():
    fine, dead, lost = Report(), Report(failed=1), Report(database_lost=True)
    again = Report(left=1, left_by={"retry": 1}, next_seconds=3.0)
    later = Report(left=2, left_by={"retry": 2}, next_seconds=1.0)
    assert Reports({"a": fine, "b": again}).exit_code == 6
    assert Reports({"a": again, "b": dead}).exit_code == 1
    assert Reports({"a": dead, "b": lost, "c": again}).exit_code == 3
    total = Reports({"a": again, "b": later}).total
    assert (total.left, total.left_by, total.next_seconds) == (3, {"retry": 3}, 1.0)


def test_a_drain_without_one_of_its_databases_does_the_others(make, tmp_path):
    databases = make("a", "b")
    databases.handler("t")(lambda msg: None)
    send_all(databases)
    lost = sum(databases.name_of(one) == "b" for one in OBJECTS)
    databases.apps["b"].engine.dispose()
    (tmp_path / "b").rename(tmp_path / "away")
    reports = databases.worker().drain(linger=0)
    assert reports.by["b"].database_lost
    assert (reports.total.done, reports.exit_code) == (30 - lost, 3)


@pytest.mark.parametrize("postponed", [False, True])
def test_a_drain_handles_what_is_sent_to_a_database_that_was_done(make, postponed):
    databases, began = make("a", "b"), threading.Event()
    mine, other = (next(o for o in OBJECTS if databases.name_of(o) == name) for name in "ab")

    @databases.handler("t")
    def handle(msg):
        if msg.object_id == other:
            began.set()
            return
        assert began.wait(30)
        until(lambda: together.instance_ids["b"] is None, "the other is done")
        send_all(databases, [other])
        if postponed:
            raise RetryLater(3600)

    together = databases.worker(threads=1)
    send_all(databases, [mine, other])
    reports = together.drain(linger=0)
    assert {name: one.done for name, one in reports.by.items()} == {"a": not postponed, "b": 2}
    statuses = [Table(app).statuses for app in databases.apps.values()]
    assert statuses == [[0 if postponed else 2], [2, 2]]


def test_a_database_that_denies_access_in_a_drain_has_its_counts(make, monkeypatch):
    databases = make("a", "b")
    databases.handler("t")(lambda msg: time.sleep(0.3))
    send_all(databases, [next(o for o in OBJECTS if databases.name_of(o) == "b")])
    together = databases.worker(threads=1)
    second = together._workers["b"]
    should_stop = second._should_stop

    def denied(instance):
        if instance.tally.done:
            raise DatabaseUnavailable("permission denied")
        return should_stop(instance)

    monkeypatch.setattr(second, "_should_stop", denied)
    report = together.drain(linger=0).by["b"]
    assert (report.done, report.database_lost) == (1, True)


def filled(make):
    """The workers of two databases with messages, and the starts of their instances."""
    databases, begun = make("a", "b"), []
    databases.handler("t")(lambda msg: None)
    for app in databases.apps.values():
        app.on(InstanceStarted, begun.append)
    send_all(databases)
    return databases.worker(threads=1), begun


def test_a_drain_that_is_stopped_between_two_looks_begins_none_again(make, monkeypatch):
    together, begun = filled(make)

    def left():
        with pytest.raises(MsgworkerError, match="run already"):
            together.drain()
        with pytest.raises(MsgworkerError, match="run already"):
            together.start()
        together.stop()
        return SimpleNamespace(due_heads=1)

    for one in together._workers.values():
        monkeypatch.setattr(one, "left", left)
    assert together.drain(linger=0).total.done == 30
    assert len(begun) == 2


def test_a_stop_before_an_instance_starts_keeps_its_grace(make, monkeypatch):
    databases, began, held = make("a"), threading.Event(), threading.Event()

    @databases.handler("t")
    def handle(msg):
        began.set()
        held.wait(30)

    send_all(databases)
    together = databases.worker(threads=1)
    (one,) = together._workers.values()
    make_setup, should_stop = one.make_setup, one._should_stop

    def stopped_meanwhile():
        together.stop(0.2)
        return make_setup()

    def late(instance):
        began.wait(30)
        return should_stop(instance)

    monkeypatch.setattr(one, "make_setup", stopped_meanwhile)
    monkeypatch.setattr(one, "_should_stop", late)
    begun = time.monotonic()
    together.drain(linger=0)
    assert time.monotonic() - begun < 15
    held.set()


@pytest.mark.parametrize("error", [DatabaseUnavailable("gone"), SATimeoutError("none is free")])
def test_a_database_that_cannot_be_counted_after_a_drain_is_drained_again(make, monkeypatch, error):
    together, begun = filled(make)

    def left():
        raise error

    monkeypatch.setattr(together._workers["a"], "left", left)
    reports = together.drain(linger=0)
    assert (reports.total.done, reports.exit_code, len(begun)) == (30, 0, 3)


def test_a_database_that_is_away_at_the_start_is_taken_in_when_it_is_back(make, tmp_path, caplog):
    databases, seen = make("a", "b"), []
    databases.handler("t")(lambda msg: seen.append(msg.object_id))
    send_all(databases)
    databases.apps["b"].engine.dispose()
    (tmp_path / "b").rename(tmp_path / "away")
    together = databases.worker()
    run = in_thread(together.run)
    here = [one for one in OBJECTS if databases.name_of(one) != "b"]
    until(lambda: sorted(seen) == sorted(here), "the others work")
    (tmp_path / "away").rename(tmp_path / "b")
    until(lambda: len(seen) == 30, "it works, too")
    together.stop()
    run()
    assert "database b: cannot use the database" in caplog.text


def test_a_database_that_stays_away_is_tried_ever_more_rarely(monkeypatch):
    def away(**how):
        raise DatabaseUnavailable("away")

    part = workers._Part("a", SimpleNamespace(run=away, instance_id=None), lambda part: None)
    tried = []
    monkeypatch.setattr(workers, "outage_pause", lambda failures: tried.append(failures) or 0.0)
    monkeypatch.setattr(part.asked, "wait", lambda pause: len(tried) == 3 and part.asked.stop())
    workers._run(part, 1.0, None)
    assert tried == [1, 2, 3]


def test_who_can_use_none_of_its_databases_ends(make, tmp_path):
    databases = make(create=False)
    databases.handler("t")(lambda msg: None)
    for name in NAMES:
        (tmp_path / name).rmdir()
    with pytest.raises(DatabaseUnavailable):
        databases.worker().run()


def test_what_ends_the_worker_of_one_database_ends_all_in_order(make):
    databases = make("a", "b")
    databases.handler("t")(lambda msg: None)
    with databases.apps["b"].engine.begin() as conn:
        conn.execute(sa.text("DROP TABLE msgworker_message"))
    together = databases.worker()
    with pytest.raises(SchemaError) as caught:
        together.run()
    assert caught.value.__notes__ == ["in database b; the workers of all were stopped"]
    assert not any(together.instance_ids.values())
    with pytest.raises(SchemaError):
        together.start()
    assert not any(together.instance_ids.values())


def test_a_handler_that_is_interrupted_ends_the_workers_of_all(make):
    databases = make("a", "b")

    @databases.handler("t")
    def handle(msg):
        raise KeyboardInterrupt

    send_all(databases, OBJECTS[:1])
    run = in_thread(databases.worker(threads=1).run)
    run()


def test_one_signal_stops_all_databases_in_order(make):
    databases = make()
    begun, go_on = threading.Barrier(4), threading.Event()

    def handle(msg):
        begun.wait(30)
        go_on.wait(30)

    databases.handler("t")(handle)
    one_each = [next(o for o in OBJECTS if databases.name_of(o) == name) for name in NAMES]
    send_all(databases, one_each)
    together = databases.worker(threads=1)

    def tell():
        begun.wait(30)  # a handler runs in each
        os.kill(os.getpid(), signal.SIGTERM)
        go_on.set()

    teller = in_thread(tell)
    together.run(signals=True)
    teller()
    assert [Table(app).statuses for app in databases.apps.values()] == [[2], [2], [2]]


def test_who_insists_waits_for_no_handler_of_any_database(make, monkeypatch):
    databases, held, ended = make("a", "b"), threading.Event(), []
    running = threading.Barrier(3)
    monkeypatch.setattr(stop, "INSIST_SECONDS", 0.0)
    monkeypatch.setattr(workers, "end_by", ended.append)

    def handle(msg):
        running.wait(30)
        held.wait(30)

    databases.handler("t")(handle)
    one_each = [next(o for o in OBJECTS if databases.name_of(o) == name) for name in "ab"]
    send_all(databases, one_each)
    together = databases.worker(threads=1)

    def tell():
        running.wait(30)
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.05)  # two words, not one pending signal

    teller = in_thread(tell)
    together.run(signals=True)
    assert ended == [signal.SIGINT]
    assert [Table(app).statuses for app in databases.apps.values()] == [[1], [1]]  # for recovery
    held.set()
    teller()


def test_a_stop_inside_a_handler_stops_all_and_waits_for_nothing(make):
    databases, answers = make("a", "b"), []
    databases.handler("t")(lambda msg: answers.append(together.stop()))
    send_all(databases, OBJECTS[:1])
    together = databases.worker(threads=1)
    together.run()
    assert answers == [False]
    assert not any(together.instance_ids.values())


def test_workers_start_and_stop_together_as_often_as_one_likes(make):
    databases, seen = make("a", "b"), []
    databases.handler("t")(lambda msg: seen.append(msg.object_id))
    with launched(databases.worker(threads=1)) as together:
        assert at_work(together)
        send_all(databases)
        together.wake()
        until(lambda: sum(one.done for one in together.tally.values()) == 30, "all are done")
        assert together.stop()
        assert not any(together.instance_ids.values())
        together.start()
    assert not any(together.instance_ids.values())


def test_members_share_out_the_shards_of_each_database_on_its_own(make):
    databases = make("a", "b")
    databases.handler("t")(lambda msg: None)
    locks = {name: DatabaseLocks(app.engine) for name, app in databases.apps.items()}
    scope = {name: Partitions(one, shards=8, heartbeat=0.1, ttl=5) for name, one in locks.items()}
    both = [databases.worker(threads=1, scope=scope) for _ in range(2)]
    send_all(databases)
    for one in both:
        one.start()
    try:
        until(
            lambda: all(
                sorted(
                    list(s.cur for s in scope[name].status()).count(member)
                    for member in scope[name].view(app.table)[0]
                )
                == [4, 4]
                for name, app in databases.apps.items()
            ),
            "each owns four shards of each database",
        )
        apps = databases.apps.values()
        until(lambda: all(set(Table(app).statuses) == {2} for app in apps), "all are done")
    finally:
        for one in both:
            one.stop()
        for each in locks.values():
            each.close()


def test_scopes_that_would_share_their_locks_are_refused(make):
    databases = make("a", "b")
    databases.handler("t")(lambda msg: None)
    locks = DatabaseLocks(databases.apps["a"].engine)
    same = dict.fromkeys("ab", Partitions(locks, shards=8))
    with pytest.raises(ConfigError, match=r"would share the locks 'msgworker_message:'"):
        databases.worker(scope=same)
    databases.worker(scope={name: Partitions(locks, group=name) for name in "ab"})
    with pytest.raises(ConfigError, match="would share the locks 'seg:0'"):
        databases.worker(scope=dict.fromkeys("ab", Segments(locks, {"seg:0": [0]})))
    with pytest.raises(ConfigError, match="must name one for each database"):
        databases.worker(scope={"a": Partitions(locks)})
    locks.close()
