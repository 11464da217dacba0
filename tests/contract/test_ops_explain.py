"""Why a message does not run."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from tenacity import wait_fixed

from msgworker import MessageTable
from msgworker.queries.explain import Reason
from tests.support.apps import created
from tests.support.flags import ME, flagged
from tests.support.leases import registered
from tests.support.ops import failing, why
from tests.support.rows import send


def test_explain_done_dead_and_unknown(app, table):
    ids = send(app, "a", "b", "c")
    c = app.tables.message.c.msg_id
    table.edit(c == ids[0], status=2, finished_at=datetime.now(UTC))
    table.edit(c == ids[1], status=-1, error_try_times=3)
    table.edit(c == ids[2], status=7)
    assert [why(app, i) for i in ids] == [Reason.DONE, Reason.DEAD, Reason.UNKNOWN_STATUS]
    assert app.ops.explain(ids[0]).since is not None


def test_explain_running_where_and_since_when(app, table):
    ids = send(app, "a", "b", "c", "d")
    registered(app, "live-1")
    registered(app, "dead-1", ttl=0.0)
    for i, who in zip(ids, ("live-1", "dead-1", "gone-1"), strict=False):
        flagged(app, i, me=who)
    table.edit(app.tables.message.c.msg_id == ids[3], status=1)
    assert [why(app, i) for i in ids] == [
        Reason.RUNNING,
        Reason.RUNNING_DEAD,
        Reason.RUNNING_DEAD,
        Reason.RUNNING_FOREIGN,
    ]
    found = app.ops.explain(ids[0])
    assert found.instance.instance_id == "live-1"
    assert found.since is not None
    assert "live-1" in found.text


def test_explain_behind_with_the_reason_of_that_one(app, table):
    ids = send(app, "a", "a", "a")
    found = app.ops.explain(ids[2])
    assert (found.reason, found.behind.message.msg_id) == (Reason.BEHIND, ids[0])
    assert found.behind.reason is Reason.NO_INSTANCE
    registered(app, "live-1")
    flagged(app, ids[0], me="live-1")
    found = app.ops.explain(ids[1])
    assert (found.reason, found.behind.reason) == (Reason.BEHIND, Reason.RUNNING)


def test_explain_a_late_message_behind_a_later_one_that_runs(app, table):
    ids = send(app, "a", "a", "a")
    table.edit(app.tables.message.c.msg_id == ids[2], status=1, claimed_by=ME)
    for msg_id in ids[:2]:  # the second one, too: what runs is before what waits
        found = app.ops.explain(msg_id)
        assert (found.reason, found.behind.message.msg_id) == (Reason.BEHIND, ids[2])
        assert f"the later message {ids[2]} of the same object a is running" in found.text


def test_explain_behind_a_dead_one_that_blocks(blocking_app):
    failing(blocking_app)
    ids = send(blocking_app, "a", "a")
    blocking_app.drain(linger=5)
    found = blocking_app.ops.explain(ids[1])
    assert (found.reason, found.behind.reason) == (Reason.BEHIND, Reason.DEAD)


def test_explain_not_due(app, make_app):
    (first,) = send(app, "a", delay=3600)
    found = app.ops.explain(first)
    assert found.reason is Reason.NOT_DUE
    assert found.until > datetime.now(UTC) + timedelta(minutes=50)
    app.add_handler("t", lambda msg: 1 / 0, wait=wait_fixed(3600))
    (second,) = send(app, "b")
    app.drain(linger=0)
    found = app.ops.explain(second)
    assert (found.reason, "back-off" in found.text) == (Reason.NOT_DUE, True)
    patient = make_app(table=MessageTable(visibility_delay_seconds=3600))
    (third,) = send(app, "c")
    assert why(patient, third) is Reason.NOT_DUE


def test_explain_no_instance_no_handler_and_next(app):
    (first,) = send(app, "a")
    assert why(app, first) is Reason.NO_INSTANCE
    registered(app, "dead-1", ttl=0.0)
    assert why(app, first) is Reason.NO_INSTANCE
    registered(app, "live-1", topics=["u"])
    assert why(app, first) is Reason.NO_HANDLER
    registered(app, "live-2")
    assert why(app, first) is Reason.NEXT


def test_an_instance_of_another_table_handles_nothing_here(app, make_app):
    other = created(make_app(table=MessageTable("another")))
    registered(other, "live-1")
    (first,) = send(app, "a")
    assert why(app, first) is Reason.NO_INSTANCE
    assert app.ops.instances()[0].other_table == "another"


def test_explain_paused(app):
    (first,) = send(app, "a")
    app.ops.pause("t")
    assert why(app, first) is Reason.PAUSED


def test_explain_quarantine(app, table):
    (first,) = send(app, "a")
    registered(app, "live-1")
    table.edit(status=-1, error_try_times=2, crash_times=1)
    assert why(app, first) is Reason.QUARANTINE


def test_explain_a_message_without_an_object(app):
    first, second = send(app, None, None)
    registered(app, "live-1")
    flagged(app, first, me="live-1")
    assert (why(app, first), why(app, second)) == (Reason.RUNNING, Reason.NEXT)
