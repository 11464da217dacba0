"""What a message table must be like, judged from its description alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from msgworker import MessageTable
from msgworker.db.database import DATABASES, NAMES
from msgworker.schema import describe, requirements
from msgworker.schema.describe import Check, Column, Live
from msgworker.schema.repairs import faults_text
from msgworker.table.build import tables_for


def described(name: str, **spec: Any) -> Live:
    """Our own table as the database `name` would describe it."""
    table = MessageTable(**spec)
    message = tables_for(table, DATABASES[name]).message
    sql = DATABASES[name].offline_dialect()
    columns = {
        role: Column(
            column,
            message.c[column].type.dialect_impl(sql).load_dialect_impl(sql)
            if isinstance(message.c[column].type, sa.types.TypeDecorator)
            else message.c[column].type,
            bool(message.c[column].nullable),
            None if message.c[column].server_default is None else "0",
        )
        for role, column in table.names().items()
    }
    return Live(table, DATABASES[name], sql, table.name, columns)


def changed(live: Live, role: str, **changes: Any) -> Live:
    return replace(live, columns=live.columns | {role: replace(live.columns[role], **changes)})


@pytest.mark.parametrize("name", NAMES)
def test_our_own_table_has_no_fault(name):
    assert requirements.faults(described(name)) == []


SERVERS = [name for name in NAMES if name != "sqlite"]
TYPES: list[tuple[str, Any, str]] = [
    ("claimed_by", sa.String(63), "takes 63 characters, 64 are needed"),
    ("claimed_by", sa.BigInteger(), "must be a text"),
    ("last_error", sa.Integer(), "must be a text"),
    ("status", sa.String(2), "must be a whole number"),
    ("status", sa.Boolean(), "must be a whole number"),
    ("msg_id", sa.String(36), "must be a whole number"),
    ("msg_id", sa.Float(), "must be a whole number"),
    ("msg_id", sa.Numeric(10, 2), "an id with a fraction is never run"),
    ("later_times", sa.String(10), "must be a whole number"),
    ("later_times", sa.Numeric(1, 0), "must hold 100"),
    ("error_try_times", sa.Numeric(2, 2), "must hold 4"),
    ("claimed_at", sa.BigInteger(), "must be an instant"),
    ("available_at", sa.Date(), "must be an instant"),
    ("finished_at", sa.String(10), "must be an instant"),
    ("available_at", sa.Time(), "must be an instant"),
]


@pytest.mark.parametrize("name", SERVERS)
@pytest.mark.parametrize(("role", "kind", "words"), TYPES)
def test_a_type_that_loses_what_is_written_is_needed_to_be_mended(name, role, kind, words):
    (fault,) = requirements.faults(changed(described(name), role, kind=kind))
    assert (fault.needed, words in fault.text) == (True, True), fault.text
    assert f"column {role}" in fault.text
    assert role in fault.fix[-1]
    assert fault.fix[-1].startswith(f"ALTER TABLE {'msgworker_message'}")


@pytest.mark.parametrize("kind", [mysql.TINYINT(), mysql.TINYINT(unsigned=True)])
@pytest.mark.parametrize(("tries", "fits"), [(126, True), (500, False)])
def test_tries_must_fit_into_their_column(kind, tries, fits):
    live = changed(described("mariadb", max_tries=tries), "error_try_times", kind=kind)
    assert (requirements.needed(live) == []) is fits


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("role", ["claimed_by", "available_at", "finished_at", "last_error"])
def test_a_column_that_is_emptied_must_take_null(name, role):
    live = changed(described(name), role, nullable=False, default="''")
    (fault,) = requirements.faults(live)
    assert (fault.needed, fault.text.startswith(f"column {role} must take NULL")) == (True, True)
    text = faults_text([fault])
    assert "ALTER TABLE" in text
    if name == "sqlite":
        assert f'MessageTable({role}="{role}_2")' in text


@pytest.mark.parametrize("name", SERVERS)
@pytest.mark.parametrize("length", [0, 1, 10, 1999])
def test_a_short_column_of_errors_is_advised_and_errors_are_cut_to_it(name, length):
    live = changed(described(name), "last_error", kind=sa.String(length))
    (fault,) = requirements.faults(live)
    assert (fault.needed, "they are cut" in fault.text) == (False, True)
    assert describe.max_error(live.database, live.columns) == length


@pytest.mark.parametrize(
    ("kind", "room"), [(sa.Text(), 2000), (sa.String(9000), 2000), (mysql.TINYTEXT(), 63)]
)
def test_how_much_of_an_error_is_kept(kind, room):
    live = changed(described("mariadb"), "last_error", kind=kind)
    assert describe.max_error(live.database, live.columns) == room


@pytest.mark.parametrize(("name", "is_needed"), [("postgresql", True), ("mariadb", False)])
def test_a_padded_id_is_not_what_was_written(name, is_needed):
    live = changed(described(name), "claimed_by", kind=sa.CHAR(64))
    assert [f.needed for f in requirements.faults(live)] == [True] * is_needed


@pytest.mark.parametrize(
    ("name", "kind", "works"),
    [
        ("oracle", sa.CLOB(), False),
        ("mysql", mysql.LONGTEXT(), False),
        ("mariadb", mysql.LONGTEXT(), True),
        ("postgresql", sa.Text(), True),
    ],
)
def test_a_lob_is_no_object_where_an_expression_of_it_is_indexed(
    name: str, kind: Any, works: bool
) -> None:
    live = changed(described(name), "object_id", kind=kind)
    assert (not any("object_id" in one.text for one in requirements.needed(live))) == works


@pytest.mark.parametrize("name", ["mariadb", "mysql"])
def test_ids_of_bytes_cannot_be_kept_in_generated_columns(name):
    live = changed(described(name), "object_id", kind=mysql.BINARY(16))
    (fault,) = requirements.faults(live)
    assert (fault.needed, "object_id" in fault.text) == (True, True)
    assert requirements.faults(changed(described("sqlite"), "object_id", kind=sa.BLOB())) == []


@pytest.mark.parametrize("default", ["0", "'0'", "(0)", "((0))", "'0'::smallint", "0 "])
def test_a_default_of_zero_is_a_new_message(default):
    live = changed(described("postgresql"), "status", default=default)
    assert requirements.faults(live) == []


def test_a_generated_column_cannot_be_written():
    live = changed(described("postgresql"), "status", generated=True)
    (fault,) = requirements.faults(live)
    assert (fault.needed, "status" in fault.text) == (True, True)


def test_a_column_of_our_prefix_that_is_not_generated_is_not_ours():
    live = described("mariadb")
    found = requirements.faults(replace(live, all={"mw_failed": Column("mw_failed", sa.Integer())}))
    assert [fault.needed for fault in found] == [True]
    assert "RENAME COLUMN mw_failed TO x_mw_failed" in found[0].fix[0]


@pytest.mark.parametrize("name", SERVERS)
def test_a_check_that_refuses_what_is_written(name):
    check = Check("tb_status", "status IN (0, 1, 2)", ("failed", "dead"))
    (fault,) = requirements.faults(replace(described(name), checks=(check,)))
    assert fault.needed
    assert "tb_status" in fault.text
    assert "failed (-1)" in fault.text
    assert fault.fix == ("ALTER TABLE msgworker_message DROP CONSTRAINT tb_status",)


def test_what_is_written_follows_the_rules_of_the_table():
    written = describe.rows_written(MessageTable(max_tries=7))
    assert set(written) == set(requirements.ROWS)
    assert {row["status"] for row in written.values()} == {-1, 0, 1, 2}
    assert written["dead"]["error_try_times"] == 7
