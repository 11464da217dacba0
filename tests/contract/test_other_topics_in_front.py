"""Messages behind many that this instance does not handle: what a look costs follows what it may
claim."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from msgworker import App
from msgworker.instance.claiming import heads
from msgworker.instance.claiming import search as searching
from msgworker.instance.claiming.heads import Look, Wanted
from msgworker.instance.claiming.search import PASSING_SECONDS, TableSearch
from msgworker.store import candidates
from msgworker.store.candidates import Those

IN_FRONT = 6_000
LOOKS = 15  # by then a new instance has come past what stands in front
WHY = ["not chosen", "paused", "limited"]


def made(app: App, why: str) -> TableSearch:
    """A search that leaves out the topic "slow"."""
    if why == "limited":  # the other one has a search of its own
        search = TableSearch(app.tables, frozenset(["fast"]))
        search.those = Those(frozenset(["fast"]), False)
        return search
    chosen = why == "not chosen"
    return TableSearch(app.tables, frozenset(["fast"]) if chosen else frozenset(["fast", "slow"]))


def sent(app: App, topic: str, objects: list[str | None]) -> None:
    with app.engine.begin() as conn:
        app.send_many(conn, topic, [(None, name) for name in objects])


def look(app: App, search: TableSearch, want: int = 10) -> list[Any]:
    paused = frozenset(["slow"]) & (search.topics or frozenset())
    with app.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
        return search.look(conn, Wanted(want, paused=paused)).candidates


@pytest.mark.parametrize("name", [None, "o1"], ids=["no object", "an object"])
def test_a_message_behind_many_of_other_topics_is_found_by_the_next_look(app, name, monkeypatch):
    sent(app, "slow", [None, "o2"] * (IN_FRONT // 2))
    monkeypatch.setattr(searching, "PASSING_SECONDS", 10.0)  # however slow the machine is
    monkeypatch.setattr(heads, "FORGET_SECONDS", 100.0)
    steps = {1: 1, LOOKS: searching.MOST_STEPS}  # the first look as if many more stood there
    searches = [(why, looks, made(app, why)) for why in WHY for looks in steps]
    for _, looks, search in searches:
        monkeypatch.setattr(searching, "MOST_STEPS", steps[looks])
        for _ in range(looks):
            assert look(app, search) == []
    sent(app, "fast", [name])
    for why, looks, search in searches:
        monkeypatch.setattr(searching, "MOST_STEPS", steps[looks])
        found = look(app, search) or look(app, search)
        assert [one.topic for one in found] == ["fast"], (why, looks)


@pytest.mark.parametrize("names", [lambda i: None, "o{}".format], ids=["no object", "an object"])
def test_a_look_past_others_ends_after_20_ms(app, names, monkeypatch):
    """The rest after it is a multiple of its time: all in one look keeps the next one waiting."""
    sent(app, "slow", [names(i) for i in range(IN_FRONT)])
    clock, read = [1000.0], []

    def slow(name: str) -> None:
        real = getattr(candidates, name)

        def reads(*given: Any, **named: Any) -> Any:
            clock[0] += 1.5 * PASSING_SECONDS
            read.append(name)
            return real(*given, **named)

        monkeypatch.setattr(candidates, name, reads)

    class Clock:
        monotonic = perf_counter = staticmethod(lambda: clock[0])

    monkeypatch.setattr(searching, "time", Clock)
    for name in ("oldest", "oldest_among", "heads", "without_object"):
        slow(name)
    for why in WHY:
        search = made(app, why)
        for _ in range(3):
            read.clear()
            assert look(app, search) == []
            assert len(read) <= 3, why


def test_what_waits_for_a_permit_behind_others_is_found_again_by_the_next_look(app):
    for first in (0, IN_FRONT):
        sent(app, "slow", [f"o{first + i:05}" for i in range(IN_FRONT)])
        sent(app, "fast", [f"o{first + i:05}f" for i in range(3)])
    search = made(app, "limited")
    assert any(look(app, search, want=1) for _ in range(3 * LOOKS))
    for _ in range(5):
        assert look(app, search, want=1)


def test_a_message_that_stood_there_before_is_found_within_a_few_looks(app):
    sent(app, "slow", [None] * IN_FRONT)
    sent(app, "fast", [None])
    sent(app, "slow", [None] * IN_FRONT)
    search = made(app, "not chosen")
    found = next((rows for _ in range(12) if (rows := look(app, search))), [])
    assert [one.topic for one in found] == ["fast"]


@pytest.mark.long
@pytest.mark.parametrize("later", [["o1"] * 5, ["o2", "o1"] * 5], ids=["one object", "two"])
def test_a_new_message_does_not_hide_the_head_of_its_object(app, later):
    """What is read behind the end are the followers of heads that a look reads after them."""
    sent(app, "slow", [f"s{i:05}" for i in range(IN_FRONT)])
    sent(app, "fast", ["o1", "o2"] + ["o1"] * 200)
    heads = [IN_FRONT + 1, IN_FRONT + 2]
    searches = {why: made(app, why) for why in WHY}
    for search in searches.values():
        found = [look(app, search) for _ in range(3 * LOOKS)]
        assert heads in [[one.msg_id for one in rows] for rows in found]
    sent(app, "fast", [*later, "o3"])
    newest = IN_FRONT + 202 + len(later) + 1
    for why, search in searches.items():
        seen: set[int] = set()
        for _ in range(3 * LOOKS):
            rows = look(app, search)
            seen |= {one.msg_id for one in rows}
            search.lost(rows)  # whoever offers what is not a head loses its object for a while
            search.forget()
        assert seen == {*heads, newest}, why


def test_many_behind_others_are_found_in_full_looks(app):
    sent(app, "slow", [None] * IN_FRONT)
    search = made(app, "not chosen")
    for _ in range(LOOKS):
        look(app, search)
    sent(app, "fast", [None] * 300)
    seen = [len(look(app, search, want=100)) for _ in range(3)]
    assert max(seen) == 100


@pytest.mark.requires("index_by_age")
def test_a_message_behind_objects_that_wait_for_retries_is_found_by_the_next_look(app, monkeypatch):
    """As while a service is away: each object has a head that waits for its next try, and a message
    behind it. No look waits for a whole round over the objects."""
    monkeypatch.setattr(searching, "BEHIND_SECONDS", 0.0)
    objects = [f"o{i}" for i in range(2_000)]
    sent(app, "fast", objects * 2)
    c = app.tables.cols()
    waits = app.tables.values(
        status=-1, error_try_times=1, available_at=datetime.now(UTC) + timedelta(hours=1)
    )
    with app.engine.begin() as conn:
        first = conn.scalar(sa.select(sa.func.min(c.msg_id)))
        heads = c.msg_id < first + len(objects)
        conn.execute(sa.update(app.tables.message).where(heads).values(waits))
    search = TableSearch(app.tables, frozenset(["fast"]))

    def looked(*, rests: bool = False) -> Look:
        with app.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
            return search.look(conn, Wanted(2, rests=rests))

    for _ in range(1_000):
        found = looked()
        if found.round_over and not found.candidates:
            break
        search.lost(found.candidates)  # no claim gets one: they are no heads
    assert found.round_over
    assert found.finds_new
    sent(app, "fast", ["another"])
    found = looked(rests=True)
    assert "another" in [one.object_id for one in found.candidates]
    assert not found.round_over
