"""The pages. Each module has `routes`.

overview   /, what needs help, /topics and each of them
messages   /messages, one message and its items, /failures, /lanes, /jobs
instances  /instances, /schedules, /locks, /system
audit      /audit: who changed what, and why; /writes: one that was begun, how far it is
changing   /change: rerun, discard and cancel messages; /act: pause a topic, and the like
login      /login, /logout, /theme
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from msgworker.web.pages import audit, changing, instances, login, messages, overview
from msgworker.web.site import PENDING, Site, site_of
from msgworker.web.threads import seen

PAGES: tuple[Any, ...] = (overview, messages, instances, audit, changing, login)
NAV = [
    ("Overview", "overview"),
    ("Messages", "messages"),
    ("Failures", "failures"),
    ("Lanes", "lanes"),
    ("Jobs", "jobs"),
    ("Instances", "instances"),
    ("Topics", "topics"),
    ("Schedules", "schedules"),
    ("Locks", "locks"),
    ("Audit", "audit"),
    ("System", "system"),
]
"""Each page of the navigation, and the name of its route."""

# --- The numbers beside the names of pages, see `site.Badges`.
#
# They are read if they are older than BADGE_SECONDS, at the same time as what the page itself
# reads: no page waits long for them or fails with them.

BADGE_SECONDS = 20.0
WAIT_SECONDS = 0.5


async def _read_badges(site: Site) -> None:
    """Bring the badges up to date, if that takes no longer than WAIT_SECONDS."""
    with suppress(TimeoutError, HTTPException):  # the page itself says what is wrong
        await asyncio.wait_for(site.overview(), WAIT_SECONDS)  # which notes them


def with_badges(route: BaseRoute) -> BaseRoute:
    """The route of a page, wrapped so that the badges are read first."""
    if not isinstance(route, Route) or route.methods != {"GET", "HEAD"}:
        return route
    endpoint: Callable[[Request], Awaitable[Response]] = route.endpoint

    async def page(request: Request) -> Response:
        site = site_of(request)
        if request.state.viewer is None or site.badges.age < BADGE_SECONDS:
            return await endpoint(request)
        reading = asyncio.ensure_future(_read_badges(site))
        reading.add_done_callback(seen)  # a page that fails first does not wait for it
        await asyncio.sleep(0)  # it has begun: a page that shows the overview shares the read
        token = PENDING.set(reading)
        try:
            return await endpoint(request)
        finally:
            PENDING.reset(token)

    return Route(route.path, page, methods=["GET"], name=route.name)


routes: list[BaseRoute] = [with_badges(route) for page in PAGES for route in page.routes]
