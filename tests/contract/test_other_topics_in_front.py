"""Messages behind many that this instance does not handle: what a look costs follows what it may
claim."""

from __future__ import annotations

from typing import Any

import pytest

from msgworker import App
from msgworker.instance.claiming.search import Search

IN_FRONT = 6_000
LOOKS = 15
"""By then a new instance has come past what stands in front."""


def made(app: App, why: str) -> Search:
    """A search that leaves out the topic "slow"."""
    if why == "limited":  # the other one has a search of its own
        search = Search(app.tables, frozenset(["fast"]))
        search.only = frozenset(["fast"])
        return search
    chosen = why == "not chosen"
    search = Search(app.tables, frozenset(["fast"]) if chosen else frozenset(["fast", "slow"]))
    search.paused = frozenset() if chosen else frozenset(["slow"])
    return search


def sent(app: App, topic: str, objects: list[str | None]) -> None:
    with app.engine.begin() as conn:
        app.send_many(conn, topic, [(None, name) for name in objects])


def look(app: App, search: Search, want: int = 10) -> list[Any]:
    with app.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
        return search.look(conn, want=want, in_hand=0).candidates


@pytest.mark.parametrize("why", ["not chosen", "paused", "limited"])
@pytest.mark.parametrize("name", [None, "o1"], ids=["no object", "an object"])
def test_a_message_behind_many_of_other_topics_is_found_by_the_next_look(app, why, name):
    sent(app, "slow", [None] * IN_FRONT)
    search = made(app, why)
    for _ in range(LOOKS):
        assert look(app, search) == []
    sent(app, "fast", [name])
    found = look(app, search) or look(app, search) or look(app, search)
    assert [one.topic for one in found] == ["fast"]


def test_a_message_that_stood_there_before_is_found_within_a_few_looks(app):
    sent(app, "slow", [None] * IN_FRONT)
    sent(app, "fast", [None])
    sent(app, "slow", [None] * IN_FRONT)
    search = made(app, "not chosen")
    found = next((rows for _ in range(12) if (rows := look(app, search))), [])
    assert [one.topic for one in found] == ["fast"]


def test_many_behind_others_are_found_in_full_looks(app):
    sent(app, "slow", [None] * IN_FRONT)
    search = made(app, "not chosen")
    for _ in range(LOOKS):
        look(app, search)
    sent(app, "fast", [None] * 300)
    seen = [len(look(app, search, want=100)) for _ in range(3)]
    assert max(seen) == 100
