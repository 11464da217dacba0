"""Pages for which the numbers beside the names of pages are read first.

They are read if they are older than BADGE_SECONDS, at the same time as what the page itself reads:
no page waits long for them or fails with them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from msgworker.web.badges import PENDING
from msgworker.web.site import Site, site_of

BADGE_SECONDS = 20.0
WAIT_SECONDS = 0.5
Page = Callable[[Request], Awaitable[Response]]


async def read(site: Site) -> None:
    """Have them up to date, if that takes no longer than WAIT_SECONDS."""
    with contextlib.suppress(TimeoutError, HTTPException):  # the page itself says what is wrong
        await asyncio.wait_for(site.overview(), WAIT_SECONDS)  # which notes them


def with_badges(route: BaseRoute) -> BaseRoute:
    """The same route of a page, for whom the numbers are read first."""
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
