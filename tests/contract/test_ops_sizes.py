"""How many bytes the tables take, on each database."""

from __future__ import annotations

import uuid

import pytest
import sqlalchemy as sa

from msgworker import App, MessageTable
from msgworker.db.catalogue import table_size
from msgworker.db.database import DATABASES
from msgworker.errors import DatabaseUnavailable, TookTooLong
from msgworker.queries.counts import Sizes, TableSize
from tests.oracle_lint import lint
from tests.support.apps import created
from tests.support.rows import send


def test_sizes_are_told_as_far_as_the_database_knows_them(app):
    send(app, *(f"o{n}" for n in range(50)))
    found = app.ops.sizes()
    names = [one.name for one in found.tables]
    assert names[0] == "msgworker_message"
    assert {"msgworker_lease", "msgworker_item", "msgworker_try", "msgworker_operation"} <= set(
        names
    )
    if app.engine.dialect.name == "sqlite":
        assert {(one.table_bytes, one.index_bytes) for one in found.tables} == {(None, None)}
        assert found.exact == "exact"
        assert found.total_bytes == found.file_bytes >= 4096 * len(names)
        return
    message, *others = found.tables
    assert message.table_bytes > 0
    assert message.index_bytes > 0
    assert all(one.table_bytes is not None for one in others)
    from_statistics = app.engine.dialect.name in ("mariadb", "mysql")
    assert found.exact == ("about" if from_statistics else "exact")
    assert found.file_bytes is None
    assert found.total_bytes == sum(one.table_bytes + one.index_bytes for one in found.tables)


@pytest.mark.requires("schemas")
@pytest.mark.requires("sizes_of_others")
def test_a_table_of_another_name_in_a_schema_has_its_size(database, make_app):
    schema = f"crm_{uuid.uuid4().hex[:8]}"
    with database.engine().begin() as conn:
        conn.exec_driver_sql(f"CREATE SCHEMA {schema}")
    try:
        app = created(make_app(table=MessageTable(f"{schema}.tb_cus_msg")))
        message = app.ops.sizes().tables[0]
        assert message.name == "tb_cus_msg"
        assert message.index_bytes > 0
    finally:
        with database.engine().begin() as conn:
            cascade = " CASCADE" if database.name == "postgresql" else ""
            conn.exec_driver_sql(f"DROP SCHEMA {schema}{cascade}")


def test_the_size_of_a_table_with_partitions_is_that_of_all_of_them(postgresql):
    with postgresql.engine().begin() as conn:
        for text in (
            "CREATE TABLE kept (id bigint PRIMARY KEY) PARTITION BY RANGE (id)",
            "CREATE TABLE kept_1 PARTITION OF kept FOR VALUES FROM (0) TO (1000)",
            "CREATE TABLE kept_2 PARTITION OF kept FOR VALUES FROM (1000) TO (9000)",
            "INSERT INTO kept SELECT generate_series(0, 8999)",
        ):
            conn.exec_driver_sql(text)
        sizes = [
            table_size(conn, sa.Table(name, sa.MetaData())) for name in ("kept", "kept_1", "kept_2")
        ]
        whole, one, two = [size for size in sizes if size is not None]
        assert two[0] > one[0] > 0
        assert two[1] > one[1] > 0
        assert whole == (one[0] + two[0], one[1] + two[1])
        assert table_size(conn, sa.Table("nothing", sa.MetaData())) is None


def test_sizes_of_a_locked_table_end_at_the_deadline(postgresql):
    app = created(App(postgresql.url))
    app.ops.probe()
    with postgresql.engine().begin() as conn:
        conn.exec_driver_sql("LOCK TABLE msgworker_item IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(TookTooLong):
            app.ops.within(0.2).sizes()
    assert app.ops.within(10).sizes().total_bytes is not None


def test_a_look_within_a_time_ends_where_the_rule_of_the_table_cannot_be_read(
    postgresql, monkeypatch
):
    monkeypatch.setattr("msgworker.schema.known.RULE_SECONDS", 0.0)
    app = created(App(postgresql.url))
    app.ops.probe()
    for known in (True, False):
        with postgresql.engine().begin() as conn:
            conn.exec_driver_sql("LOCK TABLE msgworker_lease IN ACCESS EXCLUSIVE MODE")
            with pytest.raises(TookTooLong if known else DatabaseUnavailable):
                app.ops.within(0.2).counts()
        assert app.ops.within(10).counts() == []
        app = App(postgresql.url)


def test_sizes_are_asked_for_in_oracle_s_words():
    assert lint(DATABASES["oracle"].table_size) == []


def test_an_unknown_size_is_no_part_of_the_total():
    known, unknown = TableSize("a", 10, 5), TableSize("b", None, None)
    assert Sizes((known, unknown), "exact", None).total_bytes == 15
    assert Sizes((unknown,), "exact", None).total_bytes is None
    assert Sizes((unknown,), "exact", 4096).total_bytes == 4096
