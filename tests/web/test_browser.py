"""What operators do in an incident, in a real Chromium, and what axe-core finds on each page."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest

from msgworker import App
from msgworker.web import site
from msgworker.web.access import Tokens, entry
from tests.support.leases import dead_holds
from tests.support.ops import DONE, FAILED, RUNNING, many_dead, put
from tests.support.rows import Table
from tests.web.chromium import axe, opened
from tests.web.sample import sample
from tests.web.screens import WIDTHS, served

LOADED = "htmx.trigger(document.querySelector('section.live'), 'changed')"


def _go(page: Any, name: str) -> None:
    """By the bar; a link's name may end with a number of what needs help."""
    bar = page.get_by_role("navigation", name="Pages")
    bar.get_by_role("link", name=re.compile(rf"^{name}\b")).click()


@pytest.mark.long
def test_an_incident_is_seen_and_mended_in_a_browser(sqlite_app: App) -> None:
    app = sqlite_app
    many_dead(app, 60, objects=60)
    (held,) = put(app, ("held", RUNNING), topic="slow")
    dead_holds(app, Table(app), "crm-7", msg_id=held)
    with opened() as browser, served(app) as url:
        page = browser.new_page()
        page.goto(url)
        _go(page, "Failures")
        page.get_by_role("link", name="Open group").first.click()
        assert "60" in page.locator(".rail").inner_text()
        page.go_back()
        page.get_by_role("link", name="Rerun… group").first.click()
        assert "would change" in page.locator("#main").inner_text()
        page.get_by_label("Reason").fill("INC-4711")
        page.get_by_label("Messages a second").fill("20")
        page.get_by_role("button", name="Rerun 60 messages").click()
        page.get_by_text("It runs").wait_for()
        first = app.ops.audit()[0].changed
        page.get_by_text("Done, in").wait_for(timeout=30_000)
        assert first < 60
        assert "60 of 60" in page.locator(".figures").inner_text()
        _go(page, "Failures")
        page.get_by_text("Nothing has failed").wait_for(timeout=20_000)
        _go(page, "Topics")
        page.get_by_role("link", name="Pause… t", exact=True).click()
        page.get_by_label("Reason").fill("INC-4711: wait")
        page.get_by_role("button", name="Pause").click()
        page.get_by_text("Done, in").wait_for()
        _go(page, "Instances")
        page.get_by_role("link", name="Release… crm-7").click()
        page.get_by_label("Reason").fill("its host is gone")
        page.get_by_role("button", name="Release").click()
        page.get_by_text("Done, in").wait_for()
        _go(page, "Audit")
        told = page.locator("tbody").inner_text()
        for text in ("INC-4711", "INC-4711: wait", "its host is gone", "rerun", "pause", "release"):
            assert text in told, text
        assert [one.topic for one in app.ops.pauses()] == ["t"]


@pytest.mark.long
def test_another_choice_about_the_order_is_counted_at_once(sqlite_app: App) -> None:
    put(sqlite_app, ("c", FAILED), ("c", DONE), ("c", FAILED))
    with opened() as browser, served(sqlite_app) as url:
        page = browser.new_page()
        page.goto(f"{url}/change/rerun?status=dead")
        page.get_by_role("button", name="Rerun 1 message", exact=True).wait_for()
        page.get_by_label("run them, and then in order all messages").check()
        page.get_by_role("button", name="Rerun 3 messages").wait_for()
        assert "As counted: run them, and then in order all" in page.locator("#main").inner_text()


