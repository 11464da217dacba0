"""What a claim flags, and what it leaves."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence

import pytest
import sqlalchemy as sa
from sqlalchemy import Connection

from msgworker import MessageTable
from msgworker.store import claim
from msgworker.store.candidates import Candidate
from tests.support.flags import ME
from tests.support.rows import send
from tests.support.store import OTHER, Store, ids_of
from tests.support.waiting import in_thread, until


def test_flag_takes_heads_and_returns_their_rows(store):
    ids = send(store.app, "a", "b", None, payload={"n": 1}, topic="x")
    rows = store(claim.flag, store.seen(*ids), me=ME)
    assert ids_of(rows) == ids
    assert {(r.topic, r.payload, r.tries, r.oversize) for r in rows} == {("x", '{"n":1}', 0, None)}
    assert [r.object_id for r in rows] == ["a", "b", None]
    assert [store.state(i) for i in ids] == [(1, 0, ME)] * 3


def test_flag_of_nothing(store):
    assert store.flag() == []


def test_flag_refuses_who_is_not_the_head(store):
    a1, a2, b = send(store.app, "a", "a", "b")
    assert store.flag(*store.seen(a2, b)) == [b]
    assert store.state(a2) == (0, 0, None)
    store.row(a1, status=-1, error_try_times=1)  # failed with tries left: still the head
    assert store.flag(*store.seen(a2)) == []
    store.row(a1, status=-1, error_try_times=3)  # dead: passed over
    assert store.flag(*store.seen(a2)) == [a2]


def test_flag_takes_both_rows_of_an_object_never(store):
    a1, a2 = send(store.app, "a", "a")
    assert store.flag(*store.seen(a1, a2)) == [a1]


def test_flag_refuses_an_object_that_runs(store):
    a1, a2, b = send(store.app, "a", "a", "b")
    store.row(a2, status=1)  # a foreign consumer has got in front of us
    assert store.flag(*store.seen(a1, b)) == [b]


def test_flag_refuses_what_has_changed_since_it_was_seen(store):
    ids = send(store.app, "a", "b", "c", "d", "e")
    seen = store.seen(*ids)
    store.row(ids[0], status=-1, error_try_times=1)
    store.row(ids[1], status=2)
    store.row(ids[2], status=-1, error_try_times=3)
    store.row(ids[3], status=1, claimed_by=OTHER)
    assert store.flag(*seen) == [ids[4]]
    # Seen with other tries than it has: it was tried meanwhile.
    assert store.flag(store.seen(ids[0])[0]._replace(tries=0)) == []
    assert store.flag(*store.seen(ids[0])) == [ids[0]]


def test_flag_refuses_what_is_not_due(store):
    (waits,) = send(store.app, "a", delay=3600)
    (free,) = send(store.app, "b")
    assert store.flag(*store.seen(waits, free)) == [free]


def test_flag_of_ids_that_are_not_there(store):
    (a,) = send(store.app, "a")
    (seen,) = store.seen(a)
    assert store.flag(seen._replace(msg_id=10**9), seen) == [a]


def test_flag_reads_no_payload_that_is_too_long(make_app):
    app = make_app(table=MessageTable(max_payload=100))
    app.create_schema()
    store = Store(app)
    looser = make_app()
    (short,), (long,) = (send(looser, name, payload="x" * n) for name, n in (("a", 98), ("b", 99)))
    rows = {r.msg_id: r for r in store(claim.flag, store.seen(short, long), me=ME)}
    assert (rows[short].oversize, len(rows[short].payload)) == (None, 100)
    assert (rows[long].oversize, rows[long].payload) == (101, None)


def test_two_claims_of_the_same_rows_share_them_out(store):
    ids = send(store.app, *[f"o{i % 40}" for i in range(80)])
    seen = store.seen(*ids)
    gate = threading.Barrier(4)

    def take(me: str) -> list[int]:
        gate.wait(30)
        for pause in itertools.count():
            try:
                return store.flag(*seen, me=me)
            except (sa.exc.IntegrityError, claim.LeftAlone):
                with store.app.engine.begin() as conn:
                    return ids_of(claim.flag_apart(conn, store.t, seen, me=me)[0])
            except sa.exc.OperationalError:  # a deadlock victim sends again
                assert pause < 20
                continue
        raise AssertionError

    joins = [in_thread(lambda me=f"w{n}": take(me)) for n in range(4)]
    won = [i for join in joins for i in join()]
    assert won
    assert len(won) == len(set(won))
    flagged = {row[0]: row[1] for row in store.table.rows("msg_id", "status") if row[1] == 1}
    assert set(flagged) == set(won)
    rest = [i for i in ids[:40] if i not in flagged]  # what one had locked and then gave up
    assert sorted([*won, *store.flag(*store.seen(*rest))]) == ids[:40]


def _is_blocked(conn: Connection) -> bool:
    """Whether a session of this database waits for another one's lock."""
    if conn.dialect.name == "postgresql":
        query = (
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' "
            "AND datname = current_database()"
        )
    else:
        query = "SELECT count(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'"
    return bool(conn.exec_driver_sql(query).scalar())


