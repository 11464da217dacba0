"""The dashboard as a browser and as a program see it, without a server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from typing import Any

import sqlalchemy as sa
from anyio.from_thread import start_blocking_portal
from starlette.testclient import TestClient

from msgworker import App
from msgworker.web.application import Dashboard

HERE = "http://127.0.0.1:8080"
SESSION = "msgworker_session_8080"
TOKEN = "a-token-of-the-tests-1234"
VOID = {"meta", "link", "input", "br", "hr", "img", "rect", "line", "circle", "polyline"}


class Browser(TestClient):
    """Sends what a browser sends: cookies, Accept, with POST also Origin and the form's token."""

    def __init__(self, dashboard: Any, *, base_url: str = HERE, peer: str = "127.0.0.1") -> None:
        super().__init__(
            dashboard,
            base_url=base_url,
            client=(peer, 50_000),
            raise_server_exceptions=False,
            follow_redirects=False,
            headers={"accept": "text/html"},
        )

    def csrf(self, page: str = "/") -> str:
        """The token in the forms of a page."""
        found = re.search(r'name="csrf" value="([\w-]+)"', self.get(page).text)
        assert found, f"{page} has no form"
        return found[1]

    def submit(self, path: str, fields: dict[str, Any], *, page: str = "/") -> Any:
        """Send a form of a page."""
        headers = {"origin": str(self.base_url).rstrip("/")}
        return self.post(path, data={"csrf": self.csrf(page), **fields}, headers=headers)

    def log_in(self, token: str = TOKEN) -> Any:
        return self.submit("/login", {"token": token}, page="/login")


@contextmanager
def one_loop(client: TestClient) -> Iterator[None]:
    """Within it all requests are made on one event loop, as a server's are, and so they share what
    the dashboard keeps for some seconds; else each has a loop of its own, and reads all anew."""
    with start_blocking_portal() as client.portal:
        yield
    client.portal = None


def browse(app: App, **options: Any) -> Browser:
    """A browser on this machine, at the dashboard of an App; the options are those of App.web."""
    return Browser(app.web(**options))


def dashboard_with(app: App, *lines: str, **options: Any) -> Dashboard:
    """A dashboard for those who have a token: lines of a token file, or TOKEN alone."""
    from msgworker.web import access, application

    entries = [
        access.entry(words[-1], "test", name=words[0], role=access.Role.of(words[1]))
        if len(words) == 3
        else access.entry(words[0], "test")
        for words in map(str.split, lines or (TOKEN,))
    ]
    return application.dashboard(app, auth=access.Tokens(tuple(entries)), **options)


URLS = ("href", "src", "action", "formaction", "hx-get", "hx-post", "data-events")


def _leads_away(url: str) -> bool:
    return ":" in url.split("/")[0].split("?")[0] or url.startswith("//")


class Page(HTMLParser):
    """A page as a browser parses it: elements in their order, with their attributes, and texts.

    faults: what a hostile text could have done: scripts and styles inline, handlers of events, URLs
    of a scheme, elements that do not match.
    """

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.faults: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        self.faults += [f"<{tag}> is not closed" for tag in self._open]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.elements.append((tag, given))
        for name, value in attrs:
            if name.startswith("on") or name == "style":
                self.faults.append(f"<{tag} {name}={value!r}>")
            if name in URLS and _leads_away(value or ""):
                self.faults.append(f"<{tag} {name}={value!r}>")
        if tag == "style" or (tag == "script" and "src" not in given):
            self.faults.append(f"<{tag}> inline")
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        optional = ("p", "li", "tr", "td", "th", "dt", "dd", "option")
        while self._open and self._open[-1] != tag and self._open[-1] in optional:
            self._open.pop()
        if self._open and self._open[-1] == tag:
            self._open.pop()
        elif tag not in VOID:
            self.faults.append(f"</{tag}> closes nothing")

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def shape(self) -> list[tuple[str, tuple[str, ...]]]:
        """Elements with the names of their attributes: what texts must not change."""
        return [(tag, tuple(sorted(attrs))) for tag, attrs in self.elements]

    @property
    def text(self) -> str:
        """All texts, with single spaces."""
        return " ".join(" ".join(self.texts).split())

    def links(self) -> list[str]:
        """All URLs in the page but those of a place in it; those of forms too."""
        found = [attrs.get(name) or "" for _, attrs in self.elements for name in URLS]
        return [one for one in found if one and not one.startswith("#")]


XSS = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "</title></textarea></pre><svg onload=alert(1)>",
    "javascript:alert(1)",
    "{{7*7}}{% raw %}",
    "<!--",
    "]]>",
    "&lt;b&gt;",
    "\u202eevil\u2066",
    "\x00\x1b[31m\r\nSet-Cookie: a=b",
)
"""Texts that try to become markup, a script, a template or a header."""


@contextmanager
def statements(app: App) -> Iterator[list[str]]:
    """The statements that are sent within."""
    sent: list[str] = []

    def note(*args: Any) -> None:
        sent.append(args[2])

    sa.event.listen(app.engine, "before_cursor_execute", note)
    try:
        yield sent
    finally:
        sa.event.remove(app.engine, "before_cursor_execute", note)