@pytest.mark.long
def test_a_list_follows_what_changes_and_keeps_what_is_ticked(
    sqlite_app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site, "POLL_SECONDS", 0.0)
    first, second, third = put(sqlite_app, ("a", FAILED), ("b", FAILED), ("c", FAILED))
    with opened() as browser, served(sqlite_app) as url:
        page = browser.new_page(viewport={"width": 1280, "height": 300})
        errors: list[str] = []
        page.on("pageerror", lambda one: errors.append(str(one)))

        def look() -> None:
            with page.expect_response(lambda one: "hx-request" in one.request.headers):
                page.evaluate(LOADED)

        def ids() -> list[int]:
            return [int(one) for one in page.locator("tbody th").all_inner_texts()]

        page.goto(f"{url}/messages?status=dead&topic=t")
        page.get_by_role("textbox", name="object").fill("half a na")
        page.get_by_role("link", name=str(second)).focus()
        (fourth,) = put(sqlite_app, ("d", FAILED))
        look()
        page.get_by_role("link", name=str(fourth), exact=True).wait_for()
        assert ids() == [fourth, third, second, first]
        assert page.get_by_role("textbox", name="object").input_value() == "half a na"
        assert page.evaluate("document.activeElement.textContent") == str(second)
        assert page.get_by_role("button", name="Rerun…").is_disabled()
        page.get_by_label(f"Tick message {second}").check()
        page.keyboard.press("k")  # from the row of the second one to that of the third
        page.keyboard.press("x")
        page.evaluate("window.scrollTo(0, 120)")
        sqlite_app.ops.rerun([second], reason="by bob")
        put(sqlite_app, ("e", FAILED))
        look()
        page.get_by_text("2 ticked; 1 new, shown when none is ticked").wait_for()
        assert ids() == [fourth, third, second, first]
        assert page.locator("tr.earlier th").inner_text() == str(second)
        assert page.evaluate("window.scrollY") == 120
        assert page.get_by_role("button", name="Edit…").is_disabled()
        page.get_by_role("button", name="Rerun…").click()
        assert "Rerun 2 messages by id" in page.locator("#main").inner_text()
        page.go_back()
        page.get_by_label("all on this page").check()
        page.get_by_text("4 ticked").wait_for()
        page.get_by_role("button", name="Tick none").click()
        page.get_by_label("all 4 by these filters").check()
        page.get_by_role("button", name="Acknowledge…").click()
        text = page.locator("#main").inner_text()
        assert "Acknowledge dead messages of topic t" in text
        assert errors == []


@pytest.mark.long
def test_a_page_whose_session_has_ended_asks_to_log_in(sqlite_app: App) -> None:
    tokens = Tokens((entry("a-token-of-this-test", "this test"),))
    with opened() as browser, served(sqlite_app, auth=tokens) as url:
        page = browser.new_page()
        page.goto(url)
        page.get_by_label("Token").fill("a-token-of-this-test")
        page.get_by_role("button", name="Log in").click()
        page.goto(f"{url}/messages")
        page.get_by_text("No messages.").wait_for()
        page.context.clear_cookies()
        page.evaluate(LOADED)
        page.get_by_label("Token").wait_for()


@pytest.mark.long
def test_a_page_that_cannot_be_renewed_says_so_until_it_is(
    sqlite_app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site, "POLL_SECONDS", 0.0)
    (first,) = put(sqlite_app, ("a", FAILED))
    foreign = "<html><h1>Log in to the proxy</h1></html>"
    with opened() as browser, served(sqlite_app) as url:
        page = browser.new_page()
        page.goto(f"{url}/messages")
        note, asked = page.locator("#stale"), f"{url}/messages"
        assert not note.is_visible()
        for says, answer in (
            ("does not answer", lambda one: one.abort()),
            ("answers with error 503", lambda one: one.fulfill(status=503, body="no")),
            ("does not answer", lambda one: one.fulfill(body=foreign, content_type="text/html")),
        ):
            page.route(asked, answer)
            page.evaluate(LOADED)
            page.get_by_text(
                re.compile(rf"^As of \d\d:\d\d:\d\d: the dashboard {says}\.")
            ).wait_for()
            assert page.locator("tbody th").inner_text() == str(first)
            page.unroute(asked)
            page.evaluate(LOADED)
            note.wait_for(state="hidden")


def _serious(page: Any, program: str, name: str) -> list[str]:
    page.evaluate(program)
    return [
        f"{name}: {one['id']}: {one['nodes'][0]['html'][:200]}"
        for one in page.evaluate("axe.run()")["violations"]
        if one["impact"] in ("serious", "critical")
    ]


@pytest.mark.long
@pytest.mark.parametrize(("width", "colours"), list(itertools.product(WIDTHS, ("light", "dark"))))
def test_axe_finds_nothing_serious_on_any_page(sqlite_app: App, width: int, colours: str) -> None:
    program, pages, found = axe(), sample(sqlite_app), []
    how: dict[str, Any] = {"viewport": {"width": width, "height": 900}, "color_scheme": colours}
    tokens = Tokens((entry("a-token-of-this-test", "this test"),))
    with opened() as browser:
        page = browser.new_context(**how, bypass_csp=True).new_page()
        with served(sqlite_app) as url:
            for name, path in pages.items():
                page.goto(url + path)
                found += _serious(page, program, name)
            page.goto(url + "/act/resume-topic?name=report.print")
            page.get_by_label("Reason").fill("INC-4713")
            page.get_by_role("button", name="Resume").click()
            page.get_by_text("Done, in").wait_for()
            found += _serious(page, program, "write")
        with served(sqlite_app, auth=tokens) as url:
            page.goto(url)
            found += _serious(page, program, "login")
    assert not found, "\n".join(found)


