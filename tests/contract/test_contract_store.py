"""store/ on every database: candidates, flags, runs, settles, recovery, leases, query plans."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import Connection

from msgworker import App, MessageTable
from msgworker.message import Outcome, Settled, Settlement
from msgworker.store import candidates, claim, done, following, lease, recover, settle
from msgworker.store.candidates import Candidate
from msgworker.store.due import Coming, coming
from msgworker.store.rows import Row
from tests.support.rows import Table, send
from tests.support.waiting import in_thread, until

ME, OTHER = "me-1", "other-2"


class Store:
    """The store functions on an App's table, each in a transaction of its own."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.t = app.tables
        self.table = Table(app)

    def __call__(self, act: Callable[..., Any], *args: Any, **options: Any) -> Any:
        with self.app.engine.begin() as conn:
            return act(conn, self.t, *args, **options)

    def row(self, msg_id: int, **roles: Any) -> None:
        """Edit one row by hand."""
        assert self.table.edit(self.table.where(msg_id=msg_id), **roles) == 1

    def seen(self, *ids: int) -> list[Candidate]:
        """Candidates as the rows stand now."""
        c = self.t.cols()
        query = sa.select(c.msg_id, c.object_id, c.status, c.error_try_times, c.topic)
        with self.app.engine.connect() as conn:
            rows = {row[0]: row for row in conn.execute(query)}
        return [
            Candidate(i, rows[i][1], rows[i][2], rows[i][3], 0, rows[i][4], 1, None) for i in ids
        ]

    def flag(self, *candidates: Candidate, me: str = ME) -> list[int]:
        return [row.msg_id for row in self(claim.flag, candidates, me=me)]

    def flagged(self, *ids: int, me: str = ME) -> list[Row]:
        rows = self(claim.flag, self.seen(*ids), me=me)
        assert [row.msg_id for row in rows] == sorted(ids)
        return rows

    def state(self, msg_id: int) -> tuple[Any, ...]:
        c = self.t.cols()
        query = sa.select(c.status, c.error_try_times, c.claimed_by).where(c.msg_id == msg_id)
        with self.app.engine.connect() as conn:
            return tuple(conn.execute(query).one())

    def settle(self, *batch: Settlement, me: str = ME) -> dict[int, Settled]:
        """As the settler does it: together, and one by one if that cannot be."""
        try:
            return self(settle.settle, batch, me=me)
        except (done.FlagMissing, sa.exc.IntegrityError):
            return {one.msg_id: self(settle.settle_one, one, me=me) for one in batch}


@pytest.fixture
def store(app: App) -> Store:
    return Store(app)


def _ids(found: Sequence[Any]) -> list[int]:
    return [one.msg_id for one in found]


# ---------------------------------------------------------------- candidates


def test_oldest_finds_open_rows_by_age(store):
    if not store.t.dialect.oldest_index:
        pytest.skip("no index by age on this database")
    a = send(store.app, "a", "b", None, "a")
    waiting = send(store.app, "c", delay=3600)
    store.row(a[1], status=2)
    store.row(a[3], status=-1, error_try_times=3)
    assert _ids(store(candidates.oldest, mark=-1, limit=10)) == [a[0], a[2]]
    assert _ids(store(candidates.oldest, mark=a[0] + 1, limit=10)) == [a[2]]
    assert _ids(store(candidates.oldest, mark=-1, limit=1)) == [a[0]]
    assert waiting[0] not in _ids(store(candidates.oldest, mark=-1, limit=10))


def test_candidates_show_what_was_seen(store):
    (msg_id,) = send(store.app, "a", topic="x")
    store.row(msg_id, status=-1, error_try_times=2, crash_times=1)
    (found,), after = store(candidates.heads, after=None, limit=10)
    assert (found.msg_id, found.object_id, found.status, found.tries) == (msg_id, "a", -1, 2)
    assert (found.crash_times, found.topic, found.due) == (1, "x", 1)
    assert after is None


def test_heads_gives_the_first_open_row_of_each_object(store):
    ids = send(store.app, "b", "a", "b", "c", None, "a")
    store.row(ids[1], status=2)
    found, after = store(candidates.heads, after=None, limit=10)
    assert [(c.object_id, c.msg_id) for c in found] == [("a", ids[5]), ("b", ids[0]), ("c", ids[3])]
    assert after is None


def test_heads_shows_heads_that_cannot_go(store):
    """A head that runs, waits or blocks is shown as such: nothing behind it is offered instead."""
    ids = send(store.app, "a", "a", "b", "b")
    store.row(ids[0], status=1, claimed_by=OTHER)
    store.row(
        ids[2], status=-1, error_try_times=1, available_at=datetime.now(UTC) + timedelta(hours=1)
    )
    found, _ = store(candidates.heads, after=None, limit=10)
    assert [(c.msg_id, c.status, c.due) for c in found] == [(ids[0], 1, 1), (ids[2], -1, 0)]


