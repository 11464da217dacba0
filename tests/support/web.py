"""The dashboard as a browser and as a program see it, without a server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from anyio.from_thread import start_blocking_portal
from starlette.testclient import TestClient

from msgworker import App
from msgworker.web.application import Dashboard
from tests.support.browsing import URLS, dangerous, parsed

HERE = "http://127.0.0.1:8080"
SESSION = "msgworker_session_8080"
TOKEN = "a-token-of-the-tests-1234"


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


class Page:
    """A page by its text: elements in their order, with their attributes; faults: see dangerous."""

    def __init__(self, text: str) -> None:
        tree = parsed(text)
        self.elements = [(one.tag, one.attrs) for one in tree.walk()]
        self.text = " ".join(" ".join(tree.texts()).split())
        self.shape, self.faults = tree.shape, dangerous(tree)

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
