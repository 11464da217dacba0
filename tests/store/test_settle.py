"""What a settle writes, and what it reports as lost."""

from __future__ import annotations

import re
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import DBAPIError

from msgworker import MessageTable
from msgworker.db.database import Trouble
from msgworker.db.errors import trouble
from msgworker.message import Outcome, Outgoing, Settled, Settlement
from msgworker.store import done, settle
from msgworker.store.done import NotTogether
from msgworker.store.send import row_values
from msgworker.store.settle import OutOfDate, Share, settle_batch
from tests.support.apps import created
from tests.support.flags import ME, flagged
from tests.support.rows import send
from tests.support.store import OTHER, Store, bad
from tests.support.waiting import in_thread

# --- What a settle writes, and what it reports as lost.


def of_their_own(letters: str, case: Any) -> list[str]:
    """Objects that no other case of the test has, one for each letter."""
    return [f"{letter} {case}" for letter in letters]


@pytest.mark.core
def test_settle_moves_the_flag_on(store):
    a1, a2, b1, b2, n = send(store.app, "a", "a", "b", "b", None)
    store.flagged(a1, b1, n)
    batch = [Settlement(a1, next_id=a2), Settlement(b1, next_id=b2), Settlement(n)]
    became = store.settle(*batch)
    assert became == {a1: Settled.ADVANCED, b1: Settled.ADVANCED, n: Settled.ENDED}
    assert [store.state(i) for i in (a1, b1, n)] == [(2, 0, None)] * 3
    assert [store.state(i) for i in (a2, b2)] == [(1, 0, ME)] * 2
    assert None not in [row[0] for row in store.table.rows("finished_at", "status") if row[1] == 2]


@pytest.mark.core
def test_settle_reports_what_is_lost_and_writes_nothing_for_it(store, subtests):
    for edit in ({"claimed_by": OTHER}, {"status": 0}, {"status": 2}, None):
        a1, a2, b1, b2 = send(store.app, *of_their_own("aabb", edit))
        store.flagged(a1, b1)
        if edit is None:
            with store.app.engine.begin() as conn:
                conn.execute(sa.delete(store.t.message).where(store.t.message.c.msg_id == a1))
        else:
            store.row(a1, **edit)
            before = store.state(a1)
        with subtests.test(edit=edit):
            became = store.settle(Settlement(a1, next_id=a2), Settlement(b1, next_id=b2))
            assert became == {a1: Settled.LOST, b1: Settled.ADVANCED}
            assert store.state(a2) == (0, 0, None)
            assert store.state(b2) == (1, 0, ME)
            if edit is not None:
                assert store.state(a1) == before


@pytest.mark.core
def test_settle_ends_the_lane_when_the_next_one_is_gone(store, subtests):
    for edit in (
        *({"status": 2}, {"status": -1, "error_try_times": 1}, {"status": 1}),
        *(None, {"available_at": datetime.now(UTC) + timedelta(hours=1)}),
    ):
        a1, a2, b1, b2 = send(store.app, *of_their_own("aabb", edit))
        store.flagged(a1, b1)
        if edit is None:
            with store.app.engine.begin() as conn:
                conn.execute(sa.delete(store.t.message).where(store.t.message.c.msg_id == a2))
        else:
            if edit == {"status": 1}:
                store.row(a2, object_id="c")  # to get by the guard
            store.row(a2, **edit)
        with subtests.test(edit=edit):
            became = store.settle(Settlement(a1, next_id=a2), Settlement(b1, next_id=b2))
            assert became == {a1: Settled.ENDED, b1: Settled.ADVANCED}
            assert store.state(a1) == (2, 0, None)
            assert store.state(b2) == (1, 0, ME)


def test_a_lane_that_is_settled_alone_and_lost_moves_nothing(store, subtests):
    for edit in ({"claimed_by": OTHER}, {"status": 0}, {"status": 2}):
        a1, a2 = send(store.app, *of_their_own("aa", edit))
        store.flagged(a1)
        store.row(a1, **edit)
        before = store.state(a1)
        with subtests.test(edit=edit):
            assert store.settle(Settlement(a1, next_id=a2)) == {a1: Settled.LOST}
            assert [store.state(a1), store.state(a2)] == [before, (0, 0, None)]