def test_heads_walks_all_objects_in_steps(store):
    names = [f"o{i:03}" for i in range(50)]
    send(store.app, *names, *names)
    seen: list[Any] = []
    after = None
    for _ in range(100):
        found, after = store(candidates.heads, after=after, limit=7)
        seen += [c.object_id for c in found]
        if after is None:
            break
    assert seen == names


def test_heads_over_a_deep_object(store):
    with store.app.engine.begin() as conn:
        store.app.send_many(conn, "t", [(None, "deep")] * 2500)
        store.app.send_many(conn, "t", [(None, "other"), (None, "zebra")])
    seen: list[Any] = []
    after = None
    while True:
        found, after = store(candidates.heads, after=after, limit=1)
        seen += [(c.object_id, c.msg_id) for c in found]
        if after is None:
            break
    # A page may end inside an object; its later rows are hints that `flag` refuses.
    assert {o for o, _ in seen} == {"deep", "other", "zebra"}
    assert seen[0] == ("deep", store.table.column("msg_id")[0])


def test_due_after_finds_rows_whose_instant_has_come(store):
    past = send(store.app, "a", "b", at=datetime.now(UTC) - timedelta(hours=2))
    later = send(store.app, "c", at=datetime.now(UTC) - timedelta(hours=1))
    send(store.app, "d", delay=3600)
    send(store.app, "e")
    found = store(candidates.due_after, since=None, limit=10)
    assert _ids(found) == [*past, *later]
    assert all(c.due == 1 and c.waits_until is not None for c in found)
    first = found[0]
    again = store(candidates.due_after, since=(first.waits_until, first.msg_id), limit=10)
    assert _ids(again) == [past[1], *later]
    assert _ids(store(candidates.due_after, since=None, limit=1)) == [past[0]]


def test_due_after_leaves_out_finished_and_dead_rows(store):
    done, dead = send(store.app, "a", "b", at=datetime.now(UTC) - timedelta(hours=2))
    store.row(done, status=2)
    store.row(dead, status=-1, error_try_times=3)
    assert store(candidates.due_after, since=None, limit=10) == []


def test_loose_finds_open_rows_without_an_object(store):
    ids = send(store.app, None, "a", None, None)
    store.row(ids[2], status=2)
    assert _ids(store(candidates.loose, after=-1, limit=10)) == [ids[0], ids[3]]
    assert _ids(store(candidates.loose, after=ids[0], limit=10)) == [ids[3]]
    assert _ids(store(candidates.loose, after=-1, limit=1)) == [ids[0]]


def _coming(store: Store, linger: float = 5.0, retry_linger: float = 300.0, **more: Any) -> Coming:
    options: dict[str, Any] = {"topics": None, "paused": (), **more}
    return store(coming, linger=linger, retry_linger=retry_linger, **options)


def test_a_drain_waits_for_what_becomes_due_within_its_linger(store):
    assert _coming(store) == Coming(False, None)
    send(store.app, "now")
    assert _coming(store) == Coming(False, None)
    send(store.app, "later", delay=3600)
    assert _coming(store) == Coming(False, None)
    overdue, seconds = _coming(store, linger=4000)
    assert (overdue, 3000 < seconds < 3700) == (False, True)
    send(store.app, "past", at=datetime.now(UTC) - timedelta(hours=1))
    overdue, seconds = _coming(store, linger=4000)
    assert (overdue, 3000 < seconds < 3700) == (True, True)


def test_a_drain_waits_longer_for_what_has_failed(store):
    new, failed, dead, _behind = send(store.app, "n", "f", "d", "f", delay=100)
    store.row(failed, status=-1, error_try_times=1)
    store.row(dead, status=-1, error_try_times=3)
    overdue, seconds = _coming(store)
    assert (overdue, 50 < seconds < 110) == (False, True)
    assert _coming(store, retry_linger=10) == Coming(False, None)
    store.row(failed, status=0, error_try_times=0)
    assert _coming(store) == Coming(False, None)
    store.row(new, status=-1, error_try_times=2)
    assert _coming(store).seconds is not None


def test_a_drain_does_not_wait_for_what_it_may_not_start(store):
    first, second = send(store.app, "o", "o", delay=100, topic="x")
    store.row(second, status=-1, error_try_times=1)
    assert _coming(store).seconds is None  # behind the first one, which is late
    store.row(first, status=2)
    assert _coming(store).seconds is not None
    assert _coming(store, topics=["y"]).seconds is None
    assert _coming(store, topics=["x", "y"], paused=["x"]).seconds is None
    assert _coming(store, topics=["x", "y"], paused=["y"]).seconds is not None
    store.row(first, status=1, claimed_by="somebody")
    assert _coming(store).seconds is None


