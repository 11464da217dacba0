"""What the Overview and its own page say of a topic, and the numbers beside the names of pages."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest

from msgworker import App
from msgworker.message import State
from msgworker.queries import counts
from msgworker.queries.counts import TopicInfo, TopicTimes
from msgworker.store import bounded
from msgworker.store.bounded import Capped
from msgworker.web.pages.overview import pace, state_of
from tests.support.browsing import Browser, Page
from tests.support.ops import FAILED, NEW, many_dead, put


@pytest.mark.parametrize(
    ("a_minute", "text"), [(0, "0"), (0.01, "< 0.1"), (0.5, "0.5"), (9.96, "10"), (1234.5, "1,234")]
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


def test_what_was_not_found_among_those_that_were_counted_is_no_alarm(
    sqlite_app: App, ann: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counts, "MOST", 2)
    put(sqlite_app, *[(str(n), FAILED) for n in range(4)], topic="t", last_error="E: no")
    page = ann.get("/")
    assert _badge(page, "failures") == ["2+ dead messages"] * 2
    assert _badge(page, "lanes") == _badge(page, "jobs") == ["", ""]


def test_every_count_of_the_overview_leads_to_its_messages(sqlite_app: App, ann: Browser) -> None:
    put(sqlite_app, ("a", FAILED), ("b", NEW), topic="t", last_error="E: no")
    page = ann.get("/")
    wanted = ["/messages?status=dead", "/messages?topic=t&status=dead", "/topics/t"]
    assert [one for one in wanted if one not in page.links] == []
    for path in wanted:
        assert "No message" not in ann.get(path).main


def test_a_topic_of_a_state_that_was_not_counted_whole_has_0_or_more(
    sqlite_app: App, ann: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On every page, beside a total of "2+": some of it may be behind those that were counted."""
    monkeypatch.setattr(counts, "MOST", 2)
    sqlite_app.add_handler("late", lambda msg: None)
    put(sqlite_app, *[(str(n), NEW) for n in range(4)], topic="t")
    put(sqlite_app, ("z", NEW), topic="late")
    link = "/messages?topic=late&status=new"
    for path in ("/", "/topics", "/topics/late"):
        page = ann.get(path)
        assert [one.text for one in page.tree.all("a", href=link)] == ["0+"], path
    assert "2+" in ann.get("/").main


def test_the_page_of_a_topic_has_all_that_is_known_of_it(sqlite_app: App, ann: Browser) -> None:
    app = sqlite_app
    app.add_handler("t", lambda msg: None, max_tries=2, timeout=90, on_dead="alarm")
    _, head, _ = put(app, ("a", FAILED), ("b", NEW), ("b", NEW), topic="t", last_error="E: no")
    put(app, ("c", FAILED), topic="other", last_error="E: others")
    app.ops.acting(actor="bob").pause("t", reason="INC-4711")
    page = ann.get("/topics/t")
    told = (
        "paused",
        "by bob",
        "INC-4711",
        "E: no",
        "tries2, then",
        "timeout1m 30s",
        "sent to alarm",
    )
    assert [one for one in told if one not in page.main] == []
    assert "others" not in page.main
    links = ["/messages?topic=t", "/messages?topic=t&status=new", "/failures?topic=t"]
    links += [f"/messages/{head}", "/topics/alarm", "/act/resume-topic?name=t"]
    assert [one for one in links if one not in page.links] == []
    assert ann.get(page.link("Rerun its failures")).form("/change/rerun")["topic"] == "t"


def test_a_viewer_of_a_topic_sees_no_button(sqlite_app: App, visit: Any) -> None:
    put(sqlite_app, ("a", FAILED), topic="t", last_error="E: no")
    page = visit(sqlite_app, "viewer").get("/topics/t")
    assert page.tree.all("a", **{"class": "button"}) == []


@pytest.mark.long
def test_a_topic_of_any_name_has_a_page_and_links_to_it(
    sqlite_app: App, ann: Browser, subtests: Any
) -> None:
    for name in (
        "a/b",
        "100%",
        "%2F",
        "gr\u00fc\u00df \u4f60",
        "a b",
        "?x=1#y&z",
        "t\x07",
        "x" * 100,
    ):
        with subtests.test(name=name):
            (msg_id,) = put(sqlite_app, ("a", FAILED), topic=name, last_error="E: no")
            target = f"/topics/{quote(name)}"
            for path in ("/", "/topics", f"/messages/{msg_id}", "/messages", "/failures", "/lanes"):
                assert target in ann.get(path).links or path == "/lanes", path
            page = ann.get(target)
            assert page.tree.all("section", id="topic")[0].attrs["hx-get"] == target
            assert f"{msg_id}" in ann.get(page.link("All its messages")).main


@pytest.mark.parametrize("name", ["a/../b", "..", "a//b", "a\nb"])
def test_a_topic_that_no_path_can_name_is_no_link(sqlite_app: App, ann: Browser, name: str) -> None:
    put(sqlite_app, ("a", FAILED), topic=name, last_error="E: no")
    for path in ("/", "/topics", "/messages", "/failures"):
        found = [one for one in ann.get(path).links if one.startswith("/topics/")]
        assert found == [], path


def test_a_topic_that_was_not_counted_has_a_page(
    sqlite_app: App, ann: Browser, monkeypatch: Any
) -> None:
    """As that of an old dead message below many that have failed."""
    put(sqlite_app, ("a", FAILED), topic="rare")
    many_dead(sqlite_app, counts.NEWEST)
    for module, name in ((counts, "MOST"), (bounded, "SCAN")):
        monkeypatch.setattr(module, name, 500)
    page = ann.get("/topics")
    assert ("/topics/rare" in page.links, "may be missing" in page.main) == (False, True)
    assert "None of its messages is among those that were counted" in ann.get("/topics/rare").main
    assert ann.client.get("/api/v1/topics").json()["complete"] is False


def test_an_empty_name_is_shown_and_leads_to_no_list_of_others(
    sqlite_app: App, ann: Browser
) -> None:
    put(sqlite_app, ("", FAILED), ("", NEW), topic="", last_error="E: no")
    (lists,) = {ann.get("/system").links.count("/messages")}
    for path in ("/topics", "/lanes?by=object", "/messages/1"):
        page = ann.get(path)
        assert ("(empty)" in page.main, "may be missing" in page.main) == (True, False)
        assert page.links.count("/messages") == lists
        assert not [one for one in page.links if one.startswith("/messages?status")]


@pytest.mark.parametrize(
    ("path", "code", "text"),
    [
        ("/topics/nothing", 404, 'no message of topic "nothing"'),
        ("/topics/", 404, 'no message of topic ""'),
        ("/topics/a%00b", 400, "NUL"),
        ("/topics/%FF", 404, "no message of topic"),
        ("/topics/t?window=2h", 400, "window is one of"),
    ],
)
def test_a_topic_that_is_none_is_refused(ann: Browser, path: str, code: int, text: str) -> None:
    assert text in ann.get(path, code).text


def test_a_topic_with_a_handler_and_no_message_has_a_page(sqlite_app: App, ann: Browser) -> None:
    sqlite_app.add_handler("quiet", lambda msg: None)
    assert "idle" in ann.get("/topics/quiet").main
