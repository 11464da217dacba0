"""What recovery and a release give back."""

from __future__ import annotations

from msgworker.message import Settled, Settlement
from msgworker.store.claiming import claim
from msgworker.store.recovering import recover
from tests.support.flags import ME, seen
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


def test_recover_counts_a_crash_and_a_try_of_what_ran_alone(store):
    """By what each row was when it was claimed: (tries, crashes) before and after, max_tries is 3.
    No crash beside others ends a message, on its last try neither."""
    cases = [
        ((0, 0), (0, 1)),
        ((0, 1), (0, 2)),
        ((1, 0), (1, 1)),
        ((1, 1), (1, 2)),
        ((2, 0), (2, 1)),
        ((0, 2), (1, 3)),
        ((1, 3), (2, 3)),
        ((2, 1), (3, 2)),
        ((2, 3), (3, 3)),
    ]
    ids = send(store.app, *map(str, range(len(cases))), "settled")
    store.flagged(*ids)
    for msg_id, ((tries, crashes), _) in zip(ids, cases, strict=False):
        store.row(msg_id, error_try_times=tries, crash_times=crashes)
    store.row(ids[-1], status=2, claimed_by=None)  # meanwhile
    text = "instance me-1 died"
    assert store(recover.recover, ids, dead_id=ME, text=text) == len(cases)
    columns = ("status", "error_try_times", "crash_times", "claimed_by", "last_error")
    given_back = [(-1, *after, None, text) for _, after in cases]
    assert store.table.rows(*columns) == [*given_back, (2, 0, 0, None, None)]
    dead = [after[0] >= 3 for _, after in cases]
    assert [at is not None for at in store.table.column("finished_at")][:-1] == dead
    assert store(recover.recover, ids, dead_id=ME, text="again") == 0
    assert store(recover.recover, [], dead_id=ME, text="none") == 0


def test_what_was_in_a_crash_since_it_was_read_is_not_claimed(store):
    """Its tries may be as they were, and it must be alone by now."""
    (one,) = send(store.app, "a")
    store.row(one, status=-1, error_try_times=2)
    before = seen(store.app, one)
    store.row(one, crash_times=1)
    now = seen(store.app, one)
    assert store(claim.flag, before, me=ME) == []
    assert [row.msg_id for row in store(claim.flag, now, me=ME)] == [one]


def test_a_recovered_row_is_not_settled(store):
    a1, a2 = send(store.app, "a", "a")
    store.flagged(a1)
    assert store(recover.recover, [a1], dead_id=ME, text="x") == 1
    assert store.settle(Settlement(a1, next_id=a2)) == {a1: Settled.LOST}
    assert store.state(a1) == (-1, 0, None)
    assert store.state(a2) == (0, 0, None)


def test_release_gives_back_without_a_try(store):
    ids = send(store.app, "a", "b", "c", "d")
    store.row(ids[1], status=-1, error_try_times=1)
    store.row(ids[2], status=-1, crash_times=1)  # it is in no run either
    store.flagged(*ids[:3])
    store.flagged(ids[3], me=OTHER)
    assert store(recover.release, ids, me=ME) == 3
    states = [(0, 0, None), (-1, 1, None), (-1, 0, None), (1, 0, OTHER)]
    assert [store.state(i) for i in ids] == states
    assert store(recover.release, [], me=ME) == 0
