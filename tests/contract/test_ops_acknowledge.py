"""Acknowledge: dead messages that an operator knows of."""

from __future__ import annotations

import pytest

from msgworker import App, ConfigError, MessageTable, Reject
from msgworker.message import State
from msgworker.metrics.exposition import metrics_of
from msgworker.ops.results import Why
from msgworker.queries.messages import How
from msgworker.table.columns import MAX_ERROR
from tests.engines import plain_engine
from tests.support.apps import created
from tests.support.ops import DONE, FAILED, NEW, RUNNING, many_dead, put
from tests.support.rows import Table, edit, send


def _dead(app: App) -> tuple[int, int]:
    """How many are dead, and how many of these are not acknowledged."""
    found = app.ops.overview()
    (topic,) = found.topics
    assert topic.unacknowledged == found.unacknowledged
    (count,) = [one for one in app.ops.counts() if one.status is State.DEAD]
    assert count.count - count.acknowledged == found.unacknowledged.count
    return found.count("dead").count, found.unacknowledged.count


def test_an_acknowledged_message_stays_dead_and_calls_for_help_no_more(app, table):
    first, second = put(app, ("a", FAILED), ("b", FAILED))
    assert _dead(app) == (2, 2)
    done = app.ops.acknowledge(first, reason="bank is\ninformed", actor="anna")
    assert (done, done.skipped) == (1, 0)
    assert _dead(app) == (2, 1)
    assert [(one.dead, one.sample_id) for one in app.ops.failures()] == [(1, second)]
    info = app.ops.show(first)
    assert (info.status, info.last_error) == (State.DEAD, "ValueError: no")
    assert info.acknowledged == "anna: bank is informed"
    assert table.rows("status", "error_try_times")[0] == (-1, 3)
    assert "acknowledged by anna: bank is informed" in app.ops.explain(first).text
    told = app.ops.audit(first)[0]
    assert (told.kind, told.actor, told.reason) == ("acknowledge", "anna", "bank is\ninformed")
    assert told.was_error == "ValueError: no"
    table.edit(table.where(msg_id=second), last_error="x" * MAX_ERROR)
    assert app.ops.acknowledge(second, reason="r", actor="anna") == 1
    line = "acknowledged by anna: r\n"
    assert table.column("last_error")[1] == line + "x" * (MAX_ERROR - len(line))


def test_discarded_and_cancelled_ones_are_known_too(app):
    ids = put(app, ("a", NEW), ("b", NEW), ("c", FAILED))
    app.ops.discard(ids[0], reason="twin")
    app.ops.cancel(ids[1], reason="wrong file")
    assert _dead(app) == (3, 1)
    assert [one.sample_id for one in app.ops.failures()] == [ids[2]]
    done = app.ops.acknowledge(ids, reason="r")
    assert (done, {skip.why for skip in done.skips}) == (1, {Why.KNOWN})
    assert _dead(app) == (3, 0)
    assert [one.ending.how for one in app.ops.find()][:2] == [How.DISCARDED, How.CANCELLED]


def test_what_is_rerun_and_dies_again_is_not_acknowledged(app, table):
    app.add_handler("t", lambda msg: Reject("no"))
    (msg_id,) = send(app, "a")
    app.drain(linger=0)
    assert app.ops.acknowledge(msg_id, reason="r") == 1
    assert _dead(app) == (1, 0)
    assert app.ops.rerun(dry_run=True) == 1  # it is not given up
    assert app.ops.rerun(msg_id) == 1
    assert (app.ops.show(msg_id).acknowledged, table.one("last_error")) == (None, None)
    app.drain(linger=0)
    assert _dead(app) == (1, 1)
    assert app.ops.acknowledge(msg_id, reason="again") == 1
    app.ops.rerun(msg_id)
    edit(app, msg_id, status=FAILED, error_try_times=3)  # by a foreign consumer
    assert _dead(app) == (1, 1)


