"""What every request has to pass, from the outside in: Answers, Hosts, Bodies, Gate, SameOrigin.

Plain ASGI, around the whole application, so that no route can forget any of it, and errors, files
and redirects have the headers too.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from msgworker.logs import logger
from msgworker.web.access import Role, Session, Sessions, Viewer, forwarded_for, is_address, is_of
from msgworker.web.forms import form_of
from msgworker.web.site import Site, route_of, set_cookie, wants_html

MOST_BODY = 64 * 1024
BODY_SECONDS = 10.0
FAILED = "an error of the dashboard; its log says more"
WITHOUT_TOKEN = (
    "a program has to send Authorization: Bearer, with a token of this dashboard (--token-file or "
    "MSGWORKER_WEB_TOKEN), or one that the proxy in front or auth= verifies"
)
NUL = "a value must not contain the character NUL (%00)"
READING = ("GET", "HEAD")
PROBES = ("/healthz", "/readyz")
"""Routes that are answered under any name of the host."""
OPEN = (*PROBES, "/login", "/theme")
"""Routes that need no authentication; static files neither."""
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; "
        "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
log = logger("msgworker.web")


class Guard(ABC):
    """One of them: passes an HTTP request on to `inner`, or answers it, by `Site.refuse` if it is
    refused."""

    def __init__(self, inner: ASGIApp, site: Site) -> None:
        self._inner = inner
        self._site = site

    @abstractmethod
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...


class Answers(Guard):
    """Outermost: finds the path below root_path, sets the headers, logs one line for each request
    that writes or is refused, and turns an unexpected error into a 500 without details.

    A proxy that serves the dashboard below root_path may pass the prefix on or take it off.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":  # there is none; nothing behind this knows them
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._site.starlette(scope, receive, send)
            return
        scope = self._placed(scope)
        status, begun = 0, time.monotonic()

        async def sent(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                if route_of(scope).startswith("/static/"):  # asked for anew only if changed
                    headers["cache-control"] = "no-cache"
                headers.setdefault("x-robots-tag", "noindex")
                del headers["server"]
            await send(message)

        try:
            await self._inner(scope, receive, sent)
        except Exception:
            log.exception("%s %s failed", scope["method"], scope["path"])
            if status == 0:
                await self._last_word(Request(scope), FAILED)(scope, receive, sent)
        _tell(scope, status, time.monotonic() - begun)

    def _last_word(self, request: Request, text: str) -> Response:
        try:
            return self._site.refuse(request, 500, text)
        except Exception:
            log.exception("not even the page of the error can be made")
            return PlainTextResponse(text, 500)

    def _placed(self, scope: Scope) -> Scope:
        scope = {**scope, "state": dict(scope.get("state") or {})}
        path = str(scope["path"])
        root = str(scope.get("root_path") or self._site.options.root_path)
        route = path[len(root) :] if path == root or path.startswith(f"{root}/") else path
        route = route or "/"
        scope["root_path"], scope["path"] = root, root + route
        scope["state"] |= {"root": root, "route": route, "viewer": None}
        return scope


def _tell(scope: Scope, status: int, seconds: float) -> None:
    viewer = scope["state"].get("viewer")
    quiet = scope["method"] in READING and status < 500 and status not in (401, 403, 421)
    write = log.debug if quiet else log.info
    write(
        "%s %s %d %.0f ms by %s",
        scope["method"],
        scope["path"],  # without its query, which may hold what was searched for
        status,
        seconds * 1000,
        "nobody" if viewer is None else f"{viewer.name} ({viewer.role}, {viewer.by})",
    )


class Hosts(Guard):
    """Answers only to the names it is known by: with another one a page of another site, whose name
    was pointed at our address, would be of our origin (DNS rebinding).

    Probes get one word as an answer, and a page of another site has no token to send, so requests
    of both are answered under any name.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request, options = Request(scope), self._site.options
        if is_of(options.proxies, request):
            _take_over(scope, request.headers)
            scope["state"]["client"] = forwarded_for(options.proxies, request)
            request = Request(scope)
        given = request.headers.getlist("host")
        if self._is_of_a_program(request):
            pass
        elif route_of(scope) == "/metrics" and len(given) == 1 and is_address(given[0]):
            pass  # of a scrape: a page of another site has a name, which would lead here
        elif len(given) != 1 or given[0].lower() not in {*options.hosts, *_own(scope)}:
            text = "this name is not one of the dashboard; --allowed-host NAME[:PORT] adds one"
            await self._site.refuse(request, 421, text)(scope, receive, send)
            return
        await self._inner(scope, receive, send)

    def _is_of_a_program(self, request: Request) -> bool:
        """Whether it reads for a probe, or for a program with a token."""
        if request.method not in READING:
            return False
        with_token = self._site.door.logs_in and has_bearer(request)
        return route_of(request.scope) in PROBES or with_token


def _own(scope: Scope) -> frozenset[str]:
    """The names of loopback with the port that was connected to."""
    server = scope.get("server") or ("", None)
    if server[1] is None:
        return frozenset()
    bare = [""] if server[1] == 80 else []
    names = ("localhost", "127.0.0.1", "[::1]")
    return frozenset(f"{name}{end}" for name in names for end in [f":{server[1]}", *bare])


def _take_over(scope: Scope, headers: Headers) -> None:
    """What a trusted proxy says about the way before it."""
    scheme = headers.get("x-forwarded-proto", "").strip().lower()
    if scheme in ("http", "https"):
        scope["scheme"] = scheme
    host = headers.get("x-forwarded-host", "").strip()
    if host and "," not in host:
        others = [(k, v) for k, v in scope["headers"] if k != b"host"]
        scope["headers"] = [*others, (b"host", host.encode("latin-1", "replace"))]


class Bodies(Guard):
    """Reads the body of a write, up to MOST_BODY bytes and BODY_SECONDS, and refuses the character
    NUL in a value: PostgreSQL has no text with it. The JSON API checks its values itself, and names
    the wrong one."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        of_api = route_of(scope).startswith("/api/")
        if "\0" in scope["path"] or (not of_api and b"%00" in scope.get("query_string", b"")):
            await self._site.refuse(Request(scope), 400, NUL)(scope, receive, send)
            return
        if scope["method"] in READING:
            await self._inner(scope, receive, send)
            return
        request = Request(scope, receive)
        try:
            body = await asyncio.wait_for(_read(request), BODY_SECONDS)
        except ClientDisconnect:
            return
        except TimeoutError:
            answer = self._site.refuse(request, 408, "the body did not arrive in time")
            await answer(scope, receive, send)
            return
        if body is None:
            text = f"a body has at most {MOST_BODY:,} bytes"
            await self._site.refuse(request, 413, text)(scope, receive, send)
            return
        if not of_api and b"%00" in body:
            await self._site.refuse(request, 400, NUL)(scope, receive, send)
            return
        scope["state"]["body"] = body
        again = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def replay() -> Message:
            for message in again:
                return message
            return await receive()

        await self._inner(scope, replay, send)


async def _read(request: Request) -> bytes | None:
    """None if it is too long; no more than that is kept."""
    length = request.headers.get("content-length", "0")
    if not length.isdecimal() or int(length) > MOST_BODY:
        return None
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > MOST_BODY:
            return None
        parts.append(part)
    return b"".join(parts)


class Gate(Guard):
    """Asks the door who it is. scope["state"] gets `viewer` and `session`.

    A form of another site comes without the cookie: the answer does not replace the session that
    the browser may have.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request, door, sessions = Request(scope), self._site.door, self._site.sessions
        session = next(iter(sessions.of(request)), None)
        viewer = await door.admit(request)
        if viewer is None and session is not None and session.name:
            viewer = door.again(session, sessions.proof_of)
        if viewer is not None and not self._site.options.actions:
            viewer = Viewer(viewer.name, Role.VIEWER, viewer.by)
        route = route_of(scope)
        scope["state"]["viewer"] = viewer
        if viewer is None and route not in OPEN and not route.startswith("/static/"):
            await self._refused(request)(scope, receive, send)
            return
        begins = session is None and (request.method in READING or comes_from_here(request))
        scope["state"]["session"] = session = session or sessions.begin()

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                wanted, kind = scope["state"].get("session"), Headers(scope=message)
                is_page = kind.get("content-type", "").startswith("text/html")
                if wanted is not session or (begins and is_page):
                    _set_session(scope, message, sessions, wanted)
            await send(message)

        await self._inner(scope, receive, sent)

    def _refused(self, request: Request) -> Response:
        door = self._site.door
        if door.logs_in and request.method == "GET" and wants_html(request):
            return RedirectResponse(self._site.log_in_at(request), 303)
        found = self._site.refuse(request, 401 if door.challenge else 403, door.why)
        if door.challenge:
            found.headers["www-authenticate"] = door.challenge
        return found


def _set_session(
    scope: Scope, message: Message, sessions: Sessions, session: Session | None
) -> None:
    """Set or remove the session's cookie in the start of a response."""
    made, name = Response(), sessions.cookie(scope)
    if session is None:
        set_cookie(scope, made, name, "", 0)
    else:
        set_cookie(scope, made, name, sessions.text_of(session), sessions.seconds)
    MutableHeaders(scope=message).append("set-cookie", made.headers["set-cookie"])


class SameOrigin(Guard):
    """A write is a POST (the API also has others) from a page of ours: the browser says that it
    comes from here, and the form carries the token of the session.

    One with `Authorization: Bearer` needs neither: no browser adds that header by itself, so
    another site cannot make one send it. Where a proxy or `auth=` verifies that token, a proxy may
    add it: there it counts for the API alone, from what is no browser (see `is_of_a_browser`).
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        why = None if scope["method"] in READING else self._fault(request)
        answer = self._inner if why is None else self._site.refuse(request, 403, why)
        await answer(scope, receive, send)

    def _fault(self, request: Request) -> str | None:
        viewer: Viewer | None = request.state.viewer
        if viewer is not None and viewer.by == "token":  # which no browser sends by itself
            return None
        if route_of(request.scope).startswith("/api/") and not is_of_a_browser(request):
            vouched = viewer is not None and viewer.by in ("proxy", "callable")
            return None if vouched and has_bearer(request) else WITHOUT_TOKEN
        if not comes_from_here(request):
            return (
                "a change must come from a page of this dashboard; if it does, a proxy in front "
                "has to pass on the header Host, or X-Forwarded-Host as a --trusted-proxy"
            )
        given = request.headers.get("x-csrf-token")
        if given is None:
            given = form_of(request).get("csrf", "")
        if not self._site.sessions.is_form_token(request.state.session, given):
            return "the form is of another session, or too old: load the page again"
        return None


def has_bearer(request: Request) -> bool:
    scheme = request.headers.get("authorization", "").partition(" ")[0]
    return scheme.lower() == "bearer"


def is_of_a_browser(request: Request) -> bool:
    """Whether a write says from which page it comes, as those of all browsers do: with Origin, over
    TLS and to this machine also with Sec-Fetch-Site."""
    return "origin" in request.headers or "sec-fetch-site" in request.headers


def comes_from_here(request: Request) -> bool:
    """Whether the request is of our own origin, by Sec-Fetch-Site (which pages cannot set) or else
    Origin."""
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    origin = urlsplit(request.headers.get("origin", ""))
    schemes = ("https",) if request.scope.get("scheme") == "https" else ("http", "https")
    return (
        origin.scheme in schemes
        and origin.netloc.lower() == request.headers.get("host", "").lower()
    )
