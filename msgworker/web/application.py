"""The application: its options, its routes, and the guards around them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route, Router
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from msgworker.coordination.centres import LazyCentre
from msgworker.coordination.lease import LockCentre
from msgworker.errors import ConfigError
from msgworker.logs import logger
from msgworker.metrics import need
from msgworker.payload import is_text
from msgworker.web import access, api, guard, pages, shown
from msgworker.web.access import Asking, Door, Local, Role, Sessions
from msgworker.web.site import DEADLINE_SECONDS, PAGES, DashboardOptions, Site

if TYPE_CHECKING:
    from msgworker import App

STATIC = Path(__file__).parent / "static"


class Dashboard:
    """The ASGI application, with its guards around it. `site`: what its routes work with."""

    def __init__(self, site: Site, guarded: ASGIApp) -> None:
        self.site = site
        self._guarded = guarded

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._guarded(scope, receive, send)


def dashboard(
    app: App,
    *,
    auth: access.Auth | Door | None = None,
    role: Role | str | None = None,
    root_path: str = "",
    actions: bool = False,
    allowed_hosts: Iterable[str] = (),
    trusted_proxies: Iterable[str] = (),
    redact: shown.Hiding = (),
    label: str = "",
    key: str | None = None,
    deadline: float = DEADLINE_SECONDS,
    locks: LockCentre | str | None = None,
    values: Iterable[tuple[str, Any, str]] = (),
) -> Dashboard:
    """See `App.web`. locks: also its URL. values: name, value and origin of each setting, without
    secrets."""
    for name, text in (("label", label), ("root_path", root_path)):
        if not isinstance(text, str) or not is_text(text):
            raise ConfigError(f"{name} must be a text in UTF-8, got {text!r:.80}")
    options = DashboardOptions(
        root_path=checked_root(root_path),
        actions=bool(actions),
        hosts=tuple(access.checked_host(name) for name in allowed_hosts),
        proxies=access.networks_of(trusted_proxies),
        redact=shown.Redaction.of(redact),
        label=label,
        deadline=deadline,
        elsewhere=None if locks is None else LazyCentre(locks),
        values=tuple(values),
    )
    site = Site(app, options, door_of(auth, role), Sessions(key), pages.NAV)
    return Dashboard(site, guarded(site))


def door_of(auth: access.Auth | Door | None, role: Role | str | None) -> Door:
    """The door for a value of `auth`; raises ConfigError."""
    given = None if role is None else Role.of(role)
    if auth is None:
        return Local() if given is None else Local(given)
    if isinstance(auth, Door):
        return auth
    if not callable(auth):
        raise ConfigError(
            f"auth is a callable that names the viewer of a request, got {type(auth).__name__}"
        )
    return Asking(auth) if given is None else Asking(auth, given)


def checked_root(root_path: str) -> str:
    """ "" or "/a/b"; raises ConfigError."""
    text = root_path.rstrip("/")
    parts = urlsplit(text)
    if text and (not text.startswith("/") or text.startswith("//") or parts.path != text):
        raise ConfigError(f"root_path is a path such as /queue, got {root_path!r:.80}")
    return text


def guarded(site: Site) -> ASGIApp:
    """The application within its guards, from the inside out."""
    inner: ASGIApp = application(site)
    for kind in (guard.SameOrigin, guard.Gate, guard.Bodies, guard.Hosts, guard.Answers):
        inner = kind(inner, site)
    return inner


def application(site: Site) -> Starlette:
    """The routes, and how an error of one becomes an answer."""

    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        found = site.refuse(request, error.status_code, error.detail)
        found.headers.update(error.headers or {})
        return found

    async def wrong(request: Request, error: Exception) -> Response:
        return site.refuse(request, 400, site.without(str(error)))

    async def failed(request: Request, error: Exception) -> Response:
        return site.refuse(request, 500, guard.FAILED)  # the error is raised on, and logged there

    handlers = {HTTPException: refused, ConfigError: wrong, Exception: failed}
    made = Starlette(routes=list(routes()), exception_handlers=handlers)
    made.router.redirect_slashes = False  # it would name the host and the scheme as we see them
    made.state.site = site
    site.starlette = made
    return made


def routes() -> Sequence[BaseRoute]:
    return [
        Route("/healthz", healthz, name="healthz"),
        Route("/readyz", readyz, name="readyz"),
        Route("/metrics", metrics, name="metrics"),
        *PAGES,
        Mount("/api/v1", app=Router(api.routes, redirect_slashes=False), name="api"),
        Mount("/static", StaticFiles(directory=STATIC), name="static"),
    ]


# --- /healthz: does the process work? /readyz: does its database?
#
# Both are answered without authentication, so the answer is one word.

log = logger("msgworker.web")


async def healthz(request: Request) -> Response:
    """200 while the process works: it answers, and its threads do not all hang."""
    stuck = request.app.state.site.threads.stuck
    return JSONResponse({"status": "failed" if stuck else "ok"}, 503 if stuck else 200)


async def checks(site: Site) -> dict[str, bool]:
    """What has to work; the instances only if this process runs some. Requests within 2 s share one
    read, because these come without authentication."""
    found = {"database": await site.look(site.ops.probe)}
    beats = site.app.heartbeats
    if beats:
        found["heartbeat"] = all(beats.values())
    return found


async def readyz(request: Request) -> Response:
    """200 if the database answers, the tables are there, code of this version may work on them, and
    the instances of this process renew their leases; else 503 with the names of what does not."""
    site = request.app.state.site
    try:
        found = await checks(site)
    except HTTPException as error:
        log.warning("not ready: %s", error.detail)
        found = {"database": False}
    fine = all(found.values())
    words = {name: "ok" if ok else "failed" for name, ok in found.items()}
    body = {"status": "ok" if fine else "failed", "checks": words}
    return JSONResponse(body, 200 if fine else 503)


# --- /metrics: counts of this process since the first scrape, and counts of the database.


async def metrics(request: Request) -> Response:
    """The metrics, in the format that the client accepts; 200 while this process works, as
    exporters do: `msgworker_database_up` says whether the database does."""
    site = request.app.state.site
    try:
        need()
    except ConfigError as error:
        return Response(f"{error}\n", 501, media_type="text/plain")
    accept = request.headers.get("accept", "")
    try:
        body, kind = await site.ask(site.scrapes.text, accept)
    except HTTPException as error:  # too many or too slow reads
        log.warning("a scrape without the database: %s", error.detail)
        body, kind = site.scrapes.without_database(accept)
    return Response(body, headers={"content-type": kind})
