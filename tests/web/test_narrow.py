"""A phone, a keyboard alone, and what a page loads by itself, in a real Chromium."""

from __future__ import annotations

from typing import Any

import pytest

from msgworker import App
from tests.support.ops import FAILED, NEW, many_dead, put
from tests.support.pages import fill, paths
from tests.support.waiting import until
from tests.web.chromium import opened
from tests.web.sample import sample
from tests.web.screens import served

PHONE = {"width": 390, "height": 844}
MOST_HEADER = 60  # pixels: the name, the search and the menu stand in one line
OFF_SCREEN = """() => [...document.querySelectorAll('main a.button, main button, td.do a')]
  .filter(one => one.checkVisibility())
  .filter(one => { const box = one.getBoundingClientRect();
                   return box.left < 0 || box.right > innerWidth || !box.width; })
  .map(one => one.textContent)"""
HEADER = "document.querySelector('header.top').getBoundingClientRect().height"
ODD = {
    "long": "x" * 190,
    "right to left": "\u05e9\u05dc\u05d5\u05dd" * 20,
    "emoji": "\U0001f469\u200d\U0001f680" * 30,
}


SMALL = """() => [...document.querySelectorAll('button, a.button, summary, select, input')]
  .filter(one => !/^(radio|checkbox|hidden)$/.test(one.type) && one.checkVisibility())
  .filter(one => one.getBoundingClientRect().height < 40)
  .map(one => one.outerHTML)"""


def _narrow(page: Any, path: str) -> None:
    wide = page.evaluate("document.documentElement.scrollWidth")
    assert wide <= PHONE["width"], f"{path}: {wide}"
    assert page.evaluate(OFF_SCREEN) == [], path
    assert page.evaluate(SMALL) == [], path


@pytest.mark.long
def test_everything_that_acts_is_seen_on_a_phone_under_a_low_header(sqlite_app: App) -> None:
    pages = sample(sqlite_app)
    with opened() as browser, served(sqlite_app, label="PROD") as url:
        page = browser.new_page(viewport=PHONE)
        for path in pages.values():
            page.goto(url + path)
            _narrow(page, path)
            assert page.evaluate(HEADER) <= MOST_HEADER, path
        page.goto(url + pages["failures"])
        assert not page.get_by_label("topic").is_visible()
        page.get_by_text("Filters").click()
        assert page.get_by_label("topic").is_visible()
        _narrow(page, "failures with filters")


@pytest.mark.long
@pytest.mark.parametrize("text", ODD.values(), ids=ODD)
def test_odd_values_make_no_page_wider_than_a_phone(sqlite_app: App, text: str) -> None:
    ids = fill(sqlite_app, text[:100])
    ids += put(sqlite_app, (text, FAILED), topic="t", last_error=f"E: {text * 40}"[:4000])
    with opened() as browser, served(sqlite_app) as url:
        page = browser.new_page(viewport=PHONE)
        for path in [*paths(text[:100], ids), f"/messages/{ids[-1]}?payload=1"]:
            page.goto(url + path)
            _narrow(page, path)


def _tab_to(page: Any, start: str) -> None:
    """Press Tab until what has the focus, and shows it, begins with this text."""
    for _ in range(120):
        page.keyboard.press("Tab")
        text, outline = page.evaluate(
            "() => { const one = document.activeElement, label = one.labels && one.labels[0];"
            "return [(label || one).textContent.trim(), getComputedStyle(one).outlineStyle]; }"
        )
        if text.startswith(start):
            assert outline != "none", start
            return
    raise AssertionError(f"Tab does not come to {start!r}")


@pytest.mark.long
@pytest.mark.parametrize("width", [390, 1440])
def test_a_group_is_rerun_by_the_keyboard_alone(sqlite_app: App, width: int) -> None:
    many_dead(sqlite_app, 3, objects=3)
    with opened() as browser, served(sqlite_app) as url:
        page = browser.new_page(viewport={"width": width, "height": 844})
        page.goto(url)
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "main"
        page.goto(url)
        steps = ["Menu"] if width == PHONE["width"] else []
        for step in steps:
            _tab_to(page, step)
            page.keyboard.press("Enter")
        for link in ("Failures", "Rerun…"):
            _tab_to(page, link)
            with page.expect_navigation():
                page.keyboard.press("Enter")
        _tab_to(page, "Reason")
        page.keyboard.type("INC-4711")
        _tab_to(page, "Rerun 3 messages")
        page.keyboard.press("Enter")
        page.get_by_text("Done, in").wait_for()
    assert [(one.kind, one.changed) for one in sqlite_app.ops.audit()] == [("rerun", 3)]


@pytest.mark.long
def test_what_changes_is_loaded_anew_by_itself(sqlite_app: App) -> None:
    put(sqlite_app, (None, NEW), topic="t")
    with opened() as browser, served(sqlite_app) as url:
        page = browser.new_page()
        page.clock.install()
        page.goto(url)
        shown = page.locator(".figures .new dd")
        assert shown.inner_text() == "1"
        put(sqlite_app, (None, NEW), topic="t")

        def changed() -> bool:
            page.clock.fast_forward(5_000)
            page.wait_for_timeout(100)
            return bool(shown.inner_text() == "2")

        until(changed, "the page shows the second message", seconds=20)
