"""The tick of a message that a schedule has sent, as its handler reads it."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime

import sqlalchemy as sa

from msgworker import App, MessageTable
from tests.support.doctor import needed
from tests.support.rows import Table, edit, send

TICK = datetime(2026, 3, 29, 1, 30, tzinfo=UTC)
NOW = {"linger": 0, "threads": 1}


def selects_of_a_tick(app: App) -> list[str]:
    """The statements that read a tick, from now on."""
    seen: list[str] = []

    @sa.event.listens_for(app.engine, "before_cursor_execute")
    def _(conn, cursor, text, *rest):
        if "scheduled_for" in text:
            seen.append(text)

    return seen


def test_a_handler_reads_the_tick_of_its_message_and_none_of_others(app):
    sent = send(app, "a", "b")
    edit(app, sent[0], scheduled_for=TICK)
    read: list[datetime | None] = []
    app.add_handler("t", lambda msg: read.append(msg.scheduled_for))
    assert app.drain(**NOW).done == 2
    assert read == [TICK, None]


def test_a_transactional_handler_and_a_batch_read_the_tick(app):
    sent = send(app, "a", "a", "b")
    for msg_id in sent:
        edit(app, msg_id, scheduled_for=TICK)
    read: list[datetime | None] = []

    @app.handler("t", transactional=True, batch=10)
    def handle(messages):
        read.extend(msg.scheduled_for for msg in messages)

    assert app.drain(**NOW).done == 3
    assert read == [TICK] * 3


def test_the_tick_is_read_once_and_only_if_somebody_asks(app):
    sent = send(app, "a", "b", "c")
    for msg_id in sent:
        edit(app, msg_id, scheduled_for=TICK)
    seen = selects_of_a_tick(app)
    copies = []

    @app.handler("t")
    def handle(msg):
        assert "scheduled_for" not in repr(msg)  # a line in a log reads nothing
        if msg.object_id == "b":
            assert msg.scheduled_for == msg.scheduled_for == TICK
        if msg.object_id == "c":
            copies.append(pickle.loads(pickle.dumps(msg)))

    assert app.drain(**NOW).done == 3
    assert len(seen) == 2
    assert [copy.scheduled_for for copy in copies] == [TICK]


def test_a_tick_that_is_no_instant_is_none(sqlite_app):
    app = sqlite_app
    (msg_id,) = send(app, "a")
    with app.engine.begin() as conn:
        conn.exec_driver_sql("UPDATE msgworker_message SET scheduled_for = 'noon'")
    read: list[datetime | None] = []
    app.add_handler("t", lambda msg: read.append(msg.scheduled_for))
    assert app.drain(**NOW).done == 1
    assert read == [None]
    assert app.ops.show(msg_id).odd == {"scheduled_for": '"noon"'}


def test_a_table_of_an_earlier_version_works_without_ticks_until_init_db(app, make_app):
    with app.engine.begin() as conn:
        conn.exec_driver_sql("ALTER TABLE msgworker_message DROP COLUMN scheduled_for")
    old = make_app()
    read: list[datetime | None] = []
    old.add_handler("t", lambda msg: read.append(msg.scheduled_for))
    send(old, "a")
    assert old.drain(**NOW).done == 1
    assert read == [None]
    assert needed(old) == []
    told = [one for one in old.ops.doctor() if "scheduled_for" in one.text]
    assert ["does not say for which instant" in one.text for one in told] == [True]
    assert old.create_schema() == ["scheduled_for"]


def test_a_column_of_that_name_in_a_table_of_yours_is_yours(make_app):
    other = make_app(table=MessageTable("crm_msg"))
    with other.engine.begin() as conn:
        conn.exec_driver_sql(
            "CREATE TABLE crm_msg (msg_id INTEGER PRIMARY KEY, object_id VARCHAR(50), topic "
            "VARCHAR(50), status SMALLINT DEFAULT 0 NOT NULL, error_try_times SMALLINT DEFAULT 0 "
            "NOT NULL, claimed_by VARCHAR(64), scheduled_for VARCHAR(10))"
        )
        conn.exec_driver_sql(
            "INSERT INTO crm_msg (msg_id, object_id, topic, scheduled_for) "
            "VALUES (1, 'a', 't', 'x')"
        )
    other.create_schema()
    read: list[datetime | None] = []
    other.add_handler("t", lambda msg: read.append(msg.scheduled_for))
    assert other.drain(**NOW).done == 1
    assert read == [None]
    assert Table(other).column("status") == [2]
    assert not other.tables.has("scheduled_for")
