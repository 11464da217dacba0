"""Everything at a glance, topics, and series for charts."""

from __future__ import annotations

from typing import Any, Literal

from msgworker.ops.results import Repaired
from msgworker.store.looking.charts import History, Timings
from msgworker.store.looking.overview import Overview, TopicInfo
from msgworker.store.looking.sizes import Sizes
from msgworker.web.api.asked import Asked, Part, Topic, Why
from msgworker.web.api.calling import Call, Endpoint, Page, part_of
from msgworker.web.tokens import Role


class Span(Asked):
    """window: of time, up to now."""

    window: Literal["1h", "6h", "24h"] = "1h"


class Window(Span):
    """window: of time, up to now. topic: only this one."""

    topic: Topic | None = None


async def get_overview(call: Call) -> Overview:
    """Counts up to 10,000 by state and topic, the oldest message, instances."""
    found: Overview = await call.site.look(call.ops.overview)
    return found


async def list_topics(call: Call) -> Page:
    """All topics, with counts, pauses and limits."""
    found = await call.site.look(call.ops.overview)
    return part_of(call, found.topics, lambda one: one.topic)


async def get_series(call: Call) -> History:
    """What instances did in each step of a window."""
    found: History = await call.site.look(
        call.ops.history, call.query.window, topic=call.query.topic
    )
    return found


async def get_timings(call: Call) -> Timings:
    """What was done of each topic in a window, and how long it took."""
    found: Timings = await call.site.look(call.ops.timings, call.query.window)
    return found


async def get_sizes(call: Call) -> Sizes:
    """The bytes of the tables and of their indexes; null = unknown."""
    found: Sizes = await call.site.look(call.ops.sizes)
    return found


async def pause_topic(call: Call) -> Repaired:
    """Stop handlers of a topic from starting."""
    return await call.site.ask(call.acting.pause, call.path("topic"), **call.body.model_dump())


async def resume_topic(call: Call) -> Repaired:
    """Resume a paused topic."""
    return await call.site.ask(call.acting.resume, call.path("topic"), **call.body.model_dump())


_TOPIC: dict[str, Any] = {"paths": {"topic": "the name of a topic"}, "tag": "topics"}
_WRITE: dict[str, Any] = {"role": Role.OPERATOR, "body": Why} | _TOPIC
ENDPOINTS = [
    Endpoint("GET", "/overview", get_overview, Overview, tag="overview"),
    Endpoint("GET", "/topics", list_topics, TopicInfo, query=Part, page=True, tag="topics"),
    Endpoint("GET", "/metrics/series", get_series, History, query=Window, tag="overview"),
    Endpoint("GET", "/metrics/topics", get_timings, Timings, query=Span, tag="topics"),
    Endpoint("GET", "/sizes", get_sizes, Sizes, tag="overview"),
    Endpoint("POST", "/topics/{topic:path}/pause", pause_topic, Repaired, **_WRITE),
    Endpoint("POST", "/topics/{topic:path}/resume", resume_topic, Repaired, **_WRITE),
]
