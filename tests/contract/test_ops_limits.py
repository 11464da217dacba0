"""What operators see of limits: who holds the permits, why a message waits, what a drain leaves."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from msgworker import App, ConfigError
from msgworker.errors import ExitCode
from msgworker.queries.explain import Reason
from msgworker.table.build import LIMIT
from tests.support.leases import registered
from tests.support.ops import why
from tests.support.rows import edit, send


def test_limits_tell_who_holds_the_permits_and_when_the_next_token_comes(app):
    app.add_handler("t", lambda msg: None, max_running=2)
    app.add_handler("paced", lambda msg: None, rate="1/h", burst=3)
    assert app.ops.limits() == []
    held, _ = send(app, "a", "b")
    send(app, *range(3), topic="paced")
    registered(app, "other-1")
    edit(app, held, status=1, claimed_by="other-1")
    app.drain(linger=0, topics=["paced"])
    app.drain(linger=0, topics=["t"])
    paced, t = app.ops.limits()
    assert (t.topic, t.max_running, t.running, dict(t.holders)) == ("t", 2, 1, {"other-1": 1})
    assert (t.rate, t.starts, t.why) == (None, None, None)
    assert (paced.rate, paced.burst, paced.starts) == ("1/h", 3, 0)
    assert 3500 < (paced.next_seconds or 0) <= 3600


def test_limits_of_many_topics_take_no_more_statements_than_those_of_one(sqlite_app):
    app = sqlite_app
    asked = []
    sa.event.listen(app.engine, "before_cursor_execute", lambda *told: asked.append(told[2]))
    counts = []
    for count in (1, 20):
        for n in range(count):
            app.add_handler(f"t{count}.{n}", lambda msg: None, max_running=2)
        app.drain(linger=0)
        app.ops.limits()
        del asked[:]
        assert len(app.ops.limits()) >= count
        counts.append(len(asked))
    assert counts[0] == counts[1]


def test_explain_names_the_permit_or_the_token_that_a_message_waits_for(app):
    app.add_handler("t", lambda msg: None, max_running=1)
    app.add_handler("paced", lambda msg: None, rate="1/h", burst=1)
    held, waits = send(app, "a", "b")
    _, late = send(app, "c", "d", topic="paced")
    registered(app, "other-1")
    edit(app, held, status=1, claimed_by="other-1")
    report = app.drain(linger=0)
    assert (report.done, report.left_by["limited"]) == (1, 2)
    assert report.exit_code == ExitCode.RETRIES
    registered(app, "live-1", topics=["t", "paced"])
    found = app.ops.explain(waits)
    assert found.reason is Reason.LIMITED
    assert found.text == "it waits for a permit of t: 1 of 1 running, held by other-1 (1)"
    assert (found.limit.use, found.limit.lacks) == ("1 of 1 running", "a permit")
    lanes = {lane.head.msg_id: lane for lane in app.ops.lanes()}
    assert (lanes[waits].reason, lanes[waits].why) == (found.reason, found.text)
    assert (lanes[held].reason, lanes[held].limited) == (Reason.RUNNING, None)
    assert lanes[waits].why == f"it waits for {lanes[waits].limited}"  # its name until 1.0
    paced = app.ops.explain(late)
    assert "a start of paced: its rate is 1/h, the next in 3." in paced.text
    assert paced.limit.use.startswith("0 running, rate 1/h (next start in 3.")
    assert paced.limit.lacks == "a start"
    edit(app, held, status=2, claimed_by=None)
    assert why(app, waits) is Reason.NEXT
    assert (app.ops.explain(waits).limit.use, app.ops.explain(held).limit) == (
        "0 of 1 running",
        None,
    )


def test_without_their_table_there_are_no_limits_to_list_and_to_remove(app, make_app):
    with app.engine.begin() as conn:
        conn.execute(sa.text("DROP TABLE msgworker_limit"))
    ops = make_app().ops
    ops.cancel(ids=[1], reason="looks again at what is missing")
    assert ops.limits() == []
    assert ops.remove_limit("t") == 0


def test_a_limit_is_removed_with_an_audit(app):
    app.add_handler("t", lambda msg: None, max_running=1)
    app.drain(linger=0)
    assert app.ops.remove_limit("t", dry_run=True) == 1
    assert app.ops.remove_limit("t", reason="no longer needed", actor="alice") == 1
    assert app.ops.limits() == []
    assert app.ops.remove_limit("t") == 0
    (entry,) = app.ops.audit()
    assert (entry.kind, entry.actor, entry.reason) == ("unlimit", "alice", "no longer needed")
    with pytest.raises(ConfigError):
        app.ops.remove_limit("")


@pytest.mark.parametrize("number", [0, -3])
def test_a_max_running_of_0_that_an_operator_has_written_lets_none_start(app, number):
    app.add_handler("t", lambda msg: None, max_running=2)
    app.drain(linger=0)
    record = LIMIT.of(app.tables)
    with app.engine.begin() as conn:
        conn.execute(sa.update(record).values(max_running=number))
    without = App(app.engine, table=app.table)  # a declaration would take its place
    without.add_handler("t", lambda msg: None)
    (waits,) = send(app, "a")
    report = without.drain(linger=0)
    assert (report.done, report.left_by["limited"]) == (0, 1)
    assert [one.max_running for one in app.ops.limits()] == [0]
    registered(app, "live-1", topics=["t"])
    assert why(app, waits) is Reason.LIMITED
    with app.engine.begin() as conn:
        conn.execute(sa.update(record).values(max_running=sa.null()))
    assert without.drain(linger=0).done == 1
