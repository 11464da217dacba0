"""A statement that is printed as a repair names its schema, asks for what was seen, and changes no
value that a dry run of it on the rows would not keep."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from msgworker import App, MessageTable, SchemaError
from msgworker.doctor import Severity
from tests import variants
from tests.support.apps import created
from tests.support.doctor import needed, run
from tests.support.rows import send
from tests.support.tables import IDENTITY, TABLE, make_table

OTHER = f"mw_crm_{os.getpid()}"
ORDERS = MessageTable(f"{OTHER}.orders")
MADE = {
    "postgresql": "msg_id BIGSERIAL PRIMARY KEY, object_id VARCHAR(40)",
    "mariadb": "msg_id BIGINT AUTO_INCREMENT PRIMARY KEY, object_id VARCHAR(40)",
}
ZOO = {
    "two running rows": ("INSERT INTO {t} (object_id, status) VALUES ('a', 1), ('a', 1)",),
    "odd statuses": ("INSERT INTO {t} (object_id, status) VALUES ('a', 7), ('b', -5), ('c', 0)",),
    "texts": (
        "ALTER TABLE {t} ADD COLUMN claimed_by VARCHAR(10)",
        "INSERT INTO {t} (object_id, status) VALUES ('a', 0)",
    ),
    "no default": ("ALTER TABLE {t} ALTER COLUMN status DROP DEFAULT",),
    "no tables": (),
}


@pytest.fixture
def other_schema(database: Any) -> Iterator[str]:
    if database.name not in MADE:
        pytest.skip("no schemas there, or none to make in a test")
    cascade = " CASCADE" if database.name == "postgresql" else ""
    run(database, f"DROP SCHEMA IF EXISTS {OTHER}{cascade}", f"CREATE SCHEMA {OTHER}")
    run(
        database,
        *(
            f"CREATE TABLE {name} ({MADE[database.name]}, status SMALLINT DEFAULT 0, "
            "error_try_times INTEGER DEFAULT 0)"
            for name in ("orders", f"{OTHER}.orders")
        ),
    )
    yield OTHER
    run(database, f"DROP SCHEMA {OTHER}{cascade}")


def statuses(app: App, table: str) -> Counter[Any]:
    with app.engine.connect() as conn:
        return Counter(conn.scalars(sa.text(f"SELECT status FROM {table}")).all())


@pytest.mark.quick("mariadb-odd|postgresql-(two|no tables)")
@pytest.mark.requires("schemas")
@pytest.mark.parametrize("case", ZOO)
def test_repairs_name_their_schema_and_leave_known_statuses(database, make_app, other_schema, case):
    run(database, *(statement.format(t=f"{OTHER}.orders") for statement in ZOO[case]))
    app = make_app(table=ORDERS)
    before = statuses(app, f"{OTHER}.orders")
    found = [one for one in app.ops.doctor() if one.severity is not Severity.FINE]
    mends = [sql for one in found for sql in one.fix if one.check != "server"]
    assert mends
    assert [sql for sql in mends if f"{OTHER}." not in sql] == []
    run(app, *mends)
    assert needed(app) == []
    after = statuses(app, f"{OTHER}.orders")
    assert set(after) <= {-1, 0, 1, 2}
    assert after.total() == before.total()
    with app.engine.connect() as conn:
        assert {i["name"] for i in sa.inspect(conn).get_indexes("orders")} == set()


@pytest.mark.requires("schemas")
def test_a_repair_of_a_guard_leaves_that_of_the_same_name_in_another_schema(
    database, make_app, other_schema
):
    ours, theirs = make_app(table=ORDERS), make_app(table=MessageTable("orders"))
    for app in (ours, theirs):
        app.create_schema()
    on = "mw_running_object" if database.name == "mariadb" else "object_id"
    if variants.is_mysql():
        on = "(CASE WHEN status = 1 THEN object_id END)"
    drop = f"DROP INDEX {OTHER}.orders_guard"
    if database.name == "mariadb":
        drop = f"DROP INDEX orders_guard ON {OTHER}.orders"
    run(database, drop, f"CREATE INDEX orders_guard ON {OTHER}.orders ({on})")
    (told,) = needed(ours)
    run(theirs, *told.fix)  # in a session that means the other one by the plain name
    assert (needed(ours), needed(theirs)) == ([], [])


def test_an_unfinished_index_is_dropped_only_while_it_is_unfinished(postgresql):
    app = created(App(postgresql.url))
    run(
        app,
        "UPDATE pg_index SET indisvalid = false "
        "WHERE indexrelid = 'msgworker_message_guard'::regclass",
    )
    (told,) = needed(app)
    run(app, *told.fix)
    assert needed(app) == []
    run(app, told.fix[0])  # once more: it is good by now
    assert needed(app) == []


def test_the_repair_of_two_running_rows_leaves_those_that_have_ended(
    database, app, make_app, table
):
    ids = send(app, "a", "a", "a", "a")
    on = " ON msgworker_message" if database.name == "mariadb" else ""
    run(app, f"DROP INDEX msgworker_message_guard{on}")
    table.edit(status=1, claimed_by="x")
    table.edit(app.tables.message.c.msg_id == ids[3], error_try_times=1)
    (told,) = [one for one in needed(app) if one.check == "rows"]
    key = app.tables.message.c.msg_id
    table.edit(key == ids[1], status=2, claimed_by=None)
    table.edit(key == ids[2], claimed_by="another")
    run(app, *told.fix)
    assert table.rows("status", "claimed_by") == [(1, "x"), (2, None), (1, "another"), (-1, None)]


def test_the_repair_of_odd_statuses_leaves_those_that_came_later(app, table):
    ids = send(app, "a", "b", "c")
    key = app.tables.message.c.msg_id
    table.edit(key == ids[0], status=7)
    (told,) = [one for one in needed(app) if one.check == "rows"]
    table.edit(key == ids[1], status=8)
    run(app, *told.fix)
    assert table.statuses == [-1, 8, 0]


def test_words_of_an_enum_are_not_turned_into_their_places(mariadb):
    words = ("PENDING", "PROCESSING", "DONE", "FAILED")
    quoted = ", ".join(f"'{word}'" for word in words)
    make_table(mariadb, status=f"ENUM({quoted}) NOT NULL DEFAULT 'PENDING'")
    run(mariadb, *(f"INSERT INTO tb (object_id, status) VALUES ('{w}', '{w}')" for w in words))
    app = App(mariadb.url, table=TABLE)
    with pytest.raises(SchemaError, match="create the table again") as error:
        app.create_schema()
    assert "PENDING (1)" in str(error.value)
    assert "To fix it" not in str(error.value)
    assert [one.fix for one in needed(app) if one.check == "types"] == [()]


@pytest.mark.parametrize("value", ["'0.5'", "'x'", "'3'", "NULL"])
def test_a_status_that_a_repair_would_change_has_none(mariadb, value):
    make_table(mariadb, status="VARCHAR(5) DEFAULT '0'")
    run(mariadb, f"INSERT INTO tb (status) VALUES ('0'), ('2'), ({value})")
    app = App(mariadb.url, table=TABLE)
    (told,) = [one for one in needed(app) if one.check == "types"]
    assert (told.fix, "would not keep" in told.text) == ((), True)
    run(mariadb, "DELETE FROM tb WHERE status NOT IN ('0', '2') OR status IS NULL")
    (told,) = [one for one in needed(app) if one.check == "types"]
    assert told.detail == "status of the rows, as before: 0 (1), 2 (1)"
    run(app, *told.fix)
    assert statuses(app, "tb") == {0: 1, 2: 1}


def test_a_repair_cuts_no_id(postgresql):
    """A cast to a length cuts: two objects would be one."""
    run(postgresql, "CREATE COLLATION folds (provider = icu, locale = 'und-u-ks-level2', "
        "deterministic = false)")  # fmt: skip
    make_table(postgresql, object_id="text COLLATE folds")
    long = "x" * 200
    run(postgresql, f"INSERT INTO tb (object_id) VALUES ('{long}a'), ('{long}b')")
    app = App(postgresql.url, table=TABLE)
    (told,) = [one for one in needed(app) if one.check == "types"]
    assert (told.fix, "longer than 190 characters" in told.text) == ((), True)


# What is pasted as it is printed leaves nothing that is needed, and all else as it was.

WITH_KEYS = TABLE.replace(unique_key="unique_key", unique_kept="unique_kept")
EMPTY: dict[str, dict[str, Any]] = {
    "an empty owner": {
        "claimed_by": "VARCHAR(64) NOT NULL DEFAULT ''",
        "rows": ("(object_id, status) VALUES ('a', 1)",),
    },
    "an empty owner that may be NULL": {
        "claimed_by": "VARCHAR(64) DEFAULT ''",
        "rows": ("(object_id, status) VALUES ('a', 1)",),
    },
    "an empty owner in a short column": {
        "claimed_by": "VARCHAR(20) NOT NULL DEFAULT ''",
        "rows": ("(object_id, status) VALUES ('a', 1)",),
    },
    "empty keys": {
        "table": WITH_KEYS,
        "rest": ", unique_key VARCHAR(190) NOT NULL DEFAULT '', unique_kept SMALLINT",
        "rows": ("(object_id) VALUES ('a'), ('b')",),
    },
}
PASTED: dict[str, dict[str, Any]] = {
    "mariadb: one column, several faults": {
        "claimed_by": "VARCHAR(20) CHARACTER SET latin1 COLLATE latin1_bin NOT NULL DEFAULT '' "
        "COMMENT 'who''s' CHECK (claimed_by <> 'me')",
        "status": "VARCHAR(2) CHARACTER SET ucs2 DEFAULT '0' NOT NULL COMMENT 'where' "
        "CHECK (status IN ('0', '1', '2'))",
        "available_at": "DATE NOT NULL",
        "last_error": "VARCHAR(500) INVISIBLE DEFAULT '' NOT NULL",
        "rows": (),
        "after": [
            "`claimed_by` varchar(64) CHARACTER SET latin1 COLLATE latin1_bin DEFAULT NULL "
            "COMMENT 'who''s' CHECK (`claimed_by` <> 'me')",
            "`status` smallint(6) NOT NULL DEFAULT 0 COMMENT 'where',",
            "`available_at` datetime(6) DEFAULT NULL,",
            "`last_error` varchar(2000) INVISIBLE DEFAULT NULL,",
        ],
    },
    "mariadb: ids that differ by case": {
        "object_id": "VARCHAR(1000)",
        "whole": "DEFAULT CHARSET utf8mb4 COLLATE utf8mb4_general_ci",
        "rows": ("(object_id) VALUES ('a'), ('A')",),
        "after": ["`object_id` varchar(190) DEFAULT NULL,"],
    },
    "mariadb: an id from a sequence": {
        "before": ("CREATE SEQUENCE s1",),
        "msg_id": "DECIMAL(20,2) DEFAULT nextval(s1)",
        "after": ["`msg_id` bigint(20) NOT NULL DEFAULT nextval("],
    },
    "mariadb: an id that changes": {
        "object_id": "TIMESTAMP NOT NULL DEFAULT now() ON UPDATE now() COMMENT 'when'",
        "rows": ("(status) VALUES (0)",),
        "after": ["`object_id` timestamp NOT NULL DEFAULT current_timestamp() COMMENT 'when',"],
    },
    "postgresql: an id from a sequence": {
        "before": ("CREATE SEQUENCE s1",),
        "msg_id": "NUMERIC(20,2) DEFAULT nextval('s1')",
        "claimed_by": "VARCHAR(20) COLLATE \"POSIX\" NOT NULL DEFAULT ''",
        "after": ["msg_id bigint nextval('s1'", "claimed_by character varying POSIX"],
    },
    "mariadb: a CHECK of the table by the name of a column": {
        "rest": ", CONSTRAINT status CHECK (status IN (0, 1, 2))",
        "gone": ["CONSTRAINT"],
    },
    **{
        f"{name}: {what}": rest
        for name in ("mariadb", "postgresql")
        for what, rest in EMPTY.items()
    },
    "postgresql: CHECKs of the old type and of any": {
        "status": "TEXT DEFAULT '0' NOT NULL CONSTRAINT known "
        "CHECK (status IN ('0', '1', '2', '-1'))",
        "error_try_times": "TEXT DEFAULT '0' NOT NULL "
        "CONSTRAINT said CHECK (error_try_times <> '')",
        "claimed_by": "VARCHAR(20) CONSTRAINT short CHECK (length(claimed_by) < 90)",
        "then": (
            "CREATE INDEX by_owner ON tb (lower(claimed_by), claimed_by varchar_pattern_ops)",
        ),
        "kept": ["short", "by_owner"],
        "told": ["CHECK known ((status = ANY", "CHECK said ((error_try_times <> ''"],
    },
    "postgresql: an empty owner of a domain": {
        "before": ("CREATE DOMAIN owner AS VARCHAR(64) NOT NULL DEFAULT ''",),
        "claimed_by": "owner",
        "rows": ("(object_id, status) VALUES ('a', 1)",),
    },
    "postgresql: an id of text from a sequence": {
        "before": ("CREATE SEQUENCE s1",),
        "msg_id": "TEXT DEFAULT nextval('s1')",
        "after": ["msg_id bigint ((nextval('s1'"],
    },
}
SHOWN_OF = {
    "mariadb": "SHOW CREATE TABLE tb",
    "postgresql": "SELECT '', string_agg(concat_ws(' ', column_name, data_type, collation_name, "
    "column_default), E',\\n') FROM information_schema.columns WHERE table_name = 'tb'",
}


def content(database: Any) -> list[Any]:
    columns = "msg_id, object_id, status, error_try_times"
    with database.engine().connect() as conn:
        found = conn.exec_driver_sql(f"SELECT {columns} FROM tb ORDER BY msg_id").all()
    return [(int(i), obj, int(status), int(tries)) for i, obj, status, tries in found]


@pytest.mark.quick("in a short|by case|one column|CHECKs of|text from")
@pytest.mark.parametrize("case", PASTED)
def test_what_is_pasted_leaves_nothing_needed_and_all_else_as_it_was(request, case):
    database = request.getfixturevalue(case.partition(":")[0])
    wanted = dict(PASTED[case])
    table = wanted.pop("table", TABLE)
    before, rows = wanted.pop("before", ()), wanted.pop("rows", ("(object_id) VALUES ('a')",))
    after, gone, then = (wanted.pop(n, ()) for n in ("after", "gone", "then"))
    kept, told = wanted.pop("kept", ()), wanted.pop("told", ())
    run(database, *before)
    make_table(database, **wanted)
    run(database, *then, *(f"INSERT INTO tb {row}" for row in rows))
    app, there = App(database.url, table=table), content(database)
    found = [one for one in app.ops.doctor() if one.check in ("types", "columns", "checks", "rows")]
    assert [text for text in told if not any(text in one.text for one in found)] == []
    for one in found:
        run(database, *one.fix)
    assert [one for one in needed(app) if one.check not in ("tables", "indexes")] == []
    assert content(database) == there
    app.create_schema()
    assert needed(app) == []
    with database.engine().connect() as conn:
        shown = conn.exec_driver_sql(SHOWN_OF[database.name]).one()[1]
    assert [text for text in after if text not in shown] == [], shown
    assert [text for text in gone if text in shown] == []
    with database.engine().connect() as conn:
        there = sa.inspect(conn).get_check_constraints("tb")
        named = {one["name"] for one in there + sa.inspect(conn).get_indexes("tb")}
    assert set(kept) <= named
    ran: list[Any] = []
    app.handler(None)(lambda message: ran.append(message.msg_id))
    run(database, "INSERT INTO tb (status) VALUES (0)")
    waiting = [msg_id for msg_id, _, status, _ in content(database) if status == 0]
    assert app.drain(linger=0.1).done == len(waiting)
    assert sorted(ran) == waiting
    with database.engine().connect() as conn:
        owners = conn.exec_driver_sql("SELECT claimed_by FROM tb WHERE status = 1").scalars().all()
    assert set(owners) <= {None}  # as another consumer has left them; '' would be a dead instance


def test_keys_that_several_messages_hold_are_named(make_app, database):
    make_table(database, rest=", unique_key VARCHAR(190), unique_kept SMALLINT")
    rows = "('a', 'k'), ('b', 'k'), ('c', 'K'), ('d', NULL), ('e', NULL)"
    run(database, f"INSERT INTO tb (object_id, unique_key) VALUES {rows}")
    app = make_app(table=WITH_KEYS)
    (told,) = [one for one in app.ops.doctor() if "unique key, " in one.text]
    assert (told.check, told.severity, told.fix) == ("rows", Severity.ADVISED, ())
    assert "'k' (2 messages):" in told.text
    with pytest.raises(SchemaError, match=r"doctor.* names them"):
        app.create_schema()
    run(database, "UPDATE tb SET unique_key = NULL WHERE object_id = 'b'")
    app.create_schema()
    assert [one for one in app.ops.doctor() if "unique key, " in one.text] == []


HANGING = {
    "an index over some rows": (
        {"status": "states DEFAULT '0'"},
        "CREATE INDEX by_state ON tb (msg_id) WHERE status = '0'",
        "index by_state",
        "DROP INDEX by_state",
    ),
    "an index of another kind": (
        {"object_id": "JSONB"},
        "CREATE INDEX by_object ON tb USING gin (object_id)",
        "index by_object",
        "DROP INDEX by_object",
    ),
    "a foreign key": (
        {"msg_id": "NUMERIC(20,2)"},
        "CREATE TABLE lines (of NUMERIC(20,2) CONSTRAINT of_message REFERENCES tb)",
        "foreign key of_message of lines",
        "DROP TABLE lines",
    ),
    "a function": (
        {"status": "TEXT DEFAULT '0'"},
        "CREATE FUNCTION waits() RETURNS bigint BEGIN ATOMIC SELECT count(*) FROM tb "
        "WHERE status = '0'; END",
        "function waits()",
        "DROP FUNCTION waits",
    ),
}


@pytest.mark.parametrize("case", HANGING)
def test_what_keeps_a_type_from_being_changed_is_named(postgresql, case):
    changed, made, named, drop = HANGING[case]
    run(postgresql, "CREATE TYPE states AS ENUM ('0', '1', '2', '-1')")
    make_table(postgresql, **changed)
    run(postgresql, made)
    app = App(postgresql.url, table=TABLE)
    (told,) = [one for one in needed(app) if one.check == "types"]
    assert told.text.endswith(f"used by {named}: drop that first")
    assert told.fix == ()
    run(postgresql, drop)
    (told,) = [one for one in needed(app) if one.check == "types"]
    run(postgresql, *told.fix)
    assert [one for one in needed(app) if one.check == "types"] == []


@pytest.mark.parametrize("what", ["a table", "an index of table beside"])
@pytest.mark.parametrize("on", ["postgresql", "sqlite"])
def test_who_has_the_name_of_an_index_is_told(request, on, what):
    server = request.getfixturevalue(on)
    make_table(server)
    run(server, "CREATE TABLE beside (x INTEGER)")
    made, drop = ("CREATE TABLE tb_failed (x INTEGER)", "DROP TABLE tb_failed")
    if what != "a table":
        made, drop = ("CREATE INDEX tb_failed ON beside (x)", "DROP INDEX tb_failed")
    run(server, made)
    app = App(server.url, table=TABLE)
    with pytest.raises(SchemaError, match=f"It is the name of {what}: rename that"):
        app.create_schema()
    (told,) = [one for one in needed(app) if f"Its name is that of {what}: rename" in one.text]
    assert (told.check, told.fix) == ("indexes", ())
    run(server, drop)
    app.create_schema()
    assert needed(app) == []


HELD = {
    "an index of table beside": "INDEX {0} ON beside (x)",
    "a sequence": "SEQUENCE {0}",
    "a type": "TYPE {0} AS ENUM ('x')",
}


@pytest.mark.parametrize("name", ["msgworker_message", "msgworker_pause"])
@pytest.mark.parametrize("what", HELD)
@pytest.mark.parametrize("on", ["postgresql", "sqlite"])
def test_who_has_the_name_of_a_table_is_told(request, on, what, name):
    if on == "sqlite" and what != "an index of table beside":
        pytest.skip("it has no others")
    server = request.getfixturevalue(on)
    made = HELD[what].format(name)
    run(server, "CREATE TABLE beside (x INTEGER)", f"CREATE {made}")
    app = App(server.url)
    says = f"{name} is the name of {what}: rename that"
    for _ in range(2):  # first of all tables, then of the one that is missing
        found = [one for one in app.ops.doctor() if says in one.text]
        assert [(one.check, one.fix) for one in found] == [("tables", ())]
        with pytest.raises(SchemaError, match=f"It is the name of {what}: rename that"):
            app.create_schema()
    run(server, f"DROP {made.split()[0]} {name}")
    app.create_schema()
    assert needed(app) == []
    app.engine.dispose()


@pytest.mark.parametrize("on", ["postgresql", "mariadb", "sqlite"])
def test_an_index_of_theirs_with_a_name_of_ours_stays(request, on):
    database = request.getfixturevalue(on)
    make_table(database, rest=", nr VARCHAR(20)")
    run(database, "CREATE UNIQUE INDEX tb_guard ON tb (nr)")
    app = created(App(database.url, table=TABLE))
    app.add_handler(None, lambda msg: None)
    with pytest.raises(SchemaError, match=r"tb_guard is on nr: .*doctor.*--sql.* prints how"):
        app.drain()
    (told,) = needed(app)
    if database.name == "sqlite":
        assert (told.fix, "make it under another name" in told.text) == ((), True)
        run(database, "CREATE UNIQUE INDEX of_nr ON tb (nr)", "DROP INDEX tb_guard")
        (told,) = needed(app)
    run(database, *told.fix)
    assert needed(app) == []
    with database.engine().connect() as conn:
        found = sa.inspect(conn).get_indexes("tb")
    assert [one["unique"] for one in found if one["column_names"] == ["nr"]]


@pytest.mark.parametrize("on", ["mariadb", "postgresql", "sqlite"])
def test_a_percent_sign_in_a_name_is_printed_as_it_is(request, on):
    database = request.getfixturevalue(on)
    q = {"mariadb": "`"}.get(on, '"')
    lob = {"mariadb": "DATE", "postgresql": "DATE", "sqlite": "TEXT"}[on]
    kinds = {
        "status": "SMALLINT DEFAULT 0 NOT NULL" if on == "sqlite" else "VARCHAR(2) DEFAULT '0'",
        "claimed_by": "VARCHAR(64)" if on == "sqlite" else "VARCHAR(20) DEFAULT '' NOT NULL",
        **{"available_at": lob, "last_error": "TEXT", "finished_at": lob},
    }
    named = "".join(f", {q}a %(b)s {role}{q} {kind}" for role, kind in kinds.items())
    whole = f"CREATE TABLE {q}my %1(s){q} (msg_id {IDENTITY[on]}, object_id VARCHAR(40), "
    run(database, f"{whole}error_try_times SMALLINT DEFAULT 0 NOT NULL{named})")
    run(database, f"INSERT INTO {q}my %1(s){q} (object_id) VALUES ('a')")
    spec = MessageTable("my %1(s)", **{role: f"a %(b)s {role}" for role in kinds})
    app = App(database.url, table=spec)
    mends = [sql for one in app.ops.doctor() for sql in one.fix if one.check != "server"]
    assert mends
    assert [sql for sql in mends if "%%" in sql] == []
    run(database, *dict.fromkeys(mends))
    assert needed(app) == []
    ran: list[Any] = []
    app.handler(None)(lambda message: ran.append(message.msg_id))
    assert (app.drain(linger=0.1).done, ran) == (1, [1])


@pytest.mark.parametrize(
    ("on", "kind", "other"),
    [
        ("sqlite", "TEXT COLLATE NOCASE", "A"),
        ("sqlite", "VARCHAR(40) CHECK (length(object_id) < 9) COLLATE 'RTRIM'", "a "),
        ("mariadb", "VARCHAR(40) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci", "A"),
    ],
)
def test_running_rows_that_a_collation_makes_one_object_are_found_without_a_guard(
    request, on, kind, other
):
    database = request.getfixturevalue(on)
    make_table(database, object_id=kind)
    run(database, f"INSERT INTO tb (object_id, status) VALUES ('a', 1), ('{other}', 1)")
    app = App(database.url, table=TABLE)
    with pytest.raises(SchemaError, match="prints how to fix them"):
        app.create_schema()
    run(database, *(one for told in needed(app) for one in told.fix if told.check == "rows"))
    app.create_schema()
    assert needed(app) == []
    assert statuses(app, "tb") == {1: 1, 0: 1}
