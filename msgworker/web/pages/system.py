"""System: what doctor finds, settings with their origins."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from msgworker.web.site import site_of

NAV = ("System", "system")


async def system(request: Request) -> Response:
    site = site_of(request)
    findings = await site.look(site.ops.doctor)
    return site.render(request, "system.html", findings=findings, values=site.settings.values)


routes = [Route("/system", system, name="system")]