# ---------------------------------------------------------------- flag


def test_flag_takes_heads_and_returns_their_rows(store):
    ids = send(store.app, "a", "b", None, payload={"n": 1}, topic="x")
    rows = store(claim.flag, store.seen(*ids), me=ME)
    assert _ids(rows) == ids
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
    # Seen with other tries than it has: somebody has tried it meanwhile.
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
                    return _ids(claim.flag_apart(conn, store.t, seen, me=me)[0])
            except sa.exc.OperationalError:  # a deadlock victim sends again
                assert pause < 20
                continue
        raise AssertionError

    joins = [in_thread(lambda me=f"w{n}": take(me)) for n in range(4)]
    won = [i for join in joins for i in join()]
    assert len(won) == len(set(won))
    assert set(won) <= set(ids[:40])
    flagged = {row[0]: row[1] for row in store.table.rows("msg_id", "status") if row[1] == 1}
    assert set(flagged) == set(won)


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

    # MariaDB refreshes this view only when nobody has read it for a tenth of a second.
    until(waits, "the claim waits for the foreign one", every=0.25)


def test_a_running_row_that_the_claim_cannot_see_loses_only_its_own_object(store, database):
    """A foreign consumer's flag is not committed yet: NOT EXISTS cannot see it, the guard can."""
    if store.t.dialect.one_writer:
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


def test_a_flag_that_was_rolled_back_does_not_cost_the_claim(store, database):
    if store.t.dialect.one_writer:
        pytest.skip("one writer at a time: nothing uncommitted can be met")
    a1, a2, b = send(store.app, "a", "a", "b")
    seen = store.seen(a1, b)
    m = store.t.message
    with database.engine().connect() as foreign, database.engine().connect() as watcher:
        foreign.execute(sa.update(m).where(m.c.msg_id == a2).values(status=1))
        join = in_thread(lambda: _flag_as_the_fetcher_does(store, seen))

        _until_somebody_waits(watcher)
        foreign.rollback()
        assert join() == [a1, b]


def test_a_row_that_another_claim_has_locked_is_passed_over(store, database):
    if not store.t.dialect.skip_locked:
        pytest.skip("no row locks on this database")
    a, b = send(store.app, "a", "b")
    m = store.t.message
    with database.engine().connect() as other:
        other.execute(sa.select(m.c.msg_id).where(m.c.msg_id == a).with_for_update())
        assert store.flag(*store.seen(a, b)) == [b]
        other.rollback()
    assert store.flag(*store.seen(a)) == [a]


def _flag_as_the_fetcher_does(store: Store, seen: Sequence[Candidate]) -> list[int]:
    try:
        return _ids(store(claim.flag, seen, me=ME))
    except (sa.exc.IntegrityError, claim.LeftAlone):
        return _ids(store(claim.flag_apart, seen, me=ME)[0])


def test_flag_apart_passes_over_what_is_not_to_be_had(store):
    a1, a2, b = send(store.app, "a", "a", "b")
    assert _ids(store(claim.flag_apart, store.seen(a2, a1, b), me=ME)[0]) == [a1, b]


# ---------------------------------------------------------------- runs


def _run(store: Store, head: Row, limit: int = 10) -> list[int]:
    return _ids(store(following.read_runs, [head], limit=limit)[head.msg_id])


def test_read_runs_gives_what_stands_behind_each_head(store):
    ids = send(store.app, "a", "b", "a", "a", "b", None)
    rows = store.flagged(ids[0], ids[1], ids[5])
    runs = store(following.read_runs, rows, limit=10)
    assert {head: _ids(run) for head, run in runs.items()} == {
        ids[0]: [ids[2], ids[3]],
        ids[1]: [ids[4]],
    }
    assert store(following.read_runs, rows, limit=1)[ids[0]] == runs[ids[0]][:1]
    assert store(following.read_runs, rows, limit=0) == {ids[0]: [], ids[1]: []}
    assert store(following.read_runs, [], limit=10) == {}


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
    late, head_id, behind = send(store.app, "a", "a", "a")
    store.row(late, status=2)
    (head,) = store.flagged(head_id)
    store.row(late, status=0)  # a rerun, or a producer that committed late
    assert _run(store, head) == []
    store.row(late, status=-1, error_try_times=1)
    assert _run(store, head) == []
    store.row(late, status=2)
    assert _run(store, head) == [behind]


def test_runs_of_many_heads(store):
    objects = [f"o{i}" for i in range(130)]
    ids = send(store.app, *objects, *objects)
    runs = store(following.read_runs, store.flagged(*ids[:130]), limit=5)
    assert {head: _ids(run) for head, run in runs.items()} == {
        ids[i]: [ids[130 + i]] for i in range(130)
    }


# ---------------------------------------------------------------- settle


