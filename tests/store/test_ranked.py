"""What a drain waits for, and which messages are proposed by their priority."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from msgworker.store import ranked
from msgworker.store.ranked import due_in
from tests.support.rows import send
from tests.support.store import OTHER, Store, ids_of

# --- What a drain waits for.


def _due_in(
    store: Store, linger: float = 5.0, retry_linger: float = 300.0, **more: Any
) -> float | None:
    options: dict[str, Any] = {"topics": None, "paused": (), **more}
    found: float | None = store(due_in, linger=linger, retry_linger=retry_linger, **options)
    return found


def test_a_drain_waits_for_what_becomes_due_within_its_linger(store):
    assert _due_in(store) is None
    send(store.app, "now")
    assert _due_in(store) is None
    send(store.app, "later", delay=3600)
    assert _due_in(store) is None
    assert 3000 < (_due_in(store, linger=4000) or 0) < 3700
    send(store.app, "past", at=datetime.now(UTC) - timedelta(hours=1))
    assert 3000 < (_due_in(store, linger=4000) or 0) < 3700


def test_a_drain_waits_longer_for_what_has_failed(store):
    new, failed, dead, _behind = send(store.app, "n", "f", "d", "f", delay=100)
    store.row(failed, status=-1, error_try_times=1)
    store.row(dead, status=-1, error_try_times=3)
    assert 50 < (_due_in(store) or 0) < 110
    assert _due_in(store, retry_linger=10) is None
    store.row(failed, status=0, error_try_times=0)
    assert _due_in(store) is None
    store.row(new, status=-1, error_try_times=2)
    assert _due_in(store) is not None


def test_a_drain_does_not_wait_for_what_it_may_not_start(store):
    first, second = send(store.app, "o", "o", delay=100, topic="x")
    store.row(second, status=-1, error_try_times=1)
    assert _due_in(store) is None  # behind the first one, which is late
    store.row(first, status=2)
    assert _due_in(store) is not None
    assert _due_in(store, topics=["y"]) is None
    assert _due_in(store, topics=["x", "y"], paused=["x"]) is None
    assert _due_in(store, topics=["x", "y"], paused=["y"]) is not None
    store.row(first, status=1, claimed_by="another")
    assert _due_in(store) is None


# --- Which messages are proposed by their priority.


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
