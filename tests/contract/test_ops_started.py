"""When a handler has started, as operators see it."""

from __future__ import annotations

import json
import re
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from msgworker import App
from msgworker.instance.running.in_flight import Execution
from msgworker.queries.explain import Explanation, Reason
from msgworker.store import lease
from tests.support.leases import leases
from tests.support.rounds import beat, fetch
from tests.support.rows import Table, send

AGO = re.compile(r"\b\d+ s\b")


def running(one, msg_id: int, seconds: float, owner: str | None = None) -> None:
    """A handler of this message has run for so long."""
    row = next(lane.row for lane in one.shared.in_flight.lanes if lane.row.msg_id == msg_id)
    since = time.monotonic() - seconds
    one.shared.in_flight.running[msg_id] = Execution(
        row, owner or one.shared.identity.id, since, None
    )


def claimed_ago(table: Table, seconds: float) -> None:
    at = datetime.now(UTC) - timedelta(seconds=seconds)
    table.edit(table.where(status=1), claimed_at=at)


def explained(app: App, msg_id: int) -> tuple[Explanation, str]:
    """The explanation, and its text without the numbers."""
    found = app.ops.explain(msg_id)
    assert found is not None
    return found, AGO.sub("N s", found.text)


def test_explain_tells_a_handler_that_runs_from_a_message_that_only_was_claimed(one, app, table):
    first, second = send(app, "a", "b")
    assert fetch(one) == 2
    claimed_ago(table, 30.0)
    running(one, first, 12.0)
    beat(one)
    me = one.shared.identity.id
    found, text = explained(app, first)
    assert text == f"its handler has run for N s on {me}, last heard of N s ago"
    assert (found.reason, found.started) == (Reason.RUNNING, True)
    assert 12.0 <= found.running_seconds < 40.0
    found, text = explained(app, second)
    assert text == f"claimed N s ago by {me}, not started as of its heartbeat N s ago"
    assert (found.reason, found.started, found.running_seconds) == (Reason.RUNNING, False, None)
    assert 30 <= int(AGO.search(found.text)[0].split()[0]) < 60


def test_explain_of_a_claim_after_the_last_heartbeat_waits_for_the_next(one, app, table):
    beat(one)
    (only,) = send(app, "a")
    assert fetch(one) == 1
    running(one, only, 0.5)
    found, text = explained(app, only)
    assert text == (
        f"claimed N s ago by {one.shared.identity.id}, last heard of N s ago; "
        "the next heartbeat says whether its handler has started"
    )
    assert (found.started, found.running_seconds) == (None, None)


def test_a_claim_anew_is_not_taken_for_the_one_that_the_heartbeat_told_of(one, app, table):
    (only,) = send(app, "a")
    assert fetch(one) == 1
    running(one, only, 12.0)
    beat(one)
    claimed_ago(table, -5.0)
    assert explained(app, only)[0].started is None


def test_explain_of_what_the_dead_hold_says_when_they_were_last_heard_of(one, app, table):
    first, second = send(app, "a", "b")
    assert fetch(one) == 2
    claimed_ago(table, 30.0)
    running(one, first, 12.0)
    beat(one)
    past = datetime.now(UTC) - timedelta(seconds=40)
    with app.engine.begin() as conn:
        conn.execute(sa.update(app.tables.lease).values(renewed_at=past, expires_at=past))
    claimed_ago(table, 70.0)
    found, text = explained(app, first)
    assert "its lease has run out, it was last heard of N s ago, when the handler had run" in text
    assert (found.reason, found.started) == (Reason.RUNNING_DEAD, True)
    assert 12.0 <= found.running_seconds < 13.0  # what it did since is not known
    found, text = explained(app, second)
    assert "last heard of N s ago and had not started the handler then; the message" in text
    assert found.started is False
    (seen,) = leases(app).values()
    with app.engine.begin() as conn:  # which overwrites when it was last heard of
        assert lease.take_over(conn, app.tables, seen, me="other", ttl=60.0)
    assert [explained(app, msg_id)[0].started for msg_id in (first, second)] == [None, None]


def test_an_older_instance_tells_nothing_of_its_handlers(one, app, table):
    (only,) = send(app, "a")
    assert fetch(one) == 1
    claimed_ago(table, 30.0)
    running(one, only, 12.0)
    beat(one)
    for says in ('{"table": "msgworker_message", "topics": null}', "not json", None, "[]", "7"):
        with app.engine.begin() as conn:
            own = app.tables.lease.c.name == one.shared.identity.id
            conn.execute(sa.update(app.tables.lease).where(own).values(serves=says))
        found, text = explained(app, only)
        assert text == f"it is running on {one.shared.identity.id}, last heard of N s ago"
        assert found.started is None
        (info,) = app.ops.instances()
        assert (info.handlers, info.running_seconds) == (None, {})


def test_instances_and_lanes_tell_how_many_handlers_run(one, app, table):
    first, second, _ = send(app, "a", "b", "b")
    assert fetch(one) == 2
    claimed_ago(table, 30.0)
    running(one, first, 12.0)
    running(one, second, 3.0, owner="an-id-that-was-lost")
    beat(one)
    (info,) = app.ops.instances()
    assert (info.running, info.in_hand, info.handlers) == (2, 2, 1)
    assert info.running_seconds == {first: pytest.approx(12.0, abs=1.0)}
    assert info.topics == ("t",)
    assert 0.0 <= info.silent_seconds < 20.0
    found = {one.object_id: (one.started, one.running_seconds) for one in app.ops.lanes()}
    assert found == {"a": (True, pytest.approx(12.0, abs=20.0)), "b": (False, None)}


def test_a_lease_tells_of_the_handlers_that_run_longest_only(app, table):
    told = json.loads(lease.serves_text(app.tables, None, [(n, float(n)) for n in range(1, 251)]))
    assert told["handlers"] == 250
    assert told["running"] == [[n, float(n)] for n in range(250, 150, -1)]
    ids = send(app, *range(2))
    with app.engine.begin() as conn:
        lease.register(conn, app.tables, "me", ttl=300.0)
        hidden = [(10**6 + n, 60.0) for n in range(250)]
        serves = lease.serves_text(app.tables, ["t"], hidden)
        assert lease.renew(conn, app.tables, "me", ttl=300.0, serves=serves)
    table.edit(table.where(msg_id=ids[0]), status=1, claimed_by="me")
    claimed_ago(table, 30.0)
    assert explained(app, ids[0])[0].started is None  # it may be among those that are not told


def test_a_renewal_without_a_word_keeps_what_was_told(app):
    def told() -> Any:
        (found,) = app.ops.instances()
        return found.handlers, found.topics

    with app.engine.begin() as conn:
        lease.register(conn, app.tables, "me", ttl=300.0, topics=["t"])
        serves = lease.serves_text(app.tables, ["t"], [(1, 2.0)])
        assert lease.renew(conn, app.tables, "me", ttl=300.0, serves=serves)
    assert told() == (1, ("t",))
    with app.engine.begin() as conn:
        assert lease.renew(conn, app.tables, "me", ttl=300.0)
    assert told() == (1, ("t",))
