"""What a write has to show, and the fields of a form."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlsplit

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from msgworker.web.access import Viewer
from msgworker.web.guard import READING, Refuse
from msgworker.web.sessions import Sessions

MOST_FIELDS = 2000
"""Of a form; more than a page of messages has."""


class Writes:
    """A write is a POST (the API also has others) from a page of ours: the browser says that it
    comes from here, and the form carries the token of the session.

    One with `Authorization: Bearer` needs neither: no browser adds that header by itself, so
    another site cannot make one send it.
    """

    def __init__(self, inner: ASGIApp, *, sessions: Sessions, refuse: Refuse) -> None:
        self._inner = inner
        self._sessions = sessions
        self._refuse = refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] not in READING:
            request = Request(scope)
            why = self._fault(request)
            if why is not None:
                await self._refuse(request, 403, why)(scope, receive, send)
                return
        await self._inner(scope, receive, send)

    def _fault(self, request: Request) -> str | None:
        viewer: Viewer | None = request.state.viewer
        if viewer is not None and viewer.sent_on_purpose:
            return None
        if not comes_from_here(request):
            return (
                "a change must come from a page of this dashboard; if it does, a proxy in front "
                "has to pass on the header Host, or X-Forwarded-Host as a --trusted-proxy"
            )
        given = request.headers.get("x-csrf-token")
        if given is None:
            given = form_of(request).get("csrf", "")
        if not self._sessions.is_form_token(request.state.session, given):
            return "the form is of another session, or too old: load the page again"
        return None


def comes_from_here(request: Request) -> bool:
    """What the browser says: Sec-Fetch-Site, which pages cannot set; else Origin."""
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    origin = urlsplit(request.headers.get("origin", ""))
    schemes = ("https",) if request.scope.get("scheme") == "https" else ("http", "https")
    return (
        origin.scheme in schemes
        and origin.netloc.lower() == request.headers.get("host", "").lower()
    )


def form_of(request: Request) -> dict[str, str]:
    """The fields of a form that was sent; of one that is there several times the last."""
    return dict(fields_of(request))


def fields_of(request: Request) -> list[tuple[str, str]]:
    """All fields of a form that was sent, in their order; [] if the body is none."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        return []
    try:
        text = request.state.body.decode("ascii")
        return parse_qsl(text, keep_blank_values=True, max_num_fields=MOST_FIELDS)
    except ValueError:
        return []
