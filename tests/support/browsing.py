"""A browser without scripts: pages as trees, links that are followed, forms that are sent."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any
from urllib.parse import unquote, urlsplit

from starlette.testclient import TestClient

from msgworker import App
from msgworker.web.access import Role, Viewer

VOID = frozenset(["meta", "link", "input", "br", "img", "hr"])
HOST = "dashboard.test"


@dataclass
class Element:
    """An element of a page."""

    tag: str
    attrs: dict[str, str | None]
    parts: list[Element | str] = field(default_factory=list)

    def walk(self) -> Iterator[Element]:
        yield self
        for part in self.parts:
            if isinstance(part, Element):
                yield from part.walk()

    def texts(self) -> Iterator[str]:
        for part in self.parts:
            yield from [part] if isinstance(part, str) else part.texts()

    @property
    def text(self) -> str:
        return "".join(self.texts())

    @property
    def shape(self) -> list[tuple[str, tuple[str, ...]]]:
        """Each element with the names of its attributes: what texts must not change."""
        return [(one.tag, tuple(sorted(one.attrs))) for one in self.walk()]

    def all(self, tag: str, **attrs: str) -> list[Element]:
        return [
            one
            for one in self.walk()
            if one.tag == tag and all(one.attrs.get(k) == v for k, v in attrs.items())
        ]


class _Parser(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.root = Element("", {})
        self.open = [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(set(names)) == len(names), f"<{tag}> has an attribute twice: {names}"
        made = Element(tag, dict(attrs))
        self.open[-1].parts.append(made)
        if tag not in VOID:
            self.open.append(made)

    def handle_endtag(self, tag: str) -> None:
        last = self.open.pop()
        assert last.tag == tag, f"</{tag}> closes <{last.tag}>"

    def handle_data(self, data: str) -> None:
        self.open[-1].parts.append(data)


def parsed(text: str) -> Element:
    """The tree of a page whose elements are nested and closed."""
    parser = _Parser()
    parser.feed(text)
    parser.close()
    assert parser.open == [parser.root], f"not closed: {[one.tag for one in parser.open]}"
    return parser.root


URLS = ("href", "src", "action", "formaction", "hx-get", "hx-post", "data-events")


def dangerous(tree: Element) -> list[str]:
    """What a hostile text could have done: scripts and styles inline, handlers of events, URLs that
    lead away."""
    found = []
    for one in tree.walk():
        for name, value in one.attrs.items():
            away = name in URLS and not re.match(r"#|/(?!/)", str(value))
            if away or name.startswith("on") or name == "style":
                found.append(f"<{one.tag} {name}={value!r}>")
        inline = one.tag == "style" or (one.tag == "script" and "src" not in one.attrs)
        if inline or (one.tag in ("script", "iframe", "object", "base") and one.text):
            found.append(f"<{one.tag}>{one.text}")
    return found


@dataclass
class Page:
    """An answer, as a tree if it is HTML."""

    status: int
    url: str
    body: str
    headers: Any
    tree: Element

    @property
    def text(self) -> str:
        """What is to be read below the head, with single spaces."""
        found = self.tree.all("body")
        return " ".join((found[0] if found else self.tree).text.split())

    @property
    def main(self) -> str:
        """What is to be read between header and footer."""
        return " ".join(self.tree.all("main")[0].text.split())

    @property
    def links(self) -> list[str]:
        return [one.attrs["href"] or "" for one in self.tree.all("a") if "href" in one.attrs]

    def link(self, text: str) -> str:
        """Where the link leads whose text begins with this."""
        for one in self.tree.all("a"):
            if one.text.strip().startswith(text):
                return one.attrs["href"] or ""
        raise AssertionError(f"no link {text!r} in {[a.text.strip() for a in self.tree.all('a')]}")

    def form(self, action: str) -> dict[str, str]:
        """The fields of the POST form to this path, as a browser would send them."""
        for one in self.tree.all("form"):
            if urlsplit(one.attrs["action"] or "").path == action and one.attrs["method"] == "post":
                texts = {str(t.attrs["name"]): t.text for t in one.all("textarea")}
                return texts | {
                    str(i.attrs["name"]): i.attrs.get("value") or ""
                    for i in one.all("input")
                    if i.attrs.get("type") not in ("radio", "checkbox") or "checked" in i.attrs
                }
        raise AssertionError(f"no form to {action}")


class Browser:
    """Looks at the dashboard of an App, as a viewer with a role."""

    def __init__(self, app: App, role: Role | str = "admin", **options: Any) -> None:
        viewer = Viewer("ann", Role.of(role))
        given: dict[str, Any] = {
            "auth": lambda _: viewer,
            "actions": True,
            "allowed_hosts": [HOST],
        } | options
        self.dashboard = app.web(**given)
        self.client = TestClient(
            self._once_decoded,
            base_url=f"http://{HOST}",
            raise_server_exceptions=False,
            headers={"accept": "text/html", "sec-fetch-site": "same-origin"},
        )

    async def _once_decoded(self, scope: Any, receive: Any, send: Any) -> None:
        """The path as servers give it; the client of tests decodes it twice."""
        path = unquote(scope["raw_path"].partition(b"?")[0].decode())
        await self.dashboard(scope | {"path": path}, receive, send)

    @property
    def site(self) -> Any:
        return self.dashboard.site

    def get(self, url: str, *codes: int, **query: Any) -> Page:
        """codes: what the status may be; 200 if none is given."""
        return self._page(self.client.get(url, params=query or None), *codes)

    def post(self, url: str, code: int = 200, **fields: Any) -> Page:
        """Send a form with these fields; redirects are followed."""
        return self._page(self.client.post(url, data=fields), code)

    def send(self, page: Page, action: str, code: int = 200, **filled: Any) -> Page:
        """Fill in the form of a page, and send it."""
        return self.post(action, code, **page.form(action) | filled)

    def _page(self, answer: Any, *codes: int) -> Page:
        text, code = answer.text, answer.status_code
        assert code in (codes or (200,)), f"{answer.url}: {code} {text[-1500:]}"
        is_page = answer.headers.get("content-type", "").startswith("text/html")
        tree = parsed(text) if is_page else Element("", {})
        return Page(answer.status_code, str(answer.url), text, answer.headers, tree)

    def close(self) -> None:
        self.site.close()