@pytest.mark.parametrize("word", ["discard", "cancel"])
def test_what_was_given_up_is_known_no_more_once_it_is_rerun(app, table, word):
    (msg_id,) = put(app, ("a", NEW))
    getattr(app.ops, word)(msg_id, reason="wrong")
    assert _dead(app) == (1, 0)
    assert app.ops.rerun(msg_id) == 1
    assert table.one("last_error") is None
    edit(app, msg_id, status=FAILED, error_try_times=3)  # by a foreign consumer
    assert _dead(app) == (1, 1)
    assert [one.dead for one in app.ops.failures()] == [1]
    assert app.ops.show(msg_id).ending.how is How.UNKNOWN
    assert "wrong" not in app.ops.explain(msg_id).text


def test_a_group_is_acknowledged_and_rerun_by_its_group(app):
    many_dead(app, 3)
    put(app, ("x", FAILED), last_error="KeyError: 'a'")
    (group, other) = app.ops.failures()
    assert app.ops.acknowledge(fingerprint=group.fingerprint, reason="r") == 3
    assert [one.fingerprint for one in app.ops.failures()] == [other.fingerprint]
    assert len(app.ops.messages(fingerprint=group.fingerprint)) == 3
    assert app.ops.rerun(fingerprint=group.fingerprint, acknowledged=False, dry_run=True) == 0
    assert app.ops.rerun(fingerprint=group.fingerprint, dry_run=True) == 3


def test_lists_and_writes_take_those_that_are_not_acknowledged(app):
    known, new = put(app, ("a", FAILED), ("b", FAILED))
    put(app, ("c", NEW), ("d", DONE), ("e", RUNNING))
    app.ops.acknowledge(known, reason="r")
    for acknowledged, ids in ((True, [known]), (False, [new]), (None, [known, new])):
        chosen = {"status": "dead", "acknowledged": acknowledged}
        assert [one.msg_id for one in app.ops.find(**chosen)] == ids
        assert [one.msg_id for one in app.ops.messages(**chosen, newest=False)] == ids
    assert [one.msg_id for one in app.ops.find(acknowledged=False)] == [new]
    assert app.ops.acknowledge(acknowledged=False, reason="r", dry_run=True) == 1
    done = app.ops.rerun(acknowledged=False)
    assert (done, app.ops.audit()[0].filter) == (1, {"acknowledged": False})
    assert [one.msg_id for one in app.ops.find(status="dead")] == [known]


def test_an_acknowledged_message_that_blocks_goes_on_blocking(blocking_app):
    app = blocking_app
    (dead, behind) = put(app, ("o", FAILED), ("o", NEW))
    app.add_handler("t", lambda msg: None)
    assert app.ops.acknowledge(dead, reason="r") == 1
    assert app.drain(linger=0).done == 0
    assert app.ops.discard(dead, reason="r") == 1
    assert app.drain(linger=0).done == 1
    assert app.ops.show(dead).acknowledged is None
    assert app.ops.show(behind).status is State.DONE


def _held(app: App) -> tuple[int, int]:
    """How many dead messages hold up their object, and a job."""
    found = app.ops.overview()
    counts = [one for one in app.ops.counts() if one.status is State.DEAD]
    sums = [sum(getattr(one, name) for one in counts) for name in ("hold_objects", "hold_jobs")]
    assert [found.hold_objects.count, found.hold_jobs.count] == sums
    for name, total in zip(("hold_objects", "hold_jobs"), sums, strict=True):
        assert sum(getattr(topic, name).count for topic in found.topics) == total
        key = ("msgworker_table_dead_holding", ("t", name.removeprefix("hold_").rstrip("s")))
        assert metrics_of(found)[key] == total
    return sums[0], sums[1]


def test_what_an_acknowledged_message_holds_up_is_counted_before_and_after(blocking_app):
    app = blocking_app
    blocks, _, free = put(app, ("o", FAILED), ("o", NEW), (None, FAILED))
    away, alive = put(app, ("p", NEW), ("q", NEW))
    app.ops.discard(away, reason="r")
    assert _held(app) == (1, 0)
    would = app.ops.acknowledge([blocks, free, away, alive], dry_run=True)
    assert (would, would.holding) == (2, 1)
    assert app.ops.acknowledge([blocks, free], reason="r") == 2
    assert (_dead(app)[1], _held(app)) == (0, (1, 0))
    assert "its object waits until it is rerun or discarded" in app.ops.explain(blocks).text
    assert "waits until" not in app.ops.explain(free).text
    (lane,) = [one for one in app.ops.lanes() if one.object_id == "o"]
    assert (lane.head.msg_id, lane.head.acknowledged is None) == (blocks, False)
    assert app.ops.discard(blocks, reason="r") == 1
    assert _held(app) == (0, 0)


