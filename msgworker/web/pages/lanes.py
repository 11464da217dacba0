"""Lanes: objects with what runs or failed at their head, and what waits behind it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from msgworker.message import State
from msgworker.queries.lanes import LaneInfo
from msgworker.web import sections
from msgworker.web.site import site_of

NAV = ("Lanes", "lanes")
ROWS = 100
RANKS = {State.DEAD: 0, State.FAILED: 1, State.UNKNOWN: 2, State.PROCESSING: 3, State.NEW: 4}
WORDS = {
    State.DEAD: "blocked",
    State.FAILED: "retry",
    State.PROCESSING: "processing",
    State.NEW: "waiting",
}


def blocked_first(lanes: Iterable[LaneInfo]) -> list[LaneInfo]:
    """What needs help first, then what retries, then the others; most behind first."""
    return sorted(lanes, key=lambda one: (RANKS.get(one.head.status, 5), -one.behind))


async def lanes(request: Request) -> Response:
    site, query = site_of(request), request.query_params
    ops, by_object = site.ops, query.get("by") == "object"
    after = query.get("after") or None

    async def values() -> dict[str, Any]:
        if by_object:
            found = await site.ask(ops.lanes, by="object", limit=ROWS, after=after)
            rows = list(found)
        else:
            found = await site.look(ops.lanes, limit=ROWS)
            rows = blocked_first(found)
        more = {"by": "object", "after": found.next_after}
        return {
            "rows": rows,
            "words": WORDS,
            "complete": found.complete,
            "by_object": by_object,
            "first": {"by": "object"} if after else None,
            "more": more if by_object and found.next_after else None,
        }

    return await sections.page(site, request, "lanes.html", values)


routes = [Route("/lanes", lanes, name="lanes")]
