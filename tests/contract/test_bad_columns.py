"""Columns that cannot hold what is written, and the statements that mend them."""

from __future__ import annotations

import re
from typing import Any

import pytest
import sqlalchemy as sa
from tenacity.wait import wait_none

from msgworker import App, Message, SchemaError
from msgworker.db.database import DATABASES
from msgworker.doctor import Severity
from tests.support.apps import created
from tests.support.doctor import needed, run
from tests.support.rows import Table
from tests.support.tables import SEED, TABLE, foreign_table, make_table


def make_again(database: Any, rest: str = "", **changed: str) -> None:
    """The table of another case of a test."""
    run(database, "DROP TABLE IF EXISTS tb")
    make_table(database, rest, **changed)


def put(database: Any, *object_ids: str, first: int = 1) -> None:
    """Insert as a foreign producer does."""
    for msg_id, object_id in enumerate(object_ids, start=first):
        text = f"INSERT INTO tb (msg_id, object_id) VALUES ({msg_id}, '{object_id}')"
        run(database, text)
    if database.name == "postgresql":  # which has given none of these ids
        last = "max(msg_id)::bigint) FROM tb"
        run(database, f"SELECT setval(pg_get_serial_sequence('tb', 'msg_id'), {last}")


def listen(app: App) -> list[int]:
    """Handle everything; message 2 fails once."""
    ran: list[int] = []

    @app.handler(None, wait=wait_none())
    def handle(msg: Message) -> None:
        ran.append(int(msg.msg_id))
        if msg.msg_id == 2 and msg.error_try_times == 0:
            raise ValueError("a long text " * 5)

    return ran


def refused_until_mended(make_app: Any, database: Any, *words: str) -> None:
    """What is asked of each case; the statements are those of the error and those of doctor."""
    app = make_app(table=TABLE)
    listen(app)
    with pytest.raises(SchemaError) as at_create:
        app.create_schema()
    put(database, "a", "a", "b")
    told = [one for one in needed(app) if one.text in str(at_create.value)]
    assert told, needed(app)
    for word in words:
        assert word in str(at_create.value), str(at_create.value)
        assert any(word in one.text for one in told)
    assert at_create.value.exit_code == 4
    mends = [statement for one in told for statement in one.fix]
    assert mends
    assert all(statement in str(at_create.value) for statement in mends)
    run(database, *mends)
    app = created(make_app(table=TABLE))
    assert needed(app) == []
    ran = listen(app)
    report = app.drain(linger=1, threads=2)
    assert (report.done, report.left) == (3, 0)
    assert [i for i in ran if i != 3] == [1, 2, 2]
    assert Table(app).statuses == [2, 2, 2]


EVERYWHERE = {
    "most": {
        "claimed_by": ("VARCHAR(40)", "claimed_by takes 40 characters"),
        "available_at": (
            "TIMESTAMP DEFAULT CURRENT_TIMESTAMP NOT NULL",
            "available_at must take NULL",
        ),
        "finished_at": (
            "TIMESTAMP DEFAULT CURRENT_TIMESTAMP NOT NULL",
            "finished_at must take NULL",
        ),
        "last_error": ("VARCHAR(100) DEFAULT '' NOT NULL", "last_error must take NULL"),
        "claimed_at": ("BIGINT", "claimed_at is BIGINT"),
        "status": ("VARCHAR(5) DEFAULT '0'", "status (status) is VARCHAR(5)"),
        "error_try_times": (
            "VARCHAR(5) DEFAULT '0'",
            "error_try_times (error_try_times) is VARCHAR(5)",
        ),
        "msg_id": ("NUMERIC(10, 2)", "an id with a fraction is never run"),
        "topic": ("INTEGER", "topic (topic) is INTEGER"),
    },
    "others": {
        "claimed_by": ("VARCHAR(64) DEFAULT '' NOT NULL", "claimed_by must take NULL"),
        "available_at": ("DATE", "available_at is DATE"),
        "status": ("CHAR(1) DEFAULT '0'", "status (status) is CHAR(1)"),
        "msg_id": ("DOUBLE PRECISION", "msg_id (msg_id) is DOUBLE"),
        "later_times": ("VARCHAR(10) DEFAULT '0'", "later_times (later_times) is VARCHAR(10)"),
    },
    "ids are texts": {"msg_id": ("VARCHAR(36)", "msg_id (msg_id) is VARCHAR(36)")},
}
"""Tables whose columns cannot hold what is written: the type of each, and what is said of it."""


