"""What needs help, a line each with the page that helps: the first thing on the Overview. Pure, and
from what the Overview has read anyway."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from msgworker.counted import plural
from msgworker.message import State
from msgworker.queries.charts import TopicTimes
from msgworker.queries.counts import Overview, TopicInfo
from msgworker.store.bounded import Capped
from msgworker.web import shown

NAMED = 3
"""Topics that a line names."""


@dataclass(frozen=True, slots=True)
class Line:
    """word: what it is, in a word or two, and kind: its class. text: what is wrong. route, query:
    the page to go to."""

    word: str
    kind: str
    text: str
    route: str
    query: Mapping[str, str] = field(default_factory=dict)


def lines(
    found: Overview, times: Mapping[str, TopicTimes], *, blocks: bool, database: str = ""
) -> list[Line]:
    """What is wrong now, the worst first. times: of a window, by topic. blocks: whether dead
    messages hold up their objects. database: what reads of this dashboard met, "" = nothing."""
    told = []
    if database:
        told.append(Line("database", "dead", database, "system"))
    told += [*_dead(found, blocks), *_instances(found), *_topics(found.topics, times)]
    return told


def _dead(found: Overview, blocks: bool) -> Iterator[Line]:
    dead = found.count(State.DEAD)
    if dead.count:
        yield Line("dead", "dead", f"{_messages(dead)} will not be tried again", "failures")
        if blocks:
            text = "dead messages hold up their objects until they are rerun or discarded"
            yield Line("held up", "dead", text, "lanes")
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
    if paused:
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
    names = ", ".join(shown.cut(one.topic, 40) or "(empty)" for one in topics[:NAMED])
    more = len(topics) - NAMED
    return f"{names} and {more:,} more" if more > 0 else names
