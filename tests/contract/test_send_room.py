"""What is longer than its column is refused before it is sent: some servers would cut it off."""

from __future__ import annotations

from decimal import Decimal

import pytest

from msgworker import App, ConfigError, PayloadError
from tests.support.apps import created
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
    app = created(make_app(table=SEED.replace(**names)))
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
    app = created(App(mariadb.url, table=SEED.replace(payload="body")))
    with app.engine.begin() as conn:
        conn.exec_driver_sql("SET SESSION sql_mode = ''")
        app.send(conn, "default", "ü" * 126, object_id=2**31 - 1)  # 252 bytes, and two quotes
        with pytest.raises(PayloadError, match=r"payload has 256 bytes.*takes 255"):
            app.send(conn, "default", "ü" * 127, object_id=1)
        with pytest.raises(ConfigError, match="object_id is 2147483648"):
            app.send(conn, "default", "x", object_id=2**31)
    assert Table(app).rows("object_id") == [(2**31 - 1,)]


IDS = {
    "BIGINT": ["nightly", "12abc", "", "1.5", Decimal("1.5"), Decimal("NaN"), 2**63],
    "INT UNSIGNED": [-1, "-1", 2**32],
    "DECIMAL(4, 1)": ["x", 1000, Decimal("1.25"), Decimal("-Infinity")],
    "DOUBLE": ["x", Decimal("NaN")],
    "DATE": ["x", 5],
    "ENUM('calm', 'glad')": ["x", "1", 1],
    "VARCHAR(50) CHARACTER SET latin1": ["\u4e2d"],
    "VARCHAR(50) CHARACTER SET utf8mb3": ["\U0001f600"],
}


@pytest.mark.parametrize("kind", IDS)
def test_what_is_no_object_of_its_column_is_refused_and_not_made_another_one(mariadb, kind):
    foreign_table(mariadb, objectID=kind)
    app = created(App(mariadb.url, table=SEED))
    with app.engine.connect() as conn:
        conn.exec_driver_sql("SET SESSION sql_mode = ''")  # it would be 0, '' or '?'
        for wrong in IDS[kind]:
            with pytest.raises(ConfigError, match="object_id"):
                app.send(conn, "default", object_id=wrong)
            with pytest.raises(ConfigError, match="object_id"):
                app.send_many(conn, "default", [(None, None), (None, wrong)])
        conn.commit()
    assert Table(app).rows("msg_id") == []


GOOD_IDS = [
    ("BIGINT", [7, "7", "007", "7.0", Decimal(7)], 7),
    ("DECIMAL(4, 1)", ["7.5", Decimal("7.50")], Decimal("7.5")),
    ("VARCHAR(50)", ["7", 7, Decimal(7)], "7"),
]


@pytest.mark.requires("column_types")
@pytest.mark.requires("fractions", of="DECIMAL")
@pytest.mark.parametrize(("kind", "ways", "held"), GOOD_IDS)
def test_an_object_id_is_sent_as_its_column_has_it(server, make_app, kind, ways, held):
    foreign_table(server, objectID=kind)
    app = created(make_app(table=SEED))
    with app.engine.begin() as conn:
        if kind != "VARCHAR(50)":
            with pytest.raises(ConfigError, match="'x' is no object_id of table tb_cus_msg"):
                app.send(conn, "default", object_id="x")  # and the transaction is sound
        for way in ways:
            app.send(conn, "default", object_id=way)
            app.send_many(conn, "default", [(None, way)])
    assert Table(app).rows("object_id") == [(held,)] * len(ways) * 2


@pytest.mark.parametrize("kind", ["latin1", "utf8mb3"])
def test_a_key_or_topic_is_not_replaced_by_question_marks(mariadb, kind):
    """Two such keys would be one, and the second message would not be sent."""
    text = f"VARCHAR(50) CHARACTER SET {kind}"
    columns = {"topic": text, "body": f"TEXT CHARACTER SET {kind}", "k": text}
    columns |= {"kept": "SMALLINT", "done_at": "DATETIME(6)"}
    foreign_table(mariadb, **columns)
    names = {"topic": "topic", "payload": "body", "unique_key": "k", "unique_kept": "kept"}
    names["finished_at"] = "done_at"
    app = created(App(mariadb.url, table=SEED.replace(**names)))
    with app.engine.begin() as conn:
        conn.exec_driver_sql("SET SESSION sql_mode = ''")
        for wrong in ({"topic": "\U0001f600"}, {"unique_key": "\U0001f600"}):
            with pytest.raises(ConfigError, match=f"characters of {kind} only"):
                app.send(conn, **{"topic": "t"} | wrong)
        with pytest.raises(PayloadError, match=f"characters of {kind} only"):
            app.send(conn, "t", "\U0001f600")
        app.send(conn, "\u00e4", "\u00e4", unique_key="\u00e4")
    table = Table(app)
    assert table.rows("topic") == table.rows("unique_key") == [("\u00e4",)]