def test_a_lane_that_is_settled_alone_ends_when_the_next_one_is_gone(store, subtests):
    later = {"available_at": datetime.now(UTC) + timedelta(hours=1)}
    for edit in ({"status": 2}, {"status": -1, "error_try_times": 1}, later):
        a1, a2 = send(store.app, *of_their_own("aa", edit))
        store.flagged(a1)
        store.row(a2, **edit)
        before = store.state(a2)
        with subtests.test(edit=edit):
            assert store.settle(Settlement(a1, next_id=a2)) == {a1: Settled.ENDED}
            assert [store.state(a1), store.state(a2)] == [(2, 0, None), before]


def test_a_lane_that_is_settled_alone_ends_when_the_guard_forbids_the_next_one(store):
    a1, a2, c = send(store.app, "a", "a", "c")
    store.flagged(a1, c)
    store.row(a2, object_id="c")
    assert store.settle(Settlement(a1, next_id=a2)) == {a1: Settled.ENDED}
    assert [store.state(a1), store.state(a2)] == [(2, 0, None), (0, 0, None)]


@pytest.mark.core
def test_a_guard_violation_of_one_lane_does_not_hold_up_the_others(store):
    """While we held a1, an UPDATE gave a2 to another object, one of whose rows runs."""
    a1, a2, b1, b2, c = send(store.app, "a", "a", "b", "b", "c")
    store.flagged(a1, b1, c)
    store.row(a2, object_id="c")
    became = store.settle(Settlement(a1, next_id=a2), Settlement(b1, next_id=b2))
    assert became == {a1: Settled.ENDED, b1: Settled.ADVANCED}
    assert store.state(a1) == (2, 0, None)
    assert store.state(a2) == (0, 0, None)
    assert store.state(b2) == (1, 0, ME)


def test_a_row_that_was_given_back_meanwhile_is_not_flagged_again(store):
    """It is as free as a next one: only its place in the batch says that it is an old one."""
    a1, b1, b2 = send(store.app, "a", "b", "b")
    store.flagged(a1, b1)
    store.row(a1, status=0, claimed_by=None)
    became = store.settle(Settlement(a1), Settlement(b1, next_id=b2))
    assert became == {a1: Settled.LOST, b1: Settled.ADVANCED}
    assert store.state(a1) == (0, 0, None)
    assert store.state(b2) == (1, 0, ME)


def test_messages_that_are_done_are_settled_in_as_few_statements_as_the_database_allows(store):
    a1, a2, b1 = send(store.app, "a", "a", "b")
    store.flagged(a1, b1)
    sent: list[str] = []
    sa.event.listen(store.app.engine, "before_cursor_execute", lambda *a: sent.append(a[2]))
    store(settle.settle, [Settlement(a1, next_id=a2), Settlement(b1)], me=ME)
    written = [text for text in sent if "msgworker_message" in text]
    assert len(written) == (2 if store.app.engine.dialect.name == "sqlite" else 1)


def test_a_table_with_a_visibility_delay_is_settled_in_batches_too(make_app):
    app = created(make_app(table=MessageTable(visibility_delay_seconds=5)))
    store, failed = Store(app), list[str]()
    a1, a2 = send(app, "a", "a")
    for msg_id in (a1, a2):
        store.row(msg_id, created_at=datetime(2020, 1, 1, tzinfo=UTC))
    store.flagged(a1)
    sa.event.listen(app.engine, "handle_error", lambda context: failed.append(context.statement))
    became = store(settle.settle, [Settlement(a1, next_id=a2)], me=ME)
    assert (became, failed) == ({a1: Settled.ADVANCED}, [])


def test_a_row_that_is_not_as_read_sends_the_batch_into_steps_not_into_single_rows(store):
    """One lane ends, since its next message is gone; the other one goes on in the same batch."""
    a1, a2, b1, b2 = send(store.app, "a", "a", "b", "b")
    store.flagged(a1, b1)
    store.row(a2, status=2)
    batch = [Settlement(a1, next_id=a2), Settlement(b1, next_id=b2)]
    if store.t.orders_updates:
        with pytest.raises(NotTogether):
            store(settle.settle, batch, me=ME)
        assert [store.state(i)[0] for i in (a1, a2, b1, b2)] == [1, 2, 1, 0]
    became = store(settle.settle, batch, me=ME, in_steps=True)
    assert became == {a1: Settled.ENDED, b1: Settled.ADVANCED}


