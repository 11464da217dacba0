"""Tables that lack something, or hold it in another type."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
import sqlalchemy as sa
from tenacity.wait import wait_none

from msgworker import App, ConfigError, Context, Message, MessageTable, PayloadError, SchemaError
from msgworker.doctor import Severity
from msgworker.message import State
from msgworker.store import controls
from tests.support.apps import created
from tests.support.doctor import run
from tests.support.rows import Table, send
from tests.support.tables import SEED, foreign_table, insert


def test_tables_that_cannot_be(database, make_app, subtests):
    """A near name is told, and all missing columns at once."""
    foreign_table(database)
    run(
        database,
        "CREATE TABLE tb_bare (msgID INTEGER PRIMARY KEY, x INTEGER)",
        "CREATE VIEW seen AS SELECT * FROM tb_cus_msg",
    )
    for table, says in (
        (MessageTable("nowhere.tb_cus_msg"), "(?i)nowhere"),
        (SEED.replace(name="seen"), "seen"),
        (SEED.replace(name="tb_bare"), r"objectID.*status.*errorTryTimes"),
    ):
        app = make_app(table=table)
        for act in (lambda app=app: app.tables, app.create_schema):
            with subtests.test(table=table), pytest.raises(SchemaError, match=says):
                act()
    with pytest.raises(SchemaError, match=r"tb_cus_msg.*create_schema") as caught:
        _ = make_app(table=MessageTable("tb_cus_mgs")).tables
    assert caught.value.exit_code == 4
    with pytest.raises(SchemaError, match="body"):
        _ = make_app(table=SEED.replace(payload="body")).tables
    with database.engine().connect() as conn:
        conn.exec_driver_sql("CREATE TEMPORARY TABLE tmp_msg (msg_id INTEGER PRIMARY KEY)")
        with pytest.raises(SchemaError, match="does not exist"):
            _ = make_app(table=MessageTable("tmp_msg")).tables


PARTITIONS = [
    ("PRIMARY KEY", "HASH (msg_id)", "FOR VALUES WITH (MODULUS 1, REMAINDER 0)"),
    ("", "RANGE (created_at)", "FOR VALUES FROM (MINVALUE) TO ('2020-01-01')"),
    ("", "RANGE (created_at)", ""),
    ("", "LIST (status)", "FOR VALUES IN (2)"),
    ("", "RANGE (object_id)", "DEFAULT"),
    ("", "HASH (object_id, msg_id)", "FOR VALUES WITH (MODULUS 1, REMAINDER 0)"),
    ("", "HASH (lower(object_id))", "FOR VALUES WITH (MODULUS 1, REMAINDER 0)"),
]


def test_a_table_with_partitions_of_another_kind(postgresql, subtests):
    for number, (key, partitions, part) in enumerate(PARTITIONS):
        name = f"parts{number}"
        run(
            postgresql,
            f"CREATE TABLE {name} (msg_id bigint {key}, object_id text, status int DEFAULT 0, "
            f"error_try_times int DEFAULT 0, created_at timestamptz) PARTITION BY {partitions}",
            *([f"CREATE TABLE {name}a PARTITION OF {name} {part}"] if part else []),
        )
        app = App(postgresql.url, table=MessageTable(name))
        with subtests.test(partitions=partitions):
            with pytest.raises(
                SchemaError, match=r"has partitions.*`msgworker ddl pkg.module:app "
            ):
                app.create_schema()
            needs = [one for one in app.ops.doctor() if one.severity is Severity.NEEDED]
            assert any(f"{name} has partitions" in one.text for one in needs)
            # it cannot be mended
            assert not [sql for one in needs for sql in one.fix if name in sql]


def test_a_table_that_has_become_partitioned_is_refused_at_the_start(postgresql):
    created(App(postgresql.url))
    with postgresql.engine().begin() as conn:
        conn.exec_driver_sql(
            "ALTER TABLE msgworker_message RENAME TO was; "
            "CREATE TABLE msgworker_message (LIKE was) PARTITION BY RANGE (created_at); "
            "CREATE INDEX parts_guard ON msgworker_message (object_id) WHERE status = 1"
        )
    again = App(postgresql.url)
    with pytest.raises(SchemaError, match=r"has partitions.*`msgworker ddl pkg.module:app "):
        _ = again.tables


def test_a_table_in_an_attached_file_is_refused(sqlite, tmp_path):
    """SQLite commits several files one by one; and its indexes were looked for in the first."""
    engine = sqlite.engine()
    sa.event.listen(engine, "connect", lambda raw, _: raw.execute(f"ATTACH '{tmp_path}/b' AS b"))
    run(sqlite, "CREATE TABLE main.tb (x)")
    with engine.begin() as conn:
        conn.exec_driver_sql(
            "CREATE TABLE b.tb_cus_msg (msgID INTEGER PRIMARY KEY AUTOINCREMENT, objectID TEXT,"
            " status INTEGER DEFAULT 0, errorTryTimes INTEGER DEFAULT 0)"
        )
    app = App(engine, table=SEED.replace(name="b.tb_cus_msg"))
    for act in (app.create_schema, lambda: app.tables, app.ops.doctor):
        with pytest.raises(SchemaError, match="give the App that file"):
            act()
    App(engine, table=MessageTable("main.messages")).create_schema()


COLUMNS = "msg_id BIGINT, object_id TEXT, status SMALLINT DEFAULT 0, error_try_times SMALLINT"
NO_TABLES = {
    "postgresql: foreign": (
        "CREATE EXTENSION file_fdw",
        "CREATE SERVER other FOREIGN DATA WRAPPER file_fdw",
        f"CREATE FOREIGN TABLE theirs ({COLUMNS}) SERVER other OPTIONS (filename '/dev/null')",
    ),
    "postgresql: a view": (
        f"CREATE TABLE under ({COLUMNS})",
        "CREATE MATERIALIZED VIEW theirs AS SELECT * FROM under",
    ),
    "sqlite: virtual": (
        "CREATE VIRTUAL TABLE theirs USING fts5(msg_id, object_id, status, error_try_times)",
    ),
    "mariadb: has no column msg_id": ("CREATE SEQUENCE theirs",),
}


@pytest.mark.parametrize("case", NO_TABLES)
def test_what_takes_no_index_is_refused_and_left_as_it_is(request, case):
    """It was "not there", and `init-db` added columns to it."""
    on, _, says = case.partition(": ")
    server = request.getfixturevalue(on)
    run(server, *NO_TABLES[case])
    app = App(server.url, table=MessageTable("theirs"))
    before = [one["name"] for one in sa.inspect(server.engine()).get_columns("theirs")]
    acts: list[Any] = [app.create_schema, lambda: app.upgrade_schema(message_table=True)]
    for act in [*acts, lambda: app.tables]:
        with pytest.raises(SchemaError, match=says):
            act()
    found = app.ops.doctor()
    assert any(says in one.text for one in found if one.severity is Severity.NEEDED)
    assert [fix for one in found for fix in one.fix if "theirs" in fix] == []
    after = [one["name"] for one in sa.inspect(server.engine()).get_columns("theirs")]
    assert after == before


def test_tables_of_one_name_in_two_schemas_share_nothing(postgresql):
    """A schema for each tenant, and a search_path that finds the tables of another one."""
    columns = COLUMNS.replace("BIGINT", "BIGSERIAL PRIMARY KEY")
    run(postgresql, "CREATE SCHEMA own", f"CREATE TABLE own.tb ({columns})")
    shared = created(App(postgresql.url, table=MessageTable("tb")))
    url = sa.make_url(postgresql.url).update_query_dict({"options": "-csearch_path=own,public"})
    tenant = App(url, table=MessageTable("tb"))
    tenant.add_handler(None, lambda msg: None)
    for act in (tenant.create_schema, tenant.drain):
        with pytest.raises(SchemaError, match="of the same name in another schema"):
            act()
    assert any("Name its schema" in one.text for one in tenant.ops.doctor())
    named = created(App(url, table=MessageTable("own.tb")))
    shared.ops.pause("t")
    assert named.ops.pauses() == []
    run(postgresql, "DROP TABLE tb")
    other = url.update_query_dict({"options": "-csearch_path=third,public"})
    run(postgresql, "CREATE SCHEMA third", f"CREATE TABLE third.tb ({columns})")
    third = App(other, table=MessageTable("tb"))
    with pytest.raises(SchemaError, match="of the same name in another schema"):
        third.create_schema()
    alone = App(other, table=MessageTable("alone"))
    run(postgresql, f"CREATE TABLE third.alone ({columns})")
    alone.create_schema()
    run(postgresql, "CREATE TABLE own.alone AS TABLE third.alone")  # a copy, not in use
    assert App(other, table=MessageTable("alone")).create_schema() == []
    run(postgresql, "CREATE UNIQUE INDEX it ON own.alone (object_id) WHERE status = 1")
    assert App(other, table=MessageTable("alone")).create_schema() == []  # it was in use before
    (told,) = [one for one in alone.ops.doctor() if "then name its schema" in one.text]
    assert (told.severity, told.fix) == (Severity.ADVISED, ())
    for app in (shared, tenant, named, third, alone):
        app.engine.dispose()


def test_a_column_that_nobody_fills_stops_producers_only(database, make_app):
    foreign_table(database, tenant="INTEGER NOT NULL")
    app = created(make_app(table=SEED))
    app.add_handler(None, lambda msg: None)
    insert(database, "objectID, tenant", "'a', 1")
    assert app.drain(linger=0).done == 1
    with app.engine.begin() as conn:
        with pytest.raises(SchemaError, match="tenant"):
            app.send(conn, "t", object_id="a")
        with pytest.raises(SchemaError, match="tenant"):
            app.send_many(conn, "t", [(None, "a")])


def test_send_fills_what_has_no_default_and_refuses_what_has_no_column(database, make_app):
    """And an object may be longer than in our own table."""
    kinds = {"status": "INTEGER", "errorTryTimes": "INTEGER", "objectID": "VARCHAR(500)"}
    foreign_table(database, **kinds)
    app = created(make_app(table=SEED))
    app.add_handler(None, lambda msg: None)
    with app.engine.begin() as conn:
        with pytest.raises(ConfigError, match="available_at"):
            app.send(conn, "t", delay=5)
        with pytest.raises(ConfigError, match="payload"):
            app.send(conn, "t", {"a": 1})
    send(app, "a", "a")
    long = ("x" * 400, "x" * 400, "x" * 399 + "y")
    columns = "objectID, status, errorTryTimes"
    insert(database, columns, *(f"'{one}', 0, 0" for one in long))
    assert app.drain(linger=0).done == 5


def test_a_column_that_takes_no_null_stops_what_would_send_one(database, make_app):
    """Such a message was refused when it was too late: that of `on_dead` was lost, and a job did
    not end."""
    filled = {"objectID": "VARCHAR(50) NOT NULL", "body": "VARCHAR(999) NOT NULL"}
    foreign_table(database, topic="VARCHAR(50)", last_error="VARCHAR(99)", **filled)

    def made() -> App:
        app: App = make_app(table=SEED.replace(topic="topic", payload="body"))
        app.create_schema()
        app.add_handler("t", lambda msg: None, on_done="u")
        app.add_handler("u", lambda msg: None)
        return app

    app = made()
    with app.engine.begin() as conn:
        with pytest.raises(ConfigError, match="object_id: column objectID"):
            app.send(conn, "t", {})
        with pytest.raises(ConfigError, match="object_id: column objectID"):
            app.send_many(conn, "t", [({}, None)])
        with pytest.raises(PayloadError, match="payload: column body"):
            app.send(conn, "t", object_id="a")
        app.send(conn, "t", {}, object_id="a")
    assert app.drain(linger=0).done == 2
    app.every("1h", topic="u", object_id="a")
    with pytest.raises(PayloadError, match="schedule u: a message without payload"):
        app.drain()
    app = made()
    app.add_handler("v", lambda msg: None, on_dead="u")
    with pytest.raises(ConfigError, match="on_dead: a message without object_id"):
        app.drain()


def test_odd_statuses_are_never_claimed_and_tries_of_null_count_as_none(database, make_app):
    foreign_table(database)
    app = created(make_app(table=SEED))
    ids: list[int] = []

    @app.handler(None, wait=wait_none())
    def handle(msg: Message, ctx: Context) -> None:
        assert msg.error_try_times == ctx.attempt - 1
        ids.append(msg.msg_id)
        if msg.msg_id > 12:
            raise ValueError

    odd = ["NULL", "3", "99", "-2"]
    insert(database, "objectID, status", *(f"'o{i}', {s}" for i, s in enumerate(odd)))
    insert(database, "objectID, status", *(f"NULL, {s}" for s in odd))
    insert(database, "objectID", *(f"'o{i}'" for i in range(4)))
    insert(database, "objectID, errorTryTimes", "'a', NULL", "NULL, NULL")
    report = app.drain(linger=1)
    assert (report.done, report.failed, report.left) == (4, 2, 0)
    assert sorted(set(ids)) == [9, 10, 11, 12, 13, 14]
    assert Table(app).statuses[:8] == [None, 3, 99, -2] * 2
    assert Table(app).rows("status", "error_try_times")[12:] == [(-1, 3), (-1, 3)]
    assert sum(c.count for c in app.ops.counts() if c.status is State.UNKNOWN) == 8


WRONG_KINDS = {
    "text status": ({"status": "VARCHAR(5) DEFAULT '0'"}, "status"),
    "boolean status": ({"status": "BOOLEAN"}, "status"),
    "text tries": ({"errorTryTimes": "VARCHAR(5)"}, "errorTryTimes"),
    "text id": ({"msgID": "VARCHAR(36) PRIMARY KEY"}, "msgID"),
    "id not unique": ({"msgID": "INTEGER"}, "unique|primary key"),
}
OF_MARIADB = {
    # a number of one byte there, which takes -1 and 2
    "boolean status": ({"status": "TINYINT UNSIGNED DEFAULT 0"}, "-1"),
    "no transactions": ({"errorTryTimes": "INTEGER DEFAULT 0) ENGINE=MyISAM -- "}, "MyISAM"),
}


def test_columns_of_a_wrong_kind_are_named(database, make_app, subtests):
    cases = WRONG_KINDS | (OF_MARIADB if database.name == "mariadb" else {})
    if database.stand_in is not None:
        del cases["boolean status"]  # MariaDB makes a TINYINT of it
    for case, (columns, says) in cases.items():
        foreign_table(database, **columns)
        app = make_app(table=SEED)
        for act in (app.create_schema, lambda app=app: app.tables):
            with subtests.test(case), pytest.raises(SchemaError, match=f"(?i){says}"):
                act()
        run(database, "DROP TABLE tb_cus_msg")


@pytest.mark.parametrize("kind", ["SMALLINT", "INTEGER", "BIGINT", "NUMERIC(19)"])
def test_ids_of_any_sign_and_whole_type_work(database, make_app, kind):
    foreign_table(database, msgID=f"{kind} NOT NULL PRIMARY KEY")
    app = created(make_app(table=SEED))
    ids: list[int] = []
    app.add_handler(None, lambda msg: ids.append(int(msg.msg_id)))
    numbers = [-5, 0, 7, 8]
    if kind in ("BIGINT", "NUMERIC(19)"):
        numbers = [-(2**63), *numbers, 2**63 - 1]
    insert(database, "msgID, objectID", *(f"{n}, 'a'" for n in numbers))
    assert app.drain(linger=0, threads=1).done == len(numbers)
    assert ids == numbers


def test_two_tables_in_one_database_do_not_disturb_each_other(make_app):
    one = make_app()
    two = make_app(table=MessageTable(f"other_{uuid.uuid4().hex[:6]}"))
    for each in (one, two):
        each.create_schema()
        each.add_handler("t", lambda msg: None)
        send(each, "o", "o", "p")
    assert [each.drain(linger=0).done for each in (one, two)] == [3, 3]


@pytest.mark.parametrize("transactional", [False, True])
def test_a_message_that_gets_the_id_of_a_deleted_one_is_another_message(sqlite, transactional):
    """On SQLite without AUTOINCREMENT, also behind a running message of its object."""
    foreign_table(sqlite, msgID="INTEGER PRIMARY KEY", body="TEXT")
    app = created(App(sqlite.url, table=SEED.replace(payload="body")))
    ran: list[tuple[int, str]] = []

    @app.handler(None, transactional=transactional)
    def handle(msg: Message, ctx: Context) -> None:
        ran.append((msg.msg_id, msg.payload))
        if msg.msg_id == 1:
            again = (
                "DELETE FROM tb_cus_msg WHERE msgID = 3",
                "INSERT INTO tb_cus_msg (objectID, body) VALUES ('a', '\"new\"')",
            )
            for sql in again:
                if transactional:
                    ctx.connection.exec_driver_sql(sql)
                else:
                    run(sqlite, sql)

    insert(sqlite, "objectID, body", *["'a', '\"old\"'"] * 3)
    assert app.drain(linger=0, time_limit=60).done == 3
    assert ran == [(1, "old"), (2, "old"), (3, "new")]


def test_what_is_known_of_a_deleted_message_is_not_of_the_one_that_gets_its_id(sqlite):
    """Its items, its tries and a request to cancel it, on SQLite without AUTOINCREMENT."""
    foreign_table(sqlite, msgID="INTEGER PRIMARY KEY", claimed_by="TEXT", claimed_at="TEXT")
    app = created(App(sqlite.url, table=SEED.replace(max_tries=1)))
    ran: list[int] = []
    asked: list[State | None] = []

    def again() -> None:
        run(sqlite, "DELETE FROM tb_cus_msg WHERE msgID = 1")
        insert(sqlite, "objectID", "'b'")

    @app.handler(None)
    def handle(msg: Message, ctx: Context) -> None:
        ctx.fan_out(ran.append, range(2)).raise_for_failed()
        if len(ran) == 2:
            raise ValueError("once")
        if len(ran) == 4:
            app.ops.cancel([1], reason="r")
            again()
            with app.engine.connect() as conn:
                asked.extend(one.state for one in controls.requests(conn, app.tables))

    insert(sqlite, "objectID", "'a'")
    app.drain(linger=0, time_limit=60)
    again()
    assert app.drain(linger=0, time_limit=60).done == 1
    assert (ran, asked) == ([0, 1] * 3, [None])
    info = app.ops.show(1)
    assert info is not None
    assert (info.status, info.tries) == (State.DONE, ())
