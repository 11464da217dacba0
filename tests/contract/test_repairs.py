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
from tests.support.doctor import needed, run
from tests.support.rows import send
from tests.support.tables import TABLE, make_table

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
    app = App(postgresql.url)
    app.create_schema()
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