@pytest.mark.quick("postgresql-(most|ids)|mariadb-others")
@pytest.mark.requires("column_types")
@pytest.mark.requires("types_as_named", of="most|others")
@pytest.mark.parametrize("case", EVERYWHERE)
def test_columns_that_cannot_hold_what_is_written_are_refused_with_their_mends(
    make_app, server, case
):
    make_table(server, **{role: kind for role, (kind, _) in EVERYWHERE[case].items()})
    refused_until_mended(make_app, server, *(words for _, words in EVERYWHERE[case].values()))


MENDED = {
    "created_at": "MONEY",
    "later_times": "TEXT[]",
    "claimed_by": "TEXT GENERATED ALWAYS AS (NULL) STORED",
    "claimed_at": "BYTEA CHECK (length(claimed_at) > 1)",
    "crash_times": "INTEGER GENERATED ALWAYS AS IDENTITY",
}


@pytest.mark.long
def test_a_column_of_any_type_has_a_mend_that_runs(postgresql):
    make_table(postgresql, **MENDED)
    refused_until_mended(lambda **given: App(postgresql.url, **given), postgresql, *MENDED)


def test_one_refusal_names_the_mend_of_every_column(postgresql):
    words = {
        "created_at": ("BIGINT GENERATED ALWAYS AS (NULL) STORED", "created_at is BIGINT"),
        "payload": ("MONEY", "payload (payload) is MONEY, but must hold JSON"),
        "topic": ("NAME", "topic (topic) cuts long texts"),
        "claimed_by": ('"char"', "claimed_by takes 1 characters"),
        "object_id": ("TEXT[]", "object_id (object_id) is ARRAY"),
    }
    make_table(postgresql, **{role: kind for role, (kind, _) in words.items()})
    app = App(postgresql.url, table=TABLE)
    with pytest.raises(SchemaError) as refused:
        app.create_schema()
    assert [told for _, told in words.values() if told not in str(refused.value)] == []
    _, _, mends = str(refused.value).partition(". To fix it: ")
    run(postgresql, *mends.split("; "))
    app.create_schema()
    assert needed(app) == []


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:Did not recognize type")
def test_an_empty_table_of_odd_types_is_refused_until_it_is_mended(postgresql):
    for odd in (
        {"object_id": "JSON", "msg_id": "TIMESTAMP WITH TIME ZONE"},
        {"object_id": "POINT"},
    ):
        make_again(postgresql, **odd)
        app = App(postgresql.url, table=TABLE)
        with pytest.raises(SchemaError) as refused:
            app.create_schema()
        assert [role for role in odd if f"column {role}" not in str(refused.value)] == []
        with app.engine.begin() as conn:
            for fault in needed(app):
                for statement in fault.fix:
                    conn.exec_driver_sql(statement)
        app.create_schema()


@pytest.mark.long
def test_a_list_of_words_and_an_id_longer_than_an_index_holds_are_refused(mariadb):
    long = "VARCHAR(767) CHARACTER SET utf8mb4"
    make_table(mariadb, last_error="SET('a', 'b')", object_id=long)
    words = ("last_error is SET", "object_id (object_id) takes 767 characters, an index 766")
    refused_until_mended(lambda **given: App(mariadb.url, **given), mariadb, *words)


