"""A query that is sent as a kept text behaves like one that SQLAlchemy sends."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from msgworker import ConfigError
from msgworker.db.connections import connecting
from msgworker.db.database import Trouble
from msgworker.db.drivers import (
    QueryText,
    committing_each,
    fetch_text,
    has_sent_nothing,
    saving,
    text_for,
)
from msgworker.db.engine import beside, open_engine, same_database
from msgworker.db.errors import trouble
from msgworker.db.types import AnyText
from tests.support.waiting import in_thread


@pytest.mark.parametrize(
    ("url", "port"),
    [("postgresql://u@h{}/n", 5432), ("mysql://u@h{}/n", 3306), ("oracle://u@h{}/n", 1521)],
)
def test_urls_mean_the_same_where_their_ports_do(url: str, port: int) -> None:
    assert same_database(url.format(""), url.format(f":{port}"))
    assert not same_database(url.format(""), url.format(":7777"))


WAYS = {
    "by SQLAlchemy": lambda conn, text: conn.execute(sa.text(text)).all(),
    "as a text": lambda conn, text: fetch_text(conn, QueryText(text, {}), {}),
    "by a kept cursor": lambda conn, text: fetch_text(conn, QueryText(text, {}), {}, kept=True),
}


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Any:
    return WAYS[request.param]


def test_a_statement_timeout_is_the_same_trouble(postgresql, way):
    with postgresql.engine().connect() as conn:
        conn.exec_driver_sql("SET statement_timeout = '50ms'")
        with pytest.raises(DBAPIError) as caught:
            way(conn, "SELECT pg_sleep(30)")
        assert trouble(caught.value) is Trouble.AGAIN
        assert not conn.invalidated


def test_a_killed_connection_is_the_same_trouble(postgresql, way):
    engine = postgresql.engine()
    with engine.connect() as conn, engine.connect() as other:
        pid = conn.exec_driver_sql("SELECT pg_backend_pid()").scalar()
        other.exec_driver_sql(f"SELECT pg_terminate_backend({pid})")
        with pytest.raises(DBAPIError) as caught:
            way(conn, "SELECT 1")
        assert trouble(caught.value) is Trouble.LOST
        assert conn.invalidated


def test_a_deadlock_is_the_same_trouble(postgresql, way):
    engine = postgresql.engine()
    with engine.begin() as conn:
        conn.exec_driver_sql("CREATE TABLE t (id int PRIMARY KEY)")
        conn.exec_driver_sql("INSERT INTO t VALUES (1), (2)")
    update = "UPDATE t SET id = id WHERE id = {} RETURNING id".format
    with engine.connect() as one, engine.connect() as two:
        for conn in (one, two):
            conn.exec_driver_sql("SET deadlock_timeout = '20ms'")
        one.exec_driver_sql(update(1))
        two.exec_driver_sql(update(2))
        joins = [in_thread(lambda: way(one, update(2))), in_thread(lambda: way(two, update(1)))]
        found = []
        for conn, join in zip((one, two), joins, strict=True):
            try:
                join()
            except DBAPIError as error:
                found.append(trouble(error))
                conn.rollback()
    assert found == [Trouble.AGAIN]


def test_who_listens_for_statements_is_told_of_it(postgresql):
    engine, told = postgresql.engine(), []

    def listen(conn: Any, cursor: Any, text: str, *_: Any) -> None:
        told.append(text)

    sa.event.listen(engine, "before_cursor_execute", listen)
    query = sa.select(sa.bindparam("n", type_=sa.Integer()), sa.literal_column("'100%'"))
    with engine.connect() as conn:
        text = text_for(conn, query)
        assert text is not None
        assert list(fetch_text(conn, text, {"n": 3})) == [(3, "100%")]
        assert list(fetch_text(conn, text, {"n": 4})) == [
            tuple(conn.execute(query, {"n": 4}).one())
        ]
    assert told.count(text.sql) == 3


def test_who_logs_statements_sees_it(postgresql, caplog):
    engine = postgresql.engine()
    with caplog.at_level("INFO", logger="sqlalchemy.engine"), engine.connect() as conn:
        assert list(fetch_text(conn, QueryText("SELECT 7 AS seven", {}), {})) == [(7,)]
    assert "SELECT 7 AS seven" in caplog.text


def test_it_is_part_of_the_transaction_that_it_begins(postgresql):
    engine = postgresql.engine()
    with engine.begin() as conn:
        conn.exec_driver_sql("CREATE TABLE t (id int)")
    insert = QueryText("INSERT INTO t VALUES (%(id)s) RETURNING id", {})
    with engine.connect() as conn:
        assert list(fetch_text(conn, insert, {"id": 1})) == [(1,)]
        conn.commit()
        fetch_text(conn, insert, {"id": 2})
        conn.rollback()
        assert conn.exec_driver_sql("SELECT id FROM t").scalars().all() == [1]


def test_a_kept_cursor_serves_until_an_error(postgresql):
    query, engine = QueryText("SELECT 6 / %(n)s", {}), postgresql.engine()
    for _ in range(2):  # also of the next one who gets the connection from the pool
        with engine.connect() as conn:
            for n in (1, 2, 0, 3):
                if n == 0:
                    with pytest.raises(DBAPIError):
                        fetch_text(conn, query, {"n": n}, kept=True)
                    conn.rollback()
                else:
                    assert list(fetch_text(conn, query, {"n": n}, kept=True)) == [(6 // n,)]
            driver = conn.connection.driver_connection
            assert driver is not None
            conn.invalidate()
            conn.rollback()
            assert list(fetch_text(conn, query, {"n": 6}, kept=True)) == [(1,)]
            assert conn.connection.driver_connection is not driver


def test_what_was_written_before_a_savepoint_outlives_an_error(postgresql):
    engine = postgresql.engine()
    with engine.begin() as conn:
        conn.exec_driver_sql("CREATE TABLE t (id int PRIMARY KEY)")
    insert = QueryText("INSERT INTO t VALUES (%(id)s) RETURNING id", {})
    with engine.begin() as conn:
        for n in (1, 2):  # one savepoint behind the other
            fetch_text(conn, insert, {"id": n})
            with suppress(DBAPIError), saving(conn):
                fetch_text(conn, insert, {"id": n + 2})
                fetch_text(conn, insert, {"id": n})
            with saving(conn):
                fetch_text(conn, insert, {"id": n + 4})
    with engine.connect() as conn:
        assert conn.exec_driver_sql("SELECT id FROM t ORDER BY id").scalars().all() == [1, 2, 5, 6]


def test_a_transaction_is_empty_until_something_is_sent(postgresql):
    with postgresql.engine().connect() as conn:
        for end in (conn.commit, conn.rollback):
            conn.begin()
            assert has_sent_nothing(conn)
            conn.exec_driver_sql("SELECT 1")
            assert not has_sent_nothing(conn)
            end()
        assert has_sent_nothing(conn)


@pytest.mark.parametrize("fails", [False, True])
def test_a_transaction_is_as_before_behind_statements_that_commit_themselves(postgresql, fails):
    engine = open_engine(postgresql.engine())
    with engine.begin() as conn:
        conn.exec_driver_sql("CREATE TABLE t (id int PRIMARY KEY)")
    insert = QueryText("INSERT INTO t VALUES (%(id)s) RETURNING id", {})
    with engine.connect() as conn:
        conn.begin()
        with suppress(DBAPIError), committing_each(conn):
            fetch_text(conn, insert, {"id": 1})
            assert has_sent_nothing(conn)
            if fails:
                fetch_text(conn, insert, {"id": 1})
        fetch_text(conn, insert, {"id": 2})
        level = conn.exec_driver_sql("SHOW transaction_isolation").scalar()
        conn.rollback()
        assert level == "read committed"
        assert conn.exec_driver_sql("SELECT id FROM t").scalars().all() == [1]


def test_who_listens_for_errors_is_told_of_its_error(postgresql):
    engine, told = postgresql.engine(), []
    sa.event.listen(engine, "handle_error", lambda context: told.append(context.statement))
    with engine.connect() as conn, pytest.raises(DBAPIError):
        fetch_text(conn, QueryText("SELECT 1/0", {}), {})
    assert told == ["SELECT 1/0"]


def test_a_value_that_stands_in_the_query_is_sent_with_its_text(postgresql):
    query = sa.select(sa.bindparam("n", type_=sa.Integer()), sa.literal(5, sa.BigInteger()))
    query = query.where(sa.literal(0.5, sa.Float()) < 1)
    with postgresql.engine().connect() as conn:
        text = text_for(conn, query)
        assert text is not None
        assert list(fetch_text(conn, text, {"n": 3})) == [(3, 5)]


class _Doubled(sa.types.TypeDecorator[int]):
    impl, cache_ok = sa.Integer, True

    def process_result_value(self, value: Any, dialect: sa.Dialect) -> Any:
        return value * 2


class _Halved(sa.types.TypeDecorator[int]):
    impl, cache_ok = sa.Integer, True

    def process_bind_param(self, value: Any, dialect: sa.Dialect) -> Any:
        return value // 2


@pytest.mark.parametrize(
    ("column", "asked", "kept"),
    [
        (sa.BigInteger(), sa.Text(), True),
        (sa.String(5), AnyText(), True),
        (sa.Integer(), sa.ARRAY(sa.String()), True),
        (_Doubled(), sa.Integer(), False),
        (sa.Integer(), _Halved(), False),
        (sa.Integer(), sa.ARRAY(_Halved()), False),
        (sa.Numeric(), sa.Integer(), False),
    ],
    ids=["numbers", "texts", "a list", "read", "given", "given in a list", "decimals"],
)
def test_a_text_is_kept_only_where_sqlalchemy_converts_nothing(postgresql, column, asked, kept):
    query = sa.select(sa.literal_column("1", column)).where(sa.bindparam("n", type_=asked) != None)  # noqa: E711
    with postgresql.engine().connect() as conn:
        assert (text_for(conn, query) is not None) is kept


def test_a_text_is_not_kept_where_schemas_are_translated(postgresql):
    with postgresql.engine().connect() as conn:
        mapped = conn.execution_options(schema_translate_map={None: "other"})
        assert text_for(mapped, sa.select(1)) is None


def test_a_password_for_which_the_driver_lacks_a_package_is_a_config_error(monkeypatch):
    """As PyMySQL says it of a login with caching_sha2_password, without TLS."""
    engine = open_engine("mysql+pymysql://u:secret@127.0.0.1:1/db")

    def connect(*_: Any, **__: Any) -> None:
        raise RuntimeError("'cryptography' package is required for sha256_password")

    monkeypatch.setattr(engine.dialect.loaded_dbapi, "connect", connect)
    with pytest.raises(ConfigError, match="pip install cryptography"), connecting(engine):
        pass


@pytest.mark.parametrize("beside_first", [False, True])
def test_engines_beside_each_other_wait_while_one_initializes_their_dialect(
    database, monkeypatch, beside_first
):
    """A worker starts in a thread while another one sends: both connect for the first time."""
    engine = open_engine(database.url)
    pair = [engine, beside(engine)]
    first, second = reversed(pair) if beside_first else pair
    kind, begun, go, done = type(engine.dialect), *(threading.Event() for _ in range(3))
    initialize = kind.initialize

    def slow(dialect: sa.Dialect, conn: sa.Connection) -> None:
        begun.set()
        assert go.wait(60)
        initialize(dialect, conn)

    def connects() -> bool:
        with second.connect():
            done.set()
            return "default_isolation_level" in vars(second.dialect)

    monkeypatch.setattr(kind, "initialize", slow)
    ends = in_thread(lambda: first.connect().close())
    assert begun.wait(60)
    initialized = in_thread(connects)
    done.wait(0.3)
    go.set()
    ends()
    assert initialized()
