"""What a claim flags, what it leaves, and what is read behind each head."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from datetime import UTC, datetime

import pytest
import sqlalchemy as sa
from sqlalchemy import Connection

from msgworker import MessageTable
from msgworker.store import claim
from msgworker.store.candidates import Candidate
from msgworker.store.rows import Row
from tests.support.apps import created
from tests.support.flags import ME
from tests.support.rows import send
from tests.support.store import OTHER, Store, ids_of
from tests.support.waiting import in_thread, until

# --- What a claim flags, and what it leaves.


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
    app = created(make_app(table=MessageTable(max_payload=100)))
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


# --- The run of messages that is read behind each head.


def _run(store: Store, head: Row, limit: int = 10) -> list[int]:
    return ids_of(store(claim.read_runs, [head], limit=limit)[head.msg_id])


def test_read_runs_gives_what_stands_behind_each_head(store):
    ids = send(store.app, "a", "b", "a", "a", "b", None)
    rows = store.flagged(ids[0], ids[1], ids[5])
    runs = store(claim.read_runs, rows, limit=10)
    assert {head: ids_of(run) for head, run in runs.items()} == {
        ids[0]: [ids[2], ids[3]],
        ids[1]: [ids[4]],
    }
    assert store(claim.read_runs, rows, limit=1)[ids[0]] == runs[ids[0]][:1]
    assert store(claim.read_runs, rows, limit=0) == {ids[0]: [], ids[1]: []}
    assert store(claim.read_runs, [], limit=10) == {}


@pytest.mark.parametrize(
    "wall",
    [
        {"status": -1, "error_try_times": 1},
        {"status": 1},
        {"available_at": datetime(2999, 1, 1, tzinfo=UTC)},
    ],
    ids=["failed", "running", "not due"],
)
def test_a_run_ends_before_the_first_unfinished_row_that_cannot_follow(store, wall):
    ids = send(store.app, *["a"] * 5)
    if "status" in wall and wall["status"] == 1:
        store.row(ids[3], status=1)
        head = Row(ids[0], "a", "t", None, 0, 0, 0, None, None)
    else:
        (head,) = store.flagged(ids[0])
        store.row(ids[3], **wall)
    assert _run(store, head) == ids[1:3]


def test_a_run_passes_over_finished_and_dead_rows(store):
    ids = send(store.app, *["a"] * 5)
    (head,) = store.flagged(ids[0])
    store.row(ids[1], status=2)
    store.row(ids[2], status=-1, error_try_times=3)
    assert _run(store, head) == ids[3:]


def test_a_run_of_a_blocking_table_ends_before_a_dead_row(blocking_app):
    store = Store(blocking_app)
    ids = send(store.app, *["a"] * 4)
    (head,) = store.flagged(ids[0])
    store.row(ids[2], status=-1, error_try_times=3)
    assert _run(store, head) == [ids[1]]


def test_a_run_is_empty_if_a_lower_unfinished_row_has_appeared(store):
    late, head_id, *behind = send(store.app, "a", "a", "a", "a")
    store.row(late, status=2)
    (head,) = store.flagged(head_id)
    store.row(late, status=0)  # a rerun, or a producer that committed late
    assert _run(store, head) == []
    store.row(late, status=-1, error_try_times=1)
    assert _run(store, head) == []
    store.row(late, status=2)
    assert _run(store, head) == behind
    store.row(head_id, status=2)  # the claim is lost, and its message done by another
    assert _run(store, head) == []


def test_runs_of_many_heads(store):
    objects = [f"o{i}" for i in range(130)]
    ids = send(store.app, *objects, *objects)
    runs = store(claim.read_runs, store.flagged(*ids[:130]), limit=5)
    assert {head: ids_of(run) for head, run in runs.items()} == {
        ids[i]: [ids[130 + i]] for i in range(130)
    }


def test_the_runs_of_all_heads_are_read_by_one_statement_where_it_can_name_them_in_a_list(store):
    objects = [f"o{i}" for i in range(60)]
    rows = store.flagged(*send(store.app, *objects, *objects)[:60])
    sent: list[str] = []
    with store.app.engine.connect() as conn:
        sa.event.listen(conn, "before_cursor_execute", lambda *given: sent.append(given[2]))
        runs = claim.read_runs(conn, store.t, rows, limit=5)
    assert all(len(run) == 1 for run in runs.values())
    takes_lists = store.t.database.arrays or store.t.database.json_lists
    assert len(sent) == (1 if takes_lists else 2)