MENDED_THERE = {
    "a payload with zeros before it": (
        {
            "payload": "INT ZEROFILL",
            "available_at": "TEXT",  # which no index takes
            "object_id": "TIMESTAMP NULL DEFAULT NULL ON UPDATE CURRENT_TIMESTAMP",
        },
        (
            "is INTEGER ZEROFILL, but",
            "available_at is TEXT, but",
            "object_id (object_id) changes whenever its row is updated",
        ),
    ),
    "no transactions": ({"whole": "ENGINE=MyISAM"}, ("its storage engine MyISAM",)),
    "a payload that is filled up": (
        {"payload": "BINARY(16)", "whole": "PARTITION BY KEY(msg_id) PARTITIONS 2"},
        ("(payload) is BINARY(16), but", "has partitions"),
    ),
    "a payload from a list": (
        {"payload": "ENUM('1', 'b')", "last_error": "ENUM('a', 'b')"},
        ("(payload) is ENUM, but", "last_error is"),
    ),
}


@pytest.mark.long
def test_what_only_one_database_has_is_refused_until_it_is_mended(mariadb, subtests):
    for case, (odd, words) in MENDED_THERE.items():
        run(mariadb, "DROP TABLE IF EXISTS tb")
        make_table(mariadb, **odd)
        app = App(mariadb.url, table=TABLE)
        with subtests.test(case):
            with pytest.raises(SchemaError) as refused:
                app.create_schema()
            assert [one for one in words if one not in str(refused.value)] == []
            _, _, mends = str(refused.value).partition(". To fix it: ")
            run(mariadb, *mends.split("; "))
            app.create_schema()
            assert needed(app) == []


HOLDERS = {
    "postgresql": ("seen", "CREATE VIEW seen AS SELECT topic FROM tb", "DROP VIEW seen"),
    "mariadb": (
        "of_topic",
        "ALTER TABLE tb ADD CONSTRAINT of_topic FOREIGN KEY (topic) REFERENCES topics (id)",
        "ALTER TABLE tb DROP FOREIGN KEY of_topic",
    ),
}


@pytest.mark.quick("postgresql")
@pytest.mark.parametrize("on", HOLDERS)
def test_no_statement_is_printed_that_what_uses_a_column_keeps_from_running(request, on):
    server = request.getfixturevalue(on)
    name, hold, drop = HOLDERS[on]
    make_table(server, topic="INTEGER")
    run(server, "CREATE TABLE topics (id INTEGER PRIMARY KEY)", hold)
    with pytest.raises(
        SchemaError, match=rf"used by [\w ]*\b{name}\b.*: drop that first"
    ) as refused:
        App(server.url, table=TABLE).create_schema()
    assert ". To fix it: " not in str(refused.value)
    run(server, drop)
    refused_until_mended(
        lambda **given: App(server.url, **given), server, "topic (topic) is INTEGER"
    )


@pytest.mark.requires("table_history")
def test_no_statement_is_printed_that_deletes_what_a_table_keeps(mariadb):
    make_table(mariadb, topic="INTEGER", whole="WITH SYSTEM VERSIONING")
    app = App(mariadb.url, table=TABLE)
    with pytest.raises(SchemaError, match="deletes all of them, for good") as refused:
        app.create_schema()
    assert ". To fix it: " not in str(refused.value)
    mends = [statement for one in app.ops.doctor() for statement in one.fix]
    assert not [one for one in mends if "VERSIONING" in one or "MODIFY" in one]


@pytest.mark.requires("keys_of_odd_types", of="msg_id")
@pytest.mark.filterwarnings("ignore:Did not recognize type")
@pytest.mark.parametrize("role", ["msg_id", "error_try_times"])
def test_what_doctor_prints_runs_also_where_a_type_has_no_mend(mariadb, role):
    make_table(mariadb, **{role: "INET6"})
    app = App(mariadb.url, table=TABLE)
    told = needed(app)
    assert any(f"{role} ({role}) is of another type" in one.text for one in told)
    run(mariadb, *(statement for one in told for statement in one.fix))


