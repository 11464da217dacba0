"""Messages sent: send, send_many, a plain INSERT, delayed ones."""

from __future__ import annotations

import json
import sys
import types
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from msgworker import App, ConfigError, DatabaseUnavailable, Message, MessageTable
from msgworker.store import send as store_send
from tests.support.apps import created
from tests.support.rows import Table, send
from tests.support.tables import TABLE, make_table, topicless
from tests.support.watching import Watch


def test_send_of_a_transaction_rolled_back_sends_nothing(app, table):
    class Undo(Exception):
        pass

    def fail() -> None:
        with app.engine.begin() as conn:
            app.send(conn, "t", {"n": 1}, object_id="o")
            app.send_many(conn, "t", [({"n": 2}, "o"), ({"n": 3}, None)])
            raise Undo

    with pytest.raises(Undo):
        fail()
    assert table.statuses == []


def test_send_in_a_session(app, table):
    with Session(app.engine) as session, session.begin():
        assert app.send(session, "t", 1, object_id="o") is not None
        assert app.send_many(session, "t", [(2, "o"), (3, "o")]) == 2
    with Session(app.engine) as session:
        app.send(session, "t", 4, object_id="o")
        app.send_many(session, "t", [(5, "o")])
        session.rollback()
    assert table.column("payload") == ["1", "2", "3"]


@pytest.mark.long
def test_send_many_keeps_order_and_counts(app):
    watch = Watch()
    app.add_handler("t", watch)
    with app.engine.begin() as conn:
        assert app.send_many(conn, "t", [({"n": i}, f"C-{i % 7}") for i in range(6000)]) == 6000
    assert app.drain(threads=2, linger=0).done == 6000
    watch.assert_in_order()


TEXTS = ["", "NULL", "{a,b}", 'a "b" c', "a\\b", "\\", "'", "%s %(x)s :y", "ä\n\t€", " ", None]


@pytest.mark.requires("empty_text")
def test_any_text_is_sent_in_bulk_as_it_is(app, table):
    pairs = [({"text": text}, text) for text in TEXTS]
    with app.engine.begin() as conn:
        assert app.send_many(conn, "t", pairs) == len(pairs)
    assert table.column("object_id") == TEXTS
    assert [json.loads(text)["text"] for text in table.column("payload")] == TEXTS


@pytest.mark.requires("mixed_executemany")
def test_ids_of_several_kinds_are_sent_in_bulk_as_one_by_one(app, table, database):
    ids = [7, "7a", None, 2**40] + [Decimal(12)] * (database.name != "sqlite")
    with app.engine.begin() as conn:
        app.send_many(conn, "t", [(None, one) for one in ids])
        for one in ids:
            app.send(conn, "t", None, object_id=one)
    found = table.column("object_id")
    assert found[: len(ids)] == found[len(ids) :]
    assert table.column("payload") == [None] * len(found)


@pytest.mark.requires("mixed_executemany", of=r"VARCHAR\(40\)")
@pytest.mark.requires("ids_in_a_char", of="-CHAR")
@pytest.mark.parametrize("kind", ["BIGINT", "VARCHAR(40)", "CHAR(8)"])
def test_objects_of_other_columns_are_sent_in_bulk(make_app, database, kind):
    make_table(database, object_id=kind)
    app = created(make_app(table=TABLE))
    with app.engine.begin() as conn:
        app.send_many(conn, "default", [(None, 5), (None, 50), (None, None)])
        app.send_many(conn, "default", [(None, "6"), (None, 7)])
        found = conn.exec_driver_sql("SELECT object_id FROM tb ORDER BY msg_id").scalars().all()
    assert [one if one is None else int(one) for one in found] == [5, 50, None, 6, 7]


@pytest.mark.requires("lengths")
def test_an_id_too_long_for_its_column_is_refused_in_bulk_and_not_cut_off(make_app, database):
    make_table(database, object_id="VARCHAR(4)")
    app = created(make_app(table=TABLE))
    with pytest.raises(ConfigError, match="takes 4 at most"), app.engine.begin() as conn:
        app.send_many(conn, "default", [(None, "abcd"), (None, "abcde")])


def test_payloads_of_many_megabytes_go_in_several_statements_in_order(app, table, monkeypatch):
    monkeypatch.setattr(store_send, "ARRAY_CHARACTERS", 50)
    sent = [{"i": i, "pad": "x" * (i % 4 * 20)} for i in range(40)]
    with app.engine.begin() as conn:
        app.send_many(conn, "t", [(one, None) for one in sent])
    assert [json.loads(text) for text in table.column("payload")] == sent


def test_postgresql_gets_many_messages_by_one_statement(app, database):
    statements = []

    def note(conn, cursor, text, values, context, executemany):
        statements.append(executemany)

    with app.engine.connect() as conn:
        app.send(conn, "t", 0)
        sa.event.listen(conn, "before_cursor_execute", note)
        app.send_many(conn, "t", [(i, f"o{i}") for i in range(100)])
    assert len(statements) == 1
    assert statements[0] is (database.name != "postgresql")


def test_a_producer_sends_while_another_thread_imports_the_orm(app, table, monkeypatch):
    """Its module is there before what it defines."""
    monkeypatch.setitem(sys.modules, "sqlalchemy.orm", types.ModuleType("sqlalchemy.orm"))
    with app.engine.begin() as conn:
        app.send(conn, "t", 0)
    assert table.statuses == [0]


