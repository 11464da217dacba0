"""Tables of theirs: other names, a schema, four columns only."""

from __future__ import annotations

import re
import uuid
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
from tenacity.wait import wait_none

from msgworker import App, ConfigError, Context, Message, MessageTable, SchemaError
from msgworker.coordination import DatabaseLocks, Partitions
from msgworker.doctor import Severity
from tests.support.apps import created
from tests.support.doctor import run
from tests.support.rows import Table, send
from tests.support.tables import OTHER_NAMES, SEED, make_table, seed_table
from tests.support.waiting import launched, until
from tests.support.watching import Watch, breathe


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


@pytest.mark.quick("mariadb")
@pytest.mark.requires("schemas")
def test_a_table_in_a_schema(database, make_app):
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


@pytest.mark.parametrize(
    ("objects", "quoted"), [("VARCHAR(50)", False), ("INTEGER", True), ("BIGINT", False)]
)
def test_the_seed_s_four_columns_only(database, make_app, objects, quoted):
    quote = {"mariadb": "`"}.get(database.name, '"') if quoted else ""
    seed_table(database, objects, quote)
    app = created(make_app(table=SEED))
    assert app.create_schema() == []
    watch = Watch()

    @app.handler()
    def handle(msg: Message, ctx: Context) -> None:
        assert (msg.topic, msg.payload, msg.created_at) == ("default", None, None)
        watch.saw(msg.object_id, msg.msg_id, breathe)
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
    app = created(make_app(table=SEED))
    app.add_handler(None, lambda msg: None)
    assert send(app, "a", "a", None) == [1, 2, 3]
    with app.engine.begin() as conn:
        assert app.send_many(conn, "t", [(None, "b"), (None, "a")]) == 2
    assert app.drain(linger=0).done == 5


def test_a_column_shard_that_holds_texts_is_theirs(database, make_app):
    make_table(database, shard="VARCHAR(20) DEFAULT 'eu-west'")
    app = created(make_app(table=MessageTable("tb")))
    app.add_handler(None, lambda msg: None)
    send(app, "a", None, topic="default")
    assert app.drain(linger=0).done == 2
    with app.engine.connect() as conn:
        assert conn.exec_driver_sql("SELECT DISTINCT shard FROM tb").all() == [("eu-west",)]


def test_a_column_of_slices_that_is_there_is_not_said_to_be_missing(database, make_app, subtests):
    """Nor is one that holds numbers of another type."""
    make_table(database, shard="VARCHAR(20)", part="VARCHAR(20)")
    with subtests.test("a scope over a column that was not named"):
        app = created(make_app(table=MessageTable("tb")))
        app.add_handler(None, lambda msg: None)
        with closing(DatabaseLocks(app.engine)) as locks, pytest.raises(SchemaError) as caught:
            app.drain(scope=Partitions(locks))
        assert "whole numbers in column shard of table tb, but it is VARCHAR(20)" in str(
            caught.value
        )
    with subtests.test("a column that was named"):
        app = make_app(table=MessageTable("tb", shard="part"))
        with pytest.raises(SchemaError, match=r"part \(shard\) is VARCHAR\(20\), but must be a wh"):
            _ = app.tables
        (found,) = [one for one in app.ops.doctor() if "(shard)" in one.text]
        assert found.severity is Severity.NEEDED
        run(database, *found.fix or re.findall(r"add a column \((.*?)\) and", found.text))
        table = MessageTable("tb", shard="part" if found.fix else "part_2")
        assert created(make_app(table=table)).tables.has("shard")


@pytest.mark.parametrize("kind", ["NUMERIC(10)", "a_number"])
def test_a_shard_may_be_any_number(postgresql, kind):
    run(postgresql, "CREATE DOMAIN a_number AS integer")
    make_table(postgresql, part=kind)
    app = created(App(postgresql.url, table=MessageTable("tb", shard="part")))
    send(app, "a", None, topic="default")
    app.add_handler(None, lambda msg: None)
    with closing(DatabaseLocks(app.engine)) as locks:
        assert app.drain(scope=Partitions(locks), linger=0).done == 2