def _bad(msg_id: int, outcome: Outcome = Outcome.FAILED, **more: Any) -> Settlement:
    return Settlement(msg_id, outcome, error="E: x", **more)


def test_settle_moves_the_flag_on(store):
    a1, a2, b1, b2, n = send(store.app, "a", "a", "b", "b", None)
    store.flagged(a1, b1, n)
    batch = [Settlement(a1, next_id=a2), Settlement(b1, next_id=b2), Settlement(n)]
    became = store.settle(*batch)
    assert became == {a1: Settled.WENT_ON, b1: Settled.WENT_ON, n: Settled.ENDED}
    assert [store.state(i) for i in (a1, b1, n)] == [(2, 0, None)] * 3
    assert [store.state(i) for i in (a2, b2)] == [(1, 0, ME)] * 2
    assert None not in [row[0] for row in store.table.rows("finished_at", "status") if row[1] == 2]


@pytest.mark.parametrize("edit", [{"claimed_by": OTHER}, {"status": 0}, {"status": 2}, None])
def test_settle_reports_what_is_lost_and_writes_nothing_for_it(store, edit):
    a1, a2, b1, b2 = send(store.app, "a", "a", "b", "b")
    store.flagged(a1, b1)
    if edit is None:
        with store.app.engine.begin() as conn:
            conn.execute(sa.delete(store.t.message).where(store.t.message.c.msg_id == a1))
    else:
        store.row(a1, **edit)
        before = store.state(a1)
    became = store.settle(Settlement(a1, next_id=a2), Settlement(b1, next_id=b2))
    assert became == {a1: Settled.LOST, b1: Settled.WENT_ON}
    assert store.state(a2) == (0, 0, None)
    assert store.state(b2) == (1, 0, ME)
    if edit is not None:
        assert store.state(a1) == before


@pytest.mark.parametrize(
    "edit", [{"status": 2}, {"status": -1, "error_try_times": 1}, {"status": 1}, None, "later"]
)
def test_settle_ends_the_lane_when_the_next_one_is_gone(store, edit):
    a1, a2, b1, b2 = send(store.app, "a", "a", "b", "b")
    store.flagged(a1, b1)
    if edit is None:
        with store.app.engine.begin() as conn:
            conn.execute(sa.delete(store.t.message).where(store.t.message.c.msg_id == a2))
    elif edit == "later":
        store.row(a2, available_at=datetime.now(UTC) + timedelta(hours=1))
    elif edit == {"status": 1}:
        store.row(a2, object_id="c")  # to get by the guard
        store.row(a2, status=1)
    else:
        store.row(a2, **edit)
    became = store.settle(Settlement(a1, next_id=a2), Settlement(b1, next_id=b2))
    assert became == {a1: Settled.ENDED, b1: Settled.WENT_ON}
    assert store.state(a1) == (2, 0, None)
    assert store.state(b2) == (1, 0, ME)


def test_a_guard_violation_of_one_lane_does_not_hold_up_the_others(store):
    """While we held a1, somebody gave a2 to another object, one of whose rows runs."""
    a1, a2, b1, b2, c = send(store.app, "a", "a", "b", "b", "c")
    store.flagged(a1, b1, c)
    store.row(a2, object_id="c")
    became = store.settle(Settlement(a1, next_id=a2), Settlement(b1, next_id=b2))
    assert became == {a1: Settled.ENDED, b1: Settled.WENT_ON}
    assert store.state(a1) == (2, 0, None)
    assert store.state(a2) == (0, 0, None)
    assert store.state(b2) == (1, 0, ME)


def test_settle_writes_every_outcome(store):
    ids = send(store.app, *"abcdef")
    store.row(ids[4], status=-1, error_try_times=1)
    store.row(ids[5], status=-1, error_try_times=2)
    store.flagged(*ids)
    became = store.settle(
        Settlement(ids[0]),
        _bad(ids[1], delay_seconds=3600.0),
        _bad(ids[2], Outcome.DEAD),
        _bad(ids[3], Outcome.LATER, delay_seconds=3600.0),
        Settlement(ids[4], Outcome.RELEASED, tries=1),
        _bad(ids[5], tries=2),
    )
    assert set(became.values()) == {Settled.ENDED}
    assert [store.state(i)[:2] for i in ids] == [(2, 0), (-1, 1), (-1, 3), (0, 0), (-1, 1), (-1, 3)]
    rows = store.table.rows("claimed_by", "available_at", "finished_at", "last_error")
    assert {row[0] for row in rows} == {None}
    assert [row[1] is not None for row in rows] == [False, True, False, True, False, False]
    assert [row[2] is not None for row in rows] == [True, False, True, False, False, True]
    assert [row[3] for row in rows] == [None, "E: x", "E: x", "E: x", None, "E: x"]
    assert store.table.column("later_times")[3] == 1