def test_settle_writes_every_outcome(store):
    ids = send(store.app, *"abcdef")
    store.row(ids[4], status=-1, error_try_times=1)
    store.row(ids[5], status=-1, error_try_times=2)
    store.flagged(*ids)
    became = store.settle(
        Settlement(ids[0]),
        bad(ids[1], delay_seconds=3600.0),
        bad(ids[2], Outcome.DEAD),
        bad(ids[3], Outcome.LATER, delay_seconds=3600.0),
        Settlement(ids[4], Outcome.RELEASED, tries=1),
        bad(ids[5], tries=2),
    )
    assert set(became.values()) == {Settled.ENDED}
    assert [store.state(i)[:2] for i in ids] == [(2, 0), (-1, 1), (-1, 3), (0, 0), (-1, 1), (-1, 3)]
    rows = store.table.rows("claimed_by", "available_at", "finished_at", "last_error")
    assert {row[0] for row in rows} == {None}
    assert [row[1] is not None for row in rows] == [False, True, False, True, False, False]
    assert [row[2] is not None for row in rows] == [True, False, True, False, False, True]
    assert [row[3] for row in rows] == [None, "E: x", "E: x", "E: x", None, "E: x"]
    assert store.table.column("later_times")[3] == 1


def test_outcomes_of_one_kind_are_written_in_one_call_of_the_driver(store):
    ids = send(store.app, *"abcdef")
    store.flagged(*ids)
    sent: list[tuple[str, bool]] = []
    event.listen(
        store.app.engine, "before_cursor_execute", lambda *a: sent.append((a[2], bool(a[5])))
    )
    batch = [bad(i, delay_seconds=10.0 * i) for i in ids[:3]]
    batch += [bad(i, Outcome.LATER, delay_seconds=60.0) for i in ids[3:5]]
    store(settle.settle, [*batch, Settlement(ids[5], Outcome.RELEASED)], me=ME)
    written = [many for text, many in sent if text.startswith("UPDATE msgworker_message ")]
    assert written == [True, True, False]


def test_one_lost_outcome_of_several_leaves_the_batch_as_it_was(store, subtests):
    for edit in ({"claimed_by": OTHER}, {"error_try_times": 1}, {"status": 0}):
        ids = send(store.app, *of_their_own("abc", edit))
        store.flagged(*ids)
        store.row(ids[1], **edit)
        with subtests.test(edit=edit):
            batch = [bad(i, tries=0) for i in ids]
            with pytest.raises(done.FlagMissing):
                store(settle.settle, batch, me=ME)
            assert [store.state(i)[0] for i in ids[::2]] == [1, 1]
            became = store.settle(*batch)
            assert became == dict(
                zip(ids, [Settled.ENDED, Settled.LOST, Settled.ENDED], strict=True)
            )


def test_an_outcome_of_an_earlier_claim_is_not_written(store):
    """The same instance has the row again, one try later: a late statement must not count twice."""
    (a,) = send(store.app, "a")
    store.row(a, status=-1, error_try_times=1)
    store.flagged(a)
    assert store.settle(bad(a, tries=0)) == {a: Settled.LOST}
    assert store.state(a) == (1, 1, ME)
    assert store.settle(bad(a, tries=1)) == {a: Settled.ENDED}
    assert store.state(a) == (-1, 2, None)


def test_settle_one(store):
    a1, a2 = send(store.app, "a", "a")
    store.flagged(a1)
    assert store(settle.settle_one, Settlement(a1, next_id=a2), me=OTHER) is Settled.LOST
    assert store.state(a1) == (1, 0, ME)
    assert store(settle.settle_one, Settlement(a1, next_id=a2), me=ME) is Settled.ADVANCED
    assert store.state(a2) == (1, 0, ME)
    assert store(settle.settle_one, Settlement(a2), me=ME) is Settled.ENDED
    assert store(settle.settle_one, Settlement(a2), me=ME) is Settled.LOST
    assert store(settle.settle_one, Settlement(10**9), me=ME) is Settled.LOST