@pytest.mark.long
@pytest.mark.parametrize("width", [390, 1440])
def test_no_page_is_wider_than_the_screen(sqlite_app: App, width: int) -> None:
    pages = sample(sqlite_app)
    with opened() as browser, served(sqlite_app) as url:
        page = browser.new_page(viewport={"width": width, "height": 900})
        errors: list[str] = []
        page.on("console", lambda one: errors.extend([one.text] if one.type == "error" else []))
        page.on("pageerror", lambda one: errors.append(str(one)))
        for name, path in pages.items():
            page.goto(url + path)
            wide = page.evaluate("document.documentElement.scrollWidth")
            assert wide <= width, f"{name}: {wide}"
        missing = "Failed to load resource: the server responded with a status of 404 (Not Found)"
        assert errors == [missing], errors  # the page of an error, itself


FOCUS = "document.activeElement.textContent.trim() || document.activeElement.id"


@pytest.mark.long
def test_keys_find_a_message_and_move_over_rows_until_they_are_switched_off(
    sqlite_app: App,
) -> None:
    put(sqlite_app, ("a", FAILED), topic="t%2F", last_error="E: no")
    put(sqlite_app, ("b", FAILED), topic="u", last_error="E: no")
    with opened() as browser, served(sqlite_app) as url:
        page = browser.new_page()
        page.goto(url)

        def pressed(key: str) -> str:
            page.keyboard.press(key)
            return str(page.evaluate(FOCUS))

        assert [pressed(key) for key in ("j", "j", "k")] == ["t%2F", "u", "t%2F"]
        with page.expect_response("**/"):
            page.evaluate(LOADED)
        page.wait_for_timeout(200)
        assert page.evaluate(FOCUS) == "t%2F"
        with page.expect_navigation():
            page.keyboard.press("Enter")
        assert page.locator("h1").inner_text() == "Topic t%2F"
        page.keyboard.press("Alt+/")
        assert page.evaluate("document.activeElement.localName") == "body"
        assert pressed("/") == "search"
        page.keyboard.type("?j/")
        assert page.input_value("#search") == "?j/"
        page.evaluate("document.activeElement.blur()")
        page.keyboard.press("?")
        page.get_by_label("The first five work").uncheck()
        page.keyboard.press("Escape")
        page.reload()
        for key in ("/", "j", "?"):
            page.keyboard.press(key)
        assert page.evaluate("document.activeElement.localName") == "body"
        assert not page.locator("dialog").is_visible()
        page.get_by_role("button", name="Keys").click()
        page.get_by_label("The first five work").check()
        page.get_by_role("button", name="Close").click()
        page.evaluate("document.activeElement.blur()")
        assert pressed("/") == "search"


@pytest.mark.long
def test_a_chart_says_its_values_by_pointer_by_key_and_by_touch(sqlite_app: App) -> None:
    pages = sample(sqlite_app)
    with opened() as browser, served(sqlite_app) as url:
        page = browser.new_context(has_touch=True).new_page()
        page.goto(url + pages["topic"])
        chart, said = page.locator("svg.chart").first, page.locator("output").first
        box = chart.bounding_box()
        page.mouse.move(box["x"] + box["width"] - 20, box["y"] + 60)
        last = said.inner_text()
        assert re.fullmatch(r"\d\d:\d\d: 0 done, 16 retried, 0 dead", last)
        with page.expect_response("**/topics/*"):
            page.evaluate(LOADED)
        page.wait_for_timeout(200)
        assert said.inner_text() == last
        page.mouse.move(1, 1)
        assert said.inner_text() == ""
        page.keyboard.press("Tab")
        chart.focus()
        page.keyboard.press("ArrowLeft")
        by_key = said.inner_text()
        rows = page.locator("figure").first.locator("tbody tr")
        assert by_key.split(": ")[0] == rows.nth(-2).locator("th").text_content()
        page.touchscreen.tap(box["x"] + 60, box["y"] + 60)
        assert "done" in said.inner_text() != by_key


@pytest.mark.long
def test_short_names_are_not_broken(sqlite_app: App) -> None:
    """A cell that is to stay in one line is one line high."""
    pages = sample(sqlite_app)
    broken = """() => [...document.querySelectorAll('.whole')].filter(one => {
      const range = document.createRange();
      range.selectNodeContents(one);
      return new Set([...range.getClientRects()].map(box => Math.round(box.top))).size > 1;
    }).map(one => one.textContent)"""
    with opened() as browser, served(sqlite_app) as url:
        for width in WIDTHS:
            page = browser.new_page(viewport={"width": width, "height": 900})
            for path in pages.values():
                page.goto(url + path)
                assert page.evaluate(broken) == [], f"{path} at {width} px"
            page.goto(url + "/topics")
            names = page.locator("th.whole").all_text_contents()
            assert {"statement.send", "customer.merge"} <= set(names)