def _until_somebody_waits(watcher: Connection) -> None:
    def waits() -> bool:
        watcher.rollback()
        return _is_blocked(watcher)

    # MariaDB refreshes this view only when it was not read for a tenth of a second.
    until(waits, "the claim waits for the foreign one", every=0.25)


def test_a_running_row_that_the_claim_cannot_see_loses_only_its_own_object(store, database):
    """A foreign consumer's flag is not committed yet: NOT EXISTS cannot see it, the guard can."""
    if store.t.database.one_writer:
        pytest.skip("one writer at a time: nothing uncommitted can be met")
    a1, a2, b, c = send(store.app, "a", "a", "b", "c")
    seen = store.seen(a1, b, c)
    m = store.t.message
    with database.engine().connect() as foreign, database.engine().connect() as watcher:
        foreign.execute(sa.update(m).where(m.c.msg_id == a2).values(status=1))
        join = in_thread(lambda: _flag_as_the_fetcher_does(store, seen))

        _until_somebody_waits(watcher)
        foreign.commit()
        won = join()
    assert won == [b, c]
    assert store.state(a1) == (0, 0, None)
    assert store.state(a2) == (1, 0, None)
    assert [store.state(i) for i in (b, c)] == [(1, 0, ME)] * 2


@pytest.mark.requires("row_locks")
def test_a_flag_that_was_rolled_back_does_not_cost_the_claim(store, database):
    a1, a2, b = send(store.app, "a", "a", "b")
    seen = store.seen(a1, b)
    m = store.t.message
    with database.engine().connect() as foreign, database.engine().connect() as watcher:
        foreign.execute(sa.update(m).where(m.c.msg_id == a2).values(status=1))
        join = in_thread(lambda: _flag_as_the_fetcher_does(store, seen))

        _until_somebody_waits(watcher)
        foreign.rollback()
        assert join() == [a1, b]


@pytest.mark.requires("row_locks")
def test_a_row_that_another_claim_has_locked_is_passed_over(store, database):
    a, b = send(store.app, "a", "b")
    m = store.t.message
    with database.engine().connect() as other:
        other.execute(sa.select(m.c.msg_id).where(m.c.msg_id == a).with_for_update())
        assert store.flag(*store.seen(a, b)) == [b]
        other.rollback()
    assert store.flag(*store.seen(a)) == [a]


def _flag_as_the_fetcher_does(store: Store, seen: Sequence[Candidate]) -> list[int]:
    try:
        return ids_of(store(claim.flag, seen, me=ME))
    except (sa.exc.IntegrityError, claim.LeftAlone):
        return ids_of(store(claim.flag_apart, seen, me=ME)[0])


def test_flag_apart_passes_over_what_is_not_to_be_had(store):
    a1, a2, b = send(store.app, "a", "a", "b")
    assert ids_of(store(claim.flag_apart, store.seen(a2, a1, b), me=ME)[0]) == [a1, b]
