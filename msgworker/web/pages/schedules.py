"""Schedules: their next ticks, and what stops them."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from msgworker.web.site import or_missing, site_of

NAV = ("Schedules", "schedules")
ROWS = 500
CATCH_UP = {"last": "the last one is sent", "all": "all are sent", "none": "none is sent"}


async def schedules(request: Request) -> Response:
    site = site_of(request)
    found = await site.ask(or_missing, site.ops.schedules)
    there = await site.ask(or_missing, site.ops.can_schedule)
    return site.render(
        request, "schedules.html", rows=found, there=there, catch_up=CATCH_UP, most=ROWS
    )


routes = [Route("/schedules", schedules, name="schedules")]
