"""Tables that lack something, or hold it in another type."""

from __future__ import annotations

import uuid

import pytest
from tenacity.wait import wait_none

from msgworker import App, ConfigError, Context, Message, MessageTable, SchemaError
from msgworker.doctor import Severity
from msgworker.message import State
from tests.support.rows import Table, send
from tests.support.tables import SEED, foreign_table, insert


def test_a_table_that_does_not_exist_and_its_near_names(database, make_app):
    app = make_app(table=MessageTable("tb_cus_mgs"))
    with database.engine().begin() as conn:
        conn.exec_driver_sql("CREATE TABLE tb_cus_msg (a INTEGER)")
    with pytest.raises(SchemaError, match="tb_cus_msg") as caught:
        _ = app.tables
    assert "create_schema" in str(caught.value)
    assert caught.value.exit_code == 4


def test_a_schema_that_does_not_exist(make_app):
    app = make_app(table=MessageTable("nowhere.tb_cus_msg"))
    for act in (lambda: app.tables, app.create_schema):
        with pytest.raises(SchemaError, match=r"(?i)nowhere"):
            act()


def test_a_view(database, make_app, app):
    with database.engine().begin() as conn:
        conn.exec_driver_sql("CREATE VIEW v AS SELECT * FROM msgworker_message")
    view = make_app(table=MessageTable("v"))
    for act in (lambda: view.tables, view.create_schema):
        with pytest.raises(SchemaError, match="v"):
            act()


def test_a_temporary_table(database, make_app):
    engine = database.engine()
    with engine.connect() as conn:
        conn.exec_driver_sql("CREATE TEMPORARY TABLE tmp_msg (msg_id INTEGER PRIMARY KEY)")
        with pytest.raises(SchemaError, match="does not exist"):
            _ = make_app(table=MessageTable("tmp_msg")).tables


@pytest.mark.parametrize(
    ("key", "partitions"),
    [
        ("PRIMARY KEY", "HASH (msg_id)"),
        ("", "RANGE (created_at)"),
        ("", "LIST (status)"),
        ("", "RANGE (object_id)"),
        ("", "HASH (object_id, msg_id)"),
        ("", "HASH (lower(object_id))"),
    ],
)
def test_a_table_with_partitions_of_another_kind(postgresql, key, partitions):
    with postgresql.engine().begin() as conn:
        conn.exec_driver_sql(
            f"CREATE TABLE parts (msg_id bigint {key}, object_id text, status int DEFAULT 0, "
            f"error_try_times int DEFAULT 0, created_at timestamptz) PARTITION BY {partitions}"
        )
    app = App(postgresql.url, table=MessageTable("parts"))
    with pytest.raises(SchemaError, match=r"has partitions.*`msgworker ddl`"):
        app.create_schema()
    (told,) = [one for one in app.ops.doctor() if "parts has partitions" in one.text]
    assert told.severity is Severity.NEEDED
    needs = [one for one in app.ops.doctor() if one.severity is Severity.NEEDED]
    assert not [sql for one in needs for sql in one.fix if "parts" in sql]  # it cannot be mended


def test_a_table_that_has_become_partitioned_is_refused_at_the_start(postgresql):
    app = App(postgresql.url)
    app.create_schema()
    with postgresql.engine().begin() as conn:
        conn.exec_driver_sql(
            "ALTER TABLE msgworker_message RENAME TO was; "
            "CREATE TABLE msgworker_message (LIKE was) PARTITION BY RANGE (created_at); "
            "CREATE INDEX parts_guard ON msgworker_message (object_id) WHERE status = 1"
        )
    again = App(postgresql.url)
    with pytest.raises(SchemaError, match=r"has partitions.*`msgworker ddl`"):
        _ = again.tables


def test_all_missing_columns_are_named_at_once(database, make_app):
    with database.engine().begin() as conn:
        conn.exec_driver_sql("CREATE TABLE tb_cus_msg (msgID INTEGER PRIMARY KEY, x INTEGER)")
    app = make_app(table=SEED)
    for act in (lambda: app.tables, app.create_schema):
        with pytest.raises(SchemaError, match=r"objectID.*status.*errorTryTimes"):
            act()


def test_an_optional_column_that_was_asked_for_by_name_must_be_there(database, make_app):
    foreign_table(database)
    app = make_app(table=SEED.replace(payload="body"))
    with pytest.raises(SchemaError, match="body"):
        _ = app.tables


def test_a_column_that_nobody_fills_stops_producers_only(database, make_app):
    foreign_table(database, tenant="INTEGER NOT NULL")
    app = make_app(table=SEED)
    app.create_schema()
    app.add_handler(None, lambda msg: None)
    insert(database, "objectID, tenant", "'a', 1")
    assert app.drain(linger=0).done == 1
    with app.engine.begin() as conn:
        with pytest.raises(SchemaError, match="tenant"):
            app.send(conn, "t", object_id="a")
        with pytest.raises(SchemaError, match="tenant"):
            app.send_many(conn, "t", [(None, "a")])


def test_send_fills_status_and_tries_where_the_table_has_no_defaults(database, make_app):
    foreign_table(database, status="INTEGER", errorTryTimes="INTEGER")
    app = make_app(table=SEED)
    app.create_schema()
    app.add_handler(None, lambda msg: None)
    send(app, "a", "a")
    assert app.drain(linger=0).done == 2


