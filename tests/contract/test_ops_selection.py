"""Pages of a selection: all that matches, once each, by msg_id, however they are cut."""

from __future__ import annotations

import itertools
import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from msgworker import App
from msgworker.message import State
from msgworker.ops import selection as counting
from msgworker.store import bounded
from msgworker.store.bounded import Filter
from msgworker.store.tries import fingerprint, in_group
from tests.support.ops import DONE, FAILED, NEW, RUNNING, put

LATER = datetime.now(UTC) + timedelta(days=1)
KINDS = (
    (NEW, {}),
    (NEW, {"available_at": LATER}),
    (NEW, {"last_error": "ValueError: no"}),
    (RUNNING, {}),
    (DONE, {}),
    (FAILED, {"tries": 1}),
    (FAILED, {"tries": 1, "available_at": LATER}),
    (FAILED, {"tries": 3}),
    (FAILED, {"tries": 4, "last_error": "discarded by me: why"}),
)
WORDS = (
    (State.NEW,),
    (State.PROCESSING,),
    (State.FAILED,),
    (State.DEAD,),
    (State.DONE,),
    (State.NEW, State.FAILED),
    (State.NEW, State.FAILED, State.PROCESSING),
    (State.NEW, State.FAILED, State.DEAD),
    (State.FAILED, State.DEAD, State.DONE),
)
FILTERS: tuple[dict[str, Any], ...] = (
    {},
    {"topic": "u"},
    {"topic": "nothing"},
    {"object_id": "o3"},
    {"error": "no"},
    {"fingerprint": fingerprint("ValueError: no")},
    {"given_up": False},
)


def _fill(app: App) -> None:
    """Rows of each kind, in a mixed order."""
    mixed = random.Random(7)
    for number in range(80):
        status, more = mixed.choice(KINDS)
        object_id = f"r{number}" if status == RUNNING else mixed.choice([None, "o1", "o2", "o3"])
        put(app, (object_id, status), **({"topic": mixed.choice("tu")} | more))


def _plainly(conn: sa.Connection, app: App, wanted: Filter) -> list[int]:
    """The same without indexes and limits."""
    t = app.tables
    c = t.cols()
    query = sa.select(c.msg_id).where(*bounded.where(t, c, wanted))
    ids = list(conn.scalars(query.order_by(c.msg_id)))
    return in_group(conn, t, ids, wanted.fingerprint) if wanted.fingerprint else ids


def test_pages_hold_all_that_matches_once_and_in_order(app: App) -> None:
    _fill(app)
    with app.engine.connect() as conn:
        sizes = itertools.cycle([(1000, 1000), (7, 3), (3, 20)])
        for words, filters in itertools.product(WORDS, FILTERS):
            wanted = Filter(words, **filters)
            limit, rows = next(sizes)
            found: list[int] = []
            after, parts = None, 0
            while after is not None or not parts:
                ids, after = bounded.ids_of_filter(
                    conn, app.tables, wanted, after=after, limit=limit, rows=rows
                )
                assert len(ids) <= limit
                assert after is None or not ids or ids[-1] <= after
                found += ids
                parts += 1
                assert parts < 400
            assert found == _plainly(conn, app, wanted), (words, filters, limit, rows)


def test_a_message_of_a_group_is_not_chosen_while_it_waits(app: App) -> None:
    """A rerun leaves its last error: it is of no group until it fails again."""
    waits, dead = put(app, ("a", NEW), ("b", FAILED), last_error="ValueError: no")
    group = fingerprint("ValueError: no")
    assert app.ops.cancel(fingerprint=group, dry_run=True).matched == 0
    assert [one.msg_id for one in app.ops.messages(fingerprint=group)] == [dead]
    would = app.ops.cancel(fingerprint=group, status="new", dry_run=True)
    assert [one.msg_id for one in would.sample] == [waits]


def test_a_hurried_dry_run_begins_with_a_small_part_and_counts_as_long_as_it_may(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting, "FIRST_SIZE", 10)
    monkeypatch.setattr(counting, "LEAST_SIZE", 5)
    ids = put(app, *((f"o{n}", NEW) for n in range(60)))
    asked: dict[str, Any] = {"status": "new", "dry_run": True}
    would = app.ops.within(30, counting=0.001).discard(**asked)
    assert (would.changed, would.complete, would.up_to) == (10, False, ids[9])
    sizes: list[int] = []
    real = bounded.ids_of_filter

    def page(*args: Any, limit: int, **more: Any) -> Any:
        sizes.append(limit)
        return real(*args, limit=limit, **more)

    monkeypatch.setattr(bounded, "ids_of_filter", page)
    would = app.ops.within(30, counting=30).discard(**asked)
    assert (would.changed, would.complete, would.up_to) == (60, True, ids[-1])
    assert sizes == [10, 80]
    would = app.ops.within(30, counting=30).discard(**asked, count_limit=33)
    assert (would.changed, would.complete, would.up_to) == (33, False, ids[32])
    assert app.ops.within(30).discard(**asked).complete


def test_what_a_hurried_dry_run_has_counted_can_be_confirmed(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting, "FIRST_SIZE", 10)
    put(app, *((f"o{n}", NEW) for n in range(60)))
    would = app.ops.within(30, counting=0.001).cancel(topic="t", dry_run=True)
    done = app.ops.cancel(
        topic="t", up_to=would.up_to, expected_count=would.changed, reason="no use"
    )
    assert done.changed == would.changed == 10