@pytest.mark.filterwarnings("error")  # SQLAlchemy does not know it either, and would say so
def test_a_column_of_a_type_that_nobody_knows_is_refused(mariadb):
    make_table(mariadb, error_try_times="INET6", claimed_by="INET6")
    app = App(mariadb.url, table=TABLE)
    with pytest.raises(SchemaError) as refused:
        app.create_schema()
    for words in ("error_try_times (error_try_times) is of another type", "claimed_by is of"):
        assert words in str(refused.value)


@pytest.mark.filterwarnings("ignore:Did not recognize type")
def test_a_column_that_nothing_converts_is_refused_with_a_way_out(mariadb):
    odd = {
        "status": "INET6",
        "object_id": "VARCHAR(2000) AS ('a') VIRTUAL",
        "claimed_by": "INET6",
        "finished_at": "UUID",
        "last_error": "INET6 CHECK (last_error IS NOT NULL)",
    }
    make_table(mariadb, **odd)
    app = App(mariadb.url, table=TABLE)
    with pytest.raises(SchemaError) as refused:
        app.create_schema()
    assert [role for role in odd if f"column {role}" not in str(refused.value)] == []
    assert "create the table again" in str(refused.value)
    assert "MODIFY" not in str(refused.value)


def test_where_nothing_makes_a_generated_column_plain_another_one_can_be_named(mariadb):
    odd = {"claimed_by": "INT AS (NULL) VIRTUAL", "status": "SMALLINT AS (0) STORED"}
    make_table(mariadb, **odd)
    app = App(mariadb.url, table=TABLE)
    with pytest.raises(SchemaError) as refused:
        app.create_schema()
    assert "ADD COLUMN claimed_by_2 VARCHAR(64)" in str(refused.value)
    assert "MODIFY" not in str(refused.value)
    assert "status (status) is generated: it cannot be written. a column" in str(refused.value)


@pytest.mark.requires("column_types")
def test_a_payload_that_is_a_number_is_read(make_app, server):
    make_table(server, payload="SMALLINT DEFAULT 7")
    app = created(make_app(table=TABLE))
    put(server, "a")
    found: list[Any] = []
    app.add_handler(None, lambda msg: found.append(msg.payload))
    assert app.drain(linger=0).done == 1
    assert found == [7]


@pytest.mark.requires("column_types")
def test_objects_may_be_floats_whether_or_not_a_float_is_numeric_to_sqlalchemy(make_app, server):
    make_table(server, object_id="DOUBLE PRECISION", payload="DOUBLE PRECISION")
    app = created(make_app(table=TABLE))
    with app.engine.begin() as conn:
        app.send_many(conn, "t", [(1.5, 3), (2.5, 4), (3.5, 3)])
    found: list[Any] = []
    app.add_handler(None, lambda msg: found.append((msg.object_id, msg.payload)))
    assert app.drain(linger=0).done == 3
    assert sorted((float(name), payload) for name, payload in found) == [
        (3, 1.5),
        (3, 3.5),
        (4, 2.5),
    ]


def test_a_boolean_status_and_an_id_that_is_padded_are_refused(postgresql):
    make_table(postgresql, status="BOOLEAN", claimed_by="CHAR(80)", topic="CHAR(20)")
    app = App(postgresql.url, table=TABLE)
    with pytest.raises(SchemaError) as refused:
        app.create_schema()
    for said in (str(refused.value), " ".join(one.text for one in needed(app))):
        assert "status (status) is BOOLEAN" in said
        assert re.search(r"claimed_by is CHAR.*what is read is not what was", said)
        assert "(topic) is CHAR(20): what is read is not what was written" in said


CHECKS = [
    "status IN (0, 1, 2)",
    "status >= 0",
    "status BETWEEN 0 AND 2",
    "NOT (status < 0)",
    "status IN (-1, 0, 2)",
    "status = 0 OR status = 2",
    "error_try_times < 3",
    "status <> 1 OR claimed_by IS NULL",
    "length(claimed_by) <= 54",
    "length(last_error) < 20",
    "finished_at IS NULL OR status <> -1",
]
PLAIN_INSTANTS = "length(finished_at) < 20"  # without the fractions of a second that we write