def test_send_many_of_nothing_sends_nothing(app, table):
    with app.engine.begin() as conn:
        assert app.send_many(conn, "t", []) == 0
        assert app.send_many(conn, "t", iter(())) == 0
    assert table.statuses == []


def test_a_topic_is_refused_where_its_handler_would_never_get_it(tmp_path):
    """On a table without topics; a handler would send to itself."""
    app = topicless(App(f"sqlite:///{tmp_path / 'jobs.db'}", table=MessageTable("jobs")))
    told = []
    app.add_handler("default", lambda msg, ctx: told.append(try_to_send(ctx)))
    app.add_handler("t", lambda msg: None)
    with app.engine.begin() as conn:
        for one in ([(None, "a")], [(None, "a")] * 9):
            with pytest.raises(ConfigError, match=r"no topic column.*'t' would be lost"):
                app.send_many(conn, "t", one)
        with pytest.raises(ConfigError, match="MessageTable"):
            app.send(conn, "t", object_id="a")
        app.send(conn, "default", object_id="a")
    assert app.drain(linger=0).done == 1
    assert "no topic column" in told[0]
    assert Table(app).statuses == [2]


def try_to_send(ctx):
    with pytest.raises(ConfigError) as found:
        ctx.send("next")
    return str(found.value)


@pytest.mark.requires("common_sql")
def test_a_plain_insert_is_enough(app, table):
    got: list[Any] = []

    @app.handler("t")
    def handle(msg: Message) -> None:
        got.append((msg.object_id, msg.payload))

    with app.engine.begin() as conn:
        conn.exec_driver_sql(
            "INSERT INTO msgworker_message (topic, object_id, payload) "
            """VALUES ('t', 'C-1', '{"n": 1}'), ('t', 'C-1', NULL), ('t', NULL, '[]')"""
        )
    assert app.drain(linger=0, threads=1).done == 3
    assert [g for g in got if g[0]] == [("C-1", {"n": 1}), ("C-1", None)]
    assert table.statuses == [2, 2, 2]
    assert None not in table.column("finished_at")


def test_delayed_messages_wait_for_their_instant(app, table):
    app.add_handler("t", lambda msg: None)
    send(app, "soon", delay=0.2)
    send(app, "later", delay=timedelta(hours=1))
    send(app, "at", at=datetime.now(UTC) + timedelta(hours=1))
    send(app, "past", at=datetime.now(UTC) - timedelta(hours=1))
    report = app.drain(linger=5)
    assert (report.done, report.left) == (2, 2)
    assert table.statuses == [2, 0, 0, 2]


def test_a_delayed_message_holds_back_its_successors(app, table):
    app.add_handler("t", lambda msg: None)
    send(app, "o", delay=3600)
    send(app, "o", "p")
    assert app.drain(linger=0).done == 1
    assert table.statuses == [0, 0, 2]


@pytest.mark.requires("jsonb", of="jsonb")
@pytest.mark.requires("common_sql")
@pytest.mark.parametrize("kind", ["json", "jsonb"])
def test_a_payload_is_json_once_in_a_column_of_a_json_type(make_app, database, kind):
    app = make_app(table=MessageTable("typed"))
    number = {"sqlite": "INTEGER", "postgresql": "SERIAL", "mariadb": "INT AUTO_INCREMENT"}
    with app.engine.begin() as conn:
        conn.exec_driver_sql(
            f"CREATE TABLE typed (msg_id {number[database.name]} PRIMARY KEY, "
            "object_id VARCHAR(20), topic VARCHAR(20), status SMALLINT DEFAULT 0 NOT NULL, "
            f"error_try_times SMALLINT DEFAULT 0 NOT NULL, payload {kind})"
        )
    app.create_schema()
    seen: list[Any] = []
    app.add_handler("t", lambda msg: seen.append(msg.payload))
    with app.engine.begin() as conn:
        app.send(conn, "t", {"cents": 700}, object_id="A")
        app.send_many(conn, "t", [({"cents": 5}, "A"), (None, "A")])
        conn.exec_driver_sql(
            "INSERT INTO typed (topic, object_id, payload) VALUES ('t', 'A', '{\"cents\": 1}')"
        )
    assert app.drain(linger=0).done == 4
    assert seen == [{"cents": 700}, {"cents": 5}, None, {"cents": 1}]


def test_the_first_send_does_not_wait_without_end_for_a_lock_of_its_own_transaction(
    postgresql, monkeypatch
):
    """It reads the tables on a connection of its own, which may wait for the caller's."""
    monkeypatch.setattr("msgworker.app.TABLES_SECONDS", 0.5)
    app, other = App(postgresql.url), App(postgresql.url)
    app.create_schema()
    with app.engine.begin() as conn:
        conn.exec_driver_sql("LOCK TABLE msgworker_message")
        with pytest.raises(DatabaseUnavailable, match="has it locked"):
            other.send(conn, "t")
    with other.engine.begin() as conn:
        other.send(conn, "t")


def test_sessions_that_we_open_have_a_name(postgresql):
    app = App(postgresql.url)
    with app.engine.connect() as conn:
        assert conn.scalar(sa.text("SHOW application_name")) == "msgworker"
    app.engine.dispose()
    named = sa.make_url(postgresql.url).update_query_dict({"application_name": "crm"})
    app = App(named)
    with app.engine.connect() as conn:
        assert conn.scalar(sa.text("SHOW application_name")) == "crm"


def test_the_log_of_sqlite_is_cut_back(sqlite_app):
    with sqlite_app.engine.connect() as conn:
        assert conn.scalar(sa.text("PRAGMA journal_size_limit")) == 64 * 1024 * 1024
