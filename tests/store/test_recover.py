"""What recovery and a release give back."""

from __future__ import annotations

from msgworker.message import Settled, Settlement
from msgworker.store import recover
from tests.support.flags import ME
from tests.support.rows import send
from tests.support.store import OTHER


def test_flagged_by_and_owners(store):
    ids = send(store.app, "a", "b", None, None, "c", "d")
    store.flagged(ids[0], ids[2], ids[4])
    store.flagged(ids[1], ids[3], me=OTHER)
    store.row(ids[5], status=1)  # a foreign one, without an owner
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
    ended = [at is not None for at in store.table.column("finished_at")]
    assert ended == [False, True, False, False]  # the one that is dead: its unique key is free
    assert store(recover.recover, ids, dead_id=ME, text="again") == 0
    assert store(recover.recover, [], dead_id=ME, text="none") == 0


def test_the_last_crash_but_one_does_not_finish_a_message(store):
    (one,) = send(store.app, "a")
    store.flagged(one)
    store.row(one, error_try_times=1)
    assert store(recover.recover, [one], dead_id=ME, text="x") == 1
    assert store.table.one("error_try_times", "finished_at") == (2, None)


def test_what_a_foreign_consumer_has_flagged_for_its_next_try_is_not_given_back(store):
    (one,) = send(store.app, "a")
    store.row(one, status=1, error_try_times=1)
    assert store(recover.recover_foreign, [one], seen_tries=0, text="x") == 0
    assert store.state(one) == (1, 1, None)
    assert store(recover.recover_foreign, [one], seen_tries=1, text="x") == 1
    assert store.state(one) == (-1, 2, None)


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