def test_an_outcome_of_an_earlier_claim_is_not_written(store):
    """The same instance has the row again, one try later: a late statement must not count twice."""
    (a,) = send(store.app, "a")
    store.row(a, status=-1, error_try_times=1)
    store.flagged(a)
    assert store.settle(_bad(a, tries=0)) == {a: Settled.LOST}
    assert store.state(a) == (1, 1, ME)
    assert store.settle(_bad(a, tries=1)) == {a: Settled.ENDED}
    assert store.state(a) == (-1, 2, None)


def test_settle_one(store):
    a1, a2 = send(store.app, "a", "a")
    store.flagged(a1)
    assert store(settle.settle_one, Settlement(a1, next_id=a2), me=OTHER) is Settled.LOST
    assert store.state(a1) == (1, 0, ME)
    assert store(settle.settle_one, Settlement(a1, next_id=a2), me=ME) is Settled.WENT_ON
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


def test_settles_of_many_lanes(store):
    objects = [f"o{i}" for i in range(1200)]
    ids = send(store.app, *objects)
    more = send(store.app, *objects)
    store.flagged(*ids)
    became = store.settle(*(Settlement(a, next_id=b) for a, b in zip(ids, more, strict=True)))
    assert set(became.values()) == {Settled.WENT_ON}
    assert store.table.statuses == [2] * 1200 + [1] * 1200


def test_still_mine(store):
    a, b, c, d = send(store.app, "a", "b", "c", "d")
    store.flagged(a, b)
    store.flagged(c, me=OTHER)
    store.settle(Settlement(b))
    assert store(done.still_mine, [a, b, c, d, 10**9], me=ME) == {a}
    assert store(done.still_mine, [], me=ME) == set()
    assert store(done.still_mine, range(10**6, 10**6 + 2500), me=ME) == set()


# ---------------------------------------------------------------- recover


def test_flagged_by_and_owners(store):
    ids = send(store.app, "a", "b", None, None, "c", "d")
    store.flagged(ids[0], ids[2], ids[4])
    store.flagged(ids[1], ids[3], me=OTHER)
    store.row(ids[5], status=1)  # a foreign one: nobody's
    assert store(recover.flagged_by, ME) == [ids[0], ids[2], ids[4]]
    assert store(recover.flagged_by, ME, limit=2) == [ids[0], ids[2]]
    assert store(recover.flagged_by, "nobody") == []
    assert sorted(store(recover.owners)) == sorted([ME, OTHER])


def test_recover_gives_back_with_a_try_and_a_crash_counted(store):
    ids = send(store.app, "a", "b", "c", None)
    store.row(ids[1], status=-1, error_try_times=2, crash_times=1)
    store.flagged(*ids)
    store.row(ids[2], status=2, claimed_by=None)  # settled meanwhile
    given = store(recover.recover, ids, dead_id=ME, text="instance me-1 died")
    assert given == 3
    rows = store.table.rows("status", "error_try_times", "crash_times", "claimed_by", "last_error")
    text = "instance me-1 died"
    assert rows == [
        (-1, 1, 1, None, text),
        (-1, 3, 2, None, text),
        (2, 0, 0, None, None),
        (-1, 1, 1, None, text),
    ]
    assert store(recover.recover, ids, dead_id=ME, text="again") == 0
    assert store(recover.recover, [], dead_id=ME, text="none") == 0


def test_the_last_failure_but_one_waits_for_its_back_off(store):
    (one,) = send(store.app, "a")
    store.flagged(one)
    store.row(one, error_try_times=1)
    failed = Settlement(one, Outcome.FAILED, delay_seconds=50, tries=1, error="x")
    assert store.settle(failed) == {one: Settled.ENDED}
    tries, waits, finished = store.table.one("error_try_times", "available_at", "finished_at")
    assert (tries, waits is not None, finished) == (2, True, None)


def test_the_last_crash_but_one_does_not_finish_a_message(store):
    (one,) = send(store.app, "a")
    store.flagged(one)
    store.row(one, error_try_times=1)
    assert store(recover.recover, [one], dead_id=ME, text="x") == 1
    assert store.table.one("error_try_times", "finished_at") == (2, None)


def test_a_recovered_row_is_not_settled(store):
    a1, a2 = send(store.app, "a", "a")
    store.flagged(a1)
    assert store(recover.recover, [a1], dead_id=ME, text="x") == 1
    assert store.settle(Settlement(a1, next_id=a2)) == {a1: Settled.LOST}
    assert store.state(a1) == (-1, 1, None)
    assert store.state(a2) == (0, 0, None)


