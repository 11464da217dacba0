"""System: what doctor finds, sizes of tables, settings with their origins."""

from __future__ import annotations

import asyncio

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from msgworker.queries.counts import Sizes
from msgworker.web.site import Site, site_of

NAV = ("System", "system")


async def system(request: Request) -> Response:
    site = site_of(request)
    findings, sizes = await asyncio.gather(site.look(site.ops.doctor), sizes_of(site))
    values = site.settings.values
    return site.render(request, "system.html", findings=findings, sizes=sizes, values=values)


async def sizes_of(site: Site) -> Sizes | None:
    """None where they cannot be had now: a table is missing, or locked for longer than the
    deadline. What is wrong is among the findings of doctor."""
    try:
        found: Sizes = await site.look(site.ops.sizes)
    except HTTPException as error:
        if error.status_code != 503:
            raise
        return None
    return found


routes = [Route("/system", system, name="system")]
