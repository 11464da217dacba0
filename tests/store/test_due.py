"""What a drain waits for."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from msgworker.store.ranked import due_in
from tests.support.rows import send
from tests.support.store import Store


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