def test_release_gives_back_without_a_try(store):
    ids = send(store.app, "a", "b", "c")
    store.row(ids[1], status=-1, error_try_times=1)
    store.flagged(*ids[:2])
    store.flagged(ids[2], me=OTHER)
    assert store(recover.release, ids, me=ME) == 2
    assert [store.state(i) for i in ids] == [(0, 0, None), (-1, 1, None), (1, 0, OTHER)]
    assert store(recover.release, [], me=ME) == 0


# ---------------------------------------------------------------- lease


def _expire(store: Store, name: str) -> None:
    table = store.t.lease
    past = datetime.now(UTC) - timedelta(hours=1)
    with store.app.engine.begin() as conn:
        conn.execute(sa.update(table).where(table.c.name == name).values(expires_at=past))


def _lease(store: Store, name: str) -> lease.Lease:
    (one,) = [x for x in store(lease.read_all) if x.name == name]
    return one


def test_a_lease_is_registered_once(store):
    store(lease.register, ME, ttl=30.0, label="host")
    one = _lease(store, ME)
    assert (one.live, one.term, one.taken_by, one.label) == (True, 0, None, "host")
    assert timedelta(seconds=5) < one.expires_at - one.started_at < timedelta(seconds=60)
    with pytest.raises(sa.exc.IntegrityError):
        store(lease.register, ME, ttl=30.0)


def test_a_lease_is_renewed_while_it_is_ours(store):
    store(lease.register, ME, ttl=30.0)
    assert store(lease.renew, ME, ttl=30.0, in_hand=7) is True
    one = _lease(store, ME)
    assert (one.term, one.in_hand) == (1, 7)
    assert store(lease.renew, "unknown", ttl=30.0) is False


def test_an_expired_lease_is_never_renewed(store):
    store(lease.register, ME, ttl=30.0)
    _expire(store, ME)
    assert not _lease(store, ME).live
    assert store(lease.renew, ME, ttl=30.0) is False


def test_a_take_over_has_one_winner_and_is_for_ever(store):
    store(lease.register, ME, ttl=30.0)
    live = _lease(store, ME)
    assert store(lease.take_over, live, me=OTHER, ttl=30.0) is False  # it lives
    _expire(store, ME)
    seen = _lease(store, ME)
    assert store(lease.take_over, seen, me=OTHER, ttl=30.0) is True
    assert store(lease.take_over, seen, me="third-3", ttl=30.0) is False
    assert store(lease.renew, ME, ttl=30.0) is False
    taken = _lease(store, ME)
    assert (taken.taken_by, taken.live) == (OTHER, True)
    _expire(store, ME)  # the winner died too
    assert store(lease.take_over, _lease(store, ME), me="third-3", ttl=30.0) is True


def _shift(store: Store, name: str, by: timedelta) -> None:
    """As if the database's clock had been put back by so much (ahead, if negative)."""
    table, one = store.t.lease, _lease(store, name)
    times = {"renewed_at": one.renewed_at + by, "expires_at": one.expires_at + by}
    with store.app.engine.begin() as conn:
        conn.execute(sa.update(table).where(table.c.name == name).values(**times))


def _lasts(one: lease.Lease) -> float:
    return (one.expires_at - one.renewed_at).total_seconds()


def test_a_lease_from_before_the_clock_was_put_back_counts_anew(store):
    store(lease.register, ME, ttl=60.0)
    before = _lease(store, ME)
    assert not before.ahead
    _shift(store, ME, timedelta(days=1))
    seen = _lease(store, ME)
    assert (seen.ahead, seen.live) == (True, True)
    assert store(lease.count_anew, seen) is True
    anew = _lease(store, ME)
    assert (anew.ahead, anew.live, anew.term) == (False, True, seen.term)
    assert _lasts(anew) == pytest.approx(60.0, abs=1.0)
    assert anew.expires_at - before.expires_at < timedelta(minutes=1)
    assert store(lease.renew, ME, ttl=60.0) is True  # it lives
    assert store(lease.count_anew, anew) is False  # and has been renewed since


def test_a_take_over_from_before_the_clock_was_put_back_counts_anew(store):
    store(lease.register, ME, ttl=60.0)
    _expire(store, ME)
    _shift(store, ME, timedelta(days=-3))  # long ago
    assert store(lease.take_over, _lease(store, ME), me=OTHER, ttl=300.0) is True
    _shift(store, ME, timedelta(days=1))
    seen = _lease(store, ME)
    assert seen.ahead
    assert store(lease.count_anew, seen) is True
    assert store(lease.count_anew, seen) is False  # once is enough
    taken = _lease(store, ME)
    assert (taken.taken_by, taken.live, taken.ahead) == (OTHER, True, False)
    assert _lasts(taken) == pytest.approx(300.0, abs=1.0)


def test_a_forced_take_over_from_before_the_clock_was_put_back_counts_anew(store):
    store(lease.register, ME, ttl=60.0)
    assert store(lease.take_over_live, ME, me=OTHER, ttl=300.0) is True
    _shift(store, ME, timedelta(days=1))
    assert store(lease.count_anew, _lease(store, ME)) is True
    assert _lasts(_lease(store, ME)) == pytest.approx(300.0, abs=1.0)


