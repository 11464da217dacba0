"""Topics: how much of each there is, and what holds it back: pauses, limits, no handler; how
long its handlers run and its messages wait."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from msgworker.message import State
from msgworker.queries.charts import WINDOWS, TopicTimes
from msgworker.queries.counts import TopicInfo
from msgworker.store.pauses import MAX_TOPIC
from msgworker.web import sections
from msgworker.web.site import site_of

NAV = ("Topics", "topics")
ROWS = 500
STATES = (State.NEW, State.PROCESSING, State.FAILED, State.DEAD)


def trouble(one: TopicInfo) -> str:
    """Why its messages do not run, "" = nothing is known."""
    if one.paused is not None:
        return f"paused by {one.paused.actor}"
    if not one.handlers and any(one.count(s).count for s in (State.NEW, State.FAILED)):
        return "no live instance has a handler for it"
    return (one.limit.why or "") if one.limit is not None else ""


async def topics(request: Request) -> Response:
    site = site_of(request)
    window = request.query_params.get("window", "1h")
    if window not in WINDOWS:
        raise HTTPException(400, f"window is one of {', '.join(WINDOWS)}")

    async def values() -> dict[str, Any]:
        overview, timings = await asyncio.gather(
            site.overview(), site.look_steadily(site.ops.timings, window)
        )
        times = {one.topic: one for one in timings.topics}
        found = sorted(overview.topics, key=lambda one: (one.paused is None, one.topic))
        return {
            "rows": [
                (one, trouble(one), times.get(one.topic, TopicTimes(one.topic)))
                for one in found[:ROWS]
            ],
            "left": max(0, len(found) - ROWS),
            "states": STATES,
            "window": window,
            "windows": list(WINDOWS),
            "recorded": timings.recorded,
            "most": MAX_TOPIC,
        }

    return await sections.page(site, request, "topics.html", values)


routes = [Route("/topics", topics, name="topics")]
