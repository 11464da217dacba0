"""What a drain waits for."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from msgworker.store.claiming.due import Coming, coming
from tests.support.rows import send
from tests.support.store import Store


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
    store.row(first, status=1, claimed_by="another")
    assert _coming(store).seconds is None
