"""The stand-ins themselves: strict where Oracle is, and known by what they cannot do."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import oracledb
import pytest
import sqlalchemy as sa

from msgworker import App
from msgworker.db.types import exact
from msgworker.doctor import Severity
from proof.oracle import standins
from proof.oracle.mariadb import prepared
from proof.oracle.text import bind_names, calls, returning
from tests import requirements
from tests.plugin import Database
from tests.support.rows import send

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def conn(over_mariadb: Database) -> Iterator[sa.Connection]:
    engine = sa.create_engine(over_mariadb.url)  # strict, as that of an App
    with engine.connect() as conn:
        yield conn
    engine.dispose()


NOW = "CAST(SYSTIMESTAMP AT TIME ZONE 'UTC' AS TIMESTAMP)"


@pytest.mark.parametrize(
    ("theirs", "ours"),
    {
        f"SELECT {NOW} FROM DUAL": "SELECT UTC_TIMESTAMP(6) FROM DUAL",
        f"SELECT ({NOW} + NUMTODSINTERVAL(:s, 'SECOND')) FROM DUAL": (
            "SELECT (UTC_TIMESTAMP(6) + INTERVAL ROUND((%s) * 1000000) MICROSECOND) FROM DUAL"
        ),
        f"SELECT EXTRACT(DAY FROM ({NOW} - CAST(a AS TIMESTAMP))) * 86400 FROM t": (
            "SELECT MOD(TIMESTAMPDIFF(MICROSECOND, CAST(a AS DATETIME(6)), UTC_TIMESTAMP(6))"
            " DIV 86400000000, 4611686018427387904) * 86400 FROM t"
        ),
        "INSERT INTO t (a) VALUES (:a) RETURNING t.id INTO :ret_0": (
            "INSERT INTO t (a) VALUES (%s) RETURNING id"
        ),
        "SELECT /*+ INDEX(t t_head) */ a FROM t WHERE b = ':no' AND c = :yes": (
            "SELECT  a FROM t WHERE b = ':no' AND c = %s"
        ),
        "SELECT length(CAST(t.p AS CLOB)) FROM t": "SELECT length((t.p)) FROM t",
    }.items(),
)
def test_oracle_s_words_are_said_as_mariadb_has_them(theirs: str, ours: str) -> None:
    assert prepared(theirs).sql == ours


def test_parameters_and_calls_are_found_among_literals() -> None:
    sql = """SELECT ':a', ":b", :"start", :c FROM t -- :d\nWHERE f(g(1, ')'), 'x,y') = :c"""
    assert bind_names(sql) == ["START", "C", "C"]
    assert "[g(1, ')')|'x,y']" in calls(sql, "f", lambda *given: f"[{'|'.join(given)}]")
    assert returning("INSERT INTO t VALUES (1) RETURNING t.a, t.b INTO :x, :y") == (
        "INSERT INTO t VALUES (1)",
        ["a", "b"],
        ["X", "Y"],
    )


@pytest.mark.parametrize(
    ("sql", "values"),
    [
        ("SELECT 1 FROM DUAL WHERE 1 = :a", {}),
        ("SELECT 1 FROM DUAL", {"a": 1}),
        ("SELECT 1", {}),
        ("SELECT 1 FROM DUAL LIMIT 1", {}),
        ("SELECT a FROM nowhere", {}),
    ],
    ids=["parameter missing", "parameter too many", "no FROM", "LIMIT", "no table"],
)
def test_what_oracle_refuses_is_refused(
    conn: sa.Connection, sql: str, values: dict[str, Any]
) -> None:
    raw: Any = conn.connection.dbapi_connection
    with pytest.raises(oracledb.Error), raw.cursor() as cursor:
        cursor.execute(sql, values)


def test_after_a_deadlock_nothing_of_the_transaction_is_committed(over_mariadb: Database) -> None:
    """The engine has rolled all of it back; what came before must not be told as committed."""
    one, other = (sa.create_engine(over_mariadb.url) for _ in range(2))
    with one.begin() as conn:
        conn.exec_driver_sql("CREATE TABLE pair (id NUMBER(19), n NUMBER(19))")
        conn.exec_driver_sql("CREATE UNIQUE INDEX pair_id ON pair (id)")
        for number in (1, 2, 3):
            conn.exec_driver_sql(f"INSERT INTO pair (id, n) VALUES ({number}, 0)")
    update = "UPDATE pair SET n = n + 1 WHERE id = {}"
    with one.connect() as mine, other.connect() as theirs:
        for number in (2, 3):  # who has changed less is rolled back
            theirs.exec_driver_sql(update.format(number))
        mine.exec_driver_sql(update.format(1))
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(theirs.exec_driver_sql, update.format(1))
            with pytest.raises(sa.exc.DBAPIError, match="ORA-00060"), mine.begin_nested():
                mine.exec_driver_sql(update.format(2))
            with pytest.raises(sa.exc.DBAPIError, match="ORA-00060"):
                mine.commit()
            mine.rollback()
            waiting.result()
        theirs.commit()
        assert mine.exec_driver_sql("SELECT n FROM pair ORDER BY id").scalars().all() == [1, 1, 1]
    one.dispose()
    other.dispose()


def test_values_come_as_oracle_gives_them(conn: sa.Connection) -> None:
    query = "SELECT :e AS e, 'a' || NULL AS n, 1.50 AS d, 2 AS i, COUNT(*) AS k FROM DUAL"
    row = conn.execute(sa.text(query), {"e": ""}).mappings().one()
    assert dict(row) == {"e": None, "n": "a", "d": pytest.approx(1.5), "i": 2, "k": 1}
    assert type(row["i"]) is type(row["k"]) is int


def test_an_id_is_a_whole_number_whatever_its_expression(over_mariadb: Database) -> None:
    app = App(over_mariadb.url)
    try:
        app.create_schema()
        large = 2**53 + 1
        (first,) = send(app, "a")
        with app.engine.begin() as conn:
            name = app.table.name
            conn.execute(sa.text(f"UPDATE {name} SET msg_id = :i"), {"i": large})
        seen: list[Any] = []
        app.add_handler("t", lambda msg: seen.append(msg.msg_id))
        assert app.drain(linger=0).done == 1
        assert type(first) is int
        assert seen == [large]
        assert type(seen[0]) is int
        number = sa.dialects.oracle.NUMBER
        assert isinstance(exact(number(19, 0)), sa.BigInteger)
        assert exact(number()).asdecimal
        assert isinstance(exact(sa.String()), sa.String)
    finally:
        app.engine.dispose()


@pytest.mark.long
def test_doctor_does_without_the_right_to_read_v_transaction(over_mariadb: Database) -> None:
    app = App(over_mariadb.url)
    try:
        app.create_schema()
        found = app.ops.doctor()
        assert {finding.check for finding in found} >= {"rows", "indexes", "rights", "clock"}
        assert not [finding.text for finding in found if finding.severity is Severity.NEEDED]
    finally:
        app.engine.dispose()


def test_another_url_goes_to_the_driver() -> None:
    engine = sa.create_engine("oracle+oracledb://u:p@127.0.0.1:1/?service_name=x")
    with pytest.raises(sa.exc.OperationalError, match="DPY-6005"):
        engine.connect()
    assert standins.server_of("oracle-mariadb") == "mariadb"


def test_the_document_lists_what_the_stand_ins_cannot_do() -> None:
    text = (DOCS / "project" / "oracle.md").read_text(encoding="utf-8")
    shown = text.split("<!-- cannot -->\n")[1].split("<!-- /cannot -->")[0]
    wanted = requirements.shown("oracle-mariadb")
    assert shown == wanted, "write it anew with `python -m tests.requirements oracle-mariadb`"