@pytest.mark.requires("column_types")
def test_checks_that_refuse_what_is_written_are_found(make_app, server):
    rules = {f"tb_rule{number}": check for number, check in enumerate(CHECKS)}
    rest = "".join(f", CONSTRAINT {name} CHECK ({check})" for name, check in rules.items())
    make_table(server, rest)
    told = [name.upper() if server.name == "oracle" else name for name in rules]
    refused_until_mended(make_app, server, *(f"CHECK {name}" for name in told), "does not take")


@pytest.mark.requires("loose_checks")
def test_a_check_that_an_update_fails_for_and_a_query_warns_of_is_found(mariadb, subtests):
    for check in ("available_at <> ''", "last_error = 0 OR status = 0"):
        make_again(mariadb, f", CONSTRAINT tb_rule CHECK ({check})")
        app = App(mariadb.url, table=TABLE)
        says = r"CHECK tb_rule.*does not take"
        with subtests.test(check=check), pytest.raises(SchemaError, match=says):
            app.create_schema()


@pytest.mark.requires("column_types")
@pytest.mark.requires("named_checks")
def test_a_check_of_the_column_itself_is_found(make_app, server):
    make_table(server, status="SMALLINT DEFAULT 0 NOT NULL CHECK (status IN (0, 1, 2))")
    refused_until_mended(make_app, server, "does not take one that has failed (-1)")
    put(server, "c", first=4)  # its default is still there
    with server.engine().connect() as conn:
        assert conn.scalar(sa.text("SELECT status FROM tb WHERE msg_id = 4")) == 0


@pytest.mark.requires("column_types")
def test_an_older_server_is_asked_for_what_it_has(make_app, server, monkeypatch):
    """One that knows no CHECKs is still asked how ids compare."""
    parts = DATABASES[server.name].rule_queries
    broken = (parts[0].replace("SELECT 'check'", "SELECT no_such_column"), *parts[1:])
    monkeypatch.setattr(type(DATABASES[server.name]), "rule_queries", broken)
    kind = "VARCHAR(40)"
    if server.name == "mariadb":
        kind += " CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci"
    make_table(server, object_id=kind)
    app = created(make_app(table=TABLE))
    assert app.tables.fold == ("padded weight" if server.name == "mariadb" else None)


REPLACING = [
    ("claimed_by TEXT UNIQUE ON CONFLICT REPLACE", "claimed_by"),
    ("finished_at TEXT DEFAULT (time('now', '1 hour')) UNIQUE\non conflict replace", "finish"),
    ('claimed_by TEXT, UNIQUE ("objectID", status) ON CONFLICT REPLACE', "status"),
]


@pytest.mark.parametrize(("more", "says"), REPLACING)
def test_a_unique_column_that_deletes_other_messages_is_refused(sqlite, more, says):
    """A claim, or an outcome, would replace the message that has the same value."""
    foreign_table(sqlite, errorTryTimes=f"INTEGER DEFAULT 0, {more}")
    with pytest.raises(SchemaError, match=rf"UNIQUE \(.*{says}.*\) ON CONFLICT REPLACE"):
        App(sqlite.url, table=SEED).create_schema()


def test_a_unique_column_that_only_producers_fill_may_replace(sqlite):
    kinds = "TEXT UNIQUE ON CONFLICT REPLACE, claimed_by TEXT UNIQUE ON CONFLICT IGNORE"
    foreign_table(sqlite, note=kinds)
    App(sqlite.url, table=SEED).create_schema()