@pytest.mark.quick
@pytest.mark.requires("common_sql")
def test_a_column_of_a_type_that_sqlalchemy_does_not_know_is_no_reason_to_warn(database, make_app):
    make_table(database, place={"postgresql": "int4multirange"}.get(database.name, "point"))
    app = created(make_app(table=MessageTable("tb")))
    app.add_handler(None, lambda msg: None)
    send(app, "a", None, topic="default")
    app.ops.doctor()
    assert app.drain(linger=0).done == 2
    app.upgrade_schema()
    assert app.ops.purge(0.001, archive_to="old").changed == 2


@pytest.mark.requires("common_sql")
def test_a_status_without_a_default_is_sent_under_its_own_name(database, make_app):
    kind = {"postgresql": "BIGSERIAL PRIMARY KEY", "mariadb": "BIGINT AUTO_INCREMENT PRIMARY KEY"}
    key = kind.get(database.name, "INTEGER PRIMARY KEY")
    with database.engine().begin() as conn:
        conn.exec_driver_sql(
            f"CREATE TABLE work_item (nr {key}, customer VARCHAR(50), state INTEGER NOT NULL, "
            "tries INTEGER NOT NULL)"
        )
    names = {"msg_id": "nr", "object_id": "customer", "status": "state"}
    spec = MessageTable("work_item", error_try_times="tries", topic=None, payload=None, **names)
    app = created(make_app(table=spec))
    app.add_handler(None, lambda msg: None)
    send(app, "a", topic="default")
    with app.engine.begin() as conn:
        app.send_many(conn, "default", [(None, "b"), (None, "c")])
    assert app.drain(linger=0).done == 3


def test_a_filter_on_a_column_that_is_not_there_is_refused(database, make_app, subtests):
    """It would find nothing, which reads like an answer."""
    seed_table(database, "INTEGER")
    app = created(make_app(table=SEED))
    app.add_handler(None, lambda msg: 1 / 0, max_tries=1)
    (msg_id,) = send(app, 5, topic="default")
    app.drain(linger=0)
    ops = app.ops
    acts: list[Any] = [ops.find, ops.messages]
    acts += [partial(ops.rerun, reason="r"), partial(ops.rerun, dry_run=True)]
    acts += [partial(ops.discard, reason="r"), partial(ops.cancel, reason="r")]
    for given, role, others in (
        ({"topic": "t"}, "topic", [ops.failures]),
        ({"error": "E"}, "last_error", []),
        ({"since": datetime(2026, 1, 1, tzinfo=UTC)}, "created_at", []),
        ({"job": 7}, "job_id", []),
    ):
        says = rf"no {role} column.*MessageTable\({role}=\.\.\.\)"
        for act in (*acts, *others):
            with subtests.test(act=act, role=role), pytest.raises(ConfigError, match=says):
                act(**given)
    for find in (ops.find, ops.messages):
        assert [one.msg_id for one in find(topic="default", status="dead")] == [msg_id]
    (group,) = ops.failures(topic="default")
    assert group.dead == 1
    assert ops.rerun(topic="default", reason="r") == 1


def test_two_workers_on_the_seed_s_table(database, make_app):
    seed_table(database, "INTEGER")
    watch = Watch()
    apps = [make_app(table=SEED), make_app(table=SEED)]
    apps[0].create_schema()
    for one in apps:
        one.add_handler(None, lambda msg: watch.saw(msg.object_id, msg.msg_id, breathe))
    ids = send(apps[0], *[i % 7 for i in range(140)])
    with launched(apps[0].worker(threads=3)), launched(apps[1].worker(threads=3)):
        table = Table(apps[0])
        until(lambda: set(table.statuses) == {2}, "all done")
    watch.assert_exclusive()
    watch.assert_in_order(ids)


def test_a_mixed_case_table(database, make_app):
    spec = MessageTable("TbCusMsg", **{k: v.title() for k, v in OTHER_NAMES.items()})
    app = created(make_app(table=spec))
    assert app.create_schema() == []
    app.add_handler("t", lambda msg: None)
    send(app, "a", "a", "b")
    assert app.drain(linger=0).done == 3