BAD_TYPES = {
    "text status": ("status", "VARCHAR(5) DEFAULT '0'", "status"),
    "boolean status": ("status", "BOOLEAN", "status"),
    "text tries": ("errorTryTimes", "VARCHAR(5)", "errorTryTimes"),
    "text id": ("msgID", "VARCHAR(36) PRIMARY KEY", "msgID"),
    "id not unique": ("msgID", "INTEGER", "unique|primary key"),
}


@pytest.mark.requires("booleans", of="boolean")
@pytest.mark.parametrize("case", BAD_TYPES)
def test_columns_of_a_wrong_kind_are_named(database, make_app, case):
    if case == "boolean status" and database.name == "mariadb":
        pytest.skip("a number of one byte there, which takes -1 and 2")
    column, kind, text = BAD_TYPES[case]
    foreign_table(database, **{column: kind})
    app = make_app(table=SEED)
    with pytest.raises(SchemaError, match=f"(?i){text}"):
        _ = app.tables


def test_an_unsigned_status_is_refused(mariadb):
    foreign_table(mariadb, status="TINYINT UNSIGNED DEFAULT 0")
    app = App(mariadb.url, table=SEED)
    with pytest.raises(SchemaError, match="-1"):
        _ = app.tables


def test_a_table_without_transactions_is_refused(mariadb):
    with mariadb.engine().begin() as conn:
        conn.exec_driver_sql(
            "CREATE TABLE tb_cus_msg (msgID BIGINT PRIMARY KEY, objectID VARCHAR(50), "
            "status INT DEFAULT 0, errorTryTimes INT DEFAULT 0) ENGINE=MyISAM"
        )
    app = App(mariadb.url, table=SEED)
    for act in (app.create_schema, lambda: app.tables):
        with pytest.raises(SchemaError, match="MyISAM"):
            act()


@pytest.mark.parametrize("kind", ["SMALLINT", "INTEGER", "BIGINT", "NUMERIC(19)"])
def test_ids_of_any_sign_and_whole_type_work(database, make_app, kind):
    foreign_table(database, msgID=f"{kind} NOT NULL PRIMARY KEY")
    app = make_app(table=SEED)
    app.create_schema()
    ids: list[int] = []
    app.add_handler(None, lambda msg: ids.append(int(msg.msg_id)))
    numbers = [-5, 0, 7, 8]
    if kind in ("BIGINT", "NUMERIC(19)"):
        numbers = [-(2**63), *numbers, 2**63 - 1]
    insert(database, "msgID, objectID", *(f"{n}, 'a'" for n in numbers))
    assert app.drain(linger=0, threads=1).done == len(numbers)
    assert ids == numbers


def test_tries_that_are_null_count_as_none(database, make_app):
    foreign_table(database)
    app = make_app(table=SEED)
    app.create_schema()

    @app.handler(None, wait=wait_none())
    def handle(msg: Message, ctx: Context) -> None:
        assert msg.error_try_times == ctx.attempt - 1
        raise ValueError

    insert(database, "objectID, errorTryTimes", "'a', NULL", "NULL, NULL")
    assert app.drain(linger=1).failed == 2
    assert Table(app).rows("status", "error_try_times") == [(-1, 3), (-1, 3)]


def test_unknown_statuses_are_never_claimed_and_are_counted(database, make_app):
    foreign_table(database)
    app = make_app(table=SEED)
    app.create_schema()
    ids: list[int] = []
    app.add_handler(None, lambda msg: ids.append(msg.msg_id))
    odd = ["NULL", "3", "99", "-2"]
    insert(database, "objectID, status", *(f"'o{i}', {s}" for i, s in enumerate(odd)))
    insert(database, "objectID, status", *(f"NULL, {s}" for s in odd))
    insert(database, "objectID", *(f"'o{i}'" for i in range(4)))
    report = app.drain(linger=0)
    assert (report.done, report.left) == (4, 0)
    assert sorted(ids) == [9, 10, 11, 12]
    assert Table(app).statuses[:8] == [None, 3, 99, -2] * 2
    assert sum(c.count for c in app.ops.counts() if c.status is State.UNKNOWN) == 8


def test_a_foreign_object_column_that_is_longer_than_ours(database, make_app):
    foreign_table(database, objectID="VARCHAR(500)")
    app = make_app(table=SEED)
    app.create_schema()
    app.add_handler(None, lambda msg: None)
    insert(database, "objectID", f"'{'x' * 400}'", f"'{'x' * 400}'", f"'{'x' * 399}y'")
    assert app.drain(linger=0).done == 3


def test_a_delay_on_a_table_where_nothing_can_wait(database, make_app):
    foreign_table(database)
    app = make_app(table=SEED)
    app.create_schema()
    with app.engine.begin() as conn:
        with pytest.raises(ConfigError, match="available_at"):
            app.send(conn, "t", delay=5)
        with pytest.raises(ConfigError, match="payload"):
            app.send(conn, "t", {"a": 1})


def test_two_tables_in_one_database_do_not_disturb_each_other(make_app):
    one = make_app()
    two = make_app(table=MessageTable(f"other_{uuid.uuid4().hex[:6]}"))
    for each in (one, two):
        each.create_schema()
        each.add_handler("t", lambda msg: None)
        send(each, "o", "o", "p")
    assert [each.drain(linger=0).done for each in (one, two)] == [3, 3]
