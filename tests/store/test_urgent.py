"""Which messages are proposed by their priority."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from msgworker.store import ranked
from tests.support.rows import send
from tests.support.store import OTHER, ids_of


def test_ranked_finds_heads_by_priority_and_age(store):
    low = send(store.app, "a", None, priority=1)
    send(store.app, "c", "d")
    high = send(store.app, "e", "f", priority=32767)
    found = store(ranked.ranked, limit=10)
    assert ids_of(found.heads) == [*high, *low]
    assert found.priorities == dict.fromkeys(high, 32767) | dict.fromkeys(low, 1)
    assert found.after is None


def test_a_message_with_a_priority_behind_another_is_no_head(store):
    first = send(store.app, "a")
    send(store.app, "a", priority=5)
    assert store(ranked.ranked, limit=10).heads == []
    store.row(first[0], status=1, claimed_by=OTHER)
    assert store(ranked.ranked, limit=10).heads == []
    store.row(first[0], status=2, claimed_by=None)
    assert len(store(ranked.ranked, limit=10).heads) == 1


def test_only_what_may_be_claimed_and_waits_for_no_instant_has_a_rank(store):
    ids = send(store.app, *"abcde", priority=5)
    store.row(ids[0], status=1, claimed_by=OTHER)
    store.row(ids[1], status=2)
    store.row(ids[2], status=-1, error_try_times=3)
    store.row(ids[3], status=-1, error_try_times=1)
    store.row(ids[4], available_at=datetime.now(UTC) + timedelta(hours=1))
    assert ids_of(store(ranked.ranked, limit=10).heads) == [ids[3]]


def test_ranked_goes_on_behind_the_last_row_that_was_read(store):
    ids = send(store.app, "a", "b", "a", priority=7) + send(store.app, "c", "d", priority=3)
    seen, after = [], None
    for _ in range(3):
        found = store(ranked.ranked, limit=2, after=after)
        seen.append(ids_of(found.heads))
        after = found.after
    assert seen == [ids[:2], [ids[3]], [ids[4]]]
    assert after is None


def test_due_rows_come_with_the_highest_and_have_their_priority(store):
    past = datetime.now(UTC) - timedelta(hours=1)
    plain = send(store.app, "a", at=past)
    due = send(store.app, "b", at=past, priority=4)
    high = send(store.app, "c", priority=9)
    send(store.app, "d")
    found = store(ranked.due_and_ranked, since=None, limit=10, most=10)
    assert ids_of(found.due) == [*plain, *due]
    assert all(row.waits_until is not None for row in found.due)
    assert ids_of(found.heads) == high
    assert found.priorities == {due[0]: 4, high[0]: 9}
    first = found.due[0]
    since = (first.waits_until, first.msg_id)
    again = store(ranked.due_and_ranked, since=since, limit=10, most=10)
    assert ids_of(again.due) == due


def test_ranked_tells_the_slice_of_each_head(store):
    ids = send(store.app, "a", "b", priority=1)
    store.row(ids[0], shard=5)
    store.row(ids[1], shard=6)
    assert store(ranked.ranked, limit=10, role="shard").values == {ids[0]: 5, ids[1]: 6}
