"""What the Overview says of a topic, and the numbers beside the names of pages."""

from __future__ import annotations

from typing import Any

import pytest

from msgworker import App
from msgworker.message import State
from msgworker.queries.charts import TopicTimes
from msgworker.queries.counts import TopicInfo
from msgworker.store.bounded import Capped
from msgworker.web.pages.overview import pace, state_of
from tests.support.browsing import Browser, Page
from tests.support.ops import FAILED, NEW, put


@pytest.mark.parametrize(
    ("a_minute", "text"),
    [(0, "0"), (0.01, "< 0.1"), (0.5, "0.5"), (9.96, "10"), (1234.5, "1,234")],
)
def test_a_slow_pace_is_not_told_as_none(a_minute: float, text: str) -> None:
    assert pace(a_minute) == text


@pytest.mark.parametrize(
    ("counts", "handlers", "times", "words"),
    [
        ({}, 1, {}, ["idle"]),
        ({State.NEW: 1}, 1, {}, ["waiting"]),
        ({State.NEW: 1}, 0, {}, ["no handler"]),
        ({State.PROCESSING: 1, State.NEW: 1}, 1, {"done": 1}, ["processing"]),
        ({State.NEW: 1}, 1, {"retried": 2}, ["waiting", "every try fails"]),
        ({State.NEW: 1}, 1, {"retried": 2, "done": 1}, ["waiting"]),
        ({State.DEAD: 1}, 1, {}, ["idle", "dead messages"]),
    ],
)
def test_a_topic_says_what_it_does_and_what_is_wrong(
    counts: dict[State, int], handlers: int, times: dict[str, Any], words: list[str]
) -> None:
    capped = {state: Capped(count) for state, count in counts.items()}
    dead = capped.get(State.DEAD, Capped(0))
    one = TopicInfo("t", capped, None, handlers, unacknowledged=dead)
    found = state_of(one, TopicTimes("t", **times))
    assert [text for text, _ in found] == words


def _badge(page: Page, name: str) -> list[str]:
    places = [f"{place}-{name}" for place in ("bar", "menu")]
    return [one.text for place in places for one in page.tree.all("span", id=place)]


def test_every_page_says_how_many_messages_are_dead(sqlite_app: App, ann: Browser) -> None:
    put(sqlite_app, ("a", FAILED), ("b", FAILED), ("c", NEW), topic="t", last_error="E: no")
    for path in ("/", "/messages", "/schedules", "/audit"):
        page = ann.get(path)
        assert _badge(page, "failures") == ["2 dead messages"] * 2, path
        assert _badge(page, "instances") == ["", ""], path


def test_every_count_of_the_overview_leads_to_its_messages(sqlite_app: App, ann: Browser) -> None:
    put(sqlite_app, ("a", FAILED), ("b", NEW), topic="t", last_error="E: no")
    page = ann.get("/")
    wanted = ["/messages?status=dead", "/messages?topic=t&status=dead", "/messages?topic=t"]
    assert [one for one in wanted if one not in page.links] == []
    for path in wanted:
        assert "No message" not in ann.get(path).main
