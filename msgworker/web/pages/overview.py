"""Overview: how much there is, how fast it goes, who works, and what needs help; the topics, and
the page of each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup
from starlette.exceptions import HTTPException
from starlette.requests import Request

from msgworker.counted import plural, that_hold_up
from msgworker.message import State, topic_of
from msgworker.queries.counts import WINDOWS, HistoryPoint, Overview, TopicInfo, TopicTimes, Window
from msgworker.store.bounded import Capped
from msgworker.table.columns import MAX_TOPIC
from msgworker.web import charts, shown
from msgworker.web.pages.messages import LANES, shown_lane
from msgworker.web.site import Site, page

TOPICS = 100
"""The most rows of topics; those with failures come first."""


def row(one: TopicInfo, found: Overview, times: TopicTimes, minutes: int) -> dict[str, Any]:
    """What the table of topics shows of one; times: of a window of so many minutes."""
    bar = {state.value: one.count(state).count for state in State}
    about = f"Messages of {shown.cut(one.topic, 80)} by state"
    return {
        "info": one,
        "counts": counts(one, found),
        "bar": charts.states(bar, title=about),
        "state": state_of(one, times),
        "times": times,
        "pace": pace(times.done / minutes),
    }


def state_of(one: TopicInfo, times: TopicTimes) -> list[tuple[str, str]]:
    """Words for what a topic does and what is wrong with it, each with its class."""
    waiting = waits(one)
    if one.paused is not None:
        found = [("paused", "failed")]
    elif waiting and not one.handlers:
        found = [("no handler", "dead")]
    elif one.count(State.PROCESSING).count:
        found = [("processing", "processing")]
    else:
        found = [("waiting", "new") if waiting else ("idle", "new")]
    if waiting and fails(times):
        found.append(("every try fails", "dead"))
    if one.unacknowledged.count:
        found.append(("dead messages", "dead"))
    elif one.hold_objects.count or one.hold_jobs.count:
        found.append(("held up", "dead"))
    return found


def pace(a_minute: float) -> str:
    """Messages a minute: a whole number, or one digit of less than ten."""
    if not a_minute or a_minute >= 9.95:
        return f"{a_minute:,.0f}"
    return "< 0.1" if a_minute < 0.05 else f"{a_minute:.1f}"


def by_trouble(topics: Sequence[TopicInfo]) -> list[TopicInfo]:
    """Those with the most dead and failed messages first, then by what waits."""
    weights = (State.FAILED, State.NEW)

    def key(one: TopicInfo) -> tuple[list[int], str]:
        held = max(one.hold_objects, one.hold_jobs, key=lambda count: count.count)
        counts = [one.unacknowledged, held, *map(one.count, weights)]
        return [-count.count for count in counts], one.topic

    return sorted(topics, key=key)


def pictures(
    points: Sequence[HistoryPoint], step_seconds: int, *, waits: bool = False
) -> list[dict[str, Any]]:
    """Throughput and latency, each with what a screen reader says of it, and its values as rows.
    waits: also how long messages waited."""
    made = {name: [getattr(one, name) for one in points] for name in ("done", "retried", "dead")}
    went = ", ".join(f"{sum(values):,} {name}" for name, values in made.items())
    per = "a minute" if step_seconds == 60 else f"in {step_seconds // 60} minutes"
    found = [_picture(f"Messages {per}", went, charts.bars, made, points, shown.number)]
    titles = {"ran": "How long handlers run, at most"} | (
        {"waited": "How long messages wait, at most"} if waits else {}
    )
    for name, title in titles.items():
        text = shown.FILTERS[name]
        made = {one: [getattr(at, f"{name}_{one}") for at in points] for one in ("p50", "p95")}
        both = [two for two in zip(*made.values(), strict=True) if two[0] is not None]
        took = "at last p50 {}, p95 {}".format(*map(text, both[-1])) if both else "none known"
        found.append(_picture(title, took, charts.lines, made, points, text))
    return found


def _picture(
    title: str,
    about: str,
    draw: Callable[..., Markup],
    series: charts.Series,
    points: Sequence[HistoryPoint],
    text: Callable[[Any], str],
) -> dict[str, Any]:
    at = [one.at for one in points]
    ends_and_between = sorted({0, len(at) // 2, len(at) - 1}) if at else []
    ticks = [at[place] for place in ends_and_between]
    return {
        "title": title,
        "keys": tuple(series),
        "about": about,
        "picture": draw(series, title=title, about=about, ticks=ticks),
        "rows": [(one, [*map(text, row)]) for one, *row in zip(at, *series.values(), strict=True)],
    }


def window_of(request: Request) -> Window:
    """The window that a page asks for; raises HTTPException 400."""
    window = request.query_params.get("window", "1h")
    if window not in WINDOWS:
        raise HTTPException(400, f"window is one of {', '.join(WINDOWS)}")
    return window


@page("/", "overview.html", live=True)
async def overview(site: Site, request: Request) -> dict[str, Any]:
    window = window_of(request)
    found, history, timings = await asyncio.gather(
        site.overview(),
        site.look_steadily(site.ops.history, window),
        site.look_steadily(site.ops.timings, window, waits=False),
    )
    times, (minutes, _) = {one.topic: one for one in timings.topics}, WINDOWS[window]
    return {
        "found": found,
        "trouble": trouble_lines(found, times, database=site.read_errors.summary),
        "states": [
            (state.value, found.count(state))
            for state in State
            if state is not State.UNKNOWN or found.count(state).count
        ],
        "topics": [
            row(one, found, times.get(one.topic, TopicTimes(one.topic)), minutes)
            for one in by_trouble(found.topics)[:TOPICS]
        ],
        "more_topics": max(0, len(found.topics) - TOPICS),
        "window": window,
        "windows": list(WINDOWS),
        "recorded": history.recorded,
        "pictures": pictures(history.points, history.step_seconds) if history.recorded else [],
    }


# --- What needs help, a line each with the page that helps: the first thing on the Overview.
#
# Pure, and from what the Overview has read anyway.

NAMED = 3
"""Topics or jobs that a line names."""


@dataclass(frozen=True, slots=True)
class Line:
    """word: what it is, in a word or two, and kind: its class. text: what is wrong. route, query,
    path: the page to go to."""

    word: str
    kind: str
    text: str
    route: str
    query: Mapping[str, str] = field(default_factory=dict)
    path: Mapping[str, str] = field(default_factory=dict)


def trouble_lines(
    found: Overview, times: Mapping[str, TopicTimes], *, database: str = ""
) -> list[Line]:
    """What is wrong now, the worst first. times: of a window, by topic. database: why reads of this
    dashboard failed, "" = none did."""
    trouble = []
    if database:
        trouble.append(Line("database", "dead", database, "system"))
    trouble += [*_dead(found), *_instances(found), *_topics(found.topics, times)]
    if found.paused_jobs:
        names = _few([f"{one.job_id} {shown.cut(one.name, 40)}" for one in found.paused_jobs])
        trouble.append(Line("paused", "failed", f"job {names}", "jobs"))
    return trouble


def _dead(found: Overview) -> Iterator[Line]:
    dead = found.unacknowledged
    if dead.count:
        yield Line("dead", "dead", f"{_messages(dead)} will not be tried again", "failures")
    holding = ((found.hold_objects, "object", "lanes"), (found.hold_jobs, "job", "jobs"))
    for count, what, route in holding:
        if count.count:
            yield Line("held up", "dead", that_hold_up(count, what), route)
    unknown = found.count(State.UNKNOWN)
    if unknown.count:
        text = f"{_messages(unknown)} of a status that msgworker does not know"
        yield Line("unknown", "dead", text, "messages", {"status": "unknown"})


def _messages(count: Capped) -> str:
    return f"{count} message{'' if str(count) == '1' else 's'}"


def _instances(found: Overview) -> Iterator[Line]:
    if found.dead:
        text = f"{plural(found.dead, 'instance')} ended without giving messages back"
        yield Line("dead", "dead", text, "instances")
    if found.silent:
        text = f"{plural(found.silent, 'instance')} late with a heartbeat, or slow to stop"
        yield Line("silent", "failed", text, "instances")


def _topics(topics: Sequence[TopicInfo], times: Mapping[str, TopicTimes]) -> Iterator[Line]:
    waiting = [one for one in topics if waits(one)]
    alone = [one for one in waiting if not one.handlers and one.paused is None]
    if alone:
        text = f"messages wait, and no live instance has a handler: {_named(alone)}"
        yield Line("no handler", "dead", text, *_place(alone, "topics", "new"))
    fail = [one for one in waiting if fails(times.get(one.topic, TopicTimes(one.topic)))]
    if fail:
        text = f"nothing was done, every try failed: {_named(fail)}"
        yield Line("every try fails", "dead", text, *_place(fail, "failures", "failed"))
    paused = [one for one in topics if one.paused is not None]
    if len(paused) == 1:
        yield Line("paused", "failed", _named(paused), "topic", path={"topic": paused[0].topic})
    elif paused:
        yield Line("paused", "failed", _named(paused), "topics")


def waits(one: TopicInfo) -> bool:
    """Whether messages of it are to run."""
    return bool(one.count(State.NEW).count or one.count(State.FAILED).count)


def fails(times: TopicTimes) -> bool:
    """Whether tries have failed and none has ended well."""
    return bool(times.retried + times.dead) and not times.done


def _place(topics: Sequence[TopicInfo], route: str, status: str) -> tuple[str, dict[str, str]]:
    """The messages of a single topic; a page that shows all, for several."""
    if len(topics) == 1 and topics[0].topic:
        return "messages", {"status": status, "topic": topics[0].topic}
    return route, {}


def _named(topics: Sequence[TopicInfo]) -> str:
    return _few([shown.cut(one.topic, 40) or "(empty)" for one in topics])


def _few(names: Sequence[str]) -> str:
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more:,} more" if more > 0 else "")


# --- Topics: how much of each there is, what holds it back, how long handlers run.

TOPIC_ROWS = 500
STATES = (State.NEW, State.PROCESSING, State.FAILED, State.DEAD)


def counts(one: TopicInfo, found: Overview, *more: State) -> list[tuple[State, Capped]]:
    """How many of its messages are in a state; an estimate of all topics if the finished ones were
    not counted."""

    def counted(state: State) -> Capped:
        return one.count(state) + Capped(0, about=found.count(state).about)

    return [(state, counted(state)) for state in (*STATES, *more)]


def why_held(one: TopicInfo) -> str:
    """Why its messages do not run, "" = nothing is known."""
    if one.paused is not None:
        return f"paused by {one.paused.actor}"
    if not one.handlers and waits(one):
        return "no live instance has a handler for it"
    return (one.limit.why or "") if one.limit is not None else ""


@page("/topics", "topics.html", live=True)
async def topics(site: Site, request: Request) -> dict[str, Any]:
    window = window_of(request)
    overview, timings = await asyncio.gather(
        site.overview(), site.look_steadily(site.ops.timings, window)
    )
    times = {one.topic: one for one in timings.topics}
    found = sorted(overview.topics, key=lambda one: (one.paused is None, one.topic))
    return {
        "rows": [
            (one, counts(one, overview), why_held(one), times.get(one.topic, TopicTimes(one.topic)))
            for one in found[:TOPIC_ROWS]
        ],
        "left": max(0, len(found) - TOPIC_ROWS),
        "complete": overview.names_all,
        "states": STATES,
        "window": window,
        "windows": list(WINDOWS),
        "recorded": timings.recorded,
        "most": MAX_TOPIC,
    }


# --- One topic.

FEW = 20
"""Groups of failures, and lanes, that its page shows."""


@page("/topics/{topic:path}", "topic.html", live=True)
async def topic(site: Site, request: Request) -> dict[str, Any]:
    window = window_of(request)
    name: str = request.path_params["topic"]
    overview, history, timings, groups, lanes, rule = await asyncio.gather(
        site.overview(),
        site.look_steadily(site.ops.history, window, topic=name),
        site.look_steadily(site.ops.timings, window),
        site.look(site.ops.failures, topic=name, limit=FEW),
        site.look(site.ops.lanes, by="blocked", limit=LANES),
        site.ask(lambda: site.app.tables.spec),
    )
    info = next((one for one in overview.topics if one.topic == name), None)
    unseen = info is None
    if info is None:
        points = history.points
        worked = any(one.done or one.retried or one.dead or one.postponed for one in points)
        info = await _unseen(site, name, worked)
    times = next((one for one in timings.topics if one.topic == name), TopicTimes(name))
    held = [shown_lane(one) for one in lanes if topic_of(one.head.topic) == name]
    held = [one for one in held if one["info"].behind or one["kind"] in ("dead", "failed")]
    return {
        "info": info,
        "unseen": unseen,
        "words": state_of(info, times),
        "why": why_held(info),
        "counts": [one for one in counts(info, overview, State.DONE) if not one[1].about],
        "times": times,
        "pace": pace(times.done / WINDOWS[window][0]),
        "window": window,
        "windows": list(WINDOWS),
        "recorded": history.recorded,
        "pictures": pictures(history.points, history.step_seconds, waits=True),
        "groups": groups,
        "lanes": held[:FEW],
        "all_lanes": lanes.complete and len(held) <= FEW,
        "rule": rule,
        "handler": site.app._registry.get(name),
        "backoff": site.app.settings.backoff_seconds,
    }


async def _unseen(site: Site, name: str, worked: bool) -> TopicInfo:
    """A topic that is not among those of the overview; raises HTTPException 404 if there is none:
    of a large table only a part is read. worked: whether the history has any of its work."""
    found = await site.look(site.ops.messages, topic=name, limit=1)
    if found.complete and not (found or worked or name in site.app._registry.handlers):
        text = f'there is no message of topic "{shown.cut(name)}", and nothing handles it'
        raise HTTPException(404, text)
    who = await site.look(site.ops.instances)
    return TopicInfo(name, {}, None, handlers=sum(one.handles(name) for one in who))
