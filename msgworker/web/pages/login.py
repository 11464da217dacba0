"""Logging in with a token, logging out, and the colours: forms that every page has."""

from __future__ import annotations

from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from msgworker.logs import Said, logger
from msgworker.web import access, forms
from msgworker.web.access import client_of
from msgworker.web.site import THEME_COOKIE, THEMES, Site, page, set_cookie

log = logger("msgworker.web")


@page("/login", "login.html")
async def login(site: Site, request: Request) -> dict[str, Any]:
    if not site.door.logs_in:
        raise HTTPException(404, "there is nothing to log in to")
    return {"wrong": False, "wanted": request.query_params.get("next", "")}


@page("/login", method="POST")
async def log_in(site: Site, request: Request) -> Response:
    door = site.door
    if not isinstance(door, access.Tokens):
        raise HTTPException(404, "there is nothing to log in to")
    form = forms.form_of(request)
    found = door.viewer(form.get("token", "").strip(), "session")
    if found is None:
        extra = {"event": Said.WEB_REFUSED}
        log.warning("a log-in with a wrong token, from %s", client_of(request), extra=extra)
        return site.render(request, "login.html", 401, wrong=True, wanted=form.get("next", ""))
    site.sessions.end(request.state.session)
    request.state.viewer = found
    request.state.session = site.sessions.begin(door.entry_of(found.name))
    return site.back(request, form.get("next"), "overview")


@page("/logout", method="POST")
async def logout(site: Site, request: Request) -> Response:
    for one in site.sessions.of(request):
        site.sessions.end(one)
    request.state.session = None
    return RedirectResponse(site.url(request, "overview"), 303)


@page("/theme", method="POST")
async def theme(site: Site, request: Request) -> Response:
    form = forms.form_of(request)
    wanted = form.get("theme", "")
    if wanted not in THEMES:
        raise HTTPException(400, f"a theme is one of {', '.join(THEMES)}")
    found = site.back(request, form.get("next"), "overview")
    set_cookie(request.scope, found, THEME_COOKIE, wanted, 366 * 86_400)
    return found