def test_settle_one_ends_the_lane_when_the_next_one_cannot_be_flagged(store):
    a1, a2, c = send(store.app, "a", "a", "c")
    store.flagged(a1, c)
    store.row(a2, object_id="c")
    assert store(settle.settle_one, Settlement(a1, next_id=a2), me=ME) is Settled.ENDED
    assert store.state(a1) == (2, 0, None)
    assert store.state(a2) == (0, 0, None)


@pytest.mark.parametrize("goes_on", [True, False])
def test_a_settle_that_is_all_of_its_transaction_commits_itself(store, goes_on):
    a1, a2 = send(store.app, "a", "a")
    store.flagged(a1)
    one = Settlement(a1, next_id=a2 if goes_on else None)
    with store.app.engine.connect() as conn:
        conn.begin()
        lost = settle.settle_at_once(conn, store.t, one, me=OTHER)
        fate = settle.settle_at_once(conn, store.t, one, me=ME)
        conn.rollback()
    if not store.t.database.arrays:  # there it is settled in the transaction
        assert (lost, fate, store.state(a1)) == (None, None, (1, 0, ME))
        return
    assert (lost, fate) == (Settled.LOST, Settled.ADVANCED if goes_on else Settled.ENDED)
    assert store.state(a1) == (2, 0, None)
    assert store.state(a2) == ((1, 0, ME) if goes_on else (0, 0, None))


@pytest.mark.parametrize("why", ["something was sent", "messages are sent with it", "not done"])
def test_a_settle_beside_other_writes_does_not_commit_itself(store, why):
    (a,) = send(store.app, "a")
    store.flagged(a)
    values = row_values(store.t, topic="t", object_id=None, payload=None, delay=None, at=None)
    one = Settlement(a, sends=(Outgoing(values),) if why == "messages are sent with it" else ())
    with store.app.engine.connect() as conn:
        conn.begin()
        if why == "something was sent":
            conn.execute(sa.select(sa.literal_column("1")))
        given = bad(a) if why == "not done" else one
        assert settle.settle_at_once(conn, store.t, given, me=ME) is None
        conn.rollback()
    assert store.state(a) == (1, 0, ME)


def test_a_settle_whose_next_message_is_refused_does_not_commit_itself(store):
    a1, a2, c = send(store.app, "a", "a", "c")
    store.flagged(a1, c)
    store.row(a2, object_id="c")
    one = Settlement(a1, next_id=a2)
    with store.app.engine.begin() as conn:
        assert settle.settle_at_once(conn, store.t, one, me=ME) is None
        assert settle.settle_one(conn, store.t, one, me=ME) is Settled.ENDED
    assert [store.state(i) for i in (a1, a2)] == [(2, 0, None), (0, 0, None)]


def test_a_settle_of_one_that_goes_on_is_one_statement_where_the_database_allows(store):
    """Behind a savepoint: what the handler has written stays if the next message is refused."""
    a1, a2 = send(store.app, "a", "a")
    store.flagged(a1)
    sent: list[str] = []
    sa.event.listen(store.app.engine, "before_cursor_execute", lambda *a: sent.append(a[2]))
    assert store(settle.settle_one, Settlement(a1, next_id=a2), me=ME) is Settled.ADVANCED
    written = [text for text in sent if "msgworker_message" in text]
    assert len(written) == (2 if store.app.engine.dialect.name == "sqlite" else 1)


def test_settles_of_many_lanes(store):
    objects = [f"o{i}" for i in range(1200)]
    ids = send(store.app, *objects)
    more = send(store.app, *objects)
    store.flagged(*ids)
    became = store.settle(*(Settlement(a, next_id=b) for a, b in zip(ids, more, strict=True)))
    assert set(became.values()) == {Settled.ADVANCED}
    assert store.table.statuses == [2] * 1200 + [1] * 1200


def test_still_mine(store):
    a, b, c, d = send(store.app, "a", "b", "c", "d")
    store.flagged(a, b)
    store.flagged(c, me=OTHER)
    store.settle(Settlement(b))
    assert store(done.still_mine, [a, b, c, d, 10**9], me=ME) == {a}
    assert store(done.still_mine, [], me=ME) == set()
    assert store(done.still_mine, range(10**6, 10**6 + 2500), me=ME) == set()