def test_a_check_is_found_where_no_statement_drops_it(sqlite, subtests):
    for check in (*CHECKS, PLAIN_INSTANTS):
        make_again(sqlite, f", CHECK (object_id <> ')'), CHECK ({check}) -- CHECK (x\n")
        app = App(sqlite.url, table=TABLE)
        says = r"does not take .*create the table again"
        with subtests.test(check=check), pytest.raises(SchemaError, match=says):
            app.create_schema()


TAKES = [
    "status IN (-1, 0, 1, 2)",
    "status > -2",
    "length(last_error) <= 40",
    "claimed_by LIKE '%-%-%' AND length(claimed_by) <= 60",
    "object_id <> 'x' OR status = 0",
    "object_id IS NOT NULL",
    "length(object_id) < 30 OR status IS NULL",
    "status <> 2 OR finished_at IS NOT NULL",
]


def test_checks_that_take_what_is_written_are_left_alone(make_app, database):
    make_table(database, "".join(f", CHECK ({check})" for check in TAKES))
    app = created(make_app(table=TABLE))
    assert needed(app) == []
    put(database, "a", "a", "b")
    listen(app)
    assert app.drain(linger=1).done == 3


def test_where_no_column_can_be_changed_another_one_can_be_named(sqlite):
    odd = dict.fromkeys(("available_at", "finished_at", "last_error"), "TEXT NOT NULL DEFAULT ''")
    odd["claimed_by"] = "VARCHAR(64) NOT NULL DEFAULT ''"
    make_table(sqlite, **odd)
    with pytest.raises(SchemaError, match="must take NULL") as refused:
        App(sqlite.url, table=TABLE).create_schema()
    for role in odd:
        assert f"{role} must take NULL" in str(refused.value)
        statement = f"ALTER TABLE tb ADD COLUMN {role}_2 TEXT"
        assert statement in str(refused.value)
        run(sqlite, statement)
    app = created(App(sqlite.url, table=TABLE.replace(**{role: f"{role}_2" for role in odd})))
    put(sqlite, "a", "a", "b")
    listen(app)
    assert app.drain(linger=1).done == 3


STRICT = {
    "msg_id": "INTEGER PRIMARY KEY",
    "object_id": "TEXT",
    "status": "INTEGER DEFAULT 0",
    "error_try_times": "INTEGER DEFAULT 0",
    "claimed_by": "ANY",
    "finished_at": "TEXT",
    "last_error": "TEXT",
}


def test_a_strict_table_must_take_our_texts(sqlite, subtests):
    for odd in ({"claimed_by": "INTEGER"}, {"finished_at": "REAL"}, {"last_error": "BLOB"}, {}):
        run(sqlite, "DROP TABLE IF EXISTS tb")
        columns = ", ".join(f"{role} {kind}" for role, kind in (STRICT | odd).items())
        run(sqlite, f"CREATE TABLE tb ({columns}) STRICT")
        app = App(sqlite.url, table=TABLE)
        for role in odd:
            says = f"column {role} is .*ADD COLUMN {role}_2 TEXT"
            with subtests.test(odd=odd), pytest.raises(SchemaError, match=says):
                app.create_schema()
    app.create_schema()


def test_a_payload_is_read_as_it_stands_there_whatever_its_type_says(sqlite, subtests):
    found: list[Any] = []
    for kind in ("DATE", "DATETIME", "BOOLEAN", "DECIMAL(10, 2)"):
        make_again(sqlite, payload=kind)
        app = created(App(sqlite.url, table=TABLE))
        for msg_id, payload in enumerate(["1", """'{"n": 2}'""", "x'5b335d'"], start=1):
            values = f"VALUES ({msg_id}, 'a', {payload})"
            run(sqlite, f"INSERT INTO tb (msg_id, object_id, payload) {values}")
        found.clear()
        app.add_handler(None, lambda msg: found.append(msg.payload))
        with subtests.test(kind=kind):
            assert app.drain(linger=0).done == 3
            assert found == [1, {"n": 2}, [3]]
            assert app.ops.show(2).payload == '{"n": 2}'


