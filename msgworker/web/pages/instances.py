"""Instances: who works, what each has, and when its last heartbeat was."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from msgworker.queries.instances import InstanceInfo, Life
from msgworker.web import sections
from msgworker.web.site import site_of

NAV = ("Instances", "instances")
ROWS = 500
NAMED = 12
"""Topics that a row names."""


def trouble(one: InstanceInfo) -> str:
    """What is wrong with it, "" = nothing."""
    if one.life is Life.LIVE:
        if one.stopped:
            return "has stopped; a handler has outlived its grace time"
        return "misses its heartbeat" if one.silent else ""
    return {
        Life.DEAD: "its lease has run out",
        Life.TAKEN_OVER: f"{one.taken_by} gives its messages back",
        Life.NO_LEASE: "it has no lease, but messages are claimed by it",
        Life.FOREIGN: "claimed by a consumer that gives no name",
    }[one.life]


async def instances(request: Request) -> Response:
    site = site_of(request)

    async def values() -> dict[str, Any]:
        found = await site.look(site.ops.instances)
        rows = [(one, trouble(one)) for one in found]
        if len(rows) > ROWS:  # first those that need help
            rows = sorted(rows, key=lambda row: not row[1])[:ROWS]
        return {"rows": rows, "left": len(found) - len(rows), "named": NAMED}

    return await sections.page(site, request, "instances.html", values)


routes = [Route("/instances", instances, name="instances")]
