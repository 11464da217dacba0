"""Overview: how much there is, how fast it goes, and who works."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from msgworker.message import State
from msgworker.store.looking.charts import WINDOWS, HistoryPoint
from msgworker.store.looking.overview import Overview, TopicInfo
from msgworker.web import charts, sections, shown
from msgworker.web.site import Site, site_of

NAV = ("Overview", "overview")
TOPICS = 100
"""The most rows of topics; those with failures come first."""


def row(one: TopicInfo) -> dict[str, Any]:
    """What the table of topics shows of one."""
    counts = {state.value: one.count(state).count for state in State}
    about = f"States of {one.topic}"
    return {"info": one, "bar": charts.states(counts, title=about), "state": state_of(one)}


def state_of(one: TopicInfo) -> tuple[str, str]:
    """A word for what a topic does, and its class."""
    if one.paused is not None:
        return "paused", "failed"
    if one.count(State.PROCESSING).count:
        return "running", "live"
    waits = one.count(State.NEW).count or one.count(State.FAILED).count
    if waits and not one.handlers:
        return "no handler", "dead"
    return ("waiting", "new") if waits else ("idle", "new")


def by_trouble(topics: Sequence[TopicInfo]) -> list[TopicInfo]:
    """Those with the most dead and failed messages first, then by what waits."""
    weights = (State.DEAD, State.FAILED, State.NEW)
    return sorted(
        topics, key=lambda one: ([-one.count(state).count for state in weights], one.topic)
    )


def pictures(points: Sequence[HistoryPoint], step_seconds: int) -> list[dict[str, Any]]:
    """Throughput and latency, each with what a screen reader says of it."""
    ticks = [clock(points[place].at) for place in places(len(points))]
    done, retried = [one.done for one in points], [one.retried for one in points]
    dead = [one.dead for one in points]
    last = next((one for one in reversed(points) if one.ran_p50 is not None), None)
    went = f"{sum(done):,} done, {sum(retried):,} retried, {sum(dead):,} dead"
    took = (
        "no handler has ended"
        if last is None
        else f"at last p50 {shown.age(last.ran_p50)}, p95 {shown.age(last.ran_p95)}"
    )
    per = shown.age(step_seconds).split(" ")[0]
    return [
        {
            "title": f"Messages per {per}",
            "keys": ("done", "retried", "dead"),
            "about": went,
            "picture": charts.bars(
                {"done": done, "retried": retried, "dead": dead},
                title=f"Messages per {per}",
                about=went,
                ticks=ticks,
            ),
        },
        {
            "title": "How long handlers run",
            "keys": ("p50", "p95"),
            "about": took,
            "picture": charts.lines(
                {
                    "p50": [one.ran_p50 for one in points],
                    "p95": [one.ran_p95 for one in points],
                },
                title="How long handlers run",
                about=took,
                ticks=ticks,
            ),
        },
    ]


def places(count: int) -> list[int]:
    """Where labels stand below a picture: at both ends and between."""
    return sorted({0, count // 2, count - 1}) if count else []


def clock(at: datetime) -> str:
    return f"{at:%H:%M} UTC"


def what_matters(site: Site) -> Any:
    """Without ages, see `live.py`."""
    found: Overview = site.ops.overview()
    topics = [(one.topic, dict(one.counts), one.paused is None) for one in found.topics]
    return dict(found.counts), topics, found.live, found.silent, found.dead


PARTS = {"counts": what_matters}


async def overview(request: Request) -> Response:
    site = site_of(request)
    window = request.query_params.get("window", "1h")
    if window not in WINDOWS:
        raise HTTPException(400, f"window is one of {', '.join(WINDOWS)}")

    async def values() -> dict[str, Any]:
        found = await site.look(site.ops.overview)
        history = await site.look_steadily(site.ops.history, window)
        return {
            "found": found,
            "states": [
                (state.value, found.count(state))
                for state in State
                if state is not State.UNKNOWN or found.count(state).count
            ],
            "topics": [row(one) for one in by_trouble(found.topics)[:TOPICS]],
            "more_topics": max(0, len(found.topics) - TOPICS),
            "window": window,
            "windows": list(WINDOWS),
            "recorded": history.recorded,
            "pictures": pictures(history.points, history.step_seconds) if history.recorded else [],
        }

    return await sections.page(site, request, "overview.html", values)


routes = [Route("/", overview, name="overview")]