@pytest.mark.requires("column_types")
@pytest.mark.requires("common_sql")
def test_an_instance_does_not_start_on_a_table_that_was_changed(make_app, server):
    """Looks and sends go on; what strands is what instances do."""
    make_table(server)
    make_app(table=TABLE).create_schema()
    statement = "ALTER TABLE tb ALTER COLUMN claimed_by TYPE VARCHAR(20)"
    if server.name == "mariadb":
        statement = "ALTER TABLE tb MODIFY claimed_by VARCHAR(20)"
    run(server, statement)
    put(server, "a", "a", "b")
    app = make_app(table=TABLE)
    ran = listen(app)
    for act in (app.drain, lambda: app.worker().run(time_limit=1)):
        with pytest.raises(SchemaError, match=r"claimed_by takes 20 characters.*ALTER TABLE") as no:
            act()
        assert no.value.exit_code == 4
    assert (ran, Table(app).statuses) == ([], [0, 0, 0])
    assert len(app.ops.find()) == 3
    run(server, *(statement for one in needed(app) for statement in one.fix))
    assert app.drain(linger=1).done == 3  # the same App: what was refused is read again


@pytest.mark.requires("column_types")
def test_errors_are_cut_to_their_column(make_app, server, subtests):
    for length in (1, 63):
        make_again(server, last_error=f"VARCHAR({length})")
        app = created(make_app(table=TABLE))
        put(server, "a", "a", "b")
        app.add_handler(None, lambda msg: 1 / 0, wait=wait_none())
        with subtests.test(length=length):
            assert needed(app) == []
            assert app.drain(linger=1).failed == 3
            whole = app.ops.show(1).tries[-1].error
            assert whole.startswith("ZeroDivisionError: division by zero [test_bad_columns.py")
            assert Table(app).column("last_error") == [whole[:length]] * 3


@pytest.mark.requires("column_types")
@pytest.mark.requires("common_sql")
def test_the_id_of_an_instance_is_read_back(app_with, server):
    """A lease table that was changed by hand, on a server that cuts what does not fit."""
    app = app_with()
    cut = "ALTER TABLE msgworker_lease ALTER COLUMN name TYPE char(80)"
    if server.name == "mariadb":
        cut = (
            "CREATE TRIGGER cut BEFORE INSERT ON msgworker_lease FOR EACH ROW "
            "SET NEW.name = left(NEW.name, 20)"
        )
    run(server, cut)
    app.add_handler("t", lambda msg: None)
    with pytest.raises(SchemaError, match="does not keep the id of an instance"):
        app.drain(linger=0)


@pytest.mark.requires("common_sql")
def test_a_trigger_on_updates_is_shown(make_app, database):
    make_table(database)
    text = {
        "sqlite": "CREATE TRIGGER no_two BEFORE UPDATE ON tb WHEN NEW.msg_id = 9 "
        "BEGIN SELECT RAISE(ABORT, 'no'); END",
        "mariadb": "CREATE TRIGGER no_two BEFORE UPDATE ON tb FOR EACH ROW SET @x = 1",
        "postgresql": "CREATE TRIGGER no_two BEFORE UPDATE ON tb FOR EACH ROW "
        "EXECUTE FUNCTION suppress_redundant_updates_trigger()",
    }
    run(database, text[database.name])
    app = created(make_app(table=TABLE))
    assert needed(app) == []
    (told,) = [one for one in app.ops.doctor() if one.check == "triggers"]
    assert (told.severity, "trigger no_two" in told.text) == (Severity.ADVISED, True)


@pytest.mark.requires("column_types")
def test_a_status_without_a_default_is_advised(make_app, server):
    make_table(server, status="SMALLINT")
    app = created(make_app(table=TABLE))
    (told,) = [one for one in app.ops.doctor() if "has no default" in one.text]
    assert told.severity is Severity.ADVISED
    run(server, *told.fix)
    put(server, "a", "a", "b")
    listen(app)
    assert app.drain(linger=1).done == 3
