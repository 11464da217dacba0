"""What is longer than its column is refused before it is sent: some servers would cut it off."""

from __future__ import annotations

import pytest

from msgworker import App, ConfigError, PayloadError
from tests.support.rows import Table
from tests.support.tables import SEED, foreign_table

LONG = {
    "topic": ("topic VARCHAR(20)", {"topic": "t" * 21}, ConfigError, "topic has 21 characters"),
    "object id": ("x INT", {"object_id": "ü" * 51}, ConfigError, "object_id has 51 characters"),
    "a number as text": ("x INT", {"object_id": 10**50}, ConfigError, "object_id has 51 charac"),
    "payload": ("body VARCHAR(40)", {"payload": "p" * 39}, PayloadError, "payload has 41 charac"),
}


@pytest.mark.requires("column_types")
@pytest.mark.parametrize("case", LONG)
def test_what_its_column_does_not_take_is_refused_before_it_is_sent(server, make_app, case):
    column, sent, kind, words = LONG[case]
    name, _, of = column.partition(" ")
    foreign_table(server, **{"objectID": "VARCHAR(50)"} | {name: of})
    names = {"topic": {"topic": "topic"}, "body": {"payload": "body"}}.get(name, {})
    app = make_app(table=SEED.replace(**names))
    app.create_schema()
    topic = sent.get("topic", "default")
    payload, object_id = sent.get("payload"), sent.get("object_id")
    with app.engine.connect() as conn:
        if server.name == "mariadb":
            conn.exec_driver_sql("SET SESSION sql_mode = ''")  # it would be cut off
        with pytest.raises(kind, match=words):
            app.send(conn, topic, payload, object_id=object_id)
        with pytest.raises(kind, match=words):
            app.send_many(conn, topic, [(None, "good"), (payload, object_id)])
        conn.commit()
    assert Table(app).rows("msg_id") == []


def test_a_text_in_bytes_is_counted_in_bytes(mariadb):
    foreign_table(mariadb, body="TINYTEXT CHARACTER SET utf8mb4", objectID="INT")
    app = App(mariadb.url, table=SEED.replace(payload="body"))
    app.create_schema()
    with app.engine.begin() as conn:
        conn.exec_driver_sql("SET SESSION sql_mode = ''")
        app.send(conn, "default", "ü" * 126, object_id=2**31 - 1)  # 252 bytes, and two quotes
        with pytest.raises(PayloadError, match=r"payload has 256 bytes.*takes 255"):
            app.send(conn, "default", "ü" * 127, object_id=1)
        with pytest.raises(ConfigError, match="object_id is 2147483648"):
            app.send(conn, "default", "x", object_id=2**31)
    assert Table(app).rows("object_id") == [(2**31 - 1,)]