def test_a_renewal_between_look_and_take_over_wins(store):
    store(lease.register, ME, ttl=30.0)
    _expire(store, ME)
    seen = _lease(store, ME)
    table = store.t.lease
    soon = datetime.now(UTC) + timedelta(hours=1)
    with store.app.engine.begin() as conn:
        conn.execute(sa.update(table).values(expires_at=soon, term=table.c.term + 1))
    assert store(lease.take_over, seen, me=OTHER, ttl=30.0) is False


def test_eight_take_overs_at_once_have_one_winner(store):
    store(lease.register, ME, ttl=30.0)
    _expire(store, ME)
    seen = _lease(store, ME)
    gate = threading.Barrier(8)

    def take(n: int) -> bool:
        gate.wait(30)
        return bool(store(lease.take_over, seen, me=f"w{n}", ttl=30.0))

    joins = [in_thread(lambda n=n: take(n)) for n in range(8)]
    assert sorted(join() for join in joins) == [False] * 7 + [True]


def test_a_lease_is_dropped_by_its_holder_only(store):
    store(lease.register, ME, ttl=30.0)
    assert store(lease.drop, ME, taken_by=OTHER) is False
    _expire(store, ME)
    store(lease.take_over, _lease(store, ME), me=OTHER, ttl=30.0)
    assert store(lease.drop, ME) is False
    assert store(lease.drop, ME, taken_by=OTHER) is True
    assert store(lease.read_all) == []


# ---------------------------------------------------------------- plans

FINISHED, WAITING, OBJECTS = 20_000, 5_000, 500


@pytest.fixture
def large(app: App) -> Store:
    """20,000 finished rows and 5,000 waiting ones of 500 objects, with fresh statistics."""
    store = Store(app)
    with app.engine.begin() as conn:
        pairs = [({"n": i}, f"o{i % OBJECTS}") for i in range(FINISHED)]
        app.send_many(conn, "t", pairs)
        conn.execute(sa.update(store.t.message).values(status=2, finished_at=datetime.now(UTC)))
        app.send_many(conn, "t", pairs[: WAITING - 200])
        app.send_many(conn, "t", [(None, None)] * 100)
        app.send_many(conn, "t", [(None, f"w{i}") for i in range(50)], delay=3600)
        app.send_many(
            conn, "t", [(None, f"d{i}") for i in range(50)], at=datetime(2001, 1, 1, tzinfo=UTC)
        )
    with app.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
        name = store.t.message.name
        conn.exec_driver_sql(f"ANALYZE TABLE {name}" if _is_mysql(app) else f"ANALYZE {name}")
    return store


def _is_mysql(app: App) -> bool:
    return app.engine.dialect.name in ("mysql", "mariadb")