def test_the_last_failure_but_one_waits_for_its_back_off(store):
    (one,) = send(store.app, "a")
    store.flagged(one)
    store.row(one, error_try_times=1)
    failed = Settlement(one, Outcome.FAILED, delay_seconds=50, tries=1, error="x")
    assert store.settle(failed) == {one: Settled.ENDED}
    tries, waits, finished = store.table.one("error_try_times", "available_at", "finished_at")
    assert (tries, waits is not None, finished) == (2, True, None)


def test_outcome_and_next_flag_commit_together(app, table):
    a1, a2, b1, b2 = send(app, "a", "a", "b", "b")
    flagged(app, a1, b1)
    before = table.rows("msg_id", "status", "claimed_by")
    batch = [Settlement(a1, next_id=a2), Settlement(b1, next_id=b2)]
    with app.engine.connect() as conn:
        conn.begin()
        assert set(settle.settle(conn, app.tables, batch, me=ME).values()) == {Settled.ADVANCED}
        conn.rollback()
    assert table.rows("msg_id", "status", "claimed_by") == before


def test_an_outcome_from_before_a_retry_later_is_not_written(app, table):
    """The same instance has the row again, with the same tries: only the count of RetryLater tells
    the claims apart."""
    (a,) = send(app, "a")
    late = Settlement(a, Outcome.FAILED, None, "E: x", 0.0, 0, 0)
    for times in (0, 1):
        flagged(app, a)
        if times == 0:
            now = Settlement(a, Outcome.LATER, None, "later", 0.0, 0, 0)
            with app.engine.begin() as conn:
                settle.settle(conn, app.tables, [now], me=ME)
            table.edit(available_at=None)
    with app.engine.begin() as conn:
        assert settle.settle_one(conn, app.tables, late, me=ME) is Settled.LOST
    assert table.rows("status", "error_try_times", "claimed_by") == [(1, 0, ME)]


# --- What a batch writes: all of it, or nothing.


LATER = datetime.now(UTC) + timedelta(days=1)


def test_heads_and_those_behind_them_are_done_and_the_flag_moves_on(store):
    a1, a2, a3, a4, b1, n = send(store.app, "a", "a", "a", "a", "b", None)
    store.flagged(a1, b1, n)
    shares = [Share(a1, [a2, a3], a4), Share(b1), Share(n)]
    assert store(settle_batch, shares, me=ME) == {a4}
    assert [store.state(i) for i in (a1, a2, a3, b1, n)] == [(2, 0, None)] * 5
    assert store.state(a4) == (1, 0, ME)
    assert None not in [row[0] for row in store.table.rows("finished_at", "status") if row[1] == 2]


WRONG: dict[str, tuple[str, dict[str, Any]]] = {
    "a head of another owner": ("b1", {"claimed_by": OTHER}),
    "a head that was recovered": ("b1", {"status": -1, "error_try_times": 1, "claimed_by": None}),
    "a head that was released": ("b1", {"status": 0, "claimed_by": None}),
    "a follower that was discarded": ("a2", {"status": -1, "error_try_times": 3}),
    "a follower that is done": ("a2", {"status": 2}),
    "a follower that waits": ("a2", {"available_at": LATER}),
    "a follower with a try": ("a2", {"error_try_times": 1}),
}


def test_one_wrong_row_leaves_all_of_a_batch_as_it_was(store, subtests):
    for wrong, (place, edit) in WRONG.items():
        a1, a2, a3, b1, b2 = send(store.app, *of_their_own("aaabb", wrong))
        store.flagged(a1, b1)
        store.row({"a2": a2, "b1": b1}[place], **edit)
        before = store.table.rows("status", "error_try_times", "claimed_by", "finished_at")
        with subtests.test(wrong):
            with pytest.raises(OutOfDate):
                store(settle_batch, [Share(a1, [a2], a3), Share(b1, (), b2)], me=ME)
            after = store.table.rows("status", "error_try_times", "claimed_by", "finished_at")
            assert after == before


def test_a_next_message_that_is_not_free_gets_no_flag(store, subtests):
    for edit in ({"status": -1, "error_try_times": 3}, {"status": 2}, {"available_at": LATER}):
        a1, a2, a3, b1, b2 = send(store.app, *of_their_own("aaabb", edit))
        store.flagged(a1, b1)
        store.row(a3, **edit)
        state = store.state(a3)
        with subtests.test(edit=edit):
            shares = [Share(a1, [a2], a3), Share(b1, (), b2)]
            assert store(settle_batch, shares, me=ME) == {b2}
            assert store.state(a3) == state
            assert store.state(a2) == (2, 0, None)


