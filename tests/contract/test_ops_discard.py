"""Discard."""

from __future__ import annotations

import pytest

from msgworker import App, ConfigError, MessageTable, Reject, SchemaError
from msgworker.ops.results import Why
from tests.engines import plain_engine
from tests.support.apps import created
from tests.support.ops import DONE, FAILED, NEW, RUNNING, put
from tests.support.rows import Table, send


def test_discard(app, table):
    ids = put(app, ("a", NEW), ("b", RUNNING), ("c", DONE), ("d", FAILED))
    failed = put(app, ("e", FAILED), tries=1)
    done = app.ops.discard([*ids, *failed, 99], reason="twin of 7", actor="alice")
    assert (done.changed, done.skipped) == (3, 3)
    assert {s.why for s in done.skips} == {Why.RUNNING, Why.ENDED, Why.NOT_THERE}
    assert table.rows("status", "error_try_times") == [(-1, 3), (1, 0), (2, 0), (-1, 3), (-1, 3)]
    assert table.column("last_error")[0] == "discarded by alice: twin of 7"
    assert table.column("finished_at")[0] is not None
    again = app.ops.discard([ids[0]], reason="x")
    assert (again, again.skips[0].why) == (0, Why.GIVEN_UP)


@pytest.mark.requires("common_sql")
@pytest.mark.parametrize("length", [40, 13, 5])
def test_discard_where_the_text_is_too_long_for_the_column(make_app, database, length):
    """Of a table that was adopted; cut, it still says what it must: that an operator gave it up."""
    kind = f"VARCHAR({length})"
    if database.name == "mariadb":
        kind += " CHARACTER SET ascii"
    number = "INTEGER" if database.name == "sqlite" else "BIGINT"  # which counts there
    engine = plain_engine(database.url)
    with engine.begin() as conn:
        conn.exec_driver_sql(
            f"CREATE TABLE tb (msg_id {number} PRIMARY KEY, object_id VARCHAR(20), "
            "status SMALLINT DEFAULT 0 NOT NULL, error_try_times SMALLINT DEFAULT 0 NOT NULL, "
            f"claimed_by VARCHAR(64), last_error {kind} CHECK (length(last_error) <= {length}))"
        )
        conn.exec_driver_sql("INSERT INTO tb (msg_id, object_id) VALUES (1, 'a'), (2, 'b')")
    engine.dispose()
    app = make_app(table=MessageTable("tb", payload=None))
    if database.name == "sqlite" and length < 40:  # where only a CHECK cuts, it must let us fail
        with pytest.raises(SchemaError, match="does not take one that has failed"):
            app.create_schema()
        return
    app.create_schema()
    table = Table(app)
    reason = "no use any more " * 5
    assert app.ops.discard([1, 2], reason=reason, actor="Zo\u00eb") == 2
    assert table.rows("status", "error_try_times") == [(-1, 3)] * 2
    assert app.ops.audit()[0].reason == reason
    text = table.column("last_error")[0]
    if length < 13:
        assert text is None
    else:
        assert "discarded by Zo\u00eb: no use".startswith(text[:15])
        assert app.ops.rerun() == 0
    assert app.ops.rerun([1]) == 1


def test_an_error_that_begins_as_a_discard_does_is_none_where_dead_ones_block(blocking_app):
    """A discard has written one try more."""
    (dead,) = put(blocking_app, ("a", FAILED), last_error="discarded by the bank: no")
    assert blocking_app.ops.rerun(dry_run=True) == 1
    assert blocking_app.ops.discard(dead, reason="r") == 1
    assert blocking_app.ops.rerun(dry_run=True) == 0


def test_discard_lets_a_blocked_object_go_on(blocking_app):
    app, table = blocking_app, Table(blocking_app)
    app.add_handler("t", lambda msg: Reject("no") if msg.payload == "bad" else None)
    (bad,) = send(app, "o", payload="bad")
    send(app, "o", payload="good")
    assert app.drain(linger=0).failed == 1
    assert app.drain(linger=0).done == 0
    assert app.ops.discard([bad], reason="no use") == 1
    assert app.drain(linger=0).done == 1
    assert table.rows("status", "error_try_times") == [(-1, 4), (2, 0)]
    assert app.ops.discard(topic="t", reason="x") == 0
    assert app.ops.rerun() == 0  # all dead ones, but not those that were given up
    assert app.ops.rerun([bad], force=True) == 1


def test_discard_by_filter_takes_what_is_unfinished(app, table):
    put(app, ("a", NEW), ("b", DONE), ("c", RUNNING))
    put(app, ("d", FAILED), tries=1)
    assert app.ops.discard(topic="t", reason="r", dry_run=True) == 2
    assert app.ops.discard(topic="t", reason="r") == 2
    assert table.statuses == [-1, 2, 1, -1]


def test_discard_refuses(sqlite, subtests):
    app = created(App(sqlite.url))
    put(app, ("a", NEW))
    for given in (
        {"ids": [1]},
        {"ids": [1], "reason": ""},
        {"ids": [1], "reason": "  "},
        {"reason": "all"},
        {"status": "processing", "reason": "r"},
        {"status": "done", "reason": "r"},
        {"status": "x", "reason": "r"},
        {"ids": [1], "topic": "t", "reason": "r"},
    ):
        with subtests.test(given=given):
            with pytest.raises(ConfigError):
                app.ops.discard(**given)
            assert Table(app).statuses == [0]
