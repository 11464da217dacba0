"""The tries of a message, as they are kept."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tenacity import wait_none

from msgworker import MessageTable, Reject
from msgworker.message import Outcome, Settled, Settlement
from msgworker.store import done, recover, settle
from msgworker.store import tries as trying
from tests.support.flags import ME, flagged
from tests.support.ops import failing, shown
from tests.support.rows import send


def test_every_failed_try_is_kept_with_its_error_and_time(app):
    failing(app)
    (first,) = send(app, "a")
    before = datetime.now(UTC) - timedelta(seconds=60)
    assert app.drain(linger=5).failed == 1
    info = app.ops.show(first)
    assert [one.number for one in info.tries] == [1, 2, 3]
    assert {one.kind for one in info.tries} == {"failed"}
    assert all(f"no account {first} of 'B{first}' [" in one.error for one in info.tries)
    assert all(before < one.started_at <= one.ended_at for one in info.tries)
    assert len({one.fingerprint for one in info.tries}) == 1
    assert info.tries[-1].error == info.last_error
    assert all(one.instance for one in info.tries)


def test_a_try_begins_with_its_handler_and_not_with_its_claim(app):
    def slow(msg: Any) -> None:
        time.sleep(0.5)
        raise Reject("no")

    app.add_handler(None, slow)
    ids = send(app, "a", "b")
    app.drain(threads=1, linger=0)
    first, second = sorted(app.ops.show(i).tries[0].started_at for i in ids)
    assert second - first > timedelta(seconds=0.4)
    assert all(app.ops.show(i).tries[0].ran_seconds > 0.4 for i in ids)


def test_a_rerun_keeps_the_tries_and_counts_on(app):
    failing(app)
    (first,) = send(app, "a")
    app.drain(linger=5)
    app.ops.rerun([first])
    app.drain(linger=5)
    assert [number for number, _, _ in shown(app, first)] == [1, 2, 3, 4, 5, 6]


def test_a_message_that_is_done_has_no_tries(app, table):
    app.add_handler(None, lambda msg: None)
    (first,) = send(app, "a")
    app.drain(linger=0)
    assert shown(app, first) == []
    assert table.statuses == [2]


def test_a_rejected_message_and_a_transactional_one_have_their_try(app):
    def reject(msg: Any) -> None:
        raise Reject("not ours")

    def fail(msg: Any, ctx: Any) -> None:
        raise ValueError("rolled back")

    app.add_handler("r", reject)
    app.add_handler("x", fail, transactional=True, wait=wait_none())
    (first,) = send(app, "a", topic="r")
    (second,) = send(app, "b", topic="x")
    app.drain(linger=5)
    assert shown(app, first) == [(1, "rejected", "rejected: not ours")]
    assert [(n, kind) for n, kind, _ in shown(app, second)] == [(n, "failed") for n in (1, 2, 3)]


def test_a_crash_is_a_try(app):
    ids = send(app, "a", "b")
    flagged(app, *ids, me=ME)
    with app.engine.begin() as conn:
        given_back = recover.recover(conn, app.tables, [*ids, 99], dead_id=ME, text="it died")
    assert given_back == 2
    assert shown(app, ids[0]) == [(1, "crash", "it died")]
    assert app.ops.show(ids[1]).tries[0].instance == ME


def test_recovering_what_was_settled_meanwhile_adds_no_try(app):
    ids = send(app, "a", "b")
    flagged(app, *ids, me=ME)
    with app.engine.begin() as conn:
        settle.settle(conn, app.tables, [Settlement(ids[0])], me=ME, in_steps=True)
        assert recover.recover(conn, app.tables, ids, dead_id=ME, text="it died") == 1
    assert (shown(app, ids[0]), len(shown(app, ids[1]))) == ([], 1)


@pytest.mark.parametrize("alone", [True, False])
def test_an_outcome_that_was_lost_adds_no_try(app, alone):
    (first,) = send(app, "a")
    flagged(app, first, me="another-one")
    late = Settlement(first, Outcome.FAILED, error="late")
    with app.engine.begin() as conn:
        if alone:
            assert settle.settle_one(conn, app.tables, late, me=ME) is Settled.LOST
        else:
            with pytest.raises(done.FlagMissing):
                settle.settle(conn, app.tables, [late], me=ME)
    assert shown(app, first) == []


def test_only_the_newest_tries_are_kept(app, table):
    (first,) = send(app, "a")
    for _ in range(trying.KEPT + 1):
        table.edit(status=0, error_try_times=0)
        flagged(app, first, me=ME)
        with app.engine.begin() as conn:
            done = Settlement(first, Outcome.FAILED, error="again")
            settle.settle(conn, app.tables, [done], me=ME)
    assert [n for n, _, _ in shown(app, first)] == list(range(2, trying.KEPT + 2))


def test_tries_of_two_tables_do_not_meet(make_app):
    apps = [make_app(table=MessageTable(name)) for name in ("one", "two")]
    for app in apps:
        app.create_schema()
        failing(app)
        send(app, "a")
    apps[0].drain(linger=5)
    assert len(shown(apps[0], 1)) == 3
    assert shown(apps[1], 1) == []
