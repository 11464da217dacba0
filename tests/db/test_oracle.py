"""What the driver is told of a statement; the driver itself is a stand-in that remembers."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from msgworker.db.database import DATABASES
from msgworker.db.engine import open_engine
from msgworker.db.oracle import ROWS_AT_ONCE
from tests.oracle_driver import Log


def statements(lengths: list[int], name: str = "mw_ids") -> tuple[set[str], list[int]]:
    """What is sent for lists so long, and how many values each time."""
    log = Log()
    engine = open_engine(log.engine())
    table = sa.table("t", sa.column("a"))
    query = sa.select(table.c.a).where(table.c.a.in_(sa.bindparam(name, expanding=True)))
    with engine.connect() as conn:
        for length in lengths:
            conn.execute(query, {name: list(range(length))}).all()
    return {sql for sql, _ in ours(log)}, [len(values) for _, values in ours(log)]


def ours(log: Log) -> list[tuple[str, Any]]:
    """What was sent but for the dialect's own questions at its first connection."""
    return [(sql, values) for sql, values in log.sent if values]


@pytest.mark.parametrize(
    ("text", "what", "is_so"),
    [
        ("DPI-1067: call timeout of 5000 ms exceeded with ORA-3136", "overtime", True),
        ("DPI-1067: call timeout of 5000 ms exceeded with ORA-3156", "statement limit", True),
        ("ORA-03156: OCI call timed out", "overtime", True),
        ("ORA-02396: exceeded maximum idle time, please connect again", "session limit", True),
        ("DPI-1080: connection was closed by ORA-2396", "session limit", False),
        ("ORA-01031: insufficient privileges", "denied", True),
        ("ORA-00604: error at recursive level 1\nORA-01031: insufficient", "denied", False),
        ("DPY-6000: cannot connect: listener refused it (ORA-12520)", "no connection", True),
    ],
)
def test_what_an_error_of_oracle_says(text: str, what: str, is_so: bool) -> None:
    assert DATABASES["oracle"].says(what, Exception(text)) is is_so


def test_lists_of_ids_are_few_statements_on_oracle() -> None:
    texts, sizes = statements(list(range(1, 501)))
    assert len(texts) == 10
    assert sizes[:9] == [1, 2, 4, 4, 8, 8, 8, 8, 16]
    assert max(sizes) == DATABASES["oracle"].max_ids == 500


def test_a_list_of_the_user_s_is_sent_as_it_is() -> None:
    assert statements([3, 5], "theirs")[1] == [3, 5]


def test_a_list_is_filled_up_with_its_own_last_element() -> None:
    log = Log()
    table = sa.table("t", sa.column("a"))
    query = sa.select(table.c.a).where(table.c.a.in_(sa.bindparam("mw_ids", expanding=True)))
    with open_engine(log.engine()).connect() as conn:
        conn.execute(query, {"mw_ids": [7, 9, 8]}).all()
    assert sorted(ours(log)[0][1].values()) == [7, 8, 8, 9]


def test_rows_of_a_query_come_with_its_first_answer() -> None:
    log = Log()
    with open_engine(log.engine()).connect() as conn:
        log.rows_at_once.clear()
        conn.execute(sa.text("SELECT 1 FROM DUAL")).all()
        assert log.rows_at_once == [(ROWS_AT_ONCE, ROWS_AT_ONCE)]
    assert DATABASES["oracle"].max_ids < ROWS_AT_ONCE


def test_the_catalogue_is_asked_where_names_lead() -> None:
    """Not of the login: a session may have another CURRENT_SCHEMA."""
    oracle = DATABASES["oracle"]
    for query in (str(oracle.row_estimate), *oracle.rule_queries):
        assert "'current_schema'" in query
