"""Overview: how much there is, how fast it goes, and who works."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from msgworker.message import State
from msgworker.queries.charts import WINDOWS, HistoryPoint, TopicTimes
from msgworker.queries.counts import Overview, TopicInfo
from msgworker.web import charts, sections, shown
from msgworker.web.pages import trouble
from msgworker.web.site import Site, site_of

NAV = ("Overview", "overview")
TOPICS = 100
"""The most rows of topics; those with failures come first."""


def row(one: TopicInfo, times: TopicTimes, minutes: int) -> dict[str, Any]:
    """What the table of topics shows of one; times: of a window of so many minutes."""
    counts = {state.value: one.count(state).count for state in State}
    about = f"Messages of {shown.cut(one.topic, 80)} by state"
    return {
        "info": one,
        "bar": charts.states(counts, title=about),
        "state": state_of(one, times),
        "times": times,
        "pace": pace(times.done / minutes),
    }


def state_of(one: TopicInfo, times: TopicTimes) -> list[tuple[str, str]]:
    """Words for what a topic does and what is wrong with it, each with its class."""
    waits = trouble.waits(one)
    if one.paused is not None:
        found = [("paused", "failed")]
    elif waits and not one.handlers:
        found = [("no handler", "dead")]
    elif one.count(State.PROCESSING).count:
        found = [("processing", "processing")]
    else:
        found = [("waiting", "new") if waits else ("idle", "new")]
    if waits and trouble.fails(times):
        found.append(("every try fails", "dead"))
    if one.count(State.DEAD).count:
        found.append(("dead messages", "dead"))
    return found


def pace(a_minute: float) -> str:
    """Messages a minute: a whole number, or one digit of less than ten."""
    if not a_minute or a_minute >= 9.95:
        return f"{a_minute:,.0f}"
    return "< 0.1" if a_minute < 0.05 else f"{a_minute:.1f}"


def by_trouble(topics: Sequence[TopicInfo]) -> list[TopicInfo]:
    """Those with the most dead and failed messages first, then by what waits."""
    weights = (State.DEAD, State.FAILED, State.NEW)
    return sorted(
        topics, key=lambda one: ([-one.count(state).count for state in weights], one.topic)
    )


def pictures(points: Sequence[HistoryPoint], step_seconds: int) -> list[dict[str, Any]]:
    """Throughput and latency, each with what a screen reader says of it."""
    ticks = [points[place].at for place in places(len(points))]
    done, retried = [one.done for one in points], [one.retried for one in points]
    dead = [one.dead for one in points]
    last = next((one for one in reversed(points) if one.ran_p50 is not None), None)
    went = f"{sum(done):,} done, {sum(retried):,} retried, {sum(dead):,} dead"
    took = (
        "no handler has ended"
        if last is None
        else f"at last p50 {shown.age(last.ran_p50)}, p95 {shown.age(last.ran_p95)}"
    )
    per = "a minute" if step_seconds == 60 else f"in {step_seconds // 60} minutes"
    return [
        {
            "title": f"Messages {per}",
            "keys": ("done", "retried", "dead"),
            "about": went,
            "picture": charts.bars(
                {"done": done, "retried": retried, "dead": dead},
                title=f"Messages {per}",
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


def what_matters(site: Site) -> Any:
    """Without ages, see `live.py`."""
    found: Overview = site.ops.overview()
    site.badges.note(found)
    site.polled = found
    topics = [(one.topic, dict(one.counts), one.paused is None) for one in found.topics]
    return dict(found.counts), topics, found.live, found.silent, found.dead


PARTS = {"counts": what_matters}


async def overview(request: Request) -> Response:
    site = site_of(request)
    window = request.query_params.get("window", "1h")
    if window not in WINDOWS:
        raise HTTPException(400, f"window is one of {', '.join(WINDOWS)}")

    async def values() -> dict[str, Any]:
        found, history, timings = await asyncio.gather(
            site.overview(),
            site.look_steadily(site.ops.history, window),
            site.look_steadily(site.ops.timings, window, waits=False),
        )
        times, (minutes, _) = {one.topic: one for one in timings.topics}, WINDOWS[window]
        return {
            "found": found,
            "trouble": trouble.lines(
                found,
                times,
                blocks=site.app.table.on_dead == "block",
                database=site.hardships.told,
            ),
            "states": [
                (state.value, found.count(state))
                for state in State
                if state is not State.UNKNOWN or found.count(state).count
            ],
            "topics": [
                row(one, times.get(one.topic, TopicTimes(one.topic)), minutes)
                for one in by_trouble(found.topics)[:TOPICS]
            ],
            "more_topics": max(0, len(found.topics) - TOPICS),
            "window": window,
            "windows": list(WINDOWS),
            "recorded": history.recorded,
            "pictures": pictures(history.points, history.step_seconds) if history.recorded else [],
        }

    return await sections.page(site, request, "overview.html", values)


routes = [Route("/", overview, name="overview")]