@pytest.mark.requires("row_locks")
def test_all_rows_of_a_batch_are_locked_by_age_before_one_is_changed(store):
    """Otherwise two batches, or a claim beside one, deadlock."""
    ids = send(store.app, "b", "a", "a", "b", "a", "b")
    store.flagged(ids[0], ids[1])
    sent: list[tuple[str, Any]] = []

    def saw(conn: Any, cursor: Any, statement: str, params: Any, *_: Any) -> None:
        sent.append((" ".join(statement.split()), params))

    event.listen(store.app.engine, "before_cursor_execute", saw)
    try:
        shares = [Share(ids[1], [ids[2]], ids[4]), Share(ids[0], [ids[3]], ids[5])]
        store(settle_batch, shares, me=ME)
    finally:
        event.remove(store.app.engine, "before_cursor_execute", saw)
    kinds = [statement.split()[0] for statement, _ in sent]
    assert kinds in ([first, "UPDATE", "UPDATE", "UPDATE"] for first in ("SELECT", "WITH"))
    lock, params = sent[0]
    assert re.search(r"ORDER BY \S+ FOR UPDATE", lock)
    text = str(params)
    assert all(str(i) in text for i in ids)


def test_a_batch_larger_than_a_statement_is_sent_in_parts(store, monkeypatch):
    ids = send(store.app, *["a"] * 12)
    store.flagged(ids[0])
    small = replace(store.t, database=store.t.database.having(max_ids=5))
    monkeypatch.setattr(store, "t", small)
    assert store(settle_batch, [Share(ids[0], ids[1:11], ids[11])], me=ME) == {ids[11]}
    assert [store.state(i)[0] for i in ids] == [2] * 11 + [1]


def test_the_guard_refuses_a_next_message_beside_one_that_runs(store):
    a1, a2, a3 = send(store.app, "a", "a", "a")
    store.flagged(a1)
    store.row(a3, object_id="z")
    store.row(a3, status=1)
    store.row(a1, status=0, claimed_by=None)
    store.row(a3, object_id="a")
    with pytest.raises((OutOfDate, sa.exc.IntegrityError)):
        store(settle_batch, [Share(a1, (), a2)], me=ME)
    assert [store.state(i)[0] for i in (a1, a2, a3)] == [0, 0, 1]


# --- Two settles of one instance at the same time: other lanes, rows side by side in every index.


OBJECTS = 40
MESSAGES = 8


def test_two_settles_of_other_lanes_neither_deadlock_nor_lose_a_row(store):
    """Their objects alternate, every fifth outcome is a failure; both start together each time."""
    sent = send(store.app, *[f"o{n:02}" for _ in range(MESSAGES) for n in range(OBJECTS)])
    lanes = [sent[n::OBJECTS] for n in range(OBJECTS)]
    store.flagged(*(lane[0] for lane in lanes))
    gate = threading.Barrier(2)

    def settle(mine: list[list[int]]) -> int:
        deadlocks = 0
        for place in range(MESSAGES - 1):
            batch = [Settlement(lane[place], next_id=lane[place + 1]) for lane in mine]
            gate.wait(60)
            while True:
                try:
                    became = store.settle(*batch)
                    break
                except DBAPIError as error:
                    if trouble(error) is not Trouble.AGAIN:
                        raise
                    deadlocks += 1
            assert set(became.values()) == {Settled.ADVANCED}
        gate.wait(60)
        last = [
            Settlement(lane[-1], Outcome.FAILED if n % 5 == 0 else Outcome.DONE, error="E: x")
            for n, lane in enumerate(mine)
        ]
        assert set(store.settle(*last).values()) == {Settled.ENDED}
        return deadlocks

    halves = [in_thread(lambda half=half: settle(lanes[half::2])) for half in (0, 1)]
    deadlocks = sum(half() for half in halves)
    assert deadlocks == 0
    found = store.table.rows("status", "claimed_by")
    assert found.count((2, None)) == OBJECTS * MESSAGES - OBJECTS // 5
    assert found.count((-1, None)) == OBJECTS // 5
    assert ME not in [row[1] for row in found]
