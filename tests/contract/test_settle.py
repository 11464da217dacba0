"""Outcomes that are late, refused or in doubt."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from tenacity import wait_fixed, wait_none

from msgworker.events import Settled
from msgworker.store import settle
from tests.support.leases import leases
from tests.support.logged import assert_facts
from tests.support.refusing import refuse
from tests.support.rounds import fetch, loses_its_lease
from tests.support.rows import Table, send
from tests.support.waiting import launched, until


@pytest.mark.requires("unique_index_of_any_column")
def test_an_outcome_that_a_unique_index_of_the_user_refuses_ends_its_lane(app_with, caplog):
    app = app_with(lease_seconds=30.0, poll_seconds=0.02)
    table = Table(app)
    error = app.tables.message.c.last_error
    length = {"mysql_length": 200}
    index = sa.Index("theirs", error, unique=True, **length)
    index.create(app.engine)

    @app.handler("t", wait=wait_none())
    def fail(msg: Any) -> None:
        raise ValueError("the same text")

    send(app, "a")
    app.drain(linger=0)
    assert table.statuses == [-1]
    app.add_handler("u", lambda msg: None)
    send(app, "b")
    send(app, "c", topic="u")
    with launched(app.worker(threads=1)):
        until(lambda: table.statuses[1:] == [-1, 2], "the other goes on")
    assert_facts(caplog, "message 2:")


def test_messages_whose_outcome_cannot_be_written_are_recovered_while_we_go_on(app_with, caplog):
    """They stay flagged by our id: so we go on under another one, and its lease expires."""
    app = app_with(lease_seconds=1.0, poll_seconds=0.02)
    table = Table(app)
    app.add_handler("t", lambda msg: None)
    send(app, "a")
    by_recovery = "status = -1 AND crash_times = error_try_times"
    refuse(app, f"status IN (0, 1) OR {by_recovery} OR object_id <> 'a'")
    with launched(app.worker(threads=1)) as worker:
        before = worker.instance_id
        until(lambda: table.rows("status", "error_try_times") == [(-1, 3)], "dead of crashes")
        send(app, "b", "c")
        until(lambda: table.statuses[1:] == [2, 2], "work goes on")
        assert worker.instance_id != before
    assert table.rows("crash_times")[0] == (3,)
    assert_facts(caplog, "its outcome is not written")


def test_a_settle_of_an_id_that_was_lost_is_not_sent_again(one, app, table, monkeypatch):
    """Whoever recovers it may have the rows locked and stand still: the new self has to settle."""
    send(app, "a")
    assert fetch(one) == 1
    (lane,) = one.lanes.take_back()
    sent = []

    def refused(*args: Any) -> None:
        sent.append(args)
        assert len(sent) == 1
        loses_its_lease(one)
        raise DBAPIError("", {}, psycopg.errors.LockNotAvailable())

    monkeypatch.setattr(one.settler.writers[0], "write_once", refused)
    one.settler.add(lane, True)
    assert len(sent) == 1
    assert one.tally.lost == 1


def test_a_settle_counts_what_it_has_written_and_not_what_was_taken_away(one, app, table):
    """An operator has released one of the two meanwhile."""
    ids = send(app, "a", "b")
    assert fetch(one) == 2
    settled: list[Settled] = []
    app.on(Settled, settled.append)
    with app.engine.begin() as conn:
        c = app.tables.message.c
        conn.execute(sa.update(app.tables.message).where(c.msg_id == ids[0]).values(status=0))
    lanes = one.lanes.take_back()
    for lane in lanes:
        one.settler.add(lane, lane is lanes[-1])
    assert [(len(event.done), event.written) for event in settled] == [(1, 1)]
    assert one.tally.lost == 1


def test_a_try_whose_outcome_is_refused_waits_as_its_handler_says(app, table):
    app.add_handler("t", lambda msg: None, wait=wait_fixed(3000))
    send(app, "a")
    refuse(app, "status <> 2")
    app.drain(linger=0)
    assert table.statuses == [-1]
    (waits,) = [one.available_at for one in app.ops.find()]
    assert 2900 < (waits - datetime.now(UTC)).total_seconds() < 3100


def test_message_whose_settle_may_be_under_way_is_claimed_under_a_new_id_only(app, table):
    ran: list[str] = []
    app.add_handler("t", lambda msg, ctx: ran.append(ctx.instance_id))
    (first,) = send(app, "o")
    with launched(app.worker(threads=2)) as worker:
        until(lambda: table.statuses == [2], "done")
        assert worker.instance is not None
        worker.instance.shared.identity.tenure.doubtful.add(first)
        send(app, *range(5))
        until(lambda: table.statuses == [2] * 6, "others are not in doubt")
        assert {*ran} == {worker.instance_id}
        app.ops.rerun([first], force=True)
        until(lambda: table.statuses == [2] * 6 and len(ran) == 7, "done again")
        assert ran[6] == worker.instance_id != ran[0]
        until(lambda: list(leases(app)) == [ran[6]], "the old lease is gone")
    assert leases(app) == {}


@pytest.mark.quick("postgresql")
@pytest.mark.requires("session_numbers")
def test_settle_whose_connection_is_lost_is_in_doubt(database, app):
    if database.name != "postgresql":
        pytest.skip("elsewhere a settle is a transaction: none arrives after its sender gave up")
    cut: list[int] = []

    @sa.event.listens_for(app.engine, "before_cursor_execute")
    def cut_once(conn, cursor, statement, *rest):
        if "finished_at=" in statement and not cut:
            cut.append(1)
            with app.engine.connect() as other:
                pid = cursor.connection.info.backend_pid
                other.execute(sa.text("SELECT pg_terminate_backend(:p)"), {"p": pid})

    app.add_handler("t", lambda msg: None)
    (first,) = send(app, "o")
    with launched(app.worker(threads=1)) as worker:
        until(lambda: Table(app).statuses == [2], "sent again")
        assert cut == [1]
        assert worker.instance is not None
        assert worker.instance.shared.identity.tenure.doubtful == {first}


def test_a_next_message_that_goes_meanwhile_costs_no_other_lane_a_statement(app_with, monkeypatch):
    """The batch is written again in steps, not lane by lane."""
    alone: list[int] = []
    real = settle.settle_one

    def counted(conn: Any, t: Any, one: Any, **more: Any) -> Any:
        alone.append(one.msg_id)
        return real(conn, t, one, **more)

    monkeypatch.setattr(settle, "settle_one", counted)
    app = app_with(poll_seconds=0.02)
    table = Table(app)
    message = app.tables.message

    @app.handler("t")
    def discards_the_next(msg: Any) -> None:
        if msg.msg_id == 1:
            with app.engine.begin() as conn:
                conn.execute(sa.update(message).where(message.c.msg_id == 3).values(status=2))

    send(app, "a", "b", "a", "b")
    app.drain(threads=1, linger=0)
    assert table.statuses == [2, 2, 2, 2]
    assert alone == []