def test_a_dead_message_that_a_job_waits_for_is_told_though_it_is_acknowledged(app):
    jobs = []
    for on_dead in ("wait", "complete"):
        with app.engine.begin() as conn, app.job("a", on_dead=on_dead, conn=conn) as job:
            app.send(conn, "t", object_id=on_dead, job=job)
        jobs.append(job.job_id)
    table = Table(app)
    waited, other = table.column("msg_id")
    table.edit(status=-1, error_try_times=3)
    assert app.ops.acknowledge([waited, other], dry_run=True).holding == 1
    assert app.ops.acknowledge([waited, other], reason="r") == 2
    assert (_dead(app)[1], _held(app)) == (0, (0, 1))
    text = app.ops.explain(waited).text
    assert f"its job {jobs[0]} waits until it is rerun or discarded" in text
    assert "waits until" not in app.ops.explain(other).text
    assert app.ops.cancel_job(jobs[0], reason="r") is not None
    assert _held(app) == (0, 0)


def test_acknowledge_skips_what_is_not_dead(app):
    ids = put(app, ("a", NEW), ("b", RUNNING), ("c", DONE))
    ids += put(app, ("d", FAILED), tries=1)
    done = app.ops.acknowledge([*ids, 99], reason="r")
    whys = {skip.msg_id: skip.why for skip in done.skips}
    assert whys == dict.fromkeys(ids, Why.NOT_DEAD) | {99: Why.NOT_THERE}


def test_acknowledge_refuses(sqlite, subtests):
    app = created(App(sqlite.url))
    put(app, ("a", FAILED))
    for given in (
        {"ids": [1]},
        {"ids": [1], "reason": " "},
        {"reason": "all"},
        {"status": "new", "reason": "r"},
        {"ids": [1], "topic": "t", "reason": "r"},
        {"acknowledged": 1, "reason": "r"},
        {"ids": [1], "acknowledged": False, "reason": "r"},
    ):
        with subtests.test(given=given):
            with pytest.raises(ConfigError):
                app.ops.acknowledge(**given)
            assert Table(app).column("last_error") == ["ValueError: no"]


def test_only_dead_messages_are_asked_whether_they_are_acknowledged(sqlite, subtests):
    app = created(App(sqlite.url))
    for word in ("find", "messages", "discard", "cancel", "rerun"):
        with subtests.test(word=word):
            more = {} if word in ("find", "messages", "rerun") else {"reason": "r"}
            with pytest.raises(ConfigError, match="acknowledged is about dead messages"):
                getattr(app.ops, word)(status="failed", acknowledged=False, **more)


@pytest.mark.requires("common_sql")
@pytest.mark.parametrize("length", [None, 40, 20])
def test_acknowledge_where_the_column_is_short_or_not_there(make_app, database, length):
    kind = "" if length is None else f", last_error VARCHAR({length})"
    number = "INTEGER" if database.name == "sqlite" else "BIGINT"
    engine = plain_engine(database.url)
    with engine.begin() as conn:
        conn.exec_driver_sql(
            f"CREATE TABLE ta (msg_id {number} PRIMARY KEY, object_id VARCHAR(20), "
            "status SMALLINT DEFAULT 0 NOT NULL, error_try_times SMALLINT DEFAULT 0 NOT NULL, "
            f"claimed_by VARCHAR(64){kind})"
        )
        error = ", 'Error'" if kind else ""
        conn.exec_driver_sql(f"INSERT INTO ta VALUES (1, 'a', -1, 3, NULL{error})")
    engine.dispose()
    app = make_app(table=MessageTable("ta", payload=None))
    if length is None:
        app.create_schema()
        with pytest.raises(ConfigError, match="no last_error column"):
            app.ops.acknowledge(1, reason="r")
        return
    app.create_schema()
    assert app.ops.acknowledge(1, reason="no use any more " * 5, actor="Zo\u00eb") == 1
    assert app.ops.show(1).acknowledged.startswith("Zo")
    assert app.ops.overview().unacknowledged.count == 0