class Recorder:
    """Every statement on the message table that an act sends, with its parameters."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.sent: list[tuple[str, Any]] = []

    def __call__(self, act: Callable[..., Any], *args: Any, **options: Any) -> Any:
        def note(conn: Any, cursor: Any, text: str, parameters: Any, *rest: Any) -> None:
            if self.store.t.message.name in text:
                self.sent.append((text, parameters))

        engine = self.store.app.engine
        with engine.connect() as conn:
            sa.event.listen(conn, "before_cursor_execute", note)
            try:
                return act(conn, self.store.t, *args, **options)
            finally:
                conn.rollback()


def _acts(store: Store) -> Iterator[tuple[str, tuple[str, ...], Callable[[Recorder], Any]]]:
    """Name, indexes of which one must be used, the act."""
    open_ids = [i for i, s in store.table.rows("msg_id", "status") if s == 0]
    seen = store.seen(*open_ids[:100])
    rows = [Row(c.msg_id, c.object_id, "t", None, 0, 0, 0, None, None) for c in seen]
    moves = [Settlement(i, next_id=i + OBJECTS) for i in open_ids[:50]]
    key, obj, oldest, due, guard = "primary", "object", "oldest", "due", "guard"
    if store.t.dialect.oldest_index:
        yield "oldest", (oldest,), lambda r: r(candidates.oldest, mark=0, limit=100)
    yield "heads from start", (obj,), lambda r: r(candidates.heads, after=None, limit=100)
    yield "heads", (obj,), lambda r: r(candidates.heads, after="o250", limit=100)
    yield "due", (due,), lambda r: r(candidates.due_after, since=None, limit=100)
    waits = {"linger": 5.0, "retry_linger": 300.0, "topics": ["t", "u"], "paused": ["u"]}
    yield "coming", (due, obj, guard), lambda r: r(coming, **waits)
    yield "loose", (obj, oldest), lambda r: r(candidates.loose, after=0, limit=100)
    yield "flag", (key,), lambda r: r(claim.flag, seen, me=ME)
    yield "flag one", (key,), lambda r: r(claim.flag, seen[:1], me=ME)
    yield "runs", (obj,), lambda r: r(following.read_runs, rows, limit=20)
    yield "run of one", (obj,), lambda r: r(following.read_runs, rows[:1], limit=20)
    yield "settle one", (key,), lambda r: r(settle.settle_one, moves[0], me=ME)
    yield "still mine", (key, guard), lambda r: r(done.still_mine, open_ids[:100], me=ME)
    yield "flagged by", (guard, obj), lambda r: r(recover.flagged_by, ME)
    yield "owners", (guard, obj), lambda r: r(recover.owners)


def _plan(conn: Connection, text: str, parameters: Any) -> list[tuple[str, str]]:
    """(how, index) of each access to the message table; how is "scan" where no index is used."""
    if conn.dialect.name == "sqlite":
        found = conn.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}", parameters)
        return [_sqlite_step(row[3]) for row in found if _sqlite_step(row[3])[0]]
    if conn.dialect.name == "postgresql":
        (found,) = conn.exec_driver_sql(f"EXPLAIN (FORMAT JSON) {text}", parameters).one()
        return list(_postgresql_steps(found[0]["Plan"]))
    found = conn.exec_driver_sql(f"EXPLAIN {text}", parameters).mappings().all()
    return [
        ("scan" if row["key"] is None else "index", str(row["key"]).lower())
        for row in found
        if row["table"] is not None and not str(row["table"]).startswith("<")
    ]


def _sqlite_step(text: str) -> tuple[str, str]:
    words = text.split()
    if words[0] not in ("SCAN", "SEARCH") or "CONSTANT" in text:
        return "", ""
    if "USING INTEGER PRIMARY KEY" in text:
        return "index", "primary"
    if "INDEX" in words:
        return "index", words[words.index("INDEX") + 1].lower()
    if words[1] in ("ring", "w", "g", "q0") or words[1].startswith(("(", "q")):
        return "", ""  # a step over what another step has found
    return "scan", text


def _postgresql_steps(node: dict[str, Any]) -> Iterator[tuple[str, str]]:
    if node["Node Type"] == "Seq Scan" and node["Relation Name"] == "msgworker_message":
        yield "scan", str(node.get("Filter"))
    if "Index Name" in node:
        name = node["Index Name"]
        yield "index", "primary" if name.endswith("_pkey") else name
    for child in node.get("Plans", ()):
        yield from _postgresql_steps(child)


def test_hot_statements_use_the_claim_indexes(large):
    wrong: list[str] = []
    tuned = large.t.dialect.tuned
    for name, indexes, act in _acts(large):
        recorder = Recorder(large)
        act(recorder)
        assert recorder.sent, name
        with large.app.engine.connect() as conn:
            if tuned:
                conn.exec_driver_sql(tuned[0])
            steps = [s for text, p in recorder.sent for s in _plan(conn, text, p)]
            conn.rollback()
        if any(how == "scan" for how, _ in steps):
            wrong.append(f"{name}: reads the whole table: {steps}")
        if not any(index.endswith(suffix) for _, index in steps for suffix in indexes):
            wrong.append(f"{name}: uses none of {indexes}: {steps}")
    assert wrong == []


@pytest.mark.parametrize("kind", ["json", "jsonb"])
def test_a_payload_is_json_once_in_a_column_of_a_json_type(make_app, database, kind):
    if database.name == "mariadb" and kind == "jsonb":
        pytest.skip("no such type there")
    app = make_app(table=MessageTable("typed"))
    number = {"sqlite": "INTEGER", "postgresql": "SERIAL", "mariadb": "INT AUTO_INCREMENT"}
    with app.engine.begin() as conn:
        conn.exec_driver_sql(
            f"CREATE TABLE typed (msg_id {number[database.name]} PRIMARY KEY, "
            "object_id VARCHAR(20), topic VARCHAR(20), status SMALLINT DEFAULT 0 NOT NULL, "
            f"error_try_times SMALLINT DEFAULT 0 NOT NULL, payload {kind})"
        )
    app.create_schema()
    seen: list[Any] = []
    app.add_handler("t", lambda msg: seen.append(msg.payload))
    with app.engine.begin() as conn:
        app.send(conn, "t", {"cents": 700}, object_id="A")
        app.send_many(conn, "t", [({"cents": 5}, "A"), (None, "A")])
        conn.exec_driver_sql(
            "INSERT INTO typed (topic, object_id, payload) VALUES ('t', 'A', '{\"cents\": 1}')"
        )
    assert app.drain(linger=0).done == 4
    assert seen == [{"cents": 700}, {"cents": 5}, None, {"cents": 1}]
