"""Sections of pages that follow what changes: made once for all who see the same."""

from __future__ import annotations

import re
from typing import Any

import pytest

from msgworker import App
from msgworker.web import site
from msgworker.web.access import Role, Viewer
from msgworker.web.site import Site
from tests.engines import statements
from tests.support.web import Browser

LIVE = ["/", "/messages", "/topics", "/lanes", "/failures", "/instances"]
SCRIPT = {"hx-request": "true"}
VIEWERS = 50


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The templates of the sections that are made; each is shared for a minute."""
    found: list[str] = []
    real = Site.text

    def text(self: Site, request: Any, template: str, /, **values: Any) -> str:
        if values["layout"] == "section.html":
            found.append(template)
        return real(self, request, template, **values)

    monkeypatch.setattr(Site, "text", text)
    monkeypatch.setattr(site, "POLL_SECONDS", 60.0)
    return found


@pytest.mark.parametrize("path", LIVE)
def test_a_live_section_is_read_and_made_once_for_all_viewers(
    full_app: App, made: list[str], path: str
) -> None:
    dashboard = full_app.web()
    with Browser(dashboard) as client, statements(full_app.engine) as sent:
        first = client.get(path, headers=SCRIPT).text
        of_one = len(sent)
        assert of_one > 0
        others = {client.get(path, headers=SCRIPT).text for _ in range(VIEWERS - 1)}
        assert others == {first}
        assert (len(sent), len(made)) == (of_one, 1)
        dashboard.site.forget()  # as at each write
        assert client.get(path, headers=SCRIPT).status_code == 200
        assert len(made) == 2


def test_who_has_written_sees_it_on_the_next_page(full_app: App) -> None:
    with Browser(full_app.web(actions=True)) as client:  # all requests on one event loop
        assert "resume" not in client.get("/topics").text.lower()
        fields = {"name": "settle", "reason": "INC-7"}
        assert client.submit("/act/pause-topic", fields).status_code == 303
        assert "resume" in client.get("/topics").text.lower()


def test_a_live_section_is_shared_by_those_with_one_role_and_url_alone(
    full_app: App, made: list[str]
) -> None:
    asks = [Viewer("ann", Role.ADMIN)]
    with Browser(full_app.web(auth=lambda _: asks[0], actions=True)) as client:
        steps = [
            (Viewer("ann", Role.ADMIN), "/topics", 1),
            (Viewer("bob", Role.ADMIN), "/topics", 1),
            (Viewer("eve", Role.VIEWER), "/topics", 2),
            (Viewer("eve", Role.VIEWER), "/topics?window=6h", 3),
        ]
        for viewer, path, count in steps:
            asks[0] = viewer
            text = client.get(path, headers=SCRIPT).text
            assert len(made) == count, (viewer, path)
            assert viewer.name not in re.sub(r"<[^>]*>", " ", text).split()


@pytest.mark.parametrize("path", LIVE)
def test_a_script_gets_the_sections_that_it_selects(full_app: App, path: str) -> None:
    live = re.compile(r'<section id="([\w-]+)" class="live"')
    with Browser(full_app.web()) as client:
        page, part = client.get(path).text, client.get(path, headers=SCRIPT).text
    assert live.findall(page)
    assert live.findall(part) == live.findall(page)
    assert "<html" in page
    assert "<html" not in part
