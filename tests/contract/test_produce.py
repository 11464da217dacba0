"""Messages sent: send, send_many, a plain INSERT, delayed ones."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy.orm import Session

from msgworker import App, ConfigError, Message, MessageTable
from tests.support.rows import Table, send
from tests.support.tables import topicless
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


def test_send_many_keeps_order_and_counts(app):
    watch = Watch()
    app.add_handler("t", watch)
    with app.engine.begin() as conn:
        assert app.send_many(conn, "t", [({"n": i}, f"C-{i % 7}") for i in range(6000)]) == 6000
    assert app.drain(threads=2, linger=0).done == 6000
    watch.assert_in_order()


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


@pytest.mark.parametrize("kind", ["json", "jsonb"])
def test_a_payload_is_json_once_in_a_column_of_a_json_type(make_app, database, kind):
    if database.name == "mariadb" and kind == "jsonb":
        pytest.skip("no such type there")
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
