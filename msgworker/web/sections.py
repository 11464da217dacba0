"""Sections of pages that follow what changes, and pages that read the badges first."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Route

from msgworker.web import guard
from msgworker.web.site import PENDING, POLL_SECONDS, Site, site_of

# --- Pages with badges: the numbers beside the names of pages.
#
# They are read if they are older than BADGE_SECONDS, at the same time as what the page itself
# reads: no page waits long for them or fails with them.

BADGE_SECONDS = 20.0
WAIT_SECONDS = 0.5
Page = Callable[[Request], Awaitable[Response]]


async def read(site: Site) -> None:
    """Bring the badges up to date, if that takes no longer than WAIT_SECONDS."""
    with contextlib.suppress(TimeoutError, HTTPException):  # the page itself says what is wrong
        await asyncio.wait_for(site.overview(), WAIT_SECONDS)  # which notes them


def with_badges(route: BaseRoute) -> BaseRoute:
    """The route of a page, wrapped so that the badges are read first."""
    if not isinstance(route, Route) or route.methods != {"GET", "HEAD"}:
        return route
    endpoint: Page = route.endpoint

    async def page(request: Request) -> Response:
        site = site_of(request)
        if request.state.viewer is None or site.badges.age < BADGE_SECONDS:
            return await endpoint(request)
        reading = asyncio.ensure_future(read(site))
        await asyncio.sleep(0)  # it has begun: a page that shows the overview shares the read
        token = PENDING.set(reading)
        try:
            return await endpoint(request)
        finally:
            PENDING.reset(token)

    return Route(route.path, page, methods=["GET"], name=route.name)


# --- Sections of pages that follow what changes: made once for all who see the same.
#
# What viewers see of a page depends on its URL and on what they may do, and on nothing else of who
# they are: so the part of it between header and footer is made once for each URL and role. It has
# neither names nor tokens of a session; a template that uses one fails, as it is not given any.

LAYOUT = "section.html"
Values = Callable[[], Awaitable[dict[str, Any]]]


async def page(site: Site, request: Request, template: str, values: Values) -> Response:
    """A page with sections that are live; a script that loads one gets what is between header and
    footer."""
    if request.headers.get("hx-request") != "true":
        return site.render(request, template, layout="base.html", **await values())
    this = site.this(request)
    key = (template, guard.root_of(request.scope), this, site.viewer(request).role)

    async def make() -> bytes:
        found = await values()
        text = site.text(request, template, layout=LAYOUT, this=this, **found)
        return text.encode()

    return HTMLResponse(await site.sections.get(key, POLL_SECONDS, make))
